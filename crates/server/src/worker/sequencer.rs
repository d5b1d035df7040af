//! The heart of a worker: requests join the open batch, a round is begun for it at the end of
//! the event-loop turn, and when a quorum has confirmed the round its timestamps are taken and
//! its requests are answered. All on one thread, without a hop to another.
//!
//! It decides nothing about safety: [`Rounds`] closes, counts and proves, the allocator stamps.

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

use super::batch::{Batch, Outcome, Room};
use super::links::Links;
use super::places::Places;
use super::signal::{Signal, behind_ready_tasks};
use super::view::View;
use crate::metrics::Metrics;
use crate::metrics::worker::WorkerMetrics;
use crate::shared::NodeShared;

/// Rounds of one worker in flight at once. One would let a request wait for a round trip that it
/// cannot join; each further one costs frames and makes batches smaller. Four cover a round trip
/// that is four event-loop turns long; beyond that, batches grow instead.
pub(crate) const ROUNDS_IN_FLIGHT_MAX: usize = 4;

/// See the module.
#[derive(Debug)]
pub(crate) struct Sequencer {
    /// This worker.
    pub(crate) worker: WorkerId,
    /// The node.
    pub(crate) shared: Arc<NodeShared>,
    /// The links to the other voters.
    pub(crate) links: Links,
    /// Set when requests begin to wait while the timer sleeps long.
    pub(crate) alarm: Signal,
    metrics: Arc<Metrics>,
    rounds: RefCell<Rounds<Batch>>,
    room: RefCell<Room>,
    view: RefCell<Rc<View>>,
    /// For the requests that wait on all workers of the node.
    places: Arc<Places>,
    /// Set when a turn has something to do.
    due: Signal,
    /// Batches that were answered and may not be written yet: when, and how many requests.
    answered: RefCell<VecDeque<(u64, u64)>>,
    /// Requests that wait on this worker.
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
        places: Arc<Places>,
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
            places,
            due: Signal::default(),
            answered: RefCell::default(),
            own_waiting: Cell::default(),
            is_active: Cell::new(false),
            last_round_ns: Cell::new(0),
            shared,
        }
    }

    /// Takes a request for `count` timestamps in; the ticket resolves to what it gets.
    ///
    /// # Errors
    /// The code to refuse it with, at once.
    pub(crate) fn enter(self: &Rc<Self>, count: u64) -> Result<Ticket, ErrorCode> {
        self.enter_run(1, |_| count)
    }

    /// Takes a run of requests in that were read together from one connection, as many as there is
    /// room for, and at least the first. `total` says how many timestamps that many of them ask for
    /// together; the ticket resolves to one range for all of [`Ticket::requests`].
    ///
    /// # Errors
    /// The code to refuse all of them with, at once.
    pub(crate) fn enter_run(
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
        let admitted = self.places.take(requests);
        if admitted == 0 {
            return Err(ErrorCode::Overloaded);
        }
        let clock = || self.shared.clock.monotonic_ns();
        let slot = self.room.borrow_mut().enter(admitted, total(admitted), clock);
        let Some(slot) = slot else {
            self.places.give_back(admitted);
            return Err(ErrorCode::Overloaded);
        };
        self.count_waiting(|own| own + u64::from(admitted));
        self.due.set();
        if !self.is_active.replace(true) {
            self.alarm.set();
        }
        Ok(Ticket { sequencer: self.clone(), slot, requests: admitted })
    }

    /// Takes turns for ever: one when something is due, behind every task that is ready, so that
    /// requests that arrived together share a round.
    pub(crate) async fn take_turns(self: Rc<Self>) {
        loop {
            self.due.wait().await;
            self.turn();
            if self.due.is_set() {
                behind_ready_tasks().await;
            }
        }
    }

    /// Counts a voter's answer to a confirm of this worker, and completes what it proves at once.
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

    /// Takes in what the consensus plane has published. Returns it as this worker now sees it.
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
            // The timer may sleep longer than the probes of a leader allow.
            self.alarm.set();
        } else {
            let batch = self.room.borrow_mut().close(now_ns);
            self.refuse(batch, view.refusal());
        }
        view
    }

    /// Does what is due by time alone: deadlines, dead links, the probe of an idle leader.
    pub(crate) fn handle_tick(&self) {
        let now_ns = self.shared.clock.monotonic_ns();
        self.fail_rounds(now_ns);
        let timeout_ns = nanos(self.shared.config.request_timeout);
        self.room.borrow_mut().expire(now_ns, timeout_ns, ErrorCode::NoQuorum);
        self.links.close_silent(now_ns);
        self.links.close_set_back(&self.shared.core.positions());
        let is_active = self.room.borrow().taken() > 0 || !self.rounds.borrow().is_empty();
        self.is_active.set(is_active);
        // Not activity: the next probe's tick looks after this one's deadline, and an idle node
        // wakes half as often.
        self.probe(now_ns);
    }

    /// Whether requests wait or rounds are in flight: the timer must tick.
    pub(crate) fn is_active(&self) -> bool {
        self.is_active.get()
    }

    /// The newest round's question, for a link that was connected after it was asked.
    pub(crate) fn ask_again(&self, node: NodeId) {
        let newest = self.rounds.borrow().newest();
        if let Some(begun) = newest {
            self.links.ask_one(node, &begun, self.shared.clock.monotonic_ns());
        }
    }

    /// A time that is past, monotonic nanoseconds: when a batch was last opened or closed, or the
    /// timer last ticked. It costs no clock reading, and nothing that matters rests on it.
    pub(crate) fn recent_ns(&self) -> u64 {
        self.room.borrow().now_ns()
    }

    /// What this worker last saw published.
    pub(crate) fn view(&self) -> Rc<View> {
        self.view.borrow().clone()
    }

    /// This worker's cells.
    pub(crate) fn metrics(&self) -> &WorkerMetrics {
        self.metrics.worker(self.worker.0 as usize)
    }

    /// The node's cells.
    pub(crate) fn node_metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// How often an idle leader's first worker begins an empty round, so that others can see
    /// that rounds can complete.
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

    /// Begins a round for the open batch, unless there is no grant or too many are in flight:
    /// the publication, or the round that ends, sets `due` again.
    fn begin_round(&self, now_ns: u64) {
        let is_serving = self.view.borrow().is_serving();
        if !is_serving || self.rounds.borrow().len() >= ROUNDS_IN_FLIGHT_MAX {
            return;
        }
        let deadline_ns = now_ns + nanos(self.shared.config.election_timeout);
        let close = || self.room.borrow_mut().close(now_ns);
        let begun = self.rounds.borrow_mut().begin(close, &self.shared.core, deadline_ns);
        match begun {
            Ok(begun) => {
                self.last_round_ns.set(now_ns);
                self.metrics().rounds_begun.add_alone(1);
                self.links.ask(&begun, now_ns);
                self.complete_confirmed();
            }
            Err((batch, published)) => {
                // The publication is on its way here, and refuses or begins again.
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
            self.complete(batch, &confirmed);
        }
        if !self.room.borrow().is_open_empty() {
            self.due.set();
        }
    }

    fn complete(&self, batch: Batch, confirmed: &Confirmed) {
        let metrics = self.metrics();
        let now = self.shared.clock.now();
        self.shared.health.round_completed_ns.fetch_max(now.monotonic_ns, Ordering::Relaxed);
        metrics.rounds_confirmed.add_alone(1);
        if batch.is_empty() {
            // A probe: there is nobody to refuse, only the list to give back.
            self.room.borrow_mut().refuse(batch, ErrorCode::Internal);
            return;
        }
        let requests = batch.requests;
        let range = match self.shared.allocator.allocate(confirmed, batch.total, now) {
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
            // What is left: a grant that must not be used, or one that is used up to the last
            // index. Neither heals by asking again.
            error => {
                tracing::error!(%error, "a confirmed batch got no timestamps");
                ErrorCode::Internal
            }
        };
        self.refuse(batch, code);
    }

    /// Refuses the batches of all rounds that cannot be confirmed any more.
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

    /// How a node refuses that thought it led: by then it may know the next leader.
    fn refusal_of_a_leader(&self) -> ErrorCode {
        View::new(self.shared.core.published(), self.shared.alt_svc.clone()).refusal()
    }

    fn refuse(&self, batch: Batch, code: ErrorCode) {
        self.room.borrow_mut().refuse(batch, code);
    }

    /// Begins an empty round where nobody asks, so that a leader whose rounds cannot complete is
    /// noticed before a client does.
    fn probe(&self, now_ns: u64) {
        // A tick that comes a little early must not put the probe off by a whole one.
        let pause_ns = nanos(self.probe_interval() * 7 / 8);
        let is_due = now_ns.saturating_sub(self.last_round_ns.get()) >= pause_ns;
        let is_idle = self.rounds.borrow().is_empty() && self.room.borrow().is_open_empty();
        if self.worker == WorkerId(0) && is_due && is_idle {
            self.begin_round(now_ns);
        }
    }

    fn leave(&self, slot: usize, requests: u32) {
        self.room.borrow_mut().leave(slot);
        self.places.give_back(requests);
        self.count_waiting(|own| own - u64::from(requests));
    }

    fn count_waiting(&self, change: impl FnOnce(u64) -> u64) {
        self.own_waiting.set(change(self.own_waiting.get()));
        self.metrics().waiting.set(self.own_waiting.get());
    }
}

/// The place of a request, or of a run of them, with a sequencer: resolves to its timestamps or its
/// refusal. Dropped, it gives the place back.
#[derive(Debug)]
pub(crate) struct Ticket {
    sequencer: Rc<Sequencer>,
    slot: usize,
    requests: u32,
}

impl Ticket {
    /// How many requests were taken in.
    pub(crate) fn requests(&self) -> u32 {
        self.requests
    }

    /// Gives the place of one request back, whose client has gone. Returns whether it was the last:
    /// then the ticket is to be dropped.
    ///
    /// # Panics
    /// When none is left.
    pub(crate) fn give_one_back(&mut self) -> bool {
        assert!(self.requests > 0, "a place was given back twice");
        self.requests -= 1;
        self.sequencer.places.give_back(1);
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

/// A duration as the monotonic clock counts it.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
