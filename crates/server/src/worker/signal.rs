//! A flag that one task of a worker waits for and others of the same thread set. It never
//! crosses threads and never counts: setting it twice wakes once.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    is_set: Cell<bool>,
    waiter: RefCell<Option<Waker>>,
}

impl Signal {
    /// Sets the flag, and wakes the task that waits for it, if it was not set.
    pub(crate) fn set(&self) {
        if self.is_set.replace(true) {
            return;
        }
        let waiter = self.waiter.borrow_mut().take();
        if let Some(waker) = waiter {
            waker.wake();
        }
    }

    /// Forgets that the flag was set.
    pub(crate) fn clear(&self) {
        self.is_set.set(false);
    }

    /// Whether it is set.
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.get()
    }

    /// Waits until the flag is set, and clears it. Cancel safe; one waiter at a time.
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

/// Puts the calling task behind every task that is ready now.
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
