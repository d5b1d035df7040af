//! Authorization. Each path needs one right; this module decides whether a caller has it. Requests
//! without the right are refused, logged and counted. The module knows no paths and opens no
//! socket. It never writes a token into a text.
//!
//! - [`tokens`]: tokens from a file, and whether a sent token is one of them.
//! - `right`: the rights, the ports, and the reasons for refusals.
//! - [`denials`]: refusals, for the log and for metrics.
//! - `origin`: requests that a page of another site made a browser send.
//!
//! There are five checks, in this order. The token comes third: if a request may not be sent in
//! this way at all, its token is never examined.
//!
//! 1. The port answers requests of this kind.
//! 2. The caller's address may ask in this way, in plain text or over TLS.
//! 3. The token is valid.
//! 4. For a change: the address may make changes, and the request has the header of a command.
//! 5. For operators of a node without a token: no page of another site sent the request.

use epicepoch_wire::http::HEADER_ADMIN;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Uri};

use crate::config::{AllowedFrom, AuthorizationConfig};

pub mod denials;
mod origin;
mod right;
pub mod tokens;

use denials::Denials;
pub use right::{Caller, Port, Reason, Right};
use tokens::{TokenFileError, Tokens};

/// The authorization settings and tokens of a node.
#[derive(Debug)]
pub struct Authorization {
    ops_plain_from: AllowedFrom,
    admin_from: AllowedFrom,
    /// Tokens of clients; `None` if clients need no token.
    clients: Option<Tokens>,
    /// Tokens of operators; `None` if the node has none. Then only the operator's address decides.
    /// These tokens also give what the tokens of clients give.
    operations: Option<Tokens>,
    /// The counted refusals.
    pub denials: Denials,
}

impl Authorization {
    /// Reads the files that a configuration names.
    ///
    /// # Errors
    /// When a file cannot be read, or holds no tokens.
    pub fn load(config: &AuthorizationConfig) -> Result<Self, TokenFileError> {
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

    /// Reads the files again. If a file cannot be read or holds no tokens, the old tokens stay in
    /// force.
    pub fn reload(&self) {
        self.clients.iter().chain(&self.operations).for_each(Tokens::reload);
    }

    /// Checks that an HTTP request has a right.
    ///
    /// # Errors
    /// When the caller lacks the right; the reason says why.
    pub fn check(&self, right: Right, caller: &Caller, headers: &HeaderMap) -> Result<(), Reason> {
        self.check_caller(right, caller)?;
        if self.needs_token(right) {
            let mut given = headers.get_all(AUTHORIZATION).iter();
            let (first, second) = (given.next(), given.next());
            // A request with two tokens is refused: a proxy on the way may have checked the other
            // token.
            let sent = first.filter(|_| second.is_none()).map(http::HeaderValue::as_bytes);
            self.check_token(right, sent.and_then(bearer))?;
        }
        if right != Right::Change {
            return Ok(());
        }
        if !caller.from.is_some_and(|from| self.admin_from.allows(from)) {
            return Err(Reason::Address);
        }
        if headers.contains_key(HEADER_ADMIN) { Ok(()) } else { Err(Reason::Header) }
    }

    /// Checks that no page of another site made a browser send an HTTP request of operators. A
    /// token shows the same, because such a page does not know it. `is_own_name` says whether a name
    /// is one of this node or of a member.
    ///
    /// # Errors
    /// When the request names another node or comes from another site; the reason says which.
    pub fn check_origin(
        &self,
        right: Right,
        caller: &Caller,
        (uri, headers): (&Uri, &HeaderMap),
        is_own_name: impl Fn(&str) -> bool,
    ) -> Result<(), Reason> {
        if !right.is_of_operators() || self.operations.is_some() {
            return Ok(());
        }
        origin::check(caller, uri, headers, is_own_name)
    }

    /// Checks that a client of the native protocol may get timestamps. `token` is the token in its
    /// hello.
    ///
    /// # Errors
    /// When the caller lacks the right; the reason says why.
    pub fn check_native(&self, caller: &Caller, token: Option<&[u8]>) -> Result<(), Reason> {
        self.check_caller(Right::Timestamps, caller)?;
        if self.needs_token(Right::Timestamps) {
            self.check_token(Right::Timestamps, token)?;
        }
        Ok(())
    }

    /// Checks that a node may send requests on to this one. It has shown its certificate.
    /// `is_member` says whether it is still a member, and `has_checked` whether it has checked its
    /// own clients as this node checks those of its port. They are not checked a second time: a
    /// request that is sent on stands for many, and carries none of their tokens.
    ///
    /// # Errors
    /// When the node lacks the right; the reason says why.
    pub fn check_forwarder(
        &self,
        caller: &Caller,
        is_member: bool,
        has_checked: bool,
    ) -> Result<(), Reason> {
        self.check_caller(Right::Timestamps, caller)?;
        if !is_member {
            return Err(Reason::NotMember);
        }
        if has_checked { Ok(()) } else { Err(Reason::Unchecked) }
    }

    /// Checks that a request on a fast path may get timestamps. `authorization` is the value of the
    /// `authorization` header, or empty. The port of operators has no fast path.
    ///
    /// # Errors
    /// When the caller lacks the right; the reason says why.
    #[inline]
    pub fn check_fast(&self, authorization: &[u8]) -> Result<(), Reason> {
        if !self.needs_token(Right::Timestamps) {
            return Ok(());
        }
        self.check_token(Right::Timestamps, bearer(authorization))
    }

    /// The checks that do not depend on the sent headers or token.
    fn check_caller(&self, right: Right, caller: &Caller) -> Result<(), Reason> {
        if !caller.port.answers(right) {
            return Err(Reason::Port);
        }
        let may_be_plain = || caller.from.is_some_and(|from| self.ops_plain_from.allows(from));
        // TLS prevents listening, but does not identify the caller. The token identifies the
        // caller, in a later check.
        let is_guarded = caller.is_encrypted && self.operations.is_some();
        if !right.is_of_operators() || is_guarded || may_be_plain() {
            return Ok(());
        }
        Err(if caller.is_encrypted { Reason::NoTokenFile } else { Reason::Plain })
    }

    /// Grows each time the tokens that give timestamps have changed. Then clients of open
    /// connections must be checked again.
    pub(crate) fn timestamps_version(&self) -> u64 {
        self.clients.iter().chain(&self.operations).map(Tokens::version).sum()
    }

    /// Whether a caller needs a token for a right.
    pub(crate) fn needs_token(&self, right: Right) -> bool {
        match right {
            Right::Health | Right::Page | Right::Peer => false,
            Right::Timestamps => self.clients.is_some(),
            Right::Operations | Right::Change => self.operations.is_some(),
        }
    }

    /// Checks a token for a right that needs one. A token of operators includes the right to
    /// timestamps, so that operators need only one token.
    fn check_token(&self, right: Right, sent: Option<&[u8]>) -> Result<(), Reason> {
        let token = sent.ok_or(Reason::NoToken)?;
        let includes = |tokens: &Option<Tokens>| tokens.as_ref().is_some_and(|it| it.admit(token));
        let is_of_operators = includes(&self.operations);
        let is_admitted = match right {
            // Both files are compared in any case, so that the time does not tell them apart.
            Right::Timestamps => is_of_operators | includes(&self.clients),
            Right::Operations | Right::Page | Right::Change | Right::Health | Right::Peer => {
                is_of_operators
            }
        };
        if is_admitted { Ok(()) } else { Err(Reason::WrongToken) }
    }
}

/// Returns the token of an `Authorization` header: `Bearer` in any case, blanks, the token (RFC
/// 6750, 2.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
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

    /// Authorization with both token files. Operators may connect from any address in plain text.
    fn guarded(dir: &tempfile::TempDir) -> Authorization {
        let write = |name: &str, token: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, format!("{token}\n")).unwrap();
            Some(path)
        };
        let config = AuthorizationConfig {
            client_token_file: write("clients", CLIENT),
            ops_token_file: write("operations", OPERATOR),
            ..AuthorizationConfig::default()
        };
        Authorization::load(&config).unwrap()
    }

    fn open() -> Authorization {
        Authorization::load(&AuthorizationConfig::default()).unwrap()
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
        assert_eq!(answered(Port::Shared), [true, true, true, true, true, false]);
        assert_eq!(answered(Port::Clients), [true, true, false, false, false, false]);
        assert_eq!(answered(Port::Operations), [true, false, true, true, true, false]);
        assert_eq!(answered(Port::Peers), [false, false, false, false, false, true]);
    }

    #[test]
    fn operations_from_another_machine_need_tls_and_a_token_or_an_address_that_is_allowed() {
        let authz = open();
        let check = |authz: &Authorization, caller: Caller| {
            authz.check(Right::Operations, &caller, &HeaderMap::new())
        };
        let near = caller("127.0.0.1", Port::Shared);
        let far = caller("10.1.2.3", Port::Shared);
        assert_eq!(check(&authz, near), Ok(()));
        assert_eq!(check(&authz, far), Err(Reason::Plain));
        assert_eq!(check(&authz, Caller { from: None, ..near }), Err(Reason::Plain));
        let encrypted = Caller { is_encrypted: true, ..far };
        assert_eq!(check(&authz, encrypted), Err(Reason::NoTokenFile), "nobody knows who asks");
        assert_eq!(check(&authz, Caller { is_encrypted: true, ..near }), Ok(()));
        let dir = tempfile::tempdir().unwrap();
        let guarded = guarded(&dir);
        assert_eq!(check(&guarded, encrypted), Err(Reason::NoToken), "only the token is missing");
        assert_eq!(check(&guarded, far), Err(Reason::Plain), "not asked for in plain text");
        let asked =
            Authorization { ops_plain_from: AllowedFrom::parse("10.0.0.0/8").unwrap(), ..open() };
        assert_eq!(check(&asked, far), Ok(()));
        assert_eq!(check(&asked, caller("11.1.2.3", Port::Shared)), Err(Reason::Plain));
        // Neither check needs a token: timestamps are not a secret, and health answers reveal
        // little.
        assert_eq!(authz.check(Right::Timestamps, &far, &HeaderMap::new()), Ok(()));
        assert_eq!(authz.check(Right::Health, &far, &HeaderMap::new()), Ok(()));
    }

    /// The page itself has no data of the node. It is not given to a caller whom no token would help.
    #[test]
    fn the_page_needs_what_operations_need_except_the_token() {
        let dir = tempfile::tempdir().unwrap();
        let (near, far) = (caller("127.0.0.1", Port::Shared), caller("10.1.2.3", Port::Shared));
        let callers = [near, far].map(|it| [it, Caller { is_encrypted: true, ..it }]).concat();
        for authz in [open(), guarded(&dir)] {
            for caller in &callers {
                let check = |right| authz.check(right, caller, &HeaderMap::new());
                let expected = match check(Right::Operations) {
                    Err(Reason::NoToken) => Ok(()),
                    other => other,
                };
                assert_eq!(check(Right::Page), expected, "{caller:?}");
            }
        }
        let encrypted = Caller { is_encrypted: true, ..far };
        assert_eq!(guarded(&dir).check(Right::Page, &encrypted, &HeaderMap::new()), Ok(()));
    }

    #[test]
    fn a_token_of_operators_includes_the_rights_of_clients_and_not_the_other_way_round() {
        let dir = tempfile::tempdir().unwrap();
        let authz = guarded(&dir);
        let near = caller("127.0.0.1", Port::Shared);
        let check =
            |right, value: &str| authz.check(right, &near, &headers(&[("authorization", value)]));
        let bearer = |token: &str| format!("Bearer {token}");
        assert_eq!(check(Right::Timestamps, &bearer(CLIENT)), Ok(()));
        assert_eq!(check(Right::Operations, &bearer(OPERATOR)), Ok(()));
        assert_eq!(check(Right::Timestamps, &bearer(OPERATOR)), Ok(()));
        assert_eq!(check(Right::Operations, &bearer(CLIENT)), Err(Reason::WrongToken));
        assert_eq!(check(Right::Timestamps, &format!("bEARER   {CLIENT} ")), Ok(()));
        for none in ["", "Bearer", "Bearer ", "Basic abc", CLIENT] {
            assert_eq!(check(Right::Timestamps, none), Err(Reason::NoToken), "{none}");
        }
        for wrong in [&CLIENT[1..], &CLIENT[..5], &format!("{CLIENT}x"), &CLIENT.to_uppercase()] {
            assert_eq!(check(Right::Timestamps, &bearer(wrong)), Err(Reason::WrongToken));
        }
        let nothing = HeaderMap::new();
        assert_eq!(authz.check(Right::Health, &near, &nothing), Ok(()));
        for right in [Right::Timestamps, Right::Operations, Right::Change] {
            assert_eq!(authz.check(right, &near, &nothing), Err(Reason::NoToken), "{right:?}");
        }
        let twice = [("authorization", &*bearer(CLIENT)), ("authorization", "Bearer other")];
        let twice = authz.check(Right::Timestamps, &near, &headers(&twice));
        assert_eq!(twice, Err(Reason::NoToken));
        assert_eq!(authz.check_native(&near, Some(CLIENT.as_bytes())), Ok(()));
        assert_eq!(authz.check_native(&near, Some(OPERATOR.as_bytes())), Ok(()));
        assert_eq!(authz.check_fast(bearer(OPERATOR).as_bytes()), Ok(()));
        assert_eq!(authz.check_native(&near, Some(b"x")), Err(Reason::WrongToken));
        assert_eq!(authz.check_native(&near, None), Err(Reason::NoToken));
        let ops = caller("127.0.0.1", Port::Operations);
        assert_eq!(authz.check_native(&ops, Some(CLIENT.as_bytes())), Err(Reason::Port));
    }

    #[test]
    fn a_change_needs_its_address_and_its_header_beside_the_token() {
        let dir = tempfile::tempdir().unwrap();
        let authz = Authorization { ops_plain_from: AllowedFrom::Any, ..guarded(&dir) };
        let token = format!("Bearer {OPERATOR}");
        let all = headers(&[("authorization", &token), (HEADER_ADMIN, "1")]);
        let (near, far) = (caller("::1", Port::Shared), caller("10.1.2.3", Port::Shared));
        assert_eq!(authz.check(Right::Change, &near, &all), Ok(()));
        assert_eq!(authz.check(Right::Change, &far, &all), Err(Reason::Address));
        let no_header = headers(&[("authorization", &token)]);
        assert_eq!(authz.check(Right::Change, &near, &no_header), Err(Reason::Header));
        let no_token = headers(&[(HEADER_ADMIN, "1")]);
        assert_eq!(authz.check(Right::Change, &near, &no_token), Err(Reason::NoToken));
    }

    /// Applies the settings that `advice` names, as operators would.
    fn followed(authz: &mut Authorization, advice: &str) {
        let network = || AllowedFrom::parse("10.0.0.0/8").unwrap();
        if advice.contains("OPS_PLAIN_FROM") {
            authz.ops_plain_from = network();
        }
        if advice.contains("ADMIN_FROM") {
            authz.admin_from = network();
        }
    }

    #[test]
    fn following_the_advice_of_a_refusal_allows_changes_of_members() {
        let change = headers(&[(HEADER_ADMIN, "1")]);
        for (is_encrypted, expected) in [(false, Reason::Plain), (true, Reason::NoTokenFile)] {
            let caller = Caller { is_encrypted, ..caller("10.1.2.3", Port::Shared) };
            let mut authz = open();
            let reason = authz.check(Right::Change, &caller, &change).unwrap_err();
            assert_eq!(reason, expected);
            followed(&mut authz, &reason.advice(Right::Change));
            assert_eq!(authz.check(Right::Change, &caller, &change), Ok(()), "{reason:?}");
        }
        // A change needs both settings, `ADMIN_FROM` and `OPS_PLAIN_FROM`. If only one is set, the
        // refusal names the other.
        let far = caller("10.1.2.3", Port::Shared);
        let mut authz = Authorization { admin_from: AllowedFrom::Any, ..open() };
        assert_eq!(authz.check(Right::Change, &far, &change), Err(Reason::Plain));
        authz = Authorization { ops_plain_from: AllowedFrom::Any, ..open() };
        assert_eq!(authz.check(Right::Change, &far, &change), Err(Reason::Address));
        followed(&mut authz, &Reason::Address.advice(Right::Change));
        assert_eq!(authz.check(Right::Change, &far, &change), Ok(()));
    }
}
