//! Links between nodes are slow, have jitter or little bandwidth, or break again and again.
//! Measures how long clients get no answer, and checks every answer.

use std::time::{Duration, Instant};

use epicepoch_link::Fault;

use crate::support::{LinkedCluster, Silence, Watch, alone, let_pass, say};

/// How long the links are bad.
const BAD: Duration = Duration::from_secs(2);
/// Longest time without an answer, ms. The default settings support these links. So there may be at
/// most one change of leadership, at the moment when the links become bad.
const SILENCE_MS: u64 = 2000;
/// Time between two resets of all connections between the nodes.
const RESET_EVERY: Duration = Duration::from_millis(50);

const BAD_LINKS: [(&str, Fault); 4] = [
    // The round trip is longer than a heartbeat (40 ms) and shorter than an election timeout (200
    // ms).
    ("60 ms each way", Fault::delay(Duration::from_millis(60))),
    // With jitter, bytes may arrive up to 80 ms late. In this time two more heartbeats are sent.
    ("80 ms of jitter", Fault::jitter(Duration::from_millis(80))),
    ("16 kB/s", Fault::bandwidth(16_000)),
    // Every frame of the peer protocol is longer than 24 bytes, so each frame arrives in several
    // parts.
    ("24 bytes at a time", Fault::trickle(24, Duration::from_millis(1))),
];

/// While the links are slow in one of the ways of [`BAD_LINKS`], clients are without an answer for
/// at most 2 s.
#[test]
fn slow_and_uneven_and_narrow_links_stop_no_client() {
    let _alone = alone();
    let mut cluster = LinkedCluster::start(5);
    let watch = Watch::start(&cluster);
    let mut windows = Vec::new();
    for (_, fault) in BAD_LINKS {
        let from = Instant::now();
        cluster.set_all(fault);
        while from.elapsed() < BAD {
            watch.wait_for_service_since(Instant::now());
        }
        windows.push((from, Instant::now()));
        cluster.links.heal();
        watch.wait_for_service_since(Instant::now());
        cluster.assert_well();
    }
    let seen = watch.finish();
    for ((what, _), (from, to)) in BAD_LINKS.into_iter().zip(windows) {
        let rate = seen.times.count(from, to) as f64 / (to - from).as_secs_f64();
        say(&format!("links with {what}: {rate:.0} answers/s"));
        Silence::of(what, &seen, &[(from, to)]).assert_within(SILENCE_MS);
    }
}

/// All connections between nodes are reset every 50 ms. Clients are without an answer for at most 2
/// s.
#[test]
fn connections_that_are_reset_every_50_ms_cost_answers_but_not_order() {
    let _alone = alone();
    let mut cluster = LinkedCluster::start(7);
    let watch = Watch::start(&cluster);
    let from = Instant::now();
    while from.elapsed() < BAD {
        for one in 0..cluster.nodes.len() {
            for other in cluster.others(one) {
                cluster.links.reset(cluster.party(one), cluster.party(other));
            }
        }
        let_pass(RESET_EVERY);
    }
    let to = Instant::now();
    assert!(cluster.resets() > 60, "only {} resets", cluster.resets());
    watch.wait_for_service_since(to);
    cluster.assert_well();
    let seen = watch.finish();
    let count = seen.times.count(from, to);
    say(&format!("resets every 50 ms: {} resets, {count} answers meanwhile", cluster.resets()));
    Silence::of("resets every 50 ms", &seen, &[(from, to)]).assert_within(SILENCE_MS);
}
