//! `/status`: what this node knows of itself and of the other members, as one JSON document. The
//! page draws it. Counters and histograms count from the start of the process, whose id is `boot`;
//! the reader keeps what it needs to draw a history. Making the document asks no other thread, so it
//! is also answered while the consensus plane or the disk is stuck.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use epicepoch_core::confirm::RoundFailure;
use epicepoch_core::publication::{Published, Role};
use epicepoch_wire::NodeId;
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::settings::SettingName;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use super::answer::is_ready;
use super::members::role;
use crate::front::pipeline::refusal::Leaving;
use crate::intervals::IntervalState;
use crate::metrics::cell::{Count, Histogram, Sum};
use crate::metrics::consensus::CLOCK_STATUSES;
use crate::metrics::peers::Peer;
use crate::metrics::worker::{FAILURES, PathLabel, STATUSES, WorkerMetrics};
use crate::metrics::{ConnectionRefusal, Metrics};
use crate::security::authz::{Reason, Right};
use crate::shared::NodeShared;

#[expect(clippy::struct_excessive_bools, reason = "each is a field of the JSON document")]
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    #[serde(rename = "nodeID")]
    node: u64,
    addr: &'a str,
    cluster_name: &'a str,
    cluster: String,
    history: String,
    version: &'a str,
    commit: &'a str,
    profile: &'a str,
    target: &'a str,
    /// Another one after each start.
    boot: String,
    uptime_ms: f64,
    wall_ns: String,
    role: &'static str,
    term: u64,
    leads: bool,
    /// Whether this node leads and owns a range of epochs.
    has_grant: bool,
    leader: Option<Node<'a>>,
    /// How long `leader` and `term` have been so, as this node has seen it.
    leader_for_ms: f64,
    ready: bool,
    /// Why this node is about to end.
    leaving: &'static str,
    quorum_reached: bool,
    impaired: bool,
    /// How long ago the consensus plane last ticked.
    tick_age_ms: f64,
    joint: bool,
    format: u32,
    /// The state of the wall clock, by the clock firewall.
    status: &'static str,
    offset_ms: f64,
    ceiling: String,
    lead_ms: f64,
    lag_ms: Option<f64>,
    /// For how long this leader may still answer by its lease; `None` without one.
    lease_left_ms: Option<f64>,
    /// For how long this leader still does not answer, because of the lease of another.
    lease_wait_ms: f64,
    /// Whether this node may take leases, or why not.
    lease_clock: &'static str,
    /// `None` in quorum mode.
    interval: Option<Interval>,
    members: Vec<Row<'a>>,
    confirm_links: u64,
    /// How many confirm links there are if all is well.
    confirm_links_max: u64,
    settings: BTreeMap<&'static str, String>,
    node_settings: BTreeMap<&'static str, String>,
    certificates: Vec<Certificate>,
    counters: BTreeMap<&'static str, f64>,
    refusals: BTreeMap<&'static str, u64>,
    /// Upper bounds of the buckets of `latencies`; the last bucket has none.
    bounds_ms: Vec<f64>,
    /// How many durations were in each bucket.
    latencies: BTreeMap<&'static str, Vec<u64>>,
}

#[derive(Serialize)]
struct Node<'a> {
    #[serde(rename = "nodeID")]
    node: u64,
    addr: &'a str,
}

/// Interval mode of this node.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Interval {
    source: Option<String>,
    bound_ns: Option<u64>,
    mark: String,
    clocks_known: usize,
    clocks_agreeing: usize,
    refusal: Option<String>,
    closing: bool,
}

/// A member.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    #[serde(rename = "nodeID")]
    node: u64,
    addr: &'a str,
    raft_addr: &'a str,
    role: &'static str,
    /// `None` if this node does not lead.
    heard: Option<bool>,
    /// `None` if this node does not lead, or the member has not told this leader yet.
    behind: Option<u64>,
    /// How long ago the member last answered a ping of this node; `None` before it did.
    answer_age_ms: Option<f64>,
    /// The member's wall clock minus this node's.
    offset_ms: Option<f64>,
    /// The usual round trip: nine of ten took no longer.
    usual_ms: Option<f64>,
    version: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Certificate {
    setting: &'static str,
    days_left: i64,
}

/// The JSON document.
pub(super) fn document(metrics: &Metrics, shared: &NodeShared, leaving: Leaving) -> Bytes {
    let published = shared.core.published();
    let peers = metrics.consensus.peers.all();
    let document = Document::of(metrics, shared, &published, &peers, leaving);
    let mut text = serde_json::to_vec(&document).unwrap_or_default();
    text.push(b'\n');
    text.into()
}

const fn of_ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// Milliseconds from one Unix time to another, both in nanoseconds.
fn apart_ms(of_ns: u64, from_ns: u64) -> f64 {
    (i128::from(of_ns) - i128::from(from_ns)) as f64 / 1e6
}

impl<'a> Document<'a> {
    fn of(
        metrics: &Metrics,
        shared: &'a NodeShared,
        published: &'a Published,
        peers: &'a BTreeMap<NodeId, Peer>,
        leaving: Leaving,
    ) -> Self {
        let (config, consensus, health) = (&shared.config, &metrics.consensus, &shared.health);
        let now = shared.clock.now();
        let now_ns = now.monotonic_ns;
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall_ns = u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX);
        let age_ms = |at_ns: u64| of_ms(now_ns.saturating_sub(at_ns));
        let leads = published.role == Role::Leader;
        let epoch_ns = Some(shared.allocator.epoch().0).filter(|epoch| leads && *epoch > 0);
        let ceiling_ns = consensus.ceiling().0;
        let node = published.identity.node;
        let others = published.members.keys().filter(|member| **member != node).count() as u64;
        let sum = |of: fn(&WorkerMetrics) -> &Count| -> u64 {
            metrics.workers().iter().map(|worker| of(worker).load()).sum()
        };
        let is_quorum_reached = shared.is_raft_available();
        let interval = shared.interval_state();
        let (bounds_ms, latencies) = latencies(metrics);
        Self {
            node: node.0,
            addr: &shared.client_addr,
            cluster_name: &config.cluster_name,
            cluster: published.cluster.to_string(),
            history: format!("{:016x}", published.history.0),
            version: shared.build.version,
            commit: shared.build.commit,
            profile: shared.build.profile,
            target: shared.build.target,
            boot: format!("{:016x}", published.identity.boot.0),
            uptime_ms: of_ms(now_ns),
            wall_ns: wall_ns.to_string(),
            role: role(published),
            term: published.term.0,
            leads,
            has_grant: leads && published.grant.is_some(),
            leader: published
                .leader
                .and_then(|leader| published.members.get(&leader))
                .map(|leader| Node { node: leader.node.0, addr: &leader.client_addr }),
            leader_for_ms: age_ms(consensus.leader_since_ns.load()),
            ready: leaving == Leaving::No
                && is_ready(published, is_quorum_reached, interval.as_ref()),
            leaving: match leaving {
                Leaving::No => "no",
                Leaving::ShuttingDown => "stopping",
                Leaving::Removed => "removed",
            },
            quorum_reached: health.is_quorum_reached.load(Ordering::Relaxed),
            impaired: health.is_impaired.load(Ordering::Relaxed),
            tick_age_ms: age_ms(health.ticked_ns.load(Ordering::Relaxed)),
            joint: published.voters.is_joint(),
            format: published.format,
            status: CLOCK_STATUSES.get(consensus.clock_status()).map_or("unknown", |it| it.1),
            offset_ms: apart_ms(wall_ns, now.trusted_ns),
            ceiling: ceiling_ns.to_string(),
            lead_ms: apart_ms(ceiling_ns, wall_ns),
            lag_ms: epoch_ns.map(|epoch_ns| apart_ms(wall_ns, epoch_ns)),
            lease_left_ms: lease_left_ms(shared, published),
            lease_wait_ms: of_ms(consensus.lease_wait_ns.load()),
            lease_clock: shared.lease_clock.right().name(),
            interval: interval.map(Interval::from),
            members: rows(metrics, published, peers, age_ms),
            confirm_links: sum(|w| &w.links),
            confirm_links_max: config.workers as u64 * others,
            settings: {
                let settings = shared.settings();
                SettingName::ALL.map(|name| (name.text(), settings.text(name))).into()
            },
            node_settings: node_settings(shared),
            certificates: certificates(shared, wall.as_secs()),
            counters: counters(metrics, shared, sum),
            refusals: refusals(metrics),
            bounds_ms,
            latencies,
        }
    }
}

impl From<IntervalState> for Interval {
    fn from(state: IntervalState) -> Self {
        let IntervalState { source, bound_ns, mark_ns, agreement, refusal, is_closing } = state;
        let (clocks_known, clocks_agreeing) =
            agreement.map_or((0, 0), |it| (it.known, it.agreeing));
        let (mark, closing) = (mark_ns.to_string(), is_closing);
        Self { source, bound_ns, mark, clocks_known, clocks_agreeing, refusal, closing }
    }
}

/// The rest of this leader's lease; `None` if it has none or it is over.
fn lease_left_ms(shared: &NodeShared, published: &Published) -> Option<f64> {
    let until_ns = published.lease?.until_ns;
    let left_ns = until_ns.checked_sub(shared.lease_clock.own_ns())?;
    (left_ns > 0).then_some(of_ms(left_ns))
}

fn rows<'a>(
    metrics: &Metrics,
    published: &'a Published,
    peers: &'a BTreeMap<NodeId, Peer>,
    age_ms: impl Fn(u64) -> f64,
) -> Vec<Row<'a>> {
    let offsets: BTreeMap<_, _> = metrics.consensus.peer_clock_offsets().into_iter().collect();
    let trips: BTreeMap<_, _> = metrics.consensus.round_trips().into_iter().collect();
    let row = |member: &'a Member| {
        let node = member.node;
        let peer = peers.get(&node);
        let progress = peer.and_then(|peer| peer.progress);
        let version = peer.map(|peer| &*peer.version);
        Row {
            node: node.0,
            addr: &member.client_addr,
            raft_addr: &member.raft_addr,
            role: role_of(published, node),
            heard: progress.map(|it| it.is_heard),
            behind: progress.and_then(|it| it.behind),
            answer_age_ms: peer.and_then(|peer| peer.answered_ns).map(&age_ms),
            offset_ms: offsets.get(&node).map(|ns| *ns as f64 / 1e6),
            usual_ms: trips.get(&node).map(|ns| of_ms(*ns)),
            version: version.filter(|version| !version.is_empty()),
        }
    };
    published.members.values().map(row).collect()
}

/// The part of a member in the cluster, as this node knows it.
fn role_of(published: &Published, node: NodeId) -> &'static str {
    let voters = &published.voters;
    match () {
        () if published.leader == Some(node) => "leader",
        () if voters.incoming().any(|(voter, _)| voter == node) => "voter",
        () if voters.iter().any(|(voter, _)| voter == node) => "leaving",
        () => "learner",
    }
}

/// The settings of this node that an operator compares with what the page shows.
fn node_settings(shared: &NodeShared) -> BTreeMap<&'static str, String> {
    let config = &shared.config;
    BTreeMap::from([
        ("ADDRESS_CONNECTIONS_MAX", config.limits.address_connections_max.to_string()),
        ("CONNECTIONS_MAX", config.connections_max.to_string()),
        ("ELECTION_TIMEOUT_MS", config.election_timeout.as_millis().to_string()),
        ("HEARTBEAT_MS", config.heartbeat.as_millis().to_string()),
        ("INTERVAL_BOUND_MAX_MS", config.intervals.bound_max.as_millis().to_string()),
        ("INTERVAL_SOURCE", config.intervals.source.clone().unwrap_or_default()),
        ("LEASE_CLOCK", config.leases.clock.name().to_owned()),
        ("REQUEST_TIMEOUT_MS", config.request_timeout.as_millis().to_string()),
        ("TIMESTAMP_REQUEST_BUFFER", config.request_buffer.to_string()),
        ("WORKERS", config.workers.to_string()),
    ])
}

fn certificates(shared: &NodeShared, wall_s: u64) -> Vec<Certificate> {
    let days_left = |at: SystemTime| {
        let at_s = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        (at_s as i64 - wall_s as i64).div_euclid(86_400)
    };
    let expiries = shared.certificates.expiries();
    expiries.map(|(setting, at)| Certificate { setting, days_left: days_left(at) }).collect()
}

/// Counters since the start of the process, and gauges. The names are those of the metrics.
fn counters(
    metrics: &Metrics,
    shared: &NodeShared,
    sum: impl Fn(fn(&WorkerMetrics) -> &Count) -> u64,
) -> BTreeMap<&'static str, f64> {
    let consensus = &metrics.consensus;
    let ok = STATUSES.iter().position(|status| *status == 200).unwrap_or_default();
    let answers = |worker: &WorkerMetrics| worker.answers[PathLabel::Timestamp as usize][ok].load();
    let http: u64 = metrics.workers().iter().map(answers).sum();
    let is_late = |(failure, _): &(RoundFailure, _)| *failure == RoundFailure::TimedOut;
    let late = FAILURES.iter().position(is_late).unwrap_or_default();
    let rounds_late = metrics.workers().iter().map(|worker| worker.rounds_failed[late].load());
    let denied = |right| Reason::ALL.map(|why| shared.authz.denials.count(right, why));
    let denied: u64 = Right::ALL.into_iter().flat_map(denied).sum();
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let refused = ConnectionRefusal::ALL.map(|why| metrics.connections_refused(why));
    BTreeMap::from([
        ("acceptFailures", metrics.accept_failures.load() as f64),
        ("answered", (http + sum(|w| &w.native_answers)) as f64),
        ("connectionsOpen", sum(|w| &w.connections) as f64),
        ("connectionsRefused", refused.iter().sum::<u64>() as f64),
        ("connectionsRefusedByAddress", refused[ConnectionRefusal::Address as usize] as f64),
        ("cpuMs", cpu.tv_sec as f64 * 1e3 + cpu.tv_nsec as f64 / 1e6),
        ("denied", denied as f64),
        ("batchesByLease", sum(|w| &w.proved_by_lease) as f64),
        ("leaderChanges", consensus.leader_changes.load() as f64),
        ("raftMessagesDropped", consensus.raft_messages_dropped.load() as f64),
        ("reservationDeadlinesMissed", consensus.reservation_deadlines_missed.load() as f64),
        ("roundsTimedOut", rounds_late.sum::<u64>() as f64),
        ("timestamps", sum(|w| &w.timestamps) as f64),
        ("waitingRequests", sum(|w| &w.waiting) as f64),
    ])
}

/// The refusals since the start of the process, by error code. Codes without one are left out.
fn refusals(metrics: &Metrics) -> BTreeMap<&'static str, u64> {
    let count = |at: usize| metrics.workers().iter().map(|it| it.refusals[at].load()).sum();
    let counts = ErrorCode::ALL.iter().enumerate().map(|(at, code)| (code.name(), count(at)));
    counts.filter(|(_, count)| *count > 0).collect()
}

/// The bounds of the buckets, and the counts of each histogram of durations.
fn latencies(metrics: &Metrics) -> (Vec<f64>, BTreeMap<&'static str, Vec<u64>>) {
    const NS_PER_MS: f64 = 1e6;
    let of = |parts: &mut dyn Iterator<Item = &Histogram>| Sum::new(parts, NS_PER_MS).buckets;
    let workers = |of_worker: fn(&WorkerMetrics) -> &Histogram| {
        of(&mut metrics.workers().iter().map(of_worker))
    };
    let (consensus, hiccups) = (&metrics.consensus, &metrics.hiccups);
    let all = [
        ("confirm", workers(|w| &w.confirm_ns)),
        ("diskWrite", of(&mut [&consensus.fsync_ns].into_iter())),
        ("hiccup", of(&mut [&hiccups.lateness_ns].into_iter())),
        ("reservation", of(&mut [&consensus.reservation_ns].into_iter())),
        ("waiting", workers(|w| &w.waiting_ns)),
        ("write", workers(|w| &w.write_ns)),
    ];
    let mut bounds: Vec<_> = all[0].1.iter().map(|(bound, _)| *bound).collect();
    // The last bucket has no bound.
    bounds.pop();
    let counts = |buckets: Vec<(f64, u64)>| buckets.into_iter().map(|(_, count)| count).collect();
    (bounds, all.map(|(name, buckets)| (name, counts(buckets))).into())
}
