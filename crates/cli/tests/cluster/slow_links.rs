//! Links that work badly: slow, uneven, narrow, a few bytes at a time, and broken again and again.
//! What they may cost is time, never an order; and when they are good again, all is well.

use std::time::{Duration, Instant};

use epicepoch_link::Fault;

use crate::support::{LinkedCluster, PATIENCE, Silence, Watch, let_pass, say, wait_until};

/// How long a link is bad.
const BAD: Duration = Duration::from_secs(3);
/// Longest silence on links that the defaults should carry, ms: one change of leadership, when the
/// link becomes bad, over that link.
const SILENCE_MS: u64 = 2000;
/// Between two resets of every connection between the nodes.
const RESET_EVERY: Duration = Duration::from_millis(50);

/// Longer than a heartbeat (40 ms), shorter than an election timeout (200 ms), there and back.
const SLOW: Fault = Fault::delay(Duration::from_millis(60));
/// A piece may come after two heartbeats that were sent later.
const UNEVEN: Fault = Fault::jitter(Duration::from_millis(80));
/// Longer than an election timeout in each direction: no vote comes back in time.
const TOO_SLOW: Fault = Fault::delay(Duration::from_millis(450));

/// The nodes serve over links like this, if slowly.
fn live_with(what: &'static str, fault: Fault) {
    let mut cluster = LinkedCluster::start(5);
    let watch = Watch::start(&cluster);
    let from = Instant::now();
    cluster.set_all(fault);
    let end = from + BAD;
    while Instant::now() < end {
        watch.wait_for_service_since(Instant::now());
    }
    let to = Instant::now();
    cluster.links.heal();
    watch.wait_for_service_since(Instant::now());
    cluster.assert_well();
    let seen = watch.finish();
    let rate = seen.times.count(from, to) as f64 / (to - from).as_secs_f64();
    say(&format!("links with {what}: {rate:.0} answers/s"));
    Silence::of(what, &seen, &[(from, to)]).assert_within(SILENCE_MS);
}

#[test]
fn links_slower_than_the_heartbeat_slow_answers_and_stop_nobody() {
    live_with("60 ms each way", SLOW);
}

#[test]
fn links_with_jitter_beyond_the_heartbeat_stop_nobody() {
    live_with("80 ms of jitter", UNEVEN);
}

#[test]
fn links_of_16_kilobytes_a_second_stop_nobody() {
    live_with("16 kB/s", Fault::bandwidth(16_000));
}

#[test]
fn links_that_trickle_stop_nobody() {
    // No frame of the peer protocol is so short.
    live_with("24 bytes at a time", Fault::trickle(24, Duration::from_millis(1)));
}

#[test]
fn links_slower_than_an_election_cost_answers_and_never_order() {
    let mut cluster = LinkedCluster::start(6);
    let watch = Watch::start(&cluster);
    let from = Instant::now();
    cluster.set_all(TOO_SLOW);
    // The election timeouts of the last leader are over by then, and so are its rounds.
    let_pass(BAD);
    let refused = cluster.nodes.iter().filter_map(|node| node.ask("/timestamp"));
    let refused = refused.filter(|answer| answer.status == 503).count();
    assert!(refused > 0, "somebody is asked in vain, and says so");
    for node in &mut cluster.nodes {
        assert!(node.is_running(), "slow links are no reason to exit");
    }
    cluster.links.heal();
    let healed = Instant::now();
    watch.wait_for_service_since(healed);
    say(&format!("links too slow for an election: serves {:?} after", healed.elapsed()));
    cluster.assert_well();
    let seen = watch.finish();
    say(&format!("links too slow: {} answers meanwhile", seen.times.count(from, healed)));
}

#[test]
fn connections_reset_every_50_ms_cost_answers_and_never_order() {
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
    assert!(cluster.resets() > 100, "only {} resets", cluster.resets());
    wait_until("it serves when the resets are over", PATIENCE, || !watch.is_silent_since(to));
    cluster.assert_well();
    let seen = watch.finish();
    let count = seen.times.count(from, to);
    say(&format!("resets every 50 ms: {} resets, {count} answers meanwhile", cluster.resets()));
    Silence::of("resets every 50 ms", &seen, &[(from, to)]).assert_within(SILENCE_MS);
}
