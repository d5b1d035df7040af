//! Which election settings links of a given round trip need: a rule, for people and for a warning.
//! It changes nothing by itself.
//!
//! After the loss of a leader, voters campaign in turns of a quarter of `ELECTION_TIMEOUT_MS` each,
//! and a turn has to hold a whole election, or the next one disturbs it: a pre-vote and a vote, two
//! round trips. So eight round trips are the least. Ten leave room for the disk, and for a link that
//! is slower now and then; etcd advises the same ten, and heartbeats of about one round trip
//! (etcd's documentation, "Tuning").

use std::time::Duration;

use super::bounds::{ELECTION_TIMEOUT_MS, default_of, millis};
use super::{default_heartbeat, default_reservation};

/// Round trips in the shortest election timeout, and in the one that is advised.
const ROUND_TRIPS_MIN: u32 = 8;
const ROUND_TRIPS_ADVISED: u32 = 10;
/// What is advised is a multiple of it.
const STEP: Duration = Duration::from_millis(50);

/// Settings for links of some length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// `ELECTION_TIMEOUT_MS`.
    pub election_timeout: Duration,
    /// `HEARTBEAT_MS`.
    pub heartbeat: Duration,
    /// `RESERVATION_MS`.
    pub reservation: Duration,
}

impl Timing {
    /// What a usual round trip between voters calls for: never less than the defaults, which suit
    /// round trips of up to 20 ms. `None` where no setting suits: they are longer than a second.
    #[must_use]
    pub fn advised(round_trip: Duration) -> Option<Self> {
        let least =
            round_trip.saturating_mul(ROUND_TRIPS_ADVISED).max(default_of(ELECTION_TIMEOUT_MS));
        let steps = least.as_nanos().div_ceil(STEP.as_nanos());
        let election_timeout = STEP * u32::try_from(steps).ok()?;
        if millis(election_timeout) > ELECTION_TIMEOUT_MS.max {
            return None;
        }
        Some(Self {
            election_timeout,
            heartbeat: default_heartbeat(election_timeout),
            reservation: default_reservation(election_timeout),
        })
    }
}

/// Whether an election does not fit into its turn on links of this usual round trip.
#[must_use]
pub fn is_too_tight(election_timeout: Duration, round_trip: Duration) -> bool {
    election_timeout < round_trip.saturating_mul(ROUND_TRIPS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn links_are_advised_what_an_election_on_them_takes() {
        // One zone, zones of a region, regions of a continent, continents.
        let cases = [(0, 200), (1, 200), (20, 200), (21, 250), (35, 350), (80, 800), (180, 1_800)];
        for (round_trip, election) in cases {
            let advice = Timing::advised(ms(round_trip)).expect("settings");
            assert_eq!(advice.election_timeout, ms(election), "{round_trip} ms");
            assert_eq!(advice.heartbeat, ms(election / 5));
            assert_eq!(advice.reservation, ms((5 * election).max(1_000)));
        }
        assert_eq!(Timing::advised(ms(1_000)).map(|it| it.election_timeout), Some(ms(10_000)));
        assert_eq!(Timing::advised(ms(1_001)), None);
    }

    #[test]
    fn what_is_advised_is_allowed_and_not_too_tight() {
        for round_trip in (0..=1_000).map(ms) {
            let advice = Timing::advised(round_trip).expect("settings");
            assert!(!is_too_tight(advice.election_timeout, round_trip));
            let mut config = super::super::tests::three();
            config.election_timeout = advice.election_timeout;
            config.heartbeat = advice.heartbeat;
            config.reservation = advice.reservation;
            assert_eq!(config.check(), Ok(()), "{round_trip:?}");
        }
    }

    #[test]
    fn settings_are_too_tight_where_an_election_does_not_fit_into_a_turn() {
        assert!(!is_too_tight(ms(200), ms(25)));
        assert!(is_too_tight(ms(200), ms(26)));
    }

    #[test]
    fn a_round_trip_of_any_length_is_judged() {
        for round_trip in [Duration::from_secs(u64::MAX / 10), Duration::MAX] {
            assert_eq!(Timing::advised(round_trip), None);
            assert!(is_too_tight(ms(10_000), round_trip));
        }
    }
}
