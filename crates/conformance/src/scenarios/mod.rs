//! Every scenario, grouped by what goes wrong.
//!
//! A client may connect when it is made or when it is first asked, may have one request in flight
//! or many, may merge callers or not, and may ask behind its hello without waiting for the
//! welcome. No scenario takes one for the other.

mod answers;
mod callers;
mod clusters;
mod deadlines;
mod finding;
mod refusals;
mod wire;

use std::time::Duration;

use crate::Verdict;
use crate::suite::{Clause, Scenario};

/// All of them, clause by clause.
#[must_use]
pub fn all() -> Vec<Scenario> {
    let parts = [
        callers::SCENARIOS,
        finding::SCENARIOS,
        deadlines::SCENARIOS,
        clusters::SCENARIOS,
        answers::SCENARIOS,
        wire::SCENARIOS,
        refusals::SCENARIOS,
    ];
    let mut all: Vec<Scenario> = parts.concat();
    all.sort_by_key(|scenario| scenario.clause);
    all
}

/// The ones with these names.
///
/// # Errors
/// With a name that none has.
pub fn named(names: &[&str]) -> Result<Vec<Scenario>, String> {
    let all = all();
    let find = |name: &&str| {
        let found = all.iter().find(|scenario| scenario.name == *name).copied();
        found.ok_or_else(|| format!("there is no scenario {name:?}"))
    };
    names.iter().map(find).collect()
}

/// Which clause a scenario belongs to, what it is called, and what happens: for the lists.
const fn scenario(
    clause: u8,
    name: &'static str,
    play: fn(&mut crate::stage::Stage) -> Verdict,
) -> Scenario {
    Scenario { name, clause: Clause(clause), play }
}

/// Fails unless it holds.
fn hold(holds: bool, otherwise: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(otherwise()) }
}

/// Plays it again, [`TRIES`] times at most, as long as it was only late: a machine that stalls is
/// late now and then, a client that is late by its making is late every time.
fn one_in_time(mut play: impl FnMut() -> Result<Verdict, String>) -> Verdict {
    let mut late = Ok(());
    for _ in 0..TRIES {
        late = play()?;
        if late.is_ok() {
            break;
        }
    }
    late
}

/// How long to wait for a request that a client need not send.
const QUIET: Duration = Duration::from_millis(120);
/// How much later than it should anything may happen on a busy machine.
const SLACK: Duration = Duration::from_millis(150);
/// How often at most that is looked at.
const TRIES: u32 = 3;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_clause_has_a_scenario_and_every_scenario_a_name_of_its_own() {
        let all = all();
        let names: HashSet<_> = all.iter().map(|scenario| scenario.name).collect();
        assert_eq!(names.len(), all.len());
        let clauses: HashSet<_> = all.iter().map(|scenario| scenario.clause.0).collect();
        assert_eq!(clauses, (1..=12).collect());
    }

    #[test]
    fn a_name_that_no_scenario_has_is_said() {
        assert!(named(&["callers_share_requests_across_lost_connections", "nothing"]).is_err());
    }
}
