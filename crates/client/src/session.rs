//! Whom to ask next, how long to wait, which answers to believe. It never opens a socket and
//! never reads a clock: `now` and the seed are arguments, in the manner of quinn's protocol crate.
//!
//! A [`Session`] is what all calls of one client share. A [`Pursuit`] is one call: it gives an
//! [`Action`] out and takes the outcome in, until the action is to finish.

use std::time::{Duration, Instant};

use epicepoch_wire::http::{ErrorCode, PATH_MEMBERS, PATH_TIMESTAMP, RANGE_COUNT_MAX};
use epicepoch_wire::{Timestamp, TimestampRange};

use crate::error::{AnotherCluster, BadAnswer, MembersError, Setback, TimestampsError};
use crate::members::{Member, Members, is_address};
use crate::transport::Answer;

/// What all calls of one client know together.
#[derive(Debug)]
pub(crate) struct Session {
    /// Addresses given by the caller, never empty.
    seeds: Vec<String>,
    /// Addresses of the members in the newest list.
    members: Vec<String>,
    leader: Option<String>,
    /// Addresses that did not answer lately, and when: a hint that names one is not followed,
    /// because others may not know yet what this client knows.
    suspects: Vec<(String, Instant)>,
    /// Cluster and history of the first answer that named them.
    cluster: Option<String>,
    /// The name that the cluster must have.
    cluster_name: Option<String>,
    /// Highest timestamp returned.
    highest: Option<Timestamp>,
    /// Position in the rotation over all addresses.
    turn: usize,
    rng: fastrand::Rng,
}

/// What the caller of [`Pursuit::poll_action`] is to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Ask `addr` for `path`, and give up at `until`.
    Ask { addr: String, path: String, until: Instant },
    /// Do nothing before `until`.
    Wait { until: Instant },
    /// Hand this to the caller.
    Finish(End),
}

/// One call: from the question to the answer or the deadline.
#[derive(Debug)]
pub(crate) struct Pursuit {
    goal: Goal,
    deadline: Instant,
    attempt_timeout: Duration,
    setbacks: Setbacks,
    wait_until: Option<Instant>,
    /// Highest timestamp returned before this call began. What concurrent calls return meanwhile
    /// may rightly be higher than this call's answer.
    floor: Option<Timestamp>,
    end: Option<End>,
}

/// What went wrong since something last went right.
#[derive(Debug, Default)]
pub(crate) struct Setbacks {
    /// Attempts that failed so far.
    count: u32,
    /// Leaders followed since the last setback.
    hops: u32,
    /// What to report at the deadline: the newest setback that is an answer, since a node that
    /// lives knows more about the cluster than one that does not; or else the newest.
    last: Option<Setback>,
    /// Setbacks in a row that are no answers. When more than a round over all addresses are,
    /// the answer in `last` is out of date.
    unanswered: usize,
}

impl Setbacks {
    /// Whether another leader may be followed at once.
    pub(crate) fn hop(&mut self) -> bool {
        self.hops += 1;
        self.hops <= HOPS_MAX
    }

    /// What to report at the deadline.
    pub(crate) fn last(&self) -> Option<&Setback> {
        self.last.as_ref()
    }

    /// Notes a setback, as if there had been `least` before; returns how long to wait.
    pub(crate) fn note(&mut self, session: &mut Session, setback: Setback, least: u32) -> Duration {
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

/// What a pursuit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// This many timestamps, all above what was returned before.
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
    /// A session that knows `seeds` (not empty) and draws its jitter from `seed`.
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

    /// The same session, which believes only nodes of a cluster of that name.
    pub(crate) fn expecting(mut self, cluster_name: Option<String>) -> Self {
        self.cluster_name = cluster_name;
        self
    }

    /// Believes a node only if its cluster has the name that is expected, if one is. A node that
    /// names none is not believed either: nothing says that it is the one.
    pub(crate) fn check_name(&self, addr: &str, found: &str) -> Result<(), AnotherCluster> {
        match &self.cluster_name {
            Some(expected) if expected != found => {
                let (expected, found) = (format!("{expected:?}"), format!("{found:?}"));
                Err(AnotherCluster { addr: addr.to_owned(), expected, found })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Believes an answer only if it comes from the cluster of the first answer. A node that has
    /// not joined yet names no cluster (all zeros), which contradicts nothing.
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

    /// What it comes to when the node at `addr` says in its words that it is of another cluster.
    pub(crate) fn another_cluster(&self, addr: &str, found: String) -> AnotherCluster {
        let name = self.cluster_name.as_ref().map(|name| format!("{name:?}"));
        let expected = name.or_else(|| self.cluster.clone());
        let expected = expected.unwrap_or_else(|| "any".to_owned());
        AnotherCluster { addr: addr.to_owned(), expected, found }
    }

    /// Takes in what the node at `from` says of the cluster.
    fn learn(&mut self, from: &str, members: &Members, now: Instant) {
        self.learn_members(members.members.iter().map(|member| member.addr.clone()).collect());
        let leader = members.leader.as_ref().map(|Member { addr, .. }| addr.clone());
        self.leader = leader.filter(|leader| leader == from || !self.is_suspect(leader, now));
    }

    /// Takes in the members' addresses, as a node knows them.
    pub(crate) fn learn_members(&mut self, members: Vec<String>) {
        self.members = members;
    }

    /// Forgets the leader if it was there, and if nobody answered, believes no hint about it for
    /// a while.
    pub(crate) fn note_setback(&mut self, setback: &Setback, now: Instant) {
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

    /// Whether a hint about that node is not to be followed.
    pub(crate) fn is_suspect(&self, addr: &str, now: Instant) -> bool {
        self.suspects.iter().any(|(suspect, since)| suspect == addr && !is_over(*since, now))
    }

    /// Where the leader is thought to be.
    pub(crate) fn leader(&self) -> Option<&str> {
        self.leader.as_deref()
    }

    /// Believes that the leader is there.
    pub(crate) fn set_leader(&mut self, addr: String) {
        self.suspects.retain(|(suspect, _)| *suspect != addr);
        self.leader = Some(addr);
    }

    /// Believes nothing about the leader any more.
    pub(crate) fn forget_any_leader(&mut self) {
        self.leader = None;
    }

    /// Highest timestamp returned so far.
    pub(crate) fn highest(&self) -> Option<Timestamp> {
        self.highest
    }

    /// Notes a timestamp that is about to be returned.
    pub(crate) fn note_returned(&mut self, last: Timestamp) {
        self.highest = self.highest.max(Some(last));
    }

    /// Another call may have found a newer leader meanwhile, so only this one is forgotten.
    pub(crate) fn forget_leader(&mut self, addr: &str) {
        self.leader.take_if(|leader| leader == addr);
    }

    /// Members first, then seeds that are no members: a list of seeds may be out of date.
    pub(crate) fn next_address(&mut self) -> String {
        let extra = self.seeds.iter().filter(|seed| !self.members.contains(seed));
        let all: Vec<_> = self.members.iter().chain(extra).collect();
        let addr = all[self.turn % all.len()].clone();
        self.turn = self.turn.wrapping_add(1);
        addr
    }

    /// Addresses in the rotation at most.
    fn address_count(&self) -> usize {
        self.members.len() + self.seeds.len()
    }

    /// Doubles from [`BACKOFF_MIN`] to [`BACKOFF_MAX`]; up to half of it is drawn at random, so
    /// that clients that lost the same leader do not come back in step. `Retry-After` counts whole
    /// seconds, longer than an election takes, so it is advice for others than this client.
    fn backoff(&mut self, setbacks: u32) -> Duration {
        let doubled =
            BACKOFF_MIN * 2_u32.pow(setbacks.saturating_sub(1).min(BACKOFF_DOUBLINGS_MAX));
        let most = doubled.min(BACKOFF_MAX);
        most.mul_f64(1.0 - self.rng.f64() / 2.0)
    }
}

impl Pursuit {
    /// A call that ends at `deadline` and gives up on one node after `attempt_timeout`.
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

    /// What to do next. After an [`Action::Ask`], report its outcome before polling again.
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
                // What others were given meanwhile lies below this request's answer, too.
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

    /// Takes in what came of asking `addr` for `path`.
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
        session.note_returned(range.last());
        // What comes at the deadline goes to nobody.
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
        // `INTERNAL` condemns that node, not the cluster: another one may lead soon.
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
            // It still leads: looking for another one would only add load.
            return self.wait(session, setback, OVERLOADED_SETBACKS, now);
        }
        self.handle_setback(session, setback, now);
    }

    fn handle_setback(&mut self, session: &mut Session, setback: Setback, now: Instant) {
        session.note_setback(&setback, now);
        self.wait(session, setback, 0, now);
    }

    fn wait(&mut self, session: &mut Session, setback: Setback, least: u32, now: Instant) {
        self.wait_until = Some(now + self.setbacks.note(session, setback, least));
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

/// How long a node that did not answer is not believed to lead, unless it says so itself: longer
/// than an election takes.
const SUSPICION: Duration = Duration::from_secs(1);
/// Suspects at most: as many as there can be members.
const SUSPECTS_MAX: usize = Members::COUNT_MAX;
/// Shortest wait after a setback.
const BACKOFF_MIN: Duration = Duration::from_millis(1);
/// Longest wait after a setback: well below the time that an election takes.
const BACKOFF_MAX: Duration = Duration::from_millis(50);
/// Doublings that reach [`BACKOFF_MAX`]: `BACKOFF_MIN * 2^6 = 64 ms`.
const BACKOFF_DOUBLINGS_MAX: u32 = 6;
/// Setbacks that an overloaded leader counts for at least: it still leads, and needs a pause.
pub(crate) const OVERLOADED_SETBACKS: u32 = BACKOFF_DOUBLINGS_MAX;
/// Leaders followed one after another without a wait; more than one is already rare.
const HOPS_MAX: u32 = 3;
/// Characters of a refusal's text that go into an error.
const MESSAGE_LEN_MAX: usize = 300;

#[cfg(test)]
mod tests;
