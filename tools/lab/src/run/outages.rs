//! The steps that break something: a region is lost, the leader is killed, the leader is not heard.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use epicepoch_bench::run::load::Report;
use epicepoch_bench::{Operation, Outcome as Answer};

use super::steps::{Kind, Window};
use super::{Lab, LabError};
use crate::expected;
use crate::outcome::{Fault, Outage};
use crate::plan::Step;
use crate::topology::Mode;

/// Callers of each region during an outage: enough that a gap shows.
const CALLERS: u32 = 4;
/// How long clients run before the fault, and after the service has come back.
const AROUND: Duration = Duration::from_secs(1);
/// How much longer than expected an outage may last before the run goes on.
const PATIENCE: Duration = Duration::from_secs(8);
/// A time line ends after this many tenths of a second.
const TENTHS_MAX: usize = 300;

/// An outage while it is measured.
struct Observed {
    fault: Fault,
    before: u64,
    is_survivable: bool,
    /// When the fault was complete.
    broken: Instant,
    /// When the service had come back, if it did.
    is_back: bool,
    /// When the clients were told to stop, before the fault ended.
    ended: Instant,
    expected: Duration,
}

impl Lab<'_> {
    pub(super) fn regions_lost(&mut self) -> Result<(), LabError> {
        for region in self.topology().voting_regions() {
            self.region_lost(region)?;
        }
        Ok(())
    }

    fn region_lost(&mut self, region: usize) -> Result<(), LabError> {
        let before = self.lead_home()?;
        let is_survivable = expected::survives(self.topology(), &[region]);
        let regions: Vec<usize> =
            self.client_regions().into_iter().filter(|it| *it != region).collect();
        let has_leader = self.topology().region_of(before) == region;
        let election_ms = super::election_ms(&self.outcome.settings);
        let expected = expected::region_loss_ms(self.topology(), before, region, election_ms);
        let expected = super::millis(expected);
        let fault = Fault::Region(region);
        if regions.is_empty() {
            // No clients are left that could ask.
            let now = Instant::now();
            let seen = Observed {
                fault,
                before,
                is_survivable,
                broken: now,
                is_back: false,
                ended: now,
                expected,
            };
            self.add_outage(&seen, &BTreeMap::new());
            return Ok(());
        }
        let callers = self.callers(&regions, CALLERS, Mode::Quorum);
        self.pause(AROUND.max(self.warm_up()))?;
        self.wires.cut(region)?;
        let broken = Instant::now();
        let limit = self.limit(is_survivable);
        let is_back = self.wait(limit, || callers.are_answered_since(broken))?;
        let window = if is_back { Some(self.window(self.length())?) } else { None };
        let ended = Instant::now();
        let reports = callers.stop();
        self.wires.set_delays()?;
        self.record(&reports);
        let seen = Observed { fault, before, is_survivable, broken, is_back, ended, expected };
        self.add_outage(&seen, &reports);
        if let Some(window) = window.filter(|_| is_survivable) {
            // If its region is lost, any other node may lead.
            let leader = (!has_leader).then_some(before);
            let mode = Mode::Quorum;
            let step = Step::RegionLost;
            let kind = Kind { step, mode, callers: CALLERS, lost: Some(region), leader };
            self.add_cells(&reports, window, kind);
        }
        self.wait_until_well()?;
        Ok(())
    }

    pub(super) fn killed(&mut self) -> Result<(), LabError> {
        let before = self.lead_home()?;
        let expected = expected::killed_ms(self.topology());
        let fault = |lab: &mut Self| {
            lab.nodes.kill(before);
            Ok(())
        };
        self.leader_lost(Fault::Killed, before, super::millis(expected), fault)?;
        self.nodes.start(before)?;
        self.wait_until_well()?;
        Ok(())
    }

    pub(super) fn one_way(&mut self) -> Result<(), LabError> {
        let before = self.lead_home()?;
        let expected = self.silent_loss();
        let fault = |lab: &mut Self| lab.wires.mute(before);
        self.leader_lost(Fault::OneWay, before, expected, fault)?;
        self.wires.set_delays()?;
        self.wait_until_well()?;
        Ok(())
    }

    fn leader_lost(
        &mut self,
        fault: Fault,
        before: u64,
        expected: Duration,
        break_it: impl FnOnce(&mut Self) -> Result<(), LabError>,
    ) -> Result<(), LabError> {
        let topology = self.topology();
        let is_survivable = topology.nodes.len() > topology.majority();
        let callers = self.callers(&self.client_regions(), CALLERS, Mode::Quorum);
        self.pause(AROUND.max(self.warm_up()))?;
        break_it(self)?;
        let broken = Instant::now();
        let limit = self.limit(is_survivable);
        let is_back = self.wait(limit, || callers.are_answered_since(broken))?;
        self.pause(AROUND)?;
        let ended = Instant::now();
        let reports = callers.stop();
        self.record(&reports);
        let seen = Observed { fault, before, is_survivable, broken, is_back, ended, expected };
        self.add_outage(&seen, &reports);
        Ok(())
    }

    /// How long to wait for answers. Without a majority there should be none; then the wait is what
    /// an election would take.
    fn limit(&self, is_survivable: bool) -> Duration {
        let outage = self.silent_loss() + self.attempt();
        if is_survivable { 2 * outage + PATIENCE } else { outage + AROUND }
    }

    fn add_outage(&mut self, seen: &Observed, reports: &BTreeMap<usize, Report>) {
        let silence = |report: &Report| {
            let gap = report.answer_times().gap_max(seen.broken, seen.ended);
            seen.is_back.then_some(gap.as_secs_f64() * 1e3)
        };
        let later = |report: &Report| {
            let answers = report.operations.iter().filter(|it| is_after(it, seen));
            answers.map(|it| (it.end, it.node)).collect::<Vec<_>>()
        };
        let answers: Vec<(Instant, u64)> = reports.values().flat_map(later).collect();
        let after = answers.iter().max_by_key(|(end, _)| *end).map(|(_, node)| *node);
        let forbidden = match seen.fault {
            _ if !seen.is_survivable => answers.len(),
            Fault::OneWay => answers.iter().filter(|(_, node)| *node == seen.before).count(),
            Fault::Region(_) | Fault::Killed => 0,
        };
        let outage = Outage {
            fault: seen.fault,
            before: seen.before,
            after: after.filter(|_| seen.is_back),
            is_survivable: seen.is_survivable,
            silence_ms: reports.iter().map(|(client, it)| (*client, silence(it))).collect(),
            expected_ms: seen.expected.as_secs_f64() * 1e3,
            failures: super::failures_of(reports),
            timeline: reports.iter().map(|(client, it)| (*client, tenths(it, seen))).collect(),
            forbidden: forbidden as u64,
        };
        let what = self.outcome.fault(outage.fault);
        let line = match outage.longest_ms() {
            Some(ms) => format!("{what}: longest time without an answer {ms:.0} ms"),
            None => format!("{what}: no answer"),
        };
        self.tell(&line);
        self.outcome.outages.push(outage);
    }
}

/// Whether a request was sent after the fault, and answered before it ended.
fn is_after(operation: &Operation, seen: &Observed) -> bool {
    let is_answer = matches!(operation.outcome, Answer::Answered(_));
    is_answer && operation.start > seen.broken && operation.end <= seen.ended
}

/// Answers for each tenth of a second, from a second before the fault until its end.
fn tenths(report: &Report, seen: &Observed) -> Vec<u32> {
    let Some(from) = seen.broken.checked_sub(AROUND) else { return Vec::new() };
    let window = Window { from, to: seen.ended };
    let of = |at: Instant| ((at - window.from).as_millis() / 100) as usize;
    let mut tenths = vec![0; (of(window.to) + 1).min(TENTHS_MAX)];
    for (operation, _) in report.answered() {
        if (window.from..=window.to).contains(&operation.end)
            && let Some(count) = tenths.get_mut(of(operation.end))
        {
            *count += 1;
        }
    }
    tenths
}
