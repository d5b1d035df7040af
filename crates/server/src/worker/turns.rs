//! The turns of a worker's event loop. Each turn serves peers first, then clients. Clients may use
//! [`TURN_MAX`] of a turn; after that, each further client waits for the next turn. Long work that
//! is not for peers is split in the same way, so that peers are served between its parts.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Time that clients may use in one turn. Then peers are served before any other client. Under the
/// heaviest load a confirm frame waits for this time, plus the time of the client that was begun
/// last.
pub(crate) const TURN_MAX: Duration = Duration::from_micros(500);
/// Clients that are served between two clock readings. Most clients take microseconds, and a clock
/// reading costs a hundredth of that.
const CLIENTS_PER_LOOK: u64 = 4;

/// The turns of one event loop. Only one thread uses it, although its type could be shared.
#[derive(Debug)]
pub(crate) struct Turns {
    count: AtomicU64,
    /// Clients that were served in this turn.
    clients: AtomicU64,
    /// When the clock was first read in this turn, nanoseconds since `origin`; 0 before that.
    began_ns: AtomicU64,
    origin: Instant,
    /// Time that [`Paced`] futures have used in this turn, nanoseconds.
    spent_ns: AtomicU64,
    has_waiting: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
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
        self.clients.store(0, Ordering::Relaxed);
        self.began_ns.store(0, Ordering::Relaxed);
        if count == 0 || self.has_waiting.load(Ordering::Relaxed) {
            self.has_waiting.store(false, Ordering::Relaxed);
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.event_loop = Some(context.waker().clone());
            waiting.tasks.drain(..).for_each(Waker::wake);
        }
    }

    /// Whether the time of clients in this turn is used up. Then this client must wait for the next
    /// turn, which wakes its task.
    pub(crate) fn is_over(&self, context: &Context<'_>) -> bool {
        self.is_over_at(context, Instant::now)
    }

    fn is_over_at(&self, context: &Context<'_>, now: impl FnOnce() -> Instant) -> bool {
        let clients = self.clients.load(Ordering::Relaxed);
        self.clients.store(clients + 1, Ordering::Relaxed);
        if !clients.is_multiple_of(CLIENTS_PER_LOOK) || clients == 0 {
            return false;
        }
        let now_ns = now().saturating_duration_since(self.origin).as_nanos() as u64;
        match self.began_ns.load(Ordering::Relaxed) {
            0 => self.began_ns.store(now_ns.max(1), Ordering::Relaxed),
            began_ns if now_ns - began_ns < TURN_MAX.as_nanos() as u64 => {}
            _ => {
                // This client is not counted, so that the next client in this turn reads the clock,
                // too.
                self.clients.store(clients, Ordering::Relaxed);
                self.wake_at_next(context);
                return true;
            }
        }
        false
    }

    /// A future that is ready in the next turn.
    pub(crate) fn next(&self) -> NextTurn<'_> {
        NextTurn { turns: self, after: self.count.load(Ordering::Relaxed) }
    }

    /// Wakes the task of `context` in the next turn.
    fn wake_at_next(&self, context: &Context<'_>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.tasks.push(context.waker().clone());
        self.has_waiting.store(true, Ordering::Relaxed);
        if let Some(event_loop) = &waiting.event_loop {
            event_loop.wake_by_ref();
        }
    }
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            count: AtomicU64::default(),
            clients: AtomicU64::default(),
            began_ns: AtomicU64::default(),
            origin: Instant::now(),
            spent_ns: AtomicU64::default(),
            has_waiting: AtomicBool::default(),
            waiting: Mutex::default(),
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
    use std::task::{Poll, Wake};

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

    /// Serves up to `clients` clients in one turn, each for the time `each`, until one must wait
    /// for the next turn. Returns how many were served, and the time that this took.
    fn serve(turns: &Turns, clients: usize, each: Duration) -> (usize, Duration) {
        let context = Context::from_waker(Waker::noop());
        turns.begin(&context);
        let start = turns.origin + Duration::from_secs(1);
        let mut now = start;
        for served in 0..clients {
            if turns.is_over_at(&context, || now) {
                assert!(turns.is_over_at(&context, || now), "nor has anybody behind it its turn");
                return (served, now - start);
            }
            now += each;
        }
        (clients, now - start)
    }

    #[test]
    fn clients_that_want_more_than_a_turn_has_leave_the_next_one_to_peers() {
        let turns = Turns::default();
        for each in [1, 50, 100, 300, 1000].map(Duration::from_micros) {
            for _ in 0..3 {
                let (served, spent) = serve(&turns, 10_000, each);
                // Time is counted from the first clock reading. Up to `CLIENTS_PER_LOOK` clients
                // run before it, and as many before the last reading.
                let most = TURN_MAX + each * 2 * CLIENTS_PER_LOOK as u32;
                assert!(spent <= most && served < 10_000, "{served} of {each:?}: {spent:?}");
                assert!(spent >= TURN_MAX.min(each * CLIENTS_PER_LOOK as u32), "{spent:?}");
            }
        }
        assert_eq!(serve(&turns, 61, Duration::from_micros(4)).0, 61, "who asks for little");
    }

    #[test]
    fn a_waiting_connection_is_woken_by_the_next_turn() {
        let turns = Turns::default();
        let woken = Arc::new(Wakes::default());
        let waker = Waker::from(woken.clone());
        let context = Context::from_waker(&waker);
        let _ = serve(&turns, 10_000, Duration::from_millis(1));
        let late = turns.origin + Duration::from_secs(9);
        assert!(turns.is_over_at(&context, || late));
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        turns.begin(&Context::from_waker(Waker::noop()));
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
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

    #[test]
    fn a_client_whose_turn_is_over_wakes_the_event_loop_for_the_next_one() {
        let turns = Turns::default();
        let wakes = Arc::new(Wakes::default());
        let event_loop = Waker::from(wakes.clone());
        turns.begin(&Context::from_waker(&event_loop));
        let client = Context::from_waker(Waker::noop());
        let start = Instant::now();
        while !turns.is_over(&client) {
            assert!(start.elapsed() < Duration::from_secs(10), "the turn does not end");
        }
        assert!(start.elapsed() >= TURN_MAX);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_clock_is_read_for_few_clients_and_a_turn_ends_at_its_time() {
        let turns = Turns::default();
        let context = Context::from_waker(Waker::noop());
        turns.begin(&context);
        let began = turns.origin + Duration::from_secs(1);
        let mut looks = 0;
        let mut is_over = |after| {
            turns.is_over_at(&context, || {
                looks += 1;
                began + after
            })
        };
        let mut clients = |count, after| (0..count).map(|_| is_over(after)).collect::<Vec<_>>();
        assert_eq!(clients(2 * CLIENTS_PER_LOOK + 1, Duration::ZERO), [false; 9]);
        assert_eq!(clients(CLIENTS_PER_LOOK, TURN_MAX), [false, false, false, true]);
        assert_eq!(looks, 3);
    }
}
