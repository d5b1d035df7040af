//! Target of nodes' answers about their links and settings, as `epicepoch tune` reads them. The
//! report must name every bad answer, give advice for the others, and never approve unsuitable
//! settings.

use epicepoch_config::tune::Report;
use serde_json::Value;

/// A list with one answer for each node. An item that is not an object stands for a silent node.
pub(crate) fn tune(data: &[u8]) {
    let Ok(Value::Array(answers)) = serde_json::from_slice(data) else { return };
    let count = answers.len();
    let answer = |said: Value| if said.is_object() { Ok(said) } else { Err(SILENT.to_owned()) };
    let report = Report::of((1..).zip(answers.into_iter().map(answer)));
    let (text, told) = (report.text(), report.document());
    assert!(text.ends_with('\n'), "whole lines");
    let list = |name: &str| told[name].as_array().expect("a list").clone();
    let (links, members, silent) = (list("links"), list("members"), list("silent"));
    assert_eq!(members.len() + silent.len(), count, "each node is read or named");
    for node in &silent {
        let (id, why) = (node["nodeID"].as_u64().expect("its id"), node["error"].as_str());
        let line = format!("{id:<4} {}", why.expect("why"));
        assert!(text.lines().any(|other| other == line), "{line} is not told: {text}");
    }
    let longest = links.iter().map(|link| number(&link["usualMs"])).fold(0.0, f64::max);
    let fits =
        |node: &Value| number(&node["electionTimeoutMs"]) >= TRIPS_MIN * longest - ROUNDED_MS;
    let covers = |node: &Value| {
        number(&node["reservationMs"]) >= TRIPS_MIN / 2.0 * number(&node["electionTimeoutMs"])
    };
    if report.is_well() {
        assert!(silent.is_empty() && list("unmeasured").is_empty(), "all is known");
        assert!(members.iter().all(|node| fits(node) && covers(node)), "it suits: {told}");
    }
    assert!(!links.is_empty() || told["advised"].is_null(), "advice needs a measurement");
    if !told["advised"].is_null() {
        assert!(fits(&told["advised"]) && covers(&told["advised"]), "advice suits: {told}");
    } else if !links.is_empty() {
        assert!(longest > LONGEST_MS - ROUNDED_MS, "links of a second at most have advice: {told}");
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

const SILENT: &str = "does not answer";
/// Number of round trips that must fit into an election timeout. Half as many election timeouts
/// must fit into a reservation.
const TRIPS_MIN: f64 = 8.0;
/// Longest round trip for which there is advice, milliseconds.
const LONGEST_MS: f64 = 1_000.0;
/// Largest error, in milliseconds, from rounding times to nanoseconds, with a margin.
const ROUNDED_MS: f64 = 1e-4;
