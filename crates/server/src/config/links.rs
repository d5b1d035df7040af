//! Settings of the connections between nodes: which certificate a node shows to the others, whom it
//! takes for one of them, and whether plain text will do.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use super::{Config, ConfigError, default_raft_bind, is_loopback};

/// Settings of the connections between nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    /// This node's certificate towards the others (`PEER_CERT_FILE`), with those that vouch for it
    /// behind it. Default none: nodes speak in plain text.
    pub cert_file: Option<PathBuf>,
    /// Its key (`PEER_KEY_FILE`).
    pub key_file: Option<PathBuf>,
    /// The authorities of nodes (`PEER_CA_FILE`).
    pub ca_file: Option<PathBuf>,
    /// Which connections are TLS (`PEER_TLS`). Default on with the three files, else off.
    pub tls: Option<PeerTlsMode>,
    /// Whether plain text may leave the machine (`PEER_PLAIN`). Default off: whoever can change what
    /// nodes say to each other can have timestamps given twice.
    pub allows_plain: bool,
}

/// Which connections between nodes are TLS. The middle two are for the way from plain text to TLS, or
/// back, one restart of each node after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerTlsMode {
    /// None.
    Off,
    /// Those that others open with it; this node opens plain ones.
    Accept,
    /// Those that this node opens, and others as they open them.
    Dial,
    /// All.
    On,
}

impl PeerTlsMode {
    /// Reads `off`, `accept`, `dial` or `on`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "off" => Some(Self::Off),
            "accept" => Some(Self::Accept),
            "dial" => Some(Self::Dial),
            "on" => Some(Self::On),
            _ => None,
        }
    }

    /// Whether this node opens its connections with TLS.
    #[must_use]
    pub const fn dials(self) -> bool {
        matches!(self, Self::Dial | Self::On)
    }

    /// Whether others may open plain ones.
    #[must_use]
    pub const fn accepts_plain(self) -> bool {
        !matches!(self, Self::On)
    }
}

impl Links {
    /// Which connections are TLS.
    #[must_use]
    pub fn mode(&self) -> PeerTlsMode {
        let is_given = self.cert_file.is_some();
        self.tls.unwrap_or(if is_given { PeerTlsMode::On } else { PeerTlsMode::Off })
    }

    /// Holds the fields to each other and to the rest of the configuration.
    pub(super) fn check(&self, config: &Config) -> Result<(), ConfigError> {
        let files = [
            ("PEER_CERT_FILE", &self.cert_file),
            ("PEER_KEY_FILE", &self.key_file),
            ("PEER_CA_FILE", &self.ca_file),
        ];
        let needs_files = files.iter().any(|(_, file)| file.is_some())
            || self.tls.is_some_and(|mode| mode != PeerTlsMode::Off);
        if needs_files && let Some((missing, _)) = files.iter().find(|(_, file)| file.is_none()) {
            return Err(ConfigError::PeerFile { missing });
        }
        if !self.mode().accepts_plain() || self.allows_plain {
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
}

impl Config {
    /// Where the peer port binds. A cluster of one has no peers: unless others may come, which has to
    /// be asked for by certificates or by `PEER_PLAIN`, its port is there for this machine alone.
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
}

#[cfg(test)]
mod tests {
    use epicepoch_wire::NodeId;

    use super::*;

    fn three(host: &str) -> Config {
        let mut config = Config::new(NodeId(1), format!("{host}:60001"));
        for id in 1..=3 {
            config.peers.insert(NodeId(id), format!("{host}:6000{id}"));
        }
        config
    }

    fn with_files(mut config: Config) -> Config {
        let file = || Some(PathBuf::from("x"));
        let links = &mut config.links;
        (links.cert_file, links.key_file, links.ca_file) = (file(), file(), file());
        config
    }

    fn is_refused(config: &Config) -> bool {
        let result = config.check();
        assert!(matches!(result, Ok(()) | Err(ConfigError::PlainPeers { .. })), "{result:?}");
        result.is_err()
    }

    #[test]
    fn plain_text_leaves_the_machine_only_when_asked_to() {
        for host in ["10.0.0.1", "192.168.1.1", "172.17.0.2", "192.0.2.1", "n1", "[fd00::1]"] {
            let mut config = three(host);
            assert!(is_refused(&config), "{host}");
            config.links.allows_plain = true;
            assert!(!is_refused(&config), "{host}");
            assert!(!is_refused(&with_files(three(host))), "{host}");
            for mode in [PeerTlsMode::Off, PeerTlsMode::Accept, PeerTlsMode::Dial] {
                let mut config = with_files(three(host));
                config.links.tls = Some(mode);
                assert!(is_refused(&config), "{host} {mode:?}");
            }
            let mut joining = Config::new(NodeId(4), format!("{host}:60004"));
            joining.join = vec![format!("{host}:60001")];
            assert!(is_refused(&joining), "{host}");
        }
        for host in ["127.0.0.1", "localhost", "[::1]"] {
            assert!(!is_refused(&three(host)), "{host}");
            assert!(three(host).peer_bind().ip().is_loopback(), "{host}");
        }
        let mut wide = three("127.0.0.1");
        wide.raft_bind.set_ip(Ipv4Addr::UNSPECIFIED.into());
        assert!(is_refused(&wide));
    }

    #[test]
    fn a_cluster_of_one_listens_to_its_own_machine_until_others_may_come() {
        let alone = Config::new(NodeId(1), "n1:60001").into_single();
        assert_eq!(alone.check(), Ok(()));
        assert_eq!(alone.peer_bind().to_string(), "127.0.0.1:60001");
        let mut open = alone.clone();
        open.links.allows_plain = true;
        assert_eq!(open.peer_bind().to_string(), "0.0.0.0:60001");
        assert_eq!(with_files(alone.clone()).peer_bind().to_string(), "0.0.0.0:60001");
        let mut wide = alone;
        wide.raft_bind = "10.0.0.1:60001".parse().unwrap();
        assert!(is_refused(&wide), "asked for by name");
    }

    #[test]
    fn certificates_come_with_their_key_and_their_authority() {
        let of = |change: fn(&mut Links)| {
            let mut config = three("127.0.0.1");
            change(&mut config.links);
            let error = config.check().unwrap_err();
            let text = error.to_string();
            assert!(error.settings().iter().all(|name| text.contains(name)), "{text}");
            matches!(error, ConfigError::PeerFile { .. })
        };
        assert!(of(|links| links.cert_file = Some("x".into())));
        assert!(of(|links| links.ca_file = Some("x".into())));
        assert!(of(|links| links.tls = Some(PeerTlsMode::On)));
        assert!(of(|links| links.tls = Some(PeerTlsMode::Accept)));
    }
}
