//! The frame of the peer protocol over TCP: a 40-byte header, then the payload of its kind. A frame
//! names the cluster and node of its sender. A receiver trusts these names only after it has
//! checked the [`crate::peer_hello`] of the connection.
//!
//! ```text
//!  0       2     3     4        8                    24          32       36       40
//!  | magic | ver | kind| length | cluster id          | from node | crc32  | zero   | payload…
//! ```
//! All fields little-endian. `length` counts the payload. The checksum covers the header and the
//! payload; for its computation, the field `crc32` is zero.

use crate::cursor::{DecodeError, Reader, Writer};
use crate::id::{ClusterId, NodeId};

/// The first two bytes of every frame. No HTTP request and no TLS record begins with them.
pub const MAGIC: u16 = 0xE5C0;
/// The version of this protocol. It rises only when the meaning of a frame changes. What a later
/// version adds becomes a field of [`crate::peer_hello::PeerHello`], and the version stays.
pub const VERSION: u8 = 2;
/// Bytes of the header.
pub const HEADER_LEN: usize = 40;
/// Longest payload, bytes. A Raft append is limited to a quarter of it, a snapshot is a few KiB.
pub const PAYLOAD_LEN_MAX: usize = 1 << 20;

const CHECKSUM_AT: usize = 32;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum FrameKind {
    /// The first frame of a connection, from the side that opened it. The payload is a
    /// [`crate::peer_hello::PeerHello`].
    PeerHello = 1,
    /// Accepts a hello. The payload is the [`crate::peer_hello::PeerHello`] of the other side.
    Welcome = 2,
    /// Refuses a hello, and the connection ends. The payload is a [`crate::peer_hello::Refusal`].
    Refused = 3,
    /// A Raft message: [`crate::raft_message::RaftMessage`].
    Raft = 4,
    /// Asks for a clock sample: [`crate::gossip::Ping`].
    Ping = 5,
    /// Answers a ping: [`crate::gossip::Pong`].
    Pong = 6,
    /// A leader's worker asks a voter whether it has promised a later term. The payload is a
    /// [`crate::confirm::Confirm`].
    Confirm = 7,
    /// A voter's worker answers: [`crate::confirm::ConfirmReply`].
    ConfirmReply = 8,
    /// An empty node answers another: [`crate::bootstrap::Empty`].
    Empty = 9,
    /// A member sends the replicated state to an empty node. The payload is a
    /// [`crate::raft_message::Snapshot`].
    Admitted = 10,
}

impl FrameKind {
    const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::PeerHello,
            2 => Self::Welcome,
            3 => Self::Refused,
            4 => Self::Raft,
            5 => Self::Ping,
            6 => Self::Pong,
            7 => Self::Confirm,
            8 => Self::ConfirmReply,
            9 => Self::Empty,
            10 => Self::Admitted,
            _ => return None,
        })
    }
}

/// The header of a frame. All its fields have been checked except the checksum, because that check
/// needs the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of the payload.
    pub kind: FrameKind,
    /// Bytes of the payload, at most [`PAYLOAD_LEN_MAX`].
    pub length: usize,
    /// The cluster id of the sender; 0 while the sender belongs to no cluster.
    pub cluster: ClusterId,
    /// The sender.
    pub from: NodeId,
    checksum: u32,
}

/// Appends one whole frame to `out`; `payload` writes the payload.
///
/// # Panics
/// The payload is longer than [`PAYLOAD_LEN_MAX`]. The limits of each kind of payload prevent that.
pub fn write_frame(
    out: &mut Vec<u8>,
    kind: FrameKind,
    cluster: ClusterId,
    from: NodeId,
    payload: impl FnOnce(&mut Vec<u8>),
) {
    write_frame_of(VERSION, out, kind, cluster, from, payload);
}

/// Does what [`write_frame`] does, with another version number in the header. This makes a refusal
/// that a peer of that version can read: the layout of frames and of refusals is the same in all
/// versions.
///
/// # Panics
/// The payload is longer than [`PAYLOAD_LEN_MAX`].
pub fn write_frame_of(
    version: u8,
    out: &mut Vec<u8>,
    kind: FrameKind,
    cluster: ClusterId,
    from: NodeId,
    payload: impl FnOnce(&mut Vec<u8>),
) {
    let start = out.len();
    out.put_u16(MAGIC);
    out.put_u8(version);
    out.put_u8(kind as u8);
    out.put_u32(0);
    out.put_u128(cluster.0);
    out.put_u64(from.0);
    out.put_u64(0);
    payload(out);
    let length = out.len() - start - HEADER_LEN;
    assert!(length <= PAYLOAD_LEN_MAX, "a payload of {length} bytes is over the frame limit");
    out[start + 4..start + 8].copy_from_slice(&(length as u32).to_le_bytes());
    let checksum = crc32fast::hash(&out[start..]);
    out[start + CHECKSUM_AT..start + CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
}

/// Reads the header of a frame.
///
/// # Errors
/// The bytes are not a frame. Or the frame has another version, has an unknown kind, or is too
/// long.
pub fn read_header(bytes: &[u8; HEADER_LEN]) -> Result<Header, DecodeError> {
    let mut reader = Reader::new(bytes);
    if reader.u16("magic")? != MAGIC {
        return Err(DecodeError::NotAFrame);
    }
    let version = reader.u8("version")?;
    if version != VERSION {
        return Err(DecodeError::Version(version));
    }
    let byte = reader.u8("kind")?;
    let kind = FrameKind::from_byte(byte)
        .ok_or(DecodeError::BadValue { field: "kind", value: u64::from(byte) })?;
    let length = reader.count("payload", PAYLOAD_LEN_MAX)?;
    let cluster = ClusterId(reader.u128("cluster")?);
    let from = NodeId(reader.u64("from")?);
    let checksum = reader.u32("checksum")?;
    match reader.u32("reserved")? {
        0 => Ok(Header { kind, length, cluster, from, checksum }),
        other => Err(DecodeError::BadValue { field: "reserved", value: u64::from(other) }),
    }
}

/// Checks the checksum of a whole frame, after [`read_header`] has read its header.
///
/// # Errors
/// [`DecodeError::Checksum`] when it does not match.
pub fn check(header: &Header, bytes: &[u8; HEADER_LEN], payload: &[u8]) -> Result<(), DecodeError> {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..CHECKSUM_AT]);
    hasher.update(&[0; 4]);
    hasher.update(&bytes[CHECKSUM_AT + 4..]);
    hasher.update(payload);
    if hasher.finalize() == header.checksum { Ok(()) } else { Err(DecodeError::Checksum) }
}

/// A frame from the front of a buffer: its header, its payload, and the length of both together.
pub type SplitFrame<'a> = (Header, &'a [u8], usize);

/// Takes one whole frame from the front of `bytes`. Returns its header, its payload, and the length
/// of both together. Returns `None` while the frame is not complete.
///
/// # Errors
/// The bytes are not the beginning of a valid frame. The connection must be closed.
pub fn split_frame(bytes: &[u8]) -> Result<Option<SplitFrame<'_>>, DecodeError> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEADER_LEN>() else {
        return Ok(None);
    };
    let header = read_header(head)?;
    let Some(payload) = rest.get(..header.length) else {
        return Ok(None);
    };
    check(&header, head, payload)?;
    Ok(Some((header, payload, HEADER_LEN + header.length)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, FrameKind::Ping, ClusterId(9), NodeId(2), |out| out.put(payload));
        bytes
    }

    proptest! {
        #[test]
        fn a_frame_comes_back_whole(payload: Vec<u8>, next: Vec<u8>) {
            let mut bytes = frame(&payload);
            let length = bytes.len();
            bytes.extend_from_slice(&next);
            let (header, read, used) = split_frame(&bytes).unwrap().unwrap();
            prop_assert_eq!((header.kind, header.cluster), (FrameKind::Ping, ClusterId(9)));
            prop_assert_eq!((header.from, used), (NodeId(2), length));
            prop_assert_eq!(read, &payload[..]);
        }

        #[test]
        fn a_part_of_a_frame_waits_for_the_rest(payload: Vec<u8>, cut: prop::sample::Index) {
            let bytes = frame(&payload);
            prop_assert_eq!(split_frame(&bytes[..cut.index(bytes.len())]), Ok(None));
        }

        #[test]
        fn a_damaged_frame_is_never_taken(
            payload: Vec<u8>, at: prop::sample::Index, flip in 1_u8..,
        ) {
            let mut bytes = frame(&payload);
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            prop_assert!(!matches!(split_frame(&bytes), Ok(Some(_))));
        }

        #[test]
        fn garbage_is_never_taken(bytes: Vec<u8>) {
            prop_assert!(!matches!(split_frame(&bytes), Ok(Some(_))));
        }
    }

    #[test]
    fn a_frame_of_another_version_is_refused_by_its_version() {
        let mut bytes = Vec::new();
        let (cluster, node) = (ClusterId(9), NodeId(2));
        write_frame_of(VERSION - 1, &mut bytes, FrameKind::Refused, cluster, node, |_| ());
        assert_eq!(split_frame(&bytes), Err(DecodeError::Version(VERSION - 1)));
        // Compared with a frame of our own version, only the version byte and the checksum differ.
        // The rest is valid.
        let mut head: [u8; HEADER_LEN] = *bytes.first_chunk().unwrap();
        let checksum = CHECKSUM_AT..CHECKSUM_AT + 4;
        let sent = u32::from_le_bytes(head[checksum.clone()].try_into().unwrap());
        head[checksum].fill(0);
        assert_eq!(crc32fast::hash(&head), sent);
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_before_its_payload_arrives() {
        let mut bytes = frame(&[]);
        bytes[4..8].copy_from_slice(&(PAYLOAD_LEN_MAX as u32 + 1).to_le_bytes());
        assert!(matches!(split_frame(&bytes), Err(DecodeError::TooLong { .. })));
    }
}
