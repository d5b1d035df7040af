//! Runs clients in several languages and HTTP callers at once, while leaders are killed or stopped.
//! All answers must have one order, and no call may fail. The module also measures how long the
//! loss of a leader delays a call.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use epicepoch_bench::hiccup::HiccupMeter;
use epicepoch_bench::run::load::Load;
use epicepoch_bench::run::{Routing, RunConfig, Target};
use epicepoch_bench::{History, Operation, Outcome};

use crate::callers::{CallerSettings, Callers, Calls};
use crate::cluster::Cluster;
use crate::driver::{Call, DriverCommand, Settings};
use crate::{WAIT_MAX, wait_until};

/// How a leader is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// By `kill -9`.
    Killed,
    /// The leader gets SIGTERM. It hands leadership over before it ends.
    Stopped,
}

/// The result of [`run`].
#[derive(Clone, Debug)]
pub struct Seen {
    /// The calls of each client.
    pub clients: Vec<Calls>,
    /// The lost leaders.
    pub losses: Vec<Lost>,
    /// Number of answers over HTTP.
    pub http_answers: u64,
    /// Violations of the order. They are found among all answers together, or among the answers of
    /// one client by that client's own clock.
    pub disorder: Vec<String>,
}

/// A lost leader.
#[derive(Clone, Copy, Debug)]
pub struct Lost {
    /// How the leader was lost.
    pub loss: Loss,
    /// A moment just before the loss.
    pub from: Instant,
    /// The moment at which every client had got an answer again.
    pub to: Instant,
    /// The longest time for which a thread on this machine stalled between `from` and `to`.
    pub hiccup: Duration,
}

/// The longest call at each of several losses of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Longest {
    /// The duration of the longest call at each loss, sorted.
    pub calls: Vec<Duration>,
    /// The part of each of these durations that stalls of the machine do not explain: the duration
    /// minus [`STALLS`] times the longest stall at this loss. Sorted.
    pub unexplained: Vec<Duration>,
}

/// Runs these clients and HTTP against a cluster that loses its leader repeatedly. If `losses` is
/// empty, runs them for one second. If `is_compact`, the cluster gives compact timestamps, and each
/// answer must have a compact spelling.
///
/// # Errors
/// A node, a driver or HTTP fails before there is a result.
pub fn run(
    binary: &Path,
    drivers: &[DriverCommand],
    losses: &[Loss],
    is_compact: bool,
) -> Result<Seen, String> {
    let mut cluster = Cluster::start(binary, is_compact)?;
    let origin = Instant::now();
    let targets: Vec<_> =
        cluster.addrs().iter().zip(1..).map(|(addr, id)| Target::new(id, *addr)).collect();
    let http = Load::start(RunConfig {
        connections: targets.len(),
        routing: Routing::EveryNode,
        retry_pause: HTTP_RETRY_PAUSE,
        request_timeout: WAIT_MAX,
        ..RunConfig::new(targets)
    });
    let addrs: Vec<_> = cluster.addrs().iter().map(ToString::to_string).collect();
    let client = Settings { attempt: ATTEMPT, timeout: Some(WAIT_MAX), ..Settings::default() };
    let settings = CallerSettings { callers: CALLERS, pause: PAUSE, timeout: CALL_MAX };
    let start = |driver| Callers::start(driver, &addrs, &client, settings);
    let clients = drivers.iter().map(start).collect::<Result<Vec<_>, _>>()?;
    let answered_since = |at: Instant| {
        wait_until("every client is answered", WAIT_MAX, || {
            http.answered_since(at) && clients.iter().all(|callers| callers.is_answered_since(at))
        })
    };
    answered_since(origin)?;
    let mut windows = Vec::new();
    for loss in losses {
        std::thread::sleep(REST);
        let leader = cluster.wait_until_ready()?;
        let from = Instant::now();
        let meter = HiccupMeter::start(from..from + WAIT_MAX);
        match loss {
            Loss::Killed => cluster.kill(leader)?,
            Loss::Stopped => cluster.terminate(leader)?,
        }
        answered_since(Instant::now())?;
        let to = Instant::now();
        let hiccup = Duration::from_nanos(meter.stop().max());
        windows.push(Lost { loss: *loss, from, to, hiccup });
        cluster.restart(leader)?;
    }
    cluster.wait_until_ready()?;
    std::thread::sleep(AFTER);
    answered_since(Instant::now())?;
    let clients = clients.into_iter().map(Callers::finish).collect::<Result<Vec<_>, _>>()?;
    let report = http.stop();
    let mut disorder = disorder(origin, &clients, &report.operations);
    if is_compact {
        disorder.extend(not_compact(&clients, &report.operations));
    }
    Ok(Seen { clients, losses: windows, http_answers: report.answers(), disorder })
}

/// Checks the order of all calls together. Then checks the calls of each client alone by the
/// client's own clock, because the times of one clock are exact.
fn disorder(origin: Instant, clients: &[Calls], http: &[Operation]) -> Vec<String> {
    let mut found = Vec::new();
    let mut judge = |name: &str, operations: &mut dyn Iterator<Item = Operation>| {
        let mut history = History::new(origin);
        for operation in operations {
            history.record(&operation);
        }
        let verdict = history.settle(Instant::now());
        if !verdict.is_clean() {
            found.push(format!("{name}: {verdict}"));
        }
    };
    let of = |client: usize| {
        let node = DRIVER_NUMBER_FIRST + client as u64;
        clients[client].calls.iter().filter_map(move |call| operation(call, node, false))
    };
    let mut all = http.iter().cloned().chain((0..clients.len()).flat_map(of));
    judge("all clients", &mut all);
    for (client, calls) in clients.iter().enumerate() {
        let node = DRIVER_NUMBER_FIRST + client as u64;
        let own = calls.calls.iter().filter_map(|call| operation(call, node, true));
        judge(&calls.name, &mut own.into_iter());
    }
    found
}

/// Describes the first answer that has no compact spelling.
fn not_compact(clients: &[Calls], http: &[Operation]) -> Option<String> {
    let calls = clients.iter().flat_map(|client| &client.calls);
    let calls = calls.filter_map(|call| operation(call, 0, false));
    let is_compact = |outcome: &Outcome| match outcome {
        Outcome::Answered(range) => range.compact_first().is_some(),
        Outcome::Latest(latest) => latest.to_compact().is_some(),
        Outcome::Refused(_) | Outcome::Unknown | Outcome::Broken(_) => true,
    };
    let mut all = http.iter().cloned().chain(calls);
    let wide = all.find(|operation| !is_compact(&operation.outcome));
    wide.map(|operation| format!("no compact spelling: {:?}", operation.outcome))
}

fn operation(call: &Call, node: u64, is_own_clock: bool) -> Option<Operation> {
    let range = *call.outcome.as_ref().ok()?;
    let end = if is_own_clock { call.start + call.took } else { call.end };
    let outcome =
        if call.is_latest { Outcome::Latest(range.first()) } else { Outcome::Answered(range) };
    Some(Operation { start: call.start, end, node, outcome })
}

impl Seen {
    /// Descriptions of all failed calls.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        let of = |client: &Calls| {
            let failed = client.calls.iter().filter_map(|call| call.outcome.as_ref().err());
            failed.map(|refusal| format!("{}: {refusal}", client.name)).collect::<Vec<_>>()
        };
        self.clients.iter().flat_map(of).collect()
    }

    /// Returns the longest call of a client at each loss of this kind. Only calls in progress
    /// between the loss and the first answers after the loss count.
    #[must_use]
    pub fn longest(&self, client: &Calls, loss: Loss) -> Longest {
        let mut longest = Longest { calls: Vec::new(), unexplained: Vec::new() };
        for lost in self.losses.iter().filter(|lost| lost.loss == loss) {
            let met = |call: &&Call| call.start <= lost.to && call.end >= lost.from;
            let Some(took) = client.calls.iter().filter(met).map(|call| call.took).max() else {
                continue;
            };
            longest.calls.push(took);
            longest.unexplained.push(took.saturating_sub(lost.hiccup * STALLS));
        }
        longest.calls.sort_unstable();
        longest.unexplained.sort_unstable();
        longest
    }
}

impl fmt::Display for Longest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e3);
        let p50 = |times: &[Duration]| median(times).map_or_else(|| "none".to_owned(), ms);
        let all =
            |times: &[Duration]| times.iter().map(|time| ms(*time)).collect::<Vec<_>>().join(" ");
        write!(
            f,
            "p50 {} ms, all {}; beyond what the machine stalled: p50 {} ms, all {}",
            p50(&self.calls),
            all(&self.calls),
            p50(&self.unexplained),
            all(&self.unexplained),
        )
    }
}

/// Returns the median of sorted times, by nearest rank, or `None` if there are no times.
#[must_use]
pub fn median(sorted: &[Duration]) -> Option<Duration> {
    sorted.get(sorted.len().div_ceil(2).checked_sub(1)?).copied()
}

/// Timeout of a call. The loss of a leader must not delay a call for longer.
pub const CALL_MAX: Duration = Duration::from_secs(2);
/// Number of callers of each client.
const CALLERS: usize = 6;
/// Pause of a caller between calls, because each call sends two lines through pipes.
const PAUSE: Duration = Duration::from_millis(5);
/// How long one node may take to answer.
const ATTEMPT: Duration = Duration::from_millis(250);
/// Pause of an HTTP caller after it has asked a node that does not lead.
const HTTP_RETRY_PAUSE: Duration = Duration::from_millis(5);
/// A stall of a process delays a call. At one loss, at most this many processes can stall one after
/// another: the old leader, the new leader, the node that votes for the new leader, and the client.
pub const STALLS: u32 = 4;
/// Pause before each loss. Clients distrust a lost node for 1 s. The pause is longer, so that
/// clients have recovered from the loss before.
const REST: Duration = Duration::from_millis(1200);
/// How long the run goes on after the last loss.
const AFTER: Duration = Duration::from_millis(500);
/// Descriptions of violations name clients by numbers. Drivers have numbers from this one on. Lower
/// numbers are nodes that were asked over HTTP.
const DRIVER_NUMBER_FIRST: u64 = 101;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_the_longest_calls_is_the_nearest_rank() {
        let times = [1, 2, 3, 9].map(Duration::from_millis);
        assert_eq!(median(&[]), None);
        assert_eq!(median(&times[..3]), Some(times[1]));
        assert_eq!(median(&times), Some(times[1]));
    }

    #[test]
    fn a_call_counts_for_the_loss_that_it_met_and_stalls_are_taken_off() {
        let origin = Instant::now();
        let at = |ms: u64| origin + Duration::from_millis(ms);
        let call = |from: u64, to: u64| Call {
            start: at(from),
            end: at(to),
            took: Duration::from_millis(to - from),
            count: 1,
            is_latest: false,
            outcome: Err(crate::Refusal { fault: crate::Fault::Other, text: String::new() }),
        };
        let lost = |loss, from, to, hiccup| Lost {
            loss,
            from: at(from),
            to: at(to),
            hiccup: Duration::from_millis(hiccup),
        };
        let client = Calls {
            name: "test".to_owned(),
            calls: vec![call(0, 1), call(90, 130), call(99, 110), call(200, 260), call(300, 399)],
            clock_uncertainty: Duration::ZERO,
        };
        let losses = vec![
            lost(Loss::Killed, 100, 120, 3),
            lost(Loss::Stopped, 190, 299, 0),
            lost(Loss::Killed, 255, 270, 20),
        ];
        let (clients, disorder) = (vec![client.clone()], Vec::new());
        let seen = Seen { clients, losses, http_answers: 0, disorder };
        let ms = |times: [u64; 2]| times.map(Duration::from_millis).to_vec();
        let longest = seen.longest(&client, Loss::Killed);
        assert_eq!((longest.calls, longest.unexplained), (ms([40, 60]), ms([0, 28])));
    }
}
