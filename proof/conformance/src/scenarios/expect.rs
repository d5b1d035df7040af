//! Parts that scenarios share: their list entries, checks, and waiting times.

use std::time::Duration;

use crate::Verdict;
use crate::scene::Scene;
use crate::suite::{Clause, Scenario};

/// Makes an entry of a list of scenarios, from clause, name and function.
pub(super) const fn scenario(
    clause: u8,
    name: &'static str,
    play: fn(&mut Scene) -> Verdict,
) -> Scenario {
    Scenario { name, clause: Clause(clause), play }
}

/// Returns an error unless `holds`.
pub(super) fn hold(holds: bool, otherwise: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(otherwise()) }
}

/// Plays a scenario up to [`TRIES`] times, until the client is in time. A client on a machine that
/// stalls is late sometimes, but a slow client is late every time.
pub(super) fn one_in_time(mut play: impl FnMut() -> Result<Verdict, String>) -> Verdict {
    let mut late = Ok(());
    for _ in 0..TRIES {
        late = play()?;
        if late.is_ok() {
            break;
        }
    }
    late
}

/// How long to wait for a request that may not come.
pub(super) const QUIET: Duration = Duration::from_millis(120);
/// How late an event may come on a busy machine.
pub(super) const SLACK: Duration = Duration::from_millis(150);
/// A scenario that measures time is played at most this many times.
const TRIES: u32 = 3;
