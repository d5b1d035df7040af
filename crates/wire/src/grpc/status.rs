//! How a call ends: a code, a message for people, and details for programs, in the trailers of the
//! answer.

use super::protobuf::{put_bytes, put_message, put_number};

/// The codes that this project sends ("Status codes" in the documentation of gRPC).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    /// The call has succeeded.
    Ok = 0,
    /// The request is wrong in any state of the cluster.
    InvalidArgument = 3,
    /// What the request names does not exist.
    NotFound = 5,
    /// The caller may not do this.
    PermissionDenied = 7,
    /// A limit is reached.
    ResourceExhausted = 8,
    /// The cluster is not in the state that the request needs. A retry does not help.
    FailedPrecondition = 9,
    /// The method does not exist here.
    Unimplemented = 12,
    /// The bytes of the request are not what the protocol allows.
    Internal = 13,
    /// The node cannot answer now. A retry helps, maybe at another node.
    Unavailable = 14,
    /// The caller has shown no valid token.
    Unauthenticated = 16,
}

/// Longest message in trailers, bytes before they are encoded. The rest is cut off.
pub const TEXT_LEN_MAX: usize = 512;

/// Appends a message in the form that `grpc-message` has: bytes other than printable ASCII, and
/// `%`, become `%` and two hexadecimal digits.
pub fn put_text(out: &mut Vec<u8>, text: &str) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes().take(TEXT_LEN_MAX) {
        if matches!(byte, b' '..=b'~') && byte != b'%' {
            out.push(byte);
        } else {
            let (high, low) = (usize::from(byte >> 4), usize::from(byte & 15));
            out.extend_from_slice(&[b'%', DIGITS[high], DIGITS[low]]);
        }
    }
}

/// Appends a `google.rpc.Status`, the form in which a status has details: `grpc-status-details-bin`
/// has it in base64. The only detail here has the type `kind`, and `detail` appends its bytes. Code
/// and text are those of the call.
pub fn put_details(
    out: &mut Vec<u8>,
    code: Code,
    text: &str,
    kind: &str,
    detail: impl FnOnce(&mut Vec<u8>),
) {
    const CODE: u32 = 1;
    const MESSAGE: u32 = 2;
    const DETAILS: u32 = 3;
    const KIND: u32 = 1;
    const VALUE: u32 = 2;
    put_number(out, CODE, code as u64);
    put_bytes(out, MESSAGE, &text.as_bytes()[..text.floor_char_boundary(TEXT_LEN_MAX)]);
    put_message(out, DETAILS, |out| {
        put_bytes(out, KIND, kind.as_bytes());
        put_message(out, VALUE, detail);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_becomes_printable() {
        let mut out = Vec::new();
        put_text(&mut out, "100% of a\n\u{fc}~");
        assert_eq!(out, b"100%25 of a%0A%C3%BC~");
        out.clear();
        put_text(&mut out, &"%".repeat(2 * TEXT_LEN_MAX));
        assert_eq!(out, b"%25".repeat(TEXT_LEN_MAX));
    }

    #[test]
    fn details_repeat_the_status_and_have_a_type() {
        let mut out = Vec::new();
        let detail = |out: &mut Vec<u8>| out.extend_from_slice(b"\x08\x02");
        put_details(&mut out, Code::Unavailable, "no", "k/t", detail);
        assert_eq!(out, b"\x08\x0e\x12\x02no\x1a\x09\x0a\x03k/t\x12\x02\x08\x02");
        out.clear();
        put_details(&mut out, Code::Unavailable, &"\u{fc}x".repeat(TEXT_LEN_MAX), "", |_| {});
        assert!(out.len() < TEXT_LEN_MAX + 20);
    }
}
