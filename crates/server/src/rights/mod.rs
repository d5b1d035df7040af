//! Who may do what: each route needs one right ([`crate::http::route`]), and here is said who has it.
//! What is not allowed is refused, logged and counted. It knows no path and opens no socket, and a
//! token never gets into a text of its.
//!
//! - [`tokens`]: tokens from a file, and whether one of them was sent.
//! - [`denials`]: who was refused, for the log and for metrics.
//!
//! Four things are asked, in this order, so that a token is not looked at where it must not be sent:
//! does the port answer this at all, may it come from there in the way it came, is there a token,
//! and, for a change, does it come from where changes are taken.

use std::net::IpAddr;

use epicepoch_wire::http::{ErrorCode, HEADER_ADMIN};
use http::HeaderMap;
use http::header::AUTHORIZATION;

use crate::config::{AllowedFrom, RightsConfig};
use crate::http::route::NATIVE;

pub mod denials;
pub mod tokens;

use denials::Denials;
use tokens::{TokenFileError, Tokens};

/// What somebody must be allowed to do for a route to answer him.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Right {
    /// Nothing: whether the node is well. Load balancers and supervisors have no token.
    Health,
    /// To get timestamps, and to know where.
    Timestamps,
    /// To see what operators see.
    Operations,
    /// To change who belongs to the cluster, or who leads it.
    Change,
    /// To speak as a member of the cluster: no route needs it, the peer port does.
    Peer,
}

impl Right {
    /// Every right, in the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::Health, Self::Timestamps, Self::Operations, Self::Change, Self::Peer];

    /// The value of the label in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Health => "health",
            Self::Timestamps => "timestamps",
            Self::Operations => "operations",
            Self::Change => "change",
            Self::Peer => "peer",
        }
    }
}

/// Which listener a connection came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// The client port of a node without `OPS_ADDR`: it answers everything.
    Shared,
    /// The client port beside `OPS_ADDR`.
    Clients,
    /// `OPS_ADDR`.
    Operations,
    /// The port of other nodes.
    Peers,
}

impl Port {
    /// Whether what needs `right` is answered here.
    #[must_use]
    pub const fn answers(self, right: Right) -> bool {
        match (self, right) {
            (Self::Peers, right) => matches!(right, Right::Peer),
            (_, Right::Peer) => false,
            (Self::Shared, _) | (_, Right::Health) => true,
            (Self::Clients, right) => matches!(right, Right::Timestamps),
            (Self::Operations, right) => matches!(right, Right::Operations | Right::Change),
        }
    }
}

/// Whom a connection is from, as far as nobody can lie about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Where it comes from, if the system knows.
    pub from: Option<IpAddr>,
    /// Where it came in.
    pub port: Port,
    /// Whether nobody on the way reads or changes what it carries.
    pub is_encrypted: bool,
}

/// Why somebody is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// It is answered on another port.
    Port,
    /// It came from another machine in plain text.
    Plain,
    /// There was no token.
    NoToken,
    /// The token is none of the file's.
    WrongToken,
    /// `ADMIN_FROM` has no such address.
    Address,
    /// A change without the header that pages in browsers cannot send.
    Header,
    /// A peer without a certificate that this node takes.
    Handshake,
    /// A peer with the certificate of another node or cluster.
    CertificateName,
    /// It came from another machine over TLS, to a node that has no tokens to know operators by.
    NoTokenFile,
    /// Who connects to the peer port and does not say in time who he is, or has to give way before.
    NoHello,
}

impl Reason {
    /// Every reason, in the order of their numbers.
    pub const ALL: [Self; 10] = [
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
            | Self::NoHello => ErrorCode::Forbidden,
        }
    }

    /// What the caller can do, in words.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Port => {
                "this is not answered on this port: metrics and /admin are at OPS_ADDR where it is \
                 set, timestamps and members at HTTP_PORT"
            }
            Self::Plain => {
                "operations are not taken from this address in plain text: ask at localhost on the \
                 node's own machine (its other addresses count as another machine's), or allow the \
                 address on every node by OPS_PLAIN_FROM, or ask over TLS with a token of \
                 OPS_TOKEN_FILE; either way changes need the address in ADMIN_FROM, too"
            }
            Self::NoToken => "a token is needed: authorization: Bearer TOKEN",
            Self::WrongToken => "the token is none that this node takes",
            Self::Address => {
                "changes are not taken from this address: ask at localhost on the node's own machine, \
                 or allow the address by ADMIN_FROM on every node"
            }
            Self::Header => "a change needs the header epicepoch-admin, with any value",
            Self::Handshake => "a peer needs a certificate of an authority that this node trusts",
            Self::CertificateName => "a peer needs the certificate of its own node and cluster",
            Self::NoTokenFile => {
                "operators are taken from another machine with a token, and this node knows none: \
                 set OPS_TOKEN_FILE, ask at localhost on the node's own machine, or allow the address \
                 by OPS_PLAIN_FROM; from another machine changes need it in ADMIN_FROM, too"
            }
            Self::NoHello => "a peer says who it is as soon as it is connected",
        }
    }
}

// The advice names it as people type it.
const _: () = assert!(matches!(HEADER_ADMIN.as_bytes(), b"epicepoch-admin"));

/// What a node knows of rights.
#[derive(Debug)]
pub struct Rights {
    ops_plain_from: AllowedFrom,
    admin_from: AllowedFrom,
    /// Tokens of clients; `None` where nobody needs one.
    pub(crate) clients: Option<Tokens>,
    /// Tokens of operators; `None` where none opens anything: then the address alone decides.
    pub(crate) operations: Option<Tokens>,
    /// Who was refused.
    pub denials: Denials,
}

impl Rights {
    /// Reads the files that a configuration names.
    ///
    /// # Errors
    /// When a file cannot be read, or holds no tokens.
    pub fn load(config: &RightsConfig) -> Result<Self, TokenFileError> {
        let read = |setting, path: &Option<std::path::PathBuf>| {
            path.as_ref().map(|path| Tokens::read(setting, path)).transpose()
        };
        Ok(Self {
            ops_plain_from: config.ops_plain_from.clone(),
            admin_from: config.admin_from.clone(),
            clients: read("CLIENT_TOKEN_FILE", &config.client_token_file)?,
            operations: read("OPS_TOKEN_FILE", &config.ops_token_file)?,
            denials: Denials::default(),
        })
    }

    /// Reads the files again. What cannot be read, or holds no tokens, leaves the old ones in force.
    pub fn reload(&self) {
        self.clients.iter().chain(&self.operations).for_each(Tokens::reload);
    }

    /// Whether a request over HTTP has a right.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, right: Right, caller: &Caller, headers: &HeaderMap) -> Result<(), Reason> {
        self.check_caller(right, caller)?;
        if let Some(tokens) = self.tokens(right) {
            let mut given = headers.get_all(AUTHORIZATION).iter();
            let (first, second) = (given.next(), given.next());
            // Two are none: whoever is between may have looked at the other one.
            let sent = first.filter(|_| second.is_none()).map(http::HeaderValue::as_bytes);
            check_token(tokens, sent.and_then(bearer))?;
        }
        if right != Right::Change {
            return Ok(());
        }
        if !caller.from.is_some_and(|from| self.admin_from.allows(from)) {
            return Err(Reason::Address);
        }
        if headers.contains_key(HEADER_ADMIN) { Ok(()) } else { Err(Reason::Header) }
    }

    /// Whether a client of the native protocol may get timestamps; `token` is that of its hello.
    ///
    /// # Errors
    /// Why not.
    pub fn check_native(&self, caller: &Caller, token: Option<&[u8]>) -> Result<(), Reason> {
        self.check_caller(NATIVE, caller)?;
        self.clients.as_ref().map_or(Ok(()), |tokens| check_token(tokens, token))
    }

    /// What does not depend on what was sent.
    fn check_caller(&self, right: Right, caller: &Caller) -> Result<(), Reason> {
        if !caller.port.answers(right) {
            return Err(Reason::Port);
        }
        let is_of_operators = matches!(right, Right::Operations | Right::Change);
        let may_be_plain = || caller.from.is_some_and(|from| self.ops_plain_from.allows(from));
        // TLS says that nobody listens, not who asks: that is for the token, looked at next.
        let is_guarded = caller.is_encrypted && self.operations.is_some();
        if !is_of_operators || is_guarded || may_be_plain() {
            return Ok(());
        }
        Err(if caller.is_encrypted { Reason::NoTokenFile } else { Reason::Plain })
    }

    fn tokens(&self, right: Right) -> Option<&Tokens> {
        match right {
            Right::Health | Right::Peer => None,
            Right::Timestamps => self.clients.as_ref(),
            Right::Operations | Right::Change => self.operations.as_ref(),
        }
    }
}

fn check_token(tokens: &Tokens, sent: Option<&[u8]>) -> Result<(), Reason> {
    match sent {
        None => Err(Reason::NoToken),
        Some(token) if tokens.admit(token) => Ok(()),
        Some(_) => Err(Reason::WrongToken),
    }
}

/// The token of an `Authorization` header: `Bearer`, in any case, blanks, the token (RFC 6750, 2.1).
pub(crate) fn bearer(value: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer ";
    let (scheme, token) = value.split_at_checked(SCHEME.len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(SCHEME) && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const CLIENT: &str = "client-token-0123456789";
    const OPERATOR: &str = "operator-token-0123456789";

    /// Rights with both files, for operators from everywhere in plain text.
    fn guarded(dir: &tempfile::TempDir) -> Rights {
        let write = |name: &str, token: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, format!("{token}\n")).unwrap();
            Some(path)
        };
        let config = RightsConfig {
            client_token_file: write("clients", CLIENT),
            ops_token_file: write("operations", OPERATOR),
            ..RightsConfig::default()
        };
        Rights::load(&config).unwrap()
    }

    fn open() -> Rights {
        Rights::load(&RightsConfig::default()).unwrap()
    }

    fn caller(from: &str, port: Port) -> Caller {
        Caller { from: Some(from.parse().unwrap()), port, is_encrypted: false }
    }

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn each_port_answers_what_it_is_for_and_nothing_else() {
        let answered = |port: Port| Right::ALL.map(|right| port.answers(right));
        assert_eq!(answered(Port::Shared), [true, true, true, true, false]);
        assert_eq!(answered(Port::Clients), [true, true, false, false, false]);
        assert_eq!(answered(Port::Operations), [true, false, true, true, false]);
        assert_eq!(answered(Port::Peers), [false, false, false, false, true]);
    }

    #[test]
    fn operations_from_another_machine_need_tls_and_a_token_or_an_address_that_is_allowed() {
        let rights = open();
        let check = |rights: &Rights, caller: Caller| {
            rights.check(Right::Operations, &caller, &HeaderMap::new())
        };
        let near = caller("127.0.0.1", Port::Shared);
        let far = caller("10.1.2.3", Port::Shared);
        assert_eq!(check(&rights, near), Ok(()));
        assert_eq!(check(&rights, far), Err(Reason::Plain));
        assert_eq!(check(&rights, Caller { from: None, ..near }), Err(Reason::Plain));
        let encrypted = Caller { is_encrypted: true, ..far };
        assert_eq!(check(&rights, encrypted), Err(Reason::NoTokenFile), "nobody knows who asks");
        assert_eq!(check(&rights, Caller { is_encrypted: true, ..near }), Ok(()));
        let dir = tempfile::tempdir().unwrap();
        let guarded = guarded(&dir);
        assert_eq!(check(&guarded, encrypted), Err(Reason::NoToken), "only the token is missing");
        assert_eq!(check(&guarded, far), Err(Reason::Plain), "not asked for in plain text");
        let asked = Rights { ops_plain_from: AllowedFrom::parse("10.0.0.0/8").unwrap(), ..open() };
        assert_eq!(check(&asked, far), Ok(()));
        assert_eq!(check(&asked, caller("11.1.2.3", Port::Shared)), Err(Reason::Plain));
        // Timestamps are no secret, and health says little.
        assert_eq!(rights.check(Right::Timestamps, &far, &HeaderMap::new()), Ok(()));
        assert_eq!(rights.check(Right::Health, &far, &HeaderMap::new()), Ok(()));
    }

    #[test]
    fn a_token_opens_what_its_file_is_for_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let rights = guarded(&dir);
        let near = caller("127.0.0.1", Port::Shared);
        let check =
            |right, value: &str| rights.check(right, &near, &headers(&[("authorization", value)]));
        let bearer = |token: &str| format!("Bearer {token}");
        assert_eq!(check(Right::Timestamps, &bearer(CLIENT)), Ok(()));
        assert_eq!(check(Right::Operations, &bearer(OPERATOR)), Ok(()));
        assert_eq!(check(Right::Timestamps, &bearer(OPERATOR)), Err(Reason::WrongToken));
        assert_eq!(check(Right::Operations, &bearer(CLIENT)), Err(Reason::WrongToken));
        assert_eq!(check(Right::Timestamps, &format!("bEARER   {CLIENT} ")), Ok(()));
        for none in ["", "Bearer", "Bearer ", "Basic abc", CLIENT] {
            assert_eq!(check(Right::Timestamps, none), Err(Reason::NoToken), "{none}");
        }
        for wrong in [&CLIENT[1..], &CLIENT[..5], &format!("{CLIENT}x"), &CLIENT.to_uppercase()] {
            assert_eq!(check(Right::Timestamps, &bearer(wrong)), Err(Reason::WrongToken));
        }
        let nothing = HeaderMap::new();
        assert_eq!(rights.check(Right::Health, &near, &nothing), Ok(()));
        for right in [Right::Timestamps, Right::Operations, Right::Change] {
            assert_eq!(rights.check(right, &near, &nothing), Err(Reason::NoToken), "{right:?}");
        }
        let twice = [("authorization", &*bearer(CLIENT)), ("authorization", "Bearer other")];
        let twice = rights.check(Right::Timestamps, &near, &headers(&twice));
        assert_eq!(twice, Err(Reason::NoToken));
        assert_eq!(rights.check_native(&near, Some(CLIENT.as_bytes())), Ok(()));
        assert_eq!(rights.check_native(&near, Some(OPERATOR.as_bytes())), Err(Reason::WrongToken));
        assert_eq!(rights.check_native(&near, None), Err(Reason::NoToken));
        let ops = caller("127.0.0.1", Port::Operations);
        assert_eq!(rights.check_native(&ops, Some(CLIENT.as_bytes())), Err(Reason::Port));
    }

    #[test]
    fn a_change_needs_its_address_and_its_header_beside_the_token() {
        let dir = tempfile::tempdir().unwrap();
        let rights = Rights { ops_plain_from: AllowedFrom::Any, ..guarded(&dir) };
        let token = format!("Bearer {OPERATOR}");
        let all = headers(&[("authorization", &token), (HEADER_ADMIN, "1")]);
        let (near, far) = (caller("::1", Port::Shared), caller("10.1.2.3", Port::Shared));
        assert_eq!(rights.check(Right::Change, &near, &all), Ok(()));
        assert_eq!(rights.check(Right::Change, &far, &all), Err(Reason::Address));
        let no_header = headers(&[("authorization", &token)]);
        assert_eq!(rights.check(Right::Change, &near, &no_header), Err(Reason::Header));
        let no_token = headers(&[(HEADER_ADMIN, "1")]);
        assert_eq!(rights.check(Right::Change, &near, &no_token), Err(Reason::NoToken));
    }

    /// Sets what `advice` names, as operators would.
    fn followed(rights: &mut Rights, advice: &str) {
        let network = || AllowedFrom::parse("10.0.0.0/8").unwrap();
        if advice.contains("OPS_PLAIN_FROM") {
            rights.ops_plain_from = network();
        }
        if advice.contains("ADMIN_FROM") {
            rights.admin_from = network();
        }
    }

    #[test]
    fn who_does_what_a_refusal_says_may_change_members() {
        let change = headers(&[(HEADER_ADMIN, "1")]);
        for (is_encrypted, expected) in [(false, Reason::Plain), (true, Reason::NoTokenFile)] {
            let caller = Caller { is_encrypted, ..caller("10.1.2.3", Port::Shared) };
            let mut rights = open();
            let reason = rights.check(Right::Change, &caller, &change).unwrap_err();
            assert_eq!(reason, expected);
            followed(&mut rights, reason.advice());
            assert_eq!(rights.check(Right::Change, &caller, &change), Ok(()), "{reason:?}");
        }
        // One setting of the two is not enough: the other one is asked for in its turn.
        let far = caller("10.1.2.3", Port::Shared);
        let mut rights = Rights { admin_from: AllowedFrom::Any, ..open() };
        assert_eq!(rights.check(Right::Change, &far, &change), Err(Reason::Plain));
        rights = Rights { ops_plain_from: AllowedFrom::Any, ..open() };
        assert_eq!(rights.check(Right::Change, &far, &change), Err(Reason::Address));
        followed(&mut rights, Reason::Address.advice());
        assert_eq!(rights.check(Right::Change, &far, &change), Ok(()));
    }
}
