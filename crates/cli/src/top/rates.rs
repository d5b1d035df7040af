//! Compares two answers of a node: rates, latencies, and events that need attention.

use crate::top::status::Status;

/// Counts are not compared across a longer gap, such as the sleep of this machine.
const GAP_MAX_S: f64 = 90.0;
/// Refusals that cost a client its timestamps. `NOT_LEADER` does not: it names the leader.
const FAILED: [&str; 6] =
    ["NO_QUORUM", "NO_LEADER", "OVERLOADED", "SHUTTING_DOWN", "NOT_READY", "INTERNAL"];

/// Rates and latencies of a node between two of its answers. Times are milliseconds; `None` if the
/// node measured nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) timestamps_per_s: f64,
    pub(super) answered_per_s: f64,
    pub(super) failed_per_s: f64,
    /// Infinite if it was above the last bound of `boundsMs`; so are the other two.
    pub(super) confirm_p50_ms: Option<f64>,
    pub(super) confirm_p99_ms: Option<f64>,
    pub(super) disk_p99_ms: Option<f64>,
    /// Of one processor.
    pub(super) cpu_percent: f64,
    pub(super) events: Events,
}

/// How often what needs attention happened between two answers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Events {
    pub(super) overloaded: f64,
    pub(super) leader_changes: f64,
    /// Connections refused at a limit of the node.
    pub(super) full: f64,
    /// Connections refused because one address had too many.
    pub(super) crowded: f64,
    pub(super) reservations_missed: f64,
    pub(super) rounds_timed_out: f64,
    pub(super) messages_dropped: f64,
    pub(super) stalls: f64,
    pub(super) denied: f64,
    /// The time in which requests were refused because there was no leader or no quorum.
    pub(super) headless_ms: f64,
}

impl Rates {
    /// The rates between two answers of one process. `None` for another process, or after a gap.
    pub(super) fn between(was: &Status, now: &Status) -> Option<Self> {
        let seconds = (now.number("uptimeMs") - was.number("uptimeMs")) / 1e3;
        if seconds <= 0.0 || seconds > GAP_MAX_S || now.text("boot") != was.text("boot") {
            return None;
        }
        let grown = |name| (now.counter(name) - was.counter(name)).max(0.0);
        let refused = |code: &str| (now.refused(code) - was.refused(code)).max(0.0);
        let bounds = now.bounds();
        let time =
            |name, share| quantile(&now.durations(name), &was.durations(name), &bounds, share);
        let crowded = grown("connectionsRefusedByAddress");
        let is_headless = refused("NO_QUORUM") + refused("NO_LEADER") > 0.0;
        Some(Self {
            timestamps_per_s: grown("timestamps") / seconds,
            answered_per_s: grown("answered") / seconds,
            failed_per_s: FAILED.iter().map(|code| refused(code)).sum::<f64>() / seconds,
            confirm_p50_ms: time("confirm", 0.5),
            confirm_p99_ms: time("confirm", 0.99),
            disk_p99_ms: time("diskWrite", 0.99),
            cpu_percent: grown("cpuMs") / seconds / 10.0,
            events: Events {
                overloaded: refused("OVERLOADED"),
                leader_changes: grown("leaderChanges"),
                full: grown("acceptFailures") + grown("connectionsRefused") - crowded,
                crowded,
                reservations_missed: grown("reservationDeadlinesMissed"),
                rounds_timed_out: grown("roundsTimedOut"),
                messages_dropped: grown("raftMessagesDropped"),
                stalls: (now.stalls() - was.stalls()).max(0.0),
                denied: grown("denied"),
                headless_ms: if is_headless { seconds * 1e3 } else { 0.0 },
            },
        })
    }
}

/// The duration that a share of those counted since `was` did not exceed, by linear interpolation
/// in its bucket. Infinite in the last bucket, which has no upper bound.
fn quantile(now: &[f64], was: &[f64], bounds: &[f64], share: f64) -> Option<f64> {
    let fresh = now.iter().zip(was).map(|(now, was)| (now - was).max(0.0));
    let mut rank = share * fresh.clone().sum::<f64>();
    if rank <= 0.0 {
        return None;
    }
    let mut low = 0.0;
    for (count, bound) in fresh.zip(bounds) {
        if rank <= count {
            return Some(low + (bound - low) * rank / count);
        }
        rank -= count;
        low = *bound;
    }
    Some(f64::INFINITY)
}

/// The result of one question to a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) at_ms: u64,
    /// `None` if the node did not answer, or this was the first answer of its process.
    pub(super) rates: Option<Rates>,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::top::status::tests::status;

    #[test]
    fn rates_are_those_between_two_answers_of_one_process() {
        let between = |was: Value, now: Value| Rates::between(&Status(was), &Status(now));
        let first = || status(1, 10_000, 100);
        let rates = between(first(), status(1, 11_000, 300)).expect("two answers");
        assert_eq!((rates.timestamps_per_s, rates.failed_per_s), (200.0, 20.0));
        assert_eq!((rates.confirm_p50_ms, rates.confirm_p99_ms), (Some(1.0), Some(1.98)));
        assert_eq!((rates.disk_p99_ms, rates.cpu_percent), (Some(3.98), 10.0));
        let events = Events { headless_ms: 1_000.0, ..Events::default() };
        assert_eq!(rates.events, events, "NO_QUORUM was answered");
        let mut restarted = status(1, 12_000, 900);
        restarted["boot"] = json!("another");
        assert!(between(first(), restarted).is_none(), "its counters have begun again");
        assert!(between(first(), status(1, 101_000, 900)).is_none(), "the gap is too long");
    }

    #[test]
    fn a_quantile_needs_durations_and_is_infinite_above_the_last_bound() {
        let of = |now: &[f64], share| quantile(now, &[0.0; 3], &[1.0, 2.0], share);
        assert_eq!(of(&[0.0; 3], 0.5), None);
        assert_eq!(of(&[4.0, 0.0, 0.0], 0.5), Some(0.5));
        assert_eq!(of(&[1.0, 1.0, 8.0], 0.99), Some(f64::INFINITY));
    }
}
