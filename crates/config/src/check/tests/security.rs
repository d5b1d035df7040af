//! Tests that configurations are refused if secrets or orders would travel over the network
//! unprotected.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use epicepoch_wire::NodeId;

use super::super::*;
use crate::authz::AuthorizationConfig;
use crate::links::Links;

fn three_at(host: &str) -> Config {
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
        let mut config = three_at(host);
        assert!(is_refused(&config), "{host}");
        config.links.allows_plain = true;
        assert!(!is_refused(&config), "{host}");
        assert!(!is_refused(&with_files(three_at(host))), "{host}");
        for mode in [PeerTlsMode::Off, PeerTlsMode::Accept, PeerTlsMode::Dial] {
            let mut config = with_files(three_at(host));
            config.links.tls = Some(mode);
            assert!(is_refused(&config), "{host} {mode:?}");
        }
        let mut joining = Config::new(NodeId(4), format!("{host}:60004"));
        joining.join = vec![format!("{host}:60001")];
        assert!(is_refused(&joining), "{host}");
    }
    for host in ["127.0.0.1", "localhost", "[::1]"] {
        assert!(!is_refused(&three_at(host)), "{host}");
        assert!(three_at(host).peer_bind().ip().is_loopback(), "{host}");
    }
    let mut wide = three_at("127.0.0.1");
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
        let mut config = three_at("127.0.0.1");
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

fn checked(change: impl FnOnce(&mut AuthorizationConfig)) -> Result<(), ConfigError> {
    let mut config = Config::new(NodeId(1), "127.0.0.1:60001").into_single();
    change(&mut config.authz);
    config.check()
}

#[test]
fn operations_leave_the_machine_in_plain_text_only_when_asked_to() {
    let at = |addr: &str, from| {
        checked(|authz| {
            authz.ops_addr = Some(addr.parse().unwrap());
            authz.ops_plain_from = from;
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
        config.authz.ops_addr = Some("10.0.0.1:9090".parse().unwrap());
        config.tls.clients = mode;
        config.check()
    };
    assert_eq!(secured(ClientTlsMode::On), Ok(()));
    assert!(secured(ClientTlsMode::Off).is_err());
}

#[test]
fn operations_have_a_port_of_their_own() {
    for addr in ["127.0.0.1:8080", "127.0.0.1:60001"] {
        let error = checked(|authz| authz.ops_addr = Some(addr.parse().unwrap()));
        let error = error.unwrap_err();
        assert!(matches!(error, ConfigError::OperationsClash { .. }), "{error}");
        let text = error.to_string();
        assert!(error.settings().iter().all(|name| text.contains(name)), "{text}");
    }
}
