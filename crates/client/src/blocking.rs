//! The client for threads that block. A thread of its own carries calls out, so that threads that
//! call at the same time share requests as tasks do.

use std::convert::Infallible;
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

/// A client whose calls block the thread. Cheap to clone, as [`crate::Client`] is; when the last
/// clone goes, its thread ends.
#[derive(Clone, Debug)]
pub struct Client {
    inner: crate::Client,
    runtime: tokio::runtime::Handle,
    /// Its end is the message: the thread ends with the last client.
    _life: Arc<oneshot::Sender<Infallible>>,
}

/// Why a blocking client cannot be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NewBlockingClientError {
    /// Correct the addresses.
    #[error(transparent)]
    New(#[from] NewClientError),
    /// The system has no thread or no event queue to give.
    #[error("no thread for the client")]
    Thread(#[from] std::io::Error),
}

impl Client {
    /// A client that begins with `addrs`, each `host:port` of any member's client port. It does
    /// not connect before it is asked for something.
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
            // Nothing is ever sent: it ends with the last client.
            let _: Result<Infallible, _> = runtime.block_on(ended);
        })?;
        Ok(Self { inner, runtime: handle, _life: Arc::new(life) })
    }

    /// [`crate::Client::timestamp`], blocking.
    ///
    /// # Errors
    /// See [`TimestampsError`].
    pub fn timestamp(&self) -> Result<Timestamp, TimestampsError> {
        self.block_on(self.inner.timestamp())
    }

    /// [`crate::Client::timestamps`], blocking.
    ///
    /// # Errors
    /// See [`TimestampsError`].
    pub fn timestamps(&self, count: u64) -> Result<TimestampRange, TimestampsError> {
        self.block_on(self.inner.timestamps(count))
    }

    /// [`crate::Client::timestamps_before`], blocking.
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

    /// Polls the call on this thread; the driver runs on the client's.
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
