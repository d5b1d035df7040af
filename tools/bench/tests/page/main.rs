//! The page of a real run against a small server: its contents, and its rendering in a browser.
//!
//! `EPICEPOCH_PAGE=file` opens another page in the browser, for example of a real cluster.

mod browser;
mod fixture;
mod markup;

use epicepoch_bench::html::{self, Named};
use epicepoch_bench::record::Run;

use fixture::report;
use markup::Chart;

fn page(runs: &[(&str, &Run)]) -> String {
    let runs: Vec<Named<'_>> = runs.iter().map(|(name, run)| Named { name, run }).collect();
    html::page("A page", &runs, "")
}

#[test]
fn the_curves_of_a_run_are_in_its_page() {
    let run = report();
    let page = page(&[("one", &run)]);
    let charts = Chart::all(&page);
    let names: Vec<&str> = charts.iter().map(|chart| chart.id.as_str()).collect();
    assert_eq!(names, ["percentiles", "latency", "rate"]);
    for chart in &charts {
        chart.assert_drawn();
    }
    for fact in ["bytes sent", "bare echo", "hiccups of the generator", "kernel", "load before"] {
        assert!(page.contains(fact), "{fact}");
    }
    // The page loads no file and runs no script.
    for foreign in ["<script", "http://", "https://", "@import", "url(", "<img", "<link"] {
        let own = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        assert!(!own.contains(foreign), "{foreign}");
    }
}

#[test]
fn two_runs_lie_over_each_other() {
    let run = report();
    let page = page(&[("before", &run), ("after", &run)]);
    let charts = Chart::all(&page);
    assert!(page.contains("before: latency") && page.contains("after: latency"));
    for chart in &charts {
        assert!(chart.lines.len() >= 2, "{chart:?}");
        chart.assert_drawn();
    }
}

#[test]
fn whatever_a_report_says_is_text() {
    const HOSTILE: &str = "</title><script>alert('1')</script><b onload=\"x\">&";
    let mut run = report();
    run.program.command = vec![HOSTILE.to_owned()];
    run.program.commit = Some(HOSTILE.to_owned());
    run.config.targets[0].addr = HOSTILE.to_owned();
    run.config.transport = HOSTILE.to_owned();
    run.config.arrivals = Some(HOSTILE.to_owned());
    run.machine.cpu = HOSTILE.to_owned();
    run.machine.kernel = HOSTILE.to_owned();
    run.failures.insert(HOSTILE.to_owned(), 1);
    run.generator.bottleneck = Some(HOSTILE.to_owned());
    if let Some(verify) = &mut run.verify {
        verify.violations = 1;
        verify.descriptions = vec![HOSTILE.to_owned()];
    }
    let runs = [Named { name: HOSTILE, run: &run }, Named { name: HOSTILE, run: &run }];
    let page = html::page(HOSTILE, &runs, HOSTILE);
    assert!(!page.contains("<script") && !page.contains("<b onload"), "{page}");
    let times = page.matches("&lt;script&gt;alert(&#39;1&#39;)").count();
    assert!(times >= 20, "{times}");
}

#[test]
fn a_run_without_an_answer_has_a_page_without_curves() {
    let mut run = report();
    run.answers = 0;
    run.latency_ns = epicepoch_bench::encoded::Times::default();
    run.hiccup_ns = epicepoch_bench::encoded::Times::default();
    run.intervals.clear();
    let page = page(&[("one", &run)]);
    assert!(Chart::all(&page).is_empty());
    assert!(page.contains("<h2>Facts</h2>"));
}
