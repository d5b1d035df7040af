//! The public client: the one place where session and transport meet. It decides nothing.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use epicepoch_wire::TimestampRange;
use epicepoch_wire::http::{PATH_LEADER, PATH_READY};

use crate::error::BadAnswer;
use crate::error::{AskError, MembersError, NewClientError, Setback, TimestampsError};
use crate::members::{Members, is_address};
use crate::session::{Action, End, Goal, Pursuit, Session};
use crate::transport::{Answer, Transport};

/// A client of one cluster. Cheap to clone; clones share connections, the known leader and the
/// order of what was returned. Needs a tokio runtime with time and IO.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

/// Settings of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// How long one node may take to answer before another is asked. Default 500 ms: longer
    /// than a loaded node needs, shorter than the caller of a failover wants to wait.
    pub attempt_timeout: Duration,
    /// Seed of the jitter in waiting times. Default from the system's randomness, so that
    /// clients do not retry in step; set it to repeat a test.
    pub seed: u64,
}

/// What one node says about itself at `/ready`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Readiness {
    /// Whether it has joined and knows a leader.
    pub ready: bool,
    /// Its own words, for people.
    pub detail: String,
}

#[derive(Debug)]
struct Shared {
    session: Mutex<Session>,
    transport: Transport,
    attempt_timeout: Duration,
}

impl Client {
    /// A client that begins with `addrs`, each `host:port` of any member's client port. It does
    /// not connect before it is asked for something.
    ///
    /// # Errors
    /// No address, or one that is not `host:port`.
    pub fn new<A: Into<String>>(
        addrs: impl IntoIterator<Item = A>,
        options: Options,
    ) -> Result<Self, NewClientError> {
        let seeds: Vec<String> = addrs.into_iter().map(Into::into).collect();
        if seeds.is_empty() {
            return Err(NewClientError::NoAddress);
        }
        if let Some(bad) = seeds.iter().find(|addr| !is_address(addr)) {
            return Err(NewClientError::Address(bad.clone()));
        }
        let shared = Shared {
            session: Mutex::new(Session::new(seeds, options.seed)),
            transport: Transport::default(),
            attempt_timeout: options.attempt_timeout,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// `count` timestamps of one epoch with consecutive indexes, 1 to 2^32 of them, all requested
    /// after this call began and above everything returned before it.
    ///
    /// # Errors
    /// See [`TimestampsError`]. Never returns later than `deadline`, but for scheduling.
    pub async fn timestamps(
        &self,
        count: u64,
        deadline: Instant,
    ) -> Result<TimestampRange, TimestampsError> {
        self.pursue(Goal::Timestamps(count), deadline).await.into()
    }

    /// The members and the leader, from the first node that answers.
    ///
    /// # Errors
    /// See [`MembersError`].
    pub async fn members(&self, deadline: Instant) -> Result<Members, MembersError> {
        self.pursue(Goal::Members, deadline).await.into()
    }

    /// Asks the node at `addr`, once, whether it is ready.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn ready(&self, addr: &str, deadline: Instant) -> Result<Readiness, AskError> {
        let answer = self.ask(addr, PATH_READY, deadline).await?;
        let detail = String::from_utf8_lossy(&answer.body).trim().to_owned();
        Ok(Readiness { ready: answer.status == 200, detail })
    }

    /// Asks the node at `addr`, once, whether it leads and may serve.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn leads(&self, addr: &str, deadline: Instant) -> Result<bool, AskError> {
        Ok(self.ask(addr, PATH_LEADER, deadline).await?.status == 200)
    }

    /// Carries out what the pursuit says until it says to finish.
    async fn pursue(&self, goal: Goal, deadline: Instant) -> End {
        let attempt_timeout = self.shared.attempt_timeout;
        let mut pursuit = Pursuit::new(&self.session(), goal, deadline, attempt_timeout);
        loop {
            let action = pursuit.poll_action(&mut self.session(), now());
            match action {
                Action::Finish(end) => return end,
                Action::Wait { until } => tokio::time::sleep_until(until.into()).await,
                Action::Ask { addr, path, until } => {
                    let exchange = self.shared.transport.exchange(&addr, &path);
                    let outcome = before(until, &addr, exchange).await;
                    let mut session = self.session();
                    pursuit.handle_outcome(&mut session, &addr, &path, outcome, now());
                }
            }
        }
    }

    /// Asks one node once; a refusal (503) is an answer here.
    async fn ask(&self, addr: &str, path: &str, deadline: Instant) -> Result<Answer, AskError> {
        let until =
            now().checked_add(self.shared.attempt_timeout).map_or(deadline, |at| at.min(deadline));
        let answer = before(until, addr, self.shared.transport.exchange(addr, path)).await?;
        self.session().check_cluster(addr, &answer)?;
        if matches!(answer.status, 200 | 503) {
            return Ok(answer);
        }
        let what = format!("status {} at {path}", answer.status);
        Err(BadAnswer::Foreign { addr: addr.to_owned(), what }.into())
    }

    /// Held only while deciding, never across an await.
    fn session(&self) -> MutexGuard<'_, Session> {
        self.shared.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { attempt_timeout: Duration::from_millis(500), seed: fastrand::u64(..) }
    }
}

async fn before(
    until: Instant,
    addr: &str,
    exchange: impl Future<Output = Result<Answer, Setback>>,
) -> Result<Answer, Setback> {
    match tokio::time::timeout_at(until.into(), exchange).await {
        Ok(outcome) => outcome,
        Err(_elapsed) => Err(Setback::Silent { addr: addr.to_owned() }),
    }
}

/// Tokio's clock, so that a test may pause it.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
