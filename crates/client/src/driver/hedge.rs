//! The second connection of a hedging client: what waits too long at the leader is asked once more
//! here, of the leader or of the next known node. It never gives an answer out and never retries:
//! whoever is asked first still counts.
//!
//! Why it keeps the order is argued in decision 14 (`docs/decisions`): a copy is sent after all of
//! its callers asked, so either answer may be returned, and each is held to the floor of its own
//! sending.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use epicepoch_wire::http::cluster_header;
use epicepoch_wire::native::message::pong;
use epicepoch_wire::native::{Request, TO_CLIENT_TAIL_LEN_MAX, ToClient, Welcome, split};
use epicepoch_wire::{NodeId, TimestampRange};

use super::conversation::Asked;
use crate::client::now;
use crate::dial::Dialer;
use crate::error::{BadAnswer, TimestampsError};
use crate::link::{Link, NoLink, foreign};
use crate::members::is_address;
use crate::session::Session;

/// See the module.
pub(super) struct Hedge {
    after: Duration,
    /// How long one node is tried before the next one is.
    patience: Duration,
    cluster_name: Option<String>,
    dialer: Dialer,
    state: State,
    /// What was asked here and not answered.
    copies: VecDeque<Asked>,
    /// Whom to try next, as the last one said; else the leader first, then the rotation.
    hint: Option<String>,
    has_tried_leader: bool,
    answered_at: Option<Instant>,
}

type Opening = Pin<Box<dyn Future<Output = Result<(Link, Welcome), NoLink>> + Send>>;

enum State {
    /// No connection, and none is tried before.
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

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Nothing to act on.
    Nothing,
    /// A node said who it is: [`Hedge::welcomed`].
    Welcome,
    /// Frames came: [`Hedge::receive`].
    Frames,
}

impl Hedge {
    pub(super) fn new(
        after: Duration,
        attempt_timeout: Duration,
        cluster_name: Option<String>,
        dialer: Dialer,
    ) -> Self {
        let patience = after.max(attempt_timeout / PATIENCE_FRACTION);
        let (copies, answered_at, hint) = (VecDeque::new(), None, None);
        let state = State::Idle { until: now() };
        let has_tried_leader = false;
        Self {
            after,
            patience,
            cluster_name,
            dialer,
            state,
            copies,
            hint,
            has_tried_leader,
            answered_at,
        }
    }

    /// How long a request waits before it is asked once more.
    pub(super) fn after(&self) -> Duration {
        self.after
    }

    /// How often to look for requests that wait too long.
    pub(super) fn tick(&self) -> Duration {
        self.after.max(TICK_MIN)
    }

    /// Where the second connection leads, or "".
    pub(super) fn addr(&self) -> &str {
        match &self.state {
            State::Idle { .. } => "",
            State::Opening { addr, .. }
            | State::Welcomed { addr, .. }
            | State::Open { addr, .. } => addr,
        }
    }

    /// Who is at its other end.
    pub(super) fn node(&self) -> Option<NodeId> {
        match &self.state {
            State::Open { node, .. } => Some(*node),
            State::Idle { .. } | State::Opening { .. } | State::Welcomed { .. } => None,
        }
    }

    /// The node that has answered here since then.
    pub(super) fn answering_since(&self, since: Instant) -> Option<&str> {
        let is_new = self.answered_at.is_some_and(|at| at >= since);
        (is_new && self.node().is_some()).then(|| self.addr())
    }

    /// Asks here, too. False if it was, or there is nobody to ask now who allows so much.
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

    /// Keeps a connection for when it is needed: to the leader, or where that one gives nothing, to
    /// others in turn.
    pub(super) fn reach(&mut self, session: &mut Session, leader: &str) {
        let is_stuck = |asked: &Asked| now().saturating_duration_since(asked.at) >= self.patience;
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
            // Not the leader at once again, unless nobody else is known.
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
        self.state = State::Opening { addr, opening, until: now() + self.patience };
    }

    /// Waits until something happens. Dropping it loses nothing.
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
                // Idle connections are closed: that says nothing against the leader.
                self.has_tried_leader = false;
                self.give_up(self.patience);
                Event::Nothing
            }
        }
    }

    /// Takes in who the node is. One that does not lead may name who does.
    ///
    /// # Errors
    /// It is of another cluster.
    pub(super) fn welcomed(&mut self, session: &mut Session) -> Result<(), TimestampsError> {
        let idle = State::Idle { until: now() + self.patience };
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

    /// Takes every whole frame in, and returns what was answered. Whatever else comes ends the
    /// connection at most: the first one goes on.
    ///
    /// # Errors
    /// No node of an oracle sends such frames.
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
            self.give_up(self.patience);
        }
        Ok(answers)
    }

    /// Leaves whoever is asked here. What was asked there is burnt, or never taken.
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

/// A node is tried for an eighth of what an attempt may take: the hedge shall find another one
/// before the first is given up.
const PATIENCE_FRACTION: u32 = 8;
/// Copies without an answer at most.
const COPIES_MAX: usize = 64;
/// Bytes of pongs that may wait to be sent.
const OUT_LEN_MAX: usize = 1 << 16;
/// Shortest time between two looks: the timers' own grain.
const TICK_MIN: Duration = Duration::from_millis(1);
