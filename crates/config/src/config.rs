//! The configuration of a node, with typed fields. This module parses no text and reads no
//! environment, flag or file; [`crate::sources`] does.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use epicepoch_core::placement::Placement;
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::{Epoch, Mode, NodeId, TimestampFormat};

use crate::addresses::host_and_port;
use crate::authz::AuthorizationConfig;
use crate::intervals::Intervals;
use crate::leases::Leases;
use crate::limits::Limits;
use crate::links::Links;
use crate::logging::Logging;
use crate::tls::Tls;
use crate::values::millis;

/// All settings that a node needs to start. [`Config::new`] fills in the defaults. A node does not
/// start if [`Config::check`] refuses its configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch that operators know")]
pub struct Config {
    /// Names of the settings that were given, as environment variables. Default none. Other fields
    /// do not show whether a default was given by name, and the log warns only of a given value that
    /// the cluster's settings override.
    pub given: BTreeSet<&'static str>,
    /// Raft node id (`NODE_ID`): not 0, unique in the cluster, never used again. No default,
    /// because a node that guesses its id could vote twice.
    pub node_id: NodeId,
    /// Raft addresses of the first members (`PEERS`): `host:port` by node id, including this node,
    /// 1 to [`PEERS_MAX`] of them. Once data exists, the replicated membership counts instead. No
    /// default, because a node that guesses its peers could found a second cluster.
    pub peers: BTreeMap<NodeId, String>,
    /// Run a cluster of one node (`SINGLE`). Default off: such a cluster stops with its only node,
    /// so the operator must ask for it.
    pub single: bool,
    /// An empty data directory may found a new cluster (`BOOTSTRAP`). Default off, so that wiped
    /// disks never form a second cluster. Once data exists, this is ignored, with a log line.
    pub bootstrap: bool,
    /// Raft addresses of members of a running cluster (`JOIN`), at most [`PEERS_MAX`]. A node with
    /// an empty data directory asks them for its first record instead of founding a cluster. Once
    /// data exists, this is ignored. Replaces `peers`. Default none.
    pub join: Vec<String>,
    /// A backup (`RESTORE`) from which an empty data directory begins a new history of the cluster.
    /// It needs `bootstrap`, and the same file on all first members. Once data exists, this is
    /// ignored. Default none.
    pub restore: Option<PathBuf>,
    /// A new cluster starts above this epoch (`RESTORE_FLOOR`). Set it to the greatest epoch that
    /// another oracle gave, or that this cluster gave after the backup. The setting only raises the
    /// floor. Once data exists, it is ignored. Default none.
    pub restore_floor: Option<Epoch>,
    /// The longest lease that the cluster before can have had (`RESTORE_LEASE_MS`). With `restore` or
    /// `restore_floor`, the founder waits for 5/4 of it before the new history begins. Default the
    /// longest allowed `LEASE_MS`, because a backup does not know later settings. Zero if the cluster
    /// before never had leases, or is another program.
    pub restore_lease: Duration,
    /// `host:port` at which other nodes reach this node (`RAFT_ADDR`). No default, because only the
    /// operator knows which name the peers use for this machine.
    pub raft_addr: String,
    /// Address of the peer listener (`RAFT_BIND`). Default: all interfaces at the port of
    /// `RAFT_ADDR`, see [`default_raft_bind`](crate::default_raft_bind). Behind address translation
    /// the two addresses differ. [`Config::peer_bind`] is the address that the listener really
    /// binds.
    pub raft_bind: SocketAddr,
    /// Interface of the client port (`HTTP_BIND`). Default all interfaces, of the same address
    /// family as `RAFT_ADDR`, because clients reach the node at that host, too.
    pub http_bind: IpAddr,
    /// Client port (`HTTP_PORT`): TCP, and UDP for HTTP/3. Default 8080. With 0 the system chooses
    /// a port, for tests.
    pub http_port: u16,
    /// `host:port` that this node sends to clients and peers as its client address
    /// (`ADVERTISE_ADDR`). Default: the host of `RAFT_ADDR` and `HTTP_PORT`. Port 0 means the port
    /// that the system chose; read it with [`Config::advertise_addr_at`].
    pub advertise_addr: String,
    /// Settings of the connections between nodes.
    pub links: Links,
    /// Which callers have which rights, and on which port.
    pub authz: AuthorizationConfig,
    /// Directory of the Raft log and the ceiling (`DATA_DIR`). Default `_raft/node-<NODE_ID>`.
    pub data_dir: PathBuf,
    /// Cluster name (`CLUSTER`): nodes with another name are refused. Default `epicepoch`. It has 1
    /// to [`CLUSTER_NAME_LEN_MAX`] letters, digits, `.`, `_` or `-`, because it appears in logs and
    /// metrics labels.
    pub cluster_name: String,
    /// This node's zone (`ZONE`), and up to 9 zones preferred for leaders (`LEADER_ZONES`), the
    /// best first. Default: none of either.
    pub placement: Placement,
    /// How often the epoch advances and the index restarts at 0 (`EPOCH_INTERVAL_MS`). Default 100
    /// ms: close enough to wall time for range queries, and rare enough to cost nothing.
    pub epoch_interval: Duration,
    /// How many reservations in a row may miss their deadline before this node exits with an error
    /// (`EPOCH_DEADLINE_LIMIT`). They count while the node leads and reaches a quorum. Default 100:
    /// tens of seconds, longer than any stall that ends by itself.
    pub epoch_deadline_limit: u32,
    /// Newest format of the replicated state that this node reads (`FORMAT_MAX`). The cluster
    /// raises its format only to one that all members read. Default: the newest format of this
    /// version, so that an upgrade is complete when the last node is upgraded.
    pub format_max: u32,
    /// How many requests may wait for the next round (`TIMESTAMP_REQUEST_BUFFER`). More are refused
    /// with 503 at once. Default 10000: one round serves them all, so a longer queue means a
    /// failure, not load.
    pub request_buffer: usize,
    /// How far ahead of the clock a leader reserves epochs (`RESERVATION_MS`). At least
    /// [`RESERVATION_ELECTIONS_MIN`] election timeouts. A leader asks for the next reservation
    /// while three fifths of the present one remain, and has it before half is used. Then two
    /// election timeouts must remain, because a transfer of leadership drops proposals for one
    /// election timeout. Default 1000 ms, or five election timeouts if that is more.
    pub reservation: Duration,
    /// How far a clock may be from the voters' median and still be trusted (`CLOCK_OFFSET_MAX_MS`).
    /// Default 500 ms: far above the usual error with NTP, and far below the error of a wrong
    /// clock.
    pub clock_offset_max: Duration,
    /// Settings of leader leases.
    pub leases: Leases,
    /// Settings of interval mode.
    pub intervals: Intervals,
    /// At most this many timestamps in one answer (`MAX_N`). Default 65536, which is 1 MiB.
    /// `format=range` has its own, larger maximum.
    pub max_n: u64,
    /// Which timestamps a new cluster gives (`TIMESTAMP_FORMAT`). Default wide: only a cluster whose
    /// users need 64 bits pays the price of compact timestamps, and it can change later, but not back.
    pub timestamp_format: TimestampFormat,
    /// Shortest silence after which a follower campaigns (`ELECTION_TIMEOUT_MS`). The real timeout
    /// is random, from one to two times this. Default 200 ms: longer than the worst stall of a LAN,
    /// and short enough for the outages that `docs/operations/outages.md` lists.
    pub election_timeout: Duration,
    /// Time between a leader's heartbeats (`HEARTBEAT_MS`), at most a third of the election
    /// timeout. So a leader is not deposed because one heartbeat was lost. Default a fifth of the
    /// election timeout: 40 ms.
    pub heartbeat: Duration,
    /// How long a request may wait for a round before it is refused with 503
    /// (`REQUEST_TIMEOUT_MS`). Default 1000 ms: longer than an election, shorter than the timeout
    /// of most callers.
    pub request_timeout: Duration,
    /// At most this many client connections at once (`CONNECTIONS_MAX`); more are closed. Default
    /// 20000: a few hundred MB of memory at worst.
    pub connections_max: usize,
    /// Limits of one client or one address.
    pub limits: Limits,
    /// Number of data-plane threads (`WORKERS`). Default half of the cores, 1 to [`WORKERS_MAX`],
    /// because the kernel's network stack and the consensus plane need the other half.
    pub workers: usize,
    /// Processors to which the workers are pinned (`WORKER_CPUS`): one different processor for each
    /// worker, in the order of the workers, or none. Default none, because the kernel knows what
    /// else runs on the machine.
    pub worker_cpus: Vec<usize>,
    /// A node that does not lead sends requests for timestamps on to the leader (`FORWARD`). Default
    /// off, because clients that follow to the leader wait for one round trip less.
    pub forward: bool,
    /// Workers spin instead of sleeping (`BUSY_POLL`). Default off, because each worker then keeps
    /// a processor busy, even when idle.
    pub busy_poll: bool,
    /// How long SIGTERM waits for open requests and for the handover of leadership
    /// (`SHUTDOWN_TIMEOUT_MS`). Default 3000 ms: well below the grace period of common supervisors.
    pub shutdown_timeout: Duration,
    /// Whether the service `epicepoch.v1.Oracle`, health checks and reflection are served over gRPC on
    /// the client port (`GRPC`). Default off, because it is one more protocol that a client can send.
    pub grpc: bool,
    /// Whether clients of PD, the Placement Driver of TiKV, are served on the client port
    /// (`PD_WIRE`). Default off: it is one more protocol that a client can send, and its clients need
    /// a cluster with compact timestamps.
    pub pd_wire: bool,
    /// Certificates for clients, and whether clients must present one.
    pub tls: Tls,
    /// Settings of the log. The binary starts the log; a node does not read this field.
    pub logging: Logging,
}

impl Config {
    /// Returns this node's values of the settings that all nodes share. A new cluster starts with
    /// them. Once the replicated state has these settings, this node's values are ignored.
    #[must_use]
    pub fn shared(&self) -> ClusterSettings {
        ClusterSettings {
            epoch_interval_ms: millis(self.epoch_interval),
            reservation_ms: millis(self.reservation),
            clock_offset_max_ms: millis(self.clock_offset_max),
            max_n: self.max_n,
            leader_zones: self.placement.leaders.clone(),
            lease_ms: millis(self.leases.length),
            guarantee_default: self.leases.guarantee_default,
            timestamp_format: self.timestamp_format,
            // Interval mode begins by an operator's command, never by a node's configuration.
            mode: Mode::Quorum,
        }
    }

    /// Makes this node a cluster of one: it is its only peer.
    #[must_use]
    pub fn into_single(mut self) -> Self {
        self.single = true;
        self.peers = BTreeMap::from([(self.node_id, self.raft_addr.clone())]);
        self
    }

    /// Returns the client address that this node advertises, once the client port is bound to
    /// `http_port`.
    #[must_use]
    pub fn advertise_addr_at(&self, http_port: u16) -> String {
        match host_and_port(&self.advertise_addr) {
            Some((host, 0)) => format!("{host}:{http_port}"),
            Some(_) | None => self.advertise_addr.clone(),
        }
    }
}

/// A cluster has at most this many voters. Each additional voter makes every quorum larger, and 9
/// voters already survive the loss of 4.
pub const PEERS_MAX: usize = 9;
/// A cluster name has at most this many bytes, because it is a label in metrics and part of every
/// peer hello.
pub const CLUSTER_NAME_LEN_MAX: usize = 64;
/// Cluster name when none is given.
pub const CLUSTER_NAME_DEFAULT: &str = "epicepoch";
/// Range of `ELECTION_TIMEOUT_MS`.
pub const ELECTION_TIMEOUT_MS: RangeInclusive<u64> = 50..=10_000;
/// A reservation is at least this many election timeouts long. When half of the reservation is
/// used, two election timeouts must remain.
pub const RESERVATION_ELECTIONS_MIN: u64 = 4;
/// At least this many heartbeats fit in one election timeout.
pub const HEARTBEATS_MIN: u64 = 3;
/// At most this many workers.
pub const WORKERS_MAX: usize = 64;
