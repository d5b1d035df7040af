//! Interval mode: every node answers alone, stamps that were waited out are in order over kills and
//! restarts, and the two modes are never open at once.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use epicepoch_bench::history::History;
use epicepoch_bench::{Operation, Outcome};
use epicepoch_client::blocking::Client;
use epicepoch_client::{Interval, IntervalError, Options};
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::interval::IntervalStamp;
use epicepoch_wire::native::{
    ClientHello, FEATURE_INTERVALS, IntervalRequest, TO_CLIENT_TAIL_LEN_MAX, ToClient,
    read_interval_answer, split,
};
use epicepoch_wire::{Timestamp, TimestampRange};

use crate::support::operator::told;
use crate::support::wire::{Answer, Wire};
use crate::support::{Cluster, Faults, Node, WAIT_MAX, wait_until};

/// How many nodes are killed, and how many are stopped.
const OUTAGES: usize = 3;
/// How many stamps in a request of a caller.
pub(super) const COUNT: u64 = 3;

pub(super) fn quorum_cluster() -> Cluster {
    let settings = [("INTERVAL_SOURCE", "fixed=1ms"), ("INTERVAL_BOUND_MAX_MS", "2")];
    let mut cluster = Cluster::down_calm(&settings);
    cluster.start_all();
    cluster.wait_until_ready();
    wait_until("the settings are seeded", WAIT_MAX, || {
        told(&cluster, &["settings", "list"]).lines().any(|it| it == "MODE=quorum")
    });
    cluster
}

/// Changes the mode, and waits until all nodes give interval timestamps.
pub(super) fn change_mode(cluster: &Cluster) {
    // A new cluster raises the format of its state in steps.
    wait_until("the mode can be changed", WAIT_MAX, || {
        cluster.operate(&["settings", "set", "MODE=interval"]).status.success()
    });
    for node in &cluster.nodes {
        wait_until("a node gives intervals", WAIT_MAX, || stamp_of(node).is_some());
    }
}

pub(super) fn read(answer: &Answer) -> IntervalStamp {
    let bytes: &[u8; IntervalStamp::LEN] = answer.body[..].try_into().expect("32 bytes");
    IntervalStamp::from_bytes(bytes).expect("an answer of interval mode")
}

pub(super) fn stamp_of(node: &Node) -> Option<IntervalStamp> {
    node.ask("/interval").filter(|it| it.status == 200).map(|it| read(&it))
}

pub(super) fn code(node: &Node, target: &str) -> String {
    let answer = node.ask(target).expect("an answer");
    format!("{} {}", answer.status, answer.error().unwrap_or_default())
}

/// The mark that a node shows.
fn mark(node: &Node) -> u64 {
    let answer = node.ask("/status").expect("an answer");
    let document: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
    document["interval"]["mark"].as_str().expect("a mark").parse().expect("a number")
}

/// The leader. In interval mode no node answers at `/leader`.
pub(super) fn leader_of(cluster: &Cluster) -> usize {
    let leads = |node: &Node| {
        let answer = node.ask("/status")?;
        let document: serde_json::Value = serde_json::from_slice(&answer.body).ok()?;
        (document["role"] == "leader").then_some(())
    };
    let mut leader = None;
    wait_until("a node leads", WAIT_MAX, || {
        leader = cluster.nodes.iter().position(|node| leads(node).is_some());
        leader.is_some()
    });
    leader.expect("the wait is over")
}

/// Asks a node over the native protocol: an interval, or the number of an error. The first request
/// after a pause may have to wait for a mark, so it is sent again.
fn native(node: &Node) -> Result<IntervalStamp, u16> {
    let mut stream = TcpStream::connect(node.http()).expect("a connection");
    stream.set_read_timeout(Some(WAIT_MAX)).expect("a timeout");
    let mut bytes = Vec::new();
    ClientHello { features: FEATURE_INTERVALS, ..ClientHello::default() }.encode(&mut bytes);
    let (mut read, mut id) = (Vec::new(), 0);
    let began = Instant::now();
    loop {
        id += 1;
        bytes.extend_from_slice(&IntervalRequest::new(id, 5).expect("a request").to_bytes());
        stream.write_all(&std::mem::take(&mut bytes)).expect("written");
        let outcome = loop {
            let frame = split(&read, TO_CLIENT_TAIL_LEN_MAX).expect("frames");
            let Some(frame) = frame else {
                let mut some = [0; 4096];
                let len = stream.read(&mut some).expect("an answer");
                assert!(len > 0, "the node closed the connection");
                read.extend_from_slice(&some[..len]);
                continue;
            };
            let len = frame.len();
            let answer = read_interval_answer(&frame).expect("an answer");
            let outcome = match (answer, ToClient::decode(&frame)) {
                (Some((of, stamp)), _) => {
                    assert_eq!(of, id);
                    Some(Ok(stamp))
                }
                (None, Ok(ToClient::Error(error))) => Some(Err(error.code)),
                (None, Ok(ToClient::Welcome(welcome))) => {
                    assert_eq!(welcome.features, FEATURE_INTERVALS);
                    None
                }
                (None, other) => panic!("{other:?}"),
            };
            read.drain(..len);
            if let Some(outcome) = outcome {
                break outcome;
            }
        };
        if outcome != Err(ErrorCode::Uncertain as u16) || began.elapsed() > WAIT_MAX {
            return outcome;
        }
    }
}

/// Waits until every node runs and is certain. In interval mode no node answers at `/leader`.
#[track_caller]
pub(super) fn assert_well(cluster: &mut Cluster) {
    for node in &mut cluster.nodes {
        assert!(node.is_running(), "node {}", node.id);
        wait_until("the node is ready", WAIT_MAX, || node.is_ready());
    }
}

/// Stamps at one node and waits each stamp out, until it is told to stop.
fn caller(
    node: &Node,
    is_over: &Arc<AtomicBool>,
    count: &Arc<AtomicUsize>,
) -> JoinHandle<Vec<Operation>> {
    let (addr, is_over, id) = (node.http(), is_over.clone(), node.id);
    let count = count.clone();
    std::thread::spawn(move || {
        let mut operations = Vec::new();
        while !is_over.load(Ordering::SeqCst) {
            let start = Instant::now();
            let asked = Wire::open(addr, WAIT_MAX)
                .and_then(|mut wire| wire.get(&format!("/interval?n={COUNT}")));
            // The node may be down, or stop.
            let Some(answer) = asked.ok().filter(|it| it.status == 200) else {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            };
            let stamp = read(&answer);
            assert_eq!(stamp.node().0, id);
            std::thread::sleep(Duration::from_nanos(stamp.wait_ns()));
            let range = TimestampRange::new(stamp.timestamp(), COUNT).expect("a range");
            let (end, outcome) = (Instant::now(), Outcome::Answered(range));
            operations.push(Operation { start, end, node: id, outcome });
            count.fetch_add(1, Ordering::SeqCst);
        }
        operations
    })
}

#[test]
fn stamps_that_were_waited_out_are_in_order_while_nodes_are_killed_and_stopped() {
    let mut cluster = quorum_cluster();
    change_mode(&cluster);
    let (origin, is_over) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let counts: [Arc<AtomicUsize>; 3] = Default::default();
    let callers: Vec<_> = cluster
        .nodes
        .iter()
        .zip(&counts)
        .flat_map(|(node, count)| [0; 2].map(|_| caller(node, &is_over, count)))
        .collect();
    for at in 0..OUTAGES {
        let index = at % cluster.nodes.len();
        cluster.nodes[index].kill();
        // The others need neither it nor a leader.
        for other in cluster.others(index) {
            assert!(stamp_of(&cluster.nodes[other]).is_some(), "after the death of {index}");
        }
        cluster.nodes[index].start();
        wait_until("it is back", WAIT_MAX, || stamp_of(&cluster.nodes[index]).is_some());
        let stopped = (index + 1) % cluster.nodes.len();
        cluster.nodes[stopped].terminate();
        cluster.nodes[stopped].start();
        wait_until("it is back", WAIT_MAX, || stamp_of(&cluster.nodes[stopped]).is_some());
    }
    // After its last outage, each node goes on to answer.
    let before = counts.each_ref().map(|count| count.load(Ordering::SeqCst));
    wait_until("each node has answered 20 times more", WAIT_MAX, || {
        counts.iter().zip(before).all(|(count, before)| count.load(Ordering::SeqCst) >= before + 20)
    });
    is_over.store(true, Ordering::SeqCst);
    let mut history = History::new(origin);
    for caller in callers {
        let operations = caller.join().expect("no caller failed");
        history.record_all(&operations);
    }
    println!("operations of each node: {counts:?}");
    history.settle(Instant::now()).assert_clean();
    assert_well(&mut cluster);
}

#[test]
fn one_mode_is_open_at_a_time_and_interval_timestamps_are_above_those_of_quorum_mode() {
    let mut cluster = quorum_cluster();
    let leader = cluster.wait_for_leader();
    for node in &cluster.nodes {
        assert_eq!(code(node, "/interval"), "422 OTHER_MODE");
        assert_eq!(native(node), Err(ErrorCode::OtherMode as u16));
    }
    let answer = cluster.nodes[leader].ask("/timestamp?n=100").expect("an answer");
    let last: [u8; Timestamp::LEN] = *answer.body.last_chunk().expect("timestamps");
    let last = Timestamp::from_bytes(last);
    change_mode(&cluster);
    for node in &cluster.nodes {
        for target in ["/timestamp", "/latest", "/timestamp?n=3&format=json"] {
            assert_eq!(code(node, target), "422 OTHER_MODE", "{target}");
        }
        let stamp = stamp_of(node).expect("an answer");
        assert!(stamp.timestamp() > last && stamp.earliest_ns() > last.epoch.0);
        let ready = node.ask("/ready").expect("an answer");
        assert!(ready.text().contains("interval=certain boundNs=1000000"), "{}", ready.text());
        assert_eq!(node.metric("epicepoch_interval_certain"), Some(1.0));
        let json = node.ask("/interval?n=7&format=json").expect("an answer");
        let document: serde_json::Value = serde_json::from_slice(&json.body).expect("JSON");
        assert_eq!(
            (document["nodeID"].as_u64(), document["count"].as_str()),
            (Some(node.id), Some("7"))
        );
        let stamps = [native(node), native(node)].map(|it| it.expect("an interval"));
        assert!(stamps[0].timestamp() > stamp.timestamp());
        assert!(stamps[1].count() >= stamps[0].count() + 5, "{stamps:?}");
        assert_eq!(code(node, "/interval?n=0"), "400 BAD_COUNT");
    }
    // No node has a grant, and the cluster is well all the same.
    let mut told = String::new();
    wait_until("status says that the cluster is well", WAIT_MAX, || {
        let output = cluster.operate(&["status"]);
        told = String::from_utf8(output.stdout).expect("UTF-8");
        output.status.success()
    });
    assert_eq!(told.lines().filter(|line| line.contains(" leader   yes ")).count(), 1, "{told}");
    let compact = &["settings", "set", "TIMESTAMP_FORMAT=compact", "--yes"];
    cluster.assert_refused(compact, &["TIMESTAMP_FORMAT", "compact with MODE=quorum"]);
    cluster.order(&["settings", "set", "MAX_N=77"]);
    // A clean stop leaves the exact mark, so the next run is not ahead of its clock: its interval is
    // as wide as its bound. A kill leaves a mark that is ahead. A run begins above it.
    let exact = stamp_of(&cluster.nodes[0]).expect("an answer").latest_ns();
    cluster.nodes[0].terminate();
    cluster.nodes[0].start();
    wait_until("it is back in interval mode", WAIT_MAX, || cluster.nodes[0].is_ready());
    let first = stamp_of(&cluster.nodes[0]).expect("an answer");
    assert!(first.latest_ns() > exact);
    assert_eq!(first.latest_ns() - first.earliest_ns(), 2_000_000);
    assert_eq!(first.count(), 0, "a new run");
    let ahead = mark(&cluster.nodes[0]);
    assert!(ahead > first.latest_ns());
    cluster.nodes[0].kill();
    cluster.nodes[0].start();
    wait_until("it is back in interval mode", WAIT_MAX, || cluster.nodes[0].is_ready());
    assert!(stamp_of(&cluster.nodes[0]).expect("an answer").latest_ns() > ahead);
    assert_well(&mut cluster);
}

/// The source is read while nobody asks, and the mark stays ahead of the clock. So the first request
/// after a pause need not wait for one.
#[test]
fn the_mark_stays_ahead_while_nobody_asks() {
    let mut cluster = quorum_cluster();
    change_mode(&cluster);
    for node in &cluster.nodes {
        let before = mark(node);
        // Each mark is a second ahead, so this takes two further ones.
        wait_until("two further marks", WAIT_MAX, || mark(node) > before + 1_000_000_000);
        assert!(native(node).is_ok());
    }
    assert_well(&mut cluster);
}

#[test]
fn a_node_that_is_not_certain_refuses_and_says_why() {
    let mut cluster = Cluster::down(&[("INTERVAL_BOUND_MAX_MS", "2")]);
    for (node, source) in cluster.nodes.iter_mut().zip(["fixed=1ms", "fixed=3ms"]) {
        node.set("INTERVAL_SOURCE", source);
    }
    cluster.start_all();
    cluster.wait_until_ready();
    wait_until("the mode can be changed", WAIT_MAX, || {
        cluster.operate(&["settings", "set", "MODE=interval"]).status.success()
    });
    wait_until("node 1 is certain", WAIT_MAX, || stamp_of(&cluster.nodes[0]).is_some());
    for (index, reason) in [(1, "INTERVAL_BOUND_MAX_MS"), (2, "INTERVAL_SOURCE")] {
        let node = &cluster.nodes[index];
        wait_until("the mode is applied", WAIT_MAX, || code(node, "/interval") != "422 OTHER_MODE");
        let refused = node.ask("/interval").expect("an answer");
        assert_eq!((refused.status, refused.error()), (503, Some("UNCERTAIN")));
        assert!(refused.text().contains(reason), "{}", refused.text());
        assert!(refused.header("retry-after").is_some());
        let ready = node.ask("/ready").expect("an answer");
        assert_eq!(ready.status, 503);
        assert!(ready.text().contains("interval=uncertain ("), "{}", ready.text());
        assert_eq!(node.metric("epicepoch_interval_certain"), Some(0.0));
    }
}

/// A node whose source lies tells the others a time that contradicts theirs. It refuses, the others
/// go on, and it answers again when the source is right again.
#[test]
fn a_node_whose_source_lies_refuses_while_the_others_go_on() {
    let mut cluster = quorum_cluster();
    change_mode(&cluster);
    let agreement = |node: &Node| {
        let of = |name: &str| node.metric(&format!("epicepoch_interval_clocks_{name}"));
        (of("known"), of("agreeing"))
    };
    for node in &cluster.nodes {
        wait_until("all agree", WAIT_MAX, || agreement(node) == (Some(3.0), Some(3.0)));
    }
    for wrong_ms in [-400, 400] {
        let liar = cluster.nodes.len() - 1;
        let faults = Faults { wall_offset_ms: wrong_ms, ..Faults::NONE };
        cluster.nodes[liar].break_with(faults);
        let node = &cluster.nodes[liar];
        wait_until("the node refuses", WAIT_MAX, || code(node, "/interval") == "503 UNCERTAIN");
        wait_until("it says why", WAIT_MAX, || {
            let ready = node.ask("/ready").expect("an answer");
            ready.status == 503 && ready.text().contains("contradicts 2 of the 2 other voters")
        });
        wait_until("it shows that", WAIT_MAX, || agreement(node) == (Some(3.0), Some(1.0)));
        for right in cluster.others(liar) {
            let right = &cluster.nodes[right];
            wait_until("it is seen", WAIT_MAX, || agreement(right) == (Some(3.0), Some(2.0)));
            wait_until("the others answer", WAIT_MAX, || stamp_of(right).is_some());
        }
        cluster.nodes[liar].break_with(Faults::NONE);
        wait_until("it answers again", WAIT_MAX, || stamp_of(&cluster.nodes[liar]).is_some());
    }
    assert_well(&mut cluster);
}

/// The client asks any node that is certain, and its waits put its timestamps in order, whichever node
/// gave them.
#[test]
fn the_client_asks_any_node_that_is_certain_and_waits() {
    let mut cluster = quorum_cluster();
    let addrs: Vec<_> = cluster.nodes.iter().map(|node| node.http().to_string()).collect();
    let mut options = Options::default();
    options.timeout = WAIT_MAX;
    let client = || Client::new(addrs.clone(), options.clone()).expect("a client");
    let error = client().interval().expect_err("the mode is quorum");
    assert!(matches!(error, IntervalError::BadAnswer(_)), "{error}");
    assert!(error.to_string().contains("OTHER_MODE"), "{error}");
    change_mode(&cluster);
    let error = client().timestamp().expect_err("the mode is interval");
    assert!(error.to_string().contains("OTHER_MODE"), "{error}");
    let one_of_all = client();
    let mut last: Option<Interval> = None;
    for alive in 0..3 {
        for other in cluster.others(alive) {
            cluster.nodes[other].kill();
        }
        for _ in 0..3 {
            let interval = one_of_all.interval().expect("one node is certain");
            if let Some(last) = last.replace(interval) {
                assert!(interval.timestamp > last.timestamp, "{interval:?} after {last:?}");
                // A reader that finds a value of its own future reads again, later.
                let must = one_of_all.must_retry(last.timestamp, interval.timestamp);
                assert_eq!(must, Ok(true));
                let now = one_of_all.interval().expect("one node is certain");
                assert!(now.earliest_ns > interval.timestamp.epoch.0);
                let must = one_of_all.must_retry(interval.timestamp, last.timestamp);
                assert_eq!(must, Ok(false));
            }
            one_of_all.commit_wait(&interval);
            assert!(Instant::now() >= interval.ready_at);
        }
        for other in cluster.others(alive) {
            cluster.nodes[other].start();
        }
        // With a quorum, each node learns the mode again, if it was not on its disk.
        for node in &cluster.nodes {
            wait_until("it is back", WAIT_MAX, || stamp_of(node).is_some());
        }
    }
    assert_well(&mut cluster);
}
