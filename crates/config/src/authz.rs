//! Settings of authorization: which callers have which rights, and on which port.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::allowed_from::AllowedFrom;
use crate::tls::ClientTlsMode;

/// Which callers have which rights, and on which port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthorizationConfig {
    /// Address that serves metrics and `/admin` instead of the client port (`OPS_ADDR`). Default
    /// none: the client port serves them. With port 0 the system chooses a port, for tests.
    pub ops_addr: Option<SocketAddr>,
    /// Addresses that may use metrics and `/admin` in plain text or without a token
    /// (`OPS_PLAIN_FROM`). Default loopback: plain text on a network can be read and changed, and
    /// does not prove who sent it.
    pub ops_plain_from: AllowedFrom,
    /// Addresses that may change members and leadership (`ADMIN_FROM`). Default loopback.
    pub admin_from: AllowedFrom,
    /// File with the tokens of clients (`CLIENT_TOKEN_FILE`). Default none: every client gets
    /// timestamps.
    pub client_token_file: Option<PathBuf>,
    /// File with the tokens of operators (`OPS_TOKEN_FILE`). Default none: every caller at an
    /// address of `ops_plain_from` is an operator, also over TLS.
    pub ops_token_file: Option<PathBuf>,
}

impl AuthorizationConfig {
    /// Whether `ADMIN_FROM` names other machines, but no order from them can be accepted.
    /// `OPS_PLAIN_FROM` allows them no plain text. Over TLS on TCP they need `CLIENT_TLS` and a
    /// token of `OPS_TOKEN_FILE`, and one of the two is not set.
    #[must_use]
    pub fn admin_from_is_idle(&self, clients: ClientTlsMode) -> bool {
        let has_secured = clients != ClientTlsMode::Off && self.ops_token_file.is_some();
        self.admin_from != AllowedFrom::Loopback
            && self.ops_plain_from == AllowedFrom::Loopback
            && !has_secured
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_from_is_idle_without_a_way_in() {
        let (off, on) = (ClientTlsMode::Off, ClientTlsMode::On);
        let mut authz = AuthorizationConfig::default();
        assert!(!authz.admin_from_is_idle(off), "nobody is named");
        authz.admin_from = AllowedFrom::parse("10.0.0.0/8").unwrap();
        assert!(authz.admin_from_is_idle(off) && authz.admin_from_is_idle(on));
        authz.ops_token_file = Some("tokens".into());
        assert!(authz.admin_from_is_idle(off) && !authz.admin_from_is_idle(on));
        authz.ops_plain_from = AllowedFrom::Any;
        assert!(!authz.admin_from_is_idle(off));
    }
}
