//! The floor of a new history of a cluster: every epoch that the old history can have given is at
//! or below it (S13). This module computes the floor and proves that it is high enough, or says why
//! there is no proof. Clocks and backup are arguments; nothing here reads a clock or a file.
//!
//! # Why the floor is high enough
//! A backup knows the ceiling of its time, but the old history continued after the backup. Every
//! epoch that was given afterwards is in a range whose end was reserved in one of two ways:
//! - *One step above the ceiling*, because the ceiling was ahead of the clock. This adds
//!   [`WIDTH_MIN_NS`] per leadership; [`CEILING_MARGIN_NS`] has room for two million leaderships.
//!   If timestamps are compact, a leader may also reserve because it uses up milliseconds. It does so
//!   no faster than time passes, and a leadership adds at most [`COMPACT_STEP_MAX_NS`] beyond that.
//!   So the time since the backup counts, too, in every cluster: timestamps may have become compact
//!   after the backup. It has room for the steps of leaderships, because a cluster does not use up
//!   every millisecond all the time.
//! - *Trusted time plus the reservation window*. A leader's trusted time is within the clock offset
//!   bound of a clock that counts as right (S11). That clock may be off by half a bound. The
//!   reason: a sample of another node's clock is corrected by half of its round trip. The round
//!   trip is at most the bound, and the whole delay may have been in one direction. Right clocks
//!   only move forward. The first members' clocks agree within the bound, so the latest of them is
//!   not behind a right clock. [`CLOCK_MARGIN_NS`] covers the difference of two right clocks, and
//!   steps of the first kind after this reservation.
//!
//! Window and bound are the widest known ones. They come from the backup, all settings that its
//! state ever had, the node that gave the backup, and the founder.
//!
//! The proof does not cover a ceiling that a wrong clock moved ahead *after* the backup. It does
//! not cover settings that were raised after the backup, either. An operator who knows the greatest
//! timestamp ever given can name it; that only raises the floor.
//!
//! [`WIDTH_MIN_NS`]: crate::state::WIDTH_MIN_NS

use std::collections::BTreeSet;

use epicepoch_wire::backup::Backup;
use epicepoch_wire::bootstrap::{Genesis, Member};
use epicepoch_wire::raft_message::EntryKind;
use epicepoch_wire::settings::LEASE_MS_MAX;
use epicepoch_wire::{Epoch, HistoryId, LogIndex, Mode, NodeId};
use thiserror::Error;

use crate::allocator::COMPACT_LEAD_NS;
use crate::durable::Restored;
use crate::lease::hold_ns;
use crate::replica::RestoreError;
use crate::replica::stopped::committed;
use crate::state::{COMPACT_WIDTH_MIN_NS, Command, REMOVED_MAX, State};

/// Room above the ceiling of the backup, nanoseconds. It covers two million leaderships that each
/// raised the ceiling by the least step while it was ahead of the clock. At one leadership a second
/// that is three weeks.
pub const CEILING_MARGIN_NS: u64 = 2_000_000_000;
/// Room for a leap second that only one of two right clocks has applied, and for one million
/// leaderships, nanoseconds: one second each. Each of these leaderships raised the ceiling by the
/// least step after the ceiling last rose with the time. A clock that was also set wrong by hand is
/// not covered.
pub const CLOCK_MARGIN_NS: u64 = 2_000_000_000;
/// The most by which a leadership with compact timestamps raises the ceiling beyond the time that
/// passes, nanoseconds. Its last timestamp is [`COMPACT_LEAD_NS`] ahead. It reserves
/// [`COMPACT_WIDTH_MIN_NS`] more while at most three fifths of that are left.
pub const COMPACT_STEP_MAX_NS: u64 =
    COMPACT_LEAD_NS + COMPACT_WIDTH_MIN_NS / 5 * 3 + COMPACT_WIDTH_MIN_NS;
/// How far ahead of the clock a floor given by hand may be, nanoseconds: 366 days. A floor further
/// ahead is a typing error, and could never be undone.
pub const BY_HAND_AHEAD_MAX_NS: u64 = 366 * 24 * 3600 * 1_000_000_000;
/// A history id rises by at most this much at random, on top of the time that has passed since the
/// backup. The random part makes two restores of one backup differ.
pub const HISTORY_STEP_MAX: u64 = 1 << 20;

/// A sample of another first member's wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WallSample {
    /// The member.
    pub node: NodeId,
    /// Its clock, Unix nanoseconds.
    pub wall_ns: u64,
    /// Round trip of the question that made the member read its clock, by the monotonic clock,
    /// nanoseconds.
    pub took_ns: u64,
    /// How long ago the answer came, by the monotonic clock, nanoseconds.
    pub age_ns: u64,
}

/// The inputs of a floor besides the backup.
#[derive(Clone, Debug)]
pub struct Grounds {
    /// A floor given by hand. No epoch up to it may be given in the new history.
    pub by_hand: Option<Epoch>,
    /// The founder, and its wall clock now, Unix nanoseconds.
    pub own: (NodeId, u64),
    /// The clocks of all other first members.
    pub others: Vec<WallSample>,
    /// `RESERVATION_MS` of the new history, nanoseconds.
    pub reservation_ns: u64,
    /// `CLOCK_OFFSET_MAX_MS` of the new history, nanoseconds.
    pub bound_ns: u64,
}

/// Why no floor can be proved. Each variant says what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FloorError {
    /// At least one of the clocks that the proof needs is wrong.
    #[error(
        "the wall clock of node {node} says {wall_ns} ns after 1970, which is {} ms before the backup \
         was taken: set the clocks right, then start again; if they are right, the clock was wrong where \
         the backup was taken: use another backup, or make one from a stopped node's directory, because \
         it is not known which timestamps were given since the backup", behind_ns / 1_000_000
    )]
    BeforeBackup {
        /// The node with the latest clock.
        node: NodeId,
        /// That clock, Unix nanoseconds.
        wall_ns: u64,
        /// How far that clock is behind the backup, nanoseconds.
        behind_ns: u64,
    },
    /// Clocks are wrong, and it is not known which.
    #[error(
        "the wall clocks of nodes {early} and {late} are {} ms apart, more than CLOCK_OFFSET_MAX_MS: \
         set the clocks right, then start again", apart_ns / 1_000_000
    )]
    ClocksDisagree {
        /// The node with the earliest clock.
        early: NodeId,
        /// The node with the latest clock.
        late: NodeId,
        /// The difference between the two, nanoseconds.
        apart_ns: u64,
    },
    /// The network was slow: ask again.
    #[error(
        "node {node} took {} ms to report its clock, longer than CLOCK_OFFSET_MAX_MS, which is {}: \
         asked again; if the link is that slow, raise the setting on all first members",
        took_ns / 1_000_000, bound_ns / 1_000_000
    )]
    SlowAnswer {
        /// The member whose answer was slow.
        node: NodeId,
        /// The round trip, nanoseconds.
        took_ns: u64,
        /// The longest round trip that proves anything, nanoseconds.
        bound_ns: u64,
    },
    /// Correct `RESTORE_FLOOR`.
    #[error(
        "RESTORE_FLOOR is {} s ahead of the clock, more than 366 days, and cannot be lowered \
         later: correct it", ahead_ns / 1_000_000_000
    )]
    TooFarAhead {
        /// How far the floor is ahead of the clock, nanoseconds.
        ahead_ns: u64,
    },
    /// A first member has the id of a removed node: give that member a new id.
    #[error(
        "node id {0} was removed in the history that is restored, and ids are never used again: give \
         the new node an id of its own in PEERS"
    )]
    RemovedId(NodeId),
    /// The history has removed so many nodes that it could not remove the first members, too. Found a
    /// new cluster.
    #[error(
        "{removed} nodes were removed in the history that is restored, and with the {members} first \
         members, these are more than the {REMOVED_MAX} that a cluster remembers: found a new cluster"
    )]
    TooManyRemoved {
        /// How many nodes were removed.
        removed: usize,
        /// How many first members there are.
        members: usize,
    },
    /// No remedy: the old history has used up all epochs, or all history ids.
    #[error("no epoch before the year 2554, or no history id, is left above those of the backup")]
    Exhausted,
}

impl FloorError {
    /// Whether asking the same nodes again may bring a proof, although nothing was corrected.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        matches!(self, Self::SlowAnswer { .. })
    }
}

/// The lowest floor that is proved to be at or above every epoch that an earlier history can have
/// given (S13). Without a backup, the floor given by hand.
///
/// # Errors
/// Why there is no proof.
pub fn floor(backup: Option<&Backup>, grounds: &Grounds) -> Result<Epoch, FloorError> {
    let by_hand = grounds.by_hand.unwrap_or(Epoch(0));
    let ahead_ns = by_hand.0.saturating_sub(grounds.own.1);
    if ahead_ns > BY_HAND_AHEAD_MAX_NS {
        return Err(FloorError::TooFarAhead { ahead_ns });
    }
    let Some(backup) = backup else { return Ok(by_hand) };
    let (node, wall_ns) = latest_clock(grounds)?;
    let bound_ns = grounds.bound_ns.max(nanos(backup.clock_offset_max_ms));
    let behind_ns = backup.taken_ns.saturating_sub(wall_ns);
    if behind_ns > grounds.bound_ns {
        return Err(FloorError::BeforeBackup { node, wall_ns, behind_ns });
    }
    let window_ns = grounds.reservation_ns.max(nanos(backup.reservation_ms));
    let above = |base: u64, margins: &[u64]| {
        let sum = margins.iter().try_fold(base, |sum, margin| sum.checked_add(*margin));
        sum.filter(|sum| *sum < u64::MAX).ok_or(FloorError::Exhausted)
    };
    let latest_ns = wall_ns.max(backup.taken_ns);
    let sample_error_ns = bound_ns.div_ceil(2);
    // Timestamps may have become compact after the backup. The clock by which it was taken may have
    // been ahead.
    let pace_ns = latest_ns - backup.taken_ns;
    let pace = [pace_ns, bound_ns, sample_error_ns, CEILING_MARGIN_NS];
    let by_ceiling = above(backup.ceiling.0, &pace)?;
    let margins = [window_ns, bound_ns, sample_error_ns, CLOCK_MARGIN_NS];
    let by_clock = above(latest_ns, &margins)?;
    let floor = Epoch(by_ceiling.max(by_clock)).max(by_hand);
    assert!(floor > backup.ceiling, "S13: a floor below the ceiling of the backup");
    Ok(floor)
}

/// The latest of the first members' clocks, once all agree within the bound.
fn latest_clock(grounds: &Grounds) -> Result<(NodeId, u64), FloorError> {
    let slow = |sample: &&WallSample| sample.took_ns > grounds.bound_ns;
    if let Some(WallSample { node, took_ns, .. }) = grounds.others.iter().find(slow) {
        let bound_ns = grounds.bound_ns;
        return Err(FloorError::SlowAnswer { node: *node, took_ns: *took_ns, bound_ns });
    }
    // For each clock, the latest time that it can show now. The whole round trip may have passed
    // after the member read its clock.
    let others = grounds.others.iter().map(|sample| {
        let now_ns = sample.wall_ns.saturating_add(sample.took_ns).saturating_add(sample.age_ns);
        (sample.node, now_ns, sample.took_ns)
    });
    let clocks: Vec<_> = others.chain([(grounds.own.0, grounds.own.1, 0)]).collect();
    let late = clocks.iter().max_by_key(|(_, now_ns, _)| *now_ns).expect("its own is one");
    let early = clocks.iter().min_by_key(|(_, now_ns, _)| *now_ns).expect("its own is one");
    let apart_ns = (late.1 - early.1).saturating_sub(late.2);
    if apart_ns > grounds.bound_ns {
        return Err(FloorError::ClocksDisagree { early: early.0, late: late.0, apart_ns });
    }
    Ok((late.0, late.1))
}

const fn nanos(ms: u64) -> u64 {
    ms.saturating_mul(1_000_000)
}

/// The genesis of a new history of the backup's cluster. It has the same cluster, a higher history
/// id, the ceiling `floor`, and the ids that were removed. `wall_ns` is the founder's clock;
/// `drawn` is random.
///
/// # Errors
/// When a first member has a removed id, no history id is left, or too many nodes were removed.
pub fn genesis(
    backup: &Backup,
    members: Vec<Member>,
    floor: Epoch,
    wall_ns: u64,
    drawn: u64,
) -> Result<Genesis, FloorError> {
    let removed: BTreeSet<NodeId> = backup.removed.iter().copied().collect();
    if let Some(member) = members.iter().find(|member| removed.contains(&member.node)) {
        return Err(FloorError::RemovedId(member.node));
    }
    // Every member may be removed later, and no state may remember more nodes than can be read.
    if removed.len() + members.len() > REMOVED_MAX {
        return Err(FloorError::TooManyRemoved { removed: removed.len(), members: members.len() });
    }
    // The id rises by the time since the backup. So of two restores of one backup, the later one
    // gets the higher id.
    let passed_ns = wall_ns.saturating_sub(backup.taken_ns);
    let step = passed_ns.saturating_add(1 + drawn % HISTORY_STEP_MAX);
    let history = backup.history.0.checked_add(step).ok_or(FloorError::Exhausted)?;
    Ok(Genesis {
        cluster: backup.cluster,
        history: HistoryId(history),
        members,
        floor,
        removed: removed.into_iter().collect(),
    })
}

/// The settings and the clock that a backup names besides the state. Any node may have led, or may
/// lead after the backup. So the longest settings of all nodes and of the state's past are used.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// The name of the cluster (`CLUSTER`).
    pub name: String,
    /// Trusted time now, Unix nanoseconds; the wall clock may be wrong. For a state that may be older,
    /// the time of that state. If it is too late, the backup is refused until that time has come, and
    /// the floor has no room for what was given before. If it is too early, it proves less about the
    /// clocks that it is compared with.
    pub taken_ns: u64,
    /// The longest `RESERVATION_MS` known of any node.
    pub reservation_ms: u64,
    /// The longest `CLOCK_OFFSET_MAX_MS` known of any node.
    pub clock_offset_max_ms: u64,
}

/// The longest lease of the old history that may run when a new one begins, milliseconds. A founder
/// waits for [`lease_wait_ns`] of it before it begins the new history (S20).
/// Without a backup, `named_ms` alone counts. No leader of the old history has taken a lease since
/// the founder began to wait, because its followers do not run (S13).
///
/// Leases may have been switched on, or made longer, after the backup. So `named_ms` is the longest
/// lease that the old cluster can have had, as its operator says, or else the longest allowed one.
#[must_use]
pub fn lease_longest_ms(backup: Option<&Backup>, named_ms: u64) -> u64 {
    let of_backup = backup.map_or(0, |backup| {
        let set_ms = backup.settings.as_ref().map_or(0, |settings| settings.lease_ms);
        backup.lease_longest_ms.max(set_ms)
    });
    of_backup.max(named_ms).min(LEASE_MS_MAX)
}

/// For how long a founder waits for leases of at most `longest_ms`, nanoseconds.
#[must_use]
pub fn lease_wait_ns(longest_ms: u64) -> u64 {
    hold_ns(longest_ms)
}

/// The backup of a state, applied up to `index`. Its window and bound are the longest that the
/// state ever had or its surroundings have. A range may have been reserved before the window was
/// shortened, and assigned afterwards. Trusted time may be off by the old bound until a majority
/// agrees again.
#[must_use]
pub fn backup(state: &State, index: LogIndex, around: Surroundings) -> Backup {
    let reservation_ms = around.reservation_ms.max(state.reservation_longest_ms);
    let clock_offset_max_ms = around.clock_offset_max_ms.max(state.clock_offset_widest_ms);
    Backup {
        name: around.name,
        cluster: state.cluster,
        history: state.history,
        index,
        ceiling: state.ceiling,
        taken_ns: around.taken_ns,
        reservation_ms,
        clock_offset_max_ms,
        lease_longest_ms: state.lease_longest_ms,
        settings: state.settings.clone(),
        removed: state.removed.iter().copied().collect(),
        members: state.members.values().cloned().collect(),
    }
}

/// The newer of two backups of one history that were taken together. It gets the longer of both
/// settings: either backup may come from a node that is behind, and any node may lead.
///
/// The earlier of the two times counts, because the clock of a node that hears no other may be
/// ahead. There is one exception. The ceiling may be so high that no leader with a right clock can
/// have reserved it by the earlier time. If it can have been reserved by the later time, the later
/// time counts.
#[must_use]
pub fn newest(one: Backup, other: Backup) -> Backup {
    let reservation_ms = one.reservation_ms.max(other.reservation_ms);
    let clock_offset_max_ms = one.clock_offset_max_ms.max(other.clock_offset_max_ms);
    let lease_longest_ms = one.lease_longest_ms.max(other.lease_longest_ms);
    let early_ns = one.taken_ns.min(other.taken_ns);
    let late_ns = one.taken_ns.max(other.taken_ns);
    let newest = if other.index > one.index { other } else { one };
    let margins = [nanos(reservation_ms), nanos(clock_offset_max_ms), CLOCK_MARGIN_NS];
    let is_plausible =
        |taken_ns| margins.into_iter().fold(taken_ns, u64::saturating_add) >= newest.ceiling.0;
    let is_early_wrong = !is_plausible(early_ns) && is_plausible(late_ns);
    let taken_ns = if is_early_wrong { late_ns } else { early_ns };
    Backup { reservation_ms, clock_offset_max_ms, lease_longest_ms, taken_ns, ..newest }
}

/// The backup of a stopped node's directory. Every reservation in its log counts, committed or not.
/// A reservation may have been committed without this node's knowledge, and a floor that is too
/// high does no harm.
///
/// # Errors
/// When this version cannot read the record or an entry of the directory's log, or no node could
/// start from the directory.
pub fn backup_of_directory(
    restored: &Restored,
    around: Surroundings,
) -> Result<Backup, RestoreError> {
    let (mut state, mut index) = committed(restored)?;
    let mut is_of_intervals = state.mode() == Mode::Interval;
    for entry in restored.entries.iter().filter(|entry| entry.index > index) {
        // An unreadable entry may have raised the ceiling. Without it, the ceiling is not known.
        if entry.kind == EntryKind::Normal && !entry.data.is_empty() {
            let command = Command::decode(&entry.data)?;
            let _raises_the_ceiling = state.apply(entry.term, &command);
            is_of_intervals |= state.mode() == Mode::Interval;
        }
    }
    // S26: while interval mode closes, the settings name quorum mode already, and an end that is not
    // committed may never come. The backup says interval mode, and so nobody relies on its floor.
    if let Some(settings) = state.settings.as_mut().filter(|_| is_of_intervals) {
        settings.mode = Mode::Interval;
    }
    if let Some(last) = restored.entries.last() {
        index = index.max(last.index);
    }
    Ok(backup(&state, index, around))
}

#[cfg(test)]
mod tests;
