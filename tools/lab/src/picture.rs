//! The outcome as SVG: the map of regions with their round trips, the matrix as a heat map, and the
//! time lines of outages. No script, no font of its own, nothing from outside.

use std::f64::consts::TAU;
use std::fmt::Write as _;

use crate::expected::{self, answer_ms};
use crate::outcome::{Fault, Outage, Outcome};
use crate::plan::Step;
use crate::topology::Topology;

const SIZE: f64 = 360.0;
const INK: &str = "#24303c";
const FAINT: &str = "#8894a0";
const LEADER: &str = "#2f7d4f";
const REGION: &str = "#dfe7ef";
const BAD: &str = "#b3372f";

/// Escapes text for XML and HTML.
#[must_use]
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The map and the matrix side by side: a picture for a document. Without an outcome of step 2 the
/// matrix has the expected figures. With one, a cell that was not measured is `-`.
#[must_use]
pub fn picture(topology: &Topology, outcome: Option<&Outcome>) -> String {
    let (matrix, width, height) = matrix(topology, outcome);
    let (total, tall) = (SIZE + 20.0 + width, SIZE.max(height));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {total:.0} {tall:.0}\" \
         width=\"{total:.0}\" height=\"{tall:.0}\" font-family=\"sans-serif\" role=\"img\" \
         aria-label=\"{}\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{}\
         <g transform=\"translate({:.0} 0)\">\n{matrix}</g>\n</svg>\n",
        escaped(&format!("{}: regions, round trips and latencies", topology.name)),
        map(topology),
        SIZE + 20.0,
    )
}

/// Regions on a ring, round trips on the edges, the leader's region filled, regions whose loss stops
/// the service with a broken line.
fn map(topology: &Topology) -> String {
    let count = topology.regions.len();
    let (middle, radius) = (SIZE / 2.0, if count == 1 { 0.0 } else { SIZE / 2.0 - 62.0 });
    let at = |region: usize| {
        let angle = TAU * region as f64 / count as f64 - TAU / 4.0;
        (middle + radius * angle.cos(), middle + radius * angle.sin())
    };
    let mut svg = String::new();
    for one in 0..count {
        for other in one + 1..count {
            let ((x1, y1), (x2, y2)) = (at(one), at(other));
            let ms = topology.round_trip_ms(one, other);
            let _infallible = writeln!(
                svg,
                "<line x1=\"{x1:.0}\" y1=\"{y1:.0}\" x2=\"{x2:.0}\" y2=\"{y2:.0}\" stroke=\"{FAINT}\"/>\
                 <text x=\"{:.0}\" y=\"{:.0}\" font-size=\"12\" text-anchor=\"middle\" fill=\"{INK}\" \
                 stroke=\"#fff\" stroke-width=\"4\" paint-order=\"stroke\">{ms:.1} ms</text>",
                f64::midpoint(x1, x2),
                f64::midpoint(y1, y2) + 4.0,
            );
        }
    }
    let home = expected::home(topology);
    for region in 0..count {
        let (x, y) = at(region);
        let nodes = topology.voters_in(region).len();
        let (fill, ink) = if region == home { (LEADER, "#fff") } else { (REGION, INK) };
        let is_fatal = !expected::survives(topology, &[region]);
        let edge = if is_fatal {
            format!("stroke=\"{BAD}\" stroke-width=\"3\" stroke-dasharray=\"6 4\"")
        } else {
            format!("stroke=\"{FAINT}\"")
        };
        let voters = if nodes == 1 { "voter" } else { "voters" };
        let _infallible = writeln!(
            svg,
            "<circle cx=\"{x:.0}\" cy=\"{y:.0}\" r=\"44\" fill=\"{fill}\" {edge}/>\
             <text x=\"{x:.0}\" y=\"{:.0}\" font-size=\"14\" text-anchor=\"middle\" fill=\"{ink}\">{}</text>\
             <text x=\"{x:.0}\" y=\"{:.0}\" font-size=\"12\" text-anchor=\"middle\" fill=\"{ink}\">{nodes} {voters}</text>",
            y - 3.0,
            escaped(topology.region(region)),
            y + 15.0,
        );
    }
    svg
}

/// Clients in rows, places of the leader in columns. Returns the drawing, its width and its height.
fn matrix(topology: &Topology, outcome: Option<&Outcome>) -> (String, f64, f64) {
    const CELL_W: f64 = 96.0;
    const CELL_H: f64 = 44.0;
    const LEFT: f64 = 96.0;
    const TOP: f64 = 70.0;
    let voting = topology.voting_regions();
    let all = topology.voters();
    let measured = outcome.filter(|it| it.of(Step::EachLeader).next().is_some());
    let value = |client: usize, region: usize| {
        if let Some(outcome) = measured {
            return outcome.cell(client, region).map(|cell| {
                let is_bad = cell.is_marked() || cell.failed_at_rest() > 0;
                (cell.p50_ms(), is_bad)
            });
        }
        let leader = topology.voters_in(region)[0];
        answer_ms(topology, client, leader, &all).map(|ms| (ms, false))
    };
    let cells = || topology.clients.keys().flat_map(|it| voting.iter().map(move |to| (*it, *to)));
    let values = cells().filter_map(|(client, to)| value(client, to));
    let highest = values.map(|(ms, _)| ms).fold(0.1, f64::max);
    let what = if measured.is_some() { "measured p50, ms" } else { "expected p50, ms" };
    let mut svg = format!(
        "<text x=\"0\" y=\"24\" font-size=\"14\" fill=\"{INK}\">{}: {what}</text>\n",
        escaped(&topology.name)
    );
    for (column, region) in voting.iter().enumerate() {
        let _infallible = writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"{:.0}\" font-size=\"11\" text-anchor=\"middle\" fill=\"{INK}\">leader in {}</text>",
            LEFT + CELL_W * (column as f64 + 0.5),
            TOP - 8.0,
            escaped(topology.region(*region)),
        );
    }
    for (row, client) in topology.clients.keys().enumerate() {
        let y = TOP + CELL_H * row as f64;
        let _infallible = writeln!(
            svg,
            "<text x=\"0\" y=\"{:.0}\" font-size=\"11\" fill=\"{INK}\">clients in {}</text>",
            y + CELL_H / 2.0 + 4.0,
            escaped(topology.region(*client)),
        );
        for (column, region) in voting.iter().enumerate() {
            let cell = value(*client, *region);
            // From light to dark, so that the darkest cell is still lighter than its text.
            let light = 96.0 - 36.0 * cell.map_or(0.0, |(ms, _)| ms) / highest;
            let shown = match cell {
                Some((ms, true)) => format!("{ms:.1} !"),
                Some((ms, false)) => format!("{ms:.1}"),
                None => "-".to_owned(),
            };
            let x = LEFT + CELL_W * column as f64;
            let _infallible = writeln!(
                svg,
                "<rect x=\"{x:.0}\" y=\"{y:.0}\" width=\"{:.0}\" height=\"{:.0}\" rx=\"4\" \
                 fill=\"hsl(28 80% {light:.0}%)\"/><text x=\"{:.0}\" y=\"{:.0}\" font-size=\"14\" \
                 text-anchor=\"middle\" fill=\"{INK}\">{shown}</text>",
                CELL_W - 4.0,
                CELL_H - 4.0,
                x + CELL_W / 2.0 - 2.0,
                y + CELL_H / 2.0 + 3.0,
            );
        }
    }
    let width = LEFT + CELL_W * voting.len() as f64 + 4.0;
    (svg, width.max(230.0), TOP + CELL_H * topology.clients.len() as f64 + 10.0)
}

/// The time line of an outage: a row for each region of clients, a bar for each tenth of a second
/// with answers.
#[must_use]
pub fn time_line(outcome: &Outcome, outage: &Outage) -> String {
    const ROW: f64 = 34.0;
    const LEFT: f64 = 96.0;
    const BAR: f64 = 8.0;
    let length = outage.timeline.values().map(Vec::len).max().unwrap_or(0);
    let width = LEFT + BAR * length as f64 + 10.0;
    let height = ROW * outage.timeline.len() as f64 + 24.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         width=\"{width:.0}\" height=\"{height:.0}\" font-family=\"sans-serif\" role=\"img\" \
         aria-label=\"{}\">\n",
        escaped(&format!("answers over time, {}", outcome.fault(outage.fault))),
    );
    for (row, (client, tenths)) in outage.timeline.iter().enumerate() {
        let base = ROW * (row as f64 + 1.0);
        let most = f64::from(tenths.iter().copied().max().unwrap_or(1).max(1));
        let _infallible = writeln!(
            svg,
            "<text x=\"0\" y=\"{:.0}\" font-size=\"11\" fill=\"{INK}\">{}</text>\
             <line x1=\"{LEFT}\" y1=\"{base:.0}\" x2=\"{:.0}\" y2=\"{base:.0}\" stroke=\"{FAINT}\"/>",
            base - 4.0,
            escaped(outcome.topology.region(*client)),
            width - 10.0,
        );
        for (at, count) in tenths.iter().enumerate().filter(|(_, count)| **count > 0) {
            let tall = (ROW - 8.0) * f64::from(*count) / most;
            let _infallible = writeln!(
                svg,
                "<rect x=\"{:.0}\" y=\"{:.1}\" width=\"{:.0}\" height=\"{tall:.1}\" fill=\"{LEADER}\"/>",
                LEFT + BAR * at as f64,
                base - tall,
                BAR - 1.0,
            );
        }
    }
    let x = LEFT + 10.0 * BAR;
    let _infallible = writeln!(
        svg,
        "<line x1=\"{x:.0}\" y1=\"0\" x2=\"{x:.0}\" y2=\"{:.0}\" stroke=\"{BAD}\"/>\
         <text x=\"{:.0}\" y=\"{:.0}\" font-size=\"11\" fill=\"{BAD}\">{}</text></svg>",
        height - 16.0,
        x + 4.0,
        height - 6.0,
        match outage.fault {
            Fault::Region(_) => "cut",
            Fault::Killed => "killed",
            Fault::OneWay => "not heard",
        },
    );
    svg
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin;
    use crate::outcome::tests::good;

    #[test]
    fn the_picture_of_every_built_in_topology_has_its_regions_and_figures() {
        for (name, _) in builtin::BUILT_IN {
            let topology = builtin::find(name).expect("built in");
            let svg = picture(&topology, None);
            assert_eq!(svg.matches("<circle").count(), topology.regions.len(), "{name}");
            let cells = topology.clients.len() * topology.voting_regions().len();
            // One more rectangle is the background.
            assert_eq!(svg.matches("<rect").count(), cells + 1, "{name}");
            assert!(!svg.contains("NaN") && !svg.contains("http://f"), "{svg}");
        }
    }

    #[test]
    fn a_measured_figure_replaces_the_expected_one() {
        let outcome = good();
        let svg = picture(&outcome.topology, Some(&outcome));
        assert!(svg.contains("measured p50") && svg.contains(">101.1<"), "{svg}");
    }

    #[test]
    fn a_figure_of_clients_whose_requests_failed_is_marked() {
        let mut outcome = good();
        outcome.cells[1].failures = [("timeout", 1)].into();
        let svg = picture(&outcome.topology, Some(&outcome));
        assert!(svg.contains(">101.1 !<"), "{svg}");
    }

    #[test]
    fn what_was_not_measured_is_not_called_measured() {
        let mut outcome = good();
        outcome.cells.pop();
        let svg = picture(&outcome.topology, Some(&outcome));
        assert!(svg.contains("measured p50") && svg.contains(">-<"), "{svg}");
        outcome.cells.clear();
        let svg = picture(&outcome.topology, Some(&outcome));
        assert!(svg.contains("expected p50") && !svg.contains("measured"), "{svg}");
        assert!(svg.contains(">100.0<"), "{svg}");
    }

    #[test]
    fn a_time_line_names_its_fault() {
        let mut outcome = good();
        let line = |outcome: &Outcome| time_line(outcome, &outcome.outages[0]);
        assert!(line(&outcome).contains(">cut<"));
        outcome.outages[0].fault = Fault::Killed;
        assert!(line(&outcome).contains(">killed<") && !line(&outcome).contains(">cut<"));
    }

    #[test]
    fn a_time_line_has_a_bar_for_each_tenth_with_answers() {
        let outcome = good();
        let svg = time_line(&outcome, &outcome.outages[0]);
        assert_eq!(svg.matches("<rect").count(), 2, "{svg}");
        assert!(svg.ends_with("</svg>\n"));
    }

    #[test]
    fn names_are_escaped() {
        assert_eq!(escaped("a<b>&\""), "a&lt;b&gt;&amp;&quot;");
    }
}
