//! Why a configuration is refused. Each message names the setting, its value and the allowed
//! values.

use std::net::SocketAddr;

use epicepoch_wire::NodeId;
use thiserror::Error;

use crate::config::{CLUSTER_NAME_LEN_MAX, PEERS_MAX};

/// Why a configuration is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A value is out of range. Choose one within the range.
    #[error("{setting} is {value}; {allowed}")]
    OutOfRange {
        /// The name of the setting.
        setting: &'static str,
        /// The value given, in the unit of the setting.
        value: u64,
        /// The values allowed, in words.
        allowed: String,
    },
    /// The value is not an address. Write it as `host:port`.
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
    /// Other machines cannot dial the address. Name one that they can dial.
    #[error(
        "{setting} is {value:?}; allowed is an address that other machines can dial, not the \
         wildcard (to listen on all interfaces set {bind})"
    )]
    Wildcard {
        /// The setting that holds the address.
        setting: &'static str,
        /// The address given.
        value: String,
        /// The setting that chooses where to listen.
        bind: &'static str,
    },
    /// The peer list is missing. Set it, or set `SINGLE` or `JOIN`.
    #[error(
        "PEERS is required; allowed are the Raft addresses of all first members, this node \
         included, such as 1=a:60001,2=b:60001,3=c:60001, or SINGLE (--single) for a cluster of one, \
         or JOIN (--join) to join a cluster that exists"
    )]
    NoPeers,
    /// `PEERS` has too many voters. Use fewer.
    #[error("PEERS has {count} members; allowed are at most {PEERS_MAX}")]
    TooManyPeers {
        /// How many members the list has.
        count: usize,
    },
    /// A member in `PEERS` has the id 0. Number the members from 1.
    #[error("PEERS has the node id 0; allowed are node ids from 1")]
    PeerZero,
    /// `PEERS` lacks this node. Add it, and use the same list on every node.
    #[error(
        "PEERS has the node ids {known}, but NODE_ID is {node_id}; allowed is a list that \
         includes this node"
    )]
    PeersWithoutThisNode {
        /// The id of this node.
        node_id: NodeId,
        /// The ids in the list.
        known: String,
    },
    /// `PEERS` and `RAFT_ADDR` have different addresses for this node. Make them the same.
    #[error(
        "PEERS has {in_peers} for node {node_id}, but RAFT_ADDR is {raft_addr}; allowed is the \
         same address in both"
    )]
    PeersDisagree {
        /// The id of this node.
        node_id: NodeId,
        /// This node's address in the list.
        in_peers: String,
        /// This node's `RAFT_ADDR`.
        raft_addr: String,
    },
    /// Two members in `PEERS` have the same address. Give each member its own.
    #[error("PEERS has {addr} for node {first} and for node {second}; allowed is one node each")]
    DuplicateAddress {
        /// The address given twice.
        addr: String,
        /// The lower node id.
        first: NodeId,
        /// The higher node id.
        second: NodeId,
    },
    /// `SINGLE` and a list with other members contradict each other. Remove one of the two.
    #[error("SINGLE is on and PEERS has {count} members; allowed with SINGLE is only this node")]
    SingleWithPeers {
        /// How many members the list has.
        count: usize,
    },
    /// `JOIN` and another setting contradict each other. Remove one of the two.
    #[error(
        "JOIN and {other} are both set; allowed is JOIN for a node that joins a cluster that exists, \
         or {other} for another one"
    )]
    JoinWith {
        /// The setting that contradicts `JOIN`.
        other: &'static str,
    },
    /// `JOIN` has too many addresses. Name fewer, because a few members are enough.
    #[error("JOIN has {count} addresses; allowed are at most {PEERS_MAX}")]
    TooManyToJoin {
        /// How many addresses `JOIN` has.
        count: usize,
    },
    /// `JOIN` names this node. Name other nodes.
    #[error("JOIN has {addr}, which is RAFT_ADDR of this node; allowed are addresses of members")]
    JoinsItself {
        /// The address that `JOIN` and `RAFT_ADDR` share.
        addr: String,
    },
    /// This node would join remote members, but its own address is loopback. Set one that other
    /// machines can dial.
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
    /// This node has remote peers, but its own address is loopback. Set one that other machines can
    /// dial.
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
        /// The address of that member.
        peer_addr: String,
    },
    /// `ADVERTISE_ADDR` has port 0, but `HTTP_PORT` is not 0. Name the port, or set `HTTP_PORT` to
    /// 0, too.
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
    /// The client port and the peer port are the same. Change one of them.
    #[error("HTTP_PORT is {port} and RAFT_BIND is {raft_bind}; allowed are two different ports")]
    PortClash {
        /// The client port.
        port: u16,
        /// The address of the peer listener.
        raft_bind: SocketAddr,
    },
    /// TLS between nodes needs `PEER_CERT_FILE`, `PEER_KEY_FILE` and `PEER_CA_FILE`. Set all three.
    #[error(
        "{missing} is missing: PEER_TLS needs PEER_CERT_FILE, PEER_KEY_FILE and PEER_CA_FILE; allowed \
         are all three, or none with PEER_TLS off"
    )]
    PeerFile {
        /// The setting that is missing.
        missing: &'static str,
    },
    /// Nodes would use plain text over a network. Give them certificates, or set `PEER_PLAIN` if
    /// the network is trusted.
    #[error(
        "{setting} is {addr}: nodes would speak to other machines in plain text, and an attacker who \
         changes it can have timestamps given twice; allowed beyond loopback are PEER_CERT_FILE, \
         PEER_KEY_FILE and PEER_CA_FILE (see epicepoch certs), or PEER_PLAIN=1 on a network where \
         every machine is trusted"
    )]
    PlainPeers {
        /// The setting with an address outside this machine.
        setting: &'static str,
        /// The address in that setting.
        addr: String,
    },
    /// Metrics and `/admin` would travel in plain text over a network. Keep them on this machine,
    /// or allow it with `OPS_PLAIN_FROM`.
    #[error(
        "OPS_ADDR is {ops_addr}, where metrics and /admin would travel in plain text; allowed is a \
         loopback address, or CLIENT_TLS, or OPS_PLAIN_FROM with the networks that may ask so"
    )]
    PlainOperations {
        /// The address of `OPS_ADDR`.
        ops_addr: SocketAddr,
    },
    /// Operations and another listener use the same port. Change one of them.
    #[error(
        "OPS_ADDR is {ops_addr} and {setting} listens at {other}; allowed are two different ports"
    )]
    OperationsClash {
        /// The address of `OPS_ADDR`.
        ops_addr: SocketAddr,
        /// The setting of the other listener.
        setting: &'static str,
        /// The address of the other listener.
        other: SocketAddr,
    },
    /// Heartbeats are too rare for the election timeout. Make them more frequent, or the election
    /// timeout longer.
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
    /// The reservation is too short for the election timeout. Make it longer, or the election
    /// timeout shorter.
    #[error(
        "RESERVATION_MS is {reservation_ms} with ELECTION_TIMEOUT_MS {election_ms}; allowed is \
         at least four times that, {min_ms} ms, so that two election timeouts remain at half"
    )]
    ReservationTooShort {
        /// Reservation window.
        reservation_ms: u64,
        /// Election timeout.
        election_ms: u64,
        /// The lowest allowed value.
        min_ms: u64,
    },
    /// The lease is too short, or longer than an election timeout. Change it, or set it to 0.
    #[error(
        "LEASE_MS is {lease_ms} with ELECTION_TIMEOUT_MS {election_ms}; allowed is 0, or {min_ms} ms \
         to ELECTION_TIMEOUT_MS"
    )]
    LeaseLength {
        /// Length of the lease.
        lease_ms: u64,
        /// Election timeout.
        election_ms: u64,
        /// The lowest allowed value that is not 0.
        min_ms: u64,
    },
    /// `FORWARD` beside a setting that asks clients for something, while nodes have no certificates.
    /// Give the nodes certificates, or turn `FORWARD` off.
    #[error(
        "FORWARD is on with {setting}, and this node dials others without TLS; allowed is \
         FORWARD=off, or PEER_CERT_FILE, PEER_KEY_FILE and PEER_CA_FILE, with PEER_TLS=on or dial: \
         the leader knows a node that sends requests on by its certificate"
    )]
    ForwardSecured {
        /// The other setting.
        setting: &'static str,
    },
    /// `WORKER_CPUS` does not have one processor for each worker. Name one for each, or none.
    #[error(
        "WORKER_CPUS has {cpus} processors and WORKERS is {workers}; allowed is one for each \
         worker, or no WORKER_CPUS"
    )]
    WorkerCpus {
        /// How many processors the list has.
        cpus: usize,
        /// How many workers there are.
        workers: usize,
    },
    /// Two workers have the same processor in `WORKER_CPUS`. Give each worker its own.
    #[error("WORKER_CPUS has processor {cpu} twice; allowed is each processor once")]
    DuplicateCpu {
        /// The processor given twice.
        cpu: usize,
    },
    /// The cluster name has characters that are not allowed, or a bad length. Use a plain name.
    #[error(
        "CLUSTER is {value:?}; allowed are 1 to {CLUSTER_NAME_LEN_MAX} letters, digits, '.', '_' \
         and '-'"
    )]
    ClusterName {
        /// The name given.
        value: String,
    },
    /// Zones for leaders are set, but not the zone of this node. Set `ZONE`, too.
    #[error(
        "LEADER_ZONES is set and ZONE is not; allowed is LEADER_ZONES on nodes that have a ZONE: \
         leadership goes from one zone to another"
    )]
    LeaderZonesWithoutZone,
    /// Clients in plain text could avoid showing a certificate. Require TLS, or ask for no
    /// certificates.
    #[error(
        "CLIENT_CA_FILE is set and CLIENT_TLS is {mode}; allowed with it is on: a client in plain text \
         shows no certificate"
    )]
    ClientCaWithoutTls {
        /// The value of `CLIENT_TLS`.
        mode: &'static str,
    },
    /// `DATA_DIR` is an empty text. Name a directory.
    #[error("DATA_DIR is empty; allowed is the path of a directory")]
    DataDir,
}

impl ConfigError {
    /// Returns the settings that cause the error, so that the caller can name the source of each.
    #[must_use]
    pub fn settings(&self) -> Vec<&'static str> {
        match self {
            Self::OutOfRange { setting, .. }
            | Self::Address { setting, .. }
            | Self::Wildcard { setting, .. } => vec![setting],
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
            Self::LeaseLength { .. } => vec!["LEASE_MS", "ELECTION_TIMEOUT_MS"],
            Self::ForwardSecured { setting } => vec!["FORWARD", setting],
            Self::WorkerCpus { .. } => vec!["WORKER_CPUS", "WORKERS"],
            Self::DuplicateCpu { .. } => vec!["WORKER_CPUS"],
            Self::ClusterName { .. } => vec!["CLUSTER"],
            Self::LeaderZonesWithoutZone => vec!["LEADER_ZONES", "ZONE"],
            Self::ClientCaWithoutTls { .. } => vec!["CLIENT_CA_FILE", "CLIENT_TLS"],
            Self::DataDir => vec!["DATA_DIR"],
        }
    }
}
