//! Requests to a paused process. The process reads them only when it is resumed. It must not answer
//! with timestamps below those that other nodes have given meanwhile.

use std::time::Instant;

use epicepoch_bench::history::read_timestamps;
use epicepoch_bench::{Operation, Outcome};

use super::wire::{Wire, request};

/// Requests that were sent to a node which may answer much later.
pub(crate) struct Late {
    start: Instant,
    wire: Wire,
    /// Number of requests that were sent together.
    count: usize,
}

impl Late {
    pub(crate) fn send(mut wire: Wire, count: usize) -> Self {
        let start = Instant::now();
        let bytes = request("GET", "/timestamp", &[], b"").repeat(count);
        wire.send(&bytes).expect("a paused process's socket buffer takes a few requests");
        Self { start, wire, count }
    }

    /// Reads the answers and adds each one to `operations`. A refusal or a missing answer is added,
    /// too.
    pub(crate) fn collect(mut self, node: u64, operations: &mut Vec<Operation>) {
        for _ in 0..self.count {
            let outcome = match self.wire.receive() {
                Ok(answer) if answer.status == 200 => match read_timestamps(&answer.body, 1) {
                    Ok(range) => Outcome::Answered(range),
                    Err(why) => Outcome::Broken(why),
                },
                Ok(answer) => Outcome::Refused(answer.status),
                Err(_) => Outcome::Unknown,
            };
            let (start, end) = (self.start, Instant::now());
            operations.push(Operation { start, end, node, outcome });
        }
    }
}
