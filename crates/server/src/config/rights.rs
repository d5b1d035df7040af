//! Who may do what, and over which port: the part of the configuration that keeps people out.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::{AllowedFrom, ClientTlsMode, Config, ConfigError};

/// Who may do what, and over which port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RightsConfig {
    /// Where metrics and `/admin` are answered (`OPS_ADDR`), and nowhere else. Default none: on the
    /// client port. Port 0 lets the system choose one, for tests.
    pub ops_addr: Option<SocketAddr>,
    /// From where metrics and `/admin` are answered in plain text, or to callers without a token
    /// (`OPS_PLAIN_FROM`). Default this machine only: what travels further can be read and changed on
    /// its way, and nothing says who sent it.
    pub ops_plain_from: AllowedFrom,
    /// From where members and leadership may be changed (`ADMIN_FROM`). Default this machine only.
    pub admin_from: AllowedFrom,
    /// Tokens of clients (`CLIENT_TOKEN_FILE`). Default none: every client gets timestamps.
    pub client_token_file: Option<PathBuf>,
    /// Tokens of operators (`OPS_TOKEN_FILE`). Default none: whoever asks from where
    /// `ops_plain_from` allows it is one, over TLS, too.
    pub ops_token_file: Option<PathBuf>,
}

impl RightsConfig {
    /// Whether `ADMIN_FROM` names other machines, from which nothing is taken all the same: not in
    /// plain text, because `OPS_PLAIN_FROM` names none, and not over TLS on TCP, because there is
    /// none, or it is nobody's right without `OPS_TOKEN_FILE`.
    #[must_use]
    pub fn admin_from_is_idle(&self, clients: ClientTlsMode) -> bool {
        let has_secured = clients != ClientTlsMode::Off && self.ops_token_file.is_some();
        self.admin_from != AllowedFrom::Loopback
            && self.ops_plain_from == AllowedFrom::Loopback
            && !has_secured
    }

    /// Holds the fields to each other and to the rest of the configuration.
    pub(super) fn check(&self, config: &Config) -> Result<(), ConfigError> {
        let Some(ops) = self.ops_addr else { return Ok(()) };
        let is_plain = config.tls.clients == ClientTlsMode::Off;
        let is_routable = !ops.ip().is_loopback();
        if is_plain && is_routable && self.ops_plain_from == AllowedFrom::Loopback {
            return Err(ConfigError::PlainOperations { ops_addr: ops });
        }
        let clients = SocketAddr::new(config.http_bind, config.http_port);
        for (setting, other) in [("HTTP_PORT", clients), ("RAFT_BIND", config.raft_bind)] {
            let overlap =
                ops.ip() == other.ip() || ops.ip().is_unspecified() || other.ip().is_unspecified();
            if overlap && ops.port() != 0 && ops.port() == other.port() {
                return Err(ConfigError::OperationsClash { ops_addr: ops, setting, other });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use epicepoch_wire::NodeId;

    use super::*;

    fn checked(change: impl FnOnce(&mut RightsConfig)) -> Result<(), ConfigError> {
        let mut config = Config::new(NodeId(1), "127.0.0.1:60001").into_single();
        change(&mut config.rights);
        config.check()
    }

    #[test]
    fn operations_leave_the_machine_in_plain_text_only_when_asked_to() {
        let at = |addr: &str, from| {
            checked(|rights| {
                rights.ops_addr = Some(addr.parse().unwrap());
                rights.ops_plain_from = from;
            })
        };
        for addr in ["10.0.0.1:9090", "0.0.0.0:9090", "[::]:9090", "192.0.2.1:9090"] {
            let error = at(addr, AllowedFrom::Loopback).unwrap_err();
            assert!(matches!(error, ConfigError::PlainOperations { .. }), "{error}");
            assert_eq!(at(addr, AllowedFrom::Any), Ok(()), "{addr}");
        }
        assert_eq!(at("127.0.0.1:9090", AllowedFrom::Loopback), Ok(()));
        assert_eq!(at("[::1]:9090", AllowedFrom::Loopback), Ok(()));
        let secured = |mode| {
            let mut config = Config::new(NodeId(1), "127.0.0.1:60001").into_single();
            config.rights.ops_addr = Some("10.0.0.1:9090".parse().unwrap());
            config.tls.clients = mode;
            config.check()
        };
        assert_eq!(secured(ClientTlsMode::On), Ok(()));
        assert!(secured(ClientTlsMode::Off).is_err());
    }

    #[test]
    fn naming_other_operators_is_idle_without_a_way_to_come() {
        let (off, on) = (ClientTlsMode::Off, ClientTlsMode::On);
        let mut rights = RightsConfig::default();
        assert!(!rights.admin_from_is_idle(off), "nobody is named");
        rights.admin_from = AllowedFrom::parse("10.0.0.0/8").unwrap();
        assert!(rights.admin_from_is_idle(off) && rights.admin_from_is_idle(on));
        rights.ops_token_file = Some("tokens".into());
        assert!(rights.admin_from_is_idle(off) && !rights.admin_from_is_idle(on));
        rights.ops_plain_from = AllowedFrom::Any;
        assert!(!rights.admin_from_is_idle(off));
    }

    #[test]
    fn operations_have_a_port_of_their_own() {
        for addr in ["127.0.0.1:8080", "127.0.0.1:60001"] {
            let error = checked(|rights| rights.ops_addr = Some(addr.parse().unwrap()));
            let error = error.unwrap_err();
            assert!(matches!(error, ConfigError::OperationsClash { .. }), "{error}");
            let text = error.to_string();
            assert!(error.settings().iter().all(|name| text.contains(name)), "{text}");
        }
    }
}
