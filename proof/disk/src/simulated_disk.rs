//! A disk in memory that loses power. Of the writes since the last sync, any sectors may survive,
//! as with the cache of a real disk.

use std::io;
use std::sync::{Arc, Mutex};

use redb::StorageBackend;

/// The unit that a disk writes whole or not at all, bytes.
const SECTOR_LEN: usize = 512;

/// A disk in memory. Clones share the same disk.
#[derive(Clone, Debug, Default)]
pub struct SimulatedDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// The content while the power is on.
    live: Vec<u8>,
    /// The content that surely survives a power loss.
    durable: Vec<u8>,
    /// Changes that may survive a power loss, in order. Each is a new length, or bytes of one
    /// sector.
    unsynced: Vec<Change>,
    syncs: u64,
    /// Whether a sync reports success and makes nothing durable.
    lies: bool,
    /// How many more syncs, writes and changes of length succeed.
    operations_left: Option<u64>,
    /// Whether writes fail because the disk is full.
    is_full: bool,
    /// Whether a sync fails.
    is_failing: bool,
}

/// How many unsynced sectors survived a power loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsynced {
    /// Sectors that are on the disk.
    pub kept: usize,
    /// Sectors that are lost.
    pub lost: usize,
}

impl Unsynced {
    /// Whether the unsynced writes were torn: only a part of them survived.
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
    /// Makes every operation after this many fail, as if power were failing.
    pub fn fail_after(&self, operations: u64) {
        self.state.lock().unwrap().operations_left = Some(operations);
    }

    /// Sets whether the disk lies from now on: its syncs then report success and make nothing
    /// durable.
    pub fn lie(&self, lies: bool) {
        self.state.lock().unwrap().lies = lies;
    }

    /// Sets whether writes fail from now on, because the disk is full.
    pub fn fill_up(&self, is_full: bool) {
        self.state.lock().unwrap().is_full = is_full;
    }

    /// Sets whether every sync fails from now on. Unsynced content may survive or be lost.
    pub fn fail_syncs(&self, is_failing: bool) {
        self.state.lock().unwrap().is_failing = is_failing;
    }

    /// Flips one bit, durably.
    ///
    /// # Panics
    /// When the offset is beyond the disk's end.
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

    /// The bytes that a read returns while the power is on.
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

    /// The disk after a power loss.
    #[must_use]
    pub fn after_power_loss(&self, random: &mut fastrand::Rng) -> Self {
        self.lose_power(random).0
    }

    /// The disk after a power loss, and the fate of unsynced sectors.
    #[must_use]
    pub fn lose_power(&self, random: &mut fastrand::Rng) -> (Self, Unsynced) {
        let state = self.state.lock().unwrap();
        let mut bytes = state.durable.clone();
        let mut unsynced = Unsynced::default();
        // Sometimes all changes survive, sometimes none.
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
