//! State that connections of all transports have: the node to ask, the requests to send, and the
//! handling of answers. It never touches a socket.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::{Guarantee, ProvedBy};

use super::config::{Routing, RunConfig, Target};
use super::counts::failure;
use super::pacer::{Pacer, Ticket};
use super::statistics::{Sent, Shared, Statistics};
use crate::history::{read_anything, read_range, read_timestamps};

/// One connection of the load.
pub(super) struct LoadConnection {
    pub(super) config: Arc<RunConfig>,
    pub(super) pacer: Rc<Pacer>,
    pub(super) statistics: Rc<RefCell<Statistics>>,
    pub(super) shared: Arc<Shared>,
    /// Index of the target that this connection asks.
    target: Cell<usize>,
    /// Requests that wait to be sent to another node, and at most one request that was claimed and
    /// not sent. They are in the order of their due times. At most as many requests wait as may be
    /// open at once.
    carried: RefCell<VecDeque<Carried>>,
}

/// A request that waits for another node.
#[derive(Clone, Copy, Debug)]
struct Carried {
    ticket: Ticket,
    /// Name of the failure to count if the request is not sent in time.
    name: &'static str,
}

/// An answer over any transport.
pub(super) struct Answer<'a> {
    pub(super) status: u16,
    /// The `epicepoch-error` header.
    pub(super) error: Option<&'a str>,
    /// The `epicepoch-leader` header.
    pub(super) leader: Option<&'a str>,
    /// The `epicepoch-proof` header.
    pub(super) proof: Option<&'a str>,
    pub(super) body: &'a [u8],
}

/// The input cannot be parsed, or answers no request. The failure is already counted; the caller
/// closes the connection.
#[derive(Debug)]
pub(super) struct Useless;

/// Which node to ask next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The same node, over the same connection.
    Stay,
    /// The same node, after the retry pause.
    Pause,
    /// The target with this index, at once.
    Leader(usize),
    /// Another target, after the retry pause.
    Elsewhere,
}

impl Next {
    /// Of several answers, the first one that is not `Stay` counts.
    pub(super) fn or(self, later: Self) -> Self {
        if self == Self::Stay { later } else { self }
    }
}

impl LoadConnection {
    /// Connection `number` of the load.
    pub(super) fn new(
        number: usize,
        config: Arc<RunConfig>,
        pacer: Rc<Pacer>,
        statistics: Rc<RefCell<Statistics>>,
        shared: Arc<Shared>,
    ) -> Self {
        let target = Cell::new(match config.routing {
            Routing::FollowLeader | Routing::FollowDirectly => {
                shared.leader.load(Ordering::Relaxed)
            }
            Routing::EveryNode => number % config.targets.len(),
        });
        Self { config, pacer, statistics, shared, target, carried: RefCell::default() }
    }

    pub(super) fn target(&self) -> &Target {
        &self.config.targets[self.target.get()]
    }

    /// Returns the next request to send, for a connection that is free from `now` on, or `None`
    /// when the measurement is over.
    pub(super) fn claim_at(&self, now: Instant) -> Option<Ticket> {
        if now >= self.shared.window.given_up || self.shared.is_ending() {
            return None;
        }
        let mut carried = self.carried.borrow_mut();
        while let Some(Carried { mut ticket, name }) = carried.pop_front() {
            // The deadline has passed before the request could be sent to the other node, so it
            // fails.
            if ticket.deadline.is_some_and(|deadline| now >= deadline) {
                self.statistics.borrow_mut().fail(name, ticket.intended);
                continue;
            }
            // If the request was due earlier, it waited for a node, so the generator has not
            // delayed it.
            ticket.in_time &= now <= ticket.intended;
            return Some(ticket);
        }
        self.pacer.claim_at(now)
    }

    /// Whether no request is left to send.
    pub(super) fn is_over(&self) -> bool {
        let now = Instant::now();
        now >= self.shared.window.given_up
            || self.shared.is_ending()
            || (self.carried.borrow().is_empty() && self.pacer.is_over(now))
    }

    /// Keeps a ticket that this connection took and did not send. It is sent later.
    pub(super) fn give_back(&self, ticket: Ticket) {
        let name = ErrorCode::NotLeader.name();
        self.put_by(Carried { ticket, name });
    }

    fn put_by(&self, carried: Carried) {
        let mut all = self.carried.borrow_mut();
        let due = carried.ticket.intended;
        let place = all.partition_point(|other| other.ticket.intended <= due);
        all.insert(place, carried);
    }

    /// Records that a request is sent. Call it before its first byte is written.
    pub(super) fn sent_at(&self, ticket: Ticket, mut now: Instant) -> Sent {
        if !self.config.planted_delay.is_zero() {
            let from = Instant::now();
            while from.elapsed() < self.config.planted_delay {
                std::hint::spin_loop();
            }
            now = Instant::now();
        }
        if ticket.in_time && ticket.deadline.is_none() {
            self.pacer.came_late(ticket.intended, now);
        }
        self.statistics.borrow_mut().sent(ticket, self.config.request_timeout, now)
    }

    /// Adds the bytes of a connection that has ended.
    pub(super) fn count_bytes(&self, sent: u64, received: u64) {
        let wire = &mut self.statistics.borrow_mut().counts.wire;
        wire.sent += sent;
        wire.received += received;
    }

    /// Counts a request that will get no answer: as a timeout if its deadline has passed, otherwise
    /// as lost.
    pub(super) fn lost_at(&self, sent: &Sent, now: Instant) {
        let timed_out = sent.ticket.deadline.is_some_and(|deadline| now >= deadline);
        let name = if timed_out { failure::TIMEOUT } else { failure::LOST };
        self.statistics.borrow_mut().failed(sent, name);
    }

    /// Keeps a request that the node did not process, to send it to another node.
    pub(super) fn unseen(&self, sent: &Sent) {
        self.carry(sent, failure::LOST, Instant::now());
    }

    /// Counts an answer that no open request has asked for.
    pub(super) fn unasked(&self, id: u64) -> Useless {
        self.statistics.borrow_mut().unasked(self.target().id, id);
        Useless
    }

    /// Counts a violation of the transport's protocol.
    pub(super) fn violated(&self) -> Useless {
        self.statistics.borrow_mut().fail(failure::PROTOCOL, Instant::now());
        Useless
    }

    pub(super) fn not_connected(&self) {
        self.statistics.borrow_mut().fail(failure::CONNECT, Instant::now());
    }

    /// Counts the requests that still wait as failed. Call it when the measurement is over.
    pub(super) fn finish(&self) {
        let mut statistics = self.statistics.borrow_mut();
        for Carried { ticket, name } in self.carried.borrow_mut().drain(..) {
            if ticket.deadline.is_some() {
                statistics.fail(name, ticket.intended);
            } else if self.shared.window.counts(ticket.intended) {
                statistics.counts.unsent += 1;
            }
        }
    }

    /// Keeps a request, to send it to another node. If its deadline has passed, counts it as failed
    /// with `name`.
    fn carry(&self, sent: &Sent, name: &'static str, now: Instant) {
        let ticket = sent.ticket;
        let mut statistics = self.statistics.borrow_mut();
        if now < ticket.deadline.unwrap_or(self.shared.window.given_up) {
            statistics.redirected(sent);
            self.put_by(Carried { ticket, name });
        } else {
            statistics.failed(sent, name);
        }
    }

    /// Whether a lease may prove answers. Without a named guarantee, the cluster's default may be a
    /// lease.
    fn accepts_lease(&self) -> bool {
        self.config.guarantee != Some(Guarantee::Quorum)
    }

    /// Whether requests name the guarantee of a lease.
    pub(super) fn asks_for_lease(&self) -> bool {
        self.config.guarantee == Some(Guarantee::Lease)
    }

    /// Counts an answer that came at `now` or earlier. Returns which node to ask next.
    pub(super) fn judge_at(&self, sent: &Sent, answer: &Answer<'_>, now: Instant) -> Next {
        let is_unasked = answer.proof.is_some_and(|proof| proof != ProvedBy::Round.name());
        if answer.status == 200 && is_unasked && !self.accepts_lease() {
            self.statistics.borrow_mut().failed(sent, failure::PROTOCOL);
            return Next::Elsewhere;
        }
        if answer.status == 200 {
            let node = self.target().id;
            let mut statistics = self.statistics.borrow_mut();
            let read = match (&self.config.path, self.config.range) {
                (Some(_), _) => read_anything,
                (None, true) => read_range,
                (None, false) => read_timestamps,
            };
            match read(answer.body, self.config.count) {
                Ok(range) => statistics.answered_at(sent, node, range, now),
                Err(why) => statistics.broken(sent, node, why),
            }
            return Next::Stay;
        }
        let follows = self.config.routing.follows();
        if answer.status == 409 && follows {
            self.carry(sent, ErrorCode::NotLeader.name(), now);
            return self.leader(answer.leader);
        }
        let code = answer.error.and_then(ErrorCode::from_name);
        self.statistics.borrow_mut().failed(sent, code.map_or(failure::STATUS, ErrorCode::name));
        match code {
            // The leader itself has refused. Other nodes would only redirect the request to the
            // leader again.
            Some(ErrorCode::Overloaded | ErrorCode::BadCount) => Next::Pause,
            _ if follows => Next::Elsewhere,
            _ => Next::Pause,
        }
    }

    fn leader(&self, named: Option<&str>) -> Next {
        let addr = named.and_then(|name| name.parse().ok());
        let same = |it: &Target| Some(it.name.as_str()) == named || Some(it.addr) == addr;
        let target = self.config.targets.iter().position(same);
        match target.filter(|target| *target != self.target.get()) {
            Some(target) => Next::Leader(target),
            None => Next::Elsewhere,
        }
    }

    /// Switches to the target that [`Self::judge_at`] returned, or to another one after a lost
    /// connection.
    pub(super) async fn turn(&self, next: Next) {
        match next {
            Next::Stay => {}
            Next::Pause => tokio::time::sleep(self.config.retry_pause).await,
            Next::Leader(target) => {
                self.shared.leader.store(target, Ordering::Relaxed);
                self.target.set(target);
            }
            Next::Elsewhere => {
                tokio::time::sleep(self.config.retry_pause).await;
                if self.config.routing == Routing::EveryNode {
                    return;
                }
                let known = self.shared.leader.load(Ordering::Relaxed);
                let here = self.target.get();
                let next = (here + 1) % self.config.targets.len();
                self.target.set(if known == here { next } else { known });
                if known == here {
                    self.shared.leader.store(next, Ordering::Relaxed);
                }
            }
        }
    }

    /// When the run stops waiting for answers.
    pub(super) fn given_up(&self) -> tokio::time::Instant {
        self.shared.window.given_up.into()
    }

    /// When the run stops waiting for the answer to this request.
    pub(super) fn deadline(&self, sent: &Sent) -> tokio::time::Instant {
        sent.ticket.deadline.unwrap_or(self.shared.window.given_up).into()
    }
}

/// Longest time to open a connection.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
