//! The ends of a link, and which clients a listener expects.

use epicepoch_wire::NodeId;

/// At most this many listeners of one proxy. A test needs far fewer, so a higher number is a
/// mistake, such as an endless loop.
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

/// Which clients a listener expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Diallers {
    /// Nodes, identified by their peer hello. Any other client counts as [`Party::Client`]. The
    /// proxy waits until the first 40 bytes have come, or until the bytes cannot be a hello. Before
    /// that it passes nothing on, and does not dial the node.
    Peers,
    /// Clients, and nodes that send their requests on, identified by the agent in their hello of the
    /// native protocol. Any other client counts as [`Party::Client`]. The proxy waits for the hello
    /// or for the first byte that cannot be one.
    Forwarders,
    /// Only clients. The proxy does not inspect their bytes.
    Clients,
}
