//! Are the links as asked? Nothing is measured before they are.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::nodes::question_ms;
use super::{Lab, LabError};
use crate::outcome::{End, Link};
use crate::plan::{LOOK_TRIES, look_threads};

/// How long links may take until the nodes have measured them.
const VERIFY_MAX: Duration = Duration::from_secs(25);
/// Time between two looks.
const AGAIN: Duration = Duration::from_millis(500);
/// A round trip may be this share longer or shorter than asked, and [`SLACK_MS`].
const SLACK: f64 = 0.1;
/// See [`SLACK`].
const SLACK_MS: f64 = 1.0;

/// Round trips, ms: whether a node measured it, the node or the region of clients, and the other node.
type Trips = BTreeMap<(bool, u64, u64), f64>;

impl Lab<'_> {
    /// Sets the delays, and waits until nodes and clients measure what the file asks for.
    pub(super) fn verify(&mut self) -> Result<(), LabError> {
        let floor = self.trips(Instant::now() + VERIFY_MAX)?;
        self.wires.set_delays()?;
        self.tell("verifying the links");
        let end = Instant::now() + VERIFY_MAX;
        loop {
            let (links, wrong) = self.compare(&floor, &self.trips(end)?);
            if wrong.is_empty() {
                self.outcome.links = links;
                return Ok(());
            }
            if Instant::now() >= end {
                return Err(LabError::Links(wrong.join("; ")));
            }
            self.pause(AGAIN)?;
        }
    }

    /// Every round trip as measured now. Between nodes it is the nodes' own figure, as `epicepoch
    /// tune` shows it. After `end` no further question is asked.
    fn trips(&self, end: Instant) -> Result<Trips, LabError> {
        let is_stopped = || self.setup.stop.load(Ordering::Relaxed);
        let may_ask = || !is_stopped() && Instant::now() < end;
        let mut trips = Trips::new();
        for from in self.topology().nodes.keys().take_while(|_| may_ask()) {
            let measured = self.nodes.round_trips(*from);
            trips.extend(measured.into_iter().map(|(to, ms)| ((true, *from, to), ms)));
        }
        let regions = self.topology().clients.keys();
        let of = |region: &usize| {
            let region = *region;
            self.wires.targets(region).iter().map(move |target| (region, target))
        };
        let waiting = Mutex::new(regions.flat_map(of).collect::<Vec<_>>());
        let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let ask_some = || {
            let mut asked = Vec::new();
            while let Some((region, target)) = next() {
                let ms = question_ms(target.addr, LOOK_TRIES, may_ask);
                asked.extend(ms.map(|ms| ((false, region as u64, target.id), ms)));
            }
            asked
        };
        thread::scope(|scope| {
            let threads = 0..look_threads(self.topology());
            let threads: Vec<_> = threads.map(|_| scope.spawn(ask_some)).collect();
            for thread in threads {
                trips.extend(thread.join().expect("a question never panics"));
            }
        });
        if is_stopped() { Err(LabError::Stopped) } else { Ok(trips) }
    }

    /// Compares the round trips with the file. What a link costs without delays, `floor`, is no
    /// fault of the delays.
    fn compare(&self, floor: &Trips, trips: &Trips) -> (Vec<Link>, Vec<String>) {
        let topology = self.topology();
        let (mut links, mut wrong) = (Vec::new(), Vec::new());
        let nodes = topology.nodes.iter().map(|(id, region)| (true, *id, *region));
        let clients = topology.clients.keys().map(|region| (false, *region as u64, *region));
        for (is_node, from, here) in nodes.chain(clients) {
            for (to, there) in topology.nodes.iter().filter(|(to, _)| !is_node || **to != from) {
                let asked_ms =
                    topology.one_way_ms[here][*there] + topology.one_way_ms[*there][here];
                let jitter_ms = if here == *there { 0.0 } else { 2.0 * topology.jitter_ms };
                let name = || {
                    let of = if is_node { format!("node {from}") } else { "clients".to_owned() };
                    format!(
                        "{} ({of}) → {} (node {to})",
                        topology.region(here),
                        topology.region(*there)
                    )
                };
                let Some(measured_ms) = trips.get(&(is_node, from, *to)).copied() else {
                    wrong.push(format!("{}: not measured", name()));
                    continue;
                };
                let base = floor.get(&(is_node, from, *to)).copied().unwrap_or(0.0);
                if is_as_asked(measured_ms, asked_ms, jitter_ms, base) {
                    let from = if is_node { End::Node(from) } else { End::Clients(here) };
                    links.push(Link { from, to: *to, asked_ms, measured_ms });
                } else {
                    wrong.push(format!("{}: {measured_ms:.1} ms, asked for {asked_ms}", name()));
                }
            }
        }
        (links, wrong)
    }
}

/// Whether a measured round trip is the one asked for, with jitter, on a machine where a link without
/// delays takes `floor_ms`.
fn is_as_asked(measured_ms: f64, asked_ms: f64, jitter_ms: f64, floor_ms: f64) -> bool {
    let low = asked_ms * (1.0 - SLACK) - SLACK_MS;
    let high = (asked_ms + jitter_ms) * (1.0 + SLACK) + SLACK_MS + floor_ms;
    (low..=high).contains(&measured_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_as_asked_within_a_tenth_and_a_millisecond() {
        assert!(is_as_asked(80.0, 80.0, 0.0, 0.0));
        assert!(is_as_asked(71.0, 80.0, 0.0, 0.0) && is_as_asked(89.0, 80.0, 0.0, 0.0));
        assert!(!is_as_asked(70.9, 80.0, 0.0, 0.0) && !is_as_asked(89.1, 80.0, 0.0, 0.0));
        assert!(is_as_asked(97.0, 80.0, 10.0, 0.0), "jitter makes links longer, not shorter");
        assert!(!is_as_asked(70.0, 80.0, 10.0, 5.0));
        assert!(is_as_asked(1.4, 0.4, 0.0, 0.0) && !is_as_asked(1.5, 0.4, 0.0, 0.0));
        assert!(is_as_asked(1.5, 0.4, 0.0, 0.2), "the machine's own time");
    }
}
