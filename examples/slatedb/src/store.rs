//! Transactions of SlateDB whose sequence numbers are the oracle's timestamps: the part to copy.
//!
//! SlateDB takes sequence numbers from the program (`WriteOptions::seqnum`), and refuses one that
//! is not above all that it has. So a commit takes its timestamp and enters the store under one
//! lock. A snapshot at a timestamp is taken under the same lock: it has exactly the commits below.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use epicepoch_client::Client;
use slatedb::config::{PutOptions, WriteOptions};
use slatedb::object_store::ObjectStore;
use slatedb::{Db, DbSnapshot, DbTransaction, ErrorKind, IsolationLevel, Settings, WriteBatch};
use tokio::sync::Mutex;

use crate::check::{Events, Stamp};
use crate::plant::Plant;

/// A store that this process owns, until another owner opens it.
pub struct Store {
    db: Db,
    oracle: Arc<Oracle>,
    /// Held from the question for a timestamp until the store has used it.
    order: Mutex<()>,
}

/// Takes timestamps from the oracle, or makes the planted mistake.
pub struct Oracle {
    client: Client,
    events: Arc<Events>,
    plant: Option<Plant>,
}

/// How a commit ended.
pub enum Ended {
    /// It is in the store, and stays there.
    Committed(Stamp),
    /// It is not in the store: another commit came first.
    Aborted,
    /// Another owner has opened the store. The commit may have happened before.
    Unknown(Stamp),
}

impl Oracle {
    /// Uses a client of a cluster with compact timestamps.
    pub fn new(client: Client, events: Arc<Events>, plant: Option<Plant>) -> Self {
        Self { client, events, plant }
    }

    /// Takes a timestamp.
    async fn take(&self) -> anyhow::Result<Stamp> {
        let asked = self.events.next();
        let timestamp = if self.plant == Some(Plant::LocalClock) && asked.is_multiple_of(20) {
            let clock = SystemTime::now() + Duration::from_millis(20);
            let clock = clock.duration_since(SystemTime::UNIX_EPOCH)?.as_millis() as u64;
            clock << 18 | asked % (1 << 18)
        } else {
            self.client.compact_timestamp().await?
        };
        Ok(Stamp { timestamp, asked, got: self.events.next() })
    }
}

impl Store {
    /// Opens the store. Its owner until now, if any, can write no more.
    pub async fn open(objects: Arc<dyn ObjectStore>, oracle: Arc<Oracle>) -> anyhow::Result<Self> {
        let mut settings = Settings::default();
        settings.flush_interval = Some(FLUSH_EVERY);
        let db = Db::builder("bank", objects).with_settings(settings).build().await?;
        Ok(Self { db, oracle, order: Mutex::new(()) })
    }

    /// Returns a snapshot with exactly the commits below the timestamp.
    pub async fn snapshot(&self) -> anyhow::Result<(Stamp, Arc<DbSnapshot>)> {
        if self.oracle.plant == Some(Plant::NoOrder) {
            let at = self.oracle.take().await?;
            tokio::time::sleep(Duration::from_millis(3)).await;
            return Ok((at, self.db.snapshot()?));
        }
        let _order = self.order.lock().await;
        let at = self.oracle.take().await?;
        Ok((at, self.db.snapshot()?))
    }

    /// Returns whether this process has owned the store until now, so that what a snapshot has seen
    /// is durable and nothing is missing. It writes a row: only a write asks the object store.
    ///
    /// # Errors
    /// There is no timestamp, or another owner has opened the store.
    pub async fn confirm(&self) -> anyhow::Result<bool> {
        let order = self.order.lock().await;
        let at = self.oracle.take().await?;
        let mut options = WriteOptions::default();
        options.seqnum = at.timestamp;
        let handle = self.db.put_with_options(MARK, b"", &PutOptions::default(), &options).await;
        drop(order);
        match handle {
            Ok(handle) => handle.await_durable().await?,
            // A wrong clock.
            Err(error) if matches!(error.kind(), ErrorKind::Invalid) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }

    /// Begins a transaction. It sees the commits up to now.
    pub fn begin(&self) -> Result<DbTransaction, slatedb::Error> {
        self.db.begin(IsolationLevel::SerializableSnapshot)
    }

    /// Commits a transaction at a timestamp of the oracle, and waits until the commit is durable.
    /// `writes` are those of the transaction, for a planted mistake.
    ///
    /// # Errors
    /// There is no timestamp, or the store has failed.
    pub async fn commit(
        &self,
        transaction: DbTransaction,
        writes: &[(Vec<u8>, Vec<u8>)],
    ) -> anyhow::Result<Ended> {
        let order = self.order.lock().await;
        let at = self.oracle.take().await?;
        let mut options = WriteOptions::default();
        options.seqnum = at.timestamp;
        let handle = if self.oracle.plant == Some(Plant::NoConflicts) {
            let mut batch = WriteBatch::new();
            writes.iter().for_each(|(key, value)| batch.put(key, value));
            self.db.write_with_options(batch, &options).await.map(Some)
        } else {
            transaction.commit_with_options(&options).await
        };
        drop(order);
        let handle = match handle {
            Ok(handle) => handle.context("a transaction without writes")?,
            Err(error) => return ended(at, error),
        };
        anyhow::ensure!(handle.seqnum() == at.timestamp, "another sequence number");
        match handle.await_durable().await {
            Ok(()) => Ok(Ended::Committed(at)),
            Err(error) => match error.kind() {
                ErrorKind::Closed(_) => Ok(Ended::Unknown(at)),
                _ => Err(error.into()),
            },
        }
    }
}

fn ended(at: Stamp, error: slatedb::Error) -> anyhow::Result<Ended> {
    match error.kind() {
        // A sequence number that is too low is invalid. It comes from a wrong clock.
        ErrorKind::Transaction | ErrorKind::Invalid => Ok(Ended::Aborted),
        ErrorKind::Closed(_) => Ok(Ended::Unknown(at)),
        _ => Err(error.into()),
    }
}

/// How often SlateDB writes to the object store. A commit waits for it.
const FLUSH_EVERY: Duration = Duration::from_millis(5);
/// The row that [`Store::confirm`] writes.
const MARK: &[u8] = b"owner";
