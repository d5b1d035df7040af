//! Limits per client address: the connections that each address holds, and the requests that it may
//! still make. An IPv6 address counts as its first 64 bits, because a client usually has all
//! addresses of such a network. This module only counts; the callers refuse. It forgets an address
//! that has no connection and no request debt.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Addresses without a connection are kept until there are at least this many of them. Then those
/// without a request debt are removed.
const GONE_MAX: usize = 1024;
/// An address may send at once as many requests as its rate allows in this time.
const BURST_NS: u64 = NS_PER_SECOND;
const NS_PER_SECOND: u64 = 1_000_000_000;

/// The client connections of one node, by address.
#[derive(Debug)]
pub(crate) struct AddressLimits {
    /// Nanoseconds of an address's rate that one request uses; `None` without a rate limit.
    request_ns: Option<u64>,
    connections: AtomicUsize,
    table: Mutex<Table>,
}

/// The key of a client address: an IPv4 address, or the network of an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key(IpAddr);

#[derive(Debug, Default)]
struct Table {
    /// The hash function has a random key, so that clients cannot choose addresses that collide.
    ///
    /// Invariant: `gone` of the entries have no connection.
    address_limits: HashMap<Key, Present>,
    gone: usize,
    /// When more entries than this have no connection, all entries are examined. It is twice the
    /// number without a connection that the last examination kept, so the cost per address that
    /// leaves stays low.
    gone_max: usize,
}

#[derive(Debug)]
struct Present {
    connections: usize,
    rate: Arc<AddressRate>,
}

/// The state of an address, which its connections share.
#[derive(Debug, Default)]
struct AddressRate {
    /// The monotonic time at which all requests so far would be finished at exactly the allowed
    /// rate (the virtual scheduling algorithm of ITU-T I.371).
    paid_until_ns: AtomicU64,
}

impl Key {
    /// The key of an address.
    pub(crate) fn of(addr: IpAddr) -> Self {
        Self(match addr.to_canonical() {
            IpAddr::V4(addr) => IpAddr::V4(addr),
            IpAddr::V6(addr) => IpAddr::V6(Ipv6Addr::from_bits(addr.to_bits() >> 64 << 64)),
        })
    }
}

impl AddressLimits {
    /// Starts without addresses. `request_rate_max` is the request rate of one address, per second.
    pub(crate) fn new(request_rate_max: Option<NonZeroU32>) -> Arc<Self> {
        let request_ns = request_rate_max.map(|rate| NS_PER_SECOND / u64::from(rate.get()));
        Arc::new(Self { request_ns, connections: AtomicUsize::new(0), table: Mutex::default() })
    }

    /// How many connections are open, from all addresses together.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Counts a connection from `addr`; `None` if the address has `connections_max` already.
    pub(crate) fn admit(
        self: &Arc<Self>,
        addr: IpAddr,
        connections_max: usize,
    ) -> Option<ConnectionPermit> {
        let key = Key::of(addr);
        let mut table = self.table();
        let mut is_back = false;
        let present = table.address_limits.entry(key).or_insert_with(|| {
            is_back = true;
            Present { connections: 0, rate: Arc::default() }
        });
        if present.connections >= connections_max {
            return None;
        }
        let was_gone = present.connections == 0 && !is_back;
        present.connections += 1;
        let rate = present.rate.clone();
        table.gone -= usize::from(was_gone);
        drop(table);
        self.connections.fetch_add(1, Ordering::Relaxed);
        Some(ConnectionPermit { address_limits: self.clone(), key, rate })
    }

    fn leave(&self, key: Key) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
        let mut table = self.table();
        let Some(present) = table.address_limits.get_mut(&key) else { return };
        present.connections -= 1;
        if present.connections > 0 {
            return;
        }
        if self.request_ns.is_none() {
            table.address_limits.remove(&key);
            return;
        }
        // The entry stays. If it were removed, a new connection would clear the request debt of the
        // address.
        table.gone += 1;
        if table.gone > table.gone_max.max(GONE_MAX) {
            let paid_until = |it: &Present| it.rate.paid_until_ns.load(Ordering::Relaxed);
            let newest = table.address_limits.values().map(paid_until).max().unwrap_or(0);
            // An address with a request debt has asked within [`BURST_NS`].
            let owes = |it: &Present| paid_until(it) > 0 && paid_until(it) + BURST_NS > newest;
            table.address_limits.retain(|_, it| it.connections > 0 || owes(it));
            table.gone = table.address_limits.values().filter(|it| it.connections == 0).count();
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
    address_limits: Arc<AddressLimits>,
    key: Key,
    rate: Arc<AddressRate>,
}

impl ConnectionPermit {
    /// Whether the request rate of an address is limited.
    pub(crate) fn has_rate(&self) -> bool {
        self.address_limits.request_ns.is_some()
    }

    /// How many of `requests` the rate of the address allows at `now_ns`, monotonic nanoseconds.
    /// The allowed requests are counted.
    pub(crate) fn take(&self, requests: u32, now_ns: u64) -> u32 {
        let Some(request_ns) = self.address_limits.request_ns else { return requests };
        let paid_until = &self.rate.paid_until_ns;
        let mut taken = 0;
        // Relaxed ordering is enough: no other memory is read depending on this value.
        let _ = paid_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |until_ns| {
            let from_ns = until_ns.max(now_ns);
            let room = (now_ns + BURST_NS).saturating_sub(from_ns) / request_ns;
            taken = u64::from(requests).min(room) as u32;
            Some(from_ns + u64::from(taken) * request_ns)
        });
        taken
    }

    /// Takes this many requests out of the count. The caller will ask for them again.
    pub(crate) fn give_back(&self, requests: u32) {
        let Some(request_ns) = self.address_limits.request_ns else { return };
        let back_ns = u64::from(requests) * request_ns;
        // Relaxed ordering is enough, as in `take`. The value is at least `back_ns`, which `take`
        // has added.
        let _ = self.rate.paid_until_ns.fetch_update(
            Ordering::Relaxed,
            Ordering::Relaxed,
            |until_ns| Some(until_ns.saturating_sub(back_ns)),
        );
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.address_limits.leave(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = NS_PER_SECOND;

    fn addr(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn rated(rate: u32) -> Arc<AddressLimits> {
        AddressLimits::new(NonZeroU32::new(rate))
    }

    #[test]
    fn an_address_holds_as_many_connections_as_it_may_and_others_theirs() {
        let address_limits = AddressLimits::new(None);
        let admit = |text: &str| address_limits.admit(addr(text), 2);
        let (first, second) = (admit("192.0.2.1").unwrap(), admit("192.0.2.1").unwrap());
        assert!(admit("192.0.2.1").is_none());
        assert!(admit("::ffff:192.0.2.1").is_none(), "the same, written as IPv6");
        let other = admit("192.0.2.2").unwrap();
        assert_eq!(address_limits.connections(), 3);
        drop(first);
        let third = admit("192.0.2.1").unwrap();
        assert!(admit("192.0.2.1").is_none());
        drop((second, third, other));
        assert_eq!(address_limits.connections(), 0);
        assert!(
            address_limits.table().address_limits.is_empty(),
            "nothing is kept of who has left"
        );
    }

    #[test]
    fn the_addresses_of_one_ipv6_network_are_one() {
        let address_limits = AddressLimits::new(None);
        let _held = address_limits.admit(addr("2001:db8:0:1::1"), 1).unwrap();
        assert!(address_limits.admit(addr("2001:db8:0:1:ffff::2"), 1).is_none());
        assert!(address_limits.admit(addr("2001:db8:0:2::1"), 1).is_some());
    }

    #[test]
    fn a_rate_lets_a_second_of_it_through_at_once_and_then_as_time_passes() {
        let address_limits = rated(10);
        let permit = address_limits.admit(addr("192.0.2.1"), 2).unwrap();
        let sibling = address_limits.admit(addr("192.0.2.1"), 2).unwrap();
        let other = address_limits.admit(addr("192.0.2.2"), 2).unwrap();
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
    fn an_allowance_given_back_is_granted_again_but_is_not_saved_up() {
        let address_limits = rated(10);
        let permit = address_limits.admit(addr("192.0.2.1"), 1).unwrap();
        assert_eq!(permit.take(10, SECOND), 10);
        permit.give_back(4);
        assert_eq!(permit.take(100, SECOND), 4);
        permit.give_back(10);
        assert_eq!(permit.take(100, 100 * SECOND), 10, "nothing is saved up");
    }

    #[test]
    fn a_new_connection_does_not_pay_what_an_address_owes() {
        let address_limits = rated(10);
        let permit = address_limits.admit(addr("192.0.2.1"), 1).unwrap();
        assert_eq!(permit.take(10, SECOND), 10);
        drop(permit);
        let again = address_limits.admit(addr("192.0.2.1"), 1).unwrap();
        assert_eq!(again.take(1, SECOND), 0);
    }

    #[test]
    fn an_address_that_has_left_and_owes_nothing_is_forgotten() {
        let address_limits = rated(10);
        let come_and_go = |network: u32, at: u64| {
            let addr = IpAddr::from((0x0A00_0000 + network).to_be_bytes());
            let permit = address_limits.admit(addr, 1).unwrap();
            permit.take(1, at);
        };
        for address in 0..100_000 {
            come_and_go(address, SECOND + u64::from(address) * SECOND / 100);
            let table = address_limits.table();
            assert!(table.address_limits.len() <= GONE_MAX + 1, "{}", table.address_limits.len());
            let gone = table.address_limits.values().filter(|it| it.connections == 0).count();
            assert_eq!(gone, table.gone);
        }
    }

    #[test]
    fn nothing_is_kept_of_addresses_that_came_and_asked_nothing() {
        let address_limits = rated(10);
        for number in 0..10 * GONE_MAX as u32 {
            drop(address_limits.admit(std::net::Ipv4Addr::from_bits(number).into(), 1));
        }
        assert!(address_limits.table().address_limits.len() <= GONE_MAX + 1);
    }
}
