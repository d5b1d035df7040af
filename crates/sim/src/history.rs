//! The history of a run and its checkers: what an observer who sees every node and every answer
//! may demand, one function per invariant of `docs/safety.md`. They run at every step, on the
//! whole history so far; the first violation ends the run. Nothing here reads the core's opinion
//! of itself where the history knows better.

mod messages;
pub(crate) mod prudence;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use epicepoch_core::publication::{EpochRange, Identity, Published, Role};
use epicepoch_core::quorum::Voters;
use epicepoch_core::state::{Owner, State};
use epicepoch_wire::{BootId, Epoch, LogIndex, NodeId, StoreId, Term, Timestamp, TimestampRange};

use crate::node::{Asker, Request};
use crate::quorums::Quorums;
use crate::settings::Longest;

/// What a checker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invariant {
    /// Promise 1: no timestamp is given twice.
    Unique,
    /// Promise 2: what was complete before a request started is below its answer (rests on S2).
    Order,
    /// Promise 3 and S11: the epoch is bound to the clocks.
    Bound,
    /// S1: what a run of a node stamps only rises.
    AllocatorRises,
    /// S2, S7: what counts as confirmed, a quorum of the voters has said, asked after the batch closed.
    Quorum,
    /// S3: a stamp lies in a range that apply assigned to this node and run, in the term that the
    /// round confirmed.
    InsideOwnedRange,
    /// S4: the Promise is at the term of whatever leaves.
    PromiseFirst,
    /// S5: ranges are owned once, equal index means equal state, the ceiling never goes back.
    Ranges,
    /// S6: whatever leaves, what it promises is durable.
    DurableFirst,
    /// S7: the voters published at an applied index are the same everywhere.
    Voters,
    /// S8, and Raft's own: one leader per term.
    OneLeader,
    /// S8: an id that was removed is never a member again.
    Ids,
    /// S12: whoever is promoted, or handed leadership to, as operators ask for it, or preferred as a
    /// leader because of its place, is there and has what was committed; a majority is there after a
    /// change, and whoever leads is not removed.
    CaughtUp,
    /// S9: correct peers send nothing that has to be refused as impossible, and lose nothing.
    Possible,
    /// S15: nobody is handed, or holds, what it cannot read.
    Readable,
    /// S13: a history that is restored begins above all that the one before can have given.
    Restored,
    /// S14: what arrives after an operator's advance is done is answered above it.
    Advanced,
    /// S16: whoever leads goes by the settings that count where it has applied the log.
    Settings,
    /// S10: a request that arrived is told once: refused, or given as many as it asked for.
    ToldOnce,
    /// No guarantee to anybody: a look inside at what a node publishes to its workers, a grant of its
    /// own, of the term that it leads. It sees sooner what an answer would show, or a confirm round
    /// would refuse.
    Publication,
}

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub invariant: Invariant,
    /// How.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.invariant, self.what)
    }
}

/// One answer, as it leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    pub(crate) who: Identity,
    pub(crate) request: Request,
    pub(crate) range: TimestampRange,
}

/// What a node goes by when it stamps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trusted {
    pub(crate) ns: u64,
    /// Whether a majority's clocks have agreed since the node started.
    pub(crate) is_proved: bool,
    /// Its monotonic clock.
    pub(crate) monotonic_ns: u64,
}

/// Everything that was seen.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Last timestamp of every answer by its first.
    given: BTreeMap<Timestamp, Timestamp>,
    given_max: Option<Timestamp>,
    stamped_max: BTreeMap<BootId, Timestamp>,
    /// Requests that wait to be told, by the run that they arrived on, and since when.
    waiting: BTreeMap<BootId, BTreeMap<Asker, u64>>,
    leaders: BTreeMap<Term, (NodeId, BootId)>,
    /// Terms with a leader that acted in histories before this one.
    led_before: usize,
    /// Who gave its vote to whom, by voter's data directory and term.
    votes: BTreeMap<(StoreId, Term), NodeId>,
    /// Terms of the entries that the leader of a term has sent, by that term and their index.
    sent: BTreeMap<(Term, LogIndex), Term>,
    /// When each run has last taken a message of each node, on its own clock.
    heard_ns: BTreeMap<BootId, BTreeMap<NodeId, u64>>,
    /// The highest term of a message of each node that anybody took, and the run that sent it.
    taken: BTreeMap<NodeId, (Term, BootId)>,
    /// Every range that was assigned, by where it ends.
    owned: BTreeMap<Epoch, (EpochRange, Owner)>,
    states: BTreeMap<LogIndex, (Vec<u8>, Voters)>,
    /// Settings by applied index, as whoever came there first had them, and what counts for each run.
    settings: BTreeMap<LogIndex, Option<settings::Counting>>,
    goes_by: BTreeMap<BootId, settings::GoesBy>,
    /// The last epoch of each run, and when it moved there, on its own clock.
    moved: BTreeMap<BootId, (Epoch, u64)>,
    pub(crate) quorums: Quorums,
    ceilings: BTreeMap<BootId, Epoch>,
    /// Every id that was removed, and the lowest index at which a node was seen to know it.
    removed: BTreeMap<NodeId, LogIndex>,
    /// The latest time that any node has trusted, Unix nanoseconds.
    pub(crate) trusted_max_ns: u64,
    /// True time less and plus what a believed clock may be off, while a majority of the clocks is
    /// healthy, and has been since the run began.
    pub(crate) believable: Option<(u64, u64)>,
    /// A leader that heard too few clocks for too long has gone by those that it knew: the known gap
    /// of S11.
    pub(crate) is_clock_unproved: bool,
    /// All clocks are.
    pub(crate) is_healthy: bool,
    /// The last epoch that each run stamped while no majority's clocks had proved its clock right since
    /// it started, and whether any of these was behind.
    guessed: BTreeMap<BootId, Epoch>,
    pub(crate) is_guessed_behind: bool,
    /// What operators have moved the epoch to, and what they have at most asked for.
    advanced: Epoch,
    advance_asked_max: Epoch,
    /// The longest settings that anybody has gone by.
    pub(crate) longest: Longest,
    pub(crate) violation: Option<Violation>,
}

impl History {
    /// What a request that arrives now must be above.
    pub(crate) const fn floor(&self) -> Option<Timestamp> {
        self.given_max
    }

    /// How many terms had a leader that acted.
    pub(crate) fn leaderships(&self) -> usize {
        self.led_before + self.leaders.len()
    }

    /// How many ranges were assigned.
    pub(crate) fn ranges(&self) -> usize {
        self.owned.len()
    }

    /// Everything was lost, and a new history begins above `floor`. Terms, indexes and votes begin
    /// anew; what was given stays given, what was owned stays owned, and ids that the backup knew to
    /// be removed stay removed.
    pub(crate) fn restored(&mut self, floor: Epoch, removed: &[NodeId]) {
        self.check_floor(floor);
        let led_before = self.leaderships();
        let before = std::mem::take(self);
        *self = Self {
            given: before.given,
            given_max: before.given_max,
            owned: before.owned,
            led_before,
            removed: removed.iter().map(|node| (*node, LogIndex(0))).collect(),
            trusted_max_ns: before.trusted_max_ns,
            believable: before.believable,
            is_clock_unproved: before.is_clock_unproved,
            is_healthy: before.is_healthy,
            is_guessed_behind: before.is_guessed_behind,
            advanced: before.advanced,
            advance_asked_max: before.advance_asked_max.max(floor),
            violation: before.violation,
            ..Self::default()
        };
    }

    /// From now on all clocks are right, as far as `believable` says, and have been for so long that
    /// nobody has a reason to go by another: promise 3 holds whatever clocks were before, but for a ceiling
    /// that is ahead already.
    pub(crate) fn settle(&mut self, believable: (u64, u64)) {
        let ceiling = self.ceilings.values().copied().max().unwrap_or(Epoch(0));
        self.advance_asked_max = ceiling;
        self.trusted_max_ns = believable.1;
        self.believable = Some(believable);
        (self.is_healthy, self.is_clock_unproved) = (true, false);
    }

    /// S13: whatever was given, and whatever anybody owned and could have given, is below.
    fn check_floor(&mut self, floor: Epoch) {
        let given = self.given_max.map_or(Epoch(0), |given| given.epoch);
        let owned = self.owned.keys().next_back().copied().unwrap_or(Epoch(0));
        let highest = given.max(owned);
        if highest > floor {
            self.violate(Invariant::Restored, || {
                format!("a history begins above {floor}, and {highest} can have been given")
            });
        }
    }

    /// Timestamps were taken; the answer is on its way.
    pub(crate) fn stamped(
        &mut self,
        who: Identity,
        term: Term,
        range: TimestampRange,
        Trusted { ns: trusted_ns, is_proved, monotonic_ns }: Trusted,
    ) {
        self.check_allocator_rises(who, range);
        self.check_inside_owned_range(who, term, range);
        self.check_ahead(who, range);
        self.check_behind(who, range, trusted_ns);
        self.check_behind_true_time(who, range, is_proved);
        self.check_interval(who, range, monotonic_ns);
        self.check_late(who, range, trusted_ns);
    }

    /// An answer leaves: from now on it may be known to anybody.
    pub(crate) fn answered(&mut self, given: Given) {
        self.check_unique(given);
        self.check_order(given);
        self.check_advanced(given);
        self.check_told_once(given.who, given.request.asker);
        self.check_count(given);
        self.given.insert(given.range.first(), given.range.last());
        self.given_max = self.given_max.max(Some(given.range.last()));
    }

    fn check_unique(&mut self, Given { who, range, .. }: Given) {
        let below = self.given.range(..=range.last()).next_back();
        if below.is_some_and(|(_, last)| *last >= range.first()) {
            self.violate(Invariant::Unique, || format!("node {} gave {range:?} again", who.node));
        }
    }

    fn check_order(&mut self, Given { who, request, range }: Given) {
        if Some(range.first()) <= request.floor {
            let Request { asker, floor, arrived_ns, .. } = request;
            self.violate(Invariant::Order, || {
                format!(
                    "node {} gave {:?} to {asker:?}, which arrived at {arrived_ns}, when {floor:?} \
                     was complete",
                    who.node,
                    range.first()
                )
            });
        }
    }

    fn check_advanced(&mut self, Given { who, request, range }: Given) {
        if request.above > Epoch(0) && range.first().epoch <= request.above {
            self.violate(Invariant::Advanced, || {
                format!(
                    "node {} gave {:?} to {request:?}, and the epoch had been moved",
                    who.node,
                    range.first()
                )
            });
        }
    }

    /// Somebody is about to ask for the epoch to be moved to `to`; returns what was asked for before.
    pub(crate) fn advance_asked(&mut self, to: Epoch) -> Epoch {
        let before = self.advance_asked_max;
        self.advance_asked_max = before.max(to);
        before
    }

    /// It was refused.
    pub(crate) const fn advance_refused(&mut self, asked_before: Epoch) {
        self.advance_asked_max = asked_before;
    }

    /// A node has taken the order to move the epoch to `to`, which may be `allowed_ns` ahead.
    pub(crate) fn advance_taken(&mut self, who: NodeId, to: Epoch, allowed_ns: u64) {
        let ahead_ns = to.0.saturating_sub(self.trusted_max_ns);
        if ahead_ns > allowed_ns {
            self.violate(Invariant::Bound, || {
                format!("node {who} moves the epoch {ahead_ns} ns ahead, {allowed_ns} are allowed")
            });
        }
    }

    /// An operator is told that the epoch was moved.
    pub(crate) fn advanced(&mut self, to: Epoch) {
        self.advanced = self.advanced.max(to);
    }

    /// What every request that arrives now must be answered above.
    pub(crate) const fn above(&self) -> Epoch {
        self.advanced
    }

    fn check_count(&mut self, Given { request, range, .. }: Given) {
        if range.count() != request.count {
            self.violate(Invariant::ToldOnce, || format!("{request:?} got {range:?}"));
        }
    }

    /// A request arrives on a run.
    pub(crate) fn arrived(&mut self, who: Identity, asker: Asker, now_ns: u64) {
        self.waiting.entry(who.boot).or_default().insert(asker, now_ns);
    }

    /// A request is refused.
    pub(crate) fn refused(&mut self, who: Identity, asker: Asker) {
        self.check_told_once(who, asker);
    }

    /// A run has ended; nobody waits for it any more.
    pub(crate) fn ended(&mut self, boot: BootId) {
        self.waiting.remove(&boot);
        self.heard_ns.remove(&boot);
        self.goes_by.remove(&boot);
        self.moved.remove(&boot);
        self.quorums.end(boot);
    }

    /// One that arrived by then on a run that lives on, and was never told anything.
    pub(crate) fn untold(&self, by_ns: u64) -> Option<Asker> {
        let mut waiting = self.waiting.values().flatten();
        waiting.find(|(_, since_ns)| **since_ns <= by_ns).map(|(asker, _)| *asker)
    }

    /// Neither twice, nor first no and then something, nor whoever did not ask.
    fn check_told_once(&mut self, who: Identity, asker: Asker) {
        let waiting = self.waiting.get_mut(&who.boot);
        if waiting.is_none_or(|waiting| waiting.remove(&asker).is_none()) {
            self.violate(Invariant::ToldOnce, || {
                format!("node {} tells {asker:?} something that was told already", who.node)
            });
        }
    }

    fn check_allocator_rises(&mut self, who: Identity, range: TimestampRange) {
        let last = self.stamped_max.insert(who.boot, range.last());
        if last.is_some_and(|last| last >= range.first()) {
            self.violate(Invariant::AllocatorRises, || {
                format!("node {} stamped {last:?}, then {range:?}", who.node)
            });
        }
    }

    fn check_inside_owned_range(&mut self, who: Identity, term: Term, range: TimestampRange) {
        let epoch = range.first().epoch;
        let owned = self.owned.range(epoch..).next().map(|(_, owned)| *owned);
        let me = Owner { term, node: who.node, boot: who.boot };
        let is_own = owned.is_some_and(|(range, owner)| range.contains(epoch) && owner == me);
        if !is_own {
            self.violate(Invariant::InsideOwnedRange, || {
                format!("{me:?} stamped {epoch} of {owned:?}")
            });
        }
    }

    /// S11: ahead of true time, while a majority of clocks is healthy, by no more than a believed
    /// clock may be off; and always ahead of the latest time that anybody trusted by no more than the
    /// reservation, and the least widths of reservations that were made behind the ceiling.
    fn check_ahead(&mut self, who: Identity, range: TimestampRange) {
        let believable = self.believable.filter(|_| !self.is_clock_unproved);
        let clocks_ns = believable.map_or(u64::MAX, |(_, latest)| latest).min(self.trusted_max_ns);
        // Or ahead of what operators have asked for.
        let asked_ns = clocks_ns.max(self.advance_asked_max.0);
        let ahead_ns = range.first().epoch.0.saturating_sub(asked_ns);
        if ahead_ns > self.longest.window_ns() + WIDTHS_NS {
            self.violate(Invariant::Bound, || {
                format!("node {} stamped {:?}, {ahead_ns} ns ahead", who.node, range.first())
            });
        }
    }

    /// While clocks are healthy, behind the leader's trusted time by no more than the interval;
    /// but for the last epoch of a range, where it stands still until the next one is assigned.
    fn check_behind(&mut self, who: Identity, range: TimestampRange, trusted_ns: u64) {
        let epoch = range.first().epoch;
        let behind_ns = trusted_ns.saturating_sub(epoch.0);
        let interval_ns = self.longest.interval_ns() + BEHIND_NS;
        let is_late = behind_ns > interval_ns && !self.owned.contains_key(&epoch);
        if is_late && self.is_healthy {
            self.violate(Invariant::Bound, || {
                format!("node {} stamped {epoch}, {behind_ns} ns behind its clock", who.node)
            });
        }
    }

    /// S11, the other side: behind true time, while a majority of clocks is healthy, by no more than a
    /// believed clock may be off and the interval; but for the last epoch of a range. Whoever has
    /// started and knows clocks that disagree, none of them a majority's, takes the earliest that it
    /// may, and is behind if that one is wrong.
    fn check_behind_true_time(&mut self, who: Identity, range: TimestampRange, is_proved: bool) {
        let epoch = range.first().epoch;
        let Some((earliest_ns, _)) = self.believable else { return };
        // Such an epoch stands until its interval has passed, also when a majority is heard meanwhile.
        let is_known = self.guessed.get(&who.boot) == Some(&epoch);
        let is_guessed = !self.is_healthy && (!is_proved || is_known);
        if is_guessed {
            self.guessed.insert(who.boot, epoch);
        }
        let behind_ns = earliest_ns.saturating_sub(epoch.0);
        let interval_ns = self.longest.interval_ns() + BEHIND_NS;
        if behind_ns <= interval_ns || self.owned.contains_key(&epoch) {
            return;
        }
        if is_guessed {
            self.is_guessed_behind = true;
            return;
        }
        self.violate(Invariant::Bound, || {
            format!("node {} stamped {epoch}, {behind_ns} ns behind what is believable", who.node)
        });
    }

    /// A node has applied entries.
    pub(crate) fn applied(
        &mut self,
        who: Identity,
        index: LogIndex,
        state: &State,
        now: &Published,
    ) {
        if let Some(settings) = &state.settings {
            self.longest.take_in(index, settings);
        }
        self.check_ceiling(who, state);
        if let Some((owner, range)) = &state.owner {
            self.check_owned_once(*owner, *range);
        }
        self.check_ids(index, state);
        self.take_in_settings(who.boot, index, state);
        self.check_equal_state(who, index, state, now);
    }

    /// What a node knows of removals is not asked: it may have forgotten them.
    fn check_ids(&mut self, index: LogIndex, state: &State) {
        for node in &state.removed {
            let at = self.removed.entry(*node).or_insert(index);
            *at = index.min(*at);
        }
        let was_removed = |node: &&NodeId| self.removed.get(*node).is_some_and(|at| *at < index);
        if let Some(node) = state.members.keys().find(was_removed).copied() {
            self.violate(Invariant::Ids, || format!("{node} was removed and is a member again"));
        }
    }

    fn check_ceiling(&mut self, who: Identity, state: &State) {
        let before = self.ceilings.insert(who.boot, state.ceiling);
        if before.is_some_and(|before| before > state.ceiling) {
            self.violate(Invariant::Ranges, || format!("the ceiling of {} went back", who.node));
        }
        // S11: it rises with trusted time, and beyond it only as far as operators have asked.
        let reached_ns = self.trusted_max_ns.max(self.advance_asked_max.0);
        let ahead_ns = state.ceiling.0.saturating_sub(reached_ns);
        if ahead_ns > 2 * self.longest.window_ns() + WIDTHS_NS {
            self.violate(Invariant::Bound, || {
                format!(
                    "the ceiling of {} is {ahead_ns} ns ahead of all that was trusted",
                    who.node
                )
            });
        }
    }

    fn check_owned_once(&mut self, owner: Owner, range: EpochRange) {
        let next = self.owned.range(Epoch(range.low.0 + 1)..).next().map(|(_, owned)| *owned);
        match next {
            Some(known) if known == (range, owner) => {}
            Some((other, known)) if other.low < range.high => {
                self.violate(Invariant::Ranges, || {
                    format!("{range:?} belongs to {owner:?}, {other:?} to {known:?}")
                });
            }
            _ => {
                self.owned.insert(range.high, (range, owner));
            }
        }
    }

    fn check_equal_state(
        &mut self,
        who: Identity,
        index: LogIndex,
        state: &State,
        now: &Published,
    ) {
        let state = state.encode();
        let voters = &now.voters;
        // Both halves of a joint configuration, and the data directories.
        let known = self.states.entry(index).or_insert_with(|| (state.clone(), voters.clone()));
        let (is_state, is_voters) = (known.0 == state, known.1 == *voters);
        if !is_state {
            let what = || format!("the state of node {} differs at index {index}", who.node);
            self.violate(Invariant::Ranges, what);
        }
        if !is_voters {
            let what = || format!("node {} publishes {voters:?} at index {index}", who.node);
            self.violate(Invariant::Voters, what);
        }
    }

    /// A node has published, and promised so much before. Only here counts what it believes of its own
    /// grant; while a bug is planted nobody asks this.
    pub(crate) fn check_published(&mut self, published: &Published, promise: Term) {
        let me = published.identity;
        if published.term > promise {
            self.violate(Invariant::PromiseFirst, || {
                format!(
                    "node {} publishes term {}, and has promised {promise}",
                    me.node, published.term
                )
            });
        }
        let Some(grant) = published.grant else { return };
        let leader = *self.leaders.entry(grant.term).or_insert((me.node, me.boot));
        let is_own = grant.boot == me.boot && grant.term == published.term;
        if published.role != Role::Leader || !is_own || leader != (me.node, me.boot) {
            self.violate(Invariant::Publication, || {
                format!(
                    "node {} keeps {grant:?} in term {}, led by {leader:?}",
                    me.node, published.term
                )
            });
        }
    }

    /// Keeps the first violation.
    pub(crate) fn violate(&mut self, invariant: Invariant, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(Violation { invariant, what: what() });
        }
    }
}

/// What a clock that is off in rate by 200 ppm adds to an interval, and more.
const BEHIND_NS: u64 = 1_000_000;
/// What reservations behind the ceiling may add to it in a run: a thousand of them.
const WIDTHS_NS: u64 = 1_000_000;
