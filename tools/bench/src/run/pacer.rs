//! Decides when the next request of a generator thread is due. In an open loop the times are fixed
//! before the run and never move. If a connection becomes free late, it sends the oldest due
//! request, and the latency counts from its due time (G. Tene, "How NOT to Measure Latency":
//! coordinated omission).
//!
//! tokio's timer has a resolution of 1 ms, so the pacer uses a `timerfd`. It never sends anything.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use super::config::{Arrivals, Pace, RunConfig};
use super::window::Window;

/// Permission to send one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket {
    /// When the request is due. Latency counts from here.
    pub(super) intended: Instant,
    /// Whether a connection was free when the request was due. If not, the service caused the wait.
    pub(super) in_time: bool,
    /// How late the generator thread was, if it was delayed when the request was due; otherwise
    /// `None`.
    pub(super) stood_still: Option<Duration>,
    /// When the request times out. Set when it is first sent.
    pub(super) deadline: Option<Instant>,
}

/// Gives out tickets in the order of their due times.
pub(super) struct Pacer {
    schedule: RefCell<Schedule>,
    /// Wakers of tasks that wait for a time, in the order of these times. A waker stays until its
    /// time even if its task no longer waits, so there may be more wakers than open requests.
    waiting: RefCell<VecDeque<(Instant, Waker)>>,
    timer: AsyncFd<OwnedFd>,
    window: Window,
    /// Start and end of the last period in which the thread was late although a connection was
    /// free.
    stood_still: Cell<Option<(Instant, Instant)>>,
}

impl Pacer {
    /// Makes the pacer of thread number `thread`. It needs a tokio runtime with IO.
    pub(super) fn new(config: &RunConfig, window: Window, thread: usize) -> io::Result<Rc<Self>> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        // This call is deprecated, because a type may give out a descriptor that it does not own.
        // This type is an `OwnedFd`, and the replacement is unsafe.
        #[allow(deprecated)]
        let timer = AsyncFd::new(timerfd_create(TimerfdClockId::Monotonic, flags)?)?;
        let schedule = RefCell::new(Schedule::new(config, window.began, thread));
        Ok(Rc::new(Self {
            schedule,
            waiting: RefCell::default(),
            timer,
            window,
            stood_still: Cell::default(),
        }))
    }

    /// Returns the next ticket, or `None` when the measurement is over.
    pub(super) fn claim_at(&self, now: Instant) -> Option<Ticket> {
        let mut schedule = self.schedule.borrow_mut();
        let intended = schedule.due(now);
        if now >= self.window.given_up || intended >= self.window.end {
            return None;
        }
        let closed = matches!(*schedule, Schedule::Closed);
        schedule.advance();
        let in_time = !closed && now <= intended;
        let stood_still = self.stood_still.get().filter(|_| !closed && !in_time);
        let stood_still = stood_still.filter(|(from, to)| *from <= intended && intended < *to);
        let stood_still = stood_still.map(|(_, to)| to - intended);
        Some(Ticket { intended, in_time, stood_still, deadline: None })
    }

    /// Records that the thread was delayed: a connection was free, but the request due at
    /// `intended` is sent only at `sent`. Requests that became due in between were delayed too,
    /// even if every connection is in use when their turn comes.
    pub(super) fn came_late(&self, intended: Instant, sent: Instant) {
        // Requests are claimed in the order of their due times. A request that is due after the
        // earlier period shows that this period is over, so the period is forgotten.
        let before = self.stood_still.get().filter(|(_, to)| intended <= *to);
        let from = before.map_or(intended, |(from, _)| from.min(intended));
        self.stood_still.set(Some((from, sent)));
    }

    /// Whether no more tickets will be given out.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.window.given_up || self.schedule.borrow().due(now) >= self.window.end
    }

    /// Waits until the ticket may be used. Cancel safe.
    pub(super) async fn due(&self, ticket: &Ticket) {
        if !ticket.in_time {
            return;
        }
        let mut queued = false;
        std::future::poll_fn(|context| {
            if Instant::now() >= ticket.intended {
                return Poll::Ready(());
            }
            if !queued {
                queued = true;
                self.queue(ticket.intended, context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    fn queue(&self, at: Instant, waker: Waker) {
        let mut waiting = self.waiting.borrow_mut();
        let place = waiting.partition_point(|(other, _)| *other <= at);
        waiting.insert(place, (at, waker));
        if place == 0 {
            self.arm(at);
        }
    }

    /// Wakes waiting tasks at their times, as long as this future is polled.
    pub(super) async fn keep_time(&self) {
        while let Ok(mut ready) = self.timer.readable().await {
            let _expirations = rustix::io::read(self.timer.get_ref(), &mut [0_u8; 8]);
            ready.clear_ready();
            let now = Instant::now();
            let mut waiting = self.waiting.borrow_mut();
            while waiting.front().is_some_and(|(at, _)| *at <= now) {
                let (_, waker) = waiting.pop_front().expect("it has a front");
                waker.wake();
            }
            if let Some((at, _)) = waiting.front() {
                self.arm(*at);
            }
        }
    }

    fn arm(&self, at: Instant) {
        let left = at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let value = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::empty(), &once)
            .expect("a timer of its own with a time in range can be set");
    }

    /// Counts the requests that were due after the warm-up and never claimed. Call it once, at the
    /// end.
    pub(super) fn unsent(&self) -> u64 {
        let mut schedule = self.schedule.borrow_mut();
        let mut unsent = 0;
        for _ in 0..UNSENT_MAX {
            let due = schedule.due(self.window.end);
            if due >= self.window.end {
                break;
            }
            unsent += u64::from(self.window.counts(due));
            schedule.advance();
        }
        unsent
    }
}

/// The times at which one thread's requests are due.
enum Schedule {
    Closed,
    Open {
        began: Instant,
        /// When the next request is due, in seconds after the time `began`.
        next: f64,
        /// Mean seconds between two requests of this thread.
        apart: f64,
        /// Number of the next request. `phase` is the first request's share of `apart`. Constant
        /// times are computed from both, so that rounding errors do not add up.
        number: f64,
        phase: f64,
        random: Option<fastrand::Rng>,
    },
}

impl Schedule {
    fn new(config: &RunConfig, began: Instant, thread: usize) -> Self {
        let Pace::Open { rate, arrivals } = config.pace else { return Self::Closed };
        let threads = config.threads_used() as f64;
        let apart = threads / rate;
        let random = match arrivals {
            Arrivals::Constant => None,
            Arrivals::Poisson => {
                Some(fastrand::Rng::with_seed(config.seed.wrapping_add(thread as u64)))
            }
        };
        let phase = thread as f64 / threads;
        let mut schedule = Self::Open { began, next: 0.0, apart, number: 0.0, phase, random };
        schedule.advance();
        schedule
    }

    fn advance(&mut self) {
        let Self::Open { next, apart, number, phase, random, .. } = self else { return };
        *next = match random {
            None => (*number + *phase) * *apart,
            // `1 - [0, 1)` is never 0, so the logarithm is finite.
            Some(random) => *next - (1.0 - random.f64()).ln() * *apart,
        };
        *number += 1.0;
    }

    /// When the next request is due. In a closed loop that is `now`.
    fn due(&self, now: Instant) -> Instant {
        match self {
            Self::Closed => now,
            Self::Open { began, next, .. } => *began + Duration::from_secs_f64(*next),
        }
    }
}

/// Unsent requests are counted up to this number, so that the count ends.
const UNSENT_MAX: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn times(arrivals: Arrivals, threads: usize) -> Vec<f64> {
        let mut config = RunConfig::new(Vec::new());
        config.pace = Pace::Open { rate: 1000.0, arrivals };
        config.threads = threads;
        let began = Instant::now();
        let mut all = Vec::new();
        for thread in 0..threads {
            let mut schedule = Schedule::new(&config, began, thread);
            while schedule.due(began) < began + Duration::from_secs(10) {
                all.push((schedule.due(began) - began).as_secs_f64());
                schedule.advance();
            }
        }
        all.sort_unstable_by(f64::total_cmp);
        all
    }

    #[test]
    fn constant_arrivals_of_all_threads_are_evenly_spread() {
        let times = times(Arrivals::Constant, 4);
        assert_eq!(times.len(), 10_000);
        for pair in times.windows(2) {
            assert!((pair[1] - pair[0] - 0.001).abs() < 1e-6, "{pair:?}");
        }
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_vary_as_they_should() {
        let times = times(Arrivals::Poisson, 4);
        let apart: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = apart.iter().sum::<f64>() / apart.len() as f64;
        let variance = apart.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / apart.len() as f64;
        assert!((mean / 0.001 - 1.0).abs() < 0.05, "{mean}");
        // The standard deviation of an exponential distribution is its mean.
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.1, "{}", variance.sqrt() / mean);
    }
}
