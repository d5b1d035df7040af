//! Settings of TLS for clients. A node reads the files when it starts and when they change.

use std::path::PathBuf;

/// Default file of the certificate, in the working directory.
pub const CERT_FILE_DEFAULT: &str = "cert.pem";
/// Default file of the key, in the working directory.
pub const KEY_FILE_DEFAULT: &str = "key.pem";

/// Settings of TLS for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Whether TCP clients use TLS (`CLIENT_TLS`). Default off.
    pub clients: ClientTlsMode,
    /// Whether HTTP/3 is served on the client port over UDP (`HTTP3`). Default on.
    pub http3: bool,
    /// The node's certificate with its chain (`CERT_FILE`). Default [`CERT_FILE_DEFAULT`]. If
    /// neither the certificate nor the key exists, the node writes a self-signed pair.
    pub cert_file: PathBuf,
    /// The key of the certificate (`KEY_FILE`). Default [`KEY_FILE_DEFAULT`].
    pub key_file: PathBuf,
    /// The authorities of clients (`CLIENT_CA_FILE`). If set, a client must present a certificate
    /// that one of them has signed. Default none: clients need no certificate.
    pub client_ca_file: Option<PathBuf>,
}

/// Which connections the client port accepts over TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientTlsMode {
    /// Plain text only.
    #[default]
    Off,
    /// TLS only.
    On,
    /// Plain text and TLS. The first byte shows which one a client uses.
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

    /// Returns the text that [`Self::parse`] reads.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Both => "both",
        }
    }
}

impl Tls {
    /// Whether `CERT_FILE` and `KEY_FILE` both have their default values.
    #[must_use]
    pub fn names_no_pair(&self) -> bool {
        self.cert_file.as_os_str() == CERT_FILE_DEFAULT
            && self.key_file.as_os_str() == KEY_FILE_DEFAULT
    }
}
