//! Requests that another node answers, while `FORWARD` is on and this node does not lead: the tasks
//! around the core's [`Forwarder`]. It decides nothing: which requests share a frame, and what they
//! are told, is the core's decision (S22). `forward_link` has the connection.

use std::cell::RefCell;
use std::task::{Context, Poll, Waker};

use epicepoch_core::publication::Published;
use epicepoch_core::sequencer::{Forwarder, Limits, Outcome};
use epicepoch_wire::NodeId;
use epicepoch_wire::http::ErrorCode;

use crate::sync::signal::Signal;

/// The requests of one worker that another node answers.
#[derive(Debug)]
pub(super) struct Forwarding {
    pub(super) state: RefCell<Forwarder<Waker>>,
    /// Set when the connection has work: requests wait, or the leader has changed.
    pub(super) due: Signal,
    /// Set when the connection must be closed.
    pub(super) hang_up: Signal,
}

impl Forwarding {
    pub(super) fn new(limits: Limits, published: &Published) -> Self {
        let state = Forwarder::new(limits.slots_max, limits.request_ns, published);
        Self { state: RefCell::new(state), due: Signal::default(), hang_up: Signal::default() }
    }

    /// Whether requests may join: another node is known to lead.
    pub(super) fn may_join(&self) -> bool {
        self.state.borrow().may_join()
    }

    /// [`Forwarder::join`].
    pub(super) fn join(
        &self,
        requests: u32,
        count: u64,
        clock: impl FnOnce() -> u64,
    ) -> Result<usize, ErrorCode> {
        let slot = self.state.borrow_mut().join(requests, count, clock)?;
        self.due.set();
        Ok(slot)
    }

    /// The outcome of the request in `slot`.
    pub(super) fn poll_outcome(&self, slot: usize, context: &Context<'_>) -> Poll<Outcome> {
        match self.state.borrow_mut().outcome(slot) {
            Ok(outcome) => Poll::Ready(outcome),
            Err(waker) => {
                if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                    *waker = Some(context.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    /// [`Forwarder::leave`].
    pub(super) fn leave(&self, slot: usize) {
        self.state.borrow_mut().leave(slot);
    }

    /// Follows a publication.
    pub(super) fn handle_publication(&self, now_ns: u64, published: &Published) {
        let mut state = self.state.borrow_mut();
        let before = state.leader();
        if state.handle_publication(now_ns, published, Waker::wake) || before != state.leader() {
            self.hang_up.set();
        }
        self.due.set();
    }

    /// Handles a tick. Returns whether the next one should come soon.
    pub(super) fn handle_tick(&self, now_ns: u64) -> bool {
        let mut state = self.state.borrow_mut();
        if state.handle_tick(now_ns, Waker::wake) {
            self.hang_up.set();
        }
        state.is_active()
    }

    /// The leader to connect to, if another node is known to lead.
    pub(super) fn leader(&self) -> Option<NodeId> {
        self.state.borrow().leader()
    }

    /// Whether a connection to the leader is needed.
    pub(super) fn needs_link(&self) -> bool {
        let state = self.state.borrow();
        state.may_join() && state.has_waiting()
    }
}
