//! Runs scenarios one after another, each with its own driver process. Scenarios measure times, so
//! only one runs at a time.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::Verdict;
use crate::driver::DriverCommand;
use crate::scene::Scene;

/// A scenario.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// What the scenario claims, as a name, like the name of a test.
    pub name: &'static str,
    /// The clause of the contract in `clients/README.md`.
    pub clause: Clause,
    /// Plays the scenario.
    pub play: fn(&mut Scene) -> Verdict,
}

/// A clause of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Clause(pub u8);

/// The result of a scenario.
#[derive(Clone, Debug)]
pub struct Played {
    /// Name of the scenario.
    pub name: &'static str,
    /// Clause of the scenario.
    pub clause: Clause,
    /// Whether the client passed.
    pub verdict: Verdict,
    /// Whether the client supports what the scenario tests. A client that does not support it
    /// passes.
    pub is_supported: bool,
    /// How long the scenario took.
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
        let Self { name, clause, verdict, is_supported, took } = self;
        let ms = took.as_millis();
        match verdict {
            Ok(()) if !is_supported => write!(f, "-       {clause:<4} {name}: not supported"),
            Ok(()) => write!(f, "ok      {clause:<4} {name} ({ms} ms)"),
            Err(why) => write!(f, "BROKEN  {clause:<4} {name} ({ms} ms)\n        {why}"),
        }
    }
}

/// Plays one scenario with a driver.
#[must_use]
pub fn play(command: &DriverCommand, scenario: &Scenario) -> Played {
    let began = Instant::now();
    let played = AssertUnwindSafe(|| {
        let mut scene = Scene::new(command)?;
        (scenario.play)(&mut scene)?;
        scene.finish()
    });
    let ended = catch_unwind(played).unwrap_or_else(|_| Err("the scenario panicked".to_owned()));
    let is_supported = ended != Ok(false);
    let verdict = ended.map(drop);
    let Scenario { name, clause, .. } = *scenario;
    Played { name, clause, verdict, is_supported, took: began.elapsed() }
}

/// Plays these scenarios, and reports each one when it ends.
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
