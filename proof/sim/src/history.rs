//! The history of a run and its checkers. A checker states what an observer demands who sees every
//! node and every answer. Each invariant of `docs/safety.md` has one function. The checks run at
//! every step on the whole history so far, and the first violation ends the run. Wherever the
//! history has the information, the checkers do not rely on the core's own state.

pub(crate) mod asking;
pub(crate) mod handovers;
mod invariant;
pub(crate) mod longest;
mod messages;
pub(crate) mod orders;
pub(crate) mod prudence;
pub(crate) mod quorums;
mod ranges;
mod removals;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use epicepoch_core::publication::{Identity, Published, Role};
use epicepoch_core::quorum::Voters;
use epicepoch_core::sequencer::LATEST;
use epicepoch_core::state::{Owner, State};
use epicepoch_wire::{BootId, Epoch, LogIndex, NodeId, StoreId, Term, Timestamp, TimestampRange};

use crate::event::{Asker, Request};
use handovers::Handovers;
pub use invariant::{Invariant, Violation};
use longest::Longest;
use quorums::Quorums;
use ranges::Ranges;
use settings::BEHIND_NS;

/// An answer that leaves a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    pub(crate) who: Identity,
    pub(crate) request: Request,
    pub(crate) range: TimestampRange,
}

/// The trusted time that a node uses when it takes timestamps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trusted {
    pub(crate) ns: u64,
    /// Whether the clocks of a majority have agreed at least once since the node started.
    pub(crate) is_proved: bool,
    /// The node's monotonic clock, nanoseconds.
    pub(crate) monotonic_ns: u64,
}

/// Everything that was observed in a run.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// The range of every answer: the last timestamp, by the first one.
    given: BTreeMap<Timestamp, Timestamp>,
    given_max: Option<Timestamp>,
    /// The highest latest timestamp that was answered.
    shown_max: Option<Timestamp>,
    stamped_max: BTreeMap<BootId, Timestamp>,
    /// The highest latest timestamp of each boot. Its clients may have gone before the answer.
    latest_max: BTreeMap<BootId, Timestamp>,
    /// The highest compact timestamp that each boot took.
    spelled_max: BTreeMap<BootId, u64>,
    /// An index at which compact timestamps were in effect on some node.
    compact_at: Option<LogIndex>,
    /// The highest term in which a timestamp was taken.
    stamped_in: Term,
    /// The requests that have no answer yet, by the boot at which they arrived, each with its time
    /// of arrival.
    waiting: BTreeMap<BootId, BTreeMap<Asker, u64>>,
    leaders: BTreeMap<Term, (NodeId, BootId)>,
    /// Number of terms with an acting leader in earlier histories of the cluster.
    led_before: usize,
    /// Votes, by the voter's data directory and term.
    votes: BTreeMap<(StoreId, Term), NodeId>,
    /// Terms of the entries that leaders have sent, by the leader's term and the log index.
    sent: BTreeMap<(Term, LogIndex), Term>,
    /// When each boot last accepted a message of each node, on the boot's own clock, nanoseconds.
    heard_ns: BTreeMap<BootId, BTreeMap<NodeId, u64>>,
    /// The highest term in an accepted message of each node, and the boot that sent it.
    taken: BTreeMap<NodeId, (Term, BootId)>,
    ranges: Ranges,
    handovers: Handovers,
    states: BTreeMap<LogIndex, (Vec<u8>, Voters)>,
    /// The settings at each applied index, as the first node had them there. `goes_by` has the
    /// settings in effect for each boot.
    settings: BTreeMap<LogIndex, Option<settings::Counting>>,
    goes_by: BTreeMap<BootId, settings::GoesBy>,
    /// The last epoch of each boot, and when the boot moved there on its own clock.
    moved: BTreeMap<BootId, (Epoch, u64)>,
    /// The boots whose epoch may move before the interval has passed, because they have offered
    /// leadership and may have withdrawn their grant.
    moves_freely: BTreeSet<BootId>,
    pub(crate) quorums: Quorums,
    ceilings: BTreeMap<BootId, Epoch>,
    /// Every id that was removed, and the lowest index at which a node was seen to know it.
    removed: BTreeMap<NodeId, LogIndex>,
    /// The members that have confirmed its node's removal to each boot.
    removals: BTreeMap<BootId, removals::Confirmed>,
    /// The latest time that any node has trusted, Unix nanoseconds.
    pub(crate) trusted_max_ns: u64,
    /// The latest epoch that clocks and operators explain. Compact timestamps rise on from there as
    /// time passes (S21). The second field is the true time at which this was computed, nanoseconds.
    reached_ns: (u64, u64),
    /// The earliest and latest time that a believed clock can show: true time minus and plus the
    /// clocks' largest error. Set while a majority of the clocks has been healthy since the run
    /// began.
    pub(crate) believable: Option<(u64, u64)>,
    /// Whether a leader has for too long heard too few clocks to know a majority's time. It then
    /// uses the clocks that it knows, which is a known gap of S11.
    pub(crate) is_clock_unproved: bool,
    /// Whether all clocks are healthy.
    pub(crate) is_healthy: bool,
    /// The last epoch that each boot stamped before a majority of clocks had proved its clock
    /// right. `is_guessed_behind` is set if any such epoch was behind.
    guessed: BTreeMap<BootId, Epoch>,
    pub(crate) is_guessed_behind: bool,
    /// The epoch to which operators have moved the cluster. `advance_asked_max` is the highest
    /// epoch that operators requested.
    advanced: Epoch,
    advance_asked_max: Epoch,
    orders: orders::Orders,
    /// The longest window, interval and clock bound that were ever in effect.
    pub(crate) longest: Longest,
    pub(crate) violation: Option<Violation>,
}

impl History {
    /// The highest timestamp given so far. A request that arrives now must be answered above it.
    pub(crate) const fn floor(&self) -> Option<Timestamp> {
        self.given_max
    }

    /// The highest latest timestamp answered so far. A request that arrives now must be answered
    /// above it, or get a latest timestamp that is not below it.
    pub(crate) const fn shown(&self) -> Option<Timestamp> {
        self.shown_max
    }

    /// How many terms had an acting leader.
    pub(crate) fn leaderships(&self) -> usize {
        self.led_before + self.leaders.len()
    }

    /// Whether a leader of a higher term has acted.
    pub(crate) fn has_led_after(&self, term: Term) -> bool {
        self.leaders.last_key_value().is_some_and(|(last, _)| *last > term)
    }

    /// How many ranges were assigned.
    pub(crate) fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// Records that all data was lost and a new history begins above `floor`. Terms, indexes and
    /// votes begin anew. Given timestamps, owned ranges, and the removed ids that the backup knew,
    /// remain.
    pub(crate) fn restored(&mut self, floor: Epoch, removed: &[NodeId]) {
        self.check_floor(floor);
        let led_before = self.leaderships();
        let before = std::mem::take(self);
        *self = Self {
            given: before.given,
            given_max: before.given_max,
            shown_max: before.shown_max,
            ranges: before.ranges.restored(),
            led_before,
            removed: removed.iter().map(|node| (*node, LogIndex(0))).collect(),
            trusted_max_ns: before.trusted_max_ns,
            reached_ns: before.reached_ns,
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

    /// Declares all clocks right within `believable` from now on. The caller must know that they
    /// have been right since the oldest sample that any node uses. Earlier clock errors then no
    /// longer excuse a violation of promise 3. An epoch up to the present ceiling is still allowed.
    pub(crate) fn settle(&mut self, believable: (u64, u64)) {
        let ceiling = self.ceilings.values().copied().max().unwrap_or(Epoch(0));
        self.advance_asked_max = ceiling;
        self.trusted_max_ns = believable.1;
        self.reached_ns.0 = 0;
        self.believable = Some(believable);
        (self.is_healthy, self.is_clock_unproved) = (true, false);
    }

    /// S13: no epoch that was given, or that an owner could have given, is above `floor`.
    fn check_floor(&mut self, floor: Epoch) {
        let given = self.given_max.max(self.shown_max).map_or(Epoch(0), |given| given.epoch);
        let highest = given.max(self.ranges.highest());
        if highest > floor {
            self.violate(Invariant::Restored, || {
                format!("a history begins above {floor}, and {highest} can have been given")
            });
        }
    }

    /// A worker has taken timestamps. Their answer has not left yet.
    pub(crate) fn stamped(
        &mut self,
        who: Identity,
        term: Term,
        range: TimestampRange,
        Trusted { ns: trusted_ns, is_proved, monotonic_ns }: Trusted,
    ) {
        self.stamped_in = self.stamped_in.max(term);
        self.check_allocator_rises(who, range);
        self.check_compact(who, range);
        self.check_inside_owned_range(who, term, range.first().epoch);
        self.check_ahead(who, term, range);
        self.check_behind(who, range, trusted_ns);
        self.check_behind_true_time(who, range, is_proved);
        self.check_interval(who, range, monotonic_ns);
        self.check_late(who, range, trusted_ns);
    }

    /// S20: a lease proves a batch of a leader of `term`.
    pub(crate) fn proved_by_lease(&mut self, who: Identity, term: Term) {
        let later = self.stamped_in;
        if later > term {
            self.violate(Invariant::Lease, || {
                format!("node {} uses the lease of {term}, and {later} has answered", who.node)
            });
        }
    }

    /// An answer leaves its node. From now on any client may know it.
    pub(crate) fn answered(&mut self, given: Given) {
        if given.request.count == LATEST {
            self.check_latest(given);
            self.check_advanced(given);
            self.check_told_once(given.who, given.request.asker);
            self.check_count(given);
            self.shown_max = self.shown_max.max(Some(given.range.last()));
            return;
        }
        self.check_unique(given);
        self.check_order(given);
        self.check_latest(given);
        self.check_advanced(given);
        self.check_told_once(given.who, given.request.asker);
        self.check_count(given);
        self.given.insert(given.range.first(), given.range.last());
        self.given_max = self.given_max.max(Some(given.range.last()));
    }

    /// A leader has read its latest timestamp for a batch.
    pub(crate) fn shows(&mut self, boot: BootId, latest: Timestamp) {
        let highest = self.latest_max.entry(boot).or_insert(latest);
        *highest = latest.max(*highest);
    }

    /// The last epoch that a boot stamped or showed as its latest one.
    fn used_epoch(&self, boot: BootId) -> Epoch {
        let used = self.stamped_max.get(&boot).max(self.latest_max.get(&boot));
        used.map_or(Epoch(0), |last| last.epoch)
    }

    fn check_unique(&mut self, Given { who, range, .. }: Given) {
        let below = self.given.range(..=range.last()).next_back();
        if below.is_some_and(|(_, last)| *last >= range.first()) {
            self.violate(Invariant::Unique, || format!("node {} gave {range:?} again", who.node));
        }
    }

    /// S19, for both kinds of answers.
    fn check_latest(&mut self, Given { who, request, range }: Given) {
        let Request { count, floor, shown, arrived_ns, .. } = request;
        let own = Some(range.first());
        let is_right = if count == LATEST { own >= floor && own >= shown } else { own > shown };
        if !is_right {
            self.violate(Invariant::Latest, || {
                format!(
                    "node {} answers {range:?} to {request:?}, which arrived at {arrived_ns}, when \
                     {floor:?} was complete and {shown:?} was said to be the latest",
                    who.node
                )
            });
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
        let epoch = range.first().epoch;
        let is_latest = request.count == LATEST;
        let is_above = epoch > request.above || is_latest && epoch == request.above;
        if request.above > Epoch(0) && !is_above {
            self.violate(Invariant::Advanced, || {
                format!(
                    "node {} gave {:?} to {request:?}, and the epoch had been moved",
                    who.node,
                    range.first()
                )
            });
        }
    }

    /// Records that an operator is about to request that the epoch moves to `to`. Returns the
    /// highest epoch that was requested before.
    pub(crate) fn advance_asked(&mut self, to: Epoch) -> Epoch {
        let before = self.advance_asked_max;
        self.advance_asked_max = before.max(to);
        before
    }

    /// The request was refused, so the highest requested epoch goes back to `asked_before`.
    pub(crate) const fn advance_refused(&mut self, asked_before: Epoch) {
        self.advance_asked_max = asked_before;
    }

    /// A node has accepted a request to move the epoch to `to`. Checks that `to` is at most
    /// `allowed_ns` ahead of trusted time.
    pub(crate) fn advance_taken(&mut self, who: NodeId, to: Epoch, allowed_ns: u64) {
        let ahead_ns = to.0.saturating_sub(self.trusted_max_ns);
        if ahead_ns > allowed_ns {
            self.violate(Invariant::Bound, || {
                format!("node {who} moves the epoch {ahead_ns} ns ahead, {allowed_ns} are allowed")
            });
        }
    }

    /// A node has told an operator that the epoch was moved.
    fn advanced(&mut self, to: Epoch) {
        self.advanced = self.advanced.max(to);
    }

    /// The epoch that operators have moved to. A request that arrives now must be answered above
    /// it.
    pub(crate) const fn above(&self) -> Epoch {
        self.advanced
    }

    fn check_count(&mut self, Given { request, range, .. }: Given) {
        if range.count() != request.count.max(1) {
            self.violate(Invariant::ToldOnce, || format!("{request:?} got {range:?}"));
        }
    }

    /// Records a request that arrives at a process.
    pub(crate) fn arrived(&mut self, who: Identity, asker: Asker, now_ns: u64) {
        self.waiting.entry(who.boot).or_default().insert(asker, now_ns);
    }

    /// Records that a request is refused.
    pub(crate) fn refused(&mut self, who: Identity, asker: Asker) {
        self.check_told_once(who, asker);
    }

    /// Records that the client of a request has disconnected. From now on the request must get no
    /// answer.
    pub(crate) fn left(&mut self, who: Identity, asker: Asker) {
        self.check_told_once(who, asker);
    }

    /// A process has ended, and its requests have ended with it.
    pub(crate) fn ended(&mut self, boot: BootId) {
        self.waiting.remove(&boot);
        self.heard_ns.remove(&boot);
        self.goes_by.remove(&boot);
        self.moved.remove(&boot);
        self.moves_freely.remove(&boot);
        self.quorums.end(boot);
    }

    /// A request that arrived by `by_ns` at a process that still runs, and still has no answer.
    pub(crate) fn untold(&self, by_ns: u64) -> Option<Asker> {
        let mut waiting = self.waiting.values().flatten();
        waiting.find(|(_, since_ns)| **since_ns <= by_ns).map(|(asker, _)| *asker)
    }

    /// S10: a request gets exactly one answer or refusal, and an answer belongs to a request.
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

    /// A node trusts a time at the true time `now_ns`, nanoseconds. No machine's monotonic clock is
    /// faster than `rate` thousandths of true time.
    pub(crate) fn trusts(&mut self, now_ns: u64, trusted_ns: u64, rate: u64) {
        self.trusted_max_ns = self.trusted_max_ns.max(trusted_ns);
        let (reached_ns, at_ns) = self.reached_ns;
        let passed_ns = (now_ns - at_ns) * rate / 1_000;
        let risen_ns = if self.compact_at.is_some() { reached_ns + passed_ns } else { 0 };
        self.reached_ns = (self.explained_ns().max(risen_ns), now_ns);
    }

    /// The latest epoch that the clocks explain, or an operator who asked for it.
    fn explained_ns(&self) -> u64 {
        let believable = self.believable.filter(|_| !self.is_clock_unproved);
        let clocks_ns = believable.map_or(u64::MAX, |(_, latest)| latest).min(self.trusted_max_ns);
        clocks_ns.max(self.advance_asked_max.0)
    }

    /// S11: the epoch is ahead of the latest trusted time by at most the reservation window plus
    /// `widths_ns`. While a majority of clocks is healthy, it is also ahead of the latest time
    /// that a believed clock can show by at most as much.
    fn check_ahead(&mut self, who: Identity, term: Term, range: TimestampRange) {
        let asked_ns = self.explained_ns().max(self.reached_ns.0);
        let me = Owner { term, node: who.node, boot: who.boot };
        self.check_lead(me, range.first().epoch, asked_ns);
        let ahead_ns = range.first().epoch.0.saturating_sub(asked_ns);
        if ahead_ns > self.longest.window_ns() + self.widths_ns() {
            self.violate(Invariant::Bound, || {
                format!("node {} stamped {:?}, {ahead_ns} ns ahead", who.node, range.first())
            });
        }
    }

    /// While clocks are healthy, the epoch is behind the leader's trusted time by at most the
    /// interval. The last epoch of a range is an exception: it stands still until the next range is
    /// assigned.
    fn check_behind(&mut self, who: Identity, range: TimestampRange, trusted_ns: u64) {
        let epoch = range.first().epoch;
        let behind_ns = trusted_ns.saturating_sub(epoch.0);
        let more_ns = BEHIND_NS + self.behind_more_ns(who.boot);
        let interval_ns = self.longest.interval_ns() + more_ns;
        let is_late = behind_ns > interval_ns && !self.is_last(who.boot, epoch);
        if is_late && self.is_healthy {
            self.violate(Invariant::Bound, || {
                format!("node {} stamped {epoch}, {behind_ns} ns behind its clock", who.node)
            });
        }
    }

    /// S11, the other bound: while a majority of clocks is healthy, the epoch is behind true time
    /// by at most the error of a believed clock plus the interval. There are two exceptions. The
    /// last epoch of a range stands still. A node that has just started may know only clocks that
    /// disagree. It then uses the earliest allowed time, and is behind if that time is wrong.
    fn check_behind_true_time(&mut self, who: Identity, range: TimestampRange, is_proved: bool) {
        let epoch = range.first().epoch;
        let Some((earliest_ns, _)) = self.believable else { return };
        // An epoch that came from such a time stays until its interval has passed, even if the node
        // hears a majority of clocks meanwhile.
        let is_known = self.guessed.get(&who.boot) == Some(&epoch);
        let is_guessed = !self.is_healthy && (!is_proved || is_known);
        if is_guessed {
            self.guessed.insert(who.boot, epoch);
        }
        let behind_ns = earliest_ns.saturating_sub(epoch.0);
        let more_ns = BEHIND_NS + self.behind_more_ns(who.boot);
        let interval_ns = self.longest.interval_ns() + more_ns;
        if behind_ns <= interval_ns || self.is_last(who.boot, epoch) {
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
            self.longest.record(index, settings);
        }
        self.check_ceiling(who, state);
        self.check_ranges(index, state);
        self.check_ids(index, state);
        self.apply_settings(who.boot, index, state);
        self.check_equal_state(who, index, state, now);
    }

    /// The node's own list of removed ids is not used here, because the node may have forgotten
    /// some.
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
        // S11: the ceiling is at most two windows ahead of trusted time. Only a request of
        // operators raises it further.
        let reached_ns = self.trusted_max_ns.max(self.explained_ns()).max(self.reached_ns.0);
        let ahead_ns = state.ceiling.0.saturating_sub(reached_ns);
        if ahead_ns > 2 * self.longest.window_ns() + self.widths_ns() {
            self.violate(Invariant::Bound, || {
                format!(
                    "the ceiling of {} is {ahead_ns} ns ahead of all that was trusted",
                    who.node
                )
            });
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
        // The check also compares the voters: both halves of a joint configuration, each voter with
        // its data directory.
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

    /// Checks what a node has published while its Promise is at `promise`. Only this check uses a
    /// node's own view of its grant. It is off while a bug is planted.
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

    /// Records a violation. Only the first one is kept.
    pub(crate) fn violate(&mut self, invariant: Invariant, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(Violation { invariant, what: what() });
        }
    }
}
