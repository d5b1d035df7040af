//! The production storage engine on a disk in memory, which some runs use: the real tables, the
//! real two-phase commits of `redb` and the real recovery. A crash cuts the power in the middle of
//! a transaction. Each unsynced sector may then be on the disk or not.

use epicepoch_core::durable::{Restored, Write};
use epicepoch_disk::simulated_disk::{SimulatedDisk, Unsynced};
use epicepoch_storage::{Database, DatabaseError, Identity};
use epicepoch_wire::{NodeId, StoreId};
use redb::StorageBackend as _;

/// A member's data directory, open while its process runs.
#[derive(Debug)]
pub(crate) struct DataDirectory {
    disk: SimulatedDisk,
    database: Option<Database>,
    /// The bytes as they were before a bit was flipped.
    clean: Option<Vec<u8>>,
}

impl DataDirectory {
    /// Makes a data directory with the content of the model.
    pub(crate) fn new(node: NodeId, store: StoreId, restored: &Restored) -> Self {
        let disk = SimulatedDisk::default();
        let identity = Identity::new(node, store, "simulated");
        Database::create(disk.clone(), &identity).expect("a disk without faults");
        let (mut database, _, nothing) =
            Database::open(disk.clone()).expect("a disk without faults");
        assert!(nothing.is_none(), "a new directory holds nothing");
        database.found(&restored.record).expect("a disk without faults");
        let log = Write {
            number: 1,
            hard_state: Some(restored.hard_state),
            entries: restored.entries.clone(),
            ..Write::default()
        };
        database.write(&[log]).expect("a disk without faults");
        Self { disk, database: None, clean: None }
    }

    /// Opens the directory with the production recovery. Fails if the disk is full.
    pub(crate) fn open(&mut self) -> Result<Restored, DatabaseError> {
        let (database, _, restored) = Database::open(self.disk.clone())?;
        self.database = Some(database);
        self.clean = None;
        Ok(restored.expect("a member's directory is founded"))
    }

    /// Closes the database, as when the process ends cleanly.
    pub(crate) fn close(&mut self) {
        self.database = None;
    }

    /// Commits writes in one transaction. After an error the directory must be opened again before
    /// the next write.
    pub(crate) fn write(&mut self, writes: &[Write]) -> Result<(), redb::Error> {
        self.database.as_mut().expect("open while the process runs").write(writes)
    }

    /// Crashes the process, in the middle of a transaction of `writes` if there are any.
    pub(crate) fn crash(&mut self, writes: &[Write], random: &mut fastrand::Rng) -> Unsynced {
        if !writes.is_empty() && self.database.is_some() {
            self.disk.fail_after(random.u64(..COMMIT_OPERATIONS));
            // Whether the transaction was committed is known only after a restart.
            let _unknown = self.write(writes);
        }
        // A crash does not do the work of a clean end, so no write reaches the disk any more.
        self.disk.fail_after(0);
        self.database = None;
        let (disk, unsynced) = self.disk.lose_power(random);
        self.disk = disk;
        unsynced
    }

    /// Flips a bit while no process runs.
    pub(crate) fn flip(&mut self, random: &mut fastrand::Rng) {
        assert!(self.database.is_none(), "no process runs");
        self.clean.get_or_insert_with(|| self.disk.bytes());
        let bits = self.disk.len().expect("it is in memory") as usize * 8;
        let among = if random.bool() { bits } else { HEADER_BITS };
        let bit = match random.usize(..among) {
            // The bit that selects the newest commit is the only one without a checksum, so it is
            // never flipped. `docs/safety.md` assumes that it is right.
            NEWEST_COMMIT_BIT => NEWEST_COMMIT_BIT + 8,
            bit => bit,
        };
        self.disk.flip(bit);
    }

    /// Restores the bytes from before the damage, if there are any.
    pub(crate) fn repair(&mut self) {
        if let Some(bytes) = self.clean.take() {
            self.disk = SimulatedDisk::with_bytes(bytes);
        }
    }

    pub(crate) fn fill_up(&self, is_full: bool) {
        self.disk.fill_up(is_full);
    }

    pub(crate) fn fail_syncs(&self, is_failing: bool) {
        self.disk.fail_syncs(is_failing);
    }

    /// Makes the disk lie, for a planted bug: it reports a sync as done, but the data is not
    /// durable.
    pub(crate) fn lie(&self, is_lying: bool) {
        self.disk.lie(is_lying);
    }

    /// A copy of the disk's bytes. [`Self::put_back`] writes such a copy to the disk.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.disk.bytes()
    }

    pub(crate) fn put_back(&mut self, bytes: Vec<u8>) {
        assert!(self.database.is_none(), "no process runs");
        self.disk = SimulatedDisk::with_bytes(bytes);
        // The damaged bytes have been replaced.
        self.clean = None;
    }
}

/// A small transaction makes at most this many writes and syncs. A crash is drawn among them.
const COMMIT_OPERATIONS: u64 = 40;
/// Size of the database header, in bits. Half of the flips are drawn from it, because most of the
/// damage that matters is there.
const HEADER_BITS: usize = 320 * 8;
const NEWEST_COMMIT_BIT: usize = 9 * 8;
