//! The workers of simulated nodes: simulated clients, links and tasks around the state machines
//! that production drives, [`Sequencer`](epicepoch_core::sequencer::Sequencer) and [`Answers`].
//! Each step is an event, so that anything may come between two steps. The planted bugs in workers
//! and in voters' answers are here.

use std::collections::VecDeque;

use epicepoch_core::allocator::{AllocateError, Now};
use epicepoch_core::clock::trusted_ns;
use epicepoch_core::confirm::{Answers, Begun, Confirmed};
use epicepoch_core::promise::Promise;
use epicepoch_core::publication::{Identity, Published};
use epicepoch_core::sequencer::LATEST;
use epicepoch_wire::confirm::{Confirm, ConfirmReply};
use epicepoch_wire::{BootId, Guarantee, NodeId, ProvedBy, Term, WorkerId};

use crate::event::{Answer, Asker, Event, Request};
use crate::history::{Given, Trusted};
use crate::node::{Caller, Worker};
use crate::parameters::{FORWARDERS_FROM, MS, WORKERS};
use crate::plant::Plant;
use crate::world::World;

/// Time between two checks of deadlines, nanoseconds.
const WORKER_TICK_NS: u64 = 25 * MS;
/// Least time between a request and the turn that takes it, so that others can join, nanoseconds.
const TURN_NS: u64 = 20_000;
/// This many of a thousand turns wait behind other work of the worker, for at most `BUSY_NS_MAX`
/// nanoseconds. Meanwhile the worker still reads and answers confirm frames.
const BUSY: u32 = 30;
const BUSY_NS_MAX: u64 = 50 * MS;
/// For a planted bug: how long after a round leadership counts as proved, nanoseconds.
const RECENT_NS: u64 = 500 * MS;

impl World {
    pub(crate) fn worker(&mut self, id: NodeId, worker: usize) -> &mut Worker {
        &mut self.node(id).running_mut().workers[worker]
    }

    pub(crate) fn arrive(&mut self, id: NodeId, worker: usize, asker: Asker, count: u64) {
        let (floor, shown) = (self.history.floor(), self.history.shown());
        let above = self.history.above();
        let arrived_ns = self.now_ns;
        let is_of_forwarder = asker.client >= FORWARDERS_FROM;
        let guarantee = if is_of_forwarder { Guarantee::Quorum } else { self.draw_guarantee() };
        let request = Request { asker, worker, count, guarantee, floor, shown, above, arrived_ns };
        self.summary.requests += 1;
        let identity = self.at(id).running().identity;
        self.history.arrived(identity, asker, self.now_ns);
        if !self.enter(id, request) {
            let answer = self.refusal(id);
            self.next_step(id, Event::Answer { request, answer });
        }
    }

    /// A request joins its worker's open batch. Returns `false` if the worker has no room for it.
    fn enter(&mut self, id: NodeId, request: Request) -> bool {
        let now_ns = self.monotonic_ns(id);
        let own = self.worker(id, request.worker);
        let Ok(slot) = own.sequencer.join(1, request.count, request.guarantee, || now_ns) else {
            return self.send_on(id, request);
        };
        *own.sequencer.outcome(slot).expect_err("it has just joined") = Some(slot);
        own.tickets.insert(slot, request);
        match request.guarantee {
            Guarantee::Quorum => {
                self.monitor.joins(id, request.worker, slot, request.count == LATEST);
            }
            Guarantee::Lease => {
                own.for_lease.insert(slot);
            }
        }
        let own = self.worker(id, request.worker);
        let is_turn_lost = !own.sequencer.is_turn_due();
        if is_turn_lost && self.is_planted(Plant::LostTurn) {
            for worker in &mut self.node(id).running_mut().workers {
                worker.is_turn_due = true;
            }
        }
        self.want_turn(id, request.worker);
        true
    }

    /// The client of a request has disconnected, so the request leaves its batch.
    pub(crate) fn leave(&mut self, id: NodeId, worker: usize, asker: Asker) {
        let own = self.worker(id, worker);
        let slot = own.tickets.iter().find(|(_, request)| request.asker == asker);
        if let Some(slot) = slot.map(|(slot, _)| *slot) {
            own.tickets.remove(&slot);
            own.sequencer.leave(slot);
            self.forget_slot(id, worker, slot);
        } else if !self.leave_forwarder(id, worker, asker) {
            return;
        }
        let identity = self.at(id).running().identity;
        self.history.left(identity, asker);
        self.count("client gone");
    }

    /// The consensus plane has published, and tells its workers. Each worker reads the publication
    /// a little later.
    pub(crate) fn notify_workers(&mut self, id: NodeId) {
        for worker in 0..WORKERS {
            let after_ns = self.random.u64(0..=self.conditions.step_ns);
            let late_ns = self.worker(id, worker).follows_at_ns.saturating_sub(self.now_ns);
            self.schedule_own(id, after_ns.max(late_ns), Event::Follow { worker });
        }
    }

    pub(crate) fn follow(&mut self, id: NodeId, worker: usize) {
        let (now_ns, mut woken) = (self.monotonic_ns(id), vec![]);
        let running = self.node(id).running_mut();
        let published = running.seen.published();
        let own = &mut running.workers[worker];
        own.sequencer.handle_publication(now_ns, &published, |slot| woken.push(slot));
        let is_other = std::mem::replace(&mut own.voters, published.voters.clone());
        if is_other != published.voters {
            self.ask_rest(id, worker);
        }
        self.wake(id, worker, &woken);
        self.fail_rounds(id, worker);
        self.want_turn(id, worker);
        if self.forwards {
            self.follow_forwarder(id, worker);
        }
    }

    fn want_turn(&mut self, id: NodeId, worker: usize) {
        let own = self.worker(id, worker);
        if own.sequencer.is_turn_due() && !own.is_turn_due {
            own.is_turn_due = true;
            let is_busy = self.conditions.step_ns > 0 && self.chance(BUSY);
            let most_ns = if is_busy { BUSY_NS_MAX } else { self.conditions.step_ns };
            let after_ns = TURN_NS + self.random.u64(0..=most_ns);
            self.schedule_own(id, after_ns, Event::Turn { worker });
        }
    }

    pub(crate) fn turn(&mut self, id: NodeId, worker: usize) {
        let (now_ns, true_ns, mut woken) = (self.monotonic_ns(id), self.now_ns, vec![]);
        let clock_ns = self.worker_lease_ns(id);
        let running = self.node(id).running_mut();
        let own = &mut running.workers[worker];
        own.is_turn_due = false;
        let wake = |slot| woken.push(slot);
        let begun = own.sequencer.handle_turn(now_ns, &running.seen, || clock_ns, wake);
        let is_proved = own.sequencer.has_proved();
        running.lease_asked_ns = running.lease_asked_ns.max(own.sequencer.lease_asked_ns());
        let taken = std::mem::take(&mut own.for_lease);
        if is_proved {
            own.confirmed_at_ns = true_ns;
            own.by_lease.extend(taken);
        } else {
            // These requests wait for a round like all others.
            for slot in taken {
                let request = self.worker(id, worker).tickets[&slot];
                self.monitor.joins(id, worker, slot, request.count == LATEST);
            }
        }
        self.wake(id, worker, &woken);
        if begun.is_some() {
            self.begun(id, worker, begun);
        } else if is_proved {
            self.take_confirmed(id, worker);
        }
    }

    /// A request has left its slot.
    fn forget_slot(&mut self, id: NodeId, worker: usize, slot: usize) {
        let own = self.worker(id, worker);
        let is_unknown = own.for_lease.remove(&slot) || own.by_lease.remove(&slot);
        if !is_unknown {
            self.monitor.leaves(id, worker, slot);
        }
    }

    fn begun(&mut self, id: NodeId, worker: usize, begun: Option<Begun>) {
        let Some(Begun { confirm, published }) = begun else { return };
        self.summary.rounds += 1;
        let running = self.node(id).running_mut();
        let (identity, promise) = (running.identity, running.seen.promise.load());
        let fresh = running.seen.published();
        self.history.round_began(identity, &confirm, &fresh, promise);
        self.monitor.begins(id, &confirm, &published, &fresh);
        self.next_step(id, Event::Ask { confirm, published: published.clone() });
        if matches!(self.plant(), Some(Plant::Unconfirmed | Plant::RecentRound)) {
            self.forge(id, &confirm, &published);
        }
        self.take_confirmed(id, worker);
    }

    /// For planted bugs: a worker counts the yes of every voter without asking.
    pub(crate) fn forge(&mut self, id: NodeId, confirm: &Confirm, published: &Published) {
        let now_ns = self.monotonic_ns(id);
        let is_recent_enough = self.is_planted(Plant::RecentRound);
        let running = self.node(id).running_mut();
        let completed_ns = running.completed_ns;
        let since_ns = now_ns.saturating_sub(completed_ns);
        if is_recent_enough && (completed_ns == 0 || since_ns >= RECENT_NS) {
            return;
        }
        let Confirm { boot, worker, term, round, .. } = *confirm;
        let worker_at = worker.0 as usize;
        for (voter, store) in published.voters.iter() {
            let reply =
                ConfirmReply { leader: id, store, boot, worker, term, round, promise: term };
            running.workers[worker_at].sequencer.handle_reply(voter, &reply);
        }
        self.take_confirmed(id, worker_at);
        // A forged round must not count as the recent round that proves leadership for later
        // requests.
        self.node(id).running_mut().completed_ns = completed_ns;
    }

    /// A confirm frame arrives over a link. The caller is a worker of one boot of a peer. A new
    /// boot opens a new link. Worker N serves the links of workers N.
    pub(crate) fn asked(&mut self, to: NodeId, from: NodeId, worker: usize, confirm: Confirm) {
        let cluster = self.genesis.cluster;
        let running = self.node(to).running_mut();
        let me = running.identity;
        let callers = &mut running.workers[worker].callers;
        let key = (from, confirm.boot);
        if !callers.contains_key(&key) {
            callers.retain(|(node, _), caller| *node != from || caller.is_busy);
        }
        let opened = || {
            let caller = Identity { node: from, store: confirm.store, boot: confirm.boot };
            let answers = Answers::new(caller, cluster, me);
            let (unread, unwritten) = (VecDeque::new(), vec![]);
            Caller { answers, unread, unwritten, is_busy: false }
        };
        let caller = callers.entry(key).or_insert_with(opened);
        caller.unread.push_back(confirm);
        if !std::mem::replace(&mut caller.is_busy, true) {
            self.next_step(to, Event::Load { worker, from, boot: confirm.boot });
        }
    }

    /// Reads the next frame of a caller and makes the answer. If another frame has come, that frame
    /// is read next, as in the server. Otherwise the answers are written.
    pub(crate) fn load(&mut self, to: NodeId, worker: usize, from: (NodeId, BootId)) {
        let plant = self.plant();
        let running = self.node(to).running_mut();
        let fresh = &running.seen.promise;
        let (early, at_start) = running.stale;
        let other = match plant {
            Some(Plant::PromiseBeforeFrame) => Some(early),
            Some(Plant::RestartPromise) if fresh.load() == at_start => Some(Term(0)),
            _ => None,
        };
        let other = other.map(Promise::new);
        let promise = other.as_ref().unwrap_or(fresh);
        let (voter, promised) = (running.identity, fresh.load());
        let Some(caller) = running.workers[worker].callers.get_mut(&from) else { return };
        let confirm = caller.unread.pop_front().expect("a frame is read once it has come");
        let reply = caller.answers.handle_confirm(&confirm, promise);
        let reply = reply.expect("a link carries the frames of its caller");
        caller.unwritten.push(reply);
        let reads_on = !caller.unread.is_empty() && caller.answers.has_room();
        self.history.said(voter, &confirm, promised);
        self.monitor.answers(voter, from.0, &confirm, &reply);
        self.summary.count_reply(reply.is_yes());
        if reads_on {
            self.read_on(to, worker, from);
        } else {
            self.next_step(to, Event::Send { worker, to: from.0, boot: from.1 });
        }
    }

    /// Schedules the event that reads the next frame of a caller. Each waiting frame is read in an
    /// event of its own.
    fn read_on(&mut self, id: NodeId, worker: usize, (from, boot): (NodeId, BootId)) {
        let after_ns = self.random.u64(0..=self.conditions.step_ns);
        self.schedule_own(id, after_ns, Event::Load { worker, from, boot });
    }

    /// Writes the answers to a caller, and reads on if more frames have come.
    pub(crate) fn send_answers(&mut self, id: NodeId, worker: usize, to: (NodeId, BootId)) {
        let callers = &mut self.node(id).running_mut().workers[worker].callers;
        let Some(caller) = callers.get_mut(&to) else { return };
        let replies = std::mem::take(&mut caller.unwritten);
        caller.answers.handle_written();
        caller.is_busy = !caller.unread.is_empty();
        let is_busy = caller.is_busy;
        let hello = self.at(id).hello();
        for reply in &replies {
            self.send(id, to.0, &Event::Reply { from: id, hello, link: worker, reply: *reply });
        }
        if is_busy {
            self.read_on(id, worker, to);
        }
    }

    /// A worker has counted an answer for its rounds.
    pub(crate) fn counted(&mut self, id: NodeId, worker: usize, reply: &ConfirmReply) {
        if reply.is_yes() {
            self.take_confirmed(id, worker);
        } else {
            self.fail_rounds(id, worker);
            self.ask_rest(id, worker);
        }
    }

    fn take_confirmed(&mut self, id: NodeId, worker: usize) {
        let (now_ns, stall_ns) = (self.monotonic_ns(id), self.draw_stall(id, worker));
        let (is_forged, true_ns) = (self.plant().is_some_and(Plant::is_unproved), self.now_ns);
        let running = self.nodes[id.0 as usize - 1].running_mut();
        let identity = running.identity;
        let own = &mut running.workers[worker];
        let mut steps = 0_usize;
        while let Some(confirmed) = own.sequencer.poll_confirmed() {
            if confirmed.proved_by() == ProvedBy::Lease {
                self.summary.leases += 1;
                self.history.proved_by_lease(identity, confirmed.term());
                own.confirmed.push_back(confirmed);
                steps += usize::from(stall_ns.is_none());
                continue;
            }
            running.completed_ns = now_ns;
            let (worker, round) = (WorkerId(worker as u32), confirmed.size().round);
            self.monitor.confirms(id, worker.0 as usize, round);
            if is_forged {
                self.history.round_failed(identity, worker, round);
            } else {
                self.history.round_confirmed(identity, worker, round);
            }
            own.confirmed.push_back(confirmed);
            own.confirmed_at_ns = true_ns;
            steps += 1;
        }
        for _ in 0..steps {
            self.next_step(id, Event::Allocate { worker });
        }
        if let Some(stall_ns) = stall_ns {
            let after_ns = stall_ns + self.random.u64(0..=self.conditions.step_ns);
            self.schedule_own(id, after_ns, Event::Allocate { worker });
        }
        self.want_turn(id, worker);
    }

    pub(crate) fn allocate(&mut self, id: NodeId, worker: usize) {
        let monotonic_ns = self.monotonic_ns(id);
        let running = self.node(id).running_mut();
        let identity = running.identity;
        let trusted_ns = trusted_ns(monotonic_ns, running.trusted_offset_ns);
        let own = &mut running.workers[worker];
        let Some(confirmed) = own.confirmed.pop_front() else { return };
        let (round, proved_by) = (confirmed.size().round, confirmed.proved_by());
        let (mut woken, mut term, mut ranges) = (vec![], None, vec![]);
        let (mut is_divided, mut latest) = (false, None);
        let is_taken = confirmed.size().total > 0;
        let allocate = |key: Confirmed| {
            let (of, is_latest) = (key.term(), key.count() == 0);
            let range = running.stamper.answer(worker, key, Now { monotonic_ns, trusted_ns });
            match &range {
                Ok(range) => {
                    term = Some(of);
                    ranges.extend((!is_latest).then_some(*range));
                    latest = is_latest.then_some(range.last());
                }
                Err(error) => is_divided |= matches!(error, AllocateError::Divide(_)),
            }
            range
        };
        // If the allocation fails, every request of the batch is refused.
        let wake = |slot| woken.push(slot);
        let _ = own.sequencer.complete(confirmed, allocate, &running.seen, wake);
        let outcomes = woken.iter().filter_map(|slot| {
            let answer = own.sequencer.outcome(*slot).ok()?.ok()?;
            Some((*slot, answer.range))
        });
        let told: Vec<_> = outcomes.collect();
        let allocated = term.map(|term| (term, &ranges[..]));
        match proved_by {
            ProvedBy::Round => self.monitor.allocates(id, worker, round, allocated, &told),
            ProvedBy::Lease => self.monitor.allocates_by_lease(id, allocated),
        }
        if is_divided {
            self.count("batch divided");
        }
        if proved_by == ProvedBy::Lease {
            self.summary.answered_by_lease += told.len() as u64;
        }
        if is_taken {
            self.trusts(trusted_ns);
            self.record(|| format!("{id} stamps {ranges:?} in term {term:?}"));
        }
        let is_proved = self.at(id).running().consensus.clock().is_proved();
        let trusted = Trusted { ns: trusted_ns, is_proved, monotonic_ns };
        if let Some(latest) = latest {
            self.history.shows(identity.boot, latest);
        }
        for range in ranges {
            let Some(term) = term else { break };
            self.history.stamped(identity, term, range, trusted);
        }
        self.wake(id, worker, &woken);
    }

    /// Wakes the tasks of these slots. Each reads its outcome in a step of its own.
    fn wake(&mut self, id: NodeId, worker: usize, woken: &[usize]) {
        for slot in woken {
            let asker = self.worker(id, worker).tickets[slot].asker;
            self.next_step(id, Event::Woken { worker, slot: *slot, asker });
        }
    }

    /// A request reads its outcome and gives its slot back, unless its client has gone.
    pub(crate) fn woken(&mut self, id: NodeId, worker: usize, slot: usize, asker: Asker) {
        let own = self.worker(id, worker);
        let Some(request) = own.tickets.get(&slot).copied() else { return };
        if request.asker != asker {
            return;
        }
        let outcome = *own.sequencer.outcome(slot).as_ref().expect("who is woken has an outcome");
        own.tickets.remove(&slot);
        own.sequencer.leave(slot);
        let is_by_lease = own.by_lease.contains(&slot);
        if let Ok(answer) = outcome
            && !is_by_lease
        {
            self.monitor.completes(id, worker, slot, answer.range);
        }
        self.forget_slot(id, worker, slot);
        match outcome {
            Ok(answer) => self.answer(id, request, Answer::Given(answer.range)),
            Err(_) if self.is_planted(Plant::UnheardRefusal) => {}
            Err(_) => {
                let refusal = self.refusal(id);
                self.answer(id, request, refusal);
                if self.is_planted(Plant::RefusedAndAnswered) {
                    self.enter(id, request);
                }
            }
        }
    }

    /// Makes a refusal. It names the leader if another node leads.
    fn refusal(&self, id: NodeId) -> Answer {
        let leader = self.at(id).running().seen.published().leader;
        Answer::Refused(leader.filter(|leader| *leader != id))
    }

    /// An answer leaves the node, unless its link to the client is cut.
    pub(crate) fn answer(&mut self, id: NodeId, request: Request, answer: Answer) {
        let who = self.at(id).running().identity;
        if request.asker.client >= FORWARDERS_FROM {
            // No client knows the answer yet.
            self.history.refused(who, request.asker);
        } else if let Answer::Given(range) = answer {
            self.summary.answered += 1;
            self.history.answered(Given { who, request, range });
        } else {
            self.summary.refused += 1;
            self.history.refused(who, request.asker);
        }
        let after_ns = self.link_ns();
        self.schedule_world(after_ns, Event::Answered { asker: request.asker, answer, by: id });
    }

    fn fail_rounds(&mut self, id: NodeId, worker: usize) {
        let now_ns = self.monotonic_ns(id);
        loop {
            let mut woken = vec![];
            let running = self.node(id).running_mut();
            let (identity, sequencer) = (running.identity, &mut running.workers[worker].sequencer);
            let wake = |slot| woken.push(slot);
            let failed = sequencer.poll_failed(now_ns, &running.seen, wake);
            let Some((round, failure)) = failed else { break };
            self.history.round_failed(identity, WorkerId(worker as u32), round);
            self.monitor.fails(id, WorkerId(worker as u32), round);
            self.summary.rounds_failed += 1;
            self.record(|| format!("{id} fails a round: {failure:?}"));
            self.wake(id, worker, &woken);
            self.want_turn(id, worker);
        }
    }

    pub(crate) fn worker_tick(&mut self, id: NodeId, worker: usize) {
        let (now_ns, mut woken) = (self.monotonic_ns(id), vec![]);
        let running = self.node(id).running_mut();
        running.stale.0 = running.seen.promise.load();
        self.fail_rounds(id, worker);
        self.check_late(id, worker);
        let running = self.node(id).running_mut();
        let sequencer = &mut running.workers[worker].sequencer;
        let begun = sequencer.handle_tick(now_ns, &running.seen, |slot| woken.push(slot));
        self.wake(id, worker, &woken);
        self.begun(id, worker, begun);
        if self.forwards {
            self.tick_forwarder(id, worker);
        }
        self.schedule_own(id, WORKER_TICK_NS, Event::WorkerTick { worker });
    }
}
