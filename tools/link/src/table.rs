//! The state that the proxy's owner and the proxy's thread share: faults, counts, and listeners to
//! open. A change wakes all connections.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::watch;

use crate::fault::{Fault, Pace};
use crate::party::{Diallers, FRONTS_MAX, Party};

/// Counts of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Bytes handed to the receiver's socket.
    pub bytes: u64,
    /// Bytes that vanished.
    pub bytes_lost: u64,
    /// Connections that the sender of this direction opened.
    pub connections: u64,
    /// Connections that the sender of this direction opened and that were reset: on command, by
    /// [`Cut::Reset`](crate::Cut::Reset), or because bytes were lost.
    pub resets: u64,
}

/// How a connection is broken on command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Break {
    Close,
    Reset,
}

/// A listener in front of a party.
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) party: Party,
    pub(crate) diallers: Diallers,
    pub(crate) listener: TcpListener,
    pub(crate) target: SocketAddr,
}

/// One direction between two parties.
#[derive(Debug, Default)]
struct Path {
    fault: Fault,
    passed: Passed,
    /// How often connections that `from` opened were broken on command, and in which way the last
    /// time.
    breaks: (u64, Option<Break>),
    /// The time at which the next piece may be written, if there is a rate limit.
    free_at: Option<Instant>,
}

#[derive(Debug, Default)]
struct Table {
    paths: BTreeMap<(Party, Party), Path>,
    fronts: usize,
    to_open: Vec<Front>,
    is_stopped: bool,
}

impl Table {
    fn path(&mut self, from: Party, to: Party) -> &mut Path {
        self.paths.entry((from, to)).or_default()
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    table: Mutex<Table>,
    /// Number of changes so far.
    changed: watch::Sender<u64>,
    seed: u64,
    /// Number of connections so far. Each one has its own jitter.
    connections: AtomicU64,
}

impl Shared {
    pub(crate) fn new(seed: u64) -> Self {
        let (changed, _) = watch::channel(0);
        Self { table: Mutex::default(), changed, seed, connections: AtomicU64::new(0) }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // A poisoned lock is safe to use, because a panic never leaves the table half changed.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let done = change(&mut self.table());
        self.changed.send_modify(|count| *count += 1);
        done
    }

    /// Subscribes to later changes.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Adds a listener. Returns `false` if there are too many listeners.
    pub(crate) fn add(&self, front: Front) -> bool {
        self.change(|table| {
            let has_room = table.fronts < FRONTS_MAX;
            if has_room {
                table.fronts += 1;
                table.to_open.push(front);
            }
            has_room
        })
    }

    /// Takes the listeners that are to be opened now. Returns `None` when the proxy ends.
    pub(crate) fn to_open(&self) -> Option<Vec<Front>> {
        let mut table = self.table();
        if table.is_stopped { None } else { Some(std::mem::take(&mut table.to_open)) }
    }

    pub(crate) fn stop(&self) {
        self.change(|table| table.is_stopped = true);
    }

    pub(crate) fn set(&self, from: Party, to: Party, fault: Fault) {
        self.change(|table| {
            let path = table.path(from, to);
            (path.fault, path.free_at) = (fault, None);
        });
    }

    pub(crate) fn heal(&self) {
        self.change(|table| {
            for path in table.paths.values_mut() {
                (path.fault, path.free_at) = (Fault::NONE, None);
            }
        });
    }

    pub(crate) fn break_now(&self, one: Party, other: Party, how: Break) {
        self.change(|table| {
            for (from, to) in [(one, other), (other, one)] {
                let path = table.path(from, to);
                path.breaks = (path.breaks.0 + 1, Some(how));
            }
        });
    }

    pub(crate) fn fault(&self, from: Party, to: Party) -> Fault {
        self.table().paths.get(&(from, to)).map_or(Fault::NONE, |path| path.fault)
    }

    /// Returns how often connections that `from` opened to `to` were broken, and in which way the
    /// last time.
    pub(crate) fn breaks(&self, from: Party, to: Party) -> (u64, Option<Break>) {
        self.table().paths.get(&(from, to)).map_or((0, None), |path| path.breaks)
    }

    pub(crate) fn passed(&self, from: Party, to: Party) -> Passed {
        self.table().paths.get(&(from, to)).map_or_else(Passed::default, |path| path.passed)
    }

    /// Counts bytes delivered or lost.
    pub(crate) fn count(&self, from: Party, to: Party, count: impl FnOnce(&mut Passed)) {
        count(&mut self.table().path(from, to).passed);
    }

    /// Reserves the time at which a piece may be written, and returns it. All connections of a
    /// direction share its rate limit.
    pub(crate) fn slot(&self, from: Party, to: Party, now: Instant, pace: Pace) -> Instant {
        let mut table = self.table();
        let path = table.path(from, to);
        let at = path.free_at.unwrap_or(now).max(now);
        path.free_at = Some(at + pace.every);
        at
    }

    /// Returns seeds for the two directions of a new connection.
    pub(crate) fn seeds(&self) -> (u64, u64) {
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        let mut random = fastrand::Rng::with_seed(self.seed ^ number.rotate_left(32));
        (random.u64(..), random.u64(..))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ONE: Party = Party::node(1);
    const TWO: Party = Party::node(2);

    #[test]
    fn a_direction_is_not_the_other() {
        let shared = Shared::new(1);
        shared.set(ONE, TWO, Fault::blackhole());
        assert_eq!(shared.fault(ONE, TWO), Fault::blackhole());
        assert_eq!(shared.fault(TWO, ONE), Fault::NONE);
        assert_eq!(shared.fault(Party::node(3), TWO), Fault::NONE);
        shared.heal();
        assert_eq!(shared.fault(ONE, TWO), Fault::NONE);
    }

    #[test]
    fn a_pace_is_shared_and_forgotten_when_the_fault_changes() {
        let shared = Shared::new(1);
        let every = Duration::from_secs(1);
        let pace = Pace { bytes: 1, every };
        let now = Instant::now();
        assert_eq!(shared.slot(ONE, TWO, now, pace), now);
        assert_eq!(shared.slot(ONE, TWO, now, pace), now + every);
        assert_eq!(shared.slot(TWO, ONE, now, pace), now);
        shared.set(ONE, TWO, Fault::NONE);
        assert_eq!(shared.slot(ONE, TWO, now, pace), now);
    }

    #[test]
    fn connections_have_jitter_of_their_own_from_the_seed() {
        let (one, same, other) = (Shared::new(1), Shared::new(1), Shared::new(2));
        let first = one.seeds();
        assert_eq!(first, same.seeds());
        assert_ne!(first, one.seeds());
        assert_ne!(first, other.seeds());
        assert_ne!(first.0, first.1);
    }
}
