//! A leader that hands over as planned gives back the end of its range (S18), so that the next
//! leader begins just above the last timestamp. Without this, it would begin at the end of the
//! range, which is up to a reservation window ahead of the clock.
//!
//! The steps are in this order, and each makes the next one safe:
//! 1. The grant is withdrawn from the workers.
//! 2. The allocator stops as long as no grant is published, and only then its last epoch is read.
//! 3. A reservation that is under way is waited for. It gives no grant.
//! 4. The entry is proposed. It names the owner, its term and what is given back.
//! 5. Leadership is offered. If the successor's disk is known to be fast, the offer follows the
//!    message with the entry at once, on the same link. The successor then writes the entry and its
//!    vote for itself with one sync. Otherwise the library offers leadership, when the successor
//!    has the entry on its disk. Order and uniqueness do not depend on this step.
//!
//! The successor ignores an offer that is no longer current (`offer.rs`). When it acknowledges the
//! entry, the library offers leadership again.
//!
//! This leader answers nothing while it waits for its successor. So it waits for half an election
//! timeout at most. Then it answers again, and offers leadership without giving anything back. If
//! the entry was not proposed, it uses its old range again. If the entry was proposed, it never
//! uses the old range again, and reserves a new one, which begins where the entry says.

use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::{Epoch, NodeId, Term};
use raft::{ProgressState, StateRole};

use super::{HandOver, Replica, Report};
use crate::publication::{EpochRange, Grant};
use crate::state::{Command, FORMAT_OF_GIVING_BACK, Owner};

/// A handover that gives back the end of the range.
#[derive(Clone, Copy, Debug)]
pub(super) struct GivingBack {
    to: NodeId,
    step: Step,
    /// The grant that was withdrawn, with the range that was assigned since.
    pub(super) withdrawn: Option<Grant>,
    /// Ticks since the grant was withdrawn.
    ticks: usize,
    /// Whether the allocator is to be stopped now.
    is_stop_due: bool,
}

/// How far a [`GivingBack`] has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The grant is withdrawn.
    Withdrawn,
    /// The allocator has stopped. This was the epoch of its last timestamp.
    Stopped(Epoch),
    /// The entry is proposed, and leadership is offered.
    Offered,
}

impl Replica {
    /// Whether a handover for this reason gives back what it can. It does not if the disk or the
    /// data plane is the reason: then nothing may delay the handover. Neither does it while this
    /// node's own disk is slow: if the successor does not come, a leader that has given back waits
    /// for that disk before it answers again.
    pub(super) fn may_give_back(&self, why: HandOver) -> bool {
        let is_planned = match why {
            HandOver::Asked
            | HandOver::Stopping
            | HandOver::ClockOff
            | HandOver::Preferred
            | HandOver::ClientsCut => true,
            HandOver::Unheard | HandOver::DiskStuck | HandOver::RoundsStuck => false,
        };
        is_planned
            && self.does_disk_keep_up()
            && self.raw.raft.state == StateRole::Leader
            && self.state.format >= FORMAT_OF_GIVING_BACK
            && (self.grant.is_some() || self.reservation.is_pending())
            && !self.is_handing_over()
    }

    /// Withdraws the grant, and begins a handover that gives back what was not used.
    pub(super) fn begin_giving_back(&mut self, to: NodeId) {
        // S14: an advance may have promised every epoch up to the low end of a grant, also of a
        // grant that was withdrawn for an earlier handover.
        let low = self.grant.map_or(Epoch(0), |grant| grant.range.low);
        self.reservation.withdrawn_low = self.reservation.withdrawn_low.max(low);
        let (step, ticks, withdrawn) = (Step::Withdrawn, 0, self.grant.take());
        let giving_back = GivingBack { to, step, withdrawn, ticks, is_stop_due: true };
        self.reservation.giving_back = Some(giving_back);
        self.publish();
    }

    /// Whether the allocator is to be stopped now, for [`Replica::handle_allocator_stopped`]. True
    /// once for each try.
    pub fn take_stop(&mut self) -> bool {
        let giving_back = self.reservation.giving_back.as_mut();
        giving_back.is_some_and(|it| std::mem::take(&mut it.is_stop_due))
    }

    /// Handles the last epoch of the allocator, which has stopped; `None` if it has not. Then the
    /// next tick asks again.
    pub fn handle_allocator_stopped(&mut self, now_ns: u64, last: Option<Epoch>) {
        self.now_ns = now_ns;
        if let (Some(it), Some(last)) = (&mut self.reservation.giving_back, last)
            && it.step == Step::Withdrawn
        {
            it.step = Step::Stopped(last);
            self.settle();
        }
    }

    /// Proposes to give back what is above the last timestamp, and offers leadership. Waits until
    /// the allocator has stopped and no reservation is under way. Returns whether it called the
    /// library.
    pub(super) fn give_back_if_stopped(&mut self) -> bool {
        let Some(it) = self.reservation.giving_back else { return false };
        let Step::Stopped(last) = it.step else { return false };
        if self.reservation.is_pending() {
            return false;
        }
        let owner = self.as_owner();
        let Some((_, held)) = self.state.owner.filter(|(last, _)| *last == owner) else {
            self.answer_again();
            return true;
        };
        let low = last.max(self.reservation.withdrawn_low).max(held.low);
        let range = EpochRange { low, high: held.high };
        if range.low < range.high {
            // S18: nothing above is given by this leader any more.
            assert!(self.grant.is_none(), "S18: given back and granted");
            let command = Command::GiveBack { owner, range }.encode();
            if self.call(|raw| raw.propose(Vec::new(), command)).is_err() {
                self.answer_again();
                return true;
            }
        }
        self.set_step(Step::Offered);
        self.call(|raw| raw.transfer_leader(it.to.0));
        true
    }

    /// Offers leadership to a successor that was sent the whole log and has not acknowledged it.
    /// The library would wait for the acknowledgement. The offer names the last entry.
    ///
    /// The successor's disk must be fast. Otherwise its vote might leave only when this leader has
    /// answered again and reserved. Then the successor would depose it, and lose the election.
    pub(super) fn offer_behind_entry(&mut self) {
        let Some(GivingBack { to, step: Step::Offered, .. }) = self.reservation.giving_back else {
            return;
        };
        let raft = &self.raw.raft;
        let (last, term) = (raft.raft_log.last_index(), Term(raft.term));
        let is_on_its_way = raft.prs().get(to.0).is_some_and(|peer| {
            peer.state == ProgressState::Replicate && peer.matched < last && last < peer.next_idx
        });
        if is_on_its_way && self.is_disk_fast(to, self.fast_write_ticks()) {
            let mut offer = RaftMessage::plain(MessageKind::TimeoutNow, to, term);
            self.name_last_entry(&mut offer);
            self.outbox.push_offer(offer);
        }
    }

    /// For how many ticks a write may take on a disk that counts as fast.
    pub(super) const fn fast_write_ticks(&self) -> usize {
        self.config.election_ticks / PARTS / FAST_PARTS
    }

    /// Counts a tick of a handover that gives back. Asks again for the allocator to stop, or ends
    /// the wait.
    pub(super) fn tick_giving_back(&mut self) {
        let election = self.config.election_ticks;
        let Some(it) = &mut self.reservation.giving_back else { return };
        it.ticks += 1;
        if it.ticks > election.div_ceil(PARTS) {
            self.answer_again();
            self.settle();
        } else {
            it.is_stop_due = it.step == Step::Withdrawn;
        }
    }

    /// Ends the wait: answers again, and offers leadership without giving anything back.
    fn answer_again(&mut self) {
        let Some(it) = self.reservation.giving_back.take() else { return };
        self.raw.raft.abort_leader_transfer();
        // S18: what was proposed to be given back is never granted again.
        let is_offered = it.step == Step::Offered;
        let resumed = it.withdrawn.filter(|_| !is_offered);
        let range = resumed.map(|it| it.range);
        self.reports.push_back(Report::AnswersAgain { to: it.to, is_offered, range });
        if resumed.is_some() {
            self.grant = resumed;
            self.publish();
            self.take_advance();
        }
        self.reserve_if_used();
        self.release_lease();
        self.call(|raw| raw.transfer_leader(it.to.0));
    }

    fn set_step(&mut self, step: Step) {
        if let Some(it) = &mut self.reservation.giving_back {
            it.step = step;
        }
    }

    /// Whether a handover that gives back is in progress.
    pub(super) const fn is_giving_back(&self) -> bool {
        self.reservation.giving_back.is_some()
    }

    /// The successor for whom this leader gives back its range.
    pub(super) fn successor_waiting(&self) -> Option<NodeId> {
        self.reservation.giving_back.map(|it| it.to)
    }

    /// This boot in its present term, as an owner of ranges.
    pub(super) fn as_owner(&self) -> Owner {
        let me = self.config.identity;
        Owner { term: Term(self.raw.raft.term), node: me.node, boot: me.boot }
    }
}

/// A leader that waits for its successor answers again after an election timeout divided by this:
/// 100 ms by default.
const PARTS: usize = 2;
/// The disk of a successor is fast if each of its last writes took at most the time for which this
/// leader waits, divided by this, in whole ticks: 20 ms by default. So the leader's wait has time
/// for four such writes one after the other: on the successor's disk a write in progress, then the
/// entry with the vote; on the disk of the voter that decides a write in progress, then its vote.
const FAST_PARTS: usize = 4;
