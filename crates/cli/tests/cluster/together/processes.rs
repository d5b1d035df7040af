//! Processes are killed or told to stop. Every answer stays unique and in order.

use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::process::is_hangup_ignored;
use crate::support::wire::{Wire, request};
use crate::support::{Calling, Cluster, WAIT_MAX, Watch, holds_for, wait_until};

/// A client requests this many answers and does not read them. Each has some 25 kB. Together they
/// are more than all buffers hold.
const UNREAD: usize = 2_000;
/// The receive buffer of that client, in bytes.
const UNREAD_LEN: usize = 4096;
/// The log message of a node that becomes leader.
const LEADS: &str = "this node leads\"";

/// A follower is told to stop. A client that does not read its answers delays the end of that node.
/// Then the leader is told to stop, too. The third node takes over, with the vote of the node that
/// is stopping.
#[test]
fn leadership_never_goes_to_a_node_that_was_told_to_stop_and_that_node_votes() {
    let settings = [("SHUTDOWN_TIMEOUT_MS", "20000"), ("WORKERS", "1")];
    let mut cluster = Cluster::down_calm(&settings);
    cluster.start_all();
    cluster.wait_until_ready();
    let calling = Calling::start(&cluster);
    let mut was_delayed = false;
    for _ in 0..3 {
        let leader = cluster.wait_for_leader();
        let others = cluster.others(leader);
        let (leaving, third) = (others[0], others[1]);
        let mut idler = Wire::open(cluster.nodes[leaving].http(), WAIT_MAX).expect("a connection");
        idler.fix_receive_buffer(UNREAD_LEN).expect("a size that the kernel allows");
        let unread = request("GET", "/metrics", &[], b"").repeat(UNREAD);
        idler.send(&unread).expect("they are taken");
        assert_eq!(idler.receive().expect("an answer").status, 200);
        // The client delays the end of the node only when the unread answers have filled the
        // buffers of its connection.
        let mut answered = None;
        wait_until("the unread answers fill the connection", WAIT_MAX, || {
            sleep(Duration::from_millis(50));
            let now = cluster.nodes[leaving].metric("epicepoch_requests_total");
            // Since the last look, the node's only worker has answered only this request for
            // metrics. So it cannot send the client any more answers.
            let is_full =
                answered.zip(now).is_some_and(|(before, now): (f64, f64)| now - before < 1.5);
            answered = now;
            is_full
        });
        let led = |cluster: &Cluster| cluster.nodes[leaving].log().matches(LEADS).count();
        let before = led(&cluster);
        cluster.nodes[leaving].request_stop();
        wait_until("it accepts no client", WAIT_MAX, || {
            Wire::open(cluster.nodes[leaving].http(), WAIT_MAX).is_err()
        });
        let status = cluster.nodes[leader].terminate();
        assert_eq!(status.code(), Some(0), "SIGTERM ends with 0");
        was_delayed = cluster.nodes[leaving].is_running();
        if was_delayed {
            wait_until("the third serves", WAIT_MAX, || cluster.nodes[third].serves());
        }
        assert_eq!(led(&cluster), before, "a node that is stopping has led");
        cluster.nodes[leader].start();
        wait_until("the old leader is back", WAIT_MAX, || cluster.nodes[leader].is_ready());
        drop(idler);
        let status = cluster.nodes[leaving].wait_for_exit(WAIT_MAX);
        assert_eq!(status.code(), Some(0), "it was a graceful shutdown");
        assert_eq!(led(&cluster), before, "a node that is stopping has led");
        cluster.nodes[leaving].start();
        cluster.wait_until_ready();
        if was_delayed {
            break;
        }
    }
    assert!(was_delayed, "no shutdown was delayed: nothing was shown");
    cluster.assert_well();
    calling.finish();
}

#[test]
fn a_signal_sent_twice_still_hands_over() {
    let mut cluster = Cluster::start();
    let mut signals = vec![Signal::TERM, Signal::INT];
    // If this test process ignores SIGHUP, the nodes inherit that and ignore it, too. Then SIGHUP
    // is not tested.
    if !is_hangup_ignored() {
        signals.push(Signal::HUP);
    }
    for signal in signals {
        let leader = cluster.wait_for_leader();
        let status = cluster.nodes[leader].signal_twice(signal);
        assert_eq!(status.code(), Some(0), "{signal:?} twice ends with 0");
        cluster.nodes[leader].start();
        cluster.wait_until_ready();
    }
    cluster.assert_well();
}

#[test]
fn no_node_answers_without_a_quorum_and_later_answers_are_in_order() {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let leader = cluster.wait_for_leader();
    let others = cluster.others(leader);
    cluster.nodes[leader].kill();
    cluster.nodes[others[0]].kill();
    let gone = Instant::now();
    holds_for("nobody answers without a quorum", Duration::from_secs(1), || {
        watch.is_silent_since(gone)
    });
    let survivor = others[1];
    assert!(cluster.nodes[survivor].is_running(), "losing the quorum is no reason to exit");
    let answer = cluster.nodes[survivor].ask("/timestamp").expect("the survivor answers");
    assert_eq!(answer.status, 503, "{answer:?}");
    let back = Instant::now();
    cluster.nodes[leader].start();
    watch.wait_for_service_since(back);
    cluster.nodes[others[0]].start();
    cluster.assert_well();
    watch.finish();
}

#[test]
fn a_cluster_that_lost_all_its_processes_continues_above_its_last_timestamp() {
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    for _ in 0..2 {
        cluster.kill_all();
        let back = Instant::now();
        cluster.start_all();
        watch.wait_for_service_since(back);
        cluster.wait_until_ready();
    }
    cluster.assert_well();
    watch.finish();
}
