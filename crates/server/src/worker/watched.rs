//! Futures that one task waits for together. Each future is polled only when it was woken. The
//! reason: a worker's event loop has two links for every member, one in each direction. To poll all
//! of them after every wake-up would cost more than the work of the woken link. This module decides
//! no order, and never polls a future that has ended.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// The task that the watched futures wake.
#[derive(Debug, Default)]
pub(super) struct Watch {
    waker: Mutex<Option<Waker>>,
}

impl Watch {
    /// Records the task that polls the futures. Call it before polling them: from then on every
    /// event must wake the task again.
    pub(super) fn record_waker(&self, context: &Context<'_>) {
        let mut noted = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if !noted.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *noted = Some(context.waker().clone());
        }
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake_by_ref();
        }
    }
}

/// A future that is polled only when it was woken.
pub(super) struct Watched<'a> {
    future: Pin<Box<dyn Future<Output = ()> + 'a>>,
    notify: Arc<Notify>,
    waker: Waker,
}

/// Sets a flag when the future is woken.
///
/// Invariant: from the moment the flag is set until the future is polled, the task that polls it is
/// awake or has been woken.
struct Notify {
    is_notified: AtomicBool,
    watch: Arc<Watch>,
}

impl Wake for Notify {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_notified.swap(true, Ordering::AcqRel) {
            self.watch.wake();
        }
    }
}

impl<'a> Watched<'a> {
    /// Watches `future`. The first poll always polls it.
    pub(super) fn new(watch: &Arc<Watch>, future: impl Future<Output = ()> + 'a) -> Self {
        let notify = Arc::new(Notify { is_notified: AtomicBool::new(true), watch: watch.clone() });
        Self { future: Box::pin(future), waker: notify.clone().into(), notify }
    }

    /// Polls the future if it was woken since the last poll.
    pub(super) fn poll(&mut self) -> Poll<()> {
        // The flag is cleared before the poll, so that a wake-up during the poll leads to another
        // poll.
        if !self.notify.is_notified.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        self.future.as_mut().poll(&mut Context::from_waker(&self.waker))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_future_is_polled_only_when_it_was_woken_and_then_its_task_is() {
        let task = Arc::new(Task::default());
        let watch = Arc::new(Watch::default());
        let polls = Cell::new(0);
        let own: Cell<Option<Waker>> = Cell::default();
        let mut watched = Watched::new(&watch, async {
            poll_fn(|context| {
                polls.set(polls.get() + 1);
                own.set(Some(context.waker().clone()));
                if polls.get() == 3 { Poll::Ready(()) } else { Poll::<()>::Pending }
            })
            .await;
        });
        watch.record_waker(&Context::from_waker(&task.clone().into()));
        assert!(watched.poll().is_pending());
        assert!(watched.poll().is_pending());
        assert_eq!((polls.get(), task.0.load(Ordering::Relaxed)), (1, 0));
        let waker = own.take().unwrap();
        waker.wake_by_ref();
        waker.wake_by_ref();
        assert_eq!(task.0.load(Ordering::Relaxed), 1, "woken once until it looks");
        assert!(watched.poll().is_pending());
        waker.wake();
        assert_eq!(task.0.load(Ordering::Relaxed), 2);
        assert!(watched.poll().is_ready());
        assert_eq!(polls.get(), 3);
    }

    #[test]
    fn a_wake_during_a_poll_is_not_lost() {
        let task = Arc::new(Task::default());
        let watch = Arc::new(Watch::default());
        let polls = Cell::new(0);
        let mut watched = Watched::new(&watch, async {
            poll_fn(|context| {
                polls.set(polls.get() + 1);
                context.waker().wake_by_ref();
                Poll::<()>::Pending
            })
            .await;
        });
        watch.record_waker(&Context::from_waker(&task.clone().into()));
        for polled in 1..=3 {
            assert!(watched.poll().is_pending());
            assert_eq!((polls.get(), task.0.load(Ordering::Relaxed)), (polled, polled));
        }
    }
}
