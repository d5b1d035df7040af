//! Decides whether bytes begin with a request of the fast path: `GET /timestamp` or `GET /latest`,
//! HTTP/1.1, with headers that mean little or nothing here. The scanner uses a list of allowed
//! bytes: each byte must be a known one in its place. Anything else goes to hyper. Examples are a
//! body, a second length, a bare line feed, a folded line, a control byte, and a name that is only
//! similar. So no request is ever read in two ways (RFC 9112, 11.2).
//!
//! The result is the same however reads split the request, and whatever bytes follow it.

use crate::front::routes::query::{Ask, Limits, fast_query, is_fast_request_id};

/// At most this many bytes in a request of the fast path: many times more than clients usually
/// send.
pub const REQUEST_LEN_MAX: usize = 4096;
/// At most this many header lines in a request of the fast path.
const LINES_MAX: usize = 48;

/// The result of a scan: what the bytes begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan<'a> {
    /// A whole request of the fast path.
    Fast(FastRequest<'a>),
    /// The beginning of a possible request of the fast path.
    Partial,
    /// Anything else.
    Other,
}

/// A request of the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastRequest<'a> {
    /// The count and format that it asks for, as [`Ask::parse_fast`] or [`Ask::parse_latest_fast`]
    /// allows.
    pub ask: Ask,
    /// The value of `epicepoch-request-id`, which the answer repeats; empty if there is none.
    pub request_id: &'a [u8],
    /// The value of `authorization`; empty if there is none.
    pub authorization: &'a [u8],
    /// Whether it must not be sent on to another node (`epicepoch-direct: 1`).
    pub is_direct: bool,
    /// Whether it is the last request of its connection.
    pub closes: bool,
    /// Its length in bytes.
    pub len: usize,
}

/// Returns what `bytes` begin with. A request for more timestamps than `limits` allow is not of the
/// fast path.
#[must_use]
pub fn scan(bytes: &[u8], limits: impl Into<Limits>) -> Scan<'_> {
    match (Scanner { bytes, at: 0 }).request(limits.into()) {
        Ok(request) => Scan::Fast(request),
        Err(Stop::Short) if bytes.len() < REQUEST_LEN_MAX => Scan::Partial,
        Err(Stop::Short | Stop::Other) => Scan::Other,
    }
}

/// Why the scan found no request.
enum Stop {
    /// The bytes end before the request does.
    Short,
    /// The fast path does not take the request.
    Other,
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    fn request(mut self, limits: Limits) -> Result<FastRequest<'a>, Stop> {
        let is_latest = match self.literal(b"GET /timestamp") {
            Ok(()) => false,
            Err(Stop::Other) => {
                self.literal(b"GET /latest")?;
                true
            }
            Err(Stop::Short) => return Err(Stop::Short),
        };
        let Some(query) = fast_query(&self.bytes[self.at..]) else { return Err(Stop::Other) };
        self.at += query.len();
        self.literal(b" HTTP/1.1\r\n")?;
        let ask = if is_latest {
            Ask::parse_latest_fast(query, limits)
        } else {
            Ask::parse_fast(query, limits)
        };
        let Some(ask) = ask else { return Err(Stop::Other) };
        let Lines { hosts, request_id, authorization, is_direct, closes } = self.lines()?;
        // Hyper's service refuses a request with no `Host`, or with two (RFC 9112, 3.2).
        if hosts != 1 || self.at > REQUEST_LEN_MAX {
            return Err(Stop::Other);
        }
        let request_id = request_id.unwrap_or_default();
        let authorization = authorization.unwrap_or_default();
        let closes = closes.unwrap_or(false);
        Ok(FastRequest { ask, request_id, authorization, is_direct, closes, len: self.at })
    }

    fn peek(&self) -> Result<u8, Stop> {
        self.bytes.get(self.at).copied().ok_or(Stop::Short)
    }

    /// Consumes exactly these bytes.
    fn literal(&mut self, expected: &[u8]) -> Result<(), Stop> {
        let rest = &self.bytes[self.at..];
        if rest.starts_with(expected) {
            self.at += expected.len();
            Ok(())
        } else if expected.starts_with(rest) {
            Err(Stop::Short)
        } else {
            Err(Stop::Other)
        }
    }

    /// Consumes every header line and the empty line behind them.
    fn lines(&mut self) -> Result<Lines<'a>, Stop> {
        let mut lines = Lines::default();
        for _ in 0..=LINES_MAX {
            if self.peek()? == b'\r' {
                self.literal(b"\r\n")?;
                return Ok(lines);
            }
            let name = self.name()?;
            let value = self.value()?;
            lines.take(name, value)?;
        }
        Err(Stop::Other)
    }

    /// Consumes a header name and its colon.
    fn name(&mut self) -> Result<&'a [u8], Stop> {
        let rest = &self.bytes[self.at..];
        let len = rest.iter().position(|byte| !IS_OF_NAME[usize::from(*byte)]);
        let len = len.ok_or(Stop::Short)?;
        if len == 0 || rest[len] != b':' {
            return Err(Stop::Other);
        }
        self.at += len + 1;
        Ok(&rest[..len])
    }

    /// Consumes a header value and the end of its line. Blanks around the value are dropped.
    fn value(&mut self) -> Result<&'a [u8], Stop> {
        let rest = &self.bytes[self.at..];
        let len = plain_len(rest);
        self.at += len;
        self.literal(b"\r\n")?;
        let mut value = &rest[..len];
        while let [b' ' | b'\t', behind @ ..] = value {
            value = behind;
        }
        while let [before @ .., b' ' | b'\t'] = value {
            value = before;
        }
        Ok(value)
    }
}

/// The header values that the fast path uses.
#[derive(Default)]
struct Lines<'a> {
    hosts: u32,
    request_id: Option<&'a [u8]>,
    authorization: Option<&'a [u8]>,
    is_direct: bool,
    closes: Option<bool>,
}

impl<'a> Lines<'a> {
    fn take(&mut self, name: &'a [u8], value: &'a [u8]) -> Result<(), Stop> {
        let is = |other: &[u8]| name.eq_ignore_ascii_case(other);
        let begins = |with: &[u8]| {
            name.get(..with.len()).is_some_and(|name| name.eq_ignore_ascii_case(with))
        };
        match name[0] | 0x20 {
            b'h' if is(b"host") => self.hosts += 1,
            // Hyper's service refuses a request with two `authorization` headers.
            b'a' if is(b"authorization") && self.authorization.replace(value).is_some() => {
                return Err(Stop::Other);
            }
            b'c' if is(b"connection") => {
                let closes = value.eq_ignore_ascii_case(b"close");
                let is_known = closes || value.eq_ignore_ascii_case(b"keep-alive");
                if !is_known || self.closes.replace(closes).is_some() {
                    return Err(Stop::Other);
                }
            }
            b'e' if is(REQUEST_ID)
                && (!is_fast_request_id(value) || self.request_id.replace(value).is_some()) =>
            {
                return Err(Stop::Other);
            }
            b'e' if is(DIRECT) => self.is_direct |= value == b"1",
            // The fast path does not take requests with headers that describe a body, its length,
            // another protocol or one hop.
            b'c' if begins(b"content-") => return Err(Stop::Other),
            b'e' if is(b"expect") => return Err(Stop::Other),
            b'h' if begins(b"http2-") => return Err(Stop::Other),
            b'k' if is(b"keep-alive") => return Err(Stop::Other),
            b'p' if begins(b"proxy-") => return Err(Stop::Other),
            b't' if is(b"te") || is(b"trailer") || begins(b"transfer-") => return Err(Stop::Other),
            b'u' if is(b"upgrade") => return Err(Stop::Other),
            _ => {}
        }
        Ok(())
    }
}

const DIRECT: &[u8] = epicepoch_wire::http::HEADER_DIRECT.as_bytes();
const REQUEST_ID: &[u8] = epicepoch_wire::http::HEADER_REQUEST_ID.as_bytes();

/// The bytes that the fast path allows in a header name: letters, digits and the hyphen. RFC 9110,
/// 5.6.2 allows more.
const IS_OF_NAME: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < table.len() {
        table[byte] = (byte as u8).is_ascii_alphanumeric() || byte as u8 == b'-';
        byte += 1;
    }
    table
};

/// How many bytes from the first on are visible ASCII, blanks or tabs.
fn plain_len(bytes: &[u8]) -> usize {
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~' | b'\t');
    let mut len = 0;
    while let Some(word) = bytes[len..].first_chunk() {
        if !are_visible(u64::from_le_bytes(*word)) {
            break;
        }
        len += size_of::<u64>();
    }
    len + bytes[len..].iter().take_while(|byte| is_plain(**byte)).count()
}

/// Whether all eight bytes are within `' '..='~'`. The subtraction sets the highest bit of a byte
/// below that range; the addition sets that of a byte above it. The first byte out of range may
/// also change the bytes behind it, but then the result is `false` in any case.
const fn are_visible(word: u64) -> bool {
    const EACH: u64 = u64::from_le_bytes([1; 8]);
    let below = word.wrapping_sub(EACH * b' ' as u64);
    let above = word.wrapping_add(EACH * (0x80 - 1 - b'~' as u64));
    (below | above | word) & (EACH * 0x80) == 0
}

#[cfg(test)]
mod tests {
    use epicepoch_core::sequencer::LATEST;
    use epicepoch_wire::http::REQUEST_ID_LEN_MAX;
    use proptest::prelude::*;

    use super::*;
    use crate::front::routes::query::Format;

    const MAX_N: u64 = 65_536;

    fn fast_request(bytes: &[u8]) -> FastRequest<'_> {
        match scan(bytes, MAX_N) {
            Scan::Fast(request) => request,
            other => panic!("{other:?}: {}", bytes.escape_ascii()),
        }
    }

    #[test]
    fn common_requests_take_the_fast_path() {
        for (text, count, format) in [
            ("GET /timestamp HTTP/1.1\r\nHost: a:1\r\n\r\n", 1, Format::Binary),
            ("GET /timestamp HTTP/1.1\r\nhost:\r\n\r\n", 1, Format::Binary),
            ("GET /timestamp? HTTP/1.1\r\nHost: a\r\n\r\n", 1, Format::Binary),
            ("GET /timestamp?n=1000 HTTP/1.1\r\nHost: a\r\n\r\n", 1000, Format::Binary),
            (
                "GET /timestamp?format=range&n=4294967296 HTTP/1.1\r\nHost: a\r\n\r\n",
                1 << 32,
                Format::Range,
            ),
            ("GET /latest HTTP/1.1\r\nHost: a\r\n\r\n", LATEST, Format::Binary),
            ("GET /latest?format=binary HTTP/1.1\r\nHost: a\r\n\r\n", LATEST, Format::Binary),
            (
                "GET /timestamp?n=7 HTTP/1.1\r\nHost: localhost:8881\r\nUser-Agent: curl/8.5.0\r\n\
                 Accept: */*\r\nCookie: a=\"b\";\tc\r\nUpgrade-Insecure-Requests: 1\r\n\
                 X-Forwarded-For: 10.0.0.1\r\nConnection: Keep-Alive\r\n\r\n",
                7,
                Format::Binary,
            ),
        ] {
            let request = fast_request(text.as_bytes());
            assert_eq!(request.ask, Ask { count, format, guarantee: None }, "{text}");
            assert_eq!((request.request_id, request.closes), (&b""[..], false), "{text}");
            assert_eq!(request.len, text.len(), "{text}");
        }
    }

    #[test]
    fn a_request_id_and_the_last_request_are_seen() {
        let text = b"GET /timestamp HTTP/1.1\r\nEpicEpoch-Request-Id: \t 4 2\t \r\nHost: a\r\n\
            CONNECTION:close\r\n\r\nGET /";
        let request = fast_request(text);
        assert_eq!((request.request_id, request.closes), (&b"4 2"[..], true));
        assert_eq!(&text[request.len..], b"GET /");
    }

    #[test]
    fn other_requests_do_not_take_the_fast_path() {
        let long = format!("x: {}\r\n", "y".repeat(REQUEST_LEN_MAX));
        let many = "x: y\r\n".repeat(LINES_MAX + 1);
        let id = format!("epicepoch-request-id: {}\r\n", "i".repeat(REQUEST_ID_LEN_MAX + 1));
        for line in [
            "Content-Length: 0\r\n",
            "CONTENT-LENGTH: 5\r\n",
            "content-type: text/plain\r\n",
            "Transfer-Encoding: chunked\r\n",
            "Transfer-Encoding : chunked\r\n",
            "Transfer_Encoding: chunked\r\n",
            "X: y\nTransfer-Encoding: chunked\r\n",
            "Expect: 100-continue\r\n",
            "Upgrade: h2c\r\n",
            "HTTP2-Settings: AAMAAABk\r\n",
            "TE: trailers\r\n",
            "Trailer: x\r\n",
            "Keep-Alive: timeout=5\r\n",
            "Proxy-Connection: close\r\n",
            "Connection: upgrade\r\n",
            "Connection: close, x\r\n",
            "Connection: keep-alive\r\nConnection: keep-alive\r\n",
            "Connection: \r\n",
            "Host: b\r\n",
            " folded: x\r\n",
            "x: y\r\n folded\r\n",
            "x: y\r\n\tfolded\r\n",
            ": y\r\n",
            "x\r\n",
            "x y: z\r\n",
            "x: \0\r\n",
            "x: \x7f\r\n",
            "x: \u{fc}\r\n",
            "x: y\n",
            "x: y\rz: a\r\n",
            "x: y\r\r\n",
            "epicepoch-request-id: \r\n",
            "epicepoch-request-id: 1\r\nepicepoch-request-id: 1\r\n",
            &long,
            &many,
            &id,
        ] {
            let text = format!("GET /timestamp HTTP/1.1\r\nHost: a\r\n{line}\r\n");
            assert_eq!(scan(text.as_bytes(), MAX_N), Scan::Other, "{line}");
        }
        for text in [
            "POST /timestamp HTTP/1.1\r\nHost: a\r\n\r\n",
            "get /timestamp HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET  /timestamp HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /timestamp  HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /timestamp HTTP/1.0\r\nHost: a\r\n\r\n",
            "GET /timestamp HTTP/1.1\nHost: a\r\n\r\n",
            "GET /timestamp HTTP/1.1\r\nHost: a\r\n\n",
            "GET /timestamp HTTP/1.1\r\n\r\n",
            "GET /timestamps HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /timestamp#x HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET http://a/timestamp HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /timestamp?n=0 HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /timestamp?n=%31 HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /timestamp?n=1001 HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /timestamp?format=json HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /latest?format=json HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /latest?n=1 HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /latests HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /lates HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST /latest HTTP/1.1\r\nHost: a\r\n\r\n",
            "\r\nGET /timestamp HTTP/1.1\r\nHost: a\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "P",
            "GEX",
        ] {
            assert_eq!(scan(text.as_bytes(), MAX_N), Scan::Other, "{text}");
        }
    }

    #[test]
    fn where_a_request_is_cut_changes_nothing() {
        for path in ["/timestamp?n=3", "/latest", "/latest?format=binary"] {
            let text = format!(
                "GET {path} HTTP/1.1\r\nHost: a\r\nAccept: text/html, */*;q=0.5\r\n\
                 epicepoch-request-id: 42-abc\r\n\r\n"
            );
            let text = text.as_bytes();
            for cut in 0..text.len() {
                let part = text[..cut].escape_ascii();
                assert_eq!(scan(&text[..cut], MAX_N), Scan::Partial, "{part}");
            }
            let mut followed = text.to_vec();
            followed.extend_from_slice(b"\0\0\0");
            assert_eq!(fast_request(&followed), fast_request(text));
        }
    }

    #[test]
    fn the_beginning_of_a_request_that_never_ends_is_left_to_others() {
        let mut text = b"GET /timestamp HTTP/1.1\r\nHost: a\r\nx: ".to_vec();
        text.resize(REQUEST_LEN_MAX - 1, b'y');
        assert_eq!(scan(&text, MAX_N), Scan::Partial);
        text.push(b'y');
        assert_eq!(scan(&text, MAX_N), Scan::Other);
        text.truncate(REQUEST_LEN_MAX - 3);
        text.extend_from_slice(b"\r\n\r\n");
        assert_eq!(scan(&text, MAX_N), Scan::Other, "longer than a fast request may be");
        text.remove(60);
        assert_eq!(fast_request(&text).len, REQUEST_LEN_MAX);
    }

    #[test]
    fn eight_bytes_are_looked_at_as_each_by_itself() {
        for at in 0..8 {
            for byte in 0..=u8::MAX {
                for others in [b' ', b'a', b'~', 0x1f, 0x7f, 0x80, 0xff] {
                    let mut word = [others; 8];
                    word[at] = byte;
                    let each = word.iter().all(|byte| (b' '..=b'~').contains(byte));
                    assert_eq!(are_visible(u64::from_le_bytes(word)), each, "{word:?}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn plain_bytes_are_counted_as_one_by_one(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let plain = |byte: &u8| matches!(byte, b' '..=b'~' | b'\t');
            let expected = bytes.iter().take_while(|byte| plain(byte)).count();
            prop_assert_eq!(plain_len(&bytes), expected);
        }

        /// A whole request has the same result however it is cut and whatever follows it. Any other
        /// request stays `Other` whatever follows it.
        #[test]
        fn changed_requests_are_understood_alike_in_parts(
            at in any::<prop::sample::Index>(), byte: u8, cut in any::<prop::sample::Index>(),
        ) {
            let mut text = b"GET /timestamp?n=3&format=range HTTP/1.1\r\nHost: a\r\n\
                Connection: keep-alive\r\nx: y\r\n\r\n".to_vec();
            let at = at.index(text.len());
            text[at] = byte;
            let part = scan(&text[..cut.index(text.len())], MAX_N);
            match scan(&text, MAX_N) {
                Scan::Other => {}
                whole => prop_assert!(part == Scan::Partial || part == whole),
            }
            if part == Scan::Other {
                prop_assert_eq!(scan(&text, MAX_N), Scan::Other);
            }
        }
    }
}
