//! Compares two sets of repeated runs, with a stated confidence. Each figure of each run is one
//! observation. The exact rank test ([`crate::rank`]) compares one figure of both sets. Holm's
//! method (1979) judges all figures together, so that the stated confidence holds for the
//! comparison as a whole. Single runs give no verdict, because one run does not show how runs vary.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use thiserror::Error;

use crate::latency::{quantile, shown};
use crate::rank::{self, median};
use crate::record::{FORMAT, Run};

/// How to judge a difference.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Probability, `0.5..1.0`, that two equal sets are not called different. Default 0.95.
    pub confidence: f64,
    /// A difference up to this share is ignored, even if it is certain. Default 0.
    pub tolerance: f64,
}

impl Default for Rule {
    fn default() -> Self {
        Self { confidence: 0.95, tolerance: 0.0 }
    }
}

/// Why runs cannot be compared. The messages say what to do.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompareError {
    /// A set has no run. Give each set at least one.
    #[error("a set without a run")]
    Empty,
    /// A run was made with other settings. Measure again with equal settings.
    #[error("run {run} of the {set} was made with other settings: {what}")]
    OtherSettings {
        /// `base` or `new`.
        set: &'static str,
        /// Position of the run in the set, from 1.
        run: usize,
        /// The setting that differs.
        what: String,
    },
    /// A run has no answers, or wrong ones.
    #[error("run {run} of the {set} has no answers, or wrong ones: there is nothing to compare")]
    Unusable {
        /// `base` or `new`.
        set: &'static str,
        /// Position of the run in the set, from 1.
        run: usize,
    },
}

/// The result of a comparison.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The verdict on all figures together.
    pub verdict: Overall,
    /// Why there is no verdict, if there is none.
    pub no_verdict: Option<String>,
    /// What limits the verdict.
    pub notes: Vec<String>,
    /// The confidence asked for.
    pub confidence: f64,
    /// Number of runs of each set.
    pub runs: [usize; 2],
    /// The figures one by one.
    pub figures: Vec<Figure>,
}

/// A verdict on one figure or on all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overall {
    /// No difference can be claimed.
    Same,
    /// Something is better and nothing is worse.
    Better,
    /// Something is worse.
    Worse,
    /// There is no verdict.
    None,
}

/// One figure of both sets.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Name of the figure.
    pub name: &'static str,
    /// `ns`, `per_second` or `share`.
    pub unit: &'static str,
    /// The values, one for each run of the base.
    pub base: Vec<f64>,
    /// The values, one for each run of the new set.
    pub new: Vec<f64>,
    /// Median of all ratios of new to base.
    pub ratio: f64,
    /// p-value of the rank test, before Holm's correction.
    pub p: f64,
    /// The verdict on this figure.
    pub verdict: Overall,
}

/// Compares two sets of runs.
///
/// # Errors
/// The runs have different settings, or a set has nothing to compare.
pub fn compare(base: &[Run], new: &[Run], rule: Rule) -> Result<Comparison, CompareError> {
    let first = base.first().ok_or(CompareError::Empty)?;
    if new.is_empty() {
        return Err(CompareError::Empty);
    }
    for (set, runs) in [("base", base), ("new", new)] {
        for (at, run) in runs.iter().enumerate() {
            if let Some(what) = first.unlike(run) {
                return Err(CompareError::OtherSettings { set, run: at + 1, what });
            }
            let wrong = run.verify.as_ref().is_some_and(|it| it.violations > 0);
            if run.answers == 0 || wrong {
                return Err(CompareError::Unusable { set, run: at + 1 });
            }
        }
    }
    let mut figures: Vec<Figure> = FIGURES
        .iter()
        .filter(|kind| !kind.closed_only || first.config["rate"].is_null())
        .map(|kind| kind.of(base, new))
        .collect();
    let no_verdict = why_no_verdict(base, new, figures.len(), rule);
    if no_verdict.is_none() {
        judge(&mut figures, rule);
    }
    let any = |wanted| figures.iter().any(|figure| figure.verdict == wanted);
    let verdict = match (&no_verdict, any(Overall::Worse), any(Overall::Better)) {
        (Some(_), ..) => Overall::None,
        (None, true, _) => Overall::Worse,
        (None, false, true) => Overall::Better,
        (None, false, false) => Overall::Same,
    };
    Ok(Comparison {
        verdict,
        no_verdict,
        notes: notes(base, new),
        confidence: rule.confidence,
        runs: [base.len(), new.len()],
        figures,
    })
}

fn why_no_verdict(base: &[Run], new: &[Run], figures: usize, rule: Rule) -> Option<String> {
    let bound = |runs: &[Run]| runs.iter().any(|run| run.generator.bottleneck.is_some());
    if bound(base) || bound(new) {
        return Some("the generator was the bottleneck in one of the runs".to_owned());
    }
    if base.len() == 1 || new.len() == 1 {
        return Some("one run says nothing about how runs vary; repeat it".to_owned());
    }
    let alpha = 1.0 - rule.confidence;
    let enough = |count| rank::smallest_p(count, count) * figures as f64 <= alpha;
    if rank::smallest_p(base.len(), new.len()) * figures as f64 <= alpha {
        return None;
    }
    let needed = (2..RUNS_MAX).find(|count| enough(*count)).unwrap_or(RUNS_MAX);
    Some(format!(
        "too few runs for a confidence of {} %: even sets that are fully apart could be chance; \
         {needed} in each set are enough",
        rule.confidence * 100.0
    ))
}

/// Holm's method. Goes through the figures from the smallest `p` upwards. Each counts as different
/// as long as its `p` is small enough for the number of figures that are left.
fn judge(figures: &mut [Figure], rule: Rule) {
    let alpha = 1.0 - rule.confidence;
    let mut order: Vec<usize> = (0..figures.len()).collect();
    order.sort_by(|a, b| figures[*a].p.total_cmp(&figures[*b].p));
    for (done, at) in order.iter().enumerate() {
        if figures[*at].p * (figures.len() - done) as f64 > alpha {
            return;
        }
        let figure = &mut figures[*at];
        let higher_is_better = figure.unit == PER_SECOND;
        let (up, down) = (1.0 + rule.tolerance, 1.0 / (1.0 + rule.tolerance));
        figure.verdict = match (figure.ratio > up, figure.ratio < down) {
            (true, _) if higher_is_better => Overall::Better,
            (true, _) => Overall::Worse,
            (_, true) if higher_is_better => Overall::Worse,
            (_, true) => Overall::Better,
            (false, false) => Overall::Same,
        };
    }
}

fn notes(base: &[Run], new: &[Run]) -> Vec<String> {
    let mut notes = Vec::new();
    let starts = |runs: &[Run]| {
        let starts = runs.iter().map(|run| run.started_unix_ns);
        (starts.clone().min().unwrap_or(0), starts.max().unwrap_or(0))
    };
    let ((base_first, base_last), (new_first, new_last)) = (starts(base), starts(new));
    if base_last < new_first || new_last < base_first {
        notes.push(
            "one set ran before the other: whatever changed on the machine meanwhile is taken for \
             a difference; alternate the runs"
                .to_owned(),
        );
    }
    let machine =
        |run: &Run| (run.machine.cpu.clone(), run.machine.cpus, run.machine.kernel.clone());
    if base.iter().chain(new).any(|run| machine(run) != machine(&base[0])) {
        notes.push("the runs are of different machines or kernels".to_owned());
    }
    notes
}

/// A figure that is compared.
struct Kind {
    name: &'static str,
    unit: &'static str,
    /// Whether the figure counts only for closed loops. In an open loop the rate is a setting and
    /// not a result.
    closed_only: bool,
    read: fn(&Run) -> f64,
}

impl Kind {
    fn of(&self, base: &[Run], new: &[Run]) -> Figure {
        let of = |runs: &[Run]| runs.iter().map(self.read).collect::<Vec<f64>>();
        let (base, new) = (of(base), of(new));
        let found = rank::difference(&base, &new).expect("neither set is empty");
        let (name, unit, verdict) = (self.name, self.unit, Overall::Same);
        Figure { name, unit, base, new, ratio: found.ratio, p: found.p, verdict }
    }
}

fn at(run: &Run, share: f64) -> f64 {
    quantile(&run.latency_ns.0, share).as_nanos() as f64
}

/// Returns the comparison as a table for people.
#[must_use]
pub fn table(comparison: &Comparison) -> String {
    let [base, new] = comparison.runs;
    let mut text = format!("{base} runs of the base, {new} new ones\n\n");
    let _infallible = writeln!(
        text,
        "{:<10} {:>10} {:>23} {:>10} {:>23} {:>8} {:>7}  verdict",
        "median of", "base", "from to", "new", "from to", "new/base", "p"
    );
    for figure in &comparison.figures {
        let show = |value: f64| shown_in(figure.unit, value);
        let span = |set: &[f64]| {
            let low = set.iter().copied().fold(f64::INFINITY, f64::min);
            let high = set.iter().copied().fold(0.0, f64::max);
            format!("{} - {}", show(low), show(high))
        };
        let verdict = match (comparison.verdict, figure.verdict) {
            (Overall::None, _) | (_, Overall::None) => "no verdict",
            (_, Overall::Same) => "no difference",
            (_, Overall::Better) => "better",
            (_, Overall::Worse) => "WORSE",
        };
        let _infallible = writeln!(
            text,
            "{:<10} {:>10} {:>23} {:>10} {:>23} {:>8.3} {:>7.4}  {verdict}",
            figure.name,
            show(median(figure.base.clone())),
            span(&figure.base),
            show(median(figure.new.clone())),
            span(&figure.new),
            figure.ratio,
            figure.p,
        );
    }
    let percent = comparison.confidence * 100.0;
    let verdict = match comparison.verdict {
        Overall::Same => format!("no difference can be claimed with {percent} % confidence"),
        Overall::Better => format!("better, with {percent} % confidence"),
        Overall::Worse => format!("WORSE, with {percent} % confidence"),
        Overall::None => {
            format!("no verdict: {}", comparison.no_verdict.as_deref().unwrap_or_default())
        }
    };
    let _infallible = writeln!(text, "\n{verdict}");
    for note in &comparison.notes {
        let _infallible = writeln!(text, "note: {note}");
    }
    text
}

/// The comparison as JSON, with every figure of every run.
#[must_use]
pub fn document(comparison: &Comparison) -> Value {
    let figure = |it: &Figure| {
        json!({
            "name": it.name,
            "unit": it.unit,
            "base": it.base,
            "new": it.new,
            "ratio": it.ratio,
            "p": it.p,
            "verdict": it.verdict.name(),
        })
    };
    json!({
        "format": FORMAT,
        "kind": "comparison",
        "verdict": comparison.verdict.name(),
        "no_verdict": comparison.no_verdict,
        "notes": comparison.notes,
        "confidence": comparison.confidence,
        "runs": comparison.runs,
        "figures": comparison.figures.iter().map(figure).collect::<Vec<_>>(),
    })
}

impl Overall {
    /// The verdict in one word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Better => "better",
            Self::Worse => "worse",
            Self::None => "none",
        }
    }
}

fn shown_in(unit: &str, value: f64) -> String {
    match unit {
        NANOS => shown(Duration::from_nanos(value as u64)),
        PER_SECOND => format!("{value:.0}"),
        _ => format!("{:.3} %", value * 100.0),
    }
}

const NANOS: &str = "ns";
const PER_SECOND: &str = "per_second";
const SHARE: &str = "share";
/// The figures that are compared. The maximum is not among them, because it varies without bound
/// between equal services.
const FIGURES: [Kind; 5] = [
    Kind { name: "rate", unit: PER_SECOND, closed_only: true, read: |run| run.rate },
    Kind { name: "p50", unit: NANOS, closed_only: false, read: |run| at(run, 0.5) },
    Kind { name: "p99", unit: NANOS, closed_only: false, read: |run| at(run, 0.99) },
    Kind { name: "p99.9", unit: NANOS, closed_only: false, read: |run| at(run, 0.999) },
    Kind { name: "failed", unit: SHARE, closed_only: false, read: |run| run.failure_share },
];
/// A set has at most this many runs. With so many runs the rank test still counts all permutations
/// within a second.
pub const RUNS_MAX: usize = 100;
