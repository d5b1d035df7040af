//! The outcome as JSON, in the form of the load generator's reports, so that `epicepoch bench
//! compare` reads it. The latency of the whole is that of step 2, in which every region of clients
//! asks every place of the leader for the same time; without step 2 it is that of all steps. The
//! failed requests are those of the same clients. The field `lab` has everything else.

use std::time::UNIX_EPOCH;

use epicepoch_bench::encoded::Times;
use epicepoch_bench::latency;
use epicepoch_bench::record::{FORMAT, Program};
use epicepoch_bench::run::{Failures, Wire, failure};
use serde_json::{Value, json};

use crate::advice;
use crate::expected;
use crate::outcome::{Cell, End, Fault, Outcome, add_failures, failed};
use crate::plan::Step;

/// Makes the report.
#[must_use]
pub fn report(outcome: &Outcome, program: &Program) -> Value {
    let topology = &outcome.topology;
    let has_matrix = outcome.of(Step::EachLeader).next().is_some();
    let counted = |cell: &&Cell| !has_matrix || cell.step == Step::EachLeader;
    let mut latency_ns = latency::histogram();
    let mut rates = Vec::new();
    let mut failures = Failures::new();
    for cell in outcome.cells.iter().filter(counted) {
        latency_ns.add(&cell.latency_ns).expect("the same bounds");
        rates.push(cell.rate);
        add_failures(&mut failures, &cell.failures);
    }
    let answers = latency_ns.len();
    let rate = rates.iter().sum::<f64>() / (rates.len().max(1) as f64);
    let started = outcome.started.duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "format": FORMAT,
        "kind": "lab",
        "program": program,
        "started_unix_ns": started.as_nanos() as u64,
        "config": {
            "topology": topology.document(),
            "node_settings": outcome.settings,
            "steps": outcome.plan.steps.iter().map(|step| step.number()).collect::<Vec<_>>(),
            "duration_ns": outcome.plan.length.as_nanos() as u64,
            "seed": outcome.seed,
            "links": outcome.plan.links.name(),
            "rate": Value::Null,
        },
        "elapsed_ns": (outcome.elapsed_s * 1e9) as u64,
        "answers": answers,
        "timestamps": answers,
        "rate": rate,
        "failures": failures,
        "failure_share": failure::share(failed(&failures), answers),
        "latency_ns": Times(latency_ns),
        "generator": {"bottleneck": Value::Null},
        "verify": {
            "checked": outcome.checked,
            "violations": outcome.violations,
            "stories": outcome.described,
        },
        "wire": Wire::default(),
        "machine": outcome.machine,
        "lab": lab(outcome),
    })
}

fn lab(outcome: &Outcome) -> Value {
    let topology = &outcome.topology;
    let name = |region: usize| topology.region(region);
    let floor =
        outcome.floor_ms.iter().map(|(client, ms)| json!({"clients": name(*client), "p50_ms": ms}));
    let end = |end: End| match end {
        End::Node(node) => json!({"node": node}),
        End::Clients(region) => json!({"clients": name(region)}),
    };
    let links = outcome.links.iter().map(|it| {
        json!({"from": end(it.from), "to": it.to, "asked_ms": it.asked_ms, "measured_ms": it.measured_ms})
    });
    let cells = outcome.cells.iter().map(|it| {
        json!({
            "step": it.step.number(),
            "mode": it.mode.name(),
            "clients": name(it.client),
            "leader": it.leader,
            "leader_region": name(topology.region_of(it.leader)),
            "callers": it.callers,
            "lost": it.lost.map(name),
            "expected_ms": it.expected_ms,
            "bound_ms": expected::bound_ms(it.expected_ms),
            "p50_ms": it.p50_ms(),
            "above": it.is_above(),
            "least_ms": it.least_ms,
            "below": it.is_below(),
            "rate": it.rate,
            "failures": it.failures,
            "latency_ns": Times(it.latency_ns.clone()),
        })
    });
    let handovers = outcome.handovers.iter().map(|it| {
        json!({
            "from": it.from,
            "to": it.to,
            "silence_ms": it.silence_ms,
            "expected_ms": it.expected_ms,
            "bound_ms": expected::silence_bound_ms(it.expected_ms),
            "above": it.is_late(),
            "failures": it.failures,
        })
    });
    let outages = outcome.outages.iter().map(|it| {
        let silences =
            it.silence_ms.iter().map(|(client, ms)| json!({"clients": name(*client), "ms": ms}));
        let timeline = it.timeline.iter();
        let timeline =
            timeline.map(|(client, it)| json!({"clients": name(*client), "answers": it}));
        json!({
            "fault": match it.fault {
                Fault::Region(_) => "region",
                Fault::Killed => "killed",
                Fault::OneWay => "one_way",
            },
            "region": match it.fault {
                Fault::Region(region) => Some(name(region)),
                Fault::Killed | Fault::OneWay => None,
            },
            "leader_before": it.before,
            "leader_after": it.after,
            "survivable": it.is_survivable,
            "silences": silences.collect::<Vec<_>>(),
            "expected_ms": it.expected_ms,
            "bound_ms": expected::silence_bound_ms(it.expected_ms),
            "above": it.is_late(),
            "failures": it.failures,
            "forbidden_answers": it.forbidden,
            "timeline_100ms": timeline.collect::<Vec<_>>(),
        })
    });
    let advice = advice::all(topology);
    let advice = advice.iter().map(|it| json!({"topic": it.topic, "text": it.text}));
    json!({
        "floor": floor.collect::<Vec<_>>(),
        "floor_failures": outcome.floor_failures,
        "links": links.collect::<Vec<_>>(),
        "cells": cells.collect::<Vec<_>>(),
        "handovers": handovers.collect::<Vec<_>>(),
        "outages": outages.collect::<Vec<_>>(),
        "advice": advice.collect::<Vec<_>>(),
        "problems": outcome.problems(),
    })
}

#[cfg(test)]
mod tests {
    use epicepoch_bench::compare::{Rule, compare};
    use epicepoch_bench::record::Run;

    use super::*;
    use crate::outcome::tests::good;

    #[test]
    fn bench_compare_reads_the_reports_of_two_labs() {
        let text = report(&good(), &Program::default()).to_string();
        let run = Run::parse(&text).expect("a report");
        assert_eq!(run.answers, 40);
        let compared =
            compare(&[run.clone(), run.clone()], std::slice::from_ref(&run), Rule::default());
        assert!(compared.is_ok(), "{compared:?}");
        let mut other = good();
        other.topology.jitter_ms = 2.0;
        let other = Run::parse(&report(&other, &Program::default()).to_string()).expect("a report");
        let refused = compare(&[run], &[other], Rule::default()).expect_err("another topology");
        assert!(refused.to_string().contains("topology"), "{refused}");
    }

    #[test]
    fn the_report_has_the_requests_that_failed() {
        let made = |outcome: &Outcome| report(outcome, &Program::default());
        assert_eq!(made(&good())["failure_share"], 0.0);
        let mut outcome = good();
        outcome.cells[0].failures = Failures::from([("timeout", 2), ("connect", 7)]);
        outcome.cells[1].failures = Failures::from([("timeout", 1)]);
        outcome.outages[1].failures = Failures::from([("timeout", 9)]);
        let report = made(&outcome);
        assert_eq!(report["failures"], json!({"connect": 7, "timeout": 3}));
        assert_eq!(report["failure_share"], 3.0 / 43.0);
        assert_eq!(report["lab"]["cells"][0]["failures"]["timeout"], 2);
        assert_eq!(report["lab"]["outages"][1]["failures"]["timeout"], 9);
        let run = Run::parse(&report.to_string()).expect("a report");
        assert!(run.failure_share > 0.0, "bench compare sees them");
    }

    #[test]
    fn the_report_has_every_cell_and_what_was_refused() {
        let report = report(&good(), &Program::default());
        assert_eq!(report["lab"]["cells"].as_array().map(Vec::len), Some(4));
        assert_eq!(report["lab"]["outages"][1]["survivable"], false);
        assert_eq!(report["lab"]["outages"][1]["silences"][0]["ms"], Value::Null);
        assert_eq!(report["config"]["topology"]["leader"], "dc1");
    }
}
