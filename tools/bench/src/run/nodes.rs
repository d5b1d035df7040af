//! Reads `/metrics` of the measured nodes: stalls of their machines, and their CPU time. The nodes
//! are read before and after the measurement, never during it. A node is left out if it does not
//! answer or is no `epicepoch`.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use epicepoch_client::dial::{Alpn, Dialer};

use super::config::{RunConfig, Target};
use crate::http1::parse_response;

/// The report of one node process over the measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeReport {
    /// Id of the node, and of other nodes in the same process.
    pub ids: Vec<u64>,
    /// Process id on the node's machine.
    pub pid: u32,
    /// CPU time of the process between the two readings.
    pub cpu: Duration,
    /// Time between the two readings.
    pub span: Duration,
    /// Stalls of the node's machine in buckets: the upper bound of a bucket, and how many stalls
    /// were in it, so above the previous bound.
    pub hiccups: Vec<(Duration, u64)>,
    /// Upper bound of the longest stall.
    pub hiccup_max: Duration,
}

impl NodeReport {
    /// Average number of processors that the process kept busy.
    #[must_use]
    pub fn cores(&self) -> f64 {
        self.cpu.as_secs_f64() / self.span.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// An upper bound of the stall at this quantile, `0.0..=1.0`.
    #[must_use]
    pub fn hiccup(&self, share: f64) -> Duration {
        let all: u64 = self.hiccups.iter().map(|(_, count)| count).sum();
        let wanted = (share * all as f64).ceil() as u64;
        let mut seen = 0;
        let below = self.hiccups.iter().find(|(_, count)| {
            seen += count;
            seen >= wanted
        });
        below.map_or(Duration::ZERO, |(bound, _)| (*bound).min(self.hiccup_max))
    }

    /// Returns the difference of two readings, or `None` if the process was restarted.
    fn between(id: u64, before: &Reading, after: &Reading) -> Option<Self> {
        let is_same = before.pid == after.pid && before.bounds.len() == after.bounds.len();
        if !is_same || after.cpu < before.cpu {
            return None;
        }
        let mut below = 0;
        let mut hiccups = Vec::with_capacity(after.bounds.len());
        for ((bound, now), (_, then)) in after.bounds.iter().zip(&before.bounds) {
            let count = now.saturating_sub(*then);
            hiccups.push((*bound, count.saturating_sub(below)));
            below = count;
        }
        // The node reports its longest stall exactly, but since its start and not since `before`.
        let highest = hiccups.iter().rev().find(|(_, count)| *count > 0);
        let highest = highest.map_or(Duration::ZERO, |(bound, _)| *bound);
        Some(Self {
            ids: vec![id],
            pid: after.pid,
            cpu: after.cpu.saturating_sub(before.cpu),
            span: after.at.duration_since(before.at),
            hiccups,
            hiccup_max: highest.min(after.max),
        })
    }
}

/// Running reads of the nodes, one thread per node, so that a node that hangs does not delay
/// others.
pub(super) struct Asked(Vec<(u64, SocketAddr, JoinHandle<Option<Reading>>)>);

impl Asked {
    /// Starts to read all nodes at the time `at`.
    pub(super) fn start(config: &RunConfig, at: Instant) -> Self {
        let ask = |target: &Target| {
            let (addr, name) = (target.addr, target.name.clone());
            let dialer = Dialer::new(config.tls.as_ref(), Alpn::Http1);
            let dialer = dialer.with_token(config.token.clone());
            let body = move || {
                std::thread::sleep(at.saturating_duration_since(Instant::now()));
                Reading::take(addr, &name, &dialer)
            };
            let thread = std::thread::Builder::new().name("ask-node".to_owned()).spawn(body);
            (target.id, addr, thread.expect("threads can be started"))
        };
        Self(config.targets.iter().take(NODES_MAX).map(ask).collect())
    }

    fn join(self) -> impl Iterator<Item = (u64, SocketAddr, Option<Reading>)> {
        let read = |thread: JoinHandle<_>| thread.join().expect("asking never panics");
        self.0.into_iter().map(move |(id, addr, thread)| (id, addr, read(thread)))
    }

    /// Waits for these readings and for `later` ones of the same targets, and returns the
    /// differences.
    pub(super) fn until(self, later: Self) -> Vec<NodeReport> {
        let mut reports: Vec<(SocketAddr, NodeReport)> = Vec::new();
        for ((id, addr, before), (_, _, after)) in self.join().zip(later.join()) {
            let (Some(before), Some(after)) = (before, after) else { continue };
            let Some(report) = NodeReport::between(id, &before, &after) else { continue };
            // All nodes of one process report the same CPU time, so they share one report.
            let same = |other: &&mut (SocketAddr, NodeReport)| {
                other.0.ip() == addr.ip() && other.1.pid == report.pid
            };
            match reports.iter_mut().find(same) {
                Some((_, process)) => process.ids.push(id),
                None => reports.push((addr, report)),
            }
        }
        reports.into_iter().map(|(_, report)| report).collect()
    }
}

/// The metrics of one node at one moment.
#[derive(Clone, Debug, PartialEq)]
struct Reading {
    at: Instant,
    pid: u32,
    cpu: Duration,
    /// Upper bounds, and how many stalls were at most that long. The last bound is the longest
    /// stall.
    bounds: Vec<(Duration, u64)>,
    max: Duration,
}

impl Reading {
    fn take(addr: SocketAddr, name: &str, dialer: &Dialer) -> Option<Self> {
        let text = ask(addr, name, dialer).ok()?;
        Self::parse(&text, Instant::now())
    }

    fn parse(text: &str, at: Instant) -> Option<Self> {
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
            line.split(' ').next()?.parse::<f64>().ok().filter(|it| it.is_finite() && *it >= 0.0)
        };
        let max = seconds(value("epicepoch_hiccup_max_seconds")?)?;
        let bucket = |line: &str| {
            let rest = line.strip_prefix("epicepoch_hiccup_seconds_bucket{le=\"")?;
            let (bound, rest) = rest.split_once("\"} ")?;
            let bound = if bound == "+Inf" { Some(max) } else { seconds(bound.parse().ok()?) };
            Some((bound?, rest.split(' ').next()?.parse().ok()?))
        };
        let bounds: Vec<(Duration, u64)> = text.lines().filter_map(bucket).collect();
        Some(Self {
            at,
            pid: value("epicepoch_process_id")? as u32,
            cpu: seconds(value("epicepoch_process_cpu_seconds_total")?)?,
            bounds,
            max,
        })
    }
}

fn seconds(value: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(value).ok()
}

/// Sends `GET /metrics` on a new connection and returns the answer.
fn ask(addr: SocketAddr, name: &str, dialer: &Dialer) -> io::Result<String> {
    let stream = TcpStream::connect_timeout(&addr, WAIT_MAX)?;
    stream.set_read_timeout(Some(WAIT_MAX))?;
    stream.set_write_timeout(Some(WAIT_MAX))?;
    let mut stream = dialer.secure_blocking(stream, name)?;
    // Some clusters require a token for the metrics.
    let token = dialer.token().map(|token| format!("authorization: Bearer {}\r\n", token.reveal()));
    let token = token.unwrap_or_default();
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {addr}\r\n{token}\r\n");
    stream.write_all(request.as_bytes())?;
    let deadline = Instant::now() + WAIT_MAX;
    let mut buffer = Vec::new();
    let mut chunk = [0; 16 * 1024];
    loop {
        if let Some((response, _)) = parse_response(&buffer).map_err(io::Error::other)? {
            return Ok(String::from_utf8_lossy(response.body).into_owned());
        }
        let read = stream.read(&mut chunk)?;
        if read == 0 || Instant::now() > deadline {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buffer.extend_from_slice(&chunk[..read]);
    }
}

/// Longest wait for a node's answer.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Most nodes that are read.
const NODES_MAX: usize = 64;
/// How long before the measurement the nodes are read, so that this is over when it begins.
pub(super) const LEAD: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    fn text(cpu: f64, below: [u64; 3], max: f64) -> String {
        let [ms, ten, all] = below;
        format!(
            "# TYPE epicepoch_hiccup_seconds histogram\n\
             epicepoch_hiccup_seconds_sum 1.5\nepicepoch_hiccup_seconds_count {all}\n\
             epicepoch_hiccup_seconds_bucket{{le=\"0.001\"}} {ms}\n\
             epicepoch_hiccup_seconds_bucket{{le=\"0.01\"}} {ten}\n\
             epicepoch_hiccup_seconds_bucket{{le=\"+Inf\"}} {all}\n\
             epicepoch_hiccup_max_seconds {max}\n\
             epicepoch_process_cpu_seconds_total {cpu}\nepicepoch_process_id 7.0\n# EOF\n"
        )
    }

    fn between(before: &str, after: &str) -> Option<NodeReport> {
        let at = Instant::now();
        let later = at + Duration::from_secs(2);
        NodeReport::between(3, &Reading::parse(before, at)?, &Reading::parse(after, later)?)
    }

    #[test]
    fn only_what_happened_between_the_questions_counts() {
        let (ms, micros) = (Duration::from_millis, Duration::from_micros);
        // Long stalls before the run do not count.
        let before = text(10.0, [100, 150, 151], 4.0);
        let report = between(&before, &text(10.5, [190, 250, 251], 4.0)).expect("a report");
        assert_eq!((report.cpu, report.cores()), (ms(500), 0.25));
        assert_eq!(report.hiccups, [(ms(1), 90), (ms(10), 10), (Duration::from_secs(4), 0)]);
        assert_eq!((report.hiccup(0.5), report.hiccup(0.99)), (ms(1), ms(10)));
        assert_eq!(report.hiccup_max, ms(10));
        // A stall above all bounds is taken from the node's maximum.
        let report = between(&before, &text(10.5, [190, 250, 252], 5.0)).expect("a report");
        assert_eq!(report.hiccup_max, Duration::from_secs(5));
        // No bound exceeds the node's maximum.
        let report = between(&text(0.0, [0, 0, 0], 0.0), &text(1.0, [9, 9, 9], 0.0004));
        assert_eq!(report.expect("a report").hiccup(1.0), micros(400));
    }

    #[test]
    fn another_process_or_another_program_gives_no_report() {
        let one = text(10.0, [1, 1, 1], 0.1);
        assert!(between(&one, &one.replace("id 7.0", "id 8.0")).is_none());
        assert!(between(&one, &text(9.0, [1, 1, 1], 0.1)).is_none());
        assert!(Reading::parse("up 1\n", Instant::now()).is_none());
        assert!(Reading::parse("epicepoch_hiccup_max_seconds NaN\n", Instant::now()).is_none());
    }
}
