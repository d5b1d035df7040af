//! Nodes that send requests on to the node that they take for the leader (`FORWARD`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use epicepoch_core::publication::Published;
use epicepoch_server::Config;
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::{ClientHello, FEATURE_DIRECT};
use epicepoch_wire::{HistoryId, NodeId, Term};

use crate::http2::sent_on;
use crate::native::{Got, Native};
use crate::node::{Cluster, TestNode, WAIT_MAX};

const ANSWERED: &str = "epicepoch_forwarded_total{outcome=\"answered\"}";

/// Two nodes that forward, and what node `id` publishes of `leader`: with the real addresses.
pub(crate) fn two(
    request_timeout: Duration,
    change: impl Fn(&mut Config),
) -> (Cluster, [TestNode; 2]) {
    let mut cluster = Cluster::new(2);
    let nodes = [1, 2].map(|id| {
        cluster.start_with(id, |config| {
            config.forward = true;
            config.election_timeout = WAIT_MAX / 4;
            config.request_timeout = request_timeout;
            change(config);
        })
    });
    (cluster, nodes)
}

/// The publication with the real client addresses of two nodes.
pub(crate) fn with_addresses(mut published: Published, nodes: [&TestNode; 2]) -> Published {
    let mut members = (*published.members).clone();
    for (id, node) in [1, 2].into_iter().zip(nodes) {
        members.get_mut(&NodeId(id)).expect("a member").client_addr = node.addr.to_string();
    }
    published.members = Arc::new(members);
    published
}

/// What node `node` publishes while it follows `leader`.
pub(crate) fn following(cluster: &Cluster, node: u64, leader: u64) -> Published {
    Published { leader: Some(NodeId(leader)), ..cluster.nothing(node) }
}

pub(crate) fn both(nodes: &[TestNode; 2]) -> [&TestNode; 2] {
    nodes.each_ref()
}

/// Waits until the node's worker knows the leader.
#[track_caller]
pub(crate) fn await_leader(node: &TestNode, leader: u64) {
    let start = Instant::now();
    let named = format!("leader={leader} ");
    while !node.request("GET /ready").text().contains(&named) {
        assert!(start.elapsed() < WAIT_MAX, "{named} is not known");
        std::thread::yield_now();
    }
}

#[test]
fn two_nodes_that_take_each_other_for_the_leader_give_up_and_forward_nothing() {
    let (cluster, nodes) = two(Duration::from_millis(300), |_| {});
    nodes[0].publish(with_addresses(following(&cluster, 1, 2), both(&nodes)));
    nodes[1].publish(with_addresses(following(&cluster, 2, 1), both(&nodes)));
    await_leader(&nodes[0], 2);
    await_leader(&nodes[1], 1);
    let asked = Instant::now();
    let reply = nodes[0].request("GET /timestamp");
    assert_eq!(reply.error(), (503, "NO_QUORUM"));
    assert!(asked.elapsed() < WAIT_MAX);
    let refused = "epicepoch_forwarded_total{outcome=\"refused\"}";
    assert_eq!((nodes[0].metric(refused), nodes[0].metric(ANSWERED)), (1, 0));
    let again = "epicepoch_forwarded_total{outcome=\"sent_again\"}";
    assert!(nodes[0].metric(again) > 0, "the other node said that it does not lead");
    for outcome in ["answered", "refused", "sent_again"] {
        let name = format!("epicepoch_forwarded_total{{outcome=\"{outcome}\"}}");
        assert_eq!(nodes[1].metric(&name), 0, "the other node sends nothing on");
    }
}

/// Another node may listen at the address of the leader: it leads, but in another history of the
/// cluster, or it is not the node that this one believes in.
#[test]
fn nothing_is_taken_from_another_node_at_the_address_of_the_leader() {
    let (cluster, nodes) = two(Duration::from_millis(300), |_| {});
    nodes[0].publish(with_addresses(cluster.leading(1, 3, true), both(&nodes)));
    await_leader(&nodes[0], 1);
    let follows = with_addresses(following(&cluster, 2, 1), both(&nodes));
    let other_history = Published { history: HistoryId(follows.history.0 + 1), ..follows.clone() };
    let mut members = (*follows.members).clone();
    let other = Member { node: NodeId(3), ..members[&NodeId(1)].clone() };
    members.insert(NodeId(3), other);
    let members = Arc::new(members);
    let other_node = Published { leader: Some(NodeId(3)), members, ..follows };
    for (published, leader) in [(other_history, 1), (other_node, 3)] {
        nodes[1].publish(published);
        await_leader(&nodes[1], leader);
        assert_eq!(nodes[1].request("GET /timestamp").error(), (503, "NO_QUORUM"));
        assert_eq!(nodes[1].metric(ANSWERED), 0);
    }
}

#[test]
fn a_follower_answers_through_the_leader_over_http_and_the_native_protocol() {
    let (cluster, nodes) = two(WAIT_MAX, |_| {});
    nodes[1].publish(with_addresses(
        Published { term: Term(3), ..following(&cluster, 2, 1) },
        both(&nodes),
    ));
    nodes[0].publish(with_addresses(cluster.leading(1, 3, true), both(&nodes)));
    await_leader(&nodes[0], 1);
    await_leader(&nodes[1], 1);
    let (leader, follower) = (&nodes[0], &nodes[1]);
    let mut last = leader.request("GET /timestamp").timestamps()[0];
    let mut client = follower.connect();
    for path in ["/timestamp", "/timestamp?n=3", "/timestamp?n=5000", "/timestamp?guarantee=quorum"]
    {
        let reply = client.request(&format!("GET {path}"));
        let named = ["epicepoch-forwarded", "epicepoch-leader"].map(|name| reply.header(name));
        assert_eq!(named, ["2", &*leader.addr.to_string()], "{path}");
        let given = reply.timestamps();
        assert!(last < given[0] && given.is_sorted(), "{path}");
        last = leader.request("GET /timestamp").timestamps()[0];
        assert!(given.iter().all(|it| *it < last), "{path}");
    }
    let mut native = Native::connect(follower);
    native.hello(&ClientHello::default());
    assert!(matches!(native.next(), Got::Welcome(_)));
    native.ask(7, 3);
    let range = native.range(7);
    assert!(range.count() == 3 && range.first() > last);
    let mut direct = Native::connect(follower);
    direct.hello(&ClientHello { features: FEATURE_DIRECT, ..ClientHello::default() });
    assert!(matches!(direct.next(), Got::Welcome(_)));
    direct.ask(8, 1);
    let Got::Error { code, text, .. } = direct.next() else { panic!("no refusal") };
    assert_eq!((code, text), (Some(ErrorCode::NotLeader), leader.addr.to_string()));
    native.ask_latest(9);
    let Got::Error { code, .. } = native.next() else { panic!("no refusal") };
    assert_eq!(code, Some(ErrorCode::NotLeader), "only the leader knows the latest timestamp");
    for (path, len) in [("/timestamp", 16), ("/timestamp?n=3", 48), ("/timestamp?n=9000", 144_000)]
    {
        assert_eq!(sent_on(follower, path, "0"), (200, "2".to_owned(), len), "{path}");
        assert_eq!(sent_on(follower, path, "1").0, 409, "{path}");
    }
    assert_eq!(follower.metric(ANSWERED), 8);
    let measured = ["seconds_count", "size_requests_count", "size_requests_sum"];
    for name in measured.map(|name| format!("epicepoch_forward_{name}")) {
        assert_eq!((follower.metric(&name), leader.metric(&name)), (8, 0), "{name}");
    }
    for node in [follower, leader] {
        assert_eq!(node.request("GET /timestamp?n=100000").error(), (400, "BAD_COUNT"));
    }
}
