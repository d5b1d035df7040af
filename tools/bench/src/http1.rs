//! The answers of an oracle over HTTP/1.1: a status line, headers, a body with `content-length` (RFC
//! 9112). A chunked body is an error. An answer is a view into the read buffer; nothing is allocated.

use epicepoch_wire::http::HEADER_PROOF;
use thiserror::Error;

/// Longest head of an answer, bytes.
pub const HEAD_LEN_MAX: usize = 16 * 1024;
/// Longest body of an answer, bytes. The binary answer with the largest `n` fits, and so do a
/// node's metrics.
pub const BODY_LEN_MAX: usize = 4 * 1024 * 1024;

/// The place of an answer in a buffer.
#[derive(Clone, Copy, Debug)]
struct Frame {
    status: u16,
    head_len: usize,
    body_len: usize,
    /// Begin and end of the value of `epicepoch-proof`.
    proof: Option<(usize, usize)>,
}

impl Frame {
    /// Finds the first answer in `buffer`. Returns `None` if bytes are missing.
    fn parse(buffer: &[u8]) -> Result<Option<Self>, ResponseError> {
        let (mut status, mut body_len, mut proof, mut at) = (None, 0, None, 0);
        // The head is parsed in one pass over the bytes, because this runs for every request of a
        // measurement.
        let head_len = loop {
            let Some(line) = memchr::memchr(b'\n', &buffer[at..]) else {
                let too_long = buffer.len() > HEAD_LEN_MAX;
                return if too_long { Err(ResponseError::TooLong) } else { Ok(None) };
            };
            let line = &buffer[at..at + line];
            at += line.len() + 1;
            let line = line.strip_suffix(b"\r").ok_or(ResponseError::Malformed("line end"))?;
            if status.is_none() {
                let read = status_of(line);
                status = Some(read.ok_or(ResponseError::Malformed("status line"))?);
            } else if line.is_empty() {
                break at;
            } else if let Some(value) = value(line, b"content-length") {
                body_len = number(value).ok_or(ResponseError::Malformed("content-length"))?;
            } else if let Some(value) = value(line, HEADER_PROOF.as_bytes()) {
                let end = at - b"\r\n".len();
                proof = Some((end - value.len(), end));
            } else if value(line, b"transfer-encoding").is_some() {
                return Err(ResponseError::Malformed("transfer-encoding is not understood"));
            }
        };
        let status = status.ok_or(ResponseError::Malformed("status line"))?;
        if body_len > BODY_LEN_MAX {
            return Err(ResponseError::TooLong);
        }
        let frame = Self { status, head_len, body_len, proof };
        Ok((buffer.len() >= frame.len()).then_some(frame))
    }

    fn len(&self) -> usize {
        self.head_len + self.body_len
    }

    fn response<'a>(&self, buffer: &'a [u8]) -> Response<'a> {
        Response {
            status: self.status,
            proof: self.proof.map(|(begin, end)| text(&buffer[begin..end])),
            head: &buffer[..self.head_len],
            body: &buffer[self.head_len..self.len()],
        }
    }
}

/// Parses one answer at the front of `buffer`. Returns it with its length, or `None` if bytes are
/// missing.
///
/// # Errors
/// The bytes are not an answer, or an answer that is not supported here.
pub fn parse_response(buffer: &[u8]) -> Result<Option<(Response<'_>, usize)>, ResponseError> {
    Ok(Frame::parse(buffer)?.map(|frame| (frame.response(buffer), frame.len())))
}

/// An answer, as a view into the buffer.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    /// The status code.
    pub status: u16,
    /// The complete body.
    pub body: &'a [u8],
    /// The header `epicepoch-proof`. It is read with the head, because the checks of a measurement
    /// need it for every answer.
    pub proof: Option<&'a str>,
    head: &'a [u8],
}

impl<'a> Response<'a> {
    /// The value of a header, whatever the case of its name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a str> {
        header(self.head, name)
    }

    /// All headers in the order they came in.
    pub fn headers(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        headers(self.head)
    }
}

/// Reads the status of a line like `HTTP/1.1 200 OK`.
fn status_of(line: &[u8]) -> Option<u16> {
    let rest = line.strip_prefix(b"HTTP/1.")?;
    let digits = rest.get(2..5)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The value of a header line, if it has this name.
fn value<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (given, rest) = line.split_at_checked(name.len())?;
    rest.strip_prefix(b":").filter(|_| given.eq_ignore_ascii_case(name))
}

/// The value of a header, without the blanks around it. `?` stands for one that is not UTF-8.
fn text(value: &[u8]) -> &str {
    std::str::from_utf8(value).map_or("?", str::trim)
}

fn number(value: &[u8]) -> Option<usize> {
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

fn headers(head: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    let text = std::str::from_utf8(head).unwrap_or_default();
    text.split("\r\n").skip(1).filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name, value.trim()))
    })
}

fn header<'a>(head: &'a [u8], name: &str) -> Option<&'a str> {
    headers(head).find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// Why bytes are not an answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ResponseError {
    /// The server's answer is not supported here.
    #[error("not an answer that is understood: {0}")]
    Malformed(&'static str),
    /// The answer is longer than any answer of an oracle.
    #[error("the answer is longer than any an oracle gives")]
    TooLong,
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &[u8] = b"HTTP/1.1 409 Conflict\r\nEpicEpoch-Leader: 127.0.0.1:1\r\n\
          content-length: 3\r\n\r\nabcHTTP";

    #[test]
    fn an_answer_is_read_only_when_it_is_whole() {
        let whole = ANSWER.len() - 4;
        for len in 0..whole {
            assert!(parse_response(&ANSWER[..len]).unwrap().is_none(), "{len}");
        }
        let (response, used) = parse_response(ANSWER).unwrap().unwrap();
        assert_eq!((response.status, response.body, used), (409, &b"abc"[..], whole));
        assert_eq!(response.header("epicepoch-leader"), Some("127.0.0.1:1"));
        assert_eq!(response.header("epicepoch-error"), None);
        assert_eq!(response.headers().count(), 2);
    }

    #[test]
    fn bytes_that_are_not_an_answer_are_an_error() {
        for wrong in [
            &b"SSH-2.0-OpenSSH\r\n\r\n"[..],
            b"HTTP/1.1 abc\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            &vec![b'x'; HEAD_LEN_MAX + 1],
        ] {
            assert!(parse_response(wrong).is_err());
        }
    }
}
