//! Tests that check the documents against the code. They check the table in
//! `docs/operations/settings.md`, the JSON fields in `docs/http.md`, every `epicepoch serve` command
//! in documents and help texts, and that `docs/alerts.md` has every message and
//! `docs/operations/monitoring.md` every field. No test starts a node.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use epicepoch_bench::probe::Account;
use epicepoch_config::tune::Report;
use epicepoch_config::{Environment, Kind, Scope, settings};
use epicepoch_wire::{Timestamp, TimestampRange};
use serde_json::{Value, json};

use crate::failure::{DIRECTORY, REMOVED, USAGE};
use crate::settings::given;
use crate::{backup, check_config, clock, commands, encode, get, moment, status};

const DEPLOY: &str = include_str!("../../../docs/operations/deploy.md");
const MEMBERS: &str = include_str!("../../../docs/operations/members.md");
const SETTINGS: &str = include_str!("../../../docs/operations/settings.md");
const MONITORING: &str = include_str!("../../../docs/operations/monitoring.md");
const HTTP: &str = include_str!("../../../docs/http.md");
const ALERTS: &str = include_str!("../../../docs/alerts.md");
const CHANGELOG: &str = include_str!("../../../CHANGELOG.md");
const COMPATIBILITY: &str = include_str!("../../../docs/compatibility.md");
const UNIT: &str = include_str!("../../../deploy/epicepoch.service");
const README: &str = include_str!("../../../README.md");

/// A row of the table of settings.
struct Row {
    default: String,
    allowed: String,
}

/// Returns the part of a page below a heading.
fn section(page: &'static str, heading: &str) -> &'static str {
    let (_, after) = page.split_once(&format!("\n## {heading}\n")).expect("a heading");
    after.split("\n## ").next().expect("a section")
}

fn plain(cell: &str) -> String {
    cell.trim().replace('`', "")
}

/// Reads the table of settings. A row with several settings has one default for each, in the same
/// order, or one default for all.
fn documented() -> BTreeMap<String, Row> {
    let mut rows = BTreeMap::new();
    for line in SETTINGS.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = line.split('|').map(plain).collect();
        let [_, names, default, allowed, meaning, _] = cells.as_slice() else {
            panic!("a row of four cells: {line}");
        };
        assert!(!meaning.is_empty(), "{line}");
        let names: Vec<_> = names.split(", ").collect();
        let defaults: Vec<_> = default.split(", ").collect();
        for (position, name) in names.iter().enumerate() {
            let own = names.len() > 1 && names.len() == defaults.len();
            let default = if own { defaults[position] } else { default }.to_owned();
            let row = Row { default, allowed: allowed.clone() };
            assert!(rows.insert((*name).to_owned(), row).is_none(), "{name} has two rows");
        }
    }
    rows
}

/// Returns the default value of a row of the table, without the words that explain it.
fn head(default: &str) -> &str {
    default.split([',', ';', ':', '(']).next().unwrap_or_default().trim()
}

fn in_words(number: u64) -> String {
    if number == u64::MAX { "2^64-1".to_owned() } else { number.to_string() }
}

#[test]
fn the_table_of_settings_in_the_documents_is_that_of_the_code() {
    let mut rows = documented();
    for setting in settings() {
        let name = setting.name;
        let row = rows.remove(name).unwrap_or_else(|| panic!("{name} has no row"));
        let default = setting.default.text();
        assert_eq!(head(&row.default), head(default), "{name}: the default");
        match &setting.kind {
            Kind::Number { range, .. } => {
                let range = format!("{} to {}", range.start(), in_words(*range.end()));
                assert!(row.allowed.starts_with(&range), "{name}: {:?}, not {range}", row.allowed);
            }
            Kind::Switch(_) => assert_eq!(row.allowed, "switch", "{name}"),
            Kind::Text { .. } => assert!(!row.allowed.is_empty(), "{name}"),
        }
    }
    assert!(rows.is_empty(), "rows of no setting: {:?}", rows.keys());
}

/// Reads the table of JSON fields: the types of each name.
fn json_fields() -> BTreeMap<String, String> {
    let rows = section(HTTP, "Fields").lines().filter(|line| line.starts_with("| `"));
    let mut fields = BTreeMap::new();
    for row in rows {
        let cells: Vec<_> = row.split('|').map(plain).collect();
        for name in cells[1].split(", ") {
            assert!(fields.insert(name.to_owned(), cells[2].clone()).is_none(), "{name} twice");
        }
    }
    fields
}

/// Checks that every field of a document is in the table, with the type that it has there.
fn assert_known(of: &str, document: &Value, fields: &BTreeMap<String, String>) {
    match document {
        Value::Object(object) => {
            for (name, value) in object {
                let types = fields.get(name).unwrap_or_else(|| panic!("{of}: no row for {name}"));
                let kind = match value {
                    Value::Null => "null",
                    Value::Bool(_) => "bool",
                    Value::Number(_) => "number",
                    Value::String(_) => "string",
                    Value::Array(_) => "array",
                    Value::Object(_) => "object",
                };
                let is_known = types.split(" or ").any(|it| it == kind);
                assert!(is_known, "{of}: {name} is {value}, and a {types} in the table");
                if !["failures", "settings", "sources"].contains(&name.as_str()) {
                    assert_known(of, value, fields);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| assert_known(of, item, fields)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Checks the documents that the commands make themselves. Another test checks the documents of
/// nodes, which commands pass on:
/// `every_field_has_one_name_and_one_type_over_http_and_in_commands`.
#[test]
fn what_commands_print_as_json_has_the_names_of_http() {
    let fields = json_fields();
    let trips = json!([{"nodeID": 2, "usualMs": 80.0, "maxMs": 90.0}]);
    let measured = json!({"electionTimeoutMs": 200, "heartbeatMs": 40, "reservationMs": 1000,
                          "requestTimeoutMs": 100, "clockOffsetMaxMs": 10, "roundTrips": trips});
    let report = Report::of([(1, Ok(measured)), (2, Err("no answer".to_owned()))]);
    let range = TimestampRange::new(Timestamp::from(5), 1).expect("a range");
    assert!(report.document()["advised"]["clusterCommand"].is_string());
    for (command, document) in [
        ("tune", report.document()),
        ("get, decode", moment::object(Timestamp::from(5))),
        ("get --range", get::range_object(&range)),
        ("encode", encode::object(5, Some((5, 5)))),
        ("status", status::example()),
        ("backup", backup::example()),
        ("clock", clock::example()),
        ("probe", Account::default().document()),
        ("check-config", check_config::example()),
    ] {
        assert!(document.as_object().is_some_and(|it| it.len() > 1), "{command}: {document}");
        assert_known(command, &document, &fields);
    }
}

#[test]
fn commands_in_documents_fail_visibly() {
    let deploy = DEPLOY.lines().map(|line| ("deploy.md", line));
    let lines = README.lines().map(|line| ("README.md", line)).chain(deploy);
    let lines = lines.chain(HTTP.lines().map(|line| ("http.md", line)));
    let calls: Vec<_> = lines.filter(|(_, line)| line.trim().starts_with("curl ")).collect();
    assert!(calls.len() > 10, "{calls:?}");
    for (page, line) in calls {
        // Without -f, curl prints the text of a refusal as if it were data, and exits with 0.
        assert!(line.contains("curl -fsS "), "{page}: {line}");
    }
}

/// Returns every `serve` command of a text. A backslash continues a command on the next line.
fn serving(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().map(str::trim);
    let serves = |line: &&str| {
        let begins = line.starts_with("epicepoch serve ") || line.contains("NODE_ID=");
        begins && line.contains("epicepoch serve") && !line.contains("...")
    };
    lines.filter(serves).map(ToOwned::to_owned).collect()
}

/// Parses a command as a shell and then `epicepoch` would, and checks the configuration.
fn configuration(command: &str) -> Result<(), String> {
    let mut words = command.split_whitespace();
    let variables = words.by_ref().take_while(|word| word.contains('='));
    let environment: Environment = variables
        .filter_map(|word| word.split_once('='))
        .map(|(k, v)| (k.into(), v.into()))
        .collect();
    let arguments = std::iter::once("epicepoch").chain(words);
    let matches = commands::tree().try_get_matches_from(arguments).map_err(|e| e.to_string())?;
    let matches = matches.subcommand_matches("serve").ok_or("not serve")?;
    let given = given(Scope::Node, matches, &environment).map_err(|e| e.to_string())?;
    given.node(8).map_err(|e| e.to_string())?;
    Ok(())
}

#[test]
fn every_node_that_documents_and_help_start_has_a_valid_configuration() {
    let help = |path: [&str; 2]| {
        let mut tree = commands::tree();
        let mut command = &mut tree;
        for name in path.into_iter().filter(|name| !name.is_empty()) {
            command = command.find_subcommand_mut(name).expect("a command");
        }
        command.get_after_help().expect("examples").to_string()
    };
    let texts = [
        ("docs/operations", [DEPLOY, MEMBERS].concat(), 5),
        ("serve --help", help(["serve", ""]), 4),
        ("member add --help", help(["member", "add"]), 1),
    ];
    for (text, content, least) in texts {
        let commands = serving(&content);
        assert!(commands.len() >= least, "{text} shows {commands:?}");
        for command in commands {
            assert_eq!(configuration(&command), Ok(()), "{text}: {command}");
        }
    }
}

/// Crates whose log messages an operator may read. `docs/alerts.md` must list their warnings and
/// errors.
const SPEAKING: [&str; 4] = ["cli", "client", "config", "server"];

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs") {
            found.push(path);
        }
    }
}

/// Returns the string literals in the arguments of a macro, except those that are values of fields.
/// `arguments` begins after the opening parenthesis; the closing one ends the search.
fn literals(arguments: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut depth, mut is_first_of_argument) = (0, true);
    let mut rest = arguments.chars();
    while let Some(next) = rest.next() {
        match next {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => break,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                is_first_of_argument = true;
                continue;
            }
            '"' => {
                let mut text = String::new();
                while let Some(inside) = rest.next().filter(|inside| *inside != '"') {
                    match inside {
                        '\\' => match rest.next().expect("what is escaped") {
                            // A backslash continues the line, without the indentation that follows.
                            '\n' => {
                                let behind = rest.as_str().trim_start();
                                rest = behind.chars();
                            }
                            escaped => text.push(escaped),
                        },
                        inside => text.push(inside),
                    }
                }
                if depth == 0 && is_first_of_argument {
                    found.push(text);
                }
            }
            next if next.is_whitespace() => continue,
            _ => {}
        }
        is_first_of_argument = false;
    }
    found
}

/// Returns the warnings and errors that a source file logs.
fn said(source: &str) -> Vec<String> {
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let of = |name: &str, position: usize| -> Vec<String> {
        let behind = |part| literals(part).into_iter().nth(position);
        code.split(name).skip(1).filter_map(behind).collect()
    };
    let mut said = [of("tracing::warn!(", 0), of("tracing::error!(", 0)].concat();
    if said.iter().any(|message| message == "{self}") {
        said.retain(|message| message != "{self}");
        said.extend(of("write!(out, ", 0));
        said.extend(of("write!(\n", 0));
    }
    said
}

#[test]
fn every_warning_and_every_error_stands_in_the_alerts_or_is_for_the_record() {
    let (_, messages) = ALERTS.split_once("\n## Messages\n").expect("a heading");
    let rows = messages.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.filter_map(|line| line.split('|').nth(1));
    let known: Vec<String> =
        cells.flat_map(|cell| cell.split("`, `").map(plain).collect::<Vec<_>>()).collect();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crates");
    let mut files = Vec::new();
    for name in SPEAKING {
        sources(&crates.join(name).join("src"), &mut files);
    }
    let mut count = 0;
    let mut missing = Vec::new();
    // This file contains the names of the log macros as text, so it is not searched for messages.
    files.retain(|file| !file.ends_with("src/documented.rs"));
    for file in files {
        for message in said(&fs::read_to_string(&file).expect("a source")) {
            count += 1;
            if !known.iter().any(|it| message.starts_with(it.as_str())) {
                missing.push(format!("{}: {message}", file.display()));
            }
        }
    }
    assert!(count >= 60, "only {count} messages were found in the sources");
    assert!(missing.is_empty(), "no row of docs/alerts.md for:\n{}", missing.join("\n"));
}

/// Returns the fields of the log in the documents, with their types.
fn documented_fields() -> BTreeMap<String, String> {
    let (_, table) = MONITORING.split_once("\n### Fields\n").expect("a heading");
    let table = table.split("\n## ").next().expect("a section");
    let mut fields = BTreeMap::new();
    for row in table.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = row.split('|').map(plain).collect();
        for name in cells[1].split(", ") {
            let known = fields.insert(name.to_owned(), cells[2].clone());
            assert!(known.is_none(), "{name} has two rows");
        }
    }
    fields
}

/// Returns the fields that a source file logs, and whether each is certainly text, because `%` or
/// `?` formats it.
fn fields(source: &str) -> Vec<(String, bool)> {
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut found = Vec::new();
    for level in ["error", "warn", "info", "debug"] {
        for call in code.split(&format!("tracing::{level}!(")).skip(1) {
            for argument in arguments(call).iter().take_while(|it| !it.starts_with('"')) {
                let (name, value) = argument.split_once('=').unwrap_or((argument, argument));
                let is_text = value.trim().starts_with(['%', '?']);
                found.push((name.trim().trim_start_matches(['%', '?']).to_owned(), is_text));
            }
        }
    }
    found
}

/// Returns the arguments of a macro. `call` begins after the opening parenthesis.
fn arguments(call: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let (mut depth, mut is_string) = (0, false);
    for next in call.chars() {
        match next {
            '"' => is_string = !is_string,
            _ if is_string => {}
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => break,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(String::new());
                continue;
            }
            _ => {}
        }
        let last = found.last_mut().expect("there is always one");
        if !(last.is_empty() && next.is_whitespace()) {
            last.push(next);
        }
    }
    found.retain(|argument| !argument.is_empty());
    found
}

#[test]
fn every_field_of_the_log_is_documented_with_its_type() {
    let mut unused = documented_fields();
    let known = unused.clone();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crates");
    let mut files = Vec::new();
    for name in SPEAKING {
        sources(&crates.join(name).join("src"), &mut files);
    }
    files.retain(|file| !file.ends_with("src/documented.rs"));
    for file in files {
        for (name, is_text) in fields(&fs::read_to_string(&file).expect("a source")) {
            let place = file.display();
            let kind = known.get(&name).unwrap_or_else(|| panic!("{place}: {name} has no row"));
            assert!(["text", "number"].contains(&kind.as_str()), "{name} is {kind}");
            assert!(!is_text || kind == "text", "{place}: {name} is a {kind} elsewhere");
            unused.remove(&name);
        }
    }
    assert!(unused.is_empty(), "rows of no field: {:?}", unused.keys());
}

#[test]
fn a_field_that_is_formatted_is_text() {
    let code = "tracing::info!(peer = node.0, %error, on = ?f(1, \"a,b\"), leader, \"{x}, y\", z)";
    let expected = [("peer", false), ("error", true), ("on", true), ("leader", false)];
    assert_eq!(fields(code), expected.map(|(name, is_text)| (name.to_owned(), is_text)));
}

#[test]
fn a_message_is_the_first_text_that_is_no_field() {
    let code = "tracing::warn!(%from, why = \"slow\", list = many.join(\",\"), \"a \\\n    row: {x}\", y);";
    assert_eq!(said(code), ["a row: {x}"]);
    assert_eq!(said("tracing::info!(\"told\")"), [""; 0]);
}

#[test]
fn the_version_has_a_section_in_the_changelog_which_names_the_promise() {
    let version = env!("CARGO_PKG_VERSION");
    let heading = CHANGELOG.lines().find(|line| line.starts_with(&format!("## [{version}] - 20")));
    assert!(heading.is_some(), "no section of {version}");
    for page in [CHANGELOG, README] {
        assert!(page.contains("(docs/compatibility.md)"));
    }
    for (name, text) in [("patch", "0.2.0 to 0.2.1"), ("minor", "1.1 to 1.2"), ("major", "1.x")] {
        assert!(COMPATIBILITY.contains(&format!("{name} ({text}")), "{name}");
    }
}

#[test]
fn final_exit_codes_prevent_a_restart_and_are_documented() {
    let never = [USAGE, REMOVED, DIRECTORY].map(|code| code.to_string());
    let line = UNIT.lines().find_map(|line| line.strip_prefix("RestartPreventExitStatus="));
    let codes: Vec<_> = line.expect("the unit names them").split(' ').collect();
    assert_eq!(codes, never);
    let help = commands::tree().find_subcommand_mut("serve").expect("it").render_long_help();
    let help = help.to_string();
    let help = help.split_once("Exit codes: ").expect("they stand there").1;
    for code in never {
        let row = format!("| {code} | ");
        assert!(section(DEPLOY, "Exit codes").lines().any(|line| line.starts_with(&row)), "{row}");
        assert!(help.contains(&format!("; {code} ")), "{code} in {help}");
    }
}
