//! The replicated state: the ceiling, the owner of the range below it, and the members. `apply` is
//! total and deterministic: a committed entry never fails, and a stale one is a no-op with a typed
//! outcome. It reads no clock. Only `apply` computes ranges.

mod command;
mod mode;

use std::collections::{BTreeMap, BTreeSet};

use epicepoch_wire::bootstrap::{Genesis, MEMBERS_MAX, Member};
use epicepoch_wire::cursor::{Reader, Writer};
use epicepoch_wire::interval::INTERVAL_NODE_MAX;
use epicepoch_wire::peer_hello::ADDR_LEN_MAX;
use epicepoch_wire::raft_message::Configuration;
use epicepoch_wire::settings::{CLOCK_OFFSET_MAX_MS, ClusterSettings, RESERVATION_MS};
use epicepoch_wire::{
    COMPACT_EPOCH_NS, ClusterId, DecodeError, Epoch, HistoryId, Mode, NodeId, StoreId, Term,
    TimestampFormat,
};

pub use command::{
    Command, FORMAT_OF_CLOSING, FORMAT_OF_COMPACT, FORMAT_OF_GIVING_BACK, FORMAT_OF_INTERVALS,
    FORMAT_OF_LEASES, FORMAT_OF_SETTINGS, FORMATS, MembershipChange, MembershipStep, Owner,
    REMOVED_MAX, check_readable,
};
pub use mode::IntervalMode;

use crate::allocator::COMPACT_LEAD_NS;
use crate::epoch_range::EpochRange;
use command::{check_format, read_lease_ms};

/// An assigned range is at least this wide, nanoseconds. A range gets exactly this width while the
/// clock is behind the ceiling. It has enough epochs for a hundred seconds at the default interval;
/// after that, the epoch stands still and the index rises. A thousand leaders in a row push the
/// ceiling ahead by only a millisecond.
pub const WIDTH_MIN_NS: u64 = 1_000;

/// If timestamps are compact, a leader asks for a range that is at least this wide, nanoseconds: as
/// far as an allocator may run ahead of the clock ([`COMPACT_LEAD_NS`]), and three milliseconds,
/// because up to two at the beginning of a range and a part of one at its end are not used. Apply
/// knows only [`WIDTH_MIN_NS`]: a reservation that a leader makes for another reason, such as a
/// lease, must not move the ceiling further.
pub const COMPACT_WIDTH_MIN_NS: u64 = COMPACT_LEAD_NS + 3 * COMPACT_EPOCH_NS;

/// The effect of a committed entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The range was assigned to the owner.
    Assigned(Owner, EpochRange),
    /// The end of the owner's range was given back: the next range begins here.
    GivenBack(Owner, EpochRange),
    /// The entry's moment has passed, so it changed nothing. For example, the proposer's term was
    /// not the entry's term.
    Stale,
    /// No epoch is left below 2^64 nanoseconds (the year 2554).
    Exhausted,
    /// A member's addresses were changed.
    Readdressed(NodeId),
    /// State and log are of this format from now on.
    Raised(u32),
    /// The settings have the requested values from now on.
    Set,
    /// Interval mode has ended: every interval timestamp is at or below this epoch, and every later
    /// range is above it.
    IntervalsEnded(Epoch),
    /// The membership change can never be made; the reason is for people.
    Refused(&'static str),
    /// The members changed as requested.
    Changed,
    /// The entry changes nothing in the state: a leader's empty first entry, or a release.
    Nothing,
}

/// The replicated state at one applied index.
///
/// Invariant: neither the ceiling (S5) nor the format (S15) goes back. The range of the last owner
/// ends at or below the ceiling. Every node id is bound to one store id for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The format of the state, and of later log entries; every member reads it (S15).
    pub format: u32,
    /// The cluster.
    pub cluster: ClusterId,
    /// Its history.
    pub history: HistoryId,
    /// The ceiling: no epoch above it was ever assigned.
    pub ceiling: Epoch,
    /// The owner of the last range, and the range. From format 4 on, ranges that follow each other
    /// and have one owner are one range. The next range begins at its end, which is below the
    /// ceiling if the owner has given some of it back. Then the range may be empty.
    pub owner: Option<(Owner, EpochRange)>,
    /// The members, voters and learners.
    pub members: BTreeMap<NodeId, Member>,
    /// Ids that were removed.
    pub removed: BTreeSet<NodeId>,
    /// The settings of the cluster; `None` below format 3, and before a leader has seeded them.
    pub settings: Option<ClusterSettings>,
    /// The longest `RESERVATION_MS` ever in the state, milliseconds: the ceiling may be that far
    /// ahead of trusted time (S11).
    pub reservation_longest_ms: u64,
    /// The widest `CLOCK_OFFSET_MAX_MS` ever in the state, milliseconds: trusted time, and so a
    /// reservation, may still be that far off (S13).
    pub clock_offset_widest_ms: u64,
    /// The longest lease ever in the state, milliseconds; 0 if there was none. A node that has the
    /// state, and not the entries before it, waits for such a lease (S20).
    pub lease_longest_ms: u64,
    /// Interval mode; `None` in quorum mode (S24, S26).
    pub intervals: Option<IntervalMode>,
    /// How often the mode has changed, from format 8 on: the number of the last change. Interval mode
    /// begins, begins to close, or goes on instead.
    pub mode_changes: u64,
}

impl State {
    /// The state of a new cluster.
    #[must_use]
    pub fn new(genesis: &Genesis) -> Self {
        let members = genesis.members.iter().map(|member| (member.node, member.clone()));
        Self {
            // The oldest format, which every version reads: a founder does not know the others'
            // versions.
            format: FORMATS.oldest,
            cluster: genesis.cluster,
            history: genesis.history,
            // S13: the first range begins above every epoch that an earlier history can have given.
            ceiling: genesis.floor,
            owner: None,
            members: members.collect(),
            removed: genesis.removed.iter().copied().collect(),
            settings: None,
            reservation_longest_ms: 0,
            clock_offset_widest_ms: 0,
            lease_longest_ms: 0,
            intervals: None,
            mode_changes: 0,
        }
    }

    /// Applies a command that was committed in `term`.
    ///
    /// # Panics
    /// When an invariant is broken (S5).
    pub fn apply(&mut self, term: Term, command: &Command) -> Outcome {
        match command {
            Command::Reserve { owner, until, lease_ms } => {
                self.lease_longest_ms = self.lease_longest_ms.max(*lease_ms);
                self.reserve(term, *owner, *until)
            }
            Command::Release { .. } => Outcome::Nothing,
            Command::GiveBack { owner, range } => self.give_back(term, *owner, *range),
            Command::Readdress(member) => match self.members.get_mut(&member.node) {
                Some(known) if known.store == member.store => {
                    known.clone_from(member);
                    Outcome::Readdressed(member.node)
                }
                _ => Outcome::Refused("no such member with this data directory"),
            },
            // S15: the format rises by one at a time, and never goes back.
            Command::Raise(to) if *to == self.format + 1 => {
                self.format = *to;
                // Which of the removed nodes were members in interval mode is not known.
                if let Some(it) = self.intervals.as_mut().filter(|_| *to == FORMAT_OF_CLOSING) {
                    it.removed.clone_from(&self.removed);
                }
                Outcome::Raised(*to)
            }
            Command::Raise(_) => Outcome::Stale,
            Command::Settings { is_seed: true, .. } if self.settings.is_some() => Outcome::Stale,
            Command::Settings { settings, .. } => self.set(settings),
            Command::EndIntervals { change, highest_ns, stopped } => {
                self.end_intervals(*change, *highest_ns, stopped)
            }
        }
    }

    /// Applies settings. Every version that reads the format decides the same, because the format
    /// fixes the allowed values.
    fn set(&mut self, settings: &ClusterSettings) -> Outcome {
        if self.format < FORMAT_OF_SETTINGS {
            return Outcome::Refused("the state has no room for settings yet");
        }
        if settings.check().is_err() {
            return Outcome::Refused("settings that may not be");
        }
        if !settings.is_without_leases() && self.format < FORMAT_OF_LEASES {
            return Outcome::Refused("the state has no room for leases yet");
        }
        match (self.timestamp_format(), settings.timestamp_format) {
            (TimestampFormat::Wide, TimestampFormat::Compact)
                if self.format < FORMAT_OF_COMPACT =>
            {
                return Outcome::Refused("the state has no room for compact timestamps yet");
            }
            // S21: users may have keys of 64 bits by now.
            (TimestampFormat::Compact, TimestampFormat::Wide) => {
                return Outcome::Refused("timestamps stay compact");
            }
            (TimestampFormat::Wide, _) | (TimestampFormat::Compact, TimestampFormat::Compact) => {}
        }
        let (beyond, ceiling) = (self.node_beyond_intervals(), self.ceiling);
        let (intervals, format) = (&mut self.intervals, self.format);
        match mode::change(intervals, settings, format, ceiling, beyond) {
            Err(reason) => return Outcome::Refused(reason),
            Ok(is_new) => self.mode_changes += u64::from(is_new && format >= FORMAT_OF_CLOSING),
        }
        self.reservation_longest_ms = self.reservation_longest_ms.max(settings.reservation_ms);
        let bound_ms = settings.clock_offset_max_ms;
        self.clock_offset_widest_ms = self.clock_offset_widest_ms.max(bound_ms);
        self.settings = Some(settings.clone());
        Outcome::Set
    }

    fn reserve(&mut self, term: Term, owner: Owner, until: Epoch) -> Outcome {
        // A proposal that reached the log in another term owns nothing, because its proposer may
        // have been deposed in between.
        if owner.term != term {
            return Outcome::Stale;
        }
        let low = self.range_end();
        let high = until.max(Epoch(low.0.saturating_add(WIDTH_MIN_NS)));
        if high == low {
            return Outcome::Exhausted;
        }
        // S5: a range begins where the last one ended, so that no two owners ever share an epoch.
        assert!(low <= self.ceiling, "S5: a range would begin above the ceiling");
        let range = EpochRange { low, high };
        self.ceiling = self.ceiling.max(high);
        let first_low = match self.owner {
            Some((last, held)) if last == owner && self.format >= FORMAT_OF_GIVING_BACK => held.low,
            _ => low,
        };
        self.owner = Some((owner, EpochRange { low: first_low, high }));
        Outcome::Assigned(owner, range)
    }

    /// Ends the owner's range earlier (S18). The ceiling stays: it is a bound of everything that
    /// was ever assigned, which a restore (S13) and a start (S11) rely on.
    fn give_back(&mut self, term: Term, owner: Owner, range: EpochRange) -> Outcome {
        let is_of_format = self.format >= FORMAT_OF_GIVING_BACK;
        let Some((last, held)) = self.owner.filter(|_| is_of_format && owner.term == term) else {
            return Outcome::Stale;
        };
        let is_its_end = held.low <= range.low && range.low < range.high;
        if last != owner || range.high != held.high || !is_its_end {
            return Outcome::Stale;
        }
        self.owner = Some((owner, EpochRange { low: held.low, high: range.low }));
        Outcome::GivenBack(owner, range)
    }

    /// Which timestamps the cluster gives (S21).
    #[must_use]
    pub fn timestamp_format(&self) -> TimestampFormat {
        self.settings.as_ref().map_or_else(TimestampFormat::default, |it| it.timestamp_format)
    }

    /// How the cluster gives timestamps (S24). While interval mode closes, this is interval mode.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        if self.intervals.is_some() { Mode::Interval } else { Mode::Quorum }
    }

    /// The number of the change by which interval mode closes; `None` if it does not.
    #[must_use]
    pub fn closing(&self) -> Option<u64> {
        self.intervals.as_ref().filter(|it| it.is_closing).map(|_| self.mode_changes)
    }

    /// A member whose id does not fit into an interval timestamp.
    #[must_use]
    pub fn node_beyond_intervals(&self) -> Option<NodeId> {
        self.members.keys().copied().find(|node| node.0 > INTERVAL_NODE_MAX)
    }

    /// The nodes that must have stopped before interval mode ends: the members, and those that were
    /// removed in interval mode.
    pub fn may_give_intervals(&self) -> impl Iterator<Item = NodeId> {
        let removed = self.intervals.iter().flat_map(|it| &it.removed);
        self.members.keys().chain(removed).copied()
    }

    /// Ends interval mode, if it closes by this change and each node that may give interval timestamps
    /// has stopped. None of them has given a timestamp above `highest_ns`.
    fn end_intervals(
        &mut self,
        change: u64,
        highest_ns: u64,
        stopped: &BTreeSet<NodeId>,
    ) -> Outcome {
        let has_stopped = |node: NodeId| stopped.contains(&node);
        if self.closing() != Some(change) || !self.may_give_intervals().all(has_stopped) {
            return Outcome::Stale;
        }
        // S26: every range from here on begins at the ceiling. No leader has published a range that
        // it reserved in interval mode.
        self.ceiling = self.ceiling.max(Epoch(highest_ns));
        self.owner = None;
        self.intervals = None;
        Outcome::IntervalsEnded(self.ceiling)
    }

    /// A range that a leader can use is at least this wide, nanoseconds.
    #[must_use]
    pub fn width_min_ns(&self) -> u64 {
        match self.timestamp_format() {
            TimestampFormat::Wide => WIDTH_MIN_NS,
            TimestampFormat::Compact => COMPACT_WIDTH_MIN_NS,
        }
    }

    /// The end of the last range: the next one begins above it (S5).
    #[must_use]
    pub fn range_end(&self) -> Epoch {
        self.owner.map_or(self.ceiling, |(_, range)| range.high)
    }

    /// Checks that a membership change can be made at all, in whatever configuration.
    ///
    /// # Errors
    /// The reason, for people.
    pub fn check_change(&self, change: &MembershipChange) -> Result<(), &'static str> {
        if change.steps.is_empty() {
            return Err("a change of nothing");
        }
        let mut named = BTreeSet::new();
        for step in &change.steps {
            let node = step.node();
            if !named.insert(node) {
                return Err("a node is named twice in one change");
            }
            match step {
                MembershipStep::AddLearner(member) => self.check_admission(member)?,
                MembershipStep::Promote(node) | MembershipStep::Remove(node) => {
                    if self.removed.contains(node) {
                        return Err("the node was removed already");
                    }
                    if !self.members.contains_key(node) {
                        return Err("no such member");
                    }
                }
            }
        }
        Ok(())
    }

    fn check_admission(&self, member: &Member) -> Result<(), &'static str> {
        self.check_vacancy(member.node)?;
        if self.members.values().any(|known| known.store == member.store) {
            return Err("the data directory belongs to another member");
        }
        Ok(())
    }

    /// Checks that a new member may have this id.
    ///
    /// # Errors
    /// The reason, for people.
    pub fn check_vacancy(&self, node: NodeId) -> Result<(), &'static str> {
        if node == NodeId(0) {
            return Err("0 names no node");
        }
        if self.removed.contains(&node) {
            return Err(
                "the id was removed, and ids are never used again: give the new node another \
                        NODE_ID",
            );
        }
        if self.members.contains_key(&node) {
            return Err("the id is that of a member already: give the new node another NODE_ID");
        }
        if self.mode() == Mode::Interval && node.0 > INTERVAL_NODE_MAX {
            return Err(
                "in interval mode, ids are at most 32767: give the new node a lower NODE_ID",
            );
        }
        // The removed ids must have room for every member, because each may be removed one day.
        let remembered = self.members.len() + self.removed.len();
        if self.members.len() >= MEMBERS_MAX || remembered >= REMOVED_MAX {
            return Err("the limit of members is reached");
        }
        Ok(())
    }

    /// Records a change after the Raft library has accepted its configuration.
    pub fn apply_change(
        &mut self,
        change: &MembershipChange,
        configuration: &Configuration,
    ) -> Outcome {
        for step in &change.steps {
            match step {
                MembershipStep::AddLearner(member) => {
                    self.members.insert(member.node, member.clone());
                }
                // `reconcile` removes members, once no half of a joint configuration names them.
                MembershipStep::Promote(_) | MembershipStep::Remove(_) => {}
            }
        }
        self.reconcile(configuration)
    }

    /// Forgets members that the configuration no longer names, and remembers their ids. An outgoing
    /// voter of a joint configuration stays bound to its data directory until the joint
    /// configuration is left: its votes still count.
    pub fn reconcile(&mut self, configuration: &Configuration) -> Outcome {
        let lists = [
            &configuration.voters,
            &configuration.learners,
            &configuration.voters_outgoing,
            &configuration.learners_next,
        ];
        let is_named = |node: &NodeId| lists.iter().any(|list| list.contains(node));
        let gone: Vec<_> = self.members.keys().copied().filter(|it| !is_named(it)).collect();
        for node in gone {
            self.members.remove(&node);
            self.removed.insert(node);
            if let Some(it) = self.intervals.as_mut().filter(|_| self.format >= FORMAT_OF_CLOSING) {
                it.removed.insert(node);
            }
        }
        Outcome::Changed
    }

    /// The store that a node id is bound to. 0 for an unknown node; no directory has that id.
    #[must_use]
    pub fn store_of(&self, node: NodeId) -> StoreId {
        self.members.get(&node).map_or(StoreId(0), |member| member.store)
    }

    /// Encodes the state for a record or a snapshot.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u8(u8::try_from(self.format).expect("a format that is read"));
        out.put_u128(self.cluster.0);
        out.put_u64(self.history.0);
        out.put_u64(self.ceiling.0);
        out.put_bool(self.owner.is_some());
        if let Some((owner, range)) = &self.owner {
            owner.encode(&mut out);
            out.put_u64(range.low.0);
            out.put_u64(range.high.0);
        }
        out.put_count(self.members.len());
        for member in self.members.values() {
            member.encode(&mut out);
        }
        out.put_count(self.removed.len());
        for node in &self.removed {
            out.put_u64(node.0);
        }
        if self.format >= FORMAT_OF_SETTINGS {
            out.put_u64(self.reservation_longest_ms);
            out.put_u64(self.clock_offset_widest_ms);
            out.put_bool(self.settings.is_some());
            if let Some(settings) = &self.settings {
                settings.encode(&mut out);
            }
        }
        if self.format >= FORMAT_OF_LEASES {
            out.put_u64(self.lease_longest_ms);
            if let Some(settings) = &self.settings {
                settings.encode_leases(&mut out);
            }
        }
        if self.format >= FORMAT_OF_COMPACT {
            out.put_bool(self.timestamp_format() == TimestampFormat::Compact);
        }
        mode::encode(self.intervals.as_ref(), self.mode_changes, self.format, &mut out);
        out
    }

    /// Reads what [`State::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are not a state, or a state of a newer format.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::decode_up_to(bytes, FORMATS.newest)
    }

    /// Like [`State::decode`], for a node that is configured to read no format above `newest`.
    ///
    /// # Errors
    /// When the bytes are not a state, or a state of a newer format.
    pub fn decode_up_to(bytes: &[u8], newest: u32) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let format = u32::from(reader.u8("state format")?);
        check_format("the state", format, newest)?;
        let cluster = ClusterId(reader.u128("cluster")?);
        let history = HistoryId(reader.u64("history")?);
        let ceiling = Epoch(reader.u64("ceiling")?);
        let owner = if reader.bool("has owner")? {
            let owner = Owner::read(&mut reader)?;
            let (low, high) = (Epoch(reader.u64("low")?), Epoch(reader.u64("high")?));
            // S5, S18: the next range begins at this end.
            if low > high || high > ceiling {
                return Err(DecodeError::BadValue { field: "high", value: high.0 });
            }
            Some((owner, EpochRange { low, high }))
        } else {
            None
        };
        let mut members = BTreeMap::new();
        for _ in 0..reader.count("members", MEMBERS_MAX)? {
            let member = Member::read(&mut reader)?;
            members.insert(member.node, member);
        }
        let mut removed = BTreeSet::new();
        for _ in 0..reader.count("removed", REMOVED_MAX)? {
            removed.insert(NodeId(reader.u64("removed")?));
        }
        let (mut settings, mut reservation_longest_ms, mut clock_offset_widest_ms) = (None, 0, 0);
        if format >= FORMAT_OF_SETTINGS {
            reservation_longest_ms = reader.u64("longest reservation")?;
            clock_offset_widest_ms = reader.u64("widest clock offset")?;
            if reader.bool("has settings")? {
                settings = Some(ClusterSettings::read(&mut reader)?);
            }
            check_settings(settings.as_ref(), reservation_longest_ms, clock_offset_widest_ms)?;
        }
        let mut lease_longest_ms = 0;
        if format >= FORMAT_OF_LEASES {
            lease_longest_ms = read_lease_ms(&mut reader)?;
            if let Some(settings) = &mut settings {
                settings.read_leases(&mut reader)?;
            }
            check_settings(settings.as_ref(), reservation_longest_ms, clock_offset_widest_ms)?;
        }
        if format >= FORMAT_OF_COMPACT && reader.bool("is compact")? {
            let settings = settings.as_mut();
            let settings =
                settings.ok_or(DecodeError::BadValue { field: "is compact", value: 1 })?;
            settings.timestamp_format = TimestampFormat::Compact;
        }
        let (intervals, mode_changes) =
            mode::read(&mut reader, format, ceiling, settings.as_mut())?;
        reader.finish()?;
        Ok(Self {
            format,
            cluster,
            history,
            ceiling,
            owner,
            members,
            removed,
            settings,
            reservation_longest_ms,
            clock_offset_widest_ms,
            lease_longest_ms,
            intervals,
            mode_changes,
        })
    }
}

/// Checks that a decoded state can have arisen from applied entries: its settings are valid, and
/// not above the longest ones so far. Code that computes with the settings relies on that.
fn check_settings(
    settings: Option<&ClusterSettings>,
    reservation_longest_ms: u64,
    clock_offset_widest_ms: u64,
) -> Result<(), DecodeError> {
    let bad = |field, value| Err(DecodeError::BadValue { field, value });
    if let Some(name) = settings.and_then(|settings| settings.check().err()) {
        return bad(name.text(), 0);
    }
    let now = settings.map(|now| (now.reservation_ms, now.clock_offset_max_ms));
    let (reservation_ms, clock_offset_ms) = now.unwrap_or_default();
    if !(reservation_ms..=*RESERVATION_MS.end()).contains(&reservation_longest_ms) {
        return bad("longest reservation", reservation_longest_ms);
    }
    if !(clock_offset_ms..=*CLOCK_OFFSET_MAX_MS.end()).contains(&clock_offset_widest_ms) {
        return bad("widest clock offset", clock_offset_widest_ms);
    }
    Ok(())
}

/// Whether an address can be recorded: not empty, and within the limit of the wire.
#[must_use]
pub fn is_recordable(addr: &str) -> bool {
    !addr.is_empty() && addr.len() <= ADDR_LEN_MAX
}

#[cfg(test)]
mod tests;
