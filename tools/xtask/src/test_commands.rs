//! Checks that `cargo test` commands, wherever they are written, name packages, targets and tests
//! that exist. This check is needed because Cargo runs no test and succeeds if a test name is
//! unknown.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::layers;
use crate::source::{Token, attribute, is_test};

const TEST: &str = "cargo test ";
/// Options of `cargo test` with a separate value, which is not checked.
const VALUED: [&str; 5] = ["--features", "--profile", "--manifest-path", "--target-dir", "-C"];

/// A test. `path` is its path as the test runner shows it, with the path of its file in front.
struct Test {
    file: PathBuf,
    path: String,
}

/// The packages and tests of the workspace.
#[derive(Default)]
pub(crate) struct Tests {
    packages: BTreeMap<String, PathBuf>,
    files: Vec<PathBuf>,
    all: Vec<Test>,
}

impl Tests {
    /// Reads the packages of the workspace. Their tests have to be added.
    ///
    /// # Errors
    /// When a manifest cannot be read.
    pub(crate) fn new() -> Result<Self, String> {
        let mut packages = BTreeMap::new();
        for member in layers::members()? {
            let text = fs::read_to_string(member.join("Cargo.toml"));
            let text = text.map_err(|error| format!("{}: {error}", member.display()))?;
            packages.insert(layers::manifest(&text).0, member);
        }
        Ok(Self { packages, ..Self::default() })
    }

    /// Adds the tests of a file.
    pub(crate) fn add(&mut self, file: &Path, tokens: &[Token]) {
        let module = file.with_extension("").to_string_lossy().replace('/', "::");
        let (mut at, mut is_next, mut depth) = (0, false, 0_usize);
        // The paths of the file's own modules, each with the depth of its braces.
        let mut modules = vec![(module, 0)];
        while at < tokens.len() {
            if let Some((inside, behind)) = attribute(tokens, at) {
                is_next |= is_test(inside);
                at = behind;
                continue;
            }
            let name = tokens.get(at + 1).and_then(Token::ident);
            if tokens[at].is('{') {
                depth += 1;
            } else if tokens[at].is('}') {
                depth = depth.saturating_sub(1);
                modules.retain(|(_, outer)| *outer <= depth);
            } else if tokens[at].is_ident("mod") && tokens.get(at + 2).is_some_and(|it| it.is('{'))
            {
                modules.push((within(&modules, name), depth + 1));
            } else if tokens[at].is_ident("fn") && std::mem::take(&mut is_next) {
                self.all.push(Test { file: file.to_owned(), path: within(&modules, name) });
            }
            at += 1;
        }
        self.files.push(file.to_owned());
    }

    /// Whether a test function has this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.all.iter().any(|test| test.path.rsplit("::").next() == Some(name))
    }

    /// The names in the `cargo test` commands of `text` that do not exist, each with the line in
    /// which its command begins.
    pub(crate) fn missing(&self, text: &str) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        let (mut from, mut whole) = (1, String::new());
        for (at, line) in text.lines().enumerate() {
            // Both a shell command and a Rust string continue on the next line after a backslash.
            if let Some(part) = line.strip_suffix('\\') {
                whole.push_str(part);
                continue;
            }
            whole.push_str(line);
            for command in whole.split(TEST).skip(1) {
                found.extend(self.missing_of(command).into_iter().map(|what| (from, what)));
            }
            whole.clear();
            from = at + 2;
        }
        found
    }

    fn missing_of(&self, command: &str) -> Vec<String> {
        let command = command.split(['`', '"', ';']).next().unwrap_or_default();
        let (mut directory, mut targets, mut names, mut missing) =
            (None, Vec::new(), Vec::new(), Vec::new());
        let mut words = command.split_whitespace().take_while(|word| is_plain(word));
        while let Some(word) = words.next() {
            match word {
                "-p" | "--package" => match words.next() {
                    Some(name) if self.packages.contains_key(name) => {
                        directory = self.packages.get(name);
                    }
                    name => missing.push(format!("package: {}", name.unwrap_or_default())),
                },
                "--test" => targets.push(format!("/tests/{}/", words.next().unwrap_or_default())),
                "--lib" => targets.push("/src/".to_owned()),
                _ if VALUED.contains(&word) => drop(words.next()),
                _ if word.starts_with('-') => {}
                _ => names.push(word),
            }
        }
        let is_meant = |file: &Path, target: &str| {
            directory.is_none_or(|directory| file.starts_with(directory))
                && format!("{}/", file.with_extension("").display()).contains(target)
        };
        for target in &targets {
            if !self.files.iter().any(|file| is_meant(file, target)) {
                missing.push(format!("test target: {}", target.trim_matches('/')));
            }
        }
        if targets.is_empty() {
            targets.push(String::new());
        }
        for name in names {
            let is_run = |test: &Test| targets.iter().any(|target| is_meant(&test.file, target));
            if !self.all.iter().any(|test| test.path.contains(name) && is_run(test)) {
                missing.push(format!("test for the name: {name}"));
            }
        }
        missing
    }
}

/// The path of an item in the innermost module.
fn within(modules: &[(String, usize)], name: Option<&str>) -> String {
    let module = modules.last().map_or("", |(module, _)| module);
    format!("{module}::{}", name.unwrap_or_default())
}

/// Whether a word is part of a command, and not a placeholder or text after the command.
fn is_plain(word: &str) -> bool {
    let is_of_names = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_:/.".contains(c);
    word.chars().all(is_of_names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::tokens;

    #[test]
    fn a_command_that_runs_no_test_is_found() {
        let mut tests = Tests::default();
        tests.packages.insert("epicepoch".to_owned(), PathBuf::from("crates/cli"));
        let text = "mod inner { #[test]\n#[ignore]\nfn it_holds() {} }\n#[tokio::test]\nasync fn other() {}";
        tests.add(Path::new("crates/cli/tests/cluster/http.rs"), &tokens(text));
        let missing = |command: &str| tests.missing(&format!("{TEST}{command}")).len();
        for command in [
            "--workspace --locked",
            "-p epicepoch --test cluster http::inner::it_ -- --nocapture",
            "--test cluster -- --exact http::other >log",
            "NAME",
            "--test cluster $tests",
            "--test \\\n cluster` of it",
        ] {
            assert_eq!(missing(command), 0, "{command}");
        }
        for command in [
            "-p epicepoch-core",
            "--test cluste",
            "--test cluster native::",
            "--features loom it_does_not_hold -- --ignored",
            "-p epicepoch --lib it_holds",
            "-- other::it_holds",
            "\\\n -- it_does_not`, and",
        ] {
            assert!(missing(command) > 0, "{command}");
        }
        assert!(tests.has("it_holds") && !tests.has("it_"));
    }
}
