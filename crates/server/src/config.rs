//! The configuration of a node: typed, documented and checked. It never parses text and never
//! reads the environment, a flag or a file: the binary does that once and passes the result down.
//!
//! Every number has its bounds here and nowhere else. Errors name settings by their environment
//! variable, because that is the name under which operators find them in the documentation.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use epicepoch_core::placement::Placement;
use epicepoch_core::state::FORMATS;
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::{Epoch, NodeId};

mod addresses;
mod allowed_from;
mod bounds;
mod error;
mod limits;
mod links;
mod places;
mod rights;
mod timing;
mod tls;

use addresses::{dialable, host_ip};
pub use addresses::{host_and_port, is_loopback};
pub use allowed_from::{AllowedFrom, NETWORKS_MAX};
pub use bounds::{
    Bounds, CLOCK_OFFSET_MAX_MS, CLUSTER_NAME_DEFAULT, CLUSTER_NAME_LEN_MAX, CONNECTIONS_MAX,
    ELECTION_TIMEOUT_MS, EPOCH_DEADLINE_LIMIT, EPOCH_INTERVAL_MS, FORMAT_MAX, HEARTBEAT_MS,
    HEARTBEATS_MIN, HTTP_PORT, HTTP_PORT_DEFAULT, MAX_N, NODE_ID, PEERS_MAX, REQUEST_TIMEOUT_MS,
    RESERVATION_ELECTIONS_MIN, RESERVATION_MS, SHUTDOWN_TIMEOUT_MS, TIMESTAMP_REQUEST_BUFFER,
    WORKER_CPUS, WORKERS,
};
use bounds::{default_of, millis};
pub use error::ConfigError;
pub use limits::{
    ADDRESS_CONNECTIONS_MAX, ADDRESS_REQUEST_RATE_MAX, HEAD_TIMEOUT_MS, IDLE_TIMEOUT_MS, Limits,
    default_address_connections,
};
pub use links::{Links, PeerTlsMode};
pub use places::{LEADER_ZONES_MAX, zones};
pub use rights::RightsConfig;
pub use timing::{Timing, is_too_tight};
pub use tls::{CERT_FILE_DEFAULT, ClientTlsMode, KEY_FILE_DEFAULT, Tls};

/// Everything a node needs to know before it starts.
///
/// [`Config::new`] fills in the defaults; [`Config::check`] holds the fields to their bounds and
/// to each other, and a node refuses to start on a configuration that it refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Raft node id (`NODE_ID`), unique in the cluster and never reused. Not 0. No default: a
    /// guessed identity could vote twice.
    pub node_id: NodeId,
    /// Raft addresses of the first members (`PEERS`), `host:port` by node id, this node
    /// included, 1 to [`PEERS_MAX`] of them. Once data exists the replicated membership rules.
    /// No default: a node that guesses its peers could found a second cluster.
    pub peers: BTreeMap<NodeId, String>,
    /// Whether a cluster of one is meant (`SINGLE`). Default off: losing its only node stops a
    /// cluster of one, so it must be asked for.
    pub single: bool,
    /// Whether an empty data directory may found a new cluster (`BOOTSTRAP`). Default off, so
    /// that wiped disks never form a second cluster. Ignored, with a word, once data exists.
    pub bootstrap: bool,
    /// Raft addresses of members of a cluster that exists (`JOIN`), which an empty data directory
    /// asks for its first record instead of founding a cluster; ignored once data exists. Replaces
    /// `peers`. Default none; at most [`PEERS_MAX`].
    pub join: Vec<String>,
    /// A backup (`RESTORE`) of whose cluster an empty directory begins a new history, together with
    /// `bootstrap` and the same file on all first members; not read once data exists. Default none.
    pub restore: Option<PathBuf>,
    /// An epoch up to which nothing may ever be given (`RESTORE_FLOOR`), for a founding: what another
    /// oracle gave, or more than a backup knows of. It only raises the floor; ignored once data
    /// exists. Default none.
    pub restore_floor: Option<Epoch>,
    /// `host:port` other nodes reach this node at (`RAFT_ADDR`). No default: only the operator
    /// knows by which name peers see this machine.
    pub raft_addr: String,
    /// Where the peer listener binds (`RAFT_BIND`). Default all interfaces at the port of
    /// `RAFT_ADDR`, see [`default_raft_bind`]; differs behind address translation. Where it does bind
    /// is [`Config::peer_bind`].
    pub raft_bind: SocketAddr,
    /// Interface of the client port (`HTTP_BIND`). Default all interfaces, of the family of
    /// `RAFT_ADDR`, whose host is advertised to clients, too: see [`default_http_bind`].
    pub http_bind: IpAddr,
    /// Client port (`HTTP_PORT`), TCP, and UDP for HTTP/3. Default 8080; 0 lets the system
    /// choose one, for tests.
    pub http_port: u16,
    /// `host:port` that this node tells to clients and peers (`ADVERTISE_ADDR`). Default host of
    /// `RAFT_ADDR` and `HTTP_PORT`. Port 0 stands for the port that the system chose: read it
    /// through [`Config::advertise_addr_at`].
    pub advertise_addr: String,
    /// How nodes speak to each other.
    pub links: Links,
    /// Who may do what, and over which port.
    pub rights: RightsConfig,
    /// Where the Raft log and the ceiling live (`DATA_DIR`). Default `_raft/node-<NODE_ID>`.
    pub data_dir: PathBuf,
    /// Cluster name (`CLUSTER`): nodes of another name are refused. Default `epicepoch`; 1 to
    /// [`CLUSTER_NAME_LEN_MAX`] letters, digits, `.`, `_`, `-`, because it appears in logs and
    /// metrics labels.
    pub cluster_name: String,
    /// Where this node is (`ZONE`), and in which zones leaders should be, the best first
    /// (`LEADER_ZONES`), at most [`LEADER_ZONES_MAX`]. Default neither: all places are the same.
    pub placement: Placement,
    /// How often the epoch advances and the index restarts (`EPOCH_INTERVAL_MS`). Default
    /// 100 ms: close enough to wall time for range queries, rare enough to cost nothing.
    pub epoch_interval: Duration,
    /// Consecutive reservations that may miss their deadline, while this node leads and reaches
    /// a quorum, before it exits with an error (`EPOCH_DEADLINE_LIMIT`). Default 100: tens of
    /// seconds, longer than any hiccup that heals by itself.
    pub epoch_deadline_limit: u32,
    /// The newest format of the replicated state that this node reads (`FORMAT_MAX`): while one member
    /// has less than the others' version knows, the format is not raised. Default the newest that this
    /// version knows, so that an upgrade is whole when its last node is.
    pub format_max: u32,
    /// Requests that may wait for the next round (`TIMESTAMP_REQUEST_BUFFER`); beyond it they
    /// are refused with 503 at once. Default 10000: one round serves them all, so a longer queue
    /// is a sign of trouble, not of load.
    pub request_buffer: usize,
    /// How far ahead of the clock a leader reserves epochs (`RESERVATION_MS`). At least
    /// [`RESERVATION_ELECTIONS_MIN`] election timeouts: it is asked for while three fifths remain, so
    /// that it is renewed before half is used, when two of them must remain, since a transfer of
    /// leadership drops proposals for one. Default 1000 ms,
    /// or five election timeouts if that is more: see [`default_reservation`].
    pub reservation: Duration,
    /// How far a clock may be from the median of the voters before it is not believed
    /// (`CLOCK_OFFSET_MAX_MS`). Default 500 ms: far above what NTP leaves, far below what a
    /// wrong clock does.
    pub clock_offset_max: Duration,
    /// Largest `n` of a request that gets its timestamps one after another (`MAX_N`). Default
    /// 65536, which is 1 MiB; `format=range` has its own, larger maximum.
    pub max_n: u64,
    /// Shortest silence after which a follower campaigns (`ELECTION_TIMEOUT_MS`); each draw is
    /// from one to two of these. Default 200 ms: a LAN's worst hiccup stays below it, and the
    /// loss of a leader costs no more than `docs/operations.md` says.
    pub election_timeout: Duration,
    /// Time between heartbeats of a leader (`HEARTBEAT_MS`), at most a third of the election
    /// timeout so that one lost heartbeat deposes nobody. Default a fifth of it: 40 ms, see
    /// [`default_heartbeat`].
    pub heartbeat: Duration,
    /// How long a request may wait for a round before it is refused with 503
    /// (`REQUEST_TIMEOUT_MS`). Default 1000 ms: longer than an election, shorter than the
    /// patience of most callers.
    pub request_timeout: Duration,
    /// Client connections held at once (`CONNECTIONS_MAX`); beyond it new ones are closed.
    /// Default 20000, a few hundred MB of memory at worst.
    pub connections_max: usize,
    /// What one client, or one address, is held to.
    pub limits: Limits,
    /// Data-plane threads (`WORKERS`). Default half of the cores, 1 to 64, because the kernel's
    /// network stack and the consensus plane need the other half: see [`default_workers`].
    pub workers: usize,
    /// The processors that workers run on (`WORKER_CPUS`), the first worker on the first one; as
    /// many as workers, each once, or none. Default none: the kernel places threads better than
    /// who does not know what else runs on the machine.
    pub worker_cpus: Vec<usize>,
    /// Whether workers spin instead of sleeping (`BUSY_POLL`). Default off: it keeps a processor
    /// busy for each worker, also while nobody asks.
    pub busy_poll: bool,
    /// How long SIGTERM waits for open requests and for the handover of leadership
    /// (`SHUTDOWN_TIMEOUT_MS`). Default 3000 ms, well below the grace of common supervisors.
    pub shutdown_timeout: Duration,
    /// Certificates, and who has to show one.
    pub tls: Tls,
}

impl Config {
    /// The settings that all nodes share, as this one was told: they seed a cluster that has none in
    /// its state, and count for nothing where it has.
    #[must_use]
    pub fn shared(&self) -> ClusterSettings {
        ClusterSettings {
            epoch_interval_ms: millis(self.epoch_interval),
            reservation_ms: millis(self.reservation),
            clock_offset_max_ms: millis(self.clock_offset_max),
            max_n: self.max_n,
            leader_zones: self.placement.leaders.clone(),
        }
    }

    /// The configuration of node `node_id`, reached by its peers at `raft_addr`, with every
    /// default. `peers` is empty: add the members, this node included, or call
    /// [`Config::into_single`].
    #[must_use]
    pub fn new(node_id: NodeId, raft_addr: impl Into<String>) -> Self {
        let raft_addr = raft_addr.into();
        let election_timeout = default_of(ELECTION_TIMEOUT_MS);
        Self {
            node_id,
            peers: BTreeMap::new(),
            single: false,
            bootstrap: false,
            join: Vec::new(),
            restore: None,
            restore_floor: None,
            links: Links::default(),
            rights: RightsConfig::default(),
            raft_bind: default_raft_bind(&raft_addr),
            http_bind: default_http_bind(&raft_addr),
            http_port: HTTP_PORT_DEFAULT,
            advertise_addr: default_advertise_addr(&raft_addr, HTTP_PORT_DEFAULT),
            raft_addr,
            data_dir: default_data_dir(node_id),
            cluster_name: CLUSTER_NAME_DEFAULT.to_owned(),
            placement: Placement::default(),
            epoch_interval: default_of(EPOCH_INTERVAL_MS),
            epoch_deadline_limit: EPOCH_DEADLINE_LIMIT.default.unwrap_or(1) as u32,
            format_max: FORMATS.newest,
            request_buffer: TIMESTAMP_REQUEST_BUFFER.default.unwrap_or(1) as usize,
            reservation: default_reservation(election_timeout),
            clock_offset_max: default_of(CLOCK_OFFSET_MAX_MS),
            max_n: MAX_N.default.unwrap_or(1),
            election_timeout,
            heartbeat: default_heartbeat(election_timeout),
            request_timeout: default_of(REQUEST_TIMEOUT_MS),
            connections_max: CONNECTIONS_MAX.default.unwrap_or(1) as usize,
            limits: Limits::default(),
            workers: 1,
            worker_cpus: Vec::new(),
            busy_poll: false,
            shutdown_timeout: default_of(SHUTDOWN_TIMEOUT_MS),
            tls: Tls::default(),
        }
    }

    /// The same node as a cluster of one: it is its only peer.
    #[must_use]
    pub fn into_single(mut self) -> Self {
        self.single = true;
        self.peers = BTreeMap::from([(self.node_id, self.raft_addr.clone())]);
        self
    }

    /// The advertised client address once the client port is bound to `http_port`.
    #[must_use]
    pub fn advertise_addr_at(&self, http_port: u16) -> String {
        match host_and_port(&self.advertise_addr) {
            Some((host, 0)) => format!("{host}:{http_port}"),
            Some(_) | None => self.advertise_addr.clone(),
        }
    }

    /// Holds every field to its bounds, then the fields to each other.
    ///
    /// # Errors
    /// The first violation found, in the order of the documentation.
    pub fn check(&self) -> Result<(), ConfigError> {
        NODE_ID.check(self.node_id.0)?;
        self.check_addresses()?;
        self.check_peers()?;
        self.check_loopback()?;
        self.links.check(self)?;
        self.rights.check(self)?;
        self.check_numbers()?;
        self.check_timing()?;
        places::check(&self.placement)?;
        self.tls.check()?;
        let named =
            !self.cluster_name.is_empty() && self.cluster_name.len() <= CLUSTER_NAME_LEN_MAX;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if !named || !self.cluster_name.chars().all(plain) {
            return Err(ConfigError::ClusterName { value: self.cluster_name.clone() });
        }
        if self.data_dir.as_os_str().is_empty() {
            return Err(ConfigError::DataDir);
        }
        Ok(())
    }

    fn check_addresses(&self) -> Result<(), ConfigError> {
        dialable("RAFT_ADDR", &self.raft_addr, "RAFT_BIND", 1)?;
        let (_, advertised) = dialable("ADVERTISE_ADDR", &self.advertise_addr, "HTTP_BIND", 0)?;
        if advertised == 0 && self.http_port != 0 {
            let addr = self.advertise_addr.clone();
            return Err(ConfigError::AdvertisePort { addr, http_port: self.http_port });
        }
        if self.raft_bind.port() == 0 {
            let value = self.raft_bind.to_string();
            return Err(ConfigError::Address { setting: "RAFT_BIND", value });
        }
        let (raft_ip, http_ip) = (self.raft_bind.ip(), self.http_bind);
        let overlap = raft_ip == http_ip || raft_ip.is_unspecified() || http_ip.is_unspecified();
        if overlap && self.http_port != 0 && self.http_port == self.raft_bind.port() {
            let (port, raft_bind) = (self.http_port, self.raft_bind);
            return Err(ConfigError::PortClash { port, raft_bind });
        }
        Ok(())
    }

    /// Peers on other machines would take a loopback address for their own.
    fn check_loopback(&self) -> Result<(), ConfigError> {
        let mut own = [("RAFT_ADDR", &self.raft_addr), ("ADVERTISE_ADDR", &self.advertise_addr)]
            .into_iter()
            .filter(|(_, addr)| is_loopback(addr));
        let Some((setting, addr)) = own.next() else { return Ok(()) };
        let addr = addr.clone();
        if let Some(member) = self.join.iter().find(|member| !is_loopback(member)) {
            return Err(ConfigError::LoopbackJoins { setting, addr, member: member.clone() });
        }
        let remote =
            self.peers.iter().find(|(id, addr)| **id != self.node_id && !is_loopback(addr));
        match remote {
            Some((peer, peer_addr)) => {
                let (peer, peer_addr) = (*peer, peer_addr.clone());
                Err(ConfigError::Loopback { setting, addr, peer, peer_addr })
            }
            None => Ok(()),
        }
    }

    fn check_join(&self) -> Result<(), ConfigError> {
        let conflicts = [
            ("SINGLE", self.single),
            ("BOOTSTRAP", self.bootstrap),
            ("RESTORE", self.restore.is_some()),
            ("RESTORE_FLOOR", self.restore_floor.is_some()),
            ("PEERS", !self.peers.is_empty()),
        ];
        if let Some((other, _)) = conflicts.into_iter().find(|(_, is_set)| *is_set) {
            return Err(ConfigError::JoinWith { other });
        }
        let count = self.join.len();
        if count > PEERS_MAX {
            return Err(ConfigError::TooManyToJoin { count });
        }
        for addr in &self.join {
            dialable("JOIN", addr, "RAFT_BIND", 1)?;
            if addr.eq_ignore_ascii_case(&self.raft_addr) {
                return Err(ConfigError::JoinsItself { addr: addr.clone() });
            }
        }
        Ok(())
    }

    fn check_peers(&self) -> Result<(), ConfigError> {
        if !self.join.is_empty() {
            return self.check_join();
        }
        let count = self.peers.len();
        if count == 0 {
            return Err(ConfigError::NoPeers);
        }
        if count > PEERS_MAX {
            return Err(ConfigError::TooManyPeers { count });
        }
        if self.single && count > 1 {
            return Err(ConfigError::SingleWithPeers { count });
        }
        let mut seen = BTreeMap::new();
        for (id, addr) in &self.peers {
            if id.0 == 0 {
                return Err(ConfigError::PeerZero);
            }
            dialable("PEERS", addr, "RAFT_BIND", 1)?;
            if let Some(first) = seen.insert(addr.to_ascii_lowercase(), *id) {
                let addr = addr.clone();
                return Err(ConfigError::DuplicateAddress { addr, first, second: *id });
            }
        }
        let node_id = self.node_id;
        match self.peers.get(&node_id) {
            None => {
                let known: Vec<_> = self.peers.keys().map(ToString::to_string).collect();
                Err(ConfigError::PeersWithoutThisNode { node_id, known: known.join(", ") })
            }
            Some(in_peers) if !in_peers.eq_ignore_ascii_case(&self.raft_addr) => {
                let (in_peers, raft_addr) = (in_peers.clone(), self.raft_addr.clone());
                Err(ConfigError::PeersDisagree { node_id, in_peers, raft_addr })
            }
            Some(_) => Ok(()),
        }
    }

    fn check_numbers(&self) -> Result<(), ConfigError> {
        EPOCH_INTERVAL_MS.check_duration(self.epoch_interval)?;
        EPOCH_DEADLINE_LIMIT.check(u64::from(self.epoch_deadline_limit))?;
        FORMAT_MAX.check(u64::from(self.format_max))?;
        TIMESTAMP_REQUEST_BUFFER.check(self.request_buffer as u64)?;
        RESERVATION_MS.check_duration(self.reservation)?;
        CLOCK_OFFSET_MAX_MS.check_duration(self.clock_offset_max)?;
        MAX_N.check(self.max_n)?;
        ELECTION_TIMEOUT_MS.check_duration(self.election_timeout)?;
        HEARTBEAT_MS.check_duration(self.heartbeat)?;
        REQUEST_TIMEOUT_MS.check_duration(self.request_timeout)?;
        CONNECTIONS_MAX.check(self.connections_max as u64)?;
        self.limits.check()?;
        WORKERS.check(self.workers as u64)?;
        self.check_worker_cpus()?;
        SHUTDOWN_TIMEOUT_MS.check_duration(self.shutdown_timeout)
    }

    fn check_worker_cpus(&self) -> Result<(), ConfigError> {
        let cpus = &self.worker_cpus;
        for (position, cpu) in cpus.iter().enumerate() {
            WORKER_CPUS.check(*cpu as u64)?;
            if cpus[..position].contains(cpu) {
                return Err(ConfigError::DuplicateCpu { cpu: *cpu });
            }
        }
        if !cpus.is_empty() && cpus.len() != self.workers {
            let (cpus, workers) = (cpus.len(), self.workers);
            return Err(ConfigError::WorkerCpus { cpus, workers });
        }
        Ok(())
    }

    fn check_timing(&self) -> Result<(), ConfigError> {
        let election_ms = millis(self.election_timeout);
        let (heartbeat_ms, max_ms) = (millis(self.heartbeat), election_ms / HEARTBEATS_MIN);
        if heartbeat_ms > max_ms {
            return Err(ConfigError::HeartbeatTooSlow { heartbeat_ms, election_ms, max_ms });
        }
        let reservation_ms = millis(self.reservation);
        let min_ms = election_ms * RESERVATION_ELECTIONS_MIN;
        if reservation_ms < min_ms {
            return Err(ConfigError::ReservationTooShort { reservation_ms, election_ms, min_ms });
        }
        Ok(())
    }
}

/// All interfaces, at the port of `raft_addr`, IPv6 only if that address is; a loopback address
/// itself, since nobody reaches it from elsewhere.
#[must_use]
pub fn default_raft_bind(raft_addr: &str) -> SocketAddr {
    let (host, port) = host_and_port(raft_addr).unwrap_or(("", 0));
    let ip = if is_loopback(raft_addr) {
        host_ip(host).unwrap_or(Ipv4Addr::LOCALHOST.into())
    } else {
        default_http_bind(raft_addr)
    };
    SocketAddr::new(ip, port)
}

/// All interfaces: `::`, which takes IPv4 clients as well, if `raft_addr` is IPv6, else `0.0.0.0`.
#[must_use]
pub fn default_http_bind(raft_addr: &str) -> IpAddr {
    let is_ipv6 = host_and_port(raft_addr).is_some_and(|(host, _)| host.starts_with('['));
    if is_ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// The host of `raft_addr` with the client port; empty if `raft_addr` is no address.
#[must_use]
pub fn default_advertise_addr(raft_addr: &str, http_port: u16) -> String {
    match host_and_port(raft_addr) {
        Some((host, _)) => format!("{host}:{http_port}"),
        None => String::new(),
    }
}

/// `_raft/node-<NODE_ID>`, below the working directory.
#[must_use]
pub fn default_data_dir(node_id: NodeId) -> PathBuf {
    PathBuf::from(format!("_raft/node-{node_id}"))
}

/// A fifth of the election timeout, at least 1 ms: a follower misses four before it campaigns.
#[must_use]
pub fn default_heartbeat(election_timeout: Duration) -> Duration {
    Duration::from_millis((millis(election_timeout) / 5).max(1))
}

/// 1000 ms, or five election timeouts if that is more: one above the least allowed.
#[must_use]
pub fn default_reservation(election_timeout: Duration) -> Duration {
    default_of(RESERVATION_MS).max(5 * election_timeout)
}

/// Half of the cores, at least 1, at most what [`WORKERS`] allows.
#[must_use]
pub fn default_workers(cores: usize) -> usize {
    (cores / 2).clamp(WORKERS.min as usize, WORKERS.max as usize)
}

#[cfg(test)]
mod tests;
