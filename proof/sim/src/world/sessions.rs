//! Clients that run the session of the Rust client as it ships. Each has several callers, up to two
//! connections, and in most runs hedges. This file is the driver of these sessions: simulated
//! connections in place of sockets, and the node's side of the native protocol.
//!
//! A connection leads to one worker of one process. It stalls now and then, is refused, breaks with
//! the process, or falls silent. Frames are real bytes. The driver still reports frames of a
//! connection that the session has left, because a real driver that lags behind may do so.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use epicepoch_client::session::{Action, LinkId, Session, Settings};
use epicepoch_client::{FailedAttempt, OpenError, TimestampRange, TimestampsError};
use epicepoch_core::publication::Published;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::client_hello::MemberAddr;
use epicepoch_wire::native::message::goodbye;
use epicepoch_wire::native::{
    COUNT_MAX, ErrorFrame, LeaderNotice, Request, TO_SERVER_TAIL_LEN_MAX, ToServer, Welcome, split,
};
use epicepoch_wire::{BootId, Guarantee, NodeId};

use crate::callers::{Call, Callers, Question};
use crate::event::{Answer, Asker, Event, Heard};
use crate::history::Invariant;
use crate::node::member;
use crate::parameters::{MS, SECOND, SESSIONS_FROM, WORKERS};
use crate::world::World;
use crate::world::features::Feature;

/// The clients of a run that have a session.
#[derive(Debug)]
pub(crate) struct Sessions {
    /// The time that sessions see when the run begins. Its value does not matter, because a session
    /// only compares and subtracts times.
    base: Instant,
    /// The sessions by number. `None` stands for a session that was replaced after a restore, or
    /// that is in use by a method at the moment.
    all: Vec<Option<Box<Client>>>,
    callers: Callers,
}

/// A client with a session.
#[derive(Debug)]
struct Client {
    session: Session,
    links: Vec<Link>,
    callers: Vec<Caller>,
    /// The requests under way, each with the number of its attempt.
    asked: VecDeque<(u64, Asked)>,
    attempt: u64,
    /// When the next turn is scheduled.
    turn_at: Option<Instant>,
    /// Number of the cluster's history in which the session began.
    era: u32,
}

/// The client's end of a connection.
#[derive(Debug)]
struct Link {
    id: LinkId,
    to: NodeId,
    worker: usize,
    /// The process at the other end; `None` until that process has read the hello.
    boot: Option<BootId>,
    /// Whether the client has read the welcome.
    is_open: bool,
    /// The leader that the node has named last.
    leader: Option<NodeId>,
    out: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    link: LinkId,
    request: Request,
    question: Question,
}

#[derive(Clone, Copy, Debug, Default)]
struct Caller {
    /// Number of the caller's last call. The caller waits for its end while `waits` is set.
    number: u64,
    /// The current call, with the number that the session has given it; `None` between two calls.
    waits: Option<(usize, Call)>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self { base: Instant::now(), all: vec![], callers: Callers::default() }
    }
}

impl World {
    /// Adds clients. In some runs half of the `count` clients are simple, and one or two clients
    /// with sessions replace the others.
    pub(crate) fn add_all_clients(&mut self, count: usize) {
        if !self.has(Feature::Sessions) {
            return self.add_clients(count);
        }
        self.add_clients(count / 2);
        for _ in 0..self.random.usize(1..=SESSIONS_MAX) {
            let callers = self.random.usize(1..=CALLERS_MAX);
            self.add_session(callers);
        }
    }

    fn add_session(&mut self, callers: usize) {
        let addrs = (0..self.random.usize(1..=3)).map(|_| address(self.any())).collect();
        let hedge_ms = self.random.u64(HEDGE_MS.0..=HEDGE_MS.1);
        let settings = Settings {
            addrs,
            seed: self.random.u64(..),
            cluster_name: None,
            attempt_timeout: Duration::from_millis(self.random.u64(ATTEMPT_MS.0..=ATTEMPT_MS.1)),
            refresh_interval: Duration::from_secs(self.random.u64(1..=10)),
            hedge_after: (self.random.u32(0..4) > 0).then(|| Duration::from_millis(hedge_ms)),
            guarantee: Guarantee::Quorum,
        };
        let at = self.sessions.all.len();
        for caller in 0..callers {
            let after_ns = self.random.u64(0..100 * MS);
            self.schedule_world(after_ns, Event::Call { session: at, caller });
        }
        self.sessions.all.push(Some(Box::new(Client {
            session: Session::new(settings),
            links: vec![],
            callers: vec![Caller::default(); callers],
            asked: VecDeque::new(),
            attempt: 0,
            turn_at: None,
            era: self.restores.era,
        })));
    }

    /// A caller asks for timestamps.
    pub(crate) fn call(&mut self, at: usize, caller: usize) {
        let is_large = self.chance(20);
        let count = self.random.u64(1..if is_large { 1_000 } else { 20 });
        let lasts_ns = self.random.u64(CALL_NS.0..=CALL_NS.1);
        let now = self.instant();
        let Some(mut own) = self.sessions.all[at].take() else { return };
        let call = self.sessions.callers.call(count, self.history.floor());
        let deadline = now + Duration::from_nanos(lasts_ns);
        let (entry, _) = own.session.enter(count, deadline).expect("few callers");
        let _: Poll<_> = own.session.poll_call(entry, &mut Context::from_waker(Waker::noop()));
        let number = own.callers[caller].number + 1;
        own.callers[caller] = Caller { number, waits: Some((entry, call)) };
        self.sessions.all[at] = Some(own);
        let ends = |is_left| Event::CallEnds { session: at, caller, number, is_left };
        self.schedule_world(lasts_ns + LATE_NS, ends(false));
        if self.chance(LEAVES) {
            let after_ns = self.random.u64(0..30 * MS);
            self.schedule_world(after_ns, ends(true));
        }
        self.turn_session(at);
    }

    /// Ends a call. Either the caller gives up, or the deadline of the call has passed. In the
    /// second case the session must have ended the call before.
    pub(crate) fn call_ends(&mut self, at: usize, caller: usize, number: u64, is_left: bool) {
        let Some(own) = &mut self.sessions.all[at] else { return };
        let waiting = &mut own.callers[caller];
        if waiting.number != number {
            return;
        }
        let Some((entry, call)) = waiting.waits.take() else { return };
        if !is_left {
            let what = || format!("client {at} told nothing to {call:?} at its deadline");
            return self.history.violate(Invariant::Caller, what);
        }
        own.session.leave(entry);
        self.schedule_world(0, Event::Call { session: at, caller });
    }

    /// The session's timer has ended.
    pub(crate) fn session_timer(&mut self, at: usize, at_ns: u64) {
        let is_next = |own: &Client| own.turn_at == Some(self.sessions.base + nanos(at_ns));
        if self.sessions.all[at].as_deref().is_some_and(is_next) {
            self.turn_session(at);
        }
    }

    /// Lets a session do what is due now: sends its requests, makes its connections and checks what
    /// it tells its callers.
    fn turn_session(&mut self, at: usize) {
        let Some(mut own) = self.sessions.all[at].take() else { return };
        let now = self.instant();
        own.session.handle_time(now);
        for link in &mut own.links {
            if link.is_open {
                own.session.poll_transmit(link.id, now, &mut link.out);
            }
        }
        self.send_requests(at, &mut own);
        while let Some(action) = own.session.poll_action() {
            match action {
                Action::Open { link, addr } => self.open(at, &mut own, link, &addr),
                Action::Close { link } => own.links.retain(|open| open.id != link),
                Action::Refresh { addr } => {
                    let after_ns = self.client_link_ns();
                    self.hear_later(after_ns, at, Heard::Refreshed(named(&addr)));
                }
            }
        }
        let mut wakers = vec![];
        own.session.take_wakers(&mut wakers);
        let timeout = own.session.timeout().map(|timeout| timeout.max(now));
        if let Some(timeout) = timeout.filter(|timeout| own.turn_at != Some(*timeout)) {
            let at_ns = timeout.duration_since(self.sessions.base).as_nanos() as u64;
            // The next turn is later than this one. Otherwise a session that does not move its
            // timer would keep the run at this moment for ever.
            let at_ns = at_ns.max(self.now_ns + 1);
            own.turn_at = Some(self.sessions.base + nanos(at_ns));
            self.schedule_world(at_ns - self.now_ns, Event::SessionTimer { session: at, at_ns });
        }
        let is_over = !wakers.is_empty() && self.poll_callers(at, &mut own);
        if is_over {
            // The cluster has a new history, so the application begins a new session.
            self.count("session of an ended history");
            self.add_session(own.callers.len());
        } else {
            self.sessions.all[at] = Some(own);
        }
    }

    fn open(&mut self, at: usize, own: &mut Client, id: LinkId, addr: &str) {
        let (to, worker) = (named(addr), self.random.usize(0..WORKERS));
        let out = vec![];
        own.links.push(Link { id, to, worker, boot: None, is_open: false, leader: None, out });
        if !self.do_accepts_fail(to) {
            let after_ns = self.client_link_ns();
            self.schedule(to, None, after_ns, Event::ClientHello { worker, session: at, link: id });
        }
    }

    /// Sends the frames that wait on a session's connections.
    fn send_requests(&mut self, at: usize, own: &mut Client) {
        for open in 0..own.links.len() {
            let link = &mut own.links[open];
            if link.out.is_empty() {
                continue;
            }
            let (out, id, to) = (std::mem::take(&mut link.out), link.id, link.to);
            let (boot, worker) = (link.boot, link.worker);
            let mut taken = 0;
            while let Some(frame) = split(&out[taken..], TO_SERVER_TAIL_LEN_MAX).expect("frames") {
                taken += frame.len();
                let ToServer::Request(request) = ToServer::decode(&frame).expect("a frame") else {
                    continue;
                };
                if id.is_hedge() {
                    self.count("request sent twice");
                }
                let question = self.sessions.callers.asked(at, request.id);
                own.attempt += 1;
                own.asked.push_back((own.attempt, Asked { link: id, request, question }));
                if own.asked.len() > ASKED_MAX {
                    own.asked.pop_front();
                }
                let asker = Asker { client: SESSIONS_FROM + at, attempt: own.attempt };
                if self.chance(OVERLOADS) {
                    let after_ns = self.random.u64(0..=OVERLOADED_NS_MAX);
                    let overloaded = refusal(request.id, ErrorCode::Overloaded, "");
                    self.hear_later(after_ns, at, Heard::Bytes(id, overloaded));
                    continue;
                }
                let arrives = Event::Arrive { worker, asker, count: request.count() };
                let after_ns = self.client_link_ns();
                self.schedule(to, boot, after_ns, arrives);
            }
        }
    }

    /// Polls the calls and checks their outcomes. Returns whether the session is of an ended
    /// history.
    fn poll_callers(&mut self, at: usize, own: &mut Client) -> bool {
        let mut is_over = false;
        for caller in 0..own.callers.len() {
            let Some((entry, call)) = own.callers[caller].waits else { continue };
            let mut context = Context::from_waker(Waker::noop());
            let Poll::Ready(outcome) = own.session.poll_call(entry, &mut context) else { continue };
            own.session.leave(entry);
            own.callers[caller].waits = None;
            match outcome {
                Ok(range) => self.told(at, call, range),
                Err(TimestampsError::DeadlineExceeded { .. }) => {
                    self.count("call ended by its deadline");
                }
                Err(TimestampsError::AnotherCluster(error))
                    if error.is_restored() && own.era < self.restores.era =>
                {
                    is_over = true;
                }
                Err(error) => {
                    let what = || format!("client {at} told {call:?}: {error}");
                    self.history.violate(Invariant::Caller, what);
                }
            }
            let after_ns = self.random.u64(0..=THINK_NS_MAX);
            self.schedule_world(after_ns, Event::Call { session: at, caller });
        }
        is_over
    }

    fn told(&mut self, at: usize, call: Call, range: TimestampRange) {
        self.count("call answered");
        if let Err(what) = self.sessions.callers.told(at, call, range) {
            self.history.violate(Invariant::Caller, || format!("client {at} was told {what}"));
        }
    }

    /// A hello arrives at a process, which answers with its welcome.
    pub(crate) fn answer_client_hello(
        &mut self,
        id: NodeId,
        worker: usize,
        at: usize,
        link: LinkId,
    ) {
        let (boot, published) = {
            let running = self.at(id).running();
            (running.identity.boot, running.seen.published())
        };
        let after_ns = self.client_link_ns();
        let Some(open) = self.link(at, link) else { return };
        open.boot = Some(boot);
        open.leader = published.leader;
        let welcome = self.welcome(id, &published);
        self.hear_later(after_ns, at, Heard::Opened(link, Ok(welcome)));
        self.schedule_own(id, NOTICE_NS, Event::Notice { worker, session: at, link });
    }

    /// A hello arrives at a machine without a running process. It is refused, or stays unanswered.
    pub(crate) fn refuse_client_hello(&mut self, id: NodeId, at: usize, link: LinkId) {
        if self.random.bool() {
            let (addr, reason) = (address(id), String::new());
            let refused = OpenError::FailedAttempt(FailedAttempt::Unreachable { addr, reason });
            self.hear_later(MS, at, Heard::Opened(link, Err(refused)));
        }
    }

    /// A node names the leader to a client if this is not the leader that it named last.
    pub(crate) fn notice(&mut self, id: NodeId, worker: usize, at: usize, link: LinkId) {
        let published = self.at(id).running().seen.published();
        let after_ns = self.client_link_ns();
        let Some(open) = self.link(at, link) else { return };
        if open.leader != published.leader {
            open.leader = published.leader;
            let addr = published.leader.map(address).unwrap_or_default();
            let node = published.leader.unwrap_or(NodeId(0));
            let mut bytes = vec![];
            LeaderNotice { node, addr: &addr }.encode(&mut bytes);
            self.hear_later(after_ns, at, Heard::Bytes(link, bytes));
        }
        self.schedule_own(id, NOTICE_NS, Event::Notice { worker, session: at, link });
    }

    fn welcome(&self, node: NodeId, published: &Published) -> Welcome {
        let member = |node: NodeId| MemberAddr { node, addr: address(node) };
        let is_known = |leader: &NodeId| published.members.contains_key(leader);
        Welcome {
            version: 1,
            cluster: Some((self.genesis.cluster, self.genesis.history)),
            node,
            leader: published.leader.filter(is_known).map(member),
            in_flight_max: 1024,
            idle_ms: 60_000,
            count_max: COUNT_MAX,
            members: published.members.keys().copied().map(member).collect(),
            ..Welcome::default()
        }
    }

    /// A process has ended. Its connections break, mostly with notice.
    pub(crate) fn break_links(&mut self, id: NodeId) {
        let boot = self.at(id).running.as_ref().map(|running| running.identity.boot);
        for at in 0..self.sessions.all.len() {
            let Some(own) = &self.sessions.all[at] else { continue };
            let is_broken =
                |link: &&Link| link.to == id && link.boot.is_some() && link.boot == boot;
            let broken: Vec<LinkId> =
                own.links.iter().filter(is_broken).map(|link| link.id).collect();
            for link in broken {
                let drawn = self.random.u32(0..10);
                let after_ns = self.link_ns();
                if drawn < 2 {
                    self.hear_later(after_ns, at, Heard::Bytes(link, goodbye().to_vec()));
                }
                if drawn < 7 {
                    self.hear_later(after_ns, at, Heard::Closed(link));
                }
            }
        }
    }

    /// An answer comes over the client's network.
    pub(crate) fn session_answered(&mut self, asker: Asker, answer: Answer) {
        let at = asker.client - SESSIONS_FROM;
        let Some(own) = &mut self.sessions.all[at] else { return };
        let Some(position) = own.asked.iter().position(|(attempt, _)| *attempt == asker.attempt)
        else {
            return;
        };
        let Some((_, Asked { link, request, question })) = own.asked.remove(position) else {
            return;
        };
        let bytes = match answer {
            Answer::Given(range) => {
                if self.sessions.callers.given(question, range) {
                    self.count("range burnt");
                }
                request.answer(range.first()).to_vec()
            }
            Answer::Refused(Some(leader)) => {
                refusal(request.id, ErrorCode::NotLeader, &address(leader))
            }
            Answer::Refused(None) => {
                // The node knows no leader, or its round failed.
                let is_follower = self.random.bool();
                let code = if is_follower { ErrorCode::NotLeader } else { ErrorCode::NoQuorum };
                refusal(request.id, code, "")
            }
        };
        let heard = Heard::Bytes(link, bytes);
        if self.chance(STALLS) {
            let after_ns = self.random.u64(STALL_NS.0..=STALL_NS.1);
            self.hear_later(after_ns, at, heard);
        } else {
            self.heard(at, heard);
        }
    }

    fn hear_later(&mut self, after_ns: u64, session: usize, heard: Heard) {
        self.schedule_world(after_ns, Event::Heard { session, heard: Box::new(heard) });
    }

    /// A client hears from a node. Bytes of connections that it has left are reported, too.
    pub(crate) fn heard(&mut self, at: usize, heard: Heard) {
        let now = self.instant();
        if let Heard::Refreshed(node) = heard {
            return self.refreshed(at, node);
        }
        let Some(own) = &mut self.sessions.all[at] else { return };
        match heard {
            Heard::Bytes(link, bytes) => {
                let mut unused = vec![];
                let open = own.links.iter_mut().find(|open| open.id == link);
                let out = open.map_or(&mut unused, |open| &mut open.out);
                own.session.handle_received(link, &bytes, now, out);
            }
            Heard::Opened(link, opened) => {
                let Some(open) = own.links.iter_mut().find(|open| open.id == link) else { return };
                open.is_open = opened.is_ok();
                if opened.is_err() {
                    own.links.retain(|open| open.id != link);
                }
                own.session.handle_opened(link, opened, now);
            }
            Heard::Closed(link) => {
                let Some(open) = own.links.iter().position(|open| open.id == link) else { return };
                let open = own.links.remove(open);
                if open.is_open {
                    own.session.handle_closed(link, &"reset", now);
                } else {
                    let (addr, reason) = (address(open.to), "reset".to_owned());
                    let lost = OpenError::FailedAttempt(FailedAttempt::Lost { addr, reason });
                    own.session.handle_opened(link, Err(lost), now);
                }
            }
            Heard::Refreshed(_) => {}
        }
        self.turn_session(at);
    }

    fn refreshed(&mut self, at: usize, node: NodeId) {
        let Some(running) = &self.at(node).running else { return };
        let welcome = self.welcome(node, &running.seen.published());
        if let Some(own) = &mut self.sessions.all[at] {
            own.session.handle_refreshed(&address(node), &welcome);
        }
    }

    fn link(&mut self, at: usize, link: LinkId) -> Option<&mut Link> {
        let own = self.sessions.all[at].as_mut()?;
        own.links.iter_mut().find(|open| open.id == link)
    }

    fn instant(&self) -> Instant {
        self.sessions.base + nanos(self.now_ns)
    }

    /// Draws how long a frame takes between a client and a node. Some packets are lost and sent
    /// again.
    fn client_link_ns(&mut self) -> u64 {
        let stall_ns =
            if self.chance(STALLS) { self.random.u64(STALL_NS.0..=STALL_NS.1) } else { 0 };
        self.link_ns() + stall_ns
    }
}

const fn nanos(ns: u64) -> Duration {
    Duration::from_nanos(ns)
}

/// The address of a node for clients.
fn address(node: NodeId) -> String {
    member(node).client_addr
}

/// The node with that address for clients.
fn named(addr: &str) -> NodeId {
    let number = addr.trim_start_matches('n').split(':').next().and_then(|text| text.parse().ok());
    NodeId(number.expect("a session uses only addresses that nodes name"))
}

fn refusal(id: u64, code: ErrorCode, text: &str) -> Vec<u8> {
    let mut bytes = vec![];
    ErrorFrame { code: code as u16, closes: false, id, text }.encode(&mut bytes);
    bytes
}

/// A run has at most `SESSIONS_MAX` clients with sessions, and each of them at most `CALLERS_MAX`
/// callers.
const SESSIONS_MAX: usize = 2;
const CALLERS_MAX: usize = 5;
/// At most this many requests of a session wait for answers that may still come.
const ASKED_MAX: usize = 64;
/// A request is sent a second time after a time in `HEDGE_MS`. A silent node is left after a time
/// in `ATTEMPT_MS`. Both in milliseconds.
const HEDGE_MS: (u64, u64) = (2, 60);
const ATTEMPT_MS: (u64, u64) = (50, 500);
/// The limits of calls are in `CALL_NS`. A session may end a call at most `LATE_NS` too late,
/// because it checks deadlines every 5 ms. Both in nanoseconds.
const CALL_NS: (u64, u64) = (20 * MS, 3 * SECOND);
const LATE_NS: u64 = 6 * MS;
/// Longest pause of a caller between two calls, nanoseconds.
const THINK_NS_MAX: u64 = 50 * MS;
/// This many of a thousand calls are given up early.
const LEAVES: u32 = 30;
/// `STALLS` of a thousand frames stall, for a time in `STALL_NS`, nanoseconds.
const STALLS: u32 = 15;
const STALL_NS: (u64, u64) = (2 * MS, 400 * MS);
/// A node refuses `OVERLOADS` of a thousand requests as overloaded. Before that, they wait for at
/// most `OVERLOADED_NS_MAX` nanoseconds.
const OVERLOADS: u32 = 10;
const OVERLOADED_NS_MAX: u64 = 80 * MS;
/// Time between two checks whether to name another leader on a connection, nanoseconds.
const NOTICE_NS: u64 = 40 * MS;
