//! Leadership handed over by an operator's command: what it costs clients, and what is refused.
//!
//! `EPICEPOCH_OUTAGES=100` makes the measured handovers that many.

use std::time::Instant;

use crate::clients::Calling;
use crate::faults::HANDED_OVER_MS;
use crate::support::{Cluster, PATIENCE, Silence, Watch, outages, say, wait_until};

/// Has leadership handed over, and says when that was asked for. A voter whose disk does not answer
/// just now is refused, or declines; then it is asked again.
pub(crate) fn transferred(cluster: &Cluster, order: &[&str]) -> (Instant, String) {
    let mut taken = None;
    wait_until("a handover is taken", PATIENCE, || {
        let from = Instant::now();
        let output = cluster.operate(order);
        let [said, why] = [output.stdout, output.stderr].map(String::from_utf8);
        let (said, why) = (said.expect("UTF-8"), why.expect("UTF-8"));
        if output.status.success() {
            taken = Some((from, said));
            return true;
        }
        let declined = [
            "did not take over",
            "was not heard",
            "is not caught up",
            "no other voter is caught up",
        ];
        assert!(declined.iter().any(|words| why.contains(words)), "{why}");
        say(&format!("not yet: {}", why.trim()));
        false
    });
    taken.expect("the wait is over")
}

#[test]
fn a_leader_asked_to_hand_over_10_times_costs_no_more_than_sigterm_and_no_call() {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let calling = Calling::start(&cluster);
    let mut windows = Vec::new();
    for event in 0..outages(10) {
        let leader = cluster.wait_for_leader();
        calling.wait_for_service_since(Instant::now());
        let to = cluster.others(leader)[event % 2];
        let id = cluster.nodes[to].id.to_string();
        // Named or not; unnamed it is somebody else all the same.
        let is_named = event % 4 != 3;
        let order: &[&str] =
            if is_named { &["leader", "transfer", "--to", &id] } else { &["leader", "transfer"] };
        let (from, said) = transferred(&cluster, order);
        watch.wait_for_service_since(Instant::now());
        windows.push((from, Instant::now()));
        let next = cluster.wait_for_leader();
        assert!(next == to || !is_named && next != leader, "{said}");
        let words = format!("node {} leads in term", cluster.nodes[next].id);
        assert!(said.starts_with(&words), "{said}");
    }
    cluster.assert_well();
    let operations = calling.finish();
    assert!(operations.len() > 200, "{} calls", operations.len());
    let seen = watch.finish_with(&operations);
    let silence = Silence::of("leadership handed over by command", &seen, &windows);
    silence.assert_promised(HANDED_OVER_MS);
    silence.assert_each_promised(HANDED_OVER_MS.1);
}

#[test]
fn a_handover_that_cannot_be_is_refused_in_words_and_the_leader_leads_on() {
    let mut cluster = Cluster::start_calm();
    let leader = cluster.wait_for_leader();
    let others = cluster.others(leader);
    let id = |index: usize| cluster.nodes[index].id.to_string();
    let (own, gone) = (id(leader), id(others[0]));
    let already = cluster.order(&["leader", "transfer", "--to", &own]);
    assert_eq!(already, format!("node {own} leads already\n"));
    cluster.assert_refused(&["leader", "transfer", "--to", "9"], &["node 9 is no member"]);
    let outside = cluster.operate(&["leader", "transfer", "--to", "0"]);
    assert_eq!(outside.status.code(), Some(2), "0 is no node");
    cluster.nodes[others[0]].pause();
    let mut said = String::new();
    wait_until("the leader misses the one that is paused", PATIENCE, || {
        let output = cluster.operate(&["leader", "transfer", "--to", &gone]);
        said = String::from_utf8_lossy(&output.stderr).into_owned();
        // Before it is missed, the handover is begun, and comes to nothing.
        said.contains("was not heard")
    });
    cluster.nodes[others[0]].resume();
    cluster.assert_well();
}

#[test]
fn only_a_post_with_the_header_changes_anything_and_a_follower_names_the_leader() {
    let cluster = Cluster::start_calm();
    let leader = cluster.wait_for_leader();
    let follower = &cluster.nodes[cluster.others(leader)[0]];
    let addr = cluster.nodes[leader].http().to_string();
    let path = "/admin/leader/transfer";
    let by_operator = [("epicepoch-admin", "test")];
    let ask = |method: &str, target: &str, headers: &[(&str, &str)]| {
        follower.ask_with(method, target, headers).expect("a node answers")
    };
    let got = ask("GET", path, &by_operator);
    assert_eq!((got.status, got.header("allow")), (405, Some("POST")), "{got:?}");
    let got = ask("POST", path, &[]);
    assert_eq!((got.status, got.error()), (403, Some("FORBIDDEN")), "{got:?}");
    assert!(got.text().contains("epicepoch-admin"), "{got:?}");
    for query in ["?to=x", "?to=0", "?to=1&to=2", "?node=1", "?to"] {
        let got = ask("POST", &format!("{path}{query}"), &by_operator);
        assert_eq!((got.status, got.error()), (400, Some("BAD_REQUEST")), "{query} {got:?}");
    }
    for (method, target) in [("POST", path), ("GET", "/admin/members")] {
        let got = ask(method, target, &by_operator);
        assert_eq!((got.status, got.error()), (409, Some("NOT_LEADER")), "{got:?}");
        assert_eq!((got.text(), got.header("epicepoch-leader")), (addr.clone(), Some(&*addr)));
    }
    assert_eq!(cluster.wait_for_leader(), leader, "nothing has changed");
}
