//! The two frames of a confirm round. A leader's worker asks voters whether it has promised a
//! higher term; the voter answers from its Promise. Both frames have a fixed size.
//!
//! The leader's question is the one of Raft's ReadIndex (dissertation, 6.4). Here the data plane
//! asks it, not the Raft library.

use crate::cursor::{DecodeError, Reader, Writer};
use crate::id::{BootId, NodeId, Round, StoreId, Term, WorkerId};

/// Asks a voter to confirm a term. The leader's node id and cluster id are in the header of the
/// frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Confirm {
    /// The asking node's data directory.
    pub store: StoreId,
    /// The asking node's boot.
    pub boot: BootId,
    /// The asking worker.
    pub worker: WorkerId,
    /// The term of the grant that the round is for.
    pub term: Term,
    /// The number of the round. It rises with each round of one worker in one boot.
    pub round: Round,
}

impl Confirm {
    /// Bytes of the payload.
    pub const LEN: usize = 16 + 8 + 4 + 8 + 8;

    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u128(self.store.0);
        out.put_u64(self.boot.0);
        out.put_u32(self.worker.0);
        out.put_u64(self.term.0);
        out.put_u64(self.round.0);
    }

    /// Decodes the payload of a [`Confirm`].
    ///
    /// # Errors
    /// The bytes are not a valid payload of this kind.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        let confirm = Self {
            store: StoreId(reader.u128("store")?),
            boot: BootId(reader.u64("boot")?),
            worker: WorkerId(reader.u32("worker")?),
            term: Term(reader.u64("term")?),
            round: Round(reader.u64("round")?),
        };
        reader.finish()?;
        Ok(confirm)
    }
}

/// A voter's answer to a [`Confirm`]. It repeats the fields of the question, because an answer
/// counts only for the round that asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConfirmReply {
    /// The node that asked.
    pub leader: NodeId,
    /// The answering voter's data directory.
    pub store: StoreId,
    /// The boot that asked.
    pub boot: BootId,
    /// The worker that asked.
    pub worker: WorkerId,
    /// The term that was asked about.
    pub term: Term,
    /// The round that was asked.
    pub round: Round,
    /// The voter's Promise when it answered. The answer is a yes if `promise <= term`.
    pub promise: Term,
}

impl ConfirmReply {
    /// Bytes of the payload.
    pub const LEN: usize = 8 + Confirm::LEN + 8;

    /// Whether the voter confirms: it has promised no term above the term in the question.
    #[must_use]
    pub fn is_yes(&self) -> bool {
        self.promise <= self.term
    }

    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.leader.0);
        out.put_u128(self.store.0);
        out.put_u64(self.boot.0);
        out.put_u32(self.worker.0);
        out.put_u64(self.term.0);
        out.put_u64(self.round.0);
        out.put_u64(self.promise.0);
    }

    /// Decodes the payload of a [`ConfirmReply`].
    ///
    /// # Errors
    /// The bytes are not a valid payload of this kind.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        let reply = Self {
            leader: NodeId(reader.u64("leader")?),
            store: StoreId(reader.u128("store")?),
            boot: BootId(reader.u64("boot")?),
            worker: WorkerId(reader.u32("worker")?),
            term: Term(reader.u64("term")?),
            round: Round(reader.u64("round")?),
            promise: Term(reader.u64("promise")?),
        };
        reader.finish()?;
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn confirm_and_reply_round_trip(
            store: u128, boot: u64, worker: u32, term: u64, round: u64, promise: u64, leader: u64,
        ) {
            let (store, boot, worker) = (StoreId(store), BootId(boot), WorkerId(worker));
            let (term, round, promise) = (Term(term), Round(round), Term(promise));
            let ask = Confirm { store, boot, worker, term, round };
            let leader = NodeId(leader);
            let reply = ConfirmReply { leader, store, boot, worker, term, round, promise };
            let (mut a, mut b) = (Vec::new(), Vec::new());
            ask.encode(&mut a);
            reply.encode(&mut b);
            prop_assert_eq!((a.len(), b.len()), (Confirm::LEN, ConfirmReply::LEN));
            prop_assert_eq!(Confirm::decode(&a), Ok(ask));
            prop_assert_eq!(ConfirmReply::decode(&b), Ok(reply));
        }

        #[test]
        fn garbage_never_panics(bytes: Vec<u8>) {
            let _ = Confirm::decode(&bytes);
            let _ = ConfirmReply::decode(&bytes);
        }
    }
}
