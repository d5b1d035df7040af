//! The default configuration of a node, and the defaults that follow from other settings.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use epicepoch_core::placement::Placement;
use epicepoch_core::state::FORMATS;
use epicepoch_wire::{NodeId, TimestampFormat};

use crate::addresses::{host_and_port, host_ip, is_loopback};
use crate::authz::AuthorizationConfig;
use crate::config::{Config, WORKERS_MAX};
use crate::intervals::Intervals;
use crate::leases::Leases;
use crate::limits::Limits;
use crate::links::Links;
use crate::logging::Logging;
use crate::setting::DefaultValue;
use crate::table::settings;
use crate::tls::{ClientTlsMode, Tls};
use crate::values::millis;

impl Config {
    /// Creates the configuration of node `node_id`, which its peers reach at `raft_addr`, with
    /// every default. `peers` is empty: add the members, including this node, or call
    /// [`Config::into_single`].
    #[must_use]
    pub fn new(node_id: NodeId, raft_addr: impl Into<String>) -> Self {
        let raft_addr = raft_addr.into();
        // Zeros and empty values are placeholders. The defaults of the table and of `derive`
        // replace them.
        let mut config = Self {
            given: BTreeSet::new(),
            node_id,
            peers: BTreeMap::new(),
            single: false,
            bootstrap: false,
            join: Vec::new(),
            restore: None,
            restore_floor: None,
            restore_lease: Duration::ZERO,
            raft_bind: default_raft_bind(&raft_addr),
            http_bind: default_http_bind(&raft_addr),
            http_port: 0,
            advertise_addr: String::new(),
            raft_addr,
            links: Links::default(),
            authz: AuthorizationConfig::default(),
            data_dir: PathBuf::from(format!("_raft/node-{node_id}")),
            cluster_name: String::new(),
            placement: Placement::default(),
            epoch_interval: Duration::ZERO,
            epoch_deadline_limit: 0,
            format_max: FORMATS.newest,
            request_buffer: 0,
            reservation: Duration::ZERO,
            clock_offset_max: Duration::ZERO,
            leases: Leases::default(),
            intervals: Intervals::default(),
            max_n: 0,
            timestamp_format: TimestampFormat::Wide,
            election_timeout: Duration::ZERO,
            heartbeat: Duration::ZERO,
            request_timeout: Duration::ZERO,
            connections_max: 0,
            limits: Limits {
                address_connections_max: 0,
                address_request_rate_max: None,
                head_timeout: Duration::ZERO,
                idle_timeout: Duration::ZERO,
            },
            workers: 1,
            worker_cpus: Vec::new(),
            forward: false,
            busy_poll: false,
            shutdown_timeout: Duration::ZERO,
            grpc: false,
            pd_wire: false,
            tls: Tls {
                clients: ClientTlsMode::Off,
                http3: false,
                cert_file: PathBuf::new(),
                key_file: PathBuf::new(),
                client_ca_file: None,
            },
            logging: Logging::default(),
        };
        for setting in settings() {
            if let DefaultValue::Is(text) = setting.default {
                let applied = setting.apply(&mut config, text);
                assert!(applied.is_some(), "the default of {} is not allowed", setting.name);
            }
        }
        config.derive(1, |_| false);
        config
    }

    /// Returns the address that the peer listener binds. A cluster of one has no peers, so it
    /// listens on loopback unless certificates or `PEER_PLAIN` let other nodes join.
    #[must_use]
    pub fn peer_bind(&self) -> SocketAddr {
        let is_default = self.raft_bind == default_raft_bind(&self.raft_addr);
        let is_alone = self.single && self.links.mode().accepts_plain() && !self.links.allows_plain;
        if !(is_alone && is_default) {
            return self.raft_bind;
        }
        let ip = match self.raft_bind.ip() {
            ip if ip.is_loopback() => ip,
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        SocketAddr::new(ip, self.raft_bind.port())
    }

    /// Returns the value of a setting of text whose default follows from other settings; `None` if
    /// it has no value.
    pub(crate) fn derived(&self, name: &str) -> Option<String> {
        match name {
            "RAFT_BIND" => Some(self.raft_bind.to_string()),
            "HTTP_BIND" => Some(self.http_bind.to_string()),
            "ADVERTISE_ADDR" => Some(self.advertise_addr.clone()),
            "DATA_DIR" => Some(self.data_dir.display().to_string()),
            "PEER_TLS" => Some(self.links.mode().name().to_owned()),
            "PRETTY" => Some(if self.logging.pretty { "on" } else { "off" }.to_owned()),
            "LOG_TIME_MS" => Some(if self.logging.time_ms { "on" } else { "off" }.to_owned()),
            _ => None,
        }
    }

    /// Fills in the defaults that follow from other settings, for those settings that the operator
    /// has not given. The machine has `cores` cores.
    pub(crate) fn derive(&mut self, cores: usize, is_given: impl Fn(&str) -> bool) {
        if !is_given("ADVERTISE_ADDR") {
            self.advertise_addr = default_advertise_addr(&self.raft_addr, self.http_port);
        }
        if !is_given("HEARTBEAT_MS") {
            self.heartbeat = default_heartbeat(self.election_timeout);
        }
        if !is_given("RESERVATION_MS") {
            self.reservation = default_reservation(self.election_timeout);
        }
        if !is_given("ADDRESS_CONNECTIONS_MAX") {
            // The default is half of all connections, so that one address cannot take them all.
            self.limits.address_connections_max = self.connections_max.div_ceil(2);
        }
        if !is_given("WORKERS") {
            self.workers = match self.worker_cpus.len() {
                0 => default_workers(cores),
                pinned => pinned,
            };
        }
    }
}

/// Returns all interfaces at the port of `raft_addr`, as IPv6 if that address is IPv6. If
/// `raft_addr` is a loopback address, returns that address, because other machines cannot reach it.
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

/// Returns all interfaces: `::` if `raft_addr` is IPv6, otherwise `0.0.0.0`. `::` also accepts IPv4
/// clients.
fn default_http_bind(raft_addr: &str) -> IpAddr {
    let is_ipv6 = host_and_port(raft_addr).is_some_and(|(host, _)| host.starts_with('['));
    if is_ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// Returns the host of `raft_addr` with the client port; empty if `raft_addr` is not an address.
fn default_advertise_addr(raft_addr: &str, http_port: u16) -> String {
    match host_and_port(raft_addr) {
        Some((host, _)) => format!("{host}:{http_port}"),
        None => String::new(),
    }
}

/// Returns a fifth of the election timeout, at least 1 ms: a follower misses four heartbeats before
/// it campaigns.
#[must_use]
pub fn default_heartbeat(election_timeout: Duration) -> Duration {
    Duration::from_millis((millis(election_timeout) / 5).max(1))
}

/// Returns 1000 ms, or five election timeouts if that is more. The least allowed is four.
#[must_use]
pub fn default_reservation(election_timeout: Duration) -> Duration {
    RESERVATION_DEFAULT_MIN.max(5 * election_timeout)
}

/// Returns half of the cores, at least 1, at most [`WORKERS_MAX`].
fn default_workers(cores: usize) -> usize {
    (cores / 2).clamp(1, WORKERS_MAX)
}

const RESERVATION_DEFAULT_MIN: Duration = Duration::from_secs(1);
