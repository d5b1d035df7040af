//! The models: loom's lock, condition and flag, and a bell that promises what tokio documents of
//! its own. The flag can be weakened by a test, to show that the test would notice.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use super::Ordering;

pub(crate) use loom::sync::atomic::AtomicUsize;
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};

/// A fault in what threads share, for a test that must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weakness {
    /// A flag orders nothing else.
    UnorderedFlag,
}

thread_local! {
    // loom runs the threads of a model on the thread that runs the test.
    static WEAKNESS: Cell<Option<Weakness>> = const { Cell::new(None) };
}

/// Weakens what is shared for the rest of the calling test.
pub(crate) fn weaken(weakness: Weakness) {
    WEAKNESS.set(Some(weakness));
}

/// A flag.
#[derive(Debug, Default)]
pub(crate) struct AtomicBool(loom::sync::atomic::AtomicBool);

impl AtomicBool {
    pub(crate) fn new(value: bool) -> Self {
        Self(loom::sync::atomic::AtomicBool::new(value))
    }

    pub(crate) fn store(&self, value: bool, order: Ordering) {
        // A swap whose result is dropped: of a plain store beside a swap, loom lets a later swap
        // read what stood before the store, though that swap comes after it. C11 does not: nothing
        // comes between what a swap reads and what it writes.
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

/// `tokio::sync::Notify` for one waiter.
#[derive(Debug, Default)]
pub(crate) struct Bell(Mutex<Rope>);

#[derive(Debug, Default)]
struct Rope {
    is_rung: bool,
    waiter: Option<Waker>,
}

impl Bell {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn notify_one(&self) {
        let waiter = {
            let mut rope = self.0.lock().unwrap();
            rope.is_rung = true;
            rope.waiter.take()
        };
        waiter.into_iter().for_each(Waker::wake);
    }

    pub(crate) async fn notified(&self) {
        poll_fn(|context| {
            let mut rope = self.0.lock().unwrap();
            if std::mem::take(&mut rope.is_rung) {
                return Poll::Ready(());
            }
            rope.waiter = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
