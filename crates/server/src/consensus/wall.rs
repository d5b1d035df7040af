//! The wall clock of this node, shifted by the test switch. [`epicepoch_core::clock`] decides
//! whether the clock is trusted.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use epicepoch_core::clock::{ClockReading, ClockStatus, TrustedClock};
use epicepoch_core::publication::Published;
use epicepoch_wire::{Epoch, Term};
use serde_json::{Value, json};

use super::round_trips::RoundTrips;
use crate::faults::Faults;
use crate::shared::{NodeClock, NodeShared};

/// The wall clock in Unix nanoseconds; 0 if it is before 1970.
pub(crate) fn wall_ns(faults: &Faults) -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let wall_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    wall_ns.saturating_add_signed(faults.wall_offset_ns())
}

/// A reading of the monotonic clock and the wall clock together. If this thread stands still between
/// the two, they do not belong together, so both are read again.
pub(crate) fn reading(clock: &NodeClock, faults: &Faults) -> ClockReading {
    together(|| clock.monotonic_ns(), || wall_ns(faults))
}

fn together(monotonic_ns: impl Fn() -> u64, wall_ns: impl Fn() -> u64) -> ClockReading {
    let mut reading = ClockReading { monotonic_ns: monotonic_ns(), wall_ns: wall_ns() };
    for _ in 1..READINGS_MAX {
        let after_ns = monotonic_ns();
        if after_ns.saturating_sub(reading.monotonic_ns) <= APART_NS_MAX {
            break;
        }
        reading = ClockReading { monotonic_ns: after_ns, wall_ns: wall_ns() };
    }
    reading
}

/// Two readings of clocks belong together if no more than this passes from before the first until
/// after the second, nanoseconds. After `READINGS_MAX` tries the last reading is used.
const APART_NS_MAX: u64 = 1_000_000;
const READINGS_MAX: usize = 10;

/// How far the epochs of a leader are ahead of trusted time, nanoseconds. Its next epoch is above
/// the start of its range and above the last epoch that it has given out. `None` without a grant.
fn ahead_ns(published: &Published, stamped: Epoch, trusted_ns: u64) -> Option<u64> {
    let low = published.grant?.range.low;
    Some(low.max(stamped).0.saturating_sub(trusted_ns))
}

/// Warns when a leader begins ahead of its clock. Holds the term of the last grant, so that it
/// warns once per term.
#[derive(Debug, Default)]
pub(super) struct AheadWarning(Term);

impl AheadWarning {
    /// Records a grant above `low`. It warns on the first grant of a leadership, if `low` is
    /// further ahead than the previous leader's reservation explains.
    pub(super) fn record_grant(&mut self, term: Term, low: Epoch, trusted_ns: u64, window_ms: u64) {
        if let Some(ahead_ns) = self.begins_ahead(term, low, trusted_ns, window_ms) {
            tracing::warn!(
                recovers_in_ms = ahead_ns / 1_000_000,
                "this leader begins ahead of its clock, because the ceiling is ahead: until time has \
                 caught up, epochs move by the least step or stand still while the index rises; no \
                 request is refused for it"
            );
        }
    }

    fn begins_ahead(
        &mut self,
        term: Term,
        low: Epoch,
        trusted_ns: u64,
        window_ms: u64,
    ) -> Option<u64> {
        if std::mem::replace(&mut self.0, term) == term {
            return None;
        }
        let ahead_ns = low.0.saturating_sub(trusted_ns);
        (ahead_ns > window_ms * 1_000_000 + AHEAD_WARNED_NS).then_some(ahead_ns)
    }
}

/// A new leader warns if its range begins more than a reservation window plus this value ahead of
/// trusted time, nanoseconds.
const AHEAD_WARNED_NS: u64 = 2_000_000_000;

/// The document about this node's clock. Times are milliseconds, or Unix nanoseconds as text.
pub(super) fn document(
    shared: &NodeShared,
    published: &Published,
    (clock, round_trips): (&TrustedClock, &RoundTrips),
    reading: ClockReading,
    ceiling: Epoch,
) -> Value {
    let apart_ms =
        |of_ns: u64, from_ns: u64| (i128::from(of_ns) - i128::from(from_ns)) as f64 / 1e6;
    let trusted_ns = clock.trusted_ns(reading.monotonic_ns);
    let is_leader = published.leader == Some(published.identity.node);
    let stamped = shared.allocator.epoch();
    let recovers_ns = ahead_ns(published, stamped, trusted_ns);
    // Only a leader that has given out timestamps has an epoch to show.
    let epoch = Some(stamped).filter(|epoch| is_leader && *epoch > Epoch(0));
    let peers = clock.peer_offsets().into_iter();
    let peers = peers.map(|(node, ns)| json!({"nodeID": node.0, "offsetMs": ns as f64 / 1e6}));
    let of_ms = |ns: u64| ns as f64 / 1e6;
    let voters = || published.voters.iter().map(|(node, _)| node);
    let fresh = |node| Some((node, round_trips.of(reading.monotonic_ns, node)?));
    let trips = voters().filter_map(fresh);
    let trips = trips.map(|(node, (usual_ns, max_ns))| {
        json!({"nodeID": node.0, "usualMs": of_ms(usual_ns), "maxMs": of_ms(max_ns)})
    });
    let config = &shared.config;
    let settings = shared.settings();
    let ms = |duration: Duration| duration.as_millis() as u64;
    json!({
        "nodeID": published.identity.node.0,
        "clusterName": config.cluster_name,
        "boot": format!("{:016x}", published.identity.boot.0),
        "leads": is_leader,
        "status": match clock.status() {
            ClockStatus::Followed => "followed",
            ClockStatus::Outvoted => "outvoted",
            ClockStatus::Jumped => "jumped",
        },
        "wallNs": reading.wall_ns.to_string(),
        "offsetMs": apart_ms(reading.wall_ns, trusted_ns),
        "ceiling": ceiling.0.to_string(),
        "epoch": epoch.map(|epoch| epoch.0.to_string()),
        "lagMs": epoch.map(|epoch| apart_ms(reading.wall_ns, epoch.0)),
        "leadMs": apart_ms(ceiling.0, reading.wall_ns),
        "recoversInMs": recovers_ns.map(of_ms),
        "reservationMs": settings.reservation_ms,
        "electionTimeoutMs": ms(config.election_timeout),
        "heartbeatMs": ms(config.heartbeat),
        "clockOffsetMaxMs": settings.clock_offset_max_ms,
        "leaseMs": settings.lease_ms,
        "requestTimeoutMs": ms(config.request_timeout),
        "voters": voters().map(|node| node.0).collect::<Vec<_>>(),
        "peers": peers.collect::<Vec<_>>(),
        "roundTrips": trips.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use epicepoch_core::publication::{EpochRange, Grant, Identity};
    use epicepoch_core::state::FORMATS;
    use epicepoch_wire::{BootId, NodeId, StoreId};

    use super::super::fixture::{ME, START_NS, logged, replica, shared, state, voters};
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_leader_recovers_when_time_reaches_its_last_stamp_and_not_its_range() {
        let me = Identity { node: NodeId(1), store: StoreId(1), boot: BootId(7) };
        let mut published = Published::nothing(me);
        assert_eq!(ahead_ns(&published, Epoch(90 * S), 5 * S), None, "it owns nothing");
        let range = EpochRange { low: Epoch(60 * S), high: Epoch(61 * S) };
        published.grant = Some(Grant { term: Term(2), boot: me.boot, range });
        let of = |stamped, trusted_ns| ahead_ns(&published, Epoch(stamped), trusted_ns);
        assert_eq!(of(0, 5 * S), Some(55 * S), "it has stamped nothing yet");
        assert_eq!(of(60 * S + 7, 5 * S), Some(55 * S + 7));
        assert_eq!(of(50 * S, 5 * S), Some(55 * S), "that was another leadership");
        assert_eq!(of(60 * S + 7, 60 * S + 8), Some(0));
    }

    #[test]
    fn a_leader_that_begins_ahead_warns_once_and_not_for_a_usual_window() {
        let mut warning = AheadWarning::default();
        let window_ms = 1_000;
        assert_eq!(warning.begins_ahead(Term(2), Epoch(8 * S), 5 * S, window_ms), None, "usual");
        assert_eq!(
            warning.begins_ahead(Term(2), Epoch(60 * S), 5 * S, window_ms),
            None,
            "moved by hand"
        );
        assert_eq!(warning.begins_ahead(Term(3), Epoch(60 * S), 5 * S, window_ms), Some(55 * S));
        assert_eq!(
            warning.begins_ahead(Term(3), Epoch(60 * S), 6 * S, window_ms),
            None,
            "warned already"
        );
        assert_eq!(
            warning.begins_ahead(Term(4), Epoch(60 * S), 6 * S, 60_000),
            None,
            "a long window"
        );
        assert_eq!(warning.begins_ahead(Term(5), Epoch(60 * S), 70 * S, window_ms), None);
    }

    #[test]
    fn a_grant_far_ahead_of_the_clock_is_logged() {
        let mut warning = AheadWarning::default();
        let mut log = |term, low| {
            logged(|| warning.record_grant(Term(term), Epoch(low), 5 * S, 1_000)).concat()
        };
        assert_eq!(log(2, 5 * S), "");
        let line = log(3, 60 * S);
        assert!(line.starts_with("WARN this leader begins ahead of its clock"), "{line}");
        assert!(line.ends_with(" recovers_in_ms=55000"), "{line}");
    }

    /// The wall clock is 2.5 s ahead of trusted time, which follows the median.
    #[test]
    fn the_document_of_a_clock_shows_how_far_each_time_is_from_the_others() {
        let shared = shared();
        let start = ClockReading { monotonic_ns: 0, wall_ns: START_NS };
        let mut clock = TrustedClock::new(500_000_000, start);
        for node in [2, 3] {
            clock.handle_sample(NodeId(node), START_NS, 0, 0);
        }
        let reading = ClockReading { monotonic_ns: S, wall_ns: START_NS + 3 * S + S / 2 };
        assert_eq!(clock.observe(reading, 3, 0), ClockStatus::Outvoted);
        let mut round_trips = RoundTrips::default();
        for round_trip_ns in [2_500_000, 4_250_000] {
            round_trips.record(S, NodeId(2), round_trip_ns);
        }
        let replica = replica(&state(3), voters(3), FORMATS.newest);
        let shown = |published: &Published| {
            let ceiling = Epoch(START_NS + 5 * S);
            document(&shared, published, (&clock, &round_trips), reading, ceiling)
        };
        let mut published = (*replica.published()).clone();
        let range = EpochRange { low: Epoch(START_NS + 3 * S), high: Epoch(START_NS + 5 * S) };
        published.grant = Some(Grant { term: Term(2), boot: ME.boot, range });
        published.leader = Some(NodeId(1));
        let settings = shared.settings();
        let expected = json!({
            "nodeID": 1,
            "clusterName": "test",
            "boot": "000000000000b007",
            "leads": true,
            "status": "outvoted",
            "wallNs": (START_NS + 3 * S + S / 2).to_string(),
            "offsetMs": 2_500.0,
            "ceiling": (START_NS + 5 * S).to_string(),
            // It has given no timestamp yet.
            "epoch": null,
            "lagMs": null,
            "leadMs": 1_500.0,
            "recoversInMs": 2_000.0,
            "reservationMs": settings.reservation_ms,
            "electionTimeoutMs": shared.config.election_timeout.as_millis() as u64,
            "heartbeatMs": shared.config.heartbeat.as_millis() as u64,
            "clockOffsetMaxMs": settings.clock_offset_max_ms,
            "leaseMs": 0,
            "requestTimeoutMs": shared.config.request_timeout.as_millis() as u64,
            "voters": [1, 2, 3],
            "peers": [{"nodeID": 2, "offsetMs": -2_500.0}, {"nodeID": 3, "offsetMs": -2_500.0}],
            "roundTrips": [{"nodeID": 2, "usualMs": 4.25, "maxMs": 4.25}],
        });
        assert_eq!(shown(&published), expected);
        published.leader = Some(NodeId(2));
        published.grant = None;
        let follower = shown(&published);
        assert_eq!(follower["leads"], false);
        assert_eq!(follower["recoversInMs"], Value::Null);
    }
}
