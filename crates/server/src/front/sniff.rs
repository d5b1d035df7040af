//! Recognizes the protocol of a connection by its first bytes: native, HTTP, or neither. The bytes
//! stay in the socket.

use epicepoch_wire::http2::frame::PREFACE;
use epicepoch_wire::native;

use crate::security::tls::socket::AHEAD_LEN_MAX;

/// How many bytes are examined: enough for the connection preface of HTTP/2 and for every plausible
/// request line.
pub(super) const OPENING_LEN: usize = AHEAD_LEN_MAX;
/// The first byte of every TLS connection: the type of a handshake record (RFC 8446, section 5.1).
/// Neither HTTP nor a native hello begins with this byte.
const TLS_HANDSHAKE: u8 = 22;

const _: () = assert!(native::FIRST_BYTE != TLS_HANDSHAKE);

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// The native protocol.
    Native,
    /// HTTP of some version, or bytes that hyper refuses with a 400.
    Http,
    /// HTTP/2, judged by the bytes that have arrived.
    Http2,
    /// A line of text that names no version of HTTP. The line is not an HTTP/1.1 request. It may be
    /// an invalid preface of HTTP/2, which must end the connection (RFC 9113, 3.4).
    Foreign,
}

/// Whether a connection that begins with `bytes` speaks TLS.
pub(super) fn is_tls(bytes: &[u8]) -> bool {
    bytes.first() == Some(&TLS_HANDSHAKE)
}

impl Opening {
    /// Recognizes the protocol by the bytes that have arrived; `None` if there are none. An
    /// incomplete line counts as HTTP.
    pub(super) fn of(bytes: &[u8]) -> Option<Self> {
        let first = *bytes.first()?;
        if first == native::FIRST_BYTE {
            return Some(Self::Native);
        }
        if PREFACE.starts_with(bytes) || bytes.starts_with(PREFACE) {
            return Some(Self::Http2);
        }
        let line = bytes.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
        let text = line.strip_suffix(b"\r\n").unwrap_or_default();
        let is_text = !text.is_empty() && text.iter().all(|byte| matches!(byte, b' '..=b'~'));
        let names_http = text.windows(HTTP.len()).any(|word| word == HTTP);
        Some(if is_text && !names_http { Self::Foreign } else { Self::Http })
    }
}

const HTTP: &[u8] = b"HTTP/";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_line_of_text_without_a_version_of_http_is_foreign() {
        for (bytes, opening) in [
            (&b""[..], None),
            (&[native::FIRST_BYTE], Some(Opening::Native)),
            (b"G", Some(Opening::Http)),
            (b"GET /timestamp HTTP/1.1\r\n", Some(Opening::Http)),
            (b"GET /timestamp HTTP/9\r\n", Some(Opening::Http)),
            (b"\r\nGET /timestamp HTTP/1.1\r\n", Some(Opening::Http)),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Some(Opening::Http2)),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0", Some(Opening::Http2)),
            (b"P", Some(Opening::Http2)),
            (b"POST", Some(Opening::Http)),
            (b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", Some(Opening::Http)),
            (b"\x16\x03\x01 hello\r\n", Some(Opening::Http)),
            (b"INVALID CONNECTION PREF", Some(Opening::Http)),
            (b"INVALID CONNECTION PREFACE\r\n\r\n", Some(Opening::Foreign)),
            (b"GET /\r\n", Some(Opening::Foreign)),
        ] {
            assert_eq!(Opening::of(bytes), opening, "{bytes:?}");
        }
    }
}
