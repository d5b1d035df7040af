//! A disk in memory that loses power. What was written since the last sync survives in part:
//! any of the writes, in sectors, as a real disk's cache would have it.

use std::io;
use std::sync::{Arc, Mutex};

use redb::StorageBackend;

/// What a disk writes whole or not at all, bytes.
const SECTOR_LEN: usize = 512;

/// Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct SimulatedDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// What is read back while the power is on.
    live: Vec<u8>,
    /// What survives for certain.
    durable: Vec<u8>,
    /// What may survive, in order: lengths, and sectors or parts of one.
    unsynced: Vec<Change>,
    syncs: u64,
    /// Whether a sync makes nothing durable and says that it did.
    lies: bool,
    /// How many more syncs, writes and changes of length succeed.
    operations_left: Option<u64>,
    /// Whether there is no room for what is written.
    is_full: bool,
    /// Whether a sync fails.
    is_failing: bool,
}

/// What became of the sectors that were not synced when the power went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsynced {
    /// Are on the disk all the same.
    pub kept: usize,
    /// Are not.
    pub lost: usize,
}

impl Unsynced {
    /// Whether a write was torn: some of it is there, some is not.
    #[must_use]
    pub const fn is_torn(self) -> bool {
        self.kept > 0 && self.lost > 0
    }
}

#[derive(Debug)]
enum Change {
    Length(usize),
    Bytes(usize, Vec<u8>),
}

impl SimulatedDisk {
    /// Every operation after this many fails: the power is going.
    pub fn fail_after(&self, operations: u64) {
        self.state.lock().unwrap().operations_left = Some(operations);
    }

    /// From now on a sync makes nothing durable, and says that it did; or no longer.
    pub fn lie(&self, lies: bool) {
        self.state.lock().unwrap().lies = lies;
    }

    /// From now on there is no room for what is written; or there is again.
    pub fn fill_up(&self, is_full: bool) {
        self.state.lock().unwrap().is_full = is_full;
    }

    /// From now on every sync fails, with what was to be synced neither here nor there; or no
    /// longer.
    pub fn fail_syncs(&self, is_failing: bool) {
        self.state.lock().unwrap().is_failing = is_failing;
    }

    /// Turns one bit over, as if it had always been so.
    ///
    /// # Panics
    /// When the disk is not so long.
    pub fn flip(&self, bit: usize) {
        let State { live, durable, unsynced, .. } = &mut *self.state.lock().unwrap();
        assert!(unsynced.is_empty(), "a bit rots while nothing is under way");
        for bytes in [live, durable] {
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// How many syncs there were.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.state.lock().unwrap().syncs
    }

    /// The bytes on the disk, as they are read while the power is on.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.state.lock().unwrap().live.clone()
    }

    /// A disk with these bytes on it.
    #[must_use]
    pub fn with_bytes(bytes: Vec<u8>) -> Self {
        let state = State { durable: bytes.clone(), live: bytes, ..State::default() };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// The disk as it is found when the power is back.
    #[must_use]
    pub fn after_power_loss(&self, random: &mut fastrand::Rng) -> Self {
        self.lose_power(random).0
    }

    /// The disk as it is found when the power is back, and what became of what was not synced.
    #[must_use]
    pub fn lose_power(&self, random: &mut fastrand::Rng) -> (Self, Unsynced) {
        let state = self.state.lock().unwrap();
        let mut bytes = state.durable.clone();
        let mut unsynced = Unsynced::default();
        // Sometimes all of it survives, sometimes nothing does.
        let survive = random.choice([0.0, 0.1, 0.5, 0.9, 1.0]).unwrap();
        for change in &state.unsynced {
            if random.f64() < survive {
                change.apply(&mut bytes);
                unsynced.kept += 1;
            } else {
                unsynced.lost += 1;
            }
        }
        (Self::with_bytes(bytes), unsynced)
    }
}

impl State {
    fn spend(&mut self) -> io::Result<()> {
        match &mut self.operations_left {
            Some(0) => Err(io::Error::other("the power is gone")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn check_room(&self) -> io::Result<()> {
        if self.is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.live);
        self.unsynced.push(change);
    }
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Length(length) => bytes.resize(*length, 0),
            Self::Bytes(at, data) => {
                let end = at + data.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[*at..end].copy_from_slice(data);
            }
        }
    }
}

impl StorageBackend for SimulatedDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.lock().unwrap().live.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state.lock().unwrap();
        let offset = offset as usize;
        let bytes = state.live.get(offset..offset + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        state.spend()?;
        state.check_room()?;
        state.change(Change::Length(len as usize));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        state.spend()?;
        state.syncs += 1;
        if state.is_failing {
            return Err(io::Error::other("the sync failed"));
        }
        if state.lies {
            return Ok(());
        }
        let State { durable, unsynced, .. } = &mut *state;
        for change in unsynced.drain(..) {
            change.apply(durable);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        state.spend()?;
        state.check_room()?;
        let mut at = offset as usize;
        let mut rest = data;
        while !rest.is_empty() {
            let length = rest.len().min(SECTOR_LEN - at % SECTOR_LEN);
            let (sector, more) = rest.split_at(length);
            state.change(Change::Bytes(at, sector.to_vec()));
            at += length;
            rest = more;
        }
        Ok(())
    }
}
