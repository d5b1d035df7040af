//! Models of the types in `sync`, for tests: loom's lock, condition variable and flag, and a
//! `Notify` that behaves as tokio documents. A test can weaken the flag on purpose. The test must
//! then fail, which proves that it finds such a bug.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use super::Ordering;

pub(crate) use loom::sync::atomic::AtomicUsize;
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};

/// A deliberate fault in the primitives, for a test that must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weakness {
    /// The flag uses relaxed ordering, so that it orders no other memory access.
    UnorderedFlag,
}

thread_local! {
    // loom runs all threads of a model on the test's own thread, so they all see this value.
    static WEAKNESS: Cell<Option<Weakness>> = const { Cell::new(None) };
}

/// Weakens the primitives for the rest of the calling test.
pub(crate) fn weaken(weakness: Weakness) {
    WEAKNESS.set(Some(weakness));
}

/// A flag that a test can weaken.
#[derive(Debug, Default)]
pub(crate) struct AtomicBool(loom::sync::atomic::AtomicBool);

impl AtomicBool {
    pub(crate) fn new(value: bool) -> Self {
        Self(loom::sync::atomic::AtomicBool::new(value))
    }

    pub(crate) fn store(&self, value: bool, order: Ordering) {
        // A store is modelled as a swap whose result is dropped. After a plain store, loom would
        // let a later swap read the value from before that store. C11 forbids this: no write comes
        // between the value that a swap reads and the value that it writes.
        self.0.swap(value, flag_order(order));
    }

    pub(crate) fn swap(&self, value: bool, order: Ordering) -> bool {
        self.0.swap(value, flag_order(order))
    }
}

fn flag_order(order: Ordering) -> Ordering {
    let is_weak = WEAKNESS.get() == Some(Weakness::UnorderedFlag);
    if is_weak { Ordering::Relaxed } else { order }
}

/// A model of `tokio::sync::Notify` for one waiting task.
#[derive(Debug, Default)]
pub(crate) struct Notify(Mutex<NotifyState>);

#[derive(Debug, Default)]
struct NotifyState {
    is_notified: bool,
    waiter: Option<Waker>,
}

impl Notify {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn notify_one(&self) {
        let waiter = {
            let mut state = self.0.lock().unwrap();
            state.is_notified = true;
            state.waiter.take()
        };
        waiter.into_iter().for_each(Waker::wake);
    }

    pub(crate) async fn notified(&self) {
        poll_fn(|context| {
            let mut state = self.0.lock().unwrap();
            if std::mem::take(&mut state.is_notified) {
                return Poll::Ready(());
            }
            state.waiter = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
