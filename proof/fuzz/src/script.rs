//! Reads bytes as a script: a sequence of small draws. Draws come from the front of the bytes, and
//! are zeros after the end. Each byte affects only one draw.

/// The unread part of a script.
#[derive(Debug)]
pub(crate) struct Script<'a> {
    rest: &'a [u8],
}

impl<'a> Script<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether the script has ended.
    pub(crate) const fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    /// Takes the next byte.
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((byte, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        *byte
    }

    /// Draws a number below `count`.
    pub(crate) fn below(&mut self, count: u64) -> u64 {
        u64::from(self.byte()) % count
    }

    /// Draws a number, mostly near `at`.
    pub(crate) fn near(&mut self, at: u64) -> u64 {
        match self.byte() {
            byte @ 0..=9 => at.saturating_add(u64::from(byte)),
            byte @ 10..=19 => at.saturating_sub(u64::from(byte - 9)),
            byte @ 20..=29 => u64::from(byte - 20),
            30 => u64::MAX,
            31 => u64::MAX >> 1,
            32 => 1 << 62,
            33 => at.saturating_mul(2),
            byte => at.saturating_add(u64::from(byte & 1)),
        }
    }

    /// Takes at most `most` bytes.
    pub(crate) fn bytes(&mut self, most: usize) -> Vec<u8> {
        let length = (usize::from(self.byte()) % (most + 1)).min(self.rest.len());
        let (bytes, rest) = self.rest.split_at(length);
        self.rest = rest;
        bytes.to_vec()
    }
}
