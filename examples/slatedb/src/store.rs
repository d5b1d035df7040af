//! Transactions of SlateDB whose sequence numbers are the oracle's timestamps: the part to copy.
//!
//! SlateDB takes sequence numbers from the program (`WriteOptions::seqnum`), and refuses one that
//! is not above all that it has. So a commit takes its timestamp and enters the store under one
//! lock. A snapshot at a timestamp is taken under the same lock: it has exactly the commits of this
//! owner and of earlier ones below its timestamp.
//!
//! The store step of a write runs in a task of its own. So a caller may drop its future at any time,
//! as `tokio::time::timeout` does: the lock is held until the store has the write. But the caller
//! does not know the outcome.

use std::panic;
use std::sync::Arc;
use std::time::Duration;

use epicepoch_client::TimestampsError;
use slatedb::config::{PutOptions, WriteOptions};
use slatedb::object_store::ObjectStore;
use slatedb::{
    Db, DbSnapshot, DbTransaction, ErrorKind, IsolationLevel, Settings, WriteBatch, WriteHandle,
};
use thiserror::Error;
use tokio::sync::Mutex;

use crate::check::Stamp;
use crate::oracle::Oracle;
use crate::plant::Plant;

/// A store that this process owns, until another owner opens it.
pub struct Store {
    db: Db,
    oracle: Arc<Oracle>,
    /// Held from the question for a timestamp until the store has used it.
    order: Arc<Mutex<()>>,
}

/// How a commit ended.
#[derive(Debug)]
pub enum Ended {
    /// It is in the store, and stays there. A transaction without writes ends like this, too.
    Committed(Stamp),
    /// It is not in the store: another commit came first. Begin the transaction again.
    Aborted,
    /// It may be in the store: the store has failed, or another owner has opened it. Do not repeat
    /// the transaction. Open the store again, and look for a row that only this transaction wrote.
    Unknown(Stamp, slatedb::Error),
}

/// Why a call failed.
#[derive(Debug, Error)]
pub enum StoreError {
    /// There is no timestamp. Nothing has happened: try again.
    #[error("no timestamp")]
    NoTimestamp(#[from] TimestampsError),
    /// The store has data above the oracle's timestamps. Nothing has happened, and trying again does
    /// not help: the clients ask another cluster, or the cluster was restored from a backup that does
    /// not know how far ahead it was.
    #[error(
        "the oracle is below this store: it gave {timestamp}, and the store has {newest}. Do not \
         try again. If these are the right cluster and the right store, move the oracle above the \
         store: epicepoch clock advance-to {above_ms}ms, or RESTORE_FLOOR={above_ms}ms in a restore",
        above_ms = (newest >> 18) + 1
    )]
    OracleBelow {
        /// What the oracle gave.
        timestamp: u64,
        /// The highest sequence number in the store.
        newest: u64,
    },
    /// The store has failed, or another owner has opened it. Do not believe snapshots that were not
    /// confirmed before.
    #[error("the store failed")]
    Store(#[from] slatedb::Error),
}

impl Store {
    /// Opens the store. Its owner until now, if any, can write no more.
    pub async fn open(
        objects: Arc<dyn ObjectStore>,
        oracle: Arc<Oracle>,
    ) -> Result<Self, slatedb::Error> {
        let settings = Settings { flush_interval: Some(FLUSH_EVERY), ..Settings::default() };
        let db = Db::builder("bank", objects).with_settings(settings).build().await?;
        Ok(Self { db, oracle, order: Arc::default() })
    }

    /// Returns a snapshot with exactly the commits below the timestamp, **if no other owner has
    /// opened the store**. This process does not notice another owner when it reads. So the snapshot
    /// may lack commits of another owner, and have commits that do not become durable. Believe it
    /// only after [`Self::confirm`].
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn snapshot(&self) -> Result<(Stamp, Arc<DbSnapshot>), StoreError> {
        if self.oracle.plant == Some(Plant::NoOrder) {
            let at = self.oracle.take().await?;
            tokio::time::sleep(Duration::from_millis(3)).await;
            return Ok((at, self.db.snapshot()?));
        }
        let _order = self.order.lock().await;
        let at = self.oracle.take().await?;
        let snapshot = self.db.snapshot()?;
        if snapshot.seq() >= at.timestamp {
            return Err(self.oracle_below(at));
        }
        Ok((at, snapshot))
    }

    /// Proves that this process has owned the store until now. So each snapshot that it took before
    /// this call is right: what the snapshot has shown is durable, and no commit below its timestamp
    /// is missing. It writes a row, because only a write asks the object store.
    ///
    /// # Errors
    /// See [`StoreError`]. Without the proof, forget what the snapshots have shown.
    pub async fn confirm(&self) -> Result<(), StoreError> {
        let db = self.db.clone();
        let put = |options| async move {
            db.put_with_options(MARK, b"", &PutOptions::default(), &options).await
        };
        let (_, handle) = self.write(put).await?;
        Ok(handle?.await_durable().await?)
    }

    /// Begins a transaction. It sees the commits up to now.
    pub fn begin(&self) -> Result<DbTransaction, slatedb::Error> {
        self.db.begin(IsolationLevel::SerializableSnapshot)
    }

    /// Commits a transaction at a timestamp of the oracle, and waits until the commit is durable.
    /// `writes` are those of the transaction, for a planted mistake.
    ///
    /// If the caller drops the future, the outcome is not known: the commit may still enter the
    /// store, but not after a call that begins later. So call [`Self::confirm`], and look for a row
    /// that only this transaction wrote.
    ///
    /// # Errors
    /// Nothing has happened, see [`StoreError`].
    pub async fn commit(
        &self,
        transaction: DbTransaction,
        writes: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<Ended, StoreError> {
        let (at, written) = if self.oracle.plant == Some(Plant::NoConflicts) {
            let (db, mut batch) = (self.db.clone(), WriteBatch::new());
            writes.iter().for_each(|(key, value)| batch.put(key, value));
            let write = |options| async move { db.write_with_options(batch, &options).await };
            let (at, handle) = self.write(write).await?;
            (at, handle.map(Some))
        } else {
            let commit = |options| async move { transaction.commit_with_options(&options).await };
            self.write(commit).await?
        };
        Ok(ended(at, written).await)
    }

    /// Takes a timestamp and writes at it, under the lock. An error means that nothing has happened.
    async fn write<T, F>(
        &self,
        write: impl FnOnce(WriteOptions) -> F,
    ) -> Result<(Stamp, Result<T, slatedb::Error>), StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, slatedb::Error>> + Send + 'static,
    {
        let order = self.order.clone().lock_owned().await;
        let at = self.oracle.take().await?;
        let write = write(WriteOptions { seqnum: at.timestamp });
        // The task goes on if the caller drops this future. Without it, the lock would be free while
        // SlateDB's writer still has the write before it, and a snapshot above the write would lack
        // it.
        let task = tokio::spawn(async move {
            let written = write.await;
            drop(order);
            written
        });
        match task.await.unwrap_or_else(|error| panic::resume_unwind(error.into_panic())) {
            // Only the sequence number of these writes can be invalid.
            Err(error) if error.kind() == ErrorKind::Invalid => Err(self.oracle_below(at)),
            written => Ok((at, written)),
        }
    }

    fn oracle_below(&self, at: Stamp) -> StoreError {
        let newest = self.db.snapshot().map_or(0, |snapshot| snapshot.seq());
        StoreError::OracleBelow { timestamp: at.timestamp, newest: newest.max(at.timestamp) }
    }
}

/// Waits until a commit is durable.
async fn ended(at: Stamp, written: Result<Option<WriteHandle>, slatedb::Error>) -> Ended {
    let durable = match written {
        Ok(Some(handle)) => {
            assert_eq!(handle.seqnum(), at.timestamp, "SlateDB took another sequence number");
            handle.await_durable().await
        }
        Ok(None) => Ok(()),
        Err(error) if error.kind() == ErrorKind::Transaction => return Ended::Aborted,
        Err(error) => Err(error),
    };
    match durable {
        Ok(()) => Ended::Committed(at),
        Err(error) => Ended::Unknown(at, error),
    }
}

/// How often SlateDB writes to the object store. A commit waits for it.
const FLUSH_EVERY: Duration = Duration::from_millis(5);
/// The row that [`Store::confirm`] writes.
const MARK: &[u8] = b"owner";

#[cfg(test)]
mod tests {
    use slatedb::object_store::memory::InMemory;
    use slatedb::{CloseReason, Error};

    use super::*;

    async fn commit(store: &Store, key: &[u8]) -> Result<Ended, StoreError> {
        let transaction = store.begin().expect("a transaction");
        transaction.put(key, b"").expect("a write");
        store.commit(transaction, &[]).await
    }

    /// With a restored oracle, or that of another cluster, no call may succeed or ask for a retry.
    #[tokio::test]
    async fn an_oracle_below_the_store_is_an_error_with_advice() {
        let objects = Arc::new(InMemory::new());
        let store =
            Store::open(objects.clone(), Oracle::count_above(7 << 18)).await.expect("a store");
        assert!(matches!(commit(&store, b"a").await, Ok(Ended::Committed(_))));
        let store = Store::open(objects, Oracle::count_above(0)).await.expect("a store");
        let errors = [
            commit(&store, b"b").await.map(drop).expect_err("a commit"),
            store.confirm().await.expect_err("a proof"),
            store.snapshot().await.map(drop).expect_err("a snapshot"),
        ];
        for error in errors {
            assert!(matches!(error, StoreError::OracleBelow { .. }), "{error}");
            assert!(error.to_string().contains("clock advance-to 8ms"), "{error}");
        }
    }

    /// The caller drops its commit when the store step has begun. A later snapshot is above the
    /// commit, so it has the commit.
    #[tokio::test]
    async fn a_dropped_commit_does_not_enter_the_store_below_a_later_snapshot() {
        let objects = Arc::new(InMemory::new());
        let store = Store::open(objects, Oracle::count_above(0)).await.expect("a store");
        // The oracle answers at once, so the first poll reaches the store step. All tasks share
        // this thread, so SlateDB's writer has not begun.
        tokio::select! {
            biased;
            ended = commit(&store, b"a") => panic!("{ended:?}"),
            () = std::future::ready(()) => {}
        }
        let (at, snapshot) = store.snapshot().await.expect("a snapshot");
        let seen = snapshot.get_key_value(b"a").await.expect("a read").map(|row| row.seq);
        // This write comes after the commit.
        store.confirm().await.expect("a proof");
        let stored = store.db.get_key_value(b"a").await.expect("a read").map(|row| row.seq);
        assert!(stored.is_some_and(|seq| seq < at.timestamp), "{stored:?} at {at:?}");
        assert_eq!(seen, stored);
    }

    /// Only a conflict is known to have changed nothing.
    #[tokio::test]
    async fn a_commit_that_may_have_happened_is_not_an_error() {
        let at = Stamp { timestamp: 40, asked: 0, got: 1 };
        let why = || "planted".to_owned();
        let lost = WriteHandle::new(40, 0, move || async move { Err(Error::unavailable(why())) });
        for written in [
            Ok(Some(lost)),
            Err(Error::closed(why(), CloseReason::Fenced)),
            Err(Error::unavailable(why())),
            Err(Error::data(why())),
            Err(Error::internal(why())),
        ] {
            let ended = ended(at, written).await;
            assert!(matches!(ended, Ended::Unknown(known, _) if known == at), "{ended:?}");
        }
        let durable = WriteHandle::new(40, 0, || async { Ok(()) });
        assert!(matches!(ended(at, Ok(Some(durable))).await, Ended::Committed(_)));
        assert!(matches!(ended(at, Err(Error::transaction(why()))).await, Ended::Aborted));
    }
}
