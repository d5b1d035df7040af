//! Files for HdrHistogram's tools, read by its Python implementation. `HDR_PYTHON` names an
//! interpreter with `hdrhistogram` from `PyPI`; CI makes one and runs this with
//! `--include-ignored`.

#[path = "../constructed/mod.rs"]
mod constructed;

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use epicepoch_bench::hlog::hlog;
use epicepoch_bench::latency::{self, QUANTILES};
use epicepoch_bench::record::Run;
use serde_json::Value;

use constructed::{INTERVAL_NS, STARTED_UNIX_NS};

/// A report of `intervals` with random latencies over all orders of magnitude.
fn report(intervals: u64, seed: u64) -> Run {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut time_series = Vec::new();
    for number in 0..intervals {
        let mut part = latency::histogram();
        // One interval has no answer, as in a stall.
        let samples = if number == 2 { 0 } else { 5000 };
        for _ in 0..samples {
            let nanos = 10_u64.pow(random.u32(2..10)) * random.u64(1..10) + random.u64(0..1000);
            latency::record(&mut part, Duration::from_nanos(nanos));
        }
        time_series.push(part);
    }
    constructed::run(&time_series)
}

/// What Python reads from a log.
fn read_by_python(log: &str) -> Value {
    let python = std::env::var("HDR_PYTHON").expect("HDR_PYTHON names a Python with hdrhistogram");
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(log.as_bytes()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hdr_tools/read.py");
    let output = Command::new(python).arg(script).arg(file.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_report_of_the_test_is_one() {
    let report = report(5, 1);
    assert_eq!(Run::parse(&report.to_json()).unwrap(), report);
}

#[test]
#[ignore = "needs HDR_PYTHON; .ci/run runs it"]
fn python_reads_the_log_and_finds_every_latency() {
    for seed in 0..3 {
        let report = report(5, seed);
        let whole = &report.latency_ns.0;
        let read = read_by_python(&hlog(&report));
        assert_eq!(read["started_s"], STARTED_UNIX_NS as f64 / 1e9);
        assert_eq!(read["intervals"].as_array().unwrap().len(), 5);
        for (ours, theirs) in report.intervals.iter().zip(read["intervals"].as_array().unwrap()) {
            let start_ms = (STARTED_UNIX_NS + ours.start_ns) as f64 / 1e6;
            let end_ms = start_ms + INTERVAL_NS as f64 / 1e6;
            assert!((theirs["start_ms"].as_f64().unwrap() - start_ms).abs() < 1.0, "{theirs}");
            assert!((theirs["end_ms"].as_f64().unwrap() - end_ms).abs() < 1.0, "{theirs}");
            assert_eq!(theirs["count"], ours.latency.answers);
            assert_eq!(theirs["max"], ours.latency.max_ns);
        }
        assert_eq!(read["count"], whole.len());
        assert_eq!(read["max"], whole.max());
        // Every bucket of one is a bucket of the other.
        let recorded: Vec<Value> = whole
            .iter_recorded()
            .map(|step| serde_json::json!([step.value_iterated_to(), step.count_at_value()]))
            .collect();
        assert_eq!(read["recorded"].as_array().unwrap(), &recorded);
        for (at, (name, share)) in QUANTILES.iter().chain([&("max", 1.0)]).enumerate() {
            // Python rounds the rank to the nearest, and we round it up. So they are at most one
            // rank apart.
            let rank = share * whole.len() as f64;
            let around = [-1.0, 0.0, 1.0].map(|by| (rank + by) / whole.len() as f64);
            let allowed = around.map(|share| whole.value_at_quantile(share.clamp(0.0, 1.0)));
            let theirs = read["percentiles"][at].as_u64().unwrap();
            assert!(allowed.contains(&theirs), "{name}: {theirs}, not one of {allowed:?}");
        }
    }
}
