//! The certificates that either end accepts, and those that it refuses.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use epicepoch_certs::authority::{Authority, DAYS_DEFAULT, Validity};
use epicepoch_certs::rustls::client::Resumption;
use epicepoch_certs::rustls::pki_types::CertificateDer;
use epicepoch_certs::rustls::pki_types::pem::PemObject as _;
use epicepoch_certs::rustls::version::{TLS12, TLS13};
use epicepoch_certs::rustls::{
    ClientConfig, HandshakeKind, ProtocolVersion, ServerConfig, SupportedProtocolVersion,
};
use epicepoch_certs::{
    LivePair, LiveRoots, client_config, is_named, node_name, peer_client_config,
    peer_server_config, server_config,
};
use epicepoch_wire::NodeId;
use tempfile::TempDir;

use crate::memory::{pair, roots, shake_hands, write};

/// An authority, and one node with its certificate.
struct Cluster {
    directory: TempDir,
    authority: Authority,
    node: Arc<LivePair>,
    roots: Arc<LiveRoots>,
}

fn year() -> Validity {
    Validity::days(DAYS_DEFAULT)
}

impl Cluster {
    fn new(name: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new(name).unwrap();
        let issued = authority.node(NodeId(1), &["localhost".into()], year()).unwrap();
        let node = pair(directory.path(), "node", &issued);
        let roots = roots(directory.path(), "cluster", authority.certificate());
        Self { directory, authority, node, roots }
    }

    fn server(&self, clients: bool) -> Arc<ServerConfig> {
        let clients = clients.then(|| self.roots.clone());
        Arc::new(server_config(self.node.clone(), clients, &[b"h2", b"http/1.1"]))
    }

    fn client(&self, own: Option<Arc<LivePair>>) -> Arc<ClientConfig> {
        Arc::new(client_config(self.roots.clone(), own, &[b"h2"]))
    }

    fn client_pair(&self, validity: Validity) -> Arc<LivePair> {
        let issued = self.authority.client("app", validity).unwrap();
        pair(self.directory.path(), "app", &issued)
    }
}

#[test]
fn a_client_takes_a_node_of_its_authority_under_its_names_alone() {
    let cluster = Cluster::new("one");
    let (server, client) = (cluster.server(false), cluster.client(None));
    let ends = shake_hands(&client, &server, "localhost").unwrap();
    assert_eq!(ends.client.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    assert_eq!(ends.server.alpn_protocol(), Some(&b"h2"[..]));
    shake_hands(&client, &server, &node_name("one", NodeId(1))).unwrap();
    for name in [node_name("one", NodeId(2)), node_name("two", NodeId(1)), "127.0.0.1".into()] {
        assert!(shake_hands(&client, &server, &name).is_err(), "{name}");
    }
    let stranger = Cluster::new("one");
    assert!(shake_hands(&stranger.client(None), &server, "localhost").is_err());
}

#[test]
fn a_server_with_an_authority_for_clients_takes_no_others() {
    let cluster = Cluster::new("one");
    let server = cluster.server(true);
    let taken = |own| shake_hands(&cluster.client(own), &server, "localhost").map(|_| ());
    taken(Some(cluster.client_pair(year()))).unwrap();
    // A node's certificate works for a client, too.
    taken(Some(cluster.node.clone())).unwrap();
    taken(None).expect_err("no certificate");
    let past = SystemTime::now() - Duration::from_mins(1);
    taken(Some(cluster.client_pair(Validity::until(past)))).expect_err("an expired one");
    let stranger = Cluster::new("one");
    taken(Some(stranger.client_pair(year()))).expect_err("one of another authority");
    let made = tempfile::tempdir().unwrap();
    let (certificate, key) = (made.path().join("cert.pem"), made.path().join("key.pem"));
    let own = epicepoch_certs::Pair::load_or_make(
        epicepoch_certs::PemFile::new("CERT_FILE", certificate),
        epicepoch_certs::PemFile::new("KEY_FILE", key),
        &["localhost".to_owned()],
    );
    taken(Some(LivePair::new(own.unwrap()))).expect_err("one signed by itself");
}

#[test]
fn peers_show_certificates_both_ways_and_speak_to_peers_alone() {
    let cluster = Cluster::new("one");
    let issued = cluster.authority.node(NodeId(2), &[], year()).unwrap();
    let second = pair(cluster.directory.path(), "second", &issued);
    let server = Arc::new(peer_server_config(cluster.node.clone(), cluster.roots.clone()));
    let dial = Arc::new(peer_client_config(second, cluster.roots.clone()));
    let name = node_name("one", NodeId(1));
    let ends = shake_hands(&dial, &server, &name).unwrap();
    let shown = &ends.server.peer_certificates().unwrap()[0];
    assert!(is_named(shown, &node_name("one", NodeId(2))));
    assert!(!is_named(shown, &name));
    assert!(!is_named(shown, &node_name("two", NodeId(2))));
    // The dialling node expects node 3, and node 1 answers. The handshake fails.
    assert!(shake_hands(&dial, &server, &node_name("one", NodeId(3))).is_err());
    // A client shows a client's certificate and asks for HTTP/2. The port for peers refuses it.
    let client = cluster.client(Some(cluster.client_pair(year())));
    assert!(shake_hands(&client, &server, &name).is_err());
    let other = Cluster::new("one");
    let dial = peer_client_config(other.node.clone(), cluster.roots.clone());
    assert!(shake_hands(&Arc::new(dial), &server, &name).is_err());
}

#[test]
fn a_clients_certificate_is_no_nodes() {
    let cluster = Cluster::new("one");
    // The client's own name is that of a node. That does not make its certificate a node's.
    let issued = cluster.authority.client(&node_name("one", NodeId(1)), year()).unwrap();
    let own = pair(cluster.directory.path(), "app", &issued);
    assert!(!is_named(own.current().certificate(), &node_name("one", NodeId(1))));
    let server = Arc::new(server_config(own, None, &[]));
    let client = Arc::new(client_config(cluster.roots.clone(), None, &[]));
    assert!(shake_hands(&client, &server, &node_name("one", NodeId(1))).is_err());
}

#[test]
fn a_wildcard_is_not_a_name() {
    let cluster = Cluster::new("one");
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["*.one.epicepoch.internal".to_owned()];
    let params = rcgen::CertificateParams::new(names).unwrap();
    let made = params.self_signed(&key).unwrap();
    assert!(!is_named(made.der(), &node_name("one", NodeId(1))));
    assert!(is_named(cluster.node.current().certificate(), &node_name("one", NodeId(1))));
}

#[test]
fn a_pair_and_an_authority_are_replaced_between_two_handshakes() {
    let cluster = Cluster::new("one");
    let (server, client) = (cluster.server(true), cluster.client(Some(cluster.node.clone())));
    let before = shake_hands(&client, &server, "localhost").unwrap();
    assert_eq!((cluster.node.reload().unwrap(), cluster.roots.reload().unwrap()), (false, false));

    let next = Authority::new("one").unwrap();
    let issued = next.node(NodeId(1), &["localhost".into()], year()).unwrap();
    let both = format!("{}{}", cluster.authority.certificate(), next.certificate());
    let bundle = cluster.directory.path().join("cluster.ca");
    std::fs::write(&bundle, both).unwrap();
    assert!(cluster.roots.reload().unwrap());
    let old = cluster.node.current();
    write(cluster.directory.path(), "node", &issued);
    assert!(cluster.node.reload().unwrap());
    let after = shake_hands(&client, &server, "localhost").unwrap();
    let shown = |ends: &crate::memory::Ends| {
        ends.client.peer_certificates().unwrap()[0].clone().into_owned()
    };
    assert_eq!(&shown(&before), old.certificate());
    let new = CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap();
    assert_eq!(shown(&after), new);

    // The old authority's certificates are refused as soon as it is out of the bundle.
    let leftover = pair(cluster.directory.path(), "leftover", &{
        cluster.authority.client("app", year()).unwrap()
    });
    let with_leftover = cluster.client(Some(leftover));
    shake_hands(&with_leftover, &server, "localhost").unwrap();
    std::fs::write(&bundle, next.certificate()).unwrap();
    assert!(cluster.roots.reload().unwrap());
    assert!(shake_hands(&with_leftover, &server, "localhost").is_err());
    shake_hands(&client, &server, "localhost").unwrap();
}

/// A client that tries to resume its session, in one version of TLS.
fn eager(cluster: &Cluster, version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let mut config = builder
        .with_protocol_versions(&[version])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(cluster.roots.clone())
        .with_client_cert_resolver(cluster.node.clone());
    config.resumption = Resumption::in_memory_sessions(8);
    Arc::new(config)
}

#[test]
fn no_session_is_resumed() {
    let cluster = Cluster::new("one");
    for version in [&TLS12, &TLS13] {
        for server in [cluster.server(false), cluster.server(true)] {
            let client = eager(&cluster, version);
            for _ in 0..2 {
                let ends = shake_hands(&client, &server, "localhost").unwrap();
                assert_eq!(ends.client.handshake_kind(), Some(HandshakeKind::Full));
                assert_eq!(ends.client.protocol_version(), Some(version.version));
            }
        }
        let server = Arc::new(peer_server_config(cluster.node.clone(), cluster.roots.clone()));
        // Peers refuse TLS 1.2.
        let peer = shake_hands(&eager(&cluster, version), &server, "localhost");
        assert_eq!(peer.is_ok(), version.version == ProtocolVersion::TLSv1_3);
    }
}
