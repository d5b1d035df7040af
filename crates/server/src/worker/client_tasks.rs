//! The tasks of a worker's clients. They run in the order in which they became ready, for at most
//! [`TURN_MAX`] in a turn of the event loop; the others keep their order until the next turn. So
//! peers are served soon, and no client is served twice while another one waits.
//!
//! Each task has one connection, which itself gives way to others after some work. It is never
//! polled by anything else. A panic ends only its own task.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use tokio::task::unconstrained;

use super::turns::Turns;

/// Time that clients may use in one turn. Then peers are served before any other client. The time
/// begins with the first clock reading, so under the heaviest load a confirm frame waits for this
/// time and that of twice [`CLIENTS_PER_LOOK`] clients. Connections of HTTP/3 have as much again.
pub(crate) const TURN_MAX: Duration = Duration::from_micros(500);
/// Clients that are served between two clock readings. Most clients take microseconds, and a clock
/// reading costs a hundredth of that.
const CLIENTS_PER_LOOK: u32 = 4;

type Work = Pin<Box<dyn Future<Output = ()>>>;

/// The tasks of one worker. Only its thread uses them, but they may be woken by any thread.
#[derive(Default)]
pub(crate) struct ClientTasks {
    slots: RefCell<Slots>,
    ready: Arc<Ready>,
}

#[derive(Default)]
struct Slots {
    /// The tasks that have not ended. A slot is empty while its task runs, and after its end.
    tasks: Vec<Option<Entry>>,
    free: Vec<usize>,
    /// Number of tasks so far.
    spawned: u64,
}

struct Entry {
    id: u64,
    work: Work,
    waker: Waker,
}

/// The tasks that are ready.
#[derive(Default)]
struct Ready {
    /// The task that has waited longest comes first.
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Arc<Task>>,
    /// Wakes [`ClientTasks::run`] when a task becomes ready; absent while it runs, and while it
    /// waits for the next turn.
    runner: Option<Waker>,
    /// Whether the tasks were dropped: nothing is queued any more.
    is_closed: bool,
}

/// What wakes a task.
struct Task {
    slot: usize,
    /// Tells the task from others that use the slot later.
    id: u64,
    is_queued: AtomicBool,
    ready: Arc<Ready>,
}

impl ClientTasks {
    /// Adds a task, which is ready at once.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + 'static) {
        // Tokio limits what a task may do in one poll. All these tasks would share one limit,
        // because they run in one task of tokio. Each must limit itself instead: connections by
        // `TURNS_MAX`, hyper in its own loop, and the wait for a client's last bytes.
        let work: Work = Box::pin(unconstrained(work));
        let task = {
            let mut slots = self.slots.borrow_mut();
            let slot = slots.free.pop().unwrap_or_else(|| {
                slots.tasks.push(None);
                slots.tasks.len() - 1
            });
            slots.spawned += 1;
            let (id, is_queued) = (slots.spawned, AtomicBool::new(false));
            let task = Arc::new(Task { slot, id, is_queued, ready: self.ready.clone() });
            slots.tasks[slot] = Some(Entry { id, work, waker: task.clone().into() });
            task
        };
        task.wake();
    }

    /// Runs the tasks that are ready, in each turn for a limited time. Never ends.
    pub(super) async fn run(&self, turns: &Turns) {
        loop {
            poll_fn(|context| self.poll_ready(context, Instant::now)).await;
            turns.next().await;
        }
    }

    /// Runs tasks until none is ready, or their time in this turn is used up. Ready in the second
    /// case.
    fn poll_ready(&self, context: &Context<'_>, mut now: impl FnMut() -> Instant) -> Poll<()> {
        let (mut began, mut served) = (None, 0_u32);
        while let Some(task) = self.ready.next(context) {
            self.poll(&task);
            served += 1;
            if served.is_multiple_of(CLIENTS_PER_LOOK) {
                let now = now();
                if now.saturating_duration_since(*began.get_or_insert(now)) >= TURN_MAX {
                    return Poll::Ready(());
                }
            }
        }
        Poll::Pending
    }

    /// Polls a task, and forgets it if it has ended.
    fn poll(&self, task: &Task) {
        // The flag is cleared before the poll, so that a wake-up during the poll counts. This also
        // shows the task all that its waker wrote before.
        task.is_queued.swap(false, Ordering::AcqRel);
        let Some(mut entry) = self.take(task) else { return };
        let polled = catch_unwind(AssertUnwindSafe(|| {
            entry.work.as_mut().poll(&mut Context::from_waker(&entry.waker))
        }));
        if let Ok(Poll::Pending) = polled {
            self.slots.borrow_mut().tasks[task.slot] = Some(entry);
            return;
        }
        let _ = catch_unwind(AssertUnwindSafe(|| drop(entry)));
        self.slots.borrow_mut().free.push(task.slot);
    }

    /// Takes a task out of its slot; `None` if it has ended.
    fn take(&self, task: &Task) -> Option<Entry> {
        let slot = &mut self.slots.borrow_mut().tasks[task.slot];
        slot.take_if(|entry| entry.id == task.id)
    }

    /// Drops all tasks. Wake-ups have no effect any more.
    pub(super) fn clear(&self) {
        let queued = {
            let mut queue = self.ready.lock();
            queue.is_closed = true;
            (queue.runner.take(), std::mem::take(&mut queue.tasks))
        };
        drop(queued);
        loop {
            let entry = self.slots.borrow_mut().tasks.pop();
            let Some(entry) = entry else { break };
            // A task that is dropped may add others.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(entry)));
        }
        self.slots.borrow_mut().free.clear();
    }
}

impl Ready {
    /// Takes the task that has waited longest. If there is none, the next task that becomes ready
    /// wakes `context`.
    fn next(&self, context: &Context<'_>) -> Option<Arc<Task>> {
        let mut queue = self.lock();
        let next = queue.tasks.pop_front();
        queue.runner = next.is_none().then(|| context.waker().clone());
        next
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // As `poll` does, this always writes the flag. A task that only read it could see a value
        // from before the poll that is running.
        if self.is_queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let runner = {
            let mut queue = self.ready.lock();
            if queue.is_closed {
                return;
            }
            queue.tasks.push_back(self.clone());
            queue.runner.take()
        };
        if let Some(runner) = runner {
            runner.wake();
        }
    }
}

impl fmt::Debug for ClientTasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTasks").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    /// Runs the tasks for one turn at a clock that only the tasks move. Returns whether the turn
    /// ended before all were served.
    fn turn(tasks: &ClientTasks, clock: &Cell<Instant>) -> bool {
        let context = Context::from_waker(Waker::noop());
        tasks.poll_ready(&context, || clock.get()).is_ready()
    }

    /// Adds a client that always wants to be served again, each time for the time `each`. Returns
    /// how often it was served.
    fn greedy(tasks: &ClientTasks, clock: &Rc<Cell<Instant>>, each: Duration) -> Rc<Cell<u64>> {
        let served = Rc::new(Cell::new(0));
        let (clock, count) = (clock.clone(), served.clone());
        tasks.spawn(poll_fn(move |context| {
            clock.set(clock.get() + each);
            count.set(count.get() + 1);
            context.waker().wake_by_ref();
            Poll::Pending
        }));
        served
    }

    #[test]
    fn clients_that_were_just_served_do_not_come_before_those_that_wait() {
        for (count, each_us) in [(32, 90), (9, 600), (300, 20), (2, 5000)] {
            let (tasks, clock) = (ClientTasks::default(), Rc::new(Cell::new(Instant::now())));
            let each = Duration::from_micros(each_us);
            let served: Vec<_> = (0..count).map(|_| greedy(&tasks, &clock, each)).collect();
            for _ in 0..1000 {
                assert!(turn(&tasks, &clock), "they never have enough");
            }
            let served: Vec<_> = served.iter().map(|it| it.get()).collect();
            let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
            assert!(*least >= 10 && most - least <= 1, "{served:?}");
        }
    }

    #[test]
    fn clients_that_want_more_than_a_turn_has_leave_the_next_one_to_peers() {
        for each in [1, 50, 100, 300, 1000].map(Duration::from_micros) {
            let (tasks, clock) = (ClientTasks::default(), Rc::new(Cell::new(Instant::now())));
            let _served = greedy(&tasks, &clock, each);
            for _ in 0..3 {
                let began = clock.get();
                assert!(turn(&tasks, &clock));
                let spent = clock.get() - began;
                // Time is counted from the first clock reading. Up to `CLIENTS_PER_LOOK` clients
                // run before it, and as many before the last reading.
                assert!(spent <= TURN_MAX + each * 2 * CLIENTS_PER_LOOK, "{each:?}: {spent:?}");
                assert!(spent >= TURN_MAX, "{each:?}: {spent:?}");
            }
        }
    }

    #[test]
    fn the_clock_is_read_for_few_clients() {
        let (tasks, clock) = (ClientTasks::default(), Rc::new(Cell::new(Instant::now())));
        for _ in 0..=3 * CLIENTS_PER_LOOK {
            tasks.spawn(std::future::pending());
        }
        let mut looks = 0;
        let look = || {
            looks += 1;
            clock.get()
        };
        assert!(tasks.poll_ready(&Context::from_waker(Waker::noop()), look).is_pending());
        assert_eq!(looks, 3);
    }

    #[derive(Default)]
    struct Wakes(std::sync::atomic::AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_first_client_that_is_ready_wakes_the_event_loop_once() {
        let (tasks, clock) = (ClientTasks::default(), Instant::now());
        let counted = Arc::new(Wakes::default());
        let event_loop = Waker::from(counted.clone());
        let context = Context::from_waker(&event_loop);
        let clients = Rc::new(RefCell::new(Vec::new()));
        for _ in 0..3 {
            let own = clients.clone();
            tasks.spawn(poll_fn(move |context| {
                own.borrow_mut().push(context.waker().clone());
                Poll::Pending
            }));
        }
        for round in 1..4 {
            assert!(tasks.poll_ready(&context, || clock).is_pending());
            let ready = std::mem::take(&mut *clients.borrow_mut());
            assert_eq!(ready.len(), 3, "each is served once");
            ready.iter().chain(&ready).for_each(Waker::wake_by_ref);
            assert_eq!(counted.0.load(Ordering::Relaxed), round);
        }
    }

    #[test]
    fn a_client_that_has_gone_is_never_served_again_and_leaves_its_slot() {
        let (tasks, clock) = (ClientTasks::default(), Cell::new(Instant::now()));
        let old = Rc::new(RefCell::new(None));
        let kept = old.clone();
        tasks.spawn(poll_fn(move |context| {
            // It is ready again at the moment of its end.
            context.waker().wake_by_ref();
            *kept.borrow_mut() = Some(context.waker().clone());
            Poll::Ready(())
        }));
        assert!(!turn(&tasks, &clock));
        let polls = Rc::new(Cell::new(0));
        let count = polls.clone();
        tasks.spawn(poll_fn(move |_| {
            count.set(count.get() + 1);
            Poll::Pending
        }));
        assert_eq!(tasks.slots.borrow().tasks.len(), 1, "the slot is used again");
        old.borrow().as_ref().unwrap().wake_by_ref();
        assert!(!turn(&tasks, &clock));
        old.borrow().as_ref().unwrap().wake_by_ref();
        assert!(!turn(&tasks, &clock));
        assert_eq!(polls.get(), 1, "a waker of the old client wakes nobody");
        tasks.clear();
        old.borrow().as_ref().unwrap().wake_by_ref();
        assert_eq!(tasks.ready.lock().tasks.len(), 0, "nothing is queued any more");
    }

    /// Panics when it is dropped.
    struct Fragile;
    impl Drop for Fragile {
        fn drop(&mut self) {
            panic!("on purpose: a client's task panics at its end");
        }
    }

    #[test]
    fn a_client_that_panics_ends_alone() {
        let (tasks, clock) = (ClientTasks::default(), Cell::new(Instant::now()));
        let served = Rc::new(Cell::new(false));
        let other = served.clone();
        tasks.spawn(async { panic!("on purpose: a client's task panics") });
        tasks.spawn(async { drop(Fragile) });
        let fragile = Fragile;
        tasks.spawn(async move {
            let _fragile = fragile;
            poll_fn(|_| Poll::Ready(())).await;
        });
        tasks.spawn(async move { other.set(true) });
        assert!(!turn(&tasks, &clock));
        assert!(served.get());
        assert_eq!(tasks.slots.borrow().free.len(), 4);
    }

    #[test]
    fn a_task_that_is_dropped_may_add_and_wake_others() {
        /// Adds a task when it is dropped.
        struct Heir(Rc<ClientTasks>, u32);
        impl Drop for Heir {
            fn drop(&mut self) {
                if self.1 > 0 {
                    let heir = Heir(self.0.clone(), self.1 - 1);
                    self.0.spawn(async move {
                        let _heir = heir;
                        std::future::pending::<()>().await;
                    });
                }
            }
        }
        let tasks = Rc::new(ClientTasks::default());
        drop(Heir(tasks.clone(), 5));
        tasks.clear();
        assert_eq!(Rc::strong_count(&tasks), 1, "no task is left");
        assert!(!turn(&tasks, &Cell::new(Instant::now())));
    }
}
