//! The inbox of the consensus plane: the events that its links and its listener report.

use std::rc::Rc;

use epicepoch_core::durable::Record;
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::gossip::Pong;
use epicepoch_wire::peer_hello::{PeerHello, Refusal};
use epicepoch_wire::raft_message::RaftMessage;
use epicepoch_wire::{BootId, NodeId, StoreId, StorePosition};
use tokio::sync::{mpsc, oneshot};

/// At most this many events wait. When the inbox is full, senders wait.
const INBOX_LEN_MAX: usize = 4_096;

/// An event on a connection.
#[derive(Debug)]
pub(super) enum Event {
    /// A peer's Raft message.
    Message { from: NodeId, store: StoreId, message: RaftMessage },
    /// A peer's hello on a Raft link has passed the handshake.
    PeerHello { member: Member, hello: PeerHello },
    /// A peer's clock sample and position. `boot` identifies the run of the peer's process. `since`
    /// is the peer's last position that this node knew when it sent the ping.
    Pong { node: NodeId, boot: BootId, since: StorePosition, pong: Pong, received_ns: u64 },
    /// A peer cannot be reached, or a link to it broke.
    Unreachable { node: NodeId },
    /// A peer closed a connection. Its process may have ended.
    Closed { node: NodeId },
    /// A peer refuses this node.
    Refused { by: NodeId, refusal: Refusal },
    /// A member with an empty directory asks for the state.
    RecordWanted { answer: oneshot::Sender<Record> },
}

/// The senders' end of the inbox.
#[derive(Debug)]
pub(super) struct Inbox(mpsc::Sender<Event>);

impl Inbox {
    pub(super) fn open() -> (Rc<Self>, mpsc::Receiver<Event>) {
        let (sender, events) = mpsc::channel(INBOX_LEN_MAX);
        (Rc::new(Self(sender)), events)
    }

    /// Puts an event in. Waits while the inbox is full.
    pub(super) async fn send(&self, event: Event) {
        // Sending fails only when the plane has ended, and then this task ends, too.
        let _ended = self.0.send(event).await;
    }
}
