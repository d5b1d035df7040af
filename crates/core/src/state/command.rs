//! The commands and changes of members in the Raft log, their encodings, and the format that each of
//! them needs. This module applies nothing.

use std::collections::BTreeSet;

use epicepoch_wire::bootstrap::{MEMBERS_MAX, Member};
use epicepoch_wire::cursor::{Reader, Writer};
use epicepoch_wire::peer_hello::Formats;
use epicepoch_wire::raft_message::{ENTRY_LEN_MAX, EntryKind, LogEntry};
use epicepoch_wire::settings::{ClusterSettings, LEASE_MS_MAX};
use epicepoch_wire::{BootId, DecodeError, Epoch, Mode, NodeId, Term, TimestampFormat};

use crate::epoch_range::EpochRange;

/// The formats of state and log entries that this version reads. It writes the format of the state.
/// A cluster begins with the oldest format, and raises it by one when all its members read the next
/// (S15).
///
/// - 1: the first.
/// - 2: the format can be raised: [`Command::Raise`].
/// - 3: there are settings: [`Command::Settings`].
/// - 4: a leader gives back what it did not use: [`Command::GiveBack`].
/// - 5: a reservation may be a lease: `lease_ms` and [`Command::Release`]. There are settings of
///   leases.
/// - 6: timestamps may be compact: `timestamp_format`.
/// - 7: every node may give timestamps alone: `mode`.
/// - 8: interval mode can end: [`Command::EndIntervals`]. Changes of the mode have numbers.
pub const FORMATS: Formats = Formats { oldest: 1, newest: FORMAT_OF_CLOSING };
/// The first format in which interval mode can end.
pub const FORMAT_OF_CLOSING: u32 = 8;
/// The first format with interval mode in it.
pub const FORMAT_OF_INTERVALS: u32 = 7;
/// The first format in which timestamps may be compact.
pub const FORMAT_OF_COMPACT: u32 = 6;
/// The first format with leases in it.
pub const FORMAT_OF_LEASES: u32 = 5;
/// The first format in which the end of a range can be given back.
pub const FORMAT_OF_GIVING_BACK: u32 = 4;
/// The first format with settings in it.
pub const FORMAT_OF_SETTINGS: u32 = 3;

/// At most this many removed node ids are remembered. Ids are never used again. So this also limits
/// members and removed ids together: a member is not admitted if its id could not be remembered
/// after its removal.
pub const REMOVED_MAX: usize = 4_096;

/// At most this many nodes are named by the end of interval mode.
const STOPPED_MAX: usize = MEMBERS_MAX + REMOVED_MAX;
/// A node rejects an append with a longer entry. So a command that can be longer would stop the log.
const _: () = assert!(32 + 8 * STOPPED_MAX <= ENTRY_LEN_MAX);

/// The proposer of a reservation: the only process that may stamp in the assigned range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// The term that the proposer led.
    pub term: Term,
    /// The proposer.
    pub node: NodeId,
    /// Its boot.
    pub boot: BootId,
}

/// A command of ours in the Raft log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Raises the ceiling to `until`, and assigns the epochs above the old ceiling to the owner.
    Reserve {
        /// The proposer.
        owner: Owner,
        /// The last epoch requested.
        until: Epoch,
        /// The length of the lease, milliseconds; 0 if the reservation is no lease. Lengths above 0
        /// are in the log since format 5.
        lease_ms: u64,
    },
    /// Ends the leases of the owner that were reserved before. In the log since format 5. It changes
    /// nothing in the state: what counts is when it reaches a node.
    Release {
        /// The proposer. Its workers use no lease any more that was reserved before.
        owner: Owner,
    },
    /// Gives a member other addresses.
    Readdress(Member),
    /// Raises state and log to this format; in the log since format 2. Ignored unless the state has
    /// the format just before.
    Raise(u32),
    /// Gives back the end of the owner's range: the next range begins at the low end of this one.
    /// In the log since format 4. Ignored unless this range is the end of what the owner has, and
    /// no other range was assigned since.
    GiveBack {
        /// The proposer. Its allocator gives nothing in the range any more.
        owner: Owner,
        /// The epochs that are given back: none of them was given or will be.
        range: EpochRange,
    },
    /// Sets the settings of the cluster; in the log since format 3, with those of leases since
    /// format 5, with compact timestamps since format 6, and with interval mode since format 7.
    Settings {
        /// Drawn at random by the requester, to recognise the acknowledgement.
        nonce: u64,
        /// If true, the settings are applied only if the state has none yet.
        is_seed: bool,
        /// All settings.
        settings: ClusterSettings,
    },
    /// Ends interval mode (S26). In the log since format 8. Ignored unless interval mode closes by
    /// this change, and each node that may give interval timestamps is named.
    EndIntervals {
        /// The number of the change by which interval mode closes.
        change: u64,
        /// No timestamp of these nodes is above this time, Unix nanoseconds.
        highest_ns: u64,
        /// The nodes that have stopped for this change.
        stopped: BTreeSet<NodeId>,
    },
}

/// A change of the members, carried as our own encoding in a membership entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipChange {
    /// Drawn at random by the requester, to recognise the acknowledgement.
    pub nonce: u64,
    /// The steps of the change; several steps use joint consensus.
    pub steps: Vec<MembershipStep>,
}

/// One step of a [`MembershipChange`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipStep {
    /// Admits a member that receives the log and does not vote.
    AddLearner(Member),
    /// Makes a learner a voter.
    Promote(NodeId),
    /// Removes a member for ever: its id is never used again.
    Remove(NodeId),
}

/// Reads the length of a lease, milliseconds.
pub(super) fn read_lease_ms(reader: &mut Reader<'_>) -> Result<u64, DecodeError> {
    let value = reader.u64("lease")?;
    if value > LEASE_MS_MAX {
        Err(DecodeError::BadValue { field: "lease", value })
    } else {
        Ok(value)
    }
}

/// Reads the length of a lease that is not 0, milliseconds. Without a lease, the command has another
/// encoding.
fn read_marked(reader: &mut Reader<'_>) -> Result<u64, DecodeError> {
    match read_lease_ms(reader)? {
        value @ 0 => Err(DecodeError::BadValue { field: "lease", value }),
        lease_ms => Ok(lease_ms),
    }
}

/// Checks that a node can read the format `found`, if it is configured to read no format above
/// `newest`.
pub(super) fn check_format(
    field: &'static str,
    found: u32,
    newest: u32,
) -> Result<(), DecodeError> {
    let (oldest, newest) = (FORMATS.oldest, newest.min(FORMATS.newest));
    if (oldest..=newest).contains(&found) {
        return Ok(());
    }
    Err(DecodeError::Format { field, found: u64::from(found), oldest, newest })
}

/// Checks that a node can read an entry, and so apply it. The node is configured to read no format
/// above `newest`.
///
/// # Errors
/// The reason. An entry whose format every member reads (S15) is never refused.
pub fn check_readable(entry: &LogEntry, newest: u32) -> Result<(), DecodeError> {
    match entry.kind {
        EntryKind::Normal if entry.data.is_empty() => Ok(()),
        EntryKind::Normal => {
            let format = Command::decode(&entry.data)?.format();
            check_format("an entry of the log", format, newest)
        }
        EntryKind::Membership if entry.context.is_empty() => Ok(()),
        EntryKind::Membership => MembershipChange::decode(&entry.context).map(drop),
    }
}

impl Owner {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.term.0);
        out.put_u64(self.node.0);
        out.put_u64(self.boot.0);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            term: Term(reader.u64("owner term")?),
            node: NodeId(reader.u64("owner node")?),
            boot: BootId(reader.u64("owner boot")?),
        })
    }
}

impl Command {
    /// Encodes the command for the log.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Reserve { owner, until, lease_ms } => {
                out.put_u8(if *lease_ms == 0 { 1 } else { 6 });
                owner.encode(&mut out);
                out.put_u64(until.0);
                if *lease_ms > 0 {
                    out.put_u64(*lease_ms);
                }
            }
            Self::Release { owner } => {
                out.put_u8(7);
                owner.encode(&mut out);
            }
            Self::Readdress(member) => {
                out.put_u8(2);
                member.encode(&mut out);
            }
            Self::Raise(to) => {
                out.put_u8(3);
                out.put_u32(*to);
            }
            Self::Settings { nonce, is_seed, settings } => {
                let is_compact = settings.timestamp_format == TimestampFormat::Compact;
                let has_leases = !settings.is_without_leases();
                out.put_u8(match (settings.mode, is_compact, has_leases) {
                    (Mode::Interval, _, _) => 10,
                    (Mode::Quorum, true, _) => 9,
                    (Mode::Quorum, false, true) => 8,
                    (Mode::Quorum, false, false) => 4,
                });
                out.put_u64(*nonce);
                out.put_bool(*is_seed);
                settings.encode(&mut out);
                if has_leases || is_compact || settings.mode == Mode::Interval {
                    settings.encode_leases(&mut out);
                }
            }
            Self::GiveBack { owner, range } => {
                out.put_u8(5);
                owner.encode(&mut out);
                out.put_u64(range.low.0);
                out.put_u64(range.high.0);
            }
            Self::EndIntervals { change, highest_ns, stopped } => {
                out.put_u8(11);
                out.put_u64(*change);
                out.put_u64(*highest_ns);
                out.put_count(stopped.len());
                for node in stopped {
                    out.put_u64(node.0);
                }
            }
        }
        out
    }

    /// The format that a state must have to apply the command.
    #[must_use]
    pub fn format(&self) -> u32 {
        match self {
            Self::Reserve { lease_ms, .. } if *lease_ms > 0 => FORMAT_OF_LEASES,
            Self::Reserve { .. } | Self::Readdress(_) => 1,
            Self::Release { .. } => FORMAT_OF_LEASES,
            Self::Raise(to) => *to,
            Self::Settings { settings, .. } if settings.mode == Mode::Interval => {
                FORMAT_OF_INTERVALS
            }
            Self::Settings { settings, .. }
                if settings.timestamp_format == TimestampFormat::Compact =>
            {
                FORMAT_OF_COMPACT
            }
            Self::Settings { settings, .. } if !settings.is_without_leases() => FORMAT_OF_LEASES,
            Self::Settings { .. } => FORMAT_OF_SETTINGS,
            Self::GiveBack { .. } => FORMAT_OF_GIVING_BACK,
            Self::EndIntervals { .. } => FORMAT_OF_CLOSING,
        }
    }

    /// Reads what [`Command::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are not a command, or a command of a newer format.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let command = match reader.u8("command")? {
            1 => Self::Reserve {
                owner: Owner::read(&mut reader)?,
                until: Epoch(reader.u64("until")?),
                lease_ms: 0,
            },
            2 => Self::Readdress(Member::read(&mut reader)?),
            3 => {
                let to = reader.u32("format")?;
                check_format("an entry of the log", to, FORMATS.newest)?;
                Self::Raise(to)
            }
            4 => Self::Settings {
                nonce: reader.u64("nonce")?,
                is_seed: reader.bool("is seed")?,
                settings: ClusterSettings::read(&mut reader)?,
            },
            5 => Self::GiveBack {
                owner: Owner::read(&mut reader)?,
                range: EpochRange {
                    low: Epoch(reader.u64("given back from")?),
                    high: Epoch(reader.u64("given back to")?),
                },
            },
            6 => Self::Reserve {
                owner: Owner::read(&mut reader)?,
                until: Epoch(reader.u64("until")?),
                lease_ms: read_marked(&mut reader)?,
            },
            7 => Self::Release { owner: Owner::read(&mut reader)? },
            8 => {
                let nonce = reader.u64("nonce")?;
                let is_seed = reader.bool("is seed")?;
                let mut settings = ClusterSettings::read(&mut reader)?;
                settings.read_leases(&mut reader)?;
                // Without leases, the command has another encoding.
                if settings.is_without_leases() || settings.lease_ms > LEASE_MS_MAX {
                    let value = settings.lease_ms;
                    return Err(DecodeError::BadValue { field: "lease", value });
                }
                Self::Settings { nonce, is_seed, settings }
            }
            tag @ (9 | 10) => {
                let nonce = reader.u64("nonce")?;
                let is_seed = reader.bool("is seed")?;
                let mut settings = ClusterSettings::read(&mut reader)?;
                settings.read_leases(&mut reader)?;
                if settings.lease_ms > LEASE_MS_MAX {
                    let value = settings.lease_ms;
                    return Err(DecodeError::BadValue { field: "lease", value });
                }
                // Compact timestamps and interval mode exclude each other.
                if tag == 9 {
                    settings.timestamp_format = TimestampFormat::Compact;
                } else {
                    settings.mode = Mode::Interval;
                }
                Self::Settings { nonce, is_seed, settings }
            }
            11 => {
                let change = reader.u64("change of the mode")?;
                let highest_ns = reader.u64("highest time given")?;
                let mut stopped = BTreeSet::new();
                for _ in 0..reader.count("nodes that have stopped", STOPPED_MAX)? {
                    let field = "node that has stopped";
                    let node = NodeId(reader.u64(field)?);
                    // The command has one encoding: ids rise.
                    if stopped.last().is_some_and(|last| *last >= node) {
                        return Err(DecodeError::BadValue { field, value: node.0 });
                    }
                    stopped.insert(node);
                }
                Self::EndIntervals { change, highest_ns, stopped }
            }
            value => {
                let value = u64::from(value);
                return Err(DecodeError::BadValue { field: "command", value });
            }
        };
        reader.finish()?;
        Ok(command)
    }
}

impl MembershipStep {
    /// The node that the step is about.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        match self {
            Self::AddLearner(member) => member.node,
            Self::Promote(node) | Self::Remove(node) => *node,
        }
    }
}

impl MembershipChange {
    /// Encodes the change for the log.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u64(self.nonce);
        out.put_count(self.steps.len());
        for step in &self.steps {
            match step {
                MembershipStep::AddLearner(member) => {
                    out.put_u8(1);
                    member.encode(&mut out);
                }
                MembershipStep::Promote(node) => {
                    out.put_u8(2);
                    out.put_u64(node.0);
                }
                MembershipStep::Remove(node) => {
                    out.put_u8(3);
                    out.put_u64(node.0);
                }
            }
        }
        out
    }

    /// Reads what [`MembershipChange::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are not a change.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let nonce = reader.u64("nonce")?;
        let mut steps = Vec::new();
        for _ in 0..reader.count("steps", MEMBERS_MAX)? {
            steps.push(match reader.u8("step")? {
                1 => MembershipStep::AddLearner(Member::read(&mut reader)?),
                2 => MembershipStep::Promote(NodeId(reader.u64("node")?)),
                3 => MembershipStep::Remove(NodeId(reader.u64("node")?)),
                value => {
                    let value = u64::from(value);
                    return Err(DecodeError::BadValue { field: "step", value });
                }
            });
        }
        reader.finish()?;
        Ok(Self { nonce, steps })
    }
}
