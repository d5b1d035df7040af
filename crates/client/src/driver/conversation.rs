//! What is said over one connection to the leader: requests out, answers in, until the connection
//! is of no more use. It never connects to another leader; it says what should be done instead.
//!
//! With hedging, a request that waits too long is asked once more elsewhere ([`Hedge`]). A batch is
//! given out once, by the answer that comes first; the other answer is checked and burnt.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::message::{ping, pong};
use epicepoch_wire::native::{Request, TO_CLIENT_TAIL_LEN_MAX, ToClient, split};
use epicepoch_wire::{NodeId, Timestamp, TimestampRange};
use tokio::time::Sleep;
use tracing::Span;

use super::hedge::{Event, Hedge};
use super::{Driver, Limits, Next, TICK};
use crate::client::now;
use crate::error::{BadAnswer, Setback, TimestampsError};
use crate::link::{Link, foreign, lost};
use crate::members::is_address;
use crate::session::OVERLOADED_SETBACKS;
use crate::waiters::Batch;

/// See the module.
pub(super) struct Conversation<'a> {
    driver: &'a mut Driver,
    addr: &'a str,
    link: Link,
    sent: VecDeque<Sent>,
    hedge: Option<Hedge>,
    /// Nothing is sent before: the leader is overloaded. What comes is still read.
    quiet_until: Option<Instant>,
    limits: Limits,
    pinged_at: Instant,
    refreshed_at: Instant,
}

/// A request that was sent and not answered here.
#[derive(Debug)]
struct Sent {
    asked: Asked,
    /// Who waits for it; `None` once the callers were answered over the other connection.
    batch: Option<Batch>,
    span: Span,
}

/// What an answer is held to, whichever connection it comes over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) id: u64,
    pub(super) total: u64,
    /// Highest timestamp returned before it was sent there: the answer from there lies above.
    pub(super) floor: Option<Timestamp>,
    pub(super) at: Instant,
}

impl Asked {
    /// Whether that can be the answer of the node at `addr`.
    fn check(&self, addr: &str, range: TimestampRange) -> Result<(), TimestampsError> {
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

    /// Until the connection is of no more use. What was not answered waits again.
    pub(super) async fn run(mut self) -> Next {
        let next = self.converse().await;
        // The newest goes back first, so that the oldest is in front again.
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
        // The timer sleeps until the next ping. Whatever wakes the task may send what waits, so
        // it is looked for here and not where the bell rings.
        let mut is_resting = false;
        loop {
            if self.driver.core.is_closed.load(Ordering::Acquire) {
                return Next::Stay;
            }
            // Whatever woke the task: a node that never stops talking holds no deadline up.
            if now() >= timer.deadline().into_std() {
                self.driver.note_expired();
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
                () = self.driver.core.bell.notified() => Next::Stay,
                () = timer.as_mut() => Next::Stay,
                () = tokio::task::yield_now(), if is_waking => Next::Stay,
            };
            match next {
                Next::Stay => {}
                Next::Pause(setback) => {
                    self.quiet_until = Some(self.driver.note(setback, OVERLOADED_SETBACKS));
                }
                next => return next,
            }
        }
    }

    /// Keeps an idle connection, and the list of members fresh.
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

    /// Sends what waits, as far as requests may be in flight.
    fn send(&mut self) {
        if self.quiet_until.is_some_and(|until| now() < until) {
            return;
        }
        self.quiet_until = None;
        // Those whose callers were answered wait for nobody, but not without a limit.
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
            // The waiters hold the total to what a request may ask for.
            let request = Request::new(id, total).expect("a total in bounds");
            self.link.out.extend_from_slice(&request.to_bytes());
            let asked = Asked { id, total, floor, at: now() };
            self.sent.push_back(Sent { asked, batch: Some(batch), span });
        }
    }

    /// Asks once more for what has waited too long. Returns whether there is a second connection,
    /// or one is being opened.
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
            // What was returned since the first sending lies below what is asked for now.
            let floor = self.driver.core.session().highest();
            if hedge.ask(Asked { floor, at: now, ..sent.asked }) {
                sent.span.record("outcome", "hedged");
            }
        }
        hedge.reach(&mut self.driver.core.session(), self.addr);
        true
    }

    /// Takes in what came of the second connection.
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
                        // Only a leader answers, and this is not the one that is talked to here.
                        return Next::Switch(addr);
                    }
                }
                Next::Stay
            }
        }
    }

    /// Takes in every whole frame.
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

    /// Leaves a node that does not answer, or the connection alone if its leader answers over
    /// another one.
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

/// What a frame from the leader at `addr` comes to.
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
            // A hint for when this connection ends; refusals say the same for certain.
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

/// Believes an answer if it is one, and gives it out unless its callers have theirs.
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

/// What comes of the second connection; nothing ever without one.
async fn event(hedge: &mut Option<Hedge>) -> Event {
    match hedge {
        Some(hedge) => hedge.event().await,
        None => std::future::pending().await,
    }
}

/// The request of that id; usually the oldest.
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

/// Requests in flight on the connection. One would make callers wait for a round trip that they
/// cannot join; many would make requests small where merging them costs least.
pub(super) const IN_FLIGHT_MAX: usize = 4;
/// Requests without an answer here, those included whose callers were answered over the other
/// connection: as many as a node reads ahead, unless its welcome says less.
const UNANSWERED_MAX: usize = 1024;
/// Bytes that wait to be sent at most: some thousand pongs, since of requests only few are in
/// flight.
const OUT_LEN_MAX: usize = 1 << 16;
