//! Reads a header block into reused memory and decides whether it is a request (RFC 9113, section
//! 8). Any other block is malformed; its intent is never guessed.

use epicepoch_wire::http::{HEADER_ADMIN, HEADER_CLUSTER, HEADER_DIRECT, HEADER_REQUEST_ID};
use epicepoch_wire::http2::hpack::ENTRY_OVERHEAD;
use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN,
};
use http::uri::{PathAndQuery, Uri};
use http::{Method, Request, Version};

use crate::front::routes::query::{Ask, Limits, fast_query, is_fast_request_id};

/// At most this many bytes in a request's head, as HTTP/2 counts them: each field counts its name,
/// its value and 32 bytes.
pub const HEAD_LEN_MAX: usize = 16 << 10;

/// The content of the latest header block.
#[derive(Debug, Default)]
pub(super) struct Head {
    /// The values of all fields, and the names of those that are not pseudo-headers, one after the
    /// other.
    text: Vec<u8>,
    fields: Vec<Field>,
    pseudo: [Option<Span>; PSEUDO.len()],
    content_length: Option<u64>,
    request_id: Once,
    authorization: Once,
    is_direct: bool,
    /// The length of the head, as HTTP/2 counts it.
    len: usize,
    is_malformed: bool,
}

/// A part of `text`.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: usize,
    end: usize,
}

/// A header field other than a pseudo-header.
#[derive(Clone, Copy, Debug)]
struct Field {
    name: Span,
    value: Span,
}

/// A field that counts only if it is given exactly once.
#[derive(Clone, Copy, Debug, Default)]
enum Once {
    #[default]
    Absent,
    Is(Span),
    Repeated,
}

impl Once {
    fn record(&mut self, value: Span) {
        *self = match self {
            Self::Absent => Self::Is(value),
            Self::Is(_) | Self::Repeated => Self::Repeated,
        };
    }
}

/// The pseudo-headers of a request (RFC 9113, 8.3.1). `:protocol` of RFC 8441 is missing, because
/// this node does not invite clients to send it.
const PSEUDO: [&[u8]; 4] = [b":method", b":scheme", b":authority", b":path"];
const METHOD: usize = 0;
const SCHEME: usize = 1;
const AUTHORITY: usize = 2;
const PATH: usize = 3;

/// The fields that are read after this: by the service, to tell a call from other requests, and to
/// know whether a client waits with its body. Other fields are dropped, so a request holds little memory while its body arrives.
static READ_BY_SERVICE: [HeaderName; 10] = [
    AUTHORIZATION,
    CONTENT_TYPE,
    HeaderName::from_static(HEADER_REQUEST_ID),
    HeaderName::from_static(HEADER_DIRECT),
    HeaderName::from_static(HEADER_ADMIN),
    HeaderName::from_static(HEADER_CLUSTER),
    ACCEPT,
    HOST,
    ORIGIN,
    EXPECT,
];
/// At most this many fields of one name are passed on: the service only has to tell one field from
/// several.
const KEPT_OF_ONE_NAME: usize = 2;

impl Head {
    /// Forgets the last block.
    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.fields.clear();
        self.pseudo = [None; PSEUDO.len()];
        self.content_length = None;
        self.request_id = Once::Absent;
        self.authorization = Once::Absent;
        self.is_direct = false;
        self.len = 0;
        self.is_malformed = false;
    }

    /// Gives back unused memory.
    pub(super) fn give_back(&mut self) {
        *self = Self::default();
    }

    /// Adds the next field of a block.
    pub(super) fn take(&mut self, name: &[u8], value: &[u8]) {
        self.len += name.len() + value.len() + ENTRY_OVERHEAD;
        if self.is_too_long() || self.is_malformed {
            return;
        }
        let is_padded =
            [value.first(), value.last()].iter().any(|end| matches!(end, Some(b' ' | b'\t')));
        if is_padded || !value.iter().all(|byte| IS_OF_VALUE[usize::from(*byte)]) {
            self.is_malformed = true;
            return;
        }
        if name.first() == Some(&b':') {
            let at = PSEUDO.iter().position(|known| *known == name);
            let value = self.keep(value);
            // Each pseudo-header may be given only once, and must come before the other fields.
            self.is_malformed = match at {
                Some(at) => !self.fields.is_empty() || self.pseudo[at].replace(value).is_some(),
                None => true,
            };
            return;
        }
        if name.is_empty() || !name.iter().all(|byte| IS_OF_NAME[usize::from(*byte)]) {
            self.is_malformed = true;
            return;
        }
        let field = Field { name: self.keep(name), value: self.keep(value) };
        self.fields.push(field);
        match name {
            // These headers describe a connection. HTTP/2 has other means for that (RFC 9113,
            // 8.2.2).
            b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding"
            | b"upgrade" => self.is_malformed = true,
            b"te" => self.is_malformed = value != b"trailers",
            b"content-length" => {
                let length = decimal(value);
                let is_other = self.content_length.is_some_and(|before| Some(before) != length);
                self.is_malformed = length.is_none() || is_other;
                self.content_length = length;
            }
            b"authorization" => self.authorization.record(field.value),
            DIRECT => self.is_direct |= value == b"1",
            REQUEST_ID => self.request_id.record(field.value),
            _ => {}
        }
    }

    /// Whether the head is longer than [`HEAD_LEN_MAX`].
    pub(super) fn is_too_long(&self) -> bool {
        self.len > HEAD_LEN_MAX
    }

    /// Whether the block is valid as trailers, that is, behind a body.
    pub(super) fn is_trailer(&self) -> bool {
        !self.is_malformed && self.pseudo.iter().all(Option::is_none)
    }

    /// The length of the body that the head announces.
    pub(super) fn content_length(&self) -> Option<u64> {
        self.content_length
    }

    /// Whether the head has the fields that a request needs (RFC 9113, 8.3.1).
    pub(super) fn is_request(&self) -> bool {
        let has = |at: usize| self.pseudo[at].is_some_and(|value| value.start < value.end);
        if self.is_malformed || !has(METHOD) {
            return false;
        }
        if self.value(METHOD) == b"CONNECT" {
            return has(AUTHORITY) && self.pseudo[SCHEME].is_none() && self.pseudo[PATH].is_none();
        }
        has(SCHEME) && has(PATH)
    }

    /// The count and format that the head asks for, if it is a request of the fast path without a
    /// body.
    pub(super) fn fast_ask(&self, limits: impl Into<Limits>) -> Option<Ask> {
        if !matches!(self.value(METHOD), b"GET" | b"POST") {
            return None;
        }
        let rest = self.value(PATH).strip_prefix(b"/timestamp")?;
        let query = fast_query(rest).filter(|query| query.len() == rest.len())?;
        if self.content_length.unwrap_or(0) != 0 {
            return None;
        }
        match self.request_id {
            Once::Absent => {}
            Once::Is(_) if is_fast_request_id(self.request_id()) => {}
            Once::Is(_) | Once::Repeated => return None,
        }
        if let Once::Repeated = self.authorization {
            return None;
        }
        Ask::parse_fast(query, limits)
    }

    /// The request id; empty if there is none.
    pub(super) fn request_id(&self) -> &[u8] {
        self.once(self.request_id)
    }

    /// The value of `authorization`; empty if there is none.
    pub(super) fn authorization(&self) -> &[u8] {
        self.once(self.authorization)
    }

    /// Whether the request must not be sent on to another node.
    pub(super) fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// The request, with the fields that the service reads. `None` if its method or its path is
    /// invalid.
    pub(super) fn request(&self) -> Option<Request<()>> {
        let method = Method::from_bytes(self.value(METHOD)).ok()?;
        let path = match method {
            Method::CONNECT => PathAndQuery::from_static("/"),
            _ => PathAndQuery::try_from(self.value(PATH)).ok()?,
        };
        let mut headers = HeaderMap::new();
        // The service reads the authority as `Host`, as in HTTP/1.1 (RFC 9113, 8.3.1).
        if !self.value(AUTHORITY).is_empty() {
            headers.insert(HOST, HeaderValue::from_bytes(self.value(AUTHORITY)).ok()?);
        }
        for name in &READ_BY_SERVICE {
            let is_it = |field: &&Field| {
                self.text[field.name.start..field.name.end] == *name.as_str().as_bytes()
            };
            for Field { value, .. } in self.fields.iter().filter(is_it).take(KEPT_OF_ONE_NAME) {
                let value = HeaderValue::from_bytes(&self.text[value.start..value.end]).ok()?;
                headers.append(name, value);
            }
        }
        let mut request = Request::new(());
        *request.method_mut() = method;
        *request.uri_mut() = Uri::from(path);
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = headers;
        Some(request)
    }

    fn keep(&mut self, text: &[u8]) -> Span {
        let start = self.text.len();
        self.text.extend_from_slice(text);
        Span { start, end: self.text.len() }
    }

    fn once(&self, field: Once) -> &[u8] {
        match field {
            Once::Is(value) => &self.text[value.start..value.end],
            Once::Absent | Once::Repeated => &[],
        }
    }

    fn value(&self, pseudo: usize) -> &[u8] {
        self.pseudo[pseudo].map_or(&[], |value| &self.text[value.start..value.end])
    }
}

const DIRECT: &[u8] = HEADER_DIRECT.as_bytes();
const REQUEST_ID: &[u8] = HEADER_REQUEST_ID.as_bytes();

/// Parses a number of decimal digits only.
fn decimal(text: &[u8]) -> Option<u64> {
    let is_plain = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    if is_plain { std::str::from_utf8(text).ok()?.parse().ok() } else { None }
}

/// The bytes that a field name may have: the characters of a token (RFC 9110, 5.6.2) without
/// capitals (RFC 9113, 8.2.1).
const IS_OF_NAME: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        table[byte as usize] = byte.is_ascii_lowercase()
            || byte.is_ascii_digit()
            || matches!(
                byte,
                b'!' | b'#'
                    | b'$'
                    | b'%'
                    | b'&'
                    | b'\''
                    | b'*'
                    | b'+'
                    | b'-'
                    | b'.'
                    | b'^'
                    | b'_'
                    | b'`'
                    | b'|'
                    | b'~'
            );
        byte += 1;
    }
    table
};

/// The bytes that a field value may have: every byte except control bytes. The tab is allowed.
const IS_OF_VALUE: [bool; 256] = {
    let mut table = [true; 256];
    let mut byte = 0;
    while byte < b' ' as usize {
        table[byte] = byte == b'\t' as usize;
        byte += 1;
    }
    table[127] = false;
    table
};

#[cfg(test)]
mod tests {
    use epicepoch_wire::http::REQUEST_ID_LEN_MAX;

    use super::*;
    use crate::front::routes::query::Format;

    const BASE: [(&str, &str); 4] =
        [(":method", "GET"), (":scheme", "http"), (":authority", "a:1"), (":path", "/timestamp")];

    fn head(fields: &[(&str, &str)]) -> Head {
        let mut head = Head::default();
        for (name, value) in fields {
            head.take(name.as_bytes(), value.as_bytes());
        }
        head
    }

    /// The base head with one more field, or with another value of one of its fields.
    fn with(name: &str, value: &str) -> Head {
        let mut fields = BASE.to_vec();
        match fields.iter_mut().find(|(known, _)| *known == name) {
            Some(field) => field.1 = value,
            None => fields.push((name, value)),
        }
        head(&fields)
    }

    #[test]
    fn common_requests_take_the_fast_path() {
        assert_eq!(
            head(&BASE).fast_ask(9),
            Some(Ask { count: 1, format: Format::Binary, guarantee: None })
        );
        let range = with(":path", "/timestamp?n=4294967296&format=range");
        assert_eq!(
            range.fast_ask(9),
            Some(Ask { count: 1 << 32, format: Format::Range, guarantee: None })
        );
        for (name, value) in [
            (":method", "POST"),
            ("content-length", "0"),
            ("te", "trailers"),
            ("user-agent", "a \"b\"\t\u{fc}"),
            ("host", "b"),
        ] {
            assert!(
                with(name, value).is_request() && with(name, value).fast_ask(9).is_some(),
                "{name}"
            );
        }
        let told = with("epicepoch-request-id", "4 2");
        assert_eq!((told.request_id(), told.fast_ask(9).is_some()), (&b"4 2"[..], true));
        assert_eq!(with("authorization", "Bearer x").authorization(), b"Bearer x");
    }

    #[test]
    fn other_requests_are_not_fast_and_say_what_they_are() {
        let long = "i".repeat(REQUEST_ID_LEN_MAX + 1);
        for (name, value) in [
            (":method", "HEAD"),
            (":method", "get"),
            (":path", "/timestamp/"),
            (":path", "/timestamps"),
            (":path", "/timestamp?n=0"),
            (":path", "/timestamp?n=10"),
            (":path", "/timestamp?format=json"),
            (":path", "/timestamp?n=%31"),
            (":path", "/up"),
            ("content-length", "3"),
            ("epicepoch-request-id", ""),
            ("epicepoch-request-id", &long),
        ] {
            let head = with(name, value);
            assert!(head.is_request(), "{name}: {value}");
            assert_eq!(head.fast_ask(9), None, "{name}: {value}");
            let request = head.request().expect("a request");
            let path = request.uri().path_and_query().expect("a path").as_str();
            assert!(name != ":path" || path == value);
            assert!(name != ":method" || request.method().as_str() == value);
            let kept = request.headers().get(name).map(HeaderValue::as_bytes);
            assert_eq!(kept, (name == HEADER_REQUEST_ID).then_some(value.as_bytes()));
        }
        let id = ("epicepoch-request-id", "1");
        let twice = head(&[&BASE[..], &[id, id]].concat());
        assert!(twice.fast_ask(9).is_none() && twice.is_request());
        let token = ("authorization", "Bearer x");
        assert!(head(&[&BASE[..], &[token, token]].concat()).fast_ask(9).is_none());
    }

    #[test]
    fn a_request_keeps_what_the_service_reads_and_nothing_else() {
        let fields = [
            ("user-agent", "a"),
            ("authorization", "Bearer x"),
            ("epicepoch-admin", "1"),
            ("cookie", "b"),
            ("authorization", "Bearer y"),
            ("epicepoch-request-id", "7"),
            ("authorization", "Bearer z"),
            ("authorizatio", "c"),
            ("host", "b"),
            ("origin", "null"),
            ("accept", "text/html"),
            ("epicepoch-cluster", "d"),
        ];
        let head = head(&[&BASE[..], &fields].concat());
        let request = head.request().expect("a request");
        let headers = request.headers();
        let given: Vec<_> = headers.get_all(AUTHORIZATION).iter().collect();
        assert_eq!(given, ["Bearer x", "Bearer y"], "that there are several is seen");
        assert!(headers[HEADER_ADMIN] == "1" && headers[HEADER_REQUEST_ID] == "7");
        let hosts: Vec<_> = headers.get_all(HOST).iter().collect();
        assert_eq!(hosts, ["a:1", "b"], "the authority, and the field");
        assert!(headers[ORIGIN] == "null" && headers[ACCEPT] == "text/html");
        assert!(headers[HEADER_CLUSTER] == "d" && headers.len() == 9);
    }

    #[test]
    fn bad_fields_make_a_request_malformed() {
        for (name, value) in [
            (":method", ""),
            (":path", ""),
            (":scheme", ""),
            (":status", "200"),
            (":protocol", "websocket"),
            ("X", "y"),
            ("x y", "z"),
            ("", "z"),
            ("x", "a\nb"),
            ("x", "a\0b"),
            ("x", " a"),
            ("x", "a\t"),
            ("x", " "),
            (":path", "/timestamp "),
            ("connection", "close"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "close"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("te", "gzip"),
            ("content-length", "-1"),
            ("content-length", "99999999999999999999999"),
        ] {
            assert!(!with(name, value).is_request(), "{name}: {value}");
        }
        for missing in [METHOD, SCHEME, PATH] {
            let mut fields = BASE.to_vec();
            fields.remove(missing);
            assert!(!head(&fields).is_request());
        }
        assert!(!head(&[&BASE[..], &BASE[..1]].concat()).is_request(), "twice");
        assert!(!head(&[&[("x", "y")][..], &BASE].concat()).is_request(), "behind a field");
        let lengths = [("content-length", "1"), ("content-length", "2")];
        assert!(!head(&[&BASE[..], &lengths].concat()).is_request());
        assert!(!head(&[(":method", "CONNECT"), (":path", "/"), (":authority", "a")]).is_request());
        assert!(head(&[(":method", "CONNECT"), (":authority", "a")]).is_request());
        assert!(with(":method", "G E").request().is_none());
    }

    #[test]
    fn a_head_beyond_its_limit_is_told_and_not_kept() {
        let mut head = head(&BASE);
        for _ in 0..1_000 {
            head.take(b"x", &[b'y'; 1_000]);
        }
        assert!(head.is_too_long() && head.text.len() <= HEAD_LEN_MAX);
        head.clear();
        assert!(!head.is_too_long() && head.is_trailer() && !head.is_request());
    }
}
