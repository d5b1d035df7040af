//! `epicepoch clock advance-to`: raises the epoch by hand, for example above the timestamps of
//! another oracle. Nothing can undo that, so without `--yes` the command only shows the effect.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::anyhow;
use clap::{Arg, ArgMatches, Command};
use epicepoch_config::Environment;
use epicepoch_config::whole_number;
use epicepoch_wire::http::{PATH_ADMIN_ADVANCE, PATH_ADMIN_ADVANCE_PLAN};
use epicepoch_wire::{Epoch, Timestamp};
use serde_json::Value;

use crate::arguments::{WHERE_ORDERS_ARE_ACCEPTED, client_arguments, output, switch, text};
use crate::encode;
use crate::failure::Failure;
use crate::moment;
use crate::operator::{self, Order};

pub(super) fn command() -> Command {
    Command::new("advance-to")
        .about("Move the epoch: every later answer is above TIME; nothing can undo it")
        .long_about(
            "Move the epoch: every request that begins after this command has returned gets an answer \
             above TIME. Use it to move from another oracle, or when a known timestamp must lie below \
             later ones. Without --yes the command shows the effect and changes nothing. While epochs \
             are ahead of the clock, they move by the least step, or stand still while the index goes \
             on, until time has caught up. No request fails, and nothing shortens that time.",
        )
        .after_help(format!(
            "Examples:\n  epicepoch clock advance-to 2026-11-22T12:00:00Z --addr n1:8080\n  \
             epicepoch clock advance-to 17979cfe362a00000000000000000005 --yes\n  \
             epicepoch clock advance-to 1700000000000ms --ahead-max 2d --yes\n\n\
             TIME is RFC 3339 with an offset, Unix time with its unit, or a timestamp of 32 \
             hexadecimal digits: then every answer is above its epoch.\n\n\
             {WHERE_ORDERS_ARE_ACCEPTED}\n\n\
             Exit codes: 0 done, or shown without --yes; 1 refused, with the reason; 2 wrong usage.",
        ))
        .arg(Arg::new("time").value_name("TIME").required(true).help("Time to move the epoch to"))
        .arg(switch("yes", "Do it"))
        .arg(switch("dry-run", "Only show the effect, as without --yes").conflicts_with("yes"))
        .arg(
            text("ahead-max", "TIME", "How far ahead of the clock TIME may be, up to 366d")
                .default_value("1h"),
        )
        .args(client_arguments())
        .arg(output())
}

pub(super) fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    let given = |name: &str| matches.get_one::<String>(name).map_or("", String::as_str);
    let to = epoch(given("time")).map_err(Failure::usage)?;
    let allowed_ms = span_ms(given("ahead-max")).ok_or_else(|| {
        Failure::usage(anyhow!(
            "--ahead-max is {:?}; allowed is a whole number of s, m, h or d, up to 366d",
            given("ahead-max")
        ))
    })?;
    let parameters =
        [("to", Some(to.0.to_string())), ("ahead_max_ms", Some(allowed_ms.to_string()))];
    let is_done = matches.get_flag("yes");
    let order = if is_done {
        Order::change(PATH_ADMIN_ADVANCE, &parameters).shown_by("epicepoch clock")
    } else {
        Order::look_with(PATH_ADMIN_ADVANCE_PLAN, &parameters)
    };
    let document = order.give(matches, environment)?;
    operator::print(matches, &document, |document| report(document, is_done))?;
    Ok(ExitCode::SUCCESS)
}

/// Parses the epoch of a timestamp or of a wall time.
fn epoch(text: &str) -> Result<Epoch, anyhow::Error> {
    if let Ok(timestamp) = text.parse::<Timestamp>() {
        return Ok(timestamp.epoch);
    }
    Ok(Epoch(encode::unix_ns(text, SystemTime::now())?))
}

/// Parses a time such as `90s`, `2m`, `1h` or `366d`. Returns milliseconds, at most
/// [`AHEAD_MS_MAX`].
fn span_ms(text: &str) -> Option<u64> {
    let units = [("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    let (number, ms) = units.iter().find_map(|(unit, ms)| Some((text.strip_suffix(unit)?, *ms)))?;
    whole_number(number)?.checked_mul(ms).filter(|ms| *ms <= AHEAD_MS_MAX)
}

fn report(document: &Value, is_done: bool) -> Option<String> {
    let epoch = |name: &str| document[name].as_str()?.parse().ok().map(Epoch);
    let (to, ceiling, after) = (epoch("to")?, epoch("ceiling")?, epoch("ceilingAfter")?);
    let ahead_ms = document["aheadMs"].as_f64()?;
    // During an upgrade, nodes of 0.1 give `isDone`.
    let already = document["already"].as_bool().or_else(|| document["isDone"].as_bool())?;
    let time = moment::time(to);
    let mut text = match (is_done, already) {
        (_, true) => format!("no change needed: every answer is above {time} already\n"),
        (true, false) => format!("every answer is above {time} from now on\n"),
        (false, false) => format!("every answer would be above {time}\n"),
    };
    if after > ceiling {
        let (from, to) = (moment::time(ceiling), moment::time(after));
        let goes = if is_done { "went" } else { "would go" };
        let _infallible = writeln!(text, "the ceiling {goes} from {from} to {to} or later");
    }
    if ahead_ms > 0.0 {
        let _infallible = writeln!(
            text,
            "that is {:.1} s ahead of the clock: epochs move by the least step, or stand still while \
             the index goes on, until time has caught up at {time}",
            ahead_ms / 1e3
        );
    }
    if is_done && (ahead_ms > 0.0 || (!already && after > ceiling)) {
        text += "take a new backup: an older one does not know how far the epoch was moved\n";
    }
    if !is_done {
        text += "nothing was changed; repeat with --yes to do it\n";
    }
    Some(text)
}

/// A leader accepts a new epoch at most this far ahead of its clock, in ms: 366 days.
const AHEAD_MS_MAX: u64 = 366 * 86_400_000;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_and_timestamps_say_the_same() {
        let golden = Epoch(1_700_000_000_000_000_000);
        for text in ["2023-11-14T22:13:20Z", "1700000000s", "17979cfe362a00000000000000000005"] {
            assert_eq!(epoch(text).ok(), Some(golden), "{text}");
        }
        for text in ["", "1700000000", "+1h", "17979cfe362a0000"] {
            assert!(epoch(text).is_err(), "{text}");
        }
    }

    #[test]
    fn how_far_ahead_is_bounded() {
        assert_eq!(
            ["90s", "2m", "1h", "366d"].map(span_ms),
            [90_000, 120_000, 3_600_000, 31_622_400_000].map(Some)
        );
        assert_eq!(["367d", "1", "h", "-1h", "1.5h", "1 h"].map(span_ms), [None; 6]);
    }

    #[test]
    fn a_plan_shows_how_long_epochs_stand_still_and_that_nothing_was_changed() {
        let plan = json!({"to": "1700000060000000000", "ceiling": "1700000001000000000",
                          "ceilingAfter": "1700000060000001000", "aheadMs": 60_000.0, "already": false});
        let text = report(&plan, false).expect("a plan");
        for words in ["would be above 2023-11-14T22:14:20", "60.0 s ahead", "nothing was changed"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let mut old = plan.clone();
        old["isDone"] = old["already"].take();
        assert_eq!(report(&old, false).as_deref(), Some(text.as_str()));
        let text = report(&plan, true).expect("an answer");
        assert!(text.contains("from now on") && !text.contains("nothing"), "{text}");
        assert!(text.contains("take a new backup"), "{text}");
        // The new epoch is behind the clock and below the ceiling. The order is carried out. The
        // ceiling stays, so old backups stay valid and no new one is advised.
        let past = json!({"to": "1700000000000000000", "ceiling": "1700000001000000000",
                          "ceilingAfter": "1700000001000000000", "aheadMs": 0.0, "already": false});
        let text = report(&past, true).expect("an answer");
        assert!(text.contains("from now on") && !text.contains("backup"), "{text}");
        let again = json!({"to": "1700000060000000000", "ceiling": "1700000060000001000",
                           "ceilingAfter": "1700000060000001000", "aheadMs": 0.0, "already": true});
        let text = report(&again, true).expect("an answer");
        assert!(text.contains("already") && !text.contains("backup"), "{text}");
    }
}
