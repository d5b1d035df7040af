//! The trace of a run in words, for people. It keeps only the last lines.

use std::collections::VecDeque;

use crate::event::{Answer, Event};
use crate::parameters::MS;
use crate::plane::Plane;

/// The last lines of a run. A simulated second has thousands of lines about requests. So the trace
/// keeps lines about requests and an equal number of other lines. The other lines reach back for
/// seconds and show what led to the end.
#[derive(Debug)]
pub(crate) struct Trace {
    /// The kept lines of each kind, with their numbers. Both kinds are numbered together.
    lines: [VecDeque<(u64, String)>; 2],
    kept: usize,
    logged: u64,
}

/// The kind of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A line about a request or its round.
    Request,
    /// Any other line: consensus messages, publications, faults and their effects.
    Other,
}

impl Trace {
    pub(crate) const fn keeping(kept: usize) -> Self {
        Self { lines: [VecDeque::new(), VecDeque::new()], kept, logged: 0 }
    }

    pub(crate) fn log(&mut self, now_ns: u64, kind: Kind, line: &str) {
        let lines = &mut self.lines[kind as usize];
        if lines.len() == self.kept {
            lines.pop_front();
        }
        let (ms, ns) = (now_ns / MS, now_ns % MS);
        lines.push_back((self.logged, format!("{ms:>6}.{ns:06} ms  {line}")));
        self.logged += 1;
    }

    /// All kept lines, in order.
    pub(crate) fn into_lines(self) -> VecDeque<String> {
        let [mut requests, mut others] = self.lines;
        let mut all = VecDeque::with_capacity(requests.len() + others.len());
        loop {
            let next = match (requests.front(), others.front()) {
                (Some(one), Some(other)) if one.0 < other.0 => requests.pop_front(),
                (Some(_), None) => requests.pop_front(),
                _ => others.pop_front(),
            };
            let Some((_, line)) = next else { return all };
            all.push_back(line);
        }
    }
}

impl Event {
    /// The kind of the event's line. Answers with timestamps count as [`Kind::Other`], because
    /// violations are about them.
    pub(crate) const fn kind(&self) -> Kind {
        match (self, self.plane()) {
            (Self::Answer { answer: Answer::Given(_), .. }, _) => Kind::Other,
            (_, Some(Plane::Workers))
            | (
                Self::Client { .. }
                | Self::GiveUp { .. }
                | Self::Answered { .. }
                | Self::Call { .. }
                | Self::CallEnds { .. }
                | Self::SessionTimer { .. }
                | Self::Heard { .. },
                _,
            ) => Kind::Request,
            (_, Some(Plane::Raft) | None) => Kind::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_do_not_displace_the_lines_that_led_to_them() {
        let mut trace = Trace::keeping(2);
        trace.log(1_500_000, Kind::Other, "a vote");
        for number in 0..9 {
            trace.log(2_000_000 + number, Kind::Request, "asks");
        }
        trace.log(3_000_000, Kind::Other, "an answer");
        let lines: Vec<String> = trace.into_lines().into();
        let expected = ["1.500000 ms  a vote", "2.000007 ms  asks", "2.000008 ms  asks"];
        assert_eq!(
            lines.iter().map(|line| line.trim_start()).take(3).collect::<Vec<_>>(),
            expected
        );
        assert_eq!(lines.len(), 4);
    }
}
