//! Checks the settings of one node: each number must be within its range, and the settings must
//! agree with each other.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use epicepoch_wire::settings::LEASE_MS;

use crate::addresses::{host_and_port, host_ip, is_loopback};
use crate::allowed_from::AllowedFrom;
use crate::config::{
    CLUSTER_NAME_LEN_MAX, Config, HEARTBEATS_MIN, PEERS_MAX, RESERVATION_ELECTIONS_MIN,
};
use crate::defaults::default_raft_bind;
use crate::error::ConfigError;
use crate::links::PeerTlsMode;
use crate::setting::{Kind, Setting};
use crate::table::settings;
use crate::tls::ClientTlsMode;
use crate::values::{CPU_MAX, millis};

impl Config {
    /// Checks that every number is within its range, then that the settings agree with each other.
    ///
    /// # Errors
    /// Returns the first violation found.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.violations().into_iter().next().map_or(Ok(()), Err)
    }

    /// Checks everything that [`Config::check`] checks, and returns all violations. Of settings that
    /// belong together, such as those of members, only the first violation is found.
    pub(crate) fn violations(&self) -> Vec<ConfigError> {
        let others = [
            raft_addr,
            addresses,
            members,
            loopback,
            peer_links,
            operations,
            worker_cpus,
            heartbeat,
            reservation,
            lease,
            forward,
            leader_zones,
            client_authorities,
            names,
        ];
        let others = others.into_iter().filter_map(|check| check(self).err());
        numbers(self).into_iter().chain(others).collect()
    }
}

fn numbers(config: &Config) -> Vec<ConfigError> {
    let violation = |setting: &Setting| {
        let Kind::Number { range, get, .. } = &setting.kind else { return None };
        let (setting, allowed, value) = (setting.name, setting.allowed(), get(config));
        let is_allowed = range.contains(&value);
        (!is_allowed).then_some(ConfigError::OutOfRange { setting, value, allowed })
    };
    settings().filter_map(violation).collect()
}

fn leader_zones(config: &Config) -> Result<(), ConfigError> {
    if !config.placement.leaders.is_empty() && config.placement.zone.is_none() {
        return Err(ConfigError::LeaderZonesWithoutZone);
    }
    Ok(())
}

fn client_authorities(config: &Config) -> Result<(), ConfigError> {
    if config.tls.client_ca_file.is_some() && config.tls.clients != ClientTlsMode::On {
        return Err(ConfigError::ClientCaWithoutTls { mode: config.tls.clients.name() });
    }
    Ok(())
}

/// Checks the name of the cluster and of the directory.
fn names(config: &Config) -> Result<(), ConfigError> {
    let name = &config.cluster_name;
    let named = !name.is_empty() && name.len() <= CLUSTER_NAME_LEN_MAX;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if !named || !name.chars().all(plain) {
        return Err(ConfigError::ClusterName { value: name.clone() });
    }
    if config.data_dir.as_os_str().is_empty() {
        return Err(ConfigError::DataDir);
    }
    Ok(())
}

fn raft_addr(config: &Config) -> Result<(), ConfigError> {
    dialable("RAFT_ADDR", &config.raft_addr, "RAFT_BIND", 1).map(|_| ())
}

fn addresses(config: &Config) -> Result<(), ConfigError> {
    let (_, advertised) = dialable("ADVERTISE_ADDR", &config.advertise_addr, "HTTP_BIND", 0)?;
    if advertised == 0 && config.http_port != 0 {
        let addr = config.advertise_addr.clone();
        return Err(ConfigError::AdvertisePort { addr, http_port: config.http_port });
    }
    if config.raft_bind.port() == 0 {
        let value = config.raft_bind.to_string();
        return Err(ConfigError::Address { setting: "RAFT_BIND", value });
    }
    let clients = SocketAddr::new(config.http_bind, config.http_port);
    if clash(clients, config.raft_bind) {
        let (port, raft_bind) = (config.http_port, config.raft_bind);
        return Err(ConfigError::PortClash { port, raft_bind });
    }
    Ok(())
}

/// Returns host and port of an address that other machines can dial. The port is at least
/// `port_min`. `bind` is the setting that chooses where to listen.
fn dialable<'a>(
    setting: &'static str,
    addr: &'a str,
    bind: &'static str,
    port_min: u16,
) -> Result<(&'a str, u16), ConfigError> {
    match host_and_port(addr) {
        Some((host, _)) if host_ip(host).is_some_and(|ip| ip.is_unspecified()) => {
            Err(ConfigError::Wildcard { setting, value: addr.to_owned(), bind })
        }
        Some((host, port)) if port >= port_min => Ok((host, port)),
        Some(_) | None => Err(ConfigError::Address { setting, value: addr.to_owned() }),
    }
}

/// Whether two listeners need the same port of one interface. Port 0 clashes with no port, because
/// the system chooses a free one.
fn clash(one: SocketAddr, other: SocketAddr) -> bool {
    let overlap =
        one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    overlap && one.port() != 0 && one.port() == other.port()
}

/// Refuses a loopback address beside remote peers, because a remote peer that dials it reaches
/// itself.
fn loopback(config: &Config) -> Result<(), ConfigError> {
    let mut own =
        [("RAFT_ADDR", &config.raft_addr), ("ADVERTISE_ADDR", &config.advertise_addr)].into_iter();
    let Some((setting, addr)) = own.find(|(_, addr)| is_loopback(addr)) else { return Ok(()) };
    let addr = addr.clone();
    if let Some(member) = config.join.iter().find(|member| !is_loopback(member)) {
        return Err(ConfigError::LoopbackJoins { setting, addr, member: member.clone() });
    }
    let mut peers = config.peers.iter();
    match peers.find(|(id, addr)| **id != config.node_id && !is_loopback(addr)) {
        Some((peer, peer_addr)) => {
            let (peer, peer_addr) = (*peer, peer_addr.clone());
            Err(ConfigError::Loopback { setting, addr, peer, peer_addr })
        }
        None => Ok(()),
    }
}

fn members(config: &Config) -> Result<(), ConfigError> {
    if !config.join.is_empty() {
        return join(config);
    }
    let count = config.peers.len();
    if count == 0 {
        return Err(ConfigError::NoPeers);
    }
    if count > PEERS_MAX {
        return Err(ConfigError::TooManyPeers { count });
    }
    if config.single && count > 1 {
        return Err(ConfigError::SingleWithPeers { count });
    }
    let mut seen = BTreeMap::new();
    for (id, addr) in &config.peers {
        if id.0 == 0 {
            return Err(ConfigError::PeerZero);
        }
        dialable("PEERS", addr, "RAFT_BIND", 1)?;
        if let Some(first) = seen.insert(addr.to_ascii_lowercase(), *id) {
            let addr = addr.clone();
            return Err(ConfigError::DuplicateAddress { addr, first, second: *id });
        }
    }
    let node_id = config.node_id;
    match config.peers.get(&node_id) {
        None => {
            let known: Vec<_> = config.peers.keys().map(ToString::to_string).collect();
            Err(ConfigError::PeersWithoutThisNode { node_id, known: known.join(", ") })
        }
        Some(in_peers) if !in_peers.eq_ignore_ascii_case(&config.raft_addr) => {
            let (in_peers, raft_addr) = (in_peers.clone(), config.raft_addr.clone());
            Err(ConfigError::PeersDisagree { node_id, in_peers, raft_addr })
        }
        Some(_) => Ok(()),
    }
}

fn join(config: &Config) -> Result<(), ConfigError> {
    let conflicts = [
        ("SINGLE", config.single),
        ("BOOTSTRAP", config.bootstrap),
        ("RESTORE", config.restore.is_some()),
        ("RESTORE_FLOOR", config.restore_floor.is_some()),
        ("PEERS", !config.peers.is_empty()),
    ];
    if let Some((other, _)) = conflicts.into_iter().find(|(_, is_set)| *is_set) {
        return Err(ConfigError::JoinWith { other });
    }
    let count = config.join.len();
    if count > PEERS_MAX {
        return Err(ConfigError::TooManyToJoin { count });
    }
    for addr in &config.join {
        dialable("JOIN", addr, "RAFT_BIND", 1)?;
        if addr.eq_ignore_ascii_case(&config.raft_addr) {
            return Err(ConfigError::JoinsItself { addr: addr.clone() });
        }
    }
    Ok(())
}

/// Checks that either all three certificate files for links between nodes are set, or none. Checks
/// that nodes use plain text only on this machine, unless `PEER_PLAIN` allows it elsewhere.
fn peer_links(config: &Config) -> Result<(), ConfigError> {
    let links = &config.links;
    let files = [
        ("PEER_CERT_FILE", &links.cert_file),
        ("PEER_KEY_FILE", &links.key_file),
        ("PEER_CA_FILE", &links.ca_file),
    ];
    let needs_files = files.iter().any(|(_, file)| file.is_some())
        || links.tls.is_some_and(|mode| mode != PeerTlsMode::Off);
    if needs_files && let Some((missing, _)) = files.iter().find(|(_, file)| file.is_none()) {
        return Err(ConfigError::PeerFile { missing });
    }
    if !links.mode().accepts_plain() || links.allows_plain {
        return Ok(());
    }
    let others = config.peers.iter().filter(|(node, _)| **node != config.node_id);
    let others = others.map(|(_, addr)| ("PEERS", addr));
    let mut dialled = others.chain(config.join.iter().map(|addr| ("JOIN", addr)));
    if let Some((setting, addr)) = dialled.find(|(_, addr)| !is_loopback(addr)) {
        return Err(ConfigError::PlainPeers { setting, addr: addr.clone() });
    }
    if config.peer_bind().ip().is_loopback() {
        return Ok(());
    }
    let is_default = config.raft_bind == default_raft_bind(&config.raft_addr);
    Err(if is_default {
        ConfigError::PlainPeers { setting: "RAFT_ADDR", addr: config.raft_addr.clone() }
    } else {
        ConfigError::PlainPeers { setting: "RAFT_BIND", addr: config.raft_bind.to_string() }
    })
}

/// Checks that `OPS_ADDR` has its own port, and that other machines reach it in plain text only
/// where `OPS_PLAIN_FROM` allows it.
fn operations(config: &Config) -> Result<(), ConfigError> {
    let Some(ops_addr) = config.authz.ops_addr else { return Ok(()) };
    let is_plain = config.tls.clients == ClientTlsMode::Off;
    let is_routable = !ops_addr.ip().is_loopback();
    if is_plain && is_routable && config.authz.ops_plain_from == AllowedFrom::Loopback {
        return Err(ConfigError::PlainOperations { ops_addr });
    }
    let clients = SocketAddr::new(config.http_bind, config.http_port);
    for (setting, other) in [("HTTP_PORT", clients), ("RAFT_BIND", config.raft_bind)] {
        if clash(ops_addr, other) {
            return Err(ConfigError::OperationsClash { ops_addr, setting, other });
        }
    }
    Ok(())
}

fn worker_cpus(config: &Config) -> Result<(), ConfigError> {
    let cpus = &config.worker_cpus;
    for (position, cpu) in cpus.iter().enumerate() {
        if *cpu > CPU_MAX {
            let allowed = format!("allowed is a whole number from 0 to {CPU_MAX}");
            let (setting, value) = ("WORKER_CPUS", *cpu as u64);
            return Err(ConfigError::OutOfRange { setting, value, allowed });
        }
        if cpus[..position].contains(cpu) {
            return Err(ConfigError::DuplicateCpu { cpu: *cpu });
        }
    }
    if !cpus.is_empty() && cpus.len() != config.workers {
        let (cpus, workers) = (cpus.len(), config.workers);
        return Err(ConfigError::WorkerCpus { cpus, workers });
    }
    Ok(())
}

fn heartbeat(config: &Config) -> Result<(), ConfigError> {
    let election_ms = millis(config.election_timeout);
    let (heartbeat_ms, max_ms) = (millis(config.heartbeat), election_ms / HEARTBEATS_MIN);
    if heartbeat_ms > max_ms {
        return Err(ConfigError::HeartbeatTooSlow { heartbeat_ms, election_ms, max_ms });
    }
    Ok(())
}

fn reservation(config: &Config) -> Result<(), ConfigError> {
    let election_ms = millis(config.election_timeout);
    let reservation_ms = millis(config.reservation);
    let min_ms = election_ms * RESERVATION_ELECTIONS_MIN;
    if reservation_ms < min_ms {
        return Err(ConfigError::ReservationTooShort { reservation_ms, election_ms, min_ms });
    }
    Ok(())
}

fn lease(config: &Config) -> Result<(), ConfigError> {
    let (lease_ms, election_ms) = (millis(config.leases.length), millis(config.election_timeout));
    let min_ms = *LEASE_MS.start();
    if lease_ms > 0 && !(min_ms..=election_ms).contains(&lease_ms) {
        return Err(ConfigError::LeaseLength { lease_ms, election_ms, min_ms });
    }
    Ok(())
}

/// Checks that the leader lets this node in: where clients show something, a node shows its own
/// certificate.
fn forward(config: &Config) -> Result<(), ConfigError> {
    let setting = if config.tls.clients != ClientTlsMode::Off {
        "CLIENT_TLS"
    } else if config.authz.client_token_file.is_some() {
        "CLIENT_TOKEN_FILE"
    } else {
        return Ok(());
    };
    if config.forward && !config.links.mode().dials() {
        return Err(ConfigError::ForwardSecured { setting });
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
