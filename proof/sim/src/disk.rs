//! A simulated disk. Writes become durable one by one, in order, when the world says so. A crash
//! keeps some of the oldest unsynced writes and loses the rest. In some runs the real database
//! writes and recovers ([`DataDirectory`]). The model then holds the content that the database must
//! not lose.

use std::collections::VecDeque;

use epicepoch_core::durable::{HardState, Record, Restored, Write};
use epicepoch_core::positions::Positions;
use epicepoch_core::state::State;
use epicepoch_disk::model::entry;
use epicepoch_storage::DatabaseError;
use epicepoch_wire::bootstrap::Genesis;
use epicepoch_wire::raft_message::Configuration;
use epicepoch_wire::{DecodeError, LogIndex, NodeId, StoreId, StorePosition, Term};

use crate::database::DataDirectory;
use crate::parameters::MS;
use crate::plant::Plant;

/// One data directory.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "faults of a disk come together in any way")]
pub(crate) struct Disk {
    /// Whether the directory is empty. If so, `durable` is meaningless and no process runs.
    is_empty: bool,
    /// The content that a restart must read.
    durable: Restored,
    pending: VecDeque<Write>,
    /// How many of the oldest pending writes belong to the current transaction; 0 if there is none.
    under_way: usize,
    /// The production storage engine, in runs that have it.
    directory: Option<DataDirectory>,
    /// Content that a restart may read instead of `durable`: after a failed transaction or a power
    /// loss, the last writes may be on the disk or not.
    alternative: Option<Restored>,
    /// Whether a bit has been flipped since the last start.
    is_damaged: bool,
    /// A copy of the disk that an operator could restore by mistake.
    copy: Option<Image>,
    /// The content from before the roll-back; `None` if the disk is not rolled back.
    newest: Option<Image>,
    /// Whether a process was started on the rolled-back disk.
    was_started: bool,
    /// How long a write takes, nanoseconds.
    pub(crate) write_ns: u64,
    /// Whether the disk is stuck: it finishes no write.
    pub(crate) is_stuck: bool,
    /// Whether the next sync fails.
    pub(crate) is_failing: bool,
    /// Whether the disk has no space for a write.
    pub(crate) is_full: bool,
}

/// A copy of everything on a disk.
#[derive(Clone, Debug)]
struct Image {
    durable: Restored,
    alternative: Option<Restored>,
    bytes: Option<Vec<u8>>,
}

/// The outcome of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finished {
    /// No write was waiting.
    None,
    /// The writes up to this one are durable.
    Written(u64),
    /// The writes may be durable or not, so the process must end.
    Failed,
}

/// Why a process cannot start from a disk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// The storage has noticed damage and refuses to open.
    Damaged,
    /// The disk has no space for the recovery.
    Full,
    /// The disk holds a format that the node's version cannot read.
    Newer(DecodeError),
    /// The database lost or changed content. The text says how.
    Wrong(String),
}

impl Disk {
    /// The disk of a first member, or of a node that knows only its cluster.
    pub(crate) fn founded(genesis: &Genesis, is_member: bool) -> Self {
        let members = if is_member { genesis.members.clone() } else { vec![] };
        let voters = members.iter().map(|member| member.node).collect();
        let start = u64::from(is_member);
        let record = Record {
            index: LogIndex(start),
            term: Term(start),
            configuration: Configuration { voters, ..Configuration::default() },
            data: State::new(&Genesis { members, ..genesis.clone() }).encode(),
        };
        let hard_state = HardState { term: record.term, vote: NodeId(0), commit: record.index };
        Self {
            is_empty: false,
            durable: Restored {
                hard_state,
                record,
                entries: vec![],
                positions: Positions::default(),
            },
            pending: VecDeque::new(),
            under_way: 0,
            directory: None,
            alternative: None,
            is_damaged: false,
            copy: None,
            newest: None,
            was_started: false,
            write_ns: 0,
            is_stuck: false,
            is_failing: false,
            is_full: false,
        }
    }

    /// Empties the directory. The node waits until it gets its first record.
    pub(crate) const fn make_empty(&mut self) {
        self.is_empty = true;
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Writes the first record of an empty directory, as production does.
    pub(crate) fn found(&mut self, record: Record) {
        assert!(self.is_empty, "a directory is founded once");
        let hard_state = HardState { term: record.term, vote: NodeId(0), commit: record.index };
        self.durable =
            Restored { hard_state, record, entries: vec![], positions: Positions::default() };
        self.is_empty = false;
    }

    /// Switches to the production storage engine: it writes and recovers from now on.
    pub(crate) fn make_real(&mut self, node: NodeId, store: StoreId) {
        self.directory = Some(DataDirectory::new(node, store, &self.durable));
    }

    pub(crate) const fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    pub(crate) const fn is_real(&self) -> bool {
        self.directory.is_some()
    }

    /// Adds `entries` committed empty entries, so that the log is soon compacted.
    pub(crate) fn fill(&mut self, entries: u64) {
        let Restored { hard_state, record, entries: log, .. } = &mut self.durable;
        let indices = record.index.0 + 1..=record.index.0 + entries;
        log.extend(indices.map(|index| entry(index, record.term.0, 0)));
        hard_state.commit = LogIndex(record.index.0 + entries);
    }

    /// The content that a restart must read.
    pub(crate) const fn durable(&self) -> &Restored {
        &self.durable
    }

    pub(crate) fn submit(&mut self, write: Write) {
        self.pending.push_back(write);
    }

    pub(crate) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Begins a transaction of all waiting writes. Returns `false` if no write waits or a
    /// transaction is under way: as in production, a disk runs one transaction at a time.
    pub(crate) fn begin(&mut self) -> bool {
        let may = self.under_way == 0 && !self.pending.is_empty();
        if may {
            self.under_way = self.pending.len();
        }
        may
    }

    /// Finishes the transaction under way. With `is_all` the transaction also includes the writes
    /// that were queued after it began.
    pub(crate) fn finish(&mut self, is_all: bool) -> Finished {
        let count = if is_all { self.pending.len() } else { self.under_way };
        self.under_way = 0;
        let writes: Vec<Write> = self.pending.drain(..count).collect();
        let Some(last) = writes.last() else { return Finished::None };
        let is_failing = std::mem::take(&mut self.is_failing);
        let is_written = match &mut self.directory {
            Some(directory) => {
                directory.fail_syncs(is_failing);
                directory.fill_up(self.is_full);
                directory.write(&writes).is_ok()
            }
            None => !is_failing && !self.is_full,
        };
        if !is_written {
            // In the model a failed transaction is lost. The real database may have stored it or
            // not, and only a restart shows which.
            self.alternative = self.is_real().then(|| self.after(&writes));
            // No pending write may be written after a failed one.
            self.pending.clear();
            return Finished::Failed;
        }
        let number = last.number;
        for write in &writes {
            self.durable.apply(write);
        }
        Finished::Written(number)
    }

    /// The process crashes. The `kept` oldest unsynced writes had reached the disk, but were not
    /// acknowledged. The real database loses power while it writes these. Returns whether a write
    /// was torn.
    pub(crate) fn crash(&mut self, kept: usize, random: &mut fastrand::Rng) -> bool {
        self.under_way = 0;
        let kept: Vec<Write> = self.pending.drain(..).take(kept).collect();
        let after = self.after(&kept);
        let Some(directory) = &mut self.directory else {
            self.durable = after;
            return false;
        };
        // After a failed transaction the process begins no other transaction.
        let writes = if self.alternative.is_some() { &[][..] } else { &kept };
        let unsynced = directory.crash(writes, random);
        if self.alternative.is_none() {
            self.alternative = Some(after);
        }
        unsynced.is_torn()
    }

    /// The content once these writes are durable.
    fn after(&self, writes: &[Write]) -> Restored {
        let mut after = self.durable.clone();
        for write in writes {
            after.apply(write);
        }
        after
    }

    /// Flips a bit while no process runs.
    pub(crate) fn rot(&mut self, random: &mut fastrand::Rng) {
        self.is_damaged = true;
        if let Some(directory) = &mut self.directory {
            directory.flip(random);
        }
    }

    fn image(&self) -> Image {
        Image {
            durable: self.durable.clone(),
            alternative: self.alternative.clone(),
            bytes: self.directory.as_ref().map(DataDirectory::bytes),
        }
    }

    fn put(&mut self, image: Image) {
        (self.durable, self.alternative) = (image.durable, image.alternative);
        // The content that is put back is undamaged, because only undamaged content is copied.
        self.is_damaged = false;
        if let (Some(directory), Some(bytes)) = (&mut self.directory, image.bytes) {
            directory.put_back(bytes);
        }
    }

    /// Copies the disk, unless it is empty, or its content is damaged, uncertain or rolled back.
    pub(crate) fn copy(&mut self) {
        if !self.is_empty
            && !self.is_damaged
            && self.alternative.is_none()
            && !self.is_rolled_back()
        {
            self.copy = Some(self.image());
        }
    }

    /// The position at which the copy was taken.
    pub(crate) fn copied_at(&self) -> Option<StorePosition> {
        self.copy.as_ref().map(|copy| copy.durable.positions.own)
    }

    /// Rolls the disk back: replaces its content by the copy, while no process runs.
    pub(crate) fn rolled_back(&mut self) {
        self.newest = Some(self.image());
        self.was_started = false;
        let copy = self.copy.clone().expect("a copy was taken");
        self.put(copy);
    }

    pub(crate) const fn is_rolled_back(&self) -> bool {
        self.newest.is_some()
    }

    /// Undoes the roll-back, while no process runs.
    pub(crate) fn put_back(&mut self) {
        if let Some(newest) = self.newest.take() {
            self.put(newest);
        }
    }

    /// Prepares a disk for a start. On a rolled-back disk a process starts once and is refused.
    /// Before the next start the newest directory is put back. Otherwise many starts could make so
    /// many writes that peers no longer notice the roll-back.
    pub(crate) fn about_to_start(&mut self) {
        if std::mem::replace(&mut self.was_started, true) {
            self.put_back();
        }
    }

    /// Whether the disk has no fault.
    pub(crate) fn is_sound(&self) -> bool {
        let is_broken = self.is_stuck || self.is_failing || self.is_full || self.is_damaged;
        self.write_ns == WRITE_NS && !is_broken
    }

    /// Repairs the disk and restores damaged content, unless the damage was found harmless. Returns
    /// whether the disk was damaged.
    pub(crate) fn repair(&mut self) -> bool {
        self.write_ns = WRITE_NS;
        (self.is_stuck, self.is_failing, self.is_full) = (false, false, false);
        let is_damaged = std::mem::take(&mut self.is_damaged);
        if let Some(directory) = &mut self.directory
            && is_damaged
        {
            directory.repair();
        }
        is_damaged
    }

    /// Reads the disk, as a process does when it starts.
    pub(crate) fn restore(&mut self, plant: Option<Plant>) -> Result<Restored, Unreadable> {
        if plant == Some(Plant::TermFromLog) {
            let Restored { hard_state, record, entries, .. } = &mut self.durable;
            let last = entries.last().map_or(record.term, |entry| entry.term);
            *hard_state = HardState { term: last, vote: NodeId(0), ..*hard_state };
        }
        if plant == Some(Plant::NoChecksum) && std::mem::take(&mut self.is_damaged) {
            self.rot_unnoticed();
        }
        if let Some(directory) = &mut self.directory {
            directory.fill_up(self.is_full);
            directory.lie(plant == Some(Plant::RealLyingDisk));
            let found = directory.open();
            return self.compare(found);
        }
        if self.is_damaged { Err(Unreadable::Damaged) } else { Ok(self.durable.clone()) }
    }

    /// Closes the disk after a process has read it, written nothing, and ended by itself.
    pub(crate) fn close(&mut self) {
        if let Some(directory) = &mut self.directory {
            directory.close();
        }
    }

    /// Compares the content that the real database has read with the expected content.
    fn compare(&mut self, found: Result<Restored, DatabaseError>) -> Result<Restored, Unreadable> {
        let alternative = self.alternative.take();
        match found {
            Ok(found) if found == self.durable || Some(&found) == alternative.as_ref() => {
                self.is_damaged = false;
                self.durable = found.clone();
                Ok(found)
            }
            Ok(found) => {
                let durable = &self.durable;
                Err(Unreadable::Wrong(format!("{found:?} is read where {durable:?} was written")))
            }
            Err(_) if self.is_full || self.is_damaged => {
                self.alternative = alternative;
                Err(if self.is_damaged { Unreadable::Damaged } else { Unreadable::Full })
            }
            Err(error) => Err(Unreadable::Wrong(format!("a disk without damage: {error}"))),
        }
    }

    /// For a planted bug: storage without a checksum reads a flipped bit in the last entry, or in
    /// the term if there is no entry.
    fn rot_unnoticed(&mut self) {
        let Restored { hard_state, entries, .. } = &mut self.durable;
        let data = entries.last_mut().map(|entry| &mut entry.data);
        match data.filter(|data| !data.is_empty()) {
            Some(data) => *data.last_mut().expect("it is not empty") ^= 1,
            None => hard_state.term.0 ^= 1,
        }
    }
}

/// How long a healthy disk takes for a write, nanoseconds.
pub(crate) const WRITE_NS: u64 = MS;

#[cfg(test)]
mod tests {
    use epicepoch_wire::bootstrap::Member;
    use epicepoch_wire::{ClusterId, Epoch, HistoryId};
    use fastrand::Rng;

    use super::*;

    /// Seeds for each kind of disk, the model and the real database. Each seed draws different
    /// damage.
    const DAMAGES: u64 = 8;

    /// Makes the disk of a cluster's only member, whose process runs.
    fn started(is_real: bool) -> Disk {
        let (node, store) = (NodeId(1), StoreId(7));
        let (raft_addr, client_addr) = ("a:1".to_owned(), "a:2".to_owned());
        let genesis = Genesis {
            cluster: ClusterId(1),
            history: HistoryId(1),
            members: vec![Member { node, store, raft_addr, client_addr }],
            floor: Epoch(0),
            removed: vec![],
        };
        let mut disk = Disk::founded(&genesis, true);
        if is_real {
            disk.make_real(node, store);
        }
        disk.restore(None).expect("a sound disk");
        disk
    }

    /// Appends an entry.
    fn write(disk: &mut Disk, number: u64) {
        let entry = entry(disk.durable().record.index.0 + number, 1, 8);
        let position = StorePosition(number);
        disk.submit(Write { number, position, entries: vec![entry], ..Write::default() });
        assert!(disk.begin());
        assert_eq!(disk.finish(false), Finished::Written(number));
    }

    /// Makes a disk that was rolled back and then damaged. Also returns its content before the
    /// roll-back.
    fn rolled_back_and_rotten(is_real: bool, random: &mut Rng) -> (Disk, Restored) {
        let mut disk = started(is_real);
        write(&mut disk, 1);
        disk.copy();
        write(&mut disk, 2);
        disk.close();
        let newest = disk.durable().clone();
        disk.rolled_back();
        assert_eq!(disk.durable().entries[..], newest.entries[..1]);
        disk.rot(random);
        (disk, newest)
    }

    #[test]
    fn a_restored_disk_is_whole_after_any_damage_meanwhile() {
        for (seed, is_real) in (0..DAMAGES).flat_map(|seed| [(seed, false), (seed, true)]) {
            let (mut disk, newest) = rolled_back_and_rotten(is_real, &mut Rng::with_seed(seed));
            disk.put_back();
            assert!(!disk.repair(), "what was damaged is gone; seed {seed}, real: {is_real}");
            assert_eq!(disk.restore(None), Ok(newest), "seed {seed}, real: {is_real}");
        }
    }

    #[test]
    fn a_restored_and_damaged_disk_is_repaired_to_the_restored_content() {
        for (seed, is_real) in (0..DAMAGES).flat_map(|seed| [(seed, false), (seed, true)]) {
            let mut random = Rng::with_seed(seed);
            let (mut disk, newest) = rolled_back_and_rotten(is_real, &mut random);
            disk.put_back();
            disk.rot(&mut random);
            assert!(disk.repair(), "it is damaged; seed {seed}, real: {is_real}");
            assert_eq!(disk.restore(None), Ok(newest), "seed {seed}, real: {is_real}");
        }
    }

    #[test]
    fn a_disk_whose_process_has_ended_by_itself_is_set_back_and_put_back() {
        let mut disk = started(true);
        disk.copy();
        disk.close();
        disk.rolled_back();
        disk.restore(None).expect("a sound copy");
        disk.close();
        let newest = disk.durable().clone();
        disk.put_back();
        assert_eq!(disk.restore(None), Ok(newest));
    }

    #[test]
    fn a_disk_writes_one_transaction_at_a_time_and_the_next_is_all_that_waits() {
        let mut disk = started(false);
        let write = |number| Write { number, ..Write::default() };
        assert!(!disk.begin(), "nothing waits");
        disk.submit(write(1));
        assert!(disk.begin());
        disk.submit(write(2));
        disk.submit(write(3));
        assert!(!disk.begin(), "one is under way");
        assert_eq!(disk.finish(false), Finished::Written(1));
        assert!(disk.begin());
        disk.submit(write(4));
        assert_eq!(disk.finish(false), Finished::Written(3), "both that had waited");
        assert!(disk.begin());
        disk.submit(write(5));
        assert_eq!(disk.finish(true), Finished::Written(5), "and what came in time");
        assert!(!disk.begin());
    }
}
