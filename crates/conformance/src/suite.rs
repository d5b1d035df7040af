//! How scenarios are run: each with a driver process of its own, one after another, so that none
//! measures another.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::Verdict;
use crate::driver::DriverCommand;
use crate::stage::Stage;

/// A story, and what it proves.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// The claim, as a test is named.
    pub name: &'static str,
    /// The clause of the contract in `clients/README.md`.
    pub clause: Clause,
    /// What happens.
    pub play: fn(&mut Stage) -> Verdict,
}

/// A clause of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Clause(pub u8);

/// What came of one scenario.
#[derive(Clone, Debug)]
pub struct Played {
    /// Which.
    pub name: &'static str,
    /// Its clause.
    pub clause: Clause,
    /// Whether the client holds it.
    pub verdict: Verdict,
    /// How long it took.
    pub took: Duration,
}

impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("C{}", self.0))
    }
}

impl fmt::Debug for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.clause, self.name)
    }
}

impl fmt::Display for Played {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, clause, verdict, took } = self;
        let ms = took.as_millis();
        match verdict {
            Ok(()) => write!(f, "ok      {clause:<4} {name} ({ms} ms)"),
            Err(why) => write!(f, "BROKEN  {clause:<4} {name} ({ms} ms)\n        {why}"),
        }
    }
}

/// Plays one scenario with a driver.
#[must_use]
pub fn play(command: &DriverCommand, scenario: &Scenario) -> Played {
    let began = Instant::now();
    let story = AssertUnwindSafe(|| {
        let mut stage = Stage::new(command)?;
        (scenario.play)(&mut stage)?;
        stage.finish()
    });
    let verdict = catch_unwind(story).unwrap_or_else(|_| Err("the scenario panicked".to_owned()));
    let Scenario { name, clause, .. } = *scenario;
    Played { name, clause, verdict, took: began.elapsed() }
}

/// Plays these scenarios and tells of each as it ends.
pub fn play_all(
    command: &DriverCommand,
    scenarios: &[Scenario],
    mut tell: impl FnMut(&Played),
) -> Vec<Played> {
    let each = scenarios.iter().map(|scenario| {
        let played = play(command, scenario);
        tell(&played);
        played
    });
    each.collect()
}
