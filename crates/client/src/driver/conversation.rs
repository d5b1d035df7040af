//! The exchange over one connection to the leader. It sends requests and reads answers until the
//! connection is of no use. It never connects to another leader; it returns the next step instead.
//!
//! With hedging, a request that waits too long is sent again over another connection ([`Hedge`]).
//! The first answer goes to the callers; the other one is checked and dropped.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::message::{ping, pong};
use epicepoch_wire::native::{Request, TO_CLIENT_TAIL_LEN_MAX, ToClient, split};
use epicepoch_wire::{NodeId, TimestampRange};
use tokio::time::Sleep;
use tracing::Span;

use super::hedge::{Event, Hedge};
use super::state::{Asked, Driver, IN_FLIGHT_MAX, Limits, Next, TICK};
use crate::clock::now;
use crate::error::{BadAnswer, Setback};
use crate::link::{Link, foreign, lost};
use crate::members::is_address;
use crate::session::OVERLOADED_SETBACKS;
use crate::waiters::Batch;

/// The exchange over one connection.
pub(super) struct Conversation<'a> {
    driver: &'a mut Driver,
    addr: &'a str,
    link: Link,
    sent: VecDeque<Sent>,
    hedge: Option<Hedge>,
    /// When the pause for an overloaded leader ends. Until then nothing is sent, but answers are
    /// read.
    quiet_until: Option<Instant>,
    limits: Limits,
    pinged_at: Instant,
    refreshed_at: Instant,
}

/// A request that was sent on this connection and has no answer here yet.
#[derive(Debug)]
struct Sent {
    asked: Asked,
    /// The callers; `None` once they were answered over the other connection.
    batch: Option<Batch>,
    span: Span,
}

impl<'a> Conversation<'a> {
    pub(super) fn new(
        driver: &'a mut Driver,
        addr: &'a str,
        link: Link,
        limits: Limits,
        hedge: Option<Hedge>,
    ) -> Self {
        let (sent, now) = (VecDeque::with_capacity(IN_FLIGHT_MAX), now());
        let (pinged_at, refreshed_at, quiet_until) = (now, now, None);
        Self { driver, addr, link, sent, hedge, quiet_until, limits, pinged_at, refreshed_at }
    }

    /// Runs until the connection is of no use. Callers of unanswered requests then wait again.
    pub(super) async fn run(mut self) -> Next {
        let next = self.converse().await;
        // The newest batch is put back first, so that the oldest one ends up in front.
        let mut waiters = self.driver.core.waiters();
        while let Some(sent) = self.sent.pop_back() {
            sent.span.record("outcome", "lost");
            if let Some(batch) = sent.batch {
                waiters.requeue(batch);
            }
        }
        drop(waiters);
        self.driver.wake();
        next
    }

    async fn converse(&mut self) -> Next {
        let tick = self.hedge.as_ref().map_or(TICK, |hedge| hedge.tick().min(TICK));
        let mut timer = pin!(tokio::time::sleep(tick));
        let refresh = self.driver.core.refresh_interval.max(TICK);
        let rest = (self.limits.idle / 3).min(refresh);
        // The timer sleeps until the next ping. Any wake-up may send waiting batches, so the loop
        // checks for them every time and not only after a notification.
        let mut is_resting = false;
        loop {
            if self.driver.core.is_closed.load(Ordering::Acquire) {
                return Next::Stay;
            }
            // Deadlines are checked at every wake-up, so that a node that never stops sending does
            // not delay them.
            if now() >= timer.deadline().into_std() {
                self.driver.record_expired();
                is_resting = self.sent.is_empty() && self.quiet_until.is_none();
                self.keep(is_resting, refresh);
                restart(timer.as_mut(), if is_resting { rest } else { tick });
                if let Some(next) = self.silence() {
                    return next;
                }
            }
            self.send();
            let opening = self.ask_twice();
            let is_waking = self.driver.wake_some();
            if is_resting && !(self.sent.is_empty() && self.quiet_until.is_none()) {
                is_resting = false;
                restart(timer.as_mut(), tick);
            }
            let next = tokio::select! {
                biased;
                exchanged = self.link.exchange() => match exchanged {
                    Ok(()) => self.receive(),
                    Err(error) => Next::Leave(lost(self.addr, &error)),
                },
                event = event(&mut self.hedge), if opening => self.hedged(event),
                () = self.driver.core.notify.notified() => Next::Stay,
                () = timer.as_mut() => Next::Stay,
                () = tokio::task::yield_now(), if is_waking => Next::Stay,
            };
            match next {
                Next::Stay => {}
                Next::Pause(setback) => {
                    self.quiet_until =
                        Some(self.driver.record_setback(setback, OVERLOADED_SETBACKS));
                }
                next => return next,
            }
        }
    }

    /// Pings an idle connection, and refreshes the list of members.
    fn keep(&mut self, is_resting: bool, refresh: Duration) {
        if is_resting && now().saturating_duration_since(self.pinged_at) >= self.limits.idle / 3 {
            self.pinged_at = now();
            self.link.out.extend_from_slice(&ping(0));
        }
        if now().saturating_duration_since(self.refreshed_at) >= refresh {
            self.refreshed_at = now();
            tokio::spawn(self.driver.core.clone().refresh(self.addr.to_owned()));
        }
    }

    /// Sends waiting batches, up to the limit of requests in flight.
    fn send(&mut self) {
        if self.quiet_until.is_some_and(|until| now() < until) {
            return;
        }
        self.quiet_until = None;
        // A request whose callers were answered over the other connection does not count as in
        // flight. All unanswered requests together have their own limit.
        let unanswered_max = self.limits.in_flight_max.min(UNANSWERED_MAX);
        let has_room = |sent: &VecDeque<Sent>| {
            sent.len() < unanswered_max
                && (sent.len() < IN_FLIGHT_MAX
                    || sent.iter().filter(|it| it.batch.is_some()).count() < IN_FLIGHT_MAX)
        };
        let count_max = self.limits.count_max;
        while has_room(&self.sent) {
            let Some(batch) = self.driver.core.waiters().take_batch(count_max) else { return };
            let floor = self.driver.core.session().highest();
            self.driver.last_id += 1;
            let (id, total) = (self.driver.last_id, batch.total());
            let span = tracing::debug_span!(
                "request",
                id,
                callers = batch.callers(),
                timestamps = total,
                outcome = tracing::field::Empty
            );
            // The waiters keep the total within the largest count of a request.
            let request = Request::new(id, total).expect("a total in bounds");
            self.link.out.extend_from_slice(&request.to_bytes());
            let asked = Asked { id, total, floor, at: now() };
            self.sent.push_back(Sent { asked, batch: Some(batch), span });
        }
    }

    /// Sends requests that have waited too long a second time. Returns whether hedging is on.
    fn ask_twice(&mut self) -> bool {
        let Some(hedge) = &mut self.hedge else { return false };
        for sent in &mut self.sent {
            if sent.batch.is_none() {
                continue;
            }
            let now = now();
            if now.saturating_duration_since(sent.asked.at) < hedge.after() {
                break;
            }
            // The answer to the copy must also lie above timestamps returned since the first
            // sending.
            let floor = self.driver.core.session().highest();
            if hedge.ask(Asked { floor, at: now, ..sent.asked }) {
                sent.span.record("outcome", "hedged");
            }
        }
        hedge.reach(&mut self.driver.core.session(), self.addr);
        true
    }

    /// Handles an event of the second connection.
    fn hedged(&mut self, event: Event) -> Next {
        let Some(hedge) = &mut self.hedge else { return Next::Stay };
        match event {
            Event::Nothing => Next::Stay,
            Event::Welcome => {
                let mut session = self.driver.core.session();
                hedge.welcomed(&mut session).map_or_else(Next::Fail, |()| Next::Stay)
            }
            Event::Frames => {
                let addr = hedge.addr().to_owned();
                let is_elsewhere = hedge.node().is_some_and(|node| node != self.driver.node);
                let answers = match hedge.receive() {
                    Ok(answers) => answers,
                    Err(bad) => return Next::Fail(bad.into()),
                };
                for (asked, range) in answers {
                    if let Err(error) = asked.check(&addr, range) {
                        return Next::Fail(error);
                    }
                    let first = self.sent.iter_mut().find(|sent| sent.asked.id == asked.id);
                    if let Some(sent) = first
                        && let Some(batch) = sent.batch.take()
                    {
                        sent.span.record("outcome", "answered by the hedge");
                        let at = sent.asked.at;
                        self.driver.give_out(batch, range, at);
                    }
                    if is_elsewhere {
                        // Only a leader answers, so the node of this connection does not lead any
                        // more.
                        return Next::Switch(addr);
                    }
                }
                Next::Stay
            }
        }
    }

    /// Handles every complete frame.
    fn receive(&mut self) -> Next {
        let mut next = Next::Stay;
        let mut taken = 0;
        loop {
            let frame = split(&self.link.received()[taken..], TO_CLIENT_TAIL_LEN_MAX);
            let frame = match frame {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => return Next::Fail(foreign(self.addr, &error.to_string()).into()),
            };
            taken += frame.len();
            let is_ping = match ToClient::decode(&frame) {
                Ok(ToClient::Ping(id)) => Some(id),
                Ok(frame) => {
                    let judged = handle(self.driver, self.addr, &mut self.sent, &frame);
                    if judged.weight() > next.weight() {
                        next = judged;
                    }
                    None
                }
                Err(error) => return Next::Fail(foreign(self.addr, &error.to_string()).into()),
            };
            if let Some(id) = is_ping {
                self.link.out.extend_from_slice(&pong(id));
                if self.link.out.len() > OUT_LEN_MAX {
                    next = Next::Leave(lost(self.addr, &"it pings and does not read"));
                    break;
                }
            }
        }
        self.link.consume(taken);
        next
    }

    /// Leaves the node if it does not answer. If a node answers over the second connection,
    /// switches to that address.
    fn silence(&self) -> Option<Next> {
        let attempt_timeout = self.driver.core.attempt_timeout;
        let is_silent =
            |sent: &&Sent| now().saturating_duration_since(sent.asked.at) >= attempt_timeout;
        let silent = self.sent.iter().find(is_silent)?;
        let answering =
            self.hedge.as_ref().and_then(|hedge| hedge.answering_since(silent.asked.at));
        Some(match answering {
            Some(addr) => Next::Switch(addr.to_owned()),
            None => Next::Leave(Setback::Silent { addr: self.addr.to_owned() }),
        })
    }
}

/// Handles a frame from the leader at `addr`.
fn handle(
    driver: &mut Driver,
    addr: &str,
    sent: &mut VecDeque<Sent>,
    frame: &ToClient<'_>,
) -> Next {
    match frame {
        ToClient::Answer { id, range } => {
            let Some(sent) = take(sent, *id) else {
                return Next::Fail(foreign(addr, "an answer to nothing").into());
            };
            answered(driver, addr, sent, *range)
        }
        ToClient::Error(error) => {
            let code = error.error_code().unwrap_or(ErrorCode::Internal);
            if let Some(sent) = take(sent, error.id) {
                sent.span.record("outcome", code.name());
                if let Some(batch) = sent.batch {
                    driver.core.waiters().requeue(batch);
                }
            } else if !error.closes {
                return Next::Fail(foreign(addr, "a refusal of nothing").into());
            }
            if code == ErrorCode::WrongCluster {
                let found = error.text.to_owned();
                return Next::Fail(driver.core.session().another_cluster(addr, found).into());
            }
            refused(addr, code, error.text)
        }
        ToClient::Leader(leader) => {
            // This is only a hint that another node leads. A refusal would say so for certain.
            let is_another = leader.node != NodeId(0) && leader.node != driver.node;
            if is_another && is_address(leader.addr) {
                tracing::debug!(leader = leader.addr, "another node leads");
                return Next::Follow { by: addr.to_owned(), leader: leader.addr.to_owned() };
            }
            Next::Stay
        }
        ToClient::Goodbye => {
            Next::Leave(Setback::Refused { addr: addr.to_owned(), code: ErrorCode::ShuttingDown })
        }
        ToClient::Welcome(_) => Next::Fail(foreign(addr, "a second welcome").into()),
        ToClient::Ping(_) | ToClient::Pong(_) | ToClient::Unknown => Next::Stay,
    }
}

/// Checks an answer, and gives it to its callers unless they were answered already.
fn answered(driver: &mut Driver, addr: &str, sent: Sent, range: TimestampRange) -> Next {
    let Sent { asked, batch, span, .. } = sent;
    if let Err(error) = asked.check(addr, range) {
        span.record("outcome", "refused by the client");
        if let Some(batch) = batch {
            driver.core.waiters().fail(batch, &error, &mut driver.wakers);
        }
        return Next::Fail(error);
    }
    if let Some(batch) = batch {
        span.record("outcome", "answered");
        driver.give_out(batch, range, asked.at);
    }
    Next::Stay
}

/// Returns the next event of the second connection. Without one it waits for ever.
async fn event(hedge: &mut Option<Hedge>) -> Event {
    match hedge {
        Some(hedge) => hedge.event().await,
        None => std::future::pending().await,
    }
}

/// Removes and returns the request with that id, which is usually the oldest.
fn take(sent: &mut VecDeque<Sent>, id: u64) -> Option<Sent> {
    let position = sent.iter().position(|sent| sent.asked.id == id)?;
    sent.remove(position)
}

fn refused(addr: &str, code: ErrorCode, text: &str) -> Next {
    let addr = addr.to_owned();
    match code {
        ErrorCode::NotLeader if text != addr && is_address(text) => {
            Next::Follow { by: addr, leader: text.to_owned() }
        }
        ErrorCode::Overloaded => Next::Pause(Setback::Refused { addr, code }),
        // `INTERNAL` means that only this node is broken; another one may answer.
        code if code.is_retryable() || code == ErrorCode::Internal => {
            Next::Leave(Setback::Refused { addr, code })
        }
        code => Next::Fail(BadAnswer::Refused { addr, code, message: text.to_owned() }.into()),
    }
}

fn restart(timer: Pin<&mut Sleep>, after: Duration) {
    timer.reset(tokio::time::Instant::now() + after);
}

/// Most unanswered requests on this connection, including those answered over the other one. A node
/// reads that many requests before it answers, unless its welcome says less.
const UNANSWERED_MAX: usize = 1024;
/// Most bytes that wait to be sent: enough for a few requests and some thousand pongs.
const OUT_LEN_MAX: usize = 1 << 16;
