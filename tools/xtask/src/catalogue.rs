//! `cargo xtask catalogue`: writes `docs/testing-catalogue.md` from doc comments and names of
//! tests. With `--check` it changes nothing, and fails if the page is not up to date.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const PAGE: &str = "docs/testing-catalogue.md";
/// The two lists of planted bugs: those inside the core, and those around it.
const BUGS: [&str; 2] =
    ["proof/planted/added/crates/core/src/planted.rs", "proof/sim/src/plant.rs"];
/// A line of the page has at most this many characters. Tables may be wider.
const WIDTH: usize = 118;

/// Test directories of the catalogue, with the heading of each.
const SUITES: [(&str, &str); 9] = [
    ("crates/cli/tests/cluster/measuring", "Real processes: scenarios that measure time"),
    ("crates/cli/tests/cluster/together", "Real processes: all other scenarios"),
    ("crates/server/tests/peers", "Links between nodes, over real sockets"),
    ("crates/server/tests/data_plane", "Clients of one node, over real sockets"),
    ("crates/core/tests/replica", "Scenarios of replicas"),
    ("crates/core/tests/interleavings", "Interleavings of the core's threads"),
    ("proof/sim/tests", "The simulator"),
    ("proof/planted/added/proof/sim/tests", "The simulator's checkers"),
    ("proof/conformance/tests", "Clients and their contract"),
];

const INTRODUCTION: &str = "\
# Catalogue of planted bugs and tests

`cargo xtask catalogue` writes this page from doc comments and names of tests: change those, not this page. CI checks
that it is up to date. [How the product is tested](testing.md) explains the layers of tests and how to run them.

## Planted bugs
A checker that has never found a bug proves nothing. So each bug below is planted on purpose, one at a time, in a copy
of the core (`proof/planted`) or around it (`proof/sim/src/plant.rs`). The simulator then runs as many seeds as the
table says, and `cargo xtask planted` fails if the checker in the table does not find the bug. A bug that breaks
`liveness` breaks no invariant: but after all faults have healed, the cluster does not answer, or a member does not
recover. \"Seen\" links to published reports of the same kind of bug, or says why the rule exists.

| bug | what it does | breaks | checker | seeds | seen |
|---|---|---|---|---|---|
";

const HARMLESS: &str = "
### Bugs that this design makes harmless
Each of these bugs breaks a rule, but a second rule prevents the harm. A test runs 100 seeds with each bug, and nothing
goes wrong; `cargo xtask nightly --minutes 30` and longer run 3000.

| bug | what it does | why it does no harm |
|---|---|---|
";

/// The text before the lists of tests.
const TESTS: &str = "
## How to read the lists of tests
Each test is one sentence, and some have details after it. The sentence is the name of the test: *A single voter answers
every path* is `a_single_voter_answers_every_path` (and HTTP/2 is `http2`). Run a test with
`cargo test --workspace NAME`.

- *The silence* is the time in which no node answers. Of two numbers, the first limits the median, the second the 99th
  percentile.
- A *test build* is a debug build. It can break clocks and disks on purpose.
- *Planted* begins a test that runs a model with a planted bug. It passes only if loom finds the failure in quotes.
";

/// Words in test names that have another spelling in a sentence.
const SPELLINGS: [(&str, &str); 42] = [
    ("http 1 1", "HTTP/1.1"),
    ("http1", "HTTP/1.1"),
    ("http2", "HTTP/2"),
    ("http3", "HTTP/3"),
    ("http", "HTTP"),
    ("tcp", "TCP"),
    ("udp", "UDP"),
    ("tls", "TLS"),
    ("alpn", "ALPN"),
    ("json", "JSON"),
    ("lan", "LAN"),
    ("post", "POST"),
    ("head request", "HEAD request"),
    ("sigterm", "SIGTERM"),
    ("java", "Java"),
    ("python", "Python"),
    ("typescript", "TypeScript"),
    ("rust", "Rust"),
    ("go client", "Go client"),
    ("addresss", "address's"),
    ("majoritys", "majority's"),
    ("founders own", "founder's own"),
    ("siblings", "sibling's"),
    ("leaders own", "leader's own"),
    ("leaders appends", "leader's appends"),
    ("leaders connection", "leader's connection"),
    ("leaders end", "leader's end"),
    ("members id", "member's id"),
    ("members address", "member's address"),
    ("nodes configuration", "node's configuration"),
    ("peers setting", "`PEERS` setting"),
    ("addr option", "`--addr` option"),
    ("retry after", "`Retry-After`"),
    ("pre vote", "pre-vote"),
    ("in flight", "in-flight"),
    ("half open", "half-open"),
    ("node cluster or time", "node, cluster or time"),
    ("kills restarts and", "kills, restarts and"),
    ("waits logs the command", "waits, logs the command"),
    ("between nodes is damaged", "between nodes, is damaged"),
    ("answers then", "answers, then"),
    ("waits then serves", "waits, then serves"),
];

/// Writes the page, or with `--check` compares it. Returns `Ok(false)` if the page is not up to
/// date.
pub(crate) fn command(arguments: &[String]) -> Result<bool, String> {
    let is_check = match arguments {
        [] => false,
        [only] if only == "--check" => true,
        _ => return Err("usage: cargo xtask catalogue [--check]".to_owned()),
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = page(&root)?;
    let path = root.join(PAGE);
    if !is_check {
        fs::write(&path, page).map_err(|error| format!("{PAGE}: {error}"))?;
        return Ok(true);
    }
    let is_fresh = fs::read_to_string(&path).is_ok_and(|written| written == page);
    if !is_fresh {
        eprintln!("{PAGE} is stale: run `cargo xtask catalogue`");
    }
    Ok(is_fresh)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn page(root: &Path) -> Result<String, String> {
    let mut page = INTRODUCTION.to_owned();
    let mut harmless = HARMLESS.to_owned();
    for file in BUGS {
        for bug in bugs(&read(&root.join(file))?) {
            match bug.doc.split_once(" Harmless: ") {
                Some((what, why)) => {
                    let (what, why) = (what.trim_end_matches('.'), why.trim_end_matches('.'));
                    let _ = writeln!(harmless, "| `{}` | {what} | {why} |", bug.name);
                }
                None => page.push_str(&bug.row()?),
            }
        }
    }
    page.push_str(&harmless);
    page.push_str(TESTS);
    for (directory, heading) in SUITES {
        let _ = writeln!(page, "\n## {heading}");
        for file in sources(&root.join(directory))? {
            page.push_str(&suite(directory, &file)?);
        }
    }
    Ok(page)
}

/// A planted bug: a variant of one of the two lists, with its doc comment.
struct Bug {
    /// The bug's name on the command line.
    name: String,
    doc: String,
}

impl Bug {
    /// Returns its row of the table.
    fn row(&self) -> Result<String, String> {
        let parts = || {
            let (what, rest) = self.doc.split_once(" Breaks ")?;
            let (rule, rest) = rest.split_once("; found by `")?;
            let (checker, rest) = rest.split_once("` within ")?;
            let (seeds, seen) = rest.split_once(" seeds. Seen: ")?;
            Some((what.trim_end_matches('.'), rule, checker, seeds, seen.trim_end_matches('.')))
        };
        let form = "Breaks RULE; found by `CHECKER` within N seeds. Seen: WHERE.";
        let (what, rule, checker, seeds, seen) =
            parts().ok_or_else(|| format!("{}: not of the form: {form}", self.name))?;
        Ok(format!("| `{}` | {what} | {rule} | {checker} | {seeds} | {seen} |\n", self.name))
    }
}

/// Finds the planted bugs of a list: variants of the form `Name "its-name",`, each with the doc
/// comment above it.
fn bugs(text: &str) -> Vec<Bug> {
    let mut found = Vec::new();
    let mut doc = String::new();
    for line in text.lines().map(str::trim) {
        if let Some(more) = line.strip_prefix("///") {
            doc.push_str(more);
            continue;
        }
        let variant = line.strip_suffix("\",").and_then(|line| line.split_once(" \""));
        if let Some((_, name)) = variant.filter(|(variant, _)| !variant.contains(' ')) {
            let doc = doc.split_whitespace().collect::<Vec<_>>().join(" ");
            found.push(Bug { name: name.to_owned(), doc });
        }
        doc.clear();
    }
    found
}

/// The Rust files directly in a directory, sorted by name.
fn sources(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|it| it == "rs"))
        .collect();
    files.sort();
    Ok(files)
}

/// The section of one file: its first paragraph and its tests. Empty for a file without tests.
fn suite(directory: &str, file: &Path) -> Result<String, String> {
    let text = read(file)?;
    let tests = tests(&text);
    let mut section = String::new();
    if tests.is_empty() {
        return Ok(section);
    }
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let _ = writeln!(section, "\n### `{directory}/{name}`");
    let opening = text.lines().map_while(|line| line.strip_prefix("//!"));
    let opening: Vec<_> = opening.take_while(|line| !line.trim().is_empty()).collect();
    section.push_str(&wrapped("", &opening.join(" ")));
    if !opening.is_empty() {
        section.push('\n');
    }
    for test in tests {
        section.push_str(&wrapped("- ", &format!("{} {}", test.sentence(), test.doc)));
    }
    Ok(section)
}

/// A test of a file, with its doc comment.
#[derive(Debug, PartialEq, Eq)]
struct Test {
    name: String,
    doc: String,
    /// The message of the failure that the test expects.
    failure: Option<String>,
}

impl Test {
    /// Returns its name as a sentence, with the failure that it expects.
    fn sentence(&self) -> String {
        let mut words = format!(" {} ", self.name.replace('_', " "));
        for (plain, written) in SPELLINGS {
            words = words.replace(&format!(" {plain} "), &format!(" {written} "));
        }
        let words = words.trim();
        if let (Some(failure), Some(bug)) = (&self.failure, words.strip_prefix("planted ")) {
            return format!("Planted: {bug}. Loom finds: \u{201c}{failure}\u{201d}.");
        }
        let (first, rest) = words.split_at(1);
        format!("{}{rest}.", first.to_uppercase())
    }
}

/// The tests of a file. A test is a function with a test attribute.
fn tests(text: &str) -> Vec<Test> {
    let mut found = Vec::new();
    let (mut doc, mut is_test, mut failure) = (String::new(), false, None);
    for line in text.lines().map(str::trim) {
        let function = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "));
        if let Some(more) = line.strip_prefix("///") {
            doc.push_str(more);
        } else if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some(expected) = line.strip_prefix("#[should_panic(expected = \"") {
            failure = expected.strip_suffix("\")]").map(str::to_owned);
        } else if let Some(name) = function.and_then(|rest| rest.split(['(', '<']).next()) {
            if is_test {
                let doc = doc.split_whitespace().collect::<Vec<_>>().join(" ");
                found.push(Test { name: name.to_owned(), doc, failure });
            }
            (doc, is_test, failure) = (String::new(), false, None);
        } else if line.is_empty() || line.starts_with('}') {
            (doc, is_test, failure) = (String::new(), false, None);
        }
    }
    found
}

/// Wraps text into lines of the page. The first line begins with `bullet`, the others are indented.
fn wrapped(bullet: &str, text: &str) -> String {
    let mut lines = String::new();
    let mut line = bullet.to_owned();
    for word in text.split_whitespace() {
        let is_first = line.len() == bullet.len();
        if !is_first && line.len() + 1 + word.len() > WIDTH {
            lines.push_str(&line);
            lines.push('\n');
            line = " ".repeat(bullet.len());
        } else if !is_first {
            line.push(' ');
        }
        line.push_str(word);
    }
    if line.len() > bullet.len() {
        lines.push_str(&line);
        lines.push('\n');
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_bug_is_a_row_of_its_doc_comment() {
        let text = "    /// One\n    /// thing.\n    ///\n    /// Breaks S2; found by `order` within 20 seeds. \
                    Seen: here.\n    Name \"its-name\",\n    /// Something.\n    Other \"other\",\n";
        let rows: Vec<_> = bugs(text).iter().map(Bug::row).collect();
        assert_eq!(rows[0].as_deref(), Ok("| `its-name` | One thing | S2 | order | 20 | here |\n"));
        assert!(rows[1].is_err());
    }

    #[test]
    fn only_functions_with_the_attribute_are_tests() {
        let text = "/// Not one.\nfn helper() {}\n\n/// Claim.\n#[test]\n#[ignore = \"slow\"]\nfn holds() {\n}\n";
        let holds = Test { name: "holds".to_owned(), doc: "Claim.".to_owned(), failure: None };
        assert_eq!(tests(text), [holds]);
    }

    #[test]
    fn a_test_is_listed_as_a_sentence() {
        let text = "#[test]\nfn http2_over_tls_is_answered() {\n}\n\n#[test]\n\
                    #[should_panic(expected = \"S1: twice\")]\nfn planted_an_allocator_each() {\n}\n";
        let sentences: Vec<_> = tests(text).iter().map(Test::sentence).collect();
        assert_eq!(
            sentences,
            [
                "HTTP/2 over TLS is answered.",
                "Planted: an allocator each. Loom finds: \u{201c}S1: twice\u{201d}."
            ]
        );
    }

    #[test]
    fn long_lines_are_wrapped_behind_their_bullet() {
        let lines = wrapped("- ", &"word ".repeat(40));
        assert!(lines.lines().all(|line| line.len() <= WIDTH));
        assert!(lines.lines().skip(1).all(|line| line.starts_with("  word")));
    }
}
