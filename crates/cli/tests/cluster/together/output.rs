//! Tests of commands as scripts use them: `--output`, `--cluster`, pipes, and the names of fields,
//! with real nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;

use serde_json::Value;

use crate::support::operator::told;
use crate::support::{Cluster, WAIT_MAX, wait_until};

const HTTP: &str = include_str!("../../../../../docs/http.md");
/// Fields of rare documents, which the test does not make. A unit test of the commands has those of
/// a probe, of advice and of a range of compact timestamps.
const RARE: [&str; 10] = [
    "answers",
    "clusterCommand",
    "failures",
    "laterClusterCommand",
    "leaderChanges",
    "silenceMaxMs",
    "u64First",
    "u64Last",
    "unplacedVoters",
    "wrongAnswers",
];

/// Fields whose own fields are names of settings, counters or error codes.
const BY_NAME: [&str; 6] =
    ["settings", "nodeSettings", "sources", "counters", "refusals", "latencies"];

/// Returns the types of each field in the table of the documents.
fn documented() -> BTreeMap<&'static str, Vec<&'static str>> {
    let (_, table) = HTTP.split_once("\n## Fields\n").expect("a heading");
    let table = table.split("\n## ").next().expect("a section");
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let read = |row: &'static str| {
        let cells: Vec<_> = row.split('|').collect();
        let types: Vec<_> = cells[2].trim().split(" or ").collect();
        let names = cells[1].split(',').map(|name| name.trim().trim_matches('`'));
        names.map(|name| (name, types.clone())).collect::<Vec<_>>()
    };
    rows.flat_map(read).collect()
}

/// Checks every field of a document, and adds it to `seen`.
fn check(of: &str, document: &Value, seen: &mut BTreeSet<String>) {
    match document {
        Value::Object(object) => {
            for (name, value) in object {
                let kind = match value {
                    Value::Null => "null",
                    Value::Bool(_) => "bool",
                    Value::Number(_) => "number",
                    Value::String(_) => "string",
                    Value::Array(_) => "array",
                    Value::Object(_) => "object",
                };
                let types = documented().remove(name.as_str());
                let types = types.unwrap_or_else(|| panic!("{of}: no row for {name}"));
                assert!(types.contains(&kind), "{of}: {name} is {value}, a {types:?} in the table");
                seen.insert(name.clone());
                if !BY_NAME.contains(&name.as_str()) {
                    check(of, value, seen);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| check(of, item, seen)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Waits until the settings of the cluster are in its state.
#[track_caller]
fn wait_for_settings(cluster: &Cluster) {
    wait_until("settings in the state", WAIT_MAX, || {
        told(cluster, &["settings", "list"]).contains("MAX_N=")
    });
}

fn parsed(text: &[u8]) -> Value {
    serde_json::from_slice(text).unwrap_or_else(|error| panic!("{error}: {text:?}"))
}

#[test]
fn every_field_has_one_name_and_one_type_over_http_and_in_commands() {
    let mut cluster = Cluster::start_with(&[("ZONE", "a"), ("LEADER_ZONES", "a")]);
    wait_until("all clocks are followed", WAIT_MAX, || {
        cluster.operate(&["clock"]).status.success()
    });
    wait_for_settings(&cluster);
    let mut seen = BTreeSet::new();
    cluster.order(&["get"]);
    for path in [
        "/members",
        "/timestamp?n=2&format=json",
        "/admin/members",
        "/admin/clock",
        "/admin/settings",
        "/admin/backup",
        "/status",
    ] {
        wait_until(path, WAIT_MAX, || {
            let leader = &cluster.nodes[cluster.wait_for_leader()];
            let answer = leader.ask(path).filter(|answer| answer.status == 200);
            let document = answer.map(|answer| parsed(&answer.body));
            document.is_some_and(|document| {
                check(path, &document, &mut seen);
                true
            })
        });
    }
    let follower = cluster.others(cluster.wait_for_leader())[0];
    cluster.nodes[follower].kill();
    let backup = cluster.dir.path().join("a.backup").display().to_string();
    for (command, codes) in [
        (&["status"][..], [0, 1]),
        (&["get"], [0, 0]),
        (&["get", "--range"], [0, 0]),
        (&["member", "list"], [0, 0]),
        (&["member", "promote", "1"], [0, 0]),
        (&["settings", "list"], [0, 0]),
        (&["settings", "set", "MAX_N=300"], [0, 0]),
        (&["clock"], [1, 1]),
        (&["clock", "advance-to", "1s"], [0, 0]),
        (&["tune"], [0, 1]),
        (&["backup", "--out", &backup], [0, 0]),
        (&["leader", "transfer"], [0, 0]),
    ] {
        let name = command.join(" ");
        // Leadership may move while a node is missing, so a command may have to be repeated.
        wait_until(&name, WAIT_MAX, || {
            let output = cluster.operate(&[command, &["--output", "json"]].concat());
            let code = output.status.code().expect("it ends by itself");
            let is_done = codes.contains(&code) && !output.stdout.is_empty();
            if is_done {
                check(&name, &parsed(&output.stdout), &mut seen);
            }
            is_done
        });
    }
    for command in [
        &["encode", "1s", "--compact"][..],
        &["decode", "17979cfe362a00000000000000000005"],
        &["check-config"],
    ] {
        let output = cluster.run(&[command, &["--output", "json"]].concat());
        check(command[0], &parsed(&output.stdout), &mut seen);
    }
    let certs = cluster.dir.path().join("ca").display().to_string();
    cluster.run(&["certs", "ca", "--dir", &certs]);
    let shown = cluster.run(&["certs", "show", &format!("{certs}/ca.pem"), "--output", "json"]);
    check("certs show", &parsed(&shown.stdout), &mut seen);
    let known = documented();
    let unseen: Vec<_> = known.keys().filter(|name| !seen.contains(**name)).copied().collect();
    let rare = |name: &&str| RARE.contains(name);
    assert!(unseen.iter().all(rare), "rows of fields that no document has: {unseen:?}");
}

/// `epicepoch get --raw | epicepoch decode`, with more timestamps than any buffer holds.
#[test]
fn raw_timestamps_pipe_into_decode() {
    const COUNT: usize = 60_000;
    let cluster = Cluster::start();
    let count = COUNT.to_string();
    let mut get = cluster.operator(&["get", "--raw", "-n", &count]);
    let mut get = get.stdout(Stdio::piped()).spawn().expect("it can be started");
    let decoded = cluster.piped(get.stdout.take().expect("piped").into(), &["decode"]);
    assert!(get.wait().expect("it ends").success());
    let text = String::from_utf8(decoded.stdout).expect("text");
    let lines: Vec<_> = text.lines().collect();
    assert_eq!((lines.len(), decoded.status.code()), (COUNT, Some(0)));
    assert!(lines[0].contains(" index=0 time=2"), "{}", lines[0]);
    assert!(lines[COUNT - 1].contains(" index=59999 "), "{}", lines[COUNT - 1]);
}

/// The guard of operators: with `--cluster`, nothing happens to another cluster.
#[test]
fn a_command_for_another_cluster_changes_nothing() {
    let cluster = Cluster::start_calm();
    wait_for_settings(&cluster);
    let members = parsed(&cluster.nodes[0].ask("/members").expect("an answer").body);
    let text = |name: &str| members[name].as_str().expect("text").to_owned();
    let (name, id) = (text("clusterName"), text("cluster"));
    let listed = || cluster.order(&["settings", "list"]);
    let (before, other_id) = (listed(), "f".repeat(32));
    let backup = cluster.dir.path().join("b.backup").display().to_string();
    for command in [
        &["settings", "set", "MAX_N=77"][..],
        &["member", "remove", "3"],
        &["leader", "transfer"],
        &["clock", "advance-to", "1s", "--yes"],
        &["rolling", "--restart", "true"],
        &["backup", "--out", &backup],
        &["member", "list"],
        &["get"],
        &["status"],
    ] {
        for other in ["another", &other_id] {
            let output = cluster.operate(&[command, &["--cluster", other]].concat());
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{command:?} {other}: {said}");
            assert!(said.contains(other), "{command:?}: {said}");
            assert!(output.stdout.is_empty(), "{command:?}");
        }
    }
    assert_eq!(listed(), before);
    assert!(!cluster.dir.path().join("b.backup").exists());
    // The node itself refuses, too, so that no check of the command can be too early.
    let leader = cluster.wait_for_leader();
    let headers = [("epicepoch-admin", "1"), ("epicepoch-cluster", "another")];
    let answer = cluster.nodes[leader].ask_with("POST", "/admin/settings/set?MAX_N=77", &headers);
    let answer = answer.expect("an answer");
    assert_eq!((answer.status, answer.error()), (400, Some("WRONG_CLUSTER")), "{answer:?}");
    for own in [&name, &id] {
        let said = cluster.order(&["settings", "set", "MAX_N=77", "--cluster", own]);
        assert!(said.contains("MAX_N=77"), "{said}");
        cluster.order(&["get", "--cluster", own]);
        cluster.order(&["status", "--cluster", own]);
    }
}
