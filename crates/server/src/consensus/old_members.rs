//! Checks whether a member of the old history still runs. Such members may be a majority and give
//! timestamps while the new history gives them, too (S13). So the founder of a new history asks
//! every member in the backup, except the first members of the new history. It asks each at its
//! address in the backup. The founder goes on in two cases only: no process listens there, or the
//! answer says that the node holds nothing of the old history.
//!
//! A process that accepts a connection but does not identify itself counts as running. It may be
//! stopped or overloaded, ask for a certificate, or speak TLS when this node does not. An address
//! that cannot be reached proves nothing. The founder logs it and goes on, because the machines of
//! a lost cluster are usually gone. But if the founder has no route to any member, or resolves none
//! of their names, it refuses: the founder itself is probably cut off.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use epicepoch_wire::NodeId;
use epicepoch_wire::backup::Backup;
use epicepoch_wire::peer_hello::RefusalCode;
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::error::ConsensusError;
use crate::peers;
use crate::peers::probe::{Found, ask_over};
use crate::shared::NodeShared;

/// The longest time for a connection. It is long enough to repeat a lost packet twice, after one
/// second and after two more (RFC 6298).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// The longest time for an answer on a connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a process that accepts connections but does not answer is asked.
const ATTEMPTS_MAX: usize = 3;
/// Time between two attempts.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(300);
/// If an address refuses connections or has no route, the node tries it again for this long. The
/// process there may be restarting, or a network or a name server may come back.
const AWAY_TIME: Duration = Duration::from_secs(3);

/// The state of a member of the old history, as far as the founder knows it.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    /// The node holds nothing of the old history, or no process listens at its address.
    Gone,
    /// No connection can be made, for this reason. It is unknown whether the member runs.
    Unreached(String),
    /// This machine has no route to the member or cannot resolve its name. The reason is in the
    /// text. Often the fault is on this machine.
    CutOff(String),
    /// The member runs, or a process at its address does not identify itself.
    Runs(String),
}

/// Checks the members in `backup` that are not first members of the new history.
///
/// # Errors
/// When one of them runs or may run, or when this machine has no route to any of them.
pub(super) async fn check(shared: &Arc<NodeShared>, backup: &Backup) -> Result<(), ConsensusError> {
    let mut asking = JoinSet::new();
    let is_first =
        |addr: &str| shared.config.peers.values().any(|peer| peer.eq_ignore_ascii_case(addr));
    for member in backup.members.iter().filter(|member| !is_first(&member.raft_addr)) {
        let (shared, addr) = (shared.clone(), member.raft_addr.clone());
        asking.spawn_local(async move {
            let heard = ask_again(&shared, &addr).await;
            (addr, heard)
        });
    }
    let (mut cut_off, mut is_any_reached) = (None, asking.is_empty());
    while let Some(asked) = asking.join_next().await {
        let (addr, heard) = asked.map_err(io::Error::from)?;
        match heard {
            Heard::Gone => is_any_reached = true,
            Heard::Unreached(why) => {
                is_any_reached = true;
                warn_of(&addr, &why);
            }
            Heard::CutOff(why) => {
                warn_of(&addr, &why);
                cut_off = Some((addr, why));
            }
            Heard::Runs(said) => return Err(ConsensusError::OldHistoryRuns { addr, said }),
        }
    }
    match cut_off {
        Some((addr, why)) if !is_any_reached => Err(ConsensusError::CutOff { addr, why }),
        _ => Ok(()),
    }
}

fn warn_of(addr: &str, why: &str) {
    tracing::warn!(
        addr,
        why,
        "a member of the old history cannot be asked whether it still runs: if it does and has a \
         majority, it gives timestamps beside the new history; make sure that it is stopped for good"
    );
}

/// Asks a few times, until the answer is clear.
async fn ask_again(shared: &NodeShared, addr: &str) -> Heard {
    let mut was_there = None;
    let mut attempts = 0;
    let mut away_since = None;
    while attempts < ATTEMPTS_MAX {
        let stream = match dial(addr).await {
            Ok(stream) => stream,
            Err(heard) => {
                let may_change = matches!(heard, Heard::Gone | Heard::CutOff(_));
                let since = *away_since.get_or_insert_with(Instant::now);
                if may_change && since.elapsed() < AWAY_TIME {
                    sleep(ATTEMPT_PAUSE).await;
                    continue;
                }
                return match heard {
                    // A process listened there before and cannot be reached now. It may come back.
                    Heard::Unreached(_) | Heard::CutOff(_) => was_there.unwrap_or(heard),
                    Heard::Gone | Heard::Runs(_) => heard,
                };
            }
        };
        (attempts, away_since) = (attempts + 1, None);
        let asked = async {
            let stream = peers::begin(shared, stream, NodeId(0)).await;
            let stream = stream.map_err(|error| error.to_string())?;
            ask_over(shared, NodeId(0), stream, shared.formats()).await
        };
        let why = match timeout(ANSWER_TIMEOUT, asked).await {
            Ok(Ok(found)) => return heard_of(found),
            Ok(Err(error)) => error,
            Err(_) => "no answer".to_owned(),
        };
        was_there = Some(Heard::Runs(format!(
            "it accepts connections and does not identify itself: {why}; if it is no node of the old \
             history, keep this machine from reaching it until the new one has begun"
        )));
        sleep(ATTEMPT_PAUSE).await;
    }
    was_there.unwrap_or(Heard::Gone)
}

/// Opens a TCP connection. If that fails, returns what the failure says about the member.
async fn dial(addr: &str) -> Result<TcpStream, Heard> {
    let found = match timeout(CONNECT_TIMEOUT, lookup_host(addr)).await {
        Ok(Ok(found)) => found.collect::<Vec<_>>(),
        Ok(Err(error)) => return Err(without_address(&error)),
        Err(_) => return Err(Heard::CutOff(format!("no address within {CONNECT_TIMEOUT:?}"))),
    };
    match timeout(CONNECT_TIMEOUT, TcpStream::connect(&found[..])).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(without_connection(&error)),
        Err(_) => Err(Heard::Unreached(format!("no connection within {CONNECT_TIMEOUT:?}"))),
    }
}

/// What a failed name lookup says about the member.
fn without_address(error: &io::Error) -> Heard {
    match error.raw_os_error() {
        None => Heard::CutOff(error.to_string()),
        // The fault is on this machine, for example too many open files.
        Some(_) => Heard::Runs(format!("it cannot be asked: {error}")),
    }
}

/// What a failed connection says about the member.
fn without_connection(error: &io::Error) -> Heard {
    match error.kind() {
        // The other machine says that no process listens there.
        ErrorKind::ConnectionRefused => Heard::Gone,
        ErrorKind::HostUnreachable | ErrorKind::TimedOut => Heard::Unreached(error.to_string()),
        ErrorKind::NetworkUnreachable => Heard::CutOff(error.to_string()),
        // The name has no address. (No system call has failed.)
        _ if error.raw_os_error().is_none() => Heard::CutOff(error.to_string()),
        // The fault is on this machine, or a process listens there. So the member may still run.
        _ => Heard::Runs(format!("it cannot be asked: {error}")),
    }
}

/// What an answer says about the member.
fn heard_of(found: Found) -> Heard {
    match found {
        Found::Empty(_) => Heard::Gone,
        Found::Admitted(_) => Heard::Runs("it answers as a member".to_owned()),
        Found::Refused { refusal, .. } => match refusal.code {
            // The node belongs to another cluster, or to none.
            RefusalCode::WrongClusterName | RefusalCode::NotBootstrapped => Heard::Gone,
            _ => Heard::Runs(refusal.text),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_counts_as_gone_only_when_its_machine_refuses_the_connection() {
        let of_system = |number| without_connection(&io::Error::from_raw_os_error(number));
        let errno = |errno: rustix::io::Errno| of_system(errno.raw_os_error());
        assert_eq!(errno(rustix::io::Errno::CONNREFUSED), Heard::Gone);
        for errno_of_the_route in [rustix::io::Errno::HOSTUNREACH, rustix::io::Errno::TIMEDOUT] {
            assert!(matches!(errno(errno_of_the_route), Heard::Unreached(_)));
        }
        assert!(matches!(errno(rustix::io::Errno::NETUNREACH), Heard::CutOff(_)));
        let no_name = io::Error::other("failed to lookup address information");
        assert!(matches!(without_connection(&no_name), Heard::CutOff(_)));
        assert!(matches!(without_address(&no_name), Heard::CutOff(_)));
        // Too many open files on this machine, or a connection that broke, do not prove that the
        // member is gone.
        for errno_of_neither in [rustix::io::Errno::MFILE, rustix::io::Errno::CONNRESET] {
            assert!(matches!(errno(errno_of_neither), Heard::Runs(_)));
        }
    }
}
