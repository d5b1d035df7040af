//! The steps of a run, and how long they take.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use crate::expected;
use crate::topology::Topology;

/// One step of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Without delays: what the machine and the proxies cost. It always runs.
    Floor,
    /// With delays, and the leader where the election left it.
    AtRest,
    /// A handover to each region with voters, in turn.
    EachLeader,
    /// Each region with voters is cut off, and healed.
    RegionLost,
    /// The leader is killed.
    Killed,
    /// The leader hears the others and is not heard.
    OneWay,
    /// Each mode, with the leader at home.
    Modes,
}

impl Step {
    /// All steps, in order.
    pub const ALL: [Self; 7] = [
        Self::Floor,
        Self::AtRest,
        Self::EachLeader,
        Self::RegionLost,
        Self::Killed,
        Self::OneWay,
        Self::Modes,
    ];

    /// The number on the command line and in reports.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }

    /// What is done, for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::AtRest => "at rest",
            Self::EachLeader => "each leader",
            Self::RegionLost => "a region is lost",
            Self::Killed => "the leader is killed",
            Self::OneWay => "the leader is not heard",
            Self::Modes => "modes",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}, {}", self.number(), self.name())
    }
}

/// What makes the links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkKind {
    /// TCP proxies of this program.
    #[default]
    Proxies,
    /// Network namespaces, and the kernel's netem between them.
    Netns,
}

impl LinkKind {
    /// The name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Proxies => "proxies",
            Self::Netns => "netns",
        }
    }
}

/// Which steps run, how long each measurement takes, and over which links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Length of each measurement.
    pub length: Duration,
    /// The steps, [`Step::Floor`] among them.
    pub steps: BTreeSet<Step>,
    /// What makes the links.
    pub links: LinkKind,
}

impl Plan {
    /// Allowed lengths of a measurement, seconds.
    pub const SECONDS: std::ops::RangeInclusive<u64> = 1..=60;

    /// A plan with all steps, and proxies.
    #[must_use]
    pub fn new(length: Duration) -> Self {
        Self { length, steps: Step::ALL.into(), links: LinkKind::default() }
    }

    /// Keeps only the steps of a list such as `1,2`, and the floor.
    ///
    /// # Errors
    /// A part of the list is no number of a step.
    pub fn only(mut self, list: &str) -> Result<Self, String> {
        self.steps = BTreeSet::from([Step::Floor]);
        for word in list.split(',') {
            let step = Step::ALL.iter().find(|step| step.number().to_string() == word.trim());
            let step = step.ok_or_else(|| {
                format!("{word:?} is no step; allowed are numbers from 0 to 6, such as 1,2")
            })?;
            self.steps.insert(*step);
        }
        Ok(self)
    }

    /// The length of a measurement: as asked for, but at least some answers of the farthest clients.
    #[must_use]
    pub fn window(&self, topology: &Topology) -> Duration {
        let longest = Duration::from_secs_f64(expected::longest_answer_ms(topology) / 1e3);
        self.length.max(ANSWERS_MIN * longest)
    }

    /// About how long a run takes, if the machine is not busy with other work.
    #[must_use]
    pub fn about(&self, topology: &Topology, election_ms: f64) -> Duration {
        let measured = self.window(topology) + SETTLING;
        let voting = topology.voting_regions().len() as u32;
        let outage = Duration::from_secs_f64(expected::silent_loss_ms(topology, election_ms) / 1e3);
        let lost = measured + 2 * outage + 2 * SETTLING;
        let of = |step: &Step| match step {
            Step::Floor => STARTING + look(topology) + self.length.min(FLOOR_MAX),
            Step::AtRest => measured * topology.measure.callers.len() as u32,
            Step::EachLeader => (measured + SETTLING) * voting,
            Step::RegionLost => lost * voting,
            Step::Killed | Step::OneWay => lost,
            Step::Modes => measured * topology.measure.modes.len() as u32,
        };
        self.steps.iter().map(of).sum()
    }
}

/// The floor is measured for at most this time.
pub const FLOOR_MAX: Duration = Duration::from_secs(2);
/// A measurement is long enough for this many answers, one after the other.
const ANSWERS_MIN: u32 = 4;
/// Each link of clients is measured this often when links are verified; the shortest time counts.
pub(crate) const LOOK_TRIES: u32 = 5;
/// About how long one look at all links of clients should take. Longer ones have more threads.
const LOOK_MAX: Duration = Duration::from_secs(3);

/// How many threads look at the links of clients: one if the links are short, so that questions do
/// not wait for each other on a machine with few processors.
pub(crate) fn look_threads(topology: &Topology) -> usize {
    let pairs = topology.clients.len() * topology.nodes.len();
    let looks = all_looks(topology).as_secs_f64() / LOOK_MAX.as_secs_f64();
    (looks.ceil() as usize).clamp(1, pairs.max(1))
}

/// How long it takes to look at all links of clients.
fn look(topology: &Topology) -> Duration {
    all_looks(topology) / look_threads(topology) as u32
}

/// How long it would take to look at the links of clients one after the other.
fn all_looks(topology: &Topology) -> Duration {
    let clients = topology.clients.keys();
    let trips = clients.flat_map(|client| {
        topology.nodes.values().map(|region| topology.round_trip_ms(*client, *region))
    });
    // Over the kernel's delays, opening the connection takes a round trip, too.
    Duration::from_secs_f64(2.0 * trips.sum::<f64>() / 1e3) * LOOK_TRIES
}

/// How long it takes until figures are measured after something has changed.
const SETTLING: Duration = Duration::from_secs(1);
/// How long nodes take to start, and links to be verified.
const STARTING: Duration = Duration::from_secs(6);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin;
    use crate::topology::Clients;

    #[test]
    fn a_list_of_steps_is_read_and_the_floor_is_added() {
        let plan = Plan::new(Duration::from_secs(1)).only("2, 5").expect("steps");
        let steps: Vec<u8> = plan.steps.iter().map(|step| step.number()).collect();
        assert_eq!(steps, [0, 2, 5]);
        for wrong in ["", "7", "1,,2", "all"] {
            let error = Plan::new(Duration::from_secs(1)).only(wrong).expect_err("refused");
            assert!(error.contains("0 to 6"), "{error}");
        }
    }

    #[test]
    fn a_measurement_is_long_enough_for_some_answers() {
        let mut topology = builtin::find("three-regions").expect("built in");
        let plan = Plan::new(Duration::from_secs(1));
        // With `us` lost, an answer for `ap` takes two round trips to `eu`.
        assert_eq!(plan.window(&topology), Duration::from_millis(4 * 362));
        assert_eq!(Plan::new(Duration::from_secs(5)).window(&topology), Duration::from_secs(5));
        topology.one_way_ms = vec![vec![500.0; 3]; 3];
        topology.jitter_ms = 0.0;
        assert_eq!(plan.window(&topology), Duration::from_secs(8));
        let about = plan.about(&topology, 10_000.0);
        assert!(about > 3 * Duration::from_secs(8), "{about:?}");
    }

    #[test]
    fn long_links_are_looked_at_at_the_same_time() {
        assert_eq!(look_threads(&builtin::find("one-zone").expect("built in")), 1);
        let mut topology = builtin::find("three-regions").expect("built in");
        assert!((2..=4).contains(&look_threads(&topology)), "{}", look_threads(&topology));
        topology.regions = (0..8).map(|it| format!("r{it}")).collect();
        topology.one_way_ms = vec![vec![500.0; 8]; 8];
        topology.nodes = (1..=9).map(|id| (id, id as usize % 8)).collect();
        topology.clients = (0..8).map(|region| (region, Clients::default())).collect();
        assert_eq!(look_threads(&topology), 72);
        assert!(look(&topology) < Duration::from_secs(12), "{:?}", look(&topology));
    }

    #[test]
    fn every_built_in_topology_takes_less_than_four_minutes() {
        for (name, _) in builtin::BUILT_IN {
            let topology = builtin::find(name).expect("built in");
            let election_ms = (10.0 * topology.longest_ms()).max(200.0);
            let about = Plan::new(Duration::from_secs(5)).about(&topology, election_ms);
            assert!(about < Duration::from_mins(4), "{name}: {about:?}");
        }
    }
}
