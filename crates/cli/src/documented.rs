//! Holds what is written about settings to the settings: the table of `docs/operations.md`, and every
//! `epicepoch serve` that documents and help texts show. Tests alone; they run no node.

use std::collections::BTreeMap;

use crate::commands;
use crate::logging::Logging;
use crate::settings::{Kind, TABLE};
use crate::sources::{Environment, Given};

const OPERATIONS: &str = include_str!("../../../docs/operations.md");
const README: &str = include_str!("../../../README.md");

/// What the table of the documents says of a setting.
struct Row {
    default: String,
    allowed: String,
}

/// The part of the operator's book below a heading.
fn section(heading: &str) -> &'static str {
    let (_, after) = OPERATIONS.split_once(&format!("\n## {heading}\n")).expect("a heading");
    after.split("\n## ").next().expect("a section")
}

fn plain(cell: &str) -> String {
    cell.trim().replace('`', "")
}

/// Settings that share a row have their defaults there in the same order, or one for all.
fn documented() -> BTreeMap<String, Row> {
    let mut rows = BTreeMap::new();
    for line in section("Settings").lines().filter(|line| line.starts_with("| `")) {
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

/// The default itself, without what explains it.
fn head(default: &str) -> &str {
    default.split([',', ';', ':', '(']).next().unwrap_or_default().trim()
}

fn in_words(number: u64) -> String {
    if number == u64::MAX { "2^64-1".to_owned() } else { number.to_string() }
}

#[test]
fn the_table_of_settings_in_the_documents_is_that_of_the_code() {
    let mut rows = documented();
    for setting in TABLE {
        let name = setting.name;
        let row = rows.remove(name).unwrap_or_else(|| panic!("{name} has no row"));
        let default = setting.default;
        assert_eq!(head(&row.default), head(default), "{name}: the default");
        match &setting.kind {
            Kind::Number(bounds, _) => {
                let range = format!("{} to {}", bounds.min, in_words(bounds.max));
                assert!(row.allowed.starts_with(&range), "{name}: {:?}, not {range}", row.allowed);
                if let Some(number) = bounds.default {
                    assert_eq!(head(default).parse(), Ok(number), "{name}");
                }
            }
            Kind::Switch(_) => assert_eq!(row.allowed, "switch", "{name}"),
            Kind::Text { .. } => assert!(!row.allowed.is_empty(), "{name}"),
        }
    }
    assert!(rows.is_empty(), "rows of no setting: {:?}", rows.keys());
}

/// Every command that serves, of a text whose lines may go on after a backslash.
fn serving(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().map(str::trim);
    let serves = |line: &&str| {
        let begins = line.starts_with("epicepoch serve ") || line.contains("NODE_ID=");
        begins && line.contains("epicepoch serve") && !line.contains("...")
    };
    lines.filter(serves).map(ToOwned::to_owned).collect()
}

/// Takes a command to a checked configuration, as a shell and then `epicepoch` would.
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
    let given = Given::gather(matches, &environment, |_| true).map_err(|e| e.to_string())?;
    given.node(Logging::default(), 8).map_err(|e| e.to_string())?;
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
        ("docs/operations.md", OPERATIONS.to_owned(), 6),
        ("README.md", README.to_owned(), 1),
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
