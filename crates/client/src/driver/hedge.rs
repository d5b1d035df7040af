//! The second connection of a hedging client. A request that waits too long at the leader is sent
//! again here, to the leader or to the next known node. This module never answers a caller and
//! never retries.
//!
//! Decision 14 (`docs/decisions`) argues why this keeps the order. A copy is sent after all of its
//! callers have called, so either answer may be returned. Each answer must lie above the floor of
//! its own sending.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use epicepoch_wire::http::cluster_header;
use epicepoch_wire::native::message::pong;
use epicepoch_wire::native::{Request, TO_CLIENT_TAIL_LEN_MAX, ToClient, Welcome, split};
use epicepoch_wire::{NodeId, TimestampRange};

use super::state::Asked;
use crate::clock::now;
use crate::dial::Dialer;
use crate::error::{BadAnswer, TimestampsError};
use crate::link::{Link, NoLink, foreign};
use crate::members::is_address;
use crate::session::Session;

/// The second connection.
pub(super) struct Hedge {
    after: Duration,
    /// How long one node is tried before the next one.
    node_timeout: Duration,
    cluster_name: Option<String>,
    dialer: Dialer,
    state: State,
    /// Copies that have no answer yet.
    copies: VecDeque<Asked>,
    /// The next address to try, named by the last node. Without it the leader comes first, then the
    /// addresses in turn.
    hint: Option<String>,
    has_tried_leader: bool,
    answered_at: Option<Instant>,
}

type Opening = Pin<Box<dyn Future<Output = Result<(Link, Welcome), NoLink>> + Send>>;

enum State {
    /// There is no connection, and no attempt before `until`.
    Idle {
        until: Instant,
    },
    Opening {
        addr: String,
        opening: Opening,
        until: Instant,
    },
    Welcomed {
        addr: String,
        link: Link,
        welcome: Box<Welcome>,
    },
    Open {
        addr: String,
        node: NodeId,
        link: Link,
        count_max: u64,
    },
}

/// An event of the second connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Nothing to act on.
    Nothing,
    /// A welcome came: call [`Hedge::welcomed`].
    Welcome,
    /// Frames came: call [`Hedge::receive`].
    Frames,
}

impl Hedge {
    pub(super) fn new(
        after: Duration,
        attempt_timeout: Duration,
        cluster_name: Option<String>,
        dialer: Dialer,
    ) -> Self {
        let node_timeout = after.max(attempt_timeout / WAIT_FRACTION);
        let (copies, answered_at, hint) = (VecDeque::new(), None, None);
        let state = State::Idle { until: now() };
        let has_tried_leader = false;
        Self {
            after,
            node_timeout,
            cluster_name,
            dialer,
            state,
            copies,
            hint,
            has_tried_leader,
            answered_at,
        }
    }

    /// Time after which a request is sent a second time.
    pub(super) fn after(&self) -> Duration {
        self.after
    }

    /// Time between two checks for requests that wait too long.
    pub(super) fn tick(&self) -> Duration {
        self.after.max(TICK_MIN)
    }

    /// The address of the second connection, or "" if there is none.
    pub(super) fn addr(&self) -> &str {
        match &self.state {
            State::Idle { .. } => "",
            State::Opening { addr, .. }
            | State::Welcomed { addr, .. }
            | State::Open { addr, .. } => addr,
        }
    }

    /// The node that the second connection leads to.
    pub(super) fn node(&self) -> Option<NodeId> {
        match &self.state {
            State::Open { node, .. } => Some(*node),
            State::Idle { .. } | State::Opening { .. } | State::Welcomed { .. } => None,
        }
    }

    /// Returns the address of the node if it has answered since `since`.
    pub(super) fn answering_since(&self, since: Instant) -> Option<&str> {
        let is_new = self.answered_at.is_some_and(|at| at >= since);
        (is_new && self.node().is_some()).then(|| self.addr())
    }

    /// Sends a copy over this connection. Returns false if one was sent already, or if a limit
    /// forbids it.
    pub(super) fn ask(&mut self, asked: Asked) -> bool {
        let State::Open { link, count_max, .. } = &mut self.state else { return false };
        let is_asked = self.copies.iter().any(|copy| copy.id == asked.id);
        if is_asked || asked.total > *count_max || self.copies.len() >= COPIES_MAX {
            return false;
        }
        let request = Request::new(asked.id, asked.total).expect("it was sent before");
        link.out.extend_from_slice(&request.to_bytes());
        self.copies.push_back(asked);
        true
    }

    /// Keeps the second connection open. It leads to the leader, or, if the leader does not answer,
    /// to each of the other nodes in turn.
    pub(super) fn reach(&mut self, session: &mut Session, leader: &str) {
        let is_stuck =
            |asked: &Asked| now().saturating_duration_since(asked.at) >= self.node_timeout;
        if self.copies.front().is_some_and(is_stuck) {
            self.give_up(Duration::ZERO);
        }
        let State::Idle { until } = self.state else { return };
        if now() < until {
            return;
        }
        let addr = match self.hint.take() {
            Some(hint) => hint,
            None if !self.has_tried_leader => leader.to_owned(),
            // The leader is not tried again, unless no other node is known.
            None => match session.next_address() {
                next if next == leader => session.next_address(),
                next => next,
            },
        };
        self.has_tried_leader = true;
        let (to, name) = (addr.clone(), self.cluster_name.clone());
        let dialer = self.dialer.clone();
        let opening: Opening =
            Box::pin(async move { Link::open(&dialer, &to, name.as_deref()).await });
        self.state = State::Opening { addr, opening, until: now() + self.node_timeout };
    }

    /// Waits for the next event. Cancel safe: no event is lost if the future is dropped.
    pub(super) async fn event(&mut self) -> Event {
        match &mut self.state {
            State::Idle { until } => {
                tokio::time::sleep_until((*until).into()).await;
                Event::Nothing
            }
            State::Opening { addr, opening, until } => {
                let until = *until;
                let opened = tokio::time::timeout_at(until.into(), opening).await;
                if let Ok(Ok((link, welcome))) = opened {
                    let (addr, welcome) = (std::mem::take(addr), Box::new(welcome));
                    self.state = State::Welcomed { addr, link, welcome };
                    return Event::Welcome;
                }
                self.state = State::Idle { until };
                Event::Nothing
            }
            State::Welcomed { .. } => Event::Welcome,
            State::Open { link, .. } => {
                if link.exchange().await.is_ok() {
                    return Event::Frames;
                }
                // Nodes close idle connections, so the leader may be healthy.
                self.has_tried_leader = false;
                self.give_up(self.node_timeout);
                Event::Nothing
            }
        }
    }

    /// Applies the welcome. A node that does not lead may name the leader.
    ///
    /// # Errors
    /// The node belongs to another cluster.
    pub(super) fn welcomed(&mut self, session: &mut Session) -> Result<(), TimestampsError> {
        let idle = State::Idle { until: now() + self.node_timeout };
        let State::Welcomed { addr, link, welcome } = std::mem::replace(&mut self.state, idle)
        else {
            return Ok(());
        };
        session.check_name(&addr, &welcome.cluster_name)?;
        let Some((cluster, history)) = welcome.cluster else { return Ok(()) };
        session.check_cluster(&addr, Some(&cluster_header(cluster, history)))?;
        match &welcome.leader {
            Some(leader) if leader.node == welcome.node => {
                let (node, count_max) = (welcome.node, welcome.count_max);
                self.state = State::Open { addr, node, link, count_max };
            }
            Some(leader)
                if is_address(&leader.addr) && !session.is_suspect(&leader.addr, now()) =>
            {
                self.hint = Some(leader.addr.clone());
            }
            Some(_) | None => {}
        }
        Ok(())
    }

    /// Handles every complete frame, and returns the answers. Other frames may end this connection,
    /// but not the first one.
    ///
    /// # Errors
    /// No node sends such a frame.
    pub(super) fn receive(&mut self) -> Result<Vec<(Asked, TimestampRange)>, BadAnswer> {
        let State::Open { addr, link, .. } = &mut self.state else { return Ok(Vec::new()) };
        let mut answers = Vec::new();
        let (mut taken, mut is_useful) = (0, true);
        let mut pongs = Vec::new();
        loop {
            let frame = split(&link.received()[taken..], TO_CLIENT_TAIL_LEN_MAX);
            let Some(frame) = frame.map_err(|error| foreign(addr, &error.to_string()))? else {
                break;
            };
            taken += frame.len();
            match ToClient::decode(&frame).map_err(|error| foreign(addr, &error.to_string()))? {
                ToClient::Answer { id, range } => {
                    let position = self.copies.iter().position(|asked| asked.id == id);
                    let asked = position.and_then(|position| self.copies.remove(position));
                    let asked = asked.ok_or_else(|| foreign(addr, "an answer to nothing"))?;
                    answers.push((asked, range));
                }
                ToClient::Error(error) => {
                    self.copies.retain(|asked| asked.id != error.id);
                    if error.error_code() == Some(epicepoch_wire::http::ErrorCode::NotLeader)
                        && is_address(error.text)
                    {
                        self.hint = Some(error.text.to_owned());
                    }
                    is_useful = false;
                }
                ToClient::Leader(_) | ToClient::Goodbye | ToClient::Welcome(_) => is_useful = false,
                ToClient::Ping(id) => pongs.extend_from_slice(&pong(id)),
                ToClient::Pong(_) | ToClient::Unknown => {}
            }
        }
        link.consume(taken);
        link.out.append(&mut pongs);
        if link.out.len() > OUT_LEN_MAX {
            is_useful = false;
        }
        if !answers.is_empty() {
            self.answered_at = Some(now());
        }
        if !is_useful {
            self.give_up(self.node_timeout);
        }
        Ok(answers)
    }

    /// Closes the connection and forgets its copies, whose timestamps are skipped.
    fn give_up(&mut self, pause: Duration) {
        self.copies.clear();
        self.state = State::Idle { until: now() + pause };
    }
}

impl fmt::Debug for Hedge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hedge").field("addr", &self.addr()).finish_non_exhaustive()
    }
}

/// A node gets an eighth of the time of an attempt. So the hedge finds another node before the
/// client leaves the first one.
const WAIT_FRACTION: u32 = 8;
/// Most copies that may wait for an answer.
const COPIES_MAX: usize = 64;
/// Most bytes of pongs that wait to be sent.
const OUT_LEN_MAX: usize = 1 << 16;
/// Shortest time between two checks: the resolution of timers.
const TICK_MIN: Duration = Duration::from_millis(1);
