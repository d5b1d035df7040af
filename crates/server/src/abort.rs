//! Aborts the process when a needed thread or task panics. Without that thread or task, the node
//! could give answers that it cannot prove, or look alive although it does not work.

/// A guard held by a thread or task that the node cannot do without. It aborts the process when its
/// holder panics.
#[derive(Debug)]
pub(crate) struct AbortOnPanic(pub(crate) &'static str);

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(
                part = self.0,
                "a panic: the process ends at once, so that it gives no wrong answer"
            );
            std::process::abort();
        }
    }
}
