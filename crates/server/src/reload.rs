//! Reloads files that may change while a node runs: tokens and certificates. It uses its own
//! thread, because a file system may hang. It checks the files every few seconds, because people
//! who replace secrets often cannot send a signal to the process. The caller reads the files and
//! logs the changes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use crate::abort::AbortOnPanic;

/// Time between two checks of the files.
pub const RELOAD_INTERVAL: Duration = Duration::from_secs(2);

/// A running reloader. Dropping it stops it.
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
            // Without this thread, certificates would expire and nothing would say so.
            let _abort = AbortOnPanic("reloading of files");
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
