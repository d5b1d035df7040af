//! The calls of clients that share a session, and their results. This checker tests what the
//! contract of clients (`clients/README.md`) promises to a caller. It knows which range a node gave
//! to which question, and does not rely on the session's own data.

use std::collections::BTreeMap;

use epicepoch_wire::{Timestamp, TimestampRange};

/// A call for timestamps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    count: u64,
    /// The highest timestamp in any answer before the call began; the call must get a higher one.
    floor: Option<Timestamp>,
    began: u64,
}

/// A request that a session has sent. A hedged request is two questions with one id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    session: usize,
    id: u64,
    sent: u64,
}

/// All calls of a run. Calls and questions are numbered together, in order.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    last: u64,
    /// The ranges that nodes gave to sessions. Each first timestamp leads to the last one and to
    /// the question.
    given: BTreeMap<Timestamp, (Timestamp, Question)>,
    /// The ranges that callers got. Each first timestamp leads to the last one.
    told: BTreeMap<Timestamp, Timestamp>,
    /// For each request, by session and id, the first timestamp of the range that callers share.
    used: BTreeMap<(usize, u64), Timestamp>,
}

impl Callers {
    /// A call begins.
    pub(crate) const fn call(&mut self, count: u64, floor: Option<Timestamp>) -> Call {
        self.last += 1;
        Call { count, floor, began: self.last }
    }

    /// A session sends a request.
    pub(crate) const fn asked(&mut self, session: usize, id: u64) -> Question {
        self.last += 1;
        Question { session, id, sent: self.last }
    }

    /// A node has given a range to a question. Returns whether the range is useless: callers
    /// already share the range that another question of the same request got.
    pub(crate) fn given(&mut self, question: Question, range: TimestampRange) -> bool {
        self.given.insert(range.first(), (range.last(), question));
        self.used.contains_key(&(question.session, question.id))
    }

    /// A session returns a range to a caller of `session`.
    ///
    /// # Errors The text says how the range breaks the contract of clients.
    pub(crate) fn told(
        &mut self,
        session: usize,
        call: Call,
        range: TimestampRange,
    ) -> Result<(), String> {
        let (first, last) = (range.first(), range.last());
        if range.count() != call.count {
            return Err(format!("{range:?} for {call:?}"));
        }
        if Some(first) <= call.floor {
            return Err(format!("{range:?} is not above what was complete before {call:?}"));
        }
        let before = self.told.range(..=last).next_back();
        if before.is_some_and(|(_, before)| *before >= first) {
            return Err(format!("{range:?} for {call:?}, and another caller has a part of it"));
        }
        self.told.insert(first, last);
        let whole = self.given.range(..=first).next_back();
        let Some((whole, (end, question))) = whole.filter(|(_, (end, _))| *end >= last) else {
            return Err(format!("{range:?} for {call:?} is no part of one range of a node"));
        };
        if question.session != session {
            return Err(format!(
                "{range:?} for {call:?} was given to another client, {question:?}"
            ));
        }
        if question.sent < call.began {
            return Err(format!("{range:?} for {call:?} was asked for before, by {question:?}"));
        }
        let used = *self.used.entry((session, question.id)).or_insert(*whole);
        if used != *whole {
            return Err(format!(
                "{range:?} for {call:?} is of the burnt range {whole:?} to {end:?}: callers share \
                 the one from {used:?}, {question:?}"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use epicepoch_wire::{Epoch, EpochIndex};

    use super::*;

    fn range(index: u64, count: u64) -> TimestampRange {
        TimestampRange::new(Timestamp::new(Epoch(9), EpochIndex(index)), count).unwrap()
    }

    /// Makes two calls, for 2 and 3 timestamps, and one question for all 5, which a node answered
    /// with the indexes 10 to 14.
    fn answered() -> (Callers, [Call; 2]) {
        let mut callers = Callers::default();
        let calls = [2, 3].map(|count| callers.call(count, Some(range(4, 1).first())));
        let question = callers.asked(0, 1);
        assert!(!callers.given(question, range(10, 5)));
        (callers, calls)
    }

    #[test]
    fn parts_of_one_answer_are_right_in_either_order() {
        for (first, second) in [(10, 12), (13, 10)] {
            let (mut callers, [two, three]) = answered();
            assert_eq!(callers.told(0, two, range(first, 2)), Ok(()));
            assert_eq!(callers.told(0, three, range(second, 3)), Ok(()));
        }
    }

    #[test]
    fn a_wrong_part_is_found() {
        for (index, count) in [(10, 3), (9, 2), (14, 2), (40, 2), (2, 2)] {
            let (mut callers, [two, _]) = answered();
            assert!(callers.told(0, two, range(index, count)).is_err(), "{index}, {count}");
        }
        let (mut callers, [two, three]) = answered();
        callers.told(0, three, range(10, 3)).unwrap();
        assert!(callers.told(0, two, range(12, 2)).is_err(), "shared by two callers");
    }

    #[test]
    fn an_answer_to_a_question_of_before_or_of_another_client_is_found() {
        let (mut callers, [two, _]) = answered();
        assert!(callers.told(1, two, range(10, 2)).is_err());
        let (mut callers, _) = answered();
        let late = callers.call(2, None);
        assert!(callers.told(0, late, range(10, 2)).is_err());
    }

    #[test]
    fn a_burnt_range_is_found() {
        let (mut callers, [two, three]) = answered();
        let copy = callers.asked(0, 1);
        assert!(!callers.given(copy, range(20, 5)));
        assert_eq!(callers.told(0, two, range(20, 2)), Ok(()), "either answer may come first");
        assert!(callers.told(0, three, range(12, 3)).is_err());
    }
}
