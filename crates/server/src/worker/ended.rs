//! Counts how many worker threads have ended.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The number of worker threads that have ended.
#[derive(Debug, Default)]
pub(super) struct Ended {
    count: Mutex<usize>,
    changed: Condvar,
}

impl Ended {
    /// Waits until `count` threads have ended, for at most `timeout`. Returns whether they have.
    pub(super) fn wait(&self, count: usize, timeout: Duration) -> bool {
        let ended = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(ended, timeout, |ended| *ended < count);
        *waited.unwrap_or_else(PoisonError::into_inner).0 >= count
    }
}

/// Counts a worker's thread as ended when it is dropped.
#[derive(Debug)]
pub(super) struct EndGuard(pub(super) Arc<Ended>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        *self.0.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_ended_when_all_of_them_have() {
        let ended = Arc::new(Ended::default());
        let threads = [(); 2].map(|()| EndGuard(ended.clone()));
        assert!(ended.wait(0, Duration::ZERO));
        for (count, thread) in (1..).zip(threads) {
            assert!(!ended.wait(count, Duration::from_millis(1)), "{count}");
            drop(thread);
            assert!(ended.wait(count, Duration::from_millis(1)), "{count}");
        }
    }
}
