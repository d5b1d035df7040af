//! What the nodes tell each other of the time. A report is asked for, told and heard at different
//! moments, in any order, or never. The checker knows by true time which reports a node must have
//! compared.

use epicepoch_core::interval::Uncertain;
use epicepoch_core::interval::peers::{
    FIRST_REPORTS_NS_MAX, REPORT_AGE_NS_MAX, REPORT_TRIP_NS_MAX,
};
use fastrand::Rng;

use super::World;
use super::node::NODES;
use super::plant::IntervalPlant;

/// At most this many reports are under way.
const UNDER_WAY_MAX: usize = 4;

/// A report of node `from` for node `to`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report {
    from: usize,
    pub(super) to: usize,
    asked_ns: i64,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Asked,
    /// `None`: the node does not know the time.
    Told(Option<(u64, u64)>),
}

/// Whether a planted bug shows only if a source lies.
const fn needs_liar(plant: IntervalPlant) -> bool {
    matches!(plant, IntervalPlant::PeersIgnored | IntervalPlant::HalfIsEnough)
}

/// Whether the intervals of a run hold true time but for the liar's, so that only they may
/// contradict each other.
const fn is_right(plant: IntervalPlant) -> bool {
    matches!(plant, IntervalPlant::ReportWithoutTrip | IntervalPlant::ReportOfOldReading)
}

/// The node whose source lies in a run, if there is one.
pub(super) fn liar(random: &mut Rng, plant: Option<IntervalPlant>) -> Option<usize> {
    let lies = match plant {
        None => random.u8(..4) == 0,
        Some(plant) => needs_liar(plant),
    };
    lies.then(|| random.usize(..NODES))
}

impl World {
    /// A report goes a step further, a new one is asked for, or node `at` samples its source.
    pub(super) fn exchange(&mut self, at: usize) {
        if !self.under_way.is_empty() && self.random.u8(..4) > 0 {
            let which = self.random.usize(..self.under_way.len());
            let Report { from, to, asked_ns, stage } = self.under_way[which];
            let Stage::Told(told) = stage else {
                // The reading that is told may be old.
                if self.random.bool() {
                    self.nodes[from].sample(self.now_ns, &mut self.random);
                }
                self.under_way[which].stage = Stage::Told(self.nodes[from].told(self.now_ns));
                return;
            };
            self.under_way.swap_remove(which);
            self.nodes[to].hear(from, told, asked_ns, self.now_ns);
            let trip_ns = self.now_ns - asked_ns;
            // By any clock, and with every margin.
            let is_used = trip_ns < REPORT_TRIP_NS_MAX as i64 * 3 / 4;
            self.heard[to][from] = told.filter(|_| is_used).map(|_| self.now_ns);
            self.has_heard[to] |= told.is_some();
            self.counts.reports += u64::from(told.is_some());
        } else if self.random.bool() {
            self.nodes[at].sample(self.now_ns, &mut self.random);
        } else if self.under_way.len() < UNDER_WAY_MAX && self.nodes[at].is_up() {
            let from = (at + self.random.usize(1..NODES)) % NODES;
            self.under_way.push(Report {
                from,
                to: at,
                asked_ns: self.now_ns,
                stage: Stage::Asked,
            });
        }
    }

    /// Whether node `at` has heard node `from` so lately that its report counts by any raw clock.
    fn is_fresh(&self, at: usize, from: usize) -> bool {
        let age_ns_max = REPORT_AGE_NS_MAX as i64 * 9 / 10;
        self.heard[at][from].is_some_and(|heard_ns| self.now_ns - heard_ns < age_ns_max)
    }

    /// Checks that a node that answers was allowed to by what it has heard (S27).
    pub(super) fn check_heard(&mut self, at: usize) {
        let others = (0..NODES).filter(|other| *other != at);
        let fresh = others.filter(|other| self.is_fresh(at, *other)).count();
        if self.liar == Some(at) && fresh > 0 {
            self.violate(|| format!("PEERS: n{at} lies, has heard {fresh} others and answers"));
        }
        let began_ns = self.nodes[at].began_ns.unwrap_or(self.now_ns);
        let is_early = self.now_ns - began_ns < FIRST_REPORTS_NS_MAX as i64 * 9 / 10;
        if is_early && !self.has_heard[at] {
            self.violate(|| format!("PEERS: n{at} answers, has just begun and heard nobody"));
        }
    }

    /// Counts a refusal, and checks that no node is refused for a contradiction that is none, or for
    /// that of a minority.
    pub(super) fn check_refusal(&mut self, at: usize, why: Option<Uncertain>) {
        self.counts.unheard += u64::from(why == Some(Uncertain::Unheard));
        if !matches!(why, Some(Uncertain::Contradicted { .. })) {
            return;
        }
        self.counts.contradicted += 1;
        let is_allowed = match self.liar {
            _ if self.plant.is_some_and(|plant| !is_right(plant)) => true,
            None => false,
            Some(liar) => {
                let mut others = (0..NODES).filter(|other| ![at, liar].contains(other));
                liar == at || others.all(|other| !self.is_fresh(at, other))
            }
        };
        if !is_allowed {
            self.violate(|| format!("PEERS: n{at} is right, and refuses: {why:?}"));
        }
    }
}
