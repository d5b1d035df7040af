//! The client's half of HTTP/3 (RFC 9114) for one fixed request, thin enough to measure with: what
//! goes out is the same bytes each time, and an answer is looked at in the bytes of its stream.
//! Streams are QUIC's, and are not here: bytes in, answers out.
//!
//! - [`answer`]: what came on a request's stream; [`answer::Answers`] knows one that comes again.
//! - [`control`]: what the server says beside answers.
//! - [`qpack`]: header sections (RFC 9204), without a dynamic table.
//! - [`number`]: the numbers of QUIC (RFC 9000, section 16).

pub mod answer;
pub mod control;
pub mod number;
pub mod qpack;

/// The types of frames (RFC 9114, section 7.2).
pub mod kind {
    /// A part of a body.
    pub const DATA: u64 = 0;
    /// A header section.
    pub const HEADERS: u64 = 1;
    /// What an end allows.
    pub const SETTINGS: u64 = 4;
    /// From which stream on requests are not answered.
    pub const GOAWAY: u64 = 7;
}

/// What a client's control stream says: no settings of its own.
pub const CONTROL: &[u8] = &[0, kind::SETTINGS as u8, 0];

/// The head of a request, a whole frame, after which its stream ends.
#[must_use]
pub fn request(path: &str, authority: &str, authorization: Option<&str>) -> Vec<u8> {
    let section = qpack::request(path, authority, authorization);
    let mut frame = Vec::with_capacity(section.len() + 4);
    number::put(&mut frame, kind::HEADERS);
    number::put(&mut frame, section.len() as u64);
    frame.extend_from_slice(&section);
    frame
}
