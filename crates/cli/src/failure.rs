//! How a command fails: with a text for people and an exit code for scripts.

use crate::output;

/// A failed command.
#[derive(Debug)]
pub(crate) struct Failure {
    /// 1 for a failure at run time, 2 for wrong usage or configuration, 3 for a node that was removed.
    pub(crate) code: u8,
    pub(crate) error: anyhow::Error,
}

impl Failure {
    /// Wrong usage or configuration: running it again as it is cannot help.
    pub(crate) fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self { code: USAGE, error: error.into() }
    }

    /// This node was removed from its cluster: it must not be started again.
    pub(crate) fn removed(error: impl Into<anyhow::Error>) -> Self {
        Self { code: REMOVED, error: error.into() }
    }

    /// Whether whoever reads the product of a command has gone, as in `epicepoch get -n 9 | head -1`.
    /// That is how pipes end, and nothing to report.
    pub(crate) fn is_of_reader(&self) -> bool {
        self.error.chain().any(|cause| cause.downcast_ref().is_some_and(output::is_of_reader))
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { code: RUNTIME, error: error.into() }
    }
}

const RUNTIME: u8 = 1;
const USAGE: u8 = 2;
const REMOVED: u8 = 3;
