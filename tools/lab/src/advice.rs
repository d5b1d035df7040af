//! What follows from a topology. Each rule is a pure function with a test, and none of them knows a
//! measurement: the text of a run shows the measured figures beside the advice.

use std::time::Duration;

use epicepoch_config::Timing;

use crate::expected::{
    answer_ms, home, interval_ms, lease_ms, places, quorum_ms, silent_loss_ms, survives,
};
use crate::topology::Topology;

/// One piece of advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// What it is about: a setting, or a word.
    pub topic: String,
    /// One or two sentences.
    pub text: String,
}

impl Advice {
    fn new(topic: impl Into<String>, text: impl Into<String>) -> Self {
        Self { topic: topic.into(), text: text.into() }
    }
}

/// Settings of nodes for these links, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `ELECTION_TIMEOUT_MS`.
    pub election: u64,
    /// `RESERVATION_MS`.
    pub reservation: u64,
    /// `REQUEST_TIMEOUT_MS`, if the default is too short.
    pub request_timeout: Option<u64>,
    /// `CLOCK_OFFSET_MAX_MS`, if the default is too short.
    pub clock_offset_max: Option<u64>,
}

/// The settings that `epicepoch tune` advises for the longest link. `None` if the link is too long.
#[must_use]
pub fn settings(topology: &Topology) -> Option<Settings> {
    let longest_ms = topology.longest_ms();
    let timing = Timing::advised(Duration::from_secs_f64(longest_ms / 1e3))?;
    let ms = |it: Duration| it.as_millis() as u64;
    let default = |name: &str| {
        let text = epicepoch_config::settings().find(|it| it.name == name)?.default.text();
        text.split(|it: char| !it.is_ascii_digit()).next()?.parse::<u64>().ok()
    };
    let more = |name: &str, least: u64| {
        let is_short = default(name).is_none_or(|it| it <= least);
        is_short.then_some((least + 1).next_multiple_of(STEP_MS))
    };
    Some(Settings {
        election: ms(timing.election_timeout),
        reservation: ms(timing.reservation),
        request_timeout: more("REQUEST_TIMEOUT_MS", 2 * ms(timing.election_timeout)),
        clock_offset_max: more("CLOCK_OFFSET_MAX_MS", longest_ms.ceil() as u64),
    })
}

/// All advice, the most important first.
#[must_use]
pub fn all(topology: &Topology) -> Vec<Advice> {
    let rules = [
        two_places(topology),
        Some(lost_regions(topology)),
        even_voters(topology),
        Some(leader_zones(topology)),
        Some(election(topology)),
        Some(near_majority(topology)),
        Some(lease(topology)),
        Some(forwarder()),
        Some(interval(topology)),
    ];
    rules.into_iter().flatten().collect()
}

/// Where leaders should be.
#[must_use]
pub fn leader_zones(topology: &Topology) -> Advice {
    let places = places(topology);
    let names: Vec<&str> = places.iter().map(|(region, _)| topology.region(*region)).collect();
    let costs: Vec<String> = places
        .iter()
        .map(|(region, ms)| format!("{ms:.1} ms in {}", topology.region(*region)))
        .collect();
    let text = format!("by the clients' weights a timestamp costs, with the leader {}", {
        costs.join(", ")
    });
    Advice::new(format!("LEADER_ZONES={}", names.join(",")), text)
}

/// The settings of elections, and what the loss of the leader costs with them.
#[must_use]
pub fn election(topology: &Topology) -> Advice {
    let longest = topology.longest_ms();
    let Some(it) = settings(topology) else {
        let text = format!("no setting suits links of {longest:.0} ms: put the voters nearer");
        return Advice::new("ELECTION_TIMEOUT_MS", text);
    };
    let others =
        [("REQUEST_TIMEOUT_MS", it.request_timeout), ("CLOCK_OFFSET_MAX_MS", it.clock_offset_max)];
    let others: String =
        others.iter().filter_map(|(name, ms)| Some(format!(" {name}={}", (*ms)?))).collect();
    let outage = silent_loss_ms(topology, it.election as f64) / 1e3;
    Advice::new(
        format!("ELECTION_TIMEOUT_MS={} RESERVATION_MS={}{others}", it.election, it.reservation),
        format!(
            "for the longest link, {longest:.1} ms: a region with the leader that is lost silently \
             costs about {outage:.1} s"
        ),
    )
}

/// Regions whose loss stops the service, and those whose loss is survived.
#[must_use]
pub fn lost_regions(topology: &Topology) -> Advice {
    let voting = topology.voting_regions();
    let named = |regions: &[usize]| {
        regions.iter().map(|it| topology.region(*it)).collect::<Vec<_>>().join(" or of ")
    };
    let fatal: Vec<usize> =
        voting.iter().copied().filter(|region| !survives(topology, &[*region])).collect();
    if fatal.is_empty() {
        return Advice::new(
            "losses",
            "the loss of any one region is survived; the loss of more stops the service where fewer \
             than a majority of the voters is left",
        );
    }
    let kept: Vec<usize> = voting.iter().copied().filter(|it| !fatal.contains(it)).collect();
    let survived = match kept.as_slice() {
        [] => "the loss of no region is survived".to_owned(),
        kept => format!("the loss of {} is survived", named(kept)),
    };
    Advice::new("losses", format!("the loss of {} stops the service; {survived}", named(&fatal)))
}

/// Two places are never enough.
#[must_use]
pub fn two_places(topology: &Topology) -> Option<Advice> {
    let [one, other] = topology.voting_regions().try_into().ok()?;
    Some(Advice::new(
        "TWO PLACES ARE UNSAFE",
        format!(
            "{} and {} have all voters, so the network between them is a single point of failure. High \
             availability without loss needs a third place, even a small one",
            topology.region(one),
            topology.region(other)
        ),
    ))
}

/// An even number of voters survives no more than one fewer.
#[must_use]
pub fn even_voters(topology: &Topology) -> Option<Advice> {
    let count = topology.nodes.len();
    count.is_multiple_of(2).then(|| {
        Advice::new(
            "even voters",
            format!(
                "{count} voters survive the loss of {} of them, as {} do, but one more has to agree: \
                 take one voter away or add one",
                count - topology.majority(),
                count - 1
            ),
        )
    })
}

/// Whether the quorum is as near as the leader, and which loss that costs.
#[must_use]
pub fn near_majority(topology: &Topology) -> Advice {
    let region = home(topology);
    let leader = topology.voters_in(region)[0];
    let quorum = quorum_ms(topology, leader, &topology.voters()).unwrap_or(f64::INFINITY);
    let here = topology.voters_in(region).len();
    let (name, majority) = (topology.region(region), topology.majority());
    if here >= majority {
        return Advice::new(
            "near majority",
            format!(
                "a majority is in {name}, so a round takes {quorum:.1} ms. If {name} is lost, the \
                 service stops"
            ),
        );
    }
    let saved = (quorum - topology.round_trip_ms(region, region)).max(0.0);
    let voters = topology.nodes.len();
    let is_majority = |more: &usize| here + more > (voters + more) / 2;
    let more = (1..=voters).find(is_majority).unwrap_or(voters);
    let what = if more == 1 { "voter" } else { "voters" };
    Advice::new(
        "near majority",
        format!(
            "a round takes {quorum:.1} ms, to the nearest majority. With {more} more {what} in {name}, \
             a round would take {saved:.1} ms less, but then the loss of {name} stops the service"
        ),
    )
}

/// What a lease would save.
#[must_use]
pub fn lease(topology: &Topology) -> Advice {
    let region = home(topology);
    let leader = topology.voters_in(region)[0];
    let all = topology.voters();
    let of = |client: &usize| {
        let now = answer_ms(topology, *client, leader, &all)?;
        let then = lease_ms(topology, *client, leader);
        Some(format!("{} {now:.1} to {then:.1} ms", topology.region(*client)))
    };
    let costs: Vec<String> = topology.clients.keys().filter_map(of).collect();
    Advice::new(
        "a lease (LEASE_MS, off by default)",
        format!(
            "would answer without a round: {}. It needs clocks that never stand still and whose rates \
             differ little, and after the loss of a leader the next one waits for its end",
            costs.join(", ")
        ),
    )
}

/// What a forwarder gives.
#[must_use]
pub fn forwarder() -> Advice {
    Advice::new(
        "a forwarder (FORWARD, off by default)",
        "gives clients one near address and shares rounds between them. It takes nothing from the \
         distance to the leader and to its quorum",
    )
}

/// What intervals would save.
#[must_use]
pub fn interval(topology: &Topology) -> Advice {
    let of = |client: &usize| {
        format!("{} {:.1} ms", topology.region(*client), interval_ms(topology, *client))
    };
    let costs: Vec<String> = topology.clients.keys().map(of).collect();
    Advice::new(
        "intervals (interval mode, experimental)",
        format!(
            "are answered by the nearest node: {}. They ask for clocks with a known error, and for \
             transactions that wait it out",
            costs.join(", ")
        ),
    )
}

/// Advised times are multiples of this.
const STEP_MS: u64 = 50;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin;

    fn of(name: &str) -> Topology {
        builtin::find(name).expect("built in")
    }

    #[track_caller]
    fn says(advice: &Advice, words: &[&str]) {
        let text = format!("{}: {}", advice.topic, advice.text);
        for word in words {
            assert!(text.contains(word), "{word} in {text}");
        }
    }

    #[test]
    fn leaders_belong_where_the_weight_is() {
        says(&leader_zones(&of("three-regions")), &["LEADER_ZONES=eu,us,ap: ", "112.5 ms in eu"]);
        says(&leader_zones(&of("two-dc-50ms")), &["LEADER_ZONES=dc2,dc1", "40.0 ms in dc2"]);
    }

    #[test]
    fn settings_are_those_of_tune() {
        let defaults = settings(&of("one-zone")).expect("settings");
        assert_eq!((defaults.election, defaults.reservation), (200, 1_000));
        assert_eq!((defaults.request_timeout, defaults.clock_offset_max), (None, None));
        let far = settings(&of("three-regions")).expect("settings");
        assert_eq!((far.election, far.reservation), (1_850, 9_250));
        assert!(far.request_timeout.is_some_and(|ms| ms > 3_700));
        says(&election(&of("three-regions")), &["ELECTION_TIMEOUT_MS=1850", "3.4 s"]);
        let mut too_far = of("three-regions");
        too_far.one_way_ms[0][2] = 1_000.0;
        assert_eq!(settings(&too_far), None);
        says(&election(&too_far), &["no setting suits"]);
    }

    #[test]
    fn losses_that_stop_the_service_are_named() {
        let lost = |name: &str| lost_regions(&of(name));
        says(&lost("three-regions"), &["any one region is survived"]);
        says(&lost("two-dc-50ms"), &["loss of dc2 stops", "loss of dc1 is survived"]);
        says(&lost("two-and-two"), &["loss of dc1 or of dc2 stops", "of no region is survived"]);
    }

    #[test]
    fn two_places_are_named_unsafe() {
        for name in ["two-near-one-far", "two-dc-50ms", "two-and-two"] {
            says(
                &two_places(&of(name)).expect("advice"),
                &["TWO PLACES ARE UNSAFE", "single point of failure"],
            );
        }
        for name in ["one-zone", "three-zones", "five-in-three", "three-regions"] {
            assert_eq!(two_places(&of(name)), None);
        }
    }

    #[test]
    fn an_even_number_of_voters_is_named() {
        let advice = even_voters(&of("two-and-two")).expect("advice");
        says(&advice, &["4 voters survive the loss of 1", "as 3 do"]);
        assert_eq!(even_voters(&of("five-in-three")), None);
    }

    #[test]
    fn a_near_majority_costs_the_survival_of_its_region() {
        says(
            &near_majority(&of("two-near-one-far")),
            &["majority is in near", "0.5 ms. If near is lost, the"],
        );
        // One voter of three is in eu. With one more there, two of four are no majority.
        says(
            &near_majority(&of("three-regions")),
            &[
                "81.0 ms",
                "2 more voters in eu, a round would take 80.6 ms less",
                "loss of eu stops",
            ],
        );
    }

    #[test]
    fn what_is_off_or_experimental_is_named_as_such() {
        let regions = of("three-regions");
        says(&lease(&regions), &["off by default", "eu 81.4 to 0.4 ms"]);
        says(&forwarder(), &["off by default"]);
        says(&interval(&regions), &["experimental", "us 0.4 ms"]);
        assert_eq!(all(&regions).len(), 7);
        assert_eq!(all(&of("two-and-two")).len(), 9);
    }
}
