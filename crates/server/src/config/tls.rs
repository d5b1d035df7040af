//! Settings of TLS: which certificate a node shows, whom it takes, and whether clients have to
//! speak it. The files are read when the node starts, and again while it runs (`tls::upkeep`).

use std::path::PathBuf;

use super::ConfigError;

/// File of the certificate when none is named, in the working directory.
pub const CERT_FILE_DEFAULT: &str = "cert.pem";
/// File of the key when none is named, in the working directory.
pub const KEY_FILE_DEFAULT: &str = "key.pem";

/// Settings of TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Whether TCP clients speak TLS (`CLIENT_TLS`). Default off.
    pub clients: ClientTlsMode,
    /// Whether HTTP/3 is served on the client port over UDP (`HTTP3`). Default on, as the contract
    /// says.
    pub http3: bool,
    /// The node's certificate, with those that vouch for it behind it (`CERT_FILE`). Default
    /// [`CERT_FILE_DEFAULT`]. Where it and the key are missing, a pair that is signed by itself is
    /// written.
    pub cert_file: PathBuf,
    /// Its key (`KEY_FILE`). Default [`KEY_FILE_DEFAULT`].
    pub key_file: PathBuf,
    /// Authorities of clients (`CLIENT_CA_FILE`): a client has to show a certificate that one of
    /// them has signed. Default none: clients show no certificate.
    pub client_ca_file: Option<PathBuf>,
}

/// What the client port takes over TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientTlsMode {
    /// Plain connections alone.
    #[default]
    Off,
    /// TLS alone.
    On,
    /// Either, told apart by the first byte.
    Both,
}

impl ClientTlsMode {
    /// Reads `off`, `on` or `both`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "off" => Some(Self::Off),
            "on" => Some(Self::On),
            "both" => Some(Self::Both),
            _ => None,
        }
    }

    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Both => "both",
        }
    }
}

impl Default for Tls {
    fn default() -> Self {
        Self {
            clients: ClientTlsMode::default(),
            http3: true,
            cert_file: PathBuf::from(CERT_FILE_DEFAULT),
            key_file: PathBuf::from(KEY_FILE_DEFAULT),
            client_ca_file: None,
        }
    }
}

impl Tls {
    /// Whether neither the certificate nor the key is named.
    #[must_use]
    pub fn names_no_pair(&self) -> bool {
        self.cert_file.as_os_str() == CERT_FILE_DEFAULT
            && self.key_file.as_os_str() == KEY_FILE_DEFAULT
    }

    /// Holds the settings to each other.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.client_ca_file.is_some() && self.clients != ClientTlsMode::On {
            return Err(ConfigError::ClientCaWithoutTls { mode: self.clients.name() });
        }
        Ok(())
    }
}
