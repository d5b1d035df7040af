//! A flag between tasks of one thread: one task waits for it, other tasks set it. It never crosses
//! threads and never counts: two sets before a wait wake the task once.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// A flag that one task waits for.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    is_set: Cell<bool>,
    waiter: RefCell<Option<Waker>>,
}

impl Signal {
    /// Sets the flag. If it was not set, wakes the waiting task.
    pub(crate) fn set(&self) {
        if self.is_set.replace(true) {
            return;
        }
        let waiter = self.waiter.borrow_mut().take();
        if let Some(waker) = waiter {
            waker.wake();
        }
    }

    /// Clears the flag.
    pub(crate) fn clear(&self) {
        self.is_set.set(false);
    }

    /// Whether the flag is set.
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.get()
    }

    /// Waits until the flag is set, then clears it. Cancel safe. Only one task may wait.
    pub(crate) async fn wait(&self) {
        poll_fn(|context| {
            if self.is_set.replace(false) {
                return Poll::Ready(());
            }
            let mut waiter = self.waiter.borrow_mut();
            if !waiter.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                *waiter = Some(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

/// Lets every task that is ready now run before the calling task goes on.
pub(crate) async fn behind_ready_tasks() {
    let mut is_behind = false;
    poll_fn(|context| {
        if is_behind {
            return Poll::Ready(());
        }
        is_behind = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
