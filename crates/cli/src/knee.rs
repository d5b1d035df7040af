//! `epicepoch bench knee`: raises the rate until the service is overloaded, and reports the bottleneck.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::builder::Resettable;
use clap::{ArgMatches, Command, Id};
use epicepoch_bench::json::FloorRecord;
use epicepoch_bench::knee::{self, First, Knee, KneeConfig};
use epicepoch_bench::run::RunConfig;
use epicepoch_config::Environment;

use crate::addresses;
use crate::arguments::text;
use crate::failure::Failure;
use crate::load;
use crate::output;

pub(crate) fn command() -> Command {
    let command = Command::new("knee")
        .about("Raise the rate step by step until the cluster is overloaded")
        .long_about(
            "Raise the rate of an open loop step by step until the cluster is overloaded, narrow \
             the limit down, report what gave first, and check whether the cluster recovers at half \
             of the highest rate that it held. A step is held when p99 and failures stay within their \
             bounds and answers come at the rate that was due. A step that is not held is repeated \
             once before it counts.\n\n\
             What gave first is judged by measurements during each step: the generator's own time \
             and lateness, refusals by code, the busiest thread of the processes of --pid, soft \
             interrupts, and the load of all processors.",
        )
        .after_help(
            "Examples:\n  epicepoch bench knee --pid $(pgrep -d, epicepoch)\n  \
             epicepoch bench knee --rate 20000 --factor 1.2 --connections 256 --p99-max 20ms\n\n\
             Exit codes: 0 a knee was found, and the cluster recovered; 1 it failed, an answer was \
             wrong, or the\nfirst rate was not held; 2 wrong usage; 3 the cluster did not \
             recover; 4 the generator gave first, or\nevery rate was held: the knee lies higher.",
        );
    load::arguments(command, "1s", "5s")
        .mut_arg("duration", |arg| arg.help("How long each step is measured"))
        .mut_arg("rate", |arg| {
            arg.help("Requests per second of the first step").default_value("1000")
        })
        // The default of --rate does not satisfy `requires`, so the requirement is dropped here.
        .mut_arg("arrivals", |arg| arg.requires(Resettable::<Id>::Reset))
        .arg(text("factor", "F", "Factor from step to step, 1.01 to 10").default_value("1.5"))
        .arg(
            text("p99-max", "TIME", "A step with a greater p99 is not held").default_value("100ms"),
        )
        .arg(
            text("failed-max", "PERCENT", "A step with more failed requests is not held")
                .default_value("0.1"),
        )
        .arg(load::floor_dir())
        .arg(text("json", "FILE", "Write everything as JSON; times are nanoseconds"))
}

pub(crate) fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    let config = load::config(matches)?;
    let factor = number(matches, "factor", 1.01, 10.0)?;
    let failures_max = number(matches, "failed-max", 0.0, 100.0)? / 100.0;
    let p99_max = load::duration(matches, "p99-max", Duration::from_mins(1))?;
    let json_file = load::output(matches, "json")?;
    let (client, deadline) = addresses::client(matches, environment)?;
    let members = addresses::block_on(client.members(deadline))??;
    let tls = addresses::tls(matches, environment)?;
    let token = addresses::token(matches, environment)?;
    let step = RunConfig { targets: load::targets(&members)?, tls, token, ..config };
    let floor = load::floor(matches)?;
    let record = FloorRecord::new(&floor);
    let config = KneeConfig { step, factor, p99_max, failures_max, floor: Some(floor) };

    // A step takes long, so each one is shown as soon as it is over.
    let _unread = write!(io::stderr(), "{}", knee::heading());
    let found = knee::find(&config, |step| {
        let _unread = write!(io::stderr(), "{}", knee::row(step, Some(&record)));
    });
    write!(output::account(), "{}", knee::table(&found))?;
    if let Some((mut file, path)) = json_file {
        let text = serde_json::to_string_pretty(&found)?;
        writeln!(file, "{text}").with_context(|| path.display().to_string())?;
    }
    Ok(ExitCode::from(code(&found)))
}

/// Returns the exit code. A wrong answer outweighs every other result.
fn code(found: &Knee) -> u8 {
    let recovered = found.recovery.as_ref().is_none_or(|it| it.recovered);
    match (found.held, found.first) {
        _ if found.violations().is_some_and(|(violations, _)| violations > 0) => CODE_FAILED,
        (_, None | Some(First::Generator)) => CODE_HIGHER,
        (None, Some(_)) => CODE_FAILED,
        (Some(_), Some(_)) if recovered => 0,
        (Some(_), Some(_)) => CODE_NOT_RECOVERED,
    }
}

fn number(matches: &ArgMatches, name: &str, low: f64, high: f64) -> Result<f64, Failure> {
    let text = matches.get_one::<String>(name).map_or("", String::as_str);
    let number = text.parse().ok().filter(|it| (low..=high).contains(it));
    number
        .ok_or_else(|| Failure::usage(anyhow!("--{name} is {text:?}; allowed are {low} to {high}")))
}

/// Exit code: the service held no rate, or an answer was wrong.
const CODE_FAILED: u8 = 1;
/// Exit code: the service did not recover.
const CODE_NOT_RECOVERED: u8 = 3;
/// Exit code: the knee is above the rates that were tried.
const CODE_HIGHER: u8 = 4;

#[cfg(test)]
mod tests {
    use epicepoch_bench::knee::{Evidence, Recovery, Step};
    use epicepoch_bench::record::Verify;
    use epicepoch_bench::run::{Arrivals, Pace};

    use super::*;

    fn found(violations: u64, first: Option<First>, recovered: bool) -> Knee {
        let step = |violations| Step {
            rate: 1.0,
            achieved: 1.0,
            p50_ns: 1,
            p99_ns: 1,
            failure_share: 0.0,
            failures: [].into(),
            verify: Some(Verify {
                checked: 9,
                unverified: 0,
                violations,
                descriptions: Vec::new(),
                cpu_ns: 0,
            }),
            evidence: Evidence::default(),
            fell: None,
        };
        Knee {
            format: 1,
            kind: "knee",
            held: Some(1.0),
            fell_at: None,
            first,
            steps: vec![step(0), step(violations), step(0)],
            recovery: first.map(|_| Recovery { recovered, step: step(0) }),
            floor: None,
        }
    }

    #[test]
    fn one_wrong_answer_in_one_step_is_the_exit_code_whatever_else_was_found() {
        let outcomes = [
            (Some(First::Waiting), true, 0),
            (Some(First::Waiting), false, CODE_NOT_RECOVERED),
            (Some(First::Generator), true, CODE_HIGHER),
            (None, true, CODE_HIGHER),
        ];
        for (first, recovered, expected) in outcomes {
            assert_eq!(code(&found(0, first, recovered)), expected);
            assert_eq!(code(&found(1, first, recovered)), CODE_FAILED);
        }
    }

    #[test]
    fn arrivals_may_be_chosen_without_a_rate_which_has_a_default_here() {
        let parsed = |words: &[&str]| command().try_get_matches_from(words);
        let matches = parsed(&["knee", "--arrivals", "poisson"]).expect("a command line");
        let pace = load::config(&matches).expect("a configuration").pace;
        assert_eq!(pace, Pace::Open { rate: 1000.0, arrivals: Arrivals::Poisson });
    }
}
