//! The steps that measure latency.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use epicepoch_bench::latency;
use epicepoch_bench::run::load::Report;
use epicepoch_bench::{Operation, Outcome as Answer};

use super::callers::{Callers, mostly};
use super::{Lab, LabError, failures_of};
use crate::expected;
use crate::outcome::{Cell, Handover, callers_shown};
use crate::plan::{FLOOR_MAX, Step};
use crate::topology::{Mode, Topology};

/// A part of a run, between two moments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) from: Instant,
    pub(super) to: Instant,
}

/// What is measured, beside the answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) step: Step,
    pub(super) mode: Mode,
    pub(super) callers: u32,
    pub(super) lost: Option<usize>,
    /// The node that should lead; `None` if any may.
    pub(super) leader: Option<u64>,
}

impl Kind {
    /// One caller in each region, a leader that asks a quorum, and no region lost.
    const fn quorum(step: Step, leader: u64) -> Self {
        Self { step, mode: Mode::Quorum, callers: 1, lost: None, leader: Some(leader) }
    }
}

/// How long nodes may take to give intervals after the change of the mode.
const INTERVALS_MAX: Duration = Duration::from_secs(20);
/// How long callers run before a handover.
const BEFORE: Duration = Duration::from_millis(300);

impl Lab<'_> {
    /// Starts clients of these regions.
    pub(super) fn callers(&self, regions: &[usize], count: u32, mode: Mode) -> Callers {
        Callers::start(self.topology(), &self.wires, regions, count, mode, self.attempt())
    }

    /// All regions with clients.
    pub(super) fn client_regions(&self) -> Vec<usize> {
        self.topology().clients.keys().copied().collect()
    }

    /// How long it takes after a change until answers show the new state.
    pub(super) fn warm_up(&self) -> Duration {
        2 * self.longest_answer() + Duration::from_millis(200)
    }

    /// The length of a measurement with delays.
    pub(super) fn length(&self) -> Duration {
        self.setup.plan.window(self.topology())
    }

    /// Lets clients run until there is something to measure, and measures.
    pub(super) fn window(&self, length: Duration) -> Result<Window, LabError> {
        self.pause(self.warm_up())?;
        let from = Instant::now();
        self.pause(length)?;
        Ok(Window { from, to: Instant::now() })
    }

    pub(super) fn floor(&mut self) -> Result<(), LabError> {
        let leader = self.wait_until_well()?;
        self.tell("step 0, floor: without delays");
        let callers = self.callers(&self.client_regions(), 1, Mode::Quorum);
        let window = self.window(self.setup.plan.length.min(FLOOR_MAX))?;
        let reports = callers.stop();
        self.record(&reports);
        self.outcome.floor_failures = failures_of(&reports);
        for (client, report) in &reports {
            let (latency_ns, _) = latencies(report, window, None);
            if latency_ns.is_empty() {
                let what = format!("node {leader} leads, but clients get no answer without delays");
                return Err(LabError::Node(what));
            }
            let ms = latency_ns.value_at_quantile(0.5) as f64 / 1e6;
            self.outcome.floor_ms.insert(*client, ms);
        }
        Ok(())
    }

    pub(super) fn at_rest(&mut self) -> Result<(), LabError> {
        for count in self.topology().measure.callers.clone() {
            let leader = self.wait_until_well()?;
            self.measure(Kind { callers: count, ..Kind::quorum(Step::AtRest, leader) })?;
        }
        Ok(())
    }

    pub(super) fn each_leader(&mut self) -> Result<(), LabError> {
        for region in self.topology().voting_regions() {
            let to = self.topology().voters_in(region)[0];
            let leader = self.wait_until_well()?;
            if leader != to {
                self.hand_over(leader, to)?;
            }
            self.measure(Kind::quorum(Step::EachLeader, to))?;
        }
        Ok(())
    }

    /// Measures a handover, with clients of its own: those of the measurement at rest see none.
    fn hand_over(&mut self, from: u64, to: u64) -> Result<(), LabError> {
        let callers = self.callers(&self.client_regions(), 1, Mode::Quorum);
        self.pause(self.warm_up().max(BEFORE))?;
        let began = Instant::now();
        self.lead(to)?;
        self.pause(self.warm_up())?;
        let ended = Instant::now();
        let reports = callers.stop();
        self.record(&reports);
        let silences = reports.values().map(|it| it.answer_times().gap_max(began, ended));
        let silence = silences.max().unwrap_or_default();
        self.outcome.handovers.push(Handover {
            from,
            to,
            silence_ms: silence.as_secs_f64() * 1e3,
            expected_ms: expected::handover_ms(self.topology()),
            failures: failures_of(&reports),
        });
        Ok(())
    }

    pub(super) fn modes(&mut self) -> Result<(), LabError> {
        for mode in self.topology().measure.modes.clone() {
            self.lead_home()?;
            let leader = self.wait_until_well()?;
            if mode == Mode::Interval {
                self.begin_intervals(leader)?;
            }
            self.measure(Kind { mode, ..Kind::quorum(Step::Modes, leader) })?;
        }
        Ok(())
    }

    /// Changes the cluster to interval mode, which nothing follows. Waits until every node answers.
    fn begin_intervals(&mut self, leader: u64) -> Result<(), LabError> {
        // A new cluster raises the format of its state in steps, and refuses until then.
        let is_set = self.wait(INTERVALS_MAX, || self.nodes.set_interval_mode(leader))?;
        if is_set && self.wait(INTERVALS_MAX, || self.nodes.give_intervals())? {
            return Ok(());
        }
        let tail = self.nodes.log_tail();
        Err(LabError::Node(format!("not every node gives intervals. {tail}")))
    }

    /// Gives leadership to the first node of the region where the leader belongs.
    pub(super) fn lead_home(&mut self) -> Result<u64, LabError> {
        let home = self.topology().voters_in(expected::home(self.topology()))[0];
        self.lead(home)?;
        Ok(home)
    }

    fn measure(&mut self, kind: Kind) -> Result<(), LabError> {
        let callers = self.callers(&self.client_regions(), kind.callers, kind.mode);
        let window = self.window(self.length())?;
        let reports = callers.stop();
        // Intervals may overlap, so their order says nothing.
        if kind.mode != Mode::Interval {
            self.record(&reports);
        }
        self.add_cells(&reports, window, kind);
        Ok(())
    }

    /// Adds a cell for each region of clients.
    pub(super) fn add_cells(
        &mut self,
        reports: &BTreeMap<usize, Report>,
        window: Window,
        kind: Kind,
    ) {
        // If leadership moved by itself, the figures are those of the node that gave most answers, and
        // the outcome says so.
        let of_window = |report| within(report, window);
        // Answers of the nearest node do not say who leads.
        let is_near = kind.mode.asks_nearest();
        let most = match kind.mode {
            Mode::Quorum | Mode::Lease => mostly(reports.values().flat_map(of_window)),
            Mode::Forwarded => self.nodes.leader(),
            Mode::Interval => kind.leader,
        };
        let any = || self.topology().voters()[0];
        let leader = most.or(kind.leader).unwrap_or_else(any);
        let steady = Topology { jitter_ms: 0.0, ..self.topology().clone() };
        let lost: Vec<usize> = kind.lost.into_iter().collect();
        for (client, report) in reports {
            let of_node = (!is_near).then_some(leader);
            let (latency_ns, rate) = latencies(report, window, of_node);
            let alive = self.topology().voters_outside(&lost);
            let path = expected::mode_ms(self.topology(), kind.mode, *client, leader, &alive);
            let floor = self.outcome.floor_ms.get(client).copied().unwrap_or(0.0);
            let expected_ms = (path.unwrap_or(0.0) + floor) * self.setup.expected_factor;
            let shortest = expected::mode_ms(&steady, kind.mode, *client, leader, &alive);
            let least_ms = expected::least_ms(shortest.unwrap_or(0.0) * self.setup.expected_factor);
            let cell = Cell {
                step: kind.step,
                mode: kind.mode,
                client: *client,
                leader,
                meant: kind.leader,
                callers: kind.callers,
                lost: kind.lost,
                expected_ms,
                least_ms,
                latency_ns,
                rate,
                failures: report.failures.clone(),
            };
            let line = format!(
                "{}: {}, leader in {}, {} in {}: {:.1} ms, expected {expected_ms:.1}",
                kind.step,
                kind.mode.name(),
                self.topology().region(self.topology().region_of(leader)),
                callers_shown(kind.callers),
                self.topology().region(*client),
                cell.p50_ms(),
            );
            self.tell(&line);
            self.outcome.cells.push(cell);
        }
    }
}

/// The answers to requests that were sent in a window. The last ones come after its end: without
/// them, the slowest answers would be missing.
fn within(report: &Report, window: Window) -> impl Iterator<Item = &Operation> {
    report.operations.iter().filter(move |it| {
        let is_sent_in_it = (window.from..=window.to).contains(&it.start);
        matches!(it.outcome, Answer::Answered(_)) && is_sent_in_it
    })
}

/// The latencies in a window, of one node's answers or of all, and the answers per second.
fn latencies(
    report: &Report,
    window: Window,
    node: Option<u64>,
) -> (hdrhistogram::Histogram<u64>, f64) {
    let mut latency_ns = latency::histogram();
    for it in within(report, window).filter(|it| node.is_none_or(|node| it.node == node)) {
        latency::record(&mut latency_ns, it.end - it.start);
    }
    let seconds = (window.to - window.from).as_secs_f64().max(f64::MIN_POSITIVE);
    let rate = latency_ns.len() as f64 / seconds;
    (latency_ns, rate)
}

#[cfg(test)]
mod tests {
    use epicepoch_bench::run::Failures;
    use epicepoch_wire::{Timestamp, TimestampRange};

    use super::*;

    #[test]
    fn an_answer_that_comes_after_the_window_counts() {
        let origin = Instant::now();
        let at = |ms| origin + Duration::from_millis(ms);
        let range = TimestampRange::new(Timestamp::lowest_at(1), 1).expect("a range");
        let operation = |start, end| Operation {
            start: at(start),
            end: at(end),
            node: 1,
            outcome: Answer::Answered(range),
        };
        let operations = vec![operation(90, 110), operation(100, 130), operation(190, 950)];
        let late = operation(201, 202);
        let lost = Operation { outcome: Answer::Unknown, ..operation(150, 160) };
        let operations = [operations, vec![late, lost]].concat();
        let report = Report { elapsed: Duration::ZERO, operations, failures: Failures::new() };
        let (latency_ns, rate) = latencies(&report, Window { from: at(100), to: at(200) }, Some(1));
        assert_eq!((latency_ns.len(), rate.round()), (2, 20.0));
        assert!(latency_ns.max() >= 759_000_000, "the slowest is not cut off");
    }
}
