//! Frames of HTTP/2 (RFC 9113, sections 4 and 6): reads them from a stream, and writes the few
//! kinds that this project sends.

/// Bytes of a frame's header.
pub const HEAD_LEN: usize = 9;
/// Longest payload that is accepted, bytes. A peer may send longer frames only if a setting allows
/// it, and this project never sends that setting.
pub const PAYLOAD_LEN_MAX: usize = 16_384;
/// The bytes with which a client begins a connection.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The highest stream id. It is also the largest size of a flow-control window.
pub const ID_MAX: u32 = (1 << 31) - 1;

/// Kinds of frames, section 6.
pub mod kind {
    /// DATA: a part of a body.
    pub const DATA: u8 = 0;
    /// HEADERS: the beginning of a request or an answer.
    pub const HEADERS: u8 = 1;
    /// PRIORITY: obsolete.
    pub const PRIORITY: u8 = 2;
    /// Resets a stream.
    pub const RST_STREAM: u8 = 3;
    /// The limits and options of the sender.
    pub const SETTINGS: u8 = 4;
    /// Push promise: forbidden here.
    pub const PUSH_PROMISE: u8 = 5;
    /// Ping; must be answered.
    pub const PING: u8 = 6;
    /// Goaway: no more streams.
    pub const GOAWAY: u8 = 7;
    /// Opens the flow-control window.
    pub const WINDOW_UPDATE: u8 = 8;
    /// The rest of a header block.
    pub const CONTINUATION: u8 = 9;
}

/// Flags of frames.
pub mod flag {
    /// SETTINGS, PING: acknowledges such a frame.
    pub const ACK: u8 = 1;
    /// In DATA and HEADERS: this frame is the last one of its stream in this direction.
    pub const END_STREAM: u8 = 1;
    /// In HEADERS and CONTINUATION: this frame is the last one of its header block.
    pub const END_HEADERS: u8 = 4;
    /// In DATA and HEADERS: the first byte of the payload is the length of the padding at its end.
    pub const PADDED: u8 = 8;
    /// In HEADERS: the payload begins with five bytes of priority.
    pub const PRIORITY: u8 = 0x20;
}

/// Settings, section 6.5.2.
pub mod setting {
    /// Size of the sender's decoding table.
    pub const HEADER_TABLE_SIZE: u16 = 1;
    /// Whether servers may push.
    pub const ENABLE_PUSH: u16 = 2;
    /// Id of the setting that limits how many streams the other end may have open at the same time.
    pub const MAX_CONCURRENT_STREAMS: u16 = 3;
    /// The window of a new stream.
    pub const INITIAL_WINDOW_SIZE: u16 = 4;
    /// The longest accepted payload.
    pub const MAX_FRAME_SIZE: u16 = 5;
    /// Id of the setting that limits the headers of one message, in bytes. Each header counts as in
    /// the dynamic table: name, value and 32 bytes.
    pub const MAX_HEADER_LIST_SIZE: u16 = 6;
}

/// Why a stream ends, section 7.
pub mod code {
    /// No error.
    pub const NO_ERROR: u32 = 0;
    /// The protocol forbids the frame.
    pub const PROTOCOL_ERROR: u32 = 1;
    /// The other end sent more bytes than its window allows, or opened a window beyond the maximum.
    pub const FLOW_CONTROL_ERROR: u32 = 3;
    /// The stream had ended already.
    pub const STREAM_CLOSED: u32 = 5;
    /// A frame has a wrong length for its kind.
    pub const FRAME_SIZE_ERROR: u32 = 6;
    /// The stream was not processed.
    pub const REFUSED_STREAM: u32 = 7;
    /// The client has cancelled.
    pub const CANCEL: u32 = 8;
    /// A header block cannot be decoded. After that, no later block of the connection can be
    /// decoded.
    pub const COMPRESSION_ERROR: u32 = 9;
    /// The other end sends too much, and should slow down.
    pub const ENHANCE_YOUR_CALM: u32 = 11;
}

/// A frame, borrowed from the read buffer.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// One of the kinds in [`kind`], or an unknown kind. Frames of unknown kinds are ignored.
    pub kind: u8,
    /// Flags of [`flag`]; their meaning depends on the kind.
    pub flags: u8,
    /// The stream's id; 0 is the connection.
    pub stream: u32,
    /// The payload, at most [`PAYLOAD_LEN_MAX`] bytes.
    pub payload: &'a [u8],
}

/// The length of a frame is beyond [`PAYLOAD_LEN_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl<'a> Frame<'a> {
    /// Reads the frame at the front of `input`. Returns `None` while bytes of the frame are
    /// missing.
    ///
    /// # Errors
    /// [`TooLong`], as soon as the length has been read.
    pub fn split(input: &'a [u8]) -> Result<Option<Self>, TooLong> {
        let Some((head, rest)) = input.split_first_chunk::<HEAD_LEN>() else { return Ok(None) };
        let [high, middle, low, kind, flags, stream @ ..] = *head;
        let len = u32::from_be_bytes([0, high, middle, low]) as usize;
        if len > PAYLOAD_LEN_MAX {
            return Err(TooLong);
        }
        let Some(payload) = rest.get(..len) else { return Ok(None) };
        let stream = u32::from_be_bytes(stream) & ID_MAX;
        Ok(Some(Self { kind, flags, stream, payload }))
    }

    /// Bytes of the whole frame.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a frame is never empty")]
    pub fn len(&self) -> usize {
        HEAD_LEN + self.payload.len()
    }

    /// Whether a flag is set.
    #[must_use]
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the payload without its padding; `None` if the padding is said to be longer than the
    /// payload.
    #[must_use]
    pub fn unpadded(&self) -> Option<&'a [u8]> {
        if !self.has(flag::PADDED) {
            return Some(self.payload);
        }
        let (padding, rest) = self.payload.split_first()?;
        rest.get(..rest.len().checked_sub(usize::from(*padding))?)
    }
}

/// Appends a frame.
///
/// # Panics
/// The payload is longer than [`PAYLOAD_LEN_MAX`], the length that every peer must accept.
pub fn put(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    put_head(out, payload.len(), kind, flags, stream);
    out.extend_from_slice(payload);
}

/// Appends the header of a frame with `len` bytes of payload.
///
/// # Panics
/// The payload is longer than [`PAYLOAD_LEN_MAX`], the length that every peer must accept.
pub fn put_head(out: &mut Vec<u8>, len: usize, kind: u8, flags: u8, stream: u32) {
    assert!(len <= PAYLOAD_LEN_MAX, "a payload within its limit");
    let mut head = [0; HEAD_LEN];
    head[..3].copy_from_slice(&(len as u32).to_be_bytes()[1..]);
    (head[3], head[4]) = (kind, flags);
    head[5..].copy_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(&head);
}

/// Appends a SETTINGS frame.
pub fn put_settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
    let mut payload = Vec::with_capacity(settings.len() * SETTING_LEN);
    for (name, value) in settings {
        payload.extend_from_slice(&name.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    put(out, kind::SETTINGS, 0, 0, &payload);
}

/// Bytes of one setting.
pub const SETTING_LEN: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_when_it_is_complete() {
        let mut bytes = Vec::new();
        put(&mut bytes, kind::PING, flag::ACK, 5, b"12345678");
        for len in 0..bytes.len() {
            assert!(Frame::split(&bytes[..len]).unwrap().is_none(), "{len}");
        }
        bytes.push(0);
        let frame = Frame::split(&bytes).unwrap().unwrap();
        assert_eq!((frame.kind, frame.flags, frame.stream), (kind::PING, flag::ACK, 5));
        assert_eq!((frame.payload, frame.len()), (&b"12345678"[..], bytes.len() - 1));
        assert_eq!(Frame::split(&[0, 0x40, 1, 0, 0, 0, 0, 0, 1]).unwrap_err(), TooLong);
    }

    #[test]
    fn padding_is_removed_and_never_exceeds_the_payload() {
        let frame = |payload| Frame { kind: kind::DATA, flags: flag::PADDED, stream: 1, payload };
        assert_eq!(frame(&[2, b'a', 0, 0]).unpadded(), Some(&b"a"[..]));
        assert_eq!(frame(&[3, 0, 0, 0]).unpadded(), Some(&b""[..]));
        assert_eq!(frame(&[4, 0, 0, 0]).unpadded(), None);
        assert_eq!(frame(&[]).unpadded(), None);
    }
}
