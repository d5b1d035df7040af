//! The public client: it starts the driver that carries calls out over the native protocol, and
//! asks over HTTP what has no frames. It decides nothing.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use epicepoch_wire::hello::CLUSTER_NAME_LEN_MAX;
use epicepoch_wire::http::{PATH_LEADER, PATH_READY, RANGE_COUNT_MAX};
use epicepoch_wire::native::Token;
use epicepoch_wire::{Timestamp, TimestampRange};
use tokio::sync::Notify;

use crate::dial::{Alpn, Dialer};
use crate::driver::Core;
use crate::error::{
    AskError, BadAnswer, ConnectError, MembersError, NewClientError, Setback, TimestampsError,
};
use crate::members::{Members, is_address};
use crate::observer::Observer;
use crate::session::{Action, End, Goal, Pursuit, Session};
use crate::tls::Tls;
use crate::token::TokenSource;
use crate::transport::{Answer, Transport};
use crate::waiters::{Outcome, Waiters};

/// A client of one cluster. Cheap to clone; clones share connections, the known leader, the order
/// of what was returned, and their requests: calls that wait at the same time go out as one. Needs
/// a tokio runtime with time and IO, of either flavor.
///
/// The runtime of the first call carries out those of all clones, and looks after their deadlines:
/// it has to run as long as they wait. When it ends, who waits gets [`TimestampsError::Stopped`],
/// and the runtime of the next call takes over. [`crate::blocking::Client`] brings its own.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

/// How timestamps are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Via {
    /// The native protocol; calls that wait at the same time share a request.
    Native,
    /// HTTP/1.1, a request for each call: where something between passes nothing else.
    Http,
}

/// Settings of a client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// How long a call may take that has no deadline of its own. More than nothing, and up to
    /// [`Options::DURATION_MAX`], as `attempt_timeout` and `hedge_after`. Default 2 s: several
    /// elections.
    pub timeout: Duration,
    /// How long one node may take to answer before another is asked. Default 500 ms: longer
    /// than a loaded node needs, shorter than the caller of a failover wants to wait.
    pub attempt_timeout: Duration,
    /// How often the members' addresses are learned anew while a connection lives. Default 30 s:
    /// members change rarely, and a greeting costs little. Over HTTP they are learned whenever
    /// the leader is looked for.
    pub refresh_interval: Duration,
    /// The name of the cluster (`CLUSTER` of its nodes), 1 to 64 bytes. A node of a cluster of
    /// another name is refused as soon as it is met, and the call fails. Default any: then the
    /// cluster of the first answer is kept to.
    pub cluster_name: Option<String>,
    /// After how long a request without an answer is asked a second time, over another connection
    /// to the leader, or where that one gives nothing, of the next known node. The first answer
    /// wins, the timestamps of the other are skipped. It is looked for every 5 ms, or every
    /// `hedge_after` if that is shorter, but for 1 ms. Default never: it costs a connection and,
    /// where the whole cluster is slow, up to twice the requests. Not over HTTP.
    pub hedge_after: Option<Duration>,
    /// How timestamps are asked for. Default [`Via::Native`].
    pub via: Via,
    /// Seed of the jitter in waiting times. Default from the system's randomness, so that
    /// clients do not retry in step; set it to repeat a test.
    pub seed: u64,
    /// TLS towards the nodes. Default none: plain TCP.
    pub tls: Option<Tls>,
    /// What the client shows to be let in: a token of the nodes' `CLIENT_TOKEN_FILE`. Default none.
    pub token: Option<Token>,
    /// The same where it may change under a running client; then it goes before `token`. Default
    /// none.
    pub token_source: Option<TokenSource>,
    /// Who counts what happens. Default nobody. Not over HTTP.
    pub observer: Option<Arc<dyn Observer>>,
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
    core: Arc<Core>,
    session: Arc<Mutex<Session>>,
    transport: Transport,
    options: Options,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.core.is_closed.store(true, Ordering::Release);
        self.core.bell.notify_one();
    }
}

impl Client {
    /// A client that begins with `addrs`, each `host:port` of any member's client port, and has
    /// the default options. It finds the leader and gets a timestamp, which is dropped: a client
    /// that is returned works.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn connect<A: AsRef<str>>(addrs: &[A]) -> Result<Self, ConnectError> {
        let addrs = addrs.iter().map(|addr| addr.as_ref().to_owned());
        let client = Self::new(addrs, Options::default())?;
        client.timestamp().await?;
        Ok(client)
    }

    /// A client that begins with `addrs`, each `host:port` of any member's client port. It does
    /// not connect before it is asked for something.
    ///
    /// # Errors
    /// No address, one that is not `host:port`, or an option that cannot be kept to.
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
        if let Some(bad) = options.cluster_name.as_ref()
            && !(1..=CLUSTER_NAME_LEN_MAX).contains(&bad.len())
        {
            return Err(NewClientError::ClusterName(bad.clone()));
        }
        if options.via == Via::Http && options.hedge_after.is_some() {
            return Err(NewClientError::HedgeOverHttp);
        }
        if options.via == Via::Http && options.observer.is_some() {
            return Err(NewClientError::ObserverOverHttp);
        }
        options.check_durations()?;
        let session = Session::new(seeds, options.seed).expecting(options.cluster_name.clone());
        let session = Arc::new(Mutex::new(session));
        let core = Arc::new(Core {
            waiters: Mutex::new(Waiters::default()),
            session: session.clone(),
            attempt_timeout: options.attempt_timeout,
            refresh_interval: options.refresh_interval,
            hedge_after: options.hedge_after,
            cluster_name: options.cluster_name.clone(),
            observer: options.observer.clone(),
            dialer: options.dialer(Alpn::Native),
            bell: Notify::new(),
            is_closed: AtomicBool::new(false),
            is_driven: AtomicBool::new(false),
        });
        let transport = Transport::new(options.dialer(Alpn::Http1));
        let shared = Shared { core, session, transport, options };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// A timestamp that was requested after this call began and lies above everything returned
    /// before it. Gives up after [`Options::timeout`]. Dropping the future is harmless.
    ///
    /// # Errors
    /// See [`TimestampsError`].
    pub async fn timestamp(&self) -> Result<Timestamp, TimestampsError> {
        Ok(self.timestamps(1).await?.first())
    }

    /// `count` timestamps of one epoch with consecutive indexes, 1 to 2^32 of them, as
    /// [`Self::timestamp`] gives one.
    ///
    /// # Errors
    /// See [`TimestampsError`].
    pub async fn timestamps(&self, count: u64) -> Result<TimestampRange, TimestampsError> {
        let began = now();
        self.timestamps_within(count, began, began + self.shared.options.timeout).await
    }

    /// [`Self::timestamps`] with a deadline of its own.
    ///
    /// # Errors
    /// See [`TimestampsError`]. Never returns later than a few milliseconds after `deadline`, but
    /// for scheduling.
    pub async fn timestamps_before(
        &self,
        count: u64,
        deadline: Instant,
    ) -> Result<TimestampRange, TimestampsError> {
        self.timestamps_within(count, now(), deadline).await
    }

    /// A call that begins now, at `began`: the clock is read once, it costs a good part of a call.
    async fn timestamps_within(
        &self,
        count: u64,
        began: Instant,
        deadline: Instant,
    ) -> Result<TimestampRange, TimestampsError> {
        match self.shared.options.via {
            Via::Native => Call { client: self, count, began, deadline, slot: None }.await,
            Via::Http => Box::pin(self.pursue(Goal::Timestamps(count), deadline)).await.into(),
        }
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
        let attempt_timeout = self.shared.options.attempt_timeout;
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
        let attempt_timeout = self.shared.options.attempt_timeout;
        let until = now().checked_add(attempt_timeout).map_or(deadline, |at| at.min(deadline));
        let answer = before(until, addr, self.shared.transport.exchange(addr, path)).await?;
        self.session().check_cluster(addr, answer.cluster.as_deref())?;
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

impl Options {
    /// The longest that `timeout`, `attempt_timeout` and `hedge_after` may be: 366 days. No call
    /// of a program waits that long, and a moment that far away is one on every clock.
    pub const DURATION_MAX: Duration = Duration::from_hours(366 * 24);

    fn dialer(&self, alpn: Alpn) -> Dialer {
        let source = self.token_source.clone().or_else(|| self.token.clone().map(Into::into));
        Dialer::new(self.tls.as_ref(), alpn).with_token_source(source)
    }

    fn check_durations(&self) -> Result<(), NewClientError> {
        let durations = [
            ("timeout", Some(self.timeout)),
            ("attempt_timeout", Some(self.attempt_timeout)),
            ("hedge_after", self.hedge_after),
        ];
        for (option, given) in durations {
            if let Some(given) =
                given.filter(|given| given.is_zero() || *given > Self::DURATION_MAX)
            {
                return Err(NewClientError::Duration { option, given });
            }
        }
        Ok(())
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(2),
            attempt_timeout: Duration::from_millis(500),
            refresh_interval: Duration::from_secs(30),
            cluster_name: None,
            hedge_after: None,
            via: Via::Native,
            tls: None,
            token: None,
            token_source: None,
            seed: fastrand::u64(..),
            observer: None,
        }
    }
}

/// One call over the native protocol: a place among the waiters. It has no timer of its own; the
/// driver looks after deadlines.
struct Call<'a> {
    client: &'a Client,
    count: u64,
    began: Instant,
    deadline: Instant,
    slot: Option<usize>,
}

impl Future for Call<'_> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let core = &self.client.shared.core;
        if let Some(slot) = self.slot {
            return core.waiters().poll(slot, context);
        }
        if !(1..=RANGE_COUNT_MAX).contains(&self.count) {
            return Poll::Ready(Err(TimestampsError::Count(self.count)));
        }
        if self.deadline <= self.began {
            return Poll::Ready(Err(TimestampsError::DeadlineExceeded { last: None }));
        }
        let (slot, is_first) = {
            let mut waiters = core.waiters();
            let Some((slot, is_first)) = waiters.enter(self.count, self.deadline) else {
                return Poll::Ready(Err(TimestampsError::TooManyCalls));
            };
            // Pending: nobody can have answered yet.
            let _: Poll<Outcome> = waiters.poll(slot, context);
            (slot, is_first)
        };
        let driven = core.ensure_driven();
        if is_first {
            core.bell.notify_one();
        }
        self.slot = Some(slot);
        driven.map_or_else(|error| Poll::Ready(Err(error)), |()| Poll::Pending)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.client.shared.core.waiters().leave(slot);
        }
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
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
