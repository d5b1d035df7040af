//! The answering end of a confirm link: another member's worker asks, and this node answers from
//! its Promise. The Promise is loaded once for each frame, after the frame was read, and nothing is
//! kept from one frame to the next (S4).

use epicepoch_wire::confirm::{Confirm, ConfirmReply};
use epicepoch_wire::frame::{FrameKind, Header};
use epicepoch_wire::{ClusterId, DecodeError};
use thiserror::Error;

use crate::promise::Promise;
use crate::publication::Identity;

/// At most this many questions are answered with one write. Further ones wait until it is done.
const ANSWERS_PER_WRITE_MAX: usize = 64;

/// Why a frame gets no answer. Close the link; the caller opens another.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// The payload is not a confirm.
    #[error("malformed payload: {0}")]
    Payload(#[from] DecodeError),
    /// The frame is of another kind, or its cluster, node, data directory or boot differs from the
    /// link's.
    #[error("a frame that does not belong to this link: {0:?}")]
    Foreign(Header),
}

/// The answers to one caller, over one link.
#[derive(Debug)]
pub struct Answers {
    caller: Identity,
    cluster: ClusterId,
    me: Identity,
    /// How many answers wait to be written.
    unwritten: usize,
}

impl Answers {
    /// A link of `caller`, whose hello was accepted, to this node. Both belong to `cluster`.
    #[must_use]
    pub const fn new(caller: Identity, cluster: ClusterId, me: Identity) -> Self {
        Self { caller, cluster, me, unwritten: 0 }
    }

    /// Answers a frame. Call it when the frame was read, before the next one is read.
    ///
    /// # Errors
    /// When the frame is not a confirm of this caller.
    pub fn handle_frame(
        &mut self,
        header: &Header,
        payload: &[u8],
        promise: &Promise,
    ) -> Result<ConfirmReply, AnswerError> {
        let is_ours = header.kind == FrameKind::Confirm
            && header.cluster == self.cluster
            && header.from == self.caller.node;
        if !is_ours {
            return Err(AnswerError::Foreign(*header));
        }
        let confirm = Confirm::decode(payload)?;
        self.handle_confirm(&confirm, promise).ok_or(AnswerError::Foreign(*header))
    }

    /// Answers a question whose frame the caller has already checked and decoded, as
    /// [`Self::handle_frame`] does. `None` if it is another caller's question.
    pub fn handle_confirm(&mut self, confirm: &Confirm, promise: &Promise) -> Option<ConfirmReply> {
        if (confirm.store, confirm.boot) != (self.caller.store, self.caller.boot) {
            return None;
        }
        self.unwritten += 1;
        Some(ConfirmReply {
            leader: self.caller.node,
            store: self.me.store,
            boot: confirm.boot,
            worker: confirm.worker,
            term: confirm.term,
            round: confirm.round,
            promise: promise.load(),
        })
    }

    /// Whether another frame may be read and answered before the answers are written.
    #[must_use]
    pub const fn has_room(&self) -> bool {
        self.unwritten < ANSWERS_PER_WRITE_MAX
    }

    /// All answers so far were written.
    pub const fn handle_written(&mut self) {
        self.unwritten = 0;
    }
}

#[cfg(test)]
mod tests {
    use epicepoch_wire::frame::{split_frame, write_frame};
    use epicepoch_wire::{BootId, NodeId, Round, StoreId, Term, WorkerId};

    use super::*;

    const CLUSTER: ClusterId = ClusterId(9);
    const CALLER: Identity = identity(1);
    const ME: Identity = identity(2);
    const CONFIRM: Confirm = Confirm {
        store: CALLER.store,
        boot: CALLER.boot,
        worker: WorkerId(3),
        term: Term(5),
        round: Round(8),
    };

    const fn identity(node: u64) -> Identity {
        Identity { node: NodeId(node), store: StoreId(node as u128), boot: BootId(70 + node) }
    }

    fn answers() -> Answers {
        Answers::new(CALLER, CLUSTER, ME)
    }

    #[test]
    fn every_question_of_a_burst_is_answered_from_the_promise_of_its_own_moment() {
        let (mut answers, promise) = (answers(), Promise::new(Term(5)));
        let mut said = |term| {
            promise.raise(Term(term));
            let reply = answers.handle_confirm(&CONFIRM, &promise).unwrap();
            (reply.promise.0, reply.is_yes())
        };
        assert_eq!([said(5), said(6), said(7)], [(5, true), (6, false), (7, false)]);
    }

    #[test]
    fn an_answer_repeats_its_question_and_names_who_answers() {
        let reply = answers().handle_confirm(&CONFIRM, &Promise::new(Term(4))).unwrap();
        let Confirm { boot, worker, term, round, .. } = CONFIRM;
        let (leader, store, promise) = (CALLER.node, ME.store, Term(4));
        assert_eq!(reply, ConfirmReply { leader, store, boot, worker, term, round, promise });
    }

    #[test]
    fn only_the_callers_own_confirms_are_answered() {
        let promise = Promise::new(Term(5));
        let is_answered = |kind, cluster, from, confirm: &Confirm| {
            let mut frame = vec![];
            write_frame(&mut frame, kind, cluster, from, |out| confirm.encode(out));
            let (header, payload, _) = split_frame(&frame).unwrap().unwrap();
            answers().handle_frame(&header, payload, &promise).is_ok()
        };
        let node = CALLER.node;
        assert!(is_answered(FrameKind::Confirm, CLUSTER, node, &CONFIRM));
        assert!(!is_answered(FrameKind::Raft, CLUSTER, node, &CONFIRM));
        assert!(!is_answered(FrameKind::Confirm, ClusterId(1), node, &CONFIRM));
        assert!(!is_answered(FrameKind::Confirm, CLUSTER, NodeId(3), &CONFIRM));
        let other = Confirm { store: StoreId(7), ..CONFIRM };
        assert!(!is_answered(FrameKind::Confirm, CLUSTER, node, &other));
        let earlier = Confirm { boot: BootId(7), ..CONFIRM };
        assert!(!is_answered(FrameKind::Confirm, CLUSTER, node, &earlier));
    }

    #[test]
    fn after_so_many_answers_they_are_written_first() {
        let (mut answers, promise) = (answers(), Promise::new(Term(5)));
        let mut count = 0;
        while answers.has_room() {
            answers.handle_confirm(&CONFIRM, &promise).unwrap();
            count += 1;
        }
        assert_eq!(count, ANSWERS_PER_WRITE_MAX);
        answers.handle_written();
        assert!(answers.has_room());
    }
}
