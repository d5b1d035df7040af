//! Tests of HTTP/3 on real nodes. It is used together with all other transports while leaders are
//! killed. Answers over TCP announce it. It can be switched off. If it cannot start, the node says
//! why.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use epicepoch_bench::run::{self, RunConfig, Target, Transport};

use crate::support::{Cluster, WAIT_MAX, let_pass, say, wait_until};

/// This many leaders are killed, one after the other, while requests come over all transports.
const KILLS: usize = 2;
/// Timeout of a request. Over UDP, a client learns only from this timeout that a process is gone.
const REQUEST_MAX: Duration = Duration::from_millis(500);
/// Time between two kills: long enough to replace a leader.
const BETWEEN: Duration = Duration::from_secs(2);

fn targets(cluster: &Cluster) -> Vec<Target> {
    let target = |node: &crate::support::Node| Target {
        id: node.id,
        name: node.http().to_string(),
        addr: node.http(),
    };
    cluster.nodes.iter().map(target).collect()
}

#[test]
fn all_transports_together_see_one_order_while_leaders_are_killed() {
    let mut cluster = Cluster::start();
    cluster.wait_for_leader();
    let config = RunConfig {
        transport: Transport::Http3 { streams: 8 },
        others: vec![
            Transport::Http1 { pipeline: 4 },
            Transport::H2c { streams: 8 },
            Transport::Native { in_flight: 8 },
        ],
        connections: 8,
        warmup: Duration::ZERO,
        duration: BETWEEN * (KILLS as u32 + 1),
        request_timeout: REQUEST_MAX,
        ..RunConfig::new(targets(&cluster))
    };
    let measuring = std::thread::spawn(move || run::run(config, |_, _| {}));
    for _ in 0..KILLS {
        let_pass(BETWEEN);
        let leader = cluster.wait_for_leader();
        wait_until("HTTP/3 is among them", WAIT_MAX, || {
            let open = cluster.nodes[leader].metric("epicepoch_http3_connections_open");
            open.is_some_and(|open| open >= 1.0)
        });
        cluster.nodes[leader].kill();
        cluster.wait_for_leader_other_than(Some(leader), WAIT_MAX);
        cluster.nodes[leader].start();
    }
    let measured = measuring.join().expect("a measurement");
    let checked = measured.checked.expect("it is verified");
    let totals = &checked.verdict.totals;
    assert!(checked.verdict.is_clean(), "{}", checked.verdict);
    assert!(totals.answered > 1000, "{} answers", totals.answered);
    assert_eq!(checked.left_out, 0);
    say(&format!("all transports, {KILLS} leaders killed: {} answers, one order", totals.answered));
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
