//! The outcome as a table for the terminal, and what is expected before a run.

use std::fmt::Write as _;

use crate::advice;
use crate::expected::{self, answer_ms};
use crate::outcome::{Cell, Outage, Outcome, failed};
use crate::plan::Step;
use crate::topology::Topology;

/// What is expected, without a process.
#[must_use]
pub fn expectation(topology: &Topology) -> String {
    let mut text = head(topology);
    let all = topology.voters();
    let voting = topology.voting_regions();
    let mut header = vec!["expected p50, ms".to_owned()];
    header.extend(voting.iter().map(|it| format!("leader in {}", topology.region(*it))));
    header.extend(voting.iter().map(|it| format!("{} lost", topology.region(*it))));
    let mut rows = vec![header];
    for (client, clients) in &topology.clients {
        let mut row = vec![client_name(topology, *client, clients.weight)];
        for region in &voting {
            let ms = answer_ms(topology, *client, topology.voters_in(*region)[0], &all);
            row.push(shown(ms));
        }
        row.extend(voting.iter().map(|lost| expected_loss(topology, *client, *lost)));
        rows.push(row);
    }
    text += &table(&rows);
    text += &transactions(topology, None);
    text += &advised(topology);
    text
}

/// The outcome of a run.
#[must_use]
pub fn outcome(outcome: &Outcome) -> String {
    let topology = &outcome.topology;
    let mut text = head(topology);
    let floor: Vec<String> = outcome
        .floor_ms
        .iter()
        .map(|(client, ms)| format!("{} {ms:.2} ms", topology.region(*client)))
        .collect();
    let _infallible = writeln!(text, "floor without delays, p50: {}", floor.join(", "));
    text += &links(outcome);
    text += &at_rest(outcome);
    text += &matrix(outcome);
    text += &handovers(outcome);
    text += &outages(outcome);
    text += &modes(outcome);
    text += &transactions(topology, Some(outcome));
    text += &advised(topology);
    let _infallible = writeln!(
        text,
        "\n{} answers checked for order and uniqueness, {} wrong; {:.0} s",
        outcome.checked, outcome.violations, outcome.elapsed_s
    );
    let problems = outcome.problems();
    if problems.is_empty() {
        let _infallible = writeln!(text, "{}", outcome.praise());
    }
    for problem in problems {
        let _infallible = writeln!(text, "NOT AS EXPECTED: {problem}");
    }
    text
}

fn head(topology: &Topology) -> String {
    let mut text = topology.name.clone();
    if !topology.about.is_empty() {
        let _infallible = write!(text, ": {}", topology.about);
    }
    let place = |region: usize| {
        let nodes: Vec<String> = topology.voters_in(region).iter().map(u64::to_string).collect();
        let nodes =
            if nodes.is_empty() { "no node".into() } else { format!("node {}", nodes.join(", ")) };
        format!("{} ({nodes})", topology.region(region))
    };
    let places: Vec<String> = (0..topology.regions.len()).map(place).collect();
    let _infallible = writeln!(text, "\nregions: {}", places.join(", "));
    text
}

fn client_name(topology: &Topology, client: usize, weight: f64) -> String {
    format!("clients in {} ({weight})", topology.region(client))
}

fn shown(ms: Option<f64>) -> String {
    ms.map_or_else(|| "refused".to_owned(), |ms| format!("{ms:.1}"))
}

/// What clients of one region should see while another region is lost and the best place of the
/// leader is taken.
fn expected_loss(topology: &Topology, client: usize, lost: usize) -> String {
    if client == lost {
        return "-".to_owned();
    }
    let alive = topology.voters_outside(&[lost]);
    let home = expected::home(topology);
    let leaders: Vec<u64> = match topology.voters_in(home).first() {
        Some(leader) if home != lost => vec![*leader],
        _ => alive.clone(),
    };
    let costs = leaders.iter().filter_map(|leader| answer_ms(topology, client, *leader, &alive));
    let (low, high) =
        costs.fold((f64::INFINITY, 0.0), |(low, high), ms| (f64::min(low, ms), f64::max(high, ms)));
    match (low.is_finite(), high - low > 0.05) {
        (false, _) => "refused".to_owned(),
        (true, false) => format!("{low:.1}"),
        (true, true) => format!("{low:.1}..{high:.1}"),
    }
}

/// A cell with its expectation, a mark if it is not as expected, and how many requests failed.
fn beside(cell: &Cell) -> String {
    let mark = match (cell.is_above(), cell.is_below()) {
        (true, _) => " ABOVE",
        (false, true) => " BELOW",
        (false, false) => "",
    };
    let failed = match cell.failed_at_rest() {
        0 => String::new(),
        count => format!(" {count} FAILED"),
    };
    format!("{:.1} ({:.1}){mark}{failed}", cell.p50_ms(), cell.expected_ms)
}

fn links(outcome: &Outcome) -> String {
    let off = outcome.links.iter().map(|it| (it.measured_ms - it.asked_ms).abs());
    let worst = off.fold(0.0, f64::max);
    let (count, kind) = (outcome.links.len(), outcome.plan.links.name());
    format!("links ({kind}) verified: {count} round trips as asked, within {worst:.2} ms\n")
}

fn at_rest(outcome: &Outcome) -> String {
    let header = ["at rest, ms", "callers", "leader", "p50 (expected)", "longest", "answers/s"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for cell in outcome.of(Step::AtRest) {
        rows.push(vec![
            format!("clients in {}", outcome.topology.region(cell.client)),
            cell.callers.to_string(),
            leader(outcome, cell.leader),
            beside(cell),
            format!("{:.1}", cell.at_ms(1.0)),
            format!("{:.0}", cell.rate),
        ]);
    }
    let table = section(&rows);
    if table.is_empty() { table } else { format!("{table}{CLOSED_LOOP}\n") }
}

/// What the longest answer of a closed loop means.
const CLOSED_LOOP: &str = "closed loop: a caller waits for its answer, then 2 ms, and asks again, \
                           so few requests meet a stall";

fn leader(outcome: &Outcome, node: u64) -> String {
    format!("{node} in {}", outcome.topology.region(outcome.topology.region_of(node)))
}

fn matrix(outcome: &Outcome) -> String {
    let topology = &outcome.topology;
    let voting = topology.voting_regions();
    let mut header = vec!["p50 (expected), ms".to_owned()];
    header.extend(voting.iter().map(|it| format!("leader in {}", topology.region(*it))));
    let mut rows = vec![header];
    if outcome.of(Step::EachLeader).next().is_some() {
        for (client, clients) in &topology.clients {
            let mut row = vec![client_name(topology, *client, clients.weight)];
            let cell = |region: &usize| outcome.cell(*client, *region).map_or("-".into(), beside);
            row.extend(voting.iter().map(cell));
            rows.push(row);
        }
    }
    section(&rows)
}

fn handovers(outcome: &Outcome) -> String {
    let each: Vec<String> = outcome
        .handovers
        .iter()
        .map(|it| {
            let (mark, failed) = (late_mark(it.is_late()), failed(&it.failures));
            let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
            let (from, to, ms, about) = (it.from, it.to, it.silence_ms, it.expected_ms);
            format!("from node {from} to node {to}: {ms:.0} ms (about {about:.0}){mark}{failed}")
        })
        .collect();
    if each.is_empty() {
        return String::new();
    }
    format!("longest silence during a handover {}\n", each.join(", "))
}

fn outages(outcome: &Outcome) -> String {
    let topology = &outcome.topology;
    let header = [
        "fault",
        "silence, ms (about)",
        "failed",
        "leader before, after",
        "p50 meanwhile (expected)",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for outage in &outcome.outages {
        let lost = |cell: &&Cell| match outage.fault {
            crate::outcome::Fault::Region(region) => cell.lost == Some(region),
            crate::outcome::Fault::Killed | crate::outcome::Fault::OneWay => false,
        };
        let cells = outcome.of(Step::RegionLost).filter(lost);
        let cells: Vec<String> =
            cells.map(|it| format!("{} {}", topology.region(it.client), beside(it))).collect();
        let after = outage.after.map_or("none".to_owned(), |node| leader(outcome, node));
        rows.push(vec![
            outcome.fault(outage.fault),
            silence(outage),
            failed(&outage.failures).to_string(),
            format!("{}, {after}", leader(outcome, outage.before)),
            cells.join("; "),
        ]);
    }
    section(&rows)
}

fn silence(outage: &Outage) -> String {
    if outage.silence_ms.is_empty() {
        return "no clients elsewhere".to_owned();
    }
    match outage.longest_ms() {
        None if outage.is_survivable => "no answer again".to_owned(),
        None => "refused: no majority".to_owned(),
        Some(ms) => {
            format!("{ms:.0} ({:.0}){}", outage.expected_ms, late_mark(outage.is_late()))
        }
    }
}

fn late_mark(is_late: bool) -> &'static str {
    if is_late { " ABOVE" } else { "" }
}

fn modes(outcome: &Outcome) -> String {
    let header = ["mode", "clients", "leader", "p50 (expected), ms"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for cell in outcome.of(Step::Modes) {
        rows.push(vec![
            cell.mode.name().to_owned(),
            outcome.topology.region(cell.client).to_owned(),
            leader(outcome, cell.leader),
            beside(cell),
        ]);
    }
    section(&rows)
}

/// What transactions cost with the leader at home.
fn transactions(topology: &Topology, measured: Option<&Outcome>) -> String {
    let home = expected::home(topology);
    let node = topology.voters_in(home)[0];
    let mut text = String::new();
    for (client, clients) in topology.clients.iter().filter(|(_, it)| it.per_transaction > 1) {
        let count = f64::from(clients.per_transaction);
        let cell = measured.and_then(|it| it.cell(*client, home)).map(Cell::p50_ms);
        let expected = answer_ms(topology, *client, node, &topology.voters());
        let (ms, how) = match (cell, expected) {
            (Some(ms), _) => (ms, "measured"),
            (None, Some(ms)) => (ms, "expected"),
            (None, None) => continue,
        };
        let _infallible = writeln!(
            text,
            "a transaction of {} pays {:.1} ms for its {} timestamps ({how}, leader in {})",
            topology.region(*client),
            count * ms,
            clients.per_transaction,
            topology.region(home),
        );
    }
    text
}

fn advised(topology: &Topology) -> String {
    let mut text = "\nadvice\n".to_owned();
    for advice in advice::all(topology) {
        let _infallible = writeln!(text, "  {}\n      {}", advice.topic, advice.text);
    }
    text
}

/// A table with a blank line before it, or nothing if there is only a header.
fn section(rows: &[Vec<String>]) -> String {
    if rows.len() < 2 { String::new() } else { format!("\n{}", table(rows)) }
}

/// Columns as wide as their longest cell.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|it| it.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        let _infallible = writeln!(text, "{}", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use epicepoch_bench::latency;

    use super::*;
    use crate::builtin;
    use crate::outcome::tests::good;

    #[test]
    fn an_expectation_needs_no_process() {
        let text = expectation(&builtin::find("two-dc-50ms").expect("built in"));
        for part in [
            "regions: dc1 (node 1), dc2 (node 2, 3)",
            "clients in dc1 (4)  50.0           50.0           -         refused",
            "clients in dc2 (1)  100.0          0.0            0.0       -",
            "a transaction of dc1 pays 100.0 ms for its 2 timestamps",
            "TWO PLACES ARE UNSAFE",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn the_longest_answer_at_rest_is_shown_with_what_it_means() {
        let mut at_rest = good();
        at_rest.cells[0].step = Step::AtRest;
        latency::record(&mut at_rest.cells[0].latency_ns, Duration::from_millis(700));
        let text = outcome(&at_rest);
        let row = text.lines().find(|line| line.starts_with("clients in dc1  1 ")).expect("a row");
        assert!(row.contains(" 70") && text.contains("longest"), "{text}");
        assert!(text.contains(CLOSED_LOOP) && !text.contains("p99"), "{text}");
        assert!(!outcome(&good()).contains(CLOSED_LOOP), "step 1 did not run");
    }

    #[test]
    fn an_outcome_shows_measured_beside_expected() {
        let text = outcome(&good());
        for part in [
            "51.0 (50.8)",
            "dc1 lost  950 (900)",
            "dc2 lost  refused: no majority",
            "all as expected",
            "from node 1 to node 2: 51 ms",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let mut bad = good();
        bad.cells[0].expected_ms = 10.0;
        let text = outcome(&bad);
        assert!(text.contains("51.0 (10.0) ABOVE"), "{text}");
        assert!(text.contains("NOT AS EXPECTED: step 2") && !text.contains("all as expected"));
        let mut fast = good();
        fast.cells[0].least_ms = 51.5;
        assert!(outcome(&fast).contains("51.0 (50.8) BELOW"));
        let mut failing = good();
        failing.cells[0].failures = [("timeout", 3)].into();
        failing.outages[0].silence_ms.insert(0, Some(20_000.0));
        failing.handovers[0].silence_ms = 9_000.0;
        let text = outcome(&failing);
        let handover = "from node 1 to node 2: 9000 ms (about 300) ABOVE";
        for part in ["51.0 (50.8) 3 FAILED", "20000 (900) ABOVE", handover] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let mut floor = good();
        floor.cells.clear();
        let text = outcome(&floor);
        assert!(text.contains("compare no p50") && !text.contains("no p50 is above"), "{text}");
    }
}
