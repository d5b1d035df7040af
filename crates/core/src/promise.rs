//! The Promise: the highest term that this node has voted in, campaigned in or accepted. The
//! consensus plane raises it, and every worker reads it. It never goes back while the process
//! lives. After a restart it begins at the durable term, before the node answers anything.

use epicepoch_wire::Term;

use crate::sync::{AtomicU64, Ordering};

/// An atomic term that only rises. Sequentially consistent: a vote that has left this node must
/// be seen by every confirm that is answered afterwards (S4).
#[derive(Debug, Default)]
pub struct Promise(AtomicU64);

impl Promise {
    /// A Promise that begins at the durable term.
    #[must_use]
    pub fn new(term: Term) -> Self {
        Self(AtomicU64::new(term.0))
    }

    /// Raises the promise to `term`, if it is below. Called after every call into the Raft
    /// library, before any message of that call is queued.
    pub fn raise(&self, term: Term) {
        self.0.fetch_max(term.0, Ordering::SeqCst);
    }

    /// The highest promised term. A voter loads it after it has read the frame with the question.
    #[must_use]
    pub fn load(&self) -> Term {
        Term(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_never_goes_back() {
        let promise = Promise::new(Term(4));
        promise.raise(Term(3));
        assert_eq!(promise.load(), Term(4));
        promise.raise(Term(6));
        assert_eq!(promise.load(), Term(6));
    }
}
