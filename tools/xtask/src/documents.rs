//! Checks that everything that the documents name exists: files, headings, paths, tests, metrics,
//! messages. Checks that every `cargo test` command, wherever it is, names tests. A finding names
//! file and line.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::source::{Kind, Token, tokens};
use crate::test_commands::Tests;

/// A line of prose in a document may have at most this many characters.
const LINE_LEN_MAX: usize = 120;
/// The files that contain code.
const CODE: [&str; 4] = ["crates/*.rs", "proof/*.rs", "tools/*.rs", "examples/*.rs"];
/// Top directories. A path in backquotes must exist if it begins with one of them.
const TOPS: [&str; 10] = [
    "crates", "proof", "tools", "docs", "deploy", "scripts", "examples", "clients", ".ci", ".cargo",
];
/// A name in snake case with at least this many words counts as the name of a test.
const TEST_WORDS_MIN: usize = 4;
/// Names with these endings are fields and metrics of other systems, not tests.
const UNITS: [&str; 5] = ["_ns", "_ms", "_bytes", "_seconds", "_total"];
/// Functions that documents may name although they are not tests: checkers, and functions that
/// mutation tests change.
const EVIDENCE: [&str; 2] = ["forget_snapshot_if_taken", "most_up_to_date"];
/// The file that sets the oldest supported version, and the text in front of that version.
const OLDEST: (&str, &str) = ("scripts/upgrade", "OLDEST=");

/// The names that the code defines.
#[derive(Default)]
struct Code {
    texts: Vec<(PathBuf, String)>,
    tests: Tests,
    functions: BTreeSet<String>,
    strings: BTreeSet<String>,
}

impl Code {
    fn read() -> Result<Self, String> {
        let mut code = Self { tests: Tests::new()?, ..Self::default() };
        for (file, text) in texts(&CODE)? {
            code.add(&file, &tokens(&text));
            code.texts.push((file, text));
        }
        Ok(code)
    }

    fn add(&mut self, file: &Path, tokens: &[Token]) {
        self.tests.add(file, tokens);
        for (at, token) in tokens.iter().enumerate() {
            match &token.kind {
                Kind::Str(text) => {
                    self.strings.insert(text.clone());
                }
                Kind::Ident(word) if word == "fn" => {
                    let name = tokens.get(at + 1).and_then(Token::ident);
                    self.functions.extend(name.map(str::to_owned));
                }
                Kind::Ident(_) | Kind::PathSep | Kind::Punct(_) => {}
            }
        }
    }

    fn has_evidence(&self, name: &str) -> bool {
        let is_checker = name.starts_with("check_") || EVIDENCE.contains(&name);
        self.tests.has(name) || (is_checker && self.functions.contains(name))
    }

    /// Whether the code has this metric. In the code, the name lacks the parts that the output
    /// format adds: prefix, unit, kind of sample.
    fn has_metric(&self, metric: &str) -> bool {
        let bare = metric.strip_prefix("epicepoch_").unwrap_or(metric);
        let bare = bare.strip_prefix("probe_").unwrap_or(bare);
        let cut = |name: &str, endings: &[&str]| {
            endings
                .iter()
                .find_map(|ending| name.strip_suffix(ending).map(str::to_owned))
                .unwrap_or(name.to_owned())
        };
        let bare = cut(bare, &["_bucket", "_count", "_sum", "_total", "_info"]);
        let names = [
            cut(&bare, &["_timestamp_seconds"]),
            cut(&bare, &["_seconds"]),
            cut(&bare, &["_requests"]),
            bare,
        ];
        names.iter().any(|name| {
            self.strings.contains(name) || self.strings.contains(&format!("probe_{name}"))
        })
    }
}

/// One Markdown file.
struct Document {
    path: PathBuf,
    text: String,
}

/// A line of a document, and the error in it.
struct Finding(usize, String);

impl Document {
    /// The lines with their numbers from 1, and whether each is in a code block.
    fn lines(&self) -> impl Iterator<Item = (usize, &str, bool)> {
        let mut in_code = false;
        self.text.lines().enumerate().map(move |(at, line)| {
            let fence = line.trim_start().starts_with("```");
            in_code ^= fence;
            (at + 1, line, in_code || fence)
        })
    }

    fn check(&self, code: &Code, headings: &mut Headings) -> Vec<Finding> {
        let mut found = Vec::new();
        for (at, line, in_code) in self.lines() {
            let mut add = |what: String| found.push(Finding(at, what));
            // Tables and JSON examples may be longer.
            if !line.starts_with(['|', '{']) && line.chars().count() > LINE_LEN_MAX {
                add(format!("longer than {LINE_LEN_MAX} characters"));
            }
            if line.contains("TBD-FIGURE") {
                add("a figure is missing".to_owned());
            }
            if !in_code {
                links(line).filter_map(|link| self.broken(link, headings)).for_each(&mut add);
                for path in quoted(line).filter(|path| is_path(path)) {
                    if !exists(path) {
                        add(format!("no such path: {path}"));
                    }
                }
                for name in quoted(line).filter(|name| is_test_name(name)) {
                    if !code.has_evidence(name) {
                        add(format!("no such test: {name}"));
                    }
                }
            }
            for metric in metrics(line) {
                if !code.has_metric(metric) {
                    add(format!("no such metric: {metric}"));
                }
            }
        }
        found
    }

    /// Returns why a link is broken, or `None`.
    fn broken(&self, link: &str, headings: &mut Headings) -> Option<String> {
        if link.contains("://") || link.starts_with("mailto:") {
            return None;
        }
        let (path, anchor) =
            link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
        let target = match path {
            "" => self.path.clone(),
            path => self.path.parent().unwrap_or(Path::new("")).join(path),
        };
        if !target.exists() {
            return Some(format!("no such file: {link}"));
        }
        let anchor = anchor?;
        (!headings.of(&target).contains(anchor)).then(|| format!("no such heading: {link}"))
    }

    /// The messages in the tables below the heading `Messages`.
    fn messages(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.lines().skip_while(|(_, line, _)| !line.starts_with("## Messages"));
        lines.filter_map(|(at, line, _)| Some((at, line.strip_prefix("| `")?.split_once("` |")?.0)))
    }
}

/// The anchors of each file that was read so far.
#[derive(Default)]
struct Headings(BTreeMap<PathBuf, BTreeSet<String>>);

impl Headings {
    fn of(&mut self, file: &Path) -> &BTreeSet<String> {
        self.0.entry(file.to_owned()).or_insert_with(|| {
            let text = fs::read_to_string(file).unwrap_or_default();
            text.lines().filter(|line| line.starts_with('#')).map(anchor).collect()
        })
    }
}

/// The anchor of a heading, as Markdown renderers make it.
pub(crate) fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_ascii_alphanumeric() || matches!(c, ' ' | '_' | '-');
    let text = heading.trim_start_matches('#').trim_start().to_lowercase();
    text.chars().filter(kept).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The targets of the links in a line.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')').map(|(link, _)| link))
        .filter(|link| !link.contains(' '))
}

/// The texts between single backquotes.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn is_path(text: &str) -> bool {
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "_./-".contains(c));
    let mut parts = text.split('/');
    let (top, below) = (parts.next().unwrap_or_default(), parts.next());
    plain && below.is_some() && (TOPS.contains(&top) || matches!(below, Some("src" | "tests")))
}

fn exists(path: &str) -> bool {
    ["", "crates/", "proof/", "tools/"]
        .iter()
        .any(|top| Path::new(&format!("{top}{path}")).exists())
}

fn is_test_name(text: &str) -> bool {
    let plain = text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    let words = text.split('_');
    plain
        && words.clone().all(|word| !word.is_empty())
        && words.count() >= TEST_WORDS_MIN
        && !text.starts_with("epicepoch_")
        && !UNITS.iter().any(|unit| text.ends_with(unit))
}

/// Names of metrics in a line, without names of crates.
fn metrics(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("epicepoch_").filter_map(|(at, _)| {
        let name = &line[at..];
        let end = name
            .find(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit() && c != '_')
            .unwrap_or(name.len());
        let (name, behind) = name.split_at(end);
        let before = line[..at].chars().next_back();
        let is_part = before.is_some_and(|c| c.is_ascii_alphanumeric() || "_/-".contains(c));
        (!is_part && !behind.starts_with("::") && !behind.starts_with('*') && !name.ends_with('_'))
            .then_some(name)
    })
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The files of the repository that match one of `patterns`, including new files, with their texts.
fn texts(patterns: &[&str]) -> Result<Vec<(PathBuf, String)>, String> {
    let mut git = Command::new("git");
    git.args(["ls-files", "--cached", "--others", "--exclude-standard", "--"]).args(patterns);
    let output = git.output().map_err(|error| format!("git: {error}"))?;
    let names = String::from_utf8_lossy(&output.stdout);
    let files: BTreeSet<PathBuf> =
        names.lines().map(PathBuf::from).filter(|file| file.exists()).collect();
    files.into_iter().map(|file| read(&file).map(|text| (file, text))).collect()
}

/// `cargo xtask documents`: prints every finding. Returns whether there are none.
///
/// # Errors
/// When a file cannot be read.
pub(crate) fn command() -> Result<bool, String> {
    let code = Code::read()?;
    let documents: Vec<Document> =
        texts(&["*.md"])?.into_iter().map(|(path, text)| Document { path, text }).collect();
    let mut headings = Headings::default();
    let mut count = 0;
    let mut say = |path: &Path, Finding(line, what): Finding| {
        count += 1;
        println!("{}:{line}: {what}", path.display());
    };
    for document in &documents {
        for finding in document.check(&code, &mut headings) {
            say(&document.path, finding);
        }
        for (line, message) in document.messages() {
            if !code.texts.iter().any(|(_, text)| text.contains(message)) {
                say(&document.path, Finding(line, format!("no such message: {message}")));
            }
        }
    }
    // Rules and dashboards may name only metrics that exist, too.
    for (path, text) in texts(&["deploy/prometheus/*", "deploy/grafana/*"])? {
        for (at, line) in text.lines().enumerate() {
            for metric in metrics(line).filter(|metric| !code.has_metric(metric)) {
                say(&path, Finding(at + 1, format!("no such metric: {metric}")));
            }
        }
    }
    // `cargo test` commands are also in code, comments and scripts, so these are checked, too.
    let scripts = texts(&["scripts/*", ".ci/*"])?;
    let pages = documents.iter().map(|Document { path, text }| (path, text));
    let others = code.texts.iter().chain(&scripts).map(|(path, text)| (path, text));
    for (path, text) in pages.chain(others) {
        for (line, what) in code.tests.missing(text) {
            say(path, Finding(line, format!("no {what}")));
        }
    }
    // The documents must name the same oldest version as the script of the upgrade test.
    let script = Path::new(OLDEST.0);
    let text = read(script)?;
    let (at, line) = text
        .lines()
        .enumerate()
        .find(|(_, line)| line.starts_with(OLDEST.1))
        .ok_or("no oldest version")?;
    let commit: String = line.chars().skip(OLDEST.1.len()).take(7).collect();
    if !documents.iter().any(|document| document.text.contains(&format!("commit {commit}"))) {
        say(
            script,
            Finding(at + 1, format!("no document says that commit {commit} is the oldest")),
        );
    }
    println!("documents: {count} findings in {} files", documents.len());
    Ok(count == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchor_is_as_renderers_make_it() {
        assert_eq!(anchor("## The `n` of a request, in 2 words"), "the-n-of-a-request-in-2-words");
    }

    #[test]
    fn links_and_quotes_are_found() {
        let line = "see [a](b.md#c) and [d](https://e), `f/src/g.rs` or `h`";
        assert_eq!(links(line).collect::<Vec<_>>(), ["b.md#c", "https://e"]);
        assert_eq!(quoted(line).filter(|path| is_path(path)).collect::<Vec<_>>(), ["f/src/g.rs"]);
    }

    #[test]
    fn names_of_tests_and_metrics_are_told_from_others() {
        assert!(is_test_name("a_deposed_leader_answers_nothing"));
        assert!(!is_test_name("request_timeout_ms") && !is_test_name("epicepoch_a_b_c_d"));
        let line = "`epicepoch_up`, epicepoch_core::Node, `epicepoch_requests_total{a=\"b\"}`, x_epicepoch_y";
        assert_eq!(metrics(line).collect::<Vec<_>>(), ["epicepoch_up", "epicepoch_requests_total"]);
    }

    #[test]
    fn a_metric_is_known_without_its_unit() {
        let mut code = Code::default();
        code.add(Path::new("a.rs"), &tokens(
            "f(\"round_trip\"); #[test]\n#[ignore]\nfn it_holds_for_all_seeds() {} fn other() {}",
        ));
        assert!(
            code.has_metric("epicepoch_round_trip_seconds_bucket")
                && !code.has_metric("epicepoch_other")
        );
        assert!(code.has_evidence("it_holds_for_all_seeds") && !code.has_evidence("other"));
    }
}
