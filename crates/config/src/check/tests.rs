//! Tests which configurations are accepted and which are refused.

use std::path::PathBuf;
use std::time::Duration;

use epicepoch_wire::NodeId;

use super::*;
use crate::config::ELECTION_TIMEOUT_MS;
use crate::values::zones;

mod security;

pub(crate) fn three() -> Config {
    let mut config = Config::new(NodeId(1), "10.0.0.1:60001");
    for id in 1..=3 {
        config.peers.insert(NodeId(id), format!("10.0.0.{id}:60001"));
    }
    config.links.allows_plain = true;
    config
}

fn refused(change: impl FnOnce(&mut Config)) -> ConfigError {
    let mut config = three();
    change(&mut config);
    let error = config.check().expect_err("must be refused");
    let text = error.to_string();
    assert!(error.settings().iter().all(|name| text.contains(name)), "{text}");
    assert!(text.contains("allowed"), "{text}");
    error
}

#[test]
fn the_defaults_are_those_of_the_contract() {
    let config = three();
    assert_eq!(config.check(), Ok(()));
    assert_eq!(config.raft_bind.to_string(), "0.0.0.0:60001");
    assert_eq!(config.http_bind.to_string(), "0.0.0.0");
    assert_eq!(Config::new(NodeId(1), "[::1]:60001").http_bind.to_string(), "::");
    assert_eq!(config.advertise_addr, "10.0.0.1:8080");
    assert_eq!(config.data_dir, PathBuf::from("_raft/node-1"));
    assert_eq!(config.heartbeat, Duration::from_millis(40));
    assert_eq!(config.reservation, Duration::from_secs(1));
    assert_eq!(config.shared().check(), Ok(()));
    let workers = |cores| {
        let mut config = three();
        config.derive(cores, |_| false);
        config.workers
    };
    assert_eq!([1, 4, 1000].map(workers), [1, 2, 64]);
    assert_eq!(Config::new(NodeId(7), "localhost:1").into_single().check(), Ok(()));
}

#[test]
fn derived_defaults_hold_for_every_election_timeout() {
    for election_ms in ELECTION_TIMEOUT_MS {
        let mut config = three();
        config.election_timeout = Duration::from_millis(election_ms);
        config.derive(1, |_| false);
        assert_eq!(config.check(), Ok(()), "{election_ms}");
    }
}

#[test]
fn a_peer_list_must_agree_with_this_node() {
    type E = ConfigError;
    fn of(change: impl FnOnce(&mut Config)) -> E {
        refused(change)
    }
    assert_eq!(of(|c| c.peers.clear()), E::NoPeers);
    assert!(matches!(of(|c| c.node_id = NodeId(9)), E::PeersWithoutThisNode { .. }));
    assert!(matches!(of(|c| c.node_id = NodeId(2)), E::PeersDisagree { .. }));
    assert!(matches!(of(|c| c.single = true), E::SingleWithPeers { count: 3 }));
    let same = |c: &mut Config| drop(c.peers.insert(NodeId(4), "10.0.0.3:60001".into()));
    assert!(matches!(of(same), E::DuplicateAddress { second: NodeId(4), .. }));
    let zero = |c: &mut Config| drop(c.peers.insert(NodeId(0), "10.0.0.9:60001".into()));
    assert_eq!(of(zero), E::PeerZero);
    let many = |c: &mut Config| {
        c.peers.extend((4..=10).map(|id| (NodeId(id), format!("10.0.0.{id}:1"))));
    };
    assert_eq!(of(many), E::TooManyPeers { count: 10 });
}

#[test]
fn a_joining_node_founds_nothing_and_names_reachable_members() {
    use ConfigError as E;
    let mut joining = Config::new(NodeId(4), "10.0.0.4:60001");
    joining.join = vec!["10.0.0.1:60001".into(), "10.0.0.2:60001".into()];
    joining.links.allows_plain = true;
    assert_eq!(joining.check(), Ok(()));
    let of = |change: fn(&mut Config)| {
        let mut config = joining.clone();
        change(&mut config);
        config.check().unwrap_err()
    };
    assert_eq!(of(|c| c.bootstrap = true), E::JoinWith { other: "BOOTSTRAP" });
    assert_eq!(of(|c| c.single = true), E::JoinWith { other: "SINGLE" });
    let listed = of(|c| drop(c.peers.insert(NodeId(4), "10.0.0.4:60001".into())));
    assert_eq!(listed, E::JoinWith { other: "PEERS" });
    let itself = of(|c| c.join.push("10.0.0.4:60001".into()));
    assert!(matches!(itself, E::JoinsItself { .. }), "{itself}");
    let many = of(|c| c.join = (1..=10).map(|id| format!("10.0.1.{id}:1")).collect());
    assert_eq!(many, E::TooManyToJoin { count: 10 });
    let local = of(|c| c.advertise_addr = "localhost:8080".into());
    assert!(matches!(local, E::LoopbackJoins { setting: "ADVERTISE_ADDR", .. }), "{local}");
    assert!(matches!(of(|c| c.join = vec!["0.0.0.0:1".into()]), E::Wildcard { .. }));
}

#[test]
fn loopback_and_wildcard_addresses_are_refused_beside_remote_peers() {
    use ConfigError as E;
    for addr in ["127.0.0.1:8080", "localhost:8080", "[::1]:8080", "LocalHost:1"] {
        let error = refused(|c| c.advertise_addr = addr.into());
        assert!(matches!(error, E::Loopback { setting: "ADVERTISE_ADDR", .. }), "{error}");
    }
    for addr in ["0.0.0.0:60001", "[::]:60001"] {
        let error = refused(|c| c.raft_addr = addr.into());
        assert!(matches!(error, E::Wildcard { setting: "RAFT_ADDR", .. }), "{error}");
    }
    let mut local = Config::new(NodeId(1), "localhost:60001");
    local.peers = BTreeMap::from([
        (NodeId(1), "localhost:60001".into()),
        (NodeId(2), "127.0.0.1:60002".into()),
    ]);
    assert_eq!(local.check(), Ok(()));
}

#[test]
fn every_number_is_held_to_its_range() {
    for setting in settings() {
        let Kind::Number { range, set, .. } = &setting.kind else { continue };
        for value in [range.start().checked_sub(1), range.end().checked_add(1)] {
            // HTTP_PORT cannot be out of range here, because the type of its field limits it.
            let Some(value) = value.filter(|_| setting.name != "HTTP_PORT") else { continue };
            match refused(|config| set(config, value)) {
                ConfigError::OutOfRange { setting: name, .. } => assert_eq!(name, setting.name),
                other => panic!("{}: {other}", setting.name),
            }
        }
    }
    let error = refused(|config| config.worker_cpus = vec![1024]);
    assert!(matches!(error, ConfigError::OutOfRange { setting: "WORKER_CPUS", .. }), "{error}");
    assert!(matches!(refused(|c| c.heartbeat = Duration::MAX), ConfigError::OutOfRange { .. }));
}

#[test]
fn settings_that_depend_on_each_other_are_checked_together() {
    use ConfigError as E;
    let ms = Duration::from_millis;
    let error = refused(|c| c.heartbeat = ms(67));
    assert!(matches!(error, E::HeartbeatTooSlow { max_ms: 66, .. }), "{error}");
    let error = refused(|c| c.reservation = ms(799));
    assert!(matches!(error, E::ReservationTooShort { min_ms: 800, .. }), "{error}");
    for lease_ms in [1, 49, 201] {
        let error = refused(|c| c.leases.length = ms(lease_ms));
        let expected = E::LeaseLength { lease_ms, election_ms: 200, min_ms: 50 };
        assert_eq!(error, expected);
    }
    for lease_ms in [0, 50, 200] {
        let mut config = three();
        config.leases.length = ms(lease_ms);
        assert_eq!(config.check(), Ok(()));
    }
    let error = refused(|c| (c.forward, c.tls.clients) = (true, ClientTlsMode::On));
    assert_eq!(error, E::ForwardSecured { setting: "CLIENT_TLS" });
    let error = refused(|c| (c.forward, c.authz.client_token_file) = (true, Some("t".into())));
    assert_eq!(error, E::ForwardSecured { setting: "CLIENT_TOKEN_FILE" });
    for (mode, dials) in
        [(PeerTlsMode::Accept, false), (PeerTlsMode::Dial, true), (PeerTlsMode::On, true)]
    {
        let mut config = three();
        config.links.tls = Some(mode);
        for file in
            [&mut config.links.cert_file, &mut config.links.key_file, &mut config.links.ca_file]
        {
            *file = Some("f".into());
        }
        config.links.allows_plain = true;
        (config.forward, config.tls.clients) = (true, ClientTlsMode::On);
        assert_eq!(config.check().is_ok(), dials, "{mode:?}");
    }
    let error = refused(|c| c.worker_cpus = vec![0, 1]);
    assert!(matches!(error, E::WorkerCpus { cpus: 2, workers: 1 }), "{error}");
    let error = refused(|c| c.worker_cpus = vec![3, 3]);
    assert!(matches!(error, E::DuplicateCpu { cpu: 3 }), "{error}");
    let error = refused(|c| c.http_port = 60001);
    assert!(matches!(error, E::PortClash { port: 60001, .. }), "{error}");
    let error = refused(|c| c.advertise_addr = "10.0.0.1:0".into());
    assert!(matches!(error, E::AdvertisePort { http_port: 8080, .. }), "{error}");
    let error = refused(|c| c.raft_bind.set_port(0));
    assert!(matches!(error, E::Address { setting: "RAFT_BIND", .. }), "{error}");
    assert!(matches!(refused(|c| c.cluster_name = "a b".into()), E::ClusterName { .. }));
    assert_eq!(refused(|c| c.data_dir = PathBuf::new()), E::DataDir);
}

#[test]
fn an_advertised_port_of_zero_becomes_the_bound_port() {
    let mut config = three();
    config.http_port = 0;
    config.derive(1, |_| false);
    assert_eq!(config.check(), Ok(()));
    assert_eq!(config.advertise_addr_at(1234), "10.0.0.1:1234");
    assert_eq!(three().advertise_addr_at(1234), "10.0.0.1:8080");
}

#[test]
fn leader_zones_need_a_zone() {
    let leaders = zones("a,b").expect("zones");
    let refusal = refused(|config| config.placement.leaders.clone_from(&leaders));
    assert_eq!(refusal, ConfigError::LeaderZonesWithoutZone);
    let mut config = three();
    config.placement.leaders = leaders;
    config.placement.zone = epicepoch_wire::voter_status::Zone::new("c");
    assert_eq!(config.check(), Ok(()), "a zone from which leadership goes away");
}
