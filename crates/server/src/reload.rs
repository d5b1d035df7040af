//! Has what may change under a running node read again: files of tokens and of certificates. On one
//! thread of its own, because a file system may hang; it looks every few seconds, because secrets
//! are often replaced by who cannot send a signal. What is read, and what is said about it, is not
//! known here.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

/// Between two looks at the files.
pub const RELOAD_INTERVAL: Duration = Duration::from_secs(2);

/// A reloader under way. Dropping it stops it.
#[derive(Debug)]
pub struct Reloader {
    stop: Arc<AtomicBool>,
    thread: Thread,
}

impl Reloader {
    /// Calls `reload` at once, then every [`RELOAD_INTERVAL`].
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn spawn(mut reload: impl FnMut() + Send + 'static) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let body = move || {
            while !stopped.load(Ordering::Relaxed) {
                reload();
                thread::park_timeout(RELOAD_INTERVAL);
            }
        };
        let thread = thread::Builder::new().name("reload".into()).spawn(body)?.thread().clone();
        Ok(Self { stop, thread })
    }
}

impl Drop for Reloader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}
