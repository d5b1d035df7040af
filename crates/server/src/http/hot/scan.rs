//! Whether bytes begin with a hot request: `GET /timestamp`, HTTP/1.1, with headers that mean
//! nothing here or little. It is a list of what is allowed, not of what is not: every byte has to
//! be one that it knows, in its place. Whatever else comes is somebody else's to understand, so
//! that nothing is ever read in two ways (RFC 9112, 11.2): a body, a second length, a bare line
//! feed, a folded line, a control byte, a name that only looks like one.
//!
//! What it says of a request does not depend on where reads have cut it, nor on what follows.

use super::super::query::{Ask, Format};

/// Bytes of a hot request at most: many times what a client of an oracle sends.
pub const REQUEST_LEN_MAX: usize = 4096;
/// Header lines of a hot request at most.
const LINES_MAX: usize = 48;
/// Bytes of a query at most: both parameters with their longest values.
const QUERY_LEN_MAX: usize = 64;
/// Timestamps of a hot answer one after another at most, 16 kB; longer lists are made while they
/// are sent, a chunk at a time, and that is not done here.
pub const LIST_COUNT_MAX: u64 = 1000;
/// Bytes of a request id that is given back, at most.
const REQUEST_ID_LEN_MAX: usize = epicepoch_wire::http::REQUEST_ID_LEN_MAX;

/// What bytes begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan<'a> {
    /// A hot request, whole.
    Hot(HotRequest<'a>),
    /// The beginning of what may become one.
    Partial,
    /// Anything else.
    Other,
}

/// A hot request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotRequest<'a> {
    /// What it asks for. Invariant: never JSON, and at most [`LIST_COUNT_MAX`] one after another.
    pub ask: Ask,
    /// What comes back in `epicepoch-request-id`; empty where none was given.
    pub request_id: &'a [u8],
    /// What stands in `authorization`; empty where that is not given.
    pub authorization: &'a [u8],
    /// Whether it is the last one of its connection.
    pub closes: bool,
    /// How many bytes it is.
    pub len: usize,
}

/// Says what `bytes` begin with, where at most `max_n` timestamps are given one after another.
#[must_use]
pub fn scan(bytes: &[u8], max_n: u64) -> Scan<'_> {
    match (Scanner { bytes, at: 0 }).request(max_n) {
        Ok(request) => Scan::Hot(request),
        Err(Stop::Short) if bytes.len() < REQUEST_LEN_MAX => Scan::Partial,
        Err(Stop::Short | Stop::Other) => Scan::Other,
    }
}

/// Why there is no request.
enum Stop {
    /// The bytes end before it does.
    Short,
    /// It is not hot.
    Other,
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    fn request(mut self, max_n: u64) -> Result<HotRequest<'a>, Stop> {
        self.literal(b"GET /timestamp")?;
        let query = if self.peek()? == b'?' { self.query()? } else { None };
        self.literal(b" HTTP/1.1\r\n")?;
        // How a bad query is refused is not said here.
        let Ok(ask) = Ask::parse(query, max_n) else { return Err(Stop::Other) };
        match ask.format {
            Format::Binary if ask.count <= LIST_COUNT_MAX => {}
            Format::Range => {}
            Format::Binary | Format::Json => return Err(Stop::Other),
        }
        let Lines { hosts, request_id, authorization, closes } = self.lines()?;
        // One that names no host, or two, is refused elsewhere (RFC 9112, 3.2).
        if hosts != 1 || self.at > REQUEST_LEN_MAX {
            return Err(Stop::Other);
        }
        let request_id = request_id.unwrap_or_default();
        let authorization = authorization.unwrap_or_default();
        let closes = closes.unwrap_or(false);
        Ok(HotRequest { ask, request_id, authorization, closes, len: self.at })
    }

    fn peek(&self) -> Result<u8, Stop> {
        self.bytes.get(self.at).copied().ok_or(Stop::Short)
    }

    /// Takes exactly these bytes.
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

    /// Takes a query of letters, digits, `=` and `&`, with its question mark.
    fn query(&mut self) -> Result<Option<&'a str>, Stop> {
        self.at += 1;
        let rest = &self.bytes[self.at..];
        let is_of_query = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'=' | b'&');
        let len = rest.iter().take_while(|byte| is_of_query(**byte)).count();
        if len > QUERY_LEN_MAX {
            return Err(Stop::Other);
        }
        self.at += len;
        // What follows is looked at by who calls.
        self.peek()?;
        Ok(std::str::from_utf8(&rest[..len]).ok())
    }

    /// Takes every header line and the empty one behind them.
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

    /// Takes a name and its colon.
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

    /// Takes a value and the end of its line; blanks around it are not part of it.
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

/// What the header lines said that means anything.
#[derive(Default)]
struct Lines<'a> {
    hosts: u32,
    request_id: Option<&'a [u8]>,
    authorization: Option<&'a [u8]>,
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
            // Two are somebody else's to refuse.
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
            b'e' if is(REQUEST_ID) => {
                let is_fit = (1..=REQUEST_ID_LEN_MAX).contains(&value.len());
                if !is_fit || self.request_id.replace(value).is_some() {
                    return Err(Stop::Other);
                }
            }
            // Names of a body, of its length, of another protocol, of one hop; and their kin.
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

const REQUEST_ID: &[u8] = epicepoch_wire::http::HEADER_REQUEST_ID.as_bytes();

/// Letters, digits and the hyphen: fewer than a token may have (RFC 9110, 5.6.2).
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

/// Whether all eight bytes are within `' '..='~'`. A byte below the first borrows, which sets its
/// highest bit; one above the last carries or has it; what these do to the bytes above them is
/// seen only where the answer is no already.
const fn are_visible(word: u64) -> bool {
    const EACH: u64 = u64::from_le_bytes([1; 8]);
    let below = word.wrapping_sub(EACH * b' ' as u64);
    let above = word.wrapping_add(EACH * (0x80 - 1 - b'~' as u64));
    (below | above | word) & (EACH * 0x80) == 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX_N: u64 = 65_536;

    fn hot(bytes: &[u8]) -> HotRequest<'_> {
        match scan(bytes, MAX_N) {
            Scan::Hot(request) => request,
            other => panic!("{other:?}: {}", bytes.escape_ascii()),
        }
    }

    #[test]
    fn what_clients_send_is_hot() {
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
            (
                "GET /timestamp?n=7 HTTP/1.1\r\nHost: localhost:8881\r\nUser-Agent: curl/8.5.0\r\n\
                 Accept: */*\r\nCookie: a=\"b\";\tc\r\nUpgrade-Insecure-Requests: 1\r\n\
                 X-Forwarded-For: 10.0.0.1\r\nConnection: Keep-Alive\r\n\r\n",
                7,
                Format::Binary,
            ),
        ] {
            let request = hot(text.as_bytes());
            assert_eq!(request.ask, Ask { count, format }, "{text}");
            assert_eq!((request.request_id, request.closes), (&b""[..], false), "{text}");
            assert_eq!(request.len, text.len(), "{text}");
        }
    }

    #[test]
    fn a_request_id_and_the_last_request_are_seen() {
        let text = b"GET /timestamp HTTP/1.1\r\nEpicEpoch-Request-Id: \t 4 2\t \r\nHost: a\r\n\
            CONNECTION:close\r\n\r\nGET /";
        let request = hot(text);
        assert_eq!((request.request_id, request.closes), (&b"4 2"[..], true));
        assert_eq!(&text[request.len..], b"GET /");
    }

    #[test]
    fn what_is_not_exactly_hot_is_left_to_others() {
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
        let text = b"GET /timestamp?n=3 HTTP/1.1\r\nHost: a\r\nAccept: text/html, */*;q=0.5\r\n\
            epicepoch-request-id: 42-abc\r\n\r\n";
        for cut in 0..text.len() {
            let part = text[..cut].escape_ascii();
            assert_eq!(scan(&text[..cut], MAX_N), Scan::Partial, "{part}");
        }
        let mut followed = text.to_vec();
        followed.extend_from_slice(b"\0\0\0");
        assert_eq!(hot(&followed), hot(text));
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
        assert_eq!(scan(&text, MAX_N), Scan::Other, "longer than a hot request may be");
        text.remove(60);
        assert_eq!(hot(&text).len, REQUEST_LEN_MAX);
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

        /// A whole request is the same however it is cut and whatever follows; what is other stays
        /// other whatever follows.
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
