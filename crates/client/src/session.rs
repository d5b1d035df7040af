//! The decisions of a client: which node to ask next, how long to wait, which answers to accept. It
//! opens no socket and reads no clock: `now` and the seed are arguments, as in quinn's protocol
//! crate.
//!
//! All calls of one client share a [`Session`]. A [`Pursuit`] is one call over HTTP. It returns an
//! [`Action`] and receives its outcome, again and again, until the action is to finish.

use std::time::{Duration, Instant};

use epicepoch_wire::http::{ErrorCode, PATH_MEMBERS, PATH_TIMESTAMP, RANGE_COUNT_MAX};
use epicepoch_wire::{Timestamp, TimestampRange};

use crate::error::{AnotherCluster, BadAnswer, MembersError, Setback, TimestampsError};
use crate::members::{Member, Members, is_address};
use crate::transport::Answer;

/// The knowledge that all calls of one client share.
#[derive(Debug)]
pub(crate) struct Session {
    /// Addresses given by the caller, never empty.
    seeds: Vec<String>,
    /// Addresses of the members in the newest member list.
    members: Vec<String>,
    leader: Option<String>,
    /// Addresses that recently did not answer, and since when. Hints to them are ignored, because
    /// other nodes may not know yet that they are down.
    suspects: Vec<(String, Instant)>,
    /// Cluster and history of the first answer that contained them.
    cluster: Option<String>,
    /// The required name of the cluster.
    cluster_name: Option<String>,
    /// The highest timestamp returned so far.
    highest: Option<Timestamp>,
    /// Counts the addresses asked in turn; the next address follows from it.
    turn: usize,
    rng: fastrand::Rng,
}

/// The next step for the caller of [`Pursuit::poll_action`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Ask `addr` for `path`, and wait at most until `until`.
    Ask { addr: String, path: String, until: Instant },
    /// Do nothing before `until`.
    Wait { until: Instant },
    /// Return this to the caller.
    Finish(End),
}

/// One call, from its beginning to its answer or its deadline.
#[derive(Debug)]
pub(crate) struct Pursuit {
    goal: Goal,
    deadline: Instant,
    attempt_timeout: Duration,
    setbacks: Setbacks,
    wait_until: Option<Instant>,
    /// Highest timestamp returned before this request was sent. The answer must lie above it. It
    /// may lie below the answers of concurrent calls.
    floor: Option<Timestamp>,
    end: Option<End>,
}

/// The failures since the last success.
#[derive(Debug, Default)]
pub(crate) struct Setbacks {
    /// Attempts that failed so far.
    count: u32,
    /// Leaders followed since the last setback.
    hops: u32,
    /// The setback to report at the deadline: the newest one in which a node answered, because a
    /// live node knows more about the cluster than a dead one. If no node answered, the newest
    /// setback.
    last: Option<Setback>,
    /// Setbacks in a row in which no node answered. After more than one round over all addresses,
    /// the answer in `last` is outdated.
    unanswered: usize,
}

impl Setbacks {
    /// Counts one more followed leader. Returns whether it may be followed at once.
    pub(crate) fn hop(&mut self) -> bool {
        self.hops += 1;
        self.hops <= HOPS_MAX
    }

    /// The setback to report at the deadline.
    pub(crate) fn last(&self) -> Option<&Setback> {
        self.last.as_ref()
    }

    /// Records a setback and returns how long to wait. It counts as at least the `least`th setback
    /// in a row.
    pub(crate) fn record(
        &mut self,
        session: &mut Session,
        setback: Setback,
        least: u32,
    ) -> Duration {
        self.count = (self.count + 1).max(least);
        self.hops = 0;
        self.unanswered = if setback.is_answer() { 0 } else { self.unanswered + 1 };
        let is_outdated = self.unanswered > session.address_count();
        if self.unanswered == 0
            || is_outdated
            || !self.last.as_ref().is_some_and(Setback::is_answer)
        {
            self.last = Some(setback);
        }
        session.backoff(self.count)
    }
}

/// The goal of a pursuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// This many timestamps, all above every one returned before.
    Timestamps(u64),
    /// The member list.
    Members,
}

/// How a pursuit ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Timestamps(TimestampRange),
    Members(Members),
    Count(u64),
    DeadlineExceeded(Option<Setback>),
    AnotherCluster(AnotherCluster),
    WentBackwards { addr: String, floor: Timestamp, answer: Timestamp },
    BadAnswer(BadAnswer),
}

impl Session {
    /// Creates a session that knows `seeds` (not empty) and draws the random part of waits from
    /// `seed`.
    pub(crate) fn new(seeds: Vec<String>, seed: u64) -> Self {
        assert!(!seeds.is_empty(), "a session needs an address to begin with");
        Self {
            seeds,
            members: Vec::new(),
            leader: None,
            suspects: Vec::new(),
            cluster: None,
            cluster_name: None,
            highest: None,
            turn: 0,
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    /// Makes the session accept only nodes of a cluster with that name.
    pub(crate) fn expecting(mut self, cluster_name: Option<String>) -> Self {
        self.cluster_name = cluster_name;
        self
    }

    /// Checks that the node's cluster has the expected name, if one is expected. A node without a
    /// cluster name is then refused, too.
    pub(crate) fn check_name(&self, addr: &str, found: &str) -> Result<(), AnotherCluster> {
        match &self.cluster_name {
            Some(expected) if expected != found => {
                let (expected, found) = (format!("{expected:?}"), format!("{found:?}"));
                Err(AnotherCluster { addr: addr.to_owned(), expected, found })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Checks that an answer comes from the cluster of the first answer. A node that has not joined
    /// yet has no cluster (all zeros) and passes.
    pub(crate) fn check_cluster(
        &mut self,
        addr: &str,
        cluster: Option<&str>,
    ) -> Result<(), AnotherCluster> {
        let named =
            |text: &&str| text.split('.').next().is_some_and(|id| id.contains(|c| c != '0'));
        let Some(found) = cluster.filter(named) else { return Ok(()) };
        match &self.cluster {
            Some(expected) if expected != found => {
                let (expected, found) = (expected.clone(), found.to_owned());
                Err(AnotherCluster { addr: addr.to_owned(), expected, found })
            }
            Some(_) => Ok(()),
            None => {
                self.cluster = Some(found.to_owned());
                Ok(())
            }
        }
    }

    /// Returns the error for a node at `addr` that says that it belongs to another cluster.
    pub(crate) fn another_cluster(&self, addr: &str, found: String) -> AnotherCluster {
        let name = self.cluster_name.as_ref().map(|name| format!("{name:?}"));
        let expected = name.or_else(|| self.cluster.clone());
        let expected = expected.unwrap_or_else(|| "any".to_owned());
        AnotherCluster { addr: addr.to_owned(), expected, found }
    }

    /// Applies a list of members from the node at `from`.
    fn learn(&mut self, from: &str, members: &Members, now: Instant) {
        self.learn_members(members.members.iter().map(|member| member.addr.clone()).collect());
        let leader = members.leader.as_ref().map(|Member { addr, .. }| addr.clone());
        self.leader = leader.filter(|leader| leader == from || !self.is_suspect(leader, now));
    }

    /// Replaces the members' addresses by those that a node knows.
    pub(crate) fn learn_members(&mut self, members: Vec<String>) {
        self.members = members;
    }

    /// Forgets the leader if it was at the address of the setback. If no node answered there, hints
    /// to that address are ignored for a while.
    pub(crate) fn record_setback(&mut self, setback: &Setback, now: Instant) {
        let addr = setback.addr();
        self.forget_leader(addr);
        if setback.is_answer() {
            return;
        }
        self.suspects.retain(|(suspect, since)| suspect != addr && !is_over(*since, now));
        if self.suspects.len() == SUSPECTS_MAX {
            self.suspects.remove(0);
        }
        self.suspects.push((addr.to_owned(), now));
    }

    /// Whether hints to that address are ignored.
    pub(crate) fn is_suspect(&self, addr: &str, now: Instant) -> bool {
        self.suspects.iter().any(|(suspect, since)| suspect == addr && !is_over(*since, now))
    }

    /// The address at which the leader probably is.
    pub(crate) fn leader(&self) -> Option<&str> {
        self.leader.as_deref()
    }

    /// Sets the address at which the leader probably is.
    pub(crate) fn set_leader(&mut self, addr: String) {
        self.suspects.retain(|(suspect, _)| *suspect != addr);
        self.leader = Some(addr);
    }

    /// Forgets the leader.
    pub(crate) fn forget_any_leader(&mut self) {
        self.leader = None;
    }

    /// The highest timestamp returned so far.
    pub(crate) fn highest(&self) -> Option<Timestamp> {
        self.highest
    }

    /// Records a timestamp that is about to be returned.
    pub(crate) fn record_returned(&mut self, last: Timestamp) {
        self.highest = self.highest.max(Some(last));
    }

    /// Forgets the leader if it is at `addr`. Otherwise another call has found a newer leader.
    pub(crate) fn forget_leader(&mut self, addr: &str) {
        self.leader.take_if(|leader| leader == addr);
    }

    /// Returns the next address in turn: members first, then seeds that are no members, because
    /// seeds may be outdated.
    pub(crate) fn next_address(&mut self) -> String {
        let extra = self.seeds.iter().filter(|seed| !self.members.contains(seed));
        let all: Vec<_> = self.members.iter().chain(extra).collect();
        let addr = all[self.turn % all.len()].clone();
        self.turn = self.turn.wrapping_add(1);
        addr
    }

    /// At most how many addresses one round over all of them has.
    fn address_count(&self) -> usize {
        self.members.len() + self.seeds.len()
    }

    /// Returns the wait after a setback. It doubles from [`BACKOFF_MIN`] to [`BACKOFF_MAX`]. Up to
    /// half of it is random, so that clients that lost the same leader do not return at the same
    /// moment. `Retry-After` is ignored, because it has whole seconds, longer than an election.
    fn backoff(&mut self, setbacks: u32) -> Duration {
        let doubled =
            BACKOFF_MIN * 2_u32.pow(setbacks.saturating_sub(1).min(BACKOFF_DOUBLINGS_MAX));
        let most = doubled.min(BACKOFF_MAX);
        most.mul_f64(1.0 - self.rng.f64() / 2.0)
    }
}

impl Pursuit {
    /// Creates a call that ends at `deadline` and waits at most `attempt_timeout` for one node.
    pub(crate) fn new(
        session: &Session,
        goal: Goal,
        deadline: Instant,
        attempt_timeout: Duration,
    ) -> Self {
        let end = match goal {
            Goal::Timestamps(count) if !(1..=RANGE_COUNT_MAX).contains(&count) => {
                Some(End::Count(count))
            }
            Goal::Timestamps(_) | Goal::Members => None,
        };
        Self {
            goal,
            deadline,
            attempt_timeout,
            setbacks: Setbacks::default(),
            wait_until: None,
            floor: session.highest,
            end,
        }
    }

    /// Returns the next step. After an [`Action::Ask`], report its outcome before polling again.
    pub(crate) fn poll_action(&mut self, session: &mut Session, now: Instant) -> Action {
        if let Some(end) = self.end.take() {
            return Action::Finish(end);
        }
        if now >= self.deadline {
            return Action::Finish(End::DeadlineExceeded(self.setbacks.last.take()));
        }
        if let Some(until) = self.wait_until.take_if(|until| *until > now) {
            self.wait_until = Some(until);
            return Action::Wait { until: until.min(self.deadline) };
        }
        let until =
            now.checked_add(self.attempt_timeout).map_or(self.deadline, |at| at.min(self.deadline));
        match (self.goal, &session.leader) {
            (Goal::Timestamps(count), Some(leader)) => {
                // The answer to this request must also lie above timestamps that other calls
                // returned meanwhile.
                self.floor = session.highest;
                let path = format!("{PATH_TIMESTAMP}?format=range&n={count}");
                Action::Ask { addr: leader.clone(), path, until }
            }
            (Goal::Timestamps(_), None) | (Goal::Members, _) => {
                let addr = session.next_address();
                Action::Ask { addr, path: PATH_MEMBERS.to_owned(), until }
            }
        }
    }

    /// Applies the outcome of asking `addr` for `path`.
    pub(crate) fn handle_outcome(
        &mut self,
        session: &mut Session,
        addr: &str,
        path: &str,
        outcome: Result<Answer, Setback>,
        now: Instant,
    ) {
        let answer = match outcome {
            Ok(answer) => answer,
            Err(setback) => return self.handle_setback(session, setback, now),
        };
        if let Err(error) = session.check_cluster(addr, answer.cluster.as_deref()) {
            self.end = Some(End::AnotherCluster(error));
        } else if answer.status != 200 {
            self.handle_refusal(session, addr, &answer, now);
        } else if path == PATH_MEMBERS {
            self.handle_members(session, addr, &answer, now);
        } else {
            self.handle_range(session, addr, &answer, now);
        }
    }

    fn handle_members(&mut self, session: &mut Session, addr: &str, answer: &Answer, now: Instant) {
        let members = match Members::from_json(&answer.body, answer.cluster.clone()) {
            Ok(members) => members,
            Err(what) => return self.end_badly(addr, format!("a member list with {what}")),
        };
        if let Err(error) = session.check_name(addr, &members.cluster_name) {
            self.end = Some(End::AnotherCluster(error));
            return;
        }
        session.learn(addr, &members, now);
        let leads = session.leader.is_some();
        match self.goal {
            Goal::Members => self.end = Some(End::Members(members)),
            Goal::Timestamps(_) if leads => {}
            Goal::Timestamps(_) => {
                let setback = Setback::NoLeader { addr: addr.to_owned() };
                self.handle_setback(session, setback, now);
            }
        }
    }

    fn handle_range(&mut self, session: &mut Session, addr: &str, answer: &Answer, now: Instant) {
        let Goal::Timestamps(count) = self.goal else {
            return self.end_badly(addr, "timestamps that nobody asked for".to_owned());
        };
        if session.cluster.is_none() || answer.cluster.is_none() {
            return self.end_badly(addr, "timestamps of no cluster".to_owned());
        }
        let bytes = answer.body.as_ref().try_into().ok();
        let range = bytes.and_then(TimestampRange::from_bytes).filter(|r| r.count() == count);
        let Some(range) = range else {
            let what = format!("{} bytes that are no range of {count}", answer.body.len());
            return self.end_badly(addr, what);
        };
        let (answer, addr) = (range.first(), addr.to_owned());
        if let Some(floor) = self.floor.filter(|floor| answer <= *floor) {
            self.end = Some(End::WentBackwards { addr, floor, answer });
            return;
        }
        session.record_returned(range.last());
        // An answer at the deadline is too late.
        if now < self.deadline {
            self.end = Some(End::Timestamps(range));
        }
    }

    fn handle_refusal(&mut self, session: &mut Session, addr: &str, answer: &Answer, now: Instant) {
        let (status, to) = (answer.status, addr.to_owned());
        let Some(code) = answer.error.as_deref().and_then(ErrorCode::from_name) else {
            if matches!(status, 429 | 502..=504) {
                return self.handle_setback(session, Setback::Status { addr: to, status }, now);
            }
            return self.end_badly(addr, format!("status {status} without a reason"));
        };
        if code == ErrorCode::NotLeader {
            let other = |leader: &&String| {
                *leader != addr && is_address(leader) && !session.is_suspect(leader, now)
            };
            if let Some(leader) = answer.leader.as_ref().filter(other)
                && self.setbacks.hop()
            {
                session.leader = Some(leader.clone());
                return;
            }
        }
        // `INTERNAL` means that only this node is broken: another one may lead soon.
        if !code.is_retryable() && code != ErrorCode::Internal {
            let text = String::from_utf8_lossy(&answer.body);
            let message = text.trim().chars().take(MESSAGE_LEN_MAX).collect();
            self.end = Some(match code {
                ErrorCode::WrongCluster => {
                    End::AnotherCluster(session.another_cluster(addr, message))
                }
                code => End::BadAnswer(BadAnswer::Refused { addr: to, code, message }),
            });
            return;
        }
        let setback = Setback::Refused { addr: to, code };
        if code == ErrorCode::Overloaded {
            // The node still leads, and a search for another leader would only add load.
            return self.wait(session, setback, OVERLOADED_SETBACKS, now);
        }
        self.handle_setback(session, setback, now);
    }

    fn handle_setback(&mut self, session: &mut Session, setback: Setback, now: Instant) {
        session.record_setback(&setback, now);
        self.wait(session, setback, 0, now);
    }

    fn wait(&mut self, session: &mut Session, setback: Setback, least: u32, now: Instant) {
        self.wait_until = Some(now + self.setbacks.record(session, setback, least));
    }

    fn end_badly(&mut self, addr: &str, what: String) {
        self.end = Some(End::BadAnswer(BadAnswer::Foreign { addr: addr.to_owned(), what }));
    }
}

impl From<End> for Result<TimestampRange, TimestampsError> {
    fn from(end: End) -> Self {
        Err(match end {
            End::Timestamps(range) => return Ok(range),
            End::Members(_) => unreachable!("a pursuit of timestamps ends with timestamps"),
            End::Count(count) => TimestampsError::Count(count),
            End::DeadlineExceeded(last) => TimestampsError::DeadlineExceeded { last },
            End::AnotherCluster(error) => error.into(),
            End::WentBackwards { addr, floor, answer } => {
                TimestampsError::WentBackwards { addr, floor, answer }
            }
            End::BadAnswer(error) => error.into(),
        })
    }
}

impl From<End> for Result<Members, MembersError> {
    fn from(end: End) -> Self {
        Err(match end {
            End::Members(members) => return Ok(members),
            End::Timestamps(_) | End::Count(_) | End::WentBackwards { .. } => {
                unreachable!("a pursuit of members ends with members")
            }
            End::DeadlineExceeded(last) => MembersError::DeadlineExceeded { last },
            End::AnotherCluster(error) => error.into(),
            End::BadAnswer(error) => error.into(),
        })
    }
}

fn is_over(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) >= SUSPICION
}

/// How long hints to a node that did not answer are ignored: longer than an election. The node's
/// own claim to lead still counts.
const SUSPICION: Duration = Duration::from_secs(1);
/// Most suspects: as many as a cluster can have members.
const SUSPECTS_MAX: usize = Members::COUNT_MAX;
/// Shortest wait after a setback.
const BACKOFF_MIN: Duration = Duration::from_millis(1);
/// Longest wait after a setback: much shorter than an election.
const BACKOFF_MAX: Duration = Duration::from_millis(50);
/// How many doublings reach [`BACKOFF_MAX`]: `BACKOFF_MIN * 2^6 = 64 ms`.
const BACKOFF_DOUBLINGS_MAX: u32 = 6;
/// An overload counts as at least this many setbacks, because the leader still leads and needs a
/// pause.
pub(crate) const OVERLOADED_SETBACKS: u32 = BACKOFF_DOUBLINGS_MAX;
/// Most leaders followed in a row without a wait. More than one is rare.
const HOPS_MAX: u32 = 3;
/// Most characters of a refusal's text in an error.
const MESSAGE_LEN_MAX: usize = 300;

#[cfg(test)]
mod tests;
