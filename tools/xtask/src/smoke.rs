//! Steps that start the programs: the README's first command, the clients, the example, and an
//! older version.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
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
/// Exit code of a measurement during which leadership has moved.
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
    fn start(sh: &'a Shell) -> Result<Self, String> {
        let work = directory("smoke")?;
        let base = HTTP_PORTS[0];
        let command = sh.command(&format!(
            "cargo run --release --locked -- dev --http-port-base {base} --raft-port-base {RAFT_PORT} --data-dir {}/dev",
            work.display(),
        ));
        let process = sh.spawn(command, &work.join("dev.log"))?;
        let mut cluster = Self { sh, process, work, leader: base };
        let until = Instant::now() + READY;
        for port in HTTP_PORTS {
            while cluster.ask("--http1.1", port, "/ready").is_none_or(|(status, _)| status != 200) {
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
    fn ask(&self, protocol: &str, port: u16, target: &str) -> Option<(u16, Vec<u8>)> {
        let body = self.work.join("body");
        let mut command: Command =
            self.sh.command("curl --silent --show-error --max-time 5 --write-out %{http_code}");
        command
            .arg(protocol)
            .arg("--output")
            .arg(&body)
            .arg(format!("http://127.0.0.1:{port}{target}"));
        let output = self.sh.captured(command).ok()?;
        let status = String::from_utf8(output.stdout).ok()?.parse().ok()?;
        Some((status, fs::read(body).unwrap_or_default()))
    }

    fn find_leader(&mut self) -> Result<(), String> {
        let until = Instant::now() + LEADS;
        while Instant::now() < until {
            for port in HTTP_PORTS {
                if self.ask("--http1.1", port, "/leader").is_some_and(|(status, _)| status == 200) {
                    self.leader = port;
                    return Ok(());
                }
            }
            thread::sleep(Duration::from_millis(100));
        }
        Err("no node leads".to_owned())
    }

    /// Sends a request to the leader. If leadership has moved, sends it again to the new leader.
    /// The answer must have `status`, and `length` bytes.
    fn expect(
        &mut self,
        protocol: &str,
        target: &str,
        status: u16,
        length: Option<usize>,
    ) -> Result<Vec<u8>, String> {
        let mut seen = String::new();
        for _ in 0..TRIES {
            let (found, body) = self
                .ask(protocol, self.leader, target)
                .ok_or_else(|| format!("{target}: no answer"))?;
            if found == status && length.is_none_or(|length| length == body.len()) {
                self.sh
                    .say(&format!("ok  {protocol:<24} {status}  {target} ({} bytes)", body.len()));
                return Ok(body);
            }
            seen = format!(
                "{target} ({protocol}): status {found}, {} bytes; expected {status}",
                body.len()
            );
            self.sh.say(&seen);
            if !matches!(found, 409 | 503) {
                break;
            }
            thread::sleep(Duration::from_millis(300));
            self.find_leader()?;
        }
        Err(seen)
    }

    /// Number of changes of leadership, added up over all nodes.
    fn leader_changes(&self) -> u64 {
        let metrics = HTTP_PORTS.iter().filter_map(|port| self.ask("--http1.1", *port, "/metrics"));
        let count = |text: String| {
            let line = text
                .lines()
                .find(|line| line.starts_with("epicepoch_leader_changes_total"))?
                .to_owned();
            line.rsplit(' ').next()?.parse::<u64>().ok()
        };
        metrics.filter_map(|(_, body)| count(String::from_utf8_lossy(&body).into_owned())).sum()
    }

    /// Runs `what`, which must succeed. If it fails, it is repeated only if leadership has moved
    /// meanwhile.
    fn steady(&mut self, what: impl Fn(&Self) -> Result<(), String>) -> Result<(), String> {
        for _ in 0..TRIES {
            // Leadership may have moved since the last request. A load on a node that does not lead
            // would get only refusals.
            let before = self.leader_changes();
            self.find_leader()?;
            let Err(error) = what(self) else { return Ok(()) };
            if self.leader_changes() == before {
                return Err(error);
            }
            self.sh.say(&format!("while leadership moved: {error}"));
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
                return Err(format!("wrk saw a failure:\n{said}"));
            }
        }
        if has("h2load") {
            let said = self.sh.output(&format!("timeout 60 h2load -n20000 -c8 -m100 {target}"))?;
            self.sh.say(&said);
            if !said.contains("20000 succeeded, 0 failed, 0 errored, 0 timeout")
                || !said.contains("20000 2xx")
            {
                return Err(format!("h2load saw a failure:\n{said}"));
            }
        }
        Ok(())
    }
}

/// Runs the README's first command on other ports, then every path over HTTP/1.1 and HTTP/2, the
/// binary's commands, a measurement over each transport, a load, and SIGTERM.
pub(crate) fn readme(sh: &Shell) -> Result<(), String> {
    let mut cluster = Cluster::start(sh)?;
    for protocol in ["--http1.1", "--http2-prior-knowledge"] {
        for target in [
            "/up",
            "/ready",
            "/leader",
            "/members",
            "/membership",
            "/metrics",
            "/timestamp?n=3&format=json",
        ] {
            cluster.expect(protocol, target, 200, None)?;
        }
        cluster.expect(protocol, "/timestamp", 200, Some(16))?;
        cluster.expect(protocol, "/timestamp?n=3", 200, Some(48))?;
        cluster.expect(protocol, "/timestamp?n=65536", 200, Some(1 << 20))?;
        cluster.expect(protocol, "/timestamp?n=1000000&format=range", 200, Some(24))?;
        cluster.expect(protocol, "/timestamp?n=0", 400, None)?;
        cluster.expect(protocol, "/nope", 404, None)?;
    }
    let before = cluster.expect("--http1.1", "/timestamp", 200, Some(16))?;
    let after = cluster.expect("--http1.1", "/timestamp", 200, Some(16))?;
    if before >= after {
        return Err(format!("{after:02x?} came after {before:02x?}"));
    }
    for port in HTTP_PORTS {
        cluster.steady(|_| sh.run(&format!("{EPICEPOCH} status --addr 127.0.0.1:{port}")))?;
    }
    cluster.steady(|cluster| {
        let mut command = sh.command("bash -o pipefail -c");
        command.arg(format!(
            "{EPICEPOCH} get -n 3 --addr 127.0.0.1:{} | {EPICEPOCH} decode",
            cluster.leader
        ));
        sh.succeed(command)
    })?;
    for via in ["http", "native", "client"] {
        cluster.steady(|cluster| measure(cluster, via))?;
    }
    cluster.steady(Cluster::load)?;
    match cluster.process.terminate(ENDS)? {
        0 => Ok(()),
        code => Err(format!("SIGTERM ended the cluster with {code}, not 0")),
    }
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
    cluster.sh.run(&format!("{EPICEPOCH} bench run --addr {address} {how} --json {report}"))?;
    let text = fs::read_to_string(&report).map_err(|error| format!("{report}: {error}"))?;
    if !text.contains("\"violations\": 0") {
        return Err(format!("{report} does not say that all is well"));
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
        [(serve, 1, "TEST_FAULTS_FILE"), (plant, 2, "a release build has no bugs to plant")]
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
            sh.note("no upgrade was tried: this clone does not have the oldest version that is supported");
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

/// Tests the Go client with vectors, scripted servers and a real cluster under kills, with the race
/// detector. Then it fuzzes for a short time and runs every benchmark once.
pub(crate) fn go(sh: &Shell) -> Result<(), String> {
    gofmt(sh, "clients/go")?;
    sh.run("go -C clients/go vet ./...")?;
    sh.run("EPICEPOCH_BIN=$PWD/target/debug/epicepoch go test -C clients/go -race -count=1 ./...")?;
    sh.run("go test -C clients/go -run xxx -fuzz FuzzFrames -fuzztime 5s .")?;
    sh.run("EPICEPOCH_BIN=$PWD/target/debug/epicepoch go test -C clients/go -run xxx -bench . -benchtime 1000x ./...")
}

/// Packs the Java client and its documentation, and tests it with vectors, scripted nodes and a
/// real cluster that loses its leaders. A newer Java, if there is one, runs the calls of virtual
/// threads.
pub(crate) fn java(sh: &Shell) -> Result<(), String> {
    for (program, package) in [("javac", "openjdk-17-jdk-headless"), ("mvn", "maven")] {
        if !has(program) {
            dependencies::install(sh, &[package.to_owned()]);
        }
    }
    let maven = "mvn -B -q -ntp -f clients/java";
    sh.run(&format!("EPICEPOCH_BIN=$PWD/target/debug/epicepoch {maven} verify"))?;
    match newer_java() {
        Some(java) => {
            sh.run(&format!("{maven} -pl client surefire:test -Dtest=CallsTest -Djvm={java}"))?;
        }
        None => sh.note("no call came from a virtual thread: there is no Java 21 or later"),
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

/// Runs the bank of the Percolator example while clients are killed. The check must find no
/// anomaly, and must find anomalies if a mistake is planted.
pub(crate) fn percolator(sh: &Shell) -> Result<(), String> {
    let work = directory("percolator")?.display().to_string();
    gofmt(sh, "examples/percolator/go")?;
    sh.run("go -C examples/percolator/go vet ./...")?;
    sh.run("go test -C examples/percolator/go -count=1 ./...")?;
    let bank = "EPICEPOCH_BIN=$PWD/target/debug/epicepoch timeout 120 target/debug/percolator run";
    let said = sh.output(&format!("{bank} --seconds 15"))?;
    sh.say(&said);
    let counted = |line: &str| {
        line.split_whitespace().any(|word| word.parse::<u64>().is_ok_and(|count| count > 0))
    };
    if !said.lines().any(|line| line.starts_with("killed") && counted(line)) {
        return Err("no leader was killed".to_owned());
    }
    if !said.lines().any(|line| line.contains("by the client in Go") && counted(line)) {
        return Err("the client in Go did nothing".to_owned());
    }
    let planted = format!("{bank} --seconds 3 --plant read-past-locks --dir {work}/run");
    let output = sh.captured(sh.command(&planted))?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    sh.say(&said);
    let found = said.contains("times WrongRead");
    if output.status.code() == Some(1) && found {
        Ok(())
    } else {
        Err("the planted mistake is not found".to_owned())
    }
}

/// Runs each measurement of docs/performance.md for a second. A measurement is repeated if
/// leadership has moved in the meantime.
pub(crate) fn measurements(sh: &Shell) -> Result<(), String> {
    let work = directory("measurements")?.display().to_string();
    for command in [
        "ECHO=target/debug/examples/echo scripts/targets --smoke".to_owned(),
        format!("scripts/curve --smoke --picture {work}/load.svg"),
        "scripts/saturate --seconds 6 --points 6".to_owned(),
    ] {
        let mut code = Some(MOVED);
        for _ in 0..TRIES {
            code = sh.status(sh.command(&command))?.code();
            if code != Some(MOVED) {
                break;
            }
        }
        if code != Some(0) {
            return Err(format!("{command}: exit code {code:?}"));
        }
    }
    Ok(())
}
