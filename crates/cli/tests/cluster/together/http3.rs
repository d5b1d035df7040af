//! Tests of HTTP/3 on real nodes. It is used together with all other transports while leaders are
//! killed. Answers over TCP announce it. It can be switched off. If it cannot start, the node says
//! why.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use epicepoch_bench::run::{RunConfig, Transport};

use crate::support::{Cluster, WAIT_MAX, Watch, say, wait_until};

/// This many leaders are killed, one after the other, while requests come over all transports.
const KILLS: usize = 2;
/// Timeout of a request. Over UDP, a client learns only from this timeout that a process is gone.
const REQUEST_MAX: Duration = Duration::from_millis(500);
/// The load gets this many answers before each kill, and after the last one.
const BETWEEN: u64 = 500;

#[test]
fn all_transports_together_see_one_order_while_leaders_are_killed() {
    let mut cluster = Cluster::start();
    let watch = Watch::start_of(RunConfig {
        transport: Transport::Http3 { streams: 8 },
        others: vec![
            Transport::Http1 { pipeline: 4 },
            Transport::H2c { streams: 8 },
            Transport::Native { in_flight: 8 },
        ],
        connections: 8,
        request_timeout: REQUEST_MAX,
        ..RunConfig::new(cluster.targets())
    });
    let wait_for_load = |cluster: &Cluster| {
        let mut leader = 0;
        wait_until("HTTP/3 is among them", WAIT_MAX, || {
            leader = cluster.wait_for_leader();
            let open = cluster.nodes[leader].metric("epicepoch_http3_connections_open");
            open.is_some_and(|open| open >= 1.0)
        });
        watch.wait_for_more(BETWEEN);
        leader
    };
    for _ in 0..KILLS {
        let leader = wait_for_load(&cluster);
        cluster.nodes[leader].kill();
        cluster.wait_for_leader_other_than(Some(leader), WAIT_MAX);
        cluster.nodes[leader].start();
        cluster.wait_until_ready();
    }
    wait_for_load(&cluster);
    let seen = watch.finish();
    say(&format!("all transports, {KILLS} leaders killed, one order: {}", seen.report));
    cluster.assert_well();
}

#[test]
fn answers_over_tcp_announce_http3_unless_it_is_off() {
    let mut cluster = Cluster::start();
    let node = &cluster.nodes[0];
    let expected = format!("h3=\":{}\"; ma=3600", node.http_port);
    for path in ["/up", "/timestamp", "/members"] {
        let answer = node.ask(path).expect("an answer");
        assert_eq!(answer.header("alt-svc"), Some(&*expected), "{path}");
    }
    let key = fs::metadata(node.home.join("key.pem")).expect("a key was written");
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
    cluster.nodes[0].terminate();
    cluster.nodes[0].set("HTTP3", "off");
    cluster.nodes[0].start();
    wait_until("it serves", WAIT_MAX, || cluster.nodes[0].is_ready());
    assert_eq!(cluster.nodes[0].ask("/up").expect("an answer").header("alt-svc"), None);
    UdpSocket::bind((Ipv4Addr::UNSPECIFIED, cluster.nodes[0].http_port)).expect("UDP is free");
}

#[test]
fn a_udp_port_in_use_and_a_missing_certificate_are_refused() {
    let mut cluster = Cluster::down(&[]);
    let node = &mut cluster.nodes[0];
    let taken = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, node.http_port)).expect("a free port");
    node.start();
    assert!(!node.wait_for_exit(WAIT_MAX).success());
    assert!(node.log().contains("HTTP3=off"), "{}", node.log());
    drop(taken);
    node.set("CERT_FILE", "nowhere/cert.pem");
    node.set("KEY_FILE", "nowhere/key.pem");
    node.start();
    assert!(!node.wait_for_exit(WAIT_MAX).success());
    assert!(node.log().contains("nowhere/key.pem"), "{}", node.log());
}
