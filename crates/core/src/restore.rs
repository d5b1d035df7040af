//! A new history of a cluster begins above everything that the old one can have given (S13): the
//! floor, and the proof that it is high enough, or the reason why there is none. It reads no clock
//! and no file: what the clocks and the backup say are arguments.
//!
//! # Why the floor is high enough
//! A backup knows the ceiling of its moment; the old history went on. What it gave afterwards lies in
//! ranges whose ends were, when they were asked for, either
//! - *one step above the ceiling*, because the ceiling was ahead of the clock: [`WIDTH_MIN_NS`] for
//!   each leadership, of which [`CEILING_MARGIN_NS`] has room for two million; or
//! - *trusted time plus the reservation window*. A leader's trusted time is within the clock offset
//!   bound of what it takes for a right clock (S11). That may be half a bound off: a sample of another
//!   node's clock is taken when its round trip is within the bound, and corrected by half of it, while
//!   all of it may have been one way. A right clock was never ahead of one that is right now. Of the
//!   first members' clocks, which all agree within the bound, the latest is not behind the right
//!   ones. [`CLOCK_MARGIN_NS`] is for what two right clocks may differ by.
//!
//! The window and the bound are the widest that the backup, its state (of all settings that were ever in
//! it), the node that gave it and the founder know of.
//!
//! What this cannot know: a ceiling that a clock accident carried ahead *after* the backup, and
//! settings that were raised after it. Somebody who knows the greatest timestamp ever given says so
//! by hand; that only raises the floor.
//!
//! [`WIDTH_MIN_NS`]: crate::state::WIDTH_MIN_NS

use std::collections::BTreeSet;

use epicepoch_wire::backup::Backup;
use epicepoch_wire::bootstrap::{Genesis, Member};
use epicepoch_wire::raft_message::EntryKind;
use epicepoch_wire::{Epoch, HistoryId, LogIndex, NodeId};
use thiserror::Error;

use crate::durable::Restored;
use crate::planted::{self, Bug, safety_assert};
use crate::replica::RestoreError;
use crate::replica::stopped::committed;
use crate::state::{Command, State};

/// Room above the ceiling of the backup, nanoseconds: two million leaderships that each raised it by
/// the least step while it was ahead of the clock. One a second would take three weeks of it.
pub const CEILING_MARGIN_NS: u64 = 2_000_000_000;
/// What two right clocks may differ by, nanoseconds: a leap second that one of them has taken and
/// the other has not, and as much again for a machine that was set by hand.
pub const CLOCK_MARGIN_NS: u64 = 2_000_000_000;
/// How far ahead of the clock a floor may be that is given by hand, nanoseconds: 366 days. Beyond it
/// is a slip rather than a timestamp, and nothing would take it back.
pub const BY_HAND_AHEAD_MAX_NS: u64 = 366 * 24 * 3600 * 1_000_000_000;
/// How much a history id rises beyond the time that has passed since the backup: drawn at random, so
/// that two restores of one backup differ.
pub const HISTORY_STEP_MAX: u64 = 1 << 20;

/// Another first member's wall clock, as it answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WallSample {
    /// Whose.
    pub node: NodeId,
    /// What it said, Unix nanoseconds.
    pub wall_ns: u64,
    /// How long the answer took by the monotonic clock, from the question that made the node read its
    /// clock, nanoseconds.
    pub took_ns: u64,
    /// How long ago the answer came, by the monotonic clock, nanoseconds.
    pub age_ns: u64,
}

/// What a floor rests on beside the backup.
#[derive(Clone, Debug)]
pub struct Grounds {
    /// A floor given by hand: no epoch up to it may ever be given.
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

/// Why no floor can be proved; what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FloorError {
    /// A clock is wrong: at least one of those that the proof needs.
    #[error(
        "the wall clock of node {node} says {wall_ns} ns after 1970, which is {} ms before the backup \
         was taken: set the clocks right, then start again; if they are right, the clock was wrong where \
         the backup was taken: use another one, or make one from a stopped node's directory; what was \
         given since the backup is not known otherwise", behind_ns / 1_000_000
    )]
    BeforeBackup {
        /// The node with the latest clock.
        node: NodeId,
        /// That clock, Unix nanoseconds.
        wall_ns: u64,
        /// How far it is behind the backup.
        behind_ns: u64,
    },
    /// Clocks are wrong, and which is not known.
    #[error(
        "the wall clocks of nodes {early} and {late} are {} ms apart, more than CLOCK_OFFSET_MAX_MS: \
         set the clocks right, then start again", apart_ns / 1_000_000
    )]
    ClocksDisagree {
        /// The node with the earliest clock.
        early: NodeId,
        /// The node with the latest clock.
        late: NodeId,
        /// How far they are apart.
        apart_ns: u64,
    },
    /// The network was slow: asking again may do.
    #[error(
        "node {node} took {} ms to say what its clock is, longer than CLOCK_OFFSET_MAX_MS, which is {}: \
         asked again; if the link is as long as that, raise it on all first members",
        took_ns / 1_000_000, bound_ns / 1_000_000
    )]
    SlowAnswer {
        /// Whose answer.
        node: NodeId,
        /// How long it took.
        took_ns: u64,
        /// How long it may take.
        bound_ns: u64,
    },
    /// Correct `RESTORE_FLOOR`.
    #[error(
        "RESTORE_FLOOR is {} s ahead of the clock, more than 366 days: nothing would take it back; \
         correct it", ahead_ns / 1_000_000_000
    )]
    TooFarAhead {
        /// How far.
        ahead_ns: u64,
    },
    /// Give the first member a new id.
    #[error(
        "node id {0} was removed in the history that is restored, and ids are never used again: give \
         the new node an id of its own in PEERS"
    )]
    RemovedId(NodeId),
    /// There is nothing to do: the old history has used up all epochs, or all numbers of histories.
    #[error(
        "nothing is left above what the backup says: no epoch before the year 2554, or no history"
    )]
    Exhausted,
}

impl FloorError {
    /// Whether asking the same nodes again may bring a proof, without anybody correcting anything.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        matches!(self, Self::SlowAnswer { .. })
    }
}

/// The lowest floor that is proved to lie at or above every epoch that an earlier history can have
/// given (S13). Without a backup it is what was given by hand: then nobody claims more.
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
    let by_ceiling = above(backup.ceiling.0, &[CEILING_MARGIN_NS])?;
    let latest_ns = wall_ns.max(backup.taken_ns);
    let sample_error_ns = bound_ns.div_ceil(2);
    let margins = [window_ns, bound_ns, sample_error_ns, CLOCK_MARGIN_NS];
    let by_clock = above(latest_ns, &margins)?;
    let by_clock = match () {
        () if planted::is(Bug::RestoreFloorOfBackup) => 0,
        () if planted::is(Bug::RestoreWithoutWindow) => latest_ns,
        () => by_clock,
    };
    let floor = Epoch(by_ceiling.max(by_clock)).max(by_hand);
    safety_assert!(floor > backup.ceiling, "S13: a floor below the ceiling of the backup");
    Ok(floor)
}

/// The latest of the first members' clocks, once all agree within the bound.
fn latest_clock(grounds: &Grounds) -> Result<(NodeId, u64), FloorError> {
    let slow = |sample: &&WallSample| sample.took_ns > grounds.bound_ns;
    if let Some(WallSample { node, took_ns, .. }) = grounds.others.iter().find(slow) {
        let bound_ns = grounds.bound_ns;
        return Err(FloorError::SlowAnswer { node: *node, took_ns: *took_ns, bound_ns });
    }
    // Each clock as it is now at the latest: an answer may have been on its way all the time.
    let others = grounds.others.iter().map(|sample| {
        let now_ns = sample.wall_ns.saturating_add(sample.took_ns).saturating_add(sample.age_ns);
        (sample.node, now_ns, sample.took_ns)
    });
    let clocks: Vec<_> = others.chain([(grounds.own.0, grounds.own.1, 0)]).collect();
    let late = clocks.iter().max_by_key(|(_, now_ns, _)| *now_ns).expect("its own is one");
    let early = clocks.iter().min_by_key(|(_, now_ns, _)| *now_ns).expect("its own is one");
    let apart_ns = (late.1 - early.1).saturating_sub(late.2);
    if apart_ns > grounds.bound_ns && !planted::is(Bug::AnyClockProves) {
        return Err(FloorError::ClocksDisagree { early: early.0, late: late.0, apart_ns });
    }
    Ok((late.0, late.1))
}

const fn nanos(ms: u64) -> u64 {
    ms.saturating_mul(1_000_000)
}

/// How a new history of the backup's cluster begins: same cluster, higher history, above `floor`, and
/// without the ids that were removed. `wall_ns` is the founder's clock, `drawn` is random.
///
/// # Errors
/// When a first member has a removed id, or no history is left.
pub fn genesis(
    backup: &Backup,
    members: Vec<Member>,
    floor: Epoch,
    wall_ns: u64,
    drawn: u64,
) -> Result<Genesis, FloorError> {
    let removed = backup.removed.iter().copied();
    let removed = removed.filter(|_| !planted::is(Bug::RestoreForgetsRemoved));
    let removed: BTreeSet<NodeId> = removed.collect();
    if let Some(member) = members.iter().find(|member| removed.contains(&member.node)) {
        return Err(FloorError::RemovedId(member.node));
    }
    // It rises by the time that has passed, so that of two restores of one backup the later is higher.
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

/// The settings and the clock that a backup names beside the state. Any node may have led, or may
/// lead after the backup: what counts of the settings is the longest of all nodes, and of all that were
/// ever in the state.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// `CLUSTER`.
    pub name: String,
    /// The time now, Unix nanoseconds: what the node trusts, and not its wall clock, which others may have
    /// outvoted. A backup that is stamped too late is refused for as long; one too early only proves
    /// less of the clocks that it is held against.
    pub taken_ns: u64,
    /// The longest `RESERVATION_MS` that is known of any node.
    pub reservation_ms: u64,
    /// The longest `CLOCK_OFFSET_MAX_MS` that is known of any node.
    pub clock_offset_max_ms: u64,
}

/// The backup of a state, applied up to `index`. Its window and bound are the longest that the state ever
/// had, or what surrounds it has: a range may have been asked for before they were shortened, and
/// assigned afterwards, and trusted time may be off by the old bound until a majority agrees again.
#[must_use]
pub fn backup(state: &State, index: LogIndex, around: Surroundings) -> Backup {
    let is_forgotten = planted::is(Bug::LongestWindowForgotten);
    let longest_ms = if is_forgotten { 0 } else { state.reservation_longest_ms };
    let reservation_ms = around.reservation_ms.max(longest_ms);
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
        removed: state.removed.iter().copied().collect(),
        members: state.members.values().cloned().collect(),
    }
}

/// The newest of two backups of one history that were taken together, with the longer of both settings:
/// either may come from a node that others have overtaken, and any node may lead. Of the two times the
/// earlier counts, as the clock of a node that hears nobody may be ahead; unless it is so far below the
/// ceiling that no leader whose clock is right can have reserved that by then, and the later is not.
#[must_use]
pub fn newest(one: Backup, other: Backup) -> Backup {
    let reservation_ms = one.reservation_ms.max(other.reservation_ms);
    let clock_offset_max_ms = one.clock_offset_max_ms.max(other.clock_offset_max_ms);
    let early_ns = one.taken_ns.min(other.taken_ns);
    let late_ns = one.taken_ns.max(other.taken_ns);
    let newest = if other.index > one.index { other } else { one };
    let margins = [nanos(reservation_ms), nanos(clock_offset_max_ms), CLOCK_MARGIN_NS];
    let is_plausible =
        |taken_ns| margins.into_iter().fold(taken_ns, u64::saturating_add) >= newest.ceiling.0;
    let is_early_wrong = !is_plausible(early_ns) && is_plausible(late_ns);
    let taken_ns = if is_early_wrong { late_ns } else { early_ns };
    Backup { reservation_ms, clock_offset_max_ms, taken_ns, ..newest }
}

/// The backup of what the directory of a stopped node holds. Every reservation in its log counts,
/// committed or not: it may have been committed without this node knowing, and too high is safe.
///
/// # Errors
/// When its record, or an entry of its log, is of a version that this one does not read, or no node could
/// start from them.
pub fn backup_of_directory(
    restored: &Restored,
    around: Surroundings,
) -> Result<Backup, RestoreError> {
    let (mut state, mut index) = committed(restored)?;
    for entry in restored.entries.iter().filter(|entry| entry.index > index) {
        // One that cannot be read may have raised the ceiling: then nothing is known.
        if entry.kind == EntryKind::Normal && !entry.data.is_empty() {
            let command = Command::decode(&entry.data)?;
            let _raises_the_ceiling = state.apply(entry.term, &command);
        }
    }
    if let Some(last) = restored.entries.last() {
        index = index.max(last.index);
    }
    Ok(backup(&state, index, around))
}

#[cfg(test)]
mod tests;
