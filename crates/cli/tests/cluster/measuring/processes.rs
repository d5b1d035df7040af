//! The leader is killed, told to stop, asked to hand over, or paused. Measures how long clients get
//! no answer (the silence), and compares it with the bounds of `docs/operations/outages.md`. Checks
//! every answer of every node.
//!
//! `EPICEPOCH_OUTAGES=100` measures that many events of each kind. With
//! `EPICEPOCH_OUTAGES_FACTOR=1` no time may exceed the promise. Without it, twice the promise is
//! allowed (`scripts/outages`).

use std::time::{Duration, Instant};

use epicepoch_bench::{Operation, Outcome};

use crate::support::late::Late;
use crate::support::operator::transferred;
use crate::support::watch::Seen;
use crate::support::wire::Wire;
use crate::support::{
    Calling, Campaigns, Cluster, Silence, WAIT_MAX, Watch, alone, let_pass, outages, say,
    undisturbed, wait_until,
};

/// Promised `(p50, p99)` of the time without an answer when the leader is killed, ms.
const KILLED_MS: (u64, u64) = (150, 400);
/// Promised `(p50, p99)` of the time without an answer when the leader is paused, ms.
const PAUSED_MS: (u64, u64) = (300, 700);
/// Promised `(p50, p99)` of the time without an answer in a handover, ms. No single handover may
/// take longer than the p99.
const HANDED_OVER_MS: (u64, u64) = (5, 20);
/// Promised `(p50, p99)` of the time without an answer when a node comes back, ms: at most as long
/// as when a node is lost.
const RETURN_MS: (u64, u64) = (150, 700);
/// Promised `(p50, p99)` of the longest call of the Rust client when the leader is killed, ms. It
/// is the time without an answer, and 50 ms for the client's wait before it tries again.
const CALL_KILLED_MS: (u64, u64) = (200, 450);
const CALL_TERMINATED_MS: (u64, u64) = (25, 25);
/// How long a leader is paused: longer than its reserved range of epochs lasts.
const PAUSE: Duration = Duration::from_secs(2);

/// The time from just before an event until it was over.
type Window = (Instant, Instant);

/// Returns the longest call of each window. Calls that began before the window or ended after it
/// count, too.
fn longest_call(
    event: &'static str,
    seen: &Seen,
    calls: &[Operation],
    windows: &[Window],
) -> Silence {
    let mut silence = Silence::new(event);
    for (from, to) in windows {
        let met = calls.iter().filter(|it| it.start <= *to && it.end >= *from);
        let length = met.map(|it| it.end - it.start).max().expect("calls were under way");
        silence.add(length, seen.stalls.allowance(*from, *to));
    }
    silence
}

/// The leader is killed and then restarted. The time without an answer is bounded after the kill
/// and after the restart. No call of the Rust client fails.
#[test]
fn a_killed_leader_is_replaced_in_the_promised_time() {
    let _alone = alone();
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let calling = Calling::start(&cluster);
    let (mut killed, mut returned) = (Vec::new(), Vec::new());
    for _ in 0..outages(20) {
        let leader = cluster.wait_for_leader();
        calling.wait_for_service_since(Instant::now());
        let from = Instant::now();
        cluster.nodes[leader].kill();
        watch.wait_for_service_since(Instant::now());
        killed.push((from, Instant::now()));
        let from = Instant::now();
        cluster.nodes[leader].start();
        cluster.wait_until_ready();
        returned.push((from, Instant::now()));
    }
    cluster.assert_well();
    wait_until("the client is connected to the leader alone", WAIT_MAX, || {
        cluster.nodes.iter().any(|node| {
            node.is_leader() && node.metric("epicepoch_native_connections_open") == Some(1.0)
        })
    });
    let calls = calling.finish();
    let seen = watch.finish_with(&calls);
    Silence::of("leader killed", &seen, &killed).assert_promised(KILLED_MS);
    Silence::of("a node comes back", &seen, &returned).assert_promised(RETURN_MS);
    longest_call("call of the Rust client, leader killed", &seen, &calls, &killed)
        .assert_promised(CALL_KILLED_MS);
}

/// The leader hands over on SIGTERM. The time without an answer is bounded for each handover. No
/// call of the Rust client fails.
#[test]
fn a_leader_told_to_stop_hands_over_in_the_promised_time() {
    let _alone = alone();
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let calling = Calling::start(&cluster);
    let mut windows = Vec::new();
    for _ in 0..outages(10) {
        let leader = cluster.wait_for_leader();
        calling.wait_for_service_since(Instant::now());
        let from = Instant::now();
        let status = cluster.nodes[leader].terminate();
        assert_eq!(status.code(), Some(0), "SIGTERM ends with 0");
        watch.wait_for_service_since(Instant::now());
        windows.push((from, Instant::now()));
        cluster.nodes[leader].start();
        cluster.wait_until_ready();
    }
    cluster.assert_well();
    let calls = calling.finish();
    assert!(calls.len() > 200, "{} calls", calls.len());
    let seen = watch.finish_with(&calls);
    let silence = Silence::of("leader told to stop", &seen, &windows);
    silence.assert_promised(HANDED_OVER_MS);
    silence.assert_each_promised(HANDED_OVER_MS.1);
    longest_call("call of the Rust client, leader told to stop", &seen, &calls, &windows)
        .assert_promised(CALL_TERMINATED_MS);
}

/// Leadership is handed over with `epicepoch leader transfer`. The bounds are the same as for a
/// handover on SIGTERM. No call of the Rust client fails.
#[test]
fn leadership_handed_over_by_command_costs_no_more_than_sigterm() {
    let _alone = alone();
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let calling = Calling::start(&cluster);
    let mut windows = Vec::new();
    for event in 0..outages(10) {
        undisturbed(|| {
            let campaigns = Campaigns::so_far(&cluster);
            let leader = cluster.wait_for_leader();
            calling.wait_for_service_since(Instant::now());
            let to = cluster.others(leader)[event % 2];
            let id = cluster.nodes[to].id.to_string();
            // Every fourth command names no node. Then any other node may take over.
            let is_named = event % 4 != 3;
            let to_node = ["leader", "transfer", "--to", &id];
            let order = if is_named { &to_node[..] } else { &to_node[..2] };
            let (from, said) = transferred(&cluster, order);
            watch.wait_for_service_since(Instant::now());
            let window = (from, Instant::now());
            let next = cluster.wait_for_leader();
            let words = format!("node {} leads in term", cluster.nodes[next].id);
            let is_right = next == to || !is_named && next != leader;
            campaigns.judge(&cluster, 1, is_right && said.starts_with(&words), &said)?;
            windows.push(window);
            Ok(())
        });
    }
    cluster.assert_well();
    let calls = calling.finish();
    assert!(calls.len() > 200, "{} calls", calls.len());
    let seen = watch.finish_with(&calls);
    let silence = Silence::of("leadership handed over by command", &seen, &windows);
    silence.assert_promised(HANDED_OVER_MS);
    silence.assert_each_promised(HANDED_OVER_MS.1);
}

/// Requests are sent to the paused leader before, during and after the election. When the leader is
/// resumed, it refuses them, or answers with timestamps that are still in order.
#[test]
fn a_paused_leader_is_replaced_in_the_promised_time_and_answers_nothing_stale() {
    let _alone = alone();
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let mut windows = Vec::new();
    let mut late_answers = Vec::new();
    for _ in 0..outages(6) {
        let leader = cluster.wait_for_leader();
        let addr = cluster.nodes[leader].http();
        let open = || Wire::open(addr, Duration::from_secs(5)).expect("the kernel accepts");
        // These connections exist before the pause.
        let mut known: Vec<Wire> = (0..8).map(|_| open()).collect();
        for wire in &mut known {
            wire.get("/up").expect("the leader runs");
        }
        let from = Instant::now();
        cluster.nodes[leader].pause();
        let paused = Instant::now();
        // Four of the eight connections send requests to the paused leader at once. The others send
        // theirs when another node leads.
        let rest = known.split_off(4);
        let mut late: Vec<Late> = known.into_iter().map(|wire| Late::send(wire, 4)).collect();
        watch.wait_for_service_since(paused);
        windows.push((from, Instant::now()));
        late.extend(rest.into_iter().map(|wire| Late::send(wire, 4)));
        late.extend((0..8).map(|_| Late::send(open(), 2)));
        let_pass(PAUSE.saturating_sub(paused.elapsed()));
        cluster.nodes[leader].resume();
        let id = cluster.nodes[leader].id;
        for it in late {
            it.collect(id, &mut late_answers);
        }
        cluster.wait_until_ready();
    }
    cluster.assert_well();
    let is_answered = |it: &&Operation| matches!(it.outcome, Outcome::Answered(_));
    let answered = late_answers.iter().filter(is_answered).count();
    say(&format!("late: {} requests to paused leaders, {answered} answered", late_answers.len()));
    let seen = watch.finish_with(&late_answers);
    Silence::of("leader paused", &seen, &windows).assert_promised(PAUSED_MS);
}
