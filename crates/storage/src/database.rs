//! The tables and their transactions. This module never splits a write. It never makes a commit
//! that a restart could silently undo (see the crate's documentation on two-phase commits).
//!
//! | table | key | value |
//! |---|---|---|
//! | `state` | `identity` | the text of [`Identity`] |
//! | `state` | `hard state` | term, vote, commit: little-endian `u64` each |
//! | `state` | `record` | [`Record`], in the codec of the wire |
//! | `state` | `position` | number of the last write, over all boots: `u64` |
//! | `state` | `peers` | the positions that peers have named: node, boot and position, `u64` each |
//! | `state` | `interval mark` | no interval timestamp was given above it, Unix nanoseconds: `u64` |
//! | `state` | `intervals closed` | the change of the mode for which this node has stopped: `u64` |
//! | `log` | log index | [`LogEntry`], in the codec of the wire |

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use epicepoch_core::durable::{HardState, Record, Restored, Write};
use epicepoch_core::positions::{Heard, Positions};
use epicepoch_wire::cursor::{Reader, Writer as _};
use epicepoch_wire::raft_message::LogEntry;
use epicepoch_wire::{BootId, DecodeError, LogIndex, NodeId, StorePosition, Term};
use redb::{
    Durability, ReadableDatabase as _, ReadableTable, StorageBackend, StorageError, Table,
    TableDefinition, WriteTransaction,
};
use thiserror::Error;

use crate::identity::{Identity, IdentityError};
use crate::intervals::{CLOSED_KEY, Intervals, IntervalsWrite, MARK_KEY};
use crate::stored::Stored;

/// Memory for pages, bytes. It usually holds the whole file.
const CACHE_LEN_MAX: usize = 1 << 20;

const STATE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("state");
const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");

const IDENTITY_KEY: &str = "identity";
const HARD_STATE_KEY: &str = "hard state";
const RECORD_KEY: &str = "record";
const POSITION_KEY: &str = "position";
const PEERS_KEY: &str = "peers";
/// Bytes of one peer in the value of [`PEERS_KEY`].
const PEER_LEN: usize = 24;

/// An open database.
#[derive(Debug)]
pub struct Database {
    redb: redb::Database,
    /// `None` before the founding.
    stored: Option<Stored>,
    /// What is on the disk of interval mode.
    intervals: Intervals,
}

/// Why a database was not created or opened. Its content is unchanged.
#[derive(Debug, Error)]
pub enum DatabaseError {
    /// The disk failed, or redb has found damage.
    #[error(transparent)]
    Redb(redb::Error),
    /// A value is damaged; the text says which.
    #[error("{0}")]
    Damaged(String),
    /// A newer version of this program wrote it.
    #[error("format {found}")]
    Newer {
        /// Its format.
        found: u64,
    },
}

impl<E: Into<redb::Error>> From<E> for DatabaseError {
    fn from(error: E) -> Self {
        Self::Redb(error.into())
    }
}

impl DatabaseError {
    fn undecodable(what: &str, error: &DecodeError) -> Self {
        Self::Damaged(format!("its {what} is not what was written: {error}"))
    }

    /// Whether the data is damaged. If not, the disk failed, a newer version wrote the data, or the
    /// database is already open.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Newer { .. } | Self::Redb(redb::Error::DatabaseAlreadyOpen) => false,
            // redb returns these errors for a file that is not a database, or ends too early.
            Self::Redb(redb::Error::Io(source)) => {
                matches!(source.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
            }
            Self::Damaged(_) | Self::Redb(_) => true,
        }
    }
}

impl Database {
    /// Creates a database that contains only an identity, durably.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn create(backend: impl StorageBackend, identity: &Identity) -> Result<(), DatabaseError> {
        let database =
            Self { redb: open_redb(backend)?, stored: None, intervals: Intervals::default() };
        let transaction = database.begin()?;
        {
            let mut state = transaction.open_table(STATE)?;
            state.insert(IDENTITY_KEY, identity.text().as_bytes())?;
            transaction.open_table(LOG)?;
        }
        transaction.commit()?;
        Ok(())
    }

    /// Opens a database and reads all of it, including unused pages. The content is `None` before
    /// the founding.
    ///
    /// # Errors
    /// When the disk failed, or any value is damaged.
    pub fn open(
        backend: impl StorageBackend,
    ) -> Result<(Self, Identity, Option<Restored>), DatabaseError> {
        let open = || {
            let mut redb = open_redb(backend)?;
            // Checks every page, because a page that is never read may be damaged, too.
            redb.check_integrity()?;
            let (identity, restored) = read(&redb)?;
            let intervals = read_intervals(&redb)?;
            Ok((redb, identity, restored, intervals))
        };
        // Some damage makes an assertion inside redb fail.
        let opened = catch_unwind(AssertUnwindSafe(open))
            .unwrap_or_else(|_| Err(DatabaseError::Damaged("its log.redb is malformed".into())));
        let (redb, identity, restored, intervals) = opened?;
        let stored = restored.as_ref().map(Stored::restored).transpose();
        let stored = stored.map_err(DatabaseError::Damaged)?;
        Ok((Self { redb, stored, intervals }, identity, restored))
    }

    /// What is on the disk of interval mode.
    #[must_use]
    pub const fn intervals(&self) -> Intervals {
        self.intervals
    }

    /// Whether there is a record.
    #[must_use]
    pub fn is_founded(&self) -> bool {
        self.stored.is_some()
    }

    /// Writes the first record, durably: a genesis, or the snapshot with which a member was
    /// admitted. The hard state becomes the record's term, no vote, and a commit index at the
    /// record. The log is empty.
    ///
    /// # Errors
    /// When the disk failed. The database then accepts no more writes, and the disk holds the state
    /// from before this call or from after it.
    ///
    /// # Panics
    /// When there is a record already, or this one has index or term 0.
    pub fn found(&mut self, record: &Record) -> Result<(), redb::Error> {
        assert!(!self.is_founded(), "there is a record already");
        let stored = Stored::founded(record);
        let transaction = self.begin()?;
        {
            let mut state = transaction.open_table(STATE)?;
            put_record(&mut state, record)?;
            put_hard_state(&mut state, &stored.hard_state)?;
        }
        transaction.commit()?;
        self.stored = Some(stored);
        Ok(())
    }

    /// Makes writes durable in one transaction.
    ///
    /// # Errors
    /// When the disk failed. The database then accepts no more writes, and the disk holds the state
    /// from before this call or from after it.
    ///
    /// # Panics
    /// When a write breaks an invariant of stored data. Then none of the writes is on disk.
    pub fn write(&mut self, writes: &[Write]) -> Result<(), redb::Error> {
        self.write_with(writes, IntervalsWrite::default())
    }

    /// Makes writes, and what a node remembers of interval mode, durable in one transaction.
    ///
    /// # Errors
    /// As for [`Database::write`].
    ///
    /// # Panics
    /// As for [`Database::write`].
    pub fn write_with(
        &mut self,
        writes: &[Write],
        intervals: IntervalsWrite,
    ) -> Result<(), redb::Error> {
        let mut stored = self.stored.expect("founded before it is written");
        if writes.iter().all(Write::is_empty) && intervals.is_empty() {
            return Ok(());
        }
        let intervals = self.intervals.after(intervals);
        let transaction = self.begin()?;
        {
            let mut state = transaction.open_table(STATE)?;
            let mut log = transaction.open_table(LOG)?;
            for write in writes {
                let before = stored;
                stored = before.after(write);
                apply(write, before, &mut state, &mut log)?;
            }
            intervals.write(self.intervals, &mut state)?;
        }
        transaction.commit()?;
        self.stored = Some(stored);
        self.intervals = intervals;
        Ok(())
    }

    fn begin(&self) -> Result<WriteTransaction, redb::Error> {
        let mut transaction = self.redb.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        transaction.set_two_phase_commit(true);
        Ok(transaction)
    }
}

fn open_redb(backend: impl StorageBackend) -> Result<redb::Database, redb::DatabaseError> {
    redb::Builder::new().set_cache_size(CACHE_LEN_MAX).create_with_backend(backend)
}

/// Applies one write, in the order of its fields.
fn apply(
    write: &Write,
    before: Stored,
    state: &mut Table<'_, &str, &[u8]>,
    log: &mut Table<'_, u64, &[u8]>,
) -> Result<(), StorageError> {
    if let Some(snapshot) = &write.snapshot {
        put_record(state, snapshot)?;
        log.retain(|_, _| false)?;
    }
    if let Some(first) = write.entries.first()
        && first.index.0 < before.next
    {
        log.retain_in(first.index.0.., |_, _| false)?;
    }
    let mut bytes = Vec::new();
    for entry in &write.entries {
        bytes.clear();
        entry.encode(&mut bytes);
        log.insert(entry.index.0, bytes.as_slice())?;
    }
    if let Some(hard_state) = &write.hard_state {
        put_hard_state(state, hard_state)?;
    }
    if let Some(record) = &write.record {
        put_record(state, record)?;
    }
    if let Some(compact_to) = write.compact_to {
        log.retain_in(..=compact_to.0, |_, _| false)?;
    }
    state.insert(POSITION_KEY, write.position.0.to_le_bytes().as_slice())?;
    if let Some(peers) = &write.peer_positions {
        bytes.clear();
        for (node, heard) in peers {
            bytes.put_u64(node.0);
            bytes.put_u64(heard.boot.0);
            bytes.put_u64(heard.position.0);
        }
        state.insert(PEERS_KEY, bytes.as_slice())?;
    }
    Ok(())
}

fn put_record(state: &mut Table<'_, &str, &[u8]>, record: &Record) -> Result<(), StorageError> {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    state.insert(RECORD_KEY, bytes.as_slice()).map(drop)
}

fn put_hard_state(
    state: &mut Table<'_, &str, &[u8]>,
    hard_state: &HardState,
) -> Result<(), StorageError> {
    let mut bytes = Vec::new();
    bytes.put_u64(hard_state.term.0);
    bytes.put_u64(hard_state.vote.0);
    bytes.put_u64(hard_state.commit.0);
    state.insert(HARD_STATE_KEY, bytes.as_slice()).map(drop)
}

/// Reads and checks all tables.
fn read(redb: &redb::Database) -> Result<(Identity, Option<Restored>), DatabaseError> {
    let transaction = redb.begin_read()?;
    let state = transaction.open_table(STATE)?;
    let log = transaction.open_table(LOG)?;

    let identity = state.get(IDENTITY_KEY)?.map(|value| value.value().to_vec());
    let text = identity.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
    let identity = Identity::parse(&text).map_err(|error| match error {
        IdentityError::Damaged => DatabaseError::Damaged("its log.redb has no identity".into()),
        IdentityError::Newer { found } => DatabaseError::Newer { found },
    })?;

    let hard_state = state.get(HARD_STATE_KEY)?.map(|value| decode_hard_state(value.value()));
    let hard_state = hard_state.transpose();
    let hard_state = hard_state.map_err(|e| DatabaseError::undecodable("hard state", &e))?;
    let record = state.get(RECORD_KEY)?.map(|value| decode(value.value(), Record::read));
    let record = record.transpose();
    let record = record.map_err(|e| DatabaseError::undecodable("record", &e))?;
    let positions = read_positions(&state)?;
    let mut entries = Vec::new();
    for row in log.iter()? {
        let (index, value) = row?;
        let entry = decode(value.value(), LogEntry::read)
            .map_err(|error| DatabaseError::undecodable("log", &error))?;
        if entry.index.0 != index.value() {
            return Err(DatabaseError::Damaged("its log has an entry in another's place".into()));
        }
        entries.push(entry);
    }
    match (hard_state, record) {
        (Some(hard_state), Some(record)) => {
            Ok((identity, Some(Restored { hard_state, record, entries, positions })))
        }
        (None, None) if entries.is_empty() => Ok((identity, None)),
        _ => Err(DatabaseError::Damaged("its hard state or its record is missing".into())),
    }
}

/// What is on the disk of interval mode.
fn read_intervals(redb: &redb::Database) -> Result<Intervals, DatabaseError> {
    let transaction = redb.begin_read()?;
    let state = transaction.open_table(STATE)?;
    let number = |key: &'static str| -> Result<u64, DatabaseError> {
        let number = state.get(key)?.map(|it| decode(it.value(), |r| r.u64(key))).transpose();
        Ok(number.map_err(|error| DatabaseError::undecodable(key, &error))?.unwrap_or_default())
    };
    Ok(Intervals { mark_ns: number(MARK_KEY)?, closed: number(CLOSED_KEY)? })
}

/// The positions of this directory and its peers; empty right after the founding.
fn read_positions(
    state: &impl ReadableTable<&'static str, &'static [u8]>,
) -> Result<Positions, DatabaseError> {
    let undecodable = |error| DatabaseError::undecodable("position", &error);
    let own = state.get(POSITION_KEY)?.map(|value| decode(value.value(), |r| r.u64("position")));
    let own = StorePosition(own.transpose().map_err(undecodable)?.unwrap_or_default());
    let mut peers = BTreeMap::new();
    if let Some(value) = state.get(PEERS_KEY)? {
        for row in value.value().chunks(PEER_LEN) {
            let (node, heard) = decode(row, read_heard).map_err(undecodable)?;
            peers.insert(node, heard);
        }
    }
    Ok(Positions { own, peers, ..Positions::default() })
}

fn read_heard(reader: &mut Reader<'_>) -> Result<(NodeId, Heard), DecodeError> {
    let node = NodeId(reader.u64("node")?);
    let boot = BootId(reader.u64("boot")?);
    Ok((node, Heard { boot, position: StorePosition(reader.u64("position")?) }))
}

fn decode_hard_state(bytes: &[u8]) -> Result<HardState, DecodeError> {
    decode(bytes, |reader| {
        Ok(HardState {
            term: Term(reader.u64("term")?),
            vote: NodeId(reader.u64("vote")?),
            commit: LogIndex(reader.u64("commit")?),
        })
    })
}

/// Reads one value, and checks that no byte is left.
fn decode<'a, T>(
    bytes: &'a [u8],
    read: impl FnOnce(&mut Reader<'a>) -> Result<T, DecodeError>,
) -> Result<T, DecodeError> {
    let mut reader = Reader::new(bytes);
    let value = read(&mut reader)?;
    reader.finish()?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use epicepoch_disk::model::{Model, entry, genesis};
    use epicepoch_disk::simulated_disk::SimulatedDisk;
    use epicepoch_wire::StoreId;
    use fastrand::Rng;
    use proptest::prelude::*;

    use super::*;

    fn identity() -> Identity {
        Identity::new(NodeId(1), StoreId(7), "epicepoch")
    }

    fn founded(disk: &SimulatedDisk) -> Database {
        let identity = identity();
        Database::create(disk.clone(), &identity).unwrap();
        let (mut database, found, restored) = Database::open(disk.clone()).unwrap();
        assert_eq!((found, restored), (identity, None));
        database.found(&genesis()).unwrap();
        database
    }

    /// A member loses power again and again, on a disk that may lie about its syncs. Returns the
    /// first restart that found unexpected content.
    fn live_through_power_losses(seed: u64, disk_lies: bool) -> Result<(), String> {
        let mut random = Rng::with_seed(seed);
        let mut disk = SimulatedDisk::default();
        let mut database = founded(&disk);
        let mut acknowledged = Model::founded();
        for life in 0..4 {
            disk.fail_after(random.u64(..500));
            disk.lie(disk_lies);
            let unacknowledged = loop {
                let mut model = acknowledged.clone();
                let batch = model.batch(&mut random);
                if database.write(&batch).is_err() {
                    break model;
                }
                acknowledged = model;
            };
            drop(database);
            disk = disk.after_power_loss(&mut random);
            // Power may also fail during a repair.
            disk.fail_after(random.u64(..60));
            if Database::open(disk.clone()).is_err() {
                disk = disk.after_power_loss(&mut random);
            }
            disk.fail_after(u64::MAX);
            let (again, _, restored) =
                Database::open(disk.clone()).map_err(|error| format!("life {life}: {error}"))?;
            let restored = restored.ok_or(format!("life {life}: nothing"))?;
            if restored == unacknowledged.restored {
                acknowledged = unacknowledged;
            }
            if restored != acknowledged.restored {
                return Err(format!("life {life}: another state"));
            }
            database = again;
        }
        Ok(())
    }

    /// S23, S26: what a node remembers of interval mode is there after a power loss once its write was
    /// acknowledged, alone or with writes.
    #[test]
    fn an_acknowledged_mark_survives_a_power_loss_and_may_be_lowered() {
        let mut random = Rng::with_seed(3);
        let mut disk = SimulatedDisk::default();
        let mut database = founded(&disk);
        assert_eq!(database.intervals(), Intervals::default());
        let write = Write { number: 1, entries: vec![entry(2, 1, 8)], ..Write::default() };
        for (writes, mark_ns, closed, after) in [
            (vec![], Some(u64::MAX), None, (u64::MAX, 0)),
            (vec![write], Some(900), None, (900, 0)),
            (vec![], None, Some(2), (900, 2)),
            (vec![], Some(7), Some(4), (7, 4)),
            (vec![], Some(8), None, (8, 4)),
        ] {
            database.write_with(&writes, IntervalsWrite { mark_ns, closed }).unwrap();
            let after = Intervals { mark_ns: after.0, closed: after.1 };
            assert_eq!(database.intervals(), after);
            drop(database);
            disk = disk.after_power_loss(&mut random);
            let (again, _, restored) = Database::open(disk.clone()).unwrap();
            assert_eq!(again.intervals(), after);
            assert_eq!(restored.unwrap().entries.len(), usize::from(mark_ns != Some(u64::MAX)));
            database = again;
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn written_state_is_read_back(seed: u64) {
            let mut random = Rng::with_seed(seed);
            let disk = SimulatedDisk::default();
            let mut database = founded(&disk);
            let mut model = Model::founded();
            for _ in 0..30 {
                database.write(&model.batch(&mut random)).unwrap();
                if random.u8(..) < 50 {
                    drop(database);
                    let (again, _, restored) = Database::open(disk.clone()).unwrap();
                    prop_assert_eq!(restored.as_ref(), Some(&model.restored));
                    database = again;
                }
            }
        }

        /// Power may fail at any point. Acknowledged writes survive, and the pending transaction
        /// survives whole or not at all.
        #[test]
        fn a_power_loss_leaves_what_was_acknowledged(seed: u64) {
            prop_assert_eq!(live_through_power_losses(seed, false), Ok(()));
        }

        #[test]
        fn a_founding_is_whole_or_not_there(operations in 0_u64..60, seed: u64) {
            let disk = SimulatedDisk::default();
            let identity = identity();
            Database::create(disk.clone(), &identity).unwrap();
            let (mut database, _, _) = Database::open(disk.clone()).unwrap();
            disk.fail_after(operations);
            let founded = database.found(&genesis());
            drop(database);
            let disk = disk.after_power_loss(&mut Rng::with_seed(seed));
            let (_, _, restored) = Database::open(disk).unwrap();
            if founded.is_ok() || restored.is_some() {
                prop_assert_eq!(restored, Some(Model::founded().restored));
            }
        }
    }

    #[test]
    fn a_disk_that_lies_about_its_syncs_is_found_out() {
        let caught = (0..20).filter(|seed| live_through_power_losses(*seed, true).is_err()).count();
        assert!(caught > 10, "only {caught} of 20 runs lost anything");
    }

    /// In the whole file, only one bit has no checksum: the one that says which of two commits is
    /// the newest. With one sync per commit, nearly every damage to the newest commit would be
    /// silent.
    #[test]
    fn damage_is_refused_or_harmless() {
        const HEADER_BITS: usize = 320 * 8;
        const NEWEST_COMMIT_BIT: usize = 9 * 8;
        let mut random = Rng::with_seed(5);
        let disk = SimulatedDisk::default();
        let mut database = founded(&disk);
        let mut model = Model::founded();
        for _ in 0..40 {
            database.write(&model.batch(&mut random)).unwrap();
        }
        let killed = disk.bytes();
        drop(database);
        let ended = disk.bytes();
        let (mut harmless, mut refused) = (0, 0);
        for bytes in [killed, ended] {
            let bits = bytes.len() * 8;
            let anywhere = std::iter::repeat_with(|| random.usize(..bits)).take(1000);
            for bit in (0..HEADER_BITS).chain(anywhere).filter(|bit| *bit != NEWEST_COMMIT_BIT) {
                let mut bytes = bytes.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                let disk = SimulatedDisk::with_bytes(bytes);
                // Each damaged disk is opened twice, because a second check must be as strict as
                // the first.
                for _ in 0..2 {
                    match Database::open(disk.clone()) {
                        Ok((_, _, restored)) => {
                            assert_eq!(restored.as_ref(), Some(&model.restored), "bit {bit}");
                            harmless += 1;
                        }
                        Err(_) => refused += 1,
                    }
                }
            }
        }
        assert!(harmless > 1000 && refused > 1000, "{harmless} harmless, {refused} refused");
    }

    #[test]
    fn a_cut_off_file_is_refused() {
        let disk = SimulatedDisk::default();
        drop(founded(&disk));
        let bytes = disk.bytes();
        for length in [1, 8, 9, 320, 4096, bytes.len() / 2, bytes.len() - 4096, bytes.len() - 1] {
            let disk = SimulatedDisk::with_bytes(bytes[..length].to_vec());
            let error = Database::open(disk).unwrap_err();
            assert!(error.is_damage(), "{length} bytes: {error}");
        }
    }

    #[test]
    fn twenty_thousand_writes_stay_small_and_take_two_syncs_each() {
        const WRITES: u64 = 20_000;
        const TRAILING: u64 = 1000;
        let disk = SimulatedDisk::default();
        let mut database = founded(&disk);
        let syncs_before = disk.syncs();
        let mut len_max = 0;
        for number in 1..=WRITES {
            let index = LogIndex(number + 1);
            let hard_state = HardState { term: Term(1), vote: NodeId(1), commit: index };
            let mut write = Write { number, hard_state: Some(hard_state), ..Write::default() };
            write.entries.push(entry(index.0, 1, 64));
            if number % 1000 == 0 {
                write.record = Some(Record { index, ..genesis() });
                write.compact_to = Some(LogIndex(index.0.saturating_sub(TRAILING)));
            }
            database.write(&[write]).unwrap();
            len_max = len_max.max(disk.len().unwrap());
        }
        let syncs = disk.syncs() - syncs_before;
        println!("longest {len_max} bytes, {syncs} syncs for {WRITES} commits");
        assert!(len_max < 5_000_000, "{len_max} bytes");
        // redb syncs twice per commit, and once each time the file grows.
        assert!((2 * WRITES..2 * WRITES + 10).contains(&syncs), "{syncs} syncs");
        drop(database);
        let (_, _, restored) = Database::open(disk).unwrap();
        assert_eq!(restored.unwrap().entries.len() as u64, TRAILING);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// redb's checksums detect almost all damage. This test is for damage that they miss.
        #[test]
        fn a_value_of_any_bytes_is_what_it_was_written_from_or_is_refused(
            bytes in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..80),
                proptest::collection::vec(0_u64..3, 1..10).prop_map(|it| {
                    it.into_iter().flat_map(u64::to_le_bytes).collect::<Vec<_>>()
                }),
            ],
        ) {
            let disk = SimulatedDisk::default();
            drop(founded(&disk));
            let put = |key: &str, bytes: &[u8]| {
                let redb = open_redb(disk.clone()).unwrap();
                let transaction = redb.begin_write().unwrap();
                transaction.open_table(STATE).unwrap().insert(key, bytes).unwrap();
                transaction.commit().unwrap();
            };
            let read = || Database::open(disk.clone()).map(|(_, _, restored)| restored.unwrap());
            let number = |at: usize| u64::from_le_bytes(bytes[at * 8..][..8].try_into().unwrap());
            let before = read().unwrap();
            put(PEERS_KEY, &bytes);
            prop_assert_eq!(read().is_ok(), bytes.len().is_multiple_of(PEER_LEN));
            if let Ok(Restored { positions, .. }) = read() {
                for row in 0..bytes.len() / PEER_LEN {
                    // If a node has two entries, the last one counts.
                    let heard = positions.peers[&NodeId(number(row * 3))];
                    let is_last = (row + 1..bytes.len() / PEER_LEN).all(|it| number(it * 3) != number(row * 3));
                    let written = Heard {
                        boot: BootId(number(row * 3 + 1)),
                        position: StorePosition(number(row * 3 + 2)),
                    };
                    prop_assert!(!is_last || heard == written);
                }
            }
            put(PEERS_KEY, &[]);
            put(POSITION_KEY, &bytes);
            prop_assert_eq!(read().is_ok(), bytes.len() == 8);
            if let Ok(Restored { positions, .. }) = read() {
                prop_assert_eq!(positions.own, StorePosition(number(0)));
            }
            put(POSITION_KEY, &before.positions.own.0.to_le_bytes());
            put(HARD_STATE_KEY, &bytes);
            prop_assert!(read().is_err() || bytes.len() == 24);
            if let Ok(Restored { hard_state, .. }) = read() {
                let (term, vote) = (Term(number(0)), NodeId(number(1)));
                prop_assert_eq!(hard_state, HardState { term, vote, commit: LogIndex(number(2)) });
            }
        }
    }
}
