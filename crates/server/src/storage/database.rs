//! The tables and their transactions. It never splits a write, and it never makes a commit that
//! a restart could silently undo (see the parent module on two-phase commits).
//!
//! | table | key | value |
//! |---|---|---|
//! | `state` | `identity` | the text of [`Identity`] |
//! | `state` | `hard state` | term, vote, commit: little-endian `u64` each |
//! | `state` | `record` | [`Record`], in the codec of the wire |
//! | `log` | log index | [`LogEntry`], in the codec of the wire |

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use epicepoch_core::durable::{HardState, Record, Restored, Write};
use epicepoch_wire::cursor::{Reader, Writer as _};
use epicepoch_wire::raft_message::LogEntry;
use epicepoch_wire::{DecodeError, LogIndex, NodeId, Term};
use redb::{
    Durability, ReadableDatabase as _, ReadableTable, StorageBackend, StorageError, Table,
    TableDefinition, WriteTransaction,
};
use thiserror::Error;

use super::OpenError;
use super::identity::{FORMAT, Identity, IdentityError};
use super::stored::Stored;

/// Memory for pages, bytes: the whole file, as a rule.
const CACHE_LEN_MAX: usize = 1 << 20;

const STATE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("state");
const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");

const IDENTITY_KEY: &str = "identity";
const HARD_STATE_KEY: &str = "hard state";
const RECORD_KEY: &str = "record";

/// An open database.
#[derive(Debug)]
pub(super) struct Database {
    redb: redb::Database,
    /// `None` before the founding.
    stored: Option<Stored>,
}

/// Why a database was not created or opened.
#[derive(Debug, Error)]
pub(super) enum DatabaseError {
    #[error(transparent)]
    Redb(redb::Error),
    #[error("{0}")]
    Damaged(String),
    #[error("format {found}")]
    Newer { found: u64 },
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

    pub(super) fn into_open_error(self, path: &Path) -> OpenError {
        let path = path.to_path_buf();
        match self {
            Self::Damaged(what) => OpenError::Damaged { path, what },
            Self::Newer { found } => OpenError::NewerFormat { path, found, supported: FORMAT },
            Self::Redb(redb::Error::DatabaseAlreadyOpen) => OpenError::Locked { path },
            Self::Redb(redb::Error::Io(source)) => match source.kind() {
                // The database's words for a file that is not its own, or ends too early.
                io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                    OpenError::Damaged { path, what: format!("its log.redb: {source}") }
                }
                _ => OpenError::Unusable { path, action: "read or write", source },
            },
            Self::Redb(error) => {
                OpenError::Damaged { path, what: format!("its log.redb: {error}") }
            }
        }
    }
}

impl Database {
    /// Makes a database with an identity and nothing else, durably.
    pub(super) fn create(
        backend: impl StorageBackend,
        identity: &Identity,
    ) -> Result<(), DatabaseError> {
        let database = Self { redb: open_redb(backend)?, stored: None };
        let transaction = database.begin()?;
        {
            let mut state = transaction.open_table(STATE)?;
            state.insert(IDENTITY_KEY, identity.text().as_bytes())?;
            transaction.open_table(LOG)?;
        }
        transaction.commit()?;
        Ok(())
    }

    /// Opens what [`Database::create`] made, and reads all of it.
    pub(super) fn open(
        backend: impl StorageBackend,
    ) -> Result<(Self, Identity, Option<Restored>), DatabaseError> {
        let open = || {
            let mut redb = open_redb(backend)?;
            // Walks every page and its checksum: a page that nobody reads may have rotted too.
            redb.check_integrity()?;
            let (identity, restored) = read(&redb)?;
            Ok((redb, identity, restored))
        };
        // Some damage trips an assertion of the database's own.
        let opened = catch_unwind(AssertUnwindSafe(open))
            .unwrap_or_else(|_| Err(DatabaseError::Damaged("its log.redb is malformed".into())));
        let (redb, identity, restored) = opened?;
        let stored = restored.as_ref().map(Stored::restored).transpose();
        let stored = stored.map_err(DatabaseError::Damaged)?;
        Ok((Self { redb, stored }, identity, restored))
    }

    /// Whether there is a record.
    pub(super) fn is_founded(&self) -> bool {
        self.stored.is_some()
    }

    /// Writes the first record, durably. See [`super::Storage::found`].
    pub(super) fn found(&mut self, record: &Record) -> Result<(), redb::Error> {
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

    /// Makes writes durable, all of them or none.
    ///
    /// # Errors
    /// Then this database takes no more writes, and what is on disk is either of the two.
    ///
    /// # Panics
    /// When a write breaks an invariant of what is stored. None of them is on disk then.
    pub(super) fn write(&mut self, writes: &[Write]) -> Result<(), redb::Error> {
        let mut stored = self.stored.expect("founded before it is written");
        if writes.iter().all(Write::is_empty) {
            return Ok(());
        }
        let transaction = self.begin()?;
        {
            let mut state = transaction.open_table(STATE)?;
            let mut log = transaction.open_table(LOG)?;
            for write in writes {
                let before = stored;
                stored = before.after(write);
                apply(write, before, &mut state, &mut log)?;
            }
        }
        transaction.commit()?;
        self.stored = Some(stored);
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

/// One write, in the order of its fields.
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

/// Reads everything.
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
            Ok((identity, Some(Restored { hard_state, record, entries })))
        }
        (None, None) if entries.is_empty() => Ok((identity, None)),
        _ => Err(DatabaseError::Damaged("its hard state or its record is missing".into())),
    }
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

/// Reads one value, to its last byte.
fn decode<'a, T>(
    bytes: &'a [u8],
    read: impl FnOnce(&mut Reader<'a>) -> Result<T, DecodeError>,
) -> Result<T, DecodeError> {
    let mut reader = Reader::new(bytes);
    let value = read(&mut reader)?;
    reader.finish()?;
    Ok(value)
}
