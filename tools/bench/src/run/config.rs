//! The settings of a measurement.

use std::net::SocketAddr;
use std::time::Duration;

use epicepoch_client::{Guarantee, Tls, Token};
use epicepoch_wire::http::{PATH_TIMESTAMP, RANGE_COUNT_MAX};

/// A node that may be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its node id, as it appears in the report.
    pub id: u64,
    /// The node's `host:port`, as a 409 names it.
    pub name: String,
    /// Its address. If nothing answers there, another address of its name is tried.
    pub addr: SocketAddr,
}

/// The transport of requests, and how many may be open at once on one connection. A new transport
/// needs a variant here and a `Protocol` (`pipe`) in its own module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// HTTP/1.1 over TCP, RFC 9112.
    Http1 {
        /// Requests sent before the first of them is answered, at least 1. With 1 there is no
        /// pipelining.
        pipeline: usize,
    },
    /// HTTP/2 over TCP without TLS, by prior knowledge, RFC 9113 section 3.3.
    H2c {
        /// Streams that are open at once, at least 1.
        streams: usize,
    },
    /// HTTP/3 over QUIC, RFC 9114. Without [`RunConfig::tls`] it trusts any certificate.
    Http3 {
        /// Streams that are open at once, at least 1.
        streams: usize,
    },
    /// The native protocol, `docs/protocol.md`.
    Native {
        /// Requests sent before the first of them is answered, at least 1.
        in_flight: usize,
    },
    /// The Rust client over the native protocol. Each connection is one client.
    Client {
        /// Callers of one client at the same time, at least 1.
        callers: usize,
    },
}

impl Target {
    /// Makes a target whose name is its address.
    #[must_use]
    pub fn new(id: u64, addr: SocketAddr) -> Self {
        Self { id, name: addr.to_string(), addr }
    }
}

impl Transport {
    /// Requests that may be open on one connection.
    #[must_use]
    pub fn in_flight(self) -> usize {
        match self {
            Self::Http1 { pipeline } => pipeline,
            Self::H2c { streams } | Self::Http3 { streams } => streams,
            Self::Native { in_flight } => in_flight,
            Self::Client { callers } => callers,
        }
    }

    /// The name of the transport on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Http1 { .. } => "http1",
            Self::H2c { .. } => "h2c",
            Self::Http3 { .. } => "http3",
            Self::Native { .. } => "native",
            Self::Client { .. } => "client",
        }
    }
}

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Each connection sends the next request as soon as an answer comes. If the service stalls,
    /// the clients stall too. So a stall makes only the open requests slow. The requests that would
    /// have been sent during the stall are missing from the figures (coordinated omission).
    Closed,
    /// Requests are due at times that are fixed before the run. Latency counts from the due time.
    Open {
        /// Requests per second, over all threads, `RATE_MIN..=RATE_MAX`.
        rate: f64,
        /// How the times are spread.
        arrivals: Arrivals,
    },
}

/// Which node a connection asks. The client library always finds the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Each connection asks the leader that a 409 names. If a node does not answer, the connection
    /// asks the next node.
    FollowLeader,
    /// The same, and requests say so, so that no node sends them on to the leader (`FORWARD`). Over
    /// HTTP/1.1 and the native protocol; the client library always says so.
    FollowDirectly,
    /// Connection `i` always asks target `i % targets`.
    EveryNode,
}

impl Routing {
    /// Whether connections go to the leader that a 409 names.
    #[must_use]
    pub const fn follows(self) -> bool {
        match self {
            Self::FollowLeader | Self::FollowDirectly => true,
            Self::EveryNode => false,
        }
    }
}

/// How the due times of an open loop are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// All requests are the same time apart.
    Constant,
    /// The times between requests are exponentially distributed, as with independent clients. They
    /// are drawn from the seed of the run.
    Poisson,
}

/// The settings of a measurement. Start from [`RunConfig::new`].
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// The nodes, at least one. The first is asked first.
    pub targets: Vec<Target>,
    /// The transport. Default HTTP/1.1 without pipelining.
    pub transport: Transport,
    /// Further transports. Connections use them in turn, so that one checker sees the answers of
    /// all. Default none.
    pub others: Vec<Transport>,
    /// Which node each connection asks. Default: the leader.
    pub routing: Routing,
    /// When requests are sent. Default: closed loop.
    pub pace: Pace,
    /// Connections in all, `1..=CONNECTIONS_MAX`. Default 8.
    pub connections: usize,
    /// Generator threads, each with its own connections and histogram, `1..=THREADS_MAX`. Default
    /// 1: the generator should not crowd out the service on a small machine.
    pub threads: usize,
    /// Timestamps per request, `1..=65536`, or up to 2^32 where [`Self::range`] is set or the
    /// transport answers with ranges. Default 1.
    pub count: u64,
    /// Ask for `format=range` over HTTP: 24 bytes for any count. The native protocol and the client
    /// always get ranges. Default off.
    pub range: bool,
    /// The guarantee that requests name, over every transport. Default none.
    pub guarantee: Option<Guarantee>,
    /// Path and query to ask over HTTP, for a service with other answers than timestamps. Then every
    /// answer with status 200 counts, whatever its body is; set [`Self::verify`] to `false` with
    /// it. Default none.
    pub path: Option<String>,
    /// Duration of the warm-up. Its answers are not in the result. Default 1 s.
    pub warmup: Duration,
    /// How long requests are sent and counted. Default 10 s.
    pub duration: Duration,
    /// Length of the intervals of the report, at least [`INTERVAL_MIN`], at most
    /// [`INTERVALS_MAX`] of them. Default 1 s.
    pub interval: Duration,
    /// Timeout of a request, and longest wait for the last answers. Default 5 s.
    pub request_timeout: Duration,
    /// Pause after a refusal or a lost connection. Default 1 ms, which is so short that a measured
    /// silence comes from the service.
    pub retry_pause: Duration,
    /// Pause after an answer, in a closed loop over TCP. Default none: each connection sends the
    /// next request at once.
    pub answer_pause: Duration,
    /// Check uniqueness and real-time order. Default on.
    pub verify: bool,
    /// Seed of Poisson arrivals. Default 1.
    pub seed: u64,
    /// Local server processes whose CPU time is counted, at most [`PIDS_MAX`].
    pub pids: Vec<u32>,
    /// Generator threads spin instead of sleeping, so that the time to wake the client is not
    /// measured. Default off.
    pub spin: bool,
    /// TLS towards the targets. Default none.
    pub tls: Option<Tls>,
    /// The token that requests carry over every transport. Default none.
    pub token: Option<Token>,
    /// A planted bug for tests: the generator wastes this time before each request. The run must
    /// then report that the generator was too slow.
    pub planted_delay: Duration,
    /// A planted bug for tests: every 500 ms a generator thread sleeps for this long, like a thread
    /// that gets no processor. The run must then report that the generator was late.
    pub planted_standstill: Duration,
}

impl RunConfig {
    /// A closed loop of 10 s.
    #[must_use]
    pub fn new(targets: Vec<Target>) -> Self {
        Self {
            targets,
            transport: Transport::Http1 { pipeline: 1 },
            others: Vec::new(),
            routing: Routing::FollowLeader,
            pace: Pace::Closed,
            connections: 8,
            threads: 1,
            count: 1,
            range: false,
            guarantee: None,
            path: None,
            warmup: Duration::from_secs(1),
            duration: Duration::from_secs(10),
            interval: Duration::from_secs(1),
            request_timeout: Duration::from_secs(5),
            retry_pause: Duration::from_millis(1),
            answer_pause: Duration::ZERO,
            verify: true,
            seed: 1,
            pids: Vec::new(),
            spin: false,
            tls: None,
            token: None,
            planted_delay: Duration::ZERO,
            planted_standstill: Duration::ZERO,
        }
    }

    /// Number of threads that have at least one connection.
    pub(crate) fn threads_used(&self) -> usize {
        self.threads.min(self.connections)
    }

    /// The transport of connection number `connection`.
    pub(super) fn transport_of(&self, connection: usize) -> Transport {
        match connection % (1 + self.others.len()) {
            0 => self.transport,
            turn => self.others[turn - 1],
        }
    }

    /// Path and query of each request.
    pub(super) fn path(&self) -> String {
        if let Some(path) = &self.path {
            return path.clone();
        }
        let path = match (self.count, self.range) {
            (1, false) => PATH_TIMESTAMP.to_owned(),
            (count, false) => format!("{PATH_TIMESTAMP}?n={count}"),
            (count, true) => format!("{PATH_TIMESTAMP}?n={count}&format=range"),
        };
        let Some(guarantee) = self.guarantee else { return path };
        let separator = if path.contains('?') { '&' } else { '?' };
        format!("{path}{separator}guarantee={guarantee}")
    }

    /// The value of the header `authorization`, if there is a token.
    pub(super) fn authorization(&self) -> Option<String> {
        self.token.as_ref().map(|token| format!("Bearer {}", token.reveal()))
    }

    /// A request may ask for at most this many timestamps.
    #[must_use]
    pub fn count_max(&self) -> u64 {
        let are_ranges =
            |it: &Transport| matches!(it, Transport::Native { .. } | Transport::Client { .. });
        let are_all = self.others.iter().chain([&self.transport]).all(are_ranges);
        if self.range || are_all { RANGE_COUNT_MAX } else { COUNT_MAX }
    }

    /// # Panics
    /// If a number is out of its range.
    pub(super) fn assert_sound(&self) {
        assert!(!self.targets.is_empty(), "a measurement needs a target");
        assert!((1..=CONNECTIONS_MAX).contains(&self.connections), "connections");
        assert!((1..=THREADS_MAX).contains(&self.threads), "threads");
        for transport in self.others.iter().chain([&self.transport]) {
            assert!((1..=IN_FLIGHT_MAX).contains(&transport.in_flight()), "in flight");
        }
        assert!((1..=self.count_max()).contains(&self.count), "timestamps per request");
        assert!(self.path.is_none() || !self.verify, "only timestamps can be verified");
        assert!(!self.duration.is_zero() && self.duration <= DURATION_MAX, "duration");
        assert!(self.interval >= INTERVAL_MIN, "interval");
        assert!(self.duration.div_duration_f64(self.interval) <= INTERVALS_MAX, "intervals");
        assert!(self.pids.len() <= PIDS_MAX, "processes");
        if let Pace::Open { rate, .. } = self.pace {
            assert!((RATE_MIN..=RATE_MAX).contains(&rate), "rate");
        }
    }
}

/// A measurement has at most this many connections.
pub const CONNECTIONS_MAX: usize = 10_000;
/// A measurement has at most this many generator threads.
pub const THREADS_MAX: usize = 256;
/// A connection has at most this many open requests.
pub const IN_FLIGHT_MAX: usize = 4096;
/// A request may ask for at most this many timestamps, if the answer lists them one by one.
pub const COUNT_MAX: u64 = 65_536;
/// An open loop has at least this many requests per second.
pub const RATE_MIN: f64 = 0.01;
/// An open loop has at most this many requests per second, which is more than any machine sends.
pub const RATE_MAX: f64 = 1e8;
/// The longest measurement.
pub const DURATION_MAX: Duration = Duration::from_hours(24);
/// The shortest interval of a report.
pub const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// A report has at most this many intervals. Each takes a few kilobytes.
pub const INTERVALS_MAX: f64 = 3600.0;
/// The CPU time of at most this many server processes is counted.
pub const PIDS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_its_limit_and_a_range_another() {
        let list = RunConfig { count: 9, ..RunConfig::new(Vec::new()) };
        assert_eq!((list.path().as_str(), list.count_max()), ("/timestamp?n=9", COUNT_MAX));
        let range = RunConfig { range: true, ..list.clone() };
        assert_eq!(range.path(), "/timestamp?n=9&format=range");
        let guarantee = Some(Guarantee::Lease);
        let named = |config: &RunConfig| RunConfig { guarantee, ..config.clone() }.path();
        assert_eq!(named(&RunConfig { count: 1, ..list.clone() }), "/timestamp?guarantee=lease");
        assert_eq!(named(&range), "/timestamp?n=9&format=range&guarantee=lease");
        assert_eq!(range.count_max(), RANGE_COUNT_MAX);
        let native = RunConfig { transport: Transport::Native { in_flight: 1 }, ..list.clone() };
        assert_eq!(native.count_max(), RANGE_COUNT_MAX);
        // One of the two transports lists timestamps in its answers.
        let mixed = RunConfig { others: vec![native.transport], ..list };
        assert_eq!(mixed.count_max(), COUNT_MAX);
    }
}
