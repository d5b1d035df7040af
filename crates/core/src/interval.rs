//! Interval mode: a node gives timestamps alone, from an interval that holds true time, and clients
//! wait the interval out. One [`Stamper`] in each run of a node, called by one thread at a time. It
//! reads no clock: each call brings a reading that was taken after the requests had arrived.
//!
//! A timestamp is the latest time that it can be, then the node's id, then a count (S23). It lies at
//! or below a *mark* that is durable in the data directory, so a later run begins above it. The idea
//! of waiting is Spanner's commit wait (Corbett et al., OSDI 2012, section 4).
//!
//! - [`peers`]: the intervals of the other voters, with which this node's own is compared (S27).
//! - `reading`: what a source says, now and a moment later.

pub mod peers;
mod reading;

use epicepoch_wire::interval::{INTERVAL_COUNTS, INTERVAL_NODE_MAX, IntervalStamp};
use epicepoch_wire::{Epoch, NodeId, Timestamp};
use thiserror::Error;

use self::peers::{Objection, PeerIntervals};
pub use self::reading::Reading;

/// A mark is made durable this far ahead of the timestamp that needs it, nanoseconds. After a crash,
/// clients of the node may have to wait that much longer, once.
pub const MARK_AHEAD_NS: u64 = 1_000_000_000;
/// The next mark is asked for when less than this is left below the durable one, nanoseconds.
const MARK_LEFT_MIN_NS: u64 = MARK_AHEAD_NS / 2;

/// A node whose next timestamp would be further than this ahead of the latest time that it can be
/// refuses: it has given timestamps by a clock that was wrong, or was set back since. A crash leaves
/// a node at most one and a half marks ahead.
const AHEAD_NS_MAX: u64 = 2 * MARK_AHEAD_NS;

/// The largest bound of a clock with which a node may be configured to give timestamps, nanoseconds.
pub const BOUND_NS_MAX: u64 = 1_000_000_000;

/// A node whose clock is within its bound gives no timestamp further ahead of true time than this,
/// nanoseconds: the latest time is ahead by two bounds, and the timestamp by two marks more.
pub const STAMP_AHEAD_NS_MAX: u64 = AHEAD_NS_MAX + 2 * BOUND_NS_MAX;

/// Interval mode as a node has applied it: what a timestamp must be above, and which change of the
/// mode the node goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The ceiling of quorum mode where interval mode began (S24).
    pub ceiling: Epoch,
    /// The number of the last change of the mode
    /// ([`State::mode_changes`](crate::state::State::mode_changes)).
    pub change: u64,
}

/// Why a node gives no interval timestamp now. Ask another node, or this one in a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Uncertain {
    /// The source of the clock's bound has given an interval that ends before it begins.
    #[error("the interval of the clock source is empty")]
    Empty,
    /// The bound of the clock is above the limit.
    #[error("the clock may be off by {bound_ns} ns, and INTERVAL_BOUND_MAX_MS allows {max_ns} ns")]
    TooWide {
        /// Half the width of the interval, nanoseconds.
        bound_ns: u64,
        /// The limit, nanoseconds.
        max_ns: u64,
    },
    /// The machine was paused or moved. The node answers again when its clock is beyond everything
    /// that it may have given before.
    #[error("the machine was paused or moved, and the clock is not beyond what was given before")]
    Disrupted,
    /// The node has given timestamps so far ahead of its clock that clients would have to wait for
    /// long. It answers again when its clock has come near them. If that takes too long, replace the
    /// node by one with another id.
    #[error("this node has given timestamps {ahead_ns} ns ahead of its clock")]
    Ahead {
        /// How far, nanoseconds.
        ahead_ns: u64,
    },
    /// The timestamps of quorum mode may be ahead of the clock.
    #[error("the clock is not beyond the timestamps of quorum mode yet")]
    BelowCeiling,
    /// The intervals of most other voters have no moment in common with that of this node, so at
    /// least one clock is wrong (S27). Correct it, or its source.
    #[error(
        "the interval of this node contradicts {others} of the {known} other voters that it knows: \
         a clock is wrong, or its source"
    )]
    Contradicted {
        /// Voters whose intervals have no moment in common with this node's.
        others: usize,
        /// Other voters whose intervals are known.
        known: usize,
    },
    /// The node has just begun, and has not heard enough of the other voters' intervals yet.
    #[error("this node has just begun to compare its interval with those of the others")]
    Unheard,
    /// The mark is not durable yet. Ask again when it is.
    #[error("the mark is not on the disk yet")]
    MarkBehind,
    /// The node has stopped giving timestamps for a change back to quorum mode, and has not applied
    /// a later change of the mode (S26).
    #[error(
        "this node has stopped for change {closed} of the mode, and has not applied a later one"
    )]
    Closed {
        /// The number of the change.
        closed: u64,
    },
    /// The node stops.
    #[error("this node stops")]
    Stopped,
}

impl From<Objection> for Uncertain {
    fn from(objection: Objection) -> Self {
        match objection {
            Objection::Contradicted { others, known } => Self::Contradicted { others, known },
            Objection::Unheard => Self::Unheard,
        }
    }
}

/// A node id that does not fit into the index of an interval timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("NODE_ID {0} is above {INTERVAL_NODE_MAX}, the highest that can give interval timestamps")]
pub struct NodeIdTooHigh(pub NodeId);

/// Gives the interval timestamps of one run of a node.
#[derive(Debug)]
pub struct Stamper {
    node: NodeId,
    bound_max_ns: u64,
    /// No timestamp of any run is above this one, which is on the disk.
    mark_ns: u64,
    /// The highest mark that was asked for.
    mark_asked_ns: u64,
    /// The next mark to make durable.
    mark_due_ns: Option<u64>,
    /// The next timestamp is not below this time.
    floor_ns: u64,
    count: u64,
    /// The last timestamp of this run.
    last: Option<Timestamp>,
    disruption: Option<u64>,
    /// After a disruption, the earliest time must be above this one.
    disrupted_ns: u64,
    is_stopped: bool,
    /// The change of the mode for which this node has stopped giving timestamps; 0 for none.
    closed: u64,
}

impl Stamper {
    /// A run of a node that begins above `mark_ns`, the mark in its data directory (0 if there is
    /// none). `closed` is the change of the mode for which an earlier run stopped giving timestamps,
    /// as the directory has it (0 for none). The bound of its clock may be up to `bound_max_ns`, and
    /// [`BOUND_NS_MAX`].
    ///
    /// # Errors
    /// When the node id does not fit into an index.
    pub fn new(
        node: NodeId,
        mark_ns: u64,
        closed: u64,
        bound_max_ns: u64,
    ) -> Result<Self, NodeIdTooHigh> {
        if node.0 > INTERVAL_NODE_MAX {
            return Err(NodeIdTooHigh(node));
        }
        Ok(Self {
            node,
            bound_max_ns: bound_max_ns.min(BOUND_NS_MAX),
            mark_ns,
            mark_asked_ns: mark_ns,
            mark_due_ns: None,
            floor_ns: mark_ns.saturating_add(1),
            count: 0,
            last: None,
            disruption: None,
            disrupted_ns: 0,
            is_stopped: false,
            closed,
        })
    }

    /// Takes `n` timestamps, from 1 up, that share the interval and have consecutive counts. The
    /// answer names the first. `reading` was taken after the last request of the batch had arrived.
    /// `opening` is interval mode as this node has applied it. `peers` has the intervals of the
    /// others.
    ///
    /// Afterwards, take what [`Stamper::poll_mark`] has.
    ///
    /// # Errors
    /// Why nothing was given.
    ///
    /// # Panics
    /// When an invariant is broken (S23, S24, S26, S27), or `n` is 0 or above the number of counts.
    pub fn stamp(
        &mut self,
        opening: Opening,
        reading: Reading,
        peers: &PeerIntervals,
        n: u64,
    ) -> Result<IntervalStamp, Uncertain> {
        assert!((1..=INTERVAL_COUNTS).contains(&n), "{n} timestamps");
        let latest_ns = self.check(opening, reading, peers)?;
        // The node's own timestamps rise, whatever its clock does.
        let mut epoch_ns = latest_ns.max(self.floor_ns);
        let mut count = self.count;
        if count + n > INTERVAL_COUNTS {
            (epoch_ns, count) = (epoch_ns.max(self.floor_ns.saturating_add(1)), 0);
        }
        self.ask_mark(epoch_ns);
        if epoch_ns > self.mark_ns {
            return Err(Uncertain::MarkBehind);
        }
        let stamp = IntervalStamp::new(reading.earliest_ns, epoch_ns, self.node, count);
        let stamp = stamp.expect("S23: the interval, the node id and the count were checked");
        let timestamp = stamp.timestamp();
        // S23: unique and rising, in this run and over restarts.
        assert!(Some(timestamp) > self.last, "S23: an interval timestamp went back");
        assert!(epoch_ns <= self.mark_ns, "S23: stamped above the durable mark");
        assert_eq!(stamp.node(), self.node, "S23: another node's index");
        // S24: above every timestamp of quorum mode.
        assert!(reading.earliest_ns > opening.ceiling.0, "S24: stamped at or below the ceiling");
        assert!(self.closed == 0 || opening.change > self.closed, "S26: stamped after closing");
        // S27: nothing is stamped from an interval that contradicts most of those that are known.
        assert!(peers.compare(&reading).is_majority(), "S27: stamped against a majority");
        self.floor_ns = epoch_ns;
        self.count = count + n;
        let last = IntervalStamp::new(reading.earliest_ns, epoch_ns, self.node, count + n - 1);
        self.last = last.map(|last| last.timestamp());
        Ok(stamp)
    }

    /// Takes a reading while nobody asks. A disruption is noticed, and the mark that the next request
    /// needs is asked for. Afterwards, take what [`Stamper::poll_mark`] has.
    ///
    /// # Errors
    /// Why no timestamp would be given.
    pub fn sample(
        &mut self,
        opening: Opening,
        reading: Reading,
        peers: &PeerIntervals,
    ) -> Result<(), Uncertain> {
        let latest_ns = self.check(opening, reading, peers)?;
        self.ask_mark(latest_ns.max(self.floor_ns));
        Ok(())
    }

    /// Why no timestamp would be given for this reading, for people. A mark that is not there yet is
    /// no reason: a request asks for it and waits. Changes nothing.
    #[must_use]
    pub fn would_refuse(
        &self,
        opening: Opening,
        reading: Reading,
        peers: &PeerIntervals,
    ) -> Option<Uncertain> {
        let judged = self.judge(opening.ceiling, reading, self.disrupted_by(reading));
        let agreed = judged.and_then(|_| Ok(peers.check(&reading)?));
        self.check_open(opening.change).and(agreed).err()
    }

    /// Checks that a timestamp can be given for this reading, and returns its latest time.
    fn check(
        &mut self,
        opening: Opening,
        reading: Reading,
        peers: &PeerIntervals,
    ) -> Result<u64, Uncertain> {
        self.check_open(opening.change)?;
        self.disrupted_ns = self.disrupted_by(reading);
        self.disruption = Some(reading.disruption);
        let latest_ns = self.judge(opening.ceiling, reading, self.disrupted_ns)?;
        peers.check(&reading)?;
        Ok(latest_ns)
    }

    /// S26: what this node has applied must be later than the change for which it has stopped. A
    /// process that was started again may have applied less than the one before it.
    const fn check_open(&self, change: u64) -> Result<(), Uncertain> {
        if self.is_stopped {
            return Err(Uncertain::Stopped);
        }
        if self.closed > 0 && change <= self.closed {
            return Err(Uncertain::Closed { closed: self.closed });
        }
        Ok(())
    }

    /// The time that the earliest time must be above because of a disruption; 0 without one. The node
    /// begins again beyond its mark, as after a crash: nothing that it has given is above it.
    fn disrupted_by(&self, reading: Reading) -> u64 {
        let is_new = self.disruption.is_some_and(|last| last != reading.disruption);
        if is_new { self.mark_ns } else { self.disrupted_ns }
    }

    fn judge(&self, ceiling: Epoch, reading: Reading, disrupted_ns: u64) -> Result<u64, Uncertain> {
        let Reading { earliest_ns, latest_ns, .. } = reading;
        let width_ns = latest_ns.checked_sub(earliest_ns).ok_or(Uncertain::Empty)?;
        let (bound_ns, max_ns) = (width_ns.div_ceil(2), self.bound_max_ns);
        if bound_ns > max_ns {
            return Err(Uncertain::TooWide { bound_ns, max_ns });
        }
        if disrupted_ns > 0 && earliest_ns <= disrupted_ns {
            return Err(Uncertain::Disrupted);
        }
        if earliest_ns <= ceiling.0 {
            return Err(Uncertain::BelowCeiling);
        }
        let ahead_ns = self.floor_ns.saturating_sub(latest_ns);
        if ahead_ns > AHEAD_NS_MAX {
            return Err(Uncertain::Ahead { ahead_ns });
        }
        Ok(latest_ns)
    }

    /// Asks for the next mark if a timestamp at `epoch_ns` leaves too little below the last one.
    fn ask_mark(&mut self, epoch_ns: u64) {
        if self.mark_asked_ns.saturating_sub(epoch_ns) < MARK_LEFT_MIN_NS {
            self.mark_asked_ns = epoch_ns.saturating_add(MARK_AHEAD_NS);
            self.mark_due_ns = Some(self.mark_asked_ns);
        }
    }

    /// The next mark to make durable. [`Stamper::handle_mark`] says that it is.
    pub fn poll_mark(&mut self) -> Option<u64> {
        self.mark_due_ns.take()
    }

    /// A mark is on the disk.
    pub fn handle_mark(&mut self, mark_ns: u64) {
        if !self.is_stopped {
            self.mark_ns = self.mark_ns.max(mark_ns);
        }
    }

    /// Gives nothing any more, and returns the exact mark to write: the highest time that was
    /// given in this run or before it. The next run begins just above it.
    pub fn stop(&mut self) -> u64 {
        self.is_stopped = true;
        self.mark_due_ns = None;
        self.given_ns()
    }

    /// Gives nothing any more until a later change of the mode than `change` is applied (S26).
    /// Returns the highest time that was given in this run or before it. Tell nobody before `change`
    /// is durable in the data directory.
    pub fn close(&mut self, change: u64) -> u64 {
        self.closed = self.closed.max(change);
        self.given_ns()
    }

    /// No timestamp of this run or of an earlier one is above this time, Unix nanoseconds.
    fn given_ns(&self) -> u64 {
        // Before the first timestamp, the floor is just above the mark of earlier runs.
        self.last.map_or(self.floor_ns - 1, |last| last.epoch.0)
    }

    /// The time up to which timestamps may be given: the durable mark, Unix nanoseconds.
    #[must_use]
    pub const fn mark_ns(&self) -> u64 {
        self.mark_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const NOW: u64 = 1_000_000 * MS;
    const OPENING: Opening = Opening { ceiling: Epoch(1_000), change: 0 };

    fn stamper(mark_ns: u64) -> Stamper {
        Stamper::new(NodeId(7), mark_ns, 0, 10 * MS).unwrap()
    }

    fn reading(at_ns: u64, bound_ns: u64) -> Reading {
        Reading {
            earliest_ns: at_ns - bound_ns,
            latest_ns: at_ns + bound_ns,
            disruption: 1,
            raw_from_ns: 0,
            raw_until_ns: 0,
        }
    }

    fn alone() -> PeerIntervals {
        let mut peers = PeerIntervals::new(NodeId(7));
        peers.set_voters([NodeId(7)].into_iter());
        peers
    }

    /// Stamps, and makes marks durable as they are asked for.
    fn stamp(stamper: &mut Stamper, reading: Reading, n: u64) -> Result<IntervalStamp, Uncertain> {
        loop {
            let outcome = stamper.stamp(OPENING, reading, &alone(), n);
            if let Some(mark_ns) = stamper.poll_mark() {
                stamper.handle_mark(mark_ns);
            }
            if outcome != Err(Uncertain::MarkBehind) {
                return outcome;
            }
        }
    }

    #[test]
    fn a_timestamp_is_the_latest_time_and_counts_go_on_through_a_run() {
        let mut it = stamper(0);
        let first = stamp(&mut it, reading(NOW, MS), 3).unwrap();
        assert_eq!((first.earliest_ns(), first.latest_ns()), (NOW - MS, NOW + MS));
        assert_eq!((first.node(), first.count()), (NodeId(7), 0));
        assert_eq!(first.wait_ns(), 2 * MS + 2 * MS / 8 + 1);
        let later = stamp(&mut it, reading(NOW + 1, MS), 1).unwrap();
        assert_eq!((later.latest_ns(), later.count()), (NOW + MS + 1, 3));
    }

    #[test]
    fn a_nodes_timestamps_rise_while_its_clock_goes_back_and_clients_wait_longer() {
        let mut it = stamper(0);
        let first = stamp(&mut it, reading(NOW, MS), 1).unwrap();
        let second = stamp(&mut it, reading(NOW - 5 * MS, MS), 1).unwrap();
        assert!(second.timestamp() > first.timestamp());
        assert_eq!((second.latest_ns(), second.earliest_ns()), (NOW + MS, NOW - 6 * MS));
        assert!(second.wait_ns() > 7 * MS);
    }

    #[test]
    fn nothing_is_stamped_above_the_durable_mark() {
        let mut it = stamper(0);
        assert_eq!(it.stamp(OPENING, reading(NOW, MS), &alone(), 1), Err(Uncertain::MarkBehind));
        let mark_ns = it.poll_mark().unwrap();
        assert_eq!((mark_ns, it.poll_mark()), (NOW + MS + MARK_AHEAD_NS, None));
        // It is asked for once, and counts only when it is durable.
        assert_eq!(it.stamp(OPENING, reading(NOW, MS), &alone(), 1), Err(Uncertain::MarkBehind));
        assert_eq!(it.poll_mark(), None);
        it.handle_mark(mark_ns);
        assert!(it.stamp(OPENING, reading(NOW, MS), &alone(), 1).is_ok());
        // The next one is asked for before this one is used up.
        let half = NOW + MARK_AHEAD_NS / 2 + 1;
        assert!(it.stamp(OPENING, reading(half, MS), &alone(), 1).is_ok());
        assert_eq!(it.poll_mark(), Some(half + MS + MARK_AHEAD_NS));
        let beyond = NOW + 2 * MARK_AHEAD_NS;
        assert_eq!(it.stamp(OPENING, reading(beyond, MS), &alone(), 1), Err(Uncertain::MarkBehind));
    }

    #[test]
    fn samples_keep_the_mark_ahead_and_notice_a_disruption() {
        let mut it = stamper(0);
        let sample = |it: &mut Stamper, reading| {
            let outcome = it.sample(OPENING, reading, &alone());
            let mark_ns = it.poll_mark();
            if let Some(mark_ns) = mark_ns {
                it.handle_mark(mark_ns);
            }
            (outcome, mark_ns.is_some())
        };
        assert_eq!(sample(&mut it, reading(NOW, MS)), (Ok(()), true));
        assert_eq!(sample(&mut it, reading(NOW + 100 * MS, MS)), (Ok(()), false));
        let later = NOW + 600 * MS;
        assert_eq!(sample(&mut it, reading(later, MS)), (Ok(()), true));
        // So a request needs no mark that is not there, however long nobody has asked.
        assert!(it.stamp(OPENING, reading(later + 100 * MS, MS), &alone(), 1).is_ok());
        // The source names the disruption in one reading between two requests.
        let mark_ns = it.mark_ns();
        let moved = |at_ns| Reading { disruption: 2, ..reading(at_ns, MS) };
        assert_eq!(sample(&mut it, moved(later)), (Err(Uncertain::Disrupted), false));
        let refused = it.stamp(OPENING, moved(later + 200 * MS), &alone(), 1);
        assert_eq!(refused, Err(Uncertain::Disrupted));
        assert_eq!(sample(&mut it, moved(mark_ns + 2 * MS)), (Ok(()), true));
        it.stop();
        assert_eq!(sample(&mut it, moved(mark_ns + 3 * MS)), (Err(Uncertain::Stopped), false));
    }

    #[test]
    fn a_run_begins_above_the_mark_and_a_clean_stop_leaves_the_exact_one() {
        let mut it = stamper(NOW + 500 * MS);
        let first = stamp(&mut it, reading(NOW, MS), 1).unwrap();
        assert_eq!((first.latest_ns(), first.count()), (NOW + 500 * MS + 1, 0));
        assert_eq!(it.stop(), NOW + 500 * MS + 1);
        it.handle_mark(NOW + 9_000 * MS);
        assert_eq!(it.stamp(OPENING, reading(NOW, MS), &alone(), 1), Err(Uncertain::Stopped));
        assert_eq!((it.poll_mark(), it.stop()), (None, NOW + 500 * MS + 1));
        assert_eq!(stamper(77).stop(), 77, "a run that gave nothing changes nothing");
    }

    #[test]
    fn what_is_too_wide_or_below_the_ceiling_is_refused() {
        let mut it = stamper(0);
        let wide = Err(Uncertain::TooWide { bound_ns: 10 * MS + 1, max_ns: 10 * MS });
        assert_eq!(stamp(&mut it, reading(NOW, 10 * MS + 1), 1), wide);
        let empty = Reading { earliest_ns: NOW, latest_ns: NOW - 1, ..reading(NOW, MS) };
        assert_eq!(stamp(&mut it, empty, 1), Err(Uncertain::Empty));
        let at = |ceiling| {
            let mut it = stamper(0);
            it.handle_mark(NOW * 2);
            let opening = Opening { ceiling: Epoch(ceiling), change: 0 };
            it.stamp(opening, reading(NOW, MS), &alone(), 1).map(|_| ())
        };
        assert_eq!(at(NOW - MS), Err(Uncertain::BelowCeiling));
        assert_eq!(at(NOW - MS - 1), Ok(()));
        assert!(stamp(&mut it, reading(NOW, 10 * MS), 1).is_ok());
    }

    #[test]
    fn a_node_whose_interval_contradicts_the_others_stamps_nothing() {
        let mut it = stamper(0);
        let mut peers = alone();
        peers.set_voters([7, 8].map(NodeId).into_iter());
        peers.begin(1, 0);
        let told = |at_ns| Some((at_ns - MS, at_ns + MS));
        let unheard = it.stamp(OPENING, reading(NOW, MS), &peers, 1);
        assert_eq!((unheard, it.poll_mark()), (Err(Uncertain::Unheard), None));
        peers.handle_report(NodeId(8), told(NOW + 9 * MS), 0, 0);
        let contradicted = Uncertain::Contradicted { others: 1, known: 1 };
        let refused = it.stamp(OPENING, reading(NOW, MS), &peers, 1);
        assert_eq!((refused, it.poll_mark()), (Err(contradicted), None));
        assert_eq!(it.sample(OPENING, reading(NOW, MS), &peers), Err(contradicted));
        assert_eq!(it.would_refuse(OPENING, reading(NOW, MS), &peers), Some(contradicted));
        peers.handle_report(NodeId(8), told(NOW + MS), 0, 0);
        assert_eq!(it.would_refuse(OPENING, reading(NOW, MS), &peers), None);
        it.handle_mark(NOW * 2);
        assert!(it.stamp(OPENING, reading(NOW, MS), &peers, 1).is_ok());
    }

    #[test]
    fn after_a_disruption_a_node_waits_until_it_is_beyond_all_that_it_may_have_given() {
        let mut it = stamper(0);
        stamp(&mut it, reading(NOW, MS), 1).unwrap();
        let mark_ns = it.mark_ns();
        let moved = |at_ns| Reading { disruption: 2, ..reading(at_ns, MS) };
        assert_eq!(stamp(&mut it, moved(NOW + MS), 1), Err(Uncertain::Disrupted));
        assert_eq!(stamp(&mut it, moved(mark_ns + MS), 1), Err(Uncertain::Disrupted));
        let after = stamp(&mut it, moved(mark_ns + MS + 1), 1).unwrap();
        assert!(after.earliest_ns() > mark_ns);
        // The number of the first reading is no disruption.
        assert!(stamp(&mut stamper(0), moved(NOW), 1).is_ok());
    }

    #[test]
    fn a_node_that_is_far_ahead_of_its_clock_refuses_until_the_clock_has_come_near() {
        let mut it = stamper(0);
        let wrong = NOW + 3_600_000 * MS;
        stamp(&mut it, reading(wrong, MS), 1).unwrap();
        let refused = stamp(&mut it, reading(NOW, MS), 1);
        assert_eq!(refused, Err(Uncertain::Ahead { ahead_ns: wrong - NOW }));
        assert_eq!(it.would_refuse(OPENING, reading(NOW, MS), &alone()), refused.err());
        let near = wrong - AHEAD_NS_MAX;
        assert!(stamp(&mut it, reading(near, MS), 1).is_ok());
        // After a restart, too.
        let mut next = stamper(wrong);
        assert!(stamp(&mut next, reading(NOW, MS), 1).is_err());
    }

    #[test]
    fn when_the_counts_are_used_up_they_begin_anew_at_a_later_time() {
        let mut it = stamper(0);
        let first = stamp(&mut it, reading(NOW, MS), INTERVAL_COUNTS).unwrap();
        let second = stamp(&mut it, reading(NOW, MS), 1).unwrap();
        assert_eq!((second.latest_ns(), second.count()), (first.latest_ns() + 1, 0));
    }

    #[test]
    fn a_node_id_that_does_not_fit_is_refused() {
        let new = |node| Stamper::new(NodeId(node), 0, 0, MS).map(drop);
        assert_eq!(new(INTERVAL_NODE_MAX), Ok(()));
        assert_eq!(new(INTERVAL_NODE_MAX + 1), Err(NodeIdTooHigh(NodeId(32_768))));
    }

    /// S26: a node that has stopped for a change goes on only after a later one, in later runs, too.
    #[test]
    fn a_closed_node_gives_nothing_until_a_later_change_is_applied() {
        let opening = |change| Opening { change, ..OPENING };
        let mut it = stamper(5);
        it.handle_mark(NOW * 2);
        assert_eq!(it.close(0), 5, "nothing was given above the mark of earlier runs");
        let first = it.stamp(opening(1), reading(NOW, MS), &alone(), 1).unwrap();
        assert_eq!(it.close(2), first.latest_ns());
        let closed = Uncertain::Closed { closed: 2 };
        // It may not have applied the change itself.
        for change in [0, 1, 2] {
            assert_eq!(it.stamp(opening(change), reading(NOW, MS), &alone(), 1), Err(closed));
            assert_eq!(it.would_refuse(opening(change), reading(NOW, MS), &alone()), Some(closed));
        }
        assert_eq!(it.close(1), first.latest_ns(), "an earlier change opens nothing");
        assert_eq!(it.stamp(opening(2), reading(NOW, MS), &alone(), 1), Err(closed));
        let mut again = Stamper::new(NodeId(7), it.mark_ns(), 2, 10 * MS).unwrap();
        assert_eq!(again.stamp(opening(1), reading(NOW * 2, MS), &alone(), 1), Err(closed));
        assert_eq!(again.close(2), NOW * 2, "what the run before gave is not known");
        let later = it.stamp(opening(3), reading(NOW, MS), &alone(), 1).unwrap();
        assert!(later.timestamp() > first.timestamp());
    }
}
