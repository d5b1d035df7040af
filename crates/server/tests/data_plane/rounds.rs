//! Confirm rounds between nodes: which node may answer, and which must not.

use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use epicepoch_server::front;
use epicepoch_server::metrics::Metrics;
use epicepoch_wire::confirm::{Confirm, ConfirmReply};
use epicepoch_wire::frame::FrameKind;
use epicepoch_wire::peer_hello::{LinkKind, PeerHello};
use epicepoch_wire::{BootId, NodeId, Round, StoreId, Term, WorkerId};

use crate::node::{Cluster, TestNode, WAIT_MAX, read_frame, send_frame, store};

fn two() -> (Cluster, TestNode, TestNode) {
    let mut cluster = Cluster::new(2);
    let (a, b) = (cluster.start(1), cluster.start(2));
    b.publish(cluster.nothing(2));
    a.publish(cluster.leading(1, 3, true));
    a.await_metric("epicepoch_is_leader", 1);
    (cluster, a, b)
}

/// Sends requests until the worker has seen the publication. Returns the first answer with a
/// timestamp.
fn first_timestamp(node: &TestNode) -> crate::node::Reply {
    let mut client = node.connect();
    loop {
        let reply = client.request("GET /timestamp");
        if reply.error() != (503, "NO_LEADER") {
            return reply;
        }
    }
}

#[test]
fn a_voter_confirms_until_it_has_promised_a_higher_term() {
    let (_cluster, a, b) = two();
    assert_eq!(first_timestamp(&a).timestamps().len(), 1);
    assert!(b.metric("epicepoch_confirms_answered_total") >= 1);
    b.shared.core.promise.raise(Term(4));
    // The old leader does not know of the new term; it must not answer with a timestamp.
    for _ in 0..3 {
        assert_eq!(a.request("GET /timestamp").error(), (503, "NO_LEADER"));
    }
}

/// With `BUSY_POLL` a worker does not sleep.
#[test]
fn workers_that_spin_serve_and_stop_like_others() {
    let mut cluster = Cluster::new(2);
    let spinning = |config: &mut epicepoch_server::Config| {
        config.election_timeout = WAIT_MAX / 4;
        config.busy_poll = true;
    };
    let (a, b) = (cluster.start_with(1, spinning), cluster.start_with(2, spinning));
    b.publish(cluster.nothing(2));
    a.publish(cluster.leading(1, 3, true));
    a.await_metric("epicepoch_is_leader", 1);
    assert_eq!(first_timestamp(&a).timestamps().len(), 1);
    for _ in 0..100 {
        assert_eq!(a.request("GET /timestamp").timestamps().len(), 1);
    }
    b.shared.core.promise.raise(Term(4));
    assert_eq!(a.request("GET /timestamp").error(), (503, "NO_LEADER"));
    assert!(a.workers.shutdown(WAIT_MAX) && b.workers.shutdown(WAIT_MAX));
}

/// A leader that has promised a higher term does not count itself in its own round.
#[test]
fn the_own_promise_counts_like_any_other() {
    let (_cluster, a, _b) = two();
    assert_eq!(first_timestamp(&a).status, 200);
    a.shared.core.promise.raise(Term(4));
    assert_eq!(a.request("GET /timestamp").error(), (503, "NO_LEADER"));
}

#[test]
fn without_a_quorum_requests_are_refused_after_an_election_timeout() {
    let mut cluster = Cluster::new(3);
    let a = cluster.start_with(1, |config| config.election_timeout = Duration::from_millis(50));
    a.publish(cluster.leading(1, 3, true));
    assert_eq!(first_timestamp(&a).error(), (503, "NO_QUORUM"));
}

/// A leader without requests starts rounds as a probe, and each round that completes is recorded.
#[test]
fn an_idle_leader_shows_that_its_rounds_complete() {
    let mut cluster = Cluster::new(2);
    let short = |config: &mut epicepoch_server::Config| {
        config.election_timeout = Duration::from_millis(50);
    };
    let (a, b) = (cluster.start_with(1, short), cluster.start_with(2, short));
    b.publish(cluster.nothing(2));
    a.publish(cluster.leading(1, 3, true));
    let completed = || a.shared.health.round_completed_ns.load(std::sync::atomic::Ordering::SeqCst);
    let mut last = completed();
    for _ in 0..3 {
        while completed() == last {
            std::thread::yield_now();
        }
        last = completed();
    }
    assert_eq!(a.metric("epicepoch_timestamps_total"), 0);
    drop(b);
}

#[test]
fn a_link_that_broke_is_connected_again() {
    let mut cluster = Cluster::new(2);
    let (port, a) = (cluster.take_port(2), cluster.start(1));
    a.publish(cluster.leading(1, 3, true));
    let mut client = a.connect();
    a.await_metric("epicepoch_is_leader", 1);
    // The voter reads the question, and then its link breaks. The leader asks again over a new
    // link, and the voter answers.
    let voter = std::thread::spawn(move || {
        let mut lost = welcome(&port, store(NodeId(2)));
        assert_eq!(read_frame(&mut lost).unwrap().0.kind, FrameKind::Confirm);
        drop(lost);
        let mut stream = welcome(&port, store(NodeId(2)));
        while let Some((_, payload)) = read_frame(&mut stream) {
            answer(&mut stream, &payload, store(NodeId(2)));
        }
    });
    let reply = loop {
        let reply = client.request("GET /timestamp");
        if reply.error() != (503, "NO_LEADER") {
            break reply;
        }
    };
    assert_eq!(reply.status, 200);
    drop((client, a));
    voter.join().unwrap();
}

/// A leader of two nodes. The test plays the other voter. The deadline is so long that no round
/// fails because of it.
fn leader_of_a_played_voter() -> (TestNode, std::net::TcpStream) {
    let mut cluster = Cluster::new(2);
    let port = cluster.take_port(2);
    let a = cluster.start_with(1, |config| config.election_timeout = 100 * WAIT_MAX);
    a.publish(cluster.leading(1, 3, true));
    let voter = welcome(&port, store(NodeId(2)));
    voter.set_read_timeout(Some(WAIT_MAX)).unwrap();
    a.await_metric("epicepoch_is_leader", 1);
    (a, voter)
}

/// The next question that the played voter is asked.
fn asked(voter: &mut std::net::TcpStream) -> Confirm {
    let (header, payload) = read_frame(voter).expect("a question");
    assert_eq!(header.kind, FrameKind::Confirm);
    Confirm::decode(&payload).unwrap()
}

/// The played voter answers a question; its Promise is `promise`.
fn say(voter: &mut std::net::TcpStream, asked: Confirm, promise: u64) {
    let Confirm { boot, worker, term, round, .. } = asked;
    let (leader, store, promise) = (NodeId(1), store(NodeId(2)), Term(promise));
    let reply = ConfirmReply { leader, store, boot, worker, term, round, promise };
    send_frame(voter, FrameKind::ConfirmReply, NodeId(2), |out| reply.encode(out));
}

#[test]
fn each_round_answers_the_requests_that_came_before_it() {
    let (a, mut voter) = leader_of_a_played_voter();
    let ask = || {
        let mut client = a.connect();
        client.send("GET /timestamp");
        client
    };
    let mut in_flight: Vec<_> = (0..4).map(|_| (ask(), asked(&mut voter))).collect();
    // Four rounds are in flight, which is the limit. So the next two requests share a batch, which
    // stays open.
    let open = [ask(), ask()];
    a.await_metric("epicepoch_waiting_requests", 6);
    say(&mut voter, in_flight[1].1, 3);
    let answered = in_flight.drain(..2).map(|(mut client, _)| client.reply().unwrap());
    let answered: Vec<_> = answered.map(|reply| reply.timestamps()[0]).collect();
    assert!(answered.is_sorted(), "{answered:?}");
    // Two rounds have ended, so a new round begins for the open batch. All requests that wait now
    // came after the round that the voter has confirmed.
    let last = asked(&mut voter);
    assert_eq!(last.round, Round(5));
    say(&mut voter, last, 4);
    let waiting = in_flight.into_iter().map(|(client, _)| client).chain(open);
    for mut client in waiting {
        assert_eq!(client.reply().unwrap().error(), (503, "NO_LEADER"));
    }
    assert_eq!(a.metric("epicepoch_timestamps_total"), 2);
}

#[test]
fn a_request_gets_nothing_of_the_round_of_a_client_that_has_gone() {
    let (a, mut voter) = leader_of_a_played_voter();
    let mut gone = std::net::TcpStream::connect(a.addr).unwrap();
    gone.write_all(b"GET /timestamp?n=5 HTTP/1.1\r\nhost: test\r\n\r\n").unwrap();
    let first = asked(&mut voter);
    // It resets its connection.
    socket2::SockRef::from(&gone).set_linger(Some(Duration::ZERO)).unwrap();
    drop(gone);
    a.await_metric("epicepoch_waiting_requests", 0);
    let mut client = a.connect();
    client.send("GET /timestamp");
    let second = asked(&mut voter);
    say(&mut voter, first, 3);
    a.await_metric("epicepoch_timestamps_total", 5);
    say(&mut voter, second, 3);
    assert_eq!(client.reply().unwrap().timestamps().len(), 1);
    assert_eq!(a.metric("epicepoch_timestamps_total"), 6);
}

#[test]
fn another_node_at_a_members_address_gets_no_confirm() {
    let mut cluster = Cluster::new(2);
    let port = cluster.take_port(2);
    let a = cluster.start_with(1, |config| config.election_timeout = Duration::from_millis(100));
    a.publish(cluster.leading(1, 3, true));
    let stranger = std::thread::spawn(move || {
        // The process at the voter's address has the voter's node id and an empty data directory.
        // No question may reach it.
        for _ in 0..3 {
            let mut stream = welcome(&port, StoreId(99));
            assert!(read_frame(&mut stream).is_none());
        }
    });
    assert_eq!(first_timestamp(&a).error(), (503, "NO_QUORUM"));
    stranger.join().unwrap();
}

#[test]
fn a_confirm_that_does_not_belong_to_its_link_ends_the_link() {
    let mut cluster = Cluster::new(2);
    let b = cluster.start(2);
    b.publish(cluster.nothing(2));
    let ask = |from: u64, asks: u64| {
        let mut stream = call(&cluster, &b, from);
        let confirm = question(asks);
        send_frame(&mut stream, FrameKind::Confirm, NodeId(from), |out| confirm.encode(out));
        read_frame(&mut stream).map(|(header, payload)| {
            assert_eq!(header.kind, FrameKind::ConfirmReply);
            ConfirmReply::decode(&payload).unwrap()
        })
    };
    let reply = ask(1, 1).expect("an answer");
    assert!(reply.is_yes());
    assert_eq!((reply.leader, reply.store, reply.round), (NodeId(1), store(NodeId(2)), Round(5)));
    assert_eq!(ask(1, 3), None);
    let mut stream = call(&cluster, &b, 1);
    send_frame(&mut stream, FrameKind::Confirm, NodeId(3), |out| question(1).encode(out));
    assert!(read_frame(&mut stream).is_none());
    let mut stream = call(&cluster, &b, 1);
    send_frame(&mut stream, FrameKind::Raft, NodeId(1), |_| ());
    assert!(read_frame(&mut stream).is_none());
    let mut stream = call(&cluster, &b, 1);
    stream.write_all(&[0xFF; 4096]).unwrap();
    assert!(read_frame(&mut stream).is_none());
    assert_eq!(b.request("GET /up").status, 200);
}

#[test]
fn several_confirms_are_answered_in_order() {
    let mut cluster = Cluster::new(2);
    let b = cluster.start(2);
    b.publish(cluster.nothing(2));
    let mut stream = call(&cluster, &b, 1);
    for round in 1..=500 {
        let confirm = Confirm { round: Round(round), ..question(1) };
        send_frame(&mut stream, FrameKind::Confirm, NodeId(1), |out| confirm.encode(out));
    }
    for round in 1..=500 {
        let (_, payload) = read_frame(&mut stream).unwrap();
        assert_eq!(ConfirmReply::decode(&payload).unwrap().round, Round(round));
    }
}

/// Node 2 has one worker.
#[test]
fn every_worker_of_a_member_with_more_workers_is_answered() {
    let mut cluster = Cluster::new(2);
    let b = cluster.start_with(2, |config| config.workers = 1);
    b.publish(cluster.nothing(2));
    for worker in [0, 1, 5].map(WorkerId) {
        let mut stream = call_as(&cluster, &b, 1, worker);
        let confirm = Confirm { worker, ..question(1) };
        send_frame(&mut stream, FrameKind::Confirm, NodeId(1), |out| confirm.encode(out));
        let (_, payload) = read_frame(&mut stream).unwrap();
        assert_eq!(ConfirmReply::decode(&payload).unwrap().worker, worker);
    }
}

#[test]
fn workers_whose_handles_are_dropped_end() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start(1);
    let holders = || Arc::strong_count(&node.shared);
    let before = holders();
    let metrics = Arc::new(Metrics::new(node.shared.config.workers));
    let workers = front::spawn_workers(node.shared.clone(), metrics).unwrap();
    assert!(holders() > before);
    drop(workers);
    let start = Instant::now();
    while holders() > before {
        assert!(start.elapsed() < WAIT_MAX, "a worker goes on");
        std::thread::yield_now();
    }
}

#[test]
fn a_newer_link_of_a_worker_replaces_the_older_one() {
    let mut cluster = Cluster::new(2);
    let b = cluster.start(2);
    b.publish(cluster.nothing(2));
    let mut older = call(&cluster, &b, 1);
    let mut newer = call(&cluster, &b, 1);
    assert!(read_frame(&mut older).is_none());
    send_frame(&mut newer, FrameKind::Confirm, NodeId(1), |out| question(1).encode(out));
    assert_eq!(read_frame(&mut newer).unwrap().0.kind, FrameKind::ConfirmReply);
}

#[test]
fn a_link_without_an_answer_to_a_confirm_is_replaced() {
    let mut cluster = Cluster::new(2);
    let port = cluster.take_port(2);
    let a = cluster.start_with(1, |config| config.election_timeout = Duration::from_millis(50));
    a.publish(cluster.leading(1, 3, true));
    let mut silent = welcome(&port, store(NodeId(2)));
    assert_eq!(read_frame(&mut silent).unwrap().0.kind, FrameKind::Confirm);
    let mut next = welcome(&port, store(NodeId(2)));
    while read_frame(&mut silent).is_some() {}
    assert_eq!(read_frame(&mut next).unwrap().0.kind, FrameKind::Confirm);
}

fn question(node: u64) -> Confirm {
    Confirm {
        store: store(NodeId(node)),
        boot: BootId(node + 700),
        worker: WorkerId(0),
        term: Term(3),
        round: Round(5),
    }
}

/// Opens a confirm link to `node` as member `from`.
fn call(cluster: &Cluster, node: &TestNode, from: u64) -> std::net::TcpStream {
    call_as(cluster, node, from, WorkerId(0))
}

/// [`call`] of one of the member's workers.
fn call_as(cluster: &Cluster, node: &TestNode, from: u64, worker: WorkerId) -> std::net::TcpStream {
    let mut stream = std::net::TcpStream::connect(&node.shared.config.raft_addr).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let identity = cluster.nothing(from).identity;
    let link = LinkKind::Confirm(worker);
    let to = node.shared.identity.node;
    let hello =
        PeerHello { store: identity.store, boot: identity.boot, ..node.shared.hello(link, to) };
    send_frame(&mut stream, FrameKind::PeerHello, NodeId(from), |out| hello.encode(out));
    assert_eq!(read_frame(&mut stream).unwrap().0.kind, FrameKind::Welcome);
    stream
}

/// Accepts a confirm link as node 2 with the data directory `store`.
fn welcome(port: &std::net::TcpListener, store: StoreId) -> std::net::TcpStream {
    let (mut stream, _) = port.accept().unwrap();
    let (header, payload) = read_frame(&mut stream).unwrap();
    let hello = PeerHello::decode(&payload).unwrap();
    let welcome = PeerHello { to: header.from, store, ..hello };
    send_frame(&mut stream, FrameKind::Welcome, NodeId(2), |out| welcome.encode(out));
    stream
}

fn answer(stream: &mut std::net::TcpStream, payload: &[u8], store: StoreId) {
    let ask = Confirm::decode(payload).unwrap();
    let Confirm { boot, worker, term, round, .. } = ask;
    let reply = ConfirmReply { leader: NodeId(1), store, boot, worker, term, round, promise: term };
    send_frame(stream, FrameKind::ConfirmReply, NodeId(2), |out| reply.encode(out));
}
