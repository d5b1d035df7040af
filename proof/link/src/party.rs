//! The ends of a link, and which clients a listener expects.

use epicepoch_wire::NodeId;

/// At most this many listeners of one proxy. A higher number would come from a runaway loop.
pub const FRONTS_MAX: usize = 256;

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Party {
    /// A node, identified by its peer hello.
    Node(NodeId),
    /// Any other process: a client, or a process that does not speak the peer protocol.
    Client,
}

impl Party {
    /// The node with this id.
    #[must_use]
    pub const fn node(id: u64) -> Self {
        Self::Node(NodeId(id))
    }
}

/// The expected clients of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Diallers {
    /// Nodes, identified by their hello; others count as [`Party::Client`]. The proxy passes
    /// nothing on, and does not dial the node, until the first 40 bytes have come or cannot become
    /// a hello.
    Peers,
    /// Only clients. The proxy does not inspect their bytes.
    Clients,
}
