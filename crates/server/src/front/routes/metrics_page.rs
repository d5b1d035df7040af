//! The metrics page: names, help texts, and sums over the workers' cells. Each scrape renders it
//! once, on the thread that answers.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use epicepoch_core::publication::Role;
use epicepoch_wire::http::ErrorCode;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::process_page::ProcessScrape;
use crate::lease_clock::LeaseRight;
use crate::metrics::Metrics;
use crate::metrics::cell::{Count, Histogram, Sum};
use crate::metrics::consensus::CLOCK_STATUSES;
use crate::metrics::worker::{FAILURES, FORWARDED, PathLabel, STATUSES, WorkerMetrics};
use crate::security::authz::{Reason, Right};
use crate::shared::NodeShared;

mod connections;

/// The page that a Prometheus server scrapes, in the `OpenMetrics` format.
/// [`Exposition`](epicepoch_wire::exposition::Exposition) makes the older format from it.
pub(crate) fn render(metrics: Arc<Metrics>, shared: Arc<NodeShared>) -> String {
    let mut registry = Registry::default();
    let process = ProcessScrape::of(&metrics);
    registry.register_collector(Box::new(process));
    let of_node = registry.sub_registry_with_prefix("epicepoch");
    of_node.register_collector(Box::new(Scrape { metrics, shared }));
    let mut text = String::with_capacity(TEXT_LEN_EXPECTED);
    // A write to a string cannot fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

/// Approximate bytes of a page.
const TEXT_LEN_EXPECTED: usize = 24 << 10;

#[derive(Debug)]
struct Scrape {
    metrics: Arc<Metrics>,
    shared: Arc<NodeShared>,
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page { encoder, metrics: &self.metrics, shared: &self.shared };
        page.node()?;
        page.requests()?;
        page.rounds()?;
        page.forwarding()?;
        page.connections()?;
        page.tls()?;
        page.consensus()?;
        page.time()?;
        page.machine()
    }
}

struct Page<'a, 'e> {
    encoder: DescriptorEncoder<'e>,
    metrics: &'a Metrics,
    shared: &'a NodeShared,
}

const NS_PER_SECOND: f64 = 1e9;

impl Page<'_, '_> {
    fn node(&mut self) -> fmt::Result {
        let shared = self.shared;
        let published = shared.core.published();
        let labels = [
            ("node_id", shared.config.node_id.to_string()),
            ("cluster_name", shared.config.cluster_name.clone()),
            ("cluster", published.cluster.to_string()),
            ("version", shared.build.version.to_owned()),
            ("commit", shared.build.commit.to_owned()),
            ("profile", shared.build.profile.to_owned()),
            ("target", shared.build.target.to_owned()),
        ];
        let mut info = self.describe(
            "node",
            "Identity and build of this node, as labels; the value is always 1.",
            None,
            MetricType::Info,
        )?;
        info.encode_info(&labels.as_slice())?;
        let is_leader = published.role == Role::Leader;
        self.gauge("term", "The Raft term that this node is in.", None, published.term.0 as f64)?;
        self.of_cluster(
            "is_leader",
            "1 while this node leads, else 0. The sum over the cluster should be 1. A sum of 0 for \
             longer than an election means that no node serves.",
            is_leader,
        )?;
        self.of_cluster(
            "has_grant",
            "1 while this node leads and owns a range of epochs, else 0. A node serves only while \
             this is 1. The sum over the cluster should be 1.",
            is_leader && published.grant.is_some(),
        )
    }

    /// A gauge whose sum over a cluster has a meaning. It has the cluster's id as a label, so that
    /// the clusters of one Prometheus server are not added up.
    fn of_cluster(&mut self, name: &str, help: &str, is_true: bool) -> fmt::Result {
        let labels = [("cluster", self.shared.core.published().cluster.to_string())];
        let mut family = self.describe(name, help, None, MetricType::Gauge)?;
        family.encode_family(&labels)?.encode_gauge(&i64::from(is_true))
    }

    fn requests(&mut self) -> fmt::Result {
        let metrics = self.metrics;
        let mut family = self.describe(
            "requests",
            "HTTP answers by path and status. A follower answers /timestamp with 409. Clients that \
             remember their leader seldom get one.",
            None,
            MetricType::Counter,
        )?;
        for path in PathLabel::ALL {
            for (position, status) in STATUSES.iter().enumerate() {
                let answers =
                    |worker: &WorkerMetrics| worker.answers[path as usize][position].load();
                let value = metrics.workers().iter().map(answers).sum::<u64>();
                if value > 0 {
                    let labels = [("path", path.name().to_owned()), ("status", status.to_string())];
                    let mut one = family.encode_family(&labels)?;
                    one.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
                }
            }
        }
        let codes = ErrorCode::ALL.iter().enumerate();
        let codes = codes.map(|(at, code)| (code.name(), self.sum(|w| &w.refusals[at])));
        self.counters(
            "refusals",
            "Refusals by error code, the value of the epicepoch-error header. OVERLOADED means \
             that the node had too many requests, in most cases that TIMESTAMP_REQUEST_BUFFER was \
             full; NO_QUORUM means that too few members answered. Requests beyond \
             ADDRESS_REQUEST_RATE_MAX are not counted here: see requests_over_rate.",
            "code",
            &codes.collect::<Vec<_>>(),
        )?;
        self.denials()?;
        self.counters(
            "native_requests",
            "Requests of the native protocol, by outcome. The metrics of refusals, timestamps and \
             rounds count them, too; the metric requests does not.",
            "outcome",
            &[
                ("answered", self.sum(|w| &w.native_answers)),
                ("refused", self.sum(|w| &w.native_refusals)),
            ],
        )?;
        self.counter(
            "requests_over_rate",
            "Requests refused because their address exceeded ADDRESS_REQUEST_RATE_MAX. Their \
             clients get the code OVERLOADED, but the metric refusals does not count them.",
            self.sum(|w| &w.requests_over_rate),
        )?;
        self.counter(
            "timestamps",
            "Timestamps given to clients; a request may ask for many.",
            self.sum(|w| &w.timestamps),
        )?;
        self.gauge(
            "waiting_requests",
            "Requests that wait for a confirm round now. If TIMESTAMP_REQUEST_BUFFER of them wait, \
             further ones are refused.",
            None,
            self.sum(|w| &w.waiting) as f64,
        )?;
        self.phases()
    }

    fn denials(&mut self) -> fmt::Result {
        let denials = &self.shared.authz.denials;
        let mut family = self.describe(
            "denied",
            "Requests, native connections and connections of peers that were refused because a \
             right is missing, by right and reason: port, plain_text, no_token_file, no_token, \
             wrong_token, address, header, handshake, certificate_name, no_hello, host, origin, \
             not_member, unchecked.",
            None,
            MetricType::Counter,
        )?;
        for right in Right::ALL.into_iter().filter(|right| *right != Right::Health) {
            for reason in Reason::ALL {
                // Also while it is 0: an increase from nothing to 1 is none to Prometheus.
                let count = denials.count(right, reason);
                let labels = [("right", right.name()), ("reason", reason.name())];
                let mut one = family.encode_family(&labels)?;
                one.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
            }
        }
        Ok(())
    }

    fn phases(&mut self) -> fmt::Result {
        self.durations(
            "request_waiting",
            "Time until the round of a request's batch began. If it is long, too many rounds are in \
             flight, or the leader waits for its grant.",
            |w| &w.waiting_ns,
        )?;
        self.durations(
            "request_confirm",
            "Time from the start of a round until a quorum had confirmed it. It depends on the \
             network and the peers' load.",
            |w| &w.confirm_ns,
        )?;
        self.durations(
            "request_allocate",
            "Time to take a batch's timestamps from the node's allocator. If it is long, workers \
             wait for each other.",
            |w| &w.allocate_ns,
        )?;
        self.durations(
            "request_write",
            "Time from the allocation until the batch's answers were written. It depends on the \
             worker's CPU.",
            |w| &w.write_ns,
        )?;
        let folded = self.fold(|w| &w.batch_size, 1.0);
        let help = "Requests that shared one confirm round.";
        self.histogram("batch_size_requests", help, None, &folded)
    }

    fn rounds(&mut self) -> fmt::Result {
        self.counter(
            "rounds_begun",
            "Confirm rounds begun, including the empty ones with which an idle leader probes.",
            self.sum(|w| &w.rounds_begun),
        )?;
        self.counter(
            "rounds_confirmed",
            "Confirm rounds that a quorum confirmed.",
            self.sum(|w| &w.rounds_confirmed),
        )?;
        let failures = FAILURES.iter().enumerate();
        let failures = failures.map(|(at, (_, name))| (*name, self.sum(|w| &w.rounds_failed[at])));
        self.counters(
            "rounds_failed",
            "Confirm rounds without proof, by reason: deposed (a quorum has promised a higher \
             term), timed_out (no quorum within an election timeout), grant_lost (leadership \
             ended meanwhile).",
            "reason",
            &failures.collect::<Vec<_>>(),
        )?;
        self.counters(
            "confirms_answered",
            "Confirms of other nodes that this node answered, by answer. A no tells an old \
             leader that it was deposed.",
            "answer",
            &[("yes", self.sum(|w| &w.confirms_yes)), ("no", self.sum(|w| &w.confirms_no))],
        )?;
        self.counter(
            "rounds_widened",
            "Confirm rounds that asked further voters, because an answer was late or a no, or \
             because a link ended or the voters changed.",
            self.sum(|w| &w.rounds_widened),
        )?;
        self.counter(
            "confirms_borrowed",
            "Confirms sent over another worker's link, because the worker's own link was down.",
            self.sum(|w| &w.confirms_borrowed),
        )?;
        self.gauge(
            "confirm_links",
            "Connected confirm links. Normally as many as confirm_links_expected.",
            None,
            self.sum(|w| &w.links) as f64,
        )?;
        self.leases()?;
        self.intervals()?;
        let published = self.shared.core.published();
        let here = published.identity.node;
        let others = published.members.keys().filter(|member| **member != here).count();
        self.gauge(
            "confirm_links_expected",
            "The number of workers times the number of other members.",
            None,
            (others * self.metrics.workers().len()) as f64,
        )
    }

    fn forwarding(&mut self) -> fmt::Result {
        let forwarded = FORWARDED.iter().enumerate();
        let forwarded = forwarded.map(|(at, name)| (*name, self.sum(|w| &w.forwarded[at])));
        self.counters(
            "forwarded",
            "Requests that this node sent on to the leader, by outcome: answered, refused, \
             sent_again (not answered over one connection, so sent over the next).",
            "outcome",
            &forwarded.collect::<Vec<_>>(),
        )?;
        self.durations(
            "forward",
            "Time until the leader's answer to requests that this node sent on, from the arrival of \
             the first request that shared the question.",
            |w| &w.forward_ns,
        )?;
        let folded = self.fold(|w| &w.forward_size, 1.0);
        let help = "Requests that shared one question to the leader.";
        self.histogram("forward_size_requests", help, None, &folded)
    }

    fn leases(&mut self) -> fmt::Result {
        let by_round = self.sum(|w| &w.proved_by_round);
        let by_lease = self.sum(|w| &w.proved_by_lease);
        self.counters(
            "proofs",
            "Batches of requests that were answered, by what has proved that this node still leads: \
             round, or lease.",
            "by",
            &[("round", by_round), ("lease", by_lease)],
        )?;
        let (lease_clock, seconds) = (&self.shared.lease_clock, Some(&Unit::Seconds));
        let lease = self.shared.core.published().lease;
        let left_ns = lease.map_or(0, |it| it.until_ns.saturating_sub(lease_clock.own_ns()));
        self.gauge(
            "lease",
            "For how long this leader may still answer by its lease; 0 without one.",
            seconds,
            left_ns as f64 / NS_PER_SECOND,
        )?;
        self.gauge(
            "lease_wait",
            "For how long this leader still does not answer, because the lease of an earlier leader \
             may last.",
            seconds,
            self.metrics.consensus.lease_wait_ns.load() as f64 / NS_PER_SECOND,
        )?;
        let right = lease_clock.right();
        let mut family = self.describe(
            "lease_clock",
            "1 for whether this node may take leases: allowed; never (LEASE_CLOCK); virtual (this \
             machine is virtual); unknown (whether it is); suspended (the machine was suspended \
             since the process started).",
            None,
            MetricType::Gauge,
        )?;
        for one in LeaseRight::ALL {
            let labels = [("status", one.name())];
            family.encode_family(&labels)?.encode_gauge(&i64::from(one == right))?;
        }
        Ok(())
    }

    fn intervals(&mut self) -> fmt::Result {
        let state = self.shared.interval_state();
        self.gauge(
            "interval_mode",
            "1 if the cluster is in interval mode, as this node knows: then no node has a grant.",
            None,
            f64::from(u8::from(state.is_some())),
        )?;
        let is_certain = state.as_ref().is_some_and(|it| it.refusal.is_none());
        let is_closing = state.as_ref().is_some_and(|it| it.is_closing);
        let bound_ns = state.as_ref().and_then(|it| it.bound_ns).unwrap_or_default();
        let agreement = state.and_then(|it| it.agreement);
        self.gauge(
            "interval_clocks_known",
            "Voters whose interval this node knows, itself among them; 0 if its own is not known, and in \
             quorum mode.",
            None,
            agreement.map_or(0, |it| it.known) as f64,
        )?;
        self.gauge(
            "interval_clocks_agreeing",
            "Those of interval_clocks_known whose interval has a moment in common with this node's.",
            None,
            agreement.map_or(0, |it| it.agreeing) as f64,
        )?;
        self.gauge(
            "interval_certain",
            "1 if this node gives interval timestamps; 0 if it refuses, and in quorum mode.",
            None,
            f64::from(u8::from(is_certain)),
        )?;
        self.gauge(
            "interval_bound",
            "How far the clock of this node may be off, by its INTERVAL_SOURCE; 0 if that is not known, \
             and in quorum mode.",
            Some(&Unit::Seconds),
            bound_ns as f64 / NS_PER_SECOND,
        )?;
        self.gauge(
            "interval_closing",
            "1 while MODE changes from interval to quorum, as this node knows: it gives no timestamps.",
            None,
            f64::from(u8::from(is_closing)),
        )
    }

    fn consensus(&mut self) -> fmt::Result {
        let consensus = &self.metrics.consensus;
        self.counter(
            "leader_changes",
            "Changes of the leader that this node has seen. Each costs clients a pause.",
            consensus.leader_changes.load(),
        )?;
        self.counter(
            "reservations",
            "Reservations of this node that were applied. A leader makes a few per second.",
            consensus.reservations.load(),
        )?;
        self.histogram(
            "reservation_duration",
            "Time from the proposal of a reservation until it was applied. It depends on disks and \
             network.",
            Some(&Unit::Seconds),
            &Sum::new([&consensus.reservation_ns].into_iter(), NS_PER_SECOND),
        )?;
        self.counter(
            "reservation_deadlines_missed",
            "Reservations that took longer than half a window. After EPOCH_DEADLINE_LIMIT of them in \
             a row, while a quorum answers, the process ends.",
            consensus.reservation_deadlines_missed.load(),
        )?;
        self.histogram(
            "fsync_duration",
            "Time of one durable write to the data directory. A leader whose write takes much longer \
             than an election timeout hands over to a voter with a faster disk.",
            Some(&Unit::Seconds),
            &Sum::new([&consensus.fsync_ns].into_iter(), NS_PER_SECOND),
        )?;
        self.counter(
            "raft_messages_sent",
            "Raft messages handed to a peer's connection.",
            consensus.raft_messages_sent.load(),
        )?;
        self.counter(
            "raft_messages_dropped",
            "Raft messages dropped because the queue of a peer's link was full. Raft repeats them. \
             Messages to a peer that is down are not counted.",
            consensus.raft_messages_dropped.load(),
        )
    }

    fn time(&mut self) -> fmt::Result {
        let (shared, consensus) = (self.shared, &self.metrics.consensus);
        let wall_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let trusted_ns = shared.clock.now().trusted_ns;
        let epoch_ns = shared.allocator.epoch().0;
        let seconds = Some(&Unit::Seconds);
        let of_ns = |ns: u64| ns as f64 / NS_PER_SECOND;
        self.gauge(
            "epoch",
            "The epoch of this node's last timestamp, Unix time; 0 before the first one.",
            seconds,
            of_ns(epoch_ns),
        )?;
        self.gauge(
            "epoch_lag",
            "Trusted time minus the epoch of the last timestamp. Under load it is at most about \
             EPOCH_INTERVAL_MS. It grows while no requests come, and when reservations are late.",
            seconds,
            if epoch_ns == 0 { 0.0 } else { (trusted_ns as f64 - epoch_ns as f64) / NS_PER_SECOND },
        )?;
        self.gauge(
            "ceiling",
            "The replicated ceiling, Unix time. No node has given a timestamp with an epoch above \
             it.",
            seconds,
            of_ns(consensus.ceiling().0),
        )?;
        self.gauge(
            "clock_offset",
            "This node's wall clock minus trusted time. Near 0 while the wall clock is followed.",
            seconds,
            (wall_ns as f64 - trusted_ns as f64) / NS_PER_SECOND,
        )?;
        let mut family = self.describe(
            "peer_clock_offset",
            "A peer's wall clock minus this node's, corrected by half the round trip.",
            seconds,
            MetricType::Gauge,
        )?;
        for (peer, offset_ns) in consensus.peer_clock_offsets() {
            let labels = [("peer", peer.to_string())];
            let mut one = family.encode_family(&labels)?;
            one.encode_gauge(&(offset_ns as f64 / NS_PER_SECOND))?;
        }
        let mut family = self.describe(
            "peer_round_trip",
            "The usual round trip to a peer: nine of ten of the last 64 round trips were no longer.",
            seconds,
            MetricType::Gauge,
        )?;
        for (peer, round_trip_ns) in consensus.round_trips() {
            let labels = [("peer", peer.to_string())];
            let mut one = family.encode_family(&labels)?;
            one.encode_gauge(&(round_trip_ns as f64 / NS_PER_SECOND))?;
        }
        let mut family = self.describe(
            "clock_status",
            "1 for the present status of this node's wall clock: followed; outvoted (further than \
             CLOCK_OFFSET_MAX_MS from the median of the voters); jumped (away from the monotonic \
             clock, while too few peers are known to decide which is right).",
            None,
            MetricType::Gauge,
        )?;
        let current = consensus.clock_status();
        for (position, (_, name)) in CLOCK_STATUSES.iter().enumerate() {
            let labels = [("status", *name)];
            family.encode_family(&labels)?.encode_gauge(&i64::from(position == current))?;
        }
        Ok(())
    }

    fn machine(&mut self) -> fmt::Result {
        let seconds = Some(&Unit::Seconds);
        let hiccups = &self.metrics.hiccups;
        self.histogram(
            "hiccup",
            "How long the machine stalls: by how much sleeps of a thread without other work overran. \
             A stall counts once for each 50 ms that it lasted. The machine explains latencies up \
             to this.",
            seconds,
            &Sum::new([&hiccups.lateness_ns].into_iter(), NS_PER_SECOND),
        )?;
        self.gauge(
            "hiccup_max",
            "The longest stall of the machine since the process started.",
            seconds,
            hiccups.max_ns.load() as f64 / NS_PER_SECOND,
        )?;
        self.gauge(
            "process_id",
            "The id of this node's process on its machine or in its container.",
            None,
            f64::from(std::process::id()),
        )
    }

    fn describe<'s>(
        &'s mut self,
        name: &'s str,
        help: &str,
        unit: Option<&'s Unit>,
        kind: MetricType,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.encoder.encode_descriptor(name, help, unit, kind)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut metric = self.describe(name, help, None, MetricType::Counter)?;
        metric.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    fn counters(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: &[(&'static str, u64)],
    ) -> fmt::Result {
        let mut family = self.describe(name, help, None, MetricType::Counter)?;
        for (text, value) in values {
            let labels = [(label, *text)];
            let mut one = family.encode_family(&labels)?;
            one.encode_counter::<NoLabelSet, _, u64>(value, None)?;
        }
        Ok(())
    }

    fn gauge(&mut self, name: &str, help: &str, unit: Option<&Unit>, value: f64) -> fmt::Result {
        self.describe(name, help, unit, MetricType::Gauge)?.encode_gauge(&value)
    }

    fn histogram(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        folded: &Sum,
    ) -> fmt::Result {
        let mut metric = self.describe(name, help, unit, MetricType::Histogram)?;
        metric.encode_histogram::<NoLabelSet>(folded.sum, folded.count, &folded.buckets, None)
    }

    fn durations(
        &mut self,
        name: &str,
        help: &str,
        of: impl Fn(&WorkerMetrics) -> &Histogram,
    ) -> fmt::Result {
        let folded = self.fold(of, NS_PER_SECOND);
        self.histogram(name, help, Some(&Unit::Seconds), &folded)
    }

    fn fold(&self, of: impl Fn(&WorkerMetrics) -> &Histogram, per_unit: f64) -> Sum {
        Sum::new(self.metrics.workers().iter().map(of), per_unit)
    }

    fn sum(&self, of: impl Fn(&WorkerMetrics) -> &Count) -> u64 {
        self.metrics.workers().iter().map(|worker| of(worker).load()).sum()
    }
}
