//! `epicepoch settings`: the settings that all nodes of a cluster share are looked at, and changed by
//! hand. What a node is told ([`crate::settings`]) seeds them once.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::anyhow;
use clap::{Arg, ArgAction, ArgMatches, Command};
use epicepoch_wire::http::{PATH_ADMIN_SET, PATH_ADMIN_SETTINGS};
use epicepoch_wire::settings::SettingName;
use serde_json::Value;

use crate::commands::{client_arguments, json};
use crate::failure::Failure;
use crate::operator::{self, Order};
use crate::sources::Environment;

pub(crate) fn command() -> Command {
    let asks = |command: Command| command.args(client_arguments()).arg(json());
    let list = Command::new("list")
        .about("Show the settings of the cluster")
        .after_help("Example:\n  epicepoch settings list --addr n1:8080,n2:8080,n3:8080");
    let set = Command::new("set")
        .about("Change settings of the cluster, for all nodes and without a restart")
        .long_about(
            "Change settings of the cluster, for all nodes and without a restart. When the command \
             returns with 0 the leader goes by them and a majority has them on disk; the others go by \
             them with the next message of the leader, a heartbeat later at most, or when they are \
             there again. When it is refused nothing has changed. Several are changed \
             together.\n\nA zone that no voter is in is refused: LEADER_ZONES would go by a slip in \
             a name. While a voter that has not said where it is may be there, it is set, with a \
             warning.",
        )
        .after_help(
            "Examples:\n  epicepoch settings set RESERVATION_MS=2000\n  \
             epicepoch settings set LEADER_ZONES=near,far EPOCH_INTERVAL_MS=50\n  \
             epicepoch settings set LEADER_ZONES=",
        )
        .arg(
            Arg::new("changes")
                .value_name("NAME=VALUE")
                .required(true)
                .action(ArgAction::Append)
                .num_args(1..)
                .help("A setting and its value"),
        )
        .arg(Arg::new("force").long("force").action(ArgAction::SetTrue).help(
            "Also name zones in LEADER_ZONES that no voter is in yet; it lifts no other limit",
        ));
    let names: Vec<_> = SettingName::ALL.into_iter().map(SettingName::text).collect();
    Command::new("settings")
        .about("Show and change the settings that all nodes of a cluster share")
        .long_about(format!(
            "Show and change the settings that all nodes of a cluster share: {}. They are part of the \
             replicated state. What a node is told by its environment, flags or file seeds them when a \
             cluster begins, and counts for nothing afterwards: a node says so when it starts. Orders \
             are taken on the leader's own machine with --addr localhost:PORT, or from where \
             ADMIN_FROM of the nodes allows it: in plain text if OPS_PLAIN_FROM does, too, else \
             over TLS with a token.",
            names.join(", ")
        ))
        .after_help("Exit codes: 0 done; 1 refused, with the reason; 2 wrong usage.")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommands([list, set].map(asks))
}

pub(crate) fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    let Some((name, matches)) = matches.subcommand() else {
        return Err(Failure::usage(anyhow!("no command given; see epicepoch settings --help")));
    };
    let mut advice = "";
    let order = if name == "list" {
        Order::look(PATH_ADMIN_SETTINGS)
    } else {
        let given = matches.get_many::<String>("changes").into_iter().flatten();
        let changes: Result<Vec<_>, _> = given.map(|text| change(text)).collect();
        let changes = changes.map_err(Failure::usage)?;
        let mut parameters: Vec<_> =
            changes.into_iter().map(|(name, value)| (name.text(), Some(value))).collect();
        advice = after_change(parameters.iter().map(|(name, _)| *name));
        if matches.get_flag("force") {
            parameters.push(("force", Some("1".to_owned())));
        }
        Order::change(PATH_ADMIN_SET, &parameters).shown_by("epicepoch settings list")
    };
    let document = order.give(matches, environment)?;
    if let Some(doubt) = doubt(&document) {
        // The order is done, whoever reads this or not.
        let _unread = writeln!(io::stderr(), "warning: {doubt}");
    }
    operator::print(matches, &document, |document| Some(table(document)? + advice))?;
    Ok(ExitCode::SUCCESS)
}

/// A setting and its value. Which values may be is said by the leader; here only what could not be sent.
fn change(text: &str) -> Result<(SettingName, String), anyhow::Error> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| anyhow!("{text:?} is no change; allowed is NAME=VALUE"))?;
    let name = SettingName::named(name).ok_or_else(|| {
        let names: Vec<_> = SettingName::ALL.into_iter().map(SettingName::text).collect();
        anyhow!("{name:?} is no setting of a cluster; allowed are {}", names.join(", "))
    })?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".,_-".contains(&byte);
    if !value.bytes().all(is_plain) {
        return Err(anyhow!("{name} is {value:?}; allowed is {}", name.allowed()));
    }
    Ok((name, value.to_owned()))
}

/// What has to be done after these were set: a restore proves its floor by the longest of them.
fn after_change<'a>(mut names: impl Iterator<Item = &'a str>) -> &'static str {
    let is_proved_by = [SettingName::ReservationMs, SettingName::ClockOffsetMaxMs];
    let is_named = names.any(|name| is_proved_by.iter().any(|it| it.text() == name));
    if is_named {
        "take a new backup, if one of RESERVATION_MS and CLOCK_OFFSET_MAX_MS is longer now: an older \
         one does not know it, and a restore goes by it\n"
    } else {
        ""
    }
}

/// What was set and may be a slip.
fn doubt(document: &Value) -> Option<String> {
    let texts = |name: &str| {
        let items = document[name].as_array().into_iter().flatten();
        let text = |item: &Value| item.as_str().map_or_else(|| item.to_string(), str::to_owned);
        items.map(text).collect::<Vec<_>>().join(",")
    };
    let (empty, unplaced) = (texts("emptyZones"), texts("unplacedVoters"));
    if empty.is_empty() {
        return None;
    }
    let mut text =
        format!("LEADER_ZONES names {empty:?}, and no voter is known to be in that zone");
    if !unplaced.is_empty() {
        let _infallible = write!(
            text,
            "; where these are is not known, since they have not been heard or have just been met: {unplaced}"
        );
    }
    text.push_str("; look again later with: epicepoch member list");
    Some(text)
}

fn table(document: &Value) -> Option<String> {
    let mut text = String::new();
    let Some(settings) = document["settings"].as_object() else {
        let format = document["format"].as_u64()?;
        return Some(format!(
            "the cluster has no settings in its state of format {format} yet: every node goes by its \
             own; see epicepoch member list\n"
        ));
    };
    for (name, value) in settings {
        let _infallible = writeln!(text, "{name}={}", value.as_str()?);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_is_a_name_and_a_value_that_can_be_sent() {
        let read = change("LEADER_ZONES=near,far-1").expect("a change");
        assert_eq!(read, (SettingName::LeaderZones, "near,far-1".into()));
        assert_eq!(change("LEADER_ZONES=").expect("none").1, "");
        for bad in ["MAX_N", "HTTP_PORT=1", "MAX_N=1&x=2", "MAX_N=1 2", "max_n=5"] {
            assert!(change(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn zones_in_doubt_are_named_with_who_may_be_there() {
        assert_eq!(doubt(&json!({"format": 3, "settings": {"MAX_N": "7"}})), None);
        let silent = doubt(&json!({"emptyZones": ["c", "d"], "unplacedVoters": [3]}));
        let silent = silent.expect("a doubt");
        assert!(silent.contains("\"c,d\"") && silent.contains("just been met: 3;"), "{silent}");
        let forced = doubt(&json!({"emptyZones": ["c"], "unplacedVoters": []}));
        assert!(!forced.expect("a doubt").contains("heard"));
    }

    #[test]
    fn a_backup_is_advised_when_a_restore_would_go_by_what_was_set() {
        assert!(after_change(["MAX_N", "RESERVATION_MS"].into_iter()).contains("new backup"));
        assert!(after_change(["CLOCK_OFFSET_MAX_MS"].into_iter()).contains("new backup"));
        assert_eq!(after_change(["MAX_N", "EPOCH_INTERVAL_MS", "LEADER_ZONES"].into_iter()), "");
    }

    #[test]
    fn settings_are_shown_as_they_are_set() {
        let document = json!({"format": 3, "settings": {"MAX_N": "7", "LEADER_ZONES": ""}});
        let text = table(&document).expect("a table");
        assert!(text.contains("MAX_N=7\n") && text.contains("LEADER_ZONES=\n"), "{text}");
        let text = table(&json!({"format": 2, "settings": null})).expect("a table");
        assert!(text.contains("of format 2 yet"), "{text}");
    }
}
