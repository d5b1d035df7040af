//! Sends requests to all nodes at the same time, and checks every answer.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use epicepoch_bench::run::load::{Load, Report};
use epicepoch_bench::run::{Routing, RunConfig, Target};
use epicepoch_bench::{AnswerTimes, History, Operation};

use super::stalls::{StallMeter, Stalls};
use super::turn::is_alone;
use super::{Cluster, WAIT_MAX, say, wait_until};

/// The load counts as begun after this many answers.
const ANSWERS_TO_BEGIN: u64 = 50;
/// If the test shares the machine, each connection pauses this long after an answer or a refusal.
/// There are still enough requests to find a wrong answer, and the other tests get their share of
/// the processors.
const SHARED_PAUSE: Duration = Duration::from_millis(5);
/// Longest wait for an answer. It is longer than any pause of a node in the tests, so that late
/// answers are received, too.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Largest distance of an epoch from wall time while clocks are right. It is the sum of the
/// reservation window and the largest offset of a trusted clock, with room for a busy machine.
const EPOCH_ERROR_MAX: Duration = Duration::from_secs(2);

pub(crate) struct Watch {
    load: Load,
    origin: Instant,
    wall: WallAnchor,
    stalls: StallMeter,
}

impl Watch {
    /// Starts two connections to every node, leader or not. Each sends one request after the other.
    pub(crate) fn start(cluster: &Cluster) -> Self {
        Self::start_with(cluster, 2)
    }

    pub(crate) fn start_with(cluster: &Cluster, connections_per_node: usize) -> Self {
        Self::start_at(cluster.targets(), connections_per_node)
    }

    /// Starts to send requests to these addresses, over this many connections to each.
    pub(crate) fn start_at(targets: Vec<Target>, connections_per_node: usize) -> Self {
        let mut config = RunConfig {
            connections: connections_per_node * targets.len(),
            routing: Routing::EveryNode,
            request_timeout: ANSWER_MAX,
            ..RunConfig::new(targets)
        };
        if !is_alone() {
            (config.answer_pause, config.retry_pause) = (SHARED_PAUSE, SHARED_PAUSE);
        }
        Self::start_of(config)
    }

    /// Starts this load.
    pub(crate) fn start_of(config: RunConfig) -> Self {
        let origin = Instant::now();
        let (wall, stalls) = (WallAnchor::now(), StallMeter::start());
        let watch = Self { load: Load::start(config), origin, wall, stalls };
        watch.wait_for_more(ANSWERS_TO_BEGIN);
        watch
    }

    /// Waits for this many more answers.
    #[track_caller]
    pub(crate) fn wait_for_more(&self, answers: u64) {
        let wanted = self.load.answers() + answers;
        wait_until("the load gets answers", WAIT_MAX, || self.load.answers() >= wanted);
    }

    /// Waits until a request that was sent after `at` has been answered.
    #[track_caller]
    pub(crate) fn wait_for_service_since(&self, at: Instant) {
        wait_until("the cluster serves again", WAIT_MAX, || self.load.answered_since(at));
    }

    /// Whether every request that was sent after `at` is still without an answer.
    pub(crate) fn is_silent_since(&self, at: Instant) -> bool {
        !self.load.answered_since(at)
    }

    /// Ends the load and checks all answers.
    #[track_caller]
    pub(crate) fn finish(self) -> Seen {
        self.finish_with(&[])
    }

    /// Ends the load and checks all answers. `own` are requests that the test itself has made since
    /// the watch began; they are checked together with the others.
    #[track_caller]
    pub(crate) fn finish_with(self, own: &[Operation]) -> Seen {
        let report = self.load.stop();
        let mut history = History::new(self.origin);
        history.record_all(report.operations.iter().chain(own));
        history.count(report.refused(), report.unknown());
        let verdict = history.settle(Instant::now());
        say(&format!("checked {verdict}"));
        verdict.assert_clean();
        let stalls = self.stalls.stop();
        Seen { times: report.answer_times(), report, wall: self.wall, stalls }
    }
}

/// The answers that a watch got. They have been checked: all are unique and in order.
pub(crate) struct Seen {
    pub(crate) report: Report,
    pub(crate) times: AnswerTimes,
    /// The stalls of the machine itself.
    pub(crate) stalls: Stalls,
    wall: WallAnchor,
}

impl Seen {
    /// Checks that no epoch was too far from true wall time, in either direction.
    #[track_caller]
    pub(crate) fn assert_epochs_at_wall_time(&self) {
        let slack = EPOCH_ERROR_MAX.as_nanos() as u64;
        for (operation, range) in self.report.answered() {
            let epoch = range.first().epoch.0;
            let ahead = epoch.saturating_sub(self.wall.unix_ns(operation.end));
            assert!(ahead <= slack, "{} ms ahead: {operation:?}", ahead / 1_000_000);
            let behind = self.wall.unix_ns(operation.start).saturating_sub(epoch);
            assert!(behind <= slack, "{} ms behind: {operation:?}", behind / 1_000_000);
        }
    }
}

/// Whether the epoch of a fresh timestamp is near true wall time again.
pub(crate) fn is_at_wall_time(cluster: &Cluster) -> bool {
    let answer = cluster.nodes.iter().find_map(|node| {
        node.ask("/timestamp").filter(|answer| answer.status == 200 && answer.body.len() == 16)
    });
    let Some(answer) = answer else { return false };
    let epoch = answer.body.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    let now = WallAnchor::now();
    let apart = epoch.map(|epoch| now.unix_ns(now.at).abs_diff(epoch));
    apart.is_some_and(|apart| u128::from(apart) <= EPOCH_ERROR_MAX.as_nanos())
}

/// One moment as read from the monotonic clock and from the wall clock, to convert instants to wall
/// time.
struct WallAnchor {
    at: Instant,
    unix_ns: u64,
}

impl WallAnchor {
    fn now() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is past 1970");
        Self { at: Instant::now(), unix_ns: wall.as_nanos() as u64 }
    }

    fn unix_ns(&self, at: Instant) -> u64 {
        let later = at.saturating_duration_since(self.at).as_nanos() as u64;
        let earlier = self.at.saturating_duration_since(at).as_nanos() as u64;
        self.unix_ns + later - earlier
    }
}
