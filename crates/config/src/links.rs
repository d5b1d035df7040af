//! Settings of the connections between nodes: certificates, and whether plain text is allowed.

use std::path::PathBuf;

/// Settings of the connections between nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    /// This node's certificate for other nodes (`PEER_CERT_FILE`), with its chain. Default none,
    /// which means plain text.
    pub cert_file: Option<PathBuf>,
    /// The key of the certificate (`PEER_KEY_FILE`).
    pub key_file: Option<PathBuf>,
    /// The authorities that sign the certificates of nodes (`PEER_CA_FILE`).
    pub ca_file: Option<PathBuf>,
    /// Which connections use TLS (`PEER_TLS`). Default on if the three files are set, otherwise
    /// off.
    pub tls: Option<PeerTlsMode>,
    /// Whether plain text may go to other machines (`PEER_PLAIN`). Default off, because an attacker
    /// who changes the messages between nodes can cause timestamps to be given twice.
    pub allows_plain: bool,
}

/// Which connections between nodes use TLS. `Accept` and `Dial` are the steps from plain text to
/// TLS or back. Each step restarts every node once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerTlsMode {
    /// No connection uses TLS.
    Off,
    /// Accepts TLS and plain text; dials plain text.
    Accept,
    /// Accepts TLS and plain text; dials TLS.
    Dial,
    /// Every connection uses TLS.
    On,
}

impl PeerTlsMode {
    /// Reads `off`, `accept`, `dial` or `on`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "off" => Some(Self::Off),
            "accept" => Some(Self::Accept),
            "dial" => Some(Self::Dial),
            "on" => Some(Self::On),
            _ => None,
        }
    }

    /// Returns the text that [`Self::parse`] reads.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Accept => "accept",
            Self::Dial => "dial",
            Self::On => "on",
        }
    }

    /// Whether this node dials with TLS.
    #[must_use]
    pub const fn dials(self) -> bool {
        matches!(self, Self::Dial | Self::On)
    }

    /// Whether this node accepts plain text.
    #[must_use]
    pub const fn accepts_plain(self) -> bool {
        !matches!(self, Self::On)
    }
}

impl Links {
    /// The given mode, or the default.
    #[must_use]
    pub fn mode(&self) -> PeerTlsMode {
        let is_given = self.cert_file.is_some();
        self.tls.unwrap_or(if is_given { PeerTlsMode::On } else { PeerTlsMode::Off })
    }
}
