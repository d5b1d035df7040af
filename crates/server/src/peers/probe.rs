//! Asks a node about its state. The node is empty, or a member of a cluster. A member either knows
//! this node as a member, or refuses it.

use std::time::Duration;

use epicepoch_core::durable::Record;
use epicepoch_wire::bootstrap::Empty;
use epicepoch_wire::frame::{FrameKind, write_frame};
use epicepoch_wire::peer_hello::{Formats, LinkKind, PeerHello, Refusal};
use epicepoch_wire::{ClusterId, NodeId};
use tokio::time::Instant;

use super::{check_node, connect};
use crate::framed::{FrameReader, write_frames};
use crate::security::tls::peer_stream::PeerStream;
use crate::shared::NodeShared;

/// The longest time for a node's answer, including the connection.
pub(crate) const ASK_TIMEOUT: Duration = Duration::from_secs(1);

/// A node's answer to an empty node, or to a leader that is about to add it.
#[derive(Debug)]
pub(crate) enum Found {
    /// The node is empty.
    Empty(Empty),
    /// The node belongs to a cluster that has this node as a member.
    Admitted(Record),
    /// The node refuses this node.
    Refused { by: NodeId, refusal: Refusal },
}

/// When an answer came, and how long after this node sent its hello. The other node read the clock
/// in its answer within that time. The time does not include name lookup, connection and TLS.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) took: Duration,
    pub(crate) at: Instant,
}

/// [`ask`] for a known node; also returns how long the answer took.
pub(crate) async fn ask_timed(
    shared: &NodeShared,
    node: NodeId,
    addr: &str,
) -> Result<(Found, Timing), String> {
    let stream = connect(shared, addr, node).await.map_err(|error| error.to_string())?;
    exchange(shared, node, stream, shared.formats()).await
}

/// Asks the node at `addr` about its state. `node` 0 stands for any node. A node that reads none of
/// `formats` refuses.
pub(crate) async fn ask(
    shared: &NodeShared,
    node: NodeId,
    addr: &str,
    formats: Formats,
) -> Result<Found, String> {
    let stream = connect(shared, addr, node).await.map_err(|error| error.to_string())?;
    ask_over(shared, node, stream, formats).await
}

/// [`ask`] over an open connection.
pub(crate) async fn ask_over(
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
    let hello = PeerHello { formats, ..shared.hello(LinkKind::Bootstrap, node) };
    let mut frames = Vec::new();
    write_frame(&mut frames, FrameKind::PeerHello, ClusterId(0), shared.identity.node, |out| {
        hello.encode(out);
    });
    let asked = Instant::now();
    write_frames(&mut stream, &mut frames).await.map_err(|error| text(&error))?;
    let mut reader = FrameReader::new(stream);
    let read = reader.next().await.map_err(|error| text(&error))?;
    let at = Instant::now();
    let timing = Timing { took: at - asked, at };
    let (header, payload) = read.ok_or("it closed the connection")?;
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
    check_node(shared, &reader.into_stream(), by).map_err(|refusal| text(&refusal))?;
    Ok((found, timing))
}
