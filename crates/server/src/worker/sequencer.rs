//! The centre of a worker. Requests join the open batch. At the end of the event-loop turn a round
//! begins for that batch. When a quorum has confirmed the round, the batch gets its timestamps and
//! its requests are answered. All of this runs on one thread.
//!
//! The core's [`State`] makes all decisions. This module adds the clock, the links, the tasks that
//! wait, and the metrics.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use epicepoch_core::allocator::AllocateError;
use epicepoch_core::confirm::Begun;
use epicepoch_core::sequencer::{BatchSize, ConfirmedBatch, Limits, Outcome, Sequencer as State};
use epicepoch_wire::confirm::ConfirmReply;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::{Guarantee, NodeId, ProvedBy, WorkerId};

use super::admission::AdmissionLimit;
use super::forwarding::Forwarding;
use super::links::Links;
use super::view::View;
use crate::abort::AbortOnPanic;
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
    /// The requests that another node answers; `None` if `FORWARD` is off.
    pub(super) forwarding: Option<Forwarding>,
    state: RefCell<State<Waker>>,
    view: RefCell<Rc<View>>,
    /// The limit of requests that wait on all workers of the node.
    admission: Arc<AdmissionLimit>,
    /// Set when the next turn has work.
    due: Signal,
    /// Set when a round has begun that has not asked all voters.
    begun: Signal,
    /// Batches whose answers may not be written yet: when each got its timestamps, and how many
    /// requests it has.
    answered: RefCell<VecDeque<(u64, u64)>>,
    /// How many requests wait on this worker.
    own_waiting: Cell<u64>,
    is_active: Cell<bool>,
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
        let published = shared.core.published();
        let limits = Limits {
            slots_max: shared.config.request_buffer,
            round_ns: nanos(shared.config.election_timeout),
            request_ns: nanos(shared.config.request_timeout),
            probe_ns: (worker == WorkerId(0)).then(|| nanos(probe_interval(&shared))),
        };
        let forwarding = shared.config.forward.then(|| Forwarding::new(limits, &published));
        let state = State::new(shared.identity, worker, limits, &published);
        let view = Rc::new(View::new(published, shared.alt_svc.clone()));
        Self {
            worker,
            links,
            alarm: Signal::default(),
            metrics,
            forwarding,
            state: RefCell::new(state),
            view: RefCell::new(view),
            admission,
            due: Signal::default(),
            begun: Signal::default(),
            answered: RefCell::default(),
            own_waiting: Cell::default(),
            is_active: Cell::new(false),
            shared,
        }
    }

    /// Adds a burst of requests, read together from one connection, to the open batch of the
    /// guarantee that all of them ask for. It admits the first requests of the burst, as many as
    /// the admission limit allows. Given a number of
    /// requests, `total` returns how many timestamps the first that many requests of the burst ask
    /// for, or [`LATEST`](epicepoch_core::sequencer::LATEST). If `may_forward` and another node
    /// leads, the burst may be sent on to it ([`Self::forwards`]). The ticket resolves to one range for
    /// all [`Ticket::requests`].
    ///
    /// # Errors
    /// The code of the refusal, when no request of the burst can wait.
    pub(crate) fn join(
        self: &Rc<Self>,
        requests: u32,
        guarantee: Guarantee,
        may_forward: bool,
        total: impl FnOnce(u32) -> u64,
    ) -> Result<Ticket, ErrorCode> {
        let mut state = self.state.borrow_mut();
        if let Some(code) = state.refusal() {
            drop(state);
            let may_forward = may_forward && code == ErrorCode::NotLeader;
            let forwarding = self.forwarding().filter(|_| may_forward).ok_or(code)?;
            return self.join_forwarding(forwarding, requests, total);
        }
        let admitted = self.admission.take(requests);
        if admitted == 0 {
            return Err(ErrorCode::Overloaded);
        }
        let clock = || self.shared.clock.monotonic_ns();
        let joined = state.join(admitted, total(admitted), guarantee, clock);
        let slot = joined.inspect_err(|_| self.admission.give_back(admitted))?;
        drop(state);
        self.due.set();
        Ok(self.ticket(slot, admitted, false))
    }

    /// Whether requests are sent on to another node now.
    pub(crate) fn forwards(&self) -> bool {
        self.forwarding().is_some()
    }

    fn forwarding(&self) -> Option<&Forwarding> {
        self.forwarding.as_ref().filter(|it| it.may_join())
    }

    fn join_forwarding(
        self: &Rc<Self>,
        forwarding: &Forwarding,
        requests: u32,
        total: impl FnOnce(u32) -> u64,
    ) -> Result<Ticket, ErrorCode> {
        let admitted = self.admission.take(requests);
        if admitted == 0 {
            return Err(ErrorCode::Overloaded);
        }
        // The task of a client survives a panic. A broken rule of forwarding must not (S22).
        let _abort = AbortOnPanic("forwarding");
        let clock = || self.shared.clock.monotonic_ns();
        let joined = forwarding.join(admitted, total(admitted), clock);
        let slot = joined.inspect_err(|_| self.admission.give_back(admitted))?;
        Ok(self.ticket(slot, admitted, true))
    }

    /// Measures the requests of a frame that the leader has answered.
    pub(super) fn record_forwarded(&self, size: &BatchSize) {
        let forward_ns = self.shared.clock.monotonic_ns().saturating_sub(size.opened_ns);
        self.metrics().forward_ns.observe_alone(forward_ns, size.requests);
        self.metrics().forward_size.observe_alone(size.requests, 1);
    }

    fn ticket(self: &Rc<Self>, slot: usize, requests: u32, is_forwarded: bool) -> Ticket {
        self.count_waiting(|own| own + u64::from(requests));
        if !self.is_active.replace(true) {
            self.alarm.set();
        }
        Ticket { sequencer: self.clone(), slot, requests, is_forwarded }
    }

    /// Runs a turn whenever there is work for one. The turn comes after every task that is ready,
    /// so that requests that arrived together share a round. Never ends.
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
        if !self.state.borrow_mut().handle_reply(from, reply) {
            return;
        }
        if reply.is_yes() {
            self.complete_confirmed();
        } else {
            self.fail_rounds(self.shared.clock.monotonic_ns());
            self.ask_rest();
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
        let published = &view.published;
        self.state.borrow_mut().handle_publication(now_ns, published, Waker::wake);
        if let Some(forwarding) = &self.forwarding {
            forwarding.handle_publication(now_ns, published);
        }
        if published.voters != before.published.voters {
            // Links to voters that have left end soon, and rounds in flight may need them.
            self.ask_rest();
        }
        self.fail_rounds(now_ns);
        self.want_turn();
        if view.is_leading() {
            // The timer may be in a sleep that is longer than the pause between a leader's probes.
            // This ends the sleep.
            self.alarm.set();
        }
        view
    }

    /// Handles a tick: deadlines, links that do not answer, and the probe of an idle leader.
    pub(crate) fn handle_tick(&self) {
        let now_ns = self.shared.clock.monotonic_ns();
        self.fail_rounds(now_ns);
        self.links.close_dead(&self.shared.addresses.book, now_ns);
        // The probe begins only after this line, so it does not make the worker active. Its
        // deadline is checked at the tick of the next probe. So an idle node wakes half as often.
        let forwards = self.forwarding.as_ref().is_some_and(|it| it.handle_tick(now_ns));
        self.is_active.set(forwards || self.state.borrow().is_active());
        let begun = self.state.borrow_mut().handle_tick(now_ns, &self.shared.core, Waker::wake);
        self.ask(begun, now_ns);
    }

    /// Whether requests wait or rounds are in flight, so that the timer must tick often.
    pub(crate) fn is_active(&self) -> bool {
        self.is_active.get()
    }

    /// Sends the confirm of the newest round to `node`, whose link connected after the round began.
    pub(crate) fn ask_again(&self, node: NodeId) {
        let newest = self.state.borrow().newest();
        if let Some(begun) = newest {
            self.links.ask_one(node, &begun, self.shared.clock.monotonic_ns());
        }
    }

    /// Asks the voters that the newest round has not asked, because those that it has asked do not
    /// answer, or not with a yes.
    pub(crate) fn ask_rest(&self) {
        let (newest, other) = {
            let state = self.state.borrow();
            (state.newest(), state.newest_of_other_voters())
        };
        let now_ns = self.shared.clock.monotonic_ns();
        if let Some(begun) = newest {
            self.links.ask_rest(&begun, now_ns);
        }
        if let Some(begun) = other {
            self.links.ask_all(&begun, now_ns);
        }
    }

    /// Waits until a round has begun that has not asked all voters.
    pub(crate) async fn round_begun(&self) {
        self.begun.wait().await;
    }

    /// Asks the rest of the voters if an answer is late. Returns whether to look again: answers are
    /// missing, none is late, and there are voters to ask.
    pub(crate) fn ask_rest_if_late(&self) -> bool {
        let oldest_ns = self.state.borrow().oldest_ns();
        let Some(begun_ns) = oldest_ns.filter(|_| self.links.is_part()) else { return false };
        let is_late = self.links.is_late(begun_ns, self.shared.clock.monotonic_ns());
        if is_late {
            self.ask_rest();
        }
        !is_late
    }

    /// A recent time: [`State::recent_ns`].
    pub(crate) fn recent_ns(&self) -> u64 {
        self.state.borrow().recent_ns()
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
        probe_interval(&self.shared)
    }

    fn turn(&self) {
        let now_ns = self.shared.clock.monotonic_ns();
        for (answered_ns, requests) in self.answered.borrow_mut().drain(..) {
            let write_ns = now_ns.saturating_sub(answered_ns);
            self.metrics().write_ns.observe_alone(write_ns, requests);
        }
        let (core, lease_clock) = (&self.shared.core, || self.shared.lease_clock.own_ns());
        let mut state = self.state.borrow_mut();
        let begun = state.handle_turn(now_ns, core, lease_clock, Waker::wake);
        let (is_proved, asked_ns) = (state.has_proved(), state.lease_asked_ns());
        drop(state);
        if asked_ns == now_ns {
            self.shared.health.lease_asked_ns.fetch_max(now_ns, Ordering::Relaxed);
        }
        if is_proved {
            self.complete_confirmed();
        }
        self.ask(begun, now_ns);
    }

    /// Asks the voters of a round that has begun.
    fn ask(&self, begun: Option<Begun>, now_ns: u64) {
        let Some(begun) = begun else { return };
        self.metrics().rounds_begun.add_alone(1);
        if self.links.ask(&begun, now_ns) {
            self.begun.set();
        }
        self.complete_confirmed();
    }

    /// Answers the batches of all rounds that a quorum has confirmed.
    fn complete_confirmed(&self) {
        loop {
            let confirmed = self.state.borrow_mut().poll_confirmed();
            let Some(confirmed) = confirmed else { break };
            self.complete(confirmed);
        }
        self.want_turn();
    }

    fn complete(&self, confirmed: ConfirmedBatch) {
        let metrics = self.metrics();
        let now = self.shared.clock.now();
        let proved_by = confirmed.proved_by();
        if proved_by == ProvedBy::Round {
            let completed_ns = &self.shared.health.round_completed_ns;
            completed_ns.fetch_max(now.monotonic_ns, Ordering::Relaxed);
            metrics.rounds_confirmed.add_alone(1);
        }
        let size = confirmed.size();
        let mut allocated_ns = now.monotonic_ns;
        let allocate = |key| {
            let range = self.shared.allocator.answer(key, now)?;
            allocated_ns = self.shared.clock.monotonic_ns();
            Ok(range)
        };
        let core = &self.shared.core;
        let taken = self.state.borrow_mut().complete(confirmed, allocate, core, Waker::wake);
        match taken {
            // The clients learn it, and metrics count it.
            Err(
                AllocateError::NoGrant
                | AllocateError::OtherTerm
                | AllocateError::Ahead
                | AllocateError::TooMany,
            ) => {}
            // The batch of a probe has no requests.
            Ok(_) if size.requests == 0 => {}
            Err(error) => tracing::error!(%error, "a confirmed batch got no timestamps"),
            Ok(taken) => {
                let waiting_ns = size.closed_ns.saturating_sub(size.opened_ns);
                let confirm_ns = now.monotonic_ns.saturating_sub(size.closed_ns);
                let took_ns = allocated_ns - now.monotonic_ns;
                metrics.batch_size.observe_alone(size.requests, 1);
                metrics.waiting_ns.observe_alone(waiting_ns, size.requests);
                metrics.confirm_ns.observe_alone(confirm_ns, size.requests);
                metrics.allocate_ns.observe_alone(took_ns, size.requests);
                metrics.timestamps.add_alone(taken);
                match proved_by {
                    ProvedBy::Round => metrics.proved_by_round.add_alone(1),
                    ProvedBy::Lease => metrics.proved_by_lease.add_alone(1),
                }
                self.answered.borrow_mut().push_back((allocated_ns, size.requests));
                self.due.set();
            }
        }
    }

    /// Refuses the batches of all rounds that can no longer be confirmed.
    fn fail_rounds(&self, now_ns: u64) {
        loop {
            let core = &self.shared.core;
            let failed = self.state.borrow_mut().poll_failed(now_ns, core, Waker::wake);
            let Some((_, failure)) = failed else { return };
            self.metrics().count_failure(failure);
            self.want_turn();
        }
    }

    fn want_turn(&self) {
        if self.state.borrow().is_turn_due() {
            self.due.set();
        }
    }

    fn leave(&self, slot: usize, requests: u32, is_forwarded: bool) {
        match &self.forwarding {
            Some(forwarding) if is_forwarded => forwarding.leave(slot),
            Some(_) | None => self.state.borrow_mut().leave(slot),
        }
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
    /// Whether the slot is one of the forwarder.
    is_forwarded: bool,
}

impl Ticket {
    /// Whether another node answers.
    pub(crate) fn is_forwarded(&self) -> bool {
        self.is_forwarded
    }

    /// How many requests were admitted and have not been given back.
    pub(crate) fn requests(&self) -> u32 {
        self.requests
    }

    /// Gives back one request, because its client has gone. Returns whether it was the ticket's
    /// last request. If so, drop the ticket.
    ///
    /// # Panics
    /// When no request is left.
    pub(crate) fn give_one_back(&mut self) -> bool {
        assert!(self.requests > 0, "a request was given back twice");
        self.requests -= 1;
        self.sequencer.admission.give_back(1);
        self.sequencer.count_waiting(|own| own - 1);
        self.requests == 0
    }
}

impl Future for Ticket {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        if let Some(forwarding) = self.sequencer.forwarding.as_ref().filter(|_| self.is_forwarded) {
            let outcome = ready!(forwarding.poll_outcome(self.slot, context));
            let at = usize::from(outcome.is_err());
            self.sequencer.metrics().forwarded[at].add_alone(self.requests.into());
            return Poll::Ready(outcome);
        }
        match self.sequencer.state.borrow_mut().outcome(self.slot) {
            Ok(outcome) => Poll::Ready(outcome),
            Err(waker) => {
                if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                    *waker = Some(context.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.sequencer.leave(self.slot, self.requests, self.is_forwarded);
    }
}

/// Time between the empty rounds of an idle leader.
fn probe_interval(shared: &NodeShared) -> Duration {
    shared.config.election_timeout / 2
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use epicepoch_core::publication::Role;

    use std::io::Read as _;

    use epicepoch_core::positions::PeerBoot;
    use epicepoch_wire::confirm::Confirm;
    use epicepoch_wire::frame::HEADER_LEN;
    use epicepoch_wire::{BootId, StoreId, StorePosition};
    use socket2::SockRef;
    use tokio::net::{TcpListener, TcpStream};

    use super::super::fixture::{publish, published, sequencer};
    use super::super::link::Pipe;
    use super::*;
    use crate::metrics::cell::Sum;
    use crate::security::tls::peer_stream::PeerStream;

    const ROUNDS: u32 = 50;

    /// Connects the links to the other voters of three. Returns the other ends.
    async fn connected(sequencer: &Sequencer) -> Vec<TcpStream> {
        let mut ends = Vec::new();
        for link in sequencer.links.reconcile(&published(Role::Leader, 3)) {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let addr = listener.local_addr().expect("an address");
            let stream = TcpStream::connect(addr).await.expect("a connection");
            ends.push(listener.accept().await.expect("a connection").0);
            let (_reader, writer) = PeerStream::Plain(stream).into_split();
            link.pipe.replace(Some(Pipe { stream: Rc::new(writer), out: Vec::new() }));
        }
        ends
    }

    /// How many questions have arrived. Over loopback, a question arrives as soon as it is sent.
    fn questions(end: &TcpStream) -> usize {
        let mut bytes = [0; 1024];
        let socket = SockRef::from(end);
        let read = (&*socket).read(&mut bytes).unwrap_or(0);
        read / (HEADER_LEN + Confirm::LEN)
    }

    /// The voter answers all questions so far with a yes.
    fn say_yes(sequencer: &Sequencer, voter: u64) {
        let newest = sequencer.state.borrow().newest().expect("a round in flight").confirm;
        let reply = ConfirmReply {
            leader: NodeId(1),
            store: StoreId(voter.into()),
            boot: newest.boot,
            worker: newest.worker,
            term: newest.term,
            round: newest.round,
            promise: newest.term,
        };
        let from = PeerBoot { node: NodeId(voter), boot: BootId(7), began: StorePosition(0) };
        let now_ns = sequencer.shared.clock.monotonic_ns();
        let is_own = sequencer.links.is_own(&sequencer.shared.core, from, reply, now_ns);
        assert_eq!(is_own, Ok(true));
        sequencer.handle_reply(NodeId(voter), &reply);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_silent_voter_is_replaced_when_its_answer_is_late_and_when_a_link_ends() {
        for is_link_ended in [false, true] {
            let sequencer = sequencer(WorkerId(0));
            publish(&sequencer, published(Role::Leader, 3));
            let ends = connected(&sequencer).await;
            let arrived = || [questions(&ends[0]), questions(&ends[1])];
            let widened = || sequencer.metrics().rounds_widened.load();
            let _first = sequencer.join(1, Guarantee::Quorum, false, u64::from).expect("a place");
            sequencer.turn();
            assert_eq!(arrived(), [1, 1], "the first round asks all");
            assert!(!sequencer.begun.is_set() && !sequencer.ask_rest_if_late());
            // The second answer belongs to a round that has ended, and still shows a round trip.
            let _second = sequencer.join(1, Guarantee::Quorum, false, u64::from).expect("a place");
            say_yes(&sequencer, 3);
            sequencer.turn();
            assert_eq!(arrived(), [0, 1], "only this voter has answered so far");
            assert!(sequencer.begun.is_set(), "late answers are looked for");
            if is_link_ended {
                sequencer.ask_rest();
            } else {
                while sequencer.ask_rest_if_late() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
            assert_eq!((arrived(), widened()), ([1, 0], 1));
            sequencer.ask_rest();
            assert_eq!((arrived(), widened()), ([0, 0], 1), "all were asked");
            say_yes(&sequencer, 2);
            assert!(sequencer.state.borrow().newest().is_none());
        }
    }

    /// The only voter confirms its own rounds.
    #[test]
    fn a_worker_is_active_while_requests_wait_and_measures_each_part_of_the_wait() {
        let sequencer = sequencer(WorkerId(0));
        publish(&sequencer, published(Role::Leader, 1));
        sequencer.handle_tick();
        let now_ns = || sequencer.shared.clock.monotonic_ns();
        let join = || {
            sequencer.alarm.clear();
            let ticket = sequencer.join(1, Guarantee::Quorum, false, u64::from).expect("a place");
            (ticket, sequencer.alarm.is_set())
        };
        let start_ns = now_ns();
        for round in 1..=ROUNDS {
            assert!(!sequencer.is_active());
            let before_ns = now_ns();
            let (first, wakes_timer) = join();
            assert!(wakes_timer && sequencer.is_active(), "ticks become frequent");
            assert!((before_ns..=now_ns()).contains(&sequencer.recent_ns()));
            let (second, wakes_timer) = join();
            assert!(!wakes_timer && sequencer.is_active(), "they are frequent already");
            sequencer.turn();
            let mut context = Context::from_waker(Waker::noop());
            for ticket in [first, second] {
                assert!(pin!(ticket).poll(&mut context).is_ready());
            }
            sequencer.handle_tick();
            assert_eq!(sequencer.metrics().timestamps.load(), 2 * u64::from(round));
        }
        // No part of the waits was longer than the test, and no clock needs a nanosecond or less.
        let spent_ns = (now_ns() - start_ns) as f64;
        let sum = Sum::new([&sequencer.metrics().allocate_ns].into_iter(), 1.0);
        assert_eq!(sum.count, 2 * u64::from(ROUNDS));
        assert!(sum.sum > sum.count as f64 && sum.sum < 2.0 * spent_ns, "{sum:?} of {spent_ns}");
    }
}
