//! Which election settings suit links of a given round trip: a rule for people and for a warning.
//! It changes no setting.
//!
//! After the loss of a leader, voters campaign in turns of a quarter of `ELECTION_TIMEOUT_MS` each.
//! A whole election must fit into one turn; otherwise the next turn disturbs it. An election is a
//! pre-vote and a vote: two round trips. So the election timeout is at least eight round trips. Ten
//! leave time for the disk, and for a link that is sometimes slower. etcd also advises ten, and
//! heartbeats of about one round trip (etcd's documentation, "Tuning").

use std::time::Duration;

use epicepoch_wire::NodeId;

use crate::config::{Config, ELECTION_TIMEOUT_MS};
use crate::defaults::{default_heartbeat, default_reservation};
use crate::values::millis;

/// The shortest suitable election timeout is this many round trips long. The advised one is
/// `ROUND_TRIPS_ADVISED` long.
const ROUND_TRIPS_MIN: u32 = 8;
const ROUND_TRIPS_ADVISED: u32 = 10;
/// Advised election timeouts are rounded up to a multiple of this.
const STEP: Duration = Duration::from_millis(50);

/// Settings that suit links with a given round trip.
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
    /// Returns the settings for voters with this usual round trip between them. They are at least
    /// the defaults, which suit round trips up to 20 ms. Returns `None` above a second, because no
    /// setting suits.
    #[must_use]
    pub fn advised(round_trip: Duration) -> Option<Self> {
        let default = Config::new(NodeId(0), "").election_timeout;
        let least = round_trip.saturating_mul(ROUND_TRIPS_ADVISED).max(default);
        let steps = least.as_nanos().div_ceil(STEP.as_nanos());
        let election_timeout = STEP * u32::try_from(steps).ok()?;
        if millis(election_timeout) > *ELECTION_TIMEOUT_MS.end() {
            return None;
        }
        Some(Self {
            election_timeout,
            heartbeat: default_heartbeat(election_timeout),
            reservation: default_reservation(election_timeout),
        })
    }
}

/// Whether the election timeout is too short for links of this usual round trip. Then an election
/// does not fit into the turn of one voter, which is a quarter of the election timeout.
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
    fn the_advice_gives_an_election_the_round_trips_it_takes() {
        // The round trips are those within one zone, between zones of a region, between regions of
        // a continent, and between continents.
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
    fn the_advice_is_allowed_and_not_too_tight() {
        for round_trip in (0..=1_000).map(ms) {
            let advice = Timing::advised(round_trip).expect("settings");
            assert!(!is_too_tight(advice.election_timeout, round_trip));
            let mut config = crate::check::tests::three();
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
