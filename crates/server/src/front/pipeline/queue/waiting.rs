//! A waiting request as the queue sees it. Each protocol has a type of its own for it.

use epicepoch_core::sequencer::LATEST;
use epicepoch_wire::Guarantee;

/// A waiting request, as its protocol stores it.
pub(crate) trait Waiting: Copy {
    /// Whether requests of this protocol may ask for the latest timestamp. If not, their answers do
    /// not cost this check.
    const MAY_ASK_FOR_LATEST: bool = false;

    /// How many timestamps the request asks for, or [`LATEST`].
    fn count(&self) -> u64;

    /// Approximate bytes of the answer; 0 if the protocol does not limit them.
    fn answer_len(&self) -> usize {
        0
    }

    /// The guarantee that the request names, if it names one.
    fn guarantee(&self) -> Option<Guarantee> {
        None
    }

    /// Whether the request must not be sent on to another node: its client can follow, or only the
    /// leader can make its answer.
    fn is_direct(&self) -> bool {
        false
    }

    /// Bytes of the request id; 0 if there is none.
    fn request_id_len(&self) -> usize {
        0
    }

    /// Whether the client still wants the answer.
    fn interest(&self) -> Interest {
        Interest::Wanted
    }

    /// Changes [`Self::interest`].
    fn set_interest(&mut self, _: Interest) {
        unreachable!("a request of this protocol cannot be cancelled")
    }
}

/// Whether the client still wants the answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    Wanted,
    /// The client cancelled the request before the request joined a batch.
    Dropped,
    /// The client cancelled the request later. Its part of the range is not used.
    Burned,
}

/// Whether a request asks for the latest timestamp.
#[inline]
pub(super) fn asks_for_latest<R: Waiting>(request: &R) -> bool {
    R::MAY_ASK_FOR_LATEST && request.count() == LATEST
}
