//! The public client. It starts the driver, which gets timestamps over the native protocol. For
//! everything else the client uses HTTP.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use epicepoch_wire::http::{PATH_LEADER, PATH_MEMBERS, PATH_READY, RANGE_COUNT_MAX};
use epicepoch_wire::native::Token;
use epicepoch_wire::peer_hello::CLUSTER_NAME_LEN_MAX;
use epicepoch_wire::{Guarantee, Timestamp, TimestampFormat, TimestampRange};

use crate::clock::{DURATION_MAX, now};
use crate::dial::{Alpn, Dialer};
use crate::directory::Directory;
use crate::driver::{Core, CoreOptions};
use crate::error::{
    AskError, BadAnswer, ConnectError, FailedAttempt, MembersError, NewClientError, TimestampsError,
};
use crate::intervals::Turns;
use crate::members::{Build, Members, is_address};
use crate::observer::Observer;
use crate::pursuit::{Action, End, Goal, Pursuit};
use crate::resolver::Resolver;
use crate::session::{LATEST, Session, Settings};
use crate::tls::Tls;
use crate::token::TokenSource;
use crate::transport::{Answered, Transport};
use crate::waiters::Outcome;

/// A client of one cluster. It is cheap to clone. Clones share connections, the known leader, and
/// the order of returned timestamps. Concurrent calls of all clones share requests. The client
/// needs a tokio runtime with time and IO, of either flavor.
///
/// The runtime of the first call carries out the calls of all clones and enforces their deadlines.
/// So this runtime must run while calls wait. When it ends, waiting calls fail with
/// [`TimestampsError::Stopped`], and the runtime of the next call takes over.
/// [`crate::blocking::Client`] has its own runtime.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

/// The protocol for timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Via {
    /// The native protocol. Calls that wait at the same time share a request.
    Native,
    /// HTTP/1.1 with one request for each call, for networks that block everything else.
    Http,
}

/// Settings of a client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Timeout of a call without its own deadline. It must be above 0 and at most
    /// [`Options::DURATION_MAX`]; the same holds for `attempt_timeout` and `hedge_after`. Default 2
    /// s: long enough for several elections.
    pub timeout: Duration,
    /// How long one node may take to answer before another one is asked. Default 500 ms: longer
    /// than a loaded node needs, and shorter than a caller wants to wait in a failover.
    pub attempt_timeout: Duration,
    /// How often the client learns the members' addresses again while a connection lives. Default
    /// 30 s: members change rarely, and a handshake costs little. Over HTTP, and for intervals, a
    /// call first asks one node for the members if they were last read this long ago. If that node
    /// does not answer, the call goes on as after any silence. Over HTTP the client also learns them
    /// at every search for the leader.
    pub refresh_interval: Duration,
    /// The name of the cluster (`CLUSTER` of its nodes), 1 to 64 bytes. A call fails if a node
    /// belongs to a cluster with another name. By default any name is accepted, and the first
    /// answer fixes the cluster.
    pub cluster_name: Option<String>,
    /// Time after which an unanswered request is sent a second time (hedging). The copy goes over
    /// another connection to the leader, or to the next known node if the leader does not answer.
    /// The first answer counts; the timestamps of the other one are skipped. The client looks for
    /// unanswered requests every 5 ms, or every `hedge_after` if that is shorter, but at most once
    /// per ms. Default never, because hedging costs a second connection. It also costs up to twice
    /// the requests when the whole cluster is slow. HTTP does not support it.
    pub hedge_after: Option<Duration>,
    /// The protocol for timestamps. Default [`Via::Native`].
    pub via: Via,
    /// The guarantee that all requests of the client ask for. With [`Guarantee::Lease`], the leader
    /// may answer without asking a quorum. **If a clock then runs at a wrong rate, or stands still
    /// with its machine, a timestamp may lie below one that was answered before.** No timestamp is
    /// given twice. All clients of a keyspace must use one guarantee. A node that is too old
    /// for guarantees refuses the client. So name one only when all nodes are new enough, and stop
    /// naming it before they go back. Default none: the requests name none, and get that of the
    /// cluster (`GUARANTEE_DEFAULT`), which is a quorum by default.
    pub guarantee: Option<Guarantee>,
    /// The format that all timestamps must have. With [`TimestampFormat::Compact`], a cluster that
    /// gives wide timestamps refuses all calls with `NOT_COMPACT`. It is needed by programs that
    /// convert timestamps themselves; [`Client::compact_timestamp`] checks each one. A node that is
    /// too old for the setting refuses the client. It is for [`Via::Native`]; over HTTP only the methods
    /// for compact timestamps check. Default none.
    pub timestamp_format: Option<TimestampFormat>,
    /// Seed of the random part of waits. Default random, so that clients do not retry at the same
    /// moment. Set it to repeat a test.
    pub seed: u64,
    /// TLS towards the nodes. Default none: plain TCP.
    pub tls: Option<Tls>,
    /// A token from the nodes' `CLIENT_TOKEN_FILE`. Default none.
    pub token: Option<Token>,
    /// A function that returns the token, for a token that may change while the client runs. It is
    /// used instead of `token`. Default none.
    pub token_source: Option<TokenSource>,
    /// Hooks for metrics. Default none. HTTP does not support them.
    pub observer: Option<Arc<dyn Observer>>,
}

/// The answer of a node at `/ready`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Readiness {
    /// Whether the node has joined and knows a leader.
    pub ready: bool,
    /// The node's description for people.
    pub detail: String,
}

#[derive(Debug)]
struct Shared {
    core: Arc<Core>,
    transport: Transport,
    options: Options,
    /// Which node to ask first for an interval timestamp, and which last.
    turns: Mutex<Turns>,
    /// Whether a node of the cluster was in interval mode. The way back from it is rare.
    is_intervals: AtomicBool,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.core.close();
    }
}

impl Client {
    /// Creates a client with the default options that first asks `addrs`, each the `host:port` of a
    /// member's client port. To show that the client works, it finds the leader and gets a
    /// timestamp, which it drops.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn connect<A: AsRef<str>>(addrs: &[A]) -> Result<Self, ConnectError> {
        let addrs = addrs.iter().map(|addr| addr.as_ref().to_owned());
        let client = Self::new(addrs, Options::default())?;
        client.timestamp().await?;
        Ok(client)
    }

    /// Creates a client that first asks `addrs`, each the `host:port` of a member's client port. It
    /// connects at the first call.
    ///
    /// # Errors
    /// No address is given, an address is not `host:port`, or an option is not valid.
    pub fn new<A: Into<String>>(
        addrs: impl IntoIterator<Item = A>,
        options: Options,
    ) -> Result<Self, NewClientError> {
        Self::resolving(addrs, options, Resolver::default())
    }

    /// Does what [`Self::new`] does. The client looks up names with `resolver`.
    fn resolving<A: Into<String>>(
        addrs: impl IntoIterator<Item = A>,
        options: Options,
        resolver: Resolver,
    ) -> Result<Self, NewClientError> {
        let addrs: Vec<String> = addrs.into_iter().map(Into::into).collect();
        if addrs.is_empty() {
            return Err(NewClientError::NoAddress);
        }
        if let Some(bad) = addrs.iter().find(|addr| !is_address(addr)) {
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
        let resolver = Arc::new(resolver);
        let session = Session::new(Settings {
            addrs,
            seed: options.seed,
            cluster_name: options.cluster_name.clone(),
            attempt_timeout: options.attempt_timeout,
            refresh_interval: options.refresh_interval,
            hedge_after: options.hedge_after,
            guarantee: options.guarantee.unwrap_or_default(),
        })
        .observed(options.observer.is_some());
        let of_core = CoreOptions {
            attempt_timeout: options.attempt_timeout,
            hedge_after: options.hedge_after,
            cluster_name: options.cluster_name.clone(),
            guarantee: options.guarantee,
            timestamp_format: options.timestamp_format,
            observer: options.observer.clone(),
        };
        let dialer = options.dialer(Alpn::Native, resolver.clone());
        let core = Arc::new(Core::new(session, of_core, dialer));
        let transport = Transport::new(options.dialer(Alpn::Http1, resolver));
        let shared = Shared {
            core,
            transport,
            options,
            turns: Mutex::default(),
            is_intervals: AtomicBool::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns a timestamp that was requested after this call began. It is above every timestamp
    /// that the client returned before this call began. The call fails after [`Options::timeout`].
    /// Dropping the future is harmless.
    ///
    /// # Errors
    /// See [`TimestampsError`].
    pub async fn timestamp(&self) -> Result<Timestamp, TimestampsError> {
        Ok(self.timestamps(1).await?.first())
    }

    /// Returns `count` timestamps of one epoch with consecutive indexes. `count` is from 1 to 2^32.
    /// Everything that [`Self::timestamp`] promises holds for each of them.
    ///
    /// # Errors
    /// See [`TimestampsError`].
    pub async fn timestamps(&self, count: u64) -> Result<TimestampRange, TimestampsError> {
        let began = now();
        self.timestamps_within(count, began, began + self.shared.options.timeout).await
    }

    /// Does what [`Self::timestamps`] does, but fails at `deadline` instead of after
    /// [`Options::timeout`].
    ///
    /// # Errors
    /// See [`TimestampsError`]. The call returns at most a few milliseconds after `deadline`,
    /// unless the task is scheduled late.
    pub async fn timestamps_before(
        &self,
        count: u64,
        deadline: Instant,
    ) -> Result<TimestampRange, TimestampsError> {
        self.timestamps_within(count, now(), deadline).await
    }

    /// `began` is the current time. It is an argument so that the clock is read only once, because
    /// one reading costs a good part of what a call costs.
    async fn timestamps_within(
        &self,
        count: u64,
        began: Instant,
        deadline: Instant,
    ) -> Result<TimestampRange, TimestampsError> {
        match self.shared.options.via {
            Via::Native if !(1..=RANGE_COUNT_MAX).contains(&count) => {
                Err(TimestampsError::Count(count))
            }
            Via::Native => Call { client: self, count, began, deadline, slot: None }.await,
            Via::Http => Box::pin(self.pursue(Goal::Timestamps(count), deadline)).await.into(),
        }
    }

    /// Returns a compact timestamp: that of [`Self::timestamp`] in 64 bits,
    /// `milliseconds << 18 | index`. Both spellings have the same order. The cluster must give
    /// compact timestamps (`TIMESTAMP_FORMAT=compact`).
    ///
    /// # Errors
    /// See [`TimestampsError`]; [`TimestampsError::NotCompact`] if the cluster gives wide ones.
    pub async fn compact_timestamp(&self) -> Result<u64, TimestampsError> {
        Ok(self.compact_timestamps(1).await?.start)
    }

    /// Returns `count` consecutive compact timestamps of one millisecond. `count` is from 1 to 2^18.
    /// See [`Self::compact_timestamp`].
    ///
    /// # Errors
    /// See [`TimestampsError`]; a larger count is refused with `BAD_COUNT`.
    pub async fn compact_timestamps(&self, count: u64) -> Result<Range<u64>, TimestampsError> {
        compact_of(self.timestamps(count).await?)
    }

    /// Does what [`Self::compact_timestamps`] does, with this deadline.
    ///
    /// # Errors
    /// See [`Self::compact_timestamps`].
    pub async fn compact_timestamps_before(
        &self,
        count: u64,
        deadline: Instant,
    ) -> Result<Range<u64>, TimestampsError> {
        compact_of(self.timestamps_before(count, deadline).await?)
    }

    /// Returns the compact spelling of the timestamp of [`Self::latest`].
    ///
    /// # Errors
    /// See [`TimestampsError`]; [`TimestampsError::NotCompact`] if the cluster gives wide ones.
    pub async fn compact_latest(&self) -> Result<u64, TimestampsError> {
        let timestamp = self.latest().await?;
        timestamp.to_compact().ok_or(TimestampsError::NotCompact { timestamp })
    }

    /// Does what [`Self::compact_latest`] does, with this deadline.
    ///
    /// # Errors
    /// See [`Self::compact_latest`].
    pub async fn compact_latest_before(&self, deadline: Instant) -> Result<u64, TimestampsError> {
        let timestamp = self.latest_before(deadline).await?;
        timestamp.to_compact().ok_or(TimestampsError::NotCompact { timestamp })
    }

    /// Returns the latest timestamp, and takes none. Every timestamp that any client got before this
    /// call began is at or below it. Every timestamp that is requested after this call has returned
    /// is above it. The call fails after [`Options::timeout`].
    ///
    /// **It is no watermark:** a writer that has a timestamp at or below it may not have written
    /// yet. It is not unique, so it must not be used as an id.
    ///
    /// Calls that wait at the same time share a request, as for [`Self::timestamps`]. An old node
    /// does not know the request; the client then takes one timestamp from it, for these calls only.
    /// Over HTTP ([`Via::Http`]), each call has its own request.
    ///
    /// # Errors
    /// See [`TimestampsError`]. Over HTTP, a node that is too old refuses with `NOT_FOUND`.
    pub async fn latest(&self) -> Result<Timestamp, TimestampsError> {
        self.latest_before(now() + self.shared.options.timeout).await
    }

    /// Does what [`Self::latest`] does, but fails at `deadline` instead of after
    /// [`Options::timeout`].
    ///
    /// # Errors
    /// See [`TimestampsError`].
    pub async fn latest_before(&self, deadline: Instant) -> Result<Timestamp, TimestampsError> {
        match self.shared.options.via {
            Via::Native => {
                let (client, count, began) = (self, LATEST, now());
                let call = Call { client, count, began, deadline, slot: None };
                Ok(call.await?.first())
            }
            Via::Http => Box::pin(self.pursue(Goal::Latest, deadline)).await.into(),
        }
    }

    /// Returns the members and the leader. They are what the first node that answers knows.
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
        let answered = self.ask(addr, PATH_READY, deadline).await?;
        let answer = answered.answer();
        let detail = String::from_utf8_lossy(answer.body).trim().to_owned();
        Ok(Readiness { ready: answer.status == 200, detail })
    }

    /// Asks the node at `addr`, once, for its build. `None` if the node is of a version that does
    /// not say.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn build(&self, addr: &str, deadline: Instant) -> Result<Option<Build>, AskError> {
        let answered = self.ask(addr, PATH_MEMBERS, deadline).await?;
        let malformed = |what: String| BadAnswer::Foreign { addr: addr.to_owned(), what };
        Ok(Build::from_json(answered.answer().body).map_err(malformed)?)
    }

    /// Asks the node at `addr`, once, whether it leads and may serve.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn leads(&self, addr: &str, deadline: Instant) -> Result<bool, AskError> {
        Ok(self.ask(addr, PATH_LEADER, deadline).await?.answer().status == 200)
    }

    /// Makes one call over HTTP: carries out the actions of a [`Pursuit`] until the call has ended.
    async fn pursue(&self, goal: Goal, deadline: Instant) -> End {
        let attempt_timeout = self.shared.options.attempt_timeout;
        let core = &self.shared.core;
        let mut pursuit = Pursuit::new(core.session().directory(), goal, deadline, attempt_timeout)
            .asking_for(self.shared.options.guarantee)
            .refreshing_after(self.shared.options.refresh_interval);
        loop {
            let action = pursuit.poll_action(core.session().directory(), now());
            match action {
                Action::Finish(end) => return end,
                Action::Wait { until } => tokio::time::sleep_until(until.into()).await,
                Action::Ask { addr, path, until } => {
                    let outcome = self.exchange(&addr, &path, until).await;
                    let answer = outcome.as_ref().map(Answered::answer).map_err(Clone::clone);
                    let mut session = core.session();
                    pursuit.handle_outcome(session.directory(), &addr, &path, answer, now());
                }
            }
        }
    }

    /// Asks one node once. Returns its answer, which may also be a refusal (503).
    async fn ask<'a>(
        &'a self,
        addr: &'a str,
        path: &str,
        deadline: Instant,
    ) -> Result<Answered<'a>, AskError> {
        let answered = self.ask_with_refusals(addr, path, deadline).await?;
        let status = answered.answer().status;
        if matches!(status, 200 | 503) {
            return Ok(answered);
        }
        let what = format!("status {status} at {path}");
        Err(BadAnswer::Foreign { addr: addr.to_owned(), what }.into())
    }

    /// Asks one node once. Returns its answer, whatever its status.
    pub(crate) async fn ask_with_refusals<'a>(
        &'a self,
        addr: &'a str,
        path: &str,
        deadline: Instant,
    ) -> Result<Answered<'a>, AskError> {
        let attempt_timeout = self.shared.options.attempt_timeout;
        let until = now().checked_add(attempt_timeout).map_or(deadline, |at| at.min(deadline));
        let answered = self.exchange(addr, path, until).await?;
        let cluster = answered.answer().cluster;
        self.shared.core.session().directory().check_nameless(addr, cluster)?;
        Ok(answered)
    }

    async fn exchange<'a>(
        &'a self,
        addr: &'a str,
        path: &str,
        until: Instant,
    ) -> Result<Answered<'a>, FailedAttempt> {
        let exchange = self.shared.transport.exchange(addr, path, until);
        let outcome = tokio::time::timeout_at(until.into(), exchange).await;
        outcome.unwrap_or_else(|_| Err(FailedAttempt::Silent { addr: addr.to_owned() }))
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.shared.options.timeout
    }

    /// Whether to read the members again. See [`Directory::take_refresh`].
    pub(crate) fn take_refresh(&self) -> bool {
        let interval = self.shared.options.refresh_interval;
        self.with_directory(|directory| directory.take_refresh(interval, now()))
    }

    /// Calls `with` with what the client knows of its cluster.
    pub(crate) fn with_directory<T>(&self, with: impl FnOnce(&mut Directory) -> T) -> T {
        with(self.shared.core.session().directory())
    }

    /// Calls `with` with the order in which to ask nodes for interval timestamps.
    pub(crate) fn with_turns<T>(&self, with: impl FnOnce(&mut Turns) -> T) -> T {
        with(&mut self.shared.turns.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a node of the cluster was in interval mode, as far as this client knows.
    pub(crate) fn is_in_interval_mode(&self) -> bool {
        self.shared.is_intervals.load(Ordering::Relaxed)
    }

    /// Records that a node of the cluster is in interval mode.
    pub(crate) fn met_interval_mode(&self) {
        self.shared.is_intervals.store(true, Ordering::Relaxed);
    }
}

/// The compact spellings of an answer.
fn compact_of(range: TimestampRange) -> Result<Range<u64>, TimestampsError> {
    let first = range.compact_first();
    let first = first.ok_or(TimestampsError::NotCompact { timestamp: range.first() })?;
    Ok(first..first + range.count())
}

impl Options {
    /// The longest allowed `timeout`, `attempt_timeout` and `hedge_after`: 366 days. No call waits
    /// that long, and every clock can represent a time that far away.
    pub const DURATION_MAX: Duration = DURATION_MAX;

    fn dialer(&self, alpn: Alpn, resolver: Arc<Resolver>) -> Dialer {
        let source = self.token_source.clone().or_else(|| self.token.clone().map(Into::into));
        Dialer::new(self.tls.as_ref(), alpn).with_token_source(source).with_resolver(resolver)
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
            guarantee: None,
            timestamp_format: None,
            tls: None,
            token: None,
            token_source: None,
            seed: fastrand::u64(..),
            observer: None,
        }
    }
}

/// One call over the native protocol. The call is an entry in the session, which enforces the
/// deadline of the call.
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
            return core.session().poll_call(slot, context);
        }
        if self.deadline <= self.began {
            return Poll::Ready(Err(TimestampsError::DeadlineExceeded { last: None }));
        }
        let (slot, is_first) = {
            let mut session = core.session();
            let Some((slot, is_first)) = session.enter(self.count, self.deadline) else {
                return Poll::Ready(Err(TimestampsError::TooManyCalls));
            };
            // This poll only registers the waker. Its result is always `Pending`, because the
            // request has not been sent yet.
            let _: Poll<Outcome> = session.poll_call(slot, context);
            (slot, is_first)
        };
        let driven = core.ensure_driven();
        if is_first {
            core.notify();
        }
        self.slot = Some(slot);
        driven.map_or_else(|error| Poll::Ready(Err(error)), |()| Poll::Pending)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.client.shared.core.session().leave(slot);
        }
    }
}

#[cfg(test)]
mod tests;
