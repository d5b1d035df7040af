//! Limits how often the log says the same thing: one line a second. It counts what was not logged,
//! so that the next line can name the number. It writes no line itself.

use std::sync::atomic::{AtomicU64, Ordering};

/// Shortest time between two lines.
const LINE_INTERVAL_NS: u64 = 1_000_000_000;

/// Limits the lines of one kind of event. Any thread may record an event.
#[derive(Debug, Default)]
pub(crate) struct LineLimit {
    /// When a line may be written again, monotonic nanoseconds.
    next_ns: AtomicU64,
    /// The events since the last line.
    untold: AtomicU64,
}

impl LineLimit {
    /// Records an event. If a line is due, returns how many events were not logged since the last
    /// line.
    pub(crate) fn due(&self, now_ns: u64) -> Option<u64> {
        let next_ns = self.next_ns.load(Ordering::Relaxed);
        let claim = || {
            let next = now_ns + LINE_INTERVAL_NS;
            self.next_ns.compare_exchange(next_ns, next, Ordering::Relaxed, Ordering::Relaxed)
        };
        if now_ns >= next_ns && claim().is_ok() {
            return Some(self.untold.swap(0, Ordering::Relaxed));
        }
        self.untold.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_events_is_logged_once_a_second_and_counted_whole() {
        let limit = LineLimit::default();
        let lines: Vec<_> = (0..5_000).filter_map(|ms| limit.due(ms * 1_000_000)).collect();
        assert_eq!(lines, [0, 999, 999, 999, 999]);
    }
}
