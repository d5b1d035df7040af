//! `epicepoch encode`: prints the lowest and the highest timestamp of a wall time. It asks no
//! cluster. The output is a bound for range queries, not a timestamp from the oracle.

use std::io::Write;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Arg, ArgMatches, Command};
use epicepoch_config::whole_number;
use epicepoch_wire::{Epoch, Timestamp};
use serde_json::{Value, json};
use thiserror::Error;

use crate::arguments::{COMPACT, is_json, output as output_argument, switch};
use crate::failure::Failure;
use crate::moment;
use crate::output;

/// Why a text cannot be the wall time of a timestamp.
#[derive(Debug, PartialEq, Eq, Error)]
pub(crate) enum TimeError {
    #[error(
        "{0:?} is not a time; allowed is RFC 3339 with an offset, such as 2023-11-14T22:13:20Z, \
         Unix time with its unit, such as 1700000000s, 1700000000000ms, ...us or ...ns, or now"
    )]
    NoTime(String),
    #[error("{0:?} is outside the range of timestamps; allowed is {FIRST} to {LAST}")]
    OutOfRange(String),
}

pub(crate) fn command() -> Command {
    Command::new("encode")
        .about("Show the lowest and the highest timestamp of a wall time")
        .after_help(
            "For a range query over keys: from the lowest timestamp of the first moment to the \
             highest of the last one.\n\n\
             Examples:\n  epicepoch encode 2023-11-14T22:13:20Z\n  \
             epicepoch encode 1700000000s --lowest\n  epicepoch encode now --output json\n  \
             epicepoch encode 1700000000s --compact",
        )
        .arg(
            Arg::new("time")
                .value_name("TIME")
                .required(true)
                // This lets "-1s" reach the error about times before 1970.
                .allow_hyphen_values(true)
                .help(
                    "RFC 3339 with an offset; or Unix time with its unit, such as 1700000000s, \
                     1700000000000ms, ...us, ...ns; or now",
                ),
        )
        .arg(switch("lowest", "Print only the lowest timestamp").conflicts_with("highest"))
        .arg(switch("highest", "Print only the highest timestamp"))
        .arg(switch(
            COMPACT,
            "Print compact timestamps, of 64 bits: the lowest that is not before the time, and the \
             highest that is not after it",
        ))
        .arg(output_argument())
}

pub(crate) fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let text = matches.get_one::<String>("time").map_or("", String::as_str);
    let unix_ns = unix_ns(text, SystemTime::now()).map_err(Failure::usage)?;
    let bounds = matches.get_flag(COMPACT).then(|| compact(unix_ns, text)).transpose();
    let bounds = bounds.map_err(Failure::usage)?;
    let mut out = output::product();
    if is_json(matches) {
        let mut object = object(unix_ns, bounds);
        for (only, others) in
            [("lowest", ["highest", "u64Highest"]), ("highest", ["lowest", "u64Lowest"])]
        {
            for other in others.into_iter().filter(|_| matches.get_flag(only)) {
                object.as_object_mut().and_then(|object| object.remove(other));
            }
        }
        writeln!(out, "{object}")?;
        return Ok(ExitCode::SUCCESS);
    }
    let (lowest, highest) = if let Some((lowest, highest)) = bounds {
        (lowest.to_string(), highest.to_string())
    } else {
        let (lowest, highest) = (Timestamp::lowest_at(unix_ns), Timestamp::highest_at(unix_ns));
        (lowest.to_string(), highest.to_string())
    };
    if matches.get_flag("lowest") {
        writeln!(out, "{lowest}")?;
    } else if matches.get_flag("highest") {
        writeln!(out, "{highest}")?;
    } else {
        writeln!(out, "lowest  {lowest}\nhighest {highest}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the compact bounds of a wall time, which was given as `text`.
fn compact(unix_ns: u64, text: &str) -> Result<(u64, u64), TimeError> {
    let lowest = Timestamp::compact_lowest_at(unix_ns);
    let lowest = lowest.ok_or_else(|| TimeError::OutOfRange(text.to_owned()))?;
    Ok((lowest, Timestamp::compact_highest_at(unix_ns)))
}

/// Returns the bounds of a wall time as JSON, and its compact bounds if they are given.
pub(crate) fn object(unix_ns: u64, compact: Option<(u64, u64)>) -> Value {
    let mut object = json!({
        "time": moment::time(Epoch(unix_ns)),
        "epoch": unix_ns.to_string(),
        "lowest": Timestamp::lowest_at(unix_ns).to_string(),
        "highest": Timestamp::highest_at(unix_ns).to_string(),
    });
    if let Some((lowest, highest)) = compact {
        object["u64Lowest"] = lowest.to_string().into();
        object["u64Highest"] = highest.to_string().into();
    }
    object
}

/// Converts the wall time in `text`, which may be `now`, to nanoseconds since 1970.
pub(crate) fn unix_ns(text: &str, now: SystemTime) -> Result<u64, TimeError> {
    let out_of_range = || TimeError::OutOfRange(text.to_owned());
    if text == "now" {
        let since = now.duration_since(UNIX_EPOCH).map_err(|_| out_of_range())?;
        return u64::try_from(since.as_nanos()).map_err(|_| out_of_range());
    }
    for (unit, ns) in [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)] {
        let Some(number) = text.strip_suffix(unit) else { continue };
        let digits = number.strip_prefix('-').unwrap_or(number);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            break;
        }
        let number = whole_number(number).ok_or_else(out_of_range)?;
        return number.checked_mul(ns).ok_or_else(out_of_range);
    }
    let time: jiff::Timestamp = text.parse().map_err(|_| TimeError::NoTime(text.to_owned()))?;
    u64::try_from(time.as_nanosecond()).map_err(|_| out_of_range())
}

const FIRST: &str = "1970-01-01T00:00:00Z";
const LAST: &str = "2554-07-21T23:34:33.709551615Z";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const GOLDEN: u64 = 1_700_000_000_000_000_000;

    fn ns(text: &str) -> Result<u64, TimeError> {
        unix_ns(text, UNIX_EPOCH + Duration::from_nanos(7))
    }

    #[test]
    fn every_way_to_write_a_time_means_the_same() {
        for text in [
            "2023-11-14T22:13:20Z",
            "2023-11-14T22:13:20.000000000Z",
            "2023-11-14T23:13:20+01:00",
            "1700000000s",
            "1700000000000ms",
            "1700000000000000us",
            "1700000000000000000ns",
        ] {
            assert_eq!(ns(text), Ok(GOLDEN), "{text}");
        }
        assert_eq!(ns("now"), Ok(7));
        assert_eq!(Timestamp::lowest_at(GOLDEN).to_string(), "17979cfe362a00000000000000000000");
        assert_eq!(Timestamp::highest_at(GOLDEN).to_string(), "17979cfe362a0000ffffffffffffffff");
    }

    #[test]
    fn the_first_and_the_last_moment_are_included() {
        assert_eq!(ns(FIRST), Ok(0));
        assert_eq!(ns(LAST), Ok(u64::MAX));
        assert_eq!(ns("18446744073709551615ns"), Ok(u64::MAX));
        for text in [
            "1969-12-31T23:59:59.999999999Z",
            "2554-07-21T23:34:33.709551616Z",
            "18446744073709551616ns",
            "18446744074s",
            "-1s",
        ] {
            assert_eq!(ns(text), Err(TimeError::OutOfRange(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn a_time_without_unit_or_offset_is_refused() {
        for text in
            ["", "1700000000", "2023-11-14T22:13:20", "2023-11-14", "s", "1.5s", "1 s", "Now"]
        {
            assert_eq!(ns(text), Err(TimeError::NoTime(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn compact_bounds_lie_around_the_time() {
        let compact = |unix_ns| compact(unix_ns, "text");
        let whole = 1_700_000_000_000 << 18;
        assert_eq!(compact(GOLDEN), Ok((whole, whole + (1 << 18) - 1)));
        let next = whole + (1 << 18);
        assert_eq!(compact(GOLDEN + 1), Ok((next, next - 1)), "between two of them");
        assert_eq!(compact(u64::MAX), Err(TimeError::OutOfRange("text".into())));
    }

    #[test]
    fn json_has_compact_bounds_beside_those_in_hexadecimal() {
        let wide = object(GOLDEN, None);
        assert_eq!(wide["u64Lowest"], Value::Null);
        let both = object(GOLDEN, compact(GOLDEN, "text").ok());
        for name in ["time", "epoch", "lowest", "highest"] {
            assert_eq!(both[name], wide[name], "{name}");
        }
        assert_eq!(both["u64Lowest"], "445644800000000000");
        assert_eq!(both["u64Highest"], "445644800000262143");
    }

    #[test]
    fn the_time_that_encode_prints_decodes_to_the_same_time() {
        let lowest = Timestamp::lowest_at(GOLDEN);
        assert_eq!(ns(&moment::time(lowest.epoch)), Ok(GOLDEN));
    }
}
