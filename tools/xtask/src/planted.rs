//! `cargo xtask planted`: looks for the planted bugs, each with the checker that must find it.
//!
//! The sources have no planted bug. `proof/planted` has the bugs, as patches and as files to add.
//! This module makes a copy of the sources, plants all bugs there, builds the copy, and runs the
//! checkers' test in it. The sources themselves are never changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The bugs: a patch for each bug, or for each place that several bugs share.
const BUGS: &str = "proof/planted";
/// Files that only the copy has: the switch, and the test that looks for the bugs.
const ADDED: &str = "proof/planted/added";
/// The patch that belongs to all bugs and not to a single one.
const SWITCH: &str = "switch";
/// The output directory. `base` has the sources as they were copied, `made` the files that the
/// patches changed, and `tree` the copy to build.
const OUT: &str = "target/planted";
/// Where Cargo builds the copy, unless an option says otherwise.
const BUILD: &str = "target/planted/build";
/// The paths to copy: everything that a build needs.
const COPIED: [&str; 6] = ["Cargo.toml", "Cargo.lock", "crates", "proof", "tools", "examples"];
const LEFT_OUT: [&str; 3] = ["proof/planted/", "proof/fuzz/corpus/", "proof/interop/"];
/// Lines of context in a patch. Two bugs share a patch if fewer than twice this number of lines are
/// between them.
const CONTEXT: usize = 2;

/// The contents of files, by path. Paths are relative to the root.
type Files = BTreeMap<String, Vec<u8>>;

/// One file of `proof/planted`.
struct Patch {
    name: String,
    text: String,
}

impl Patch {
    fn read_all() -> Result<Vec<Self>, String> {
        let mut all = Vec::new();
        for entry in fs::read_dir(BUGS).map_err(|error| format!("{BUGS}: {error}"))? {
            let path = entry.map_err(|error| format!("{BUGS}: {error}"))?.path();
            if path.extension().is_some_and(|extension| extension == "patch") {
                let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                let text = fs::read_to_string(&path)
                    .map_err(|error| format!("{}: {error}", path.display()))?;
                all.push(Self { name, text });
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    fn path(name: &str) -> PathBuf {
        Path::new(BUGS).join(format!("{name}.patch"))
    }

    /// The files that it changes.
    fn files(&self) -> impl Iterator<Item = &str> {
        self.text.lines().filter_map(|line| line.strip_prefix("--- a/"))
    }

    /// The names of the bugs in it.
    fn bugs(&self) -> BTreeSet<String> {
        named(&self.text)
    }

    /// The lines of a patch without those that have line numbers. Line numbers change with every
    /// edit above a hunk.
    fn unnumbered(text: &str) -> impl Iterator<Item = &str> {
        text.lines().filter(|line| !line.starts_with("@@"))
    }
}

/// The bugs that the added lines of a patch name. `planted!(LateVoters)` and `Bug::LateVoters` are
/// both `late-voters`.
fn named(patch: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in patch.lines().filter(|line| line.starts_with('+')) {
        for mark in ["planted!(", "Bug::"] {
            for rest in line.split(mark).skip(1) {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
                let name = &rest[..end];
                // `Bug::ALL` and `Bug::name` are not bugs.
                if name.starts_with(|c: char| c.is_ascii_uppercase())
                    && name.contains(|c: char| c.is_ascii_lowercase())
                {
                    found.insert(kebab(name));
                }
            }
        }
    }
    found
}

/// `LateVoters` as `late-voters`.
fn kebab(name: &str) -> String {
    let mut plain = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !plain.is_empty() {
            plain.push('-');
        }
        plain.push(c.to_ascii_lowercase());
    }
    plain
}

/// The name of the patch for one hunk: the name of the hunk's bug. If the hunk has several bugs,
/// the name of its place. If it has none, [`SWITCH`].
fn patch_of(path: &str, hunk: &str) -> String {
    let bugs = named(hunk);
    match bugs.len() {
        0 => SWITCH.to_owned(),
        1 => bugs.into_iter().next().unwrap_or_default(),
        _ => {
            let parts = path.trim_end_matches(".rs").split('/');
            let parts: Vec<&str> =
                parts.filter(|part| !matches!(*part, "crates" | "src")).collect();
            format!("at-{}", parts.join("-")).replace('_', "-")
        }
    }
}

/// The bugs whose patch changes one of the files in `changed`, or is itself one of these files.
///
/// # Errors
/// When a patch cannot be read.
pub(crate) fn near(changed: &[String]) -> Result<BTreeSet<String>, String> {
    let has = |file: &str| changed.iter().any(|changed| changed == file);
    let mut near = BTreeSet::new();
    for patch in Patch::read_all()? {
        if has(&Patch::path(&patch.name).to_string_lossy()) || patch.files().any(has) {
            near.extend(patch.bugs());
        }
    }
    Ok(near)
}

/// Returns a finding for each line of the shipped sources that mentions planted bugs.
///
/// # Errors
/// When a source cannot be read.
pub(crate) fn in_what_ships() -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    let is_source = |path: &str| path.starts_with("crates/") && path.contains("/src/");
    for (path, text) in sources()?.iter().filter(|(path, _)| is_source(path)) {
        for (at, line) in String::from_utf8_lossy(text).lines().enumerate() {
            if line.to_lowercase().contains("planted") {
                let at = at + 1;
                found.push(format!("{path}:{at}: a planted bug in what ships: move it to {BUGS}"));
            }
        }
    }
    Ok(found)
}

/// `cargo xtask planted [BUG…] [--share K/N] [--target-dir DIR] | --tree | --refresh`.
///
/// # Errors
/// When a patch does not apply, or the copy cannot be written or built.
pub(crate) fn command(arguments: &[String]) -> Result<bool, String> {
    let (mut bugs, mut share, mut build) = (Vec::new(), String::new(), BUILD.to_owned());
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--tree" => return make().map(|()| true),
            "--refresh" => return refresh().map(|()| true),
            "--share" => share.clone_from(rest.next().ok_or("--share needs K/N, such as 1/4")?),
            "--target-dir" => {
                build.clone_from(rest.next().ok_or("--target-dir needs a directory")?);
            }
            option if option.starts_with('-') => {
                return Err(format!("unknown argument {option}: cargo xtask --help"));
            }
            bug => bugs.push(bug),
        }
    }
    make()?;
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--profile", "planted", "--locked", "-p", "epicepoch-sim"]);
    cargo.args(["--test", "planted", "--manifest-path", &format!("{OUT}/tree/Cargo.toml")]);
    cargo.args(["--target-dir", &build, "--", "--nocapture"]);
    if !bugs.is_empty() || !share.is_empty() {
        cargo.arg("every_planted_bug_is_found_by_its_checker");
    }
    cargo.env("EPICEPOCH_PLANTED", bugs.join(",")).env("EPICEPOCH_PLANTED_SHARE", share);
    let status = cargo.status().map_err(|error| format!("cargo: {error}"))?;
    Ok(status.success())
}

/// Makes the copy of the sources with all bugs. Fails if the old copy was edited, so that no edit
/// is lost.
fn make() -> Result<(), String> {
    let out = Path::new(OUT);
    let (made, tree) = (read_below(&out.join("made"))?, read_below(&out.join("tree"))?);
    let base = read_below(&out.join("base"))?;
    let edited = tree.iter().find(|(path, text)| {
        made.get(*path).or_else(|| base.get(*path)).is_none_or(|before| before != *text)
    });
    if let Some((path, _)) = edited {
        return Err(format!(
            "{OUT}/tree/{path} was edited: keep the edits with `cargo xtask planted --refresh`, or delete {OUT}/tree"
        ));
    }
    remake(&sources()?)
}

/// Makes the copy of the sources with all bugs, even if the old copy was edited.
fn remake(sources: &Files) -> Result<(), String> {
    let out = Path::new(OUT);
    let patches = Patch::read_all()?;
    write_below(&out.join("base"), sources)?;
    let failed = apply(sources, &patches)?;
    let mut made = read_below(&out.join("made"))?;
    made.extend(read_below(Path::new(ADDED))?);
    write_below(&out.join("made"), &made)?;
    let mut tree = sources.clone();
    tree.extend(made);
    write_below(&out.join("tree"), &tree)?;
    if failed.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{}\nThe sources have changed where bugs are planted. {OUT}/tree has the changes that apply; \
         FILE.PATCH.rej beside a file has the others. Make these by hand in {OUT}/tree, delete the .rej files, and run \
         `cargo xtask planted --refresh`.",
        failed.join("\n")
    ))
}

/// Applies the patches to copies of the files that they name, in `made`. Returns the failures.
fn apply(sources: &Files, patches: &[Patch]) -> Result<Vec<String>, String> {
    let made = Path::new(OUT).join("made");
    let mut files = Files::new();
    let mut failed = Vec::new();
    for (patch, file) in patches.iter().flat_map(|patch| patch.files().map(move |it| (patch, it))) {
        match sources.get(file) {
            Some(text) => drop(files.insert(file.to_owned(), text.clone())),
            None => failed.push(format!("{}: no such file: {file}", patch.name)),
        }
    }
    write_below(&made, &files)?;
    let root = std::env::current_dir().map_err(|error| error.to_string())?;
    for patch in patches {
        let before = read_below(&made)?;
        let mut git = Command::new("git");
        git.args(["apply", "--reject", "--whitespace=nowarn"]);
        git.arg(root.join(Patch::path(&patch.name)));
        // This setting hides the repository from git. Inside a repository, git would silently skip
        // the copy, because its files are ignored.
        git.env("GIT_CEILING_DIRECTORIES", root.join(OUT));
        for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
            git.env_remove(variable);
        }
        let output = git.current_dir(&made).output().map_err(|error| format!("git: {error}"))?;
        // git names the rejected part after the file alone, so the next patch would overwrite it.
        for file in patch.files() {
            let rejected = made.join(format!("{file}.rej"));
            if rejected.exists() {
                let own = made.join(format!("{file}.{}.rej", patch.name));
                fs::rename(&rejected, own)
                    .map_err(|error| format!("{}: {error}", rejected.display()))?;
            }
        }
        let after = read_below(&made)?;
        let is_unchanged = |file: &str| after.get(file) == before.get(file);
        if !output.status.success() || patch.files().any(is_unchanged) {
            let said = String::from_utf8_lossy(&output.stderr);
            let errors: Vec<&str> = said
                .lines()
                .filter(|it| it.starts_with("error: ") && it.contains("patch"))
                .collect();
            failed.push(format!("{} does not apply. {}", patch.name, errors.join("; ")));
        }
    }
    Ok(failed)
}

/// Writes the patches and the added files again from the edited copy, then makes the copy again
/// from them.
fn refresh() -> Result<(), String> {
    let out = Path::new(OUT);
    let (base, tree) = (read_below(&out.join("base"))?, read_below(&out.join("tree"))?);
    if tree.is_empty() {
        return Err("there is no copy yet: `cargo xtask planted --tree` makes it".to_owned());
    }
    let is_rejected = |path: &&String| Path::new(path).extension().is_some_and(|it| it == "rej");
    if let Some(rejected) = tree.keys().find(is_rejected) {
        return Err(format!("{OUT}/tree/{rejected}: make its change by hand, and delete it"));
    }
    if let Some(deleted) = base.keys().find(|path| !tree.contains_key(*path)) {
        return Err(format!(
            "{OUT}/tree/{deleted} was deleted: a planted bug may only change or add files"
        ));
    }
    let mut added = read_below(Path::new(ADDED))?;
    added.retain(|path, _| tree.contains_key(path));
    let mut patches: BTreeMap<String, String> = BTreeMap::new();
    for (path, text) in &tree {
        let before = base.get(path);
        if before.is_none() || added.contains_key(path) {
            added.insert(path.clone(), text.clone());
        } else if before != Some(text) {
            for hunk in hunks(path)? {
                let patch = patches.entry(patch_of(path, &hunk)).or_default();
                let head = format!("--- a/{path}\n+++ b/{path}\n");
                if !patch.contains(&head) {
                    patch.push_str(&head);
                }
                patch.push_str(&hunk);
            }
        }
    }
    write_below(Path::new(ADDED), &added)?;
    for Patch { name, text } in Patch::read_all()? {
        match patches.get(&name) {
            None => remove(&Patch::path(&name))?,
            // A patch is kept if only its line numbers have changed.
            Some(new) if Patch::unnumbered(new).eq(Patch::unnumbered(&text)) => {
                patches.remove(&name);
            }
            Some(_) => {}
        }
    }
    for (name, text) in &patches {
        write(&Patch::path(name), text.as_bytes())?;
    }
    remake(&base)?;
    if read_below(&out.join("tree"))? != tree {
        return Err(format!("the new patches do not turn {OUT}/base into {OUT}/tree"));
    }
    remake(&sources()?)
}

/// The differences between the sources and the copy in one file.
fn hunks(path: &str) -> Result<Vec<String>, String> {
    let mut git = Command::new("git");
    git.args(["diff", "--no-index", "--no-color", "--no-ext-diff", &format!("-U{CONTEXT}"), "--"]);
    git.arg(format!("base/{path}")).arg(format!("tree/{path}")).current_dir(OUT);
    let output = git.output().map_err(|error| format!("git: {error}"))?;
    let mut hunks: Vec<String> = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if line.starts_with("@@") {
            hunks.push(String::new());
        }
        if let Some(hunk) = hunks.last_mut() {
            hunk.push_str(line);
            hunk.push('\n');
        }
    }
    if hunks.is_empty() { Err(format!("{path}: git shows no difference")) } else { Ok(hunks) }
}

/// Reads the sources to copy, as they are in the checkout: committed or not.
fn sources() -> Result<Files, String> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"]).args(COPIED);
    let output = git.output().map_err(|error| format!("git: {error}"))?;
    let mut files = Files::new();
    for path in String::from_utf8_lossy(&output.stdout).split_terminator('\0') {
        // Git still lists a file that was deleted but not committed.
        if !LEFT_OUT.iter().any(|top| path.starts_with(top)) && Path::new(path).is_file() {
            files.insert(path.to_owned(), read(Path::new(path))?);
        }
    }
    Ok(files)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &[u8]) -> Result<(), String> {
    let directory = path.parent().map_or(Ok(()), fs::create_dir_all);
    directory
        .and_then(|()| fs::write(path, text))
        .map_err(|error| format!("{}: {error}", path.display()))
}

fn remove(path: &Path) -> Result<(), String> {
    fs::remove_file(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// All files below a directory, without those that Cargo has built there. Empty if the directory
/// does not exist.
fn read_below(top: &Path) -> Result<Files, String> {
    let mut files = Files::new();
    let mut open = vec![top.to_owned()];
    while let Some(directory) = open.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        for entry in entries {
            let path = entry.map_err(|error| format!("{}: {error}", directory.display()))?.path();
            if path.is_dir() {
                if !path.ends_with("target") {
                    open.push(path);
                }
            } else if let Ok(below) = path.strip_prefix(top) {
                files.insert(below.to_string_lossy().into_owned(), read(&path)?);
            }
        }
    }
    Ok(files)
}

/// Makes a directory contain exactly these files. Files that are equal are not written again, so
/// that they are not compiled again.
fn write_below(top: &Path, files: &Files) -> Result<(), String> {
    let there = read_below(top)?;
    for path in there.keys().filter(|path| !files.contains_key(*path)) {
        remove(&top.join(path))?;
    }
    for (path, text) in files.iter().filter(|(path, text)| there.get(*path) != Some(*text)) {
        write(&top.join(path), text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn bugs_are_named_by_added_lines_alone() {
        let patch = "@@ -1 +1 @@\n-if planted!(Gone) {\n if planted!(Context) {\n+if planted!(LateVoters) || \
                     !planted!(OldVoters) { Bug::EarlyAck } else { Bug::ALL }\n";
        let names: Vec<String> = named(patch).into_iter().collect();
        assert_eq!(names, ["early-ack", "late-voters", "old-voters"]);
    }

    #[test]
    fn a_hunk_belongs_to_its_bug_or_to_its_place() {
        let of = |hunk: &str| patch_of("crates/core/src/replica/leader_checks.rs", hunk);
        assert_eq!(of("+if planted!(LateVoters) {\n"), "late-voters");
        assert_eq!(
            of("+planted!(LateVoters) || planted!(OldVoters)\n"),
            "at-core-replica-leader-checks"
        );
        assert_eq!(of("+memory: Memory,\n"), SWITCH);
    }

    #[test]
    fn files_that_are_the_same_are_not_written_again() {
        let top = std::env::temp_dir().join(format!("xtask-planted-{}", std::process::id()));
        let files = |text: &str| {
            Files::from([("a/b".to_owned(), b"b".to_vec()), ("c".to_owned(), text.into())])
        };
        write_below(&top, &files("c")).expect("to write");
        write(&top.join("extra"), b"").expect("to write");
        for file in ["a/b", "c"] {
            let file = fs::File::options().append(true).open(top.join(file)).expect("to open");
            file.set_modified(SystemTime::UNIX_EPOCH).expect("to set its time");
        }
        write_below(&top, &files("other")).expect("to write");
        assert_eq!(read_below(&top).expect("to read"), files("other"));
        let is_old = |file: &str| {
            let time = fs::metadata(top.join(file)).and_then(|file| file.modified());
            time.expect("its time") == SystemTime::UNIX_EPOCH
        };
        assert_eq!((is_old("a/b"), is_old("c")), (true, false));
        fs::remove_dir_all(&top).expect("to remove");
    }
}
