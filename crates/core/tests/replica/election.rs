//! Who leads, who may stamp, and who may not any more.

use crate::support::{ELECTION_TICKS, World};

#[test]
fn three_replicas_elect_one_leader_that_gets_a_grant() {
    for seed in 0..50 {
        let mut world = World::started(seed, 3);
        let leader = world.elect();
        assert!(world.now_ns < 6 * ELECTION_TICKS as u64 * crate::support::TICK_NS, "seed {seed}");
        world.ask(leader, 0, 3);
        world.run(crate::support::TICK_NS);
        assert_eq!(world.history.answered, 1, "seed {seed}");
        assert_eq!(world.history.leaderships(), 1, "seed {seed}");
    }
}
