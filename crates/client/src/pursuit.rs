//! One call over HTTP: which node to ask for what, how long to wait, which answers to accept. This
//! module opens no socket and reads no clock, as in quinn's protocol crate: `now` is an argument.
//!
//! A [`Pursuit`] returns one [`Action`] after another, and receives the outcome of each. The last
//! action is [`Action::Finish`].

use std::borrow::Cow;
use std::time::{Duration, Instant};

use epicepoch_wire::http::{ErrorCode, PATH_LATEST, PATH_MEMBERS, PATH_TIMESTAMP, RANGE_COUNT_MAX};
use epicepoch_wire::http1::Answer;
use epicepoch_wire::{Guarantee, ProvedBy, Timestamp, TimestampRange};

use crate::directory::{Directory, FailedAttempts, OVERLOADED_FAILED_ATTEMPTS};
use crate::error::{
    AnotherCluster, BY_LEASE, BadAnswer, FailedAttempt, MembersError, TOO_OLD, TimestampsError,
};
use crate::members::{Members, is_address};

/// The next step for the caller of [`Pursuit::poll_action`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Ask `addr` for `path`, and wait at most until `until`.
    Ask { addr: String, path: Cow<'static, str>, until: Instant },
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
    failed_attempts: FailedAttempts,
    wait_until: Option<Instant>,
    /// The highest timestamp that the client had returned when this request was sent. The answer
    /// must be above it; the latest timestamp must not be below it. It may be below timestamps that
    /// other calls got since then.
    floor: Option<Timestamp>,
    /// The guarantee that requests name.
    guarantee: Option<Guarantee>,
    refresh: Refresh,
    end: Option<End>,
}

/// The goal of a pursuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Get this many timestamps, above every timestamp that the client has returned before.
    Timestamps(u64),
    /// Get the latest timestamp, not below any timestamp that the client has returned before.
    Latest,
    /// The member list.
    Members,
}

/// Whether a call reads the members again before its request, although a leader is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refresh {
    Never,
    /// If the client last read them this long ago.
    After(Duration),
    /// The leader has been asked for them.
    UnderWay,
}

/// How a pursuit ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Timestamps(TimestampRange),
    Latest(Timestamp),
    Members(Members),
    Count(u64),
    DeadlineExceeded(Option<FailedAttempt>),
    AnotherCluster(AnotherCluster),
    WentBackwards { addr: String, floor: Timestamp, answer: Timestamp },
    BadAnswer(BadAnswer),
}

impl End {
    /// The address at which there may be another program or cluster now, if this is why the call ends.
    fn stranger(&self) -> Option<&str> {
        match self {
            Self::AnotherCluster(AnotherCluster { addr, .. })
            | Self::WentBackwards { addr, .. }
            | Self::BadAnswer(BadAnswer::Foreign { addr, .. }) => Some(addr),
            Self::Timestamps(_)
            | Self::Latest(_)
            | Self::Members(_)
            | Self::Count(_)
            | Self::DeadlineExceeded(_)
            | Self::BadAnswer(_) => None,
        }
    }
}

impl Pursuit {
    /// Creates a call that ends at `deadline` and waits at most `attempt_timeout` for one node.
    pub(crate) fn new(
        directory: &Directory,
        goal: Goal,
        deadline: Instant,
        attempt_timeout: Duration,
    ) -> Self {
        let end = match goal {
            Goal::Timestamps(count) if !(1..=RANGE_COUNT_MAX).contains(&count) => {
                Some(End::Count(count))
            }
            Goal::Timestamps(_) | Goal::Latest | Goal::Members => None,
        };
        Self {
            goal,
            deadline,
            attempt_timeout,
            failed_attempts: FailedAttempts::default(),
            wait_until: None,
            floor: directory.highest(),
            guarantee: None,
            refresh: Refresh::Never,
            end,
        }
    }

    /// Names this guarantee in requests for timestamps and for the latest one.
    pub(crate) fn asking_for(mut self, guarantee: Option<Guarantee>) -> Self {
        self.guarantee = guarantee;
        self
    }

    /// Reads the members again, once, if the client last read them this long ago.
    pub(crate) fn refreshing_after(mut self, interval: Duration) -> Self {
        self.refresh = Refresh::After(interval);
        self
    }

    /// The query parameter `guarantee`, with `begin` (`?` or `&`) before it; empty without a guarantee.
    fn guarantee(&self, begin: char) -> String {
        let named = self.guarantee.map(|guarantee| format!("{begin}guarantee={guarantee}"));
        named.unwrap_or_default()
    }

    /// Returns the next step. After an [`Action::Ask`], call `handle_outcome` with its outcome
    /// before you poll again.
    pub(crate) fn poll_action(&mut self, directory: &mut Directory, now: Instant) -> Action {
        if let Some(end) = self.end.take() {
            if let Some(addr) = end.stranger() {
                // The next call asks who leads.
                directory.forget_leader(addr);
            }
            return Action::Finish(end);
        }
        if now >= self.deadline {
            return Action::Finish(End::DeadlineExceeded(self.failed_attempts.last()));
        }
        if let Some(until) = self.wait_until.take_if(|until| *until > now) {
            self.wait_until = Some(until);
            return Action::Wait { until: until.min(self.deadline) };
        }
        let until =
            now.checked_add(self.attempt_timeout).map_or(self.deadline, |at| at.min(self.deadline));
        if let Some(addr) = self.take_refresh(directory, now) {
            return Action::Ask { addr, path: PATH_MEMBERS.into(), until };
        }
        match (self.goal, directory.leader()) {
            (Goal::Timestamps(count), Some(leader)) => {
                // This request may repeat an earlier one. Its answer must also be above the
                // timestamps that other calls got in between.
                self.floor = directory.highest();
                let path = if count == 1 && self.guarantee.is_none() {
                    PATH_ONE.into()
                } else {
                    let guarantee = self.guarantee('&');
                    format!("{PATH_TIMESTAMP}?format=range&n={count}{guarantee}").into()
                };
                Action::Ask { addr: leader.to_owned(), path, until }
            }
            (Goal::Latest, Some(leader)) => {
                self.floor = directory.highest();
                let path = format!("{PATH_LATEST}{}", self.guarantee('?')).into();
                Action::Ask { addr: leader.to_owned(), path, until }
            }
            (Goal::Timestamps(_) | Goal::Latest, None) | (Goal::Members, _) => {
                let addr = directory.next_address();
                Action::Ask { addr, path: PATH_MEMBERS.into(), until }
            }
        }
    }

    /// The address of the leader, if this call has to ask it for the members before its request.
    fn take_refresh(&mut self, directory: &mut Directory, now: Instant) -> Option<String> {
        let Refresh::After(interval) = self.refresh else { return None };
        directory.leader()?;
        self.refresh = Refresh::Never;
        if self.goal == Goal::Members || !directory.take_refresh(interval, now) {
            return None;
        }
        self.refresh = Refresh::UnderWay;
        directory.leader().map(str::to_owned)
    }

    /// Applies the outcome of asking `addr` for `path`.
    pub(crate) fn handle_outcome(
        &mut self,
        directory: &mut Directory,
        addr: &str,
        path: &str,
        outcome: Result<Answer<'_>, FailedAttempt>,
        now: Instant,
    ) {
        if self.refresh == Refresh::UnderWay {
            self.refresh = Refresh::Never;
            return match outcome {
                Ok(answer) => self.handle_refresh(directory, addr, &answer, now),
                Err(failed_attempt) => self.handle_failed_attempt(directory, failed_attempt, now),
            };
        }
        let answer = match outcome {
            Ok(answer) => answer,
            Err(failed_attempt) => {
                return self.handle_failed_attempt(directory, failed_attempt, now);
            }
        };
        if answer.status == 200 && path == PATH_MEMBERS {
            self.handle_members(directory, addr, &answer, now);
        } else if let Err(error) = directory.check_nameless(addr, answer.cluster) {
            self.end = Some(End::AnotherCluster(error));
        } else if answer.status != 200 {
            self.handle_refusal(directory, addr, &answer, now);
        } else if !self.accepts_proof(&answer) {
            self.end_badly(addr, BY_LEASE.to_owned());
        } else if self.goal == Goal::Latest {
            self.handle_latest(directory, addr, &answer, now);
        } else {
            self.handle_range(directory, addr, &answer, now);
        }
    }

    /// Whether this call may use an answer with this proof. A call that names a quorum accepts only a
    /// round. A call that names no guarantee accepts what the cluster's default allows. A node that
    /// is too old for guarantees names no proof; it has proved the answer with a round.
    fn accepts_proof(&self, answer: &Answer<'_>) -> bool {
        let is_round = answer.proof.is_none_or(|proof| proof == ProvedBy::Round.name());
        is_round || self.guarantee != Some(Guarantee::Quorum)
    }

    fn handle_members(
        &mut self,
        directory: &mut Directory,
        addr: &str,
        answer: &Answer<'_>,
        now: Instant,
    ) {
        let members = match Members::from_json(answer.body, answer.cluster.map(str::to_owned)) {
            Ok(members) => members,
            Err(what) => return self.end_badly(addr, format!("a member list with {what}")),
        };
        if let Err(error) = directory.check_members(addr, &members) {
            self.end = Some(End::AnotherCluster(error));
            return;
        }
        if !members.has_joined() {
            let failed_attempt =
                FailedAttempt::Refused { addr: addr.to_owned(), code: ErrorCode::NotReady };
            return self.handle_failed_attempt(directory, failed_attempt, now);
        }
        directory.learn(addr, &members, now);
        let leads = directory.leader().is_some();
        match self.goal {
            Goal::Members => self.end = Some(End::Members(members)),
            Goal::Timestamps(_) | Goal::Latest if leads => {}
            Goal::Timestamps(_) | Goal::Latest => {
                let failed_attempt = FailedAttempt::NoLeader { addr: addr.to_owned() };
                self.handle_failed_attempt(directory, failed_attempt, now);
            }
        }
    }

    /// Applies the members as the leader lists them. If the answer is no list, the call goes on all
    /// the same.
    fn handle_refresh(
        &mut self,
        directory: &mut Directory,
        addr: &str,
        answer: &Answer<'_>,
        now: Instant,
    ) {
        if answer.status != 200 {
            return;
        }
        let members = Members::from_json(answer.body, answer.cluster.map(str::to_owned));
        let Ok(members) = members else { return };
        match directory.check_members(addr, &members) {
            Ok(()) => directory.learn_listed(&members, now),
            Err(error) => self.end = Some(End::AnotherCluster(error)),
        }
    }

    fn handle_range(
        &mut self,
        directory: &mut Directory,
        addr: &str,
        answer: &Answer<'_>,
        now: Instant,
    ) {
        let Goal::Timestamps(count) = self.goal else {
            return self.end_badly(addr, "timestamps that nobody asked for".to_owned());
        };
        if !directory.is_own_cluster(answer.cluster) {
            return self.end_badly(addr, "timestamps of no cluster".to_owned());
        }
        let bytes = answer.body.try_into().ok();
        let range = bytes.and_then(TimestampRange::from_bytes).filter(|r| r.count() == count);
        let Some(range) = range else {
            let what = format!("{} bytes that are no range of {count}", answer.body.len());
            return self.end_badly(addr, what);
        };
        let answer = range.first();
        if let Some(floor) = self.floor.filter(|floor| answer <= *floor) {
            let addr = addr.to_owned();
            self.end = Some(End::WentBackwards { addr, floor, answer });
            return;
        }
        directory.record_returned(range.last());
        // An answer that arrives exactly at the deadline is too late.
        if now < self.deadline {
            self.end = Some(End::Timestamps(range));
        }
    }

    fn handle_latest(
        &mut self,
        directory: &mut Directory,
        addr: &str,
        answer: &Answer<'_>,
        now: Instant,
    ) {
        if !directory.is_own_cluster(answer.cluster) {
            return self.end_badly(addr, "a timestamp of no cluster".to_owned());
        }
        let Ok(bytes) = answer.body.try_into() else {
            let what = format!("{} bytes that are no timestamp", answer.body.len());
            return self.end_badly(addr, what);
        };
        let latest = Timestamp::from_bytes(bytes);
        if let Some(floor) = self.floor.filter(|floor| latest < *floor) {
            let (addr, answer) = (addr.to_owned(), latest);
            self.end = Some(End::WentBackwards { addr, floor, answer });
            return;
        }
        // Every timestamp that the client requests from now on is above it.
        directory.record_returned(latest);
        if now < self.deadline {
            self.end = Some(End::Latest(latest));
        }
    }

    fn handle_refusal(
        &mut self,
        directory: &mut Directory,
        addr: &str,
        answer: &Answer<'_>,
        now: Instant,
    ) {
        let (status, to) = (answer.status, addr.to_owned());
        let Some(code) = answer.error.and_then(ErrorCode::from_name) else {
            if matches!(status, 429 | 502..=504) {
                return self.handle_failed_attempt(
                    directory,
                    FailedAttempt::Status { addr: to, status },
                    now,
                );
            }
            return self.end_badly(addr, format!("status {status} without a reason"));
        };
        if code == ErrorCode::NotLeader {
            let other = |leader: &&str| {
                *leader != addr && is_address(leader) && !directory.is_suspect(leader, now)
            };
            if let Some(leader) = answer.leader.filter(other)
                && self.failed_attempts.hop()
            {
                directory.set_leader(leader.to_owned());
                return;
            }
        }
        // The code `INTERNAL` means that only this node is broken. Another node may lead soon, so
        // the call goes on.
        if !code.is_retryable() && code != ErrorCode::Internal {
            let text = String::from_utf8_lossy(answer.body);
            let mut message: String = text.trim().chars().take(MESSAGE_LEN_MAX).collect();
            if self.goal == Goal::Latest && code == ErrorCode::NotFound {
                NO_LATEST.clone_into(&mut message);
                // It may lead no longer: a node of an older version does not say so here. The next
                // call asks who leads.
                directory.forget_leader(addr);
            }
            if self.guarantee.is_some() && code == ErrorCode::BadRequest {
                message = format!("{TOO_OLD}; the node says: {message}");
            }
            self.end = Some(match code {
                ErrorCode::WrongCluster => {
                    End::AnotherCluster(directory.another_cluster(addr, message))
                }
                code => End::BadAnswer(BadAnswer::Refused { addr: to, code, message }),
            });
            return;
        }
        let failed_attempt = FailedAttempt::Refused { addr: to, code };
        if code == ErrorCode::Overloaded {
            // An overloaded node still leads, and a search for another leader would only add load.
            // So the call waits.
            return self.wait(directory, failed_attempt, OVERLOADED_FAILED_ATTEMPTS, now);
        }
        self.handle_failed_attempt(directory, failed_attempt, now);
    }

    fn handle_failed_attempt(
        &mut self,
        directory: &mut Directory,
        failed_attempt: FailedAttempt,
        now: Instant,
    ) {
        directory.record_failed_attempt(&failed_attempt, now);
        self.wait(directory, failed_attempt, 0, now);
        if let Some(error) = self.failed_attempts.take_tls_failure(directory) {
            self.end = Some(End::BadAnswer(error));
        }
    }

    fn wait(
        &mut self,
        directory: &mut Directory,
        failed_attempt: FailedAttempt,
        least: u32,
        now: Instant,
    ) {
        self.wait_until = Some(now + self.failed_attempts.record(directory, failed_attempt, least));
    }

    fn end_badly(&mut self, addr: &str, what: String) {
        self.end = Some(End::BadAnswer(BadAnswer::Foreign { addr: addr.to_owned(), what }));
    }
}

impl From<End> for Result<TimestampRange, TimestampsError> {
    fn from(end: End) -> Self {
        Err(match end {
            End::Timestamps(range) => return Ok(range),
            End::Latest(_) | End::Members(_) => {
                unreachable!("a pursuit of timestamps ends with timestamps")
            }
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

impl From<End> for Result<Timestamp, TimestampsError> {
    fn from(end: End) -> Self {
        match end {
            End::Latest(latest) => Ok(latest),
            end => Result::<TimestampRange, _>::from(end).map(|range| range.last()),
        }
    }
}

impl From<End> for Result<Members, MembersError> {
    fn from(end: End) -> Self {
        Err(match end {
            End::Members(members) => return Ok(members),
            End::Timestamps(_) | End::Latest(_) | End::Count(_) | End::WentBackwards { .. } => {
                unreachable!("a pursuit of members ends with members")
            }
            End::DeadlineExceeded(last) => MembersError::DeadlineExceeded { last },
            End::AnotherCluster(error) => error.into(),
            End::BadAnswer(error) => error.into(),
        })
    }
}

/// The most common path, which costs no formatting.
const PATH_ONE: &str = "/timestamp?format=range&n=1";
/// The text for a node that does not know the path.
const NO_LATEST: &str = "this node is too old to say which timestamp is the latest: update it";

/// An error repeats at most this many characters of the text of a refusal.
const MESSAGE_LEN_MAX: usize = 300;

#[cfg(test)]
mod tests;
