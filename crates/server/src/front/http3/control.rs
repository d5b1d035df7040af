//! Checks the frame lengths on a client's control stream (RFC 9114, 7.1). The HTTP/3 library
//! buffers whole frames, also unknown ones. This module detects a frame that is too long as soon as
//! it has read the length. It does not interpret frames and keeps no payload.

use super::limits::CONTROL_FRAME_LEN_MAX;

/// The type of the control stream (RFC 9114, 6.2.1).
const CONTROL_STREAM: u64 = 0;

/// A frame is longer than a client ever needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Tracks the position in a stream.
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
    /// This many bytes of a payload are left.
    Payload(u64),
    /// The stream is not the control stream, so its bytes are not checked.
    Elsewhere,
}

/// A variable-length integer of QUIC that is being read (RFC 9000, 16).
#[derive(Clone, Copy, Debug, Default)]
struct Number {
    value: u64,
    /// Remaining bytes of the integer; 0 before its first byte.
    left: u32,
}

impl Number {
    /// Adds one byte. Returns the number when the byte was its last.
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
    /// A stream without any bytes yet.
    #[must_use]
    pub fn new() -> Self {
        Self { at: At::StreamType, number: Number::default() }
    }

    /// Checks the next bytes.
    ///
    /// # Errors
    /// When a frame announces more than [`CONTROL_FRAME_LEN_MAX`] bytes. The stream must not be
    /// read further.
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
    /// The position when `left` bytes of a payload are left. If none is left, the next frame
    /// begins.
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

    /// The longest encoding of a number.
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
