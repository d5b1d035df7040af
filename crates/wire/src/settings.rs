//! The cluster's settings, which are part of the replicated state: their names, bounds and encoding
//! in the log. The bounds belong to the format of the state and change only with it. Otherwise two
//! versions could read the same entry, and one would accept it while the other refuses it.

use std::fmt;
use std::ops::RangeInclusive;

use crate::cursor::{DecodeError, Reader, Writer};
use crate::guarantee::Guarantee;
use crate::mode::Mode;
use crate::timestamp_format::TimestampFormat;
use crate::voter_status::{ZONE_LEN_MAX, Zone};

/// The bounds of `EPOCH_INTERVAL_MS`.
pub const EPOCH_INTERVAL_MS: RangeInclusive<u64> = 1..=60_000;
/// The bounds of `RESERVATION_MS`.
pub const RESERVATION_MS: RangeInclusive<u64> = 200..=60_000;
/// The bounds of `CLOCK_OFFSET_MAX_MS`.
pub const CLOCK_OFFSET_MAX_MS: RangeInclusive<u64> = 1..=60_000;
/// The bounds of `MAX_N`.
pub const MAX_N: RangeInclusive<u64> = 1..=1 << 20;
/// The bounds of `LEASE_MS`, which may also be 0.
pub const LEASE_MS: RangeInclusive<u64> = 50..=LEASE_MS_MAX;
/// The longest lease, milliseconds.
pub const LEASE_MS_MAX: u64 = 60_000;
/// `LEADER_ZONES` has at most this many zones.
pub const LEADER_ZONES_MAX: usize = 9;

/// One of the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingName {
    /// How often the epoch advances, milliseconds.
    EpochIntervalMs,
    /// How far ahead of the clock a leader reserves epochs, in milliseconds.
    ReservationMs,
    /// How far a clock may be from the others and still be trusted, in milliseconds.
    ClockOffsetMaxMs,
    /// The largest number of timestamps in one answer.
    MaxN,
    /// Preferred zones of leaders, the best first.
    LeaderZones,
    /// How long a leader may answer without a round, in milliseconds; 0 for never.
    LeaseMs,
    /// The guarantee of requests that name none.
    GuaranteeDefault,
    /// Which timestamps the cluster gives.
    TimestampFormat,
    /// Whether the leader gives timestamps, or every node gives its own with an interval.
    Mode,
}

impl SettingName {
    /// All settings.
    pub const ALL: [Self; 9] = [
        Self::EpochIntervalMs,
        Self::ReservationMs,
        Self::ClockOffsetMaxMs,
        Self::MaxN,
        Self::LeaderZones,
        Self::LeaseMs,
        Self::GuaranteeDefault,
        Self::TimestampFormat,
        Self::Mode,
    ];

    /// Returns the name as text. A node's environment variable has the same name; there is none for
    /// `MODE`, which only a command sets.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::EpochIntervalMs => "EPOCH_INTERVAL_MS",
            Self::ReservationMs => "RESERVATION_MS",
            Self::ClockOffsetMaxMs => "CLOCK_OFFSET_MAX_MS",
            Self::MaxN => "MAX_N",
            Self::LeaderZones => "LEADER_ZONES",
            Self::LeaseMs => "LEASE_MS",
            Self::GuaranteeDefault => "GUARANTEE_DEFAULT",
            Self::TimestampFormat => "TIMESTAMP_FORMAT",
            Self::Mode => "MODE",
        }
    }

    /// The setting with this name.
    #[must_use]
    pub fn named(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|name| name.text() == text)
    }

    /// Returns the allowed values of the setting, as text for people.
    #[must_use]
    pub fn allowed(self) -> String {
        let number = |range: RangeInclusive<u64>| {
            format!("a whole number from {} to {}", range.start(), range.end())
        };
        match self {
            Self::EpochIntervalMs => number(EPOCH_INTERVAL_MS),
            Self::ReservationMs => number(RESERVATION_MS),
            Self::ClockOffsetMaxMs => number(CLOCK_OFFSET_MAX_MS),
            Self::MaxN => number(MAX_N),
            Self::LeaseMs => format!("0, or {}", number(LEASE_MS)),
            Self::GuaranteeDefault => "quorum or lease".to_owned(),
            Self::TimestampFormat => "wide, or compact with MODE=quorum".to_owned(),
            Self::Mode => "quorum, or interval with TIMESTAMP_FORMAT=wide".to_owned(),
            Self::LeaderZones => {
                format!(
                    "up to {LEADER_ZONES_MAX} zones such as a,b, each once, or nothing for none"
                )
            }
        }
    }
}

impl fmt::Display for SettingName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// The cluster's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSettings {
    /// `EPOCH_INTERVAL_MS`, milliseconds.
    pub epoch_interval_ms: u64,
    /// `RESERVATION_MS`, milliseconds.
    pub reservation_ms: u64,
    /// `CLOCK_OFFSET_MAX_MS`, milliseconds.
    pub clock_offset_max_ms: u64,
    /// `MAX_N`, timestamps.
    pub max_n: u64,
    /// `LEADER_ZONES`, the best first.
    pub leader_zones: Vec<Zone>,
    /// `LEASE_MS`, milliseconds; 0 for no leases. It has no place in [`ClusterSettings::encode`],
    /// because it came later.
    pub lease_ms: u64,
    /// `GUARANTEE_DEFAULT`. It came together with `lease_ms`.
    pub guarantee_default: Guarantee,
    /// `TIMESTAMP_FORMAT`. It came later, too. It never goes back from compact to wide (S21).
    pub timestamp_format: TimestampFormat,
    /// `MODE`. It came later, too. While interval mode closes, it is quorum already (S26).
    pub mode: Mode,
}

impl ClusterSettings {
    /// Checks every setting against its bounds.
    ///
    /// # Errors
    /// Returns the name of the first setting that is out of bounds.
    pub fn check(&self) -> Result<(), SettingName> {
        let number = |range: RangeInclusive<u64>, value: u64, name| {
            if range.contains(&value) { Ok(()) } else { Err(name) }
        };
        number(EPOCH_INTERVAL_MS, self.epoch_interval_ms, SettingName::EpochIntervalMs)?;
        number(RESERVATION_MS, self.reservation_ms, SettingName::ReservationMs)?;
        number(CLOCK_OFFSET_MAX_MS, self.clock_offset_max_ms, SettingName::ClockOffsetMaxMs)?;
        number(MAX_N, self.max_n, SettingName::MaxN)?;
        if self.lease_ms > 0 {
            number(LEASE_MS, self.lease_ms, SettingName::LeaseMs)?;
        }
        let zones = &self.leader_zones;
        let is_twice = zones.iter().enumerate().any(|(at, zone)| zones[..at].contains(zone));
        if is_twice || zones.len() > LEADER_ZONES_MAX {
            return Err(SettingName::LeaderZones);
        }
        // Interval timestamps have no compact spelling (S21).
        if self.mode == Mode::Interval && self.timestamp_format == TimestampFormat::Compact {
            return Err(SettingName::Mode);
        }
        Ok(())
    }

    /// Returns the value of a setting, as text.
    #[must_use]
    pub fn text(&self, name: SettingName) -> String {
        match name {
            SettingName::EpochIntervalMs => self.epoch_interval_ms.to_string(),
            SettingName::ReservationMs => self.reservation_ms.to_string(),
            SettingName::ClockOffsetMaxMs => self.clock_offset_max_ms.to_string(),
            SettingName::MaxN => self.max_n.to_string(),
            SettingName::LeaseMs => self.lease_ms.to_string(),
            SettingName::GuaranteeDefault => self.guarantee_default.to_string(),
            SettingName::TimestampFormat => self.timestamp_format.to_string(),
            SettingName::Mode => self.mode.to_string(),
            SettingName::LeaderZones => {
                let names: Vec<_> = self.leader_zones.iter().map(Zone::name).collect();
                names.join(",")
            }
        }
    }

    /// Returns a copy with another value for one setting; `None` if the value is not valid.
    #[must_use]
    pub fn with(&self, name: SettingName, text: &str) -> Option<Self> {
        let mut settings = self.clone();
        let number = || {
            let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            is_plain.then(|| text.parse().ok()).flatten()
        };
        match name {
            SettingName::EpochIntervalMs => settings.epoch_interval_ms = number()?,
            SettingName::ReservationMs => settings.reservation_ms = number()?,
            SettingName::ClockOffsetMaxMs => settings.clock_offset_max_ms = number()?,
            SettingName::MaxN => settings.max_n = number()?,
            SettingName::LeaseMs => settings.lease_ms = number()?,
            SettingName::GuaranteeDefault => settings.guarantee_default = text.parse().ok()?,
            SettingName::TimestampFormat => settings.timestamp_format = text.parse().ok()?,
            SettingName::Mode => settings.mode = text.parse().ok()?,
            SettingName::LeaderZones if text.is_empty() => settings.leader_zones.clear(),
            SettingName::LeaderZones => {
                settings.leader_zones = text.split(',').map(Zone::new).collect::<Option<_>>()?;
            }
        }
        settings.check().ok().map(|()| settings)
    }

    /// The settings that differ in `other`.
    pub fn differing(&self, other: &Self) -> impl Iterator<Item = SettingName> {
        SettingName::ALL.into_iter().filter(move |name| self.text(*name) != other.text(*name))
    }

    /// Whether `lease_ms` and `guarantee_default` have the values that a state without leases has.
    #[must_use]
    pub fn is_without_leases(&self) -> bool {
        self.lease_ms == 0 && self.guarantee_default == Guarantee::Quorum
    }

    /// Appends the fields that concern leases: `lease_ms` and `guarantee_default`.
    pub fn encode_leases(&self, out: &mut Vec<u8>) {
        out.put_u64(self.lease_ms);
        out.put_bool(self.guarantee_default == Guarantee::Lease);
    }

    /// Reads what [`ClusterSettings::encode_leases`] wrote, without a check of the bounds.
    ///
    /// # Errors
    /// The bytes are not valid.
    pub fn read_leases(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        self.lease_ms = reader.u64("lease")?;
        let is_lease = reader.bool("default guarantee")?;
        self.guarantee_default = if is_lease { Guarantee::Lease } else { Guarantee::Quorum };
        Ok(())
    }

    /// Appends the fields, except those that concern leases, `timestamp_format` and `mode`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.epoch_interval_ms);
        out.put_u64(self.reservation_ms);
        out.put_u64(self.clock_offset_max_ms);
        out.put_u64(self.max_n);
        out.put_count(self.leader_zones.len());
        for zone in &self.leader_zones {
            out.put_bytes(zone.name().as_bytes());
        }
    }

    /// Reads the settings, but does not check their bounds: call [`ClusterSettings::check`] for
    /// that. `lease_ms` is 0, `guarantee_default` is a quorum, `timestamp_format` is
    /// wide, and `mode` is quorum.
    ///
    /// # Errors
    /// The bytes are not valid settings.
    pub fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut settings = Self {
            epoch_interval_ms: reader.u64("epoch interval")?,
            reservation_ms: reader.u64("reservation")?,
            clock_offset_max_ms: reader.u64("clock offset")?,
            max_n: reader.u64("max n")?,
            leader_zones: Vec::new(),
            lease_ms: 0,
            guarantee_default: Guarantee::Quorum,
            timestamp_format: TimestampFormat::Wide,
            mode: Mode::Quorum,
        };
        for _ in 0..reader.count("leader zones", LEADER_ZONES_MAX)? {
            let name = reader.text("zone", ZONE_LEN_MAX)?;
            let zone = Zone::new(&name);
            let value = name.len() as u64;
            settings.leader_zones.push(zone.ok_or(DecodeError::BadValue { field: "zone", value })?);
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn settings() -> ClusterSettings {
        ClusterSettings {
            epoch_interval_ms: 100,
            reservation_ms: 1_000,
            clock_offset_max_ms: 500,
            max_n: 65_536,
            leader_zones: vec![],
            lease_ms: 0,
            guarantee_default: Guarantee::Quorum,
            timestamp_format: TimestampFormat::Wide,
            mode: Mode::Quorum,
        }
    }

    proptest! {
        #[test]
        fn settings_round_trip(numbers: [u64; 4], zones in prop::collection::vec("[a-z]{1,32}", 0..9)) {
            let [epoch_interval_ms, reservation_ms, clock_offset_max_ms, max_n] = numbers;
            let zone = |name: &String| Zone::new(name).expect("a name");
            let leader_zones = zones.iter().map(zone).collect();
            let all = ClusterSettings {
                epoch_interval_ms, reservation_ms, clock_offset_max_ms, max_n, leader_zones,
                ..settings()
            };
            let mut bytes = Vec::new();
            all.encode(&mut bytes);
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(ClusterSettings::read(&mut reader), Ok(all));
            prop_assert_eq!(reader.finish(), Ok(()));
        }

        #[test]
        fn garbage_never_panics(bytes: Vec<u8>) {
            let _ = ClusterSettings::read(&mut Reader::new(&bytes));
        }
    }

    #[test]
    fn a_value_is_set_by_its_name_and_shown_as_it_was_set() {
        let mut all = settings();
        for (name, text) in [
            (SettingName::EpochIntervalMs, "50"),
            (SettingName::ReservationMs, "2000"),
            (SettingName::ClockOffsetMaxMs, "250"),
            (SettingName::MaxN, "1"),
            (SettingName::LeaderZones, "near,far"),
            (SettingName::LeaseMs, "200"),
            (SettingName::GuaranteeDefault, "lease"),
            (SettingName::Mode, "interval"),
            (SettingName::Mode, "quorum"),
            (SettingName::TimestampFormat, "compact"),
        ] {
            let before = all.clone();
            all = all.with(name, text).expect("it may be");
            assert_eq!(
                (all.text(name), SettingName::named(name.text())),
                (text.into(), Some(name))
            );
            assert_eq!(all.differing(&before).collect::<Vec<_>>(), [name]);
        }
        assert_eq!(all.with(SettingName::LeaderZones, "").expect("none").leader_zones, []);
        assert_eq!(SettingName::named("reservation_ms"), None);
    }

    #[test]
    fn values_out_of_bounds_are_refused() {
        for (name, texts) in [
            (SettingName::EpochIntervalMs, ["0", "60001", "+5", ""]),
            (SettingName::ReservationMs, ["199", "60001", "1s", "-1"]),
            (SettingName::ClockOffsetMaxMs, ["0", "60001", " 5", "5.0"]),
            (SettingName::MaxN, ["0", "1048577", "99999999999999999999", "x"]),
            (SettingName::LeaseMs, ["49", "60001", "-1", "0.5"]),
            (SettingName::GuaranteeDefault, ["", "round", "Lease", "lease "]),
            (SettingName::TimestampFormat, ["", "Compact", "u64", "1"]),
            (SettingName::Mode, ["", "Interval", "lease", "1"]),
            (SettingName::LeaderZones, ["a,a", ",", "a b", "1,2,3,4,5,6,7,8,9,10"]),
        ] {
            for text in texts {
                assert_eq!(settings().with(name, text), None, "{name}={text}");
            }
        }
        let wrong = ClusterSettings { max_n: 0, ..settings() };
        assert_eq!(wrong.check(), Err(SettingName::MaxN));
        let compact = settings().with(SettingName::TimestampFormat, "compact").unwrap();
        assert_eq!(compact.with(SettingName::Mode, "interval"), None, "no spelling of 64 bits");
    }

    #[test]
    fn the_fields_of_leases_round_trip_by_themselves() {
        for lease_ms in [0, 50, u64::MAX] {
            for guarantee_default in [Guarantee::Quorum, Guarantee::Lease] {
                let all = ClusterSettings { lease_ms, guarantee_default, ..settings() };
                let mut bytes = Vec::new();
                all.encode_leases(&mut bytes);
                let (mut read, mut reader) = (settings(), Reader::new(&bytes));
                assert_eq!((read.read_leases(&mut reader), reader.finish()), (Ok(()), Ok(())));
                assert_eq!(read, all);
                assert_eq!(all.is_without_leases(), all == settings());
            }
        }
        let wrong = [vec![0; 8], vec![2]].concat();
        assert!(settings().read_leases(&mut Reader::new(&wrong)).is_err());
    }
}
