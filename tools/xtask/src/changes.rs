//! Finds the changes with git, and the crates and planted bugs that they affect.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::shell::Shell;
use crate::{layers, planted};

/// Branches with which a change is compared. The first one that exists is used.
const BRANCHES: [&str; 2] = ["origin/main", "main"];
/// Files whose change affects every crate.
const FOR_ALL: [&str; 4] = ["Cargo.toml", "Cargo.lock", ".cargo/", "rust-toolchain"];
/// The planted bugs that are found soon are split into this many parts. CI tests one part each day.
const SHARES: u64 = 4;
/// At most this many planted bugs near a change are tested at once. After larger changes, they are
/// left to the nightly run.
const NEAR_MAX: usize = 24;
/// Number of seconds in a day.
const DAY: u64 = 86_400;

/// The files that differ from the commit where this branch began, including new and uncommitted
/// files. On the main branch itself, the files that differ from the previous commit.
fn files(sh: &Shell) -> Result<Vec<String>, String> {
    let head = sh.output("git rev-parse HEAD")?;
    let mut base = None;
    for branch in BRANCHES {
        base = base.or(sh.output(&format!("git merge-base {branch} HEAD")).ok());
    }
    let base = base.filter(|base| *base != head).unwrap_or_else(|| "HEAD~1".to_owned());
    let Ok(changed) = sh.output(&format!("git diff --name-only {}", base.trim())) else {
        sh.note("this clone has no older commit: nothing counts as changed");
        return Ok(vec![]);
    };
    let new = sh.output("git ls-files --others --exclude-standard")?;
    Ok(changed.lines().chain(new.lines()).map(str::to_owned).collect())
}

/// The crates that contain `files`, and the crates that depend on them, even if only their tests
/// do.
fn crates(
    files: &[String],
    manifests: &BTreeMap<PathBuf, String>,
    is_all: bool,
) -> BTreeSet<PathBuf> {
    let touches = |file: &String| FOR_ALL.iter().any(|top| file.starts_with(top));
    if is_all || files.iter().any(touches) {
        return manifests.keys().cloned().collect();
    }
    let mut found: BTreeSet<PathBuf> = manifests
        .keys()
        .filter(|krate| files.iter().any(|file| Path::new(file).starts_with(krate)))
        .cloned()
        .collect();
    loop {
        let names: Vec<String> =
            found.iter().map(|krate| layers::manifest(&manifests[krate]).0).collect();
        let needs = |text: &str| {
            text.lines().any(|line| {
                line.split(['.', ' ', '='])
                    .next()
                    .is_some_and(|key| names.iter().any(|name| name == key))
            })
        };
        let more: Vec<PathBuf> = manifests
            .iter()
            .filter(|(_, text)| needs(text))
            .map(|(krate, _)| krate.clone())
            .collect();
        let before = found.len();
        found.extend(more);
        if found.len() == before {
            return found;
        }
    }
}

/// Whether a source reads one of `files` by a relative path, such as
/// `include_str!("../../README.md")`.
fn reads(source: &str, files: &[String]) -> bool {
    files.iter().any(|file| source.contains(&format!("../{file}\"")))
}

/// A test binary: the directory of its crate, the directory of its sources, and its path.
#[derive(Debug, PartialEq, Eq)]
struct Binary {
    krate: PathBuf,
    source: PathBuf,
    program: PathBuf,
}

/// Reads a message of Cargo about a test binary.
fn binary(message: &str) -> Option<Binary> {
    let field = |name: &str| {
        let (_, rest) = message.split_once(&format!("\"{name}\":\""))?;
        Some(PathBuf::from(rest.split_once('"')?.0))
    };
    // The field `test` of the target says only that it can be built as a test.
    let (_, profile) = message.split_once("\"profile\":{")?;
    let is_test = profile.split('}').next()?.contains("\"test\":true");
    let krate = field("manifest_path")?.parent()?.to_owned();
    let source = field("src_path")?.parent()?.to_owned();
    is_test.then_some(Binary { krate, source, program: field("executable")? })
}

/// Runs the tests of the changed crates, of the crates that depend on them, and the test binaries
/// with a source that reads a changed file, such as a document. It builds the whole workspace, so
/// that features are the same as in other steps and nothing is compiled twice. Unchanged crates are
/// not compiled again. Doc tests are few, so all of them run.
pub(crate) fn tests(sh: &Shell) -> Result<(), String> {
    let mut manifests = BTreeMap::new();
    for krate in layers::members()? {
        let text =
            fs::read_to_string(krate.join("Cargo.toml")).map_err(|error| error.to_string())?;
        manifests.insert(krate, text);
    }
    let files = files(sh)?;
    let crates = crates(&files, &manifests, sh.is_all);
    let sources = sh.output("git ls-files -- *.rs")?;
    let is_reader = |file: &&str| reads(&fs::read_to_string(file).unwrap_or_default(), &files);
    let readers: Vec<&str> = sources.lines().filter(is_reader).collect();
    let names: Vec<String> = crates.iter().map(|krate| krate.display().to_string()).collect();
    sh.say(&format!("changed crates, and crates that depend on them: {}", names.join(", ")));
    sh.say(&format!("sources that read a changed file: {}", readers.join(", ")));
    if crates.is_empty() && readers.is_empty() {
        return Ok(());
    }
    let root = std::env::current_dir().map_err(|error| error.to_string())?;
    let messages = sh.output(
        "cargo test --workspace --locked --no-run --message-format=json-render-diagnostics",
    )?;
    for Binary { krate, source, program } in messages.lines().filter_map(binary) {
        let is_changed = krate.strip_prefix(&root).is_ok_and(|krate| crates.contains(krate));
        if is_changed || readers.iter().any(|reader| root.join(reader).starts_with(&source)) {
            let words = format!("RUST_TEST_THREADS=$THREADS {} --quiet", program.display());
            let mut command = sh.command(&words);
            command.current_dir(&krate).env("CARGO_MANIFEST_DIR", &krate);
            sh.succeed(command)?;
        }
    }
    sh.run("cargo test --workspace --locked --doc --quiet")
}

/// Looks for the planted bugs whose patch touches a changed file. With `is_shared` it also looks
/// for today's part of all bugs.
pub(crate) fn planted(sh: &Shell, is_shared: bool) -> Result<(), String> {
    let near = planted::near(&files(sh)?)?;
    if near.len() > NEAR_MAX {
        sh.note(&format!(
            "{} planted bugs are near the change; only {NEAR_MAX} were tested",
            near.len()
        ));
    }
    if near.is_empty() && !is_shared {
        return Ok(());
    }
    let mut words = vec!["planted --target-dir $BUILDS/planted/build".to_owned()];
    words.extend(near.into_iter().take(NEAR_MAX));
    if is_shared {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        words.push(format!("--share {}/{SHARES}", now / DAY % SHARES));
    }
    sh.own(&words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_that_need_what_changed_count_as_changed() {
        let manifest = |name: &str, needs: &str| {
            format!("[package]\nname = \"{name}\"\n[dev-dependencies]\n{needs}\n")
        };
        let all: BTreeMap<PathBuf, String> = [
            ("crates/wire", manifest("e-wire", "")),
            ("crates/core", manifest("e-core", "e-wire.workspace = true")),
            ("tools/bench", manifest("e-bench", "e-core = { path = \"../core\" }")),
            ("tools/xtask", manifest("xtask", "")),
        ]
        .into_iter()
        .map(|(krate, text)| (krate.into(), text))
        .collect();
        let names = |file: &str| crates(&[file.to_owned()], &all, false).len();
        assert_eq!(names("crates/wire/src/lib.rs"), 3);
        assert_eq!(names("crates/core/src/lib.rs"), 2);
        assert_eq!(names("README.md"), 0);
        assert_eq!(names("Cargo.lock"), 4);
    }

    #[test]
    fn a_source_that_includes_a_changed_document_is_found() {
        let source =
            "const A: &str = include_str!(\"../../../docs/alerts.md\"); // \"docs/tls.md\"";
        let is_read = |file: &str| reads(source, &[file.to_owned()]);
        assert!(is_read("docs/alerts.md"));
        assert!(!is_read("docs/tls.md") && !is_read("alerts.md.old") && !is_read("docs"));
    }

    #[test]
    fn a_test_binary_is_read_from_what_cargo_says() {
        let message = "{\"reason\":\"compiler-artifact\",\"manifest_path\":\"/a/b/Cargo.toml\",\
                       \"target\":{\"kind\":[\"bin\"],\"src_path\":\"/a/b/src/main.rs\",\"test\":true},\
                       \"profile\":{\"test\":true},\"executable\":\"/t/b-1\"}";
        let [krate, source, program] = ["/a/b", "/a/b/src", "/t/b-1"].map(PathBuf::from);
        assert_eq!(binary(message), Some(Binary { krate, source, program }));
        assert_eq!(binary(&message.replace("\"/t/b-1\"", "null")), None);
        let program = message.replace("{\"test\":true}", "{\"test\":false}");
        assert_eq!(binary(&program), None);
    }
}
