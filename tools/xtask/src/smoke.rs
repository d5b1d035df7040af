//! Steps that start the programs: the README's commands, the clients, the example, and an
//! older version.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::dependencies;
use crate::shell::{Running, Shell, has};

/// Ports for the README's cluster. No other step uses them.
const HTTP_PORTS: [u16; 3] = [18_881, 18_882, 18_883];
const RAFT_PORT: u16 = 16_001;
const EPICEPOCH: &str = "target/release/epicepoch";
/// A cluster must be ready within `READY` and have a leader within `LEADS`. It must end within
/// `ENDS` after SIGTERM.
const READY: Duration = Duration::from_mins(1);
const LEADS: Duration = Duration::from_secs(15);
const ENDS: Duration = Duration::from_secs(15);
/// A request is tried at most this many times. On a busy machine leadership moves, and a request
/// may be refused.
const TRIES: usize = 5;
/// Exit code of a script whose result says nothing, because leadership has moved or the machine has
/// stalled.
const MOVED: i32 = 75;
/// The first Java with virtual threads.
const VIRTUAL_THREADS: u32 = 21;
/// Exit code of scripts/upgrade if this clone has no older version.
const NO_REVISION: i32 = 69;

/// Makes a new directory for a step.
fn directory(name: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from("target/xtask").join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))
}

/// A cluster that `epicepoch dev` runs, and the port of its leader.
struct Cluster<'a> {
    sh: &'a Shell,
    process: Running,
    work: PathBuf,
    leader: u16,
}

impl<'a> Cluster<'a> {
    /// Starts the cluster with the README's command, on other ports.
    fn start(sh: &'a Shell, command: &str) -> Result<Self, String> {
        let work = directory("smoke")?;
        let base = HTTP_PORTS[0];
        let command = sh.command(&format!(
            "{command} --http-port-base {base} --raft-port-base {RAFT_PORT} --data-dir {}/dev",
            work.display(),
        ));
        let process = sh.spawn(command, &work.join("dev.log"))?;
        let mut cluster = Self { sh, process, work, leader: base };
        let until = Instant::now() + READY;
        for port in HTTP_PORTS {
            while cluster.ask(port, "/ready").is_none_or(|(status, _)| status != 200) {
                if cluster.process.has_ended() || Instant::now() > until {
                    let log = fs::read_to_string(cluster.work.join("dev.log")).unwrap_or_default();
                    return Err(format!("port {port} is not ready:\n{log}"));
                }
                thread::sleep(Duration::from_millis(100));
            }
        }
        cluster.find_leader()?;
        Ok(cluster)
    }

    /// Sends one request with curl. Returns status and body.
    fn ask(&self, port: u16, target: &str) -> Option<(u16, String)> {
        let url = format!("http://127.0.0.1:{port}{target}");
        let mut command = self.sh.command("curl --silent --max-time 5 --write-out %{http_code}");
        command.arg(url);
        let output = String::from_utf8(self.sh.captured(command).ok()?.stdout).ok()?;
        let (body, status) = output.split_at_checked(output.len().checked_sub(3)?)?;
        Some((status.parse().ok()?, body.to_owned()))
    }

    /// Runs commands of the README in bash, against this cluster. Returns their output.
    fn bash(&self, script: &str) -> Result<String, String> {
        let mut command = self.sh.command("bash -euo pipefail -c");
        command
            .arg(
                script
                    .replace("localhost:8881", &format!("localhost:{}", self.leader))
                    .replace("curl ", "curl --max-time 5 "),
            )
            .env("EPICEPOCH_ADDRS", HTTP_PORTS.map(|port| format!("localhost:{port}")).join(","));
        let output = self.sh.captured(command)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        self.sh.say(&format!("$ {script}\n{text}{errors}"));
        if output.status.success() && !text.is_empty() {
            Ok(text)
        } else {
            Err(format!("{script}: {}, {} bytes of output", output.status, text.len()))
        }
    }

    fn find_leader(&mut self) -> Result<(), String> {
        let until = Instant::now() + LEADS;
        while Instant::now() < until {
            for port in HTTP_PORTS {
                if self.ask(port, "/leader").is_some_and(|(status, _)| status == 200) {
                    self.leader = port;
                    return Ok(());
                }
            }
            thread::sleep(Duration::from_millis(100));
        }
        Err("no node leads".to_owned())
    }

    /// Number of changes of leadership, added up over all nodes.
    fn leader_changes(&self) -> u64 {
        let metrics = HTTP_PORTS.iter().filter_map(|port| self.ask(*port, "/metrics"));
        let count = |text: String| {
            let line = text
                .lines()
                .find(|line| line.starts_with("epicepoch_leader_changes_total"))?
                .to_owned();
            line.rsplit(' ').next()?.parse::<u64>().ok()
        };
        metrics.filter_map(|(_, text)| count(text)).sum()
    }

    /// Runs `what`, which must succeed. If it fails, it is repeated only if leadership has moved
    /// meanwhile.
    fn steady<T>(&mut self, what: impl Fn(&Self) -> Result<T, String>) -> Result<T, String> {
        for _ in 0..TRIES {
            // Leadership may have moved since the last request. A load on a node that does not lead
            // would get only refusals.
            let before = self.leader_changes();
            self.find_leader()?;
            let result = what(self);
            if result.is_ok() || self.leader_changes() == before {
                return result;
            }
            self.sh.say("leadership moved meanwhile");
        }
        Err("leadership moved in every try".to_owned())
    }

    /// Puts load on the leader for a few seconds. No request may fail.
    fn load(&self) -> Result<(), String> {
        let target = format!("http://127.0.0.1:{}/timestamp", self.leader);
        if has("wrk") {
            let said =
                self.sh.output(&format!("timeout 30 wrk -t1 -c32 -d3s --latency {target}"))?;
            self.sh.say(&said);
            let is_bad = said.contains("Non-2xx") || said.contains("Socket errors");
            if is_bad || !said.contains("Requests/sec") {
                return Err(format!("wrk reports a failure:\n{said}"));
            }
        }
        if has("h2load") {
            let said = self.sh.output(&format!("timeout 60 h2load -n20000 -c8 -m100 {target}"))?;
            self.sh.say(&said);
            if !said.contains("20000 succeeded, 0 failed, 0 errored, 0 timeout")
                || !said.contains("20000 2xx")
            {
                return Err(format!("h2load reports a failure:\n{said}"));
            }
        }
        Ok(())
    }
}

/// Runs the README's commands: those of "Try it" against a cluster on other ports, and the one that
/// writes the files of a new cluster. Then runs a measurement over each transport, a load, and SIGTERM.
pub(crate) fn readme(sh: &Shell) -> Result<(), String> {
    let text = fs::read_to_string("README.md").map_err(|error| format!("README.md: {error}"))?;
    let (_, rest) = text.split_once("\n## Try it\n").ok_or("README.md: no heading \"Try it\"")?;
    let (try_it, rest) = rest.split_once("\n## ").ok_or("README.md ends with \"Try it\"")?;
    // The last command is the step `tests`.
    let ([start, commands, _], [examples]) =
        (&blocks(try_it, "sh")[..], &blocks(try_it, "text")[..])
    else {
        return Err("README.md: \"Try it\" has other blocks than this step expects".to_owned());
    };
    let mut cluster = Cluster::start(sh, start)?;
    let mut outputs = Vec::new();
    for command in commands.lines() {
        outputs.push(shape(&cluster.steady(|cluster| cluster.bash(command))?));
    }
    for example in examples.split("\n\n") {
        if !outputs.contains(&shape(example)) {
            return Err(format!("README.md: no command of \"Try it\" prints\n{example}"));
        }
    }
    deployment(&cluster, &blocks(rest, "sh"))?;
    for via in ["http", "native", "client"] {
        cluster.steady(|cluster| measure(cluster, via))?;
    }
    cluster.steady(Cluster::load)?;
    match cluster.process.terminate(ENDS)? {
        0 => Ok(()),
        code => Err(format!("SIGTERM ended the cluster with {code}, not 0")),
    }
}

/// Runs the block of the README that writes the files of a new cluster. Every file that later blocks
/// name must exist.
fn deployment(cluster: &Cluster<'_>, blocks: &[String]) -> Result<(), String> {
    let start = format!("{EPICEPOCH} init");
    let block = blocks.iter().find(|block| block.starts_with(&start));
    let block = block.ok_or("README.md: no block writes the files of a cluster")?;
    let program = fs::canonicalize(EPICEPOCH).map_err(|error| format!("{EPICEPOCH}: {error}"))?;
    // The block runs as it is, in a directory where the program has the same path.
    let path = cluster.work.join(EPICEPOCH);
    path.parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| std::os::unix::fs::symlink(program, &path))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    cluster.bash(&format!("cd {}\n{block}", cluster.work.display()))?;
    let words: Vec<_> = blocks.iter().flat_map(|block| block.split_whitespace()).collect();
    let named: Vec<_> = words.into_iter().filter(|word| word.starts_with("cluster/")).collect();
    if named.len() < 3 {
        return Err(format!("README.md names too few files of a new cluster: {named:?}"));
    }
    for file in named.iter().chain(&["cluster/node-1/install.sh", "cluster/node-3/epicepoch"]) {
        if !cluster.work.join(file).exists() {
            return Err(format!("{block}: did not make {file}"));
        }
    }
    Ok(())
}

/// The fenced blocks of a language in a Markdown text, without indentation.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let parts = text.split("```").skip(1).step_by(2);
    let blocks = parts.filter_map(|block| block.split_once('\n'));
    let blocks = blocks.filter(|(first, _)| *first == language);
    blocks.map(|(_, rest)| rest.trim().replace("\n   ", "\n")).collect()
}

/// What an output looks like: the text without the characters that `xxd` shows beside the bytes, and
/// with one `0` for each number. Hexadecimal digits in words count as numbers, too.
fn shape(output: &str) -> String {
    let mut shape = String::new();
    for line in output.trim().lines() {
        for c in line.split("  ").next().unwrap_or_default().chars() {
            match c.is_ascii_hexdigit() {
                true if shape.ends_with('0') => {}
                true => shape.push('0'),
                false => shape.push(c),
            }
        }
        shape.push('\n');
    }
    shape
}

/// Runs a short measurement. Its report must say that every answer was right.
fn measure(cluster: &Cluster<'_>, via: &str) -> Result<(), String> {
    let work = cluster.work.display();
    let how = match via {
        "http" => format!("--rate 500 --duration 3s --interval 250ms --hlog {work}/bench.hlog"),
        via => format!("--via {via} --in-flight 64 --duration 2s"),
    };
    let report = format!("{work}/bench-{via}.json");
    let address = format!("127.0.0.1:{}", cluster.leader);
    cluster.sh.run(&format!("{EPICEPOCH} bench run --addr {address} {how} --report {report}"))?;
    let text = fs::read_to_string(&report).map_err(|error| format!("{report}: {error}"))?;
    if !text.contains("\"violations\": 0") {
        return Err(format!("{report} does not report 0 violations"));
    }
    let log = fs::read_to_string(format!("{work}/bench.hlog")).unwrap_or_default();
    if log.matches("HISTFAAA").count() < 3 {
        return Err("the log of a run of 3 s has fewer than 3 intervals".to_owned());
    }
    Ok(())
}

/// Checks that only test builds can break their clock and disk, or plant bugs.
pub(crate) fn no_faults(sh: &Shell) -> Result<(), String> {
    let work = directory("no-faults")?.display().to_string();
    let serve = format!(
        "TEST_FAULTS_FILE={work}/faults timeout 20 {EPICEPOCH} serve --node-id 1 --single --bootstrap \
         --raft-addr 127.0.0.1:{} --http-port 0 --data-dir {work}/data",
        RAFT_PORT + 100,
    );
    let plant = format!("timeout 20 {EPICEPOCH} sim --plant unconfirmed");
    for (command, code, said) in
        [(serve, 2, "TEST_FAULTS_FILE"), (plant, 2, "a release build has no bugs to plant")]
    {
        let output = sh.captured(sh.command(&command))?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        sh.say(&errors);
        if output.status.code() != Some(code) || !errors.contains(said) {
            return Err(format!(
                "{command}: {}, expected exit code {code} and {said:?}",
                output.status
            ));
        }
    }
    Ok(())
}

/// Builds the `epicepoch` binary of the oldest supported version.
pub(crate) fn old_program(sh: &Shell) -> Result<(), String> {
    upgrade_script(sh, "BUILDS=$BUILDS scripts/upgrade --build")
}

/// Runs the oldest supported version and this one in one cluster, under load.
pub(crate) fn upgrade(sh: &Shell) -> Result<(), String> {
    upgrade_script(sh, "scripts/upgrade")
}

fn upgrade_script(sh: &Shell, words: &str) -> Result<(), String> {
    match sh.status(sh.command(words))?.code() {
        Some(0) => Ok(()),
        Some(NO_REVISION) => {
            sh.note(
                "the upgrade was NOT tested: this clone does not have the oldest supported version",
            );
            Ok(())
        }
        code => Err(format!("{words}: exit code {code:?}")),
    }
}

/// Checks that the Go code of a directory is formatted.
fn gofmt(sh: &Shell, directory: &str) -> Result<(), String> {
    let files = sh.output(&format!("gofmt -l {directory}"))?;
    if files.is_empty() { Ok(()) } else { Err(format!("gofmt: {files}")) }
}

/// Builds a new module that depends on the Go client by its tag. Tests the client with vectors,
/// scripted servers and a real cluster under kills, with the race detector. Then it fuzzes and runs
/// every benchmark once. The fuzzing has a number of inputs and not a duration: the engine of Go 1.26
/// may report the end of a duration as a failure (go.dev/issue/75804).
pub(crate) fn go(sh: &Shell) -> Result<(), String> {
    gofmt(sh, "clients/go")?;
    sh.run("scripts/release go")?;
    sh.run("EPICEPOCH_BIN=$PWD/target/debug/epicepoch go test -C clients/go -race -count=1 ./...")?;
    sh.run("go test -C clients/go -run xxx -fuzz FuzzFrames -fuzztime 30000x .")?;
    sh.run("EPICEPOCH_BIN=$PWD/target/debug/epicepoch go test -C clients/go -run xxx -bench . -benchtime 1000x ./...")
}

/// Packs the Java client and its documentation, and tests it with vectors, scripted nodes and a
/// real cluster that loses its leaders. Then runs its benchmark for a short time. A newer Java, if
/// there is one, runs the calls of virtual threads.
pub(crate) fn java(sh: &Shell) -> Result<(), String> {
    for (program, package) in [("javac", "openjdk-17-jdk-headless"), ("mvn", "maven")] {
        if !has(program) {
            dependencies::install(sh, &[package.to_owned()]);
        }
    }
    let maven = "mvn -B -q -ntp -f clients/java";
    let binary = "EPICEPOCH_BIN=$PWD/target/debug/epicepoch";
    sh.run(&format!("{binary} {maven} -P benchmark -Dseconds=0.5 verify"))?;
    match newer_java() {
        Some(java) => {
            sh.run(&format!("{maven} -pl client surefire:test -Dtest=CallsTest -Djvm={java}"))?;
        }
        None => sh.note("calls from virtual threads were NOT tested: Java 21 or later is missing"),
    }
    Ok(())
}

/// The `java` of a JDK that has virtual threads.
fn newer_java() -> Option<String> {
    let homes = fs::read_dir("/usr/lib/jvm").ok()?.filter_map(Result::ok).map(|home| home.path());
    let mut newer = homes.filter(|home| {
        let release = fs::read_to_string(home.join("release")).unwrap_or_default();
        let version =
            release.split("JAVA_VERSION=\"").nth(1).and_then(|it| it.split(['.', '"']).next());
        version.and_then(|it| it.parse::<u32>().ok()).is_some_and(|it| it >= VIRTUAL_THREADS)
    });
    newer.next().map(|home| home.join("bin/java").display().to_string())
}

/// Tests the TypeScript client with vectors, scripted nodes and real ones, installs its package, and
/// runs its benchmark for a short time.
pub(crate) fn typescript(sh: &Shell) -> Result<(), String> {
    if !has("npm") {
        dependencies::install(sh, &["nodejs".to_owned(), "npm".to_owned()]);
    }
    sh.run("npm --prefix clients/typescript ci --no-audit --no-fund")?;
    let binary = "EPICEPOCH_BIN=$PWD/target/debug/epicepoch";
    sh.run(&format!("{binary} npm --prefix clients/typescript test"))?;
    sh.run(&format!("{binary} node clients/typescript/dist/bench/bench.js 0.2"))
}

/// Runs the bank of the Percolator example while leaders of the oracle and clients are killed. The
/// check must find no anomaly, and must find anomalies if a mistake is planted. In interval mode,
/// it must find none if clients wait, and some if they do not.
pub(crate) fn percolator(sh: &Shell) -> Result<(), String> {
    let bank = "EPICEPOCH_BIN=$PWD/target/debug/epicepoch timeout 120 target/debug/percolator";
    kills_leaders(sh, &format!("{bank} --seconds 15"))?;
    kills_leaders(sh, &format!("{bank} --seconds 8 --intervals"))?;
    finds(sh, &format!("{bank} --seconds 8 --intervals --no-wait"), "times Stale")?;
    finds(sh, &format!("{bank} --seconds 3 --plant read-past-locks"), "times WrongRead")
}

/// Runs an example, which must end with 1 and say this.
fn finds(sh: &Shell, example: &str, finding: &str) -> Result<(), String> {
    let output = sh.captured(sh.command(example))?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    sh.say(&said);
    if output.status.code() == Some(1) && said.contains(finding) {
        Ok(())
    } else {
        Err(format!("no finding with {finding:?}: {example}"))
    }
}

/// Runs an example. Returns an error if it fails, or if what it says does not prove the run.
fn kills_leaders(sh: &Shell, example: &str) -> Result<(), String> {
    let said = sh.output(example)?;
    sh.say(&said);
    proves_kills(&said)
}

/// Checks that a run has killed leaders (nodes in interval mode), and that transactions have
/// committed. The first number of a line counts: later ones are of clients and of times.
fn proves_kills(said: &str) -> Result<(), String> {
    let is_above_0 = |start: &str| {
        said.lines().filter_map(|line| line.strip_prefix(start)).any(|rest| {
            let first = rest.split_whitespace().next();
            first.is_some_and(|word| word.parse::<u64>().is_ok_and(|count| count > 0))
        })
    };
    match (is_above_0("killed "), is_above_0("committed ")) {
        (true, true) => Ok(()),
        (false, _) => Err("no leader was killed".to_owned()),
        (true, false) => Err("no transaction committed".to_owned()),
    }
}

/// Lets the examples with Badger and with client-go find each planted mistake, and runs them while
/// leaders and clients are killed. Runs the commands of docs/migrate-from-pd.md. Their modules are
/// downloaded if they are missing.
pub(crate) fn adapters(sh: &Shell) -> Result<(), String> {
    gofmt(sh, "examples")?;
    let binary = "EPICEPOCH_BIN=$PWD/target/debug/epicepoch";
    for example in ["bank", "badger", "client-go"] {
        sh.run(&format!("{binary} go test -C examples/{example} -count=1 ./..."))?;
    }
    for example in ["badger", "client-go"] {
        let program = format!("target/adapters/{example}");
        sh.run(&format!("go build -C examples/{example} -o $PWD/{program} ."))?;
        kills_leaders(sh, &format!("{binary} timeout 60 {program} --seconds 4"))?;
    }
    Ok(())
}

/// Runs each measurement of docs/performance.md for a second, and compares the load generator with
/// others. A measurement is repeated if
/// leadership has moved in the meantime.
pub(crate) fn measurements(sh: &Shell) -> Result<(), String> {
    let work = directory("measurements")?.display().to_string();
    for command in [
        "ECHO=target/debug/examples/echo scripts/targets --smoke".to_owned(),
        format!("scripts/curve --smoke --picture {work}/load.svg"),
        "scripts/saturate --seconds 6 --points 6".to_owned(),
        "PAIRS=1 SECONDS_EACH=1 scripts/bench-ratio".to_owned(),
    ] {
        let code = undisturbed(sh, &command, TRIES)?;
        if code != Some(0) {
            return Err(format!("{command}: exit code {code:?}"));
        }
    }
    Ok(())
}

/// Lets a real Prometheus scrape a cluster, and asks it every query of the rules and the dashboard.
pub(crate) fn prometheus(sh: &Shell) -> Result<(), String> {
    let command = "BIN=$PWD/target/debug/epicepoch scripts/alerts --check";
    match undisturbed(sh, command, 2)? {
        Some(0) => Ok(()),
        Some(MOVED) => {
            sh.note("whether a healthy cluster has no alert was NOT judged: this machine stalls");
            Ok(())
        }
        code => Err(format!("{command}: exit code {code:?}")),
    }
}

/// Runs a script, and again if the machine has disturbed it. Returns the last exit code.
fn undisturbed(sh: &Shell, command: &str, tries: usize) -> Result<Option<i32>, String> {
    let mut code = Some(MOVED);
    for _ in 0..tries {
        code = sh.status(sh.command(command))?.code();
        if code != Some(MOVED) {
            break;
        }
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_read_with_their_language_and_without_indentation() {
        let text = "a\n```sh\none\ntwo\n```\n- b\n   ```text\n   three\n\n   four\n   ```\n";
        assert_eq!(blocks(text, "sh"), ["one\ntwo"]);
        assert_eq!(blocks(text, "text"), ["three\n\nfour"]);
    }

    #[test]
    fn a_run_without_a_killed_leader_or_a_commit_proves_nothing() {
        let killed = "killed     7 leaders of the oracle (another one led after 29 ms at most)";
        let committed = "committed  11112 transfers (974/s); 2016 transactions only read";
        assert_eq!(proves_kills(&format!("{killed}\n{committed}\n")), Ok(()));
        let no_leader =
            "killed     0 leaders of the oracle (another one led after 29 ms at most), 26 clients";
        let no_number = "killed     leaders of the oracle: 7";
        let no_commit = "committed  0 transfers (0/s); 2016 transactions only read";
        for (killed, committed) in [
            (no_leader, committed),
            (no_number, committed),
            ("", committed),
            (killed, no_commit),
            (killed, "committed"),
            (killed, ""),
            (killed, "aborted    3 (another one committed first)"),
        ] {
            assert!(
                proves_kills(&format!("{killed}\n{committed}\n")).is_err(),
                "{killed} {committed}"
            );
        }
    }

    #[test]
    fn outputs_that_differ_only_in_numbers_have_one_shape() {
        assert_eq!(shape("00: 187b c0a6  .{.._"), shape("00: 0000 ffff  ab c\n"));
        assert_eq!(shape("{\"index\":\"7\"}"), shape("{\"index\":\"12\"}"));
        assert_ne!(shape("leader=1"), shape("leader=1 nodeID=1"));
        assert_ne!(shape("{}"), shape("[]"));
    }
}
