//! The storage thread: it takes every write that waits, commits them in one transaction, and says
//! so. It never acknowledges before the sync, never splits a write, never retries a failed one,
//! and ends at the first failure.
//!
//! # Group commit
//! While one commit is being synced, the writes behind it collect, and all of them share the next
//! one. So the disk's latency bounds the latency of a write at two commits, whatever the load.
//!
//! Measured in a dev build (`cargo test -p epicepoch-server -- --ignored --nocapture commit`) on a
//! virtual machine with 2 cores and ext4: see the test for the commands and the figures.

use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use epicepoch_core::durable::Write;

use super::database::Database;
use super::directory::Directory;
use super::{SubmitError, WriteError};

/// Most writes that wait. The caller keeps fewer than this outstanding: a core that has so many
/// steps on their way to the disk has long lost its leadership.
pub const QUEUE_LEN_MAX: usize = 1024;
/// How long a shutdown waits for the disk, milliseconds.
pub const SHUTDOWN_MS_MAX: u64 = 2000;

/// What the storage thread says. Called on that thread.
#[derive(Debug)]
pub enum Completion {
    /// Every write up to and including `number` is durable.
    Written {
        /// [`Write::number`] of the last one.
        number: u64,
        /// How long the transaction took, from its begin to the end of its last sync.
        duration: Duration,
    },
    /// What was submitted after the last [`Completion::Written`] is durable or is not. The thread
    /// ends, and so must the process. Said at most once, and last.
    Failed(WriteError),
}

/// The storage thread, to the one who submits. Dropped, it does what [`WriterHandle::shutdown`]
/// does.
#[derive(Debug)]
pub struct WriterHandle {
    queue: Arc<Queue>,
    /// Closed by the thread when it has let go of the directory.
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

    /// Writes what is queued, closes the directory and unlocks it. Says whether the thread ended
    /// within [`SHUTDOWN_MS_MAX`]; if not, the disk hangs, and the thread goes on alone: it holds
    /// up no process exit, and it still reports what it completes.
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
                // A panic was reported as a completion.
                let _ = thread.join();
                true
            }
        }
    }
}

impl Drop for WriterHandle {
    fn drop(&mut self) {
        self.end();
    }
}

/// The thread, from its start to its end.
fn run(
    queue: &Queue,
    mut database: Database,
    directory: Directory,
    completed: impl Fn(Completion),
    end: Sender<()>,
) {
    let outcome =
        catch_unwind(AssertUnwindSafe(|| write_until_closed(queue, &mut database, &completed)));
    // Before the report: whoever hears it finds nothing to submit to.
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
    while let Some(writes) = queue.take() {
        for write in &writes {
            assert!(write.number > number, "write {} is out of order", write.number);
            number = write.number;
        }
        let start = Instant::now();
        database.write(&writes)?;
        completed(Completion::Written { number, duration: start.elapsed() });
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

    /// Everything that waits, as soon as anything does. `None` once it is closed and empty.
    fn take(&self) -> Option<Vec<Write>> {
        let waiting = self.lock();
        let mut waiting = self
            .changed
            .wait_while(waiting, |waiting| waiting.writes.is_empty() && !waiting.closed)
            .unwrap_or_else(PoisonError::into_inner);
        let writes = mem::take(&mut waiting.writes);
        (!writes.is_empty()).then_some(writes)
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Nothing panics under this lock.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
