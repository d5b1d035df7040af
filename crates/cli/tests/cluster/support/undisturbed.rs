//! Repeats tests about leadership on a machine that sometimes stalls for longer than an election
//! timeout. Then a node rightly campaigns although no one asked it to, and leadership moves. If a
//! test fails and there was such a campaign, it runs again, at most twice. If there was none, it
//! fails at once.

use super::{Cluster, say};

/// A test runs at most this many times.
const RUNS_MAX: usize = 3;

/// A node campaigned without being asked to, so this run proves nothing.
#[must_use]
pub(crate) struct Disturbed;

/// Runs a test until a run is not disturbed.
///
/// # Panics
/// Every run was disturbed.
#[track_caller]
pub(crate) fn undisturbed(test: impl FnMut() -> Result<(), Disturbed>) {
    let is_done = first_undisturbed(test);
    assert!(is_done.is_ok(), "{RUNS_MAX} times a node campaigned without being asked to");
}

fn first_undisturbed(mut test: impl FnMut() -> Result<(), Disturbed>) -> Result<(), Disturbed> {
    for _ in 0..RUNS_MAX {
        if test().is_ok() {
            return Ok(());
        }
        say("a node has campaigned without being asked to: the test runs again");
    }
    Err(Disturbed)
}

/// The number of campaigns of all nodes up to the moment at which this was created.
pub(crate) struct Campaigns(usize);

impl Campaigns {
    pub(crate) fn so_far(cluster: &Cluster) -> Self {
        let of = |log: String| log.matches("this node campaigns\"").count();
        Self(cluster.nodes.iter().map(|node| of(node.log())).sum())
    }

    /// Judges a run. `holds` says whether the condition that `what` describes has held since this
    /// was created. If it has not, and nodes campaigned more than `asked` times, the run was
    /// disturbed. `asked` is how often leadership had to move, by command or because of a fault.
    /// Each such move makes a node campaign.
    ///
    /// # Panics
    /// `holds` is false, although there were no further campaigns. The message contains `what`.
    #[track_caller]
    pub(crate) fn judge(
        &self,
        cluster: &Cluster,
        asked: usize,
        holds: bool,
        what: &str,
    ) -> Result<(), Disturbed> {
        if holds {
            return Ok(());
        }
        let since = Self::so_far(cluster).0 - self.0;
        assert!(since > asked, "not so: {what}; {since} campaigns, {asked} of them asked for");
        Err(Disturbed)
    }
}

#[test]
fn a_disturbed_story_runs_again_and_three_times_at_most() {
    let mut runs = 0;
    undisturbed(|| {
        runs += 1;
        if runs < RUNS_MAX { Err(Disturbed) } else { Ok(()) }
    });
    assert_eq!(runs, RUNS_MAX);
    let never = first_undisturbed(|| {
        runs += 1;
        Err(Disturbed)
    });
    assert!(never.is_err(), "a test that is always disturbed shows nothing");
    assert_eq!(runs, 2 * RUNS_MAX);
}
