//! Tells the compiler of the binary which commit, profile and target it builds, for `--version`,
//! logs and metrics.
//!
//! The commit is the variable `EPICEPOCH_COMMIT` if a packager sets it. Otherwise it is read from
//! the files of git at the root of the sources, without running git. Sources without these files,
//! such as an archive, have the commit `unknown`. Changes that are not committed do not show.
//!
//! The script runs again only when the commit can have changed: a commit or a checkout, or another
//! value of the variable. It adds nothing else that varies, such as a time.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

const VARIABLE: &str = "EPICEPOCH_COMMIT";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed={VARIABLE}");
    let given = env::var(VARIABLE).ok().filter(|it| !it.is_empty());
    if let Some(bad) = given.as_ref().filter(|it| !is_commit(it)) {
        println!(
            "cargo::error={VARIABLE} is {bad:?}; give 7 to 64 hexadecimal digits, or leave it out"
        );
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let commit = given.or_else(|| head(&root)).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=BUILD_COMMIT={commit}");
    for (name, from) in [("BUILD_PROFILE", "PROFILE"), ("BUILD_TARGET", "TARGET")] {
        let value = env::var(from).unwrap_or_else(|_| "unknown".to_owned());
        println!("cargo:rustc-env={name}={value}");
    }
}

/// Returns the commit that is checked out at `root`, and makes cargo watch the files that say so.
fn head(root: &Path) -> Option<String> {
    let git = directory(&root.join(".git"))?;
    let head = read(&git.join("HEAD"))?;
    let Some(branch) = head.strip_prefix("ref: ") else {
        return Some(head).filter(|it| is_commit(it));
    };
    // A worktree has its own HEAD, and shares the branches with the main directory.
    let shared = read(&git.join("commondir")).map_or_else(|| git.clone(), |path| git.join(path));
    let commit = read(&shared.join(branch)).or_else(|| packed(&shared, branch));
    if !shared.join(branch).exists() {
        // The next commit writes a file for this branch. Cargo can only watch what exists.
        watch(&git.join("logs/HEAD"));
    }
    commit.filter(|it| is_commit(it))
}

/// Finds the directory of git. In a worktree, `.git` is a file that names the directory.
fn directory(git: &Path) -> Option<PathBuf> {
    if git.is_dir() {
        return Some(git.to_owned());
    }
    let named = read(git)?;
    let path = Path::new(named.strip_prefix("gitdir: ")?);
    Some(git.parent()?.join(path))
}

/// Finds a branch in the file to which git moves old branches.
fn packed(git: &Path, branch: &str) -> Option<String> {
    let lines = read(&git.join("packed-refs"))?;
    let mut commits = lines.lines().filter_map(|line| line.split_once(' '));
    commits.find(|(_, name)| *name == branch).map(|(commit, _)| commit.to_owned())
}

/// Reads a file, and makes cargo watch it.
fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    watch(path);
    Some(text.trim().to_owned())
}

fn watch(path: &Path) {
    if path.exists() {
        println!("cargo:rerun-if-changed={}", path.display());
    }
}

/// Whether a text can be the id of a commit: 7 to 64 hexadecimal digits (SHA-1 or SHA-256).
fn is_commit(text: &str) -> bool {
    (7..=64).contains(&text.len()) && text.bytes().all(|it| it.is_ascii_hexdigit())
}
