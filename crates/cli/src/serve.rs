//! `epicepoch serve`: runs one node until it is stopped.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command};
use epicepoch_config::{CONFIG, Config, Environment, Scope};
use epicepoch_server::consensus::{ConsensusError, Fatal};
use epicepoch_server::faults::TEST_FAULTS_FILE;
use epicepoch_server::node::RunError;
use epicepoch_server::storage::OpenError;
use epicepoch_server::worker::ProcessorError;
use epicepoch_server::{Node, StartError};
use epicepoch_wire::peer_hello::RefusalCode;

use crate::failure::Failure;
use crate::logging;
use crate::supervisor::Supervisor;
use crate::{settings, signals, version};

pub(crate) fn command() -> Command {
    let mut command = Command::new("serve").about("Run one node of a cluster").long_about(
        "Run one node of a cluster.\n\n\
         Every setting is a flag, an environment variable and a key of the file. A flag beats a \
         variable, which beats the file, which beats the default. An empty variable is a bad value, \
         not an unset one. EPOCH_INTERVAL_MS, RESERVATION_MS, CLOCK_OFFSET_MAX_MS, MAX_N, LEADER_ZONES, \
         LEASE_MS, GUARANTEE_DEFAULT and TIMESTAMP_FORMAT count only when a new cluster begins; later, \
         \"epicepoch settings\" changes them on all nodes at once.\n\n\
         On SIGTERM, SIGINT or SIGHUP the node hands leadership over, finishes open requests and \
         exits with 0. A second signal ends it at once, if it comes more than a second after the \
         first.\n\n\
         Exit codes: 0 orderly end; 1 failure, start it again; 2 bad setting; 3 this node was \
         removed from its cluster; 4 the data directory was emptied, is damaged, was rolled back, \
         belongs to another node id, or is of a history that has ended. After 2, 3 and 4 do not start it again unchanged: the \
         last line of the log says what to do.",
    );
    command = command.after_help(
        "First start of a cluster of three, on each node with its own id and address:\n  \
         epicepoch serve --node-id 1 --raft-addr n1:60001 --bootstrap \\\n    \
         --peers 1=n1:60001,2=n2:60001,3=n3:60001 \\\n    \
         --peer-cert-file node-1.pem --peer-key-file node-1.key --peer-ca-file ca.pem\n\
         (\"epicepoch certs\" makes these files; on a trusted network use --peer-plain instead)\n\
         A node that joins a running cluster; afterwards run \"epicepoch member add 4=n4:60001\":\n  \
         epicepoch serve --node-id 4 --raft-addr n4:60001 --join n1:60001 \\\n    \
         --peer-cert-file node-4.pem --peer-key-file node-4.key --peer-ca-file ca.pem\n\
         Restore of a cluster that is lost for good, on each first member:\n  \
         epicepoch serve --node-id 1 --raft-addr n1:60001 --bootstrap --restore epicepoch.backup \\\n    \
         --peers 1=n1:60001,2=n2:60001,3=n3:60001 \\\n    \
         --peer-cert-file node-1.pem --peer-key-file node-1.key --peer-ca-file ca.pem\n\
         A cluster of one:\n  \
         epicepoch serve --node-id 1 --raft-addr localhost:60001 --single --bootstrap",
    );
    command.args(settings::arguments(Scope::Node)).arg(config_file())
}

/// Builds the argument that names the file of settings.
pub(crate) fn config_file() -> Arg {
    Arg::new(CONFIG)
        .long("config")
        .value_name("FILE")
        .help_heading("File")
        .help("TOML file of settings [env: CONFIG]")
        .long_help(
            "TOML file of settings; its keys are the flags with '_' for '-'. `peers` may also be \
             a table of addresses by node id. An unknown key is refused.\n[env: CONFIG]",
        )
}

pub(crate) fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    let given = settings::given(Scope::Node, matches, environment).map_err(Failure::usage)?;
    let config = given.node(cores()).map_err(Failure::usage)?;
    logging::start(config.logging, colours(environment));
    version::log();
    serve(config, environment).map_err(Failure::logged)
}

fn serve(config: Config, environment: &Environment) -> Result<ExitCode, Failure> {
    let faults = environment.get(OsStr::new(TEST_FAULTS_FILE)).map(PathBuf::from);
    let supervisor = find_supervisor(environment);
    let stop_max = config.shutdown_timeout;
    let node = Node::start_with_faults(config, version::build(), faults).map_err(not_started)?;
    let node = Arc::new(node);
    let (stopping, told) = (Arc::clone(&node), supervisor.clone());
    signals::watch(move || {
        told.stopping("stopping", stop_max);
        stopping.request_shutdown();
    })?;
    if let Err(error) = supervisor.follow(&node) {
        log_unheard(&error);
    }
    let ended = node.wait().map_err(ended);
    if let Err(failure) = &ended {
        supervisor.stopping(&failure.error.to_string(), Duration::ZERO);
    }
    ended.map(|()| ExitCode::SUCCESS)
}

fn find_supervisor(environment: &Environment) -> Supervisor {
    Supervisor::find(environment).unwrap_or_else(|error| {
        log_unheard(&error);
        Supervisor::default()
    })
}

fn log_unheard(error: &io::Error) {
    tracing::warn!(%error, "the supervisor cannot be told how this node does: NOTIFY_SOCKET");
}

/// Chooses the exit code of a node that did not start. The code is that of a bad data directory if
/// the directory cannot become right by itself, and that of wrong usage if a setting is wrong.
/// Otherwise it is 1, because another start may succeed: a port is free a moment later, or a
/// certificate and its key are both replaced by then.
fn not_started(error: StartError) -> Failure {
    match error {
        StartError::NotBootstrapped { .. }
        | StartError::Open(
            OpenError::WrongNode { .. }
            | OpenError::WrongCluster { .. }
            | OpenError::NewerFormat { .. }
            | OpenError::Emptied { .. }
            | OpenError::Damaged { .. },
        ) => Failure::directory(error),
        StartError::Config(_)
        | StartError::Faults(_)
        | StartError::Processor(ProcessorError::Forbidden { .. }) => Failure::usage(error),
        other => other.into(),
    }
}

/// Chooses the exit code of a node that ended. The code tells a supervisor whether another start
/// can help. If it can, the code is 1. This is so after a disk error, if a second process has the
/// same node id, and if a restore finds that a node of the old history still runs.
fn ended(error: RunError) -> Failure {
    let RunError::Consensus(why) = &error else { return error.into() };
    match why {
        ConsensusError::Fatal(Fatal::Removed { .. }) => Failure::removed(error),
        ConsensusError::LostEntries(_) => Failure::directory(error),
        ConsensusError::Refused { refusal, .. } => match refusal.code {
            RefusalCode::Removed => Failure::removed(error),
            RefusalCode::WrongStore | RefusalCode::RolledBack | RefusalCode::EndedHistory => {
                Failure::directory(error)
            }
            _ => error.into(),
        },
        _ => error.into(),
    }
}

/// Returns the number of cores that this process may use.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Whether to use colours on a terminal. A non-empty `NO_COLOR` forbids them
/// (<https://no-color.org>).
pub(crate) fn colours(environment: &Environment) -> bool {
    environment.get(OsStr::new("NO_COLOR")).is_none_or(|value| value.is_empty())
}
