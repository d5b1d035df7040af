//! `epicepoch get`: timestamps from a cluster, on standard output.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::ArgMatches;
use epicepoch_client::TimestampsError;
use epicepoch_wire::TimestampRange;

use crate::failure::Failure;
use crate::output;
use crate::sources::Environment;
use crate::{addresses, moment};

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
