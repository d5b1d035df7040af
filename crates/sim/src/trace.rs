//! What is told of a run, in words, so that people can follow it: all of it, or the end of it.

use std::collections::VecDeque;

use crate::event::{Event, Told};
use crate::node::Plane;
use crate::world::MS;

/// The last lines of a run. A second has thousands of the kind that every request has, so as many of
/// the others are kept beside them: those tell what led to the end, and reach back for seconds.
#[derive(Debug)]
pub(crate) struct Trace {
    /// Numbered through; how many are kept of each kind.
    lines: [VecDeque<(u64, String)>; 2],
    kept: usize,
    told: u64,
}

/// Of which kind a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A request, and what rounds exchange for it.
    Request,
    /// Everything else: messages of consensus, steps of publication, faults, what came of all that.
    Other,
}

impl Trace {
    pub(crate) const fn keeping(kept: usize) -> Self {
        Self { lines: [VecDeque::new(), VecDeque::new()], kept, told: 0 }
    }

    pub(crate) fn tell(&mut self, now_ns: u64, kind: Kind, line: &str) {
        let lines = &mut self.lines[kind as usize];
        if lines.len() == self.kept {
            lines.pop_front();
        }
        let (ms, ns) = (now_ns / MS, now_ns % MS);
        lines.push_back((self.told, format!("{ms:>6}.{ns:06} ms  {line}")));
        self.told += 1;
    }

    /// All that was kept, in its order.
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
    /// Of which kind the line is that tells it. An answer that gives something away is what violations are
    /// about.
    pub(crate) const fn kind(&self) -> Kind {
        match (self, self.plane()) {
            (Self::Answer { told: Told::Given(_), .. }, _) => Kind::Other,
            (_, Some(Plane::Workers))
            | (Self::Client { .. } | Self::GiveUp { .. } | Self::Told { .. }, _) => Kind::Request,
            (_, Some(Plane::Raft) | None) => Kind::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_do_not_drive_out_what_led_to_them() {
        let mut trace = Trace::keeping(2);
        trace.tell(1_500_000, Kind::Other, "a vote");
        for number in 0..9 {
            trace.tell(2_000_000 + number, Kind::Request, "asks");
        }
        trace.tell(3_000_000, Kind::Other, "an answer");
        let lines: Vec<String> = trace.into_lines().into();
        let expected = ["1.500000 ms  a vote", "2.000007 ms  asks", "2.000008 ms  asks"];
        assert_eq!(
            lines.iter().map(|line| line.trim_start()).take(3).collect::<Vec<_>>(),
            expected
        );
        assert_eq!(lines.len(), 4);
    }
}
