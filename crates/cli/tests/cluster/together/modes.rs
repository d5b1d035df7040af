//! The changes between quorum mode and interval mode, in both directions: one order over both,
//! whichever node is killed or paused meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use epicepoch_bench::history::History;
use epicepoch_bench::{Operation, Outcome};
use epicepoch_wire::{Timestamp, TimestampRange};

use super::intervals::{
    COUNT, assert_well, change_mode, code, leader_of, quorum_cluster, read, stamp_of,
};
use crate::support::wire::Wire;
use crate::support::{Cluster, Node, WAIT_MAX, wait_until};

/// Asks a node in whichever mode it is, and waits what must be waited out, until it is told to stop.
/// Counts the answers of each mode.
fn caller_of_both(
    node: &Node,
    is_over: &Arc<AtomicBool>,
    counts: &Arc<[AtomicUsize; 2]>,
) -> JoinHandle<Vec<Operation>> {
    let (addr, is_over, id) = (node.http(), is_over.clone(), node.id);
    let counts = counts.clone();
    std::thread::spawn(move || {
        let mut operations = Vec::new();
        let ask = |path: &str| {
            let start = Instant::now();
            let asked = Wire::open(addr, WAIT_MAX)
                .and_then(|mut wire| wire.get(&format!("{path}?n={COUNT}")));
            asked.ok().filter(|it| it.status == 200).map(|it| (start, it))
        };
        while !is_over.load(Ordering::SeqCst) {
            let (start, first, mode) = if let Some((start, answer)) = ask("/interval") {
                let stamp = read(&answer);
                std::thread::sleep(Duration::from_nanos(stamp.wait_ns()));
                (start, stamp.timestamp(), 0)
            } else if let Some((start, answer)) = ask("/timestamp") {
                let first = answer.body.first_chunk().expect("timestamps");
                (start, Timestamp::from_bytes(*first), 1)
            } else {
                // Neither mode is open here, or the node is down or does not lead.
                std::thread::sleep(Duration::from_millis(5));
                continue;
            };
            let range = TimestampRange::new(first, COUNT).expect("a range");
            let (end, outcome) = (Instant::now(), Outcome::Answered(range));
            operations.push(Operation { start, end, node: id, outcome });
            counts[mode].fetch_add(1, Ordering::SeqCst);
        }
        operations
    })
}

/// Callers of all nodes, who ask in whichever mode the cluster is.
struct Callers {
    origin: Instant,
    is_over: Arc<AtomicBool>,
    /// The answers of interval mode and of quorum mode.
    counts: Arc<[AtomicUsize; 2]>,
    callers: Vec<JoinHandle<Vec<Operation>>>,
}

/// The place of a mode in the counts of [`Callers`].
const OF_INTERVALS: usize = 0;
const OF_QUORUM: usize = 1;

impl Callers {
    fn of(cluster: &Cluster) -> Self {
        let (is_over, counts) = (Arc::default(), Arc::default());
        let caller = |node| caller_of_both(node, &is_over, &counts);
        let callers = cluster.nodes.iter().map(caller).collect();
        Self { origin: Instant::now(), is_over, counts, callers }
    }

    fn counts(&self) -> [usize; 2] {
        self.counts.each_ref().map(|count| count.load(Ordering::SeqCst))
    }

    fn await_more(&self, mode: usize) {
        let before = self.counts()[mode];
        wait_until("20 answers more", WAIT_MAX, || self.counts()[mode] >= before + 20);
    }

    /// Ends the callers, and checks the order of all that they got.
    fn check(self) {
        self.is_over.store(true, Ordering::SeqCst);
        println!("answers of interval mode and of quorum mode: {:?}", self.counts());
        let mut history = History::new(self.origin);
        for caller in self.callers {
            history.record_all(&caller.join().expect("no caller failed"));
        }
        history.settle(Instant::now()).assert_clean();
    }
}

/// Waits until every node that runs has applied quorum mode, and one serves.
fn await_quorum(cluster: &Cluster) {
    wait_until("the cluster is in quorum mode", WAIT_MAX, || {
        cluster.nodes.iter().any(Node::serves)
    });
    for node in &cluster.nodes {
        wait_until("quorum mode is applied", WAIT_MAX, || {
            code(node, "/interval") == "422 OTHER_MODE"
        });
    }
}

/// Gives the order to change back to quorum mode, until the change waits for this node, which is
/// down or paused.
#[track_caller]
fn wait_until_held_up(cluster: &Cluster, by: usize) {
    let words = ["not in quorum mode yet", &format!("stopped: {} ", cluster.nodes[by].id)];
    // The others may have to elect a leader first.
    wait_until("the change waits for the node", WAIT_MAX, || {
        let told = cluster.operate(&["settings", "set", "MODE=quorum", "--timeout", "3s"]);
        let error = String::from_utf8_lossy(&told.stderr);
        assert_eq!(told.status.code(), Some(1), "node {}: {told:?}", cluster.nodes[by].id);
        words.iter().all(|word| error.contains(word))
    });
}

/// S24, S26: one order over both modes, whichever node is killed while the mode changes.
#[test]
fn the_mode_changes_in_both_directions_while_nodes_are_killed_and_order_holds_over_all() {
    let mut cluster = quorum_cluster();
    let callers = Callers::of(&cluster);
    callers.await_more(OF_QUORUM);
    change_mode(&cluster);
    callers.await_more(OF_INTERVALS);
    // A member that is down cannot report the highest timestamp that it has given.
    let leader = leader_of(&cluster);
    let down = (leader + 1) % cluster.nodes.len();
    cluster.nodes[down].kill();
    wait_until_held_up(&cluster, down);
    let others = cluster.others(down);
    for other in &others {
        let node = &cluster.nodes[*other];
        wait_until("it has stopped", WAIT_MAX, || code(node, "/interval") == "503 UNCERTAIN");
        assert_eq!(code(node, "/timestamp"), "422 OTHER_MODE");
        assert_eq!(node.metric("epicepoch_interval_closing"), Some(1.0));
    }
    let between = callers.counts();
    let listed = cluster.order(&["settings", "list"]);
    assert!(
        listed.contains("MODE is not quorum yet") && listed.contains("MODE=quorum"),
        "{listed}"
    );
    // Another setting is changed at once, and does not wait for the mode.
    cluster.order(&["settings", "set", "MAX_N=77"]);
    assert_eq!(callers.counts(), between, "no node answers meanwhile");
    // It comes back, and the leader dies: the next one asks all of them anew.
    cluster.nodes[down].start();
    cluster.nodes[leader].kill();
    cluster.nodes[leader].start();
    await_quorum(&cluster);
    callers.await_more(OF_QUORUM);
    // There again, and back with every node up.
    change_mode(&cluster);
    callers.await_more(OF_INTERVALS);
    let told = cluster.operate(&["settings", "set", "MODE=quorum", "--timeout", "60s"]);
    assert!(told.status.success(), "{told:?}");
    assert!(!String::from_utf8_lossy(&told.stdout).contains("not quorum yet"), "{told:?}");
    callers.await_more(OF_QUORUM);
    // A change back that is cancelled.
    change_mode(&cluster);
    callers.await_more(OF_INTERVALS);
    cluster.nodes[down].kill();
    wait_until_held_up(&cluster, down);
    cluster.order(&["settings", "set", "MODE=interval"]);
    for other in &others {
        let node = &cluster.nodes[*other];
        wait_until("it gives intervals again", WAIT_MAX, || stamp_of(node).is_some());
    }
    cluster.nodes[down].start();
    callers.await_more(OF_INTERVALS);
    callers.check();
    assert_well(&mut cluster);
}

/// S26: a paused node holds the change back up, whatever its workers were about to do, and gives
/// nothing by the old mode when it goes on. The leader may be the paused one.
#[test]
fn the_mode_changes_while_nodes_are_paused_and_order_holds_over_all() {
    let mut cluster = quorum_cluster();
    let callers = Callers::of(&cluster);
    callers.await_more(OF_QUORUM);
    for is_leader in [false, true] {
        change_mode(&cluster);
        callers.await_more(OF_INTERVALS);
        let leader = leader_of(&cluster);
        let paused = if is_leader { leader } else { (leader + 1) % cluster.nodes.len() };
        cluster.nodes[paused].pause();
        wait_until_held_up(&cluster, paused);
        for other in cluster.others(paused) {
            let node = &cluster.nodes[other];
            wait_until("it has stopped", WAIT_MAX, || code(node, "/interval") == "503 UNCERTAIN");
            assert_eq!(code(node, "/timestamp"), "422 OTHER_MODE");
        }
        cluster.nodes[paused].resume();
        await_quorum(&cluster);
        callers.await_more(OF_QUORUM);
    }
    // There and back, and there and back again, as fast as commands go.
    for _ in 0..3 {
        cluster.order(&["settings", "set", "MODE=interval", "--timeout", "60s"]);
        cluster.order(&["settings", "set", "MODE=quorum", "--timeout", "60s"]);
    }
    await_quorum(&cluster);
    callers.await_more(OF_QUORUM);
    callers.check();
    cluster.assert_well();
}

/// A node that was removed in interval mode may not have heard of it.
#[test]
fn a_node_that_was_removed_in_interval_mode_must_be_stated_to_have_stopped() {
    let mut cluster = quorum_cluster();
    change_mode(&cluster);
    let leader = leader_of(&cluster);
    let gone = (leader + 1) % cluster.nodes.len();
    let id = cluster.nodes[gone].id.to_string();
    cluster.nodes[gone].kill();
    cluster.assert_refused(
        &["settings", "set", "MODE=quorum", "--stopped", &id],
        &[&format!("node {id} was not removed"), "remove it first"],
    );
    cluster.order(&["member", "remove", &id]);
    let words = ["removed in interval mode, and may still answer", &format!("--stopped={id}")];
    cluster.assert_refused(&["settings", "set", "MODE=quorum", "--timeout", "3s"], &words);
    cluster.order(&["settings", "set", "MODE=quorum", "--stopped", &id, "--timeout", "60s"]);
    wait_until("the leader serves", WAIT_MAX, || cluster.nodes.iter().any(Node::serves));
}
