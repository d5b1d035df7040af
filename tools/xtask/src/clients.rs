//! Checks the table of names, defaults and errors in `clients/README.md` against the sources of
//! every client that is there.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

const TABLE: &str = "clients/README.md";
const HEADING: &str = "## Names, defaults and errors";

/// A language, as the table names it.
struct Language {
    name: &'static str,
    /// The directory of the client's sources.
    sources: &'static str,
    /// The file with the defaults of the settings.
    defaults: &'static str,
    extension: &'static str,
    /// In the language's sources: the text before the name of a setting. `error` has the texts
    /// before and after the name of an error.
    setting: &'static str,
    error: (&'static str, &'static str),
    /// How the sources may write a duration that is given in milliseconds.
    duration: fn(u64) -> Vec<String>,
}

const LANGUAGES: [Language; 5] = [
    Language {
        name: "Rust",
        sources: "crates/client/src",
        defaults: "crates/client/src/client.rs",
        extension: "rs",
        setting: "",
        error: ("", ""),
        duration: |ms| vec![format!("from_secs({})", ms / 1000), format!("from_millis({ms})")],
    },
    Language {
        name: "Go",
        sources: "clients/go",
        defaults: "clients/go/options.go",
        extension: "go",
        setting: "With",
        error: ("Err", ""),
        duration: |ms| vec![format!("{}*time.Second", ms / 1000), format!("{ms}*time.Millisecond")],
    },
    Language {
        name: "Python",
        sources: "clients/python/src",
        defaults: "clients/python/src/epicepoch/options.py",
        extension: "py",
        setting: "",
        error: ("", "Error"),
        duration: |ms| {
            let seconds = format!("{}.{:03}", ms / 1000, ms % 1000);
            let short = seconds.trim_end_matches('0').trim_end_matches('.').to_owned();
            vec![format!("{short}.0"), short]
        },
    },
    Language {
        name: "Java",
        sources: "clients/java/client/src/main",
        defaults: "clients/java/client/src/main/java/io/github/epicepoch/ClientBuilder.java",
        extension: "java",
        setting: "",
        error: ("", "Exception"),
        duration: |ms| vec![format!("ofSeconds({})", ms / 1000), format!("ofMillis({ms})")],
    },
    Language {
        name: "TypeScript",
        sources: "clients/typescript/src",
        defaults: "clients/typescript/src/options.ts",
        extension: "ts",
        setting: "",
        error: ("", "Error"),
        duration: |ms| vec![ms.to_string()],
    },
];

/// A row of the table. Its kind is the first column of the header above it: `call`, `setting` or
/// `error`.
struct Row<'a> {
    number: usize,
    kind: &'a str,
    name: &'a str,
    default: &'a str,
    differs: &'a str,
}

/// The rows of the table that have a name. A row without a name stands for something that each
/// language does in its own way.
fn rows(text: &str) -> Vec<Row<'_>> {
    let (mut rows, mut kind) = (Vec::new(), "");
    let inside = text.lines().enumerate().skip_while(|(_, line)| *line != HEADING).skip(1);
    for (at, line) in inside.take_while(|(_, line)| !line.starts_with("## ")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let Some(name) = cells[0].strip_prefix('`').and_then(|cell| cell.strip_suffix('`')) else {
            kind = if ["call", "setting", "error"].contains(&cells[0]) { cells[0] } else { kind };
            continue;
        };
        let default = if kind == "setting" { cells[1] } else { "" };
        let differs = cells.last().copied().unwrap_or_default();
        rows.push(Row { number: at + 1, kind, name, default, differs });
    }
    rows
}

impl Row<'_> {
    /// The part of the row's last column that is about this language, as in `Go: …; Rust: …`.
    fn difference(&self, language: &Language) -> Option<&str> {
        let of = |part: &'_ str| part.trim().strip_prefix(language.name).is_some();
        let part = self.differs.split(';').find(|part| of(part))?;
        part.trim()[language.name.len()..].strip_prefix(':').map(str::trim)
    }

    /// Returns what is wrong in the sources of a language. `lines` are those of all its sources, and
    /// `defaults` those of the file with the defaults.
    fn finding(
        &self,
        language: &Language,
        lines: &[String],
        defaults: &[String],
    ) -> Option<String> {
        let difference = self.difference(language);
        let quoted = difference.and_then(|text| text.split('`').nth(1));
        let is_value = |text: &&str| text.starts_with(|c: char| c.is_ascii_digit());
        let own_default = difference.and_then(|text| text.split(", ").find(is_value));
        let (before, behind) = match self.kind {
            "error" => language.error,
            "setting" => (language.setting, ""),
            _ => ("", ""),
        };
        let name = match (quoted, difference, own_default) {
            (Some(name), _, _) => name.to_owned(),
            // A text without a name and a number, such as "Go: no limit", says that this client
            // lacks the row.
            (None, Some(_), None) => return None,
            (None, _, _) => format!("{before}{}{behind}", self.name),
        };
        let word = folded(&name);
        if !lines.iter().any(|line| words(line).contains(&word)) {
            return Some(format!("{} has no {name}", language.name));
        }
        // The default must be in a line with the bare name of the setting, such as the name of a
        // field. A setting that is a constant may be in any file.
        let is_constant = difference.is_some_and(|text| text.starts_with("a constant"));
        let lines = if is_constant { lines } else { defaults };
        let bare = folded(name.strip_prefix(language.setting).unwrap_or(&name));
        let default = own_default.unwrap_or(self.default);
        let texts = values(default, language)?;
        let is_default = |line: &&String| {
            words(line).contains(&bare) && texts.iter().any(|text| has_value(line, text))
        };
        (!lines.iter().any(|line| is_default(&line)))
            .then(|| format!("{}: no line gives {name} the default {default}", language.name))
    }
}

/// How a language's sources may write a default; `None` if the default is not a number or a
/// duration.
fn values(default: &str, language: &Language) -> Option<Vec<String>> {
    let (number, unit) = default.split_once(' ').unwrap_or((default, ""));
    let number: u64 = number.parse().ok()?;
    match unit {
        "" => Some(vec![number.to_string()]),
        "ms" => Some((language.duration)(number)),
        "s" => Some((language.duration)(number * 1000)),
        _ => None,
    }
}

/// Whether a line has this value, but not as a part of a longer value.
fn has_value(line: &str, value: &str) -> bool {
    let packed = |text: &str| text.replace([' ', '_'], "");
    let (line, value) = (packed(line), packed(value));
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '.';
    line.match_indices(&value).any(|(at, _)| {
        let starts = value.starts_with(|c: char| c.is_ascii_digit());
        !(starts && line[..at].ends_with(is_part) || line[at + value.len()..].starts_with(is_part))
    })
}

/// A name in lower case and without underscores, so that the spellings of all languages are equal.
fn folded(name: &str) -> String {
    name.replace('_', "").to_lowercase()
}

fn words(line: &str) -> BTreeSet<String> {
    line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').map(folded).collect()
}

/// The lines of the sources of a client, without tests and comments.
fn sources(directory: &Path, extension: &str, lines: &mut Vec<String>) -> Result<(), String> {
    let failed = |error| failed_at(directory, &error);
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.contains("test") && name != "conformance" {
                sources(&path, extension, lines)?;
            }
        } else if path.extension().is_some_and(|end| end == extension) && !name.contains("_test.") {
            lines.extend(code(&path)?);
        }
    }
    Ok(())
}

/// The lines of a file, without comments.
fn code(path: &Path) -> Result<Vec<String>, String> {
    let text = fs::read_to_string(path).map_err(|error| failed_at(path, &error))?;
    let is_comment = |line: &&str| line.trim_start().starts_with(['/', '*', '#']);
    Ok(text.lines().filter(|line| !is_comment(line)).map(str::to_owned).collect())
}

fn failed_at(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// `cargo xtask clients`: prints every finding. Returns whether there are none.
///
/// # Errors
/// When a file cannot be read, or the table is not there.
pub(crate) fn command() -> Result<bool, String> {
    let text = fs::read_to_string(TABLE).map_err(|error| format!("{TABLE}: {error}"))?;
    let rows = rows(&text);
    if rows.is_empty() {
        return Err(format!("{TABLE}: no table below {HEADING:?}"));
    }
    let (mut clients, mut count) = (0, 0);
    for language in LANGUAGES.iter().filter(|language| Path::new(language.sources).exists()) {
        let mut lines = Vec::new();
        sources(Path::new(language.sources), language.extension, &mut lines)?;
        let defaults = code(Path::new(language.defaults))?;
        clients += 1;
        for row in &rows {
            if let Some(finding) = row.finding(language, &lines, &defaults) {
                count += 1;
                println!("{TABLE}:{}: {finding}", row.number);
            }
        }
    }
    println!("clients: {count} findings in {} names of {clients} clients", rows.len());
    Ok(count == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "## Names, defaults and errors\n\
        | setting | default | what it is | differs |\n|---|---|---|---|\n\
        | `timeout` | 2 s | a limit | Go: `WithCallTimeout`, 30 s |\n\
        | `in_flight` | 4 | requests | Rust: a constant, `IN_FLIGHT_MAX` |\n\n\
        | error | when | differs |\n|---|---|---|\n\
        | `Closed` | it is closed | Go: none |\n\
        | the language's own | the caller gave up | |\n## Next\n| `not` | 1 | | |\n";

    fn findings(language: &str, lines: &[&str]) -> Vec<String> {
        let language = LANGUAGES.iter().find(|one| one.name == language).expect("a language");
        let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
        rows(TEXT).iter().filter_map(|row| row.finding(language, &lines, &lines)).collect()
    }

    #[test]
    fn a_default_in_another_file_does_not_count() {
        let python = LANGUAGES.iter().find(|one| one.name == "Python").expect("a language");
        let all = ["timeout: float = 3.0", "pause = timeout / (2 * count)"].map(str::to_owned);
        let rows = rows(TEXT);
        let found = rows[0].finding(python, &all, &all[..1]);
        assert_eq!(found.as_deref(), Some("Python: no line gives timeout the default 2 s"));
    }

    #[test]
    fn a_client_with_the_names_and_defaults_of_the_table_has_no_findings() {
        let typescript = ["  timeout: 2_000,", "  inFlight: 4,", "class ClosedError {"];
        assert_eq!(findings("TypeScript", &typescript), Vec::<String>::new());
        let go =
            ["func WithCallTimeout(", "callTimeout: 30 * time.Second", "WithInFlight inFlight: 4"];
        assert_eq!(findings("Go", &go), Vec::<String>::new());
        let rust =
            ["timeout: Duration::from_secs(2)", "const IN_FLIGHT_MAX: usize = 4;", "Closed,"];
        assert_eq!(findings("Rust", &rust), Vec::<String>::new());
    }

    #[test]
    fn another_default_or_a_missing_name_is_found() {
        let found =
            findings("TypeScript", &["attemptTimeout: 2_000,", "timeout: 12_000", "Closed"]);
        let expected = [
            "TypeScript: no line gives timeout the default 2 s",
            "TypeScript has no in_flight",
            "TypeScript has no ClosedError",
        ];
        assert_eq!(found, expected);
        let found = findings("Python", &["timeout: float = 2.05", "in_flight = 40", "ClosedError"]);
        let expected = [
            "Python: no line gives timeout the default 2 s",
            "Python: no line gives in_flight the default 4",
        ];
        assert_eq!(found, expected);
    }
}
