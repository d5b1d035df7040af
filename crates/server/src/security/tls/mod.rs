//! TLS on the client port, on the workers' threads. This module loads the node's certificates and
//! the accepted authorities, and reloads them. It does not know the protocols inside TLS.
//!
//! - [`ClientTls`]: the TLS settings of the client port.
//! - `socket`: a client's socket, plain or TLS; the layers above use it the same way.
//! - `handshake`: handshakes of one worker, limited in number and in their share of its time.
//! - [`peers`]: mutual TLS between nodes; `peer_stream`: a connection between nodes, plain or TLS.
//! - [`reloader`]: reads certificates again when their files change, and warns before they expire.

use std::sync::Arc;

use epicepoch_certs::config::{ALPN_H2, ALPN_H3, ALPN_HTTP1, ALPN_NATIVE};
use epicepoch_certs::rustls::ServerConfig;
use epicepoch_certs::{
    FileError, LivePair, LiveRoots, Pair, PairError, PemFile, RootsError, server_config,
};

use crate::config::{ClientTlsMode, Config, host_and_port};

pub(crate) mod handshake;
pub(crate) mod peer_stream;
pub mod peers;
pub mod reloader;
pub(crate) mod socket;

use reloader::Certificates;

/// The TLS settings of the client port.
#[derive(Debug)]
pub struct ClientTls {
    /// Whether plain connections are accepted, too.
    pub takes_plain: bool,
    /// The settings of rustls for clients.
    pub config: Arc<ServerConfig>,
    /// The settings of rustls for `OPS_ADDR`. That port needs no client certificates, because
    /// `CLIENT_CA_FILE` is for clients: monitoring has no certificate, and operators who change
    /// something have a token.
    pub operators: Arc<ServerConfig>,
    /// The node's certificate.
    pub pair: Arc<LivePair>,
    /// The authorities of clients; `None` if clients need no certificate.
    pub roots: Option<Arc<LiveRoots>>,
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// `CERT_FILE` or `KEY_FILE` cannot be used. Correct the setting or the file.
    #[error(transparent)]
    Pair(#[from] PairError),
    /// A file of authorities cannot be used. Correct the setting or the file.
    #[error(transparent)]
    Roots(#[from] RootsError),
}

impl ClientTls {
    /// Reads the files that `config` names; `None` if TCP clients speak no TLS. A missing
    /// certificate and key are created, unless clients need certificates.
    ///
    /// # Errors
    /// When a file cannot be used.
    pub fn load(config: &Config) -> Result<Option<Self>, TlsError> {
        let takes_plain = match config.tls.clients {
            ClientTlsMode::Off => return Ok(None),
            ClientTlsMode::On => false,
            ClientTlsMode::Both => true,
        };
        let roots = config.tls.client_ca_file.as_ref();
        let pair = match roots {
            // If clients need a certificate of an authority, the node needs one of an authority,
            // too. So none is created here.
            Some(_) => Pair::load(certificate_file(config), key_file(config))?,
            None => load_pair(config)?,
        };
        let pair = LivePair::new(pair);
        let roots = roots.map(|path| LiveRoots::load(PemFile::new("CLIENT_CA_FILE", path)));
        let roots = roots.transpose()?;
        let alpn = [ALPN_H2, ALPN_HTTP1, ALPN_NATIVE];
        let config = Arc::new(server_config(pair.clone(), roots.clone(), &alpn));
        let operators = Arc::new(server_config(pair.clone(), None, &[ALPN_H2, ALPN_HTTP1]));
        Ok(Some(Self { takes_plain, config, operators, pair, roots }))
    }

    /// Registers the files for reloading.
    pub fn keep(&self, certificates: &mut Certificates) {
        certificates.add_pair(self.pair.clone());
        self.roots.iter().for_each(|roots| certificates.add_roots(roots.clone()));
    }
}

/// The TLS settings of HTTP/3; `None` if HTTP/3 is off. They use the certificate and authorities of
/// TCP with TLS. If TCP has no TLS, HTTP/3 gets a certificate and key of its own, which are
/// reloaded from now on. If these cannot be created at the default place, the result is also
/// `None`: the node may have no right to write there, or only one of the two files is there. The
/// node still serves over TCP.
///
/// # Errors
/// When a file cannot be used.
pub fn load_http3(
    config: &Config,
    tcp: Option<&ClientTls>,
    certificates: &mut Certificates,
) -> Result<Option<Arc<ServerConfig>>, TlsError> {
    if !config.tls.http3 {
        return Ok(None);
    }
    let (pair, roots) = match tcp {
        Some(tcp) => (tcp.pair.clone(), tcp.roots.clone()),
        None => match load_pair(config) {
            Ok(pair) => {
                let pair = LivePair::new(pair);
                certificates.add_pair(pair.clone());
                (pair, None)
            }
            Err(error @ (PairError::File(FileError::Write { .. }) | PairError::Half { .. }))
                if config.tls.names_no_pair() =>
            {
                tracing::warn!(
                    %error,
                    "HTTP/3 is off: it needs a certificate, and none can be made; set CERT_FILE \
                     and KEY_FILE, or HTTP3=off"
                );
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        },
    };
    Ok(Some(Arc::new(server_config(pair, roots, &[ALPN_H3]))))
}

/// Loads the node's certificate for clients, and creates it if it is missing.
///
/// # Errors
/// When a file cannot be used, or written.
pub fn load_pair(config: &Config) -> Result<Pair, PairError> {
    let (certificate, key) = (certificate_file(config), key_file(config));
    let is_new = !certificate.exists() && !key.exists();
    let pair = Pair::load_or_make(certificate, key, &names(config))?;
    if is_new {
        tracing::info!(
            certificate = %pair.certificate_file(),
            key = %pair.key_file(),
            names = names(config).join(","),
            "a self-signed certificate was made, because none was there: give it to the clients, or \
             replace it by one that an authority has signed"
        );
    }
    Ok(pair)
}

fn certificate_file(config: &Config) -> PemFile {
    PemFile::new("CERT_FILE", &config.tls.cert_file)
}

fn key_file(config: &Config) -> PemFile {
    PemFile::new("KEY_FILE", &config.tls.key_file)
}

/// The names and addresses under which clients may reach this node.
fn names(config: &Config) -> Vec<String> {
    let mut names: Vec<String> = [&config.advertise_addr, &config.raft_addr]
        .into_iter()
        .filter_map(|addr| host_and_port(addr))
        .map(|(host, _)| host.to_owned())
        .collect();
    if !config.http_bind.is_unspecified() {
        names.push(config.http_bind.to_string());
    }
    names.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
    let mut seen = Vec::new();
    names.retain(|name| {
        let is_new = !seen.contains(name);
        seen.push(name.clone());
        is_new
    });
    names
}

#[cfg(test)]
mod tests {
    use epicepoch_certs::authority::Authority;
    use epicepoch_wire::NodeId;

    use super::*;

    #[test]
    fn a_missing_pair_is_made_but_not_where_clients_are_held_to_an_authority() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let mut config = Config::new(NodeId(1), "n1.example:60001");
        config.tls.cert_file = path("cert.pem");
        config.tls.key_file = path("key.pem");
        assert!(ClientTls::load(&config).unwrap().is_none());
        assert!(!path("cert.pem").exists(), "nobody asked for one");
        config.tls.clients = ClientTlsMode::On;
        std::fs::write(path("ca.pem"), Authority::new("one").unwrap().certificate()).unwrap();
        config.tls.client_ca_file = Some(path("ca.pem"));
        let error = ClientTls::load(&config).unwrap_err().to_string();
        assert!(error.contains("CERT_FILE (") && !path("cert.pem").exists(), "{error}");
        config.tls.client_ca_file = None;
        let tls = ClientTls::load(&config).unwrap().expect("TLS");
        assert!(path("cert.pem").exists() && !tls.takes_plain);
        assert_eq!(names(&config), ["n1.example", "localhost", "127.0.0.1", "::1"]);
    }

    #[test]
    fn certificates_are_requested_from_all_clients_or_from_none() {
        let mut config = Config::new(NodeId(1), "localhost:60001").into_single();
        config.tls.client_ca_file = Some("ca.pem".into());
        for (mode, is_taken) in
            [(ClientTlsMode::Off, false), (ClientTlsMode::Both, false), (ClientTlsMode::On, true)]
        {
            config.tls.clients = mode;
            assert_eq!(config.check().is_ok(), is_taken, "{mode:?}");
        }
    }
}
