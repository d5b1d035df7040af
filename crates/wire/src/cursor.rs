//! Reads and writes the little-endian fields of frames and records. The reader never reads past the
//! end, and never allocates more memory than the length of the input.

use thiserror::Error;

/// Why bytes cannot be decoded. The connection that sent them is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The input ends inside a field.
    #[error("the input ends inside {0}")]
    Truncated(&'static str),
    /// The input goes on after its last field.
    #[error("{0} bytes follow the last field")]
    Trailing(usize),
    /// A length field is above its limit.
    #[error("{field} has {length} bytes or items, the limit is {limit}")]
    TooLong {
        /// The field.
        field: &'static str,
        /// The claimed length.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// A field has an undefined value.
    #[error("{field} has the value {value}, which means nothing")]
    BadValue {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// This node cannot read the format of the object: update the older node, or raise
    /// `FORMAT_MAX`.
    #[error(
        "{field} is of format {found}, and this node reads {oldest} to {newest}: run a version that \
         reads it, and no FORMAT_MAX below it"
    )]
    Format {
        /// The object, such as a state or a command.
        field: &'static str,
        /// Its format.
        found: u64,
        /// The oldest format that this node reads.
        oldest: u32,
        /// The newest format that this node reads.
        newest: u32,
    },
    /// A text is not UTF-8.
    #[error("{0} is not UTF-8")]
    BadText(&'static str),
    /// The checksum does not match: the bytes were damaged on the way.
    #[error("the checksum does not match")]
    Checksum,
    /// The other end speaks another version of the protocol.
    #[error("protocol version {0} is not spoken here")]
    Version(u8),
    /// The bytes do not begin as a frame: the other end is not a peer.
    #[error("not a frame of this protocol")]
    NotAFrame,
}

/// Reads fields from the front of a byte slice.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Creates a reader at the start of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let (head, rest) =
            self.rest.split_first_chunk::<N>().ok_or(DecodeError::Truncated(field))?;
        self.rest = rest;
        Ok(*head)
    }

    /// Reads one byte.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if the input ends before the field. The same holds for all fields
    /// of fixed length below.
    pub fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        self.array::<1>(field).map(u8::from_le_bytes)
    }

    /// Reads a byte that is 0 or 1.
    ///
    /// # Errors
    /// [`DecodeError::BadValue`] for any other byte.
    pub fn bool(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(DecodeError::BadValue { field, value: u64::from(other) }),
        }
    }

    /// Two bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        self.array::<2>(field).map(u16::from_le_bytes)
    }

    /// Four bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.array::<4>(field).map(u32::from_le_bytes)
    }

    /// Eight bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        self.array::<8>(field).map(u64::from_le_bytes)
    }

    /// Sixteen bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn u128(&mut self, field: &'static str) -> Result<u128, DecodeError> {
        self.array::<16>(field).map(u128::from_le_bytes)
    }

    /// Reads the number of the items that follow, which is at most `limit`.
    ///
    /// # Errors
    /// [`DecodeError::TooLong`] if the number is above the limit.
    pub fn count(&mut self, field: &'static str, limit: usize) -> Result<usize, DecodeError> {
        let length = self.u32(field)? as usize;
        if length > limit {
            return Err(DecodeError::TooLong { field, length, limit });
        }
        Ok(length)
    }

    /// Reads a length, which is at most `limit`, and then that many bytes.
    ///
    /// # Errors
    /// [`DecodeError::TooLong`] if the length is above the limit. [`DecodeError::Truncated`] if
    /// fewer bytes follow.
    pub fn bytes(&mut self, field: &'static str, limit: usize) -> Result<&'a [u8], DecodeError> {
        let length = self.count(field, limit)?;
        let (head, rest) =
            self.rest.split_at_checked(length).ok_or(DecodeError::Truncated(field))?;
        self.rest = rest;
        Ok(head)
    }

    /// Reads a length, which is at most `limit`, and then a text of that many bytes of UTF-8.
    ///
    /// # Errors
    /// The errors of [`Reader::bytes`]. [`DecodeError::BadText`] if the bytes are not UTF-8.
    pub fn text(&mut self, field: &'static str, limit: usize) -> Result<String, DecodeError> {
        let bytes = self.bytes(field, limit)?;
        let text = std::str::from_utf8(bytes).map_err(|_| DecodeError::BadText(field))?;
        Ok(text.to_owned())
    }

    /// The number of remaining bytes.
    #[must_use]
    pub const fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Checks that the input has ended.
    ///
    /// # Errors
    /// [`DecodeError::Trailing`] when bytes are left.
    pub const fn finish(self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            more => Err(DecodeError::Trailing(more)),
        }
    }
}

/// Writes fields to the end of a buffer, in the form that [`Reader`] reads.
pub trait Writer {
    /// Appends raw bytes.
    fn put(&mut self, bytes: &[u8]);

    /// One byte.
    fn put_u8(&mut self, value: u8) {
        self.put(&[value]);
    }

    /// Writes a byte that is 0 or 1.
    fn put_bool(&mut self, value: bool) {
        self.put_u8(u8::from(value));
    }

    /// Two bytes.
    fn put_u16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }

    /// Four bytes.
    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    /// Eight bytes.
    fn put_u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    /// Sixteen bytes.
    fn put_u128(&mut self, value: u128) {
        self.put(&value.to_le_bytes());
    }

    /// Writes the number of the items that follow.
    ///
    /// # Panics
    /// There are more than 2^32 - 1 items. Every list here has a far lower limit.
    fn put_count(&mut self, count: usize) {
        self.put_u32(u32::try_from(count).expect("a list within its limit"));
    }

    /// Appends the length and the bytes.
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.put_count(bytes.len());
        self.put(bytes);
    }
}

impl Writer for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
