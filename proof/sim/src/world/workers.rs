//! The workers of simulated nodes: the work of the server's threads with requests, rounds and
//! answers. Each step is an event, so that anything may come between two steps. The planted bugs of
//! the request path are here.

use std::sync::Arc;

use epicepoch_core::allocator::Now;
use epicepoch_core::clock::trusted_ns;
use epicepoch_core::confirm::{Confirmed, answer};
use epicepoch_core::promise::Promise;
use epicepoch_core::publication::{Published, Role};
use epicepoch_wire::confirm::{Confirm, ConfirmReply};
use epicepoch_wire::{NodeId, Term, TimestampRange, WorkerId};

use crate::event::{Answer, Asker, Event, Request};
use crate::history::{Given, Trusted};
use crate::node::Asked;
use crate::parameters::MS;
use crate::plant::{Plant, forged};
use crate::world::World;

/// Most rounds of a worker that may overlap, as in production.
const ROUNDS_MAX: usize = 4;
/// Time between two checks of deadlines, nanoseconds.
const WORKER_TICK_NS: u64 = 25 * MS;
/// How long a leader may be idle before it probes, nanoseconds, as in production.
const PROBE_NS: u64 = 100 * MS;
/// Time between a request and the turn that takes it, so that others can join, nanoseconds.
const TURN_NS: u64 = 20_000;
/// For a planted bug: how long an old round is trusted, nanoseconds.
const RECENT_NS: u64 = 500 * MS;

impl World {
    pub(crate) fn arrive(&mut self, id: NodeId, worker: usize, asker: Asker, count: u64) {
        let (floor, above) = (self.history.floor(), self.history.above());
        let request = Request { asker, worker, count, floor, above, arrived_ns: self.now_ns };
        self.summary.requests += 1;
        let identity = self.at(id).running().identity;
        self.history.arrived(identity, asker, self.now_ns);
        let plant = self.plant();
        let now_ns = self.monotonic_ns(id);
        let running = self.node(id).running_mut();
        let published = running.seen.published();
        if published.role != Role::Leader && published.grant.is_none() {
            self.refuse(id, &[request], &published);
            return;
        }
        let own = &mut running.workers[worker];
        if plant == Some(Plant::LateJoin)
            && let Some(batch) = &own.newest
            && !batch.requests.borrow().is_empty()
        {
            batch.requests.borrow_mut().push(request);
            return;
        }
        let is_recent = now_ns.saturating_sub(running.completed_ns) < RECENT_NS;
        let is_unproved = plant == Some(Plant::Unconfirmed)
            || plant == Some(Plant::CheckedAtArrival)
            || plant == Some(Plant::RecentRound) && is_recent && running.completed_ns > 0;
        if let Some(grant) = published.grant.filter(|_| is_unproved) {
            let key = forged(running.identity, grant, count);
            if plant == Some(Plant::CheckedAtArrival) {
                let batch = Asked::new(vec![request]);
                own.confirmed.push_back((batch, key));
                self.next_step(id, Event::Allocate { worker });
            } else if let Some(key) = key {
                self.stamp(id, worker, &[request], key);
            }
            return;
        }
        own.open.push(request);
        self.want_turn(id, worker);
    }

    fn want_turn(&mut self, id: NodeId, worker: usize) {
        let own = &mut self.node(id).running_mut().workers[worker];
        if !own.open.is_empty() && !own.is_turn_due && own.rounds.len() < ROUNDS_MAX {
            own.is_turn_due = true;
            self.schedule_own(id, TURN_NS, Event::Turn { worker });
        }
    }

    pub(crate) fn turn(&mut self, id: NodeId, worker: usize) {
        let own = &mut self.node(id).running_mut().workers[worker];
        own.is_turn_due = false;
        if !own.open.is_empty() && own.rounds.len() < ROUNDS_MAX {
            self.begin(id, worker);
        }
    }

    fn begin(&mut self, id: NodeId, worker: usize) {
        let deadline_ns = self.monotonic_ns(id) + self.conditions.round_ns;
        let is_joined_late = self.is_planted(Plant::LateJoin);
        let is_turn_lost = self.is_planted(Plant::LostTurn);
        let running = self.node(id).running_mut();
        let identity = running.identity;
        let own = &mut running.workers[worker];
        let closed = Asked::new(std::mem::take(&mut own.open));
        own.newest = is_joined_late.then(|| closed.clone());
        let now = (running.seen.published(), running.seen.promise.load());
        let close = || (closed.clone(), closed.count());
        match own.rounds.begin(close, &running.seen, deadline_ns) {
            Ok(begun) => {
                self.summary.rounds += 1;
                let (confirm, published) = (begun.confirm, begun.published);
                closed.round.set(Some(confirm.round));
                self.history.round_began(identity, &confirm, &now.0, now.1);
                self.next_step(id, Event::Ask { confirm, published });
                self.take_confirmed(id, worker);
            }
            // The leader has no range yet. The next publication or the next tick tries again.
            Err((batch, published)) if published.role == Role::Leader => {
                own.open = batch.requests.take();
                running.workers.iter_mut().for_each(|worker| worker.is_turn_due |= is_turn_lost);
            }
            Err((batch, published)) => self.refuse(id, &batch.requests.take(), &published),
        }
    }

    pub(crate) fn ask(&mut self, id: NodeId, confirm: Confirm, published: &Arc<Published>) {
        for (voter, _) in published.voters.iter() {
            if voter != id {
                self.send(id, voter, &Event::Confirm { from: id, confirm });
            }
        }
    }

    pub(crate) fn load(&mut self, to: NodeId, from: NodeId, confirm: &Confirm) {
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
        let reply = answer(from, confirm, running.identity, promise);
        let (voter, promised) = (running.identity, running.seen.promise.load());
        self.history.said(voter, confirm, promised);
        self.summary.count_reply(reply.is_yes());
        self.next_step(to, Event::Send { to: from, reply });
    }

    pub(crate) fn reply(&mut self, to: NodeId, from: NodeId, reply: ConfirmReply) {
        let worker = reply.worker.0 as usize;
        let rounds = &mut self.node(to).running_mut().workers[worker].rounds;
        rounds.handle_reply(from, &reply);
        self.take_confirmed(to, worker);
        self.fail_rounds(to, worker);
    }

    fn take_confirmed(&mut self, id: NodeId, worker: usize) {
        let now_ns = self.monotonic_ns(id);
        let running = self.nodes[id.0 as usize - 1].running_mut();
        let identity = running.identity;
        let own = &mut running.workers[worker];
        let mut steps = 0;
        while let Some(confirmed) = own.rounds.poll_confirmed() {
            running.completed_ns = now_ns;
            let round = confirmed.0.round.get();
            self.history.round_confirmed(identity, WorkerId(worker as u32), round);
            own.confirmed.push_back(confirmed);
            steps += 1;
        }
        for _ in 0..steps {
            self.next_step(id, Event::Allocate { worker });
        }
        self.want_turn(id, worker);
    }

    pub(crate) fn allocate(&mut self, id: NodeId, worker: usize) {
        let is_joined = self.is_planted(Plant::JoinAtCompletion);
        let is_late = self.is_planted(Plant::LateJoin);
        let running = self.node(id).running_mut();
        let own = &mut running.workers[worker];
        let Some((batch, mut key)) = own.confirmed.pop_front() else { return };
        let mut requests = batch.requests.take();
        if is_joined {
            requests.append(&mut own.open);
        }
        // A key is valid only for its own batch. These bugs need a key for more requests.
        if (is_joined || is_late)
            && let Some(grant) = running.seen.published().grant
        {
            let count = requests.iter().map(|request| request.count).sum();
            key = forged(running.identity, grant, count);
        }
        if let Some(key) = key {
            self.stamp(id, worker, &requests, key);
        }
    }

    fn stamp(&mut self, id: NodeId, worker: usize, requests: &[Request], key: Confirmed) {
        let monotonic_ns = self.monotonic_ns(id);
        let running = self.node(id).running_mut();
        let trusted_ns = trusted_ns(monotonic_ns, running.trusted_offset_ns);
        let now = Now { monotonic_ns, trusted_ns };
        let (identity, published) = (running.identity, running.seen.published());
        let term = key.term();
        let allocated = running.stamper.allocate(worker, key, now);
        self.trusts(trusted_ns);
        self.note(|| format!("{id} stamps {allocated:?} in term {term}"));
        let Ok(range) = allocated else {
            self.refuse(id, requests, &published);
            return;
        };
        let is_proved = self.at(id).running().consensus.clock().is_proved();
        let trusted = Trusted { ns: trusted_ns, is_proved, monotonic_ns };
        self.history.stamped(identity, term, range, trusted);
        let mut rest = Some(range);
        for request in requests {
            let split = rest.and_then(|rest| rest.split_first(request.count));
            let (own, after) = split.expect("the range is as long as the batch asked for");
            rest = after;
            let is_shared = self.is_planted(Plant::SplitOffByOne) && rest.is_some();
            rest = if is_shared { TimestampRange::new(own.last(), range.count()) } else { rest };
            self.next_step(id, Event::Answer { request: *request, answer: Answer::Given(own) });
        }
    }

    fn refuse(&mut self, id: NodeId, requests: &[Request], published: &Published) {
        for request in requests {
            let answer = Answer::Refused(published.leader.filter(|leader| *leader != id));
            self.next_step(id, Event::Answer { request: *request, answer });
        }
    }

    /// An answer leaves the node, unless its link to the client is cut.
    pub(crate) fn answer(&mut self, id: NodeId, request: Request, answer: Answer) {
        let who = self.at(id).running().identity;
        if let Answer::Given(range) = answer {
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
            let running = self.node(id).running_mut();
            let rounds = &mut running.workers[worker].rounds;
            let Some((batch, failure)) = rounds.poll_failed(now_ns, &running.seen) else { break };
            let (identity, published) = (running.identity, running.seen.published());
            self.history.round_failed(identity, WorkerId(worker as u32), batch.round.get());
            self.summary.rounds_failed += 1;
            self.note(|| format!("{id} fails a round: {failure:?}"));
            let requests = batch.requests.take();
            if self.is_planted(Plant::UnheardRefusal) {
                continue;
            }
            self.refuse(id, &requests, &published);
            if self.is_planted(Plant::RefusedAndAnswered) {
                self.node(id).running_mut().workers[worker].open.extend(requests);
            }
        }
    }

    pub(crate) fn worker_tick(&mut self, id: NodeId, worker: usize) {
        let now_ns = self.monotonic_ns(id);
        let running = self.node(id).running_mut();
        running.stale.0 = running.seen.promise.load();
        self.fail_rounds(id, worker);
        let running = self.node(id).running_mut();
        let published = running.seen.published();
        let is_idle = now_ns.saturating_sub(running.completed_ns) >= PROBE_NS && worker == 0;
        let own = &mut running.workers[worker];
        let is_leading = published.role == Role::Leader || published.grant.is_some();
        if !is_leading && !own.open.is_empty() {
            let open = std::mem::take(&mut own.open);
            self.refuse(id, &open, &published);
        } else if is_idle && own.rounds.is_empty() && own.open.is_empty() {
            // An empty round shows an idle leader that it still leads.
            self.begin(id, worker);
        } else {
            self.want_turn(id, worker);
        }
        self.schedule_own(id, WORKER_TICK_NS, Event::WorkerTick { worker });
    }
}
