//! Settings of the cluster: seeded by its first nodes, changed by command under load, kept through the
//! loss of all processes, and stronger than what a node is told.

use std::time::Instant;

use crate::clients::Calling;
use crate::support::{Cluster, Node, PATIENCE, Watch, wait_until};

/// What a follower answers that is asked for so many timestamps.
fn refuses_with(node: &Node, count: u64) -> Option<u16> {
    node.ask(&format!("/timestamp?n={count}")).map(|answer| answer.status)
}

fn shows(cluster: &Cluster, line: &str) -> bool {
    let output = cluster.operate(&["settings", "list"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().any(|shown| shown == line)
}

/// Whether a node gives so many timestamps in one answer.
fn gives(node: &Node, count: u64) -> bool {
    node.ask(&format!("/timestamp?n={count}")).is_some_and(|answer| answer.status == 200)
}

#[test]
fn settings_are_seeded_once_changed_by_command_and_stronger_than_what_a_node_is_told() {
    let mut cluster = Cluster::start_with(&[("MAX_N", "100")]);
    wait_until("they are seeded", PATIENCE, || shows(&cluster, "MAX_N=100"));
    let watch = Watch::start(&cluster);
    let calling = Calling::start(&cluster);
    let leader = cluster.wait_for_leader();
    assert!(gives(&cluster.nodes[leader], 100) && !gives(&cluster.nodes[leader], 101));
    let set = ["settings", "set", "MAX_N=300", "RESERVATION_MS=2000", "EPOCH_INTERVAL_MS=20"];
    let said = cluster.order(&set);
    for line in
        ["MAX_N=300", "RESERVATION_MS=2000", "EPOCH_INTERVAL_MS=20", "CLOCK_OFFSET_MAX_MS=500"]
    {
        assert!(said.lines().any(|shown| shown == line), "{line} in {said}");
    }
    // It is done when the command says so, without a restart.
    assert!(gives(&cluster.nodes[leader], 300) && !gives(&cluster.nodes[leader], 301));
    // Who does not lead judges no count by what may have changed where another leads.
    let follower = &cluster.nodes[cluster.others(leader)[0]];
    assert_eq!([301, 0].map(|count| refuses_with(follower, count)), [Some(409), Some(400)]);
    // What may not be is refused in words, and changes nothing.
    cluster.assert_refused(&["settings", "set", "MAX_N=0"], &["MAX_N is \"0\"", "from 1 to"]);
    cluster.assert_refused(
        &["settings", "set", "RESERVATION_MS=300"],
        &["RESERVATION_MS would be 300 with ELECTION_TIMEOUT_MS 200", "at least 800"],
    );
    let usage = cluster.operate(&["settings", "set", "ELECTION_TIMEOUT_MS=100"]);
    assert_eq!(usage.status.code(), Some(2));
    // A new leader goes by them, and so do all after a power failure, whatever they are told.
    cluster.nodes[leader].kill();
    let next = cluster.wait_for_leader_other_than(Some(leader), PATIENCE);
    wait_until("the next leader goes by them", PATIENCE, || gives(&cluster.nodes[next], 300));
    assert!(!gives(&cluster.nodes[next], 301));
    cluster.kill_all();
    for node in &mut cluster.nodes {
        node.set("MAX_N", 50);
    }
    cluster.start_all();
    cluster.wait_until_ready();
    assert!(shows(&cluster, "MAX_N=300"));
    let leader = cluster.wait_for_leader();
    assert!(gives(&cluster.nodes[leader], 300));
    for node in &cluster.nodes {
        let log = node.log();
        assert!(log.contains("a setting of this node is not that of the cluster"), "{log}");
        assert!(log.contains("\"setting\":\"MAX_N\",\"here\":\"50\",\"counts\":\"300\""), "{log}");
    }
    cluster.assert_well();
    watch.wait_for_service_since(Instant::now());
    let operations = calling.finish();
    watch.finish_with(&operations);
}

/// As after a rolling restart with longer election timeouts and nothing else.
#[test]
fn a_window_that_is_too_short_for_the_election_timeouts_is_told_and_blocks_no_other_setting() {
    let mut cluster = Cluster::start();
    wait_until("they are seeded", PATIENCE, || shows(&cluster, "RESERVATION_MS=1000"));
    cluster.kill_all();
    for node in &mut cluster.nodes {
        node.set("ELECTION_TIMEOUT_MS", 600);
    }
    cluster.start_all();
    cluster.wait_until_ready();
    // The default of these nodes, so no word of another setting.
    for node in &cluster.nodes {
        let log = node.log();
        assert!(log.contains("is below four ELECTION_TIMEOUT_MS of this node"), "{log}");
        assert!(log.contains("epicepoch settings set RESERVATION_MS=3000"), "{log}");
    }
    let said = String::from_utf8(cluster.operate(&["tune"]).stdout).expect("UTF-8");
    assert!(said.contains("epicepoch settings set RESERVATION_MS=3000"), "{said}");
    cluster.order(&["settings", "set", "MAX_N=300"]);
    let less = ["settings", "set", "RESERVATION_MS=1001"];
    cluster.assert_refused(&less, &["RESERVATION_MS would be 1001", "at least 2400"]);
    cluster.order(&["settings", "set", "RESERVATION_MS=3000"]);
    assert!(shows(&cluster, "MAX_N=300") && shows(&cluster, "RESERVATION_MS=3000"));
    cluster.assert_well();
}

#[test]
fn settings_wait_for_the_last_node_that_does_not_know_them() {
    let mut cluster = Cluster::down(&[]);
    cluster.nodes[1].set("FORMAT_MAX", 2);
    cluster.start_all();
    cluster.wait_until_ready();
    let refused = ["settings", "set", "MAX_N=300"];
    cluster.assert_refused(&refused, &["settings are in it from format 3 on", "member list"]);
    let listed = cluster.order(&["settings", "list"]);
    assert!(listed.contains("no settings in its state"), "{listed}");
    assert_eq!(cluster.nodes[1].terminate().code(), Some(0));
    cluster.nodes[1].unset("FORMAT_MAX");
    cluster.nodes[1].start();
    wait_until("they are seeded", PATIENCE, || shows(&cluster, "MAX_N=65536"));
    cluster.order(&refused);
    assert!(shows(&cluster, "MAX_N=300"));
    cluster.assert_well();
}
