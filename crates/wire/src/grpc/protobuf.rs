//! The fields of a message of Protocol Buffers ("Encoding" in their documentation). A field is a
//! number, a kind and a value. Fields may come in any order, and unknown ones are skipped. Groups
//! are refused: no current definition has them. The reader allocates nothing and never reads past
//! the end.

use thiserror::Error;

/// Why bytes are not the fields of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ProtobufError {
    /// The bytes end inside a field.
    #[error("the message ends inside a field")]
    Truncated,
    /// A number has more than 64 bits.
    #[error("a number has more than 64 bits")]
    Number,
    /// The number of a field is 0, or above its maximum.
    #[error("no field has such a number")]
    Field,
    /// The kind of a field is a group, or not defined.
    #[error("a field is of kind {0}, which is not read here")]
    Kind(u8),
    /// A known field has a value of another kind than its definition.
    #[error("field {0} has a value of another kind")]
    Value(u32),
    /// A text is not UTF-8.
    #[error("field {0} is not UTF-8")]
    Text(u32),
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A number of variable length: integers, enumerations, switches.
    Number(u64),
    /// Eight bytes, little-endian.
    Fixed64(u64),
    /// Bytes: a text, or a message.
    Bytes(&'a [u8]),
    /// Four bytes, little-endian.
    Fixed32(u32),
}

/// Highest number of a field.
const FIELD_MAX: u64 = (1 << 29) - 1;
/// A number of 64 bits has at most this many bytes of 7 bits.
const NUMBER_LEN_MAX: usize = 10;

mod kind {
    pub(super) const NUMBER: u8 = 0;
    pub(super) const FIXED_64: u8 = 1;
    pub(super) const BYTES: u8 = 2;
    pub(super) const FIXED_32: u8 = 5;
}

/// Reads the fields of a message, front to back.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

/// A field with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// The number, 1 or more.
    pub number: u32,
    /// The value.
    pub value: Value<'a>,
}

impl<'a> Fields<'a> {
    /// A reader at the start of a message.
    #[must_use]
    pub const fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// The next field; `None` at the end.
    ///
    /// # Errors
    /// When the bytes are not a field. The rest of the message has no meaning then.
    pub fn next_field(&mut self) -> Result<Option<Field<'a>>, ProtobufError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.number()?;
        let (number, kind) = (tag >> 3, (tag & 7) as u8);
        if number == 0 || number > FIELD_MAX {
            return Err(ProtobufError::Field);
        }
        let value = match kind {
            kind::NUMBER => Value::Number(self.number()?),
            kind::FIXED_64 => Value::Fixed64(u64::from_le_bytes(self.array()?)),
            kind::FIXED_32 => Value::Fixed32(u32::from_le_bytes(self.array()?)),
            kind::BYTES => {
                let len = usize::try_from(self.number()?).map_err(|_| ProtobufError::Truncated)?;
                let (bytes, rest) =
                    self.rest.split_at_checked(len).ok_or(ProtobufError::Truncated)?;
                self.rest = rest;
                Value::Bytes(bytes)
            }
            other => return Err(ProtobufError::Kind(other)),
        };
        Ok(Some(Field { number: number as u32, value }))
    }

    fn number(&mut self) -> Result<u64, ProtobufError> {
        let mut number = 0;
        for at in 0..NUMBER_LEN_MAX {
            let (byte, rest) = self.rest.split_first().ok_or(ProtobufError::Truncated)?;
            self.rest = rest;
            let bits = u64::from(byte & 0x7f);
            // The last byte has room for one bit.
            if at == NUMBER_LEN_MAX - 1 && *byte > 1 {
                return Err(ProtobufError::Number);
            }
            number |= bits << (7 * at);
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(ProtobufError::Number)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtobufError> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(ProtobufError::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }
}

impl<'a> Field<'a> {
    /// The value of a field that is a number.
    ///
    /// # Errors
    /// [`ProtobufError::Value`] when it is of another kind.
    pub const fn as_number(&self) -> Result<u64, ProtobufError> {
        match self.value {
            Value::Number(number) => Ok(number),
            _ => Err(ProtobufError::Value(self.number)),
        }
    }

    /// The value of a field that is a number of 32 bits. Like other readers, this one drops higher
    /// bits.
    ///
    /// # Errors
    /// [`ProtobufError::Value`] when it is of another kind.
    pub fn as_u32(&self) -> Result<u32, ProtobufError> {
        self.as_number().map(|number| number as u32)
    }

    /// The value of a field that is a message or bytes.
    ///
    /// # Errors
    /// [`ProtobufError::Value`] when it is of another kind.
    pub const fn as_bytes(&self) -> Result<&'a [u8], ProtobufError> {
        match self.value {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(ProtobufError::Value(self.number)),
        }
    }

    /// The value of a field that is a text.
    ///
    /// # Errors
    /// When it is of another kind, or not UTF-8.
    pub fn as_text(&self) -> Result<&'a str, ProtobufError> {
        std::str::from_utf8(self.as_bytes()?).map_err(|_| ProtobufError::Text(self.number))
    }
}

/// Appends a number as a field. As version 3 of the language asks, a 0 is left out.
pub fn put_number(out: &mut Vec<u8>, field: u32, number: u64) {
    if number != 0 {
        put_varint(out, u64::from(field) << 3 | u64::from(kind::NUMBER));
        put_varint(out, number);
    }
}

/// Appends bytes or a text as a field. An empty one is left out.
pub fn put_bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_whole(out, field, bytes);
    }
}

/// Appends a message as a field, even if it is empty; `content` appends its fields.
pub fn put_message(out: &mut Vec<u8>, field: u32, content: impl FnOnce(&mut Vec<u8>)) {
    put_varint(out, u64::from(field) << 3 | u64::from(kind::BYTES));
    let start = out.len();
    out.push(0);
    content(out);
    let len = out.len() - start - 1;
    if len < 0x80 {
        out[start] = len as u8;
        return;
    }
    // The length needs more than the byte that is reserved.
    let mut prefix = Vec::with_capacity(NUMBER_LEN_MAX);
    put_varint(&mut prefix, len as u64);
    out.splice(start..=start, prefix);
}

fn put_whole(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    put_varint(out, u64::from(field) << 3 | u64::from(kind::BYTES));
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a number in bytes of 7 bits, the lowest first. Each byte but the last has its highest
/// bit set.
fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(0x80 | (number & 0x7f) as u8);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Result<Vec<Field<'_>>, ProtobufError> {
        let (mut fields, mut found) = (Fields::new(bytes), Vec::new());
        while let Some(field) = fields.next_field()? {
            found.push(field);
        }
        Ok(found)
    }

    /// The examples of the description of the encoding.
    #[test]
    fn the_examples_of_the_description_are_read_and_written() {
        let mut bytes = Vec::new();
        put_number(&mut bytes, 1, 150);
        put_bytes(&mut bytes, 2, b"testing");
        put_message(&mut bytes, 3, |out| put_number(out, 1, 150));
        let expected = b"\x08\x96\x01\x12\x07testing\x1a\x03\x08\x96\x01";
        assert_eq!(bytes, expected);
        let found = all(&bytes).unwrap();
        assert_eq!((found[0].number, found[0].as_u32()), (1, Ok(150)));
        assert_eq!(found[1].as_text(), Ok("testing"));
        assert_eq!(all(found[2].as_bytes().unwrap()).unwrap()[0].as_number(), Ok(150));
        assert_eq!(found[2].as_number(), Err(ProtobufError::Value(3)));
        assert_eq!(found[0].as_text(), Err(ProtobufError::Value(1)));
    }

    #[test]
    fn zeros_and_empty_texts_are_left_out_but_an_empty_message_is_there() {
        let mut bytes = Vec::new();
        put_number(&mut bytes, 1, 0);
        put_bytes(&mut bytes, 2, b"");
        put_message(&mut bytes, 3, |_| {});
        assert_eq!(bytes, b"\x1a\0");
    }

    #[test]
    fn numbers_of_every_length_and_long_messages_come_back() {
        for shift in 0..64 {
            for number in [1 << shift, u64::MAX >> shift] {
                let mut bytes = Vec::new();
                put_message(&mut bytes, FIELD_MAX as u32, |out| put_number(out, 1, number));
                let found = all(&bytes).unwrap();
                assert_eq!(found[0].number, FIELD_MAX as u32);
                assert_eq!(all(found[0].as_bytes().unwrap()).unwrap()[0].as_number(), Ok(number));
            }
        }
        for len in [126, 127, 128, 129, 20_000] {
            let mut bytes = vec![8, 1];
            put_message(&mut bytes, 2, |out| out.resize(out.len() + len, 7));
            assert_eq!(all(&bytes).unwrap()[1].as_bytes(), Ok(&vec![7; len][..]));
        }
    }

    #[test]
    fn malformed_fields_are_refused() {
        let cases: [(&[u8], ProtobufError); 10] = [
            (b"\x08", ProtobufError::Truncated),
            (b"\x08\x80", ProtobufError::Truncated),
            (b"\x12\x02a", ProtobufError::Truncated),
            (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", ProtobufError::Truncated),
            (b"\x0d\0\0\0", ProtobufError::Truncated),
            (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", ProtobufError::Number),
            (b"\x00\x01", ProtobufError::Field),
            (b"\xf8\xff\xff\xff\x1f\x01", ProtobufError::Field),
            (b"\x0b", ProtobufError::Kind(3)),
            (b"\x0f", ProtobufError::Kind(7)),
        ];
        for (bytes, error) in cases {
            assert_eq!(all(bytes), Err(error), "{bytes:x?}");
        }
        assert_eq!(all(b"\x12\x01\xff").unwrap()[0].as_text(), Err(ProtobufError::Text(2)));
        let fixed = all(b"\x09\x01\0\0\0\0\0\0\0\x0d\x02\0\0\0").unwrap();
        assert_eq!((fixed[0].value, fixed[1].value), (Value::Fixed64(1), Value::Fixed32(2)));
    }
}
