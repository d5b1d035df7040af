//! Tools of these tests: nodes as processes, clusters of them, sockets, and a watch that sends
//! requests to all nodes and checks every answer. Every wait has a deadline and a name.

pub(crate) mod calling;
pub(crate) mod cluster;
pub(crate) mod late;
pub(crate) mod linked;
pub(crate) mod node;
pub(crate) mod operator;
pub(crate) mod process;
pub(crate) mod silence;
pub(crate) mod small_disk;
pub(crate) mod stalls;
pub(crate) mod turn;
pub(crate) mod undisturbed;
pub(crate) mod watch;
pub(crate) mod wire;

use std::io::Write;
use std::time::{Duration, Instant};

pub(crate) use calling::Calling;
pub(crate) use cluster::Cluster;
pub(crate) use epicepoch_link::unused_port;
pub(crate) use linked::LinkedCluster;
pub(crate) use node::{Faults, Node};
pub(crate) use silence::Silence;
pub(crate) use turn::{Turn, alone};
pub(crate) use undisturbed::{Campaigns, Disturbed, undisturbed};
pub(crate) use watch::Watch;

/// Longest wait for an expected event. The limit is generous, because a test reaches it only when
/// something is broken.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(30);
/// The pause between two checks of a condition is 1/32 of the time waited so far, but at least 2 ms
/// and at most 50 ms. A check often costs a connection or a process. Frequent checks would slow
/// down the event that the test waits for.
const POLL_SHARE: u32 = 32;
const POLL_MIN: Duration = Duration::from_millis(2);
const POLL_MAX: Duration = Duration::from_millis(50);

/// Waits until `condition` holds.
///
/// # Panics
/// `condition` does not hold within `limit`. The message contains `what`.
#[track_caller]
pub(crate) fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        let waited = start.elapsed();
        assert!(waited < limit, "waited {limit:?} in vain: {what}");
        std::thread::sleep((waited / POLL_SHARE).clamp(POLL_MIN, POLL_MAX));
    }
}

/// Checks again and again, for as long as `time`, that `condition` holds.
///
/// # Panics
/// `condition` does not hold once. The message contains `what`.
#[track_caller]
pub(crate) fn holds_for(what: &str, time: Duration, condition: impl FnMut() -> bool) {
    assert!(has_held_for(time, condition), "no longer: {what}");
}

/// Checks `condition` again and again, for as long as `time`. Returns whether it held each time.
/// Returns at once when it does not hold.
pub(crate) fn has_held_for(time: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + time;
    while Instant::now() < end {
        if !condition() {
            return false;
        }
        std::thread::sleep(POLL_MIN * 5);
    }
    true
}

/// Sleeps while a fault lasts. Only faults last for a fixed time. Everything else in the tests
/// waits for an event.
pub(crate) fn let_pass(time: Duration) {
    std::thread::sleep(time);
}

/// Returns how often a measured event is repeated: as often as the variable `EPICEPOCH_OUTAGES`
/// says, or `usual` times if it is not set. A high number is needed to measure the 99th percentile.
pub(crate) fn outages(usual: usize) -> usize {
    let setting = std::env::var("EPICEPOCH_OUTAGES").ok();
    setting.map_or(usual, |count| count.parse().expect("EPICEPOCH_OUTAGES is a number"))
}

/// Prints a figure even if the test passes.
pub(crate) fn say(line: &str) {
    // If standard output is a closed pipe, the line is lost, but the test does not fail.
    let _ = writeln!(std::io::stdout().lock(), "    {line}");
}

pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
