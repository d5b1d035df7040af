//! A node dials a peer. It sends nothing, not even its hello, until the other process has proved
//! that it is that peer.

use std::io::Read as _;
use std::net::TcpListener;
use std::sync::Arc;

use epicepoch_certs::authority::{Authority, Issued, Validity};
use epicepoch_certs::name::SUFFIX;
use epicepoch_certs::rustls::client::WebPkiServerVerifier;
use epicepoch_certs::rustls::client::danger::ServerCertVerifier as _;
use epicepoch_certs::rustls::crypto::ring::default_provider;
use epicepoch_certs::rustls::pki_types::pem::PemObject as _;
use epicepoch_certs::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use epicepoch_certs::rustls::{RootCertStore, ServerConnection, StreamOwned};
use epicepoch_certs::{LivePair, LiveRoots, Pair, PemFile, node_name, peer_server_config};
use epicepoch_server::Node;
use epicepoch_wire::NodeId;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::authorities::{CLUSTER, Fixture, Running, WAIT_MAX, write};

/// Plays a process at node 2's address that shows the certificate `issued`. Returns the bytes that
/// node 1 sends to it after the TLS handshake.
pub(crate) fn said_to(fixture: &Fixture, port: &TcpListener, issued: &Issued) -> Vec<u8> {
    let (certificate, key) = (fixture.path("other.pem"), fixture.path("other.key"));
    write(&certificate, &issued.certificate);
    write(&key, &issued.key);
    let file = |path| PemFile::new("OTHER", path);
    let pair = LivePair::new(Pair::load(file(certificate), file(key)).unwrap());
    let roots = LiveRoots::load(file(fixture.path("ca.pem"))).unwrap();
    let config = Arc::new(peer_server_config(pair, roots));
    let (stream, _) = port.accept().unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
    let mut said = vec![0; 4096];
    match stream.read(&mut said) {
        Ok(length) => said.truncate(length),
        Err(_) => said.clear(),
    }
    said
}

/// A certificate with a wildcard name, valid for every node of the cluster. Our authority never
/// signs one.
fn wildcard(authority: &Authority) -> Issued {
    let mut own = CertificateParams::default();
    own.distinguished_name = DistinguishedName::new();
    own.distinguished_name.push(DnType::OrganizationName, CLUSTER);
    own.distinguished_name.push(DnType::CommonName, "EpicEpoch authority");
    own.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let issuer = Issuer::new(own, KeyPair::from_pem(&authority.key()).unwrap());
    let mut params = CertificateParams::new([format!("*.{CLUSTER}.{SUFFIX}")]).unwrap();
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    // A common TLS client would accept this certificate, because it trusts the authority.
    let der = CertificateDer::from_pem_slice(authority.certificate().as_bytes()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(der).unwrap();
    let provider = default_provider().into();
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
    let name = ServerName::try_from(node_name(CLUSTER, NodeId(2))).unwrap();
    let taken = verifier.build().unwrap().verify_server_cert(
        certificate.der(),
        &[],
        &name,
        &[],
        UnixTime::now(),
    );
    taken.unwrap();
    Issued { certificate: certificate.pem(), key: key.serialize_pem() }
}

#[test]
fn a_process_at_the_address_of_a_peer_receives_no_byte() {
    let fixture = Fixture::new();
    let port = TcpListener::bind(fixture.raft[1]).unwrap();
    let _dialling = fixture.start(1);
    let third = fixture.issued(3, 30);
    assert_eq!(said_to(&fixture, &port, &third), b"", "node 3 in the place of node 2");
    let other = Authority::new("secured").unwrap();
    let forged = other.node(NodeId(2), &[], Validity::days(30)).unwrap();
    assert_eq!(said_to(&fixture, &port, &forged), b"", "another authority");
    let wild = wildcard(&fixture.authority);
    assert_eq!(said_to(&fixture, &port, &wild), b"", "a wildcard");
    // A process that shows the certificate of node 2 gets a hello.
    let second = fixture.issued(2, 30);
    assert!(!said_to(&fixture, &port, &second).is_empty());
}

#[test]
fn a_joining_node_sends_its_hello_only_to_nodes_of_its_cluster() {
    let fixture = Fixture::new();
    let other = Authority::new("other").unwrap();
    let both = format!("{}{}", fixture.authority.certificate(), other.certificate());
    write(&fixture.path("ca.pem"), &both);
    let port = TcpListener::bind(fixture.raft[1]).unwrap();
    let mut config = fixture.config(1);
    config.bootstrap = false;
    config.peers.clear();
    config.join = vec![fixture.raft[1].to_string()];
    let _joining = Running::of(Node::start(config).unwrap());
    let client = fixture.authority.client("somebody", Validity::days(1)).unwrap();
    assert_eq!(said_to(&fixture, &port, &client), b"", "a client of the authority");
    let foreign = other.node(NodeId(2), &[], Validity::days(1)).unwrap();
    assert_eq!(said_to(&fixture, &port, &foreign), b"", "a node of another cluster");
    // The joining node (node 1) sends its hello to any node of its cluster.
    assert!(!said_to(&fixture, &port, &fixture.issued(2, 30)).is_empty());
    assert!(!said_to(&fixture, &port, &fixture.issued(3, 30)).is_empty());
}
