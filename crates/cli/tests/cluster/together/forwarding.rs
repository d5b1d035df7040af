//! Tests of nodes that send requests on to the leader (`FORWARD=on`).

use std::time::{Duration, Instant};

use crate::support::{Cluster, Node, WAIT_MAX, Watch, wait_until};

const FORWARD: [(&str, &str); 1] = [("FORWARD", "on")];
/// A refused request comes back well within this time, although its node waits for a leader that
/// does not answer.
const GIVEN_UP: Duration = Duration::from_secs(8);

/// Waits until `node` answers through the leader.
#[track_caller]
fn wait_until_forwarded(node: &Node) {
    wait_until("a request is sent on", WAIT_MAX, || {
        let answer = node.ask("/timestamp");
        answer.is_some_and(|it| it.status == 200 && it.header("epicepoch-forwarded").is_some())
    });
}

#[test]
fn every_node_answers_while_leaders_are_killed_and_all_answers_are_in_order() {
    let mut cluster = Cluster::start_with(&FORWARD);
    let watch = Watch::start(&cluster);
    for _ in 0..3 {
        let leader = cluster.wait_for_leader();
        for other in cluster.others(leader) {
            wait_until_forwarded(&cluster.nodes[other]);
        }
        cluster.nodes[leader].kill();
        let killed = Instant::now();
        watch.wait_for_service_since(killed);
        let next = cluster.wait_for_leader_other_than(Some(leader), WAIT_MAX);
        cluster.nodes[leader].start();
        cluster.wait_until_ready();
        assert_ne!(next, leader);
    }
    let seen = watch.finish();
    // Three nodes were asked equally often. Had only the leader answered, two thirds would be
    // refusals.
    let forwarded: f64 = cluster
        .nodes
        .iter()
        .map(|node| {
            let name = "epicepoch_forwarded_total{outcome=\"answered\"}";
            node.metric(name).expect("a metric")
        })
        .sum();
    assert!(forwarded > 0.0, "{forwarded} requests were answered through the leader");
    assert!(seen.report.answered().count() > 0);
    cluster.assert_well();
}

#[test]
fn a_forwarded_answer_names_the_leader_and_only_a_client_that_follows_gets_the_409() {
    let cluster = Cluster::start_with(&FORWARD);
    let leader = cluster.wait_for_leader();
    let addr = cluster.nodes[leader].http().to_string();
    let node = &cluster.nodes[cluster.others(leader)[0]];
    wait_until_forwarded(node);
    let id = node.id.to_string();
    for (path, len) in [
        ("/timestamp", 16),
        ("/timestamp?n=3", 48),
        ("/timestamp?n=3&format=range", 24),
        ("/timestamp?n=5000", 80_000),
    ] {
        let answer = node.ask(path).expect("an answer");
        assert_eq!((answer.status, answer.body.len()), (200, len), "{path} {answer:?}");
        assert_eq!(answer.header("epicepoch-forwarded"), Some(&*id), "{path}");
        assert_eq!(answer.header("epicepoch-leader"), Some(&*addr), "{path}");
    }
    let json = node.ask("/timestamp?format=json").expect("an answer");
    assert_eq!((json.status, json.header("epicepoch-forwarded")), (200, Some(&*id)), "{json:?}");
    let direct = [("epicepoch-direct", "1")];
    let refused = [
        node.ask_with("GET", "/timestamp", &direct),
        node.ask_with("POST", "/timestamp?format=json", &direct),
        node.ask("/latest"),
        node.ask("/timestamp?guarantee=lease"),
    ];
    for answer in refused {
        let answer = answer.expect("an answer");
        assert_eq!((answer.status, answer.error()), (409, Some("NOT_LEADER")), "{answer:?}");
        assert_eq!(answer.header("epicepoch-leader"), Some(&*addr), "{answer:?}");
    }
    let bad = node.ask("/timestamp?n=100000").expect("an answer");
    assert_eq!((bad.status, bad.error()), (400, Some("BAD_COUNT")), "MAX_N holds here, too");
    let ready = node.ask("/ready").expect("an answer").text();
    assert!(ready.contains("forwards=true"), "{ready}");
    let own = cluster.nodes[leader].ask("/timestamp").expect("an answer");
    assert_eq!((own.status, own.header("epicepoch-forwarded")), (200, None), "{own:?}");
}

#[test]
fn a_node_whose_leader_is_paused_gives_up_within_the_deadline() {
    let mut cluster = Cluster::down_calm(&FORWARD);
    cluster.start_all();
    cluster.wait_until_ready();
    let leader = cluster.wait_for_leader();
    let others = cluster.others(leader);
    wait_until_forwarded(&cluster.nodes[others[0]]);
    for index in [leader, others[1]] {
        cluster.nodes[index].pause();
    }
    for _ in 0..3 {
        let asked = Instant::now();
        let answer = cluster.nodes[others[0]].ask("/timestamp").expect("an answer in time");
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(asked.elapsed() < GIVEN_UP, "{:?}", asked.elapsed());
    }
    for index in [leader, others[1]] {
        cluster.nodes[index].resume();
    }
    cluster.wait_until_ready();
    cluster.assert_well();
}
