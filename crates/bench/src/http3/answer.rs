//! What came on the stream of a request: a head, and a body in frames.

use std::borrow::Cow;

use thiserror::Error;

use super::qpack::{self, Head, QpackError};
use super::{kind, number};

/// An answer, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// Its headers, as far as they are looked at.
    pub head: &'a Head,
    /// Its body.
    pub body: Cow<'a, [u8]>,
}

/// Why what came is no answer.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnswerError {
    /// The stream ended in a frame.
    #[error("an answer is cut off")]
    Cut,
    /// The stream does not begin with a head, or has two, or none that says how it went.
    #[error("an answer has no head, or two")]
    Head,
    /// The headers cannot be read.
    #[error(transparent)]
    Qpack(#[from] QpackError),
}

/// The answers of one connection. An answer whose head is like the last one's is not decoded.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    section: Vec<u8>,
    head: Head,
}

impl Answers {
    /// What a stream that has ended brought.
    ///
    /// # Errors
    /// When it is no answer. Of that connection nothing more is to be believed.
    pub fn read<'a>(&'a mut self, mut stream: &'a [u8]) -> Result<Answer<'a>, AnswerError> {
        let (mut has_head, mut body) = (false, Cow::Borrowed(&[][..]));
        while !stream.is_empty() {
            let (kind, payload) = frame(&mut stream).ok_or(AnswerError::Cut)?;
            match kind {
                kind::HEADERS if has_head => return Err(AnswerError::Head),
                kind::HEADERS => {
                    if self.section != payload || payload.is_empty() {
                        self.head = qpack::head(payload)?;
                        self.section.clear();
                        self.section.extend_from_slice(payload);
                    }
                    // What comes before the answer itself says nothing here.
                    has_head = self.head.status >= 200;
                }
                kind::DATA if !has_head => return Err(AnswerError::Head),
                kind::DATA if body.is_empty() => body = Cow::Borrowed(payload),
                kind::DATA => body.to_mut().extend_from_slice(payload),
                _ => {}
            }
        }
        if has_head { Ok(Answer { head: &self.head, body }) } else { Err(AnswerError::Head) }
    }
}

/// Takes a frame off the front: its type and its payload.
pub(super) fn frame<'a>(stream: &mut &'a [u8]) -> Option<(u64, &'a [u8])> {
    let mut rest = *stream;
    let kind = number::take(&mut rest)?;
    let len = usize::try_from(number::take(&mut rest)?).ok()?;
    let (payload, rest) = rest.split_at_checked(len)?;
    *stream = rest;
    Some((kind, payload))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OK: &[u8] = &[1, 3, 0, 0, 0xd9];

    fn read(parts: &[&[u8]]) -> Result<(u16, Vec<u8>), AnswerError> {
        let stream = parts.concat();
        let mut answers = Answers::default();
        let answer = answers.read(&stream)?;
        Ok((answer.head.status, answer.body.into_owned()))
    }

    #[test]
    fn an_answer_is_a_head_and_a_body_in_any_number_of_frames() {
        assert_eq!(read(&[OK]), Ok((200, vec![])));
        assert_eq!(read(&[OK, &[0, 2, 7, 8]]), Ok((200, vec![7, 8])));
        let unknown = &[0x21, 1, 9][..];
        assert_eq!(read(&[unknown, OK, &[0, 1, 7], unknown, &[0, 1, 8]]), Ok((200, vec![7, 8])));
        let hints = &[1, 3, 0, 0, 0xd8][..];
        assert_eq!(read(&[hints, OK, &[0, 1, 7]]), Ok((200, vec![7])));
    }

    #[test]
    fn what_is_cut_off_or_has_no_head_is_no_answer() {
        assert_eq!(read(&[]), Err(AnswerError::Head));
        assert_eq!(read(&[&[0, 1, 7]]), Err(AnswerError::Head));
        assert_eq!(read(&[OK, OK]), Err(AnswerError::Head));
        assert_eq!(read(&[OK, &[0, 2, 7]]), Err(AnswerError::Cut));
        assert_eq!(read(&[&OK[..3]]), Err(AnswerError::Cut));
    }

    #[test]
    fn a_head_that_comes_again_says_the_same() {
        let mut answers = Answers::default();
        for _ in 0..2 {
            assert_eq!(answers.read(OK).unwrap().head.status, 200);
        }
        assert_eq!(answers.read(&[1, 3, 0, 0, 0xdc]).unwrap().head.status, 503);
    }

    proptest! {
        #[test]
        fn any_bytes_are_looked_at(bytes: Vec<u8>) {
            let _ = Answers::default().read(&bytes);
        }
    }
}
