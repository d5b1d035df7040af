//! The storage thread. It commits all waiting writes in one transaction and then reports the
//! commit. It never acknowledges a write before the sync. It never splits a write, and never
//! retries a failed one. It ends at the first failure.
//!
//! # Group commit
//! Writes that arrive during a commit share the next commit. So a write is durable after two
//! commits at most, under any load.

use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use epicepoch_core::durable::Write;
use epicepoch_storage::{Database, IntervalsWrite};

use super::directory::Directory;
use super::{SubmitError, WriteError};
use crate::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// At most this many writes wait. The core never has this many outstanding writes: a leader with
/// many unwritten steps loses leadership long before.
pub const QUEUE_LEN_MAX: usize = 1024;
/// A shutdown waits at most this long for the disk, milliseconds.
pub const SHUTDOWN_MS_MAX: u64 = 2000;

/// A report of the storage thread, which passes it to `completed`.
#[derive(Debug)]
pub enum Completion {
    /// Every write up to and including `number` is durable.
    Written {
        /// The [`Write::number`] of the last durable write.
        number: u64,
        /// Duration of the transaction, from its start to the end of its last sync.
        duration: Duration,
    },
    /// The mark of interval mode is durable (S23).
    Marked {
        /// The mark, Unix nanoseconds.
        mark_ns: u64,
    },
    /// It is durable that this node has stopped giving interval timestamps (S26).
    IntervalsClosed {
        /// The change of the mode for which it has stopped.
        change: u64,
    },
    /// The disk failed. Writes after the last [`Completion::Written`] may be durable or not. The
    /// thread ends, and the process must end. This is the thread's last report.
    Failed(WriteError),
}

/// A handle to the storage thread. Dropping it has the same effect as [`WriterHandle::shutdown`].
#[derive(Debug)]
pub struct WriterHandle {
    queue: Arc<Queue>,
    /// The thread closes this channel after it has released the directory.
    ended: Receiver<()>,
    thread: Option<thread::JoinHandle<()>>,
}

impl WriterHandle {
    pub(super) fn start(
        database: Database,
        directory: Directory,
        completed: impl Fn(Completion) + Send + 'static,
    ) -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let (end, ended) = mpsc::channel();
        let taken = Arc::clone(&queue);
        let thread = thread::Builder::new().name("storage".into()).spawn(move || {
            run(&taken, database, directory, completed, end);
        })?;
        Ok(Self { queue, ended, thread: Some(thread) })
    }

    /// Queues a write and returns at once.
    ///
    /// # Errors
    /// When [`QUEUE_LEN_MAX`] writes wait, or when the thread has ended.
    pub fn submit(&self, write: Write) -> Result<(), SubmitError> {
        self.queue.push(write)
    }

    /// Queues it that this node has stopped giving interval timestamps for a change of the mode, and
    /// returns at once. [`Completion::IntervalsClosed`] reports it. Does nothing when the thread has
    /// ended.
    pub fn close_intervals(&self, change: u64) {
        self.queue.change(|intervals| intervals.closed = Some(change));
    }

    /// A handle that queues marks of interval mode.
    #[must_use]
    pub fn marks(&self) -> MarkWriter {
        MarkWriter { queue: Arc::clone(&self.queue) }
    }

    /// Commits the writes that wait, closes the directory and unlocks it. Returns whether the
    /// thread ended within [`SHUTDOWN_MS_MAX`]. If not, the disk hangs. The thread then continues
    /// alone and still reports its commits, but it does not keep the process alive.
    #[must_use]
    pub fn shutdown(mut self) -> bool {
        self.end()
    }

    fn end(&mut self) -> bool {
        let Some(thread) = self.thread.take() else {
            return true;
        };
        self.queue.close();
        match self.ended.recv_timeout(Duration::from_millis(SHUTDOWN_MS_MAX)) {
            Err(RecvTimeoutError::Timeout) => false,
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                // A panic of the thread was already reported as a completion.
                let _ = thread.join();
                true
            }
        }
    }
}

/// Queues marks of interval mode. Only the last one that waits is written.
#[derive(Clone, Debug)]
pub struct MarkWriter {
    queue: Arc<Queue>,
}

impl MarkWriter {
    /// Queues a mark, Unix nanoseconds, and returns at once. [`Completion::Marked`] reports it. Does
    /// nothing when the thread has ended.
    pub fn submit(&self, mark_ns: u64) {
        self.queue.change(|intervals| intervals.mark_ns = Some(mark_ns));
    }
}

impl Drop for WriterHandle {
    fn drop(&mut self) {
        self.end();
    }
}

/// The body of the storage thread: runs from the start of the thread to its end.
fn run(
    queue: &Queue,
    mut database: Database,
    directory: Directory,
    completed: impl Fn(Completion),
    end: Sender<()>,
) {
    let outcome =
        catch_unwind(AssertUnwindSafe(|| write_until_closed(queue, &mut database, &completed)));
    // The queue closes before the report, so that the receiver of the report cannot submit more
    // writes.
    queue.close();
    let panic = match outcome {
        Ok(Ok(())) => None,
        Ok(Err(error)) => {
            completed(Completion::Failed(WriteError::disk(error)));
            None
        }
        Err(panic) => {
            completed(Completion::Failed(WriteError::Panicked));
            Some(panic)
        }
    };
    drop(database);
    drop(directory);
    drop(end);
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

fn write_until_closed(
    queue: &Queue,
    database: &mut Database,
    completed: &impl Fn(Completion),
) -> Result<(), redb::Error> {
    let mut number = 0;
    while let Some((writes, intervals)) = queue.take() {
        for write in &writes {
            assert!(write.number > number, "write {} is out of order", write.number);
            number = write.number;
        }
        let start = Instant::now();
        database.write_with(&writes, intervals)?;
        if !writes.is_empty() {
            completed(Completion::Written { number, duration: start.elapsed() });
        }
        if let Some(mark_ns) = intervals.mark_ns {
            completed(Completion::Marked { mark_ns });
        }
        if let Some(change) = intervals.closed {
            completed(Completion::IntervalsClosed { change });
        }
    }
    Ok(())
}

/// The writes that wait, at most [`QUEUE_LEN_MAX`].
#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    writes: Vec<Write>,
    /// What is to be written of interval mode.
    intervals: IntervalsWrite,
    closed: bool,
}

impl Queue {
    fn push(&self, write: Write) -> Result<(), SubmitError> {
        let mut waiting = self.lock();
        if waiting.closed {
            return Err(SubmitError::Stopped);
        }
        if waiting.writes.len() >= QUEUE_LEN_MAX {
            return Err(SubmitError::Full(Box::new(write)));
        }
        waiting.writes.push(write);
        drop(waiting);
        self.changed.notify_one();
        Ok(())
    }

    fn change(&self, change: impl FnOnce(&mut IntervalsWrite)) {
        let mut waiting = self.lock();
        if waiting.closed {
            return;
        }
        change(&mut waiting.intervals);
        drop(waiting);
        self.changed.notify_one();
    }

    /// Waits for writes or something of interval mode, and returns all. Returns `None` when the queue is
    /// closed and empty.
    fn take(&self) -> Option<(Vec<Write>, IntervalsWrite)> {
        let mut waiting = self.lock();
        while waiting.writes.is_empty() && waiting.intervals.is_empty() && !waiting.closed {
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        let writes = mem::take(&mut waiting.writes);
        let intervals = mem::take(&mut waiting.intervals);
        (!writes.is_empty() || !intervals.is_empty()).then_some((writes, intervals))
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// The lock cannot be poisoned in practice, because no code panics while it holds this lock.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// These tests inject faults, which only debug builds can.
#[cfg(all(test, debug_assertions))]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use epicepoch_core::durable::{HardState, Restored};
    use epicepoch_disk::model::{Model, entry, genesis};
    use epicepoch_wire::{LogIndex, NodeId, Term};
    use tempfile::TempDir;

    use super::super::{OpenError, Opened, Storage};
    use super::*;
    use crate::faults::Faults;

    const WAIT_MAX: Duration = Duration::from_secs(10);

    /// A member on a real disk. The file of its faults is in the parent of its data directory.
    struct Member {
        root: TempDir,
        faults: Faults,
    }

    impl Member {
        fn new() -> Self {
            let root = TempDir::new().unwrap();
            let faults = Faults::from_path(Some(root.path().join("faults"))).unwrap();
            Self { root, faults }
        }

        fn path(&self) -> PathBuf {
            self.root.path().join("data")
        }

        /// Switches a fault on, and waits until the faults are read again.
        fn fault(&self, line: &str) {
            let marker = format!("{line}\nwall_offset_ms={}", fastrand::i32(..));
            let offset: i64 = marker.rsplit('=').next().unwrap().parse().unwrap();
            fs::write(self.root.path().join("new"), marker).unwrap();
            fs::rename(self.root.path().join("new"), self.root.path().join("faults")).unwrap();
            let start = Instant::now();
            while self.faults.wall_offset_ns() != offset * 1_000_000 {
                assert!(start.elapsed() < WAIT_MAX);
                thread::yield_now();
            }
        }

        fn open(&self) -> Result<Opened, OpenError> {
            Storage::open(&self.path(), NodeId(1), "test", &self.faults)
        }

        fn start(&self) -> (WriterHandle, Receiver<Completion>) {
            let Opened { mut storage, restored, .. } = self.open().unwrap();
            if restored.is_none() {
                storage.found(&genesis()).unwrap();
            }
            let (sender, completions) = mpsc::channel();
            let completed = move |completion| drop(sender.send(completion));
            (storage.into_writer(completed).unwrap(), completions)
        }

        fn restored(&self) -> Restored {
            self.open().unwrap().restored.unwrap()
        }
    }

    fn write(number: u64) -> Write {
        let entries = vec![entry(number + 1, 1, 8)];
        Write { number, entries, ..Write::default() }
    }

    fn written(completion: Completion) -> u64 {
        match completion {
            Completion::Written { number, .. } => number,
            Completion::Marked { .. } | Completion::IntervalsClosed { .. } => {
                panic!("{completion:?}")
            }
            Completion::Failed(error) => panic!("{error}"),
        }
    }

    #[test]
    fn completed_writes_are_read_back() {
        let member = Member::new();
        let mut random = fastrand::Rng::with_seed(1);
        let mut model = Model::founded();
        for _run in 0..3 {
            let (writer, completions) = member.start();
            model.number = 0;
            for write in std::iter::repeat_with(|| model.batch(&mut random)).take(30).flatten() {
                writer.submit(write).unwrap();
            }
            assert!(writer.shutdown());
            assert_eq!(completions.into_iter().map(written).last(), Some(model.number));
            assert_eq!(member.restored(), model.restored);
        }
    }

    #[test]
    fn a_mark_is_reported_when_it_is_durable_and_the_last_one_before_the_end_counts() {
        let member = Member::new();
        let (writer, completions) = member.start();
        writer.marks().submit(900);
        let completion = completions.recv_timeout(WAIT_MAX).unwrap();
        assert!(matches!(completion, Completion::Marked { mark_ns: 900 }), "{completion:?}");
        writer.marks().submit(70);
        assert!(writer.shutdown());
        assert_eq!(member.open().unwrap().storage.intervals().mark_ns, 70);
    }

    #[test]
    fn that_a_node_has_stopped_is_reported_when_it_is_durable() {
        let member = Member::new();
        let (writer, completions) = member.start();
        writer.close_intervals(4);
        let completion = completions.recv_timeout(WAIT_MAX).unwrap();
        assert!(matches!(completion, Completion::IntervalsClosed { change: 4 }), "{completion:?}");
        assert!(writer.shutdown());
        assert_eq!(member.open().unwrap().storage.intervals().closed, 4);
    }

    #[test]
    fn writes_that_wait_share_one_commit() {
        let member = Member::new();
        let (writer, completions) = member.start();
        member.fault("fsync_hang=1");
        writer.submit(write(1)).unwrap();
        while !writer.queue.lock().writes.is_empty() {
            thread::yield_now();
        }
        for number in 2..=100 {
            writer.submit(write(number)).unwrap();
        }
        assert!(completions.try_recv().is_err(), "nothing is complete before its sync");
        member.fault("");
        assert_eq!(written(completions.recv_timeout(WAIT_MAX).unwrap()), 1);
        assert_eq!(written(completions.recv_timeout(WAIT_MAX).unwrap()), 100);
    }

    #[test]
    fn a_full_queue_refuses_at_once_and_gives_the_write_back() {
        let member = Member::new();
        let (writer, completions) = member.start();
        member.fault("fsync_hang=1");
        let mut number = 0;
        let refused = loop {
            number += 1;
            match writer.submit(write(number)) {
                Ok(()) => assert!(number <= 2 * QUEUE_LEN_MAX as u64),
                Err(SubmitError::Full(refused)) => break *refused,
                Err(SubmitError::Stopped) => panic!("stopped"),
            }
        };
        assert_eq!(refused, write(number));
        member.fault("");
        // One or two commits follow, depending on when the thread took the first writes.
        while written(completions.recv_timeout(WAIT_MAX).unwrap()) < number - 1 {}
        writer.submit(refused).unwrap();
        assert_eq!(written(completions.recv_timeout(WAIT_MAX).unwrap()), number);
    }

    #[test]
    fn a_failed_sync_is_reported_once_and_ends_the_thread() {
        let member = Member::new();
        let (writer, completions) = member.start();
        writer.submit(write(1)).unwrap();
        assert_eq!(written(completions.recv_timeout(WAIT_MAX).unwrap()), 1);
        member.fault("fsync_fail=1");
        writer.submit(write(2)).unwrap();
        let failed = completions.recv_timeout(WAIT_MAX).unwrap();
        assert!(matches!(failed, Completion::Failed(WriteError::Disk(_))), "{failed:?}");
        // The thread does not retry, even when the disk works again.
        member.fault("");
        assert!(matches!(writer.submit(write(2)), Err(SubmitError::Stopped)));
        assert!(writer.shutdown());
        assert_eq!(completions.into_iter().count(), 0);
        assert!(matches!(member.restored().entries.len(), 1 | 2));
    }

    #[test]
    fn a_broken_invariant_is_reported_once_and_nothing_is_written() {
        let member = Member::new();
        let (writer, completions) = member.start();
        let hard_state = HardState { term: Term(1), vote: NodeId(1), commit: LogIndex(9) };
        writer.submit(Write { hard_state: Some(hard_state), ..write(1) }).unwrap();
        let failed = completions.recv_timeout(WAIT_MAX).unwrap();
        assert!(matches!(failed, Completion::Failed(WriteError::Panicked)), "{failed:?}");
        assert!(writer.shutdown());
        assert_eq!(completions.into_iter().count(), 0);
        assert_eq!(member.restored(), Model::founded().restored);
    }

    #[test]
    fn a_hanging_disk_does_not_hold_up_a_shutdown() {
        let member = Member::new();
        let (writer, completions) = member.start();
        member.fault("fsync_hang=1");
        writer.submit(write(1)).unwrap();
        assert!(!writer.shutdown());
        // The disk hangs, so the storage thread still holds the lock of the directory.
        assert!(matches!(member.open(), Err(OpenError::Locked { .. })));
        member.fault("");
        assert_eq!(completions.into_iter().map(written).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn the_directory_is_free_after_a_shutdown() {
        let member = Member::new();
        let (writer, _completions) = member.start();
        assert!(matches!(member.open(), Err(OpenError::Locked { .. })));
        drop(writer);
        assert!(Path::new(&member.path()).is_dir());
        member.open().unwrap();
    }
}

#[cfg(all(test, feature = "loom"))]
mod interleavings {
    use loom::thread;

    use super::*;

    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Mistake {
        Nothing,
        NotifiedBeforePushed,
        ClosedInSilence,
        ClosedBeforeEmpty,
        LookedBeforeLocked,
        PushedWhenClosed,
    }

    fn numbered(number: u64) -> Write {
        Write { number, ..Write::default() }
    }

    /// [`Queue::push`] and [`Queue::close`], correct or with a mistake.
    fn push(queue: &Queue, number: u64, mistake: Mistake) -> bool {
        if mistake == Mistake::NotifiedBeforePushed {
            queue.changed.notify_one();
            queue.lock().writes.push(numbered(number));
            return true;
        }
        if mistake == Mistake::PushedWhenClosed {
            let is_closed = queue.lock().closed;
            queue.lock().writes.push(numbered(number));
            return !is_closed;
        }
        queue.push(numbered(number)).is_ok()
    }

    fn close(queue: &Queue, mistake: Mistake) {
        if mistake == Mistake::ClosedInSilence {
            queue.lock().closed = true;
        } else {
            queue.close();
        }
    }

    fn take(queue: &Queue, mistake: Mistake) -> Option<(Vec<Write>, IntervalsWrite)> {
        match mistake {
            Mistake::ClosedBeforeEmpty if queue.lock().closed => None,
            Mistake::LookedBeforeLocked if queue.lock().writes.is_empty() => {
                let waiting = queue.lock();
                let mut waiting = queue.changed.wait(waiting).unwrap();
                Some((mem::take(&mut waiting.writes), mem::take(&mut waiting.intervals)))
            }
            _ => queue.take(),
        }
    }

    /// The consensus thread submits two writes and closes the queue, while the storage thread takes
    /// the writes.
    fn submitted(mistake: Mistake) {
        let queue = Arc::new(Queue::default());
        let taken = queue.clone();
        let storage = thread::spawn(move || {
            let mut numbers = vec![];
            while let Some((writes, _)) = take(&taken, mistake) {
                numbers.extend(writes.iter().map(|write| write.number));
            }
            numbers
        });
        for number in [1, 2] {
            assert!(push(&queue, number, mistake), "an open queue refused");
        }
        close(&queue, mistake);
        assert!(queue.push(numbered(3)).is_err(), "a closed queue took a write");
        let numbers = storage.join().unwrap();
        assert_eq!(numbers, [1, 2], "a write that was taken in is lost, or out of order");
    }

    #[test]
    fn every_write_that_was_taken_in_comes_out_once_and_in_order() {
        loom::model(|| submitted(Mistake::Nothing));
    }

    /// No thread closes the queue, because closing would wake the storage thread, too.
    fn marked(mistake: Mistake) {
        let queue = Arc::new(Queue::default());
        let taken = queue.clone();
        let storage = thread::spawn(move || taken.take().and_then(|(_, it)| it.mark_ns));
        if mistake == Mistake::NotifiedBeforePushed {
            queue.changed.notify_one();
            queue.lock().intervals.mark_ns = Some(1);
        } else {
            queue.change(|intervals| intervals.mark_ns = Some(1));
        }
        assert_eq!(storage.join().unwrap(), Some(1));
    }

    #[test]
    fn a_mark_alone_wakes_the_storage_thread() {
        loom::model(|| marked(Mistake::Nothing));
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn mistaken_notified_before_marked() {
        loom::model(|| marked(Mistake::NotifiedBeforePushed));
    }

    #[test]
    fn the_last_mark_comes_out_beside_writes() {
        loom::model(|| {
            let queue = Arc::new(Queue::default());
            let taken = queue.clone();
            let storage = thread::spawn(move || {
                std::iter::from_fn(|| taken.take()).filter_map(|(_, it)| it.mark_ns).last()
            });
            queue.change(|intervals| intervals.mark_ns = Some(1));
            assert!(push(&queue, 1, Mistake::Nothing));
            queue.change(|intervals| intervals.mark_ns = Some(2));
            queue.close();
            assert_eq!(storage.join().unwrap(), Some(2), "the last mark is lost");
        });
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn mistaken_notified_before_pushed() {
        // In this model no thread closes the queue, because closing would wake the storage thread,
        // too, and hide the mistake.
        loom::model(|| {
            let queue = Arc::new(Queue::default());
            let taken = queue.clone();
            let storage = thread::spawn(move || take(&taken, Mistake::Nothing));
            push(&queue, 1, Mistake::NotifiedBeforePushed);
            assert_eq!(storage.join().unwrap().map(|(writes, _)| writes.len()), Some(1));
        });
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn mistaken_closed_in_silence() {
        loom::model(|| submitted(Mistake::ClosedInSilence));
    }

    #[test]
    #[should_panic(expected = "a write that was taken in is lost")]
    fn mistaken_closed_is_looked_at_before_the_writes() {
        loom::model(|| submitted(Mistake::ClosedBeforeEmpty));
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn mistaken_the_queue_is_looked_at_before_the_lock_that_waits() {
        loom::model(|| submitted(Mistake::LookedBeforeLocked));
    }

    /// A write fails while the consensus thread submits others: the storage thread closes the
    /// queue.
    fn failed(mistake: Mistake) {
        let queue = Arc::new(Queue::default());
        let failing = queue.clone();
        let storage = thread::spawn(move || {
            failing.close();
            failing.take().map_or(0, |(writes, _)| writes.len())
        });
        let accepted = [1, 2].map(|number| push(&queue, number, mistake));
        assert!(accepted[0] || !accepted[1], "a closed queue was opened again");
        let left = storage.join().unwrap();
        let accepted = accepted.iter().filter(|accepted| **accepted).count();
        assert_eq!(left, accepted, "a write was taken in by a queue that nobody looks at any more");
    }

    #[test]
    fn a_queue_that_the_storage_thread_closes_takes_nothing_afterwards() {
        loom::model(|| failed(Mistake::Nothing));
    }

    #[test]
    #[should_panic(expected = "nobody looks at any more")]
    fn mistaken_closed_is_looked_at_before_the_lock_that_pushes() {
        loom::model(|| failed(Mistake::PushedWhenClosed));
    }
}
