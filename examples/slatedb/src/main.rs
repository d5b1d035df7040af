//! A bank in SlateDB, whose sequence numbers are the oracle's compact timestamps. Leaders of the
//! oracle are killed, and the store gets one owner after another. Then a checker reads what all
//! clients have recorded. README.md says what is shown, and why it is right.

mod check;
mod oracle;
mod plant;
mod store;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use epicepoch_client::{Client, Options};
use epicepoch_conformance::cluster::Cluster;
use slatedb::object_store::ObjectStore;
use slatedb::object_store::local::LocalFileSystem;
use slatedb::{ErrorKind, KeyValue};

use check::{Events, Read, Record, Rule, check};
use oracle::Oracle;
use plant::Plant;
use store::{Ended, Store, StoreError};

/// What the clients share.
struct Bank {
    objects: Arc<dyn ObjectStore>,
    oracle: Arc<Oracle>,
    store: RwLock<Arc<Store>>,
    records: Mutex<Vec<Record>>,
    last_id: AtomicU64,
    aborted: AtomicU64,
    is_over: AtomicBool,
}

/// What a run has done.
struct Report {
    kills: u64,
    /// Owners, without those that were paused.
    owners: u64,
    /// Owners that were paused, and whose late audit was not confirmed.
    refused: u64,
    committed: usize,
    unknown: usize,
    aborted: u64,
    snapshots: usize,
    found: BTreeMap<Rule, usize>,
}

fn main() -> ExitCode {
    let run = || -> anyhow::Result<Report> {
        let (duration, plant) = arguments(std::env::args().skip(1))?;
        run(duration, plant)
    };
    match run() {
        Ok(report) => {
            print!("{report}");
            if report.found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("slatedb example: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn arguments(mut words: impl Iterator<Item = String>) -> anyhow::Result<(Duration, Option<Plant>)> {
    let (mut seconds, mut plant) = (10, None);
    while let Some(word) = words.next() {
        let value = words.next().with_context(|| format!("{word} needs a value"))?;
        match word.as_str() {
            "--seconds" => seconds = value.parse()?,
            "--plant" => {
                let known = Plant::ALL.into_iter().find(|it| it.name() == value);
                let names = Plant::ALL.map(Plant::name).join(", ");
                plant = Some(known.with_context(|| format!("the mistakes are {names}"))?);
            }
            _ => bail!("{word} is not known; allowed are --seconds and --plant"),
        }
    }
    if !(1..=SECONDS_MAX).contains(&seconds) {
        bail!("--seconds is {seconds}; allowed are 1 to {SECONDS_MAX}");
    }
    Ok((Duration::from_secs(seconds), plant))
}

/// Starts a cluster and works on it for so long.
fn run(duration: Duration, plant: Option<Plant>) -> anyhow::Result<Report> {
    let binary = std::env::var_os("EPICEPOCH_BIN").map(PathBuf::from);
    let binary = binary.context("EPICEPOCH_BIN names no binary: build one with cargo build")?;
    let cluster = Cluster::start(&binary.canonicalize()?, true).map_err(|why| anyhow!(why))?;
    let addrs: Vec<_> = cluster.addrs().iter().map(ToString::to_string).collect();
    let is_over = Arc::new(AtomicBool::new(false));
    let killing = std::thread::spawn({
        let is_over = is_over.clone();
        move || kill_leaders(cluster, &is_over)
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = runtime.block_on(work(&addrs, duration, plant));
    is_over.store(true, Ordering::SeqCst);
    let kills = killing.join().map_err(|_| anyhow!("the killer panicked"))?;
    let kills = kills.map_err(|why| anyhow!(why))?;
    Ok(Report { kills, ..report? })
}

/// Kills one leader after another until it is over.
fn kill_leaders(mut cluster: Cluster, is_over: &AtomicBool) -> Result<u64, String> {
    let mut kills = 0;
    let mut at = Instant::now() + KILL_EVERY;
    while !is_over.load(Ordering::SeqCst) {
        if Instant::now() < at {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        }
        let leader = cluster.wait_until_ready()?;
        cluster.kill(leader)?;
        cluster.leader()?;
        cluster.restart(leader)?;
        kills += 1;
        at = Instant::now() + KILL_EVERY;
    }
    Ok(kills)
}

async fn work(
    addrs: &[String],
    duration: Duration,
    plant: Option<Plant>,
) -> anyhow::Result<Report> {
    let dir = tempfile::tempdir()?;
    let objects: Arc<dyn ObjectStore> = Arc::new(LocalFileSystem::new_with_prefix(dir.path())?);
    let mut options = Options::default();
    options.timeout = Duration::from_secs(20);
    let client = Client::new(addrs.iter().cloned(), options)?;
    let oracle = Arc::new(Oracle::new(client, Arc::new(Events::default()), plant));
    let store = Arc::new(Store::open(objects.clone(), oracle.clone()).await?);
    let bank = Arc::new(Bank {
        objects,
        oracle,
        store: RwLock::new(store),
        records: Mutex::default(),
        last_id: AtomicU64::new(0),
        aborted: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
    });
    bank.open_accounts().await?;
    let clients: Vec<_> = (0..CLIENTS).map(|_| tokio::spawn(bank.clone().client())).collect();
    let end = Instant::now() + duration;
    let (mut owners, mut refused) = (1, 0);
    while Instant::now() < end {
        tokio::time::sleep(OWNER_EVERY.min(end.saturating_duration_since(Instant::now()))).await;
        owners += 1;
        if !bank.change_owner().await? {
            refused += 1;
        }
    }
    bank.is_over.store(true, Ordering::SeqCst);
    for client in clients {
        client.await??;
    }
    bank.accepted(bank.audit(&bank.store()).await)?;
    let records = std::mem::take(&mut *lock(&bank.records));
    let found = check(&records, ACCOUNTS, ACCOUNTS as i64 * FIRST_BALANCE);
    let count = |is_audit: bool, is_durable: bool| {
        let is = |it: &&Record| it.writes.is_empty() == is_audit && it.is_durable == is_durable;
        records.iter().filter(is).count()
    };
    Ok(Report {
        kills: 0,
        owners,
        refused,
        // Without the one that opened the accounts.
        committed: count(false, true) - 1,
        unknown: count(false, false),
        aborted: bank.aborted.load(Ordering::SeqCst),
        snapshots: count(true, true),
        found,
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kills, owners, refused, committed, unknown, aborted, snapshots, found } = self;
        writeln!(f, "killed     {kills} leaders of the oracle")?;
        writeln!(
            f,
            "owners     {owners}, each of which ended the one before; {refused} more were paused, \
             and their late snapshots refused"
        )?;
        writeln!(
            f,
            "committed  {committed} transfers; {unknown} with an outcome that is not known; \
             {aborted} aborted"
        )?;
        writeln!(f, "snapshots  {snapshots} of all accounts, at a timestamp")?;
        writeln!(f, "found      {found:?}")
    }
}

impl Bank {
    fn store(&self) -> Arc<Store> {
        self.store.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::SeqCst) + 1
    }

    async fn open_accounts(&self) -> anyhow::Result<()> {
        let store = self.store();
        let writes: Vec<_> = (0..ACCOUNTS).map(|account| (account, FIRST_BALANCE)).collect();
        let transaction = store.begin()?;
        let seen = transaction.seqnum();
        if !self.commit(&store, transaction, seen, Vec::new(), &writes).await? {
            bail!("the accounts are not opened");
        }
        Ok(())
    }

    /// Moves money and audits, until it is over.
    async fn client(self: Arc<Self>) -> anyhow::Result<()> {
        while !self.is_over.load(Ordering::SeqCst) {
            let store = self.store();
            let done = if fastrand::u32(..8) == 0 {
                self.audit(&store).await
            } else {
                self.transfer(&store).await
            };
            if !self.accepted(done)? {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        Ok(())
    }

    /// Returns whether this has succeeded. It may fail without an end of the run if another owner
    /// has opened the store, so that the caller goes on with that one. With a planted clock, it may
    /// also fail because the oracle is below the store.
    fn accepted(&self, done: anyhow::Result<bool>) -> anyhow::Result<bool> {
        let Err(error) = done else { return done };
        let is_below = matches!(error.downcast_ref(), Some(StoreError::OracleBelow { .. }));
        if is_below && self.oracle.plant == Some(Plant::LocalClock) {
            self.aborted.fetch_add(1, Ordering::SeqCst);
            return Ok(false);
        }
        if is_closed(&error) { Ok(false) } else { Err(error) }
    }

    /// Lets an owner open the store, write, and pause. Meanwhile the next owner opens the store and
    /// commits. Then the paused one goes on, and audits. Returns whether this audit was confirmed,
    /// which must not happen: it does not see the commit.
    async fn change_owner(&self) -> anyhow::Result<bool> {
        let open = || Store::open(self.objects.clone(), self.oracle.clone());
        let paused = open().await?;
        self.accepted(self.audit(&paused).await)?;
        let next = Arc::new(open().await?);
        *self.store.write().unwrap_or_else(PoisonError::into_inner) = next.clone();
        for _ in 0..TRANSFER_ATTEMPTS_MAX {
            if self.accepted(self.transfer(&next).await)? {
                return self.accepted(self.audit(&paused).await);
            }
        }
        bail!("no transfer of {TRANSFER_ATTEMPTS_MAX} commits with the next owner");
    }

    /// Moves money. Returns whether this is durable.
    async fn transfer(&self, store: &Store) -> anyhow::Result<bool> {
        let from = fastrand::u64(..ACCOUNTS);
        let to = (from + 1 + fastrand::u64(..ACCOUNTS - 1)) % ACCOUNTS;
        let transaction = store.begin()?;
        let seen = transaction.seqnum();
        let mut reads = Vec::new();
        for account in [from, to] {
            let row = transaction.get_key_value(key(account)).await?;
            reads.push(read(account, row)?);
        }
        let amount = fastrand::i64(1..=10).min(reads[0].balance);
        let writes = [(from, reads[0].balance - amount), (to, reads[1].balance + amount)];
        self.commit(store, transaction, seen, reads, &writes).await
    }

    /// Commits and records a transaction. Returns whether it is durable.
    async fn commit(
        &self,
        store: &Store,
        transaction: slatedb::DbTransaction,
        seen: u64,
        reads: Vec<Read>,
        writes: &[(u64, i64)],
    ) -> anyhow::Result<bool> {
        let id = self.id();
        let rows: Vec<_> = writes
            .iter()
            .map(|(account, balance)| {
                let value = [balance.to_be_bytes(), id.to_be_bytes()].concat();
                (key(*account).to_vec(), value)
            })
            .collect();
        for (key, value) in &rows {
            transaction.put(key, value)?;
        }
        let (at, failure) = match store.commit(transaction, &rows).await? {
            Ended::Committed(at) => (at, None),
            Ended::Unknown(at, error) => (at, Some(error)),
            Ended::Aborted => {
                self.aborted.fetch_add(1, Ordering::SeqCst);
                return Ok(false);
            }
        };
        let is_durable = failure.is_none();
        let writes = writes.iter().map(|(account, _)| *account).collect();
        lock(&self.records).push(Record { id, at, seen, reads, writes, is_durable });
        failure.map_or(Ok(true), |error| Err(error.into()))
    }

    /// Reads all accounts in a snapshot at a timestamp. Returns whether the snapshot is confirmed.
    async fn audit(&self, store: &Store) -> anyhow::Result<bool> {
        let (at, snapshot) = store.snapshot().await?;
        let mut reads = Vec::new();
        for account in 0..ACCOUNTS {
            reads.push(read(account, snapshot.get_key_value(key(account)).await?)?);
        }
        if self.oracle.plant != Some(Plant::NoConfirm) {
            store.confirm().await?;
        }
        let (id, seen) = (self.id(), snapshot.seq());
        let record = Record { id, at, seen, reads, writes: Vec::new(), is_durable: true };
        lock(&self.records).push(record);
        Ok(true)
    }
}

fn key(account: u64) -> [u8; 8] {
    account.to_be_bytes()
}

fn read(account: u64, row: Option<KeyValue>) -> anyhow::Result<Read> {
    let row = row.with_context(|| format!("account {account} is missing"))?;
    let ([balance, writer], []) = row.value.as_chunks::<8>() else {
        bail!("account {account} has a value of {} bytes", row.value.len());
    };
    let (balance, writer) = (i64::from_be_bytes(*balance), u64::from_be_bytes(*writer));
    Ok(Read { account, balance, writer, seq: row.seq })
}

fn is_closed(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<slatedb::Error>());
    causes.any(|cause| matches!(cause.kind(), ErrorKind::Closed(_)))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Number of accounts, and the balance of each at the beginning.
const ACCOUNTS: u64 = 16;
const FIRST_BALANCE: i64 = 100;
/// Number of clients at the same time.
const CLIENTS: usize = 8;
/// Pause between two killed leaders.
const KILL_EVERY: Duration = Duration::from_millis(1500);
/// How long an owner has the store.
const OWNER_EVERY: Duration = Duration::from_millis(1200);
/// At most this many transfers to see the next owner commit. Other clients may be in their way.
const TRANSFER_ATTEMPTS_MAX: u32 = 1000;
/// The longest run.
const SECONDS_MAX: u64 = 3600;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_planted_mistake_is_found() {
        for plant in Plant::ALL {
            let report = run(Duration::from_secs(2), Some(plant)).expect("a run");
            println!("{plant:?}\n{report}");
            assert!(report.found.contains_key(&plant.finding()), "{plant:?}: {report}");
            assert!(report.committed > 0 && report.snapshots > 0, "{plant:?}: {report}");
        }
    }

    #[test]
    fn the_money_is_kept_under_kills() {
        let report = run(Duration::from_secs(4), None).expect("a run");
        println!("{report}");
        assert_eq!(report.found, BTreeMap::new(), "{report}");
        // Otherwise the run would have shown nothing.
        let Report { kills, refused, committed, snapshots, .. } = report;
        assert!(kills > 0 && refused > 0 && committed > 0 && snapshots > 0, "{report}");
    }
}
