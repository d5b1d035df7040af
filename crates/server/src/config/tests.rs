//! What a configuration may be, and what it may not.

use std::num::NonZeroU32;

use epicepoch_wire::settings;

use super::*;

pub(super) fn three() -> Config {
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
    assert_eq!(default_workers(1), 1);
    assert_eq!(default_workers(1000), 64);
    assert_eq!(Config::new(NodeId(7), "localhost:1").into_single().check(), Ok(()));
}

#[test]
fn derived_defaults_hold_for_every_election_timeout() {
    for election_ms in ELECTION_TIMEOUT_MS.min..=ELECTION_TIMEOUT_MS.max {
        let mut config = three();
        config.election_timeout = Duration::from_millis(election_ms);
        config.heartbeat = default_heartbeat(config.election_timeout);
        config.reservation = default_reservation(config.election_timeout);
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
fn a_node_that_joins_founds_nothing_and_names_members_that_it_can_reach() {
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
fn every_number_is_held_to_its_bounds() {
    let of = |change: fn(&mut Config)| match refused(change) {
        ConfigError::OutOfRange { bounds, .. } => bounds.setting,
        other => panic!("{other}"),
    };
    assert_eq!(of(|c| c.node_id = NodeId(0)), "NODE_ID");
    assert_eq!(of(|c| c.epoch_interval = Duration::ZERO), "EPOCH_INTERVAL_MS");
    assert_eq!(of(|c| c.epoch_deadline_limit = 0), "EPOCH_DEADLINE_LIMIT");
    assert_eq!(of(|c| c.format_max = 0), "FORMAT_MAX");
    assert_eq!(of(|c| c.request_buffer = 0), "TIMESTAMP_REQUEST_BUFFER");
    assert_eq!(of(|c| c.reservation = Duration::MAX), "RESERVATION_MS");
    assert_eq!(of(|c| c.clock_offset_max = Duration::ZERO), "CLOCK_OFFSET_MAX_MS");
    assert_eq!(of(|c| c.max_n = (1 << 20) + 1), "MAX_N");
    assert_eq!(of(|c| c.election_timeout = Duration::ZERO), "ELECTION_TIMEOUT_MS");
    assert_eq!(of(|c| c.heartbeat = Duration::ZERO), "HEARTBEAT_MS");
    assert_eq!(of(|c| c.request_timeout = Duration::ZERO), "REQUEST_TIMEOUT_MS");
    assert_eq!(of(|c| c.connections_max = 0), "CONNECTIONS_MAX");
    assert_eq!(of(|c| c.limits.address_connections_max = 0), "ADDRESS_CONNECTIONS_MAX");
    let rate = |c: &mut Config| c.limits.address_request_rate_max = NonZeroU32::new(u32::MAX);
    assert_eq!(of(rate), "ADDRESS_REQUEST_RATE_MAX");
    assert_eq!(of(|c| c.limits.head_timeout = Duration::ZERO), "HEAD_TIMEOUT_MS");
    assert_eq!(of(|c| c.limits.idle_timeout = Duration::MAX), "IDLE_TIMEOUT_MS");
    assert_eq!(of(|c| c.workers = 65), "WORKERS");
    assert_eq!(of(|c| c.worker_cpus = vec![1024]), "WORKER_CPUS");
    assert_eq!(of(|c| c.shutdown_timeout = Duration::MAX), "SHUTDOWN_TIMEOUT_MS");
}

#[test]
fn settings_that_depend_on_each_other_are_checked_together() {
    use ConfigError as E;
    let ms = Duration::from_millis;
    let error = refused(|c| c.heartbeat = ms(67));
    assert!(matches!(error, E::HeartbeatTooSlow { max_ms: 66, .. }), "{error}");
    let error = refused(|c| c.reservation = ms(799));
    assert!(matches!(error, E::ReservationTooShort { min_ms: 800, .. }), "{error}");
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
    config.advertise_addr = default_advertise_addr(&config.raft_addr, 0);
    assert_eq!(config.check(), Ok(()));
    assert_eq!(config.advertise_addr_at(1234), "10.0.0.1:1234");
    assert_eq!(three().advertise_addr_at(1234), "10.0.0.1:8080");
}

#[test]
fn an_address_is_a_host_and_a_port() {
    assert_eq!(host_and_port("a-b.c:1"), Some(("a-b.c", 1)));
    assert_eq!(host_and_port("[::1]:65535"), Some(("[::1]", 65535)));
    for bad in ["", "a", ":1", "a:", "a:b", "a:65536", "a:+1", "::1:1", "a b:1", "[a]:1", "u@h:1"] {
        assert_eq!(host_and_port(bad), None, "{bad}");
    }
}

#[test]
fn leaders_are_wished_for_in_zones_only_by_nodes_that_are_in_one() {
    let leaders = zones("a,b").expect("zones");
    let refusal = refused(|config| config.placement.leaders.clone_from(&leaders));
    assert_eq!(refusal, ConfigError::LeaderZonesWithoutZone);
    let mut config = three();
    config.placement.leaders = leaders;
    config.placement.zone = epicepoch_wire::standing::Zone::new("c");
    assert_eq!(config.check(), Ok(()), "a zone from which leadership goes away");
}

/// A node's own settings seed those of the cluster, which every version has to judge alike.
#[test]
fn what_a_node_may_be_told_is_what_the_replicated_settings_may_be() {
    let ranges = [
        (EPOCH_INTERVAL_MS, settings::EPOCH_INTERVAL_MS),
        (RESERVATION_MS, settings::RESERVATION_MS),
        (CLOCK_OFFSET_MAX_MS, settings::CLOCK_OFFSET_MAX_MS),
        (MAX_N, settings::MAX_N),
    ];
    for (bounds, range) in ranges {
        assert_eq!(bounds.min..=bounds.max, range, "{}", bounds.setting);
    }
    assert_eq!(three().shared().check(), Ok(()));
}
