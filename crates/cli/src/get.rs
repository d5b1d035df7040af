//! `epicepoch get`: prints timestamps from a cluster.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, value_parser};
use epicepoch_client::TimestampsError;
use epicepoch_config::Environment;
use epicepoch_wire::TimestampRange;

use crate::arguments::client_arguments;
use crate::failure::Failure;
use crate::output;
use crate::{addresses, moment};

pub(crate) fn command() -> Command {
    Command::new("get")
        .about("Get timestamps from a cluster")
        .after_help(
            "Formats:\n  hex     one timestamp of 32 digits per line\n  json    one object per \
             line, with epoch, index and wall time\n  binary  16 bytes each, without separators\n  \
             range   first, last and count on one line, whatever the count\n\n\
             Examples:\n  epicepoch get\n  epicepoch get -n 1000 --format binary > keys\n  \
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
        .arg(
            Arg::new("format")
                .long("format")
                .value_name("FORMAT")
                .value_parser(["hex", "json", "binary", "range"])
                .default_value("hex")
                .help("Output format"),
        )
        .args(client_arguments())
}

pub(crate) fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    let (client, deadline) = addresses::client(matches, environment)?;
    let count = matches.get_one("count").copied().unwrap_or(1);
    let range = addresses::block_on(client.timestamps_before(count, deadline))?;
    let range = range.map_err(|error| match error {
        TimestampsError::Count(_) => Failure::usage(error),
        error => error.into(),
    })?;
    let format = matches.get_one::<String>("format").map_or("hex", String::as_str);
    let mut out = BufWriter::new(output::product());
    print(&range, format, &mut out)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn print(range: &TimestampRange, format: &str, out: &mut impl Write) -> io::Result<()> {
    if format == "range" {
        return writeln!(out, "{} {} {}", range.first(), range.last(), range.count());
    }
    for timestamp in range.iter() {
        match format {
            "binary" => out.write_all(&timestamp.to_bytes())?,
            "json" => writeln!(out, "{}", moment::object(timestamp))?,
            _ => writeln!(out, "{timestamp}")?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use epicepoch_wire::{Epoch, EpochIndex, Timestamp};

    use super::*;

    fn printed(format: &str) -> Vec<u8> {
        let first = Timestamp::new(Epoch(1), EpochIndex(2));
        let range = TimestampRange::new(first, 2).expect("a range");
        let mut out = Vec::new();
        print(&range, format, &mut out).expect("written");
        out
    }

    #[test]
    fn each_format_shows_the_same_timestamps() {
        let (one, two) = ("00000000000000010000000000000002", "00000000000000010000000000000003");
        assert_eq!(printed("hex"), format!("{one}\n{two}\n").as_bytes());
        assert_eq!(printed("range"), format!("{one} {two} 2\n").as_bytes());
        let binary = printed("binary");
        assert_eq!(binary.len(), 2 * Timestamp::LEN);
        assert!(binary[..16] < binary[16..]);
        let json = String::from_utf8(printed("json")).expect("text");
        assert_eq!(json.lines().count(), 2);
        assert!(json.contains(two), "{json}");
    }
}
