//! What the stories are told with: nodes as processes, clusters of them, sockets, and a watch
//! that drives all nodes and checks every answer. Every wait has a deadline and a name.

pub(crate) mod cluster;
pub(crate) mod late;
pub(crate) mod linked;
pub(crate) mod node;
pub(crate) mod process;
pub(crate) mod silence;
pub(crate) mod small_disk;
pub(crate) mod stalls;
pub(crate) mod undisturbed;
pub(crate) mod watch;
pub(crate) mod wire;

use std::io::Write;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

pub(crate) use cluster::Cluster;
pub(crate) use linked::LinkedCluster;
pub(crate) use node::{Faults, Node};
pub(crate) use silence::Silence;
pub(crate) use undisturbed::{Campaigns, Disturbed, undisturbed};
pub(crate) use watch::Watch;

/// How long anything may take that is expected to happen: generous, because it only matters when
/// something is broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks at a condition.
const POLL_PAUSE: Duration = Duration::from_millis(2);

/// The right to run processes: one test at a time.
pub(crate) struct Turn(#[expect(dead_code, reason = "held, never read")] MutexGuard<'static, ()>);

impl Turn {
    pub(crate) fn take() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        // A test that failed has not broken anything that the next one uses.
        Self(TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

/// Waits until `condition` holds.
///
/// # Panics
/// With `what` was waited for, after `limit`.
#[track_caller]
pub(crate) fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < deadline, "waited {limit:?} in vain until {what}");
        std::thread::sleep(POLL_PAUSE);
    }
}

/// Watches for `time` that `condition` holds whenever it is looked at.
///
/// # Panics
/// With `what` should have held, when it does not.
#[track_caller]
pub(crate) fn holds_for(what: &str, time: Duration, condition: impl FnMut() -> bool) {
    assert!(has_held_for(time, condition), "no longer: {what}");
}

/// Whether `condition` has held for `time` whenever it was looked at; ends when it does not.
pub(crate) fn has_held_for(time: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + time;
    while Instant::now() < end {
        if !condition() {
            return false;
        }
        std::thread::sleep(POLL_PAUSE);
    }
    true
}

/// Lets a fault last; the length of a fault is no guess about how long something takes.
pub(crate) fn let_pass(time: Duration) {
    std::thread::sleep(time);
}

/// A loopback port that nobody listens on. Below the range that the kernel takes client ports
/// from, so that no connection of ours can be in the way; never given twice by this process.
pub(crate) fn unused_port() -> u16 {
    const FIRST: u16 = 12_000;
    const COUNT: u16 = 20_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let own_start = (std::process::id() as u16).wrapping_mul(241);
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + own_start.wrapping_add(step) % COUNT;
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return port;
        }
    }
    panic!("no unused port among {COUNT}");
}

/// How often an event happens whose cost is measured: `usual` times, or as `EPICEPOCH_OUTAGES` says,
/// so that the distribution has a tail.
pub(crate) fn outages(usual: usize) -> usize {
    let setting = std::env::var("EPICEPOCH_OUTAGES").ok();
    setting.map_or(usual, |count| count.parse().expect("EPICEPOCH_OUTAGES is a number"))
}

/// Prints a figure, also when the test passes.
pub(crate) fn say(line: &str) {
    // Losing a line on a closed pipe is no reason to fail.
    let _ = writeln!(std::io::stdout().lock(), "    {line}");
}

pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
