//! How an empty directory gets its first record. A first member asks every other one, again and
//! again: the one with the lowest id draws the genesis, once all the others have said in one sweep
//! that they are empty and told to bootstrap with the same list. Everybody else takes the state of
//! a running member that knows this very data directory as a member: a first member that missed the
//! founding, and a node that was added since. A member refuses all other empty ones, so that wiped
//! disks never form a second cluster.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use epicepoch_core::durable::{HardState, Record, Restored};
use epicepoch_core::positions::Positions;
use epicepoch_core::replica::RestoreError;
use epicepoch_core::state::State;
use epicepoch_wire::bootstrap::{Empty, Genesis, Member};
use epicepoch_wire::frame::{FrameKind, write_frame};
use epicepoch_wire::hello::{Formats, Hello, LinkKind, Refusal, RefusalCode};
use epicepoch_wire::raft_message::Configuration;
use epicepoch_wire::{ClusterId, LogIndex, NodeId, Term};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout};

use super::ConsensusError;
use super::accept::read_hello;
use super::introduction::check_name;
use super::link::CONNECT_TIMEOUT;
use super::restore::{Answered, Restore, is_passing};
use crate::framed::{FrameReader, write_frames};
use crate::peers::stream::PeerStream;
use crate::peers::{self, greeted, greetings};
use crate::shared::NodeShared;
use crate::storage::Storage;
use crate::tls::handshake::Beginner;

/// Between two sweeps over those that are asked.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);
/// How long a node that is added has to say that it is there, and empty.
pub(crate) const ASK_TIMEOUT: Duration = CONNECT_TIMEOUT;
/// Sweeps between two lines in the log that say whom the node waits for.
const SWEEPS_PER_LINE: u32 = 50;

/// Waits for the first record, writes it durably, and returns what the directory holds then.
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

/// Asks the members that `JOIN` names until one of them knows this node as a member.
async fn join(shared: &NodeShared) -> Result<Record, ConsensusError> {
    let mut sweeps = 0_u32;
    loop {
        let mut waiting_for = Vec::new();
        for addr in &shared.config.join {
            let anybody = NodeId(0);
            let why = match timeout(CONNECT_TIMEOUT, ask(shared, anybody, addr, shared.formats()))
                .await
            {
                Ok(Ok(Found::Admitted(record))) => return adopt(shared, addr, record),
                Ok(Ok(Found::Refused { by, refusal })) if refusal.code.is_final() => {
                    return Err(ConsensusError::Refused { by, refusal });
                }
                Ok(Ok(Found::Refused { refusal, .. })) => refusal.to_string(),
                Ok(Ok(Found::Empty(_))) => "it belongs to no cluster itself".to_owned(),
                Ok(Err(error)) => error,
                Err(_) => "no answer".to_owned(),
            };
            waiting_for.push(format!("{addr}: {why}"));
        }
        if sweeps.is_multiple_of(SWEEPS_PER_LINE) {
            tracing::info!(waiting_for = waiting_for.join("; "), "joining");
        }
        sweeps += 1;
        sleep(SWEEP_INTERVAL).await;
    }
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

async fn find(shared: &Arc<NodeShared>, restore: &Restore) -> Result<Record, ConsensusError> {
    let me = shared.identity.node;
    let peers: Vec<_> = shared.config.peers.iter().filter(|(id, _)| **id != me).collect();
    let founder = shared.config.peers.keys().next() == Some(&me);
    let mut sweeps = 0_u32;
    loop {
        let mut empty = Vec::new();
        let mut waiting_for = Vec::new();
        for (node, addr) in &peers {
            match timeout(CONNECT_TIMEOUT, ask_timed(shared, **node, addr)).await {
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
        if waiting_for.is_empty() && founder {
            match found(shared, restore, &empty).await {
                Ok(genesis) => return Ok(record_of(&genesis)),
                Err(error) if is_passing(&error) => waiting_for.push(error.to_string()),
                Err(error) => return Err(error),
            }
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

/// What a node says to a hello of an empty one, or to that of a leader that is told to add it.
#[derive(Debug)]
pub(crate) enum Found {
    /// It is empty, too.
    Empty(Empty),
    /// It runs, and knows who asks as a member.
    Admitted(Record),
    /// It does not, and says why.
    Refused { by: NodeId, refusal: Refusal },
}

/// When an answer came, and how long it took from the hello on: a clock that it names was read meanwhile.
/// Names, connections and handshakes before it have no part in that.
struct Timing {
    took: Duration,
    at: Instant,
}

async fn ask_timed(
    shared: &NodeShared,
    node: NodeId,
    addr: &str,
) -> Result<(Found, Timing), String> {
    let stream = peers::connect(shared, addr, node).await.map_err(|error| error.to_string())?;
    exchange(shared, node, stream, shared.formats()).await
}

/// Asks the node at `addr` what it is; 0 stands for whoever is there. One that reads none of `formats`
/// refuses.
pub(crate) async fn ask(
    shared: &NodeShared,
    node: NodeId,
    addr: &str,
    formats: Formats,
) -> Result<Found, String> {
    let stream = peers::connect(shared, addr, node).await.map_err(|error| error.to_string())?;
    ask_over(shared, node, stream, formats).await
}

/// Asks who is at the other end of `stream` what it is; 0 stands for whoever is there.
pub(super) async fn ask_over(
    shared: &NodeShared,
    node: NodeId,
    stream: PeerStream,
    formats: Formats,
) -> Result<Found, String> {
    exchange(shared, node, stream, formats).await.map(|(found, _)| found)
}

async fn exchange(
    shared: &NodeShared,
    node: NodeId,
    mut stream: PeerStream,
    formats: Formats,
) -> Result<(Found, Timing), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let hello = Hello { formats, ..shared.hello(LinkKind::Bootstrap, node) };
    let mut frames = Vec::new();
    write_frame(&mut frames, FrameKind::Hello, ClusterId(0), shared.identity.node, |out| {
        hello.encode(out);
    });
    let asked = Instant::now();
    write_frames(&mut stream, &mut frames).await.map_err(|error| text(&error))?;
    let mut reader = FrameReader::new(stream);
    let read = reader.next().await.map_err(|error| text(&error))?;
    let at = Instant::now();
    let timing = Timing { took: at - asked, at };
    let (header, payload) = read.ok_or("the connection was closed")?;
    let found = match header.kind {
        FrameKind::Empty => Empty::decode(payload).map(Found::Empty),
        FrameKind::Admitted => Record::decode(payload).map(Found::Admitted),
        FrameKind::Refused => {
            Refusal::decode(payload).map(|refusal| Found::Refused { by: header.from, refusal })
        }
        kind => return Err(format!("it answered {kind:?}")),
    };
    let found = found.map_err(|error| text(&error))?;
    let by = header.from;
    if by != node && node != NodeId(0) {
        return Err(format!("node {by} answers there: correct PEERS"));
    }
    peers::check_node(shared, &reader.into_stream(), by).map_err(|refusal| text(&refusal))?;
    Ok((found, timing))
}

/// Answers the others while this node is empty itself.
async fn answer(shared: Arc<NodeShared>, listener: Rc<TcpListener>, restore: Rc<Restore>) {
    // Ends its tasks with itself: nobody is told "empty" once this node is not.
    let mut answering = JoinSet::new();
    let greetings = Rc::new(greetings());
    let turns = greetings.clone();
    answering.spawn_local(async move { turns.hand_out_turns().await });
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            sleep(SWEEP_INTERVAL).await;
            continue;
        };
        // No more are left than greetings there may be: what has given way ends at once.
        while answering.try_join_next().is_some() {}
        let (shared, restore, greetings) = (shared.clone(), restore.clone(), greetings.clone());
        answering.spawn_local(async move {
            let addrs = shared.config.peers.values().chain(&shared.config.join);
            let is_expected = peers::is_named_in(addrs.map(|addr| &**addr), from.ip());
            let who = Beginner::at(Some(from.ip()), is_expected);
            let answered = greetings.advance(who, answer_one(&shared, &restore, stream));
            // A connection that goes wrong is asked again by its other end.
            let answered = timeout(CONNECT_TIMEOUT, answered).await;
            let _again = greeted(answered, &shared, from.ip());
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
    // An address in a list or in a backup may be this node's own, spelled in another way.
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
