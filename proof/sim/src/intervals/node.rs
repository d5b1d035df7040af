//! A machine in the simulator of interval mode: its wall clock, the daemon that synchronizes it and
//! states the bound, its disk, and the process with the shipped stamper.

use epicepoch_core::interval::peers::PeerIntervals;
use epicepoch_core::interval::{Opening, Reading, Stamper, Uncertain};
use epicepoch_wire::interval::IntervalStamp;
use epicepoch_wire::{Epoch, NodeId, Timestamp};
use fastrand::Rng;

use super::plant::IntervalPlant;

/// The nodes of a run.
pub(super) const NODES: usize = 3;
/// A step of the world's clocks, nanoseconds.
pub(super) const TICK_NS: i64 = 10_000_000;
/// The largest bound that a node accepts, nanoseconds.
pub(super) const BOUND_MAX_NS: i64 = 60 * TICK_NS;
/// The rate error of a clock between two synchronizations, in hundredths.
const DRIFT_PERCENT: i64 = 10;
/// The rate error of a raw clock, parts per million.
const RAW_PPM: i64 = 500;
/// A statement of the source is void after this time, nanoseconds.
const VOID_AFTER_NS: i64 = 400 * TICK_NS;

/// What the synchronization daemon has stated.
#[derive(Clone, Copy, Debug)]
struct Stated {
    as_of_ns: i64,
    bound_ns: i64,
    marker: u64,
}

pub(super) struct Node {
    id: NodeId,
    plant: Option<IntervalPlant>,
    /// Wall clock minus true time, nanoseconds, and a remainder in hundredths.
    offset_ns: i64,
    drift_percent: i64,
    drifted: i64,
    /// The hypervisor raises it before a machine that was paused runs again.
    marker: u64,
    stated: Stated,
    /// The durable mark, and the one on its way to the disk.
    mark_ns: u64,
    writing_ns: Option<u64>,
    /// The process; `None` while it is down.
    stamper: Option<Stamper>,
    /// What the process has heard of others, and the reading that it tells them.
    peers: PeerIntervals,
    sampled: Option<Reading>,
    /// When the process might first have given a timestamp, for the checker.
    pub(super) began_ns: Option<i64>,
    /// The raw clock: its value at true time 0, and its rate error, parts per million.
    raw_at_zero_ns: i64,
    raw_ppm: i64,
    /// What the source adds to every reading.
    lie_ns: i64,
    /// The ceiling of quorum mode, if the node has applied interval mode.
    pub(super) applied: Option<Epoch>,
    /// The last timestamp over all runs, which only the checker knows.
    pub(super) given: Option<Timestamp>,
    // What planted bugs remember.
    stale: Stated,
    torn_ns: Option<i64>,
    cached: Option<Reading>,
}

/// A number up to `bound` in both directions: often one of the ends.
fn extreme(random: &mut Rng, bound: i64) -> i64 {
    match random.u8(..4) {
        0 => -bound,
        1 => bound,
        _ => random.i64(-bound..=bound),
    }
}

impl Node {
    pub(super) fn new(
        at: usize,
        now_ns: i64,
        random: &mut Rng,
        plant: Option<IntervalPlant>,
    ) -> Self {
        let bound_ns = random.i64(2..=30) * TICK_NS;
        let stated = Stated { as_of_ns: now_ns, bound_ns, marker: 0 };
        let is_twin = plant == Some(IntervalPlant::IdUsedAgain);
        let id = if is_twin { at.min(1) } else { at };
        let mut node = Self {
            id: NodeId(id as u64 + 1),
            plant,
            offset_ns: extreme(random, bound_ns),
            drift_percent: 0,
            drifted: 0,
            marker: 0,
            stated,
            mark_ns: 0,
            writing_ns: None,
            stamper: None,
            peers: PeerIntervals::new(NodeId(0)),
            sampled: None,
            began_ns: None,
            raw_at_zero_ns: random.i64(0..1_000) * TICK_NS,
            raw_ppm: extreme(random, RAW_PPM),
            lie_ns: 0,
            applied: None,
            given: None,
            stale: stated,
            torn_ns: None,
            cached: None,
        };
        node.start();
        node
    }

    fn is(&self, plant: IntervalPlant) -> bool {
        self.plant == Some(plant)
    }

    pub(super) const fn is_up(&self) -> bool {
        self.stamper.is_some()
    }

    /// The source lies from now on, by more than any two bounds and a round trip.
    pub(super) fn lie(&mut self, random: &mut Rng) {
        let ns = random.i64(500..=2_000) * TICK_NS;
        self.lie_ns = if random.bool() { ns } else { -ns };
    }

    /// The raw clock of the machine.
    pub(super) fn raw_ns(&self, now_ns: i64) -> u64 {
        let drifted_ns = i128::from(now_ns) * i128::from(self.raw_ppm) / 1_000_000;
        (self.raw_at_zero_ns + now_ns + drifted_ns as i64) as u64
    }

    /// True time passes.
    pub(super) fn pass(&mut self, ns: i64) {
        self.drifted += ns * self.drift_percent;
        self.offset_ns += self.drifted / 100;
        self.drifted %= 100;
    }

    /// The daemon corrects the clock, and states how far off it may be.
    pub(super) fn synchronize(&mut self, now_ns: i64, random: &mut Rng) {
        let lies = self.is(IntervalPlant::WorldBoundLies) && random.u8(..10) == 0;
        let bound_ns = random.i64(2..=40) * TICK_NS;
        self.offset_ns = if lies { 4 * bound_ns } else { extreme(random, bound_ns) };
        self.drift_percent = extreme(random, DRIFT_PERCENT);
        self.drifted = 0;
        self.stated = Stated { as_of_ns: now_ns, bound_ns, marker: self.marker };
    }

    /// The machine is paused or moved: its clock falls back, and its marker is raised first.
    pub(super) fn disrupt(&mut self, random: &mut Rng) {
        self.offset_ns -= random.i64(50..=500) * TICK_NS;
        self.marker += 1;
    }

    /// Reads the source as a time source does: `None` if it states nothing that holds now.
    fn reading(&mut self, now_ns: i64) -> Option<Reading> {
        let stated = if self.is(IntervalPlant::StaleReading) { self.stale } else { self.stated };
        let is_disrupted = stated.marker != self.marker;
        let is_void = now_ns - stated.as_of_ns > VOID_AFTER_NS;
        if (is_disrupted && !self.is(IntervalPlant::DisruptionIgnored))
            || (is_void && !self.is(IntervalPlant::VoidIgnored))
        {
            return None;
        }
        let age_ns = (now_ns - stated.as_of_ns).min(VOID_AFTER_NS);
        let is_grown = !self.is(IntervalPlant::BoundNotGrown);
        let grown_ns = if is_grown { age_ns * DRIFT_PERCENT / 100 + 1 } else { 0 };
        let mut bound_ns = stated.bound_ns + grown_ns;
        if bound_ns > BOUND_MAX_NS && self.is(IntervalPlant::TooWideAnswered) {
            bound_ns = BOUND_MAX_NS / 2;
        }
        let wall_ns = self.torn_ns.take().unwrap_or(now_ns + self.offset_ns) + self.lie_ns;
        let raw_ns = self.raw_ns(now_ns);
        let is_blind = self.is(IntervalPlant::DisruptionIgnored);
        Some(Reading {
            earliest_ns: (wall_ns - bound_ns) as u64,
            latest_ns: (wall_ns + bound_ns) as u64,
            disruption: if is_blind { 0 } else { stated.marker },
            raw_from_ns: raw_ns,
            raw_until_ns: raw_ns,
        })
    }

    /// Planted bugs read the clock at another moment than the source, or the source at another one.
    pub(super) fn read_source(&mut self, now_ns: i64, random: &mut Rng) {
        if self.is(IntervalPlant::TornReading) && random.u8(..3) == 0 {
            let wall_ns = now_ns + self.offset_ns;
            self.synchronize(now_ns, random);
            self.torn_ns = Some(wall_ns);
        }
        self.stale = self.stated;
    }

    pub(super) fn cache(&mut self, now_ns: i64) {
        if self.is(IntervalPlant::CachedInterval) && self.is_up() {
            self.cached = self.reading(now_ns);
        }
    }

    /// Takes `n` timestamps. The error has no reason if the process is down, the mode is not applied,
    /// or the source states nothing.
    pub(super) fn stamp(
        &mut self,
        now_ns: i64,
        n: u64,
        random: &mut Rng,
    ) -> Result<IntervalStamp, Option<Uncertain>> {
        let Some(ceiling) = self.applied.filter(|_| self.is_up()) else { return Err(None) };
        let reading = self.cached.or_else(|| self.reading(now_ns)).ok_or(None)?;
        self.begin(now_ns);
        let is_early = self.is(IntervalPlant::MarkAfterStamp);
        let ceiling = if self.is(IntervalPlant::CeilingIgnored) { Epoch(0) } else { ceiling };
        let opening = Opening { ceiling, change: 0 };
        let peers = self.compared(&reading);
        let stamper = self.stamper.as_mut().ok_or(None)?;
        // A request waits for the mark that it needs. Often the disk is fast enough.
        let mut outcome = stamper.stamp(opening, reading, &peers, n);
        if let Some(mark_ns) = stamper.poll_mark() {
            self.writing_ns = Some(mark_ns);
            if is_early {
                stamper.handle_mark(mark_ns);
            } else if random.u8(..8) > 0 {
                self.sync_disk();
            }
            if outcome == Err(Uncertain::MarkBehind)
                && let Some(stamper) = &mut self.stamper
            {
                outcome = stamper.stamp(opening, reading, &peers, n);
            }
        }
        outcome.map_err(Some)
    }

    fn begin(&mut self, now_ns: i64) {
        self.began_ns.get_or_insert(now_ns);
        let is_heard = self.is(IntervalPlant::PeersUnheard);
        self.peers.begin(0, if is_heard { 0 } else { self.raw_ns(now_ns) });
    }

    /// The intervals of the others for a comparison; with some planted bugs, none.
    fn compared(&self, reading: &Reading) -> PeerIntervals {
        let agreement = self.peers.compare(reading);
        let is_half = 2 * agreement.agreeing == agreement.known;
        let is_known = agreement.known > 1;
        if self.is(IntervalPlant::PeersIgnored) && is_known
            || self.is(IntervalPlant::HalfIsEnough) && is_half
        {
            let mut alone = PeerIntervals::new(self.id);
            alone.set_voters([self.id].into_iter());
            return alone;
        }
        self.peers.clone()
    }

    /// The process reads its source while nobody asks.
    pub(super) fn sample(&mut self, now_ns: i64, random: &mut Rng) {
        let Some(ceiling) = self.applied.filter(|_| self.is_up()) else { return };
        self.sampled = self.reading(now_ns);
        let Some(reading) = self.sampled else { return };
        self.begin(now_ns);
        let Some(stamper) = &mut self.stamper else { return };
        let _refused = stamper.sample(Opening { ceiling, change: 0 }, reading, &self.peers);
        if let Some(mark_ns) = stamper.poll_mark() {
            self.writing_ns = Some(mark_ns);
            if random.bool() {
                self.sync_disk();
            }
        }
    }

    /// What the process tells another one of the time.
    pub(super) fn told(&self, now_ns: i64) -> Option<(u64, u64)> {
        let sampled = self.sampled.filter(|_| self.is_up())?;
        if self.is(IntervalPlant::ReportOfOldReading) {
            return Some((sampled.earliest_ns, sampled.latest_ns));
        }
        sampled.at(self.raw_ns(now_ns))
    }

    /// The process hears what node `from` told. It had asked at `asked_ns` of true time.
    pub(super) fn hear(
        &mut self,
        from: usize,
        told: Option<(u64, u64)>,
        asked_ns: i64,
        now_ns: i64,
    ) {
        let arrived_ns = self.raw_ns(now_ns);
        let trip_ns = arrived_ns - self.raw_ns(asked_ns);
        // The monotonic clock, which measures the trip, may be slewed.
        let trip_ns =
            if self.is(IntervalPlant::ReportWithoutTrip) { 0 } else { trip_ns + trip_ns / 8 };
        self.peers.handle_report(NodeId(from as u64 + 1), told, trip_ns, arrived_ns);
    }

    /// The mark on its way is durable now, and the process hears of it.
    pub(super) fn sync_disk(&mut self) {
        let Some(mark_ns) = self.writing_ns.take() else { return };
        self.mark_ns = mark_ns;
        if let Some(stamper) = &mut self.stamper {
            stamper.handle_mark(mark_ns);
        }
    }

    /// The process ends. A clean stop writes the exact mark. A crash may lose the mark on its way, or
    /// leave it on the disk.
    pub(super) fn end(&mut self, is_clean: bool, random: &mut Rng) {
        let Some(mut stamper) = self.stamper.take() else { return };
        let writing_ns = self.writing_ns.take();
        if is_clean {
            self.mark_ns = stamper.stop();
        } else if let Some(mark_ns) = writing_ns.filter(|_| random.bool()) {
            self.mark_ns = mark_ns;
        }
        self.cached = None;
        self.torn_ns = None;
        self.sampled = None;
    }

    pub(super) fn start(&mut self) {
        let mark_ns = if self.is(IntervalPlant::MarkForgotten) { 0 } else { self.mark_ns };
        let stamper = Stamper::new(self.id, mark_ns, 0, BOUND_MAX_NS as u64);
        self.stamper = Some(stamper.expect("a low node id"));
        self.peers = PeerIntervals::new(self.id);
        self.peers.set_voters((1..=NODES as u64).map(NodeId));
        self.began_ns = None;
        self.stale = self.stated;
    }
}
