//! Whether a member of the history that a backup is of still runs. The founder of the next history
//! asks each of them that is no first member, at the address that the backup names, and goes on only
//! where nobody is, or where somebody says that he holds nothing of it: a member that runs may have a
//! majority, and give timestamps beside the new history (S13).
//!
//! Whoever takes a connection and does not say what he is counts as one that runs: a process that is
//! stopped or overloaded, one that asks for a certificate, one that speaks TLS where this node does
//! not. Where no connection can be made, nothing is proved, and the founder goes on: the machines of
//! a cluster that is lost are gone as a rule. It says so in the log. But it does not go on where it
//! has no way to any of them, or finds none of their names: then it is itself that is cut off.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use epicepoch_wire::NodeId;
use epicepoch_wire::backup::Backup;
use epicepoch_wire::hello::RefusalCode;
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::ConsensusError;
use super::bootstrap::{Found, ask_over};
use crate::peers;
use crate::shared::NodeShared;

/// How long a connection may take: two lost packets are sent again within it (RFC 6298: after one
/// second, then after two).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// How long who has taken a connection has to say what he is.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How often who has taken a connection is asked.
const ASKS_MAX: usize = 3;
/// Between two times.
const ASK_PAUSE: Duration = Duration::from_millis(300);
/// For how long an address is asked again that refuses connections, or to which there is no way: a
/// process may be between two runs of its unit, a network or a resolver may come back.
const AWAY_TIME: Duration = Duration::from_secs(3);

/// What is known of a member of the old history.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    /// It holds nothing of that history, or no process listens there.
    Gone,
    /// No connection can be made, and why: it may run or not.
    Unreached(String),
    /// This machine has no way there, or does not find the name, and why: often by its own fault.
    CutOff(String),
    /// It runs, or somebody is there who does not say what he is.
    Runs(String),
}

/// Asks the members that `backup` names and that are no first members of the new history.
///
/// # Errors
/// When one of them runs, or may, or when this machine has no way to any of them.
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
        "a member of the old history cannot be asked whether it still runs: if it does, and has a \
         majority, it gives timestamps beside the new history; make sure that it is stopped for good"
    );
}

/// Asks until it is clear, or a few times.
async fn ask_again(shared: &NodeShared, addr: &str) -> Heard {
    let mut was_there = None;
    let mut asks = 0;
    let mut away_since = None;
    while asks < ASKS_MAX {
        let stream = match dial(addr).await {
            Ok(stream) => stream,
            Err(heard) => {
                let may_change = matches!(heard, Heard::Gone | Heard::CutOff(_));
                let since = *away_since.get_or_insert_with(Instant::now);
                if may_change && since.elapsed() < AWAY_TIME {
                    sleep(ASK_PAUSE).await;
                    continue;
                }
                return match heard {
                    // Whoever was there and cannot be reached any more may come back.
                    Heard::Unreached(_) | Heard::CutOff(_) => was_there.unwrap_or(heard),
                    Heard::Gone | Heard::Runs(_) => heard,
                };
            }
        };
        (asks, away_since) = (asks + 1, None);
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
            "it takes connections and does not say what it is: {why}; if it is no node of the old \
             history, keep this machine from reaching it until the new one has begun"
        )));
        sleep(ASK_PAUSE).await;
    }
    was_there.unwrap_or(Heard::Gone)
}

/// A TCP connection, or what it means that there is none.
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

/// What it means that an address is not found.
fn without_address(error: &io::Error) -> Heard {
    match error.raw_os_error() {
        None => Heard::CutOff(error.to_string()),
        // This machine is at fault: too many open files.
        Some(_) => Heard::Runs(format!("it cannot be asked: {error}")),
    }
}

/// What it means that no connection could be made.
fn without_connection(error: &io::Error) -> Heard {
    match error.kind() {
        // Its machine says that no process listens there.
        ErrorKind::ConnectionRefused => Heard::Gone,
        ErrorKind::HostUnreachable | ErrorKind::TimedOut => Heard::Unreached(error.to_string()),
        ErrorKind::NetworkUnreachable => Heard::CutOff(error.to_string()),
        // The name leads to no address: no call of the system has failed.
        _ if error.raw_os_error().is_none() => Heard::CutOff(error.to_string()),
        // This machine is at fault, or somebody was there: it says nothing of a member that is gone.
        _ => Heard::Runs(format!("it cannot be asked: {error}")),
    }
}

/// What an answer means.
fn heard_of(found: Found) -> Heard {
    match found {
        Found::Empty(_) => Heard::Gone,
        Found::Admitted(_) => Heard::Runs("it answers as a member".to_owned()),
        Found::Refused { refusal, .. } => match refusal.code {
            // Of another cluster, or of none.
            RefusalCode::WrongClusterName | RefusalCode::NotBootstrapped => Heard::Gone,
            _ => Heard::Runs(refusal.text),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_says_that_nobody_is_there_counts_as_gone() {
        let of_system = |number| without_connection(&io::Error::from_raw_os_error(number));
        let errno = |errno: rustix::io::Errno| of_system(errno.raw_os_error());
        assert_eq!(errno(rustix::io::Errno::CONNREFUSED), Heard::Gone);
        for errno_of_the_way in [rustix::io::Errno::HOSTUNREACH, rustix::io::Errno::TIMEDOUT] {
            assert!(matches!(errno(errno_of_the_way), Heard::Unreached(_)));
        }
        assert!(matches!(errno(rustix::io::Errno::NETUNREACH), Heard::CutOff(_)));
        let no_name = io::Error::other("failed to lookup address information");
        assert!(matches!(without_connection(&no_name), Heard::CutOff(_)));
        assert!(matches!(without_address(&no_name), Heard::CutOff(_)));
        // Too many open files here, or a connection that was there and is not.
        for errno_of_nobody in [rustix::io::Errno::MFILE, rustix::io::Errno::CONNRESET] {
            assert!(matches!(errno(errno_of_nobody), Heard::Runs(_)));
        }
    }
}
