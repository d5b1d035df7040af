//! What a topology should cost, without a process: `p50 = rtt(client, leader) + quorum(leader)`.
//! All times are milliseconds. The floor, what the machine itself costs, is added by the caller.

use crate::topology::{Mode, Topology};

/// A measured p50 above this factor times the expected one, plus [`SLACK_MS`], is marked.
pub const SLACK: f64 = 1.2;
/// See [`SLACK`].
pub const SLACK_MS: f64 = 1.0;
/// A silence above this factor times the expected one, plus [`SILENCE_SLACK_MS`], is a problem. The
/// expected one is that of an election at the first attempt.
pub const SILENCE_SLACK: f64 = 2.0;
/// Room for stalls of this machine, and for a client that waits for a node that does not answer. See
/// [`SILENCE_SLACK`].
pub const SILENCE_SLACK_MS: f64 = 1000.0;

/// The round trip from the leader to the voter that completes a majority of *all* voters, if only
/// `alive` can be reached. `None` if they are no majority.
#[must_use]
pub fn quorum_ms(topology: &Topology, leader: u64, alive: &[u64]) -> Option<f64> {
    let here = topology.region_of(leader);
    let others = alive.iter().filter(|node| **node != leader);
    let mut trips: Vec<f64> =
        others.map(|node| topology.round_trip_ms(here, topology.region_of(*node))).collect();
    trips.sort_by(f64::total_cmp);
    trips.get(topology.majority() - 2).copied()
}

/// What a timestamp costs a client of region `client` while `leader` leads and only `alive` can be
/// reached. `None` if they are no majority: then it is refused.
#[must_use]
pub fn answer_ms(topology: &Topology, client: usize, leader: u64, alive: &[u64]) -> Option<f64> {
    let trip = topology.round_trip_ms(client, topology.region_of(leader));
    Some(trip + quorum_ms(topology, leader, alive)?)
}

/// What a timestamp costs in a mode. See [`answer_ms`] and [`lease_ms`].
#[must_use]
pub fn mode_ms(
    topology: &Topology,
    mode: Mode,
    client: usize,
    leader: u64,
    alive: &[u64],
) -> Option<f64> {
    match mode {
        Mode::Quorum => answer_ms(topology, client, leader, alive),
        Mode::Lease => Some(lease_ms(topology, client, leader)),
        Mode::Forwarded => forwarded_ms(topology, client, leader, alive),
        Mode::Interval => Some(interval_ms(topology, client)),
    }
}

/// What a timestamp costs with a lease of the leader: no quorum is asked.
#[must_use]
pub fn lease_ms(topology: &Topology, client: usize, leader: u64) -> f64 {
    topology.round_trip_ms(client, topology.region_of(leader))
}

/// What a timestamp costs if the nearest node is asked, and sends the request on: the way to that
/// node, its way to the leader, and the quorum. `None` if `alive` are no majority.
#[must_use]
pub fn forwarded_ms(topology: &Topology, client: usize, leader: u64, alive: &[u64]) -> Option<f64> {
    let asked = topology.nearest(client);
    let here = topology.region_of(asked);
    let sent_on = if asked == leader { 0.0 } else { answer_ms(topology, here, leader, alive)? };
    let own = if asked == leader { quorum_ms(topology, leader, alive)? } else { 0.0 };
    Some(topology.round_trip_ms(client, here) + sent_on + own)
}

/// What an interval timestamp costs: the nearest node answers. The wait that follows is not counted.
#[must_use]
pub fn interval_ms(topology: &Topology, client: usize) -> f64 {
    let trips = topology.nodes.values().map(|region| topology.round_trip_ms(client, *region));
    trips.fold(f64::INFINITY, f64::min)
}

/// The mean over all clients, by weight, while every voter runs.
#[must_use]
pub fn weighted_ms(topology: &Topology, leader: u64) -> f64 {
    let all = topology.voters();
    let sum: f64 = topology.clients.values().map(|it| it.weight).sum();
    let cost = |client| answer_ms(topology, client, leader, &all).unwrap_or(f64::INFINITY);
    topology.clients.iter().map(|(client, it)| it.weight * cost(*client)).sum::<f64>() / sum
}

/// Regions with voters, the best place of the leader first. Equal ones stay in the file's order.
#[must_use]
pub fn places(topology: &Topology) -> Vec<(usize, f64)> {
    let cost = |region| weighted_ms(topology, topology.voters_in(region)[0]);
    let regions = topology.voting_regions().into_iter();
    let mut places: Vec<(usize, f64)> = regions.map(|region| (region, cost(region))).collect();
    places.sort_by(|one, other| one.1.total_cmp(&other.1));
    places
}

/// Region of the leader in the steps that have one leader: the file's, else the best.
#[must_use]
pub fn home(topology: &Topology) -> usize {
    topology.measure.leader.unwrap_or_else(|| places(topology)[0].0)
}

/// Whether the service goes on when these regions are lost.
#[must_use]
pub fn survives(topology: &Topology, lost: &[usize]) -> bool {
    topology.voters_outside(lost).len() >= topology.majority()
}

/// How long clients get no answer after the leader is lost silently: it is noticed after one and a
/// quarter of the election timeout, and six round trips later a client is answered again.
#[must_use]
pub fn silent_loss_ms(topology: &Topology, election_ms: f64) -> f64 {
    1.25 * election_ms + killed_ms(topology)
}

/// How long clients get no answer after the leader is killed, which closes its connections.
#[must_use]
pub fn killed_ms(topology: &Topology) -> f64 {
    6.0 * topology.longest_ms()
}

/// How long clients get no answer during a handover: as after a kill, there is nothing to notice, and
/// clients have to find the next leader.
#[must_use]
pub fn handover_ms(topology: &Topology) -> f64 {
    killed_ms(topology)
}

/// How long clients may wait when a region without the leader is lost: their longest answer once the
/// leader asks the voters that are left. 0 if no majority is left.
fn far_loss_ms(topology: &Topology, leader: u64, lost: usize) -> f64 {
    let alive = topology.voters_outside(&[lost]);
    let clients = topology.clients.keys().filter(|region| **region != lost);
    let answers = clients.filter_map(|client| answer_ms(topology, *client, leader, &alive));
    answers.fold(0.0, f64::max)
}

/// How long clients elsewhere get no answer when a region is lost.
#[must_use]
pub fn region_loss_ms(topology: &Topology, leader: u64, lost: usize, election_ms: f64) -> f64 {
    if topology.region_of(leader) == lost {
        silent_loss_ms(topology, election_ms)
    } else {
        far_loss_ms(topology, leader, lost)
    }
}

/// The longest answer while all voters run or one region is lost, wherever the leader is.
#[must_use]
pub fn longest_answer_ms(topology: &Topology) -> f64 {
    let losses = topology.voting_regions().into_iter().map(|region| vec![region]);
    let answers = losses.chain([Vec::new()]).flat_map(|lost| {
        let alive = topology.voters_outside(&lost);
        let clients = topology.clients.keys().filter(move |region| !lost.contains(region));
        clients.flat_map(move |client| {
            let of = |leader: &u64| answer_ms(topology, *client, *leader, &alive);
            alive.iter().filter_map(of).collect::<Vec<_>>()
        })
    });
    answers.fold(0.0, f64::max)
}

/// The lowest p50 that can be right, if the shortest way takes `answer_ms` without jitter. Below it,
/// the answer cannot have waited for a quorum.
#[must_use]
pub fn least_ms(answer_ms: f64) -> f64 {
    (answer_ms / SLACK - SLACK_MS).max(0.0)
}

/// The highest p50 that is not marked.
#[must_use]
pub fn bound_ms(expected_ms: f64) -> f64 {
    SLACK * expected_ms + SLACK_MS
}

/// The longest silence that is no problem.
#[must_use]
pub fn silence_bound_ms(expected_ms: f64) -> f64 {
    SILENCE_SLACK * expected_ms + SILENCE_SLACK_MS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin;

    /// Expected p50 of each region of clients (row) for a leader in each voting region (column).
    fn matrix(name: &str) -> Vec<Vec<f64>> {
        let topology = builtin::find(name).expect("built in");
        let all = topology.voters();
        let leaders = topology.voting_regions();
        let row = |client: &usize| {
            let cell = |region: &usize| {
                let leader = topology.voters_in(*region)[0];
                let ms = answer_ms(&topology, *client, leader, &all).expect("a majority");
                (ms * 10.0).round() / 10.0
            };
            leaders.iter().map(cell).collect()
        };
        topology.clients.keys().map(row).collect()
    }

    #[test]
    fn the_expectation_of_every_built_in_topology() {
        assert_eq!(matrix("one-zone"), [[0.8]]);
        let zones = [[1.3, 2.0, 2.8], [2.0, 1.3, 3.2], [2.4, 2.8, 1.7]];
        assert_eq!(matrix("three-zones"), zones);
        // Five voters: the second nearest of the four others.
        let five = [[1.3, 2.0, 2.8], [2.0, 1.3, 3.2], [2.4, 2.8, 1.7]];
        assert_eq!(matrix("five-in-three"), five);
        assert_eq!(matrix("two-near-one-far"), [[1.0, 60.0], [30.5, 30.5]]);
        assert_eq!(matrix("two-dc-50ms"), [[50.0, 50.0], [100.0, 0.0]]);
        // The mean jitter of 1 ms counts once per round trip between regions.
        let continents = [[81.4, 162.0, 302.0], [162.0, 81.4, 242.0], [262.0, 202.0, 121.4]];
        assert_eq!(matrix("three-regions"), continents);
        // Three of four have to agree, so one of them is in the other data centre.
        assert_eq!(matrix("two-and-two"), [[10.4, 20.0], [20.0, 10.4]]);
    }

    #[test]
    fn the_best_place_is_where_the_weight_is() {
        let regions = builtin::find("three-regions").expect("built in");
        let order: Vec<usize> = places(&regions).iter().map(|it| it.0).collect();
        assert_eq!(order, [0, 1, 2]);
        let seed = builtin::find("two-dc-50ms").expect("built in");
        assert_eq!(places(&seed)[0].0, 1, "the published place is not the best one");
        assert_eq!(home(&seed), 0, "but it is the one that the file asks for");
    }

    #[test]
    fn a_loss_is_survived_if_a_majority_of_all_voters_is_left() {
        let of = |name: &str| builtin::find(name).expect("built in");
        let survived = |name: &str| -> Vec<bool> {
            let topology = of(name);
            topology.voting_regions().iter().map(|it| survives(&topology, &[*it])).collect()
        };
        assert_eq!(survived("one-zone"), [false]);
        assert_eq!(survived("three-zones"), [true; 3]);
        assert_eq!(survived("five-in-three"), [true; 3]);
        assert_eq!(survived("two-near-one-far"), [false, true]);
        assert_eq!(survived("two-dc-50ms"), [true, false]);
        assert_eq!(survived("two-and-two"), [false; 2]);
        assert!(!survives(&of("three-regions"), &[0, 1]));
    }

    #[test]
    fn what_is_left_answers_from_farther_away() {
        let topology = builtin::find("two-near-one-far").expect("built in");
        assert_eq!(quorum_ms(&topology, 1, &[1, 3]), Some(30.0));
        assert_eq!(quorum_ms(&topology, 1, &[1]), None);
        assert_eq!(answer_ms(&topology, 0, 1, &[1]), None);
        assert_eq!((lease_ms(&topology, 1, 1), interval_ms(&topology, 1)), (30.0, 0.5));
    }

    #[test]
    fn a_request_that_is_sent_on_costs_the_way_to_the_nearest_node_in_addition() {
        let topology = builtin::find("three-regions").expect("built in");
        let all = topology.voters();
        let of = |client| forwarded_ms(&topology, client, 1, &all).expect("a majority");
        assert_eq!([0, 1, 2].map(|client| topology.nearest(client)), [1, 2, 3]);
        let direct = |client| answer_ms(&topology, client, 1, &all).expect("a majority");
        let more = [0, 1, 2].map(|client| format!("{:.1}", of(client) - direct(client)));
        assert_eq!(more, ["0.0", "0.4", "0.4"], "the leader itself is the nearest in eu");
        assert_eq!(forwarded_ms(&topology, 1, 1, &[1]), None);
    }

    #[test]
    fn a_lost_follower_costs_an_answer_by_the_new_quorum() {
        let topology = builtin::find("three-regions").expect("built in");
        // From ap to eu and from there to ap; from us to eu and from there to us.
        let losses = (far_loss_ms(&topology, 1, 1), far_loss_ms(&topology, 1, 2));
        assert_eq!(losses, (362.0, 162.0));
        let of = |lost| region_loss_ms(&topology, 1, lost, 1_850.0).round();
        assert_eq!((of(0), of(1), of(2)), (3_405.0, 362.0, 162.0));
        let near = builtin::find("two-near-one-far").expect("built in");
        assert_eq!((far_loss_ms(&near, 1, 1), far_loss_ms(&near, 3, 0)), (1.0, 0.0));
        assert_eq!((longest_answer_ms(&topology), longest_answer_ms(&near)), (362.0, 60.0));
    }

    #[test]
    fn an_answer_that_is_too_fast_is_known() {
        assert!((40.6..40.7).contains(&least_ms(50.0)));
        assert!(least_ms(0.8) <= 0.0, "nothing is too fast in one zone");
    }

    #[test]
    fn losses_take_what_the_page_on_topologies_promises() {
        let topology = builtin::find("three-regions").expect("built in");
        let losses = (silent_loss_ms(&topology, 1_850.0).round(), killed_ms(&topology));
        assert_eq!((losses, bound_ms(50.0)), ((3_405.0, 6.0 * 182.0), 61.0));
    }
}
