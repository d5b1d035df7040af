//! The TOML file of settings. A key that is not in the table is refused. Each value becomes the
//! text that a flag or a variable would hold, so that the same code parses all three.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use thiserror::Error;
use toml::{Table, Value};

use crate::setting::Setting;
use crate::table::settings;

/// The settings in one file, as text.
#[derive(Debug)]
pub struct ConfigFile {
    /// Each setting with its value, in the order of the file.
    pub values: Vec<(&'static Setting, String)>,
}

/// Why a file is refused.
#[derive(Debug, Error)]
#[error("{text}")]
pub struct ConfigFileError {
    text: String,
}

impl ConfigFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// The file cannot be read, is too long, or is refused by [`ConfigFile::parse`].
    pub fn read(path: &Path) -> Result<Self, ConfigFileError> {
        let (file, refused) = Self::read_all(path);
        refused.into_iter().next().map_or(Ok(file), Err)
    }

    /// Reads the file at `path` as [`ConfigFile::read`] does. Returns what can be used, and every
    /// reason to refuse the file.
    pub(crate) fn read_all(path: &Path) -> (Self, Vec<ConfigFileError>) {
        match Self::content(path) {
            Ok(text) => Self::parse_all(path, &text),
            Err(error) => (Self { values: Vec::new() }, vec![error]),
        }
    }

    fn content(path: &Path) -> Result<String, ConfigFileError> {
        let (shown, mut text) = (path.display(), String::new());
        File::open(path)
            .and_then(|file| file.take(FILE_LEN_MAX + 1).read_to_string(&mut text))
            .map_err(|error| {
                refused(format!(
                    "CONFIG is {shown}, which cannot be read ({error}); allowed is a readable TOML file"
                ))
            })?;
        if text.len() as u64 > FILE_LEN_MAX {
            return Err(refused(format!(
                "CONFIG is {shown}, which is longer than allowed: {FILE_LEN_MAX} bytes"
            )));
        }
        Ok(text)
    }

    /// Parses `text`, the content of the file at `path`.
    ///
    /// # Errors
    /// The text is not TOML, or has an unknown key or a value of a type that no setting has.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigFileError> {
        let (file, refused) = Self::parse_all(path, text);
        refused.into_iter().next().map_or(Ok(file), Err)
    }

    fn parse_all(path: &Path, text: &str) -> (Self, Vec<ConfigFileError>) {
        let shown = path.display();
        let (mut values, mut errors) = (Vec::new(), Vec::new());
        let table = toml::from_str(text).unwrap_or_else(|error| {
            errors.push(refused(format!("CONFIG is {shown}, which is not valid TOML: {error}")));
            Table::new()
        });
        for (key, value) in table {
            let Some(setting) = settings().find(|setting| setting.key() == key) else {
                let advice = advice(&key);
                errors.push(refused(format!("{shown} has the unknown key {key:?}; {advice}")));
                continue;
            };
            match as_text(setting, value) {
                Ok(text) => values.push((setting, text)),
                Err(what) => {
                    let allowed = setting.allowed();
                    errors.push(refused(format!("{key} in {shown} is {what}; {allowed}")));
                }
            }
        }
        (Self { values }, errors)
    }
}

fn refused(text: String) -> ConfigFileError {
    ConfigFileError { text }
}

/// Returns the text that a flag would hold. `peers` may also be a table of addresses by node id.
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

/// Returns the key that was probably meant, or where to find the list of keys.
fn advice(unknown: &str) -> String {
    let wanted = unknown.to_ascii_lowercase().replace('-', "_");
    let nearest = settings()
        .map(|setting| (distance(&wanted, &setting.key()), setting.key()))
        .min()
        .filter(|(distance, key)| *distance <= key.len().div_ceil(3));
    match nearest {
        Some((_, key)) => format!("did you mean {key:?}?"),
        None => "allowed are the keys in `epicepoch serve --help`".to_owned(),
    }
}

/// Returns how many characters must be inserted, removed or replaced to get from one text to the
/// other (Levenshtein, 1966).
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

/// A file of settings has at most this many bytes. A file with all settings and comments needs a
/// tenth of that.
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
    fn a_file_that_is_not_a_table_of_settings_is_refused() {
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
