//! Bootstrap: how an empty directory gets its first record.
//!
//! First members ask each other for their state in sweeps: in each sweep, a node asks every other
//! first member once. The member with the lowest id founds the cluster. It does so once all others
//! have said, in one sweep, that they are empty and bootstrap with the same list. Every other node
//! gets the state from a running member that knows its data directory as a member's. Such a node is
//! a first member that missed the founding, or was added later. Members refuse all other empty
//! directories, so wiped disks never form a second cluster.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use epicepoch_core::durable::{HardState, Record, Restored};
use epicepoch_core::positions::Positions;
use epicepoch_core::replica::RestoreError;
use epicepoch_core::state::State;
use epicepoch_wire::bootstrap::{Empty, Genesis, Member};
use epicepoch_wire::frame::{FrameKind, write_frame};
use epicepoch_wire::peer_hello::{LinkKind, Refusal, RefusalCode};
use epicepoch_wire::raft_message::Configuration;
use epicepoch_wire::{ClusterId, LogIndex, NodeId, Term};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout};

use super::error::ConsensusError;
use super::restore::{Answered, Restore, is_passing};
use crate::framed::{FrameReader, write_frames};
use crate::peers::handshake::{check_name, read_hello};
use crate::peers::probe::{ASK_TIMEOUT, Found, Timing, ask, ask_timed};
use crate::peers::{self, handshake_outcome, handshakes};
use crate::security::tls::handshake::Beginner;
use crate::shared::NodeShared;
use crate::storage::Storage;

/// Time between two sweeps. In a sweep, this node asks every other node once.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);
/// Time between two log lines that name the same nodes, which have not answered yet. A sweep may
/// take much longer than its interval, so sweeps are no measure of time.
const LINE_INTERVAL: Duration = Duration::from_secs(5);
/// Shortest time between two log lines. A change is logged at once if the last line is older.
const CHANGED_LINE_INTERVAL: Duration = Duration::from_secs(1);

/// Waits for the first record, writes it durably, and returns the content of the directory.
pub(super) async fn run(
    shared: &Arc<NodeShared>,
    listener: &Rc<TcpListener>,
    storage: &mut Storage,
    restore: &Rc<Restore>,
) -> Result<Restored, ConsensusError> {
    let answering =
        tokio::task::spawn_local(answer(shared.clone(), listener.clone(), restore.clone()));
    let is_joining = !shared.config.join.is_empty();
    let found = if is_joining { join(shared).await } else { find(shared, restore).await };
    answering.abort();
    let record = found?;
    let newest = shared.formats().newest;
    let state = State::decode_up_to(&record.data, newest).map_err(RestoreError::from)?;
    storage.found(&record)?;
    tracing::info!(
        cluster = %state.cluster,
        members = state.members.len(),
        index = record.index.0,
        "joined"
    );
    let hard_state = HardState { term: record.term, vote: NodeId(0), commit: record.index };
    Ok(Restored { hard_state, record, entries: Vec::new(), positions: Positions::default() })
}

/// Limits the log lines that say for which nodes this node waits.
#[derive(Debug, Default)]
struct WaitingLines {
    /// The last line, and when it was written.
    last: Option<(Instant, String)>,
}

impl WaitingLines {
    /// Whether a line with `text` must be written now. If so, it counts as written.
    fn is_due(&mut self, text: &str, now: Instant) -> bool {
        let is_due = self.last.as_ref().is_none_or(|(at, last)| {
            let least = if last == text { LINE_INTERVAL } else { CHANGED_LINE_INTERVAL };
            now.saturating_duration_since(*at) >= least
        });
        if is_due {
            self.last = Some((now, text.to_owned()));
        }
        is_due
    }
}

/// Asks the addresses in `JOIN` until a member there knows this node as a member.
async fn join(shared: &NodeShared) -> Result<Record, ConsensusError> {
    let mut lines = WaitingLines::default();
    loop {
        let mut waiting_for = Vec::new();
        for addr in &shared.config.join {
            let any_node = NodeId(0);
            let why =
                match timeout(ASK_TIMEOUT, ask(shared, any_node, addr, shared.formats())).await {
                    Ok(Ok(Found::Admitted(record))) => return adopt(shared, addr, record),
                    Ok(Ok(Found::Refused { by, refusal })) if refusal.code.is_final() => {
                        return Err(ConsensusError::Refused { by, refusal });
                    }
                    Ok(Ok(Found::Refused { refusal, .. })) => refusal.to_string(),
                    Ok(Ok(Found::Empty(_))) => "it belongs to no cluster".to_owned(),
                    Ok(Err(error)) => error,
                    Err(_) => "no answer".to_owned(),
                };
            waiting_for.push(format!("{addr}: {why}"));
        }
        let waiting_for = waiting_for.join("; ");
        if lines.is_due(&waiting_for, Instant::now()) {
            tracing::info!(waiting_for, "joining");
        }
        shared.health.ticked_ns.store(shared.clock.monotonic_ns(), Ordering::Relaxed);
        sleep(SWEEP_INTERVAL).await;
    }
}

/// The first record of a new cluster, at index 1 of term 1. It is the same on every first member.
fn record_of(genesis: &Genesis) -> Record {
    let voters = genesis.members.iter().map(|member| member.node).collect();
    Record {
        index: LogIndex(1),
        term: Term(1),
        configuration: Configuration { voters, ..Configuration::default() },
        data: State::new(genesis).encode(),
    }
}

/// Founds the cluster with the other first members, or gets the state from a member that runs
/// already.
async fn find(shared: &Arc<NodeShared>, restore: &Restore) -> Result<Record, ConsensusError> {
    let me = shared.identity.node;
    let peers: Vec<_> = shared.config.peers.iter().filter(|(id, _)| **id != me).collect();
    let is_founder = shared.config.peers.keys().next() == Some(&me);
    let mut lines = WaitingLines::default();
    loop {
        let mut empty = Vec::new();
        let mut waiting_for = Vec::new();
        for (node, addr) in &peers {
            match timeout(ASK_TIMEOUT, ask_timed(shared, **node, addr)).await {
                Ok(Ok((Found::Admitted(record), _))) => return adopt(shared, addr, record),
                Ok(Ok((Found::Empty(answer), Timing { took, at }))) => {
                    empty.push(Answered { node: **node, answer, took, at });
                }
                Ok(Ok((Found::Refused { by, refusal }, _))) if ends(refusal.code) => {
                    return Err(ConsensusError::Refused { by, refusal });
                }
                Ok(Ok((Found::Refused { refusal, .. }, _))) => {
                    waiting_for.push(format!("{node}: {refusal}"));
                }
                Ok(Err(error)) => waiting_for.push(format!("{node} at {addr}: {error}")),
                Err(_) => waiting_for.push(format!("{node} at {addr}: no answer")),
            }
        }
        let unwilling = empty.iter().filter_map(|other| unwilling(shared, restore, other));
        waiting_for.extend(unwilling);
        if waiting_for.is_empty() && is_founder {
            match found(shared, restore, &empty).await {
                Ok(genesis) => return Ok(record_of(&genesis)),
                Err(error) if is_passing(&error) => waiting_for.push(error.to_string()),
                Err(error) => return Err(error),
            }
        }
        let waiting_for = if waiting_for.is_empty() {
            "the node with the lowest id, which founds the cluster".to_owned()
        } else {
            waiting_for.join("; ")
        };
        if lines.is_due(&waiting_for, Instant::now()) {
            tracing::info!(waiting_for, "bootstrap");
        }
        shared.health.ticked_ns.store(shared.clock.monotonic_ns(), Ordering::Relaxed);
        sleep(SWEEP_INTERVAL).await;
    }
}

/// Whether a refusal ends the bootstrap, because the node that refuses belongs to a cluster.
fn ends(code: RefusalCode) -> bool {
    code.is_final() || code == RefusalCode::UnknownNode
}

/// Why this node cannot found a cluster with another empty first member; `None` if it can.
fn unwilling(shared: &NodeShared, restore: &Restore, other: &Answered) -> Option<String> {
    let Answered { node, answer, .. } = other;
    if !answer.bootstrapping {
        return Some(format!("{node} is empty but was not started with BOOTSTRAP=1"));
    }
    let ours = shared.config.peers.iter().map(|(id, addr)| (*id, addr.clone()));
    if !answer.peers.iter().cloned().eq(ours) {
        return Some(format!("{node} has another list of PEERS: make them the same"));
    }
    restore.unwilling(*node, answer.claim)
}

/// Makes the genesis of the new cluster.
async fn found(
    shared: &Arc<NodeShared>,
    restore: &Restore,
    empty: &[Answered],
) -> Result<Genesis, ConsensusError> {
    let me = Member {
        node: shared.identity.node,
        store: shared.identity.store,
        raft_addr: shared.config.raft_addr.clone(),
        client_addr: shared.client_addr.clone(),
    };
    let others = empty.iter().map(|Answered { node, answer, .. }| Member {
        node: *node,
        store: answer.store,
        raft_addr: shared.config.peers.get(node).cloned().unwrap_or_default(),
        client_addr: answer.client_addr.clone(),
    });
    let mut members: Vec<_> = others.chain([me]).collect();
    members.sort_unstable_by_key(|member| member.node);
    restore.genesis(shared, members, empty).await
}

/// Accepts the state that a member sent, if that state has this data directory as a member's.
fn adopt(shared: &NodeShared, addr: &str, record: Record) -> Result<Record, ConsensusError> {
    let me = shared.identity;
    let newest = shared.formats().newest;
    let state = State::decode_up_to(&record.data, newest).map_err(RestoreError::from)?;
    if state.store_of(me.node) == me.store {
        Ok(record)
    } else {
        Err(ConsensusError::NotAdmitted { addr: addr.to_owned() })
    }
}

/// Answers other nodes while this node's directory is empty.
async fn answer(shared: Arc<NodeShared>, listener: Rc<TcpListener>, restore: Rc<Restore>) {
    // When this task ends, the tasks that answer end with it. So no peer gets the answer "empty"
    // after this node has a record.
    let mut answering = JoinSet::new();
    let handshakes = Rc::new(handshakes());
    let turns = handshakes.clone();
    answering.spawn_local(async move { turns.hand_out_turns().await });
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            sleep(SWEEP_INTERVAL).await;
            continue;
        };
        // The limit of handshakes also limits this set of tasks. When a new handshake takes the
        // place of an older one, the task of the older one ends at once.
        while answering.try_join_next().is_some() {}
        let (shared, restore, handshakes) = (shared.clone(), restore.clone(), handshakes.clone());
        answering.spawn_local(async move {
            let addrs = shared.config.peers.values().chain(&shared.config.join);
            let is_expected = peers::is_listed(addrs.map(|addr| &**addr), from.ip());
            let who = Beginner::at(Some(from.ip()), is_expected);
            let answered = handshakes.advance(who, answer_one(&shared, &restore, stream));
            // If the answer cannot be sent, the node at the other end asks again.
            let answered = timeout(ASK_TIMEOUT, answered).await;
            let _again = handshake_outcome(answered, &shared, from.ip());
        });
        yield_now().await;
    }
}

async fn answer_one(shared: &NodeShared, restore: &Restore, stream: TcpStream) -> Option<()> {
    let mut reader = FrameReader::new(peers::accept(shared, stream).await?);
    let (_, from, hello) = read_hello(&mut reader).await.ok()?;
    let mut stream = reader.into_stream();
    let me = shared.identity.node;
    let mut frames = Vec::new();
    // A node may ask itself, when a list or a backup has another spelling of its address.
    let is_own = hello.link == LinkKind::Bootstrap
        && hello.to == NodeId(0)
        && (from, hello.store) == (me, shared.identity.store);
    let named = |()| if is_own { Ok(()) } else { check_name(shared, from, &hello) };
    let checked = peers::check_node(shared, &stream, from);
    let refusal = checked.and_then(named).err().or_else(|| {
        let text = format!("node {me} has no cluster yet");
        (hello.link != LinkKind::Bootstrap)
            .then(|| Refusal::new(RefusalCode::NotBootstrapped, text))
    });
    if let Some(refusal) = refusal {
        write_frame(&mut frames, FrameKind::Refused, ClusterId(0), me, |out| refusal.encode(out));
    } else {
        let peers = shared.config.peers.iter().map(|(id, addr)| (*id, addr.clone()));
        let empty = Empty {
            store: shared.identity.store,
            client_addr: shared.client_addr.clone(),
            bootstrapping: shared.config.bootstrap,
            peers: peers.collect(),
            claim: restore.claim(),
        };
        write_frame(&mut frames, FrameKind::Empty, ClusterId(0), me, |out| empty.encode(out));
    }
    write_frames(&mut stream, &mut frames).await.ok()
}

#[cfg(test)]
mod tests {
    use epicepoch_wire::StoreId;

    use super::super::fixture::shared_with;
    use super::*;
    use crate::faults::Faults;

    #[test]
    fn the_log_names_the_nodes_every_five_seconds_and_at_once_when_they_change() {
        let start = Instant::now();
        // A sweep in which two nodes do not answer takes some seconds.
        let sweeps = [(0, "2; 3"), (2, "2; 3"), (4, "2; 3"), (6, "2; 3"), (8, "3"), (10, "3")];
        let mut lines = WaitingLines::default();
        let written = |(at, text): (u64, &str)| {
            lines.is_due(text, start + Duration::from_secs(at)).then_some((at, text.to_owned()))
        };
        let found: Vec<_> = sweeps.into_iter().filter_map(written).collect();
        let expected = [(0, "2; 3"), (6, "2; 3"), (8, "3")];
        assert_eq!(found, expected.map(|(at, text)| (at, text.to_owned())));
        // Two texts that alternate in each sweep do not fill the disk.
        let mut lines = WaitingLines::default();
        let sweeps = (0..100_u32).filter(|sweep| {
            let text = if sweep.is_multiple_of(2) { "lost" } else { "refused" };
            lines.is_due(text, start + SWEEP_INTERVAL * *sweep)
        });
        assert!(sweeps.count() <= 11, "ten seconds");
    }

    #[test]
    fn only_a_node_of_a_cluster_ends_the_bootstrap() {
        for code in [RefusalCode::UnknownNode, RefusalCode::WrongStore, RefusalCode::Removed] {
            assert!(ends(code), "{code:?}");
        }
        for code in [RefusalCode::NotBootstrapped, RefusalCode::WrongNode, RefusalCode::Format] {
            assert!(!ends(code), "{code:?}");
        }
    }

    #[test]
    fn a_cluster_is_founded_only_with_nodes_that_bootstrap_with_the_same_list() {
        let peers = [(NodeId(1), "n1:1".to_owned()), (NodeId(2), "n2:1".to_owned())];
        let shared = shared_with(|config| config.peers = peers.clone().into());
        let restore = Restore::none(&shared.config, &Faults::none());
        let unwilling = |bootstrapping, peers: &[(NodeId, String)]| {
            let answer = Empty {
                store: StoreId(2),
                client_addr: "n2:2".to_owned(),
                bootstrapping,
                peers: peers.to_vec(),
                claim: None,
            };
            let (node, took, at) = (NodeId(2), Duration::ZERO, Instant::now());
            unwilling(&shared, &restore, &Answered { node, answer, took, at })
        };
        assert_eq!(unwilling(true, &peers), None);
        let said = |text: &str| Some(text.to_owned());
        let waits = said("2 is empty but was not started with BOOTSTRAP=1");
        assert_eq!(unwilling(false, &peers), waits);
        let other = said("2 has another list of PEERS: make them the same");
        assert_eq!(unwilling(true, &peers[..1]), other);
    }
}
