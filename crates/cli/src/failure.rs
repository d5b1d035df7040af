//! The failure of a command: a text for people and an exit code for scripts.
//!
//! One rule holds for all commands. The code is 2 if a name or a value that the user gave is wrong
//! by itself: an unknown command, flag or setting, a value that is not allowed, a file that cannot
//! be read or holds something else. Then nothing was sent or changed, and the same command fails
//! again. The code is 1 if it depends on the state of nodes, network or disk. The tests in
//! `exit_codes.rs` hold this for every argument of every command.

use crate::output;

/// A failed command.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit code: 1 for a failure at run time, 2 for wrong usage or configuration, 3 for a
    /// removed node, 4 for a data directory that must not be started again unchanged.
    pub(crate) code: u8,
    pub(crate) error: anyhow::Error,
    /// Whether the error has been written to the log. If so, `main` does not print it again.
    pub(crate) is_logged: bool,
}

impl Failure {
    /// Creates the failure for wrong usage or configuration: the same input will fail again.
    pub(crate) fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self { code: USAGE, ..Self::from(error) }
    }

    /// Creates the failure of a node that was removed from its cluster: it must not be started
    /// again.
    pub(crate) fn removed(error: impl Into<anyhow::Error>) -> Self {
        Self { code: REMOVED, ..Self::from(error) }
    }

    /// Creates the failure of a node whose data directory must not be used: it belongs to another
    /// node id, or the cluster has gone on without it. An operator must act before the next start.
    /// Each start writes to the directory, so after some starts an old copy would look like the
    /// newest.
    pub(crate) fn directory(error: impl Into<anyhow::Error>) -> Self {
        Self { code: DIRECTORY, ..Self::from(error) }
    }

    /// Logs why a serving process ends, for programs that read the log.
    pub(crate) fn logged(self) -> Self {
        tracing::error!(exit_code = self.code, "the process ends: {:#}", self.error);
        Self { is_logged: true, ..self }
    }

    /// Whether the command failed only because the reader of standard output has left, as in
    /// `epicepoch get -n 9 | head -1`. Such a command ends normally and reports no error.
    pub(crate) fn is_of_reader(&self) -> bool {
        self.error.chain().any(|cause| cause.downcast_ref().is_some_and(output::is_of_reader))
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { code: RUNTIME, error: error.into(), is_logged: false }
    }
}

/// Exit code for a failure that another try may not have.
pub(crate) const RUNTIME: u8 = 1;
/// Exit code for wrong usage. A restart cannot help; `deploy/epicepoch.service` prevents it.
pub(crate) const USAGE: u8 = 2;
/// Exit code for a removed node. A restart cannot help; `deploy/epicepoch.service` prevents it.
pub(crate) const REMOVED: u8 = 3;
/// Exit code for a bad data directory. A restart can do harm; `deploy/epicepoch.service` prevents
/// it.
pub(crate) const DIRECTORY: u8 = 4;
