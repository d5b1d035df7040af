//! The blocking client. Its own thread carries out the calls. So calls of several threads at the
//! same time share a request, like calls of several tasks.

use std::convert::Infallible;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use epicepoch_wire::{Timestamp, TimestampRange};
use thiserror::Error;
use tokio::sync::oneshot;

use crate::client::Options;
use crate::error::{NewClientError, TimestampsError};
use crate::intervals::{Interval, IntervalError};

/// A client whose calls block the caller's thread. It is cheap to clone, as [`crate::Client`] is.
/// The client's own thread ends when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Client {
    inner: crate::Client,
    runtime: tokio::runtime::Handle,
    /// This channel closes when the last clone of the client is dropped. Then the client's thread
    /// ends.
    _life: Arc<oneshot::Sender<Infallible>>,
}

/// Why a blocking client cannot be created.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NewBlockingClientError {
    /// An address or an option is invalid. Correct it.
    #[error(transparent)]
    New(#[from] NewClientError),
    /// The system could not create a thread or an event queue.
    #[error("no thread for the client")]
    Thread(#[from] std::io::Error),
}

impl Client {
    /// Creates a client that first asks `addrs`, each the `host:port` of a member's client port. It
    /// connects at the first call.
    ///
    /// # Errors
    /// See [`NewBlockingClientError`].
    pub fn new<A: Into<String>>(
        addrs: impl IntoIterator<Item = A>,
        options: Options,
    ) -> Result<Self, NewBlockingClientError> {
        let inner = crate::Client::new(addrs, options)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (life, ended) = oneshot::channel::<Infallible>();
        thread::Builder::new().name("epicepoch-client".to_owned()).spawn(move || {
            // No message is ever sent over this channel. It closes when the last client is dropped.
            let _: Result<Infallible, _> = runtime.block_on(ended);
        })?;
        Ok(Self { inner, runtime: handle, _life: Arc::new(life) })
    }

    /// Does what [`crate::Client::timestamp`] does, and blocks the thread until then.
    ///
    /// # Errors
    /// See [`TimestampsError`].
    pub fn timestamp(&self) -> Result<Timestamp, TimestampsError> {
        self.block_on(self.inner.timestamp())
    }

    /// Does what [`crate::Client::timestamps`] does, and blocks the thread until then.
    ///
    /// # Errors
    /// See [`TimestampsError`].
    pub fn timestamps(&self, count: u64) -> Result<TimestampRange, TimestampsError> {
        self.block_on(self.inner.timestamps(count))
    }

    /// Does what [`crate::Client::timestamps_before`] does, and blocks the thread until then.
    ///
    /// # Errors
    /// See [`TimestampsError`].
    pub fn timestamps_before(
        &self,
        count: u64,
        deadline: Instant,
    ) -> Result<TimestampRange, TimestampsError> {
        self.block_on(self.inner.timestamps_before(count, deadline))
    }

    /// Does what [`crate::Client::compact_timestamp`] does, and blocks the thread until then.
    ///
    /// # Errors
    /// See [`TimestampsError`].
    pub fn compact_timestamp(&self) -> Result<u64, TimestampsError> {
        self.block_on(self.inner.compact_timestamp())
    }

    /// Does what [`crate::Client::compact_timestamps`] does, and blocks the thread until then.
    ///
    /// # Errors
    /// See [`TimestampsError`].
    pub fn compact_timestamps(&self, count: u64) -> Result<Range<u64>, TimestampsError> {
        self.block_on(self.inner.compact_timestamps(count))
    }

    /// Does what [`crate::Client::compact_latest`] does, and blocks the thread until then.
    ///
    /// # Errors
    /// See [`TimestampsError`].
    pub fn compact_latest(&self) -> Result<u64, TimestampsError> {
        self.block_on(self.inner.compact_latest())
    }

    /// Does what [`crate::Client::latest`] does, and blocks the thread until then.
    ///
    /// # Errors
    /// See [`TimestampsError`].
    pub fn latest(&self) -> Result<Timestamp, TimestampsError> {
        self.block_on(self.inner.latest())
    }

    /// Does what [`crate::Client::latest_before`] does, and blocks the thread until then.
    ///
    /// # Errors
    /// See [`TimestampsError`].
    pub fn latest_before(&self, deadline: Instant) -> Result<Timestamp, TimestampsError> {
        self.block_on(self.inner.latest_before(deadline))
    }

    /// Does what [`crate::Client::interval`] does, and blocks the thread until then.
    ///
    /// # Errors
    /// See [`IntervalError`].
    pub fn interval(&self) -> Result<Interval, IntervalError> {
        self.block_on(self.inner.interval())
    }

    /// Does what [`crate::Client::commit_wait`] does, and blocks the thread until then.
    pub fn commit_wait(&self, interval: &Interval) {
        self.block_on(self.inner.commit_wait(interval));
    }

    /// Does what [`crate::Client::must_retry`] does, and blocks the thread until then.
    ///
    /// # Errors
    /// See [`IntervalError`].
    pub fn must_retry(&self, read_at: Timestamp, found: Timestamp) -> Result<bool, IntervalError> {
        self.block_on(self.inner.must_retry(read_at, found))
    }

    /// Blocks the caller's thread until the call has ended. The caller's thread polls the call; the
    /// client's own thread runs the driver.
    fn block_on<T>(&self, call: impl Future<Output = T>) -> T {
        let _entered = self.runtime.enter();
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut call = pin!(call);
        loop {
            if let Poll::Ready(got) = call.as_mut().poll(&mut context) {
                return got;
            }
            thread::park();
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
