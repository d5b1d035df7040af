//! Measures how long clients get no answer when wall clocks are wrong by hours. Needs a test build,
//! because only that can break its clock.

use std::time::{Duration, Instant};

use crate::support::watch::is_at_wall_time;
use crate::support::{Cluster, Faults, Silence, WAIT_MAX, Watch, alone, let_pass, wait_until};

/// How long a clock stays broken.
const BROKEN: Duration = Duration::from_secs(2);
/// Longest time without an answer, ms: as long as a change of leadership may take.
const SILENCE_MS: u64 = 1400;

/// The clock of the leader steps five hours back, then the clock of the next leader five hours
/// ahead. One of the three clocks stays right, and it is the median. Clients are without an answer
/// for at most 1.4 s, and every epoch stays near wall time.
#[test]
fn leaders_whose_clocks_step_five_hours_back_and_ahead_are_not_followed() {
    let _alone = alone();
    let mut cluster = Cluster::start();
    let watch = Watch::start(&cluster);
    let from = Instant::now();
    for hours in [-5, 5] {
        let broken = cluster.wait_for_leader();
        cluster.nodes[broken].break_with(Faults::wall_offset_hours(hours));
        let_pass(BROKEN);
        watch.wait_for_service_since(Instant::now());
        cluster.wait_for_leader_other_than(Some(broken), WAIT_MAX);
    }
    cluster.nodes.iter().for_each(|node| node.break_with(Faults::NONE));
    let_pass(BROKEN / 2);
    watch.wait_for_service_since(Instant::now());
    let to = Instant::now();
    cluster.assert_well();
    wait_until("epochs are at wall time", WAIT_MAX, || is_at_wall_time(&cluster));
    let seen = watch.finish();
    seen.assert_epochs_at_wall_time();
    Silence::of("clock hours off", &seen, &[(from, to)]).assert_within(SILENCE_MS);
}
