//! The task that carries calls out over the native protocol: it keeps a connection to the leader,
//! sends what callers wait for, and gives out what comes. Whom to ask and which answers to believe
//! is the session's to say; who waits for what is kept by the waiters.
//!
//! It connects when somebody asks, and keeps the connection with pings. While a request is under
//! way, callers gather in the next one; while none is, a call is sent at once. A request that was
//! refused or lost is asked for again for those who still wait: timestamps that nobody gets are
//! only skipped.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use epicepoch_wire::http::{ErrorCode, cluster_header};
use epicepoch_wire::native::message::{ping, pong};
use epicepoch_wire::native::{Request, ToClient, Welcome, split};
use epicepoch_wire::{NodeId, Timestamp, TimestampRange};
use tokio::sync::Notify;
use tokio::time::Sleep;

use crate::client::now;
use crate::error::{BadAnswer, Setback, TimestampsError};
use crate::link::{Link, NoLink, foreign, lost};
use crate::members::is_address;
use crate::observer::Observer;
use crate::session::{OVERLOADED_SETBACKS, Session, Setbacks};
use crate::waiters::{Batch, Waiters};

/// What callers and the driver share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) waiters: Mutex<Waiters>,
    pub(crate) session: Arc<Mutex<Session>>,
    pub(crate) attempt_timeout: Duration,
    pub(crate) refresh_interval: Duration,
    pub(crate) observer: Option<Arc<dyn Observer>>,
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
        let opening = tokio::time::timeout(self.attempt_timeout, Link::open(&addr));
        let Ok(Ok((_, welcome))) = opening.await else { return };
        let mut session = self.session();
        if let Some((cluster, history)) = welcome.cluster
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

/// A request that was sent.
#[derive(Debug)]
struct Sent {
    id: u64,
    batch: Batch,
    /// Highest timestamp returned before it was sent: its answer lies above.
    floor: Option<Timestamp>,
    at: Instant,
}

/// What to do with a connection after a frame.
#[derive(Debug)]
enum Next {
    Stay,
    /// It still leads; send nothing for a moment.
    Pause(Setback),
    /// Another node leads, as this one says.
    Follow {
        by: String,
        leader: String,
    },
    /// Nothing more comes from here.
    Leave(Setback),
    /// Something is wrong that no retry heals.
    Fail(TimestampsError),
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
                Ok((addr, link, idle)) => self.serve(&addr, link, idle).await,
                Err(next) => next,
            };
            self.turn(next).await;
        }
    }

    /// Connects to whom the session names. The node that is reached must lead.
    async fn connect(&mut self) -> Result<(String, Link, Duration), Next> {
        let addr = {
            let mut session = self.core.session();
            let leader = session.leader().map(str::to_owned);
            leader.unwrap_or_else(|| session.next_address())
        };
        let (link, welcome) = self.open(&addr).await?;
        self.learn(&addr, &welcome)?;
        self.node = welcome.node;
        tracing::debug!(addr, node = welcome.node.0, "connected to the leader");
        if let Some(observer) = &self.core.observer {
            observer.connected(&addr);
        }
        let idle = Duration::from_millis(u64::from(welcome.idle_ms.max(IDLE_MS_MIN)));
        Ok((addr, link, idle))
    }

    /// Opens a connection; deadlines come meanwhile.
    async fn open(&mut self, addr: &str) -> Result<(Link, Welcome), Next> {
        let opening = tokio::time::timeout(self.core.attempt_timeout, Link::open(addr));
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
            Ok(Err(NoLink::Bad(bad))) => Err(Next::Fail(bad.into())),
            Err(_elapsed) => Err(Next::Leave(Setback::Silent { addr: addr.to_owned() })),
        }
    }

    /// Takes in whom a welcome comes from.
    fn learn(&mut self, addr: &str, welcome: &Welcome) -> Result<(), Next> {
        let mut session = self.core.session();
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

    /// Turns to another node, after a while if that is wise, and tells callers what no retry heals.
    async fn turn(&mut self, next: Next) {
        match next {
            Next::Stay => {}
            Next::Follow { by, leader } => {
                let is_suspect = self.core.session().is_suspect(&leader, now());
                if !is_suspect && self.setbacks.hop() {
                    return self.core.session().set_leader(leader);
                }
                // It does not know better yet, or they send each other round.
                self.core.session().forget_leader(&by);
                self.pause(Setback::NoLeader { addr: by }, 0).await;
            }
            Next::Leave(setback) => {
                self.core.session().note_setback(&setback, now());
                self.pause(setback, 0).await;
            }
            Next::Pause(setback) => self.pause(setback, OVERLOADED_SETBACKS).await,
            Next::Fail(error) => {
                tracing::error!(%error, "the oracle, or what is in its place, must not be believed");
                self.core.session().forget_any_leader();
                self.core.waiters().fail_open(&error, &mut self.wakers);
                self.wake();
            }
        }
    }

    /// Waits after a setback; deadlines come meanwhile.
    async fn pause(&mut self, setback: Setback, least: u32) {
        tracing::debug!(%setback, "asking again");
        if let Some(observer) = &self.core.observer {
            observer.setback(&setback);
        }
        let until = {
            let mut session = self.core.session();
            now() + self.setbacks.note(&mut session, setback, least)
        };
        while now() < until && !self.core.is_closed.load(Ordering::Acquire) {
            tokio::time::sleep_until(until.min(now() + TICK).into()).await;
            self.expire();
        }
    }

    /// Sends and receives until the connection is of no more use.
    async fn serve(&mut self, addr: &str, mut link: Link, idle: Duration) -> Next {
        let mut sent: VecDeque<Sent> = VecDeque::with_capacity(IN_FLIGHT_MAX);
        let mut timer = pin!(tokio::time::sleep(TICK));
        let (mut pinged_at, mut refreshed_at) = (now(), now());
        let refresh = self.core.refresh_interval.max(TICK);
        let rest = (idle / 3).min(refresh);
        // The timer sleeps until the next ping. Whatever wakes the task may send what waits, so
        // it is looked for here and not where the bell rings.
        let mut is_resting = false;
        let next = loop {
            if self.core.is_closed.load(Ordering::Acquire) {
                break Next::Stay;
            }
            self.send(&mut link, &mut sent);
            if is_resting && !sent.is_empty() {
                is_resting = false;
                restart(timer.as_mut(), TICK);
            }
            let next = tokio::select! {
                biased;
                exchanged = link.exchange() => match exchanged {
                    Ok(()) => self.receive(addr, &mut link, &mut sent),
                    Err(error) => Next::Leave(lost(addr, &error)),
                },
                () = self.core.bell.notified() => Next::Stay,
                () = timer.as_mut() => {
                    self.expire();
                    is_resting = sent.is_empty();
                    if is_resting && now().saturating_duration_since(pinged_at) >= idle / 3 {
                        pinged_at = now();
                        link.out.extend_from_slice(&ping(0));
                    }
                    if now().saturating_duration_since(refreshed_at) >= refresh {
                        refreshed_at = now();
                        tokio::spawn(self.core.clone().refresh(addr.to_owned()));
                    }
                    restart(timer.as_mut(), if is_resting { rest } else { TICK });
                    self.silence(addr, &sent)
                }
            };
            match next {
                Next::Stay => {}
                Next::Pause(setback) => self.pause(setback, OVERLOADED_SETBACKS).await,
                next => break next,
            }
        };
        // The newest goes back first, so that the oldest is in front again.
        let mut waiters = self.core.waiters();
        while let Some(sent) = sent.pop_back() {
            waiters.requeue(sent.batch);
        }
        drop(waiters);
        next
    }

    /// Sends what waits, as far as requests may be in flight.
    fn send(&mut self, link: &mut Link, sent: &mut VecDeque<Sent>) {
        while sent.len() < IN_FLIGHT_MAX {
            let Some(batch) = self.core.waiters().take_batch() else { return };
            let floor = self.core.session().highest();
            self.last_id += 1;
            let id = self.last_id;
            // The waiters hold the total to what a request may ask for.
            let request = Request::new(id, batch.total()).expect("a total in bounds");
            link.out.extend_from_slice(&request.to_bytes());
            sent.push_back(Sent { id, batch, floor, at: now() });
        }
    }

    /// Takes in every whole frame.
    fn receive(&mut self, addr: &str, link: &mut Link, sent: &mut VecDeque<Sent>) -> Next {
        let mut next = Next::Stay;
        let mut taken = 0;
        loop {
            let frame = split(&link.received()[taken..], link_limit());
            let frame = match frame {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => return Next::Fail(foreign(addr, &error.to_string()).into()),
            };
            taken += frame.len();
            let is_ping = match ToClient::decode(&frame) {
                Ok(ToClient::Ping(id)) => Some(id),
                Ok(frame) => {
                    let judged = self.handle(addr, &frame, sent);
                    if matches!(next, Next::Stay) || matches!(judged, Next::Fail(_)) {
                        next = judged;
                    }
                    None
                }
                Err(error) => return Next::Fail(foreign(addr, &error.to_string()).into()),
            };
            if let Some(id) = is_ping {
                link.out.extend_from_slice(&pong(id));
                if link.out.len() > OUT_LEN_MAX {
                    next = Next::Leave(lost(addr, &"it pings and does not read"));
                    break;
                }
            }
        }
        link.consume(taken);
        self.wake();
        next
    }

    fn handle(&mut self, addr: &str, frame: &ToClient<'_>, sent: &mut VecDeque<Sent>) -> Next {
        match frame {
            ToClient::Answer { id, range } => {
                let Some(sent) = take(sent, *id) else {
                    return Next::Fail(foreign(addr, "an answer to nothing").into());
                };
                self.answered(addr, sent, *range)
            }
            ToClient::Error(error) => {
                let code = error.error_code().unwrap_or(ErrorCode::Internal);
                if let Some(sent) = take(sent, error.id) {
                    self.core.waiters().requeue(sent.batch);
                } else if !error.closes {
                    return Next::Fail(foreign(addr, "a refusal of nothing").into());
                }
                refused(addr, code, error.text)
            }
            ToClient::Leader(leader) => {
                // A hint for when this connection ends; refusals say the same for certain.
                let is_another = leader.node != NodeId(0) && leader.node != self.node;
                if is_another && is_address(leader.addr) {
                    tracing::debug!(leader = leader.addr, "another node leads");
                    return Next::Follow { by: addr.to_owned(), leader: leader.addr.to_owned() };
                }
                Next::Stay
            }
            ToClient::Goodbye => Next::Leave(Setback::Refused {
                addr: addr.to_owned(),
                code: ErrorCode::ShuttingDown,
            }),
            ToClient::Welcome(_) => Next::Fail(foreign(addr, "a second welcome").into()),
            ToClient::Ping(_) | ToClient::Pong(_) | ToClient::Unknown => Next::Stay,
        }
    }

    /// Believes an answer if it is one, and gives it out.
    fn answered(&mut self, addr: &str, sent: Sent, range: TimestampRange) -> Next {
        let Sent { batch, floor, at, .. } = sent;
        let error = if range.count() == batch.total() {
            let floor = floor.filter(|floor| range.first() <= *floor);
            floor.map(|floor| {
                let (addr, answer) = (addr.to_owned(), range.first());
                TimestampsError::WentBackwards { addr, floor, answer }
            })
        } else {
            let what = format!("{} timestamps instead of {}", range.count(), batch.total());
            Some(foreign(addr, &what).into())
        };
        if let Some(error) = error {
            self.core.waiters().fail(batch, &error, &mut self.wakers);
            return Next::Fail(error);
        }
        self.setbacks = Setbacks::default();
        self.core.session().note_returned(range.last());
        if let Some(observer) = &self.core.observer {
            observer.answered(batch.callers(), range.count(), now().saturating_duration_since(at));
        }
        self.core.waiters().answer(batch, range, &mut self.wakers);
        Next::Stay
    }

    /// Leaves a node that does not answer.
    fn silence(&self, addr: &str, sent: &VecDeque<Sent>) -> Next {
        let is_silent =
            |sent: &Sent| now().saturating_duration_since(sent.at) >= self.core.attempt_timeout;
        if sent.iter().any(is_silent) {
            return Next::Leave(Setback::Silent { addr: addr.to_owned() });
        }
        Next::Stay
    }

    fn expire(&mut self) {
        let last = self.setbacks.last();
        self.core.waiters().expire(now(), last, &mut self.wakers);
        self.wake();
    }

    fn wake(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

/// The request of that id; usually the oldest.
fn take(sent: &mut VecDeque<Sent>, id: u64) -> Option<Sent> {
    let position = sent.iter().position(|sent| sent.id == id)?;
    sent.remove(position)
}

fn member_addrs(welcome: &Welcome) -> Vec<String> {
    let addrs = welcome.members.iter().map(|member| member.addr.clone());
    addrs.filter(|addr| is_address(addr)).collect()
}

fn refused(addr: &str, code: ErrorCode, text: &str) -> Next {
    let addr = addr.to_owned();
    match code {
        ErrorCode::NotLeader if text != addr && is_address(text) => {
            Next::Follow { by: addr, leader: text.to_owned() }
        }
        ErrorCode::Overloaded => Next::Pause(Setback::Refused { addr, code }),
        // `INTERNAL` condemns that node, not the cluster.
        code if code.is_retryable() || code == ErrorCode::Internal => {
            Next::Leave(Setback::Refused { addr, code })
        }
        code => Next::Fail(BadAnswer::Refused { addr, code, message: text.to_owned() }.into()),
    }
}

fn restart(timer: Pin<&mut Sleep>, after: Duration) {
    timer.reset(tokio::time::Instant::now() + after);
}

const fn link_limit() -> usize {
    epicepoch_wire::native::TO_CLIENT_TAIL_LEN_MAX
}

/// Requests in flight on the connection. One would make callers wait for a round trip that they
/// cannot join; many would make requests small where merging them costs least.
const IN_FLIGHT_MAX: usize = 4;
/// Bytes that wait to be sent at most: 4,096 pongs, since of requests only few are in flight.
const OUT_LEN_MAX: usize = 1 << 16;
/// How often deadlines and silent nodes are looked for while somebody waits.
const TICK: Duration = Duration::from_millis(5);
/// Shortest idle limit of a node that is believed.
const IDLE_MS_MIN: u32 = 300;
