//! Tests of the commands against nodes that require tokens and have a separate port for operators.

use std::collections::BTreeMap;
use std::fs;

use tempfile::TempDir;

use crate::support::node::command;
use crate::support::{Cluster, Node, Turn, WAIT_MAX, unused_port, wait_until};

const CLIENT: &str = "client-token-0123456789";
const OPERATOR: &str = "operator-token-0123456789";

#[test]
fn a_token_of_operators_serves_every_command_and_one_of_clients_only_theirs() {
    let _turn = Turn::side_by_side();
    let dir = TempDir::with_prefix("epicepoch-test-").expect("a directory");
    let file = |name: &str, token: &str| {
        let path = dir.path().join(name);
        fs::write(&path, format!("# for {name}\n{token}\n")).expect("written");
        path.display().to_string()
    };
    let (client, operator) = (file("clients", CLIENT), file("operators", OPERATOR));
    let mut node = Node::new(1, dir.path(), "node");
    let ops = format!("127.0.0.1:{}", unused_port());
    for (name, value) in [
        ("SINGLE", "1"),
        ("BOOTSTRAP", "1"),
        ("OPS_ADDR", &ops),
        ("CLIENT_TOKEN_FILE", &client),
        ("OPS_TOKEN_FILE", &operator),
    ] {
        node.set(name, value);
    }
    node.start();
    let clients = node.http().to_string();
    let run = |arguments: &[&str], addr: &str, token: Option<&str>| {
        let mut command = command(&BTreeMap::new(), dir.path());
        command.args(arguments).args(["--addr", addr, "--timeout", "5s"]);
        if let Some(token) = token {
            command.args(["--token-file", token]);
        }
        let output = command.output().expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(!text.contains(CLIENT) && !text.contains(OPERATOR), "a token is shown: {text}");
        (output.status.success(), text)
    };
    wait_until("a timestamp", WAIT_MAX, || run(&["get"], &clients, Some(&client)).0);
    let list = ["member", "list"];
    assert!(run(&list, &ops, Some(&operator)).0);
    for arguments in [&["get"][..], &["get", "-n", "3"], &["status"], &BENCH] {
        for token in [&client, &operator] {
            let (is_done, text) = run(arguments, &clients, Some(token));
            assert!(is_done, "{arguments:?} with {token}: {text}");
        }
    }
    for (arguments, addr, token, part) in [
        (&["get"][..], &clients, None, "missing right timestamps"),
        (&["get"][..], &clients, None, "CLIENT_TOKEN_FILE or OPS_TOKEN_FILE"),
        (&["status"][..], &clients, None, "missing right timestamps"),
        (&list[..], &ops, None, "missing right operations: a token of OPS_TOKEN_FILE"),
        (&list[..], &ops, Some(&client), "missing right operations: this token is not in the OPS"),
        (&list[..], &clients, Some(&operator), "OPS_ADDR"),
    ] {
        let (is_done, text) = run(arguments, addr, token.map(String::as_str));
        assert!(!is_done && text.contains(part), "{arguments:?} {addr}: {text}");
        assert!(text.contains(addr), "which node says so: {arguments:?} {addr}: {text}");
    }
    wait_until("settings in the state", WAIT_MAX, || {
        run(&["settings", "list"], &ops, Some(&operator)).1.contains("MAX_N=")
    });
    // Every operator's command needs the operators' token.
    let backup = dir.path().join("a.backup").display().to_string();
    for (arguments, part) in [
        (&["member", "list"][..], "leader"),
        (&["member", "add", "1=n1:60001"], "is"),
        (&["member", "promote", "1"], "voter already"),
        (&["member", "remove", "1"], "leads"),
        (&["leader", "transfer", "--to", "9"], "node 9"),
        (&["settings", "list"], "MAX_N="),
        (&["settings", "set", "MAX_N=1000"], "MAX_N=1000"),
        (&["clock"], "followed"),
        (&["clock", "advance-to", "1s"], "above"),
        (&["clock", "advance-to", "1s", "--yes"], "above"),
        (&["tune"], "no round trip"),
        (&["rolling", "--dry-run"], "all nodes are well"),
        (&["backup", "--out", &backup], "written"),
    ] {
        let (_, text) = run(arguments, &ops, Some(&operator));
        assert!(text.contains(part), "{arguments:?}: {part:?} in {text}");
        for token in [None, Some(client.as_str())] {
            let (is_done, text) = run(arguments, &ops, token);
            assert!(!is_done && text.contains("token"), "{arguments:?} with {token:?}: {text}");
        }
    }
    // With a variable for each kind of token, every command sends the one that it needs.
    let variables = [("EPICEPOCH_TOKEN_FILE", &client), ("EPICEPOCH_OPS_TOKEN_FILE", &operator)];
    for (arguments, addr) in [(&["get"][..], &clients), (&list[..], &ops), (&["clock"][..], &ops)] {
        let mut command = command(&BTreeMap::new(), dir.path());
        command.envs(variables).args(arguments).args(["--addr", addr]);
        assert!(command.status().expect("it runs").success(), "{arguments:?}");
    }
    // Nodes name the leader by its client address, which does not serve operators here. So the
    // command must ask the operators' port from the command line.
    let both = format!("{clients},{ops}");
    assert!(run(&list, &both, Some(&operator)).0);
    for addr in [&ops, &both] {
        let (is_followed, text) = run(&["clock"], addr, Some(&operator));
        assert!(is_followed && text.contains("followed"), "{addr}: {text}");
    }
    let (is_followed, text) = run(&["clock"], &clients, Some(&operator));
    assert!(!is_followed && !text.contains("followed"), "{text}");
    let log = node.log();
    assert!(log.contains("no_token") && log.contains("wrong_token"), "{log}");
    assert!(!log.contains(CLIENT) && !log.contains(OPERATOR), "a token is logged");
}

const BENCH: [&str; 6] = ["bench", "run", "--duration", "1s", "--warmup", "0"];

#[test]
fn members_that_the_addr_option_does_not_name_are_reported() {
    let mut cluster = Cluster::down_calm(&[]);
    let file = |name: &str, token: &str| {
        let path = cluster.dir.path().join(name);
        fs::write(&path, format!("{token}\n")).expect("written");
        path.display().to_string()
    };
    let (client, operator) = (file("clients", CLIENT), file("operators", OPERATOR));
    for node in &mut cluster.nodes {
        node.set("CLIENT_TOKEN_FILE", &client);
        node.set("OPS_TOKEN_FILE", &operator);
    }
    // All nodes except the second one have a separate port for operators.
    let mut addrs: Vec<_> = cluster.nodes.iter().map(|node| node.http().to_string()).collect();
    for at in [0, 2] {
        addrs[at] = format!("127.0.0.1:{}", unused_port());
        cluster.nodes[at].set("OPS_ADDR", &addrs[at]);
    }
    cluster.start_all();
    cluster.wait_until_ready();
    let run = |arguments: &[&str], addr: &str| {
        let mut command = command(&BTreeMap::new(), cluster.dir.path());
        let token = ["--token-file", &operator, "--addr", addr];
        let output = command.args(arguments).args(token).output().expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let all = addrs.join(",");
    let lead = |node: &str| {
        // The command may fail because leadership is moving. Then it is given again.
        wait_until("it leads", WAIT_MAX, || {
            run(&["leader", "transfer", "--to", node], &all)
                .1
                .contains(&format!("node {node} leads"))
        });
    };
    let assert_reported = |addr: &str, code: i32, parts: &[&str]| {
        for tool in ["clock", "tune"] {
            if code == 0 {
                wait_until("all nodes are well", WAIT_MAX, || run(&[tool], addr).0 == Some(0));
            }
            let (ended, text) = run(&[tool], addr);
            let is_said = parts.iter().all(|part| text.contains(part));
            assert!(ended == Some(code) && is_said, "{tool} {addr}: {ended:?} {text}");
        }
        let (_, text) = run(&["clock"], addr);
        let rows = text.lines().filter(|line| line.starts_with(['1', '2', '3']));
        assert_eq!(rows.count(), 3, "{addr}: {text}");
    };
    wait_until("the links are measured", WAIT_MAX, || run(&["tune"], &all).0 == Some(0));
    // The operators' token does not permit /members. So the tools get the list of members from the
    // leader, whichever node they are told to ask. First node 2 leads, which has no OPS_ADDR.
    lead("2");
    assert_reported(&all, 0, &[]);
    assert_reported(&addrs[2], 1, &["OPS_ADDR"]);
    // Now node 1 leads. It does not answer operators at its client address, and other nodes know
    // only that address. So the tools can list all members only if they are told the address of the
    // leader's operators' port.
    lead("1");
    assert_reported(&all, 0, &[]);
    assert_reported(&addrs[2], 1, &["warning: ", "name an address of every node in --addr"]);
}
