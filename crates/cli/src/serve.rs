//! `epicepoch serve`: one node, from its settings to its orderly end.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use clap::ArgMatches;
use epicepoch_server::Node;
use epicepoch_server::config::Config;
use epicepoch_server::consensus::ConsensusError;
use epicepoch_server::faults::TEST_FAULTS_FILE;
use epicepoch_server::node::RunError;
use epicepoch_wire::hello::RefusalCode;

use crate::failure::Failure;
use crate::logging::Logging;
use crate::signals;
use crate::sources::{Environment, Given};

pub(crate) fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    let given = Given::gather(matches, environment, |_| true).map_err(Failure::usage)?;
    let draft = given.node(Logging::default(), cores()).map_err(Failure::usage)?;
    draft.logging.start(colours(environment));
    serve(draft.config, environment).map_err(Failure::logged)
}

fn serve(config: Config, environment: &Environment) -> Result<ExitCode, Failure> {
    let faults = environment.get(OsStr::new(TEST_FAULTS_FILE)).map(PathBuf::from);
    let node = Arc::new(Node::start_with_faults(config, faults)?);
    let stopping = Arc::clone(&node);
    signals::watch(move || stopping.request_shutdown())?;
    node.wait().map(|()| ExitCode::SUCCESS).map_err(ended)
}

/// What a node ended with, by what starting it again would do. What a restart, or whatever else ends by
/// itself, can mend is an ordinary failure: a disk, a duplicate, a node of an old history that still runs.
fn ended(error: RunError) -> Failure {
    let RunError::Consensus(why) = &error else { return error.into() };
    match why {
        ConsensusError::Removed { .. } => Failure::removed(error),
        ConsensusError::LostEntries(_) => Failure::directory(error),
        ConsensusError::Refused { refusal, .. } => match refusal.code {
            RefusalCode::Removed => Failure::removed(error),
            RefusalCode::WrongStore | RefusalCode::SetBack | RefusalCode::EndedHistory => {
                Failure::directory(error)
            }
            _ => error.into(),
        },
        _ => error.into(),
    }
}

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Whether colours are welcome on a terminal: `NO_COLOR` set to anything forbids them
/// (<https://no-color.org>).
pub(crate) fn colours(environment: &Environment) -> bool {
    environment.get(OsStr::new("NO_COLOR")).is_none_or(|value| value.is_empty())
}
