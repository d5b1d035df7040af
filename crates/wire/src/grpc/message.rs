//! Messages in the body of a request or an answer ("Length-Prefixed-Message" in gRPC's description
//! of its protocol over HTTP/2): one byte that says whether the message is compressed, four bytes
//! of length, the message.

/// Bytes in front of each message.
pub const PREFIX_LEN: usize = 5;
/// Longest message that is accepted, bytes. The longest request that this project understands has
/// less than 100.
pub const MESSAGE_LEN_MAX: usize = 4096;

/// A message, borrowed from the bytes of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Whether the bytes are compressed. This project never offers a compression.
    pub is_compressed: bool,
    /// The content.
    pub bytes: &'a [u8],
}

/// Why the bytes of a body are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The message is longer than [`MESSAGE_LEN_MAX`].
    #[error("a message of {0} bytes; the limit is {MESSAGE_LEN_MAX}")]
    TooLong(u32),
    /// The first byte of the prefix is neither 0 nor 1.
    #[error("a message begins with the byte {0}; only 0 and 1 are defined")]
    Prefix(u8),
}

impl<'a> Message<'a> {
    /// Reads the message at the front of `input`. Returns it with the bytes behind it, or `None`
    /// while bytes of the message are missing.
    ///
    /// # Errors
    /// See [`MessageError`]; noticed as soon as the prefix has been read.
    pub fn split(input: &'a [u8]) -> Result<Option<(Self, &'a [u8])>, MessageError> {
        let Some((prefix, rest)) = input.split_first_chunk::<PREFIX_LEN>() else { return Ok(None) };
        let [flag, len @ ..] = *prefix;
        if flag > 1 {
            return Err(MessageError::Prefix(flag));
        }
        let len = u32::from_be_bytes(len);
        if len as usize > MESSAGE_LEN_MAX {
            return Err(MessageError::TooLong(len));
        }
        let Some((bytes, rest)) = rest.split_at_checked(len as usize) else { return Ok(None) };
        Ok(Some((Self { is_compressed: flag == 1, bytes }, rest)))
    }
}

/// Appends a message that is not compressed; `content` appends its bytes.
pub fn put(out: &mut Vec<u8>, content: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX_LEN]);
    content(out);
    let len = (out.len() - start - PREFIX_LEN) as u32;
    out[start + 1..start + PREFIX_LEN].copy_from_slice(&len.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_when_it_is_complete() {
        let mut bytes = Vec::new();
        put(&mut bytes, |out| out.extend_from_slice(b"abc"));
        assert_eq!(bytes, b"\0\0\0\0\x03abc");
        for len in 0..bytes.len() {
            assert_eq!(Message::split(&bytes[..len]), Ok(None), "{len}");
        }
        bytes.extend_from_slice(b"\x01\0\0\0\0rest");
        let (message, rest) = Message::split(&bytes).unwrap().unwrap();
        assert_eq!(message, Message { is_compressed: false, bytes: b"abc" });
        let (message, rest) = Message::split(rest).unwrap().unwrap();
        assert_eq!((message.is_compressed, message.bytes, rest), (true, &b""[..], &b"rest"[..]));
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_the_message_arrives() {
        let prefix = |len: usize| [&[0][..], &(len as u32).to_be_bytes()].concat();
        assert_eq!(Message::split(&prefix(MESSAGE_LEN_MAX)), Ok(None));
        let error = MessageError::TooLong(MESSAGE_LEN_MAX as u32 + 1);
        assert_eq!(Message::split(&prefix(MESSAGE_LEN_MAX + 1)), Err(error));
        assert_eq!(Message::split(b"\x02\0\0\0\0"), Err(MessageError::Prefix(2)));
    }
}
