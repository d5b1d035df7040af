//! The black-box checker: a record of requests and answers, and two questions about it.
//!
//! 1. **Unique.** Is any timestamp in two answers?
//! 2. **Real-time order.** If operation A completed before operation B started, is every timestamp
//!    of A below every timestamp of B? The latest timestamp (S19) is in this order, too; it need not
//!    be above the timestamps of A, but must not be below them.
//!
//! Timestamps are totally ordered, and every answer carries its own position in that order. So
//! linearizability needs no search here (compare Wing & Gong, 1993; Herlihy & Wing, 1990). Each
//! question is a sort and a sweep, O(n log n), with 48 bytes for each answer. [`History::settle`]
//! forgets the answers that ended before all later requests started. Only one bound remains of
//! them: their highest timestamp. So a history can run for days, across leader changes and
//! restarts, in constant memory.
//!
//! No server's clock is trusted: all instants are of one monotonic clock, in one process. An
//! operation starts before its first byte is sent and ends after its last byte was read. So if A
//! ends at the same instant at which B starts, A completed before B started.

use std::time::Instant;

use epicepoch_wire::{Timestamp, TimestampRange};

pub(crate) use crate::answer::read_anything;
pub use crate::answer::{BrokenAnswer, read_range, read_timestamps};
use crate::verdict::{Answer, Totals, Verdict, Violation};

/// One request as its client saw it.
#[derive(Clone, Debug)]
pub struct Operation {
    /// When the operation started, read before the first byte of the request was sent.
    pub start: Instant,
    /// When the operation ended, read after the last byte of the answer arrived. Never before
    /// `start`.
    pub end: Instant,
    /// The node that was asked. It is only shown in reports.
    pub node: u64,
    /// The outcome.
    pub outcome: Outcome,
}

/// The outcome of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Timestamps were returned.
    Answered(TimestampRange),
    /// The latest timestamp was returned, and none was taken.
    Latest(Timestamp),
    /// The node refused. Without timestamps there is nothing to check.
    Refused(u16),
    /// No answer came: a timeout or a lost connection. The server may have taken timestamps, but no
    /// client has them.
    Unknown,
    /// The answer is not consecutive timestamps of one epoch.
    Broken(BrokenAnswer),
}

/// The recorded operations of any number of loads.
#[derive(Debug)]
pub struct History {
    /// The instant from which the nanoseconds in `answers` count.
    origin: Instant,
    answers: Vec<Answer>,
    /// Answers that [`History::settle`] has judged, but that were still open at its horizon.
    open: Vec<Answer>,
    /// Broken answers since the last [`History::settle`].
    broken: Vec<(Answer, BrokenAnswer)>,
    /// The highest timestamp among settled answers, and the end of its operation.
    floor: Option<Floor>,
    totals: Totals,
}

#[derive(Clone, Copy, Debug)]
struct Floor {
    answer: Answer,
    /// Operations that are recorded later start at or after this time, nanoseconds since the
    /// origin.
    horizon: u64,
}

impl History {
    /// Makes an empty history. No operation may start before `origin`.
    #[must_use]
    pub fn new(origin: Instant) -> Self {
        Self {
            origin,
            answers: Vec::new(),
            open: Vec::new(),
            broken: Vec::new(),
            floor: None,
            totals: Totals::default(),
        }
    }

    /// Adds one operation. Operations may be added in any order of time.
    ///
    /// # Panics
    /// If the operation started before the last [`History::settle`]. Answers that it could
    /// contradict are forgotten, so a clean verdict would not be true.
    pub fn record(&mut self, operation: &Operation) {
        let start = self.nanos(operation.start);
        // An operation that ends when it starts would count as completed before itself.
        let end = self.nanos(operation.end).max(start + 1);
        let answer =
            |range, is_latest| Answer { start, end, range, is_latest, node: operation.node };
        let horizon = self.floor.map_or(0, |floor| floor.horizon);
        let is_new = start >= horizon;
        match &operation.outcome {
            Outcome::Answered(range) => {
                assert!(is_new, "recorded an operation older than what was settled");
                self.totals.answered += 1;
                self.totals.timestamps += u128::from(range.count());
                self.answers.push(answer(*range, false));
            }
            Outcome::Latest(latest) => {
                assert!(is_new, "recorded an operation older than what was settled");
                self.totals.answered += 1;
                let range = TimestampRange::new(*latest, 1).expect("one is a range");
                self.answers.push(answer(range, true));
            }
            Outcome::Refused(_) => self.totals.refused += 1,
            Outcome::Unknown => self.totals.unknown += 1,
            Outcome::Broken(why) => {
                let nothing = TimestampRange::new(Timestamp::default(), 1).expect("one is a range");
                self.broken.push((answer(nothing, false), why.clone()));
            }
        }
    }

    /// Adds `refused` to the number of refused operations, and `unknown` to the number of
    /// operations without an answer.
    pub fn count(&mut self, refused: u64, unknown: u64) {
        self.totals.refused += refused;
        self.totals.unknown += unknown;
    }

    /// Adds many operations.
    pub fn record_all<'a>(&mut self, operations: impl IntoIterator<Item = &'a Operation>) {
        for operation in operations {
            self.record(operation);
        }
    }

    /// Judges every operation that started before `horizon`, and forgets the operations that had
    /// ended by `horizon`. So a load without pauses is checked in bounded memory.
    ///
    /// The caller guarantees that operations recorded later start at or after `horizon`. Then every
    /// operation that ended before a judged one is known, and the highest forgotten timestamp is
    /// enough to contradict a later answer.
    #[must_use]
    pub fn settle(&mut self, horizon: Instant) -> Verdict {
        let horizon = self.nanos(horizon);
        let judged: Vec<Answer> = self.answers.extract_if(.., |it| it.start < horizon).collect();
        let waiting = std::mem::replace(&mut self.answers, judged);
        let mut verdict = Verdict { totals: self.totals, ..Verdict::default() };
        for (answer, why) in self.broken.drain(..) {
            verdict.add(Violation::Broken { answer, why });
        }
        self.check_unique(&mut verdict);
        self.check_order(&mut verdict);
        let mut highest = self.floor.map(|floor| floor.answer);
        let judged = std::mem::replace(&mut self.answers, waiting);
        self.open.extend(judged);
        for answer in self.open.extract_if(.., |it| it.end <= horizon) {
            if highest.is_none_or(|it| it.range.last() < answer.range.last()) {
                highest = Some(answer);
            }
        }
        self.floor = highest.map(|answer| Floor { answer, horizon });
        verdict
    }

    /// Number of answers that are kept because a later answer may contradict them.
    #[must_use]
    pub fn held(&self) -> usize {
        self.answers.len() + self.open.len()
    }

    /// Totals of everything recorded.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Sorts answers by their first timestamp. An answer shares a timestamp with an earlier one
    /// exactly if it starts at or below the highest timestamp before it. Answers that an earlier
    /// call has judged are not judged again; they may only convict new ones. The latest timestamp is
    /// nobody's own, so it is left out.
    fn check_unique(&self, verdict: &mut Verdict) {
        let old = self.open.iter().map(|answer| (answer, false));
        let new = self.answers.iter().map(|answer| (answer, true));
        let is_own = |(answer, _): &(&Answer, bool)| !answer.is_latest;
        let mut sorted: Vec<(&Answer, bool)> = old.chain(new).filter(is_own).collect();
        sorted.sort_unstable_by_key(|(answer, _)| (answer.range.first(), answer.start));
        let mut highest: Option<(&Answer, bool)> = None;
        for (answer, new) in sorted {
            let shared = highest.filter(|(it, _)| answer.range.first() <= it.range.last());
            if let Some((other, other_new)) = shared
                && (new || other_new)
            {
                verdict.add(Violation::Repeated { earlier: *other, later: *answer }.ordered());
            }
            if highest.is_none_or(|(it, _)| it.range.last() < answer.range.last()) {
                highest = Some((answer, new));
            }
        }
    }

    /// Goes through the operations by start. The timestamps of an operation must lie above the
    /// highest one of all operations that ended at or before its start. The latest timestamp must
    /// not lie below it.
    fn check_order(&self, verdict: &mut Verdict) {
        let mut by_end: Vec<&Answer> = self.open.iter().chain(&self.answers).collect();
        by_end.sort_unstable_by_key(|answer| answer.end);
        let mut by_start: Vec<&Answer> = self.answers.iter().collect();
        by_start.sort_unstable_by_key(|answer| answer.start);
        let mut ended = by_end.into_iter().peekable();
        let mut highest = self.floor.map(|floor| floor.answer);
        for later in by_start {
            while let Some(answer) = ended.next_if(|answer| answer.end <= later.start) {
                if highest.is_none_or(|it| it.range.last() < answer.range.last()) {
                    highest = Some(*answer);
                }
            }
            let is_low = |it: &Answer| {
                let (first, last) = (later.range.first(), it.range.last());
                first < last || first == last && !later.is_latest
            };
            if let Some(earlier) = highest.filter(is_low) {
                verdict.add(Violation::OutOfOrder { earlier, later: *later });
            }
        }
    }

    fn nanos(&self, at: Instant) -> u64 {
        let since = at.checked_duration_since(self.origin);
        since.expect("no operation starts before the origin of its history").as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use epicepoch_wire::{Epoch, EpochIndex};
    use proptest::prelude::*;

    use super::*;
    use crate::verdict::VIOLATIONS_KEPT_MAX;

    /// An answered operation: `(node, start, end, first index, count)`. Times are in microseconds,
    /// and all timestamps are of epoch 7.
    type Told = (u64, u64, u64, u64, u64);

    fn range(first: u64, count: u64) -> TimestampRange {
        TimestampRange::new(Timestamp::new(Epoch(7), EpochIndex(first)), count).unwrap()
    }

    fn operation(origin: Instant, (node, start, end, first, count): Told) -> Operation {
        Operation {
            start: origin + Duration::from_micros(start),
            end: origin + Duration::from_micros(end),
            node,
            outcome: Outcome::Answered(range(first, count)),
        }
    }

    fn history(told: &[Told]) -> History {
        let origin = Instant::now();
        let mut history = History::new(origin);
        for it in told {
            history.record(&operation(origin, *it));
        }
        history
    }

    fn check(told: &[Told]) -> Verdict {
        history(told).settle(Instant::now() + Duration::from_secs(1))
    }

    fn is_repeated(violation: &Violation) -> bool {
        matches!(violation, Violation::Repeated { .. })
    }

    fn is_out_of_order(violation: &Violation) -> bool {
        matches!(violation, Violation::OutOfOrder { .. })
    }

    #[test]
    fn an_ordered_history_is_clean() {
        check(&[(1, 0, 10, 0, 5), (2, 10, 20, 5, 1), (3, 30, 40, 9, 2)]).assert_clean();
    }

    #[test]
    fn a_latest_timestamp_is_not_below_earlier_answers_and_below_later_ones() {
        let check = |told: &[Told], latest: &[(u64, u64, u64)]| {
            let origin = Instant::now();
            let mut history = History::new(origin);
            for it in told {
                history.record(&operation(origin, *it));
            }
            for (start, end, index) in latest {
                let outcome = Outcome::Latest(range(*index, 1).first());
                history
                    .record(&Operation { outcome, ..operation(origin, (9, *start, *end, 0, 1)) });
            }
            history.settle(Instant::now() + Duration::from_secs(1))
        };
        let told = [(1, 0, 10, 5, 3), (2, 30, 40, 8, 1)];
        // Several readers get the same one, which is a writer's timestamp.
        check(&told, &[(10, 20, 7), (12, 30, 7), (21, 29, 7), (40, 50, 8)]).assert_clean();
        // An answer that is not complete yet may lie above or below.
        check(&told, &[(5, 20, 4), (35, 60, 7), (35, 60, 8)]).assert_clean();
        for wrong in [(10, 20, 6), (10, 30, 8), (41, 50, 7)] {
            let verdict = check(&told, &[wrong]);
            assert_eq!(verdict.violation_count, 1, "{wrong:?}: {verdict}");
            assert!(is_out_of_order(&verdict.violations[0]), "{wrong:?}");
        }
        // A latest timestamp never goes back.
        let verdict = check(&told, &[(41, 50, 9), (50, 60, 8)]);
        assert_eq!(verdict.violation_count, 1, "{verdict}");
    }

    #[test]
    fn concurrent_operations_may_come_in_either_order() {
        check(&[(1, 0, 10, 1, 1), (2, 5, 15, 2, 1)]).assert_clean();
        check(&[(1, 0, 10, 2, 1), (2, 5, 15, 1, 1)]).assert_clean();
        check(&[(1, 0, 100, 9, 1), (2, 5, 15, 1, 1), (2, 16, 20, 2, 1)]).assert_clean();
    }

    #[test]
    fn a_timestamp_given_twice_is_found() {
        let verdict = check(&[(1, 0, 10, 4, 1), (2, 5, 15, 4, 1)]);
        assert_eq!(verdict.violation_count, 1, "{verdict}");
        assert!(is_repeated(&verdict.violations[0]));
        let story = verdict.to_string();
        assert!(story.contains("given twice: 0000000000000007"), "{story}");
        assert!(story.contains("by node 1 between 0.000000 s and 0.000010 s"), "{story}");
    }

    #[test]
    fn a_later_answer_of_another_node_that_is_lower_is_found() {
        let verdict = check(&[(1, 0, 10, 8, 1), (2, 11, 15, 3, 1)]);
        assert_eq!(verdict.violation_count, 1, "{verdict}");
        assert!(is_out_of_order(&verdict.violations[0]));
        assert!(verdict.to_string().contains("1.0 us after the first was complete"), "{verdict}");
    }

    #[test]
    fn ranges_that_overlap_are_found_even_inside_one_another() {
        let verdict = check(&[(1, 0, 10, 0, 100), (2, 5, 15, 99, 2)]);
        assert!(verdict.violations.iter().any(is_repeated), "{verdict}");
        let hidden = check(&[(1, 0, 10, 0, 100), (2, 5, 15, 3, 2), (3, 5, 15, 50, 1)]);
        assert_eq!(hidden.violation_count, 2, "{hidden}");
    }

    #[test]
    fn equal_timestamps_at_touching_intervals_break_both_promises() {
        let verdict = check(&[(1, 0, 10, 4, 1), (2, 10, 20, 4, 1)]);
        assert!(verdict.violations.iter().any(is_repeated), "{verdict}");
        assert!(verdict.violations.iter().any(is_out_of_order), "{verdict}");
    }

    #[test]
    fn an_end_that_equals_a_start_comes_before_it() {
        assert!(!check(&[(1, 0, 10, 5, 1), (2, 10, 20, 4, 1)]).is_clean());
    }

    #[test]
    fn the_culprit_is_found_behind_answers_that_are_in_order_with_their_neighbours() {
        let verdict = check(&[(1, 0, 10, 50, 1), (2, 5, 20, 1, 1), (3, 15, 30, 2, 1)]);
        assert_eq!(verdict.violation_count, 1, "{verdict}");
    }

    #[test]
    fn a_settled_past_still_convicts() {
        let origin = Instant::now();
        let at = |micros| origin + Duration::from_micros(micros);
        let mut history = History::new(origin);
        history.record(&operation(origin, (1, 0, 10, 8, 3)));
        history.settle(at(20)).assert_clean();
        history.record(&operation(origin, (2, 20, 30, 11, 1)));
        history.settle(at(40)).assert_clean();
        history.settle(at(50)).assert_clean();
        history.record(&operation(origin, (3, 60, 70, 10, 1)));
        let verdict = history.settle(at(80));
        assert_eq!(verdict.violation_count, 1, "{verdict}");
        assert_eq!(verdict.totals.answered, 3);
    }

    #[test]
    #[should_panic(expected = "older than what was settled")]
    fn an_operation_older_than_the_settled_past_is_not_taken() {
        let origin = Instant::now();
        let mut history = History::new(origin);
        history.record(&operation(origin, (1, 0, 10, 8, 3)));
        history.settle(origin + Duration::from_micros(20)).assert_clean();
        history.record(&operation(origin, (2, 19, 30, 11, 1)));
    }

    #[test]
    fn inside_one_answer_only_neighbours_of_one_epoch_pass() {
        let body = |all: &[(u64, u64)]| {
            let bytes = all
                .iter()
                .map(|(epoch, index)| Timestamp::new(Epoch(*epoch), EpochIndex(*index)).to_bytes());
            bytes.flatten().collect::<Vec<u8>>()
        };
        assert_eq!(read_timestamps(&body(&[(7, 1), (7, 2), (7, 3)]), 3), Ok(range(1, 3)));
        for wrong in [[(7, 1), (7, 3)], [(7, 1), (8, 2)], [(7, 1), (7, 1)], [(7, 2), (7, 1)]] {
            let error = read_timestamps(&body(&wrong), 2).unwrap_err();
            assert!(matches!(error, BrokenAnswer::Gap { .. }), "{error}");
        }
        for count in [0, 1, 3] {
            let error = read_timestamps(&body(&[(7, 1), (7, 2)]), count).unwrap_err();
            assert!(matches!(error, BrokenAnswer::Length { .. }), "{error}");
        }
        assert!(read_timestamps(&[0; 17], 1).is_err());
        assert!(read_timestamps(&[], 0).is_err());
        assert_eq!(read_range(&range(4, 9).to_bytes(), 9), Ok(range(4, 9)));
        assert!(read_range(&range(4, 9).to_bytes(), 8).is_err());
        assert!(read_range(&[0; 24], 1).is_err());
    }

    #[test]
    fn a_broken_answer_is_a_violation_and_a_refusal_is_not() {
        let origin = Instant::now();
        let mut history = History::new(origin);
        let mut told = operation(origin, (1, 0, 10, 8, 3));
        for outcome in [Outcome::Refused(503), Outcome::Unknown] {
            told.outcome = outcome;
            history.record(&told);
        }
        history.settle(origin).assert_clean();
        told.outcome = Outcome::Broken(BrokenAnswer::NotARange);
        history.record(&told);
        assert_eq!(history.settle(origin).violation_count, 1);
    }

    /// Finds violations directly by the two definitions, in quadratic time.
    fn guilty_by_definition(told: &[Told]) -> (Vec<usize>, Vec<usize>) {
        let last = |it: &Told| it.3 + it.4 - 1;
        let mut repeated = Vec::new();
        let mut disordered = Vec::new();
        for (at, b) in told.iter().enumerate() {
            let others = || told.iter().enumerate().filter(|(other, _)| *other != at);
            if others().any(|(_, a)| a.3 <= last(b) && b.3 <= last(a)) {
                repeated.push(at);
            }
            if others().any(|(_, a)| a.2 <= b.1 && last(a) >= b.3) {
                disordered.push(at);
            }
        }
        (repeated, disordered)
    }

    fn any_told() -> impl Strategy<Value = Told> {
        (1_u64..4, 0_u64..60, 1_u64..30, 0_u64..80, 1_u64..4).prop_map(
            |(node, start, length, first, count)| (node, start, start + length, first, count),
        )
    }

    /// Draws an operation whose timestamp stands for a moment between its start and end. Most sets
    /// of such operations are correct.
    fn nearly_right() -> impl Strategy<Value = Told> {
        (1_u64..4, 0_u64..600, 2_u64..60, 0_u64..100, 1_u64..3).prop_map(
            |(node, start, length, inside, count)| {
                let moment = start + length * inside / 100;
                (node, start, start + length, moment * 3, count)
            },
        )
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(
            told in prop_oneof![
                prop::collection::vec(any_told(), 0..8),
                prop::collection::vec(nearly_right(), 0..24),
            ],
        ) {
            let verdict = check(&told);
            let (repeated, disordered) = guilty_by_definition(&told);
            let found = verdict.violations.iter().filter(|it| is_out_of_order(it)).count();
            if verdict.violations.len() < VIOLATIONS_KEPT_MAX {
                prop_assert_eq!(found, disordered.len(), "{}", &verdict);
            }
            let found = verdict.violations.iter().any(is_repeated);
            prop_assert_eq!(found, !repeated.is_empty(), "{}", &verdict);
        }

        #[test]
        fn settling_as_one_goes_finds_the_same_guilt(
            told in prop::collection::vec(prop_oneof![any_told(), nearly_right()], 0..24),
            step in 1_u64..100,
        ) {
            let whole = check(&told);
            let origin = Instant::now();
            let mut history = History::new(origin);
            let mut found = 0;
            let mut waiting = told.clone();
            // Operations are recorded in any order of their ends. As `settle` demands, an operation
            // that is recorded after a horizon starts at or after that horizon.
            for horizon in (0..700).step_by(step as usize) {
                for it in waiting.extract_if(.., |it| it.1 < horizon) {
                    history.record(&operation(origin, it));
                }
                let horizon = origin + Duration::from_micros(horizon);
                found += history.settle(horizon).violation_count;
            }
            let left: Vec<_> = waiting.iter().map(|it| operation(origin, *it)).collect();
            history.record_all(&left);
            found += history.settle(origin + Duration::from_secs(1)).violation_count;
            prop_assert_eq!(whole.is_clean(), found == 0, "{}", &whole);
            prop_assert_eq!(history.held(), 0);
        }
    }
}
