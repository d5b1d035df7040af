//! Rights, the ports on which they are granted, and the reasons for refusals.

use std::net::IpAddr;

use epicepoch_wire::http::{ErrorCode, HEADER_ADMIN};

/// The right that a caller needs for a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Right {
    /// The right to ask whether the node is well. Every caller has this right, because load
    /// balancers and supervisors have no token.
    Health,
    /// The right to get timestamps, and the addresses of nodes that give them.
    Timestamps,
    /// The right to read the pages for operators.
    Operations,
    /// The right to load the operators' page for browsers, which has no data of the node. It needs
    /// the same as [`Right::Operations`], except a token: a browser sends none before the page has
    /// asked for it.
    Page,
    /// The right to change the cluster, such as its members, its leader or its settings.
    Change,
    /// The right to speak as a member of the cluster: on the peer port, and when sending requests
    /// on to the client port. No route needs it.
    Peer,
}

impl Right {
    /// Every right, ordered by number.
    pub const ALL: [Self; 6] =
        [Self::Health, Self::Timestamps, Self::Operations, Self::Page, Self::Change, Self::Peer];

    /// The value of the label in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Health => "health",
            Self::Timestamps => "timestamps",
            Self::Operations => "operations",
            Self::Page => "page",
            Self::Change => "change",
            Self::Peer => "peer",
        }
    }

    /// Whether only operators have this right.
    pub(crate) const fn is_of_operators(self) -> bool {
        matches!(self, Self::Operations | Self::Page | Self::Change)
    }
}

/// The listener that accepted a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// The client port of a node without `OPS_ADDR`. It answers every request except those of
    /// peers.
    Shared,
    /// The client port of a node with `OPS_ADDR`.
    Clients,
    /// The port of operators, `OPS_ADDR`.
    Operations,
    /// The peer port.
    Peers,
}

impl Port {
    /// Whether this port answers requests that need `right`.
    #[must_use]
    pub const fn answers(self, right: Right) -> bool {
        match (self, right) {
            (Self::Peers, right) => matches!(right, Right::Peer),
            (_, Right::Peer) => false,
            (Self::Shared, _) | (_, Right::Health) => true,
            (Self::Clients, right) => matches!(right, Right::Timestamps),
            (Self::Operations, right) => right.is_of_operators(),
        }
    }
}

/// The facts about a caller that the caller cannot fake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The address of the caller, if the system knows it.
    pub from: Option<IpAddr>,
    /// The port that accepted the connection.
    pub port: Port,
    /// Whether the connection is encrypted, so that its content cannot be read or changed on the
    /// way.
    pub is_encrypted: bool,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// Another port answers this request.
    Port,
    /// The request came from another machine in plain text.
    Plain,
    /// The token is missing.
    NoToken,
    /// The token is not in the token file.
    WrongToken,
    /// `ADMIN_FROM` does not allow the address.
    Address,
    /// A change lacks the header that pages in browsers cannot send.
    Header,
    /// A peer has shown no certificate that this node accepts.
    Handshake,
    /// A peer has shown the certificate of another node or cluster.
    CertificateName,
    /// The request came from another machine over TLS, but the node has no tokens to identify
    /// operators.
    NoTokenFile,
    /// A caller of the peer port did not send its hello in time, or was dropped earlier to make
    /// room for other callers.
    NoHello,
    /// A request for operators names a host that is not this node. The node has no tokens, and a
    /// site may have rebound its name to the node's address.
    Host,
    /// A page of another site sent a request for operators, and the node has no tokens.
    Origin,
    /// A node that is no member sends requests on.
    NotMember,
    /// A node sends requests on without the checks of clients that this node makes.
    Unchecked,
}

impl Reason {
    /// Every reason, ordered by number.
    pub const ALL: [Self; 14] = [
        Self::Port,
        Self::Plain,
        Self::NoToken,
        Self::WrongToken,
        Self::Address,
        Self::Header,
        Self::Handshake,
        Self::CertificateName,
        Self::NoTokenFile,
        Self::NoHello,
        Self::Host,
        Self::Origin,
        Self::NotMember,
        Self::Unchecked,
    ];

    /// The value of the label in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Port => "port",
            Self::Plain => "plain_text",
            Self::NoToken => "no_token",
            Self::WrongToken => "wrong_token",
            Self::Address => "address",
            Self::Header => "header",
            Self::Handshake => "handshake",
            Self::CertificateName => "certificate_name",
            Self::NoTokenFile => "no_token_file",
            Self::NoHello => "no_hello",
            Self::Host => "host",
            Self::Origin => "origin",
            Self::NotMember => "not_member",
            Self::Unchecked => "unchecked",
        }
    }

    /// The code that a client gets.
    #[must_use]
    pub const fn code(self) -> ErrorCode {
        match self {
            Self::NoToken | Self::WrongToken => ErrorCode::Unauthorized,
            Self::Port
            | Self::Plain
            | Self::Address
            | Self::Header
            | Self::Handshake
            | Self::CertificateName
            | Self::NoTokenFile
            | Self::NoHello
            | Self::Host
            | Self::Origin
            | Self::NotMember
            | Self::Unchecked => ErrorCode::Forbidden,
        }
    }

    /// One line that names the missing right and tells the caller what to do.
    #[must_use]
    pub fn advice(self, right: Right) -> String {
        format!("missing right {}: {}", right.name(), self.remedy(right))
    }

    const fn remedy(self, right: Right) -> &'static str {
        match self {
            Self::Port => {
                "not answered on this port: if OPS_ADDR is set, ask there for metrics and /admin, and \
                 at HTTP_PORT for timestamps and members"
            }
            Self::Plain => {
                "operations are not taken from this address in plain text: ask at localhost on the \
                 node's own machine (only loopback counts as its own), or name the address in \
                 OPS_PLAIN_FROM on every node, or ask over TLS with a token of OPS_TOKEN_FILE; for \
                 changes, also name the address in ADMIN_FROM"
            }
            Self::NoToken if right.is_of_operators() => {
                "a token of OPS_TOKEN_FILE is needed: authorization: Bearer TOKEN, or --token-file of \
                 a command"
            }
            Self::NoToken => {
                "a token of CLIENT_TOKEN_FILE or OPS_TOKEN_FILE is needed: authorization: Bearer \
                 TOKEN, or --token-file of a command"
            }
            Self::WrongToken if right.is_of_operators() => {
                "this token is not in the OPS_TOKEN_FILE of this node: send one that is there, because \
                 a token of clients gives only timestamps"
            }
            Self::WrongToken => {
                "invalid token: send one of the CLIENT_TOKEN_FILE or OPS_TOKEN_FILE of this node"
            }
            Self::Address => {
                "changes are not taken from this address: ask at localhost on the node's own machine, \
                 or name the address in ADMIN_FROM on every node"
            }
            Self::Header => "a change needs the header epicepoch-admin, with any value",
            Self::Handshake => "a peer needs a certificate of an authority that this node trusts",
            Self::CertificateName => "a peer needs the certificate of its own node and cluster",
            Self::NoTokenFile => {
                "operators on another machine need a token, and this node has no token file: set \
                 OPS_TOKEN_FILE, or ask at localhost on the node's own machine, or name the address \
                 in OPS_PLAIN_FROM; for changes, also name it in ADMIN_FROM"
            }
            Self::NoHello => "a peer must send its hello as soon as it is connected",
            Self::Host => {
                "the host in this request is not a name of this node, and another site may have led \
                 a browser here: ask at an IP address, at localhost or at the host of a member's \
                 ADVERTISE_ADDR or RAFT_ADDR, or set OPS_TOKEN_FILE"
            }
            Self::Origin => {
                "a page of another site sent this request: ask at this node's own page, /ui, or leave \
                 the header origin out"
            }
            Self::NotMember => "only members of the cluster may send requests on",
            Self::Unchecked => {
                "this node asks its clients for a token or a certificate, and the node that sends \
                 their requests on does not: give all nodes the same CLIENT_TOKEN_FILE and \
                 CLIENT_CA_FILE"
            }
        }
    }
}

// The advice for a missing header contains the header's name. Here the name is checked against the
// constant.
const _: () = assert!(matches!(HEADER_ADMIN.as_bytes(), b"epicepoch-admin"));
