//! The wall clock of this node, and what the test switch does to it. It never decides whether the
//! clock is believed: [`epicepoch_core::clock`] does.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use epicepoch_core::clock::{ClockReading, ClockStatus, TrustedClock};
use epicepoch_core::publication::Published;
use epicepoch_wire::Epoch;
use serde_json::{Value, json};

use super::round_trips::RoundTrips;
use crate::faults::Faults;
use crate::shared::{NodeClock, NodeShared};

/// Unix nanoseconds of the wall clock; 0 for a clock before 1970.
pub(crate) fn wall_ns(faults: &Faults) -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let wall_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    wall_ns.saturating_add_signed(faults.wall_offset_ns())
}

/// Both clocks, read together.
pub(crate) fn reading(clock: &NodeClock, faults: &Faults) -> ClockReading {
    ClockReading { monotonic_ns: clock.monotonic_ns(), wall_ns: wall_ns(faults) }
}

/// What operators are told of this node's clock; times are milliseconds, or Unix nanoseconds as text.
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
    // Of a leader that has stamped anything: how far its last answer is behind.
    let epoch = Some(shared.allocator.epoch()).filter(|epoch| is_leader && *epoch > Epoch(0));
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
        "boot": format!("{:016x}", published.identity.boot.0),
        "leads": is_leader,
        "status": match clock.status() {
            ClockStatus::Followed => "followed",
            ClockStatus::Outvoted => "outvoted",
            ClockStatus::Jumped => "jumped",
        },
        "wall": reading.wall_ns.to_string(),
        "offsetMs": apart_ms(reading.wall_ns, trusted_ns),
        "ceiling": ceiling.0.to_string(),
        "epoch": epoch.map(|epoch| epoch.0.to_string()),
        "lagMs": epoch.map(|epoch| apart_ms(reading.wall_ns, epoch.0)),
        "leadMs": apart_ms(ceiling.0, reading.wall_ns),
        "reservationMs": settings.reservation_ms,
        "electionTimeoutMs": ms(config.election_timeout),
        "heartbeatMs": ms(config.heartbeat),
        "clockOffsetMaxMs": settings.clock_offset_max_ms,
        "requestTimeoutMs": ms(config.request_timeout),
        "voters": voters().map(|node| node.0).collect::<Vec<_>>(),
        "peers": peers.collect::<Vec<_>>(),
        "roundTrips": trips.collect::<Vec<_>>(),
    })
}
