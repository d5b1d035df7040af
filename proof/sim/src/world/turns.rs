//! The turns of simulated consensus planes: what a call of the replica puts out, and when workers,
//! disk and peers get it. The planted bugs of publications are here.

use std::sync::Arc;

use epicepoch_core::node::Action;
use epicepoch_core::publication::{Grant, Published, Role};
use epicepoch_wire::NodeId;

use crate::event::Event;
use crate::node::Share;
use crate::parameters::MS;
use crate::plane::Turn;
use crate::plant::Plant;
use crate::world::World;
use crate::world::features::Feature;

/// In a run with [`Feature::Turns`], a turn of the consensus plane is open for more events after this
/// many of a thousand events, for at most `TURN_LASTS_NS_MAX` nanoseconds.
const TURN_OPENS: u32 = 200;
const TURN_LASTS_NS_MAX: u64 = 2 * MS;
/// For a planted bug: ticks between two checks of leadership.
const LOOK_TICKS: u64 = 50;

impl World {
    /// Handles a replica's outputs. In some runs it does so in steps, and workers may do anything
    /// between two steps. The next call of the replica comes after all steps. In some runs the plane
    /// is busy: further events come before it does the actions of this one. Workers see what it has
    /// published before the actions are done.
    pub(crate) fn pump(&mut self, id: NodeId) {
        let is_busy = self.has(Feature::Turns) && self.chance(TURN_OPENS);
        let running = self.node(id).running_mut();
        if is_busy && running.turn != Turn::Open {
            running.turn = Turn::Open;
            let lasts_ns = self.random.u64(0..=TURN_LASTS_NS_MAX);
            self.schedule_own(id, lasts_ns, Event::TurnEnds);
        }
        self.take_outputs(id);
    }

    /// The consensus plane does the actions of all events of its turn. A tick ends a turn, too.
    pub(crate) fn end_turn(&mut self, id: NodeId) {
        let turn = &mut self.node(id).running_mut().turn;
        if *turn == Turn::Open {
            *turn = Turn::Late;
            self.settle(id);
            self.take_outputs(id);
        }
    }

    /// Takes the outputs of the last call. In an open turn, the actions are left for its end.
    pub(super) fn take_outputs(&mut self, id: NodeId) {
        self.take_applied(id);
        let mut shares = self.take_shares(id);
        let has_seen = !shares.is_empty();
        if self.is_planted(Plant::PublishedFirst) {
            shares.sort_by_key(|share| matches!(share, Share::Raise(_)));
        }
        let release = if self.is_planted(Plant::ReleasedFirst) { 0 } else { shares.len() };
        if self.at(id).running().turn != Turn::Open {
            shares.insert(release, Share::Release);
        }
        self.node(id).running_mut().shares.extend(shares);
        if self.conditions.step_ns > 0 && has_seen {
            self.next_step(id, Event::Share);
        } else {
            self.settle(id);
        }
    }

    /// Handles a replica's outputs, and opens no turn. If this call ends the process, it may end before
    /// it does what this call and earlier ones of the same turn left to do.
    pub(super) fn take_outputs_unless_over(&mut self, id: NodeId, is_over: bool) {
        if !is_over || self.random.bool() {
            return self.take_outputs(id);
        }
        self.take_applied(id);
        for share in self.take_shares(id) {
            self.take_share(id, share);
        }
    }

    /// Takes all remaining steps of the last call of the replica.
    pub(crate) fn settle(&mut self, id: NodeId) {
        while self.share(id) {}
    }

    /// Takes the next step after a call of the replica. Returns `false` if no step was left.
    pub(crate) fn share(&mut self, id: NodeId) -> bool {
        let Some(share) = self.node(id).running_mut().shares.pop_front() else { return false };
        self.take_share(id, share);
        true
    }

    pub(super) fn take_share(&mut self, id: NodeId, share: Share) {
        // This check uses the node's own view. It is off while a bug is planted, because the bug
        // must be found by its effects.
        let looks_inside = self.plant().is_none();
        if let Share::Publish(published) = &share {
            let had_lease = self.at(id).running().seen.published().lease.is_some();
            if had_lease && published.lease.is_none() {
                self.withdraw_lease(id);
            }
        }
        let running = self.nodes[id.0 as usize - 1].running_mut();
        match share {
            Share::Raise(promise) => {
                let before = running.seen.promise.load();
                running.seen.promise.raise(promise);
                self.monitor.raises(id, promise);
                if promise > before {
                    self.record(|| format!("{id} promises term {promise}"));
                }
            }
            Share::Publish(published) => {
                if looks_inside {
                    self.history.check_published(&published, running.seen.promise.load());
                }
                running.seen.publish(published.clone());
                self.monitor.publishes(id, &published);
                self.see_published(id, &published);
                self.notify_workers(id);
                self.record(|| {
                    let Published { term, role, leader, grant, .. } = &*published;
                    format!("{id} publishes term {term}, {role:?}, leader {leader:?}, {grant:?}")
                });
            }
            Share::Release => self.release(id),
        }
    }

    /// Reports to the history which entries a replica has applied.
    pub(super) fn take_applied(&mut self, id: NodeId) {
        let running = self.nodes[id.0 as usize - 1].running_mut();
        let (identity, applied) = (running.identity, running.replica().applied());
        if applied != running.applied {
            running.applied = applied;
            let published = running.shared.published();
            self.history.applied(identity, applied, running.replica().state(), &published);
            let committed = running.replica().status().committed;
            self.monitor.applies(id, applied, committed, running.replica().state(), &published);
        }
    }

    /// Does all actions of the consensus plane.
    pub(super) fn release(&mut self, id: NodeId) {
        while let Some(action) = self.node(id).running_mut().consensus.poll_action() {
            match action {
                // The workers see the publication in another event, so nothing is published to them
                // here.
                Action::Published(_) => {
                    let is_untold = &mut self.node(id).running_mut().is_untold;
                    assert!(std::mem::take(is_untold), "{id} tells its workers of no publication");
                }
                Action::StopAllocator => self.stop_allocator(id),
                Action::Write(write) => self.write(id, write),
                Action::Send(outgoing) => self.send_message(id, &outgoing),
                Action::Report(report) => self.read_report(id, &report),
            }
        }
        assert!(!self.at(id).running().is_untold, "what {id} publishes is told to its workers");
        while self.answer_operator(id).is_some() {}
        self.node(id).running_mut().turn = Turn::Done;
        self.monitor.acted(id);
    }

    /// Takes the steps of the last call of a replica, as its workers are to see them. With a
    /// planted bug in the publication, the workers see only the last publication of a call.
    pub(super) fn take_shares(&mut self, id: NodeId) -> Vec<Share> {
        let plant = self.plant().filter(|plant| plant.is_in_publication());
        let running = self.node(id).running_mut();
        let mut shares: Vec<Share> =
            running.shared.take_steps().into_iter().map(Share::from).collect();
        let is_fresh = shares.iter().any(|share| matches!(share, Share::Publish(_)));
        running.is_untold |= is_fresh;
        let Some(plant) = plant else { return shares };
        let (fresh, seen) = (running.shared.published(), running.seen.published());
        if fresh.grant.is_some() || fresh.role == Role::Leader {
            running.hands_over = running.replica().is_handing_over();
        }
        // A leader withdraws its grant to give its range back. If the grant were kept then, nothing
        // could be given back, and the next leader would begin too far ahead (promise 3).
        let is_withdrawn = fresh.role == Role::Leader && fresh.grant.is_none();
        let is_kept = match plant {
            _ if is_withdrawn => false,
            Plant::RevokedLate => fresh.grant.is_none(),
            Plant::TransferKeepsGrant => fresh.grant.is_none() && running.hands_over,
            Plant::CoalescedPublication => {
                let term = |grant: Option<Grant>| grant.map(|grant| grant.term);
                !running.ticks.is_multiple_of(LOOK_TICKS) && term(fresh.grant) != term(seen.grant)
            }
            _ => false,
        };
        let grant = if is_kept { seen.grant.or(fresh.grant) } else { fresh.grant };
        if is_fresh || grant != seen.grant {
            shares.retain(|share| matches!(share, Share::Raise(_)));
            let published = Published { grant, ..Published::clone(&fresh) };
            shares.push(Share::Publish(Arc::new(published)));
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use epicepoch_wire::Term;

    use super::*;
    use crate::history::Invariant;

    #[test]
    fn workers_see_every_step_of_a_call_in_the_order_in_which_the_core_took_it() {
        let mut world = World::new(1, 3, 0, None);
        let id = NodeId(1);
        world.start(id);
        world.conditions.step_ns = MS;
        let running = world.node(id).running_mut();
        let of =
            |term| Published { term: Term(term), ..Published::clone(&running.seen.published()) };
        for published in [of(0), of(9)] {
            running.shared.publish(Arc::new(published));
        }
        running.shared.raise(Term(9));
        let shares: Vec<Share> = running.shared.take_steps().into_iter().map(Share::from).collect();
        let [Share::Publish(_), Share::Publish(_), Share::Raise(Term(9))] = shares[..] else {
            panic!("{shares:?}")
        };
        running.shares.extend(shares);
        world.share(id);
        assert_eq!(world.history.violation, None);
        world.share(id);
        let violation = world.history.violation.as_ref().map(|violation| violation.invariant);
        assert_eq!(
            violation,
            Some(Invariant::PromiseFirst),
            "it is published before it is promised"
        );
    }
}
