//! The hello of a peer connection, and its refusal. Both sides send a hello first. Each checks the
//! other's hello against the membership before it trusts any other frame.

use std::fmt;

use crate::cursor::{DecodeError, Reader, Writer};
use crate::id::{BootId, HistoryId, NodeId, StoreId, StorePosition, WorkerId};

/// Longest cluster name, bytes.
pub const CLUSTER_NAME_LEN_MAX: usize = 64;
/// Longest `host:port`, in bytes: a DNS name has at most 253.
pub const ADDR_LEN_MAX: usize = 260;
/// Longest text of a refusal, bytes.
pub const REFUSAL_TEXT_LEN_MAX: usize = 512;

/// The purpose of a connection between nodes. It never changes during the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkKind {
    /// Raft messages and clock samples, between consensus planes.
    Raft,
    /// Confirm rounds of one worker of the sender.
    Confirm(WorkerId),
    /// Questions of an empty node to other nodes during its bootstrap.
    Bootstrap,
}

/// Settings that should be the same on all nodes. Nodes compare them at the handshake, and log a
/// warning if they differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedSettings {
    /// `EPOCH_INTERVAL_MS`, milliseconds.
    pub epoch_interval_ms: u64,
    /// `RESERVATION_MS`, milliseconds.
    pub reservation_ms: u64,
    /// `CLOCK_OFFSET_MAX_MS`, milliseconds.
    pub clock_offset_max_ms: u64,
    /// `ELECTION_TIMEOUT_MS`, milliseconds.
    pub election_timeout_ms: u64,
    /// `MAX_N`, timestamps.
    pub max_n: u64,
}

/// The formats of replicated state and log entries that a node reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Formats {
    /// The oldest.
    pub oldest: u32,
    /// The newest.
    pub newest: u32,
}

/// Longest text of a version, bytes.
pub const VERSION_LEN_MAX: usize = 64;
/// A hello has at most this many fields.
const FIELDS_MAX: usize = 32;
const FIELD_LEN_MAX: usize = 1_024;
const FIELD_WORKERS: u16 = 1;
const FIELD_SETTINGS: u16 = 2;
const FIELD_FORMATS: u16 = 3;
const FIELD_VERSION: u16 = 4;
const FIELD_READS: u16 = 5;
/// The bit of [`FIELD_READS`] of a node that reads the interval in a pong.
const READS_INTERVALS: u32 = 1;

/// The identity of a node, sent as [`PeerHello`](crate::frame::FrameKind::PeerHello) and as
/// [`Welcome`](crate::frame::FrameKind::Welcome). The sender's node id and cluster id are in the
/// header of the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerHello {
    /// The purpose of the connection.
    pub link: LinkKind,
    /// The node that the sender means to reach. If another node gets this hello, an address in
    /// `PEERS` is wrong.
    pub to: NodeId,
    /// The sender's data directory.
    pub store: StoreId,
    /// The position of the sender's data directory when this boot began. If an earlier boot has
    /// named a higher position, the directory was rolled back to an older state.
    pub position: StorePosition,
    /// The sender's boot.
    pub boot: BootId,
    /// The sender's history id; 0 while the sender belongs to no cluster. Nodes of different
    /// histories refuse each other; the history with the lower number has ended.
    pub history: HistoryId,
    /// `CLUSTER`, at most [`CLUSTER_NAME_LEN_MAX`] bytes.
    pub cluster_name: String,
    /// `RAFT_ADDR` of the sender.
    pub raft_addr: String,
    /// The sender's address for clients.
    pub client_addr: String,
    /// The number of the sender's workers. Each worker has its own confirm link.
    pub workers: u32,
    /// The sender's settings.
    pub settings: SharedSettings,
    /// The formats that the sender reads and writes.
    pub formats: Formats,
    /// The sender's version, for people; at most [`VERSION_LEN_MAX`] bytes.
    pub version: String,
    /// Whether the sender reads the interval in a [`Pong`](crate::gossip::Pong). Versions up to 0.2.0
    /// close the link for it.
    pub reads_intervals: bool,
}

impl PeerHello {
    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (link, worker) = match self.link {
            LinkKind::Raft => (0, 0),
            LinkKind::Confirm(worker) => (1, worker.0),
            LinkKind::Bootstrap => (2, 0),
        };
        out.put_u8(link);
        out.put_u32(worker);
        out.put_u64(self.to.0);
        out.put_u128(self.store.0);
        out.put_u64(self.position.0);
        out.put_u64(self.boot.0);
        out.put_u64(self.history.0);
        out.put_bytes(self.cluster_name.as_bytes());
        out.put_bytes(self.raft_addr.as_bytes());
        out.put_bytes(self.client_addr.as_bytes());
        let field = |out: &mut Vec<u8>, tag: u16, value: &[u8]| {
            out.put_u16(tag);
            out.put_bytes(value);
        };
        out.put_count(5);
        field(out, FIELD_WORKERS, &self.workers.to_le_bytes());
        let SharedSettings { epoch_interval_ms, reservation_ms, .. } = self.settings;
        let SharedSettings { clock_offset_max_ms, election_timeout_ms, max_n, .. } = self.settings;
        let mut settings = Vec::new();
        settings.put_u64(epoch_interval_ms);
        settings.put_u64(reservation_ms);
        settings.put_u64(clock_offset_max_ms);
        settings.put_u64(election_timeout_ms);
        settings.put_u64(max_n);
        field(out, FIELD_SETTINGS, &settings);
        let mut formats = Vec::new();
        formats.put_u32(self.formats.oldest);
        formats.put_u32(self.formats.newest);
        field(out, FIELD_FORMATS, &formats);
        field(out, FIELD_VERSION, self.version.as_bytes());
        let reads = if self.reads_intervals { READS_INTERVALS } else { 0 };
        field(out, FIELD_READS, &reads.to_le_bytes());
    }

    /// Decodes the payload of a hello.
    ///
    /// # Errors
    /// The bytes are not a valid payload of this kind.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        let link = reader.u8("link")?;
        let worker = WorkerId(reader.u32("worker")?);
        let link = match link {
            0 => LinkKind::Raft,
            1 => LinkKind::Confirm(worker),
            2 => LinkKind::Bootstrap,
            value => return Err(DecodeError::BadValue { field: "link", value: u64::from(value) }),
        };
        let mut hello = Self {
            link,
            to: NodeId(reader.u64("to")?),
            store: StoreId(reader.u128("store")?),
            position: StorePosition(reader.u64("position")?),
            boot: BootId(reader.u64("boot")?),
            history: HistoryId(reader.u64("history")?),
            cluster_name: reader.text("cluster name", CLUSTER_NAME_LEN_MAX)?,
            raft_addr: reader.text("Raft address", ADDR_LEN_MAX)?,
            client_addr: reader.text("client address", ADDR_LEN_MAX)?,
            workers: 1,
            settings: SharedSettings::default(),
            formats: Formats { oldest: 1, newest: 1 },
            version: String::new(),
            reads_intervals: false,
        };
        let mut last = None;
        for _ in 0..reader.count("fields", FIELDS_MAX)? {
            let tag = reader.u16("tag")?;
            let value = reader.bytes("field", FIELD_LEN_MAX)?;
            if last.replace(tag) >= Some(tag) {
                return Err(DecodeError::BadValue { field: "tag", value: u64::from(tag) });
            }
            hello.take_field(tag, value)?;
        }
        reader.finish()?;
        Ok(hello)
    }

    /// Reads one field of a hello. Skips fields of later versions, and bytes that later versions
    /// add at the end of a field.
    fn take_field(&mut self, tag: u16, value: &[u8]) -> Result<(), DecodeError> {
        let mut reader = Reader::new(value);
        match tag {
            FIELD_WORKERS => self.workers = reader.u32("workers")?,
            FIELD_SETTINGS => {
                self.settings = SharedSettings {
                    epoch_interval_ms: reader.u64("settings")?,
                    reservation_ms: reader.u64("settings")?,
                    clock_offset_max_ms: reader.u64("settings")?,
                    election_timeout_ms: reader.u64("settings")?,
                    max_n: reader.u64("settings")?,
                }
            }
            FIELD_FORMATS => {
                self.formats =
                    Formats { oldest: reader.u32("formats")?, newest: reader.u32("formats")? }
            }
            FIELD_VERSION => {
                let text =
                    std::str::from_utf8(value).map_err(|_| DecodeError::BadText("version"))?;
                text[..text.floor_char_boundary(VERSION_LEN_MAX)].clone_into(&mut self.version);
            }
            FIELD_READS => self.reads_intervals = reader.u32("reads")? & READS_INTERVALS != 0,
            _ => {}
        }
        Ok(())
    }
}

/// Why a hello was refused. The number is stable for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u16)]
pub enum RefusalCode {
    /// The cluster ids differ: the node belongs to another cluster.
    WrongCluster = 1,
    /// The cluster names differ: one node has a wrong `CLUSTER`, or an address in `PEERS` is wrong.
    WrongClusterName = 2,
    /// The hello has reached another node than it names: an address in `PEERS` is wrong.
    WrongNode = 3,
    /// No member has this node id.
    UnknownNode = 4,
    /// The node id is bound to another data directory: the disk was emptied, or two nodes have the
    /// same id.
    WrongStore = 5,
    /// Another process with the same node id is connected now.
    DuplicateNode = 6,
    /// The node was removed from the cluster; ids are never used again.
    Removed = 7,
    /// The receiver has no cluster yet; try again later.
    NotBootstrapped = 8,
    /// The data directory has fewer durable writes than it has reported before. So it was rolled
    /// back to an older state, and its later promises are lost.
    RolledBack = 9,
    /// The certificate does not belong to the node that the hello names.
    WrongCertificate = 10,
    /// The two nodes have no format in common: one of them is too old or too new.
    Format = 12,
    /// The cluster was restored from a backup, and the node belongs to the ended history.
    EndedHistory = 11,
}

impl RefusalCode {
    const ALL: [Self; 12] = [
        Self::WrongCluster,
        Self::WrongClusterName,
        Self::WrongNode,
        Self::UnknownNode,
        Self::WrongStore,
        Self::DuplicateNode,
        Self::Removed,
        Self::NotBootstrapped,
        Self::RolledBack,
        Self::WrongCertificate,
        Self::EndedHistory,
        Self::Format,
    ];

    /// Whether the node that got this refusal must stop, because no retry can help.
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::WrongCluster
            | Self::WrongStore
            | Self::DuplicateNode
            | Self::Removed
            | Self::RolledBack
            | Self::EndedHistory => true,
            Self::WrongClusterName
            | Self::WrongCertificate
            | Self::WrongNode
            | Self::UnknownNode
            | Self::NotBootstrapped
            | Self::Format => false,
        }
    }
}

/// A refusal. Programs decide by the code; the text is for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub code: RefusalCode,
    /// One line that says what to do, at most [`REFUSAL_TEXT_LEN_MAX`] bytes.
    pub text: String,
}

impl Refusal {
    /// A refusal with its one-line text.
    pub fn new(code: RefusalCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// Appends the payload of the refusal to `out`. A text over the limit is cut.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(self.code as u16);
        let end = self.text.floor_char_boundary(REFUSAL_TEXT_LEN_MAX);
        out.put_bytes(&self.text.as_bytes()[..end]);
    }

    /// Decodes the payload of a refusal.
    ///
    /// # Errors
    /// The bytes are not a valid payload of this kind.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        let value = reader.u16("code")?;
        let code = RefusalCode::ALL
            .into_iter()
            .find(|code| *code as u16 == value)
            .ok_or(DecodeError::BadValue { field: "code", value: u64::from(value) })?;
        let text = reader.text("text", REFUSAL_TEXT_LEN_MAX)?;
        reader.finish()?;
        Ok(Self { code, text })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.text, self.code)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hello(link: LinkKind, name: String, store: u128) -> PeerHello {
        PeerHello {
            link,
            to: NodeId(3),
            store: StoreId(store),
            position: StorePosition(11),
            boot: BootId(7),
            history: HistoryId(13),
            cluster_name: name,
            raft_addr: "a:1".into(),
            client_addr: "a:2".into(),
            workers: 2,
            settings: SharedSettings { max_n: 5, ..SharedSettings::default() },
            formats: Formats { oldest: 1, newest: 2 },
            version: "0.1.0".into(),
            reads_intervals: true,
        }
    }

    proptest! {
        #[test]
        fn hello_round_trips(name in "\\PC{0,16}", store: u128, worker: u32) {
            for link in [LinkKind::Raft, LinkKind::Confirm(WorkerId(worker)), LinkKind::Bootstrap] {
                let hello = hello(link, name.clone(), store);
                let mut bytes = Vec::new();
                hello.encode(&mut bytes);
                prop_assert_eq!(PeerHello::decode(&bytes), Ok(hello));
            }
        }

        #[test]
        fn garbage_never_panics(bytes: Vec<u8>) {
            let _ = PeerHello::decode(&bytes);
            let _ = Refusal::decode(&bytes);
        }
    }

    /// Splits the payload of a hello into two parts: the bytes before its fields, and the fields.
    fn taken_apart(hello: &PeerHello) -> (Vec<u8>, Vec<(u16, Vec<u8>)>) {
        let mut bytes = Vec::new();
        hello.encode(&mut bytes);
        let at = bytes.windows(6).position(|window| window == [5, 0, 0, 0, 1, 0]).expect("fields");
        let mut reader = Reader::new(&bytes[at..]);
        let count = reader.count("fields", FIELDS_MAX).expect("a count");
        let field = |_| {
            let tag = reader.u16("tag").expect("a tag");
            (tag, reader.bytes("field", FIELD_LEN_MAX).expect("a value").to_vec())
        };
        let fields = (0..count).map(field).collect();
        (bytes[..at].to_vec(), fields)
    }

    fn put_together(head: &[u8], fields: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = head.to_vec();
        bytes.put_count(fields.len());
        for (tag, value) in fields {
            bytes.put_u16(*tag);
            bytes.put_bytes(value);
        }
        bytes
    }

    /// A later version may add fields to a hello, or bytes at the end of a known field. This
    /// version skips both.
    #[test]
    fn fields_of_a_later_version_are_skipped() {
        let known = hello(LinkKind::Raft, "epicepoch".into(), 1);
        let (head, fields) = taken_apart(&known);
        assert_eq!(PeerHello::decode(&put_together(&head, &fields)), Ok(known.clone()));
        let more = [&fields[..], &[(4_711, b"of a later version".to_vec())]].concat();
        assert_eq!(PeerHello::decode(&put_together(&head, &more)), Ok(known.clone()));
        // Every field except `version`, which is a text up to its end, gets more bytes.
        for grown in 0..fields.len() {
            let mut fields = fields.clone();
            if fields[grown].0 == FIELD_VERSION {
                continue;
            }
            fields[grown].1.extend_from_slice(b"of a later version");
            let read = PeerHello::decode(&put_together(&head, &fields));
            assert_eq!(read, Ok(known.clone()), "field {}", fields[grown].0);
        }
    }

    #[test]
    fn fields_unknown_to_an_earlier_version_are_optional() {
        let known = hello(LinkKind::Raft, "epicepoch".into(), 1);
        let (head, _) = taken_apart(&known);
        let expected = PeerHello {
            workers: 1,
            settings: SharedSettings::default(),
            formats: Formats { oldest: 1, newest: 1 },
            version: String::new(),
            reads_intervals: false,
            ..known
        };
        assert_eq!(PeerHello::decode(&put_together(&head, &[])), Ok(expected));
    }

    #[test]
    fn fields_that_come_twice_or_out_of_order_or_too_short_are_refused() {
        let (head, fields) = taken_apart(&hello(LinkKind::Raft, "epicepoch".into(), 1));
        let again = put_together(&head, &[&fields[..], &fields[fields.len() - 1..]].concat());
        assert!(PeerHello::decode(&again).is_err());
        let swapped: Vec<_> = fields.iter().rev().cloned().collect();
        assert!(PeerHello::decode(&put_together(&head, &swapped)).is_err());
        let all = put_together(&head, &fields);
        let more = [&all[..], &all[all.len() - 10..]].concat();
        assert!(PeerHello::decode(&more).is_err(), "more than was counted");
        for shorter in (0..fields.len()).filter(|at| fields[*at].0 != FIELD_VERSION) {
            let mut fields = fields.clone();
            fields[shorter].1.pop();
            assert!(PeerHello::decode(&put_together(&head, &fields)).is_err());
        }
    }

    #[test]
    fn a_long_refusal_is_cut_at_a_character() {
        let refusal = Refusal::new(RefusalCode::WrongStore, "ü".repeat(REFUSAL_TEXT_LEN_MAX));
        let mut bytes = Vec::new();
        refusal.encode(&mut bytes);
        let read = Refusal::decode(&bytes).unwrap();
        assert_eq!(read.code, RefusalCode::WrongStore);
        assert_eq!(read.text.len(), REFUSAL_TEXT_LEN_MAX);
    }
}
