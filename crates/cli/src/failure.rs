//! How a command fails: with a text for people and an exit code for scripts.

use crate::output;

/// A failed command.
#[derive(Debug)]
pub(crate) struct Failure {
    /// 1 for a failure at run time, 2 for wrong usage or configuration, 3 for a node that was removed,
    /// 4 for a data directory that must not be started again as it is.
    pub(crate) code: u8,
    pub(crate) error: anyhow::Error,
    /// Whether the log has told it: then it is not told again.
    pub(crate) is_logged: bool,
}

impl Failure {
    /// Wrong usage or configuration: running it again as it is cannot help.
    pub(crate) fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self { code: USAGE, ..Self::from(error) }
    }

    /// This node was removed from its cluster: it must not be started again.
    pub(crate) fn removed(error: impl Into<anyhow::Error>) -> Self {
        Self { code: REMOVED, ..Self::from(error) }
    }

    /// Others have gone on from what this data directory holds, or it is not that of its node id. Each
    /// start of it writes, until nobody can tell an old copy from the newest: an operator has to act first.
    pub(crate) fn directory(error: impl Into<anyhow::Error>) -> Self {
        Self { code: DIRECTORY, ..Self::from(error) }
    }

    /// Logs why a process that serves ends, once: it is a line of the log like every other, for whoever
    /// reads that by machine.
    pub(crate) fn logged(self) -> Self {
        tracing::error!(exit_code = self.code, "the process ends: {:#}", self.error);
        Self { is_logged: true, ..self }
    }

    /// Whether whoever reads the product of a command has gone, as in `epicepoch get -n 9 | head -1`.
    /// That is how pipes end, and nothing to report.
    pub(crate) fn is_of_reader(&self) -> bool {
        self.error.chain().any(|cause| cause.downcast_ref().is_some_and(output::is_of_reader))
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { code: RUNTIME, error: error.into(), is_logged: false }
    }
}

const RUNTIME: u8 = 1;
/// Starting it again as it is cannot help: `deploy/epicepoch.service` names it.
pub(crate) const USAGE: u8 = 2;
/// The same.
pub(crate) const REMOVED: u8 = 3;
/// Starting it again as it is can do harm: `deploy/epicepoch.service` names it, too.
pub(crate) const DIRECTORY: u8 = 4;
