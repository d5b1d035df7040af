//! A cluster whose clients and nodes speak TLS and show certificates, made by `epicepoch certs`, as a shell
//! sees it: who is let in, over which transports, and what a rotation costs.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use epicepoch_bench::record::Run;

use crate::support::node::binary;
use crate::support::{Cluster, PATIENCE, wait_until};

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

    /// It must fail, in words that hold this.
    #[track_caller]
    fn refused(&self, line: &str, words: &str) {
        let output = self.output(line);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && complaint.contains(words), "{line}: {complaint}");
    }
}

fn flags(directory: &str, client: &str) -> String {
    format!(
        "--ca-file {directory}/ca.pem --cert-file {directory}/client-{client}.pem --key-file \
         {directory}/client-{client}.key"
    )
}

const NODES: &str = "1=127.0.0.1 2=127.0.0.1 3=localhost,127.0.0.1";

/// A cluster of three whose clients show certificates.
fn secured(home: &Path) -> Cluster {
    let mut cluster = Cluster::down(&[("CLIENT_TLS", "on")]);
    for node in &mut cluster.nodes {
        let file = |name: &str| home.join(name).display().to_string();
        for whose in ["", "PEER_"] {
            node.set(&format!("{whose}CERT_FILE"), file(&format!("node-{}.pem", node.id)));
            node.set(&format!("{whose}KEY_FILE"), file(&format!("node-{}.key", node.id)));
        }
        node.set("CLIENT_CA_FILE", file("ca.pem"));
        node.set("PEER_CA_FILE", file("ca.pem"));
    }
    cluster
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
    let mut cluster = secured(home.path());
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
    let of = |name: &str| home.path().join(name);
    copy(&of("old"), home.path(), &PAIRS);
    std::fs::copy(of("old/ca.pem"), of("ca.pem")).expect("copied");
    cluster.start_all();
    let old = flags("old", "app");
    wait_until("the secured cluster serves", PATIENCE, || {
        shell.output(&format!("status {old}")).status.success()
    });

    // Who is let in, and what the others are told.
    let plain = "get --timeout 700ms";
    shell.refused(plain, "TLS");
    shell.refused(&format!("{plain} --ca-file foreign/ca.pem"), "authority given");
    shell.refused(&format!("{plain} --ca-file old/ca.pem"), "alert");
    let mixed = old.replace("old/client", "foreign/client");
    shell.refused(&format!("{plain} {mixed}"), "alert");
    shell.refused(&format!("{plain} --cert-file old/client-app.pem"), "--ca-file");
    shell.run(&format!("get -n 3 {old}"));
    assert!(shell.run(&format!("member list {old}")).contains("voter"), "operators, too");
    shell.refused("member list --timeout 700ms", "TLS");
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
    shell.refused(&format!("{plain} --ca-file old/ca.pem"), "authority given");
    std::fs::write(of("ca.pem"), read("new/ca.pem")).expect("written");
    let both = new.replace("new/client", "old/client");
    wait_until("the old authority's clients are refused", PATIENCE, || {
        !shell.output(&format!("{plain} {both}")).status.success()
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
