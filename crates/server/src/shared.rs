//! The state that the planes of one node share: identity, the core's published state, the
//! allocator, the clock, and the health of each plane. It decides nothing.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use epicepoch_core::allocator::{Allocator, Now};
use epicepoch_core::clock::trusted_ns;
use epicepoch_core::publication::{Identity, Published, Shared};
use epicepoch_core::state::FORMATS;
use epicepoch_wire::peer_hello::{Formats, LinkKind, PeerHello, SharedSettings};
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::{Guarantee, Mode, NodeId, StorePosition, TimestampRange};

use crate::addresses::Addresses;
use crate::admin_queue::AdminQueue;
use crate::build::Build;
use crate::config::{Config, host_and_port};
use crate::intervals::{IntervalState, Intervals};
use crate::lease_clock::LeaseClock;
use crate::security::authz::{Authorization, Caller, Reason, Right};
use crate::security::excess::{Excess, ExcessLog};
use crate::security::tls::ClientTls;
use crate::security::tls::peers::PeerTls;
use crate::security::tls::reloader::Certificates;

/// The shared state of one node's planes.
#[derive(Debug)]
pub struct NodeShared {
    /// The build of the program.
    pub build: Build,
    /// The checked configuration.
    pub config: Config,
    /// Node id, store id and boot id.
    pub identity: Identity,
    /// The position of the data directory when this run began.
    pub began: StorePosition,
    /// The client address of this node, with the real port number.
    pub client_addr: String,
    /// The Promise and the publication.
    pub core: Arc<Shared>,
    /// The node's one allocator.
    pub allocator: Allocator,
    /// Monotonic and trusted time.
    pub clock: NodeClock,
    /// The clocks of the leases, and whether this node may take leases.
    pub lease_clock: LeaseClock,
    /// Interval mode of this node.
    pub intervals: Intervals,
    /// The health of each plane, as far as the other plane needs it.
    pub health: Health,
    /// TLS for the client port; `None` when it is off.
    pub tls: Option<ClientTls>,
    /// Certificates that are reloaded when their files change.
    pub certificates: Certificates,
    /// The `Alt-Svc` header that announces HTTP/3 over TCP; `None` when HTTP/3 is off.
    pub alt_svc: Option<http::HeaderValue>,
    /// The queue in which workers put admin commands.
    pub admin_queue: AdminQueue,
    /// Which callers have which rights.
    pub authz: Authorization,
    /// The log of clients that send too much.
    pub excess: ExcessLog,
    /// Mutual TLS between nodes; `None` when it is off.
    pub peer_tls: Option<PeerTls>,
    /// Where the peers are, as far as this node knows.
    pub addresses: Addresses,
    /// The most timestamps that one answer may have. This is the node's own `MAX_N` until the
    /// cluster's settings are known.
    pub max_n: AtomicU64,
    /// Whether requests that name no guarantee accept a lease. This is the node's own
    /// `GUARANTEE_DEFAULT` until the cluster's settings are known.
    pub is_lease_default: AtomicBool,
    /// Whether the cluster gives compact timestamps. Set once the setting is published, and never
    /// taken back (S21).
    pub is_compact: AtomicBool,
}

impl NodeShared {
    /// For unit tests: a node that has published nothing, at trusted time `trusted_ns`.
    #[cfg(test)]
    pub(crate) fn for_test(identity: Identity, trusted_ns: u64, config: Config) -> Arc<Self> {
        use epicepoch_core::publication::Published;
        use epicepoch_wire::Term;

        use crate::faults::Faults;

        let core = Arc::new(Shared::new(Term(0), Published::nothing(identity)));
        let interval_ns = nanos(config.epoch_interval);
        Arc::new(Self {
            build: Build::default(),
            identity,
            began: StorePosition(0),
            client_addr: "n1:2".to_owned(),
            allocator: Allocator::new(core.clone(), interval_ns),
            clock: NodeClock::new(trusted_ns),
            lease_clock: LeaseClock::new(config.leases.clock),
            intervals: Intervals::of(
                &config,
                epicepoch_storage::Intervals::default(),
                Faults::none(),
            ),
            health: Health::default(),
            admin_queue: AdminQueue::open().0,
            tls: None,
            certificates: Certificates::default(),
            authz: Authorization::load(&config.authz).expect("no files"),
            excess: ExcessLog::default(),
            alt_svc: None,
            peer_tls: None,
            addresses: Addresses::default(),
            max_n: config.max_n.into(),
            is_lease_default: AtomicBool::new(config.leases.guarantee_default == Guarantee::Lease),
            is_compact: AtomicBool::new(false),
            config,
            core,
        })
    }

    /// Whether the consensus plane works now, as `/ready` reports. It must tick and reach a quorum,
    /// and neither its disk nor its rounds may be stuck.
    #[must_use]
    pub fn is_raft_available(&self) -> bool {
        let health = &self.health;
        let silence_ns =
            self.clock.monotonic_ns().saturating_sub(health.ticked_ns.load(Ordering::Relaxed));
        let silence_ns_max = self.config.election_timeout.as_nanos() as u64;
        health.is_quorum_reached.load(Ordering::Relaxed)
            && !health.is_impaired.load(Ordering::Relaxed)
            && silence_ns <= silence_ns_max
    }

    /// What this node knows of its clock now, in interval mode; `None` in quorum mode.
    pub(crate) fn interval_state(&self) -> Option<IntervalState> {
        let published = self.core.published();
        (published.mode == Mode::Interval).then(|| self.intervals.state(&published))
    }

    /// Whether `name`, in any case, is the host of an address of this node or of a member.
    pub(crate) fn is_own_name(&self, name: &str, published: &Published) -> bool {
        let of_members = published.members.values().flat_map(|it| [&it.client_addr, &it.raft_addr]);
        let own = [&self.client_addr, &self.config.raft_addr];
        let mut addrs = own.into_iter().chain(self.config.peers.values()).chain(of_members);
        addrs.any(|addr| {
            let host = host_and_port(addr).map_or("", |(host, _)| host);
            host.strip_suffix('.').unwrap_or(host).eq_ignore_ascii_case(name)
        })
    }

    /// Counts and logs a refusal because of a missing right. The log line advises what to do about
    /// `reason`.
    pub(crate) fn record_denial(&self, right: Right, reason: Reason, caller: &Caller) {
        self.record_denial_of(right, reason, caller, &reason.advice(right));
    }

    /// Counts and logs that a caller was refused a right, with `detail` in the log line.
    pub(crate) fn record_denial_of(
        &self,
        right: Right,
        reason: Reason,
        caller: &Caller,
        detail: &str,
    ) {
        let now_ns = self.clock.monotonic_ns();
        self.authz.denials.record((right, reason), caller.from, detail, now_ns);
    }

    /// Logs a client that sends too much, with its address.
    pub(crate) fn record_excess(&self, kind: Excess, caller: &Caller, detail: &str) {
        self.excess.record(kind, caller.from, detail, self.clock.monotonic_ns());
    }

    /// The most timestamps that one answer may have at present.
    #[must_use]
    pub fn max_n(&self) -> u64 {
        self.max_n.load(Ordering::Relaxed)
    }

    /// The guarantee of requests that name none, at present.
    #[inline]
    #[must_use]
    pub fn guarantee_default(&self) -> Guarantee {
        let is_lease = self.is_lease_default.load(Ordering::Relaxed);
        if is_lease { Guarantee::Lease } else { Guarantee::Quorum }
    }

    /// Whether the cluster gives compact timestamps. If so, every batch that is answered later has
    /// them (S21).
    #[must_use]
    pub fn is_compact(&self) -> bool {
        self.is_compact.load(Ordering::Acquire)
    }

    /// Whether the timestamps of a range are compact because the cluster gives such ones.
    #[must_use]
    pub fn gives_compact(&self, range: &TimestampRange) -> bool {
        range.compact_first().is_some() && self.core.published().is_compact()
    }

    /// The settings that all nodes share. They come from the replicated state or, while it has
    /// none, from this node's own settings.
    #[must_use]
    pub fn settings(&self) -> Arc<ClusterSettings> {
        self.core.published().settings.clone().unwrap_or_else(|| self.config.shared().into())
    }

    /// The formats of the replicated state that this node reads.
    #[must_use]
    pub fn formats(&self) -> Formats {
        Formats { newest: self.config.format_max.min(FORMATS.newest), ..FORMATS }
    }

    /// The hello that this node sends on a connection to `to`.
    #[must_use]
    pub fn hello(&self, link: LinkKind, to: NodeId) -> PeerHello {
        let config = &self.config;
        let settings = self.settings();
        PeerHello {
            link,
            to,
            store: self.identity.store,
            position: self.began,
            boot: self.identity.boot,
            history: self.core.published().history,
            cluster_name: config.cluster_name.clone(),
            raft_addr: config.raft_addr.clone(),
            client_addr: self.client_addr.clone(),
            workers: config.workers as u32,
            settings: SharedSettings {
                epoch_interval_ms: settings.epoch_interval_ms,
                reservation_ms: settings.reservation_ms,
                clock_offset_max_ms: settings.clock_offset_max_ms,
                election_timeout_ms: config.election_timeout.as_millis() as u64,
                max_n: settings.max_n,
            },
            formats: self.formats(),
            version: self.build.version.to_owned(),
            reads_intervals: true,
        }
    }
}

/// The clock of this node's planes: monotonic time since the node's start, and the offset to
/// trusted time that the consensus plane decided on last.
#[derive(Debug)]
pub struct NodeClock {
    start: Instant,
    trusted_offset_ns: AtomicI64,
}

impl NodeClock {
    /// A clock that starts now, at trusted time `trusted_ns`.
    #[must_use]
    pub fn new(trusted_ns: u64) -> Self {
        let offset = i64::try_from(trusted_ns).unwrap_or(i64::MAX);
        Self { start: Instant::now(), trusted_offset_ns: AtomicI64::new(offset) }
    }

    /// Monotonic time since the start of this node, nanoseconds.
    #[must_use]
    pub fn monotonic_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Returns monotonic and trusted time, from one clock reading.
    #[must_use]
    pub fn now(&self) -> Now {
        let monotonic_ns = self.monotonic_ns();
        let offset_ns = self.trusted_offset_ns.load(Ordering::Relaxed);
        Now { monotonic_ns, trusted_ns: trusted_ns(monotonic_ns, offset_ns) }
    }

    /// Sets the clock firewall's decision: trusted time minus monotonic time, nanoseconds.
    pub fn set_trusted_offset_ns(&self, offset_ns: i64) {
        self.trusted_offset_ns.store(offset_ns, Ordering::Relaxed);
    }
}

/// A duration in nanoseconds, the unit of the monotonic clock.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The health of each plane, as far as the other plane needs it. It is read for liveness and for
/// people, never for safety.
#[derive(Debug, Default)]
pub struct Health {
    /// The node was told to stop. It accepts no new connections and no new requests.
    pub is_shutting_down: AtomicBool,
    /// The node was removed from the cluster, and will end.
    pub is_removed: AtomicBool,
    /// The consensus plane reaches a quorum. A leader has heard one within an election timeout; a
    /// follower has heard its leader.
    pub is_quorum_reached: AtomicBool,
    /// The consensus plane is not fit to lead: its disk does not answer, or rounds do not complete.
    pub is_impaired: AtomicBool,
    /// When the consensus plane last ticked, monotonic nanoseconds.
    pub ticked_ns: AtomicU64,
    /// When a worker last completed a confirm round, monotonic nanoseconds.
    pub round_completed_ns: AtomicU64,
    /// When a worker last took requests that ask for a lease, monotonic nanoseconds; 0 before the
    /// first.
    pub lease_asked_ns: AtomicU64,
    /// Whether the node can accept clients.
    pub accepts: Accepts,
}

/// The failed accepts of clients. The thread that accepts clients writes them; the consensus plane
/// reads them.
#[derive(Debug, Default)]
pub struct Accepts {
    /// When the present series of failed accepts began, monotonic nanoseconds; 0 when the last
    /// accept succeeded.
    failing_since_ns: AtomicU64,
    /// When an accept last failed, monotonic nanoseconds.
    failed_ns: AtomicU64,
}

/// Two failed accepts belong to one series if at most this time is between them, nanoseconds. After
/// a failure the node tries again every 50 ms; after a success it waits for the next client.
const SERIES_GAP_MAX_NS: u64 = 200_000_000;
/// A series of failed accepts counts only if it is at least this long, nanoseconds from the first
/// failure to the last. At one try every 50 ms, that is three failures. A single failure does not
/// predict the next one.
const SERIES_MIN_NS: u64 = 100_000_000;

impl Accepts {
    /// Whether the error of an accept concerns only one connection, so that others can still be
    /// accepted.
    #[must_use]
    pub fn is_of_one_connection(error: &io::Error) -> bool {
        matches!(
            error.kind(),
            io::ErrorKind::ConnectionAborted
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionRefused
                | io::ErrorKind::Interrupted
                | io::ErrorKind::WouldBlock
        )
    }

    /// Records that a client was accepted.
    pub fn succeeded(&self) {
        self.failing_since_ns.store(0, Ordering::Relaxed);
    }

    /// Records that accepting a client failed.
    pub fn failed(&self, now_ns: u64) {
        let since_ns = self.failing_since_ns.load(Ordering::Relaxed);
        let failed_ns = self.failed_ns.swap(now_ns, Ordering::Relaxed);
        if since_ns == 0 || now_ns.saturating_sub(failed_ns) > SERIES_GAP_MAX_NS {
            self.failing_since_ns.store(now_ns.max(1), Ordering::Relaxed);
        }
    }

    /// Whether the node cannot accept clients: at least three accepts in a row have failed, and the
    /// last one failed a short time ago.
    #[must_use]
    pub fn are_failing(&self, now_ns: u64) -> bool {
        let since_ns = self.failing_since_ns.load(Ordering::Relaxed);
        let failed_ns = self.failed_ns.load(Ordering::Relaxed);
        since_ns > 0
            && failed_ns.saturating_sub(since_ns) >= SERIES_MIN_NS
            && now_ns.saturating_sub(failed_ns) <= SERIES_GAP_MAX_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn accepts_fail_when_three_in_a_row_have_and_until_one_has_not_or_none_is_tried() {
        let accepts = Accepts::default();
        assert!(!accepts.are_failing(0));
        accepts.failed(1_000 * MS);
        accepts.failed(1_050 * MS);
        assert!(!accepts.are_failing(1_050 * MS), "two");
        accepts.failed(1_100 * MS);
        assert!(accepts.are_failing(1_100 * MS) && accepts.are_failing(1_300 * MS));
        assert!(!accepts.are_failing(1_301 * MS), "nobody has tried since");
        // An hour has passed without an accept. The next failure begins a new series, in which it
        // is alone.
        accepts.failed(3_600_000 * MS);
        assert!(!accepts.are_failing(3_600_000 * MS));
        accepts.failed(3_600_100 * MS);
        assert!(accepts.are_failing(3_600_100 * MS));
        accepts.succeeded();
        assert!(!accepts.are_failing(3_600_100 * MS));
    }
}
