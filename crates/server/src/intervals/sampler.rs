//! A thread that reads the clock source while nobody asks, in interval mode only. So a step of the
//! clock and a source that has failed are noticed when the node is idle, too, and the first request
//! after a pause finds its mark on the disk. It also logs when the node begins to refuse.

use std::io;
use std::mem::discriminant;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use epicepoch_core::interval::Uncertain;

use super::Refused;
use crate::abort::AbortOnPanic;

/// Time between two samples. A tenth of what a mark is ahead, so the mark of a node that nobody asks
/// is never behind its clock. A step of the clock by another program than chronyd is seen if it is
/// more than 1 ms and an eleventh of this.
const PERIOD: Duration = Duration::from_millis(100);
/// Shortest time between two lines of the log.
const LOG_PAUSE: Duration = Duration::from_secs(1);

/// Samples the clock source until it is dropped.
#[derive(Debug)]
pub(crate) struct Sampler {
    is_over: Arc<AtomicBool>,
    thread: Thread,
}

impl Sampler {
    /// Starts the thread, which calls `sample`.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(crate) fn spawn(
        sample: impl Fn() -> Result<(), Refused> + Send + 'static,
    ) -> io::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let told = is_over.clone();
        let body = move || {
            let _abort = AbortOnPanic("sampler of intervals");
            let mut log = Log::default();
            while !told.load(Ordering::Relaxed) {
                log.record(sample().err(), Instant::now());
                thread::park_timeout(PERIOD);
            }
        };
        let thread = thread::Builder::new().name("intervals".into()).spawn(body)?.thread().clone();
        Ok(Self { is_over, thread })
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}

/// What was logged last.
#[derive(Debug, Default)]
struct Log {
    /// When, and the reason in that line; `None` in it if the node was certain.
    last: Option<(Instant, Option<Refused>)>,
}

impl Log {
    /// Logs a state that is not that of the last line, at most once in a pause.
    fn record(&mut self, refused: Option<Refused>, now: Instant) {
        let is_silent =
            matches!(&refused, Some(Refused::QuorumMode | Refused::Uncertain(Uncertain::Stopped)));
        let is_known = self.last.as_ref().is_some_and(|(at, last)| {
            let is_early = now.duration_since(*at) < LOG_PAUSE;
            is_early || is_same(last.as_ref(), refused.as_ref())
        });
        if is_silent || is_known {
            return;
        }
        match &refused {
            None => tracing::info!("interval timestamps"),
            Some(reason) if passes(reason) => {
                tracing::info!(%reason, "no interval timestamps yet");
            }
            Some(reason) => tracing::warn!(%reason, "no interval timestamps"),
        }
        self.last = Some((now, refused));
    }
}

/// Whether the reason belongs to a start or a change of the mode, and passes by itself.
const fn passes(reason: &Refused) -> bool {
    matches!(
        reason,
        Refused::LeaseRuns | Refused::Uncertain(Uncertain::BelowCeiling | Uncertain::Unheard)
    )
}

/// Whether two states are the same, but for the numbers in them.
fn is_same(a: Option<&Refused>, b: Option<&Refused>) -> bool {
    match (a, b) {
        (Some(Refused::Uncertain(a)), Some(Refused::Uncertain(b))) => {
            discriminant(a) == discriminant(b)
        }
        (Some(a), Some(b)) => discriminant(a) == discriminant(b),
        (None, None) => true,
        (None, Some(_)) | (Some(_), None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consensus::fixture::logged;

    #[test]
    fn a_change_is_logged_once_and_not_too_often() {
        let mut log = Log::default();
        let begun = Instant::now();
        let mut at = |seconds: u64, refused: Option<Refused>| {
            logged(|| log.record(refused, begun + Duration::from_secs(seconds))).concat()
        };
        let wide = |bound_ns| Refused::Uncertain(Uncertain::TooWide { bound_ns, max_ns: 1 });
        assert_eq!(at(0, Some(Refused::QuorumMode)), "");
        let early = at(1, Some(Refused::Uncertain(Uncertain::BelowCeiling)));
        assert!(early.starts_with("INFO no interval timestamps yet"), "{early}");
        assert_eq!(at(2, None), "INFO interval timestamps");
        assert_eq!(at(3, None), "");
        let refused = at(4, Some(wide(2)));
        assert!(refused.starts_with("WARN no interval timestamps reason="), "{refused}");
        assert_eq!(at(6, Some(wide(3))), "", "another number");
        assert!(at(8, Some(Refused::NoSource)).starts_with("WARN"));
        // A state that lasts is logged after the pause.
        assert_eq!(at(8, None), "");
        assert_eq!(at(9, None), "INFO interval timestamps");
        assert_eq!(at(20, Some(Refused::Uncertain(Uncertain::Stopped))), "");
    }
}
