//! Checks whether a member of the old history still runs. Such members may be a majority and give
//! timestamps while the new history gives them, too (S13). So the founder of a new history asks
//! every member in the backup, except the first members of the new history. It asks each at its
//! address in the backup. The founder goes on in two cases only: no process listens there, or the
//! answer says that the node holds nothing of the old history.
//!
//! A process that accepts a connection but does not identify itself counts as running. It may be
//! stopped or overloaded, ask for a certificate, or speak TLS when this node does not. An address
//! that cannot be reached proves nothing. The founder logs it and goes on, because the machines of
//! a lost cluster are usually gone. But the founder refuses if it has no route to a majority of the
//! members or cannot resolve their names: the founder itself is probably cut off, and a majority
//! gives timestamps. It also refuses if this is so of all members that it asks.
//!
//! If a name has several addresses, the founder asks at each. An address without a listener does not
//! show that the member is gone while another address of its name cannot be reached.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
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
/// A name may have at most this many addresses: both kinds, of a machine with some networks.
const ADDRESSES_MAX: usize = 8;
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
/// When one of them runs or may run, or when this machine is cut off from too many of them.
pub(super) async fn check(shared: &Arc<NodeShared>, backup: &Backup) -> Result<(), ConsensusError> {
    let mut asking = JoinSet::new();
    let is_first =
        |addr: &str| shared.config.peers.values().any(|peer| peer.eq_ignore_ascii_case(addr));
    for member in backup.members.iter().filter(|member| !is_first(&member.raft_addr)) {
        let (shared, addr) = (shared.clone(), member.raft_addr.clone());
        asking.spawn_local(async move {
            let heard = ask_all(&shared, &addr).await;
            (addr, heard)
        });
    }
    let asked_count = asking.len();
    let mut cut_off = Vec::new();
    while let Some(asked) = asking.join_next().await {
        let (addr, heard) = asked.map_err(io::Error::from)?;
        match heard {
            Heard::Gone => {}
            Heard::Unreached(why) => warn_of(&addr, &why),
            Heard::CutOff(why) => {
                warn_of(&addr, &why);
                cut_off.push(format!("{addr} ({why})"));
            }
            Heard::Runs(said) => return Err(ConsensusError::OldHistoryRuns { addr, said }),
        }
    }
    if is_cut_off(cut_off.len(), asked_count, backup.members.len()) {
        cut_off.sort();
        return Err(ConsensusError::CutOff { members: cut_off.join(", ") });
    }
    Ok(())
}

/// Whether the founder is cut off from so many members that it must not found the new history:
/// from all that it asks, or from a majority of the old history.
const fn is_cut_off(cut_off: usize, asked: usize, members: usize) -> bool {
    cut_off > 0 && (cut_off == asked || cut_off * 2 > members)
}

fn warn_of(addr: &str, why: &str) {
    tracing::warn!(
        addr,
        why,
        "a member of the old history cannot be asked whether it still runs: if it does and has a \
         majority, it gives timestamps beside the new history; make sure that it is stopped for good"
    );
}

/// Asks at each address of the name. Returns what says the least that the member is gone.
async fn ask_all(shared: &NodeShared, name: &str) -> Heard {
    let since = Instant::now();
    let found = loop {
        match resolve(name).await {
            Ok(found) => break found,
            Err(Heard::CutOff(_)) if since.elapsed() < AWAY_TIME => sleep(ATTEMPT_PAUSE).await,
            Err(heard) => return heard,
        }
    };
    let mut heard = Vec::new();
    for addr in found {
        heard.push(ask_again(shared, addr).await);
    }
    worst(heard)
}

/// Asks a few times, until the answer is clear.
async fn ask_again(shared: &NodeShared, addr: SocketAddr) -> Heard {
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

/// Resolves a name. If that fails, returns what the failure says about the member.
async fn resolve(name: &str) -> Result<Vec<SocketAddr>, Heard> {
    let found = match timeout(CONNECT_TIMEOUT, lookup_host(name)).await {
        Ok(Ok(found)) => found.collect::<Vec<_>>(),
        Ok(Err(error)) => return Err(without_address(&error)),
        Err(_) => return Err(Heard::CutOff(format!("no address within {CONNECT_TIMEOUT:?}"))),
    };
    if found.len() > ADDRESSES_MAX {
        return Err(Heard::Runs(format!("its name has more than {ADDRESSES_MAX} addresses")));
    }
    Ok(found)
}

/// Opens a TCP connection. If that fails, returns what the failure says about the member.
async fn dial(addr: SocketAddr) -> Result<TcpStream, Heard> {
    match timeout(CONNECT_TIMEOUT, TcpStream::connect(addr)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(without_connection(&error)),
        Err(_) => Err(Heard::Unreached(format!("no connection within {CONNECT_TIMEOUT:?}"))),
    }
}

/// Of what was heard at the addresses of one name, what says the least that the member is gone. A
/// name without an address says nothing.
fn worst(heard: Vec<Heard>) -> Heard {
    let doubt = |heard: &Heard| match heard {
        Heard::Gone => 0,
        Heard::Unreached(_) => 1,
        Heard::CutOff(_) => 2,
        Heard::Runs(_) => 3,
    };
    let no_address = || Heard::CutOff("the name has no address".to_owned());
    heard.into_iter().max_by_key(doubt).unwrap_or_else(no_address)
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
        assert!(matches!(without_address(&no_name), Heard::CutOff(_)));
        // Too many open files on this machine, or a connection that broke, do not prove that the
        // member is gone.
        for errno_of_neither in [rustix::io::Errno::MFILE, rustix::io::Errno::CONNRESET] {
            assert!(matches!(errno(errno_of_neither), Heard::Runs(_)));
        }
    }

    #[test]
    fn a_refused_connection_says_nothing_about_the_other_addresses_of_the_name() {
        let unreached = || Heard::Unreached("no connection".to_owned());
        let cut_off = || Heard::CutOff("no route".to_owned());
        assert_eq!(worst(vec![Heard::Gone, Heard::Gone]), Heard::Gone);
        assert_eq!(worst(vec![Heard::Gone, unreached()]), unreached());
        assert_eq!(worst(vec![cut_off(), Heard::Gone, unreached()]), cut_off());
        assert!(matches!(worst(vec![]), Heard::CutOff(_)));
    }

    #[test]
    fn a_founder_that_is_cut_off_from_a_majority_of_the_old_members_founds_nothing() {
        for (cut_off, asked, members, refuses) in
            [(0, 0, 3, false), (1, 1, 3, true), (1, 3, 3, false), (2, 3, 3, true), (2, 4, 5, false)]
        {
            assert_eq!(is_cut_off(cut_off, asked, members), refuses, "{cut_off} of {members}");
        }
    }
}
