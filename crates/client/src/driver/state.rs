//! The state of the driver, and the steps that its loop and its conversations share: record
//! setbacks, enforce deadlines, give answers to callers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use epicepoch_wire::http::cluster_header;
use epicepoch_wire::native::{COUNT_MAX, Welcome};
use epicepoch_wire::{NodeId, Timestamp, TimestampRange};
use tokio::sync::Notify;

use crate::clock::now;
use crate::dial::Dialer;
use crate::error::{Setback, TimestampsError};
use crate::link::{Link, foreign};
use crate::members::is_address;
use crate::observer::Observer;
use crate::session::{Session, Setbacks};
use crate::waiters::{Batch, Waiters};
/// The state that callers and the driver share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) waiters: Mutex<Waiters>,
    pub(crate) session: Arc<Mutex<Session>>,
    pub(crate) attempt_timeout: Duration,
    pub(crate) refresh_interval: Duration,
    pub(crate) hedge_after: Option<Duration>,
    /// The required cluster name.
    pub(crate) cluster_name: Option<String>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    /// Opens connections of the native protocol.
    pub(crate) dialer: Dialer,
    /// Notified when a caller opens a batch, and when the client is dropped.
    pub(crate) notify: Notify,
    /// Whether the last client was dropped.
    pub(crate) is_closed: AtomicBool,
    /// Whether a driver runs.
    pub(crate) is_driven: AtomicBool,
}

impl Core {
    /// The lock is held only for a decision, never across an await.
    pub(crate) fn waiters(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Learns the members again, from a new welcome of the node at `addr`.
    pub(super) async fn refresh(self: Arc<Self>, addr: String) {
        let link = Link::open(&self.dialer, &addr, self.cluster_name.as_deref());
        let opening = tokio::time::timeout(self.attempt_timeout, link);
        let Ok(Ok((_, welcome))) = opening.await else { return };
        let mut session = self.session();
        if let Some((cluster, history)) = welcome.cluster
            && session.check_name(&addr, &welcome.cluster_name).is_ok()
            && session.check_cluster(&addr, Some(&cluster_header(cluster, history))).is_ok()
        {
            session.learn_members(member_addrs(&welcome));
        }
    }
}

/// A sent request, to check its answer over either connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) id: u64,
    pub(super) total: u64,
    /// The highest timestamp returned before this sending. The answer must lie above it.
    pub(super) floor: Option<Timestamp>,
    pub(super) at: Instant,
}

impl Asked {
    /// Checks that `range` can be the answer of the node at `addr`.
    pub(super) fn check(&self, addr: &str, range: TimestampRange) -> Result<(), TimestampsError> {
        if range.count() != self.total {
            let what = format!("{} timestamps instead of {}", range.count(), self.total);
            return Err(foreign(addr, &what).into());
        }
        match self.floor {
            Some(floor) if range.first() <= floor => {
                let (addr, answer) = (addr.to_owned(), range.first());
                Err(TimestampsError::WentBackwards { addr, floor, answer })
            }
            _ => Ok(()),
        }
    }
}

/// The task that serves the callers.
pub(super) struct Driver {
    pub(super) core: Arc<Core>,
    pub(super) setbacks: Setbacks,
    /// Callers to wake when no lock is held.
    pub(super) wakers: Vec<Waker>,
    pub(super) last_id: u64,
    /// The node of the last connection.
    pub(super) node: NodeId,
}

/// When the driver ends, for any reason, it stops the waiting callers.
impl Drop for Driver {
    fn drop(&mut self) {
        let mut waiters = self.core.waiters();
        waiters.stop(&mut self.wakers);
        // This is set while the lock is held, so a later caller finds no driver and starts one.
        self.core.is_driven.store(false, Ordering::Release);
        drop(waiters);
        self.wake();
    }
}

/// The limits that a node sets for a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// How long a connection may be silent before the node closes it.
    pub(super) idle: Duration,
    /// How many requests the node reads before it answers.
    pub(super) in_flight_max: usize,
    /// Most timestamps in one request.
    pub(super) count_max: u64,
}

impl Limits {
    pub(super) fn of(welcome: &Welcome) -> Self {
        let idle_ms = match welcome.idle_ms {
            0 => IDLE_MS_DEFAULT,
            idle_ms => idle_ms.max(IDLE_MS_MIN),
        };
        Self {
            idle: Duration::from_millis(u64::from(idle_ms)),
            in_flight_max: welcome.in_flight_max as usize,
            count_max: welcome.count_max.min(COUNT_MAX),
        }
    }
}

/// The next step after a frame.
#[derive(Debug)]
pub(super) enum Next {
    Stay,
    /// The node still leads, but send nothing for a moment. Only inside a conversation.
    Pause(Setback),
    /// This node says that another one leads.
    Follow {
        by: String,
        leader: String,
    },
    /// The leader answers at this address.
    Switch(String),
    /// Leave this node.
    Leave(Setback),
    /// Fail the callers, because no retry helps.
    Fail(TimestampsError),
}

impl Next {
    /// Of several steps the heaviest one is taken; of equal ones, the first. For example, an
    /// overload does not matter once the node says that it no longer leads.
    pub(super) fn weight(&self) -> u8 {
        match self {
            Self::Stay => 0,
            Self::Pause(_) => 1,
            Self::Follow { .. } | Self::Switch(_) | Self::Leave(_) => 2,
            Self::Fail(_) => 3,
        }
    }
}

impl Driver {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self {
            core,
            setbacks: Setbacks::default(),
            wakers: Vec::new(),
            last_id: 0,
            node: NodeId(0),
        }
    }

    /// Records a setback and returns the end of the wait. It counts as at least the `least`th
    /// setback in a row.
    pub(super) fn record_setback(&mut self, setback: Setback, least: u32) -> Instant {
        tracing::debug!(%setback, "asking again");
        if let Some(observer) = &self.core.observer {
            observer.setback(&setback);
        }
        now() + self.setbacks.record(&mut self.core.session(), setback, least)
    }

    /// Gives a checked range to its callers. `at` is when the request was first sent.
    pub(super) fn give_out(&mut self, batch: Batch, range: TimestampRange, at: Instant) {
        let setbacks = std::mem::take(&mut self.setbacks);
        self.core.session().record_returned(range.last());
        let now = now();
        if let Some(observer) = &self.core.observer {
            observer.answered(batch.callers(), range.count(), now.saturating_duration_since(at));
        }
        let mut waiters = self.core.waiters();
        waiters.answer(batch, range, now, setbacks.last(), &mut self.wakers);
    }

    pub(super) fn expire(&mut self) {
        self.record_expired();
        self.wake();
    }

    /// Fails the callers whose deadline has passed. The driver wakes them later.
    pub(super) fn record_expired(&mut self) {
        let last = self.setbacks.last();
        self.core.waiters().expire(now(), last, &mut self.wakers);
    }

    pub(super) fn wake(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }

    /// Wakes some of the callers that are to be woken. Returns whether any are left. Waking
    /// thousands takes longer than a round trip, so the next requests of the first callers are sent
    /// meanwhile.
    pub(super) fn wake_some(&mut self) -> bool {
        let waiting = self.wakers.len();
        let some = waiting.min(WAKE_AT_ONCE.max(waiting / IN_FLIGHT_MAX));
        self.wakers.drain(..some).for_each(Waker::wake);
        !self.wakers.is_empty()
    }
}

pub(super) fn member_addrs(welcome: &Welcome) -> Vec<String> {
    let addrs = welcome.members.iter().map(|member| member.addr.clone());
    addrs.filter(|addr| is_address(addr)).collect()
}

/// How many callers are woken at once. More are woken if otherwise not all could be woken before
/// the requests in flight are answered.
const WAKE_AT_ONCE: usize = 256;
/// Most requests in flight on a connection. With one, a caller would first wait for a round trip
/// that it cannot join. With many, requests would be too small to save work.
pub(super) const IN_FLIGHT_MAX: usize = 4;
/// Time between two checks for deadlines and silent nodes, while a caller waits.
pub(super) const TICK: Duration = Duration::from_millis(5);
/// Idle limit of a node whose welcome names none.
const IDLE_MS_DEFAULT: u32 = 120_000;
/// Shortest idle limit that the client accepts from a node.
const IDLE_MS_MIN: u32 = 300;
