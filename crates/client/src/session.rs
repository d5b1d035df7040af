//! The session of a client over the native protocol. It finds the leader, shares requests among
//! callers, sends slow ones a second time, retries, and gives each caller its part of an answer. It
//! opens no socket, reads no clock and never waits: `now` and the seed are arguments, as in quinn's
//! protocol crate. The client's driver carries out its actions, and the simulator does the same.
//!
//! The session connects at the first call, and keeps the connection alive with pings. If no request
//! is in flight, a call is sent at once. Otherwise callers gather in the next request. A refused or
//! lost request is repeated for the callers that still wait. Timestamps that nobody uses are
//! skipped; that does no harm.
//!
//! A driver works in turns: it reports what happened (`handle_*`), then calls
//! [`Session::handle_time`], [`Session::poll_transmit`] for each open connection,
//! [`Session::poll_action`], and [`Session::take_wakers`]. It begins the next turn at
//! [`Session::timeout`], at the latest.
//!
//! - `action`: what a session and its driver tell each other.
//! - `exchange`: the requests and answers on the leader's connection.
//! - `hedge`: the second connection.
//! - `state`: what the phases share.

mod action;
mod exchange;
mod hedge;
mod state;

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use epicepoch_wire::NodeId;
use epicepoch_wire::native::{TO_CLIENT_TAIL_LEN_MAX, ToClient, Welcome, split};

use crate::directory::{Directory, FailedAttempts, OVERLOADED_FAILED_ATTEMPTS};
use crate::error::{BadAnswer, FailedAttempt, OpenError};
use crate::members::is_address;
pub use crate::waiters::LATEST;
use crate::waiters::{Outcome, Waiters};
pub(crate) use action::Notice;
pub use action::{Action, LinkId, Settings};
use exchange::Exchange;
use state::{Next, State, TICK};

/// The session of a client. All calls of one client share it.
#[derive(Debug)]
pub struct Session {
    state: State,
    phase: Phase,
    /// When the deadlines of callers are checked next. `None` if no caller can wait.
    timer: Option<Instant>,
}

#[derive(Debug)]
enum Phase {
    /// There is no connection. The session opens one only when a caller waits.
    Idle,
    /// A wait after a failed attempt.
    Pausing {
        until: Instant,
    },
    Opening {
        link: LinkId,
        addr: String,
        until: Instant,
    },
    /// The node knows no leader. It sends a notice when it learns of one.
    Listening {
        link: LinkId,
        addr: String,
        node: NodeId,
        until: Instant,
    },
    /// The node leads.
    Serving(Box<Exchange>),
}

impl Session {
    /// Creates a session that connects at the first call.
    ///
    /// # Panics
    /// `settings` has no address.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let directory = Directory::new(settings.addrs.clone(), settings.seed)
            .expecting(settings.cluster_name.clone());
        let state = State {
            settings,
            directory,
            waiters: Waiters::default(),
            failed_attempts: FailedAttempts::default(),
            rejected: None,
            wakers: Vec::new(),
            notices: Vec::new(),
            actions: VecDeque::new(),
            is_observed: false,
            last_link: 0,
            last_id: 0,
        };
        Self { state, phase: Phase::Idle, timer: None }
    }

    /// Keeps news for [`Self::take_notices`] if `is_observed`.
    pub(crate) fn observed(mut self, is_observed: bool) -> Self {
        self.state.is_observed = is_observed;
        self
    }

    /// Adds a call for `count` timestamps, 1 to 2^32, or for the latest one ([`LATEST`]). Returns
    /// the number of the call, and whether the driver must take a turn now. Returns `None` if too
    /// many calls wait. Then use [`Self::poll_call`] until the outcome is there, and finally
    /// [`Self::leave`].
    pub fn enter(&mut self, count: u64, deadline: Instant) -> Option<(usize, bool)> {
        // What failed during earlier calls may have been corrected. This call tries every address.
        if self.state.failed_attempts.has_tls() && !self.state.waiters.is_wanted() {
            self.state.failed_attempts.forget_tls();
        }
        self.state.waiters.enter(count, deadline)
    }

    /// Returns the outcome of a call, or registers its waker.
    ///
    /// # Panics
    /// There is no such call, or its outcome was returned already.
    pub fn poll_call(&mut self, call: usize, context: &mut Context<'_>) -> Poll<Outcome> {
        self.state.waiters.poll(call, context)
    }

    /// Ends a call. Timestamps that were requested for it are skipped.
    pub fn leave(&mut self, call: usize) {
        self.state.waiters.leave(call);
    }

    /// Does what is due at the time `now`. Callers whose deadline has passed fail. If a node has
    /// been silent for too long, the session leaves it for another one.
    pub fn handle_time(&mut self, now: Instant) {
        if self.timer.take_if(|timer| now >= *timer).is_some() {
            self.handle_tick(now);
        }
        match &mut self.phase {
            Phase::Idle => self.begin(now),
            Phase::Serving(exchange) => exchange.reach(&mut self.state, now),
            Phase::Pausing { .. } | Phase::Opening { .. } | Phase::Listening { .. } => {}
        }
    }

    /// Applies the result of [`Action::Open`].
    pub fn handle_opened(
        &mut self,
        link: LinkId,
        opened: Result<Welcome, OpenError>,
        now: Instant,
    ) {
        let next = match &mut self.phase {
            Phase::Opening { link: own, addr, .. } if *own == link => {
                let addr = std::mem::take(addr);
                match opened {
                    Ok(welcome) => match self.welcomed(link, addr, &welcome, now) {
                        Ok(()) => return,
                        Err(next) => next,
                    },
                    Err(OpenError::FailedAttempt(failed_attempt)) => Next::Leave(failed_attempt),
                    Err(OpenError::AnotherCluster(found)) => {
                        Next::Fail(self.state.directory.another_cluster(&addr, found).into())
                    }
                    Err(OpenError::BadAnswer(bad)) => Next::Fail(bad.into()),
                }
            }
            Phase::Serving(exchange) => exchange.hedge_opened(&mut self.state, link, opened, now),
            _ => return,
        };
        self.follow(next, now);
    }

    /// Handles every complete frame in `bytes`, and returns how many bytes it took. The caller must
    /// pass the remaining bytes again, followed by later ones. Appends the answers for the same
    /// connection to `out`, which may contain earlier bytes.
    pub fn handle_received(
        &mut self,
        link: LinkId,
        bytes: &[u8],
        now: Instant,
        out: &mut Vec<u8>,
    ) -> usize {
        let (taken, next) = match &mut self.phase {
            Phase::Listening { link: own, addr, node, .. } if *own == link => {
                listen(addr, *node, bytes)
            }
            Phase::Serving(exchange) => exchange.receive(&mut self.state, link, bytes, now, out),
            // The session has left this connection. An answer from there belongs to no request of
            // the present connection, so it is skipped.
            _ => (bytes.len(), Next::Stay),
        };
        self.follow(next, now);
        taken
    }

    /// Tells the session that a connection has ended which the session itself has not closed.
    pub fn handle_closed(&mut self, link: LinkId, reason: &dyn ToString, now: Instant) {
        let next = match &mut self.phase {
            Phase::Listening { link: own, addr, .. } if *own == link => {
                Next::Leave(FailedAttempt::lost(addr, reason))
            }
            Phase::Serving(exchange) => exchange.closed(&mut self.state, link, reason, now),
            _ => return,
        };
        self.follow(next, now);
    }

    /// Gives the session the welcome that [`Action::Refresh`] asked for.
    pub fn handle_refreshed(&mut self, addr: &str, welcome: &Welcome) {
        self.state.refresh(addr, welcome);
    }

    /// Fails every call, because the driver has ended. Forgets all connections. Another driver may
    /// take over the session.
    pub fn stop(&mut self) {
        let state = &mut self.state;
        state.waiters.stop(&mut state.wakers);
        state.failed_attempts = FailedAttempts::default();
        state.actions.clear();
        (self.phase, self.timer) = (Phase::Idle, None);
    }

    /// Appends to `out` the bytes that the driver must send now over the open connection `link`.
    pub fn poll_transmit(&mut self, link: LinkId, now: Instant, out: &mut Vec<u8>) {
        if let Phase::Serving(exchange) = &mut self.phase
            && let Some(timer) = exchange.transmit(&mut self.state, link, now, out)
        {
            self.timer = Some(timer);
        }
    }

    /// Returns the next action that the driver must carry out, if there is one.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.state.actions.pop_front()
    }

    /// Appends the wakers of the calls that have ended. Wake them when no lock is held.
    pub fn take_wakers(&mut self, into: &mut Vec<Waker>) {
        if into.is_empty() {
            std::mem::swap(into, &mut self.state.wakers);
        } else {
            into.append(&mut self.state.wakers);
        }
    }

    /// Appends the news for an observer.
    pub(crate) fn take_notices(&mut self, into: &mut Vec<Notice>) {
        into.append(&mut self.state.notices);
    }

    /// Returns when to call [`Self::handle_time`] next. `None` means that nothing is due until an
    /// event or a new call.
    #[must_use]
    pub fn timeout(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Serving(exchange) => match (exchange.due(), self.timer) {
                (Some(due), Some(timer)) => Some(due.min(timer)),
                (due, timer) => due.or(timer),
            },
            _ => self.timer,
        }
    }

    pub(crate) fn directory(&mut self) -> &mut Directory {
        &mut self.state.directory
    }

    fn handle_tick(&mut self, now: Instant) {
        self.state.expire(now);
        let next = match &mut self.phase {
            Phase::Idle => return,
            Phase::Pausing { until } | Phase::Listening { until, .. } if now >= *until => {
                Next::Again
            }
            Phase::Opening { addr, until, .. } if now >= *until => {
                Next::Leave(FailedAttempt::Silent { addr: std::mem::take(addr) })
            }
            Phase::Pausing { until }
            | Phase::Opening { until, .. }
            | Phase::Listening { until, .. } => {
                self.timer = Some((*until).min(now + TICK));
                return;
            }
            Phase::Serving(exchange) => {
                let (timer, next) = exchange.tick(&mut self.state, now);
                self.timer = Some(timer);
                next
            }
        };
        self.follow(next, now);
    }

    /// Connects if a caller waits: to the leader, if one is known, or to the next address.
    fn begin(&mut self, now: Instant) {
        let state = &mut self.state;
        if !state.waiters.is_wanted() {
            self.timer = None;
            return;
        }
        let leader = state.directory.leader().map(str::to_owned);
        let addr = leader.unwrap_or_else(|| state.directory.next_address());
        let link = state.open(addr.clone(), false);
        let until = now + state.settings.attempt_timeout;
        self.wait(Phase::Opening { link, addr, until }, until, now);
    }

    /// Enters a phase that ends at `until`. During the phase, the deadlines of callers are checked.
    fn wait(&mut self, phase: Phase, until: Instant, now: Instant) {
        self.phase = phase;
        self.check_within(TICK.min(until.saturating_duration_since(now)), now);
    }

    /// Has the deadlines checked after `time`, or sooner. A check that is due sooner stays, so a
    /// change of phase never delays one.
    fn check_within(&mut self, time: Duration, now: Instant) {
        let latest = now + time;
        self.timer = Some(self.timer.map_or(latest, |timer| timer.min(latest)));
    }

    /// Applies the welcome of the node that was asked. If it leads, the exchange begins; if it
    /// knows no leader, the session listens.
    fn welcomed(
        &mut self,
        link: LinkId,
        addr: String,
        welcome: &Welcome,
        now: Instant,
    ) -> Result<(), Next> {
        let node = welcome.node;
        let state = &mut self.state;
        match state.learn(&addr, welcome) {
            Ok(()) => {}
            Err(Next::Leave(failed_attempt @ FailedAttempt::NoLeader { .. })) => {
                state.directory.record_failed_attempt(&failed_attempt, now);
                let until = state.record_failed_attempt(failed_attempt, 0, now);
                self.wait(Phase::Listening { link, addr, node, until }, until, now);
                return Ok(());
            }
            Err(next) => return Err(next),
        }
        tracing::debug!(addr, node = node.0, "connected to the leader");
        if state.is_observed {
            state.notices.push(Notice::Connected(addr.clone()));
        }
        let exchange = Exchange::new(&state.settings, link, addr, welcome, now);
        let tick = exchange.tick_interval();
        self.phase = Phase::Serving(Box::new(exchange));
        self.check_within(tick, now);
        Ok(())
    }

    /// Carries out a step: stays, moves to another node, waits, or fails the callers.
    fn follow(&mut self, next: Next, now: Instant) {
        match next {
            Next::Stay => return,
            Next::Pause(failed_attempt) => {
                let until = self.state.record_failed_attempt(
                    failed_attempt,
                    OVERLOADED_FAILED_ATTEMPTS,
                    now,
                );
                if let Phase::Serving(exchange) = &mut self.phase {
                    exchange.rest(until);
                }
                return;
            }
            Next::Again
            | Next::Follow { .. }
            | Next::Switch(_)
            | Next::Leave(_)
            | Next::Fail(_) => {
                self.disconnect();
            }
        }
        let directory = &mut self.state.directory;
        match next {
            Next::Stay | Next::Pause(_) | Next::Again => {}
            Next::Switch(addr) => directory.set_leader(addr),
            Next::Follow { by, leader } => {
                if !directory.is_suspect(&leader, now) && self.state.failed_attempts.hop() {
                    directory.set_leader(leader);
                } else {
                    // Either the node at `by` does not know the newest leader, or the nodes name
                    // each other in a circle. So the session waits before it goes on.
                    directory.forget_leader(&by);
                    self.pause(FailedAttempt::NoLeader { addr: by }, now);
                }
            }
            Next::Leave(failed_attempt) => {
                directory.record_failed_attempt(&failed_attempt, now);
                self.pause(failed_attempt, now);
            }
            Next::Fail(error) => {
                // Each call of a client that has outlived its cluster fails. The log says so once.
                if self.state.rejected.as_ref() != Some(&error) {
                    tracing::error!(
                        %error,
                        "a node answered against the protocol; its answer was rejected"
                    );
                    self.state.rejected = Some(error.clone());
                }
                directory.forget_any_leader();
                self.state.waiters.fail_open(&error, &mut self.state.wakers);
            }
        }
        if matches!(self.phase, Phase::Idle) {
            self.begin(now);
        }
    }

    /// Closes every connection. Callers of unanswered requests wait again.
    fn disconnect(&mut self) {
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Idle | Phase::Pausing { .. } => {}
            Phase::Opening { link, .. } | Phase::Listening { link, .. } => self.state.close(link),
            Phase::Serving(exchange) => exchange.end(&mut self.state),
        }
    }

    /// Waits after a failed attempt.
    fn pause(&mut self, failed_attempt: FailedAttempt, now: Instant) {
        let until = self.state.record_failed_attempt(failed_attempt, 0, now);
        self.state.fail_by_tls();
        self.wait(Phase::Pausing { until }, until, now);
    }
}

/// Reads frames of the node at `addr`, which knew no leader when it was asked. Returns how many
/// bytes were taken, and the next step.
fn listen(addr: &str, node: NodeId, bytes: &[u8]) -> (usize, Next) {
    let mut taken = 0;
    while let Ok(Some(frame)) = split(&bytes[taken..], TO_CLIENT_TAIL_LEN_MAX) {
        taken += frame.len();
        match ToClient::decode(&frame) {
            Ok(ToClient::Leader(leader)) if leader.node == node => {
                return (taken, Next::Switch(addr.to_owned()));
            }
            Ok(ToClient::Leader(leader)) if is_address(leader.addr) => {
                let leader = leader.addr.to_owned();
                return (taken, Next::Follow { by: addr.to_owned(), leader });
            }
            Ok(ToClient::Leader(_) | ToClient::Pong(_) | ToClient::Unknown) => {}
            Ok(_) => {
                let what = "it sent an unexpected frame before it knew a leader";
                return (taken, Next::Leave(FailedAttempt::lost(addr, &what)));
            }
            Err(error) => {
                return (taken, Next::Fail(BadAnswer::foreign(addr, &error.to_string()).into()));
            }
        }
    }
    (taken, Next::Stay)
}

#[cfg(test)]
mod tests;
