//! A broken invariant ends the process: a node that goes on with a thread or a task less could
//! answer what it cannot prove, or look alive and not be.

/// Held by a thread or task that the node cannot do without: aborts the process when it panics.
#[derive(Debug)]
pub(crate) struct AbortOnPanic(pub(crate) &'static str);

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(part = self.0, "a panic; the process ends, to answer nothing more");
            std::process::abort();
        }
    }
}
