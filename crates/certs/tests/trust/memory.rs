//! A handshake without sockets, and the files for it.

use std::path::Path;
use std::sync::Arc;

use epicepoch_certs::authority::Issued;
use epicepoch_certs::rustls::pki_types::ServerName;
use epicepoch_certs::rustls::{
    ClientConfig, ClientConnection, Error, ServerConfig, ServerConnection,
};
use epicepoch_certs::{LivePair, LiveRoots, Pair, PemFile};

/// Both ends after a handshake.
pub(crate) struct Ends {
    pub(crate) client: ClientConnection,
    pub(crate) server: ServerConnection,
}

/// Does a handshake for `name`, and passes on the bytes that follow it. With these bytes, the
/// client gets its session tickets, and learns whether a server of TLS 1.3 accepts its certificate.
pub(crate) fn shake_hands(
    client: &Arc<ClientConfig>,
    server: &Arc<ServerConfig>,
    name: &str,
) -> Result<Ends, Error> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(client.clone(), name).unwrap();
    let mut server = ServerConnection::new(server.clone()).unwrap();
    for _ in 0..8 {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        feed(&bytes, |rest| server.read_tls(rest).unwrap());
        server.process_new_packets()?;
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        feed(&bytes, |rest| client.read_tls(rest).unwrap());
        client.process_new_packets()?;
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    Ok(Ends { client, server })
}

fn feed(mut bytes: &[u8], mut read: impl FnMut(&mut &[u8]) -> usize) {
    while !bytes.is_empty() {
        read(&mut bytes);
    }
}

/// Writes the two files of a pair into a directory.
pub(crate) fn write(directory: &Path, name: &str, issued: &Issued) -> (PemFile, PemFile) {
    let certificate = directory.join(format!("{name}.pem"));
    let key = directory.join(format!("{name}.key"));
    std::fs::write(&certificate, &issued.certificate).unwrap();
    std::fs::write(&key, &issued.key).unwrap();
    (PemFile::new("CERT_FILE", certificate), PemFile::new("KEY_FILE", key))
}

/// A pair from files that `write` made.
pub(crate) fn pair(directory: &Path, name: &str, issued: &Issued) -> Arc<LivePair> {
    let (certificate, key) = write(directory, name, issued);
    LivePair::new(Pair::load(certificate, key).unwrap())
}

/// Trust in the authorities of a bundle.
pub(crate) fn roots(directory: &Path, name: &str, bundle: &str) -> Arc<LiveRoots> {
    let path = directory.join(format!("{name}.ca"));
    std::fs::write(&path, bundle).unwrap();
    LiveRoots::load(PemFile::new("CLIENT_CA_FILE", path)).unwrap()
}
