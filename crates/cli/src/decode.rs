//! `epicepoch decode`: shows the epoch, index and wall time of timestamps. It asks no cluster.

use std::io::{self, BufRead, BufWriter, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Arg, ArgMatches, Command};
use epicepoch_wire::Timestamp;

use crate::arguments::json;
use crate::failure::Failure;
use crate::moment;
use crate::output;

pub(crate) fn command() -> Command {
    Command::new("decode")
        .about("Show the epoch, index and wall time of timestamps")
        .after_help(
            "Examples:\n  epicepoch decode 17979cfe362a00000000000000000005\n  \
             epicepoch get -n 3 | epicepoch decode --json",
        )
        .arg(
            Arg::new("timestamp")
                .value_name("HEX")
                .num_args(0..)
                .help("Timestamps of 32 hexadecimal digits; none or '-' reads standard input"),
        )
        .arg(json())
}

pub(crate) fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let json = matches.get_flag("json");
    let mut out = BufWriter::new(output::product());
    let arguments = matches.get_many::<String>("timestamp").unwrap_or_default();
    let arguments: Vec<&str> = arguments.map(String::as_str).collect();
    if arguments.is_empty() || arguments == ["-"] {
        if io::stdin().is_terminal() {
            let _unread = writeln!(io::stderr(), "Reading timestamps from standard input.");
        }
        from_lines(io::stdin().lock(), json, &mut out)?;
    } else {
        for word in arguments {
            show(word, json, &mut out)?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn from_lines(lines: impl BufRead, json: bool, out: &mut impl Write) -> Result<(), Failure> {
    for line in lines.lines() {
        for word in line?.split_whitespace() {
            show(word, json, out)?;
        }
    }
    Ok(())
}

fn show(word: &str, json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let parsed = word.parse::<Timestamp>();
    let shown = || word.chars().take(WORD_SHOWN_MAX).collect::<String>();
    let timestamp = parsed.with_context(|| format!("{:?}", shown())).map_err(Failure::usage)?;
    if json {
        writeln!(out, "{}", moment::object(timestamp))?;
    } else {
        writeln!(out, "{}", moment::line(timestamp))?;
    }
    Ok(())
}

/// An error repeats at most this many characters of a bad timestamp.
const WORD_SHOWN_MAX: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_all_lines_are_decoded() {
        let mut out = Vec::new();
        let text = "00000000000000010000000000000002 00000000000000010000000000000003\n\n\
                    FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF\n";
        from_lines(text.as_bytes(), false, &mut out).expect("valid");
        let out = String::from_utf8(out).expect("text");
        let lines: Vec<_> = out.lines().collect();
        assert_eq!(
            lines[0],
            "00000000000000010000000000000002 epoch=1 index=2 time=1970-01-01T00:00:00.000000001Z"
        );
        assert!(
            lines[2].starts_with("ffffffffffffffffffffffffffffffff epoch=18446744073709551615")
        );
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn a_bad_timestamp_is_wrong_usage() {
        for bad in
            ["", "12", "0x000000000000000000000000000001", "000000000000000100000000000000zz"]
        {
            let failure = show(bad, true, &mut Vec::new()).expect_err(bad);
            assert_eq!(failure.code, 2);
            let text = format!("{:#}", failure.error);
            assert!(text.contains(&format!("{bad:?}")) && text.contains("32"), "{text}");
        }
    }
}
