//! Interval mode in the replicated state, and the changes of the mode (S24, S26). Interval mode begins
//! in one step. It ends in two: it closes, and when every node is known to have stopped, it ends. This
//! module decides nothing about clocks.

use std::collections::BTreeSet;

use epicepoch_wire::cursor::{Reader, Writer};
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::{DecodeError, Epoch, Mode, NodeId, TimestampFormat};

use super::command::{FORMAT_OF_CLOSING, FORMAT_OF_INTERVALS, REMOVED_MAX};

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

/// Changes the mode to that of the settings, or begins to. `beyond` is a member whose id does not fit
/// into an interval timestamp. Returns whether that is a change; the error is for people.
pub(super) fn change(
    intervals: &mut Option<IntervalMode>,
    settings: &ClusterSettings,
    format: u32,
    ceiling: Epoch,
    beyond: Option<NodeId>,
) -> Result<bool, &'static str> {
    let is_to_intervals = settings.mode == Mode::Interval;
    let Some(it) = intervals else {
        if !is_to_intervals {
            return Ok(false);
        }
        if format < FORMAT_OF_INTERVALS {
            return Err("the state has no room for interval mode yet");
        }
        if beyond.is_some() {
            return Err("a member's id is too high for interval timestamps");
        }
        let removed = BTreeSet::new();
        *intervals = Some(IntervalMode { ceiling, is_closing: false, removed });
        return Ok(true);
    };
    if settings.timestamp_format == TimestampFormat::Compact {
        return Err("timestamps become compact in quorum mode only");
    }
    if !is_to_intervals && format < FORMAT_OF_CLOSING {
        return Err("the state has no room for the end of interval mode yet");
    }
    let before = std::mem::replace(&mut it.is_closing, !is_to_intervals);
    Ok(before != it.is_closing)
}

/// Encodes the mode. The settings have no room for it.
pub(super) fn encode(
    intervals: Option<&IntervalMode>,
    mode_changes: u64,
    format: u32,
    out: &mut Vec<u8>,
) {
    if format >= FORMAT_OF_INTERVALS {
        out.put_bool(intervals.is_some());
        if let Some(intervals) = intervals {
            out.put_u64(intervals.ceiling.0);
        }
    }
    if format >= FORMAT_OF_CLOSING {
        out.put_u64(mode_changes);
        if let Some(intervals) = intervals {
            out.put_bool(intervals.is_closing);
            out.put_count(intervals.removed.len());
            for node in &intervals.removed {
                out.put_u64(node.0);
            }
        }
    }
}

/// Reads what [`encode`] wrote, and puts the mode into the settings.
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
