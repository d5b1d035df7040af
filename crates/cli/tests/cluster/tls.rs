//! A cluster whose clients and nodes speak TLS and show certificates, made by `epicepoch certs`, as a shell
//! sees it: who is let in, over which transports, and what a rotation costs.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use epicepoch_bench::record::Run;
use epicepoch_bench::run::vigil::Vigil;
use epicepoch_bench::run::{Arrivals, Pace, RunConfig, Target, Transport};
use epicepoch_client::{Tls, Token};

use crate::support::node::binary;
use crate::support::{Cluster, Node, PATIENCE, say, wait_until};

/// A client's shell in a directory.
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

    /// What it prints; it must succeed.
    #[track_caller]
    fn run(&self, line: &str) -> String {
        let output = self.output(line);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {complaint}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// It must fail; how it complains.
    #[track_caller]
    fn complaint(&self, line: &str) -> String {
        let output = self.output(line);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{line}: it is let in");
        complaint
    }

    /// It must fail, in words that hold this: a refusal that is final, so it comes at once.
    #[track_caller]
    fn refused(&self, line: &str, words: &str) {
        let complaint = self.complaint(line);
        assert!(complaint.contains(words), "{line}: {complaint}");
    }

    /// It must fail, and tell in such words why each of its attempts did. A node may be another one
    /// the next time, so it asks until its time is over; a machine that stands still for that long
    /// lets it make no attempt, and it is given another time. Never is it let in.
    #[track_caller]
    fn turned_away(&self, line: &str, words: &str) {
        let mut complaint = String::new();
        wait_until(&format!("{line} is told {words:?}"), PATIENCE, || {
            complaint = self.complaint(line);
            let is_in_time = complaint.contains(words);
            if !is_in_time {
                say(&format!("not yet: {}", complaint.trim()));
            }
            is_in_time
        });
    }
}

/// The time of a command that is refused at once.
const FINAL: &str = "--timeout 5s";
/// The time of one that asks until it is over.
const PASSING: &str = "--timeout 700ms";

fn flags(directory: &str, client: &str) -> String {
    format!(
        "--ca-file {directory}/ca.pem --cert-file {directory}/client-{client}.pem --key-file \
         {directory}/client-{client}.key"
    )
}

const NODES: &str = "1=127.0.0.1 2=127.0.0.1 3=localhost,127.0.0.1";

/// An authority in `home`, and certificates by which these nodes, which are down, know each other and
/// nobody else; what clients say stays in plain text.
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

/// Has the clients of these nodes, which are down, show certificates.
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
fn a_secured_cluster_serves_its_own_clients_alone_and_outlives_a_rotation() {
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
    assert!(!home.path().join("old/node-4.pem").exists(), "nothing is written of what is refused");
    let of = |name: &str| home.path().join(name);
    copy(&of("old"), home.path(), &PAIRS);
    std::fs::copy(of("old/ca.pem"), of("ca.pem")).expect("copied");
    cluster.start_all();
    let old = flags("old", "app");
    wait_until("the secured cluster serves", PATIENCE, || {
        shell.output(&format!("status {old}")).status.success()
    });

    // Who is let in, and what the others are told.
    shell.refused(&format!("get {FINAL}"), "TLS");
    let get = format!("get {PASSING}");
    shell.turned_away(&format!("{get} --ca-file foreign/ca.pem"), "authority given");
    shell.turned_away(&format!("{get} --ca-file old/ca.pem"), "CLIENT_CA_FILE");
    let mixed = old.replace("old/client", "foreign/client");
    shell.turned_away(&format!("{get} {mixed}"), "CLIENT_CA_FILE");
    shell.refused(&format!("get {FINAL} --cert-file old/client-app.pem"), "--ca-file");
    shell.run(&format!("get -n 3 {old}"));
    assert!(shell.run(&format!("member list {old}")).contains("voter"), "operators, too");
    shell.refused(&format!("member list {FINAL}"), "TLS");
    shell.run(&format!("clock {old}"));
    for via in ["http1", "h2c", "native", "client"] {
        let load = "--duration 300ms --warmup 0 --connections 2";
        shell.run(&format!("bench run --via {via} {load} {old} --json {via}.json"));
        let report = Run::read(&of(&format!("{via}.json"))).expect("a report");
        assert!(report.answers > 0, "{via}");
        assert_eq!(report.verify.expect("on by default").violations, 0, "{via}");
    }

    // A rotation of everything, under load.
    let load = "bench run --via native --warmup 0 --duration 25s --rate 200 --connections 2";
    let under_way = shell
        .command(&format!("{load} {old} --json rotation.json"))
        .stdout(Stdio::null())
        .spawn()
        .expect("it runs");
    let read = |name: &str| std::fs::read_to_string(of(name)).expect("written");
    let new = flags("new", "app");
    let wait_for = |settings: [&str; 2]| {
        let in_use = |log: &str| {
            settings.iter().all(|setting| {
                let setting = format!("\"{setting}\"");
                log.lines().any(|line| line.contains("is in use") && line.contains(&setting))
            })
        };
        wait_until(&format!("{settings:?} are in use"), PATIENCE, || {
            cluster.nodes.iter().all(|node| in_use(&node.log()))
        });
    };
    // Both authorities are trusted everywhere before anybody shows what the new one has signed.
    std::fs::write(of("ca.pem"), read("old/ca.pem") + &read("new/ca.pem")).expect("written");
    wait_for(["CLIENT_CA_FILE", "PEER_CA_FILE"]);
    copy(&of("new"), home.path(), &PAIRS);
    wait_for(["CERT_FILE", "PEER_CERT_FILE"]);
    shell.run(&format!("get {new}"));
    shell.turned_away(&format!("{get} --ca-file old/ca.pem"), "authority given");
    std::fs::write(of("ca.pem"), read("new/ca.pem")).expect("written");
    let both = new.replace("new/client", "old/client");
    wait_until("the old authority's clients are refused", PATIENCE, || {
        let output = shell.output(&format!("{get} {both}"));
        let complaint = String::from_utf8_lossy(&output.stderr);
        !output.status.success() && complaint.contains("CLIENT_CA_FILE")
    });
    shell.run(&format!("get {new}"));
    let ended = under_way.wait_with_output().expect("it ends");
    let report = Run::read(&of("rotation.json")).expect("a report");
    assert!(ended.status.success(), "{:?}", report.failures);
    assert_eq!(report.verify.as_ref().expect("on by default").violations, 0);
    // Connections that were there have stayed: had they been cut, they would have come back with
    // what nobody trusts any more.
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    assert!(report.answers > 4000, "{}", report.answers);
    for node in &mut cluster.nodes {
        assert!(node.is_running());
        assert!(node.terminate().success(), "node {}", node.id);
    }
}

/// What clients that are there all the time have seen so far.
struct Seen {
    vigil: Vigil,
    answers: u64,
    failures: BTreeMap<&'static str, u64>,
}

impl Seen {
    fn start(config: RunConfig) -> Self {
        Self { vigil: Vigil::start(config), answers: 0, failures: BTreeMap::new() }
    }

    fn look(&mut self) -> u64 {
        let glance = self.vigil.look();
        self.answers += glance.answers;
        for (name, count) in glance.failures {
            *self.failures.entry(name).or_default() += count;
        }
        assert_eq!(glance.violations, 0, "{:?}", glance.stories);
        self.answers
    }

    /// Waits until so many more have got an answer.
    #[track_caller]
    fn wait_for_more(&mut self, answers: u64) {
        let wanted = self.look() + answers;
        wait_until("clients get answers", PATIENCE, || self.look() >= wanted);
    }

    /// How many answers, all of them in order, and what has failed before the end.
    fn finish(mut self) -> (u64, BTreeMap<&'static str, u64>) {
        self.look();
        let last = self.vigil.stop();
        assert_eq!(last.violations, 0, "{:?}", last.stories);
        assert!(last.checked >= self.answers, "{} answers were checked", last.checked);
        (self.answers, self.failures)
    }
}

/// Waits until every node has read again what these settings name, since its log was so long.
#[track_caller]
fn wait_in_use(nodes: &[Node], since: &[usize], settings: &[&str]) {
    wait_until(&format!("{settings:?} are in use"), PATIENCE, || {
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

const IN_USE: &str = "is in use";

/// Kills who leads, and starts him again when another does; says who it was.
fn kill_leader(cluster: &mut Cluster) -> usize {
    let leader = wait_for_leader(cluster, None);
    cluster.nodes[leader].kill();
    wait_for_leader(cluster, Some(leader));
    cluster.nodes[leader].start();
    leader
}

/// Who leads, as its own log says: the ports of the nodes answer no test in plain text.
fn wait_for_leader(cluster: &Cluster, other: Option<usize>) -> usize {
    let mut leader = None;
    wait_until("there is a leader", PATIENCE, || {
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

/// What the command line is given with a token, and refused without the right one.
fn each_tool_needs_its_token(shell: &Shell<'_>, app: &str) {
    for via in ["http1", "h2c", "http3", "native", "client"] {
        let load = "--duration 200ms --warmup 0 --connections 2 --token-file clients";
        shell.run(&format!("bench run --via {via} {load} {app} --json {via}.json"));
        let report = Run::read(&shell.directory.join(format!("{via}.json"))).expect("a report");
        assert!(report.answers > 0 && report.failures.is_empty(), "{via}: {:?}", report.failures);
    }
    shell.refused(&format!("get {FINAL} {app}"), "UNAUTHORIZED");
    shell.refused(&format!("bench run --duration 100ms {app}"), "UNAUTHORIZED");
    shell.run(&format!("status {app} --token-file clients"));
    shell.run(&format!("member list {app} --token-file operators"));
    shell.refused(&format!("member list {app} --token-file clients"), "token");
}

#[test]
#[expect(clippy::too_many_lines, reason = "one story, told in the order in which it happens")]
fn a_secured_cluster_outlives_kills_restarts_and_a_rotation_under_load() {
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
    // What clients use is where it will be replaced.
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
    wait_until("the secured cluster serves", PATIENCE, || {
        shell.output(&format!("{get} clients")).status.success()
    });
    each_tool_needs_its_token(&shell, app);

    let tls = Tls::trusting(of("trusted.pem"))
        .and_then(|tls| tls.showing(of("client-app.pem"), of("client-app.key")));
    let target =
        |node: &Node| Target { id: node.id, name: node.http().to_string(), addr: node.http() };
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
    let mut retrying = Seen::start(config(Transport::Client { callers: 4 }, &[], 2, PATIENCE / 2));
    all.wait_for_more(50);
    let since = |cluster: &Cluster| -> Vec<usize> {
        cluster.nodes.iter().map(|node| node.log().len()).collect()
    };

    // A cluster that lacks another node has no quorum to give.
    let wait_ready = |at: usize| {
        let alone = Shell { directory: home.path(), addrs: addrs[at].clone() };
        wait_until("the restarted node is ready", PATIENCE, || {
            let status = alone.output(&format!("status {app} --token-file clients --timeout 2s"));
            let text = String::from_utf8_lossy(&status.stdout);
            text.lines().skip(1).any(|row| row.contains(&alone.addrs) && row.contains(" yes "))
        });
    };
    wait_ready(kill_leader(&mut cluster));
    retrying.wait_for_more(50);

    // Both authorities are trusted everywhere; another token takes the second one's place.
    let before = since(&cluster);
    write("ca.pem", &(read("old/ca.pem") + &read("new/ca.pem")));
    write("trusted.pem", &read("ca.pem"));
    write("clients", &format!("{CLIENT}\n{THIRD}\n"));
    wait_in_use(&cluster.nodes, &before, &["CLIENT_CA_FILE", "PEER_CA_FILE"]);
    wait_until("the new token is taken", PATIENCE, || {
        shell.output(&format!("{get} third")).status.success()
    });
    shell.refused(&format!("{get} second"), "UNAUTHORIZED");
    wait_ready(kill_leader(&mut cluster));
    retrying.wait_for_more(50);

    // Everybody shows what the new one has signed, and every node is restarted, one by one.
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

    // The old one is trusted nowhere.
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
        "{answers} answers over all transports, {lost:?} between; {retried} to who retries"
    ));
    assert!(failed.is_empty(), "who retries was failed: {failed:?}");
    for node in &mut cluster.nodes {
        assert!(node.is_running());
        let log = node.log();
        assert!(![CLIENT, SECOND, THIRD, OPERATOR].iter().any(|token| log.contains(token)));
    }
}

#[test]
fn half_a_pair_that_nobody_has_named_costs_http3_and_nothing_else() {
    let mut cluster = Cluster::down(&[]);
    for node in &cluster.nodes {
        // As a process leaves it that ends between the two files of a new pair.
        std::fs::write(node.home.join("key.pem"), "of a pair that is lost").expect("written");
    }
    cluster.start_all();
    let home = tempfile::tempdir().expect("a directory");
    let addrs: Vec<_> = cluster.nodes.iter().map(|node| node.http().to_string()).collect();
    let shell = Shell { directory: home.path(), addrs: addrs.join(",") };
    wait_until("the cluster serves", PATIENCE, || shell.output("get").status.success());
    for node in &cluster.nodes {
        let log = node.log();
        assert!(log.contains("HTTP/3 is off") && log.contains("cert.pem"), "node {}", node.id);
    }
}
