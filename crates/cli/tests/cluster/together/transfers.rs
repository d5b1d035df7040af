//! Tests which commands to hand leadership over are refused.

use crate::support::{Cluster, WAIT_MAX, wait_until};

#[test]
fn an_impossible_handover_is_refused_with_a_reason_and_the_leader_stays() {
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
    wait_until("the leader misses the one that is paused", WAIT_MAX, || {
        let output = cluster.operate(&["leader", "transfer", "--to", &gone]);
        said = String::from_utf8_lossy(&output.stderr).into_owned();
        // Until the leader has noticed that the node is paused, it starts the handover, which then
        // fails. After that, it refuses the command.
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
