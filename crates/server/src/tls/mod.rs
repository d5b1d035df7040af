//! TLS on the client port, on the workers' threads: what a node shows and whom it takes is loaded
//! here and kept up to date; what is spoken inside is not known here.
//!
//! - [`ClientTls`]: what the client port needs to speak TLS.
//! - `socket`: a client's socket, plain or secured; everything above reads and writes it.
//! - `handshake`: handshakes of one worker, bounded in number and in their share of its time.
//! - [`upkeep`]: certificates are read again when their files change, and their expiry is told.

use std::sync::Arc;

use epicepoch_certs::config::{ALPN_H2, ALPN_H3, ALPN_HTTP1, ALPN_NATIVE};
use epicepoch_certs::rustls::ServerConfig;
use epicepoch_certs::{
    FileError, LivePair, LiveRoots, Pair, PairError, PemFile, RootsError, server_config,
};

use crate::config::{ClientTlsMode, Config, host_and_port};

pub(crate) mod handshake;
pub(crate) mod socket;
pub mod upkeep;

use upkeep::Certificates;

/// What the client port needs to speak TLS.
#[derive(Debug)]
pub struct ClientTls {
    /// Whether a plain connection is taken, too.
    pub takes_plain: bool,
    /// As rustls takes it.
    pub config: Arc<ServerConfig>,
    /// The same for `OPS_ADDR`: `CLIENT_CA_FILE` is for clients. Who looks after the node's health has
    /// no certificate, and who changes anything has a token.
    pub operators: Arc<ServerConfig>,
    /// The node's certificate.
    pub pair: Arc<LivePair>,
    /// The authorities of clients, if these have to show certificates.
    pub roots: Option<Arc<LiveRoots>>,
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// Correct `CERT_FILE` or `KEY_FILE`, or what is in them.
    #[error(transparent)]
    Pair(#[from] PairError),
    /// Correct a file of authorities, or what is in it.
    #[error(transparent)]
    Roots(#[from] RootsError),
}

impl ClientTls {
    /// Reads what `config` names; `None` if TCP clients speak no TLS. A missing pair is made.
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
            // Where clients are held to an authority, a node that nobody vouches for is a slip.
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

    /// Has what was read kept up to date.
    pub fn keep(&self, certificates: &mut Certificates) {
        certificates.add_pair(self.pair.clone());
        self.roots.iter().for_each(|roots| certificates.add_roots(roots.clone()));
    }
}

/// What HTTP/3 shows and whom it takes: the same as TCP with TLS, or a pair for HTTP/3 alone, which
/// is kept up to date from now on. `None` if HTTP/3 is off, or if nobody has named a certificate and
/// none can be made where it would be, since the node may not write there or half a pair is there: it
/// still serves over TCP.
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
                    "HTTP/3 is off: it needs a certificate, and none can be made; name CERT_FILE \
                     and KEY_FILE, or set HTTP3=off"
                );
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        },
    };
    Ok(Some(Arc::new(server_config(pair, roots, &[ALPN_H3]))))
}

/// The node's certificate for clients, made if it is missing.
///
/// # Errors
/// When a file cannot be used, or written.
pub fn load_pair(config: &Config) -> Result<Pair, PairError> {
    let (certificate, key) = (certificate_file(config), key_file(config));
    let is_new = !certificate.exists() && !key.exists();
    let pair = Pair::load_or_make(certificate, key, &names(config))?;
    if is_new {
        tracing::warn!(
            certificate = %pair.certificate_file(), key = %pair.key_file(), names = ?names(config),
            "no certificate was there: one that is signed by itself was written; clients have to \
             be given it, or a certificate of an authority to be put in its place"
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

/// What clients may call this node.
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
    fn certificates_are_asked_for_of_everybody_or_of_nobody() {
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
