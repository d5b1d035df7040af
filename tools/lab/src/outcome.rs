//! What a run measured, and whether it is as expected. All times are milliseconds.

use std::collections::BTreeMap;
use std::time::SystemTime;

use epicepoch_bench::machine::Machine;
use epicepoch_bench::run::{Failures, failure};
use hdrhistogram::Histogram;

use crate::expected;
use crate::plan::{Plan, Step};
use crate::topology::{Mode, Topology};

/// The latency of at most so many callers in each region is compared with what is expected.
pub const JUDGED_CALLERS_MAX: u32 = 4;

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was run.
    pub topology: Topology,
    /// Which steps, and for how long.
    pub plan: Plan,
    /// Settings of the nodes: the file's, and the advised ones.
    pub settings: BTreeMap<String, String>,
    /// When it began.
    pub started: SystemTime,
    /// How long all of it took, seconds.
    pub elapsed_s: f64,
    /// The machine, and its load before the run.
    pub machine: Machine,
    /// Seed of the jitter.
    pub seed: u64,
    /// p50 without delays, by region of clients.
    pub floor_ms: BTreeMap<usize, f64>,
    /// Failed requests of step 0.
    pub floor_failures: Failures,
    /// The links as measured before the steps.
    pub links: Vec<Link>,
    /// Latencies of the steps 1, 2, 3 and 6.
    pub cells: Vec<Cell>,
    /// Handovers of step 2.
    pub handovers: Vec<Handover>,
    /// Outages of the steps 3, 4 and 5.
    pub outages: Vec<Outage>,
    /// Answers that the checker of order and uniqueness has seen.
    pub checked: u64,
    /// Wrong answers.
    pub violations: u64,
    /// The first wrong answers, described.
    pub described: Vec<String>,
}

/// An end of a link that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A node.
    Node(u64),
    /// The clients of a region.
    Clients(usize),
}

/// One link as it was measured and as it was asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// The end that measured.
    pub from: End,
    /// The node at the other end.
    pub to: u64,
    /// Round trip as asked for.
    pub asked_ms: f64,
    /// Round trip as measured.
    pub measured_ms: f64,
}

/// The latency of clients of one region while one node leads.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The step that measured it.
    pub step: Step,
    /// How the leader confirmed.
    pub mode: Mode,
    /// Region of the clients.
    pub client: usize,
    /// The node that answered.
    pub leader: u64,
    /// The node that should have answered; `None` if any may.
    pub meant: Option<u64>,
    /// Callers at the same time.
    pub callers: u32,
    /// The region that is lost meanwhile.
    pub lost: Option<usize>,
    /// What the p50 should be, with the floor.
    pub expected_ms: f64,
    /// The lowest p50 that can be right.
    pub least_ms: f64,
    /// Latency of the answers, nanoseconds.
    pub latency_ns: Histogram<u64>,
    /// Answers per second.
    pub rate: f64,
    /// Failed requests of these clients, those before the measurement among them. If a region is
    /// lost, they are mostly those of the loss itself.
    pub failures: Failures,
}

/// A handover by command.
#[derive(Clone, Debug, PartialEq)]
pub struct Handover {
    /// The node that led.
    pub from: u64,
    /// The node that leads now.
    pub to: u64,
    /// Longest time without an answer.
    pub silence_ms: f64,
    /// About how long it should be.
    pub expected_ms: f64,
    /// Requests that failed meanwhile.
    pub failures: Failures,
}

/// What was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// All links of a region to others were cut.
    Region(usize),
    /// The leader's process was killed.
    Killed,
    /// The leader heard the others and was not heard.
    OneWay,
}

/// What an outage cost.
#[derive(Clone, Debug)]
pub struct Outage {
    /// What was broken.
    pub fault: Fault,
    /// The leader before.
    pub before: u64,
    /// The leader that answered afterwards, if there was one.
    pub after: Option<u64>,
    /// Whether a majority was left, so that answers are expected.
    pub is_survivable: bool,
    /// Longest time without an answer, by region of clients; `None` if none came until the fault
    /// ended.
    pub silence_ms: BTreeMap<usize, Option<f64>>,
    /// About how long it should be. If the leader was not affected, it is the longest answer.
    pub expected_ms: f64,
    /// Requests that failed meanwhile, of all clients.
    pub failures: Failures,
    /// Answers for each tenth of a second of each region, from a second before the fault.
    pub timeline: BTreeMap<usize, Vec<u32>>,
    /// What must not happen and did: answers without a majority, or of a leader that is not heard.
    pub forbidden: u64,
}

impl Cell {
    /// Latency at a quantile, ms.
    #[must_use]
    pub fn at_ms(&self, share: f64) -> f64 {
        self.latency_ns.value_at_quantile(share) as f64 / 1e6
    }

    /// The median, ms.
    #[must_use]
    pub fn p50_ms(&self) -> f64 {
        self.at_ms(0.5)
    }

    /// Whether the median is above what is expected, or nothing was answered. With many callers a
    /// request may also wait for a round that is under way and for the processors of this machine,
    /// so only an answer is expected then.
    #[must_use]
    pub fn is_above(&self) -> bool {
        let is_slow = self.p50_ms() > expected::bound_ms(self.expected_ms);
        self.latency_ns.is_empty() || (self.is_judged() && is_slow)
    }

    /// Whether the median is shorter than the distance allows, so that no quorum was asked.
    #[must_use]
    pub fn is_below(&self) -> bool {
        !self.latency_ns.is_empty() && self.p50_ms() < self.least_ms
    }

    /// Whether the median is not as expected.
    #[must_use]
    pub fn is_marked(&self) -> bool {
        self.is_above() || self.is_below()
    }

    /// Whether the median is compared with what is expected.
    #[must_use]
    pub fn is_judged(&self) -> bool {
        self.callers <= JUDGED_CALLERS_MAX
    }

    /// Requests that failed although nothing was broken.
    #[must_use]
    pub fn failed_at_rest(&self) -> u64 {
        if self.lost.is_some() { 0 } else { failed(&self.failures) }
    }
}

impl Handover {
    /// Whether the silence is longer than allowed.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.silence_ms > expected::silence_bound_ms(self.expected_ms)
    }
}

impl Outage {
    /// The longest silence of all regions; `None` if a region had no answer again.
    #[must_use]
    pub fn longest_ms(&self) -> Option<f64> {
        let longest = |one: f64, other: &Option<f64>| Some(one.max((*other)?));
        self.silence_ms.values().try_fold(0.0, longest)
    }

    /// Whether the longest silence is longer than allowed.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.longest_ms().is_some_and(|ms| ms > expected::silence_bound_ms(self.expected_ms))
    }

    /// What the cluster did not do as it should, in words: answer again in time, or refuse.
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.forbidden > 0 {
            problems.push(format!("{} answers of a node that may not answer", self.forbidden));
        }
        match self.longest_ms() {
            None if self.is_survivable => {
                problems.push("a majority was left, but clients got no answer again".to_owned());
            }
            Some(ms) if self.is_late() => problems.push(late(ms, self.expected_ms)),
            None | Some(_) => {}
        }
        problems
    }
}

impl Outcome {
    /// Cells of a step.
    pub fn of(&self, step: Step) -> impl Iterator<Item = &Cell> {
        self.cells.iter().filter(move |cell| cell.step == step)
    }

    /// The cell of step 2 with these clients and a leader in this region.
    #[must_use]
    pub fn cell(&self, client: usize, region: usize) -> Option<&Cell> {
        let is_it =
            |it: &&Cell| it.client == client && self.topology.region_of(it.leader) == region;
        self.of(Step::EachLeader).find(is_it)
    }

    /// The outage of a lost region.
    #[must_use]
    pub fn loss(&self, region: usize) -> Option<&Outage> {
        self.outages.iter().find(|it| it.fault == Fault::Region(region))
    }

    /// Everything that is not as expected, a sentence each.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if failed(&self.floor_failures) > 0 {
            problems.push(format!("{}: {}", Step::Floor, failures_shown(&self.floor_failures)));
        }
        for cell in self.cells.iter().filter(|cell| cell.failed_at_rest() > 0) {
            let failures = failures_shown(&cell.failures);
            problems.push(format!("{}: {failures}, although nothing was broken", self.place(cell)));
        }
        for cell in self.cells.iter().filter(|cell| cell.is_marked()) {
            problems.push(format!(
                "{}: p50 {:.1} ms of {} answers, expected {:.1} ms, {} {:.1} ms",
                self.place(cell),
                cell.p50_ms(),
                cell.latency_ns.len(),
                cell.expected_ms,
                if cell.is_below() { "at least" } else { "at most" },
                if cell.is_below() { cell.least_ms } else { expected::bound_ms(cell.expected_ms) },
            ));
        }
        problems.extend(self.moves());
        for it in self.handovers.iter().filter(|it| it.is_late()) {
            let late = late(it.silence_ms, it.expected_ms);
            problems.push(format!("handover from node {} to node {}: {late}", it.from, it.to));
        }
        for outage in &self.outages {
            let what = self.fault(outage.fault);
            problems.extend(outage.problems().iter().map(|it| format!("{what}: {it}")));
        }
        if self.violations > 0 {
            let first = self.described.first().map(String::as_str).unwrap_or_default();
            problems.push(format!("{} WRONG ANSWERS. The first: {first}", self.violations));
        }
        problems
    }

    /// What a cell measured, in words.
    fn place(&self, cell: &Cell) -> String {
        let region = |region| self.topology.region(region);
        let lost = cell.lost.map(|it| format!(", {} lost", region(it))).unwrap_or_default();
        let mode = match cell.mode {
            Mode::Quorum => String::new(),
            Mode::Lease | Mode::Forwarded | Mode::Interval => format!(", {}", cell.mode.name()),
        };
        format!(
            "{}{mode}: clients in {}, {}, leader {} in {}{lost}",
            cell.step,
            region(cell.client),
            callers_shown(cell.callers),
            cell.leader,
            region(self.topology.region_of(cell.leader)),
        )
    }

    /// Steps in which leadership moved by itself, a sentence each.
    fn moves(&self) -> Vec<String> {
        let mut moves = Vec::new();
        for cell in &self.cells {
            let Some(meant) = cell.meant.filter(|it| *it != cell.leader) else { continue };
            let text = format!(
                "{}: node {meant} should lead, but leadership moved by itself, and node {} gave most \
                 answers; run the lab again",
                cell.step, cell.leader
            );
            // All clients of a step say the same.
            if !moves.contains(&text) {
                moves.push(text);
            }
        }
        moves
    }

    /// Says that all is as expected, and whether a p50 was compared.
    #[must_use]
    pub fn praise(&self) -> &'static str {
        if self.cells.iter().any(Cell::is_judged) {
            "all as expected: no p50 is above 1.2 x expected + 1 ms, and no request failed at rest"
        } else {
            "all as expected, but these steps compare no p50 with an expected one"
        }
    }

    /// A fault in words.
    #[must_use]
    pub fn fault(&self, fault: Fault) -> String {
        match fault {
            Fault::Region(region) => format!("{} lost", self.topology.region(region)),
            Fault::Killed => "leader killed".to_owned(),
            Fault::OneWay => "leader not heard".to_owned(),
        }
    }
}

/// Requests among these failures. Failed connections are no requests.
#[must_use]
pub fn failed(failures: &Failures) -> u64 {
    let failures = failures.iter().filter(|(name, _)| failure::is_of_a_request(name));
    failures.map(|(_, count)| count).sum()
}

/// Adds failures to others.
pub(crate) fn add_failures(failures: &mut Failures, others: &Failures) {
    for (name, count) in others {
        *failures.entry(name).or_default() += count;
    }
}

/// Failures in words.
fn failures_shown(failures: &Failures) -> String {
    let kinds: Vec<String> =
        failures.iter().map(|(name, count)| format!("{count} {name}")).collect();
    let count = failed(failures);
    let requests = if count == 1 { "request" } else { "requests" };
    format!("{count} {requests} failed ({})", kinds.join(", "))
}

/// A silence that is too long, in words.
fn late(ms: f64, expected_ms: f64) -> String {
    let bound_ms = expected::silence_bound_ms(expected_ms);
    format!(
        "no answer for {ms:.0} ms, expected about {expected_ms:.0} ms, at most {bound_ms:.0} ms"
    )
}

/// A number of callers, in words.
pub(crate) fn callers_shown(count: u32) -> String {
    if count == 1 { "1 caller".to_owned() } else { format!("{count} callers") }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use epicepoch_bench::latency;

    use super::*;
    use crate::builtin;

    pub(crate) fn cell(step: Step, client: usize, leader: u64, ms: u64, expected_ms: f64) -> Cell {
        let mut latency_ns = latency::histogram();
        for _ in 0..10 {
            latency::record(&mut latency_ns, Duration::from_millis(ms));
        }
        let rate = 1e3 / ms as f64;
        Cell {
            step,
            mode: Mode::Quorum,
            client,
            leader,
            meant: Some(leader),
            callers: 1,
            lost: None,
            expected_ms,
            least_ms: 0.0,
            latency_ns,
            rate,
            failures: Failures::new(),
        }
    }

    /// An outcome of `two-dc-50ms` in which all is as expected.
    pub(crate) fn good() -> Outcome {
        let topology = builtin::find("two-dc-50ms").expect("built in");
        let each = Step::EachLeader;
        let outage = |fault, is_survivable: bool, silence| Outage {
            fault,
            before: 1,
            after: is_survivable.then_some(2),
            is_survivable,
            silence_ms: BTreeMap::from([(0, silence)]),
            expected_ms: 900.0,
            failures: Failures::new(),
            timeline: BTreeMap::from([(0, vec![2, 0, 0, 1])]),
            forbidden: 0,
        };
        Outcome {
            plan: Plan::new(Duration::from_secs(3)),
            settings: BTreeMap::from([("ELECTION_TIMEOUT_MS".into(), "500".into())]),
            started: SystemTime::UNIX_EPOCH,
            elapsed_s: 60.0,
            machine: Machine::default(),
            seed: 1,
            floor_ms: BTreeMap::from([(0, 0.8), (1, 0.9)]),
            floor_failures: Failures::new(),
            links: Vec::new(),
            cells: vec![
                cell(each, 0, 1, 51, 50.8),
                cell(each, 1, 1, 101, 100.9),
                cell(each, 0, 2, 52, 50.8),
                cell(each, 1, 2, 1, 0.9),
            ],
            handovers: vec![Handover {
                from: 1,
                to: 2,
                silence_ms: 51.0,
                expected_ms: 300.0,
                failures: Failures::new(),
            }],
            outages: vec![
                outage(Fault::Region(0), true, Some(950.0)),
                outage(Fault::Region(1), false, None),
            ],
            checked: 1234,
            violations: 0,
            described: Vec::new(),
            topology,
        }
    }

    #[test]
    fn what_is_as_expected_has_no_problem() {
        assert_eq!(good().problems(), Vec::<String>::new());
    }

    #[test]
    fn a_wrong_expectation_is_marked() {
        let mut outcome = good();
        outcome.cells[1].expected_ms = 80.0;
        assert!(outcome.cells[1].is_marked(), "101 ms is above 97");
        let problems = outcome.problems();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains("clients in dc2") && problems[0].contains("at most 97.0 ms"));
        outcome.cells[1].expected_ms = 84.0;
        assert!(!outcome.cells[1].is_marked(), "101 ms is below 101.8");
        outcome.cells[1].expected_ms = 80.0;
        outcome.cells[1].callers = JUDGED_CALLERS_MAX + 1;
        assert!(!outcome.cells[1].is_marked(), "many callers wait for each other");
        outcome.cells[1].latency_ns.reset();
        assert!(outcome.cells[1].is_marked(), "no answer is no good answer");
    }

    #[test]
    fn an_answer_that_is_too_fast_and_a_leader_that_moved_are_problems() {
        let mut outcome = good();
        outcome.cells[0].least_ms = 51.5;
        assert!(outcome.cells[0].is_below() && !outcome.cells[0].is_above());
        let problems = outcome.problems();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains("at least 51.5 ms"), "{problems:?}");
        let mut outcome = good();
        outcome.cells[2].meant = Some(3);
        outcome.cells[3].meant = Some(3);
        let problems = outcome.problems();
        assert_eq!(problems.len(), 1, "both cells say the same: {problems:?}");
        assert!(problems[0].contains("step 2, each leader: node 3 should lead"), "{problems:?}");
        outcome.cells[2].meant = None;
        outcome.cells[3].meant = None;
        assert_eq!(outcome.problems(), Vec::<String>::new(), "any node may lead");
    }

    #[test]
    fn requests_that_fail_while_nothing_is_broken_are_a_problem() {
        let mut outcome = good();
        outcome.cells[0].failures = Failures::from([("timeout", 2), ("OVERLOADED", 1)]);
        let problems = outcome.problems();
        assert_eq!(problems.len(), 1, "{problems:?}");
        let what = "clients in dc1, 1 caller, leader 1 in dc1: 3 requests failed (1 OVERLOADED, 2 \
                    timeout)";
        assert!(problems[0].contains(what), "{problems:?}");
        outcome.cells[0].lost = Some(1);
        outcome.outages[0].failures = Failures::from([("timeout", 2)]);
        outcome.handovers[0].failures = Failures::from([("timeout", 2)]);
        assert_eq!(outcome.problems(), Vec::<String>::new(), "a loss may fail requests");
        outcome.cells[1].failures = Failures::from([("connect", 1)]);
        assert_eq!(outcome.problems(), Vec::<String>::new(), "a connection is no request");
        outcome.floor_failures = Failures::from([("timeout", 1)]);
        let problems = outcome.problems();
        assert_eq!(problems, ["step 0, floor: 1 request failed (1 timeout)"]);
    }

    #[test]
    fn a_silence_above_its_bound_is_a_problem() {
        let mut outcome = good();
        outcome.outages[0].silence_ms.insert(0, Some(20_000.0));
        let late = "dc1 lost: no answer for 20000 ms, expected about 900 ms, at most 2800 ms";
        assert_eq!(outcome.problems(), [late]);
        outcome.outages[0].silence_ms.insert(0, Some(2_800.0));
        assert_eq!(outcome.problems(), Vec::<String>::new(), "an election may be repeated");
        outcome.handovers[0].silence_ms = 1_601.0;
        let late = "handover from node 1 to node 2: no answer for 1601 ms, expected about 300 ms, \
                    at most 1600 ms";
        assert_eq!(outcome.problems(), [late]);
    }

    #[test]
    fn an_answer_without_a_majority_and_a_cluster_that_does_not_recover_are_problems() {
        let mut outcome = good();
        outcome.outages[1].forbidden = 3;
        outcome.outages[0].silence_ms.insert(0, None);
        let problems = outcome.problems().join("\n");
        assert!(
            problems.contains("dc2 lost: 3 answers of a node that may not answer"),
            "{problems}"
        );
        assert!(problems.contains("dc1 lost: a majority was left"), "{problems}");
        assert_eq!(outcome.outages[0].longest_ms(), None);
        outcome.violations = 1;
        assert!(outcome.problems().join("\n").contains("1 WRONG ANSWERS"));
    }
}
