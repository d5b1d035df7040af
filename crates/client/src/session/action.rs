//! What a session and its driver tell each other: settings, connections by number, actions, and
//! news for an observer.

use std::time::Duration;

use epicepoch_wire::Guarantee;

use crate::error::FailedAttempt;

/// The settings of a session.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Addresses to begin with, `host:port`, never empty.
    pub addrs: Vec<String>,
    /// Seed of the random part of waits.
    pub seed: u64,
    /// The cluster name that nodes must have. `None` accepts any name.
    pub cluster_name: Option<String>,
    /// How long one node may take to answer before another one is asked.
    pub attempt_timeout: Duration,
    /// How often the client asks for the addresses of the members again.
    pub refresh_interval: Duration,
    /// Time after which an unanswered request is sent a second time. `None` means never.
    pub hedge_after: Option<Duration>,
    /// The guarantee that the driver names in each client hello; `Quorum` if it names none.
    pub guarantee: Guarantee,
}

/// The number of a connection. The session ignores events of a connection that it has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkId {
    pub(super) number: u64,
    pub(super) is_hedge: bool,
}

/// An action that the session asks of its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect to the node, and report the result to
    /// [`handle_opened`](super::Session::handle_opened). The driver needs no timeout here, because
    /// the session closes a connection that takes too long.
    Open {
        /// The number of the new connection.
        link: LinkId,
        /// The address of the node.
        addr: String,
    },
    /// Close the connection, or stop connecting.
    Close {
        /// The number of the connection.
        link: LinkId,
    },
    /// Open another connection to the node, only to read its welcome. Pass the welcome to
    /// [`handle_refreshed`](super::Session::handle_refreshed), and close the connection.
    Refresh {
        /// The address of the node.
        addr: String,
    },
}

/// News for an observer.
#[derive(Clone, Debug)]
pub(crate) enum Notice {
    Connected(String),
    FailedAttempt(FailedAttempt),
    Answered { callers: usize, timestamps: u64, latency: Duration },
}

impl LinkId {
    /// Returns the number. A session never uses a number twice.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.number
    }

    /// Whether this is the second connection, for hedged requests. At most one connection of each
    /// kind is open or being opened.
    #[must_use]
    pub const fn is_hedge(self) -> bool {
        self.is_hedge
    }
}
