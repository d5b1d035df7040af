//! The TOML file of settings. It knows its keys from the table, refuses any other, and turns
//! values into the same text that a flag or a variable would hold, so that all three are read by
//! the same code.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;
use toml::{Table, Value};

use crate::settings::{Setting, TABLE};

/// Settings of one file, as text, in the order of the file.
#[derive(Debug)]
pub(crate) struct ConfigFile {
    pub(crate) values: Vec<(&'static Setting, String)>,
}

/// Why a file is refused.
#[derive(Debug, Error)]
pub(crate) enum ConfigFileError {
    #[error("CONFIG is {}, which cannot be read ({error}); allowed is a readable TOML file", .path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("CONFIG is {}, which is longer than allowed: {FILE_LEN_MAX} bytes", .path.display())]
    TooLong { path: PathBuf },
    #[error("CONFIG is {}, which is not valid TOML: {error}", .path.display())]
    Syntax { path: PathBuf, error: toml::de::Error },
    #[error("{} has the unknown key {key:?}; {advice}", .path.display())]
    UnknownKey { path: PathBuf, key: String, advice: String },
    #[error("{key} in {} is {what}; {allowed}", .path.display())]
    Type { path: PathBuf, key: String, what: &'static str, allowed: String },
}

impl ConfigFile {
    /// Reads the file at `path`.
    pub(crate) fn read(path: &Path) -> Result<Self, ConfigFileError> {
        let mut text = String::new();
        File::open(path)
            .and_then(|file| file.take(FILE_LEN_MAX + 1).read_to_string(&mut text))
            .map_err(|error| ConfigFileError::Read { path: path.to_owned(), error })?;
        if text.len() as u64 > FILE_LEN_MAX {
            return Err(ConfigFileError::TooLong { path: path.to_owned() });
        }
        Self::parse(path, &text)
    }

    /// Reads `text`, which stands in the file at `path`.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, ConfigFileError> {
        let table: Table = toml::from_str(text)
            .map_err(|error| ConfigFileError::Syntax { path: path.to_owned(), error })?;
        let mut values = Vec::new();
        for (key, value) in table {
            let Some(setting) = TABLE.iter().find(|setting| setting.key() == key) else {
                let advice = advice(&key);
                return Err(ConfigFileError::UnknownKey { path: path.to_owned(), key, advice });
            };
            let text = as_text(setting, value).map_err(|what| {
                let allowed = setting.allowed();
                ConfigFileError::Type { path: path.to_owned(), key, what, allowed }
            })?;
            values.push((setting, text));
        }
        Ok(Self { values })
    }
}

/// The text that a flag would hold. `peers` may also be a table of addresses by node id.
fn as_text(setting: &Setting, value: Value) -> Result<String, &'static str> {
    match value {
        Value::String(text) => Ok(text),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        Value::Boolean(on) => Ok(on.to_string()),
        Value::Table(table) if setting.name == "PEERS" => {
            let items: Option<Vec<_>> =
                table.iter().map(|(id, addr)| Some(format!("{id}={}", addr.as_str()?))).collect();
            items.map(|items| items.join(",")).ok_or("a table with a value that is no text")
        }
        Value::Table(_) => Err("a table"),
        Value::Array(_) => Err("an array"),
        Value::Datetime(_) => Err("a date"),
    }
}

/// Points to the key that was probably meant, or to the list of keys.
fn advice(unknown: &str) -> String {
    let wanted = unknown.to_ascii_lowercase().replace('-', "_");
    let nearest = TABLE
        .iter()
        .map(|setting| (distance(&wanted, &setting.key()), setting.key()))
        .min()
        .filter(|(distance, key)| *distance <= key.len().div_ceil(3));
    match nearest {
        Some((_, key)) => format!("did you mean {key:?}?"),
        None => "allowed are the keys in `epicepoch serve --help`".to_owned(),
    }
}

/// Characters to insert, remove or replace to get from one to the other (Levenshtein, 1966).
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (line, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

/// Bytes of a file at most; all settings with comments are a tenth of that.
const FILE_LEN_MAX: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<(&'static str, String)>, String> {
        let file = ConfigFile::parse(Path::new("x.toml"), text).map_err(|e| e.to_string())?;
        Ok(file.values.into_iter().map(|(setting, text)| (setting.name, text)).collect())
    }

    #[test]
    fn values_of_every_type_become_the_text_of_a_flag() {
        let text = "node_id = 1\nbootstrap = true\ncluster = 'c'\n[peers]\n1 = 'a:1'\n2 = 'b:2'\n";
        let got = parsed(text).expect("valid");
        let expected =
            [("NODE_ID", "1"), ("BOOTSTRAP", "true"), ("CLUSTER", "c"), ("PEERS", "1=a:1,2=b:2")];
        for (name, text) in expected {
            assert!(got.contains(&(name, text.to_owned())), "{name}: {got:?}");
        }
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_one_that_was_meant() {
        for (typo, meant) in [
            ("nodeid", "node_id"),
            ("NODE_ID", "node_id"),
            ("http-port", "http_port"),
            ("epoch_intervall_ms", "epoch_interval_ms"),
        ] {
            let error = parsed(&format!("{typo} = 1")).expect_err(typo);
            assert!(error.contains(typo) && error.contains(&format!("{meant:?}")), "{error}");
        }
        let error = parsed("colour = 'red'").expect_err("unknown");
        assert!(error.contains("--help"), "{error}");
    }

    #[test]
    fn a_file_that_is_no_table_of_settings_is_refused() {
        for (text, says) in [
            ("node_id", "x.toml"),
            ("node_id = [1]", "an array"),
            ("debug = {}", "a table"),
            ("http_port = 2020-01-01", "a date"),
            ("[peers]\n1 = 2", "no text"),
        ] {
            let error = parsed(text).expect_err(text);
            assert!(error.contains(says), "{error}");
        }
        let missing = ConfigFile::read(Path::new("/nonexistent/x.toml")).expect_err("missing");
        assert!(missing.to_string().contains("/nonexistent/x.toml"), "{missing}");
    }
}
