//! What every connection of whatever transport has in common: the node it asks, the requests it
//! may send, and what it does with an answer. It never touches a socket.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use epicepoch_wire::http::ErrorCode;

use super::config::{RunConfig, Target};
use super::ledger::{Ledger, Sent, Shared, failure};
use super::pacer::{Pacer, Ticket};
use super::pipe::Useless;
use crate::history::{read_range, read_timestamps};

/// One connection's place in the measurement.
pub(super) struct Lane {
    pub(super) config: Arc<RunConfig>,
    pub(super) pacer: Rc<Pacer>,
    pub(super) ledger: Rc<RefCell<Ledger>>,
    shared: Arc<Shared>,
    /// Index of the target that is asked.
    target: Cell<usize>,
    /// Requests that were refused here and go to the next node, and one that was not sent, by the
    /// time that they were due; never more than may be open and that one.
    carried: RefCell<VecDeque<Carried>>,
}

/// A request that waits for another node.
#[derive(Clone, Copy, Debug)]
struct Carried {
    ticket: Ticket,
    /// What it has failed of, if it is not sent again in time; of no meaning before it was sent.
    name: &'static str,
}

/// An answer, whichever transport brought it.
pub(super) struct Answer<'a> {
    pub(super) status: u16,
    /// The `epicepoch-error` header.
    pub(super) error: Option<&'a str>,
    /// The `epicepoch-leader` header.
    pub(super) leader: Option<&'a str>,
    pub(super) body: &'a [u8],
}

/// Whom to ask next.
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
    /// Of several answers, the first that says anything counts.
    pub(super) fn or(self, later: Self) -> Self {
        if self == Self::Stay { later } else { self }
    }
}

impl Lane {
    pub(super) fn new(
        config: Arc<RunConfig>,
        pacer: Rc<Pacer>,
        ledger: Rc<RefCell<Ledger>>,
        shared: Arc<Shared>,
    ) -> Self {
        let target = Cell::new(shared.leader.load(Ordering::Relaxed));
        Self { config, pacer, ledger, shared, target, carried: RefCell::default() }
    }

    pub(super) fn target(&self) -> &Target {
        &self.config.targets[self.target.get()]
    }

    /// The next request to send, by a connection that is free from `now` on; `None` when the
    /// measurement is over.
    pub(super) fn claim_at(&self, now: Instant) -> Option<Ticket> {
        if now >= self.shared.window.given_up {
            return None;
        }
        let mut carried = self.carried.borrow_mut();
        while let Some(Carried { mut ticket, name }) = carried.pop_front() {
            // It would be too late the moment that it is sent.
            if ticket.deadline.is_some_and(|deadline| now >= deadline) {
                self.ledger.borrow_mut().fail(name, ticket.intended);
                continue;
            }
            // What became due before was not held up by the generator.
            ticket.in_time &= now <= ticket.intended;
            return Some(ticket);
        }
        self.pacer.claim_at(now)
    }

    /// Whether nothing is left to send.
    pub(super) fn is_over(&self) -> bool {
        let now = Instant::now();
        now >= self.shared.window.given_up
            || (self.carried.borrow().is_empty() && self.pacer.is_over(now))
    }

    /// Keeps a ticket that was claimed and not sent.
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

    /// To be called before the first byte of the request is written.
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
        self.ledger.borrow_mut().sent(ticket, self.config.request_timeout, now)
    }

    /// Counts what a connection that is over has sent and received.
    pub(super) fn count_bytes(&self, sent: u64, received: u64) {
        let wire = &mut self.ledger.borrow_mut().counts.wire;
        wire.sent += sent;
        wire.received += received;
    }

    /// No answer comes any more. That is a timeout only if there was time enough for one.
    pub(super) fn lost_at(&self, sent: &Sent, now: Instant) {
        let timed_out = sent.ticket.deadline.is_some_and(|deadline| now >= deadline);
        let name = if timed_out { failure::TIMEOUT } else { failure::LOST };
        self.ledger.borrow_mut().failed(sent, name);
    }

    /// The node says that it has not looked at the request, which goes elsewhere.
    pub(super) fn unseen(&self, sent: &Sent) {
        self.carry(sent, failure::LOST, Instant::now());
    }

    /// An answer came that nobody waits for.
    pub(super) fn unasked(&self, id: u64) -> Useless {
        self.ledger.borrow_mut().unasked(self.target().id, id);
        Useless
    }

    /// What came is not what the transport allows.
    pub(super) fn violated(&self) -> Useless {
        self.ledger.borrow_mut().fail(failure::PROTOCOL, Instant::now());
        Useless
    }

    pub(super) fn not_connected(&self) {
        self.ledger.borrow_mut().fail(failure::CONNECT, Instant::now());
    }

    /// To be called when the measurement is over: what is still carried gets no answer.
    pub(super) fn finish(&self) {
        let mut ledger = self.ledger.borrow_mut();
        for Carried { ticket, name } in self.carried.borrow_mut().drain(..) {
            if ticket.deadline.is_some() {
                ledger.fail(name, ticket.intended);
            } else if self.shared.window.counts(ticket.intended) {
                ledger.counts.unsent += 1;
            }
        }
    }

    /// Sends a request on, unless it is too late for that: then it has failed of what `name` says.
    fn carry(&self, sent: &Sent, name: &'static str, now: Instant) {
        let ticket = sent.ticket;
        let mut ledger = self.ledger.borrow_mut();
        if now < ticket.deadline.unwrap_or(self.shared.window.given_up) {
            ledger.redirected(sent);
            self.put_by(Carried { ticket, name });
        } else {
            ledger.failed(sent, name);
        }
    }

    /// Counts an answer that came at `now` or earlier, and says whom to ask next.
    pub(super) fn judge_at(&self, sent: &Sent, answer: &Answer<'_>, now: Instant) -> Next {
        if answer.status == 200 {
            let node = self.target().id;
            let mut ledger = self.ledger.borrow_mut();
            let read = if self.config.range { read_range } else { read_timestamps };
            match read(answer.body, self.config.count) {
                Ok(range) => ledger.answered_at(sent, node, range, now),
                Err(why) => ledger.broken(sent, node, why),
            }
            return Next::Stay;
        }
        let code = answer.error.and_then(ErrorCode::from_name);
        if answer.status == 409 {
            self.carry(sent, ErrorCode::NotLeader.name(), now);
            return self.leader(answer.leader);
        }
        self.ledger.borrow_mut().failed(sent, code.map_or(failure::STATUS, ErrorCode::name));
        match code {
            // The leader says so: going elsewhere would only lead back here.
            Some(ErrorCode::Overloaded | ErrorCode::BadCount) => Next::Pause,
            _ => Next::Elsewhere,
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

    /// Turns to whom [`Self::judge`] named, or elsewhere after a connection was lost.
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

    /// When nothing is waited for any more.
    pub(super) fn given_up(&self) -> tokio::time::Instant {
        self.shared.window.given_up.into()
    }

    /// Until when an answer to this request may come.
    pub(super) fn deadline(&self, sent: &Sent) -> tokio::time::Instant {
        sent.ticket.deadline.unwrap_or(self.shared.window.given_up).into()
    }
}

/// How long a connection may take to open.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
