//! The Raft messages that a peer may send, in a codec of our own.
//!
//! The Raft library's protobuf is never parsed from the network (RUSTSEC-2024-0437). Messages that
//! a peer must not send have no encoding here. These are proposals, read requests and the library's
//! local messages. A message with term 0 is refused, because the library would treat it as a local
//! one and obey it.

use crate::cursor::{DecodeError, Reader, Writer};
use crate::id::{LogIndex, NodeId, Term};

/// Highest valid term. A million elections a second would reach it after a hundred thousand years.
/// Above it, a candidate's next term could overflow.
pub const TERM_MAX: Term = Term(1 << 62);
/// Highest valid index of an entry. No log reaches it; above it, sums in the library could
/// overflow.
pub const INDEX_MAX: LogIndex = LogIndex(1 << 62);
/// One append has at most this many entries.
pub const ENTRIES_MAX: usize = 4096;
/// Longest data of one entry, bytes: a membership change is the longest.
pub const ENTRY_LEN_MAX: usize = 64 << 10;
/// Longest state in a snapshot, bytes.
pub const SNAPSHOT_LEN_MAX: usize = 512 << 10;
/// Longest context of a message, bytes. The context has one of two contents. In an election after a
/// transfer of leadership, it is the library's mark. In an answer to a heartbeat, it is a
/// [`VoterStatus`](crate::voter_status::VoterStatus).
pub const CONTEXT_LEN_MAX: usize = 64;
/// Each list of a configuration has at most this many node ids.
pub const CONFIGURATION_MAX: usize = 64;
/// Initial capacity for a message, bytes. It fits one entry, so that most messages need no second
/// allocation.
const LEN_USUAL: usize = 128;

/// The kind of a message. The names are those of the Raft library; the numbers are our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MessageKind {
    /// Entries from the leader, or its commit index.
    Append = 1,
    /// The answer to an append or a snapshot.
    AppendResponse = 2,
    /// A candidate asks for a vote.
    RequestVote = 3,
    /// The answer to a request for a vote.
    RequestVoteResponse = 4,
    /// The replicated state itself, for a follower that needs entries which the leader's log no
    /// longer has.
    Snapshot = 5,
    /// A leader's heartbeat.
    Heartbeat = 6,
    /// The answer to a heartbeat.
    HeartbeatResponse = 7,
    /// The leader hands leadership over: the receiver must campaign at once. If the message names an
    /// entry (`index`, `log_term`), only a receiver that has the entry campaigns.
    TimeoutNow = 8,
    /// A candidate asks whether it would get a vote.
    RequestPreVote = 9,
    /// The answer to a request for a pre-vote.
    RequestPreVoteResponse = 10,
}

impl MessageKind {
    /// Every kind, for tables and tests.
    pub const ALL: [Self; 10] = [
        Self::Append,
        Self::AppendResponse,
        Self::RequestVote,
        Self::RequestVoteResponse,
        Self::Snapshot,
        Self::Heartbeat,
        Self::HeartbeatResponse,
        Self::TimeoutNow,
        Self::RequestPreVote,
        Self::RequestPreVoteResponse,
    ];
}

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EntryKind {
    /// A command to the replicated state. The first entry of a new leader is empty.
    Normal = 0,
    /// A membership change. The context holds the change in our own encoding. An empty context
    /// means that the cluster leaves a joint configuration.
    Membership = 1,
}

/// One entry of the Raft log, on the wire and on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// The kind.
    pub kind: EntryKind,
    /// The term in which it was proposed.
    pub term: Term,
    /// The entry's index in the log.
    pub index: LogIndex,
    /// The command, or the library's form of a membership change.
    pub data: Vec<u8>,
    /// Our form of a membership change.
    pub context: Vec<u8>,
}

impl LogEntry {
    /// Appends the fields.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(self.kind as u8);
        out.put_u64(self.term.0);
        out.put_u64(self.index.0);
        out.put_bytes(&self.data);
        out.put_bytes(&self.context);
    }

    /// Reads the fields of a log entry.
    ///
    /// # Errors
    /// The bytes are not a valid entry.
    pub fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let kind = match reader.u8("entry kind")? {
            0 => EntryKind::Normal,
            1 => EntryKind::Membership,
            value => {
                let value = u64::from(value);
                return Err(DecodeError::BadValue { field: "entry kind", value });
            }
        };
        Ok(Self {
            kind,
            term: Term(reader.u64("entry term")?),
            index: LogIndex(reader.u64("entry index")?),
            data: reader.bytes("entry data", ENTRY_LEN_MAX)?.to_vec(),
            context: reader.bytes("entry context", ENTRY_LEN_MAX)?.to_vec(),
        })
    }
}

/// A configuration of voters and learners, simple or joint (dissertation, 4.3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    /// The voters. In a joint configuration, the voters of the new configuration.
    pub voters: Vec<NodeId>,
    /// The learners.
    pub learners: Vec<NodeId>,
    /// The outgoing voters; empty unless joint.
    pub voters_outgoing: Vec<NodeId>,
    /// Voters that become learners when the joint configuration is left.
    pub learners_next: Vec<NodeId>,
    /// Whether the library may leave the joint configuration by itself.
    pub auto_leave: bool,
}

impl Configuration {
    /// Appends the fields.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for list in [&self.voters, &self.learners, &self.voters_outgoing, &self.learners_next] {
            out.put_count(list.len());
            for node in list {
                out.put_u64(node.0);
            }
        }
        out.put_bool(self.auto_leave);
    }

    /// Reads the fields of a configuration.
    ///
    /// # Errors
    /// The bytes are not a valid configuration.
    pub fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut lists: [Vec<NodeId>; 4] = Default::default();
        for list in &mut lists {
            for _ in 0..reader.count("configuration", CONFIGURATION_MAX)? {
                list.push(NodeId(reader.u64("node")?));
            }
        }
        let [voters, learners, voters_outgoing, learners_next] = lists;
        let auto_leave = reader.bool("auto leave")?;
        Ok(Self { voters, learners, voters_outgoing, learners_next, auto_leave })
    }
}

/// The whole replicated state at one index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The last applied entry.
    pub index: LogIndex,
    /// The term of that entry.
    pub term: Term,
    /// The configuration at exactly that index.
    pub configuration: Configuration,
    /// The encoded state.
    pub data: Vec<u8>,
}

impl Snapshot {
    /// Appends the fields.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.index.0);
        out.put_u64(self.term.0);
        self.configuration.encode(out);
        out.put_bytes(&self.data);
    }

    /// Reads the fields of a snapshot.
    ///
    /// # Errors
    /// The bytes are not a valid snapshot.
    pub fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            index: LogIndex(reader.u64("snapshot index")?),
            term: Term(reader.u64("snapshot term")?),
            configuration: Configuration::read(reader)?,
            data: reader.bytes("snapshot data", SNAPSHOT_LEN_MAX)?.to_vec(),
        })
    }

    /// Decodes a payload that consists only of a snapshot.
    ///
    /// # Errors
    /// The bytes are not a valid snapshot, or more bytes follow it.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        let snapshot = Self::read(&mut reader)?;
        reader.finish()?;
        Ok(snapshot)
    }
}

/// A Raft message. Its sender is in the frame's header; fields that a kind does not use are 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaftMessage {
    /// The kind.
    pub kind: MessageKind,
    /// The receiver.
    pub to: NodeId,
    /// The sender's term. In a request for a pre-vote, the term in which the sender would campaign.
    /// Never 0.
    pub term: Term,
    /// Term of the entry at `index`.
    pub log_term: Term,
    /// Index of an entry; its meaning depends on the kind.
    pub index: LogIndex,
    /// Commit index.
    pub commit: LogIndex,
    /// Term of the entry at `commit`.
    pub commit_term: Term,
    /// Whether an answer rejects.
    pub reject: bool,
    /// After a rejected append: the index that the leader should try next.
    pub reject_hint: LogIndex,
    /// The log index from which a follower asks for a snapshot; 0 if it asks for none.
    pub request_snapshot: LogIndex,
    /// In an election after a transfer of leadership: the library's mark. In an answer to a
    /// heartbeat: the voter status.
    pub context: Vec<u8>,
    /// Entries of an append.
    pub entries: Vec<LogEntry>,
    /// The replicated state; only in a message of the kind `Snapshot`.
    pub snapshot: Option<Snapshot>,
}

impl RaftMessage {
    /// Creates a message in which only kind, receiver and term are set.
    #[must_use]
    pub const fn plain(kind: MessageKind, to: NodeId, term: Term) -> Self {
        Self {
            kind,
            to,
            term,
            log_term: Term(0),
            index: LogIndex(0),
            commit: LogIndex(0),
            commit_term: Term(0),
            reject: false,
            reject_hint: LogIndex(0),
            request_snapshot: LogIndex(0),
            context: Vec::new(),
            entries: Vec::new(),
            snapshot: None,
        }
    }

    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(LEN_USUAL);
        out.put_u8(self.kind as u8);
        out.put_u64(self.to.0);
        out.put_u64(self.term.0);
        out.put_u64(self.log_term.0);
        out.put_u64(self.index.0);
        out.put_u64(self.commit.0);
        out.put_u64(self.commit_term.0);
        out.put_bool(self.reject);
        out.put_u64(self.reject_hint.0);
        out.put_u64(self.request_snapshot.0);
        out.put_bytes(&self.context);
        out.put_count(self.entries.len());
        for entry in &self.entries {
            entry.encode(out);
        }
        out.put_bool(self.snapshot.is_some());
        if let Some(snapshot) = &self.snapshot {
            snapshot.encode(out);
        }
    }

    /// Decodes the payload of a Raft message.
    ///
    /// # Errors
    /// The bytes are not a message, the term is 0, or a field is not valid for the kind of the
    /// message.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        let byte = reader.u8("kind")?;
        let kind = MessageKind::ALL
            .into_iter()
            .find(|kind| *kind as u8 == byte)
            .ok_or(DecodeError::BadValue { field: "kind", value: u64::from(byte) })?;
        let mut message = Self {
            kind,
            to: NodeId(reader.u64("to")?),
            term: Term(reader.u64("term")?),
            log_term: Term(reader.u64("log term")?),
            index: LogIndex(reader.u64("index")?),
            commit: LogIndex(reader.u64("commit")?),
            commit_term: Term(reader.u64("commit term")?),
            reject: reader.bool("reject")?,
            reject_hint: LogIndex(reader.u64("reject hint")?),
            request_snapshot: LogIndex(reader.u64("request snapshot")?),
            context: reader.bytes("context", CONTEXT_LEN_MAX)?.to_vec(),
            entries: Vec::new(),
            snapshot: None,
        };
        for _ in 0..reader.count("entries", ENTRIES_MAX)? {
            message.entries.push(LogEntry::read(&mut reader)?);
        }
        if reader.bool("has snapshot")? {
            message.snapshot = Some(Snapshot::read(&mut reader)?);
        }
        reader.finish()?;
        message.check()?;
        Ok(message)
    }

    /// Checks that a peer may send this message.
    fn check(&self) -> Result<(), DecodeError> {
        if self.term == Term(0) || self.term > TERM_MAX {
            return Err(DecodeError::BadValue { field: "term", value: self.term.0 });
        }
        if !self.entries.is_empty() && self.kind != MessageKind::Append {
            let value = self.entries.len() as u64;
            return Err(DecodeError::BadValue { field: "entries of another kind", value });
        }
        if self.snapshot.is_some() != (self.kind == MessageKind::Snapshot) {
            return Err(DecodeError::BadValue { field: "snapshot of another kind", value: 1 });
        }
        let mut before = self.index;
        for entry in &self.entries {
            if entry.index.0 != before.0.wrapping_add(1) || entry.term > self.term {
                return Err(DecodeError::BadValue { field: "entry index", value: entry.index.0 });
            }
            before = entry.index;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(kind: MessageKind, term: u64, index: u64, data: &[u8]) -> RaftMessage {
        let entry = |index| LogEntry {
            kind: EntryKind::Normal,
            term: Term(term),
            index: LogIndex(index),
            data: data.to_vec(),
            context: Vec::new(),
        };
        let entries = match kind {
            MessageKind::Append => vec![entry(index + 1), entry(index + 2)],
            _ => Vec::new(),
        };
        let configuration =
            Configuration { voters: vec![NodeId(1), NodeId(2)], ..Configuration::default() };
        let snapshot = (kind == MessageKind::Snapshot).then(|| Snapshot {
            index: LogIndex(index),
            term: Term(term),
            configuration,
            data: data.to_vec(),
        });
        RaftMessage {
            kind,
            to: NodeId(2),
            term: Term(term),
            log_term: Term(term),
            index: LogIndex(index),
            commit: LogIndex(index),
            commit_term: Term(term),
            reject: true,
            reject_hint: LogIndex(4),
            request_snapshot: LogIndex(0),
            context: b"CampaignTransfer".to_vec(),
            entries,
            snapshot,
        }
    }

    proptest! {
        #[test]
        fn every_kind_round_trips(term in 1..=TERM_MAX.0, index in 0_u64..1 << 60, data: Vec<u8>) {
            for kind in MessageKind::ALL {
                let message = message(kind, term, index, &data);
                let mut bytes = Vec::new();
                message.encode(&mut bytes);
                prop_assert_eq!(RaftMessage::decode(&bytes), Ok(message));
            }
        }

        #[test]
        fn garbage_and_damage_never_panic(
            bytes: Vec<u8>, at: prop::sample::Index, flip in 1_u8..,
        ) {
            let _ = RaftMessage::decode(&bytes);
            for kind in MessageKind::ALL {
                let mut bytes = Vec::new();
                message(kind, 3, 9, b"data").encode(&mut bytes);
                let at = at.index(bytes.len());
                bytes[at] ^= flip;
                let _ = RaftMessage::decode(&bytes);
                let _ = RaftMessage::decode(&bytes[..at]);
            }
        }
    }

    #[test]
    fn messages_that_no_peer_may_send_have_no_encoding() {
        let mut bytes = Vec::new();
        message(MessageKind::Append, 1, 1, b"").encode(&mut bytes);
        for kind in [0, 11, 12, 255] {
            bytes[0] = kind;
            assert!(RaftMessage::decode(&bytes).is_err(), "kind {kind}");
        }
    }

    #[test]
    fn terms_that_no_election_reaches_are_refused() {
        for term in [0, TERM_MAX.0 + 1, u64::MAX] {
            let mut bytes = Vec::new();
            message(MessageKind::Heartbeat, term, 1, b"").encode(&mut bytes);
            let refused = DecodeError::BadValue { field: "term", value: term };
            assert_eq!(RaftMessage::decode(&bytes), Err(refused));
        }
    }

    #[test]
    fn entries_must_follow_each_other() {
        let mut broken = message(MessageKind::Append, 1, 1, b"");
        broken.entries.swap(0, 1);
        let mut bytes = Vec::new();
        broken.encode(&mut bytes);
        assert!(RaftMessage::decode(&bytes).is_err());
    }
}
