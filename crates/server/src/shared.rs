//! What the planes of one node share: identity, the core's published state, the allocator, the
//! clock, and what one plane must know of the other's health. It decides nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use epicepoch_core::allocator::{Allocator, Now};
use epicepoch_core::clock::trusted_ns;
use epicepoch_core::publication::{Identity, Shared};
use epicepoch_core::state::FORMATS;
use epicepoch_wire::hello::{Formats, Hello, LinkKind, SharedSettings};
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::{NodeId, StorePosition};

use crate::config::Config;
use crate::consensus::operators::Desk;
use crate::peers::PeerTls;
use crate::rights::{Caller, Reason, Right, Rights};
use crate::tls::ClientTls;
use crate::tls::upkeep::Certificates;

/// One node's planes hold it in common.
#[derive(Debug)]
pub struct NodeShared {
    /// The checked configuration.
    pub config: Config,
    /// Who this node is, in this run.
    pub identity: Identity,
    /// How far its data directory had come when this run began.
    pub began: StorePosition,
    /// Where clients reach this node, the bound port filled in.
    pub client_addr: String,
    /// Promise and publication.
    pub core: Arc<Shared>,
    /// The node's one allocator.
    pub allocator: Allocator,
    /// Monotonic and trusted time.
    pub clock: NodeClock,
    /// What one plane must know of the other.
    pub health: Health,
    /// What the client port needs to speak TLS, if it does.
    pub tls: Option<ClientTls>,
    /// Certificates that are kept up to date.
    pub certificates: Certificates,
    /// What answers over TCP say of HTTP/3, if it is served.
    pub alt_svc: Option<http::HeaderValue>,
    /// Where workers put what operators ask.
    pub desk: Desk,
    /// Who may do what.
    pub rights: Rights,
    /// What mutual TLS between nodes needs, if they speak it.
    pub peer_tls: Option<PeerTls>,
    /// Most timestamps of one answer: `MAX_N` of this node, until the cluster's settings are known.
    pub max_n: AtomicU64,
}

impl NodeShared {
    /// Whether the consensus plane takes part now, as `/ready` says: it ticks, it reaches a quorum,
    /// and neither its disk nor its rounds are stuck.
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

    /// Counts that somebody was refused a right, and logs it.
    pub(crate) fn note_denial(&self, right: Right, reason: Reason, caller: &Caller) {
        self.note_denial_of(right, reason, caller, reason.advice());
    }

    /// The same, where there is more to say than why.
    pub(crate) fn note_denial_of(
        &self,
        right: Right,
        reason: Reason,
        caller: &Caller,
        detail: &str,
    ) {
        let now_ns = self.clock.monotonic_ns();
        self.rights.denials.note((right, reason), caller.from, detail, now_ns);
    }

    /// Most timestamps of one answer, now.
    #[must_use]
    pub fn max_n(&self) -> u64 {
        self.max_n.load(Ordering::Relaxed)
    }

    /// The settings that all nodes share, as they count here: those of the replicated state, or this
    /// node's own before there are any in it.
    #[must_use]
    pub fn settings(&self) -> Arc<ClusterSettings> {
        self.core.published().settings.clone().unwrap_or_else(|| self.config.shared().into())
    }

    /// The formats of the replicated state that this node reads.
    #[must_use]
    pub fn formats(&self) -> Formats {
        Formats { newest: self.config.format_max.min(FORMATS.newest), ..FORMATS }
    }

    /// How this node introduces itself on a connection to `to`.
    #[must_use]
    pub fn hello(&self, link: LinkKind, to: NodeId) -> Hello {
        let config = &self.config;
        let settings = self.settings();
        Hello {
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
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// Time as this node's planes read it: one monotonic clock with a common start, and the offset to
/// trusted time that the consensus plane last decided on.
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

    /// Both times that an allocation needs, from one clock read.
    #[must_use]
    pub fn now(&self) -> Now {
        let monotonic_ns = self.monotonic_ns();
        let offset_ns = self.trusted_offset_ns.load(Ordering::Relaxed);
        Now { monotonic_ns, trusted_ns: trusted_ns(monotonic_ns, offset_ns) }
    }

    /// Takes in what the clock firewall decided: trusted minus monotonic time, nanoseconds.
    pub fn set_trusted_offset_ns(&self, offset_ns: i64) {
        self.trusted_offset_ns.store(offset_ns, Ordering::Relaxed);
    }
}

/// What one plane must know of the other. Read for liveness and for people, never for safety.
#[derive(Debug, Default)]
pub struct Health {
    /// The node was told to stop: no new connection, no new request.
    pub is_shutting_down: AtomicBool,
    /// The node was removed from the cluster, and will end.
    pub is_removed: AtomicBool,
    /// The consensus plane reaches a quorum: a leader has heard one within an election timeout, a
    /// follower has heard its leader.
    pub is_quorum_reached: AtomicBool,
    /// The consensus plane cannot carry leadership: its disk does not answer, or rounds do not
    /// complete.
    pub is_impaired: AtomicBool,
    /// When the consensus plane last ticked, monotonic nanoseconds.
    pub ticked_ns: AtomicU64,
    /// When a worker last completed a confirm round, monotonic nanoseconds.
    pub round_completed_ns: AtomicU64,
    /// Whether clients can be accepted.
    pub accepts: Accepts,
}

/// How accepts of clients fail: written by the thread that accepts, read by the consensus plane.
#[derive(Debug, Default)]
pub struct Accepts {
    /// Since when each has failed, monotonic nanoseconds; 0 while the last one did not.
    failing_since_ns: AtomicU64,
    /// When the last one failed, monotonic nanoseconds.
    failed_ns: AtomicU64,
}

/// How long after a failed accept the next one must have been tried for both to be of one row,
/// nanoseconds: whoever cannot accept tries again every 50 ms, and waits for the next client otherwise.
const ONE_ROW_NS: u64 = 200_000_000;
/// How long a row must be, nanoseconds: three in a row. One that failed says nothing of the next.
const ROW_MIN_NS: u64 = 100_000_000;

impl Accepts {
    /// A client was accepted.
    pub fn succeeded(&self) {
        self.failing_since_ns.store(0, Ordering::Relaxed);
    }

    /// None could be.
    pub fn failed(&self, now_ns: u64) {
        let since_ns = self.failing_since_ns.load(Ordering::Relaxed);
        let failed_ns = self.failed_ns.swap(now_ns, Ordering::Relaxed);
        if since_ns == 0 || now_ns.saturating_sub(failed_ns) > ONE_ROW_NS {
            self.failing_since_ns.store(now_ns.max(1), Ordering::Relaxed);
        }
    }

    /// Whether no client can be accepted now, nor could since the last that was.
    #[must_use]
    pub fn are_failing(&self, now_ns: u64) -> bool {
        let since_ns = self.failing_since_ns.load(Ordering::Relaxed);
        let failed_ns = self.failed_ns.load(Ordering::Relaxed);
        since_ns > 0
            && failed_ns.saturating_sub(since_ns) >= ROW_MIN_NS
            && now_ns.saturating_sub(failed_ns) <= ONE_ROW_NS
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
        // An hour later one fails: that is no row of an hour.
        accepts.failed(3_600_000 * MS);
        assert!(!accepts.are_failing(3_600_000 * MS));
        accepts.failed(3_600_100 * MS);
        assert!(accepts.are_failing(3_600_100 * MS));
        accepts.succeeded();
        assert!(!accepts.are_failing(3_600_100 * MS));
    }
}
