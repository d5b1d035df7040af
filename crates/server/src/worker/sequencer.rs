//! The centre of a worker. Requests join the open batch. At the end of the event-loop turn a round
//! begins for that batch. When a quorum has confirmed the round, the batch gets its timestamps and
//! its requests are answered. All of this runs on one thread.
//!
//! This module decides nothing about safety: [`Rounds`] closes batches and counts answers, and the
//! allocator gives out timestamps.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use epicepoch_core::allocator::AllocateError;
use epicepoch_core::confirm::{Confirmed, RoundFailure, Rounds};
use epicepoch_wire::confirm::ConfirmReply;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::{NodeId, WorkerId};

use super::admission::AdmissionLimit;
use super::batch::{Batch, Outcome, ROUNDS_IN_FLIGHT_MAX, Room};
use super::links::Links;
use super::view::View;
use crate::metrics::Metrics;
use crate::metrics::worker::WorkerMetrics;
use crate::shared::{NodeShared, nanos};
use crate::sync::signal::{Signal, behind_ready_tasks};

/// Runs the batches and rounds of one worker.
#[derive(Debug)]
pub(crate) struct Sequencer {
    pub(crate) worker: WorkerId,
    /// The state that this node's planes share.
    pub(crate) shared: Arc<NodeShared>,
    /// The links to the other voters.
    pub(crate) links: Links,
    /// Set when the timer must tick sooner: requests wait, or this node leads.
    pub(crate) alarm: Signal,
    metrics: Arc<Metrics>,
    rounds: RefCell<Rounds<Batch>>,
    room: RefCell<Room>,
    view: RefCell<Rc<View>>,
    /// The limit of requests that wait on all workers of the node.
    admission: Arc<AdmissionLimit>,
    /// Set when the next turn has work.
    due: Signal,
    /// Batches whose answers may not be written yet: when each got its timestamps, and how many
    /// requests it has.
    answered: RefCell<VecDeque<(u64, u64)>>,
    /// How many requests wait on this worker.
    own_waiting: Cell<u64>,
    is_active: Cell<bool>,
    last_round_ns: Cell<u64>,
}

impl Sequencer {
    /// A sequencer without requests.
    pub(crate) fn new(
        worker: WorkerId,
        shared: Arc<NodeShared>,
        metrics: Arc<Metrics>,
        links: Links,
        admission: Arc<AdmissionLimit>,
    ) -> Self {
        let view = Rc::new(View::new(shared.core.published(), shared.alt_svc.clone()));
        Self {
            worker,
            links,
            alarm: Signal::default(),
            metrics,
            rounds: RefCell::new(Rounds::new(shared.identity, worker)),
            room: RefCell::new(Room::new(shared.config.request_buffer)),
            view: RefCell::new(view),
            admission,
            due: Signal::default(),
            answered: RefCell::default(),
            own_waiting: Cell::default(),
            is_active: Cell::new(false),
            last_round_ns: Cell::new(0),
            shared,
        }
    }

    /// Adds a request for `count` timestamps to the open batch. The ticket resolves to its outcome.
    ///
    /// # Errors
    /// The code of the refusal, when the request cannot wait.
    pub(crate) fn join(self: &Rc<Self>, count: u64) -> Result<Ticket, ErrorCode> {
        self.join_burst(1, |_| count)
    }

    /// Adds a burst of requests, read together from one connection, to the open batch. It admits
    /// the first requests of the burst, as many as the admission limit allows. `total` returns how
    /// many timestamps that many requests ask for. The ticket resolves to one range for all
    /// [`Ticket::requests`].
    ///
    /// # Errors
    /// The code of the refusal, when no request of the burst can wait.
    pub(crate) fn join_burst(
        self: &Rc<Self>,
        requests: u32,
        total: impl FnOnce(u32) -> u64,
    ) -> Result<Ticket, ErrorCode> {
        {
            let view = self.view.borrow();
            if !view.is_leading() {
                return Err(view.refusal());
            }
        }
        let admitted = self.admission.take(requests);
        if admitted == 0 {
            return Err(ErrorCode::Overloaded);
        }
        let clock = || self.shared.clock.monotonic_ns();
        let slot = self.room.borrow_mut().enter(admitted, total(admitted), clock);
        let Some(slot) = slot else {
            self.admission.give_back(admitted);
            return Err(ErrorCode::Overloaded);
        };
        self.count_waiting(|own| own + u64::from(admitted));
        self.due.set();
        if !self.is_active.replace(true) {
            self.alarm.set();
        }
        Ok(Ticket { sequencer: self.clone(), slot, requests: admitted })
    }

    /// Runs a turn whenever one has work. A turn comes after every task that is ready, so that
    /// requests that arrived together share a round. Never ends.
    pub(crate) async fn take_turns(self: Rc<Self>) {
        loop {
            self.due.wait().await;
            self.turn();
            if self.due.is_set() {
                behind_ready_tasks().await;
            }
        }
    }

    /// Counts a voter's answer to a confirm of this worker. Completes or fails at once the rounds
    /// that this decides.
    pub(crate) fn handle_reply(&self, from: NodeId, reply: &ConfirmReply) {
        if !self.rounds.borrow_mut().handle_reply(from, reply) {
            return;
        }
        if reply.is_yes() {
            self.complete_confirmed();
        } else {
            self.fail_rounds(self.shared.clock.monotonic_ns());
        }
    }

    /// Applies the newest publication of the consensus plane, and returns the new view.
    pub(crate) fn handle_publication(&self) -> Rc<View> {
        let view = Rc::new(View::new(self.shared.core.published(), self.shared.alt_svc.clone()));
        let before = self.view.replace(view.clone());
        if view.is_leading() && !before.is_leading() {
            self.links.nudge_down();
        }
        let now_ns = self.shared.clock.monotonic_ns();
        self.fail_rounds(now_ns);
        if view.is_leading() {
            self.due.set();
            // The timer's present sleep may be longer than the pause between a leader's probes.
            self.alarm.set();
        } else {
            let batch = self.room.borrow_mut().close(now_ns);
            self.refuse(batch, view.refusal());
        }
        view
    }

    /// Handles a tick: deadlines, links that do not answer, and the probe of an idle leader.
    pub(crate) fn handle_tick(&self) {
        let now_ns = self.shared.clock.monotonic_ns();
        self.fail_rounds(now_ns);
        let timeout_ns = nanos(self.shared.config.request_timeout);
        self.room.borrow_mut().expire(now_ns, timeout_ns, ErrorCode::NoQuorum);
        self.links.close_silent(now_ns);
        self.links.close_rolled_back(&self.shared.core.positions());
        let is_active = self.room.borrow().taken() > 0 || !self.rounds.borrow().is_empty();
        self.is_active.set(is_active);
        // A probe does not make the worker active. The tick of the next probe checks this one's
        // deadline, so an idle node wakes half as often.
        self.probe(now_ns);
    }

    /// Whether requests wait or rounds are in flight, so that the timer must tick often.
    pub(crate) fn is_active(&self) -> bool {
        self.is_active.get()
    }

    /// Sends the confirm of the newest round to `node`, whose link connected after the round began.
    pub(crate) fn ask_again(&self, node: NodeId) {
        let newest = self.rounds.borrow().newest();
        if let Some(begun) = newest {
            self.links.ask_one(node, &begun, self.shared.clock.monotonic_ns());
        }
    }

    /// A recent time, monotonic nanoseconds: when a batch was last opened or closed, or the last
    /// tick. It needs no clock reading. Use it only where an old time does no harm.
    pub(crate) fn recent_ns(&self) -> u64 {
        self.room.borrow().now_ns()
    }

    /// The publication as this worker last read it.
    pub(crate) fn view(&self) -> Rc<View> {
        self.view.borrow().clone()
    }

    /// This worker's metrics.
    pub(crate) fn metrics(&self) -> &WorkerMetrics {
        self.metrics.worker(self.worker.0 as usize)
    }

    /// The node's metrics.
    pub(crate) fn node_metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Time between the empty rounds that the first worker of an idle leader begins. They show that
    /// rounds can complete.
    pub(crate) fn probe_interval(&self) -> Duration {
        self.shared.config.election_timeout / 2
    }

    fn turn(&self) {
        let now_ns = self.shared.clock.monotonic_ns();
        for (answered_ns, requests) in self.answered.borrow_mut().drain(..) {
            let write_ns = now_ns.saturating_sub(answered_ns);
            self.metrics().write_ns.observe_alone(write_ns, requests);
        }
        let is_wanted = !self.room.borrow().is_open_empty();
        if is_wanted {
            self.begin_round(now_ns);
        }
    }

    /// Begins a round for the open batch. Does nothing without a grant, or while too many rounds
    /// are in flight; the next publication, or the end of a round, then sets `due` again.
    fn begin_round(&self, now_ns: u64) {
        let is_serving = self.view.borrow().is_serving();
        if !is_serving || self.rounds.borrow().len() >= ROUNDS_IN_FLIGHT_MAX {
            return;
        }
        let deadline_ns = now_ns + nanos(self.shared.config.election_timeout);
        let close = || {
            let batch = self.room.borrow_mut().close(now_ns);
            let count = batch.total;
            (batch, count)
        };
        let begun = self.rounds.borrow_mut().begin(close, &self.shared.core, deadline_ns);
        match begun {
            Ok(begun) => {
                self.last_round_ns.set(now_ns);
                self.metrics().rounds_begun.add_alone(1);
                self.links.ask(&begun, now_ns);
                self.complete_confirmed();
            }
            Err((batch, published)) => {
                // A newer publication exists, and its announcement will reach this worker soon. If
                // this node still leads, the batch waits for that; otherwise it is refused now.
                let view = View::new(published, self.shared.alt_svc.clone());
                if view.is_leading() {
                    self.room.borrow_mut().reopen(batch);
                } else {
                    self.refuse(batch, view.refusal());
                }
            }
        }
    }

    /// Answers the batches of all rounds that a quorum has confirmed.
    fn complete_confirmed(&self) {
        loop {
            let confirmed = self.rounds.borrow_mut().poll_confirmed();
            let Some((batch, confirmed)) = confirmed else { break };
            self.complete(batch, confirmed);
        }
        if !self.room.borrow().is_open_empty() {
            self.due.set();
        }
    }

    fn complete(&self, batch: Batch, confirmed: Option<Confirmed>) {
        let metrics = self.metrics();
        let now = self.shared.clock.now();
        self.shared.health.round_completed_ns.fetch_max(now.monotonic_ns, Ordering::Relaxed);
        metrics.rounds_confirmed.add_alone(1);
        let Some(confirmed) = confirmed else {
            // This is a probe: it has no requests, and only its entry list is kept for later.
            self.room.borrow_mut().refuse(batch, ErrorCode::Internal);
            return;
        };
        let requests = batch.requests;
        let range = match self.shared.allocator.allocate(confirmed, now) {
            Ok(range) => range,
            Err(error) => return self.refuse_unallocated(batch, error),
        };
        let allocated_ns = self.shared.clock.monotonic_ns();
        let waiting_ns = batch.closed_ns.saturating_sub(batch.opened_ns);
        let confirm_ns = now.monotonic_ns.saturating_sub(batch.closed_ns);
        metrics.batch_size.observe_alone(requests, 1);
        metrics.waiting_ns.observe_alone(waiting_ns, requests);
        metrics.confirm_ns.observe_alone(confirm_ns, requests);
        metrics.allocate_ns.observe_alone(allocated_ns - now.monotonic_ns, requests);
        metrics.timestamps.add_alone(range.count());
        self.answered.borrow_mut().push_back((allocated_ns, requests));
        self.room.borrow_mut().answer(batch, range);
        self.due.set();
    }

    fn refuse_unallocated(&self, batch: Batch, error: AllocateError) {
        let code = match error {
            AllocateError::NoGrant | AllocateError::OtherTerm => self.refusal_of_a_leader(),
            // The other errors: the grant must not be used, or its last index is used. A second
            // attempt would fail in the same way.
            error => {
                tracing::error!(%error, "a confirmed batch got no timestamps");
                ErrorCode::Internal
            }
        };
        self.refuse(batch, code);
    }

    /// Refuses the batches of all rounds that can no longer be confirmed.
    fn fail_rounds(&self, now_ns: u64) {
        loop {
            if self.rounds.borrow().is_empty() {
                return;
            }
            let failed = self.rounds.borrow_mut().poll_failed(now_ns, &self.shared.core);
            let Some((batch, failure)) = failed else { return };
            self.metrics().count_failure(failure);
            let code = match failure {
                RoundFailure::TimedOut => ErrorCode::NoQuorum,
                RoundFailure::Deposed | RoundFailure::GrantLost => self.refusal_of_a_leader(),
            };
            self.refuse(batch, code);
            self.due.set();
        }
    }

    /// The refusal of a node that believed it led. By now it may know the next leader.
    fn refusal_of_a_leader(&self) -> ErrorCode {
        View::new(self.shared.core.published(), self.shared.alt_svc.clone()).refusal()
    }

    fn refuse(&self, batch: Batch, code: ErrorCode) {
        self.room.borrow_mut().refuse(batch, code);
    }

    /// Begins an empty round while no request waits. So a leader whose rounds cannot complete is
    /// noticed before a client asks it.
    fn probe(&self, now_ns: u64) {
        // Without this tolerance, a tick that comes a little early would delay the probe by a whole
        // interval.
        let pause_ns = nanos(self.probe_interval() * 7 / 8);
        let is_due = now_ns.saturating_sub(self.last_round_ns.get()) >= pause_ns;
        let is_idle = self.rounds.borrow().is_empty() && self.room.borrow().is_open_empty();
        if self.worker == WorkerId(0) && is_due && is_idle {
            self.begin_round(now_ns);
        }
    }

    fn leave(&self, slot: usize, requests: u32) {
        self.room.borrow_mut().leave(slot);
        self.admission.give_back(requests);
        self.count_waiting(|own| own - u64::from(requests));
    }

    fn count_waiting(&self, change: impl FnOnce(u64) -> u64) {
        self.own_waiting.set(change(self.own_waiting.get()));
        self.metrics().waiting.set(self.own_waiting.get());
    }
}

/// A request, or a burst of requests, that waits in a sequencer. It resolves to the timestamps or
/// to the refusal. Dropping it frees the slot and lowers the count of the admission limit.
#[derive(Debug)]
pub(crate) struct Ticket {
    sequencer: Rc<Sequencer>,
    slot: usize,
    requests: u32,
}

impl Ticket {
    /// How many requests were admitted and have not been given back.
    pub(crate) fn requests(&self) -> u32 {
        self.requests
    }

    /// Gives back one request, because its client has gone. Returns whether it was the last one;
    /// then drop the ticket.
    ///
    /// # Panics
    /// When no request is left.
    pub(crate) fn give_one_back(&mut self) -> bool {
        assert!(self.requests > 0, "a place was given back twice");
        self.requests -= 1;
        self.sequencer.admission.give_back(1);
        self.sequencer.count_waiting(|own| own - 1);
        self.requests == 0
    }
}

impl Future for Ticket {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        self.sequencer.room.borrow_mut().poll(self.slot, context)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.sequencer.leave(self.slot, self.requests);
    }
}
