//! `epicepoch dev`: a whole cluster in one process.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::node::command;
use crate::support::{Turn, WAIT_MAX, unused_port, wait_until};

/// The first of `count` unused ports in a row.
fn ports(count: u16) -> u16 {
    loop {
        let first = unused_port();
        if (1..count).all(|step| unused_port() == first + step) {
            return first;
        }
    }
}

fn run(home: &Path, words: &[&str]) -> Command {
    let mut command = command(&BTreeMap::new(), home);
    command.args(words);
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_start_on_a_busy_port_leaves_nothing_in_the_way_and_another_size_is_refused() {
    let _turn = Turn::side_by_side();
    let home = tempfile::tempdir().expect("a directory");
    let http = ports(8);
    let (http_port, raft_port) = (http.to_string(), (http + 4).to_string());
    let bases = ["--http-port-base", &http_port, "--raft-port-base", &raft_port];
    let dev = |nodes| run(home.path(), &[&["dev", "--nodes", nodes], &bases[..]].concat());

    let busy = TcpListener::bind((Ipv4Addr::LOCALHOST, http)).expect("unused");
    let output = dev("2").output().expect("it runs");
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("--http-port-base"), "{}", said(&output));
    assert!(home.path().join("_raft/dev/node-2").exists(), "node 2 has begun");
    drop(busy);

    let mut cluster = dev("2").stderr(Stdio::null()).spawn().expect("it runs");
    let status = ["status", "--addr", &format!("127.0.0.1:{http}")];
    wait_until("the cluster serves", WAIT_MAX, || {
        let ended = cluster.try_wait().expect("a child");
        assert!(ended.is_none(), "it has ended: {ended:?}");
        run(home.path(), &status).output().expect("it runs").status.success()
    });
    kill_process(Pid::from_child(&cluster), Signal::TERM).expect("our own child");
    assert!(cluster.wait().expect("a child").success());

    for nodes in ["1", "3"] {
        let output = dev(nodes).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains("allowed is --nodes 2,"), "{}", said(&output));
    }
}
