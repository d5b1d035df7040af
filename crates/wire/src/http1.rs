//! Answers over HTTP/1.1 (RFC 9112), as a client reads them. [`AnswerReader`] finds the end of one
//! answer and the headers that clients use. It opens no socket, and copies only chunked bodies.
//!
//! It is strict, because a client must never take the bytes of one answer for another one: a head
//! that two readers could understand in two ways is refused. The answer does not depend on how
//! reads split the bytes, or on bytes behind its end.

use std::ops::Range;

use thiserror::Error;

use crate::http::{HEADER_CLUSTER, HEADER_ERROR, HEADER_LEADER, HEADER_PROOF};

/// The heads of one answer, with those of interim answers before it, have at most this many bytes.
pub const HEAD_LEN_MAX: usize = 16 * 1024;
/// A body has at most this many bytes. That is several times the longest list of members.
pub const BODY_LEN_MAX: usize = 256 * 1024;
/// A chunked body has at most this many bytes that are no content: sizes, line ends, trailers.
pub const CHUNKING_LEN_MAX: usize = 16 * 1024;
/// An answer that is not complete has fewer bytes than this. The last two are the line end behind a
/// chunk.
pub const ANSWER_LEN_MAX: usize = HEAD_LEN_MAX + BODY_LEN_MAX + CHUNKING_LEN_MAX + 2;

/// Reads one answer from the bytes that a server has sent since the request.
#[derive(Clone, Debug, Default)]
pub struct AnswerReader {
    part: Part,
    /// The part begins here.
    at: usize,
    /// The bytes from `at` to here have no line feed.
    searched: usize,
    head: Head,
    head_len: usize,
    body: Body,
    /// The content of a chunked body.
    content: Vec<u8>,
}

/// The part of the answer that comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    StatusLine,
    Header,
    /// A body of a known length.
    Whole,
    /// A body that ends with the connection.
    Rest,
    ChunkSize,
    /// The rest of a chunk, with this many bytes.
    Chunk(usize),
    /// The line end behind a chunk.
    ChunkEnd,
    Trailer,
    /// Nothing: the answer ends at `at`.
    Nothing,
}

/// What one head says.
#[derive(Clone, Debug, Default)]
struct Head {
    status: u16,
    is_http10: bool,
    closes: bool,
    length: Option<usize>,
    is_chunked: bool,
    /// Where the values of [`FIELDS`] are.
    fields: [Option<Range<usize>>; FIELDS.len()],
}

/// Where the body is.
#[derive(Clone, Debug, Default)]
enum Body {
    #[default]
    None,
    /// In these received bytes.
    Received(Range<usize>),
    /// In the reader.
    Chunked,
}

/// A complete answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The status code, 200 to 999.
    pub status: u16,
    /// The header `epicepoch-cluster`.
    pub cluster: Option<&'a str>,
    /// The header `epicepoch-error`.
    pub error: Option<&'a str>,
    /// The header `epicepoch-leader`.
    pub leader: Option<&'a str>,
    /// The header `epicepoch-proof`: what has proved the answer, in the words of the node.
    pub proof: Option<&'a str>,
    /// The body.
    pub body: &'a [u8],
}

/// Why bytes are not an answer. The connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// The first line is no status line of HTTP/1.1 or HTTP/1.0.
    #[error("it does not begin with HTTP/1.1 or HTTP/1.0 and a status")]
    StatusLine,
    /// The server changes to another protocol, which no client of this service asks for.
    #[error("it changes to another protocol (status 101)")]
    Switches,
    /// A line does not end in CR LF.
    #[error("a line does not end in CR LF")]
    LineEnd,
    /// A header continues on the next line.
    #[error("a header is folded into two lines")]
    Folded,
    /// A line is not `name: value`, or has a byte that is not allowed.
    #[error("a header is malformed")]
    Header,
    /// A header that must be unique comes twice.
    #[error("the header {0} comes twice")]
    Twice(&'static str),
    /// The content length is not one decimal number.
    #[error("content-length is not a number")]
    Length,
    /// The transfer coding is not `chunked`, or is sent together with a length or over HTTP/1.0.
    #[error("the transfer coding is not chunked alone, over HTTP/1.1")]
    Coding,
    /// A chunk has no size, or is longer than its size.
    #[error("a chunk is malformed")]
    Chunk,
    /// The heads are longer than [`HEAD_LEN_MAX`].
    #[error("the head has more than {HEAD_LEN_MAX} bytes")]
    HeadTooLong,
    /// The body is longer than [`BODY_LEN_MAX`].
    #[error("the body has more than {BODY_LEN_MAX} bytes")]
    BodyTooLong,
    /// The chunks need more than [`CHUNKING_LEN_MAX`] bytes besides their content.
    #[error("the chunks need more than {CHUNKING_LEN_MAX} bytes besides their content")]
    ChunkingTooLong,
    /// The connection has ended before the answer.
    #[error("the connection ended before the answer was complete")]
    Ended,
}

impl AnswerReader {
    /// Forgets the answer. The next bytes are of another one.
    pub fn reset(&mut self) {
        let mut content = std::mem::take(&mut self.content);
        content.clear();
        content.shrink_to(CONTENT_LEN_KEPT);
        *self = Self { content, ..Self::default() };
    }

    /// Reads on. `received` has all bytes since the request: those of the last call, and new ones.
    /// Returns whether the answer is complete.
    ///
    /// # Errors
    /// The bytes are not an answer, or it is longer than its limits.
    pub fn read(&mut self, received: &[u8]) -> Result<bool, AnswerError> {
        loop {
            match self.part {
                Part::StatusLine => {
                    // Another protocol is found out before a line feed, which may never come.
                    let mut begin = received[self.at..].iter().zip(VERSION);
                    if begin.any(|(byte, expected)| byte != expected) {
                        return Err(AnswerError::StatusLine);
                    }
                    let Some(line) = self.head_line(received)? else { return Ok(false) };
                    self.head = Head::begin(&received[line])?;
                    self.part = Part::Header;
                }
                Part::Header => {
                    let Some(line) = self.head_line(received)? else { return Ok(false) };
                    if line.is_empty() {
                        self.end_head()?;
                    } else {
                        self.head.add(received, line)?;
                    }
                }
                Part::Whole => {
                    let length = self.head.length.unwrap_or(0);
                    let Some(rest) = received[self.at..].get(length..) else { return Ok(false) };
                    let end = received.len() - rest.len();
                    self.body = Body::Received(self.at..end);
                    (self.at, self.part) = (end, Part::Nothing);
                }
                Part::Rest => {
                    let is_too_long = received.len() - self.at > BODY_LEN_MAX;
                    return if is_too_long { Err(AnswerError::BodyTooLong) } else { Ok(false) };
                }
                Part::ChunkSize => {
                    let Some(line) = self.chunk_line(received)? else { return Ok(false) };
                    let size = chunk_size(&received[line])?;
                    if size > BODY_LEN_MAX - self.content.len() {
                        return Err(AnswerError::BodyTooLong);
                    }
                    self.part = if size == 0 { Part::Trailer } else { Part::Chunk(size) };
                }
                Part::Chunk(size) => {
                    let new = &received[self.at..];
                    let new = &new[..size.min(new.len())];
                    self.content.extend_from_slice(new);
                    self.at += new.len();
                    self.searched = self.at;
                    if new.len() < size {
                        self.part = Part::Chunk(size - new.len());
                        return Ok(false);
                    }
                    self.part = Part::ChunkEnd;
                }
                Part::ChunkEnd => {
                    match received[self.at..] {
                        [b'\r', b'\n', ..] => {}
                        [] | [b'\r'] => return Ok(false),
                        _ => return Err(AnswerError::Chunk),
                    }
                    self.at += 2;
                    self.searched = self.at;
                    self.part = Part::ChunkSize;
                }
                Part::Trailer => {
                    let Some(line) = self.chunk_line(received)? else { return Ok(false) };
                    if line.is_empty() {
                        self.body = Body::Chunked;
                        self.part = Part::Nothing;
                    } else {
                        // A trailer says nothing that a client uses, so only its form counts.
                        header(&received[line])?;
                    }
                }
                Part::Nothing => return Ok(true),
            }
        }
    }

    /// Handles the end of the connection. It completes an answer that has no other end.
    ///
    /// # Errors
    /// The answer is not complete, or is not one, as for [`Self::read`].
    pub fn end(&mut self, received: &[u8]) -> Result<(), AnswerError> {
        if self.read(received)? {
            return Ok(());
        }
        if self.part != Part::Rest {
            return Err(AnswerError::Ended);
        }
        self.body = Body::Received(self.at..received.len());
        (self.at, self.part) = (received.len(), Part::Nothing);
        Ok(())
    }

    /// Returns the answer. `received` has the bytes of the last call.
    ///
    /// # Panics
    /// The answer is not complete.
    #[must_use]
    pub fn answer<'a>(&'a self, received: &'a [u8]) -> Answer<'a> {
        assert_eq!(self.part, Part::Nothing, "only a complete answer is returned");
        let [cluster, error, leader, proof] = self.head.fields.each_ref().map(|field| {
            let value = &received[field.clone()?];
            std::str::from_utf8(value).ok()
        });
        let body = match &self.body {
            Body::None => &[],
            Body::Received(place) => &received[place.clone()],
            Body::Chunked => &self.content[..],
        };
        Answer { status: self.head.status, cluster, error, leader, proof, body }
    }

    /// The status of the complete answer.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.head.status
    }

    /// How many of the received bytes the complete answer has, with all interim answers before it.
    /// Later bytes are not of this answer.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.at
    }

    /// Whether the server may answer another request on the connection after this answer. Over
    /// HTTP/1.0 it never may here, and an answer that ends with its connection is the last one.
    #[must_use]
    pub fn keeps_open(&self) -> bool {
        !self.head.closes
    }

    /// Returns the next line without its end; `None` if it is not complete. The line must end below
    /// `end_max`.
    fn line(
        &mut self,
        received: &[u8],
        end_max: usize,
        too_long: AnswerError,
    ) -> Result<Option<Range<usize>>, AnswerError> {
        let new = received.get(self.searched..received.len().min(end_max)).unwrap_or_default();
        let Some(found) = line_feed(new) else {
            self.searched += new.len();
            return if received.len() >= end_max { Err(too_long) } else { Ok(None) };
        };
        let (begin, end) = (self.at, self.searched + found);
        (self.at, self.searched) = (end + 1, end + 1);
        match received[begin..end].split_last() {
            Some((b'\r', _)) => Ok(Some(begin..end - 1)),
            Some(_) | None => Err(AnswerError::LineEnd),
        }
    }

    fn head_line(&mut self, received: &[u8]) -> Result<Option<Range<usize>>, AnswerError> {
        self.line(received, HEAD_LEN_MAX, AnswerError::HeadTooLong)
    }

    fn chunk_line(&mut self, received: &[u8]) -> Result<Option<Range<usize>>, AnswerError> {
        let end_max = self.head_len + self.content.len() + CHUNKING_LEN_MAX;
        self.line(received, end_max, AnswerError::ChunkingTooLong)
    }

    /// Decides what follows the head (RFC 9112, section 6.3).
    fn end_head(&mut self) -> Result<(), AnswerError> {
        let Head { status, is_http10, length, is_chunked, .. } = self.head;
        if status == 101 {
            return Err(AnswerError::Switches);
        }
        // A body that such an answer names is not there.
        let has_no_body = matches!(status, 204 | 304);
        self.part = match length {
            _ if status < 200 => Part::StatusLine,
            _ if has_no_body => Part::Nothing,
            // A peer that understands only one of the two would see another end.
            Some(_) if is_chunked => return Err(AnswerError::Coding),
            None if is_chunked && is_http10 => return Err(AnswerError::Coding),
            None if is_chunked => Part::ChunkSize,
            Some(length) if length > BODY_LEN_MAX => return Err(AnswerError::BodyTooLong),
            Some(_) => Part::Whole,
            None => Part::Rest,
        };
        self.head.closes |= is_http10 || self.part == Part::Rest;
        self.head_len = self.at;
        Ok(())
    }
}

impl Head {
    /// Reads a status line.
    fn begin(line: &[u8]) -> Result<Self, AnswerError> {
        let parts = line.strip_prefix(VERSION).and_then(|rest| rest.split_first_chunk::<5>());
        let Some(([minor, b' ', digits @ ..], reason)) = parts else {
            return Err(AnswerError::StatusLine);
        };
        let is_http10 = match minor {
            b'0' => true,
            b'1' => false,
            _ => return Err(AnswerError::StatusLine),
        };
        let is_number = digits[0] != b'0' && digits.iter().all(u8::is_ascii_digit);
        // Some servers leave out the space before an empty reason.
        let has_reason = matches!(reason, [] | [b' ', ..]) && is_all_text(reason);
        if !is_number || !has_reason {
            return Err(AnswerError::StatusLine);
        }
        let status = digits.iter().fold(0, |status, digit| status * 10 + u16::from(digit - b'0'));
        Ok(Self { status, is_http10, ..Self::default() })
    }

    /// Adds the header in the bytes `line` of `received`.
    fn add(&mut self, received: &[u8], line: Range<usize>) -> Result<(), AnswerError> {
        let (name, place) = header(&received[line.clone()])?;
        let place = line.start + place.start..line.start + place.end;
        let value = &received[place.clone()];
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        if is(CONTENT_LENGTH) {
            if self.length.replace(number(value)?).is_some() {
                return Err(AnswerError::Twice(CONTENT_LENGTH));
            }
        } else if is(TRANSFER_ENCODING) {
            if std::mem::replace(&mut self.is_chunked, true) {
                return Err(AnswerError::Twice(TRANSFER_ENCODING));
            }
            if !value.eq_ignore_ascii_case(b"chunked") {
                return Err(AnswerError::Coding);
            }
        } else if is("connection") {
            let mut options = value.split(|byte| *byte == b',');
            self.closes |= options.any(|it| it.trim_ascii().eq_ignore_ascii_case(b"close"));
        } else if let Some(field) = FIELDS.iter().position(|field| is(field)) {
            if !value.is_ascii() {
                return Err(AnswerError::Header);
            }
            if self.fields[field].replace(place).is_some() {
                return Err(AnswerError::Twice(FIELDS[field]));
            }
        }
        Ok(())
    }
}

/// Reads a header line. Returns the name, and where the value is, without the blanks around it (RFC
/// 9112, section 5).
fn header(line: &[u8]) -> Result<(&[u8], Range<usize>), AnswerError> {
    if line.first().is_some_and(|byte| is_blank(*byte)) {
        return Err(AnswerError::Folded);
    }
    let colon = line.iter().position(|byte| !IS_NAME[usize::from(*byte)]).unwrap_or(line.len());
    let (name, rest) = line.split_at(colon);
    let Some((b':', value)) = rest.split_first() else { return Err(AnswerError::Header) };
    if name.is_empty() || !is_all_text(value) {
        return Err(AnswerError::Header);
    }
    let end = line.iter().rposition(|byte| !is_blank(*byte)).map_or(0, |last| last + 1);
    let blanks = value.iter().take_while(|byte| is_blank(**byte)).count();
    Ok((name, (colon + 1 + blanks).min(end)..end))
}

/// Reads the size of a chunk, and checks the extensions behind it (RFC 9112, section 7.1).
fn chunk_size(line: &[u8]) -> Result<usize, AnswerError> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (digits, rest) = line.split_at(digits);
    let rest = rest.trim_ascii_start();
    let is_right = !digits.is_empty() && matches!(rest, [] | [b';', ..]) && is_all_text(line);
    if !is_right {
        return Err(AnswerError::Chunk);
    }
    // A longer number is far above every limit, and stays so.
    let value = |byte: &u8| (*byte as char).to_digit(16).unwrap_or(0) as usize;
    Ok(digits
        .iter()
        .fold(0, |size: usize, byte| size.saturating_mul(16).saturating_add(value(byte))))
}

/// Reads a content length. A list is refused, even of equal numbers.
fn number(value: &[u8]) -> Result<usize, AnswerError> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(AnswerError::Length);
    }
    // A longer number is far above every limit, and stays so.
    Ok(value.iter().fold(0, |number: usize, digit| {
        number.saturating_mul(10).saturating_add(usize::from(digit - b'0'))
    }))
}

/// Which bytes may be in the name of a header (RFC 9110, section 5.6.2).
const IS_NAME: [bool; 256] = {
    let mut is_name = [false; 256];
    let names = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut at = 0;
    while at < names.len() {
        is_name[names[at] as usize] = true;
        at += 1;
    }
    is_name
};

/// Whether all bytes may be in a value or a reason (RFC 9110, section 5.5). The compiler checks many
/// bytes at once, because the loop has no early end.
fn is_all_text(bytes: &[u8]) -> bool {
    let is_wrong = |byte: &u8| *byte == 0x7f || (*byte < b' ' && *byte != b'\t');
    bytes.iter().fold(0, |wrong, byte| wrong | u8::from(is_wrong(byte))) == 0
}

/// The place of the first line feed. The compiler compares the bytes of a chunk at once.
fn line_feed(bytes: &[u8]) -> Option<usize> {
    let (chunks, rest) = bytes.as_chunks::<16>();
    let has_it =
        |chunk: &[u8; 16]| chunk.iter().fold(0, |has, byte| has | u8::from(*byte == b'\n')) != 0;
    let skipped = chunks.iter().take_while(|chunk| !has_it(chunk)).count() * 16;
    let near = if skipped < bytes.len() - rest.len() { &bytes[skipped..] } else { rest };
    Some(skipped + near.iter().position(|byte| *byte == b'\n')?)
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

const VERSION: &[u8] = b"HTTP/1.";
const CONTENT_LENGTH: &str = "content-length";
const TRANSFER_ENCODING: &str = "transfer-encoding";
/// The headers of an [`Answer`].
const FIELDS: [&str; 4] = [HEADER_CLUSTER, HEADER_ERROR, HEADER_LEADER, HEADER_PROOF];
/// The memory of at most this many bytes of a chunked body is kept for the next one.
const CONTENT_LEN_KEPT: usize = 4096;

#[cfg(test)]
mod tests;
