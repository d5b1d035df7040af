//! `epicepoch decode`: shows the epoch, index and wall time of timestamps. It asks no cluster. It
//! reads standard input as a stream: memory does not grow with its length.

use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal, Read, Write};
use std::process::ExitCode;

use anyhow::anyhow;
use base64::Engine as _;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use clap::{Arg, ArgMatches, Command};
use epicepoch_config::whole_number;
use epicepoch_wire::{COMPACT_MAX, Timestamp};

use crate::arguments::{COMPACT, is_json, output as output_argument, switch};
use crate::failure::Failure;
use crate::moment;
use crate::output;

pub(crate) fn command() -> Command {
    Command::new("decode")
        .about("Show the epoch, index and wall time of timestamps")
        .after_help(
            "A timestamp is 32 hexadecimal digits, or the same number in decimal (33 to 39 digits), \
             or its 16 bytes in base64, or a compact timestamp in decimal (18 or 19 digits). Standard \
             input has such texts, separated by white space, or 16 bytes for each timestamp, as \
             GET /timestamp and \"epicepoch get --raw\" give them. The command finds out which. \
             With --compact, every number is a compact timestamp, and bytes come in eights.\n\n\
             Examples:\n  epicepoch decode 17979cfe362a00000000000000000005\n  \
             epicepoch get -n 3 | epicepoch decode --output json\n  \
             epicepoch get -n 1000 --raw | epicepoch decode\n  \
             curl -fsS localhost:8881/timestamp | epicepoch decode\n  \
             epicepoch decode 445644800000000005\n  \
             epicepoch get -n 3 --compact --raw | epicepoch decode --compact",
        )
        .arg(
            Arg::new("timestamp")
                .value_name("TIMESTAMP")
                .num_args(0..)
                .help("Timestamps, as text; none or '-' reads standard input"),
        )
        .arg(
            switch("raw", "Standard input has 16 bytes for each timestamp, even if it looks like text")
                .conflicts_with("timestamp"),
        )
        .arg(switch(COMPACT, "Timestamps are compact: decimal numbers of any length, or 8 bytes each"))
        .arg(output_argument())
}

pub(crate) fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let is_compact = matches.get_flag(COMPACT);
    let out = BufWriter::new(output::product());
    let mut out = Printer { is_json: is_json(matches), is_compact, out };
    let arguments = matches.get_many::<String>("timestamp").unwrap_or_default();
    let arguments: Vec<&str> = arguments.map(String::as_str).collect();
    let decoded = if arguments.is_empty() || arguments == ["-"] {
        if io::stdin().is_terminal() {
            let _unread = writeln!(io::stderr(), "Reading timestamps from standard input.");
        }
        stream(io::stdin().lock(), matches.get_flag("raw"), &mut out)
    } else {
        let parsed = |word: &&str| parse(word, is_compact).ok_or_else(|| not_one(word));
        arguments.iter().try_for_each(|word| out.show(parsed(word)?))
    };
    // The timestamps before a bad one have been printed by then.
    out.out.flush()?;
    decoded.map(|()| ExitCode::SUCCESS)
}

/// Prints timestamps.
struct Printer<W: Write> {
    is_json: bool,
    /// Whether all timestamps are compact.
    is_compact: bool,
    out: W,
}

impl<W: Write> Printer<W> {
    fn show(&mut self, timestamp: Timestamp) -> Result<(), Failure> {
        if self.is_json {
            writeln!(self.out, "{}", moment::object(timestamp))?;
        } else {
            writeln!(self.out, "{}", moment::line(timestamp))?;
        }
        Ok(())
    }
}

/// Decodes a stream of either form. The first 16 bytes show which one it is: bytes that no text has
/// are in every timestamp whose index is below 2^56.
fn stream<W: Write>(
    mut input: impl Read,
    is_raw: bool,
    out: &mut Printer<W>,
) -> Result<(), Failure> {
    let mut head = [0; Timestamp::LEN];
    let len = fill(&mut input, &mut head)?;
    let head = &head[..len];
    let is_text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    let input = BufReader::new(head.chain(input));
    if is_raw || !head.iter().all(is_text) { raw(input, out) } else { words(input, out) }
}

fn raw<W: Write>(mut input: BufReader<impl Read>, out: &mut Printer<W>) -> Result<(), Failure> {
    let len = if out.is_compact { size_of::<u64>() } else { Timestamp::LEN };
    let mut bytes = [0; Timestamp::LEN];
    let mut count = 0_u64;
    loop {
        if input.buffer().is_empty() {
            // More input may take a while, so what is decoded so far is printed.
            out.out.flush()?;
        }
        match fill(&mut input, &mut bytes[..len])? {
            0 => return Ok(()),
            Timestamp::LEN => out.show(Timestamp::from_bytes(bytes))?,
            left if left == len => {
                let (head, _) = bytes.as_chunks();
                let compact = u64::from_be_bytes(head[0]);
                let timestamp = Timestamp::from_compact(compact).ok_or_else(|| {
                    Failure::usage(anyhow!(
                        "after {count} timestamps, {compact} is not a compact timestamp; the largest \
                         is {COMPACT_MAX}"
                    ))
                })?;
                out.show(timestamp)?;
            }
            left => {
                return Err(Failure::usage(anyhow!(
                    "standard input ends after {count} timestamps and {left} bytes; allowed are {len} \
                     bytes for each timestamp: the input was cut off, or is something else"
                )));
            }
        }
        count += 1;
    }
}

fn words<W: Write>(mut input: BufReader<impl Read>, out: &mut Printer<W>) -> Result<(), Failure> {
    let mut word = String::new();
    let mut line = 1_u64;
    loop {
        if input.buffer().is_empty() {
            out.out.flush()?;
        }
        let byte = input.fill_buf()?.first().copied();
        input.consume(usize::from(byte.is_some()));
        match byte {
            Some(byte) if !byte.is_ascii_whitespace() && word.len() < WORD_LEN_MAX => {
                word.push(char::from(byte));
                continue;
            }
            // A word that is too long to be a timestamp is not read to its end.
            _ if word.is_empty() => {}
            _ => {
                let timestamp = parse(&word, out.is_compact).ok_or_else(|| {
                    let Failure { error, .. } = not_one(&word);
                    let end = if byte.is_none() { ", where standard input ends" } else { "" };
                    Failure::usage(error.context(format!("line {line}{end}")))
                })?;
                out.show(timestamp)?;
            }
        }
        word.clear();
        match byte {
            Some(b'\n') => line += 1,
            Some(_) => {}
            None => return Ok(()),
        }
    }
}

/// Reads until `bytes` is full or the input ends. Returns how many bytes were read.
fn fill(input: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < bytes.len() {
        match input.read(&mut bytes[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

/// Parses any text form of a timestamp. The length tells them apart, so that a digit that is missing
/// is an error and not another timestamp. `is_compact` says that the word is a compact timestamp.
fn parse(word: &str, is_compact: bool) -> Option<Timestamp> {
    if is_compact {
        return whole_number(word).and_then(Timestamp::from_compact);
    }
    match word.len() {
        // Compact timestamps have this length from 1982 to 2554.
        18 | 19 => whole_number(word).and_then(Timestamp::from_compact),
        32 => word.parse().ok(),
        33..=39 if word.bytes().all(|byte| byte.is_ascii_digit()) => {
            word.parse::<u128>().ok().map(Timestamp::from)
        }
        22 | 24 => {
            let mode = DecodePaddingMode::Indifferent;
            let config = GeneralPurposeConfig::new().with_decode_padding_mode(mode);
            let is_url = word.contains(['-', '_']);
            let alphabet = if is_url { &URL_SAFE } else { &STANDARD };
            let bytes = GeneralPurpose::new(alphabet, config).decode(word).ok()?;
            Some(Timestamp::from_bytes(bytes.try_into().ok()?))
        }
        _ => None,
    }
}

fn not_one(word: &str) -> Failure {
    let shown: String = word.chars().take(WORD_LEN_MAX).collect();
    Failure::usage(anyhow!(
        "{shown:?} is not a timestamp; allowed are 32 hexadecimal digits, the same number in decimal \
         (33 to 39 digits), the 16 bytes in base64, or a compact timestamp in decimal (18 or 19 digits; with \
         --compact, any number up to {COMPACT_MAX})"
    ))
}

/// Longest word that is read and that an error repeats, in bytes. No timestamp is as long.
const WORD_LEN_MAX: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what is printed for an input, and the error.
    fn decoded(input: &[u8], is_raw: bool) -> (Vec<String>, Option<(u8, String)>) {
        let mut out = Printer { is_json: false, is_compact: false, out: Vec::new() };
        let failed = stream(input, is_raw, &mut out).err();
        let text = String::from_utf8(out.out).expect("text");
        let failed = failed.map(|it| (it.code, format!("{:#}", it.error)));
        (text.lines().map(str::to_owned).collect(), failed)
    }

    const GOLDEN: u128 = 0x1797_9cfe_362a_0000_0000_0000_0000_0005;

    #[test]
    fn words_of_all_lines_are_decoded() {
        let text = "00000000000000010000000000000002 00000000000000010000000000000003\n\n\
                    FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF\n";
        let (lines, failed) = decoded(text.as_bytes(), false);
        assert_eq!(
            lines[0],
            "00000000000000010000000000000002 epoch=1 index=2 time=1970-01-01T00:00:00.000000001Z"
        );
        assert!(
            lines[2].starts_with("ffffffffffffffffffffffffffffffff epoch=18446744073709551615")
        );
        assert_eq!((lines.len(), failed), (3, None));
    }

    #[test]
    fn every_text_form_and_the_bytes_mean_the_same() {
        let hex = format!("{GOLDEN:032x}");
        let forms = [
            hex.clone(),
            hex.to_uppercase(),
            GOLDEN.to_string(),
            "F5ec/jYqAAAAAAAAAAAABQ==".to_owned(),
            "F5ec_jYqAAAAAAAAAAAABQ".to_owned(),
            "445644800000000005".to_owned(),
        ];
        for form in &forms {
            assert_eq!(parse(form, false), Some(Timestamp::from(GOLDEN)), "{form}");
        }
        let (lines, failed) = decoded(forms.join("\n").as_bytes(), false);
        assert_eq!((lines.len(), failed), (forms.len(), None));
        assert!(lines.iter().all(|line| line.starts_with(&hex)), "{lines:?}");
        let (raw, failed) = decoded(&GOLDEN.to_be_bytes().repeat(3), false);
        assert_eq!((raw, failed), (vec![lines[0].clone(); 3], None));
        // The first and the last timestamp of all, and one whose bytes are all letters.
        for number in [0, u128::MAX] {
            let (lines, failed) = decoded(&number.to_be_bytes(), false);
            assert_eq!((lines.len(), failed), (1, None), "{number}");
        }
        assert_eq!(decoded(b"abcdefghijklmnop", true).0.len(), 1);
        assert_eq!(decoded(b"", false), (vec![], None));
    }

    #[test]
    fn compact_timestamps_are_decoded_as_text_and_as_bytes() {
        let decoded = |input: &[u8]| {
            let mut out = Printer { is_json: false, is_compact: true, out: Vec::new() };
            let failed = stream(input, false, &mut out).err();
            let text = String::from_utf8(out.out).expect("text");
            (text.lines().count(), failed.map(|it| format!("{:#}", it.error)))
        };
        let compact = 445_644_800_000_000_005_u64;
        assert_eq!(parse("445644800000000005", true), Some(Timestamp::from(GOLDEN)));
        assert_eq!(parse("7", true), Timestamp::from_compact(7));
        assert_eq!(parse("-1", true), None);
        assert_eq!(parse(&(COMPACT_MAX + 1).to_string(), true), None);
        assert_eq!(decoded(format!("{compact}\n{compact}").as_bytes()), (2, None));
        assert_eq!(decoded(&compact.to_be_bytes().repeat(3)), (3, None));
        let (lines, failed) = decoded(&compact.to_be_bytes().repeat(3)[..20]);
        let failed = failed.expect("cut off");
        assert!(lines == 2 && failed.contains("2 timestamps and 4 bytes"), "{failed}");
        let (lines, failed) = decoded(&[compact, u64::MAX].map(u64::to_be_bytes).concat());
        let failed = failed.expect("too large");
        assert!(lines == 1 && failed.contains("not a compact timestamp"), "{failed}");
    }

    #[test]
    fn a_cut_off_input_is_refused_after_what_is_whole() {
        let mut bytes = GOLDEN.to_be_bytes().repeat(2);
        bytes.truncate(27);
        let (lines, failed) = decoded(&bytes, false);
        let (code, text) = failed.expect("cut off");
        assert_eq!((lines.len(), code), (1, 2));
        assert!(text.contains("after 1 timestamps and 11 bytes"), "{text}");
        let text = format!("{GOLDEN:032x}\n{GOLDEN:020x}");
        let (lines, failed) = decoded(&text.as_bytes()[..50], false);
        let (code, text) = failed.expect("cut off");
        assert_eq!((lines.len(), code), (1, 2));
        assert!(text.starts_with("line 2, where standard input ends: "), "{text}");
    }

    #[test]
    fn a_bad_timestamp_is_wrong_usage() {
        for bad in [
            "",
            "12",
            "0x000000000000000000000000000001",
            "000000000000000100000000000000zz",
            // Out of range, too short for base64, and base64 of other bytes.
            "999999999999999999999999999999999999999",
            "F5ec/jYqAAAAAAAAAAAAB",
            "F5ec/jYqAAAAAAAAAAAABR",
            "F5ec/jYqAAAAAAAAAAAABQAA",
        ] {
            assert_eq!(parse(bad, false), None, "{bad}");
            let failure = not_one(bad);
            assert_eq!(failure.code, 2);
            let text = format!("{:#}", failure.error);
            assert!(text.contains(&format!("{bad:?}")) && text.contains("32"), "{text}");
        }
        let (lines, failed) = decoded(format!("{GOLDEN:032x}\r\nx y\n").as_bytes(), false);
        let (code, text) = failed.expect("bad");
        assert_eq!((lines.len(), code), (1, 2));
        assert!(text.starts_with("line 2: \"x\" is not a timestamp"), "{text}");
    }

    /// Memory does not grow with the input: a word that never ends is refused.
    #[test]
    fn a_word_without_an_end_is_refused() {
        let mut out = Printer { is_json: false, is_compact: false, out: Vec::new() };
        let failure = stream(io::repeat(b'a'), false, &mut out).expect_err("refused");
        let text = format!("{:#}", failure.error);
        assert!(text.contains("line 1: \"aaaa") && text.len() < 400, "{text}");
    }
}
