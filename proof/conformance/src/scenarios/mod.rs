//! All scenarios, grouped by what goes wrong in them.
//!
//! A client may connect when it is made or at its first call. It may have one or more requests in
//! flight, may merge callers, and may send requests before the welcome. Scenarios accept all of
//! these clients.

mod answers;
mod callers;
mod clusters;
mod compact;
mod deadlines;
mod expect;
mod finding;
mod guarantees;
mod intervals;
mod latest;
mod refusals;
mod wire;

use crate::suite::Scenario;

/// All scenarios, clause by clause.
#[must_use]
pub fn all() -> Vec<Scenario> {
    let parts = [
        callers::SCENARIOS,
        finding::SCENARIOS,
        deadlines::SCENARIOS,
        clusters::SCENARIOS,
        compact::SCENARIOS,
        answers::SCENARIOS,
        latest::SCENARIOS,
        guarantees::SCENARIOS,
        wire::SCENARIOS,
        refusals::SCENARIOS,
    ];
    let mut all: Vec<Scenario> = parts.concat();
    all.sort_by_key(|scenario| scenario.clause);
    all
}

/// The scenarios of interval mode. Only clients that have it over the native protocol play them.
#[must_use]
pub fn intervals() -> Vec<Scenario> {
    intervals::SCENARIOS.to_vec()
}

/// Returns the scenarios with these names.
///
/// # Errors
/// The first unknown name.
pub fn named(names: &[&str]) -> Result<Vec<Scenario>, String> {
    let all = [all(), intervals()].concat();
    let find = |name: &&str| {
        let found = all.iter().find(|scenario| scenario.name == *name).copied();
        found.ok_or_else(|| format!("there is no scenario {name:?}"))
    };
    names.iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_clause_has_a_scenario_and_every_scenario_a_name_of_its_own() {
        let all = [all(), intervals()].concat();
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
