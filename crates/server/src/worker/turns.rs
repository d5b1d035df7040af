//! The turns of a worker's event loop. Each turn serves peers first, then clients. Clients may use
//! [`TURN_MAX`] of a turn; after that, each further client waits for the next turn. Long work that
//! is not for peers is split in the same way, so that peers are served between its parts.
//!
//! Clients that wait form a queue, and nobody is served past it. Without the queue, those that were
//! just served would come first again: their next request wakes them before the turn begins that
//! wakes the others. Some clients then waited for hundreds of milliseconds.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Time that clients may use in one turn. Then peers are served before any other client. Under the
/// heaviest load a confirm frame waits for this time, plus the time of the client that was begun
/// last.
pub(crate) const TURN_MAX: Duration = Duration::from_micros(500);
/// Clients that are served between two clock readings. Most clients take microseconds, and a clock
/// reading costs a hundredth of that.
const CLIENTS_PER_LOOK: u64 = 4;
/// Clients of the queue that are called at once. Each that is served calls the next one. So a turn
/// wakes few clients that it has no time for.
const CALLED_MAX: u64 = 8;

/// Stages of a [`Place`]: not in the queue.
const FREE: u8 = 0;
/// In the queue.
const QUEUED: u8 = 1;
/// First in the queue, and woken to be served.
const CALLED: u8 = 2;
/// Its client has gone.
const GONE: u8 = 3;

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
    /// Clients that were called and have not been served since.
    called: AtomicU64,
    /// Whether clients are in the queue or called.
    is_queue_in_use: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Futures that only wait for the next turn.
    tasks: Vec<Waker>,
    /// The queue of clients, the one that has waited longest first.
    clients: VecDeque<(Arc<AtomicU8>, Waker)>,
    /// How many of `clients` were called in this turn, and came too late.
    put_back: usize,
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
            let mut waiting = self.lock();
            waiting.event_loop = Some(context.waker().clone());
            waiting.tasks.drain(..).for_each(Waker::wake);
            waiting.put_back = 0;
            self.call(&mut waiting);
        }
    }

    /// The place of a client that does not wait.
    pub(crate) fn place(&self) -> Place<'_> {
        Place { turns: self, stage: Arc::new(AtomicU8::new(FREE)) }
    }

    /// Calls clients of the queue while few are called.
    fn call(&self, waiting: &mut Waiting) {
        let mut called = self.called.load(Ordering::Relaxed);
        while called < CALLED_MAX
            && let Some((stage, waker)) = waiting.clients.pop_front()
        {
            if stage.load(Ordering::Relaxed) == QUEUED {
                stage.store(CALLED, Ordering::Relaxed);
                called += 1;
                waker.wake();
            }
        }
        self.called.store(called, Ordering::Relaxed);
        self.is_queue_in_use.store(called > 0, Ordering::Relaxed);
    }

    /// A client that was called is served, or has gone: calls the next one.
    fn end_call(&self) {
        self.called.store(self.called.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        self.call(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the time of clients in this turn is used up.
    fn has_ended(&self, now: impl FnOnce() -> Instant) -> bool {
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
        let mut waiting = self.lock();
        waiting.tasks.push(context.waker().clone());
        self.want_next(&waiting);
    }

    /// Makes the event loop take another turn.
    fn want_next(&self, waiting: &Waiting) {
        self.has_waiting.store(true, Ordering::Relaxed);
        if let Some(event_loop) = &waiting.event_loop {
            event_loop.wake_by_ref();
        }
    }
}

/// The place of one client: in the queue, called, or neither. Only its own task uses it.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    turns: &'a Turns,
    stage: Arc<AtomicU8>,
}

impl Place<'_> {
    /// Whether this client must wait, because others wait longer or the time of this turn is used
    /// up. Its task is then woken when it may be served. Ask whenever the task is polled.
    pub(crate) fn must_wait(&self, context: &Context<'_>) -> bool {
        self.must_wait_at(context, Instant::now)
    }

    fn must_wait_at(&self, context: &Context<'_>, now: impl FnOnce() -> Instant) -> bool {
        let stage = self.stage.load(Ordering::Relaxed);
        if stage == QUEUED {
            // A message of the client has woken its task. It keeps its place in the queue.
            return true;
        }
        let (turns, is_called) = (self.turns, stage == CALLED);
        let is_behind = !is_called && turns.is_queue_in_use.load(Ordering::Relaxed);
        if is_behind || turns.has_ended(now) {
            self.wait(context, is_called);
            return true;
        }
        if is_called {
            self.stage.store(FREE, Ordering::Relaxed);
            turns.end_call();
        }
        false
    }

    /// Joins the queue: at the end, or if it was called, in front of those that were not.
    fn wait(&self, context: &Context<'_>, was_called: bool) {
        let turns = self.turns;
        let mut waiting = turns.lock();
        let entry = (self.stage.clone(), context.waker().clone());
        if was_called {
            turns.called.store(turns.called.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
            let position = waiting.put_back.min(waiting.clients.len());
            waiting.clients.insert(position, entry);
            waiting.put_back = position + 1;
        } else {
            waiting.clients.push_back(entry);
        }
        self.stage.store(QUEUED, Ordering::Relaxed);
        turns.is_queue_in_use.store(true, Ordering::Relaxed);
        turns.want_next(&waiting);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.stage.swap(GONE, Ordering::Relaxed) == CALLED {
            self.turns.end_call();
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
            called: AtomicU64::default(),
            is_queue_in_use: AtomicBool::default(),
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
            if turns.place().must_wait_at(&context, || now) {
                let mut others = (0..9).map(|_| turns.place().must_wait_at(&context, || now));
                assert!(others.all(|waits| waits), "nor has anybody behind it its turn");
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
        let place = turns.place();
        assert!(place.must_wait_at(&context, || late));
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        turns.begin(&Context::from_waker(Waker::noop()));
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    }

    /// The task of a client: its number, and the queue of tasks that are ready.
    struct Task(usize, Arc<Mutex<VecDeque<usize>>>);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push_back(self.0);
        }
    }

    /// Runs 1,000 turns with `count` clients that always want to be served again, each for the time
    /// `each`. Who was served in a turn is ready before the next one begins. Returns how often each
    /// client was served, and how many polls that took.
    fn contend(count: usize, each: Duration) -> (Vec<u64>, u64) {
        let turns = Turns::default();
        let ready = Arc::new(Mutex::new((0..count).collect::<VecDeque<_>>()));
        let task = |at| Waker::from(Arc::new(Task(at, ready.clone())));
        let clients: Vec<_> = (0..count).map(|at| (turns.place(), task(at))).collect();
        let (mut served, mut polls) = (vec![0; count], 0);
        let mut now = turns.origin + Duration::from_secs(1);
        for _ in 0..1000 {
            turns.begin(&Context::from_waker(Waker::noop()));
            let mut again = VecDeque::new();
            loop {
                let Some(at) = ready.lock().unwrap().pop_front() else { break };
                let (place, waker) = &clients[at];
                polls += 1;
                if !place.must_wait_at(&Context::from_waker(waker), || now) {
                    served[at] += 1;
                    now += each;
                    again.push_back(at);
                }
            }
            ready.lock().unwrap().extend(again);
        }
        (served, polls)
    }

    #[test]
    fn clients_that_were_just_served_do_not_come_before_those_that_wait() {
        for (count, each_us) in [(32, 90), (9, 600), (300, 20), (2, 5000)] {
            let (served, polls) = contend(count, Duration::from_micros(each_us));
            let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
            assert!(*least >= 10 && most - least <= 2, "{served:?}");
            let all = served.iter().sum::<u64>();
            assert!(polls <= 4 * all, "{polls} polls to serve {all}");
        }
    }

    #[test]
    fn a_client_that_has_gone_holds_nobody_up() {
        let turns = Turns::default();
        let context = Context::from_waker(Waker::noop());
        for round in 0..3 {
            let late = turns.origin + Duration::from_secs(9 + round);
            let _ = serve(&turns, 10_000, Duration::from_millis(1));
            let waiting = (0..20).map(|_| turns.place()).collect::<Vec<_>>();
            assert!(waiting.iter().all(|place| place.must_wait_at(&context, || late)));
            turns.begin(&context);
            let called = |place: &&Place<'_>| place.stage.load(Ordering::Relaxed) == CALLED;
            assert_eq!(waiting.iter().filter(called).count() as u64, CALLED_MAX);
            // Half of them go: some that were called, and some in the queue.
            let left: Vec<_> = waiting.into_iter().step_by(2).collect();
            assert_eq!(left.iter().filter(called).count() as u64, CALLED_MAX, "others are called");
            assert!(left.iter().all(|place| !place.must_wait_at(&context, || late)));
            assert!(!turns.place().must_wait_at(&context, || late), "the queue is empty");
            turns.begin(&context);
        }
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
        while !turns.place().must_wait(&client) {
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
        let places: Vec<_> = (0..=3 * CLIENTS_PER_LOOK).map(|_| turns.place()).collect();
        let mut next = places.iter();
        let mut is_over = |after| {
            next.next().unwrap().must_wait_at(&context, || {
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
