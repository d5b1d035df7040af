//! The answers that a load of tests keeps.

use std::time::Instant;

use super::counts::Failures;
use crate::history::{Operation, Outcome};

/// The answers that the threads of a load keep, and their totals.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) operations: Vec<Operation>,
    pub(super) failures: Failures,
    /// Number of requests that brought timestamps.
    pub(super) answers: u64,
    /// Start of the latest request that was answered.
    pub(super) start_max: Option<Instant>,
}

impl Kept {
    pub(super) fn record(&mut self, operation: Operation) {
        if let Outcome::Answered(_) = operation.outcome {
            self.answers += 1;
            self.start_max = self.start_max.max(Some(operation.start));
        }
        self.operations.push(operation);
    }

    pub(super) fn fail(&mut self, name: &'static str) {
        *self.failures.entry(name).or_default() += 1;
    }
}
