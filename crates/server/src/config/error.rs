//! Why a configuration is refused, in words that name the setting, the value and what is allowed.

use std::net::SocketAddr;

use epicepoch_wire::NodeId;
use thiserror::Error;

use super::bounds::{Bounds, CLUSTER_NAME_LEN_MAX, PEERS_MAX};

/// Why a configuration is refused. The message names the settings, the values and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Choose a value within the bounds.
    #[error("{setting} is {value}; {allowed}", setting = .bounds.setting, allowed = .bounds.allowed())]
    OutOfRange {
        /// The bounds that the value is outside of.
        bounds: Bounds,
        /// The value given, in the unit of the bounds.
        value: u64,
    },
    /// Write the address as `host:port`.
    #[error(
        "{setting} is {value:?}; allowed is host:port with a port from 1 to 65535, such as \
         node1.example:60001 or [::1]:60001"
    )]
    Address {
        /// The setting that holds the address.
        setting: &'static str,
        /// The address given.
        value: String,
    },
    /// Name an address that others can dial.
    #[error(
        "{setting} is {value:?}; allowed is an address that other machines can dial, not the \
         wildcard (to listen on all interfaces set {bind})"
    )]
    Wildcard {
        /// The setting that holds the address.
        setting: &'static str,
        /// The address given.
        value: String,
        /// The setting that says where to listen.
        bind: &'static str,
    },
    /// Give the peer list, or say that a cluster of one is meant.
    #[error(
        "PEERS is required; allowed are the Raft addresses of all first members, this node \
         included, such as 1=a:60001,2=b:60001,3=c:60001, or SINGLE (--single) for a cluster of one, \
         or JOIN (--join) to join a cluster that exists"
    )]
    NoPeers,
    /// Use fewer voters.
    #[error("PEERS has {count} members; allowed are at most {PEERS_MAX}")]
    TooManyPeers {
        /// How many were given.
        count: usize,
    },
    /// Number the members from 1.
    #[error("PEERS has the node id 0; allowed are node ids from 1")]
    PeerZero,
    /// Add this node to the list, the same list on every node.
    #[error(
        "PEERS has the node ids {known}, but NODE_ID is {node_id}; allowed is a list that \
         includes this node"
    )]
    PeersWithoutThisNode {
        /// This node.
        node_id: NodeId,
        /// The ids in the list.
        known: String,
    },
    /// Make the two addresses of this node the same.
    #[error(
        "PEERS has {in_peers} for node {node_id}, but RAFT_ADDR is {raft_addr}; allowed is the \
         same address in both"
    )]
    PeersDisagree {
        /// This node.
        node_id: NodeId,
        /// Its address in the list.
        in_peers: String,
        /// Its own idea of its address.
        raft_addr: String,
    },
    /// Give each member its own address.
    #[error("PEERS has {addr} for node {first} and for node {second}; allowed is one node each")]
    DuplicateAddress {
        /// The address given twice.
        addr: String,
        /// The lower node id.
        first: NodeId,
        /// The higher node id.
        second: NodeId,
    },
    /// Drop one of the two.
    #[error("SINGLE is on and PEERS has {count} members; allowed with SINGLE is only this node")]
    SingleWithPeers {
        /// Members in the list.
        count: usize,
    },
    /// Drop one of the two.
    #[error(
        "JOIN and {other} are both set; allowed is JOIN for a node that joins a cluster that exists, \
         or {other} for another one"
    )]
    JoinWith {
        /// The setting that contradicts it.
        other: &'static str,
    },
    /// A few members are enough.
    #[error("JOIN has {count} addresses; allowed are at most {PEERS_MAX}")]
    TooManyToJoin {
        /// How many were given.
        count: usize,
    },
    /// Name other nodes.
    #[error("JOIN has {addr}, which is RAFT_ADDR of this node; allowed are addresses of members")]
    JoinsItself {
        /// The address.
        addr: String,
    },
    /// Set an address that other machines can dial.
    #[error(
        "{setting} is the loopback address {addr}, but JOIN has {member}; allowed beside remote \
         members is an address that other machines can dial"
    )]
    LoopbackJoins {
        /// The setting that holds the loopback address.
        setting: &'static str,
        /// The loopback address.
        addr: String,
        /// A member on another machine.
        member: String,
    },
    /// Set an address that other machines can dial.
    #[error(
        "{setting} is the loopback address {addr}, but PEERS has node {peer} at {peer_addr}; \
         allowed beside remote peers is an address that other machines can dial"
    )]
    Loopback {
        /// The setting that holds the loopback address.
        setting: &'static str,
        /// The loopback address.
        addr: String,
        /// A member on another machine.
        peer: NodeId,
        /// Its address.
        peer_addr: String,
    },
    /// Name the port, or let the system choose `HTTP_PORT` as well.
    #[error(
        "ADVERTISE_ADDR is {addr:?} and HTTP_PORT is {http_port}; allowed is port 0 only when \
         HTTP_PORT is 0 too"
    )]
    AdvertisePort {
        /// The advertised address.
        addr: String,
        /// The client port.
        http_port: u16,
    },
    /// Move one of the two listeners.
    #[error("HTTP_PORT is {port} and RAFT_BIND is {raft_bind}; allowed are two different ports")]
    PortClash {
        /// The client port.
        port: u16,
        /// Where the peer listener binds.
        raft_bind: SocketAddr,
    },
    /// Name all three files.
    #[error(
        "{missing} is missing: PEER_TLS needs PEER_CERT_FILE, PEER_KEY_FILE and PEER_CA_FILE; allowed \
         are all three, or none with PEER_TLS off"
    )]
    PeerFile {
        /// The setting that names none.
        missing: &'static str,
    },
    /// Give the nodes certificates, or say that their network is trusted.
    #[error(
        "{setting} is {addr}: nodes would speak to other machines in plain text, and whoever can \
         change that can have timestamps given twice; allowed beyond loopback are PEER_CERT_FILE, \
         PEER_KEY_FILE and PEER_CA_FILE (see epicepoch certs), or PEER_PLAIN=1 on a network where \
         everybody is trusted"
    )]
    PlainPeers {
        /// The setting that reaches beyond the machine.
        setting: &'static str,
        /// Its value.
        addr: String,
    },
    /// Keep operations on this machine, or say that they may travel in plain text.
    #[error(
        "OPS_ADDR is {ops_addr}, where metrics and /admin would travel in plain text; allowed is a \
         loopback address, or CLIENT_TLS, or OPS_PLAIN_FROM with the networks that may ask so"
    )]
    PlainOperations {
        /// Where operations would be answered.
        ops_addr: SocketAddr,
    },
    /// Move one of the two listeners.
    #[error(
        "OPS_ADDR is {ops_addr} and {setting} listens at {other}; allowed are two different ports"
    )]
    OperationsClash {
        /// Where operations would be answered.
        ops_addr: SocketAddr,
        /// The setting of the other listener.
        setting: &'static str,
        /// Where the other one listens.
        other: SocketAddr,
    },
    /// Make heartbeats more frequent, or the election timeout longer.
    #[error(
        "HEARTBEAT_MS is {heartbeat_ms} with ELECTION_TIMEOUT_MS {election_ms}; allowed is at \
         most a third of it, {max_ms} ms"
    )]
    HeartbeatTooSlow {
        /// Time between heartbeats.
        heartbeat_ms: u64,
        /// Election timeout.
        election_ms: u64,
        /// Greatest value allowed.
        max_ms: u64,
    },
    /// Reserve further ahead, or make the election timeout shorter.
    #[error(
        "RESERVATION_MS is {reservation_ms} with ELECTION_TIMEOUT_MS {election_ms}; allowed is \
         at least four times that, {min_ms} ms, so that two election timeouts remain at half"
    )]
    ReservationTooShort {
        /// Reservation window.
        reservation_ms: u64,
        /// Election timeout.
        election_ms: u64,
        /// Least value allowed.
        min_ms: u64,
    },
    /// Name a processor for each worker, or for none.
    #[error(
        "WORKER_CPUS has {cpus} processors and WORKERS is {workers}; allowed is one for each \
         worker, or no WORKER_CPUS"
    )]
    WorkerCpus {
        /// Processors in the list.
        cpus: usize,
        /// Workers.
        workers: usize,
    },
    /// Give each worker a processor of its own.
    #[error("WORKER_CPUS has processor {cpu} twice; allowed is each processor once")]
    DuplicateCpu {
        /// The processor given twice.
        cpu: usize,
    },
    /// Use a plain name.
    #[error(
        "CLUSTER is {value:?}; allowed are 1 to {CLUSTER_NAME_LEN_MAX} letters, digits, '.', '_' \
         and '-'"
    )]
    ClusterName {
        /// The name given.
        value: String,
    },
    /// Say where this node is, too.
    #[error(
        "LEADER_ZONES is set and ZONE is not; allowed is LEADER_ZONES on nodes that say their own \
         zone, for leadership goes from one zone to another"
    )]
    LeaderZonesWithoutZone,
    /// Let no client in without TLS, or ask for no certificates.
    #[error(
        "CLIENT_CA_FILE is set and CLIENT_TLS is {mode}; allowed with it is on: a client on a plain \
         connection shows no certificate"
    )]
    ClientCaWithoutTls {
        /// What the client port takes.
        mode: &'static str,
    },
    /// Name a directory.
    #[error("DATA_DIR is empty; allowed is the path of a directory")]
    DataDir,
}

impl ConfigError {
    /// The settings at fault, so that the caller can say where each was given.
    #[must_use]
    pub fn settings(&self) -> Vec<&'static str> {
        match self {
            Self::OutOfRange { bounds, .. } => vec![bounds.setting],
            Self::Address { setting, .. } | Self::Wildcard { setting, .. } => vec![setting],
            Self::NoPeers
            | Self::TooManyPeers { .. }
            | Self::PeerZero
            | Self::DuplicateAddress { .. } => vec!["PEERS"],
            Self::PeersWithoutThisNode { .. } => vec!["PEERS", "NODE_ID"],
            Self::PeersDisagree { .. } => vec!["PEERS", "RAFT_ADDR"],
            Self::SingleWithPeers { .. } => vec!["SINGLE", "PEERS"],
            Self::JoinWith { other } => vec!["JOIN", other],
            Self::TooManyToJoin { .. } => vec!["JOIN"],
            Self::JoinsItself { .. } => vec!["JOIN", "RAFT_ADDR"],
            Self::LoopbackJoins { setting, .. } => vec![setting, "JOIN"],
            Self::Loopback { setting, .. } => vec![setting, "PEERS"],
            Self::AdvertisePort { .. } => vec!["ADVERTISE_ADDR", "HTTP_PORT"],
            Self::PortClash { .. } => vec!["HTTP_PORT", "RAFT_BIND"],
            Self::PeerFile { missing } => vec![missing],
            Self::PlainPeers { setting, .. } => vec![setting, "PEER_PLAIN"],
            Self::PlainOperations { .. } => vec!["OPS_ADDR", "OPS_PLAIN_FROM"],
            Self::OperationsClash { setting, .. } => vec!["OPS_ADDR", setting],
            Self::HeartbeatTooSlow { .. } => vec!["HEARTBEAT_MS", "ELECTION_TIMEOUT_MS"],
            Self::ReservationTooShort { .. } => vec!["RESERVATION_MS", "ELECTION_TIMEOUT_MS"],
            Self::WorkerCpus { .. } => vec!["WORKER_CPUS", "WORKERS"],
            Self::DuplicateCpu { .. } => vec!["WORKER_CPUS"],
            Self::ClusterName { .. } => vec!["CLUSTER"],
            Self::LeaderZonesWithoutZone => vec!["LEADER_ZONES", "ZONE"],
            Self::ClientCaWithoutTls { .. } => vec!["CLIENT_CA_FILE", "CLIENT_TLS"],
            Self::DataDir => vec!["DATA_DIR"],
        }
    }
}
