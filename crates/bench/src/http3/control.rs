//! What a server says beside answers, on streams of its own (RFC 9114, section 6.2): here only
//! whether it goes away.

use super::answer::frame;
use super::{kind, number};

/// Bytes that are kept until a frame is whole: no more of a stream is read that has a longer one.
pub const KEPT_LEN_MAX: usize = 16 << 10;

/// One stream of the server's own.
#[derive(Debug, Default)]
pub struct Beside {
    bytes: Vec<u8>,
    is_control: Option<bool>,
}

impl Beside {
    /// Takes in what came. Returns whether the server goes away.
    pub fn receive(&mut self, bytes: &[u8]) -> bool {
        if self.is_control == Some(false) {
            return false;
        }
        self.bytes.extend_from_slice(bytes);
        let mut rest = &self.bytes[..];
        if self.is_control.is_none() {
            self.is_control = number::take(&mut rest).map(|kind| kind == CONTROL_STREAM);
        }
        let mut goes_away = false;
        if self.is_control == Some(true) {
            while let Some((kind, _)) = frame(&mut rest) {
                goes_away |= kind == kind::GOAWAY;
            }
        }
        let used = self.bytes.len() - rest.len();
        self.bytes.drain(..used);
        if self.is_control == Some(false) || self.bytes.len() > KEPT_LEN_MAX {
            // Of no interest; or the end of so long a frame is not waited for, and what is behind it cannot be
            // read.
            *self = Self { bytes: Vec::new(), is_control: Some(false) };
        }
        goes_away
    }
}

const CONTROL_STREAM: u64 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_goes_away_says_so_on_its_control_stream() {
        for part in 1..8 {
            let told = |bytes: &[u8]| {
                let mut beside = Beside::default();
                bytes.chunks(part).filter(|part| beside.receive(part)).count()
            };
            assert_eq!(told(&[0, 4, 2, 6, 9, 7, 1, 8]), 1);
            assert_eq!(told(&[0, 4, 2, 7, 9, 0x21, 1, 7]), 0);
            assert_eq!(told(&[2, 7, 1, 8]), 0);
        }
    }

    #[test]
    fn what_is_behind_a_frame_that_is_too_long_is_not_read_out_of_step() {
        // 2^30 bytes of settings, which look like frames that say it goes away.
        let mut beside = Beside::default();
        assert!(!beside.receive(&[0, 4, 0x80 | 0x3f, 0xff, 0xff, 0xff]));
        let inside = [7, 1, 8].repeat(KEPT_LEN_MAX / 3);
        for _ in 0..9 {
            assert!(!beside.receive(&inside) && beside.bytes.len() <= KEPT_LEN_MAX);
        }
        // As much as comes at once is read, whole frames of it.
        let mut beside = Beside::default();
        let mut many = [4, 0].repeat(KEPT_LEN_MAX);
        many.insert(0, 0);
        many.extend([7, 1, 8]);
        assert!(beside.receive(&many));
    }
}
