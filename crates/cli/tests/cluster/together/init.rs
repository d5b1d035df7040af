//! What `epicepoch init` writes starts a cluster with TLS, serves clients with their token, and
//! refuses all others.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::node::command;
use crate::support::{Node, Turn, WAIT_MAX, unused_port, wait_until};

/// Installs a node's files below `root`, as its script does on a machine.
fn install(directory: &Path, root: &Path) {
    let mut script = Command::new("sh");
    script.arg(directory.join("install.sh")).env("DESTDIR", root);
    assert!(script.status().expect("sh runs").success(), "{}", directory.display());
}

/// Makes the node run with the installed settings. On its own machine, the files are below `/`.
fn use_installed(node: &mut Node, root: &Path, host: &str) {
    let path = root.join("etc/epicepoch/epicepoch.toml");
    for (key, value) in fs::read_to_string(&path)
        .expect("installed")
        .lines()
        .filter_map(|line| line.split_once(" = "))
    {
        if key.ends_with("_file") {
            let path = root.join(value.trim_matches('"').trim_start_matches('/'));
            node.set(&key.to_uppercase(), path.display());
        }
    }
    for name in ["NODE_ID", "RAFT_ADDR", "HTTP_PORT", "ADVERTISE_ADDR"] {
        node.unset(name);
    }
    node.set("CONFIG", path.display());
    // All nodes have the same ports, and share this machine.
    node.set("HTTP_BIND", host);
    // "install.sh --found" gives this to the first process.
    node.set("BOOTSTRAP", "1");
}

#[test]
fn the_files_of_init_start_a_cluster_with_tls_that_serves_only_those_with_a_token() {
    let _turn = Turn::side_by_side();
    let home = tempfile::tempdir().expect("a directory");
    let out = home.path().join("cluster");
    let run = |line: &str| {
        let mut command = command(&BTreeMap::new(), home.path());
        let output = command.args(line.split_whitespace()).output().expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    };
    let done = |line: &str| {
        let (is_done, text) = run(line);
        assert!(is_done, "{line}: {text}");
        text
    };
    let (http, raft) = (unused_port(), unused_port());
    let hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3"];
    let said = done(&format!(
        "init --http-port {http} --raft-port {raft} 1={} 2={} 3={}",
        hosts[0], hosts[1], hosts[2]
    ));
    let second = "ssh -t 127.0.0.2 'sudo sh node-2/install.sh --found && rm -r node-2'";
    assert!(said.contains(second), "{said}");
    let mut nodes: Vec<_> = hosts
        .into_iter()
        .zip(1..)
        .map(|(host, id)| {
            let root: PathBuf = home.path().join(format!("machine-{id}"));
            install(&out.join(format!("node-{id}")), &root);
            let mut node = Node::new(id, home.path(), &format!("run-{id}"));
            use_installed(&mut node, &root, host);
            node
        })
        .collect();
    nodes.iter_mut().for_each(Node::start);

    // The commands that init has printed, as they stand there.
    let printed = said.replace("\\\n", " ");
    let line = |name: &str| -> String {
        let words = format!("epicepoch {name} ");
        let line = printed.lines().map(str::trim).find(|line| line.starts_with(&words));
        line.expect("init shows it").trim_start_matches("epicepoch ").to_owned()
    };
    let (status, get) = (line("status"), line("get"));
    wait_until("init's cluster serves", WAIT_MAX, || {
        let (is_done, text) = run(&status);
        is_done && text.matches(" yes ").count() == 3
    });
    done(&get);

    // Nobody gets in without a token, without TLS, or with another authority.
    let refused = |line: &str, words: &str| {
        let (is_done, text) = run(line);
        assert!(!is_done && text.contains(words), "{line}: {text}");
    };
    let (without_token, _) = get.split_once(" --token-file ").expect("it has one");
    refused(without_token, "missing right timestamps");
    let (plain, _) = get.split_once(" --ca-file ").expect("it has one");
    refused(plain, "TLS");
    done("certs ca --dir foreign");
    refused(&get.replace("cluster/client/ca.pem", "foreign/ca.pem"), "authority given");

    // A token of clients is not one of operators, and one of operators serves every command, also
    // at localhost on a node's own machine.
    let list = get.replacen("get", "member list", 1);
    refused(&list, "missing right operations");
    let operator = |line: &str| line.replace("cluster/client/", "cluster/operator/");
    assert!(done(&operator(&list)).contains("voter"));
    done(&operator(&get));
    // A change is refused while the format of the replicated state of a new cluster still rises.
    let set = operator(&get.replacen("get", "settings set MAX_N=1000", 1));
    wait_until("an operator changes a setting", WAIT_MAX, || run(&set).0);
    for node in &mut nodes {
        assert!(node.terminate().success(), "node {}", node.id);
        let log = node.log();
        assert!(!log.contains("exposed") && !log.contains("other users may read"), "{log}");
        // From the second start on, nothing tells the node to found a cluster.
        node.unset("BOOTSTRAP");
        node.start();
    }
    wait_until("they serve after a restart", WAIT_MAX, || run(&get).0);
}
