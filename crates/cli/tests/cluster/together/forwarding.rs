//! Tests of nodes that send requests on to the leader (`FORWARD=on`).

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use epicepoch_certs::config::ALPN_FORWARD;
use epicepoch_certs::rustls::pki_types::ServerName;
use epicepoch_certs::rustls::{ClientConfig, ClientConnection, StreamOwned};
use epicepoch_certs::{LivePair, LiveRoots, Pair, PemFile, client_config};

use super::tls::secure_peers;
use crate::support::operator::{add, roles};
use crate::support::wire::Wire;
use crate::support::{Cluster, Node, WAIT_MAX, Watch, wait_until};

const FORWARD: [(&str, &str); 1] = [("FORWARD", "on")];
/// A refused request comes back well within this time, although its node waits for a leader that
/// does not answer.
const GIVEN_UP: Duration = Duration::from_secs(8);

/// Starts a calm cluster whose nodes send requests on.
fn calm() -> Cluster {
    let mut cluster = Cluster::down_calm(&FORWARD);
    cluster.start_all();
    cluster.wait_until_ready();
    cluster
}

/// Whether `node` answers through the leader.
fn is_forwarding(node: &Node) -> bool {
    let answer = node.ask("/timestamp");
    answer.is_some_and(|it| it.status == 200 && it.header("epicepoch-forwarded").is_some())
}

/// Waits until `node` answers through the leader.
#[track_caller]
fn wait_until_forwarded(node: &Node) {
    wait_until("a request is sent on", WAIT_MAX, || is_forwarding(node));
}

#[test]
fn every_node_answers_while_leaders_are_killed_and_all_answers_are_in_order() {
    let mut cluster = Cluster::start_with(&FORWARD);
    let watch = Watch::start(&cluster);
    for _ in 0..3 {
        let mut leader = 0;
        wait_until("all others send requests on", WAIT_MAX, || {
            leader = cluster.wait_for_leader();
            cluster.others(leader).iter().all(|it| is_forwarding(&cluster.nodes[*it]))
        });
        cluster.nodes[leader].kill();
        let killed = Instant::now();
        watch.wait_for_service_since(killed);
        cluster.wait_for_leader_other_than(Some(leader), WAIT_MAX);
        cluster.nodes[leader].start();
        cluster.wait_until_ready();
    }
    let seen = watch.finish();
    // Three nodes were asked equally often. Had only the leader answered, two thirds would be
    // refusals.
    let forwarded: f64 = cluster
        .nodes
        .iter()
        .map(|node| {
            let name = "epicepoch_forwarded_total{outcome=\"answered\"}";
            node.metric(name).expect("a metric")
        })
        .sum();
    assert!(forwarded > 0.0, "{forwarded} requests were answered through the leader");
    assert!(seen.report.answered().count() > 0);
    cluster.assert_well();
}

/// The learner is asked as often as each voter. Two leaders are killed.
#[test]
fn a_learner_answers_through_the_leader_and_all_answers_are_in_order() {
    let mut cluster = Cluster::start_with(&FORWARD);
    let learner = cluster.add_joining(4, "node-4");
    for (name, value) in FORWARD {
        cluster.nodes[learner].set(name, value);
    }
    add(&mut cluster, learner);
    let id = cluster.nodes[learner].id;
    let role = format!("{id} learner");
    assert!(roles(&cluster).contains(&role));
    wait_until_forwarded(&cluster.nodes[learner]);
    let watch = Watch::start(&cluster);
    for _ in 0..2 {
        let leader = cluster.wait_for_leader();
        cluster.nodes[leader].kill();
        let next = cluster.wait_for_leader_other_than(Some(leader), WAIT_MAX);
        assert_ne!(next, learner, "a learner never leads");
        wait_until_forwarded(&cluster.nodes[learner]);
        cluster.nodes[leader].start();
        cluster.wait_until_ready();
    }
    assert!(roles(&cluster).contains(&role), "it is a learner all the time");
    let seen = watch.finish();
    let by_learner = seen.report.answered().filter(|(it, _)| it.node == id).count();
    assert!(by_learner > 0, "the watch got answers of the learner");
    let outcome = "epicepoch_forwarded_total{outcome=\"answered\"}";
    assert!(cluster.nodes[learner].metric(outcome) > Some(0.0), "through the leader");
    cluster.assert_well();
}

#[test]
fn a_forwarded_answer_names_the_leader_and_only_a_client_that_follows_gets_the_409() {
    let cluster = calm();
    let leader = cluster.wait_for_leader();
    let addr = cluster.nodes[leader].http().to_string();
    let node = &cluster.nodes[cluster.others(leader)[0]];
    wait_until_forwarded(node);
    let id = node.id.to_string();
    for (path, len) in [
        ("/timestamp", 16),
        ("/timestamp?n=3", 48),
        ("/timestamp?n=3&format=range", 24),
        ("/timestamp?n=5000", 80_000),
    ] {
        let answer = node.ask(path).expect("an answer");
        assert_eq!((answer.status, answer.body.len()), (200, len), "{path} {answer:?}");
        assert_eq!(answer.header("epicepoch-forwarded"), Some(&*id), "{path}");
        assert_eq!(answer.header("epicepoch-leader"), Some(&*addr), "{path}");
    }
    let json = node.ask("/timestamp?format=json").expect("an answer");
    assert_eq!((json.status, json.header("epicepoch-forwarded")), (200, Some(&*id)), "{json:?}");
    let direct = [("epicepoch-direct", "1")];
    let refused = [
        node.ask_with("GET", "/timestamp", &direct),
        node.ask_with("POST", "/timestamp?format=json", &direct),
        node.ask("/latest"),
        node.ask("/timestamp?guarantee=lease"),
    ];
    for answer in refused {
        let answer = answer.expect("an answer");
        assert_eq!((answer.status, answer.error()), (409, Some("NOT_LEADER")), "{answer:?}");
        assert_eq!(answer.header("epicepoch-leader"), Some(&*addr), "{answer:?}");
    }
    let bad = node.ask("/timestamp?n=100000").expect("an answer");
    assert_eq!((bad.status, bad.error()), (400, Some("BAD_COUNT")), "MAX_N holds here, too");
    let ready = node.ask("/ready").expect("an answer").text();
    assert!(ready.contains("forwards=true"), "{ready}");
    let own = cluster.nodes[leader].ask("/timestamp").expect("an answer");
    assert_eq!((own.status, own.header("epicepoch-forwarded")), (200, None), "{own:?}");
}

#[test]
fn a_node_whose_leader_is_paused_gives_up_within_the_deadline() {
    let mut cluster = calm();
    let leader = cluster.wait_for_leader();
    let others = cluster.others(leader);
    wait_until_forwarded(&cluster.nodes[others[0]]);
    for index in [leader, others[1]] {
        cluster.nodes[index].pause();
    }
    for _ in 0..3 {
        let asked = Instant::now();
        let mut wire = Wire::open(cluster.nodes[others[0]].http(), WAIT_MAX).expect("it accepts");
        let answer = wire.get("/timestamp").expect("an answer");
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(asked.elapsed() < GIVEN_UP, "{:?}", asked.elapsed());
    }
    for index in [leader, others[1]] {
        cluster.nodes[index].resume();
    }
    cluster.wait_until_ready();
    cluster.assert_well();
}

const TOKEN: &str = "client-token-0123456789";
const OTHER: &str = "other-token-0123456789";

/// The settings of a client that shows a certificate of `dir`, or none.
fn tls(dir: &Path, shown: Option<&str>, alpn: &[&[u8]]) -> Arc<ClientConfig> {
    let file = |name: &str| PemFile::new("client", dir.join(name));
    let pair = shown.map(|name| {
        let (certificate, key) = (file(&format!("{name}.pem")), file(&format!("{name}.key")));
        LivePair::new(Pair::load(certificate, key).expect("a pair"))
    });
    Arc::new(client_config(LiveRoots::load(file("ca.pem")).expect("authorities"), pair, alpn))
}

/// Sends a request over TLS. Returns status and text of the answer; status 0 if there is none.
fn ask(node: &Node, config: &Arc<ClientConfig>, path: &str, token: &str) -> (u16, String) {
    let Ok(stream) = TcpStream::connect(node.http()) else { return (0, String::new()) };
    stream.set_read_timeout(Some(WAIT_MAX)).expect("a limit");
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    let session = ClientConnection::new(config.clone(), name).expect("a session");
    let mut stream = StreamOwned::new(session, stream);
    let head = format!("host: localhost\r\nconnection: close\r\nauthorization: Bearer {token}\r\n");
    let mut answer = Vec::new();
    // An error is no answer, too.
    let _ = stream.write_all(format!("GET {path} HTTP/1.1\r\n{head}\r\n").as_bytes());
    let _ = stream.read_to_end(&mut answer);
    let text = String::from_utf8_lossy(&answer).to_lowercase();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or(0), text)
}

/// Clients show a certificate and a token, and nodes show theirs to each other.
#[test]
fn every_node_answers_where_clients_and_nodes_show_certificates_and_tokens() {
    let home = tempfile::tempdir().expect("a directory");
    let mut cluster = Cluster::down_calm(&[FORWARD[0], ("CLIENT_TLS", "on")]);
    secure_peers(&mut cluster, home.path());
    let peers = home.path().join("peers");
    let made = cluster.run(&["certs", "client", "--dir", &peers.display().to_string(), "app"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let tokens = home.path().join("tokens");
    std::fs::write(&tokens, TOKEN).expect("written");
    for node in &mut cluster.nodes {
        let file = |name: &str| peers.join(name).display().to_string();
        node.set("CERT_FILE", file(&format!("node-{}.pem", node.id)));
        node.set("KEY_FILE", file(&format!("node-{}.key", node.id)));
        node.set("CLIENT_CA_FILE", file("ca.pem"));
        node.set("CLIENT_TOKEN_FILE", tokens.display());
    }
    cluster.start_all();
    let client = tls(&peers, Some("client-app"), &[]);
    let wait_for = |cluster: &Cluster, indexes: &[usize]| {
        let mut leader = 0;
        wait_until("every node answers, all but one through the leader", WAIT_MAX, || {
            let all = indexes.iter().map(|at| &cluster.nodes[*at]);
            let answers: Vec<_> = all.map(|it| ask(it, &client, "/timestamp", TOKEN)).collect();
            let own = |(_, (status, text)): &(usize, &(u16, String))| {
                *status == 200 && !text.contains("\r\nepicepoch-forwarded: ")
            };
            let own: Vec<_> = answers.iter().enumerate().filter(own).map(|it| it.0).collect();
            leader = own.first().map_or(0, |at| indexes[*at]);
            own.len() == 1 && answers.iter().all(|(status, _)| *status == 200)
        });
        leader
    };
    let leader = wait_for(&cluster, &[0, 1, 2]);
    for (at, node) in cluster.nodes.iter().enumerate() {
        let (status, text) = ask(node, &client, "/timestamp", OTHER);
        assert_eq!(status, 401, "{at}: {text}");
        // It was refused where it was asked.
        let (_, text) = ask(node, &client, "/metrics", TOKEN);
        let denied = "epicepoch_denied_total{right=\"timestamps\",reason=\"wrong_token\"} 1\n";
        assert!(text.contains(denied), "{at}: {text}");
        for shown in [None, Some("client-app")] {
            let impostor = tls(&peers, shown, &[ALPN_FORWARD]);
            let (status, text) = ask(node, &impostor, "/timestamp", TOKEN);
            assert_eq!(status, 0, "{at}: {text}");
        }
    }
    let (_, text) = ask(&cluster.nodes[leader], &client, "/metrics", TOKEN);
    let denied = "epicepoch_denied_total{right=\"peer\",reason=\"certificate_name\"} 1\n";
    assert!(text.contains(denied), "{text}");
    cluster.nodes[leader].kill();
    wait_for(&cluster, &cluster.others(leader));
}
