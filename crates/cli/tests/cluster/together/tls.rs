//! Clients and nodes authenticate with certificates that `epicepoch certs` has made. Checks which
//! clients are accepted over each transport, and that replacing all certificates under load fails
//! no request.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use epicepoch_bench::record::Run;
use epicepoch_bench::run::monitor::Monitor;
use epicepoch_bench::run::{Arrivals, Pace, RunConfig, Target, Transport};
use epicepoch_certs::authority::{Authority, Validity};
use epicepoch_client::{Tls, Token};
use epicepoch_wire::NodeId;

use crate::support::node::binary;
use crate::support::{
    Campaigns, Cluster, Node, Turn, WAIT_MAX, say, undisturbed, unused_port, wait_until,
};

/// A client's shell.
struct Shell<'a> {
    directory: &'a Path,
    addrs: String,
}

impl Shell<'_> {
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(binary());
        command.args(line.split_whitespace()).current_dir(self.directory).stdin(Stdio::null());
        command.env_clear().env("EPICEPOCH_ADDRS", &self.addrs);
        command
    }

    fn output(&self, line: &str) -> Output {
        self.command(line).output().expect("it runs")
    }

    /// Runs a command that must succeed. Returns its output.
    #[track_caller]
    fn run(&self, line: &str) -> String {
        let output = self.output(line);
        let complaint = String::from_utf8_lossy(&output.stderr);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{line}: {printed}{complaint}");
        printed
    }

    /// Runs a command that must fail. Returns what it wrote to standard error.
    #[track_caller]
    fn complaint(&self, line: &str) -> String {
        let output = self.output(line);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{line}: it gets in");
        complaint
    }

    /// Runs a command that must fail with these words. The refusal is final, so the command does
    /// not try again.
    #[track_caller]
    fn refused(&self, line: &str, words: &str) {
        let complaint = self.complaint(line);
        assert!(complaint.contains(words), "{line}: {complaint}");
    }

    /// Runs a command that must fail with these words at once, although it may try for an hour.
    #[track_caller]
    fn fails_at_once(&self, line: &str, words: &str) {
        let mut command = self.command(&format!("{line} --timeout 3600s"));
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        wait_until(&format!("{line} ends"), WAIT_MAX, || child.try_wait().expect("ours").is_some());
        let output = child.wait_with_output().expect("it has ended");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line}: {complaint}");
        assert!(complaint.contains(words), "{line}: {complaint}");
    }

    /// Runs a command that must fail with these words. The refusal is not final, so the command
    /// tries again until its deadline. If the machine stalls until the deadline, the command makes
    /// no attempt, so it is run again. It must never succeed.
    #[track_caller]
    fn turned_away(&self, line: &str, words: &str) {
        let mut complaint = String::new();
        wait_until(&format!("{line} is refused: {words:?}"), WAIT_MAX, || {
            complaint = self.complaint(line);
            let is_refused = complaint.contains(words);
            if !is_refused {
                say(&format!("not yet: {}", complaint.trim()));
            }
            is_refused
        });
    }
}

/// Deadline of a command whose refusal is final. It is not reached.
const FINAL: &str = "--timeout 5s";
/// Deadline of a command whose refusal is not final. The command tries again until then, so it is
/// short.
const PASSING: &str = "--timeout 700ms";

fn flags(directory: &str, client: &str) -> String {
    format!(
        "--ca-file {directory}/ca.pem --cert-file {directory}/client-{client}.pem --key-file \
         {directory}/client-{client}.key"
    )
}

const NODES: &str = "1=127.0.0.1 2=127.0.0.1 3=localhost,127.0.0.1";

/// Creates an authority in `home`, and certificates for these nodes, so that they trust only each
/// other. The nodes must be down. Clients still use plain text.
pub(crate) fn secure_peers(cluster: &mut Cluster, home: &Path) {
    let shell = Shell { directory: home, addrs: String::new() };
    shell.run("certs ca --dir peers");
    shell.run(&format!("certs node --dir peers {NODES}"));
    for node in &mut cluster.nodes {
        let file = |name: &str| home.join("peers").join(name).display().to_string();
        node.set("PEER_CERT_FILE", file(&format!("node-{}.pem", node.id)));
        node.set("PEER_KEY_FILE", file(&format!("node-{}.key", node.id)));
        node.set("PEER_CA_FILE", file("ca.pem"));
    }
}

/// Sets the files with which these nodes require certificates from clients and peers. The nodes
/// must be down.
fn secure(cluster: &mut Cluster, home: &Path) {
    for node in &mut cluster.nodes {
        let file = |name: &str| home.join(name).display().to_string();
        for whose in ["", "PEER_"] {
            node.set(&format!("{whose}CERT_FILE"), file(&format!("node-{}.pem", node.id)));
            node.set(&format!("{whose}KEY_FILE"), file(&format!("node-{}.key", node.id)));
        }
        node.set("CLIENT_CA_FILE", file("ca.pem"));
        node.set("PEER_CA_FILE", file("ca.pem"));
    }
}

fn copy(from: &Path, to: &Path, names: &[&str]) {
    for name in names {
        std::fs::copy(from.join(name), to.join(name)).expect("copied");
    }
}

const PAIRS: [&str; 6] =
    ["node-1.pem", "node-1.key", "node-2.pem", "node-2.key", "node-3.pem", "node-3.key"];

#[test]
fn a_secured_cluster_serves_its_own_clients_alone_and_a_rotation_fails_no_request() {
    let home = tempfile::tempdir().expect("a directory");
    let mut cluster = Cluster::down_calm(&[("CLIENT_TLS", "on")]);
    secure(&mut cluster, home.path());
    let addrs: Vec<_> = cluster.nodes.iter().map(|node| node.http().to_string()).collect();
    let shell = Shell { directory: home.path(), addrs: addrs.join(",") };
    for directory in ["old", "new", "foreign"] {
        shell.run(&format!("certs ca --dir {directory}"));
        shell.run(&format!("certs node --dir {directory} {NODES}"));
        shell.run(&format!("certs client --dir {directory} app"));
    }
    shell.refused(&format!("certs node --dir old {NODES}"), "exists already");
    shell.refused("certs ca --dir old", "exists already");
    shell.refused("certs node --dir old --cluster other 4=localhost", "authority of cluster");
    shell.refused("certs node --dir old 4=a.example 04=b.example", "twice");
    shell.refused("certs node --dir old 4=node-1.epicepoch.epicepoch.internal", "which node");
    assert!(!home.path().join("old/node-4.pem").exists(), "a refused command writes nothing");
    let of = |name: &str| home.path().join(name);
    copy(&of("old"), home.path(), &PAIRS);
    std::fs::copy(of("old/ca.pem"), of("ca.pem")).expect("copied");
    cluster.start_all();
    let old = flags("old", "app");
    wait_until("the secured cluster serves", WAIT_MAX, || {
        shell.output(&format!("status {old}")).status.success()
    });

    // Clients without a valid certificate, or with the wrong authority, are refused, each with a
    // reason.
    shell.refused(&format!("get {FINAL}"), "TLS");
    let get = format!("get {PASSING}");
    shell.turned_away(&format!("{get} --ca-file foreign/ca.pem"), "authority given");
    shell.turned_away(&format!("{get} --ca-file old/ca.pem"), "CLIENT_CA_FILE");
    let mixed = old.replace("old/client", "foreign/client");
    shell.turned_away(&format!("{get} {mixed}"), "CLIENT_CA_FILE");
    shell.refused(&format!("get {FINAL} --cert-file old/client-app.pem"), "--ca-file");
    shell.run(&format!("get -n 3 {old}"));
    assert!(shell.run(&format!("member list {old}")).contains("voter"), "operators get in, too");
    shell.refused(&format!("member list {FINAL}"), "TLS");
    shell.run(&format!("clock {old}"));
    for via in ["http1", "h2c", "native", "client"] {
        let load = "--duration 1s --warmup 0 --connections 2";
        shell.run(&format!("bench run --via {via} {load} {old} --report {via}.json"));
        let report = Run::read(&of(&format!("{via}.json"))).expect("a report");
        assert!(report.answers > 0, "{via}");
        assert_eq!(report.verify.expect("on by default").violations, 0, "{via}");
    }

    // From here on, all certificates and authorities are replaced while clients send requests.
    let tls = Tls::trusting(of("old/ca.pem"))
        .and_then(|tls| tls.showing(of("old/client-app.pem"), of("old/client-app.key")));
    let mut load = Seen::start(RunConfig {
        transport: Transport::Native { in_flight: 4 },
        connections: 2,
        pace: Pace::Open { rate: 200.0, arrivals: Arrivals::Poisson },
        tls: Some(tls.expect("files of TLS")),
        ..RunConfig::new(cluster.nodes.iter().map(target).collect())
    });
    load.wait_for_more(100);
    let read = |name: &str| std::fs::read_to_string(of(name)).expect("written");
    let new = flags("new", "app");
    let wait_for = |settings: [&str; 2]| {
        let in_use = |log: &str| {
            settings.iter().all(|setting| {
                let setting = format!("\"{setting}\"");
                log.lines()
                    .any(|line| line.contains("certificates reloaded") && line.contains(&setting))
            })
        };
        wait_until(&format!("{settings:?} are in use"), WAIT_MAX, || {
            cluster.nodes.iter().all(|node| in_use(&node.log()))
        });
    };
    // First all nodes trust both authorities. Only then do nodes show certificates of the new
    // authority.
    std::fs::write(of("ca.pem"), read("old/ca.pem") + &read("new/ca.pem")).expect("written");
    wait_for(["CLIENT_CA_FILE", "PEER_CA_FILE"]);
    copy(&of("new"), home.path(), &PAIRS);
    wait_for(["CERT_FILE", "PEER_CERT_FILE"]);
    shell.run(&format!("get {new}"));
    shell.turned_away(&format!("{get} --ca-file old/ca.pem"), "authority given");
    std::fs::write(of("ca.pem"), read("new/ca.pem")).expect("written");
    let both = new.replace("new/client", "old/client");
    wait_until("the old authority's clients are refused", WAIT_MAX, || {
        let output = shell.output(&format!("{get} {both}"));
        let complaint = String::from_utf8_lossy(&output.stderr);
        !output.status.success() && complaint.contains("CLIENT_CA_FILE")
    });
    shell.run(&format!("get {new}"));
    load.wait_for_more(100);
    let (answers, failures) = load.finish();
    // The load uses connections that were opened with the old certificate. They are still open,
    // although a new connection with that certificate would now be refused.
    assert!(failures.is_empty(), "{failures:?}");
    say(&format!("a rotation during {answers} answers"));
    for node in &mut cluster.nodes {
        assert!(node.is_running());
        assert!(node.terminate().success(), "node {}", node.id);
    }
}

fn target(node: &Node) -> Target {
    Target { id: node.id, name: node.http().to_string(), addr: node.http() }
}

/// Clients that send requests all the time, with the answers and failures that they have got so
/// far.
struct Seen {
    monitor: Monitor,
    answers: u64,
    failures: BTreeMap<&'static str, u64>,
}

impl Seen {
    fn start(config: RunConfig) -> Self {
        Self { monitor: Monitor::start(config), answers: 0, failures: BTreeMap::new() }
    }

    fn look(&mut self) -> u64 {
        let snapshot = self.monitor.snapshot();
        self.answers += snapshot.answers;
        for (name, count) in snapshot.failures {
            *self.failures.entry(name).or_default() += count;
        }
        assert_eq!(snapshot.violations, 0, "{:?}", snapshot.descriptions);
        self.answers
    }

    /// Waits for this many more answers.
    #[track_caller]
    fn wait_for_more(&mut self, answers: u64) {
        let wanted = self.look() + answers;
        wait_until("clients get answers", WAIT_MAX, || self.look() >= wanted);
    }

    /// Stops the clients and checks that all answers are in order. Returns the number of answers,
    /// and the failures.
    fn finish(mut self) -> (u64, BTreeMap<&'static str, u64>) {
        self.look();
        let last = self.monitor.stop();
        assert_eq!(last.violations, 0, "{:?}", last.descriptions);
        assert!(last.checked >= self.answers, "{} answers were checked", last.checked);
        (self.answers, self.failures)
    }
}

/// Waits until every node has logged that it reloaded the files of these settings. `since` has the
/// length of each node's log before the files were changed.
#[track_caller]
fn wait_in_use(nodes: &[Node], since: &[usize], settings: &[&str]) {
    wait_until(&format!("{settings:?} are in use"), WAIT_MAX, || {
        nodes.iter().zip(since).all(|(node, since)| {
            let log = node.log();
            let lines = &log[*since..];
            let is_told = |setting: &&str| {
                let setting = format!("\"{setting}\"");
                let told = |line: &str| line.contains(&setting) && line.contains(IN_USE);
                lines.lines().any(told)
            };
            settings.iter().all(is_told)
        })
    });
}

const IN_USE: &str = "certificates reloaded";

/// Kills the leader, and starts it again when another node leads. Returns the index of the killed
/// node.
fn kill_leader(cluster: &mut Cluster) -> usize {
    let leader = wait_for_leader(cluster, None);
    cluster.nodes[leader].kill();
    wait_for_leader(cluster, Some(leader));
    cluster.nodes[leader].start();
    leader
}

/// Waits until a node other than `other` leads. Finds the leader in the logs, because these nodes
/// do not answer in plain text.
fn wait_for_leader(cluster: &Cluster, other: Option<usize>) -> usize {
    let mut leader = None;
    wait_until("there is a leader", WAIT_MAX, || {
        let term_led = |node: &Node| {
            let log = node.log();
            let line = log.lines().rev().find(|line| line.contains("\"this node leads\""))?;
            let term = line.split("\"term\":").nth(1)?;
            term.split(|it: char| !it.is_ascii_digit()).next()?.parse::<u64>().ok()
        };
        let nodes = cluster.nodes.iter().enumerate();
        let newest = nodes.filter_map(|(at, node)| Some((term_led(node)?, at))).max();
        leader = newest.map(|(_, at)| at).filter(|at| Some(*at) != other);
        leader.is_some()
    });
    leader.expect("the wait is over")
}

const OPERATOR: &str = "operator-token-0123456789";
const CLIENT: &str = "client-token-0123456789";
const SECOND: &str = "second-token-0123456789";
const THIRD: &str = "third-token-0123456789";

/// Checks that commands and transports work with the right token, and are refused without it.
fn each_tool_needs_its_token(cluster: &Cluster, shell: &Shell<'_>, app: &str) {
    for via in ["http1", "h2c", "http3", "native", "client"] {
        undisturbed(|| {
            let campaigns = Campaigns::so_far(cluster);
            let load = "--duration 1s --warmup 0 --connections 2 --token-file clients";
            let line = format!("bench run --via {via} {load} {app} --report {via}.json");
            let output = shell.output(&line);
            let report = Run::read(&shell.directory.join(format!("{via}.json")));
            let is_whole = report.is_ok_and(|it| it.answers > 0 && it.failures.is_empty());
            let holds = output.status.success() && is_whole;
            let what = format!("{via}: every request is answered: {output:?}");
            campaigns.judge(cluster, 0, holds, &what)
        });
    }
    shell.refused(&format!("get {FINAL} {app}"), "UNAUTHORIZED");
    shell.refused(&format!("bench run --duration 100ms {app}"), "UNAUTHORIZED");
    shell.run(&format!("status {app} --token-file clients"));
    shell.run(&format!("member list {app} --token-file operators"));
    shell.refused(&format!("member list {app} --token-file clients"), "token");
}

#[test]
#[expect(clippy::too_many_lines, reason = "one scenario, in the order in which it happens")]
fn a_secured_cluster_survives_kills_restarts_and_a_rotation_under_load() {
    let home = tempfile::tempdir().expect("a directory");
    let of = |name: &str| home.path().join(name);
    let write = |name: &str, text: &str| std::fs::write(of(name), text).expect("written");
    let read = |name: &str| std::fs::read_to_string(of(name)).expect("written");
    let mut cluster = Cluster::down(&[("CLIENT_TLS", "on")]);
    secure(&mut cluster, home.path());
    for node in &mut cluster.nodes {
        node.set("CLIENT_TOKEN_FILE", of("clients").display());
        node.set("OPS_TOKEN_FILE", of("operators").display());
    }
    write("clients", &format!("{CLIENT}\n{SECOND}\n"));
    write("operators", OPERATOR);
    write("second", SECOND);
    write("third", THIRD);
    let addrs: Vec<_> = cluster.nodes.iter().map(|node| node.http().to_string()).collect();
    let shell = Shell { directory: home.path(), addrs: addrs.join(",") };
    for directory in ["old", "new"] {
        shell.run(&format!("certs ca --dir {directory}"));
        shell.run(&format!("certs node --dir {directory} {NODES}"));
        shell.run(&format!("certs client --dir {directory} app"));
    }
    // Copies a client's certificate and key from `directory` to the files that clients use.
    let renew_client = |directory: &str| {
        for end in ["key", "pem"] {
            write(&format!("client-app.{end}"), &read(&format!("{directory}/client-app.{end}")));
        }
    };
    copy(&of("old"), home.path(), &PAIRS);
    write("ca.pem", &read("old/ca.pem"));
    write("trusted.pem", &read("old/ca.pem"));
    renew_client("old");
    cluster.start_all();
    let app = "--ca-file trusted.pem --cert-file client-app.pem --key-file client-app.key";
    let get = format!("get {FINAL} {app} --token-file");
    wait_until("the secured cluster serves", WAIT_MAX, || {
        shell.output(&format!("{get} clients")).status.success()
    });
    each_tool_needs_its_token(&cluster, &shell, app);

    let tls = Tls::trusting(of("trusted.pem"))
        .and_then(|tls| tls.showing(of("client-app.pem"), of("client-app.key")));
    let config = |transport, others: &[Transport], connections, request_timeout| RunConfig {
        transport,
        others: others.to_vec(),
        connections,
        pace: Pace::Open { rate: 100.0, arrivals: Arrivals::Poisson },
        request_timeout,
        tls: Some(tls.as_ref().expect("files of TLS").clone()),
        token: Token::new(CLIENT),
        ..RunConfig::new(cluster.nodes.iter().map(target).collect())
    };
    let native = Transport::Native { in_flight: 4 };
    let others = [
        Transport::Http1 { pipeline: 4 },
        Transport::H2c { streams: 4 },
        Transport::Http3 { streams: 4 },
    ];
    let mut all = Seen::start(config(native, &others, 8, Duration::from_secs(1)));
    let mut retrying = Seen::start(config(Transport::Client { callers: 4 }, &[], 2, WAIT_MAX / 2));
    all.wait_for_more(50);
    let since = |cluster: &Cluster| -> Vec<usize> {
        cluster.nodes.iter().map(|node| node.log().len()).collect()
    };

    // A restarted node must be ready before the test kills the next one. Otherwise there would be
    // no quorum.
    let wait_ready = |at: usize| {
        let alone = Shell { directory: home.path(), addrs: addrs[at].clone() };
        wait_until("the restarted node is ready", WAIT_MAX, || {
            let status = alone.output(&format!("status {app} --token-file clients --timeout 2s"));
            let text = String::from_utf8_lossy(&status.stdout);
            text.lines().skip(1).any(|row| row.contains(&alone.addrs) && row.contains(" yes "))
        });
    };
    wait_ready(kill_leader(&mut cluster));
    retrying.wait_for_more(50);

    // Step 1 of the rotation: all nodes trust both authorities. A third token replaces the second
    // one.
    let before = since(&cluster);
    write("ca.pem", &(read("old/ca.pem") + &read("new/ca.pem")));
    write("trusted.pem", &read("ca.pem"));
    write("clients", &format!("{CLIENT}\n{THIRD}\n"));
    wait_in_use(&cluster.nodes, &before, &["CLIENT_CA_FILE", "PEER_CA_FILE"]);
    wait_until("the new token is taken", WAIT_MAX, || {
        shell.output(&format!("{get} third")).status.success()
    });
    shell.refused(&format!("{get} second"), "UNAUTHORIZED");
    wait_ready(kill_leader(&mut cluster));
    retrying.wait_for_more(50);

    // Step 2: all nodes show certificates of the new authority. Then they restart one by one.
    let before = since(&cluster);
    copy(&of("new"), home.path(), &PAIRS);
    renew_client("new");
    wait_in_use(&cluster.nodes, &before, &["CERT_FILE", "PEER_CERT_FILE"]);
    for at in 0..cluster.nodes.len() {
        assert!(cluster.nodes[at].terminate().success(), "node {at}");
        cluster.nodes[at].start();
        wait_ready(at);
        retrying.wait_for_more(20);
    }

    // Step 3: nodes and clients no longer trust the old authority.
    let before = since(&cluster);
    write("ca.pem", &read("new/ca.pem"));
    write("trusted.pem", &read("new/ca.pem"));
    wait_in_use(&cluster.nodes, &before, &["CLIENT_CA_FILE", "PEER_CA_FILE"]);
    kill_leader(&mut cluster);
    all.wait_for_more(100);
    retrying.wait_for_more(50);
    let old = app.replace("client-app", "old/client-app");
    shell.turned_away(&format!("get {PASSING} {old} --token-file clients"), "alert");

    let (answers, lost) = all.finish();
    let (retried, failed) = retrying.finish();
    say(&format!(
        "{answers} answers over all transports, {lost:?} failed; {retried} to the client that retries"
    ));
    assert!(failed.is_empty(), "requests of the client that retries failed: {failed:?}");
    for node in &mut cluster.nodes {
        assert!(node.is_running());
        let log = node.log();
        assert!(![CLIENT, SECOND, THIRD, OPERATOR].iter().any(|token| log.contains(token)));
    }
}

/// Every command that connects to nodes.
const ASKING: [&str; 10] = [
    "get",
    "status",
    "member list",
    "leader transfer",
    "clock",
    "settings list",
    "tune",
    "rolling --dry-run",
    "backup --out x.backup",
    "bench run --duration 100ms --warmup 0",
];

#[test]
fn every_command_says_at_once_that_tls_failed_and_what_to_do() {
    let _turn = Turn::side_by_side();
    let home = tempfile::tempdir().expect("a directory");
    let of = |name: &str| home.path().join(name);
    let mut nodes: Vec<_> = ["tls", "plain", "choosy"]
        .into_iter()
        .zip(1..)
        .map(|(name, id)| {
            let mut node = Node::new(id, home.path(), name);
            node.set("SINGLE", "1");
            node.set("BOOTSTRAP", "1");
            node
        })
        .collect();
    let shell = Shell { directory: home.path(), addrs: String::new() };
    shell.run("certs ca");
    shell.run("certs ca --dir foreign");
    shell.run("certs node 1=n1.example");
    for at in [0, 2] {
        nodes[at].set("CLIENT_TLS", "on");
        nodes[at].set("CERT_FILE", of("certs/node-1.pem").display());
        nodes[at].set("KEY_FILE", of("certs/node-1.key").display());
    }
    nodes[2].set("CLIENT_CA_FILE", of("certs/ca.pem").display());
    nodes.iter_mut().for_each(Node::start);
    let [tls, plain, choosy] = [0, 1, 2].map(|at| format!("--addr {}", nodes[at].http()));
    let ca = "--ca-file certs/ca.pem";
    // The certificate names localhost and the loopback addresses, although only n1.example is given.
    for host in ["localhost", "127.0.0.1"] {
        wait_until("it serves", WAIT_MAX, || {
            let get = format!("get {ca} --addr {host}:{}", nodes[0].http_port);
            shell.output(&get).status.success()
        });
    }
    wait_until("it serves", WAIT_MAX, || shell.output(&format!("get {plain}")).status.success());
    let another_host = format!("--addr 127.0.0.2:{}", nodes[0].http_port);
    for command in ASKING {
        for (flags, words) in [
            (format!("{tls} --ca-file foreign/ca.pem"), "is not one of the authority given"),
            (format!("{another_host} {ca}"), "has another name"),
            (format!("{plain} {ca}"), "this port does not speak TLS: leave"),
            (tls.clone(), "this port speaks TLS"),
        ] {
            shell.fails_at_once(&format!("{command} {flags}"), words);
        }
        shell.fails_at_once(&format!("{command} {choosy} {ca}"), "CLIENT_CA_FILE");
    }
    // A node may come back at an address where nothing listens, so the commands try until their
    // deadline. The address does not hide the failure.
    let none = format!("127.0.0.1:{}", unused_port());
    for command in ["get", "member list"] {
        let mixed = format!("{command} {PASSING} {tls},{none} --ca-file foreign/ca.pem");
        shell.turned_away(&mixed, "is not one of the authority given");
    }

    // The certificate has ended. Renewed in its place, the running node shows the new one.
    let read = |name: &str| std::fs::read_to_string(of(name)).expect("written");
    let (before, ca_key) = (read("certs/node-1.pem"), read("certs/ca.key"));
    let authority = Authority::of("epicepoch", &read("certs/ca.pem"), &ca_key).expect("it");
    let ended = Validity::until(SystemTime::now() - Duration::from_hours(1));
    let names = ["n1.example", "127.0.0.1"].map(str::to_owned);
    let ended = authority.node(NodeId(1), &names, ended).expect("signed");
    std::fs::write(of("certs/node-1.key"), ended.key).expect("written");
    std::fs::write(of("certs/node-1.pem"), ended.certificate).expect("written");
    let get = format!("get {ca} {tls}");
    wait_until("it shows the one that has ended", WAIT_MAX, || {
        !shell.output(&get).status.success()
    });
    for command in ASKING {
        shell.fails_at_once(&format!("{command} {tls} {ca}"), "has expired");
    }
    let shown = shell.output("certs show certs/node-1.pem");
    assert_eq!(shown.status.code(), Some(1));
    let warning = String::from_utf8_lossy(&shown.stderr).into_owned();
    assert!(warning.contains("renew it: epicepoch certs renew certs/node-1.pem"), "{warning}");
    let told = shell.output("certs renew certs/node-1.pem").stderr;
    let told = String::from_utf8_lossy(&told).into_owned();
    assert!(told.contains("reads renewed files by itself"), "{told}");
    assert_ne!(read("certs/node-1.pem"), before);
    let shown = shell.run("certs show certs/node-1.pem");
    assert!(shown.contains("n1.example, 127.0.0.1\n"), "the same names: {shown}");
    assert!(shown.contains("365 days left") || shown.contains("364 days left"), "{shown}");
    wait_until("it shows the new one", WAIT_MAX, || shell.output(&get).status.success());
    assert!(nodes[0].is_running(), "without a restart");
    // With --out, the old files stay.
    let old = read("certs/node-1.pem");
    shell.run("certs renew --out renewed certs/node-1.pem");
    assert_eq!(read("certs/node-1.pem"), old);
    assert_ne!(read("renewed/node-1.pem"), old);
    shell.refused("certs renew --dir foreign certs/node-1.pem", "another authority");
    shell.refused("certs renew certs/ca.pem", "replaced, not renewed");
}

/// Each node finds a key without a certificate, as if a process had ended after it wrote the first
/// of the two files.
#[test]
fn an_incomplete_certificate_pair_switches_off_only_http3() {
    let mut cluster = Cluster::down(&[]);
    for node in &cluster.nodes {
        std::fs::write(node.home.join("key.pem"), "of a pair that is lost").expect("written");
    }
    cluster.start_all();
    let home = tempfile::tempdir().expect("a directory");
    let addrs: Vec<_> = cluster.nodes.iter().map(|node| node.http().to_string()).collect();
    let shell = Shell { directory: home.path(), addrs: addrs.join(",") };
    wait_until("the cluster serves", WAIT_MAX, || shell.output("get").status.success());
    for node in &cluster.nodes {
        let log = node.log();
        assert!(log.contains("HTTP/3 is off") && log.contains("cert.pem"), "node {}", node.id);
    }
}
