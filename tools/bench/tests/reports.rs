//! Tests of the comparison of reports. The latencies are drawn from known distributions, so the
//! right result is known.

use std::time::Duration;

use epicepoch_bench::compare::{Comparison, Overall, Rule, compare, table};
use epicepoch_bench::encoded::Times;
use epicepoch_bench::latency;
use epicepoch_bench::record::{FORMAT, RecordError, Run};
use fastrand::Rng;
use serde_json::json;

/// A normally distributed number, by the method of Box and Muller.
fn normal(random: &mut Rng) -> f64 {
    (-2.0 * (1.0 - random.f64()).ln()).sqrt() * (std::f64::consts::TAU * random.f64()).cos()
}

/// Draws a run whose median is around `micros`. The medians of runs vary by 5 %, the latencies
/// within a run by a factor of 2.
fn drawn(random: &mut Rng, micros: f64) -> Run {
    let middle = micros * 1e3 * (0.05 * normal(random)).exp();
    let mut latencies = latency::histogram();
    for _ in 0..300 {
        let nanos = middle * (0.7 * normal(random)).exp();
        latency::record(&mut latencies, Duration::from_nanos(nanos as u64));
    }
    let config = json!({"targets": [{}], "rate": null, "connections": 8, "spin": false});
    Run {
        format: FORMAT,
        started_unix_ns: random.u64(0..1_000_000_000_000),
        config: config.as_object().unwrap().clone(),
        answers: latencies.len(),
        rate: 1.0,
        latency_ns: Times(latencies),
        ..Run::default()
    }
}

fn set(random: &mut Rng, runs: usize, micros: f64) -> Vec<Run> {
    (0..runs).map(|_| drawn(random, micros)).collect()
}

fn judged(base: &[Run], new: &[Run]) -> Comparison {
    compare(base, new, Rule::default()).unwrap()
}

#[test]
fn runs_with_other_settings_or_formats_are_not_compared() {
    let mut random = Rng::with_seed(6);
    let (base, mut new) = (drawn(&mut random, 100.0), drawn(&mut random, 100.0));
    new.config["targets"] = json!([{"addr": "another"}]);
    assert_eq!(base.unlike(&new), None);
    new.config["targets"] = json!([{}, {}]);
    assert_eq!(base.unlike(&new).as_deref(), Some("targets is 2, not 1"));
    let mut new = base.clone();
    new.config.insert("verify".to_owned(), true.into());
    assert_eq!(base.unlike(&new).as_deref(), Some("verify is true, not null"));
    assert!(matches!(Run::parse("{\"format\": 1}"), Err(RecordError::Format(1))));
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

    // The next two sets differ only in the rate, and a higher rate is better.
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
    // At a confidence of 95 %, 20 of 400 trials may differ by chance. 9 are two standard
    // deviations. The seed is fixed, so the result is the same in every run.
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
    other[2].config["connections"] = 9.into();
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
