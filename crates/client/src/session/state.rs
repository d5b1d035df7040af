//! What the phases of a session share: the callers, the directory, the failed attempts, and the
//! numbers of connections and requests. This part records failed attempts, enforces deadlines and
//! gives answers to callers.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::{Duration, Instant};

use epicepoch_wire::http::{ErrorCode, cluster_header};
use epicepoch_wire::native::{COUNT_MAX, FEATURE_LATEST, Request, Welcome};
use epicepoch_wire::{Guarantee, ProvedBy, Timestamp, TimestampRange};

use super::action::{Action, LinkId, Notice, Settings};
use crate::directory::{Directory, FailedAttempts};
use crate::error::{BY_LEASE, BadAnswer, FailedAttempt, TimestampsError};
use crate::members::is_address;
use crate::waiters::{Batch, Waiters};

/// The part of a session that all its phases share.
#[derive(Debug)]
pub(super) struct State {
    pub(super) settings: Settings,
    pub(super) directory: Directory,
    pub(super) waiters: Waiters,
    pub(super) failed_attempts: FailedAttempts,
    /// The last answer that was rejected, as logged; `None` after a good answer.
    pub(super) rejected: Option<TimestampsError>,
    /// The wakers of callers whose calls have ended. They are woken when no lock is held.
    pub(super) wakers: Vec<Waker>,
    pub(super) notices: Vec<Notice>,
    /// Whether anything takes the notices.
    pub(super) is_observed: bool,
    pub(super) actions: VecDeque<Action>,
    /// The number of the last connection. No number is used twice.
    pub(super) last_link: u64,
    /// The id of the last request, over all connections. No id is used twice, except for the copy
    /// of a request on the second connection.
    pub(super) last_id: u64,
}

/// What the client remembers of a sent request, to check the answer on either connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) id: u64,
    /// How many timestamps the callers take together; 0 if all ask for the latest one.
    pub(super) total: u64,
    /// Whether this request, or its copy, asks the node for the latest timestamp. A node that is
    /// too old for that is asked for one timestamp, which no caller gets as its own. It is valid as
    /// the latest one: it is above all that was answered before the request, and below all that is
    /// asked for later.
    pub(super) is_latest: bool,
    /// The highest timestamp that the client had returned when this request, or its copy, was sent.
    /// The answer must be above it; an answer to a request for the latest timestamp may be equal.
    pub(super) floor: Option<Timestamp>,
    pub(super) at: Instant,
}

/// An answer as a node has given it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    pub(super) range: TimestampRange,
    pub(super) is_latest: bool,
    pub(super) proved_by: ProvedBy,
}

/// The limits that a node sets for a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// How long a connection may be silent before the node closes it.
    pub(super) idle: Duration,
    /// How many requests the node reads before it answers.
    pub(super) in_flight_max: usize,
    /// At most this many timestamps in one request.
    pub(super) count_max: u64,
    /// Whether the node answers requests for the latest timestamp.
    pub(super) has_latest: bool,
}

/// The next step after an event.
#[derive(Debug)]
pub(super) enum Next {
    Stay,
    /// Connect again at once.
    Again,
    /// Send nothing for a moment: the node is overloaded, but still leads. This step occurs only in
    /// an exchange with a leader.
    Pause(FailedAttempt),
    /// This node says that another one leads.
    Follow {
        by: String,
        leader: String,
    },
    /// The leader answers at this address.
    Switch(String),
    /// Leave this node.
    Leave(FailedAttempt),
    /// Fail the callers, because no retry helps.
    Fail(TimestampsError),
}

impl Asked {
    /// The request. A batch never has a larger total than one request can ask for.
    ///
    /// # Panics
    /// The total is above 2^32.
    pub(super) fn request(&self) -> Request {
        if self.is_latest {
            return Request::latest(self.id);
        }
        Request::new(self.id, self.total.max(1)).expect("a total in bounds")
    }

    /// Checks that `range` can be the answer of the node at `addr`. `is_latest` is whether the node
    /// says that it is the latest timestamp. A session that has not asked for a lease accepts no
    /// answer that a lease has proved.
    pub(super) fn check(
        &self,
        addr: &str,
        guarantee: Guarantee,
        &Given { range, is_latest, proved_by }: &Given,
    ) -> Result<(), TimestampsError> {
        if proved_by == ProvedBy::Lease && guarantee == Guarantee::Quorum {
            return Err(BadAnswer::foreign(addr, BY_LEASE).into());
        }
        let expected = self.total.max(1);
        if range.count() != expected {
            let what = format!("{} timestamps instead of {expected}", range.count());
            return Err(BadAnswer::foreign(addr, &what).into());
        }
        if is_latest != self.is_latest {
            let what = if is_latest {
                "the latest timestamp instead of one for this client alone"
            } else {
                "a timestamp for this client alone instead of the latest one"
            };
            return Err(BadAnswer::foreign(addr, what).into());
        }
        let is_low = |floor| range.first() < floor || (!self.is_latest && range.first() == floor);
        match self.floor {
            Some(floor) if is_low(floor) => {
                let (addr, answer) = (addr.to_owned(), range.first());
                Err(TimestampsError::WentBackwards { addr, floor, answer })
            }
            _ => Ok(()),
        }
    }
}

impl Limits {
    pub(super) fn of(welcome: &Welcome) -> Self {
        let idle_ms = match welcome.idle_ms {
            0 => IDLE_MS_DEFAULT,
            idle_ms => idle_ms.max(IDLE_MS_MIN),
        };
        Self {
            idle: Duration::from_millis(u64::from(idle_ms)),
            in_flight_max: welcome.in_flight_max as usize,
            count_max: welcome.count_max.min(COUNT_MAX),
            has_latest: welcome.features & FEATURE_LATEST != 0,
        }
    }
}

impl Next {
    /// Returns the priority of a step. If several frames ask for different steps, the step with the
    /// highest priority is taken; of equal ones, the first. For example, an overload does not
    /// matter once the node says that it no longer leads.
    pub(super) fn weight(&self) -> u8 {
        match self {
            Self::Stay => 0,
            Self::Pause(_) => 1,
            Self::Again | Self::Follow { .. } | Self::Switch(_) | Self::Leave(_) => 2,
            Self::Fail(_) => 3,
        }
    }
}

impl State {
    /// Asks the driver for a connection to the node at `addr`.
    pub(super) fn open(&mut self, addr: String, is_hedge: bool) -> LinkId {
        self.last_link += 1;
        let link = LinkId { number: self.last_link, is_hedge };
        self.actions.push_back(Action::Open { link, addr });
        link
    }

    /// Asks the driver to close a connection, or to stop opening it.
    pub(super) fn close(&mut self, link: LinkId) {
        self.actions.push_back(Action::Close { link });
    }

    /// Applies a welcome: checks the cluster, learns the members and the leader.
    pub(super) fn learn(&mut self, addr: &str, welcome: &Welcome) -> Result<(), Next> {
        let directory = &mut self.directory;
        let name = &welcome.cluster_name;
        directory.check_name(addr, name).map_err(|error| Next::Fail(error.into()))?;
        let Some((cluster, history)) = welcome.cluster else {
            let (addr, code) = (addr.to_owned(), ErrorCode::NotReady);
            return Err(Next::Leave(FailedAttempt::Refused { addr, code }));
        };
        let cluster = cluster_header(cluster, history);
        directory.check_cluster(addr, Some(&cluster)).map_err(|error| Next::Fail(error.into()))?;
        let leader = welcome.leader.as_ref().filter(|leader| is_address(&leader.addr));
        directory.learn_members(member_addrs(welcome));
        directory.forget_any_leader();
        match leader {
            // The node itself leads. The address at which it was reached is kept, not the one that
            // it names, because only the first may work from this machine.
            Some(leader) if leader.node == welcome.node => {
                directory.set_leader(addr.to_owned());
                Ok(())
            }
            Some(leader) => Err(Next::Follow { by: addr.to_owned(), leader: leader.addr.clone() }),
            None => Err(Next::Leave(FailedAttempt::NoLeader { addr: addr.to_owned() })),
        }
    }

    /// Replaces the list of members by the one in a new welcome of the node at `addr`.
    pub(super) fn refresh(&mut self, addr: &str, welcome: &Welcome) {
        let directory = &mut self.directory;
        if let Some((cluster, history)) = welcome.cluster
            && directory.check_name(addr, &welcome.cluster_name).is_ok()
            && directory.check_cluster(addr, Some(&cluster_header(cluster, history))).is_ok()
        {
            directory.learn_members(member_addrs(welcome));
        }
    }

    /// Records a failed attempt and returns when to try again. The wait grows with the number of
    /// failures in a row. It is computed as if there were at least `least` of them.
    pub(super) fn record_failed_attempt(
        &mut self,
        failed_attempt: FailedAttempt,
        least: u32,
        now: Instant,
    ) -> Instant {
        tracing::debug!(%failed_attempt, "asking again");
        if self.is_observed {
            self.notices.push(Notice::FailedAttempt(failed_attempt.clone()));
        }
        now + self.failed_attempts.record(&mut self.directory, failed_attempt, least)
    }

    /// Fails the callers if TLS has failed at every address.
    pub(super) fn fail_by_tls(&mut self) {
        if let Some(error) = self.failed_attempts.take_tls_failure(&self.directory) {
            self.waiters.fail_open(&error.into(), &mut self.wakers);
        }
    }

    /// Gives the timestamps of a checked answer to the callers of its request. `at` is the time
    /// when the request was first sent.
    pub(super) fn give_out(
        &mut self,
        batch: Batch,
        range: TimestampRange,
        at: Instant,
        now: Instant,
    ) {
        let failed_attempts = std::mem::take(&mut self.failed_attempts);
        self.rejected = None;
        self.directory.record_returned(range.last());
        if self.is_observed {
            let (callers, latency) = (batch.callers(), now.saturating_duration_since(at));
            self.notices.push(Notice::Answered { callers, timestamps: batch.total(), latency });
        }
        self.waiters.answer(batch, range, now, failed_attempts.last().as_ref(), &mut self.wakers);
    }

    /// Fails the callers whose deadline has passed.
    pub(super) fn expire(&mut self, now: Instant) {
        self.waiters.expire(now, self.failed_attempts.last().as_ref(), &mut self.wakers);
    }
}

fn member_addrs(welcome: &Welcome) -> Vec<String> {
    let addrs = welcome.members.iter().map(|member| member.addr.clone());
    addrs.filter(|addr| is_address(addr)).collect()
}

/// After this silence a node closes the connection, if its welcome names no other time.
const IDLE_MS_DEFAULT: u32 = 120_000;
/// If a welcome names a shorter time after which a silent connection is closed, the client uses
/// this one.
const IDLE_MS_MIN: u32 = 300;
/// Time between two checks for deadlines and silent nodes, while a caller waits.
pub(super) const TICK: Duration = Duration::from_millis(5);
