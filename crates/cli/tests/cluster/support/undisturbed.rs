//! Stories of who leads, on a machine that now and then stands still for longer than an election
//! timeout: then somebody campaigns whom nobody has asked, rightly, and what the story says of the
//! leader need not hold. Such a story is told again, twice at most; without such a campaign it has
//! failed at once.

use super::{Cluster, say};

/// How often a story is told at most.
const TELLINGS: usize = 3;

/// Somebody campaigned whom nobody had asked, so this telling says nothing.
#[must_use]
pub(crate) struct Disturbed;

/// Tells a story until a telling is not disturbed.
///
/// # Panics
/// When each was.
#[track_caller]
pub(crate) fn undisturbed(story: impl FnMut() -> Result<(), Disturbed>) {
    let told = first_undisturbed(story);
    assert!(told.is_ok(), "{TELLINGS} times somebody campaigned whom nobody had asked");
}

fn first_undisturbed(mut story: impl FnMut() -> Result<(), Disturbed>) -> Result<(), Disturbed> {
    for _ in 0..TELLINGS {
        if story().is_ok() {
            return Ok(());
        }
        say("a node has campaigned whom nobody had asked: told again");
    }
    Err(Disturbed)
}

/// How often the nodes had campaigned at one moment.
pub(crate) struct Campaigns(usize);

impl Campaigns {
    pub(crate) fn so_far(cluster: &Cluster) -> Self {
        let of = |log: String| log.matches("this node campaigns\"").count();
        Self(cluster.nodes.iter().map(|node| of(node.log())).sum())
    }

    /// Judges what was found since then: it holds, or was disturbed. `asked` is how often
    /// leadership was asked to move meanwhile, or had to, each of which makes somebody campaign.
    ///
    /// # Panics
    /// With `what` should have held, when it does not and nobody campaigned beyond that.
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
fn a_story_is_told_again_when_it_was_disturbed_and_three_times_at_most() {
    let mut tellings = 0;
    undisturbed(|| {
        tellings += 1;
        if tellings < TELLINGS { Err(Disturbed) } else { Ok(()) }
    });
    assert_eq!(tellings, TELLINGS);
    let never = first_undisturbed(|| {
        tellings += 1;
        Err(Disturbed)
    });
    assert!(never.is_err(), "a story that is always disturbed shows nothing");
    assert_eq!(tellings, 2 * TELLINGS);
}
