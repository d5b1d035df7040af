//! Certificates and their authority are replaced in a running cluster under load.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use epicepoch_certs::authority::{Authority, Validity};
use epicepoch_wire::NodeId;

use crate::authorities::{CLUSTER, Fixture, Running, get, stamp, wait_until, write};

/// Longest time without a timestamp while all nodes run: far above a stall of the machine.
const GAP_MAX: Duration = Duration::from_secs(8);

fn expiry(node: &Running) -> u64 {
    let name = "epicepoch_certificate_expiry_timestamp_seconds{setting=\"PEER_CERT_FILE\"}";
    let text = get(node.node().http_addr(), "/metrics").1;
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).unwrap_or(0.0) as u64
}

#[test]
fn certificates_and_their_authority_are_replaced_under_load() {
    let fixture = Fixture::new();
    let mut nodes: Vec<Running> = [1, 2, 3].map(|node| fixture.start(node)).into_iter().collect();
    stamp(&nodes);
    let addrs: Vec<_> = nodes.iter().map(|node| node.node().http_addr()).collect();
    let is_over = AtomicBool::new(false);
    let longest = thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
            let mut highest = String::new();
            while !is_over.load(Ordering::Relaxed) {
                let answers = addrs.iter().map(|addr| get(*addr, "/timestamp?format=json"));
                for (_, body) in answers.filter(|(status, _)| *status == 200) {
                    let hex = body.split("\"hex\":\"").nth(1).map(|rest| rest[..32].to_owned());
                    let hex = hex.expect("a timestamp");
                    assert!(hex > highest, "{hex} behind {highest}");
                    highest = hex;
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                }
            }
            longest.max(last.elapsed())
        });
        // The nodes get new certificates of the same authority.
        let before = expiry(&nodes[0]);
        for node in 1..=3 {
            fixture.hand_out(node, &fixture.issued(node, 60));
        }
        for node in &nodes {
            wait_until("new ones", || expiry(node) > before + 86_400);
        }
        // A new authority: first nodes trust both, then they get its certificates, then they stop
        // trusting the old one.
        let new = Authority::new(CLUSTER).unwrap();
        let both = format!("{}{}", fixture.authority.certificate(), new.certificate());
        write(&fixture.path("ca.pem"), &both);
        thread::sleep(epicepoch_server::reload::RELOAD_INTERVAL + Duration::from_secs(1));
        for node in 1..=3 {
            let issued = new.node(NodeId(node), &[], Validity::days(200)).unwrap();
            fixture.hand_out(node, &issued);
        }
        for node in &nodes {
            wait_until("newer ones", || expiry(node) > before + 100 * 86_400);
        }
        write(&fixture.path("ca.pem"), new.certificate());
        thread::sleep(epicepoch_server::reload::RELOAD_INTERVAL + Duration::from_secs(1));
        is_over.store(true, Ordering::Relaxed);
        asking.join().unwrap()
    });
    assert!(longest < GAP_MAX, "{longest:?} without a timestamp");
    // No connection was dropped, and new connections use the new certificates. The other nodes
    // accept a restarted node, although they trust only the new authority.
    drop(nodes.remove(2));
    nodes.push(fixture.start(3));
    for node in &nodes {
        node.await_metric("epicepoch_confirm_links", 2);
    }
    stamp(&nodes);
    // The other nodes refuse certificates of the old authority.
    fixture.hand_out(3, &fixture.issued(3, 30));
    drop(nodes.remove(2));
    let name = "epicepoch_denied_total{right=\"peer\",reason=\"handshake\"}";
    let before = nodes[0].metric(name);
    let old = fixture.start(3);
    nodes[0].await_metric(name, before + 1);
    assert_eq!(old.metric("epicepoch_confirm_links"), 0);
}
