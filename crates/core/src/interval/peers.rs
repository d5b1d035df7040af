//! The intervals of the other voters, beside this node's own. Intervals that all hold true time have
//! a moment in common. A node whose interval has none with most of the others refuses (S27). This
//! detects some wrong clocks and proves none right. The idea is that of Marzullo and Owicki
//! (Maintaining the Time in a Distributed System, PODC 1983).
//!
//! A report says when true time was in its interval: between the question and the arrival of the
//! answer. So it is widened by the round trip, and later by what the raw clock may have drifted.

use std::collections::BTreeMap;

use epicepoch_wire::NodeId;

use super::reading::{Reading, drift_ns};

/// A report does not count any more when it is older than this, nanoseconds: its sender is gone.
pub const REPORT_AGE_NS_MAX: u64 = 2_000_000_000;
/// A report whose round trip was longer is dropped, nanoseconds: it would be wider than any clock
/// that is off by so little that nobody notices.
pub const REPORT_TRIP_NS_MAX: u64 = 1_000_000_000;
/// A node that has not known a majority of the intervals once refuses for this long after it began,
/// nanoseconds. Then the others are taken for dead.
pub const FIRST_REPORTS_NS_MAX: u64 = 2_000_000_000;

/// How the interval of this node compares with those of the others that it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Intervals that are known, this node's own among them.
    pub known: usize,
    /// Intervals that have a moment in common with this node's own, which is one of them.
    pub agreeing: usize,
}

impl Agreement {
    /// Whether this node's interval has a moment in common with more than half of the known ones. A
    /// node that knows only its own agrees. Of two that contradict each other, neither does.
    #[must_use]
    pub const fn is_majority(self) -> bool {
        2 * self.agreeing > self.known
    }
}

/// Why the intervals of the others forbid a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objection {
    /// The intervals of `others` of the `known` other voters have no moment in common with this
    /// node's.
    Contradicted {
        /// See above.
        others: usize,
        /// See above.
        known: usize,
    },
    /// The node has just begun, and has not known a majority of the intervals yet.
    Unheard,
}

/// What a peer has told about true time.
#[derive(Clone, Copy, Debug)]
struct Report {
    /// True time minus the raw clock of this node was between these two when the report arrived.
    low_ns: i128,
    high_ns: i128,
    arrived_raw_ns: u64,
}

/// The intervals that other voters have told this run of a node.
#[derive(Clone, Debug)]
pub struct PeerIntervals {
    me: NodeId,
    /// The other voters, and their last reports. `None` until the voters are named: then a node that
    /// starts does not know yet whether there are others.
    others: Option<BTreeMap<NodeId, Option<Report>>>,
    /// The last change of the mode by which this node might have given a timestamp, and when it first
    /// might, by its raw clock.
    began: Option<(u64, u64)>,
    /// Whether the intervals of a majority of the voters, its own among them, were known at once since
    /// then.
    has_known_majority: bool,
}

impl PeerIntervals {
    /// Of a node that does not know the voters yet. Until they are named, it gives no timestamp.
    #[must_use]
    pub const fn new(me: NodeId) -> Self {
        Self { me, others: None, began: None, has_known_majority: false }
    }

    /// Names the voters. What others have told is forgotten.
    pub fn set_voters(&mut self, voters: impl Iterator<Item = NodeId>) {
        let mut before = self.others.take().unwrap_or_default();
        let others = voters.filter(|node| *node != self.me);
        self.others = Some(others.map(|node| (node, before.remove(&node).flatten())).collect());
    }

    /// The last reports of the other voters.
    fn reports(&self) -> impl Iterator<Item = &Report> {
        self.others.iter().flat_map(BTreeMap::values).flatten()
    }

    /// The node would give timestamps by this change of the mode from now on, but for the others. Only
    /// the first call for a change counts: a source may have begun to lie before, in quorum mode.
    pub fn begin(&mut self, change: u64, raw_ns: u64) {
        if self.others.is_some() && self.began.is_none_or(|(last, _)| last < change) {
            self.began = Some((change, raw_ns));
            self.has_known_majority = self.knows_majority(raw_ns);
        }
    }

    /// Whether the intervals of a majority of the voters, its own among them, are known now.
    fn knows_majority(&self, raw_ns: u64) -> bool {
        let is_fresh =
            |report: &&Report| raw_ns.saturating_sub(report.arrived_raw_ns) <= REPORT_AGE_NS_MAX;
        let known = 1 + self.reports().filter(is_fresh).count();
        // This node counts, also if it is not a voter.
        self.others.as_ref().is_some_and(|others| 2 * known > others.len() + 1)
    }

    /// Takes what a peer tells: the earliest and the latest time when it answered, or `None` if it
    /// does not know the time. `trip_ns` is the round trip, at least as long as it was by any clock
    /// that is right; the answer arrived at `arrived_raw_ns` of the raw clock. Reports of nodes that
    /// are not voters are dropped.
    pub fn handle_report(
        &mut self,
        peer: NodeId,
        told: Option<(u64, u64)>,
        trip_ns: u64,
        arrived_raw_ns: u64,
    ) {
        let last = self.others.as_mut().and_then(|others| others.get_mut(&peer));
        let Some(last) = last else { return };
        // An empty interval is a fault of its sender, who refuses by itself.
        let told = told.filter(|(earliest_ns, latest_ns)| earliest_ns <= latest_ns);
        *last = told.filter(|_| trip_ns <= REPORT_TRIP_NS_MAX).map(|(earliest_ns, latest_ns)| {
            let arrived_ns = i128::from(arrived_raw_ns);
            // True time was in the interval at some moment of the round trip.
            let high_ns = i128::from(latest_ns) + i128::from(trip_ns) - arrived_ns;
            Report { low_ns: i128::from(earliest_ns) - arrived_ns, high_ns, arrived_raw_ns }
        });
        self.has_known_majority |= self.knows_majority(arrived_raw_ns);
    }

    /// Compares a reading of this node with what the others have told lately.
    #[must_use]
    pub fn compare(&self, reading: &Reading) -> Agreement {
        let low_ns = i128::from(reading.earliest_ns) - i128::from(reading.raw_until_ns);
        let high_ns = i128::from(reading.latest_ns) - i128::from(reading.raw_from_ns);
        let mut agreement = Agreement { known: 1, agreeing: 1 };
        for report in self.reports() {
            let age_ns = reading.raw_until_ns.saturating_sub(report.arrived_raw_ns);
            if age_ns > REPORT_AGE_NS_MAX {
                continue;
            }
            // A report may also have arrived after the reading.
            let apart_ns = reading.raw_from_ns.abs_diff(report.arrived_raw_ns).max(age_ns);
            let drift_ns = i128::from(drift_ns(apart_ns));
            let is_common =
                low_ns <= report.high_ns + drift_ns && report.low_ns - drift_ns <= high_ns;
            agreement.known += 1;
            agreement.agreeing += usize::from(is_common);
        }
        agreement
    }

    /// Checks that the others do not forbid a timestamp for this reading (S27).
    pub(super) fn check(&self, reading: &Reading) -> Result<(), Objection> {
        let agreement = self.compare(reading);
        let Agreement { known, agreeing } = agreement;
        if !agreement.is_majority() {
            return Err(Objection::Contradicted { others: known - agreeing, known: known - 1 });
        }
        let began_ns = self.began.map_or(reading.raw_until_ns, |(_, raw_ns)| raw_ns);
        let is_early = reading.raw_until_ns.saturating_sub(began_ns) < FIRST_REPORTS_NS_MAX;
        let Some(others) = &self.others else { return Err(Objection::Unheard) };
        if !others.is_empty() && !self.has_known_majority && is_early {
            return Err(Objection::Unheard);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    /// True time minus the raw clock of the node.
    const START: u64 = 1_000_000_000 * MS;
    const RAW: u64 = 50_000 * MS;

    /// A reading at a time of the raw clock, by a clock that is ahead of true time.
    fn reading(raw_ns: u64, ahead_ms: i64, bound_ms: u64) -> Reading {
        let clock_ns = (START + raw_ns).saturating_add_signed(ahead_ms * MS as i64);
        let (earliest_ns, latest_ns) = (clock_ns - bound_ms * MS, clock_ns + bound_ms * MS);
        let (raw_from_ns, raw_until_ns) = (raw_ns, raw_ns);
        Reading { earliest_ns, latest_ns, disruption: 0, raw_from_ns, raw_until_ns }
    }

    fn peers(others: u64) -> PeerIntervals {
        let mut peers = PeerIntervals::new(NodeId(1));
        peers.set_voters((1..=others + 1).map(NodeId));
        peers.begin(1, RAW);
        peers
    }

    /// A peer whose clock is ahead, and off by at most 1 ms as it says, answers after `out_ms`; the
    /// answer takes `back_ms` and arrives at `raw_ns`.
    fn report(
        peers: &mut PeerIntervals,
        node: u64,
        ahead_ms: i64,
        (out_ms, back_ms): (u64, u64),
        raw_ns: u64,
    ) {
        let it = reading(raw_ns - back_ms * MS, ahead_ms, 1);
        let told = Some((it.earliest_ns, it.latest_ns));
        peers.handle_report(NodeId(node), told, (out_ms + back_ms) * MS, raw_ns);
    }

    fn agreement(known: usize, agreeing: usize) -> Agreement {
        Agreement { known, agreeing }
    }

    #[test]
    fn a_node_that_contradicts_most_of_the_others_refuses_and_they_go_on() {
        let refused = Err(Objection::Contradicted { others: 2, known: 2 });
        for lie in [-5, 5] {
            let mut wrong = peers(2);
            for other in [2, 3] {
                report(&mut wrong, other, 0, (0, 1), RAW);
            }
            assert_eq!(wrong.compare(&reading(RAW, lie, 1)), agreement(3, 1));
            assert_eq!(wrong.check(&reading(RAW, lie, 1)), refused, "{lie}");
            assert_eq!(wrong.check(&reading(RAW, 1, 1)), Ok(()), "a right clock");
            let mut right = peers(2);
            report(&mut right, 2, lie, (0, 1), RAW);
            report(&mut right, 3, 0, (0, 1), RAW);
            assert_eq!(right.compare(&reading(RAW, 0, 1)), agreement(3, 2));
            assert_eq!(right.check(&reading(RAW, 0, 1)), Ok(()));
        }
    }

    /// A node that starts is asked at once, and learns the voters a moment later.
    #[test]
    fn a_node_that_does_not_know_the_voters_gives_nothing_and_forgets_that_it_was_asked() {
        let mut new = PeerIntervals::new(NodeId(1));
        new.begin(1, RAW);
        assert_eq!(new.check(&reading(RAW, 0, 1)), Err(Objection::Unheard));
        new.set_voters((1..=3).map(NodeId));
        new.begin(1, RAW);
        assert_eq!(
            new.check(&reading(RAW, 0, 1)),
            Err(Objection::Unheard),
            "no other voter is known"
        );
        report(&mut new, 2, 0, (0, 1), RAW);
        assert_eq!(new.check(&reading(RAW, 0, 1)), Ok(()));
    }

    #[test]
    fn half_is_no_majority_and_a_node_alone_agrees_with_itself() {
        let mut two = peers(1);
        report(&mut two, 2, 50, (0, 1), RAW);
        let refused = Err(Objection::Contradicted { others: 1, known: 1 });
        assert_eq!(two.check(&reading(RAW, 0, 1)), refused);
        let mut four = peers(3);
        report(&mut four, 2, 0, (0, 1), RAW);
        report(&mut four, 3, 50, (0, 1), RAW);
        report(&mut four, 4, 50, (0, 1), RAW);
        let refused = Err(Objection::Contradicted { others: 2, known: 3 });
        assert_eq!(four.check(&reading(RAW, 0, 1)), refused);
        assert_eq!(peers(0).check(&reading(RAW, 0, 1)), Ok(()));
    }

    #[test]
    fn a_late_report_is_wider_and_never_contradicts_a_right_clock() {
        for (out_ms, back_ms) in [(0, 400), (400, 0), (200, 200), (0, 0)] {
            let mut it = peers(1);
            report(&mut it, 2, 0, (out_ms, back_ms), RAW);
            for (age_ms, ahead) in [(0, 1), (0, -1), (1_999, 1), (1_999, -1)] {
                let now = reading(RAW + age_ms * MS, ahead, 1);
                assert_eq!(it.check(&now), Ok(()), "{out_ms} {back_ms} {age_ms} {ahead}");
            }
            // A raw clock at a rate that is wrong by 500 ppm.
            let fast = reading(RAW + 1_000 * MS, 2, 1);
            let slow = Reading { raw_from_ns: RAW + 1_000 * MS + MS / 2, ..fast };
            let slow = Reading { raw_until_ns: slow.raw_from_ns, ..slow };
            assert_eq!(it.check(&slow), Ok(()));
            let wrong = reading(RAW, 403, 1);
            assert!(it.check(&wrong).is_err(), "{out_ms} {back_ms}");
        }
        // A trip that is too long says nothing, and replaces what was known.
        let mut it = peers(1);
        report(&mut it, 2, 0, (0, 1), RAW);
        report(&mut it, 2, 0, (0, 1_001), RAW);
        assert_eq!(it.compare(&reading(RAW, 99, 1)), agreement(1, 1));
    }

    #[test]
    fn old_reports_missing_ones_and_those_of_strangers_do_not_count() {
        let mut it = peers(2);
        report(&mut it, 2, 50, (0, 1), RAW);
        report(&mut it, 9, 50, (0, 1), RAW);
        assert_eq!(it.compare(&reading(RAW, 0, 1)), agreement(2, 1));
        let later = RAW + REPORT_AGE_NS_MAX;
        assert_eq!(it.compare(&reading(later, 0, 1)), agreement(2, 1));
        assert_eq!(it.compare(&reading(later + 1, 0, 1)), agreement(1, 1));
        it.handle_report(NodeId(2), None, 0, RAW);
        assert_eq!(it.compare(&reading(RAW, 0, 1)), agreement(1, 1), "it does not know the time");
        it.handle_report(NodeId(2), Some((9, 8)), 0, RAW);
        assert_eq!(it.compare(&reading(RAW, 0, 1)), agreement(1, 1), "an empty interval");
        report(&mut it, 2, 50, (0, 1), RAW);
        report(&mut it, 3, 50, (0, 1), RAW);
        it.set_voters([1, 3, 4].map(NodeId).into_iter());
        assert_eq!(it.compare(&reading(RAW, 0, 1)), agreement(2, 1), "2 is no voter any more");
    }

    #[test]
    fn a_node_that_has_just_begun_waits_for_the_others_but_not_for_ever() {
        let mut it = peers(2);
        let at = |raw_ns| reading(raw_ns, 0, 1);
        assert_eq!(it.check(&at(RAW)), Err(Objection::Unheard));
        assert_eq!(it.check(&at(RAW + FIRST_REPORTS_NS_MAX - 1)), Err(Objection::Unheard));
        assert_eq!(it.check(&at(RAW + FIRST_REPORTS_NS_MAX)), Ok(()));
        report(&mut it, 3, 0, (0, 1), RAW);
        assert_eq!(it.check(&at(RAW)), Ok(()), "two of three are known");
        it.handle_report(NodeId(3), None, 0, RAW);
        assert_eq!(it.check(&at(RAW)), Ok(()), "they were known once");
        let mut five = peers(4);
        report(&mut five, 3, 0, (0, 1), RAW);
        assert_eq!(five.check(&at(RAW)), Err(Objection::Unheard), "two of five");
        report(&mut five, 4, 0, (0, 1), RAW);
        assert_eq!(five.check(&at(RAW)), Ok(()));
        assert_eq!(peers(0).check(&at(RAW)), Ok(()), "a node alone");
        // The mode has changed back and there again meanwhile.
        five.begin(1, RAW);
        assert_eq!(five.check(&at(RAW)), Ok(()), "the same change");
        let later = RAW + 9 * FIRST_REPORTS_NS_MAX;
        five.begin(3, later);
        assert_eq!(five.check(&at(later)), Err(Objection::Unheard), "another change");
        five.begin(1, RAW);
        assert_eq!(five.check(&at(later)), Err(Objection::Unheard), "by an older publication");
        report(&mut five, 3, 0, (0, 1), later);
        report(&mut five, 4, 0, (0, 1), later);
        assert_eq!(five.check(&at(later)), Ok(()), "two others are known");
        five.begin(5, later);
        assert_eq!(five.check(&at(later)), Ok(()), "they are known already");
        // Before it begins, a node with others refuses.
        let mut new = PeerIntervals::new(NodeId(1));
        new.set_voters([1, 2].map(NodeId).into_iter());
        assert_eq!(new.check(&at(RAW + 9 * FIRST_REPORTS_NS_MAX)), Err(Objection::Unheard));
    }
}
