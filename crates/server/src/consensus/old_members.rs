//! Whether a member of the history that a backup is of still runs. The founder of the next history
//! asks each of them that is no first member, at the address that the backup names, and goes on only
//! where nobody is, or where somebody says that he holds nothing of it: a member that runs may have a
//! majority, and give timestamps beside the new history (S13).
//!
//! Whoever takes a connection and does not say what he is counts as one that runs: a process that is
//! stopped or overloaded, one that asks for a certificate, one that speaks TLS where this node does
//! not. Where no connection can be made, nothing is proved, and the founder goes on: the machines of
//! a cluster that is lost are gone as a rule. It says so in the log.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use epicepoch_wire::NodeId;
use epicepoch_wire::backup::Backup;
use epicepoch_wire::hello::RefusalCode;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::ConsensusError;
use super::bootstrap::{Found, ask_over};
use crate::peers;
use crate::shared::NodeShared;

/// How long a connection may take: two lost packets are sent again within it (RFC 6298: after one
/// second, then after two).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// How long who has taken a connection has to say what he is.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How often who has taken a connection is asked, and between two times.
const ASKS_MAX: usize = 3;
const ASK_PAUSE: Duration = Duration::from_millis(300);

/// What is known of a member of the old history.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    /// It holds nothing of that history, or no process listens there.
    Gone,
    /// No connection can be made, and why: it may run or not.
    Unreached(String),
    /// It runs, or somebody is there who does not say what he is.
    Runs(String),
}

/// Asks the members that `backup` names and that are no first members of the new history.
///
/// # Errors
/// When one of them runs, or may.
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
    while let Some(asked) = asking.join_next().await {
        let (addr, heard) = asked.map_err(io::Error::from)?;
        match heard {
            Heard::Gone => {}
            Heard::Unreached(why) => tracing::warn!(
                addr,
                why,
                "a member of the old history cannot be asked whether it still runs: if it does, and \
                 has a majority, it gives timestamps beside the new history; make sure that it is \
                 stopped for good"
            ),
            Heard::Runs(said) => return Err(ConsensusError::OldHistoryRuns { addr, said }),
        }
    }
    Ok(())
}

/// Asks until it is clear, or a few times.
async fn ask_again(shared: &NodeShared, addr: &str) -> Heard {
    let mut was_there = None;
    for _ in 0..ASKS_MAX {
        let stream = match dial(addr).await {
            Ok(stream) => stream,
            // Whoever was there and cannot be reached any more may come back.
            Err(Heard::Unreached(why)) => return was_there.unwrap_or(Heard::Unreached(why)),
            Err(heard) => return heard,
        };
        let asked = async {
            let stream = peers::begin(shared, stream, NodeId(0)).await;
            ask_over(shared, NodeId(0), stream.map_err(|error| error.to_string())?).await
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
    match timeout(CONNECT_TIMEOUT, TcpStream::connect(addr)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(without_connection(&error)),
        Err(_) => Err(Heard::Unreached(format!("no connection within {CONNECT_TIMEOUT:?}"))),
    }
}

/// What it means that no connection could be made.
fn without_connection(error: &io::Error) -> Heard {
    match error.kind() {
        // Its machine says that no process listens there.
        ErrorKind::ConnectionRefused => Heard::Gone,
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::TimedOut => {
            Heard::Unreached(error.to_string())
        }
        // The name leads nowhere any more: no call of the system has failed.
        _ if error.raw_os_error().is_none() => Heard::Unreached(error.to_string()),
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
        for errno_of_the_way in [
            rustix::io::Errno::HOSTUNREACH,
            rustix::io::Errno::NETUNREACH,
            rustix::io::Errno::TIMEDOUT,
        ] {
            assert!(matches!(errno(errno_of_the_way), Heard::Unreached(_)));
        }
        let no_name = io::Error::other("failed to lookup address information");
        assert!(matches!(without_connection(&no_name), Heard::Unreached(_)));
        // Too many open files here, or a connection that was there and is not.
        for errno_of_nobody in [rustix::io::Errno::MFILE, rustix::io::Errno::CONNRESET] {
            assert!(matches!(errno(errno_of_nobody), Heard::Runs(_)));
        }
    }
}
