//! The exchange with the leader. An exchange sends requests and reads answers until the connection
//! can no longer be used. It never connects to another leader itself. It returns what the session
//! must do next.
//!
//! With hedging, a request that waits too long is sent again over another connection ([`Hedge`]).
//! The first answer goes to the callers; the other one is checked and dropped.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::message::{ping, pong};
use epicepoch_wire::native::{ErrorFrame, TO_CLIENT_TAIL_LEN_MAX, ToClient, Welcome, split};
use epicepoch_wire::{COMPACT_INDEXES, NodeId};
use tracing::Span;

use super::action::{Action, LinkId, Settings};
use super::hedge::Hedge;
use super::state::{Asked, Given, Limits, Next, State, TICK};
use crate::error::{BadAnswer, FailedAttempt, OpenError};
use crate::members::is_address;
use crate::waiters::{Batch, LATEST};

/// The exchange with the leader.
#[derive(Debug)]
pub(super) struct Exchange {
    link: LinkId,
    addr: String,
    node: NodeId,
    sent: VecDeque<Sent>,
    hedge: Option<Hedge>,
    /// When the pause for an overloaded leader ends. Until then nothing is sent, but answers are
    /// read.
    quiet_until: Option<Instant>,
    limits: Limits,
    /// Time between two checks for deadlines, silence and slow requests.
    tick: Duration,
    /// Time between two refreshes of the list of members.
    refresh: Duration,
    /// Whether no request is in flight. If so, nothing is due before the next ping.
    is_resting: bool,
    is_ping_due: bool,
    pinged_at: Instant,
    refreshed_at: Instant,
    span: Span,
}

/// A request that was sent on this connection and has no answer here yet.
#[derive(Debug)]
struct Sent {
    asked: Asked,
    /// The callers of the request. `None` after they have been answered over the other connection.
    batch: Option<Batch>,
    span: Span,
}

impl Exchange {
    /// Begins on the connection `link` to the leader at `addr`.
    pub(super) fn new(
        settings: &Settings,
        link: LinkId,
        addr: String,
        welcome: &Welcome,
        now: Instant,
    ) -> Self {
        let hedge =
            settings.hedge_after.map(|after| Hedge::new(after, settings.attempt_timeout, now));
        let tick = hedge.as_ref().map_or(TICK, |hedge| hedge.tick().min(TICK));
        let span = tracing::debug_span!("connection", addr, node = welcome.node.0);
        Self {
            link,
            addr,
            node: welcome.node,
            sent: VecDeque::with_capacity(IN_FLIGHT_MAX),
            hedge,
            quiet_until: None,
            limits: Limits::of(welcome),
            tick,
            refresh: settings.refresh_interval.max(TICK),
            is_resting: false,
            is_ping_due: false,
            pinged_at: now,
            refreshed_at: now,
            span,
        }
    }

    pub(super) fn tick_interval(&self) -> Duration {
        self.tick
    }

    /// Sends nothing before `until`.
    pub(super) fn rest(&mut self, until: Instant) {
        self.quiet_until = Some(until);
    }

    /// Pings an idle connection, refreshes the list of members, and finds a silent leader. Returns
    /// when to check again.
    pub(super) fn tick(&mut self, state: &mut State, now: Instant) -> (Instant, Next) {
        self.is_resting = self.is_idle();
        let since = |then| now.saturating_duration_since(then);
        if self.is_resting && since(self.pinged_at) >= self.limits.idle / 3 {
            self.pinged_at = now;
            self.is_ping_due = true;
        }
        if since(self.refreshed_at) >= self.refresh {
            self.refreshed_at = now;
            state.actions.push_back(Action::Refresh { addr: self.addr.clone() });
        }
        let rest = (self.limits.idle / 3).min(self.refresh);
        let after = if self.is_resting { rest } else { self.tick };
        let timeout = state.settings.attempt_timeout;
        (now + after, self.silence(timeout, now).unwrap_or(Next::Stay))
    }

    /// Opens the second connection if it is not open. Does nothing in a client without hedging.
    pub(super) fn reach(&mut self, state: &mut State, now: Instant) {
        if let Some(hedge) = &mut self.hedge {
            hedge.reach(state, &self.addr, now);
        }
    }

    /// When the second connection needs [`Self::reach`].
    pub(super) fn due(&self) -> Option<Instant> {
        self.hedge.as_ref().and_then(Hedge::due)
    }

    /// Appends the bytes to send over `link` now. If this puts the first request in flight, returns
    /// when to check for deadlines.
    pub(super) fn transmit(
        &mut self,
        state: &mut State,
        link: LinkId,
        now: Instant,
        out: &mut Vec<u8>,
    ) -> Option<Instant> {
        if link != self.link {
            self.ask_twice(state, link, now, out);
            return None;
        }
        if std::mem::take(&mut self.is_ping_due) {
            out.extend_from_slice(&ping(0));
        }
        self.send(state, now, out);
        (self.is_resting && !self.is_idle()).then(|| {
            self.is_resting = false;
            now + self.tick
        })
    }

    /// Handles every complete frame in `bytes`. Returns how many bytes were taken.
    pub(super) fn receive(
        &mut self,
        state: &mut State,
        link: LinkId,
        bytes: &[u8],
        now: Instant,
        out: &mut Vec<u8>,
    ) -> (usize, Next) {
        let is_first = link == self.link;
        if !is_first && self.hedge.as_ref().is_none_or(|hedge| !hedge.is_open(link)) {
            // The bytes come from a connection that this session has left. They answer no request
            // of the present connection, so they are skipped.
            return (bytes.len(), Next::Stay);
        }
        let (mut next, mut taken, mut is_useful) = (Next::Stay, 0, true);
        let after = loop {
            let frame = match split(&bytes[taken..], TO_CLIENT_TAIL_LEN_MAX) {
                Ok(Some(frame)) => frame,
                Ok(None) => break Next::Stay,
                Err(error) => break self.foreign(link, &error.to_string()),
            };
            taken += frame.len();
            let judged = match ToClient::decode(&frame) {
                Ok(ToClient::Ping(id)) => {
                    out.extend_from_slice(&pong(id));
                    if out.len() > OUT_LEN_MAX && is_first {
                        break Next::Leave(FailedAttempt::lost(
                            &self.addr,
                            &"it pings and does not read",
                        ));
                    }
                    is_useful &= out.len() <= OUT_LEN_MAX;
                    Next::Stay
                }
                Ok(frame) if is_first => self.handle(state, &frame, now),
                Ok(frame) => self.handle_hedged(state, &frame, &mut is_useful, now),
                Err(error) => break self.foreign(link, &error.to_string()),
            };
            if judged.weight() > next.weight() {
                next = judged;
            }
            if matches!(next, Next::Fail(_)) {
                // C7: what comes behind a wrong answer is not trusted, even if it looks right.
                break Next::Stay;
            }
        };
        if let Some(hedge) = self.hedge.as_mut().filter(|_| !is_useful) {
            hedge.give_up(state, now);
        }
        (taken, if after.weight() > next.weight() { after } else { next })
    }

    /// Applies the end of a connection. If the second connection ends, nothing changes on the first
    /// one.
    pub(super) fn closed(
        &mut self,
        state: &mut State,
        link: LinkId,
        reason: &dyn ToString,
        now: Instant,
    ) -> Next {
        if link == self.link {
            return Next::Leave(FailedAttempt::lost(&self.addr, reason));
        }
        if let Some(hedge) = self.hedge.as_mut().filter(|hedge| hedge.is_open(link)) {
            hedge.closed(state, now);
        }
        Next::Stay
    }

    /// Applies the result of opening the second connection.
    pub(super) fn hedge_opened(
        &mut self,
        state: &mut State,
        link: LinkId,
        opened: Result<Welcome, OpenError>,
        now: Instant,
    ) -> Next {
        let Some(hedge) = &mut self.hedge else { return Next::Stay };
        match hedge.opened(state, link, opened, now) {
            Ok(()) => Next::Stay,
            Err(error) => Next::Fail(error),
        }
    }

    /// Closes both connections. Callers of unanswered requests wait again.
    pub(super) fn end(mut self, state: &mut State) {
        // The newest batch is put back first. Each one goes to the front of the queue, so the
        // oldest batch comes first in the end.
        while let Some(sent) = self.sent.pop_back() {
            sent.span.record("outcome", "lost");
            if let Some(batch) = sent.batch {
                state.waiters.requeue(batch);
            }
        }
        state.close(self.link);
        if let Some(hedge) = &mut self.hedge {
            hedge.close(state);
        }
    }

    fn is_idle(&self) -> bool {
        self.sent.is_empty() && self.quiet_until.is_none()
    }

    /// Sends waiting batches, up to the limit of requests in flight.
    fn send(&mut self, state: &mut State, now: Instant, out: &mut Vec<u8>) {
        if self.quiet_until.is_some_and(|until| now < until) {
            return;
        }
        self.quiet_until = None;
        // If the callers of a request were answered over the other connection, the request does not
        // count for `IN_FLIGHT_MAX`. But the node has not answered it on this connection, so it
        // counts for `UNANSWERED_MAX`.
        let unanswered_max = self.limits.in_flight_max.min(UNANSWERED_MAX);
        let has_room = |sent: &VecDeque<Sent>| {
            sent.len() < unanswered_max
                && (sent.len() < IN_FLIGHT_MAX
                    || sent.iter().filter(|it| it.batch.is_some()).count() < IN_FLIGHT_MAX)
        };
        while has_room(&self.sent) {
            let Some(batch) = state.waiters.take_batch(self.limits.count_max) else { return };
            state.last_id += 1;
            let (id, total) = (state.last_id, batch.total());
            let span = tracing::debug_span!(
                parent: &self.span,
                "request",
                id,
                callers = batch.callers(),
                timestamps = total,
                outcome = tracing::field::Empty
            );
            let is_latest = total == LATEST && self.limits.has_latest;
            let asked = Asked { id, total, is_latest, floor: state.directory.highest(), at: now };
            out.extend_from_slice(&asked.request().to_bytes());
            self.sent.push_back(Sent { asked, batch: Some(batch), span });
        }
    }

    /// Sends a copy of each request that has waited too long over the second connection, `link`.
    fn ask_twice(&mut self, state: &State, link: LinkId, now: Instant, out: &mut Vec<u8>) {
        let Some(hedge) = self.hedge.as_mut().filter(|hedge| hedge.is_open(link)) else { return };
        for sent in self.sent.iter().filter(|sent| sent.batch.is_some()) {
            if now.saturating_duration_since(sent.asked.at) < hedge.after() {
                break;
            }
            // The copy is sent later than the request. So its answer must also be above the
            // timestamps that other calls got in between.
            let floor = state.directory.highest();
            if hedge.ask(Asked { floor, at: now, ..sent.asked }, out) {
                sent.span.record("outcome", "hedged");
            }
        }
    }

    /// Handles a frame from the leader.
    fn handle(&mut self, state: &mut State, frame: &ToClient<'_>, now: Instant) -> Next {
        match frame {
            &ToClient::Answer { id, range, is_latest, proved_by } => {
                self.answered(state, id, Given { range, is_latest, proved_by }, now)
            }
            ToClient::Error(error) => self.handle_error(state, error),
            ToClient::Leader(leader) => {
                // The notice is only a hint that another node leads; it may be outdated.
                let is_another = leader.node != NodeId(0) && leader.node != self.node;
                if is_another && is_address(leader.addr) {
                    tracing::debug!(addr = leader.addr, "another node leads");
                    let (by, leader) = (self.addr.clone(), leader.addr.to_owned());
                    return Next::Follow { by, leader };
                }
                Next::Stay
            }
            ToClient::Goodbye => {
                let (addr, code) = (self.addr.clone(), ErrorCode::ShuttingDown);
                Next::Leave(FailedAttempt::Refused { addr, code })
            }
            ToClient::Welcome(_) => self.foreign(self.link, "a second welcome"),
            ToClient::Ping(_) | ToClient::Pong(_) | ToClient::Unknown => Next::Stay,
        }
    }

    /// Checks an answer to the request `id`. Gives it to the callers of the request, unless they
    /// were answered already.
    fn answered(&mut self, state: &mut State, id: u64, given: Given, now: Instant) -> Next {
        let Some(Sent { asked, batch, span }) = self.take(id) else {
            return self.foreign(self.link, "an answer to nothing");
        };
        if let Err(error) = asked.check(&self.addr, state.settings.guarantee, &given) {
            span.record("outcome", "refused by the client");
            if let Some(batch) = batch {
                state.waiters.fail(batch, &error, &mut state.wakers);
            }
            return Next::Fail(error);
        }
        if let Some(batch) = batch {
            span.record("outcome", "answered");
            state.give_out(batch, given.range, asked.at, now);
        }
        Next::Stay
    }

    fn handle_error(&mut self, state: &mut State, error: &ErrorFrame<'_>) -> Next {
        let code = error.error_code().unwrap_or(ErrorCode::Internal);
        if let Some(sent) = self.take(error.id) {
            sent.span.record("outcome", code.name());
            if code == ErrorCode::BadCount && sent.asked.total > COMPACT_INDEXES && !error.closes {
                return self.too_many(state, sent.batch, error);
            }
            if let Some(batch) = sent.batch {
                state.waiters.requeue(batch);
            }
        } else if !error.closes {
            return self.foreign(self.link, "a refusal of nothing");
        }
        if code == ErrorCode::WrongCluster {
            let found = error.text.to_owned();
            return Next::Fail(state.directory.another_cluster(&self.addr, found).into());
        }
        if code == ErrorCode::Unauthorized && error.closes {
            // The node has accepted this client's token before. Another token may be valid by now,
            // and the next connection shows the present one.
            return Next::Leave(FailedAttempt::Refused { addr: self.addr.clone(), code });
        }
        refused(&self.addr, code, error.text)
    }

    /// Handles the refusal of a request for more timestamps than a millisecond has. The cluster has
    /// become compact since the welcome, so this connection keeps to the smaller limit from now on.
    /// Several callers may each have asked for few timestamps, so they are asked for again, in
    /// smaller requests. The refusal is the answer to a single caller, and to no other one.
    fn too_many(
        &mut self,
        state: &mut State,
        batch: Option<Batch>,
        error: &ErrorFrame<'_>,
    ) -> Next {
        self.limits.count_max = self.limits.count_max.min(COMPACT_INDEXES);
        match batch {
            Some(batch) if batch.callers() == 1 => {
                let (addr, message) = (self.addr.clone(), error.text.to_owned());
                let refused = BadAnswer::Refused { addr, code: ErrorCode::BadCount, message };
                state.waiters.fail(batch, &refused.into(), &mut state.wakers);
            }
            Some(batch) => state.waiters.requeue(batch),
            None => {}
        }
        Next::Stay
    }

    /// Handles a frame of the second connection. Clears `is_useful` if the second connection can no
    /// longer be used. The first connection ends only if another node answers over the second one,
    /// or if the frame breaks the protocol.
    fn handle_hedged(
        &mut self,
        state: &mut State,
        frame: &ToClient<'_>,
        is_useful: &mut bool,
        now: Instant,
    ) -> Next {
        let Some(hedge) = &mut self.hedge else { return Next::Stay };
        let &ToClient::Answer { id, range, is_latest, proved_by } = frame else {
            *is_useful &= hedge.handle(frame);
            return Next::Stay;
        };
        let Some(asked) = hedge.answered(id, now) else {
            return Next::Fail(BadAnswer::foreign(hedge.addr(), "an answer to nothing").into());
        };
        let given = Given { range, is_latest, proved_by };
        if let Err(error) = asked.check(hedge.addr(), state.settings.guarantee, &given) {
            return Next::Fail(error);
        }
        let first = self.sent.iter_mut().find(|sent| sent.asked.id == asked.id);
        if let Some(sent) = first
            && let Some(batch) = sent.batch.take()
        {
            sent.span.record("outcome", "answered by the hedge");
            state.give_out(batch, range, sent.asked.at, now);
        }
        if hedge.node() == Some(self.node) {
            return Next::Stay;
        }
        // Another node has answered over the second connection. Only a leader answers, so the node
        // of the first connection no longer leads.
        Next::Switch(hedge.addr().to_owned())
    }

    /// Returns the next step if the node has left a request unanswered for `attempt_timeout`. If a
    /// node has answered over the second connection since then, the step is to switch to its
    /// address. Otherwise it is to leave the node.
    fn silence(&self, attempt_timeout: Duration, now: Instant) -> Option<Next> {
        let is_silent =
            |sent: &&Sent| now.saturating_duration_since(sent.asked.at) >= attempt_timeout;
        let silent = self.sent.iter().find(is_silent)?;
        let answering =
            self.hedge.as_ref().and_then(|hedge| hedge.answering_since(silent.asked.at));
        Some(match answering {
            Some(addr) => Next::Switch(addr.to_owned()),
            None => Next::Leave(FailedAttempt::Silent { addr: self.addr.clone() }),
        })
    }

    /// Removes and returns the request with that id, which is usually the oldest.
    fn take(&mut self, id: u64) -> Option<Sent> {
        let position = self.sent.iter().position(|sent| sent.asked.id == id)?;
        self.sent.remove(position)
    }

    /// Returns the next step after an answer over `link` that no node of EpicEpoch would send: the
    /// calls fail.
    fn foreign(&self, link: LinkId, what: &str) -> Next {
        let hedge = self.hedge.as_ref().filter(|_| link != self.link);
        Next::Fail(BadAnswer::foreign(hedge.map_or(&self.addr, Hedge::addr), what).into())
    }
}

fn refused(addr: &str, code: ErrorCode, text: &str) -> Next {
    let addr = addr.to_owned();
    match code {
        ErrorCode::NotLeader if text != addr && is_address(text) => {
            Next::Follow { by: addr, leader: text.to_owned() }
        }
        ErrorCode::Overloaded => Next::Pause(FailedAttempt::Refused { addr, code }),
        // The code `INTERNAL` means that only this node is broken. Another node may answer.
        code if code.is_retryable() || code == ErrorCode::Internal => {
            Next::Leave(FailedAttempt::Refused { addr, code })
        }
        code => Next::Fail(BadAnswer::Refused { addr, code, message: text.to_owned() }.into()),
    }
}

/// At most this many requests are in flight on a connection. With only one, each caller would wait
/// for the answer to the request before its own. With many, few calls would share a request, and
/// sharing is what saves work.
pub(crate) const IN_FLIGHT_MAX: usize = 4;
/// At most this many requests on this connection are unanswered. A request counts even if its
/// callers were answered over the other connection. A node reads this many requests before it
/// answers, unless its welcome says less.
const UNANSWERED_MAX: usize = 1024;
/// At most this many bytes wait to be sent. That is enough for a few requests and some thousand
/// pongs.
pub(super) const OUT_LEN_MAX: usize = 1 << 16;
