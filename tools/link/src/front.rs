//! A listener in front of a node. It identifies its clients, and carries their connections.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use epicepoch_wire::frame::{FrameKind, HEADER_LEN, MAGIC, read_header};
use epicepoch_wire::native::{
    FIRST_BYTE, FORWARDER_AGENT, TO_SERVER_TAIL_LEN_MAX, ToServer, split,
};
use socket2::SockRef;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::fault::Cut;
use crate::party::{Diallers, Party};
use crate::pump::{Ended, Pump};
use crate::table::{Break, Front, Shared};

/// At most this many connections of one proxy. Further connections are reset. Each connection may
/// hold 1 MiB in each direction.
const CONNECTIONS_MAX: usize = 1_024;
/// How long the target may take to accept a connection. The target is on this machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed accept. It fails if no file descriptor is free, or if the client has gone.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Opens listeners as they are added, until the proxy is stopped.
pub(crate) async fn serve(shared: Arc<Shared>) {
    let mut changes = shared.changes();
    // Each connection holds a clone of this value. So the number of clones is the number of
    // connections.
    let room = Rc::new(());
    loop {
        changes.borrow_and_update();
        let Some(fronts) = shared.to_open() else { return };
        for front in fronts {
            spawn_local(accept(shared.clone(), front, room.clone()));
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

async fn accept(shared: Arc<Shared>, front: Front, room: Rc<()>) {
    let listener = tokio::net::TcpListener::from_std(front.listener)
        .expect("a listener that does not block belongs to this runtime");
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        if Rc::strong_count(&room) > CONNECTIONS_MAX {
            reset(&stream);
            continue;
        }
        let (shared, room) = (shared.clone(), room.clone());
        let (party, diallers, target) = (front.party, front.diallers, front.target);
        spawn_local(async move {
            carry(&shared, stream, (party, target), diallers).await;
            drop(room);
        });
    }
}

/// Carries one connection, from its first byte to its end.
async fn carry(
    shared: &Shared,
    mut near: TcpStream,
    (party, target): (Party, SocketAddr),
    diallers: Diallers,
) {
    let (dialler, head) = match diallers {
        Diallers::Clients => (Party::Client, Vec::new()),
        Diallers::Peers => identify(&mut near).await,
        Diallers::Forwarders => identify_forwarder(&mut near).await,
    };
    let breaks = shared.breaks(dialler, party).0;
    shared.count(dialler, party, |passed| passed.connections += 1);
    let is_reset = match arrive(shared, &mut near, dialler, party, head.len()).await {
        Arrival::Gone => return,
        Arrival::Reset => true,
        Arrival::Here => match timeout(CONNECT_TIMEOUT, TcpStream::connect(target)).await {
            // The node does not listen. Reset the connection. So the client sees the same as
            // without a proxy, only a little later.
            Err(_) | Ok(Err(_)) => return reset(&near),
            Ok(Ok(far)) => {
                // Small frames leave at once, because the nodes and clients also set no-delay.
                let _ = (near.set_nodelay(true), far.set_nodelay(true));
                let ends = ((dialler, &near), (party, &far));
                let is_reset = converse(shared, ends, head, breaks).await;
                if is_reset {
                    reset(&far);
                }
                is_reset
            }
        },
    };
    if is_reset {
        shared.count(dialler, party, |passed| passed.resets += 1);
        reset(&near);
    }
}

/// The outcome of a new connection: whether it gets through to the node.
enum Arrival {
    Here,
    Reset,
    /// The client has closed the connection.
    Gone,
}

/// Waits until the direction to the node is not cut. During a cut, the node sees no new connection.
async fn arrive(
    shared: &Shared,
    near: &mut TcpStream,
    dialler: Party,
    party: Party,
    head_len: usize,
) -> Arrival {
    let mut changes = shared.changes();
    let mut lost = 0;
    loop {
        changes.borrow_and_update();
        let (forth, back) = (shared.fault(dialler, party).cut, shared.fault(party, dialler).cut);
        match (forth, back) {
            (Cut::Reset, _) | (_, Cut::Reset) => return Arrival::Reset,
            (Cut::None, _) if lost > 0 => return Arrival::Reset,
            (Cut::None, _) => return Arrival::Here,
            (Cut::Drop, _) if lost == 0 && head_len > 0 => {
                lost = head_len;
                shared.count(dialler, party, |passed| passed.bytes_lost += head_len as u64);
            }
            (Cut::Drop | Cut::Hold, _) => {}
        }
        let mut chunk = [0; 1 << 10];
        tokio::select! {
            told = changes.changed() => if told.is_err() { return Arrival::Reset },
            read = near.read(&mut chunk), if forth == Cut::Drop => match read {
                Ok(0) | Err(_) => return Arrival::Gone,
                Ok(len) => {
                    lost += len;
                    shared.count(dialler, party, |passed| passed.bytes_lost += len as u64);
                }
            },
        }
    }
}

/// Carries a connection until it ends. Returns whether it ends with a reset.
async fn converse(
    shared: &Shared,
    ((dialler, near), (party, far)): ((Party, &TcpStream), (Party, &TcpStream)),
    head: Vec<u8>,
    breaks: u64,
) -> bool {
    let changes = shared.changes();
    let (seed, back_seed) = shared.seeds();
    let forth = Pump::new(shared, (dialler, near), (party, far), seed).run(head, changes.clone());
    let back = Pump::new(shared, (party, far), (dialler, near), back_seed);
    let back = back.run(Vec::new(), changes.clone());
    tokio::pin!(forth, back);
    let (there, here) = ((dialler, party), (party, dialler));
    let broken = broken(shared, there, breaks, changes.clone());
    let both = async {
        tokio::select! {
            ended = &mut forth => rest(shared, there, ended, back, changes).await,
            ended = &mut back => rest(shared, here, ended, forth, changes).await,
        }
    };
    tokio::select! {
        how = broken => how == Break::Reset,
        ended = both => ended == Ended::Reset,
    }
}

/// Carries the second direction after the first one has ended. Returns how the connection ends.
async fn rest(
    shared: &Shared,
    (from, to): (Party, Party),
    first: Ended,
    other: impl Future<Output = Ended>,
    changes: watch::Receiver<u64>,
) -> Ended {
    match first {
        Ended::Reset => Ended::Reset,
        Ended::Orderly => match other.await {
            Ended::Unheard => uncut(shared, (to, from), changes).await,
            ended => ended,
        },
        // The receiver does not know of the end of the stream, because the end was lost. After the
        // cut, the connection is reset.
        Ended::Unheard => tokio::select! {
            ended = other => ended,
            ended = uncut(shared, (from, to), changes) => ended,
        },
    }
}

/// Waits until the cut ends. Returns that the connection must be reset, because bytes are missing.
async fn uncut(
    shared: &Shared,
    (from, to): (Party, Party),
    mut changes: watch::Receiver<u64>,
) -> Ended {
    while shared.fault(from, to).cut == Cut::Drop && changes.changed().await.is_ok() {}
    Ended::Reset
}

/// Identifies the client. Returns it, and the bytes read so far.
async fn identify(stream: &mut TcpStream) -> (Party, Vec<u8>) {
    let mut head = Vec::with_capacity(HEADER_LEN);
    while head.len() < HEADER_LEN {
        let known = head.len().min(2);
        if head[..known] != MAGIC.to_le_bytes()[..known] {
            return (Party::Client, head);
        }
        let missing = (HEADER_LEN - head.len()) as u64;
        match (&mut *stream).take(missing).read_buf(&mut head).await {
            Ok(0) | Err(_) => return (Party::Client, head),
            Ok(_) => {}
        }
    }
    let header = head.first_chunk().and_then(|bytes| read_header(bytes).ok());
    match header.filter(|header| header.kind == FrameKind::PeerHello) {
        Some(header) => (Party::Node(header.from), head),
        None => (Party::Client, head),
    }
}

/// Reads the hello of the native protocol, and returns the node that sends requests on.
async fn identify_forwarder(stream: &mut TcpStream) -> (Party, Vec<u8>) {
    let mut head = Vec::new();
    loop {
        match split(&head, TO_SERVER_TAIL_LEN_MAX) {
            Ok(Some(frame)) => {
                let Ok(ToServer::ClientHello(hello)) = ToServer::decode(&frame) else { break };
                let node = hello.agent.strip_prefix(FORWARDER_AGENT).and_then(|id| id.parse().ok());
                return (node.map_or(Party::Client, Party::node), head);
            }
            Ok(None) if head.first().is_none_or(|first| *first == FIRST_BYTE) => {}
            Ok(None) | Err(_) => break,
        }
        match stream.read_buf(&mut head).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    (Party::Client, head)
}

/// Waits for a command to break the connection, and returns how to break it.
async fn broken(
    shared: &Shared,
    (from, to): (Party, Party),
    before: u64,
    mut changes: watch::Receiver<u64>,
) -> Break {
    loop {
        changes.borrow_and_update();
        if let (count, Some(how)) = shared.breaks(from, to)
            && count > before
        {
            return how;
        }
        if changes.changed().await.is_err() {
            return Break::Reset;
        }
    }
}

/// Prepares a reset, which is sent when the socket is dropped.
fn reset(stream: &TcpStream) {
    // A socket that is already closed needs no reset.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}
