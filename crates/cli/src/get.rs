//! `epicepoch get`: prints timestamps from a cluster.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, value_parser};
use epicepoch_client::TimestampsError;
use epicepoch_config::Environment;
use epicepoch_wire::TimestampRange;
use serde_json::{Value, json};

use crate::arguments::{
    COMPACT, OUTPUT, client_arguments, compact, guarantee, is_json, output as output_argument,
    switch,
};
use crate::expected::Expected;
use crate::failure::Failure;
use crate::{addresses, expected, moment, output};

/// How timestamps are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// 32 hexadecimal digits per line.
    Hex,
    /// One JSON object per line.
    Json,
    /// 16 bytes each, without separators.
    Raw,
    /// First, last and count on one line, whatever the count.
    Range,
    /// The same as one JSON object.
    RangeJson,
    /// The compact timestamp, in decimal, per line.
    Compact,
    /// 8 bytes each, without separators.
    CompactRaw,
    /// First, last and count of compact timestamps on one line.
    CompactRange,
}

impl Form {
    fn of(matches: &ArgMatches) -> Self {
        let (is_raw, is_range) = (matches.get_flag(RAW), matches.get_flag(RANGE));
        if matches.get_flag(COMPACT) {
            return match (is_raw, is_range, is_json(matches)) {
                (true, _, _) => Self::CompactRaw,
                (false, true, false) => Self::CompactRange,
                // Objects have both spellings.
                (false, true, true) => Self::RangeJson,
                (false, false, true) => Self::Json,
                (false, false, false) => Self::Compact,
            };
        }
        match (is_raw, is_range, is_json(matches)) {
            (true, _, _) => Self::Raw,
            (false, true, false) => Self::Range,
            (false, true, true) => Self::RangeJson,
            (false, false, true) => Self::Json,
            (false, false, false) => Self::Hex,
        }
    }
}

pub(crate) fn command() -> Command {
    Command::new("get")
        .about("Get timestamps from a cluster")
        .after_help(
            "Output:\n  \
             (default)              one timestamp of 32 hexadecimal digits per line\n  \
             --output json          one object per line: hex, epoch, index, time\n  \
             --raw                  16 bytes each, without separators: keys, as they are\n  \
             --range                first, last and count on one line, whatever the count\n  \
             --range --output json  the same as one object; of compact timestamps also u64First and \
             u64Last\n  \
             --compact              with each of them: timestamps of 64 bits, which only a cluster with \
             TIMESTAMP_FORMAT=compact gives\n\n\
             Examples:\n  epicepoch get\n  epicepoch get -n 1000 --raw > keys\n  \
             epicepoch get -n 1000 --raw | epicepoch decode\n  \
             epicepoch get --addr n1:8080,n2:8080,n3:8080 | xargs epicepoch decode",
        )
        .arg(
            Arg::new("count")
                .short('n')
                .long("count")
                .value_name("K")
                .value_parser(value_parser!(u64).range(1..=1 << 32))
                .default_value("1")
                .help(
                    "Number of timestamps, 1 to 2^32; all have one epoch and consecutive indexes",
                ),
        )
        .arg(output_argument())
        .arg(
            switch(RAW, "Print 16 bytes each, without separators")
                .conflicts_with_all([OUTPUT, RANGE]),
        )
        .arg(switch(RANGE, "Print first, last and count on one line"))
        .arg(compact())
        .arg(guarantee())
        .args(client_arguments())
}

pub(crate) fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    let is_compact = matches.get_flag(COMPACT);
    let (client, deadline) = addresses::client(matches, environment)?;
    let count = matches.get_one("count").copied().unwrap_or(1);
    let expected = Expected::of(matches, environment)?;
    let range = addresses::block_on(async {
        expected::check(expected.as_ref(), &client, deadline).await?;
        Ok::<_, Failure>(client.timestamps_before(count, deadline).await)
    })??;
    let range = range.map_err(|error| match error {
        TimestampsError::Count(_) => Failure::usage(error),
        error => error.into(),
    })?;
    if is_compact && range.compact_first().is_none() {
        return Err(TimestampsError::NotCompact { timestamp: range.first() }.into());
    }
    let mut out = BufWriter::new(output::product());
    print(&range, Form::of(matches), &mut out)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn print(range: &TimestampRange, form: Form, out: &mut impl Write) -> io::Result<()> {
    let (first, last, count) = (range.first(), range.last(), range.count());
    let mut compact = range.compact_first().into_iter().flat_map(|first| first..first + count);
    match form {
        Form::Compact => compact.try_for_each(|it| writeln!(out, "{it}"))?,
        Form::CompactRaw => compact.try_for_each(|it| out.write_all(&it.to_be_bytes()))?,
        Form::CompactRange => {
            let (Some(first), Some(last)) = (first.to_compact(), last.to_compact()) else {
                return Ok(());
            };
            writeln!(out, "{first} {last} {count}")?;
        }
        Form::Range => writeln!(out, "{first} {last} {count}")?,
        Form::RangeJson => writeln!(out, "{}", range_object(range))?,
        Form::Raw => range.iter().try_for_each(|it| out.write_all(&it.to_bytes()))?,
        Form::Json => range.iter().try_for_each(|it| writeln!(out, "{}", moment::object(it)))?,
        Form::Hex => range.iter().try_for_each(|it| writeln!(out, "{it}"))?,
    }
    Ok(())
}

/// Returns a range as JSON: its ends in hexadecimal, and their compact spellings if they have some.
pub(crate) fn range_object(range: &TimestampRange) -> Value {
    let (first, last) = (range.first(), range.last());
    let mut object =
        json!({"first": first.to_string(), "last": last.to_string(), "count": range.count()});
    if let (Some(first), Some(last)) = (first.to_compact(), last.to_compact()) {
        object["u64First"] = first.to_string().into();
        object["u64Last"] = last.to_string().into();
    }
    object
}

const RAW: &str = "raw";
const RANGE: &str = "range";

#[cfg(test)]
mod tests {
    use epicepoch_wire::{Epoch, EpochIndex, Timestamp};

    use super::*;
    use crate::commands;

    fn form(arguments: &[&str]) -> Result<Form, clap::Error> {
        let arguments = ["epicepoch", "get"].iter().chain(arguments);
        let matches = commands::tree().try_get_matches_from(arguments)?;
        Ok(Form::of(matches.subcommand_matches("get").expect("get")))
    }

    fn printed(form: Form) -> Vec<u8> {
        let first = Timestamp::new(Epoch(1), EpochIndex(2));
        let range = TimestampRange::new(first, 2).expect("a range");
        let mut out = Vec::new();
        print(&range, form, &mut out).expect("written");
        out
    }

    #[test]
    fn each_format_shows_the_same_timestamps() {
        let (one, two) = ("00000000000000010000000000000002", "00000000000000010000000000000003");
        assert_eq!(printed(Form::Hex), format!("{one}\n{two}\n").as_bytes());
        assert_eq!(printed(Form::Range), format!("{one} {two} 2\n").as_bytes());
        let binary = printed(Form::Raw);
        assert_eq!(binary.len(), 2 * Timestamp::LEN);
        assert!(binary[..16] < binary[16..]);
        let json = String::from_utf8(printed(Form::Json)).expect("text");
        assert_eq!(json.lines().count(), 2);
        assert!(json.contains(two), "{json}");
        let range: Value = serde_json::from_slice(&printed(Form::RangeJson)).expect("JSON");
        assert_eq!(range, json!({"first": one, "last": two, "count": 2}));
    }

    #[test]
    fn each_format_of_compact_timestamps_shows_the_same_ones() {
        let first = Timestamp::from_compact(7).expect("a timestamp");
        let range = TimestampRange::new(first, 2).expect("a range");
        let printed = |form| {
            let mut out = Vec::new();
            print(&range, form, &mut out).expect("written");
            out
        };
        assert_eq!(printed(Form::Compact), b"7\n8\n");
        assert_eq!(printed(Form::CompactRaw), [7_u64, 8].map(u64::to_be_bytes).concat());
        assert_eq!(printed(Form::CompactRange), b"7 8 2\n");
        let json: Value = serde_json::from_slice(&printed(Form::RangeJson)).expect("JSON");
        let hex = |at: u64| format!("{at:032x}");
        let expected = json!({
            "first": hex(7), "last": hex(8), "u64First": "7", "u64Last": "8", "count": 2,
        });
        assert_eq!(json, expected, "the fields of a range of wide timestamps, and two more");
        for (arguments, expected) in [
            (["--compact", "--output=text"], Form::Compact),
            (["--compact", "--output=json"], Form::Json),
            (["--compact", "--raw"], Form::CompactRaw),
            (["--compact", "--range"], Form::CompactRange),
        ] {
            assert_eq!(form(&arguments).expect("accepted"), expected, "{arguments:?}");
        }
        let range = form(&["--compact", "--range", "--output=json"]).expect("accepted");
        assert_eq!(range, Form::RangeJson);
    }

    #[test]
    fn flags_choose_the_format_and_contradictions_are_refused() {
        for (arguments, expected) in [
            ([].as_slice(), Form::Hex),
            (&["--output", "text"], Form::Hex),
            (&["--output", "json"], Form::Json),
            (&["--raw"], Form::Raw),
            (&["--range"], Form::Range),
            (&["--range", "--output=json"], Form::RangeJson),
        ] {
            assert_eq!(form(arguments).expect("accepted"), expected, "{arguments:?}");
        }
        for arguments in [["--raw", "--output=json"], ["--raw", "--range"]] {
            assert!(form(&arguments).is_err(), "{arguments:?}");
        }
    }
}
