//! The second connection of a hedging client. A request that waits too long at the leader is sent
//! again here, to the leader or to the next known node. This module never answers a caller and
//! never retries.
//!
//! Decision 14 (`docs/decisions`) argues why this keeps the order. The copy is sent after all
//! callers of the request have called. So the answer to the request and the answer to the copy are
//! both valid. Each answer must be above the highest timestamp that the client had returned when
//! the request, or the copy, was sent.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use epicepoch_wire::NodeId;
use epicepoch_wire::http::{ErrorCode, cluster_header};
use epicepoch_wire::native::{ToClient, Welcome};

use super::action::LinkId;
use super::state::{Asked, Limits, State};
use crate::error::{OpenError, TimestampsError};
use crate::members::is_address;
use crate::waiters::LATEST;

/// The second connection.
#[derive(Debug)]
pub(super) struct Hedge {
    after: Duration,
    /// How long one node is tried before the next one is tried.
    node_timeout: Duration,
    phase: Phase,
    /// Copies that have no answer yet.
    copies: VecDeque<Asked>,
    /// The next address to try, which the last node has named as the leader's. If there is none,
    /// the leader comes first, then all addresses in turn.
    hint: Option<String>,
    has_tried_leader: bool,
    answered_at: Option<Instant>,
}

#[derive(Debug)]
enum Phase {
    /// There is no connection, and no attempt before `until`.
    Idle {
        until: Instant,
    },
    Opening {
        link: LinkId,
        addr: String,
        until: Instant,
    },
    Open {
        link: LinkId,
        addr: String,
        node: NodeId,
        limits: Limits,
    },
}

impl Hedge {
    pub(super) fn new(after: Duration, attempt_timeout: Duration, now: Instant) -> Self {
        Self {
            after,
            node_timeout: after.max(attempt_timeout / WAIT_FRACTION),
            phase: Phase::Idle { until: now },
            copies: VecDeque::new(),
            hint: None,
            has_tried_leader: false,
            answered_at: None,
        }
    }

    /// Returns the time after which a request is sent a second time.
    pub(super) fn after(&self) -> Duration {
        self.after
    }

    /// Returns the time between two checks for requests that wait too long.
    pub(super) fn tick(&self) -> Duration {
        self.after.max(TICK_MIN)
    }

    /// Returns when [`Self::reach`] must be called, apart from calls for copies that have waited
    /// too long.
    pub(super) fn due(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Idle { until } | Phase::Opening { until, .. } => Some(*until),
            Phase::Open { .. } => None,
        }
    }

    /// Whether `link` is the second connection and this connection is open.
    pub(super) fn is_open(&self, link: LinkId) -> bool {
        matches!(&self.phase, Phase::Open { link: own, .. } if *own == link)
    }

    /// Returns the address of the second connection; "" if there is none.
    pub(super) fn addr(&self) -> &str {
        match &self.phase {
            Phase::Idle { .. } => "",
            Phase::Opening { addr, .. } | Phase::Open { addr, .. } => addr,
        }
    }

    /// Returns the node at the other end of the second connection, if it is open.
    pub(super) fn node(&self) -> Option<NodeId> {
        match &self.phase {
            Phase::Open { node, .. } => Some(*node),
            Phase::Idle { .. } | Phase::Opening { .. } => None,
        }
    }

    /// Returns the address of the second connection if the node there has answered a request since
    /// `since`.
    pub(super) fn answering_since(&self, since: Instant) -> Option<&str> {
        let is_new = self.answered_at.is_some_and(|at| at >= since);
        (is_new && self.node().is_some()).then(|| self.addr())
    }

    /// Sends a copy of a request over the second connection. Returns false if a copy of it was sent
    /// already, or if a limit forbids it.
    pub(super) fn ask(&mut self, asked: Asked, out: &mut Vec<u8>) -> bool {
        let Phase::Open { limits, .. } = &self.phase else { return false };
        let is_asked = self.copies.iter().any(|copy| copy.id == asked.id);
        if is_asked || asked.total > limits.count_max || self.copies.len() >= COPIES_MAX {
            return false;
        }
        // The two nodes may be of different versions.
        let is_latest = asked.total == LATEST && limits.has_latest;
        let asked = Asked { is_latest, ..asked };
        out.extend_from_slice(&asked.request().to_bytes());
        self.copies.push_back(asked);
        true
    }

    /// Opens the second connection if it is not open: first to the leader. If the leader does not
    /// answer, opens it to each of the other nodes in turn.
    pub(super) fn reach(&mut self, state: &mut State, leader: &str, now: Instant) {
        let is_stuck = |asked: &Asked| now.saturating_duration_since(asked.at) >= self.node_timeout;
        let is_late = matches!(&self.phase, Phase::Opening { until, .. } if now >= *until);
        if is_late || self.copies.front().is_some_and(is_stuck) {
            self.leave(state, now);
        }
        if !matches!(&self.phase, Phase::Idle { until } if now >= *until) {
            return;
        }
        let addr = match self.hint.take() {
            Some(hint) => hint,
            None if !self.has_tried_leader => leader.to_owned(),
            // If the next address is the leader's, it is skipped. The leader is tried again only if
            // no other node is known.
            None => match state.directory.next_address() {
                next if next == leader => state.directory.next_address(),
                next => next,
            },
        };
        self.has_tried_leader = true;
        let link = state.open(addr.clone(), true);
        self.phase = Phase::Opening { link, addr, until: now + self.node_timeout };
    }

    /// Applies the result of opening the second connection. A node that does not lead may name the
    /// leader, which is tried next.
    ///
    /// # Errors
    /// The node belongs to another cluster.
    pub(super) fn opened(
        &mut self,
        state: &mut State,
        link: LinkId,
        opened: Result<Welcome, OpenError>,
        now: Instant,
    ) -> Result<(), TimestampsError> {
        let Phase::Opening { link: own, addr, until } = &mut self.phase else { return Ok(()) };
        if *own != link {
            return Ok(());
        }
        let directory = &mut state.directory;
        let welcome = match opened {
            Ok(welcome) => welcome,
            Err(OpenError::AnotherCluster(found)) => {
                return Err(directory.another_cluster(addr, found).into());
            }
            Err(OpenError::FailedAttempt(_) | OpenError::BadAnswer(_)) => {
                self.phase = Phase::Idle { until: *until };
                return Ok(());
            }
        };
        directory.check_name(addr, &welcome.cluster_name)?;
        if let Some((cluster, history)) = welcome.cluster {
            directory.check_cluster(addr, Some(&cluster_header(cluster, history)))?;
            match &welcome.leader {
                Some(leader) if leader.node == welcome.node => {
                    let (addr, node) = (std::mem::take(addr), welcome.node);
                    let limits = Limits::of(&welcome);
                    self.phase = Phase::Open { link, addr, node, limits };
                    return Ok(());
                }
                Some(leader)
                    if is_address(&leader.addr) && !directory.is_suspect(&leader.addr, now) =>
                {
                    self.hint = Some(leader.addr.clone());
                }
                Some(_) | None => {}
            }
        }
        self.give_up(state, now);
        Ok(())
    }

    /// Removes and returns the copy with this id, because its answer has arrived.
    pub(super) fn answered(&mut self, id: u64, now: Instant) -> Option<Asked> {
        let position = self.copies.iter().position(|copy| copy.id == id)?;
        self.answered_at = Some(now);
        self.copies.remove(position)
    }

    /// Handles a frame that is not an answer. Returns whether the connection can still be used.
    pub(super) fn handle(&mut self, frame: &ToClient<'_>) -> bool {
        match frame {
            ToClient::Error(error) => {
                self.copies.retain(|copy| copy.id != error.id);
                let is_named = error.error_code() == Some(ErrorCode::NotLeader);
                if is_named && is_address(error.text) {
                    self.hint = Some(error.text.to_owned());
                }
                false
            }
            ToClient::Leader(_) | ToClient::Goodbye | ToClient::Welcome(_) => false,
            ToClient::Answer { .. } | ToClient::Ping(_) | ToClient::Pong(_) | ToClient::Unknown => {
                true
            }
        }
    }

    /// Applies the end of the second connection. Nodes close idle connections, so the leader may be
    /// healthy and is tried first again.
    pub(super) fn closed(&mut self, state: &mut State, now: Instant) {
        self.has_tried_leader = false;
        self.give_up(state, now);
    }

    /// Closes the second connection and forgets the copies that were sent over it. Their timestamps
    /// are skipped. The next attempt to open a connection begins one `node_timeout` after `now`.
    pub(super) fn give_up(&mut self, state: &mut State, now: Instant) {
        self.leave(state, now + self.node_timeout);
    }

    /// Closes the connection.
    pub(super) fn close(&mut self, state: &mut State) {
        if let Phase::Opening { link, .. } | Phase::Open { link, .. } = &self.phase {
            state.close(*link);
        }
    }

    fn leave(&mut self, state: &mut State, until: Instant) {
        self.close(state);
        self.copies.clear();
        self.phase = Phase::Idle { until };
    }
}

/// While the second connection is tried, each node gets only an eighth of `attempt_timeout`. So
/// another node is found before the client leaves the node of the first connection.
const WAIT_FRACTION: u32 = 8;
/// At most this many copies wait for an answer.
const COPIES_MAX: usize = 64;
/// Shortest time between two checks for slow requests. Timers have this resolution.
const TICK_MIN: Duration = Duration::from_millis(1);
