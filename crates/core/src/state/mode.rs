//! How the cluster gives timestamps: quorum mode, or interval mode, and the changes between the two
//! (S24, S26). Interval mode begins in one step. It ends in two: it closes, and when every node is
//! known to have stopped, it ends. This module decides nothing about clocks.

use std::collections::{BTreeMap, BTreeSet};

use epicepoch_wire::cursor::{Reader, Writer};
use epicepoch_wire::interval::INTERVAL_NODE_MAX;
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::{DecodeError, Epoch, Mode, NodeId, TimestampFormat};

use super::{FORMAT_OF_CLOSING, FORMAT_OF_INTERVALS, Outcome, REMOVED_MAX, State};

/// Interval mode in the replicated state.
///
/// Invariant: while it closes, `MODE` of the settings is quorum, and otherwise interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntervalMode {
    /// The ceiling where interval mode began: every timestamp of quorum mode is at or below it (S24).
    pub ceiling: Epoch,
    /// Whether interval mode closes: no node that has applied this gives timestamps.
    pub is_closing: bool,
    /// The nodes that were removed in interval mode, from format 8 on. Each may not have heard of its
    /// removal, and may still give timestamps.
    pub removed: BTreeSet<NodeId>,
}

impl State {
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

    /// Changes the mode to that of the settings, or begins to.
    pub(super) fn change_mode(&mut self, settings: &ClusterSettings) -> Result<(), &'static str> {
        let beyond = self.node_beyond_intervals();
        match (&mut self.intervals, settings.mode) {
            (None, Mode::Quorum) => return Ok(()),
            (Some(_), _) if settings.timestamp_format == TimestampFormat::Compact => {
                return Err("timestamps become compact in quorum mode only");
            }
            (None, Mode::Interval) if self.format < FORMAT_OF_INTERVALS => {
                return Err("the state has no room for interval mode yet");
            }
            (None, Mode::Interval) if beyond.is_some() => {
                return Err("a member's id is too high for interval timestamps");
            }
            (None, Mode::Interval) => {
                let (ceiling, removed) = (self.ceiling, BTreeSet::new());
                self.intervals = Some(IntervalMode { ceiling, is_closing: false, removed });
            }
            (Some(_), Mode::Quorum) if self.format < FORMAT_OF_CLOSING => {
                return Err("the state has no room for the end of interval mode yet");
            }
            (Some(it), to) => {
                let is_closing = to == Mode::Quorum;
                if it.is_closing == is_closing {
                    return Ok(());
                }
                it.is_closing = is_closing;
            }
        }
        if self.format >= FORMAT_OF_CLOSING {
            self.mode_changes += 1;
        }
        Ok(())
    }

    /// Ends interval mode, if it closes by this change and each node that may give interval timestamps
    /// has stopped. `given` has the highest time that each has given.
    pub(super) fn end_intervals(&mut self, change: u64, given: &BTreeMap<NodeId, u64>) -> Outcome {
        let has_stopped = |node: NodeId| given.contains_key(&node);
        if self.closing() != Some(change) || !self.may_give_intervals().all(has_stopped) {
            return Outcome::Stale;
        }
        // S26: every range from here on begins at the ceiling, which is above all of these. The
        // ranges that leaders reserved meanwhile were published to nobody.
        let highest = given.values().copied().max().unwrap_or(0);
        self.ceiling = self.ceiling.max(Epoch(highest));
        self.owner = None;
        self.intervals = None;
        Outcome::IntervalsEnded(self.ceiling)
    }

    /// Remembers a node that is removed in interval mode.
    pub(super) fn remember_removed(&mut self, node: NodeId) {
        if self.format >= FORMAT_OF_CLOSING
            && let Some(intervals) = &mut self.intervals
        {
            intervals.removed.insert(node);
        }
    }

    /// When the format rises to 8 in interval mode: which of the removed nodes were members in it is
    /// not known.
    pub(super) fn begin_to_remember_removed(&mut self) {
        if self.format == FORMAT_OF_CLOSING
            && let Some(intervals) = &mut self.intervals
        {
            intervals.removed.clone_from(&self.removed);
        }
    }

    pub(super) fn encode_mode(&self, out: &mut Vec<u8>) {
        if self.format >= FORMAT_OF_INTERVALS {
            out.put_bool(self.intervals.is_some());
            if let Some(intervals) = &self.intervals {
                out.put_u64(intervals.ceiling.0);
            }
        }
        if self.format >= FORMAT_OF_CLOSING {
            out.put_u64(self.mode_changes);
            if let Some(intervals) = &self.intervals {
                out.put_bool(intervals.is_closing);
                out.put_count(intervals.removed.len());
                for node in &intervals.removed {
                    out.put_u64(node.0);
                }
            }
        }
    }
}

/// Reads what [`State::encode_mode`] wrote, and puts the mode into the settings.
pub(super) fn read(
    reader: &mut Reader<'_>,
    format: u32,
    ceiling: Epoch,
    settings: Option<&mut ClusterSettings>,
) -> Result<(Option<IntervalMode>, u64), DecodeError> {
    let mut intervals = None;
    if format >= FORMAT_OF_INTERVALS && reader.bool("is of intervals")? {
        let epoch = Epoch(reader.u64("ceiling of quorum mode")?);
        let bad = DecodeError::BadValue { field: "ceiling of quorum mode", value: epoch.0 };
        let is_right = |it: &&mut ClusterSettings| {
            epoch <= ceiling && it.timestamp_format == TimestampFormat::Wide
        };
        let settings = settings.filter(is_right).ok_or(bad)?;
        let removed = BTreeSet::new();
        intervals = Some((settings, IntervalMode { ceiling: epoch, is_closing: false, removed }));
    }
    let mut mode_changes = 0;
    if format >= FORMAT_OF_CLOSING {
        mode_changes = reader.u64("changes of the mode")?;
        if let Some((_, intervals)) = &mut intervals {
            intervals.is_closing = reader.bool("is closing")?;
            for _ in 0..reader.count("removed in interval mode", REMOVED_MAX)? {
                intervals.removed.insert(NodeId(reader.u64("removed in interval mode")?));
            }
        }
    }
    let intervals = intervals.map(|(settings, intervals)| {
        settings.mode = if intervals.is_closing { Mode::Quorum } else { Mode::Interval };
        intervals
    });
    Ok((intervals, mode_changes))
}
