//! Whom a node dials and does not find: it says nothing to him, not even hello.

use std::io::Read as _;
use std::net::TcpListener;
use std::sync::Arc;

use epicepoch_certs::authority::{Authority, Issued, Validity};
use epicepoch_certs::rustls::{ServerConnection, StreamOwned};
use epicepoch_certs::{LivePair, LiveRoots, Pair, PemFile, peer_server_config};
use epicepoch_wire::NodeId;

use crate::authorities::{Fixture, PATIENCE, write};

/// What node 1 says, behind the handshake, to who answers at node 2's address with `issued`.
fn said_to(fixture: &Fixture, port: &TcpListener, issued: &Issued) -> Vec<u8> {
    let (certificate, key) = (fixture.path("other.pem"), fixture.path("other.key"));
    write(&certificate, &issued.certificate);
    write(&key, &issued.key);
    let file = |path| PemFile::new("OTHER", path);
    let pair = LivePair::new(Pair::load(file(certificate), file(key)).unwrap());
    let roots = LiveRoots::load(file(fixture.path("ca.pem"))).unwrap();
    let config = Arc::new(peer_server_config(pair, roots));
    let (stream, _) = port.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
    let mut said = vec![0; 4096];
    match stream.read(&mut said) {
        Ok(length) => said.truncate(length),
        Err(_) => said.clear(),
    }
    said
}

#[test]
fn nothing_is_said_to_who_answers_in_the_place_of_a_peer() {
    let fixture = Fixture::new();
    let port = TcpListener::bind(fixture.raft[1]).unwrap();
    let _dialling = fixture.start(1);
    let third = fixture.issued(3, 30);
    assert_eq!(said_to(&fixture, &port, &third), b"", "node 3 in the place of node 2");
    let other = Authority::new("secured").unwrap();
    let forged = other.node(NodeId(2), &[], Validity::days(30)).unwrap();
    assert_eq!(said_to(&fixture, &port, &forged), b"", "another authority");
    let wild = fixture.authority.node(
        NodeId(9),
        &["*.secured.epicepoch.internal".to_owned()],
        Validity::days(1),
    );
    if let Ok(wild) = wild {
        assert_eq!(said_to(&fixture, &port, &wild), b"", "a wildcard");
    }
    // And it does speak to who is node 2.
    let second = fixture.issued(2, 30);
    assert!(!said_to(&fixture, &port, &second).is_empty());
}
