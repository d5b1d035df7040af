//! The turns of a worker's event loop. Each turn serves peers first, then clients
//! ([`ClientTasks`](super::client_tasks::ClientTasks)). Long work that is not for peers is split,
//! so that peers are served between its parts: it waits for the next turn. Connections of HTTP/3
//! have a time of their own in each turn ([`Paced`]).

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The turns of one event loop. Only one thread uses it, although its type could be shared.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    count: AtomicU64,
    /// Time that [`Paced`] futures have used in this turn, nanoseconds.
    spent_ns: AtomicU64,
    has_waiting: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Futures that wait for the next turn.
    tasks: Vec<Waker>,
    /// Wakes the event loop for another turn.
    event_loop: Option<Waker>,
}

impl Turns {
    /// Begins a turn, after the peers were served, and wakes the tasks that wait for the next turn.
    pub(super) fn begin(&self, context: &Context<'_>) {
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(count + 1, Ordering::Relaxed);
        self.spent_ns.store(0, Ordering::Relaxed);
        if count == 0 || self.has_waiting.load(Ordering::Relaxed) {
            self.has_waiting.store(false, Ordering::Relaxed);
            let mut waiting = self.lock();
            waiting.event_loop = Some(context.waker().clone());
            waiting.tasks.drain(..).for_each(Waker::wake);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A future that is ready in the next turn.
    pub(crate) fn next(&self) -> NextTurn<'_> {
        NextTurn { turns: self, after: self.count.load(Ordering::Relaxed) }
    }

    /// Wakes the task of `context` in the next turn.
    fn wake_at_next(&self, context: &Context<'_>) {
        let mut waiting = self.lock();
        waiting.tasks.push(context.waker().clone());
        self.has_waiting.store(true, Ordering::Relaxed);
        if let Some(event_loop) = &waiting.event_loop {
            event_loop.wake_by_ref();
        }
    }
}

/// A future that is ready in the turn after the one in which it was made.
#[derive(Debug)]
pub(crate) struct NextTurn<'a> {
    turns: &'a Turns,
    after: u64,
}

impl Future for NextTurn<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.turns.count.load(Ordering::Relaxed) > self.after {
            return Poll::Ready(());
        }
        self.turns.wake_at_next(context);
        Poll::Pending
    }
}

/// A future that runs only while the turn has time left for paced futures. All of them share that
/// time; when it is used up, they wait for the next turn.
pub(crate) struct Paced<F> {
    future: F,
    turns: Arc<Turns>,
    allowance: Duration,
}

impl<F: Future<Output = ()> + Unpin> Paced<F> {
    /// Polls `future` only while paced futures have used less than `allowance` of the turn.
    pub(crate) fn new(future: F, turns: Arc<Turns>, allowance: Duration) -> Self {
        Self { future, turns, allowance }
    }
}

impl<F: Future<Output = ()> + Unpin> Future for Paced<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let spent_ns = self.turns.spent_ns.load(Ordering::Relaxed);
        if u128::from(spent_ns) >= self.allowance.as_nanos() {
            self.turns.wake_at_next(context);
            return Poll::Pending;
        }
        let start = Instant::now();
        let result = Pin::new(&mut self.future).poll(context);
        let own_ns = start.elapsed().as_nanos() as u64;
        self.turns.spent_ns.store(spent_ns + own_ns, Ordering::Relaxed);
        result
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicU64);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_future_that_has_spent_its_allowance_waits_for_the_next_turn() {
        let turns = Arc::new(Turns::default());
        let mut context = Context::from_waker(Waker::noop());
        turns.begin(&context);
        let mut polls = 0;
        let busy = poll_fn(|_| {
            polls += 1;
            std::thread::sleep(Duration::from_micros(50));
            Poll::<()>::Pending
        });
        let mut busy = Paced::new(busy, turns.clone(), Duration::from_micros(20));
        for _ in 0..5 {
            assert!(Pin::new(&mut busy).poll(&mut context).is_pending());
        }
        turns.begin(&context);
        assert!(Pin::new(&mut busy).poll(&mut context).is_pending());
        drop(busy);
        assert_eq!(polls, 2, "once in each turn");
    }

    #[test]
    fn the_next_turn_is_waited_for_once() {
        let turns = Turns::default();
        let mut context = Context::from_waker(Waker::noop());
        let wakes = Arc::new(Wakes::default());
        turns.begin(&Context::from_waker(&Waker::from(wakes.clone())));
        let mut next = turns.next();
        assert!(Pin::new(&mut next).poll(&mut context).is_pending());
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "the event loop takes another turn");
        turns.begin(&context);
        assert!(Pin::new(&mut next).poll(&mut context).is_ready());
    }
}
