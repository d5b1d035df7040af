//! Merging, comparing and keeping reports of runs with random latencies, so that the expected
//! result is known.

mod constructed;

use std::time::Duration;

use epicepoch_bench::compare::{Comparison, Overall, Rule, compare, table};
use epicepoch_bench::latency;
use epicepoch_bench::merge::{MergeError, merge};
use epicepoch_bench::record::{RecordError, Run};
use epicepoch_bench::trend;
use fastrand::Rng;
use hdrhistogram::Histogram;

use constructed::INTERVAL_NS;

/// A setting, and a change of it.
type Change = (&'static str, fn(&mut Run));

/// A normally distributed number, by the method of Box and Muller.
fn normal(random: &mut Rng) -> f64 {
    (-2.0 * (1.0 - random.f64()).ln()).sqrt() * (std::f64::consts::TAU * random.f64()).cos()
}

/// A run whose median is around `micros`. Medians vary by 5 %, the latencies in one run by a factor
/// of 2.
fn drawn(random: &mut Rng, micros: f64) -> Run {
    let middle = micros * 1e3 * (0.05 * normal(random)).exp();
    let mut latencies = latency::histogram();
    for _ in 0..300 {
        let nanos = middle * (0.7 * normal(random)).exp();
        latency::record(&mut latencies, Duration::from_nanos(nanos as u64));
    }
    let mut run = constructed::run(&[latencies]);
    run.started_unix_ns += random.u64(0..1_000_000_000_000);
    run
}

fn set(random: &mut Rng, runs: usize, micros: f64) -> Vec<Run> {
    (0..runs).map(|_| drawn(random, micros)).collect()
}

fn judged(base: &[Run], new: &[Run]) -> Comparison {
    compare(base, new, Rule::default()).unwrap()
}

#[test]
fn files_of_four_generators_merged_equal_the_histogram_of_all_samples() {
    let mut random = Rng::with_seed(1);
    let mut whole = latency::histogram();
    let mut by_interval: Vec<Histogram<u64>> = vec![latency::histogram(); 6];
    let mut files = Vec::new();
    for generator in 0..4_u64 {
        let mut time_series = vec![latency::histogram(); 5];
        // The last generator started a little more than one interval later.
        let late = usize::from(generator == 3);
        for sample in 0..20_000_usize {
            let nanos = 10_u64.pow(random.u32(0..12)) * random.u64(1..10);
            let latency = Duration::from_nanos(nanos);
            latency::record(&mut time_series[sample % 5], latency);
            latency::record(&mut by_interval[sample % 5 + late], latency);
            latency::record(&mut whole, latency);
        }
        let mut run = constructed::run(&time_series);
        run.started_unix_ns += late as u64 * (INTERVAL_NS + 3_000_000) + generator;
        files.push(run.to_json());
    }
    let runs: Vec<Run> = files.iter().map(|file| Run::parse(file).unwrap()).collect();
    let merged = merge(&runs).unwrap();
    assert_eq!(merged.latency_ns.0, whole);
    assert_eq!(merged.answers, 80_000);
    assert_eq!(merged.sources.len(), 4);
    assert_eq!(merged.config.connections, 32);
    assert_eq!(merged.failures["lost"], 40);
    assert_eq!(merged.elapsed_ns, 6 * INTERVAL_NS + 3_000_000 + 3);
    for (interval, expected) in merged.intervals.iter().zip(&by_interval) {
        assert_eq!(&interval.latency().unwrap(), expected);
    }
    assert_eq!(merged.intervals.len(), 6);
    // A merged run is a report like any other.
    assert_eq!(Run::parse(&merged.to_json()).unwrap(), merged);
}

#[test]
fn connections_that_failed_are_no_failed_requests_of_a_merged_run() {
    let mut random = Rng::with_seed(5);
    let mut runs = set(&mut random, 2, 100.0);
    for run in &mut runs {
        run.started_unix_ns = constructed::STARTED_UNIX_NS;
        run.failures = [("connect".to_owned(), 5000), ("lost".to_owned(), 3)].into();
    }
    let merged = merge(&runs).unwrap();
    assert_eq!(merged.failures["connect"], 10_000);
    let expected = 6.0 / (6.0 + merged.answers as f64);
    assert!((merged.failure_share - expected).abs() < 1e-9, "{}", merged.failure_share);
}

#[test]
fn runs_with_other_settings_are_not_held_against_each_other() {
    let mut random = Rng::with_seed(6);
    let (base, new) = (drawn(&mut random, 100.0), drawn(&mut random, 100.0));
    assert_eq!(base.config.unlike(&new.config), None);
    let change: [Change; 5] = [
        ("warmup_ns", |run| run.config.warmup_ns = 7),
        ("timeout_ns", |run| run.config.timeout_ns = 7),
        ("threads", |run| run.config.threads = 7),
        ("spin", |run| run.config.spin = true),
        ("verify", |run| run.config.verify = true),
    ];
    for (name, change) in change {
        let mut other = new.clone();
        change(&mut other);
        let what = base.config.unlike(&other.config);
        assert!(what.is_some_and(|what| what.starts_with(name)), "{name}");
        other.started_unix_ns = base.started_unix_ns;
        // Hosts may have more or fewer processors.
        assert_eq!(merge(&[base.clone(), other]).is_ok(), name == "threads", "{name}");
    }
    let mut older = serde_json::to_value(&base).unwrap();
    older["config"].as_object_mut().unwrap().remove("verify");
    older["verify"] = serde_json::json!({
        "checked": 1, "unverified": 0, "violations": 0, "stories": [], "cpu_ns": 0
    });
    assert!(Run::parse(&older.to_string()).unwrap().config.verify);
}

#[test]
fn runs_that_do_not_belong_together_are_not_merged() {
    let mut random = Rng::with_seed(2);
    let first = drawn(&mut random, 100.0);
    let mut other = drawn(&mut random, 100.0);
    other.started_unix_ns = first.started_unix_ns + 900_000_000;
    assert!(merge(&[first.clone(), other.clone()]).is_ok());
    assert_eq!(merge(std::slice::from_ref(&first)), Err(MergeError::TooFew));
    assert_eq!(merge(&[first.clone(), first.clone()]), Err(MergeError::Twice { run: 2 }));

    let mut later = other.clone();
    later.started_unix_ns += 200_000_000;
    let error = merge(&[first.clone(), later]).unwrap_err();
    assert_eq!(error, MergeError::OtherTime { run: 2, apart_ms: 1100 });
    let change: [fn(&mut Run); 4] = [
        |run| run.config.n = 10,
        |run| run.config.transport = "h2c".to_owned(),
        |run| run.config.rate = Some(10.0),
        |run| run.interval_ns *= 2,
    ];
    for change in change {
        let mut other = other.clone();
        change(&mut other);
        let error = merge(&[first.clone(), other]).unwrap_err();
        assert!(matches!(error, MergeError::OtherSettings { run: 2, .. }), "{error}");
    }
}

#[test]
fn a_report_that_contradicts_itself_is_refused() {
    let part = drawn(&mut Rng::with_seed(3), 100.0).latency_ns.0;
    let good = constructed::run(&[part.clone(), part.clone(), part]);
    assert!(Run::parse(&good.to_json()).is_ok());
    let change: [fn(&mut Run); 7] = [
        |run| run.answers += 1,
        // Neither the sum nor the product of these numbers fits its type.
        |run| run.intervals.iter_mut().for_each(|it| it.answers = u64::MAX),
        |run| {
            run.interval_ns = 1 << 63;
            run.intervals[1].start_ns = 1 << 63;
        },
        |run| run.kind = "floor".to_owned(),
        |run| run.intervals[0].answers -= 1,
        |run| run.intervals[0].start_ns = 1,
        |run| run.intervals[0].histogram.truncate(40),
    ];
    for change in change {
        let mut bad = good.clone();
        change(&mut bad);
        let error = Run::parse(&bad.to_json()).unwrap_err();
        assert!(matches!(error, RecordError::Contradiction(_)), "{error}");
    }
    let old = good.to_json().replace("\"format\": 2", "\"format\": 1");
    assert!(matches!(Run::parse(&old), Err(RecordError::Format(1))));
    assert!(matches!(Run::parse("{}"), Err(RecordError::Malformed(_))));
}

#[test]
fn shifted_sets_are_told_apart_in_both_directions() {
    let mut random = Rng::with_seed(4);
    let (slow, fast) = (set(&mut random, 5, 130.0), set(&mut random, 5, 100.0));
    let worse = judged(&fast, &slow);
    assert_eq!(worse.verdict, Overall::Worse, "{}", table(&worse));
    let p50 = worse.figures.iter().find(|figure| figure.name == "p50").unwrap();
    assert!((1.2..1.4).contains(&p50.ratio), "{}", table(&worse));
    assert!(table(&worse).contains("WORSE, with 95 % confidence"));
    let better = judged(&slow, &fast);
    assert_eq!(better.verdict, Overall::Better, "{}", table(&better));

    // A rate is better when it is higher.
    let mut rich = fast.clone();
    for run in &mut rich {
        run.rate = 2.0;
    }
    assert_eq!(judged(&fast, &rich).verdict, Overall::Better);
    assert_eq!(judged(&rich, &fast).verdict, Overall::Worse);
    // A tolerated difference does not count.
    let rule = Rule { tolerance: 0.5, ..Rule::default() };
    assert_eq!(compare(&fast, &slow, rule).unwrap().verdict, Overall::Same);
}

#[test]
fn equal_sets_are_told_apart_no_more_often_than_stated() {
    let mut random = Rng::with_seed(5);
    let trials = 400;
    let differ = (0..trials)
        .filter(|_| {
            let (base, new) = (set(&mut random, 5, 100.0), set(&mut random, 5, 100.0));
            let verdict = judged(&base, &new).verdict;
            assert_ne!(verdict, Overall::None);
            verdict != Overall::Same
        })
        .count();
    // 5 % of 400, plus two standard deviations; the seed is fixed.
    assert!(differ <= 20 + 9, "{differ} of {trials}");
}

#[test]
fn a_difference_of_six_deviations_is_found_nearly_always() {
    let mut random = Rng::with_seed(6);
    let found = (0..100)
        .filter(|_| {
            let (base, new) = (set(&mut random, 5, 100.0), set(&mut random, 5, 135.0));
            judged(&base, &new).verdict == Overall::Worse
        })
        .count();
    assert!(found >= 95, "{found} of 100");
}

#[test]
fn nothing_is_claimed_from_single_runs_or_too_few_or_a_slow_generator() {
    let mut random = Rng::with_seed(7);
    let (base, new) = (set(&mut random, 5, 100.0), set(&mut random, 5, 900.0));
    for (count, word) in [(1, "one run"), (2, "too few"), (3, "5 in each set")] {
        let found = judged(&base[..count], &new[..count]);
        assert_eq!(found.verdict, Overall::None, "{}", table(&found));
        assert!(found.no_verdict.as_deref().unwrap().contains(word), "{}", table(&found));
        assert!(!table(&found).contains("WORSE"), "{}", table(&found));
    }
    let mut bound = new.clone();
    bound[3].generator.bottleneck = Some("busy".to_owned());
    assert_eq!(judged(&base, &bound).verdict, Overall::None);
    assert_eq!(judged(&base, &new).verdict, Overall::Worse);
    let mut other = new.clone();
    other[2].config.connections = 9;
    let error = compare(&base, &other, Rule::default()).unwrap_err().to_string();
    assert!(error.contains("run 3 of the new") && error.contains("connections"), "{error}");
}

#[test]
fn one_set_after_the_other_is_remarked_on() {
    let mut random = Rng::with_seed(8);
    let (mut base, mut new) = (set(&mut random, 5, 100.0), set(&mut random, 5, 100.0));
    let order = |runs: &mut [Run], first: u64, step: u64| {
        for (at, run) in runs.iter_mut().enumerate() {
            run.started_unix_ns = first + at as u64 * step;
        }
    };
    order(&mut base, 1000, 2);
    order(&mut new, 1001, 2);
    assert!(judged(&base, &new).notes.is_empty());
    order(&mut new, 2000, 2);
    assert!(judged(&base, &new).notes[0].contains("alternate"));
}

#[test]
fn a_folder_keeps_runs_and_shows_their_trend_by_commit() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Rng::with_seed(9);
    for (at, (commit, micros)) in
        [("aaa", 100.0), ("aaa", 100.0), ("bbb", 100.0), ("../c c", 400.0)].into_iter().enumerate()
    {
        let mut run = drawn(&mut random, micros);
        run.started_unix_ns = 1_000_000 + at as u64;
        run.program.commit = Some(commit.to_owned());
        let path = trend::keep(folder.path(), &run).unwrap();
        assert_eq!(path.parent().unwrap(), folder.path());
        assert_eq!(trend::keep(folder.path(), &run).unwrap(), path);
    }
    let mut other = drawn(&mut random, 100.0);
    other.config.rate = Some(5000.0);
    other.config.arrivals = Some("poisson".to_owned());
    trend::keep(folder.path(), &other).unwrap();

    let trends = trend::trends(&trend::load(folder.path()).unwrap());
    assert_eq!(trends.len(), 2);
    let points = &trends[0].points;
    let seen: Vec<(&str, usize)> = points.iter().map(|it| (it.commit.as_str(), it.runs)).collect();
    assert_eq!(seen, [("aaa", 2), ("bbb", 1), ("../c c", 1)]);
    assert!(points[2].p50_ns > 3.0 * points[0].p50_ns, "{points:?}");
    let text = trend::table(&trends);
    assert!(text.contains("5000 req/s poisson") && text.contains('█'), "{text}");
    assert!(points[0].runs == 2 && text.contains("aaa"), "{text}");

    std::fs::write(folder.path().join("x.json"), "{}").unwrap();
    let error = trend::load(folder.path()).unwrap_err().to_string();
    assert!(error.contains("x.json"), "{error}");
}

#[test]
fn a_sparkline_begins_at_zero() {
    assert_eq!(trend::sparkline([100.0, 98.0, 50.0, 0.0].into_iter()), "██▅▁");
    assert_eq!(trend::sparkline([0.0, 0.0].into_iter()), "▁▁");
}
