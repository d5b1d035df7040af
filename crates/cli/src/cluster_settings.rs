//! `epicepoch settings`: shows and changes the settings that all nodes of a cluster share. A new
//! cluster gets their first values from the settings of its nodes ([`crate::settings`]).

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::{Arg, ArgAction, ArgMatches, Command};
use epicepoch_config::{Config, Environment};
use epicepoch_wire::http::{PATH_ADMIN_SET, PATH_ADMIN_SETTINGS};
use epicepoch_wire::settings::SettingName;
use epicepoch_wire::{NodeId, TimestampFormat};
use serde_json::Value;

use crate::addresses;
use crate::arguments::{
    WHERE_ORDERS_ARE_ACCEPTED, client_arguments, group, output as output_argument, switch,
};
use crate::failure::Failure;
use crate::operator::{self, Order};

pub(crate) fn command() -> Command {
    let asks = |command: Command| command.args(client_arguments()).arg(output_argument());
    let list = Command::new("list")
        .about("Show the settings of the cluster")
        .after_help("Example:\n  epicepoch settings list --addr n1:8080,n2:8080,n3:8080");
    let set = Command::new("set")
        .about("Change settings of the cluster, for all nodes and without a restart")
        .long_about(
            "Change settings of the cluster, for all nodes and without a restart. When the command \
             returns with 0, the leader uses them and a majority has them on disk. The other nodes \
             use them from the leader's next message on: at most a heartbeat later, or once they are \
             back. Several settings change together, or, if the order is refused, not at all.\n\n\
             LEASE_MS lets the leader answer without a round, and GUARANTEE_DEFAULT says whether \
             requests accept that if they name no guarantee. Then the order of timestamps depends on \
             clocks: read docs/operations/leases.md first. A leader that may take no lease refuses \
             LEASE_MS, except 0.\n\n\
             MODE=interval lets every node answer alone, by its own clock, and clients have to wait: read \
             docs/operations/intervals.md first. MODE=quorum ends that. The command then waits, for \
             --timeout at most, until every node has confirmed that it has stopped; meanwhile no node \
             answers. MODE=interval cancels a change back that is not over.\n\n\
             TIMESTAMP_FORMAT=compact cannot be taken back. Without --yes the command shows the effect \
             of that and changes nothing.\n\n\
             A zone without a voter is refused, because it may be misspelt. If a voter whose zone is \
             unknown could be there, the zone is set, with a warning.",
        )
        .after_help(
            "Examples:\n  epicepoch settings set RESERVATION_MS=2000\n  \
             epicepoch settings set LEADER_ZONES=near,far EPOCH_INTERVAL_MS=50\n  \
             epicepoch settings set LEADER_ZONES=\n  \
             epicepoch settings set LEASE_MS=200 GUARANTEE_DEFAULT=lease",
        )
        .arg(
            Arg::new("changes")
                .value_name("NAME=VALUE")
                .required(true)
                .action(ArgAction::Append)
                .num_args(1..)
                .help("A setting and its value"),
        )
        .arg(
            Arg::new("stopped")
                .long("stopped")
                .value_name("IDS")
                .value_delimiter(',')
                .value_parser(clap::value_parser!(u64).range(1..))
                .help(
                    "With MODE=quorum: these nodes were removed in interval mode, and you have made sure \
                     that they run no more and never will. If one still runs, order is lost",
                ),
        )
        .arg(switch(
            "force",
            "Accept zones in LEADER_ZONES that no voter is in yet; lifts no other check",
        ))
        .arg(switch("yes", "With TIMESTAMP_FORMAT=compact: do it, although nothing can undo it"));
    let names: Vec<_> = SettingName::ALL.into_iter().map(SettingName::text).collect();
    group("settings", [list, set].map(asks))
        .about("Show and change the settings that all nodes of a cluster share")
        .long_about(format!(
            "Show and change the settings that all nodes of a cluster share: {}. They are part of the \
             replicated state. The environment, flags and file of a node seed them when the cluster \
             begins; later they have no effect, and a node logs that when it starts.\n\n\
             {WHERE_ORDERS_ARE_ACCEPTED}",
            names.join(", ")
        ))
        .after_help(
            "Exit codes: 0 done; 1 refused, with the reason; 2 wrong usage, or no --yes for a change \
             that is for ever.",
        )
}

pub(crate) fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    let Some((name, matches)) = matches.subcommand() else {
        return Err(Failure::usage(anyhow!("no command given; see epicepoch settings --help")));
    };
    let mut advice = "";
    let mut is_of_mode = false;
    let order = if name == "list" {
        Order::look(PATH_ADMIN_SETTINGS)
    } else {
        let given = matches.get_many::<String>("changes").into_iter().flatten();
        let changes: Result<Vec<_>, _> = given.map(|text| change(text)).collect();
        let changes = changes.map_err(Failure::usage)?;
        let is_for_ever = changes.iter().any(|(name, value)| {
            *name == SettingName::TimestampFormat && *value == TimestampFormat::Compact.name()
        });
        if is_for_ever && !matches.get_flag("yes") {
            return Err(Failure::usage(anyhow!(COMPACT_EFFECT)));
        }
        is_of_mode = changes.iter().any(|(name, _)| *name == SettingName::Mode);
        let mut parameters: Vec<_> =
            changes.into_iter().map(|(name, value)| (name.text(), Some(value))).collect();
        advice = after_change(parameters.iter().map(|(name, _)| *name));
        if matches.get_flag("force") {
            parameters.push(("force", Some("1".to_owned())));
        }
        if let Some(stopped) = matches.get_many::<u64>("stopped") {
            let ids: Vec<_> = stopped.map(ToString::to_string).collect();
            parameters.push(("stopped", Some(ids.join(","))));
        }
        Order::change(PATH_ADMIN_SET, &parameters).shown_by("epicepoch settings list")
    };
    let (_, deadline) = addresses::given(matches, environment)?;
    let mut document = order.give_before(matches, environment, deadline)?;
    if is_of_mode {
        document = await_mode(document, deadline, matches, environment)?;
    }
    if let Some(doubt) = doubt(&document) {
        // The order was carried out. So it does not matter if the warning cannot be printed.
        let _unread = writeln!(io::stderr(), "warning: {doubt}");
    }
    operator::print(matches, &document, |document| Some(table(document)? + advice))?;
    Ok(ExitCode::SUCCESS)
}

/// Waits until the cluster is in quorum mode, if a change sent it there, at most until `deadline`.
/// Says on the standard error output what the leader waits for, whenever that changes. If no leader
/// answers for some time, the change goes on, so the last answer counts.
fn await_mode(
    mut document: Value,
    deadline: Instant,
    matches: &ArgMatches,
    environment: &Environment,
) -> Result<Value, Failure> {
    let mut failed = None;
    let mut said = String::new();
    loop {
        let is_cancelled = !said.is_empty() && document["settings"]["MODE"] != "quorum";
        let waiting = match mode_change(&document) {
            // A new leader may not have applied the change yet.
            None if is_cancelled => {
                "MODE is interval; another operator may have cancelled".to_owned()
            }
            None => return Ok(document),
            Some(waiting) => waiting,
        };
        if waiting != said {
            // The order was carried out. So it does not matter if this cannot be printed.
            let _unread = writeln!(io::stderr(), "MODE becomes quorum: {waiting}");
            said = waiting;
        }
        if Instant::now() + PAUSE >= deadline {
            let goes_on = "The change goes on, and no node gives timestamps meanwhile; see epicepoch \
                           settings list. MODE=interval cancels it";
            let advice = if is_cancelled { "See epicepoch settings list" } else { goes_on };
            let mut text = format!("the cluster is not in quorum mode yet: {said}. {advice}");
            if let Some(Failure { error, .. }) = failed {
                let _infallible = write!(text, ". The last question failed: {error:#}");
            }
            return Err(anyhow!(text).into());
        }
        thread::sleep(PAUSE);
        let looked = Order::look(PATH_ADMIN_SETTINGS).give_before(matches, environment, deadline);
        match looked {
            Ok(now) => (document, failed) = (now, None),
            Err(failure) => failed = Some(failure),
        }
    }
}

/// What a change to quorum mode waits for; `None` if there is none.
fn mode_change(document: &Value) -> Option<String> {
    let change = document.get("modeChange").filter(|it| !it.is_null())?;
    let nodes = |name: &str| {
        let items = change[name].as_array().into_iter().flatten();
        items.map(ToString::to_string).collect::<Vec<_>>().join(",")
    };
    let (missing, removed) = (nodes("missing"), nodes("removed"));
    let mut waits = Vec::new();
    if !missing.is_empty() {
        waits.push(format!(
            "these members have not confirmed that they have stopped: {missing} (start them; if one is \
             gone for good, stop it, then epicepoch member remove)"
        ));
    }
    if !removed.is_empty() {
        waits.push(format!(
            "these nodes were removed in interval mode, and may still answer: {removed} (make sure that \
             they run no more, then repeat the command with --stopped={removed})"
        ));
    }
    let ahead_ms = change["aheadMs"].as_f64().unwrap_or(0.0);
    if ahead_ms >= AHEAD_SHOWN_MS {
        waits.push(format!("nodes may have given timestamps {ahead_ms:.0} ms ahead of the clock"));
    }
    Some(if waits.is_empty() { "the last step is under way".to_owned() } else { waits.join("; ") })
}

/// What `TIMESTAMP_FORMAT=compact` does to a cluster.
const COMPACT_EFFECT: &str = "\
TIMESTAMP_FORMAT=compact would take effect at once, and could never be taken back:
- requests for more than 262144 timestamps (2^18) would be refused with BAD_COUNT, in every format;
- requests would be refused with OVERLOADED above 262 million timestamps a second;
- the cluster could never be in interval mode.
See docs/http.md#compact-timestamps
Nothing was changed. Repeat the command with --yes";
/// Time between two questions while the mode changes.
const PAUSE: Duration = Duration::from_millis(100);
/// A time ahead of the clock below this is not worth a line, milliseconds.
const AHEAD_SHOWN_MS: f64 = 3_000.0;

/// Parses `NAME=VALUE` and checks the value by itself. The leader also checks that it goes with the
/// other settings.
fn change(text: &str) -> Result<(SettingName, String), anyhow::Error> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| anyhow!("{text:?} is not a change; allowed is NAME=VALUE"))?;
    let offered = |name: &SettingName| SettingName::ALL.contains(name);
    let name = SettingName::named(name).filter(offered).ok_or_else(|| {
        let names: Vec<_> = SettingName::ALL.into_iter().map(SettingName::text).collect();
        anyhow!("{name:?} is not a setting of a cluster; allowed are {}", names.join(", "))
    })?;
    let any = Config::new(NodeId(1), "").shared();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".,_-".contains(&byte);
    if !value.bytes().all(is_plain) || any.with(name, value).is_none() {
        return Err(anyhow!("{name} is {value:?}; allowed is {}", name.allowed()));
    }
    Ok((name, value.to_owned()))
}

/// Returns the advice to take a new backup if one of the changed settings is `RESERVATION_MS`,
/// `CLOCK_OFFSET_MAX_MS` or `LEASE_MS`. A restore computes from these settings in the backup.
fn after_change<'a>(mut names: impl Iterator<Item = &'a str>) -> &'static str {
    let is_proved_by =
        [SettingName::ReservationMs, SettingName::ClockOffsetMaxMs, SettingName::LeaseMs];
    let is_named = names.any(|name| is_proved_by.iter().any(|it| it.text() == name));
    if is_named {
        "take a new backup if RESERVATION_MS, CLOCK_OFFSET_MAX_MS or LEASE_MS is longer now: a restore \
         relies on them, and an older backup has the old ones\n"
    } else {
        ""
    }
}

/// Returns a warning if `LEADER_ZONES` names a zone without voters, because its name may be
/// misspelt.
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
            "; the zones of these voters are not known yet, because they have not been heard or have just been met: {unplaced}"
        );
    }
    text.push_str("; check again later: epicepoch member list");
    Some(text)
}

fn table(document: &Value) -> Option<String> {
    let mut text = String::new();
    let Some(settings) = document["settings"].as_object() else {
        let format = document["format"].as_u64()?;
        return Some(format!(
            "the cluster has no settings in its state of format {format} yet: every node uses its own; \
             see epicepoch member list\n"
        ));
    };
    for (name, value) in settings {
        let _infallible = writeln!(text, "{name}={}", value.as_str()?);
    }
    if let Some(waiting) = mode_change(document) {
        let _infallible = writeln!(text, "MODE is not quorum yet: {waiting}");
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use epicepoch_wire::http::ErrorCode;
    use serde_json::json;

    use super::*;
    use crate::failure::USAGE;
    use crate::{commands, scripted};

    const TIMEOUT: Duration = Duration::from_secs(5);

    /// Runs `epicepoch settings set` with a node that records requests and answers them by `answer`,
    /// which gets all requests so far. Returns the outcome, and the requests.
    fn set(
        words: &[&str],
        answer: impl Fn(&[String]) -> Result<Value, ErrorCode> + Send + Sync + 'static,
    ) -> (Result<ExitCode, Failure>, Vec<String>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let of_node = asked.clone();
        let addr = scripted::start(move |line| {
            let mut asked = of_node.lock().expect("no panic");
            asked.push(line.to_owned());
            answer(&asked)
        });
        let timeout = format!("{}s", TIMEOUT.as_secs());
        let shared = ["--addr", &addr, "--timeout", &timeout];
        let words = [&["epicepoch", "settings", "set"], words, &shared].concat();
        let matches = commands::tree().try_get_matches_from(words).expect("right usage");
        let outcome = crate::run(&matches, &Environment::new());
        let asked = asked.lock().expect("no panic").clone();
        (outcome, asked)
    }

    fn is_order(line: &str) -> bool {
        line.starts_with("POST /admin/settings/set?")
    }

    /// The leader is found late, takes the order, and is never heard of again.
    #[test]
    fn an_accepted_change_of_the_mode_goes_on_while_no_leader_answers() {
        const REFUSED: usize = 15;
        let taken = Arc::new(Mutex::new(None));
        let of_node = taken.clone();
        let (outcome, asked) = set(&["MODE=quorum"], move |asked| {
            let is_before = !asked[..asked.len() - 1].iter().any(|it| is_order(it));
            match asked.last() {
                Some(line) if is_order(line) => {
                    *of_node.lock().expect("no panic") = Some(Instant::now());
                    Ok(json!({
                        "settings": {"MODE": "quorum"},
                        "modeChange": {"to": "quorum", "missing": [2], "removed": [], "aheadMs": 0.0},
                    }))
                }
                // The question for the leader, before the order.
                Some(_) if is_before && asked.len() > REFUSED => Ok(json!({"members": []})),
                _ => Err(ErrorCode::NoLeader),
            }
        });
        let ended = Instant::now();
        let failure = outcome.expect_err("no leader says that the change is over");
        let text = failure.error.to_string();
        assert_eq!(
            (failure.code, asked.iter().filter(|it| is_order(it)).count()),
            (1, 1),
            "{text}"
        );
        for words in ["stopped: 2 ", "The change goes on", "MODE=interval cancels it", "NO_LEADER"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(!text.contains("no leader took the order"), "{text}");
        let went_on = taken.lock().expect("no panic").map(|taken| ended - taken);
        // A second deadline would end just before `TIMEOUT`.
        assert!(went_on < Some(TIMEOUT * 9 / 10), "one deadline for all: {went_on:?}");
    }

    #[test]
    fn compact_timestamps_need_a_yes_because_nothing_can_undo_them() {
        let code =
            |outcome: Result<ExitCode, Failure>| format!("{:?}", outcome.expect("no failure"));
        let taken = |_: &[String]| Ok(json!({"settings": {"TIMESTAMP_FORMAT": "compact"}}));
        let success = format!("{:?}", ExitCode::SUCCESS);
        for output in ["text", "json"] {
            let words = ["MAX_N=77", "TIMESTAMP_FORMAT=compact", "--output", output];
            let (outcome, asked) = set(&words, taken);
            let failure = outcome.expect_err("refused");
            assert_eq!((failure.code, asked), (USAGE, vec![]), "nothing is sent");
            let text = failure.error.to_string();
            for words in ["never be taken back", "2^18", "interval mode", "with --yes"] {
                assert!(text.contains(words), "{words}: {text}");
            }
        }
        for words in [&["TIMESTAMP_FORMAT=compact", "--yes"][..], &["TIMESTAMP_FORMAT=wide"]] {
            let (outcome, asked) = set(words, taken);
            assert_eq!(code(outcome), success);
            assert_eq!(asked.iter().filter(|it| is_order(it)).count(), 1, "{words:?}: {asked:?}");
        }
    }

    #[test]
    fn a_change_is_a_name_and_a_value_that_can_be_sent() {
        let read = change("LEADER_ZONES=near,far-1").expect("a change");
        assert_eq!(read, (SettingName::LeaderZones, "near,far-1".into()));
        assert_eq!(change("LEADER_ZONES=").expect("none").1, "");
        let wrong_values =
            ["MAX_N=0", "MAX_N=", "MAX_N=x", "RESERVATION_MS=199", "LEADER_ZONES=a,"];
        let wrong_names = ["MAX_N", "HTTP_PORT=1", "MAX_N=1&x=2", "MAX_N=1 2", "max_n=5"];
        for bad in wrong_names.into_iter().chain(wrong_values) {
            assert!(change(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn zones_in_doubt_are_named_with_the_voters_that_may_be_there() {
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
        assert!(after_change(["LEASE_MS"].into_iter()).contains("new backup"));
        assert_eq!(after_change(["MAX_N", "EPOCH_INTERVAL_MS", "LEADER_ZONES"].into_iter()), "");
    }

    #[test]
    fn a_change_to_quorum_mode_names_what_it_waits_for() {
        assert_eq!(mode_change(&json!({"format": 8, "modeChange": null})), None);
        assert_eq!(mode_change(&json!({"format": 7})), None, "an older leader");
        let document = |missing: &[u64], removed: &[u64], ahead_ms: f64| {
            let to = "quorum";
            json!({"settings": {"MODE": to}, "modeChange": {
                "to": to, "missing": missing, "removed": removed, "aheadMs": ahead_ms,
            }})
        };
        let text = mode_change(&document(&[2, 3], &[4, 5], 7_000.0)).expect("it waits");
        for part in ["confirmed that they have stopped: 2,3 ", "--stopped=4,5)", "7000 ms ahead"] {
            assert!(text.contains(part), "{text}");
        }
        let shown = table(&document(&[], &[], 1.0)).expect("a table");
        assert!(shown.contains("MODE is not quorum yet: the last step is under way\n"), "{shown}");
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
