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
use rustix::time::{ClockId, clock_gettime};

use crate::metrics::cell::{Count, Histogram, Sum};
use crate::metrics::consensus::CLOCK_STATUSES;
use crate::metrics::worker::{Abuse, FAILURES, PathLabel, STATUSES, WorkerMetrics};
use crate::metrics::{ConnectionRefusal, Metrics};
use crate::security::authz::{Reason, Right};
use crate::shared::NodeShared;

/// The page that a Prometheus server scrapes, in the `OpenMetrics` format.
pub(crate) fn render(metrics: Arc<Metrics>, shared: Arc<NodeShared>) -> String {
    let mut registry = Registry::with_prefix("epicepoch");
    registry.register_collector(Box::new(Scrape { metrics, shared }));
    let mut text = String::with_capacity(TEXT_LEN_EXPECTED);
    // A write to a string cannot fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

/// The media type of the page.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ];
        let mut info = self.describe(
            "node",
            "Who this node is; the value is always 1.",
            None,
            MetricType::Info,
        )?;
        info.encode_info(&labels.as_slice())?;
        let is_leader = published.role == Role::Leader;
        self.gauge("term", "The Raft term that this node is in.", None, published.term.0 as f64)?;
        self.gauge(
            "is_leader",
            "1 while this node leads, else 0. Over the cluster the sum should be 1; 0 for longer \
             than an election means that nobody serves.",
            None,
            f64::from(u8::from(is_leader)),
        )?;
        self.gauge(
            "has_grant",
            "1 while this node leads and owns a range to stamp in: only then does it serve.",
            None,
            f64::from(u8::from(is_leader && published.grant.is_some())),
        )
    }

    fn requests(&mut self) -> fmt::Result {
        let metrics = self.metrics;
        let mut family = self.describe(
            "requests",
            "Answers by path and status. A follower answers /timestamp with 409: a client that \
             keeps its leader sees few of them.",
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
             that TIMESTAMP_REQUEST_BUFFER was full, NO_QUORUM that too few members answered.",
            "code",
            &codes.collect::<Vec<_>>(),
        )?;
        self.denials()?;
        self.counters(
            "native_requests",
            "Requests of the native protocol, by what they got. They are in no other count of \
             requests; in those of refusals, timestamps and rounds they are.",
            "outcome",
            &[
                ("answered", self.sum(|w| &w.native_answers)),
                ("refused", self.sum(|w| &w.native_refusals)),
            ],
        )?;
        self.counter(
            "requests_over_rate",
            "Requests refused as OVERLOADED because their address asked more than \
             ADDRESS_REQUEST_RATE_MAX.",
            self.sum(|w| &w.requests_over_rate),
        )?;
        self.counter(
            "timestamps",
            "Timestamps given to clients; a request may ask for many.",
            self.sum(|w| &w.timestamps),
        )?;
        self.gauge(
            "waiting_requests",
            "Requests that wait for a confirm round now. At TIMESTAMP_REQUEST_BUFFER further \
             ones are refused.",
            None,
            self.sum(|w| &w.waiting) as f64,
        )?;
        self.phases()
    }

    fn denials(&mut self) -> fmt::Result {
        let denials = &self.shared.authz.denials;
        let mut family = self.describe(
            "denied",
            "Requests, native connections and connections of peers refused for want of a right, by \
             what they wanted and why: port, plain_text, no_token_file, no_token, wrong_token, \
             address, header, handshake, certificate_name, no_hello.",
            None,
            MetricType::Counter,
        )?;
        for right in Right::ALL {
            for reason in Reason::ALL {
                let count = denials.count(right, reason);
                if count > 0 {
                    let labels = [("right", right.name()), ("reason", reason.name())];
                    let mut one = family.encode_family(&labels)?;
                    one.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
                }
            }
        }
        Ok(())
    }

    fn phases(&mut self) -> fmt::Result {
        self.durations(
            "request_waiting",
            "Until the round of a request's batch began. Long: too many rounds in flight, or a \
             leader that waits for its grant.",
            |w| &w.waiting_ns,
        )?;
        self.durations(
            "request_confirm",
            "From the begin of a round until a quorum had confirmed it: the network and the \
             peers' load.",
            |w| &w.confirm_ns,
        )?;
        self.durations(
            "request_allocate",
            "Taking a batch's timestamps from the node's one allocator. Long: workers wait for \
             each other.",
            |w| &w.allocate_ns,
        )?;
        self.durations(
            "request_write",
            "From the allocation until the answers of the batch were written: this worker's CPU.",
            |w| &w.write_ns,
        )?;
        let folded = self.fold(|w| &w.batch_size, 1.0);
        let help = "Requests that shared one confirm round.";
        self.histogram("batch_size_requests", help, None, &folded)
    }

    fn rounds(&mut self) -> fmt::Result {
        self.counter(
            "rounds_begun",
            "Confirm rounds begun, the empty ones that an idle leader probes with included.",
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
             leader that it is one.",
            "answer",
            &[("yes", self.sum(|w| &w.confirms_yes)), ("no", self.sum(|w| &w.confirms_no))],
        )?;
        self.counter(
            "confirms_borrowed",
            "Confirms sent over a sibling worker's link, because the own one was down.",
            self.sum(|w| &w.confirms_borrowed),
        )?;
        self.gauge(
            "confirm_links",
            "Confirm links that are connected: workers times other members when all is well.",
            None,
            self.sum(|w| &w.links) as f64,
        )
    }

    fn connections(&mut self) -> fmt::Result {
        let metrics = self.metrics;
        self.gauge(
            "connections_open",
            "Client connections that are open. At CONNECTIONS_MAX further ones are closed.",
            None,
            self.sum(|w| &w.connections) as f64,
        )?;
        self.gauge(
            "native_connections_open",
            "Client connections that speak the native protocol; the others speak HTTP or nothing.",
            None,
            self.sum(|w| &w.native_connections) as f64,
        )?;
        self.counter(
            "connections_accepted",
            "Client connections accepted.",
            metrics.connections_accepted.load(),
        )?;
        let refusals =
            ConnectionRefusal::ALL.map(|why| (why.name(), metrics.connections_refused(why)));
        self.counters(
            "connections_refused",
            "Client connections closed at once, by reason: all (CONNECTIONS_MAX), address \
             (ADDRESS_CONNECTIONS_MAX), descriptors (the rest is kept for peers and storage: raise \
             ulimit -n), worker (full, or stopping).",
            "reason",
            &refusals,
        )?;
        self.counter(
            "connections_idle_closed",
            "Client connections closed because nothing, or half a request, came for too long.",
            self.sum(|w| &w.connections_idle_closed),
        )?;
        let abuses = Abuse::ALL.map(|it| (it.name(), self.sum(|w| w.abuses(it))));
        self.counters(
            "http2_abuse",
            "Client connections of HTTP/2 closed because of too many frames that cost the client \
             little, by the frame that was one too many; calm: beyond a bound of the HTTP/2 \
             library; protocol: a frame that the protocol forbids.",
            "frames",
            &abuses,
        )?;
        self.gauge(
            "http3_connections_open",
            "Client connections that speak HTTP/3; they count among connections_open.",
            None,
            self.sum(|w| &w.http3_connections) as f64,
        )?;
        self.counter(
            "http3_abusers_closed",
            "Clients of HTTP/3 whose connection was closed for what they did: requests taken back, \
             or too much beside requests.",
            self.sum(|w| &w.http3_abusers_closed),
        )?;
        self.counter(
            "quic_handshakes_failed",
            "Handshakes over QUIC that failed or took too long.",
            self.sum(|w| &w.quic_handshakes_failed),
        )?;
        self.counter(
            "quic_retries",
            "Clients over QUIC that were told to prove their address before anything is kept for \
             them: many handshakes are under way, or CONNECTIONS_MAX is reached.",
            self.sum(|w| &w.quic_retries),
        )?;
        self.counter(
            "quic_refusals",
            "Clients over QUIC that were refused: beyond CONNECTIONS_MAX, beyond the handshakes \
             that may be under way, or while stopping.",
            self.sum(|w| &w.quic_refusals),
        )?;
        self.counter(
            "accept_failures",
            "Times that a connection could not be accepted for want of descriptors or memory: \
             raise the descriptor limit (ulimit -n).",
            metrics.accept_failures.load(),
        )
    }

    fn tls(&mut self) -> fmt::Result {
        let shared = self.shared;
        self.counters(
            "tls_handshakes",
            "TLS handshakes of clients, by how they ended. Failed are also those that took too \
             long, and those of clients without a certificate that CLIENT_CA_FILE vouches for.",
            "outcome",
            &[
                ("completed", self.sum(|w| &w.handshakes_completed)),
                ("failed", self.sum(|w| &w.handshakes_failed)),
            ],
        )?;
        self.counter(
            "plain_connections_refused",
            "Client connections closed because they speak no TLS, which CLIENT_TLS asks for.",
            self.sum(|w| &w.plain_refused),
        )?;
        let expiries: Vec<_> = shared.certificates.expiries().collect();
        let mut family = self.describe(
            "certificate_expiry_timestamp",
            "Until when a certificate holds, Unix time, by the setting that names its file. The \
             first to expire of a bundle.",
            Some(&Unit::Seconds),
            MetricType::Gauge,
        )?;
        for (setting, at) in expiries {
            let labels = [("setting", setting)];
            let at = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            family.encode_family(&labels)?.encode_gauge(&at)?;
        }
        Ok(())
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
            "Reservations of this node that were applied: a few per second while it leads.",
            consensus.reservations.load(),
        )?;
        self.histogram(
            "reservation_duration",
            "From the proposal of a reservation until it was applied: disk and network.",
            Some(&Unit::Seconds),
            &Sum::new([&consensus.reservation_ns].into_iter(), NS_PER_SECOND),
        )?;
        self.counter(
            "reservation_deadlines_missed",
            "Reservations that took longer than half a window. EPOCH_DEADLINE_LIMIT in a row, \
             with a quorum, end the process.",
            consensus.reservation_deadlines_missed.load(),
        )?;
        self.histogram(
            "fsync_duration",
            "One durable write to the data directory. Above an election timeout the leader \
             gives up leadership.",
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
            "Raft messages dropped for want of a connection or of room on it; Raft repeats them.",
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
            "The epoch that this node stamped last, Unix time; 0 before the first.",
            seconds,
            of_ns(epoch_ns),
        )?;
        self.gauge(
            "epoch_lag",
            "Trusted time minus the epoch stamped last. Under load at most about \
             EPOCH_INTERVAL_MS; it grows while nobody asks, and when reservations are late.",
            seconds,
            if epoch_ns == 0 { 0.0 } else { (trusted_ns as f64 - epoch_ns as f64) / NS_PER_SECOND },
        )?;
        self.gauge(
            "ceiling",
            "The replicated ceiling, Unix time: no epoch above it has been stamped by anybody.",
            seconds,
            of_ns(consensus.ceiling().0),
        )?;
        self.gauge(
            "clock_offset",
            "This node's wall clock minus trusted time: what the clock firewall does not follow.",
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
            "The usual round trip to a peer: nine of ten of the last 64 were no longer.",
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
            "1 for what the clock firewall thinks of this node's wall clock: followed; outvoted \
             (further than CLOCK_OFFSET_MAX_MS from the median of the voters); jumped (against \
             the monotonic clock, and too few peers to say which is right).",
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
            "How much longer than asked for sleeps of a thread without work took: by how much the \
             machine, or whoever shares it, stalls. A stall counts once for each 50 ms that it \
             lasted. Latency that is no longer than this is the machine's.",
            seconds,
            &Sum::new([&hiccups.lateness_ns].into_iter(), NS_PER_SECOND),
        )?;
        self.gauge(
            "hiccup_max",
            "The longest of these stalls since the process started.",
            seconds,
            hiccups.max_ns.load() as f64 / NS_PER_SECOND,
        )?;
        let spent = clock_gettime(ClockId::ProcessCPUTime);
        let spent = spent.tv_sec as f64 + spent.tv_nsec as f64 / NS_PER_SECOND;
        let mut metric = self.describe(
            "process_cpu",
            "Processor time that this process has used, user and system, all threads. Nodes of \
             one process, as in `epicepoch dev`, tell the same.",
            seconds,
            MetricType::Counter,
        )?;
        metric.encode_counter::<NoLabelSet, _, u64>(&spent, None)?;
        self.gauge(
            "process_id",
            "The process id of this node, as its machine or container counts.",
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
