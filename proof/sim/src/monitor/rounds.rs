//! Batches, rounds, the answers to them, and timestamps: the second half of `rounds.py`. The spec's
//! run is a process, its round is a batch of one worker of it.

use std::collections::VecDeque;
use std::sync::Arc;

use epicepoch_core::publication::{Identity, Published};
use epicepoch_wire::confirm::{Confirm, ConfirmReply};
use epicepoch_wire::{Epoch, EpochIndex, NodeId, Round, Term, Timestamp, TimestampRange, WorkerId};

use super::members::is_quorum_of;
use super::{Monitor, Run};
use crate::node_set::NodeSet;
use crate::parameters::SLOTS_MAX;

/// A worker: its batches and rounds.
#[derive(Debug, Default)]
pub(super) struct Worker {
    /// How many batches were closed for a round.
    closed: u64,
    requests: [Option<Joined>; SLOTS_MAX],
    rounds: VecDeque<Open>,
}

/// A request in a batch.
#[derive(Clone, Copy, Debug)]
struct Joined {
    /// The number of the batch that was open when the request joined.
    batch: u64,
    /// Whether it asks for the latest timestamp.
    is_reader: bool,
    /// The answer, once there is one.
    told: Option<TimestampRange>,
}

/// A round that has begun.
#[derive(Debug)]
struct Open {
    round: Round,
    term: Term,
    batch: u64,
    published: Arc<Published>,
    is_out: bool,
    yes: NodeSet,
    /// Nodes whose answer does not count, to name the rule that is broken if it was counted: a no;
    /// from another data directory; given before the round began; to a round of another term.
    no: NodeSet,
    foreign: NodeSet,
    early: NodeSet,
    other: NodeSet,
    /// The terms above its own that had been won when it read the publication.
    later: Vec<Term>,
}

impl Monitor {
    /// Actions `arrive` and `join`: a request joins the open batch of a worker.
    pub(crate) fn joins(&mut self, id: NodeId, worker: usize, slot: usize, is_reader: bool) {
        if !self.watches(id) {
            return;
        }
        let own = &mut self.run(id).workers[worker];
        let is_new = own.requests[slot].is_none();
        let joined = Joined { batch: own.closed, is_reader, told: None };
        own.requests[slot] = Some(joined);
        let what = || format!("slot {slot} of worker {worker} of node {id} has a request already");
        self.rule("rounds/arrive/is-new", is_new, what);
        self.rule("rounds/join/is-new", is_new, what);
        self.rule("rounds/join/is-arrived", is_new, what);
    }

    /// A request has left its slot: it has its outcome, or its client has gone.
    pub(crate) fn leaves(&mut self, id: NodeId, worker: usize, slot: usize) {
        if self.watches(id) {
            self.run(id).workers[worker].requests[slot] = None;
        }
    }

    /// Actions `close` and `read_grant`, and `answer` by the asking node itself: a round begins.
    /// `fresh` is the publication at this moment.
    pub(crate) fn begins(
        &mut self,
        id: NodeId,
        confirm: &Confirm,
        published: &Arc<Published>,
        fresh: &Arc<Published>,
    ) {
        if !self.is_live("rounds/close/is-live", id) {
            return;
        }
        self.is_live("rounds/read_grant/is-live", id);
        let Confirm { worker, term, round, .. } = *confirm;
        let run = self.run(id);
        let (me, grant) = (run.me, run.grant);
        let own = &mut run.workers[worker.0 as usize];
        let batch = own.closed;
        own.closed += 1;
        let is_new = own.rounds.iter().all(|open| open.round < round);
        self.rule("rounds/close/is-new", is_new, || format!("{confirm:?} has begun before"));
        self.rule("rounds/read_grant/is-new", is_new, || format!("{confirm:?} has begun before"));
        let is_read_now = Arc::ptr_eq(published, fresh);
        self.rule("rounds/read_grant/read-before-close", is_read_now, || {
            format!("node {id} begins {confirm:?} under a publication that it read earlier")
        });
        let is_granted = grant.is_some() && published.grant == grant;
        self.rule("rounds/read_grant/without-grant", is_granted, || {
            format!("node {id} begins {confirm:?}, and its grant is {grant:?}")
        });
        let is_of_grant = grant.is_none_or(|grant| grant.term == term);
        self.rule("rounds/read_grant/current-term-asked", is_of_grant, || {
            format!("node {id} asks about {term}, and its grant is {grant:?}")
        });
        let won = self.terms.get(&term);
        let is_led = won.is_some_and(|won| won.by == id);
        let is_as_published = won.is_some_and(|won| won.asks.is_published(published));
        self.rule("raft_log/begin_round/is-led", is_led, || {
            format!("node {id} begins a round of {term}, which it has not won")
        });
        self.rule("raft_log/begin_round/old-voters", is_as_published, || {
            format!(
                "node {id} asks {:?}, which the leader of {term} has not published last",
                published.voters
            )
        });
        let is_some = published.voters.incoming().next().is_some();
        self.rule("raft_log/begin_round/is-quorum", is_some, || format!("{confirm:?} asks nobody"));
        let later = self.terms.range(Term(term.0 + 1)..).map(|(term, _)| *term).collect();
        let open = Open {
            round,
            term,
            batch,
            published: published.clone(),
            is_out: false,
            yes: NodeSet::default(),
            no: NodeSet::default(),
            foreign: NodeSet::default(),
            early: NodeSet::default(),
            other: NodeSet::default(),
            later,
        };
        let promised = self.at(id).promised;
        let run = self.run(id);
        run.workers[worker.0 as usize].rounds.push_back(open);
        run.count(me, confirm, promised);
    }

    /// Action `send_confirm`.
    pub(crate) fn asks(&mut self, id: NodeId, confirm: &Confirm) {
        if !self.is_live("rounds/send_confirm/is-live", id) {
            return;
        }
        let Confirm { worker, round, .. } = *confirm;
        let own = &mut self.run(id).workers[worker.0 as usize];
        let open = own.rounds.iter_mut().find(|open| open.round == round);
        // A round that has ended is asked once more: nothing counts its answers.
        if let Some(open) = open {
            open.is_out = true;
        }
        let is_read = round.0 <= own.closed;
        self.rule("rounds/send_confirm/is-read", is_read, || format!("{confirm:?} has not begun"));
    }

    /// Action `answer`: a voter reads the frame, then its Promise. The yes may be counted at any
    /// later time, for every round of that process and term that began before.
    pub(crate) fn answers(
        &mut self,
        voter: Identity,
        from: NodeId,
        confirm: &Confirm,
        reply: &ConfirmReply,
    ) {
        if !self.is_live("rounds/answer/is-live", voter.node) {
            return;
        }
        let promised = self.at(voter.node).promised;
        let is_named = reply.leader == from && reply.round == confirm.round;
        self.rule("rounds/answer/is-named", is_named, || format!("{reply:?} to {confirm:?}"));
        let is_blind = reply.promise <= confirm.term && promised > confirm.term;
        self.rule("rounds/answer/blind-yes", !is_blind, || {
            format!("node {} has promised {promised}, and answers {reply:?}", voter.node)
        });
        let asking = self.node(from).run.as_mut();
        if let Some(run) = asking.filter(|run| run.me.boot == confirm.boot) {
            let worker = &run.workers[confirm.worker.0 as usize];
            let open = worker.rounds.iter().find(|open| open.round == confirm.round);
            let is_out = open.is_none_or(|open| open.is_out);
            run.count(voter, confirm, promised);
            self.rule("rounds/answer/any-reply-counts", is_out, || {
                format!("node {} answers {confirm:?}, which was not sent", voter.node)
            });
        }
    }

    /// A worker has counted an answer. It may be one that does not count for some of the rounds.
    pub(crate) fn hears(&mut self, id: NodeId, from: NodeId, reply: &ConfirmReply) {
        if !self.watches(id) || !reply.is_yes() {
            return;
        }
        let node = NodeSet::of(from);
        for open in self.run(id).workers.iter_mut().flat_map(|worker| &mut worker.rounds) {
            if open.term != reply.term {
                open.other.add(node);
            } else if !open.yes.contains(from) {
                open.early.add(node);
            }
        }
    }

    /// A round has failed: nothing is allocated for it.
    pub(crate) fn fails(&mut self, id: NodeId, worker: WorkerId, round: Round) {
        if self.watches(id) {
            self.run(id).workers[worker.0 as usize].rounds.retain(|open| open.round != round);
        }
    }

    /// A worker takes a round for confirmed, and is about to allocate for it: the rules of `allocate`
    /// and `show_latest` about the voters that have said yes. Nothing is allocated for a batch that
    /// asks for nothing, but its round proves as much.
    pub(crate) fn confirms(&mut self, id: NodeId, worker: usize, round: Round) {
        if !self.watches(id) {
            return;
        }
        let own = &mut self.run(id).workers[worker];
        let Some(at) = own.rounds.iter().position(|open| open.round == round) else { return };
        let Some(open) = own.rounds.remove(at) else { return };
        self.check_quorum(id, &open);
        self.check_later(id, &open);
        self.run(id).workers[worker].rounds.insert(at, open);
    }

    /// Actions `allocate` and `show_latest`: the allocator gives timestamps to the requests of a
    /// batch, and shows the latest one to those that ask for it. `told` has the slot of each request
    /// that gets something, and what it gets. `answered` is `None` if the batch was that of a probe,
    /// or was refused. There is no range if no request takes
    /// timestamps, and there are several if compact timestamps did not fit into one millisecond.
    pub(crate) fn allocates(
        &mut self,
        id: NodeId,
        worker: usize,
        round: Round,
        answered: Option<(Term, &[TimestampRange])>,
        told: &[(usize, TimestampRange)],
    ) {
        if !self.is_live("rounds/allocate/is-live", id) {
            return;
        }
        self.is_live("rounds/show_latest/is-live", id);
        let own = &mut self.run(id).workers[worker];
        let at = own.rounds.iter().position(|open| open.round == round);
        let open = at.and_then(|at| own.rounds.remove(at));
        let Some((term, ranges)) = answered else { return };
        for name in ["rounds/allocate/is-read", "rounds/show_latest/is-read"] {
            self.rule(name, open.is_some(), || {
                format!("node {id} answers {round:?} of worker {worker}, which never began")
            });
        }
        let Some(open) = open else { return };
        for range in ranges {
            self.check_stamp(id, open.term, term, *range);
        }
        let mut last = None;
        for (slot, part) in told {
            let request = self.run(id).workers[worker].requests[*slot].as_mut();
            let before = request.as_ref().map(|request| **request);
            if let Some(request) = request {
                request.told = Some(*part);
            }
            let batch = before.map_or(open.batch, |request| request.batch);
            let is_first = before.is_none_or(|request| request.told.is_none());
            let is_reader = before.is_some_and(|request| request.is_reader);
            let what = || format!("node {id} gives {part:?} to slot {slot}: {before:?}");
            let is_joined = before.is_some() && batch >= open.batch;
            self.rule("rounds/join/late-join", batch <= open.batch, what);
            if is_reader {
                self.rule("rounds/show_latest/is-joined", is_joined, what);
                self.rule("rounds/show_latest/shown-twice", is_first, what);
                self.check_shown(id, open.term, term, part.first());
                continue;
            }
            self.rule("rounds/allocate/is-writer", !ranges.is_empty(), what);
            // What is no new part of the batch's range was not allocated, but shown. Only a request
            // for the latest timestamp may get that.
            let is_shown = ranges.is_empty() || last.is_some_and(|last| part.first() <= last);
            self.rule("rounds/show_latest/is-reader", !is_shown, what);
            self.rule("rounds/allocate/is-joined", is_joined, what);
            self.rule("rounds/allocate/key-used-twice", is_first, what);
            let is_inside = |range: &TimestampRange| {
                range.first() <= part.first() && part.last() <= range.last()
            };
            let is_above = last.is_none_or(|last| last < part.first());
            let is_part = ranges.is_empty() || ranges.iter().any(is_inside) && is_above;
            last = Some(part.last());
            self.rule("rounds/allocate/allocator-goes-back", is_part, what);
        }
    }

    /// The allocator answers a batch that a lease has proved. No specification that the monitor
    /// follows has leases, so the requests of such a batch are not known here. The allocator's own
    /// rules hold all the same.
    pub(crate) fn allocates_by_lease(
        &mut self,
        id: NodeId,
        answered: Option<(Term, &[TimestampRange])>,
    ) {
        let Some((term, ranges)) = answered.filter(|_| self.watches(id)) else { return };
        for range in ranges {
            self.check_stamp(id, term, term, *range);
        }
    }

    /// The rules of `show_latest` about the timestamp that is shown.
    fn check_shown(&mut self, id: NodeId, asked: Term, confirmed: Term, latest: Timestamp) {
        let run = self.at(id).running();
        let (grant, last) = (run.grant, run.last);
        let what = || format!("node {id} says that {latest} is the latest in {grant:?}: {last:?}");
        self.rule("rounds/show_latest/without-grant", grant.is_some(), what);
        let is_same = grant.is_none_or(|grant| grant.term == asked && asked == confirmed);
        self.rule("rounds/show_latest/any-grant", is_same, what);
        let highest = |epoch: Epoch| Timestamp::highest_at(epoch.0);
        let is_above = grant.is_none_or(|grant| highest(grant.range.low) <= latest);
        self.rule("rounds/show_latest/latest-below-range", is_above, what);
        let is_inside = grant.is_none_or(|grant| latest <= highest(grant.range.high));
        self.rule("rounds/show_latest/latest-beyond-range", is_inside, what);
        self.rule("rounds/show_latest/latest-below-last", last <= Some(latest), what);
        let run = self.run(id);
        run.last = run.last.max(Some(latest));
        run.shown = run.shown.max(Some(latest));
    }

    /// A quorum has said yes. If not, names the rule without which it would have.
    fn check_quorum(&mut self, id: NodeId, open: &Open) {
        let more = [
            ("rounds/answer/yes-of-another-store", open.foreign),
            ("rounds/answer/blind-yes", open.no),
            ("rounds/answer/yes-for-later-rounds", open.early),
            ("rounds/answer/yes-of-another-term", open.other),
        ];
        let mut yes = open.yes;
        let mut broken = None;
        if !is_quorum_of(&open.published.voters, yes) {
            let without = more.iter().find(|(_, more)| {
                yes.add(*more);
                is_quorum_of(&open.published.voters, yes)
            });
            broken = Some(without.map_or(UNCONFIRMED, |(name, _)| *name));
        }
        let names = more.map(|(name, _)| name).into_iter().chain([UNCONFIRMED]);
        for name in names.chain([SHOWN_UNCONFIRMED]) {
            let is_broken =
                broken == Some(name) || name == SHOWN_UNCONFIRMED && broken == Some(UNCONFIRMED);
            self.rule(name, !is_broken, || {
                let Open { round, term, yes, .. } = open;
                format!("node {id} takes {round:?} in {term} for confirmed; yes: {yes:?}")
            });
        }
    }

    /// If a later term had been won when the round began, the voters that confirm it have one in
    /// common with an election of such a term.
    fn check_later(&mut self, id: NodeId, open: &Open) {
        let meets =
            |term: &Term| self.terms.get(term).is_some_and(|won| open.yes.meets(won.election));
        let holds = open.later.is_empty() || open.later.iter().any(meets);
        for name in
            ["rounds/allocate/round-meets-election", "rounds/show_latest/round-meets-election"]
        {
            self.rule(name, holds, || {
                format!("{:?} of node {id} asks no voter that elected {:?}", open.round, open.later)
            });
        }
    }

    fn check_stamp(&mut self, id: NodeId, asked: Term, confirmed: Term, range: TimestampRange) {
        let run = self.at(id).running();
        let (grant, last, advanced) = (run.grant, run.last, run.advanced);
        let shown = run.shown;
        let first = range.first();
        self.rule("rounds/allocate/without-grant", grant.is_some(), || {
            format!("node {id} stamps {range:?} without a grant")
        });
        let is_same = grant.is_none_or(|grant| grant.term == asked && asked == confirmed);
        self.rule("rounds/allocate/any-grant", is_same, || {
            format!("node {id} stamps {range:?} in {grant:?} for a round of {asked}")
        });
        let is_inside = grant.is_none_or(|grant| grant.range.contains(first.epoch));
        self.rule("rounds/allocate/beyond-range", is_inside, || {
            format!("node {id} stamps {range:?} in {grant:?}")
        });
        let is_above = last.is_none_or(|last| last < first);
        let is_advance = !is_above && first.epoch <= advanced;
        self.rule("rounds/advance/advance-keeps-range", !is_advance, || {
            format!("node {id} stamps {range:?} after an advance to {advanced}")
        });
        let is_shown = !is_above && !is_advance && Some(first) <= shown;
        self.rule("rounds/show_latest/latest-given-later", !is_shown, || {
            format!("node {id} stamps {range:?}, and has said that {shown:?} is the latest")
        });
        self.rule(
            "rounds/allocate/allocator-goes-back",
            is_above || is_advance || is_shown,
            || format!("node {id} stamps {range:?} after {last:?}"),
        );
        self.run(id).last = Some(range.last());
    }

    /// Action `complete`: a request gets its timestamps.
    pub(crate) fn completes(
        &mut self,
        id: NodeId,
        worker: usize,
        slot: usize,
        part: TimestampRange,
    ) {
        if !self.watches(id) {
            return;
        }
        let request = self.at(id).running().workers[worker].requests[slot];
        let is_stamped = request.is_some_and(|request| request.told == Some(part));
        self.rule("rounds/complete/is-stamped", is_stamped, || {
            format!("node {id} answers with {part:?}, and allocated {request:?}")
        });
    }

    /// Action `advance`: the leader reports that the epoch was moved.
    pub(crate) fn advances(&mut self, id: NodeId, to: Epoch) {
        if !self.is_live("rounds/advance/is-live", id) {
            return;
        }
        let run = self.run(id);
        let granted = run.granted.or(run.grant);
        run.advanced = run.advanced.max(to);
        run.last = run.last.max(Some(Timestamp::new(to, EpochIndex(u64::MAX))));
        let is_reserved = granted.is_some_and(|grant| to <= grant.range.high);
        self.rule("rounds/advance/advance-unreserved", is_reserved, || {
            format!("node {id} reports an advance to {to}, and has {granted:?}")
        });
    }
}

impl Run {
    /// Counts the answer of a voter, which has promised `promised`. A yes counts for all rounds of
    /// this process and term that have begun.
    fn count(&mut self, voter: Identity, confirm: &Confirm, promised: Term) {
        let node = NodeSet::of(voter.node);
        let is_yes = promised <= confirm.term;
        for open in self.workers.iter_mut().flat_map(|worker| &mut worker.rounds) {
            if open.term != confirm.term {
                continue;
            }
            let mut voters = open.published.voters.iter();
            let store = voters.find(|(of, _)| *of == voter.node).map(|(_, store)| store);
            match store {
                Some(store) if store != voter.store => open.foreign.add(node),
                Some(_) if is_yes => open.yes.add(node),
                Some(_) => open.no.add(node),
                None => {}
            }
        }
    }
}

/// The rule that fails if no other rule explains why a round counts as confirmed.
const UNCONFIRMED: &str = "rounds/allocate/unconfirmed";
/// The same rule for the latest timestamp. A round is that of a batch, which may have requests of
/// both kinds.
const SHOWN_UNCONFIRMED: &str = "rounds/show_latest/unconfirmed";
