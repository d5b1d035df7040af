//! Tests which commands of operators are refused, because of the node that is asked or of how it is
//! asked.

use crate::support::Cluster;

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
    for query in ["?to=x", "?to=0", "?to=1&to=2", "?node=1", "?to"] {
        let got = ask("POST", &format!("{path}{query}"), &by_operator);
        assert_eq!((got.status, got.error()), (400, Some("BAD_REQUEST")), "{query} {got:?}");
    }
    for path in [path, "/admin/clock/advance?to=1"] {
        let got = ask("GET", path, &by_operator);
        assert_eq!((got.status, got.header("allow")), (405, Some("POST")), "{got:?}");
        let got = ask("POST", path, &[]);
        assert_eq!((got.status, got.error()), (403, Some("FORBIDDEN")), "{got:?}");
        assert!(got.text().contains("epicepoch-admin"), "{got:?}");
    }
    for (method, target) in
        [("POST", path), ("POST", "/admin/clock/advance?to=1"), ("GET", "/admin/members")]
    {
        let got = ask(method, target, &by_operator);
        assert_eq!((got.status, got.error()), (409, Some("NOT_LEADER")), "{got:?}");
        assert_eq!((got.text(), got.header("epicepoch-leader")), (addr.clone(), Some(&*addr)));
    }
    cluster.assert_refused(&["leader", "transfer", "--to", "9"], &["node 9 is no member"]);
    let outside = cluster.operate(&["leader", "transfer", "--to", "0"]);
    assert_eq!(outside.status.code(), Some(2), "0 is no node");
    assert_eq!(cluster.wait_for_leader(), leader, "nothing has changed");
}
