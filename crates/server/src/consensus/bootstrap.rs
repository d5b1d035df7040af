//! How an empty first member gets its genesis: it asks every other first member, again and again.
//! The one with the lowest id draws the genesis, once all the others have said in one sweep that
//! they are empty and told to bootstrap with the same list; the others adopt the first genesis
//! that names their own data directory. A member that belongs to a cluster already refuses, so
//! that wiped disks never form a second one.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use epicepoch_core::durable::{HardState, Record, Restored};
use epicepoch_core::positions::Positions;
use epicepoch_core::state::State;
use epicepoch_wire::bootstrap::{Empty, Genesis, Member};
use epicepoch_wire::frame::{FrameKind, write_frame};
use epicepoch_wire::hello::{LinkKind, Refusal, RefusalCode};
use epicepoch_wire::raft_message::Configuration;
use epicepoch_wire::{ClusterId, HistoryId, LogIndex, NodeId, Term};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::ConsensusError;
use super::accept::read_hello;
use super::introduction::check_name;
use super::link::CONNECT_TIMEOUT;
use crate::framed::{FrameReader, write_frames};
use crate::shared::NodeShared;
use crate::storage::Storage;

/// Between two sweeps over the other first members.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);
/// Connections that are answered at once.
const ANSWERING_MAX: usize = 64;
/// Sweeps between two lines in the log that say whom the node waits for.
const SWEEPS_PER_LINE: u32 = 50;

/// Waits for the genesis, writes it durably, and returns what the directory holds then.
pub(super) async fn run(
    shared: &Arc<NodeShared>,
    listener: &Rc<TcpListener>,
    storage: &mut Storage,
) -> Result<Restored, ConsensusError> {
    let answering = tokio::task::spawn_local(answer(shared.clone(), listener.clone()));
    let found = find(shared).await;
    answering.abort();
    let genesis = found?;
    let record = record_of(&genesis);
    storage.found(&record)?;
    tracing::info!(cluster = %genesis.cluster, members = genesis.members.len(), "joined");
    let hard_state = HardState { term: record.term, vote: NodeId(0), commit: record.index };
    Ok(Restored { hard_state, record, entries: Vec::new(), positions: Positions::default() })
}

/// The state of a cluster that begins, as every first member writes it: index 1 of term 1.
fn record_of(genesis: &Genesis) -> Record {
    let voters = genesis.members.iter().map(|member| member.node).collect();
    Record {
        index: LogIndex(1),
        term: Term(1),
        configuration: Configuration { voters, ..Configuration::default() },
        data: State::new(genesis).encode(),
    }
}

async fn find(shared: &NodeShared) -> Result<Genesis, ConsensusError> {
    let me = shared.identity.node;
    let peers: Vec<_> = shared.config.peers.iter().filter(|(id, _)| **id != me).collect();
    let founder = shared.config.peers.keys().next() == Some(&me);
    let mut sweeps = 0_u32;
    loop {
        let mut empty = Vec::new();
        let mut waiting_for = Vec::new();
        for (node, addr) in &peers {
            match timeout(CONNECT_TIMEOUT, ask(shared, **node, addr)).await {
                Ok(Ok(Found::Genesis(genesis))) => return adopt(shared, **node, genesis),
                Ok(Ok(Found::Empty(answer))) => empty.push((**node, answer)),
                Ok(Ok(Found::Refused(refusal))) if ends(refusal.code) => {
                    return Err(ConsensusError::Refused { by: **node, refusal });
                }
                Ok(Ok(Found::Refused(refusal))) => waiting_for.push(format!("{node}: {refusal}")),
                Ok(Err(error)) => waiting_for.push(format!("{node} at {addr}: {error}")),
                Err(_) => waiting_for.push(format!("{node} at {addr}: no answer")),
            }
        }
        let unwilling = empty.iter().filter_map(|(node, answer)| unwilling(shared, *node, answer));
        waiting_for.extend(unwilling);
        if waiting_for.is_empty() && founder {
            return found(shared, &empty);
        }
        if sweeps.is_multiple_of(SWEEPS_PER_LINE) {
            let waiting_for = if waiting_for.is_empty() {
                "the node with the lowest id, which draws the cluster id".to_owned()
            } else {
                waiting_for.join("; ")
            };
            tracing::info!(waiting_for, "bootstrap");
        }
        sweeps += 1;
        sleep(SWEEP_INTERVAL).await;
    }
}

/// Whether a refusal ends the bootstrap: whoever said it belongs to a cluster.
fn ends(code: RefusalCode) -> bool {
    code.is_final() || code == RefusalCode::UnknownNode
}

/// Why an empty first member cannot be founded with, if so.
fn unwilling(shared: &NodeShared, node: NodeId, answer: &Empty) -> Option<String> {
    if !answer.bootstrapping {
        return Some(format!("{node} is empty but was not started with BOOTSTRAP=1"));
    }
    let ours = shared.config.peers.iter().map(|(id, addr)| (*id, addr.clone()));
    if !answer.peers.iter().cloned().eq(ours) {
        return Some(format!("{node} has another list of PEERS: make them the same"));
    }
    None
}

fn found(shared: &NodeShared, empty: &[(NodeId, Empty)]) -> Result<Genesis, ConsensusError> {
    let me = Member {
        node: shared.identity.node,
        store: shared.identity.store,
        raft_addr: shared.config.raft_addr.clone(),
        client_addr: shared.client_addr.clone(),
    };
    let others = empty.iter().map(|(node, answer)| Member {
        node: *node,
        store: answer.store,
        raft_addr: shared.config.peers.get(node).cloned().unwrap_or_default(),
        client_addr: answer.client_addr.clone(),
    });
    let mut members: Vec<_> = others.chain([me]).collect();
    members.sort_unstable_by_key(|member| member.node);
    let mut drawn = [0; 24];
    getrandom::fill(&mut drawn).map_err(std::io::Error::from)?;
    let (cluster, history) = drawn.split_at(16);
    let cluster = u128::from_le_bytes(cluster.try_into().unwrap_or_default()).max(1);
    let history = u64::from_le_bytes(history.try_into().unwrap_or_default());
    Ok(Genesis { cluster: ClusterId(cluster), history: HistoryId(history), members })
}

fn adopt(shared: &NodeShared, by: NodeId, genesis: Genesis) -> Result<Genesis, ConsensusError> {
    let me = shared.identity;
    let is_named = genesis.members.iter().any(|m| m.node == me.node && m.store == me.store);
    if is_named { Ok(genesis) } else { Err(ConsensusError::NotInGenesis { by }) }
}

enum Found {
    Empty(Empty),
    Genesis(Genesis),
    Refused(Refusal),
}

/// Asks one first member what it is.
async fn ask(shared: &NodeShared, node: NodeId, addr: &str) -> Result<Found, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let mut stream = TcpStream::connect(addr).await.map_err(|error| text(&error))?;
    let hello = shared.hello(LinkKind::Bootstrap, node);
    let mut frames = Vec::new();
    write_frame(&mut frames, FrameKind::Hello, ClusterId(0), shared.identity.node, |out| {
        hello.encode(out);
    });
    write_frames(&mut stream, &mut frames).await.map_err(|error| text(&error))?;
    let mut reader = FrameReader::new(stream);
    let read = reader.next().await.map_err(|error| text(&error))?;
    let (header, payload) = read.ok_or("the connection was closed")?;
    let found = match header.kind {
        FrameKind::Empty => Empty::decode(payload).map(Found::Empty),
        FrameKind::Genesis => Genesis::decode(payload).map(Found::Genesis),
        FrameKind::Refused => Refusal::decode(payload).map(Found::Refused),
        kind => return Err(format!("it answered {kind:?}")),
    };
    let found = found.map_err(|error| text(&error))?;
    if header.from != node {
        return Err(format!("node {} answers there: correct PEERS", header.from));
    }
    Ok(found)
}

/// Answers the others while this node is empty itself.
async fn answer(shared: Arc<NodeShared>, listener: Rc<TcpListener>) {
    // Ends its tasks with itself: nobody is told "empty" once this node is not.
    let mut answering = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(SWEEP_INTERVAL).await;
            continue;
        };
        while answering.len() >= ANSWERING_MAX || answering.try_join_next().is_some() {
            if answering.len() >= ANSWERING_MAX {
                // Each ends within its timeout.
                let _ended = answering.join_next().await;
            }
        }
        let shared = shared.clone();
        answering.spawn_local(async move {
            // A connection that goes wrong is asked again by its other end.
            let _again = timeout(CONNECT_TIMEOUT, answer_one(&shared, stream)).await;
        });
    }
}

async fn answer_one(shared: &NodeShared, stream: TcpStream) -> Option<()> {
    let mut reader = FrameReader::new(stream);
    let (_, from, hello) = read_hello(&mut reader).await?;
    let me = shared.identity.node;
    let mut frames = Vec::new();
    let refusal = check_name(shared, from, &hello).err().or_else(|| {
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
        };
        write_frame(&mut frames, FrameKind::Empty, ClusterId(0), me, |out| empty.encode(out));
    }
    let mut stream = reader.into_stream();
    write_frames(&mut stream, &mut frames).await.ok()
}
