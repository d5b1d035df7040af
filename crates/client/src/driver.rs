//! The task that carries calls out over the native protocol: it keeps a connection to the leader,
//! sends what callers wait for, and gives out what comes. Whom to ask and which answers to believe
//! is the session's to say; who waits for what is kept by the waiters.
//!
//! It connects when somebody asks, and keeps the connection with pings. While a request is under
//! way, callers gather in the next one; while none is, a call is sent at once. A request that was
//! refused or lost is asked for again for those who still wait: timestamps that nobody gets are
//! only skipped. `conversation` is what is said over one connection, `hedge` the second one.

mod conversation;
mod hedge;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use epicepoch_wire::http::{ErrorCode, cluster_header};
use epicepoch_wire::native::{COUNT_MAX, TO_CLIENT_TAIL_LEN_MAX, ToClient, Welcome, split};
use epicepoch_wire::{NodeId, TimestampRange};
use tokio::sync::Notify;
use tracing::Instrument as _;

use crate::client::now;
use crate::dial::Dialer;
use crate::error::{Setback, TimestampsError};
use crate::link::{Link, NoLink, foreign, lost};
use crate::members::is_address;
use crate::observer::Observer;
use crate::session::{Session, Setbacks};
use crate::waiters::{Batch, Waiters};
use conversation::{Conversation, IN_FLIGHT_MAX};
use hedge::Hedge;

/// What callers and the driver share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) waiters: Mutex<Waiters>,
    pub(crate) session: Arc<Mutex<Session>>,
    pub(crate) attempt_timeout: Duration,
    pub(crate) refresh_interval: Duration,
    pub(crate) hedge_after: Option<Duration>,
    /// The cluster name that nodes must have.
    pub(crate) cluster_name: Option<String>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    /// Opens connections of the native protocol.
    pub(crate) dialer: Dialer,
    /// Rung when a caller opens a batch, and when the client is dropped.
    pub(crate) bell: Notify,
    /// The last client was dropped.
    pub(crate) is_closed: AtomicBool,
    /// A driver runs.
    pub(crate) is_driven: AtomicBool,
}

impl Core {
    /// Held only while deciding, never across an await.
    pub(crate) fn waiters(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Learns the members anew from the node at `addr`: to be greeted is to be told who they are.
    async fn refresh(self: Arc<Self>, addr: String) {
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

    /// Starts a driver if none runs.
    ///
    /// # Errors
    /// Outside of a tokio runtime.
    pub(crate) fn ensure_driven(self: &Arc<Self>) -> Result<(), TimestampsError> {
        if self.is_driven.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            self.is_driven.store(false, Ordering::Release);
            return Err(TimestampsError::Stopped);
        };
        runtime.spawn(Driver::new(self.clone()).run());
        Ok(())
    }
}

/// See the module.
struct Driver {
    core: Arc<Core>,
    setbacks: Setbacks,
    /// Those to wake once nothing is locked.
    wakers: Vec<Waker>,
    last_id: u64,
    /// The node that was connected to last.
    node: NodeId,
}

/// Dropped with the driver, however it ends: nobody is left to wait for nothing.
impl Drop for Driver {
    fn drop(&mut self) {
        let mut waiters = self.core.waiters();
        waiters.stop(&mut self.wakers);
        // Under the lock: who enters later finds no driver and starts one.
        self.core.is_driven.store(false, Ordering::Release);
        drop(waiters);
        self.wake();
    }
}

/// What a node allows on a connection.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Silence after which the node closes it.
    idle: Duration,
    /// Requests that the node reads ahead of its answers.
    in_flight_max: usize,
    /// Largest count of a request, timestamps.
    count_max: u64,
}

impl Limits {
    fn of(welcome: &Welcome) -> Self {
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

/// What to do with a connection after a frame.
#[derive(Debug)]
enum Next {
    Stay,
    /// It still leads; send nothing for a moment. Only inside of a conversation.
    Pause(Setback),
    /// Another node leads, as this one says.
    Follow {
        by: String,
        leader: String,
    },
    /// The leader answers there.
    Switch(String),
    /// Nothing more comes from here.
    Leave(Setback),
    /// Something is wrong that no retry heals.
    Fail(TimestampsError),
}

impl Next {
    /// Of what comes in one piece, the heaviest counts, and of equals the first: that a leader is
    /// overloaded says nothing once it says that it leads no more.
    fn weight(&self) -> u8 {
        match self {
            Self::Stay => 0,
            Self::Pause(_) => 1,
            Self::Follow { .. } | Self::Switch(_) | Self::Leave(_) => 2,
            Self::Fail(_) => 3,
        }
    }
}

impl Driver {
    fn new(core: Arc<Core>) -> Self {
        Self {
            core,
            setbacks: Setbacks::default(),
            wakers: Vec::new(),
            last_id: 0,
            node: NodeId(0),
        }
    }

    /// Until the client is dropped.
    async fn run(mut self) {
        while !self.core.is_closed.load(Ordering::Acquire) {
            if !self.core.waiters().is_wanted() {
                self.core.bell.notified().await;
                continue;
            }
            let next = match self.connect().await {
                Ok((addr, link, limits)) => {
                    // For the whole connection: a call has no span of its own.
                    let span = tracing::debug_span!("connection", addr, node = self.node.0);
                    let hedge = self.hedge();
                    Conversation::new(&mut self, &addr, link, limits, hedge)
                        .run()
                        .instrument(span)
                        .await
                }
                Err(next) => next,
            };
            self.turn(next).await;
        }
    }

    /// Connects to whom the session names. The node that is reached must lead.
    async fn connect(&mut self) -> Result<(String, Link, Limits), Next> {
        let addr = {
            let mut session = self.core.session();
            let leader = session.leader().map(str::to_owned);
            leader.unwrap_or_else(|| session.next_address())
        };
        let (link, welcome) = self.open(&addr).await?;
        match self.learn(&addr, &welcome) {
            Ok(()) => {}
            Err(Next::Leave(setback @ Setback::NoLeader { .. })) => {
                return Err(self.listen(&addr, link, welcome.node, setback).await);
            }
            Err(next) => return Err(next),
        }
        self.node = welcome.node;
        tracing::debug!(addr, node = welcome.node.0, "connected to the leader");
        if let Some(observer) = &self.core.observer {
            observer.connected(&addr);
        }
        Ok((addr, link, Limits::of(&welcome)))
    }

    /// Waits before the next attempt at a node that knows no leader: it tells when it learns of
    /// one.
    async fn listen(&mut self, addr: &str, mut link: Link, node: NodeId, setback: Setback) -> Next {
        self.core.session().note_setback(&setback, now());
        let until = self.note(setback, 0);
        let mut tick = until.min(now() + TICK);
        while now() < until && !self.core.is_closed.load(Ordering::Acquire) {
            // Also when the node never stops talking.
            if now() >= tick {
                self.expire();
                tick = until.min(now() + TICK);
            }
            let exchanged = tokio::select! {
                exchanged = link.exchange() => exchanged,
                () = tokio::time::sleep_until(tick.into()) => continue,
            };
            if let Err(error) = exchanged {
                return Next::Leave(lost(addr, &error));
            }
            let mut taken = 0;
            while let Ok(Some(frame)) = split(&link.received()[taken..], TO_CLIENT_TAIL_LEN_MAX) {
                taken += frame.len();
                match ToClient::decode(&frame) {
                    Ok(ToClient::Leader(leader)) if leader.node == node => {
                        return Next::Switch(addr.to_owned());
                    }
                    Ok(ToClient::Leader(leader)) if is_address(leader.addr) => {
                        let leader = leader.addr.to_owned();
                        return Next::Follow { by: addr.to_owned(), leader };
                    }
                    Ok(ToClient::Leader(_) | ToClient::Pong(_) | ToClient::Unknown) => {}
                    Ok(_) => return Next::Leave(lost(addr, &"it has more to say than who leads")),
                    Err(error) => return Next::Fail(foreign(addr, &error.to_string()).into()),
                }
            }
            link.consume(taken);
        }
        Next::Stay
    }

    /// Opens a connection; deadlines come meanwhile.
    async fn open(&mut self, addr: &str) -> Result<(Link, Welcome), Next> {
        let core = self.core.clone();
        let link = Link::open(&core.dialer, addr, core.cluster_name.as_deref());
        let opening = tokio::time::timeout(core.attempt_timeout, link);
        let mut opening = pin!(opening);
        let opened = loop {
            tokio::select! {
                opened = &mut opening => break opened,
                () = tokio::time::sleep(TICK) => self.expire(),
            }
        };
        match opened {
            Ok(Ok(opened)) => Ok(opened),
            Ok(Err(NoLink::Setback(setback))) => Err(Next::Leave(setback)),
            Ok(Err(NoLink::AnotherCluster(found))) => {
                Err(Next::Fail(core.session().another_cluster(addr, found).into()))
            }
            Ok(Err(NoLink::Bad(bad))) => Err(Next::Fail(bad.into())),
            Err(_elapsed) => Err(Next::Leave(Setback::Silent { addr: addr.to_owned() })),
        }
    }

    /// Takes in whom a welcome comes from.
    fn learn(&mut self, addr: &str, welcome: &Welcome) -> Result<(), Next> {
        let mut session = self.core.session();
        let name = &welcome.cluster_name;
        session.check_name(addr, name).map_err(|error| Next::Fail(error.into()))?;
        let Some((cluster, history)) = welcome.cluster else {
            let (addr, code) = (addr.to_owned(), ErrorCode::NotReady);
            return Err(Next::Leave(Setback::Refused { addr, code }));
        };
        let cluster = cluster_header(cluster, history);
        session.check_cluster(addr, Some(&cluster)).map_err(|error| Next::Fail(error.into()))?;
        let leader = welcome.leader.as_ref().filter(|leader| is_address(&leader.addr));
        session.learn_members(member_addrs(welcome));
        session.forget_any_leader();
        match leader {
            // Reached under another name, maybe the only one that leads there from here.
            Some(leader) if leader.node == welcome.node => {
                session.set_leader(addr.to_owned());
                Ok(())
            }
            Some(leader) => Err(Next::Follow { by: addr.to_owned(), leader: leader.addr.clone() }),
            None => Err(Next::Leave(Setback::NoLeader { addr: addr.to_owned() })),
        }
    }

    /// Turns to another node, after a while if that is wise, and tells callers what no retry
    /// heals.
    async fn turn(&mut self, next: Next) {
        match next {
            Next::Stay => {}
            Next::Switch(addr) => self.core.session().set_leader(addr),
            Next::Follow { by, leader } => {
                let is_suspect = self.core.session().is_suspect(&leader, now());
                if !is_suspect && self.setbacks.hop() {
                    return self.core.session().set_leader(leader);
                }
                // It does not know better yet, or they send each other round.
                self.core.session().forget_leader(&by);
                self.pause(Setback::NoLeader { addr: by }).await;
            }
            Next::Leave(setback) | Next::Pause(setback) => {
                self.core.session().note_setback(&setback, now());
                self.pause(setback).await;
            }
            Next::Fail(error) => {
                tracing::error!(%error, "the oracle, or what is in its place, must not be believed");
                self.core.session().forget_any_leader();
                self.core.waiters().fail_open(&error, &mut self.wakers);
                self.wake();
            }
        }
    }

    /// Waits after a setback; deadlines come meanwhile.
    async fn pause(&mut self, setback: Setback) {
        let until = self.note(setback, 0);
        while now() < until && !self.core.is_closed.load(Ordering::Acquire) {
            tokio::time::sleep_until(until.min(now() + TICK).into()).await;
            self.expire();
        }
    }

    /// Notes a setback, as if there had been `least` before; returns until when to wait.
    fn note(&mut self, setback: Setback, least: u32) -> Instant {
        tracing::debug!(%setback, "asking again");
        if let Some(observer) = &self.core.observer {
            observer.setback(&setback);
        }
        now() + self.setbacks.note(&mut self.core.session(), setback, least)
    }

    /// Gives a range out that was checked, `at` the time when it was asked for first.
    fn give_out(&mut self, batch: Batch, range: TimestampRange, at: Instant) {
        let setbacks = std::mem::take(&mut self.setbacks);
        self.core.session().note_returned(range.last());
        let now = now();
        if let Some(observer) = &self.core.observer {
            observer.answered(batch.callers(), range.count(), now.saturating_duration_since(at));
        }
        let mut waiters = self.core.waiters();
        waiters.answer(batch, range, now, setbacks.last(), &mut self.wakers);
    }

    fn hedge(&self) -> Option<Hedge> {
        let name = self.core.cluster_name.clone();
        let dialer = self.core.dialer.clone();
        let patience = self.core.attempt_timeout;
        self.core.hedge_after.map(|after| Hedge::new(after, patience, name, dialer))
    }

    fn expire(&mut self) {
        self.note_expired();
        self.wake();
    }

    /// Tells those whose deadline has come, and leaves waking them to the caller.
    fn note_expired(&mut self) {
        let last = self.setbacks.last();
        self.core.waiters().expire(now(), last, &mut self.wakers);
    }

    fn wake(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }

    /// Wakes the first of those who were told something, and returns whether others are left. To
    /// wake thousands, and what they do then, takes longer than a round trip: what the first of
    /// them ask for next goes out meanwhile.
    fn wake_some(&mut self) -> bool {
        let waiting = self.wakers.len();
        let some = waiting.min(WAKE_AT_ONCE.max(waiting / IN_FLIGHT_MAX));
        self.wakers.drain(..some).for_each(Waker::wake);
        !self.wakers.is_empty()
    }
}

fn member_addrs(welcome: &Welcome) -> Vec<String> {
    let addrs = welcome.members.iter().map(|member| member.addr.clone());
    addrs.filter(|addr| is_address(addr)).collect()
}

/// Callers that are woken before requests are sent again, if they are not more than can be woken
/// before each of the requests that may be in flight.
const WAKE_AT_ONCE: usize = 256;
/// How often deadlines and silent nodes are looked for while somebody waits.
const TICK: Duration = Duration::from_millis(5);
/// Idle limit of a node that names none.
const IDLE_MS_DEFAULT: u32 = 120_000;
/// Shortest idle limit of a node that is believed.
const IDLE_MS_MIN: u32 = 300;
