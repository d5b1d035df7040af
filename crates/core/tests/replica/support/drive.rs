//! What simulated nodes do with events: the way of a request through a worker, and of a replica's
//! outputs to disk and links. Planted bugs sit here.

use epicepoch_core::allocator::{Allocator, Now};
use epicepoch_core::confirm::{Confirmed, answer};
use epicepoch_core::promise::Promise;
use epicepoch_core::publication::{Grant, Published};
use epicepoch_core::replica::{MessageError, Report};
use epicepoch_wire::confirm::{Confirm, ConfirmReply};
use epicepoch_wire::raft_message::RaftMessage;
use epicepoch_wire::{NodeId, StoreId, Term};

use super::node::{Batch, EPOCH_INTERVAL_NS, Request, TICK_NS, WORKERS};
use super::plant::Plant;
use super::world::{Event, Plane, World};

/// A round that takes longer has failed; long enough for elections to pass meanwhile.
const ROUND_NS: u64 = 400 * super::world::MS;
/// Rounds of a worker that may overlap.
const ROUNDS_MAX: usize = 4;

impl World {
    pub(super) fn tick(&mut self, id: NodeId) {
        let trusted_ns = self.trusted_ns(id);
        let now_ns = self.now_ns;
        self.fail_rounds(id);
        let node = self.node(id);
        let successors = node.successors.clone();
        let running = node.running_mut();
        running.ticks += 1;
        if running.ticks.is_multiple_of(10) {
            running.stale.0.raise(running.shared.promise.load());
        }
        running.replica.handle_rounds(running.completed_ns);
        running.replica.handle_clock(successors);
        let result = running.replica.handle_tick(now_ns, trusted_ns);
        self.pump(id);
        if result.is_err() {
            self.fatals += 1;
            self.note(|| format!("{id} must stop: {result:?}"));
            self.crash(id);
            return;
        }
        for worker in 0..WORKERS {
            let rounds = &self.nodes[&id].running().workers[worker].rounds;
            // A round of nobody, so that an idle leader knows that it leads.
            if rounds.is_empty() {
                self.begin(id, worker);
            } else {
                self.work(id, worker);
            }
        }
        self.schedule_own(id, TICK_NS, Event::Tick);
    }

    pub(super) fn written(&mut self, id: NodeId) {
        let is_lying = self.plant == Some(Plant::LyingDisk);
        let node = self.node(id);
        if node.disk.is_stuck {
            self.schedule_own(id, TICK_NS, Event::Written);
        } else if let Some(number) = node.disk.finish_one()
            && !is_lying
        {
            self.with(id, |replica, now_ns| replica.handle_persisted(now_ns, number));
        }
    }

    pub(super) fn receive(&mut self, to: NodeId, from: NodeId, store: StoreId, bytes: &[u8]) {
        if self.cuts.contains(&(from, to, Plane::Raft)) {
            return;
        }
        let message = RaftMessage::decode(bytes).expect("what a replica sends has an encoding");
        let taken =
            self.with(to, |replica, now| replica.handle_message(now, from, store, &message));
        let Err(error) = taken else { return };
        self.note(|| format!("{to} refuses {message:?} of {from}: {error}"));
        self.refusals.push((to, error));
        match error {
            MessageError::LostEntries { .. } if self.plant != Some(Plant::WipedDisk) => {
                self.history.violation(format!("LOST: node {to} of {from}: {error}"));
                self.crash(to);
            }
            // No correct peer sends what is impossible.
            MessageError::Impossible if self.plant.is_none() => {
                self.history.violation(format!("IMPOSSIBLE: {from} sent {message:?} to {to}"));
            }
            _ => {}
        }
    }

    pub(super) fn work(&mut self, id: NodeId, worker: usize) {
        let worker_of = &self.nodes[&id].running().workers[worker];
        if !worker_of.open.is_empty() && worker_of.rounds.len() < ROUNDS_MAX {
            self.begin(id, worker);
        }
    }

    pub(super) fn begin(&mut self, id: NodeId, worker: usize) {
        let deadline_ns = self.now_ns + ROUND_NS;
        let running = self.node(id).running_mut();
        let own = &mut running.workers[worker];
        let open = &mut own.open;
        let batch = Batch::new(std::mem::take(open).into());
        own.newest = Some(batch.clone());
        let close = || batch;
        match own.rounds.begin(close, &running.seen, deadline_ns) {
            Err((batch, _)) => self.refuse(&batch),
            Ok(begun) => {
                for (voter, _) in begun.published.voters.iter() {
                    if voter != id {
                        self.send(voter, &Event::Confirm { from: id, confirm: begun.confirm });
                    }
                }
                self.take_confirmed(id, worker);
            }
        }
    }

    pub(super) fn refuse(&mut self, batch: &Batch) {
        self.history.refused += batch.borrow().len() as u64;
        // A batch that has ended cannot be joined, not even by a planted bug.
        batch.borrow_mut().clear();
    }

    pub(super) fn confirm(&mut self, to: NodeId, from: NodeId, confirm: &Confirm) {
        if self.cuts.contains(&(from, to, Plane::Workers)) {
            return;
        }
        let plant = self.plant;
        let running = self.node(to).running_mut();
        let (stale, at_start) = &running.stale;
        let fresh = &running.shared.promise;
        let of_restart = Promise::new(Term(0));
        if fresh.load() > *at_start {
            of_restart.raise(fresh.load());
        }
        let promise = match plant {
            Some(Plant::LatePromise) => stale,
            Some(Plant::RestartPromise) => &of_restart,
            _ => fresh,
        };
        let reply = answer(from, confirm, running.identity, promise);
        self.send(from, &Event::Reply { from: to, reply });
    }

    pub(super) fn reply(&mut self, to: NodeId, from: NodeId, mut reply: ConfirmReply) {
        if self.cuts.contains(&(from, to, Plane::Workers)) {
            return;
        }
        let is_planted = self.plant == Some(Plant::AnyReplyCounts);
        let worker = reply.worker.0 as usize;
        let rounds = &mut self.node(to).running_mut().workers[worker].rounds;
        if is_planted
            && reply.is_yes()
            && let Some(newest) = rounds.newest()
        {
            let Confirm { boot, term, round, .. } = newest.confirm;
            reply = ConfirmReply { boot, term, round, promise: term, ..reply };
        }
        rounds.handle_reply(from, &reply);
        self.take_confirmed(to, worker);
    }

    pub(super) fn take_confirmed(&mut self, id: NodeId, worker: usize) {
        let now_ns = self.now_ns;
        let running = self.node(id).running_mut();
        let own = &mut running.workers[worker];
        let mut waits = 0;
        while let Some(confirmed) = own.rounds.poll_confirmed() {
            running.completed_ns = now_ns;
            own.confirmed.push_back(confirmed);
            waits += 1;
        }
        for _ in 0..waits {
            let dither_ns = self.weather.dither_ns;
            if dither_ns == 0 {
                self.allocate_next(id, worker);
            } else {
                let after_ns = self.random.u64(0..=dither_ns);
                self.schedule_own(id, after_ns, Event::Allocate { worker });
            }
        }
    }

    pub(super) fn allocate_next(&mut self, id: NodeId, worker: usize) {
        let own = &mut self.node(id).running_mut().workers[worker];
        let Some((batch, key)) = own.confirmed.pop_front() else { return };
        let requests = std::mem::take(&mut *batch.borrow_mut());
        self.allocate(id, &requests, &key);
        self.work(id, worker);
    }

    pub(super) fn allocate(&mut self, id: NodeId, requests: &[Request], key: &Confirmed) {
        if requests.is_empty() {
            return;
        }
        let now = Now { monotonic_ns: self.now_ns, trusted_ns: self.trusted_ns(id) };
        let count = requests.iter().map(|request| request.count).sum();
        let floor = requests.iter().filter_map(|request| request.floor).max();
        let allocated = self.nodes[&id].running().allocator.allocate(key, count, now);
        self.note(|| format!("{id} {allocated:?} in {}", key.term()));
        match allocated {
            Err(_) => self.history.refused += requests.len() as u64,
            Ok(range) => {
                self.history.answered += requests.len() as u64;
                self.history.complete(id, range, floor);
            }
        }
    }

    pub(super) fn fail_rounds(&mut self, id: NodeId) {
        let now_ns = self.now_ns;
        for worker in 0..WORKERS {
            let running = self.node(id).running_mut();
            let seen = running.seen.clone();
            while let Some((batch, _)) =
                self.node(id).running_mut().workers[worker].rounds.poll_failed(now_ns, &seen)
            {
                self.refuse(&batch);
            }
        }
    }

    /// Does what a replica wants done, and shows everything to the history.
    pub(super) fn pump(&mut self, id: NodeId) {
        let is_lying = self.plant == Some(Plant::LyingDisk);
        while let Some(write) = self.node(id).running_mut().replica.poll_write() {
            let number = write.number;
            self.note(|| format!("{id} writes {write:?}"));
            let node = self.node(id);
            node.disk.submit(write);
            let write_ns = node.disk.write_ns;
            self.schedule_own(id, write_ns, Event::Written);
            if is_lying {
                let now_ns = self.now_ns;
                self.node(id).running_mut().replica.handle_persisted(now_ns, number);
            }
        }
        if self.node(id).running_mut().replica.take_published() {
            let published = self.published(id);
            self.history.published(&published);
        }
        match self.plant {
            Some(Plant::KeptRange) => self.keep_range(id),
            Some(Plant::OldVoters) => self.keep_voters(id),
            _ => {}
        }
        while let Some(out) = self.node(id).running_mut().replica.poll_message() {
            let node = &self.nodes[&id];
            let promise = node.running().shared.promise.load();
            let (store, identity) = (node.store, node.running().identity);
            if !is_lying {
                self.history.released(identity, &out, promise, node.disk.durable());
            }
            let mut bytes = vec![];
            out.message.encode(&mut bytes);
            self.send(out.to, &Event::Raft { from: id, store, bytes });
        }
        while let Some(report) = self.node(id).running_mut().replica.poll_report() {
            self.note(|| format!("{id} reports {report:?}"));
            self.node(id).reports.push(report);
        }
        let running = self.node(id).running_mut();
        let applied = running.replica.applied();
        if applied != running.applied {
            assert!(applied > running.applied, "the applied index goes back");
            running.applied = applied;
            let state = running.replica.state().encode();
            self.history.applied(id, applied, state);
        }
    }

    /// The planted bug that stamps on in the range of an earlier term, in an allocator that knows
    /// nothing of it.
    pub(super) fn keep_range(&mut self, id: NodeId) {
        let running = self.node(id).running_mut();
        let (fresh, kept) = (running.shared.published(), running.seen.published());
        running.seen.promise.raise(running.shared.promise.load());
        let held = kept.grant.map(|grant| Grant { term: fresh.term, ..grant });
        let grant = held.or(fresh.grant);
        if kept.grant.map(|grant| grant.term) != grant.map(|grant| grant.term) {
            running.allocator = Allocator::new(running.seen.clone(), EPOCH_INTERVAL_NS);
        }
        running.seen.publish(Published { grant, ..(*fresh).clone() }.into());
    }

    /// The planted bug that asks those who voted when the node started.
    fn keep_voters(&mut self, id: NodeId) {
        let running = self.node(id).running_mut();
        let (fresh, kept) = (running.shared.published(), running.seen.published());
        running.seen.promise.raise(running.shared.promise.load());
        let voters =
            if kept.voters.is_empty() { fresh.voters.clone() } else { kept.voters.clone() };
        running.seen.publish(Published { voters, ..(*fresh).clone() }.into());
    }

    /// Whether a node has reported something that `holds`.
    pub(crate) fn has_reported(&self, id: NodeId, holds: impl Fn(&Report) -> bool) -> bool {
        self.nodes[&id].reports.iter().any(holds)
    }

    /// Asks every worker of a node in turn, for the ticks to come, once per tick.
    pub(crate) fn load(&mut self, id: NodeId, ticks: u64) {
        for tick in 0..ticks {
            self.ask(id, tick as usize % WORKERS, 1 + tick % 3);
            self.run(TICK_NS);
        }
    }
}
