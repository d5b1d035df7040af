//! Clients of several languages and HTTP at once, while leaders are killed and told to stop: one
//! order for all of them, no error inside a call's time, and what a leader's loss costs a call.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use epicepoch_bench::hiccup::HiccupMeter;
use epicepoch_bench::load::{self, LoadConfig, Routing};
use epicepoch_bench::{History, Operation, Outcome};

use crate::cluster::Cluster;
use crate::crowd::{Calls, Crowd, Manners};
use crate::driver::{Call, DriverCommand, Settings};
use crate::{PATIENCE, wait_until};

/// What happens to a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// `kill -9`.
    Killed,
    /// SIGTERM: it hands leadership over.
    Stopped,
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The calls of each client.
    pub crowds: Vec<Calls>,
    /// Each leader that was lost.
    pub losses: Vec<Lost>,
    /// Answers over HTTP.
    pub http_answers: u64,
    /// What is wrong with the order of all answers, or of one client's by its own clock.
    pub disorder: Vec<String>,
}

/// A leader that was lost.
#[derive(Clone, Copy, Debug)]
pub struct Lost {
    /// How.
    pub loss: Loss,
    /// Just before.
    pub from: Instant,
    /// When every client had been answered again.
    pub to: Instant,
    /// By how much the machine itself stalled a thread meanwhile, at the worst.
    pub hiccup: Duration,
}

/// The longest call around each of many equal losses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Longest {
    /// Sorted.
    pub calls: Vec<Duration>,
    /// What of them no stall of the machine explains: each less [`STALLS`] times the worst hiccup
    /// of its loss. Sorted.
    pub unexplained: Vec<Duration>,
}

/// Runs these clients beside HTTP against a cluster that loses its leader again and again, or
/// just for a second if it never does.
///
/// # Errors
/// When a node, a driver or HTTP does not get as far as being judged.
pub fn run(binary: &Path, drivers: &[DriverCommand], losses: &[Loss]) -> Result<Seen, String> {
    let mut cluster = Cluster::start(binary)?;
    let origin = Instant::now();
    let node = |(index, addr): (usize, &std::net::SocketAddr)| load::Node {
        id: index as u64 + 1,
        addr: *addr,
    };
    let nodes: Vec<_> = cluster.addrs().iter().enumerate().map(node).collect();
    let http = load::start(LoadConfig {
        connections: nodes.len(),
        routing: Routing::EveryNode,
        keep_operations: true,
        retry_pause: HTTP_RETRY_PAUSE,
        ..LoadConfig::new(nodes)
    });
    let addrs: Vec<_> = cluster.addrs().iter().map(ToString::to_string).collect();
    let settings = Settings { attempt: ATTEMPT, timeout: PATIENCE, ..Settings::default() };
    let manners = Manners { callers: CALLERS, pause: PAUSE, timeout: CALL_MAX };
    let start = |driver| Crowd::start(driver, &addrs, &settings, manners);
    let crowds = drivers.iter().map(start).collect::<Result<Vec<_>, _>>()?;
    let answered_since = |at: Instant| {
        wait_until("every client is answered", PATIENCE, || {
            http.answered_since(at) && crowds.iter().all(|crowd| crowd.is_answered_since(at))
        })
    };
    answered_since(origin)?;
    let mut windows = Vec::new();
    for loss in losses {
        std::thread::sleep(REST);
        let leader = cluster.wait_until_ready()?;
        let from = Instant::now();
        let meter = HiccupMeter::start(from..from + PATIENCE, PATIENCE);
        match loss {
            Loss::Killed => cluster.kill(leader)?,
            Loss::Stopped => cluster.terminate(leader)?,
        }
        answered_since(Instant::now())?;
        let to = Instant::now();
        let hiccup = Duration::from_nanos(meter.stop().all.max());
        windows.push(Lost { loss: *loss, from, to, hiccup });
        cluster.restart(leader)?;
    }
    cluster.wait_until_ready()?;
    std::thread::sleep(AFTER);
    answered_since(Instant::now())?;
    let crowds = crowds.into_iter().map(Crowd::finish).collect::<Result<Vec<_>, _>>()?;
    let report = http.stop();
    let disorder = disorder(origin, &crowds, &report.operations);
    Ok(Seen { crowds, losses: windows, http_answers: report.answers, disorder })
}

/// All histories together, then each client's alone, by its own clock and so to the nanosecond.
fn disorder(origin: Instant, crowds: &[Calls], http: &[Operation]) -> Vec<String> {
    let mut found = Vec::new();
    let mut judge = |name: &str, operations: &mut dyn Iterator<Item = Operation>| {
        let mut history = History::new(origin);
        for operation in operations {
            history.record(&operation);
        }
        let verdict = history.check();
        if !verdict.is_clean() {
            found.push(format!("{name}: {verdict}"));
        }
    };
    let of = |crowd: usize| {
        let node = DRIVER_NUMBER_FIRST + crowd as u64;
        crowds[crowd].calls.iter().filter_map(move |call| operation(call, node, false))
    };
    let mut all = http.iter().cloned().chain((0..crowds.len()).flat_map(of));
    judge("all clients", &mut all);
    for (crowd, calls) in crowds.iter().enumerate() {
        let node = DRIVER_NUMBER_FIRST + crowd as u64;
        let own = calls.calls.iter().filter_map(|call| operation(call, node, true));
        judge(&calls.name, &mut own.into_iter());
    }
    found
}

fn operation(call: &Call, node: u64, is_own_clock: bool) -> Option<Operation> {
    let range = *call.outcome.as_ref().ok()?;
    let end = if is_own_clock { call.start + call.took } else { call.end };
    Some(Operation { start: call.start, end, node, outcome: Outcome::Answered(range) })
}

impl Seen {
    /// Calls that failed, in words.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        let of = |crowd: &Calls| {
            let failed = crowd.calls.iter().filter_map(|call| call.outcome.as_ref().err());
            failed.map(|refusal| format!("{}: {refusal}", crowd.name)).collect::<Vec<_>>()
        };
        self.crowds.iter().flat_map(of).collect()
    }

    /// The longest call of a client around each loss of that kind: of the calls that were under
    /// way between the loss and the first answers after it.
    #[must_use]
    pub fn longest(&self, crowd: &Calls, loss: Loss) -> Longest {
        let mut longest = Longest { calls: Vec::new(), unexplained: Vec::new() };
        for lost in self.losses.iter().filter(|lost| lost.loss == loss) {
            let met = |call: &&Call| call.start <= lost.to && call.end >= lost.from;
            let Some(took) = crowd.calls.iter().filter(met).map(|call| call.took).max() else {
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

/// The median of sorted times, by nearest rank; nothing of none.
#[must_use]
pub fn median(sorted: &[Duration]) -> Option<Duration> {
    sorted.get(sorted.len().div_ceil(2).checked_sub(1)?).copied()
}

/// What a call may take: no leader's loss may cost more.
pub const CALL_MAX: Duration = Duration::from_secs(2);
/// Callers of each client.
const CALLERS: usize = 6;
/// Between two calls of a caller: each costs two lines through pipes, on a small machine.
const PAUSE: Duration = Duration::from_millis(5);
/// After which a silent node is left.
const ATTEMPT: Duration = Duration::from_millis(250);
/// Between two questions over HTTP to a node that does not lead.
const HTTP_RETRY_PAUSE: Duration = Duration::from_millis(5);
/// Stalls of the machine that one loss may meet one after another: of the old leader, of the new
/// one, of the node that votes for it, and of the client.
pub const STALLS: u32 = 4;
/// Before each loss: longer than a client suspects a node that it has lost, so that the loss before
/// is over for the clients, too.
const REST: Duration = Duration::from_millis(1200);
/// How long all goes on after the last loss.
const AFTER: Duration = Duration::from_millis(500);
/// Drivers are numbered from here in a violation; below are nodes that were asked over HTTP.
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
            outcome: Err(crate::Refusal { fault: crate::Fault::Other, text: String::new() }),
        };
        let lost = |loss, from, to, hiccup| Lost {
            loss,
            from: at(from),
            to: at(to),
            hiccup: Duration::from_millis(hiccup),
        };
        let crowd = Calls {
            name: "test".to_owned(),
            calls: vec![call(0, 1), call(90, 130), call(99, 110), call(200, 260), call(300, 399)],
            clock_uncertainty: Duration::ZERO,
        };
        let losses = vec![
            lost(Loss::Killed, 100, 120, 3),
            lost(Loss::Stopped, 190, 299, 0),
            lost(Loss::Killed, 255, 270, 20),
        ];
        let (crowds, disorder) = (vec![crowd.clone()], Vec::new());
        let seen = Seen { crowds, losses, http_answers: 0, disorder };
        let ms = |times: [u64; 2]| times.map(Duration::from_millis).to_vec();
        let longest = seen.longest(&crowd, Loss::Killed);
        assert_eq!((longest.calls, longest.unexplained), (ms([40, 60]), ms([0, 28])));
    }
}
