//! The turns of a worker's event loop, each of which begins with the peers. What costs a worker long
//! and is not a peer's waits here for a turn of its own, so that peers come between its parts.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// See the module. It is of one thread; only its type is shared.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    count: AtomicU64,
    /// Time spent in this turn by what is paced, nanoseconds.
    spent_ns: AtomicU64,
    has_waiting: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    tasks: Vec<Waker>,
    /// Has the event loop turn again.
    event_loop: Option<Waker>,
}

impl Turns {
    /// The event loop begins a turn: peers first, then who waits for it.
    pub(super) fn begin(&self, context: &Context<'_>) {
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(count + 1, Ordering::Relaxed);
        self.spent_ns.store(0, Ordering::Relaxed);
        if count == 0 || self.has_waiting.load(Ordering::Relaxed) {
            self.has_waiting.store(false, Ordering::Relaxed);
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.event_loop = Some(context.waker().clone());
            waiting.tasks.drain(..).for_each(Waker::wake);
        }
    }

    /// Waits for the next turn.
    pub(crate) fn next(&self) -> NextTurn<'_> {
        NextTurn { turns: self, after: self.count.load(Ordering::Relaxed) }
    }

    fn wake_at_next(&self, context: &Context<'_>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.tasks.push(context.waker().clone());
        self.has_waiting.store(true, Ordering::Relaxed);
        if let Some(event_loop) = &waiting.event_loop {
            event_loop.wake_by_ref();
        }
    }
}

/// Ready in the turn after the one in which it was made.
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

/// A future that shares an allowance of time per turn with all others that are paced: once it is
/// spent, they wait for the next turn.
pub(crate) struct Paced<F> {
    future: F,
    turns: Arc<Turns>,
    allowance: Duration,
}

impl<F: Future<Output = ()> + Unpin> Paced<F> {
    /// `future`, which may begin to run as long as less than `allowance` of the turn is spent.
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
    use std::task::Poll;

    use super::*;

    #[test]
    fn what_has_spent_its_allowance_waits_for_the_next_turn() {
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
        turns.begin(&context);
        let mut next = turns.next();
        assert!(Pin::new(&mut next).poll(&mut context).is_pending());
        turns.begin(&context);
        assert!(Pin::new(&mut next).poll(&mut context).is_ready());
    }
}
