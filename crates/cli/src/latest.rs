//! `epicepoch latest`: prints the latest timestamp of a cluster, and takes none.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::{ArgMatches, Command};
use epicepoch_client::TimestampsError;
use epicepoch_config::Environment;
use epicepoch_wire::Timestamp;

use crate::arguments::{
    COMPACT, OUTPUT, client_arguments, compact, guarantee, is_json, output as output_argument,
    switch,
};
use crate::expected::Expected;
use crate::failure::Failure;
use crate::{addresses, expected, moment, output};

/// How the timestamp is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// 32 hexadecimal digits.
    Hex,
    /// One JSON object.
    Json,
    /// 16 bytes.
    Raw,
    /// The compact timestamp, in decimal.
    Compact,
    /// Its 8 bytes.
    CompactRaw,
}

impl Form {
    fn of(matches: &ArgMatches) -> Self {
        match (matches.get_flag(RAW), is_json(matches)) {
            (true, _) if matches.get_flag(COMPACT) => Self::CompactRaw,
            (false, false) if matches.get_flag(COMPACT) => Self::Compact,
            (true, _) => Self::Raw,
            (false, true) => Self::Json,
            (false, false) => Self::Hex,
        }
    }
}

pub(crate) fn command() -> Command {
    Command::new("latest")
        .about("Show the latest timestamp of a cluster, and take none")
        .after_help(
            "Every timestamp that was answered before this command began is at or below the latest \
             one. Every timestamp that is asked for after this command has ended is above it.\n\n\
             The latest timestamp is not unique: do not use it as an id. It is no watermark: a \
             writer that has a timestamp at or below it may not have written yet.\n\n\
             Output:\n  \
             (default)      32 hexadecimal digits\n  \
             --output json  an object: hex, epoch, index, time\n  \
             --raw          16 bytes: a key, as it is\n  \
             --compact      with each of them: a timestamp of 64 bits, which only a cluster with \
             TIMESTAMP_FORMAT=compact gives\n\n\
             Examples:\n  epicepoch latest\n  epicepoch latest --raw | epicepoch decode\n  \
             epicepoch latest --addr n1:8080,n2:8080,n3:8080 --output json",
        )
        .arg(output_argument())
        .arg(switch(RAW, "Print 16 bytes").conflicts_with(OUTPUT))
        .arg(compact())
        .arg(guarantee())
        .args(client_arguments())
}

pub(crate) fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    let (client, deadline) = addresses::client(matches, environment)?;
    let expected = Expected::of(matches, environment)?;
    let latest = addresses::block_on(async {
        expected::check(expected.as_ref(), &client, deadline).await?;
        Ok::<_, Failure>(client.latest_before(deadline).await?)
    })??;
    if matches.get_flag(COMPACT) && latest.to_compact().is_none() {
        return Err(TimestampsError::NotCompact { timestamp: latest }.into());
    }
    let mut out = BufWriter::new(output::product());
    print(latest, Form::of(matches), &mut out)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn print(latest: Timestamp, form: Form, out: &mut impl Write) -> io::Result<()> {
    let compact = latest.to_compact().unwrap_or_default();
    match form {
        Form::Compact => writeln!(out, "{compact}"),
        Form::CompactRaw => out.write_all(&compact.to_be_bytes()),
        Form::Raw => out.write_all(&latest.to_bytes()),
        Form::Json => writeln!(out, "{}", moment::object(latest)),
        Form::Hex => writeln!(out, "{latest}"),
    }
}

const RAW: &str = "raw";

#[cfg(test)]
mod tests {
    use epicepoch_wire::{Epoch, EpochIndex, Guarantee};
    use serde_json::Value;

    use super::*;
    use crate::arguments::guarantee_of;
    use crate::commands;

    const HEX: &str = "0000000000000001000000000000000a";

    #[test]
    fn each_form_shows_the_same_timestamp() {
        let printed = |arguments: &[&str]| {
            let arguments = ["epicepoch", "latest"].iter().chain(arguments);
            let matches = commands::tree().try_get_matches_from(arguments)?;
            let matches = matches.subcommand_matches("latest").expect("latest");
            let mut out = Vec::new();
            let latest = Timestamp::new(Epoch(1), EpochIndex(10));
            print(latest, Form::of(matches), &mut out).expect("written");
            Ok::<_, clap::Error>(out)
        };
        assert_eq!(printed(&[]).expect("accepted"), format!("{HEX}\n").as_bytes());
        assert_eq!(printed(&["--raw"]).expect("accepted").len(), Timestamp::LEN);
        assert_eq!(printed(&["--raw", "--compact"]).expect("accepted").len(), 8);
        let json = printed(&["--compact", "--output=json"]).expect("accepted");
        assert_eq!(json, printed(&["--output=json"]).expect("accepted"), "it has both spellings");
        let json = printed(&["--output", "json"]).expect("accepted");
        let object: Value = serde_json::from_slice(&json).expect("JSON");
        assert_eq!(object["hex"], HEX);
        let guarantee = |arguments: &[&str]| {
            let arguments = ["epicepoch", "latest"].iter().chain(arguments);
            let matches = commands::tree().try_get_matches_from(arguments).expect("accepted");
            guarantee_of(matches.subcommand_matches("latest").expect("latest"))
        };
        assert_eq!(guarantee(&[]), None);
        assert_eq!(guarantee(&["--guarantee=lease"]), Some(Guarantee::Lease));
        for refused in
            [&["--raw", "--output=json"][..], &["-n", "2"], &["--range"], &["--guarantee=round"]]
        {
            assert!(printed(refused).is_err(), "{refused:?}");
        }
    }
}
