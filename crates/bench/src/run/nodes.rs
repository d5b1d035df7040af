//! What the measured nodes tell about themselves at `/metrics`: by how much their machines
//! stalled, and what they cost. Asked before and after the measurement, never during it. A node
//! that does not answer, or is no `epicepoch`, is left out.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use epicepoch_client::dial::{Alpn, Dialer};

use super::config::{RunConfig, Target};
use crate::http1::parse_response;

/// One node during the measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeReport {
    /// Its id, and those of other nodes of the same process.
    pub ids: Vec<u64>,
    /// Process id, as the node's machine counts.
    pub pid: u32,
    /// Processor time of the process between the two questions.
    pub cpu: Duration,
    /// Time between the two questions.
    pub span: Duration,
    /// Stalls of the node's machine: upper bound, and how many of its looks at the clock were
    /// late by more than the bound before and at most by this one.
    pub hiccups: Vec<(Duration, u64)>,
    /// No stall was longer.
    pub hiccup_max: Duration,
}

impl NodeReport {
    /// Processors that it kept busy.
    #[must_use]
    pub fn cores(&self) -> f64 {
        self.cpu.as_secs_f64() / self.span.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// An upper bound of the stall at this share of the looks, `0.0..=1.0`.
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

    /// The difference of two readings; `None` if the process is another one.
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
        // The node knows its longest stall to the nanosecond, but only since it started.
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

/// Questions under way, one thread for each node, so that one that hangs holds up nobody.
pub(super) struct Asked(Vec<(u64, SocketAddr, JoinHandle<Option<Reading>>)>);

impl Asked {
    /// Asks at `at`.
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

    /// What happened between these questions and `later` ones to the same targets.
    pub(super) fn until(self, later: Self) -> Vec<NodeReport> {
        let mut reports: Vec<(SocketAddr, NodeReport)> = Vec::new();
        for ((id, addr, before), (_, _, after)) in self.join().zip(later.join()) {
            let (Some(before), Some(after)) = (before, after) else { continue };
            let Some(report) = NodeReport::between(id, &before, &after) else { continue };
            // A process with several nodes tells each of them the same cost.
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

/// What one node said at one moment.
#[derive(Clone, Debug, PartialEq)]
struct Reading {
    at: Instant,
    pid: u32,
    cpu: Duration,
    /// Upper bounds, and how many stalls were at most that long; the last bound is the longest
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

/// `GET /metrics` on a connection of its own.
fn ask(addr: SocketAddr, name: &str, dialer: &Dialer) -> io::Result<String> {
    let stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut stream = dialer.secure_blocking(stream, name)?;
    // It is of use where operators have the same one.
    let token = dialer.token().map(|token| format!("authorization: Bearer {}\r\n", token.reveal()));
    let token = token.unwrap_or_default();
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {addr}\r\n{token}\r\n");
    stream.write_all(request.as_bytes())?;
    let deadline = Instant::now() + PATIENCE;
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

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Nodes that are asked.
const NODES_MAX: usize = 64;
/// How long before the measurement the nodes are asked: long enough that it is over by then.
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
        // Long stalls of before the run are not the run's.
        let before = text(10.0, [100, 150, 151], 4.0);
        let report = between(&before, &text(10.5, [190, 250, 251], 4.0)).expect("a report");
        assert_eq!((report.cpu, report.cores()), (ms(500), 0.25));
        assert_eq!(report.hiccups, [(ms(1), 90), (ms(10), 10), (Duration::from_secs(4), 0)]);
        assert_eq!((report.hiccup(0.5), report.hiccup(0.99)), (ms(1), ms(10)));
        assert_eq!(report.hiccup_max, ms(10));
        // A stall above all bounds is known by the longest one.
        let report = between(&before, &text(10.5, [190, 250, 252], 5.0)).expect("a report");
        assert_eq!(report.hiccup_max, Duration::from_secs(5));
        // No bound is shown that is above what the node has ever seen.
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
