//! Where clients come from: how many connections each address holds, and how many requests it may
//! still ask. An address of IPv6 stands for the 64 bits in front, because whoever has one has them
//! all. It refuses nothing itself and keeps nothing of an address that has left and owes nothing.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Addresses without a connection that are kept before it is looked for those that owe nothing.
const GONE_MAX: usize = 1024;
/// For how long at most requests may come faster than the rate: what an address may ask at once.
const BURST_NS: u64 = NS_PER_SECOND;
const NS_PER_SECOND: u64 = 1_000_000_000;

/// The client connections of one node, by where they come from.
#[derive(Debug)]
pub(crate) struct Origins {
    /// Nanoseconds that one request takes of an address's rate; `None` without such a limit.
    request_ns: Option<u64>,
    connections: AtomicUsize,
    table: Mutex<Table>,
}

/// What identifies an origin: an IPv4 address, or the network of an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key(IpAddr);

#[derive(Debug, Default)]
struct Table {
    /// The hash is keyed with chance, so that nobody can choose addresses that collide.
    ///
    /// Invariant: `gone` of them have no connection.
    origins: HashMap<Key, Present>,
    gone: usize,
    /// How many may be gone before all are looked at again: twice as many as were found to owe
    /// something the last time, so that looking costs little for each that has left.
    gone_max: usize,
}

#[derive(Debug)]
struct Present {
    connections: usize,
    origin: Arc<Origin>,
}

/// One address, as its connections share it.
#[derive(Debug, Default)]
struct Origin {
    /// The monotonic time at which everything that was asked would have been asked at exactly the
    /// rate (the virtual scheduling algorithm of ITU-T I.371).
    paid_until_ns: AtomicU64,
}

impl Key {
    /// The origin of an address.
    pub(crate) fn of(addr: IpAddr) -> Self {
        Self(match addr.to_canonical() {
            IpAddr::V4(addr) => IpAddr::V4(addr),
            IpAddr::V6(addr) => IpAddr::V6(Ipv6Addr::from_bits(addr.to_bits() >> 64 << 64)),
        })
    }
}

impl Origins {
    /// Nobody yet. `request_rate_max` is what one address may ask per second.
    pub(crate) fn new(request_rate_max: Option<NonZeroU32>) -> Arc<Self> {
        let request_ns = request_rate_max.map(|rate| NS_PER_SECOND / u64::from(rate.get()));
        Arc::new(Self { request_ns, connections: AtomicUsize::new(0), table: Mutex::default() })
    }

    /// How many connections there are.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Counts a connection from `addr`, unless it has `connections_max` already.
    pub(crate) fn admit(
        self: &Arc<Self>,
        addr: IpAddr,
        connections_max: usize,
    ) -> Option<ConnectionPermit> {
        let key = Key::of(addr);
        let mut table = self.table();
        let mut is_back = false;
        let present = table.origins.entry(key).or_insert_with(|| {
            is_back = true;
            Present { connections: 0, origin: Arc::default() }
        });
        if present.connections >= connections_max {
            return None;
        }
        let was_gone = present.connections == 0 && !is_back;
        present.connections += 1;
        let origin = present.origin.clone();
        table.gone -= usize::from(was_gone);
        drop(table);
        self.connections.fetch_add(1, Ordering::Relaxed);
        Some(ConnectionPermit { origins: self.clone(), key, origin })
    }

    fn leave(&self, key: Key) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
        let mut table = self.table();
        let Some(present) = table.origins.get_mut(&key) else { return };
        present.connections -= 1;
        if present.connections > 0 {
            return;
        }
        if self.request_ns.is_none() {
            table.origins.remove(&key);
            return;
        }
        // It may owe something, and a new connection does not pay for it.
        table.gone += 1;
        if table.gone > table.gone_max.max(GONE_MAX) {
            let paid_until = |it: &Present| it.origin.paid_until_ns.load(Ordering::Relaxed);
            let newest = table.origins.values().map(paid_until).max().unwrap_or(0);
            // Whoever owes something has asked within the time of a burst.
            let owes = |it: &Present| paid_until(it) > 0 && paid_until(it) + BURST_NS > newest;
            table.origins.retain(|_, it| it.connections > 0 || owes(it));
            table.gone = table.origins.values().filter(|it| it.connections == 0).count();
            table.gone_max = 2 * table.gone;
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a client's connection for as long as it lives.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    origins: Arc<Origins>,
    key: Key,
    origin: Arc<Origin>,
}

impl ConnectionPermit {
    /// Whether there is a limit on what one address may ask.
    pub(crate) fn has_rate(&self) -> bool {
        self.origins.request_ns.is_some()
    }

    /// How many of `requests` that come at `now_ns`, monotonic time, are within what the address may
    /// ask. They are counted.
    pub(crate) fn take(&self, requests: u32, now_ns: u64) -> u32 {
        let Some(request_ns) = self.origins.request_ns else { return requests };
        let paid_until = &self.origin.paid_until_ns;
        let mut taken = 0;
        // Both orders are right: nothing else is read because of it.
        let _ = paid_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |until_ns| {
            let from_ns = until_ns.max(now_ns);
            let room = (now_ns + BURST_NS).saturating_sub(from_ns) / request_ns;
            taken = u64::from(requests).min(room) as u32;
            Some(from_ns + u64::from(taken) * request_ns)
        });
        taken
    }

    /// Takes back that so many requests were counted, which are to be asked about once more.
    pub(crate) fn give_back(&self, requests: u32) {
        let Some(request_ns) = self.origins.request_ns else { return };
        let back_ns = u64::from(requests) * request_ns;
        // Both orders are right, as above. It was added before, and is never less than that.
        let _ = self.origin.paid_until_ns.fetch_update(
            Ordering::Relaxed,
            Ordering::Relaxed,
            |until_ns| Some(until_ns.saturating_sub(back_ns)),
        );
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.origins.leave(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = NS_PER_SECOND;

    fn addr(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn rated(rate: u32) -> Arc<Origins> {
        Origins::new(NonZeroU32::new(rate))
    }

    #[test]
    fn an_address_holds_as_many_connections_as_it_may_and_others_theirs() {
        let origins = Origins::new(None);
        let admit = |text: &str| origins.admit(addr(text), 2);
        let (first, second) = (admit("192.0.2.1").unwrap(), admit("192.0.2.1").unwrap());
        assert!(admit("192.0.2.1").is_none());
        assert!(admit("::ffff:192.0.2.1").is_none(), "the same, written as IPv6");
        let other = admit("192.0.2.2").unwrap();
        assert_eq!(origins.connections(), 3);
        drop(first);
        let third = admit("192.0.2.1").unwrap();
        assert!(admit("192.0.2.1").is_none());
        drop((second, third, other));
        assert_eq!(origins.connections(), 0);
        assert!(origins.table().origins.is_empty(), "nothing is kept of who has left");
    }

    #[test]
    fn the_addresses_of_one_ipv6_network_are_one() {
        let origins = Origins::new(None);
        let _held = origins.admit(addr("2001:db8:0:1::1"), 1).unwrap();
        assert!(origins.admit(addr("2001:db8:0:1:ffff::2"), 1).is_none());
        assert!(origins.admit(addr("2001:db8:0:2::1"), 1).is_some());
    }

    #[test]
    fn a_rate_lets_a_second_of_it_through_at_once_and_then_as_time_passes() {
        let origins = rated(10);
        let permit = origins.admit(addr("192.0.2.1"), 2).unwrap();
        let sibling = origins.admit(addr("192.0.2.1"), 2).unwrap();
        let other = origins.admit(addr("192.0.2.2"), 2).unwrap();
        let start = 5 * SECOND;
        assert_eq!(permit.take(4, start), 4);
        assert_eq!(sibling.take(100, start), 6, "one rate for all connections of an address");
        assert_eq!(permit.take(1, start), 0);
        assert_eq!(other.take(1, start), 1);
        assert_eq!(permit.take(100, start + SECOND / 10), 1);
        assert_eq!(permit.take(100, start + SECOND / 2), 4);
        assert_eq!(permit.take(100, start + 100 * SECOND), 10, "no more is saved up");
    }

    #[test]
    fn what_is_given_back_may_be_asked_again_and_no_more() {
        let origins = rated(10);
        let permit = origins.admit(addr("192.0.2.1"), 1).unwrap();
        assert_eq!(permit.take(10, SECOND), 10);
        permit.give_back(4);
        assert_eq!(permit.take(100, SECOND), 4);
        permit.give_back(10);
        assert_eq!(permit.take(100, 100 * SECOND), 10, "nothing is saved up");
    }

    #[test]
    fn a_new_connection_does_not_pay_what_an_address_owes() {
        let origins = rated(10);
        let permit = origins.admit(addr("192.0.2.1"), 1).unwrap();
        assert_eq!(permit.take(10, SECOND), 10);
        drop(permit);
        let again = origins.admit(addr("192.0.2.1"), 1).unwrap();
        assert_eq!(again.take(1, SECOND), 0);
    }

    #[test]
    fn who_has_left_and_owes_nothing_is_forgotten() {
        let origins = rated(10);
        let come_and_go = |network: u32, at: u64| {
            let addr = IpAddr::from((0x0A00_0000 + network).to_be_bytes());
            let permit = origins.admit(addr, 1).unwrap();
            permit.take(1, at);
        };
        for address in 0..100_000 {
            come_and_go(address, SECOND + u64::from(address) * SECOND / 100);
            let table = origins.table();
            assert!(table.origins.len() <= GONE_MAX + 1, "{}", table.origins.len());
            let gone = table.origins.values().filter(|it| it.connections == 0).count();
            assert_eq!(gone, table.gone);
        }
    }

    #[test]
    fn nothing_is_kept_of_addresses_that_came_and_asked_nothing() {
        let origins = rated(10);
        for number in 0..10 * GONE_MAX as u32 {
            drop(origins.admit(std::net::Ipv4Addr::from_bits(number).into(), 1));
        }
        assert!(origins.table().origins.len() <= GONE_MAX + 1);
    }
}
