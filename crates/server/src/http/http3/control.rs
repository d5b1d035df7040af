//! How long the frames of a client's control stream say that they are (RFC 9114, 7.1). The HTTP/3
//! library keeps a frame until it is whole, also one that it does not know; here one that is too long
//! is noticed as soon as its length is read. It understands no frame and keeps no payload.

use super::limits::CONTROL_FRAME_LEN_MAX;

/// The type of the control stream (RFC 9114, 6.2.1).
const CONTROL_STREAM: u64 = 0;

/// A frame is longer than any that a client has a reason to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Where in a stream the next byte is.
#[derive(Debug)]
pub struct Frames {
    at: At,
    number: Number,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    StreamType,
    FrameType,
    FrameLen,
    /// So many bytes of a payload are left.
    Payload(u64),
    /// The stream is another than the control stream: it is not looked at.
    Elsewhere,
}

/// A number of QUIC's that is being read (RFC 9000, 16).
#[derive(Clone, Copy, Debug, Default)]
struct Number {
    value: u64,
    /// Bytes that are left of it; 0 before the first.
    left: u32,
}

impl Number {
    /// Takes one byte in; returns the number when that was its last.
    fn push(&mut self, byte: u8) -> Option<u64> {
        if self.left == 0 {
            self.left = 1 << (byte >> 6);
            self.value = u64::from(byte & 0x3f);
        } else {
            self.value = self.value << 8 | u64::from(byte);
        }
        self.left -= 1;
        (self.left == 0).then_some(self.value)
    }
}

impl Default for Frames {
    fn default() -> Self {
        Self::new()
    }
}

impl Frames {
    /// A stream of which nothing has come.
    #[must_use]
    pub fn new() -> Self {
        Self { at: At::StreamType, number: Number::default() }
    }

    /// Goes over what came next.
    ///
    /// # Errors
    /// When a frame says that it is longer than [`CONTROL_FRAME_LEN_MAX`]; the stream is not to be
    /// gone on with.
    pub fn pass(&mut self, mut bytes: &[u8]) -> Result<(), TooLong> {
        while let Some((first, rest)) = bytes.split_first() {
            match self.at {
                At::Elsewhere => return Ok(()),
                At::Payload(left) => {
                    let passed = left.min(bytes.len() as u64);
                    bytes = &bytes[passed as usize..];
                    self.at = At::after(left - passed);
                    continue;
                }
                At::StreamType | At::FrameType | At::FrameLen => bytes = rest,
            }
            let Some(number) = self.number.push(*first) else { continue };
            self.at = match self.at {
                At::StreamType if number == CONTROL_STREAM => At::FrameType,
                At::StreamType => At::Elsewhere,
                At::FrameType => At::FrameLen,
                At::FrameLen if number > CONTROL_FRAME_LEN_MAX => return Err(TooLong),
                At::FrameLen => At::after(number),
                at @ (At::Payload(_) | At::Elsewhere) => at,
            };
        }
        Ok(())
    }
}

impl At {
    /// Before the rest of a payload, or behind it.
    fn after(left: u64) -> Self {
        if left == 0 { Self::FrameType } else { Self::Payload(left) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pass(bytes: &[u8], part: usize) -> Result<(), TooLong> {
        let mut frames = Frames::new();
        bytes.chunks(part).try_for_each(|part| frames.pass(part))
    }

    /// A number in its longest form.
    fn long(value: u64) -> [u8; 8] {
        (value | 3 << 62).to_be_bytes()
    }

    fn stream(lengths: &[u64], bodies: bool) -> Vec<u8> {
        let mut bytes = vec![0];
        for length in lengths {
            bytes.extend_from_slice(&long(0x21));
            bytes.extend_from_slice(&long(*length));
            bytes.extend(std::iter::repeat_n(0xff, if bodies { *length as usize } else { 0 }));
        }
        bytes
    }

    proptest! {
        #[test]
        fn a_frame_that_is_too_long_is_noticed_however_the_bytes_come(
            lengths in prop::collection::vec(0..300_u64, 0..10), part in 1..40_usize,
        ) {
            let mut bytes = stream(&lengths, true);
            prop_assert_eq!(pass(&bytes, part), Ok(()));
            bytes.extend_from_slice(&stream(&[CONTROL_FRAME_LEN_MAX + 1], false)[1..]);
            prop_assert_eq!(pass(&bytes, part), Err(TooLong));
        }

        #[test]
        fn any_bytes_are_gone_over(bytes: Vec<u8>, part in 1..40_usize) {
            let whole = pass(&bytes, usize::MAX);
            prop_assert_eq!(pass(&bytes, part), whole);
        }
    }

    #[test]
    fn other_streams_are_not_looked_at() {
        let mut bytes = stream(&[u64::MAX >> 2], false);
        assert_eq!(pass(&bytes, 1), Err(TooLong));
        bytes[0] = 2;
        assert_eq!(pass(&bytes, 1), Ok(()));
    }
}
