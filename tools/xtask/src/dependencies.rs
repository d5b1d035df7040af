//! The dependencies of the repository, and the programs that the steps need.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::layers;
use crate::shell::{Shell, has};

/// Directory for programs that a step has built or downloaded.
const TOOLS: &str = "target/ci-tools";
/// The version of mdbook that is built, and the beginning of versions that are used if they are
/// installed already.
const MDBOOK: (&str, &str) = ("0.5.4", "0.5.");
/// Programs, each with the Debian package that contains it.
const PACKAGES: [(&str, &str); 10] = [
    ("curl", "curl"),
    ("xxd", "xxd"),
    ("wrk", "wrk"),
    ("h2load", "nghttp2-client"),
    ("tcpdump", "tcpdump"),
    ("nmap", "nmap"),
    ("strace", "strace"),
    ("valgrind", "valgrind"),
    ("chromium", "chromium"),
    ("prometheus", "prometheus"),
];
/// Programs that may be missing on a developer's machine. The steps then leave out what needs them,
/// such as the load of the smoke test.
const OPTIONAL: [&str; 4] = ["wrk", "h2load", "strace", "valgrind"];
/// Programs that try the files of a release, and the Debian packages that contain them and what they
/// run.
const RELEASE_PROGRAMS: [&str; 7] =
    ["debootstrap", "systemd-nspawn", "minisign", "buildah", "podman", "runc", "iptables"];
const RELEASE_PACKAGES: [&str; 9] = [
    "debootstrap",
    "systemd-container",
    "minisign",
    "buildah",
    "podman",
    "netavark",
    "aardvark-dns",
    "runc",
    "iptables",
];
const PODMAN_COMPOSE: &str = "podman-compose==1.6.0";
const H2SPEC: &str = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible";

/// Installs the programs that are missing.
pub(crate) fn tools(sh: &Shell) -> Result<(), String> {
    let missing = |list: &[(&str, &str)]| -> Vec<String> {
        list.iter()
            .filter(|(program, _)| !has(program))
            .map(|(_, package)| (*package).to_owned())
            .collect()
    };
    install(sh, &missing(&PACKAGES));
    for (program, package) in PACKAGES.iter().filter(|(program, _)| !has(program)) {
        if std::env::var_os("CI").is_some() || !OPTIONAL.contains(program) {
            return Err(format!("{program} is missing: apt-get install {package}"));
        }
        sh.note(&format!("{program} is missing: steps leave out the parts that need it"));
    }
    if !has("h2spec") && !Path::new(TOOLS).join("bin/h2spec").exists() {
        sh.run(&format!("GOBIN=$PWD/{TOOLS}/bin go install {H2SPEC}"))?;
    }
    Ok(())
}

/// Installs packages with the package manager, if there is one. The caller checks which programs
/// are still missing.
pub(crate) fn install(sh: &Shell, packages: &[String]) {
    if packages.is_empty() || !has("apt-get") {
        return;
    }
    let sudo = if has("sudo") { "sudo -n " } else { "" };
    let _ = sh.run(&format!("{sudo}timeout 120 apt-get update -qq"));
    let names = packages.join(" ");
    let _ = sh
        .run(&format!("{sudo}timeout 300 apt-get install -y -qq --no-install-recommends {names}"));
}

/// Makes the files of a release, and tries the archive, the package, the image and the compose file.
pub(crate) fn release_files(sh: &Shell) -> Result<(), String> {
    if !RELEASE_PROGRAMS.iter().all(|program| has(program)) {
        install(sh, &RELEASE_PACKAGES.map(str::to_owned));
    }
    if let Some(program) = RELEASE_PROGRAMS.iter().find(|program| !has(program)) {
        return Err(format!(
            "{program} is missing: apt-get install {}",
            RELEASE_PACKAGES.join(" ")
        ));
    }
    let venv = format!("{TOOLS}/compose");
    if !Path::new(&venv).exists() {
        sh.run(&format!("python3 -m venv {venv}"))?;
    }
    sh.run(&format!("{venv}/bin/python -m pip install --quiet {PODMAN_COMPOSE}"))?;
    let made = "target/packages/files";
    sh.run(&format!("rm -rf {made}"))?;
    // The steps `deny` and `audit` check advisories.
    sh.run(&format!("scripts/release build {made} --unchecked-advisories"))?;
    sh.run(&format!("scripts/release image {made}"))?;
    sh.run(&format!("scripts/packages {made}"))?;
    sh.run(&format!("scripts/containers {made} --podman-compose {venv}/bin/podman-compose"))
}

/// Checks licences, sources and wildcards against the rules of deny.toml, from the lock file and
/// the crates. If cargo-deny is installed, that tool checks them, too.
pub(crate) fn licences(sh: &Shell) -> Result<(), String> {
    let rules = fs::read_to_string("deny.toml").map_err(|error| format!("deny.toml: {error}"))?;
    let allowed = list(&rules, "\nallow = [");
    let mut wrong = Vec::new();
    let tree = sh.output("cargo tree --workspace --all-features --target all --locked --prefix none --format {p}|{l}")?;
    let crates: BTreeSet<&str> = tree.lines().filter(|line| !line.is_empty()).collect();
    for line in &crates {
        let (package, licence) =
            line.trim_end_matches(" (*)").split_once('|').unwrap_or((line, ""));
        let name = package.split(' ').next().unwrap_or_default();
        let except = rules
            .lines()
            .find(|line| line.contains("exceptions") && line.contains(&format!("\"{name}\"")));
        let excepted = list(except.unwrap_or_default(), "allow = [");
        if !is_allowed(licence, &|one| allowed.contains(one) || excepted.contains(one)) {
            wrong.push(format!("{package}: licence {licence:?} is not in deny.toml"));
        }
    }
    let lock = fs::read_to_string("Cargo.lock").map_err(|error| format!("Cargo.lock: {error}"))?;
    let sources: Vec<String> = list(&rules, "allow-registry = [")
        .into_iter()
        .map(|source| format!("registry+{source}"))
        .collect();
    for line in lock.lines() {
        if let Some(source) = line.strip_prefix("source = ")
            && !sources.iter().any(|allowed| allowed == source.trim_matches('"'))
        {
            wrong.push(format!("Cargo.lock: source {source} is not in deny.toml"));
        }
    }
    for manifest in layers::members()?
        .iter()
        .map(|member| member.join("Cargo.toml"))
        .chain(["Cargo.toml".into()])
    {
        let text = fs::read_to_string(&manifest).map_err(|error| error.to_string())?;
        if text.contains("= \"*\"") {
            wrong.push(format!("{}: a version is a wildcard", manifest.display()));
        }
    }
    sh.say(&format!("{} packages, {} findings", crates.len(), wrong.len()));
    if !wrong.is_empty() {
        return Err(wrong.join("\n"));
    }
    if has("cargo-deny") {
        return sh.run("cargo-deny --locked check --hide-inclusion-graph bans licenses sources");
    }
    sh.note(
        "advisories were NOT checked: cargo-deny is not installed; cargo xtask nightly installs it",
    );
    Ok(())
}

/// Checks that the Rust client compiles without the rest of the workspace, whose features would
/// otherwise hide a missing one, and that it needs the number of crates that its page names.
pub(crate) fn client_alone(sh: &Shell) -> Result<(), String> {
    let tree = sh.output("cargo tree -p epicepoch-client -e normal --locked --prefix none")?;
    let crates: BTreeSet<&str> = tree
        .lines()
        .map(|line| line.trim_end_matches(" (*)"))
        .filter(|it| !it.is_empty())
        .collect();
    let page = fs::read_to_string("crates/client/README.md").map_err(|error| error.to_string())?;
    let claim = format!("A program gets {} crates with it", crates.len());
    sh.say(&format!("the Rust client needs {} crates, itself among them", crates.len()));
    if !page.contains(&claim) {
        return Err(format!("crates/client/README.md does not say {claim:?}"));
    }
    sh.run("cargo check -p epicepoch-client --locked --target-dir $BUILDS/lints")
}

/// The strings of the list that begins with `open`.
fn list(text: &str, open: &str) -> BTreeSet<String> {
    let inside = text
        .split_once(open)
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or("", |(inside, _)| inside);
    inside.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Whether an SPDX expression is satisfied by the licences for which `is` is true.
fn is_allowed(expression: &str, is: &dyn Fn(&str) -> bool) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    !words.is_empty() && any(&words, &mut at, is) && at == words.len()
}

fn any(words: &[&str], at: &mut usize, is: &dyn Fn(&str) -> bool) -> bool {
    let mut found = all(words, at, is);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        found |= all(words, at, is);
    }
    found
}

fn all(words: &[&str], at: &mut usize, is: &dyn Fn(&str) -> bool) -> bool {
    let mut found = true;
    loop {
        match words.get(*at) {
            Some(&"(") => {
                *at += 1;
                found &= any(words, at, is);
                *at += 1;
            }
            Some(word) => {
                *at += 1;
                let mut name = (*word).to_owned();
                if words.get(*at) == Some(&"WITH") {
                    name = format!("{name} WITH {}", words.get(*at + 1).unwrap_or(&""));
                    *at += 2;
                }
                found &= is(&name);
            }
            None => return false,
        }
        if words.get(*at) != Some(&"AND") {
            return found;
        }
        *at += 1;
    }
}

/// Runs cargo-deny: licences, sources and bans, then advisories if their database can be
/// downloaded.
pub(crate) fn deny(sh: &Shell) -> Result<(), String> {
    let deny = built(sh, "cargo-deny")?;
    sh.run(&format!("{deny} --locked check --hide-inclusion-graph bans licenses sources"))?;
    if has_advisories(sh, &deny) {
        return sh
            .run(&format!("{deny} --locked --offline check --hide-inclusion-graph advisories"));
    }
    sh.note("advisories were NOT checked: their database cannot be fetched from here");
    Ok(())
}

fn has_advisories(sh: &Shell, deny: &str) -> bool {
    sh.run(&format!("timeout 60 {deny} --locked fetch db")).is_ok()
}

/// Checks advisories with cargo-audit, as a second tool beside cargo-deny. Both tools must have the
/// same exceptions.
pub(crate) fn audit(sh: &Shell) -> Result<(), String> {
    let ids = |file: &str| -> BTreeSet<String> {
        let text = fs::read_to_string(file).unwrap_or_default();
        let quoted = text.split('"').skip(1).step_by(2).filter(|id| id.starts_with("RUSTSEC-"));
        quoted.map(str::to_owned).collect()
    };
    if ids("deny.toml") != ids(".cargo/audit.toml") {
        return Err("deny.toml and .cargo/audit.toml have different exceptions".to_owned());
    }
    if !has_advisories(sh, &built(sh, "cargo-deny")?) {
        sh.note("cargo audit did NOT run: its database cannot be fetched from here");
        return Ok(());
    }
    let audit = built(sh, "cargo-audit")?;
    sh.run(&format!("{audit} audit"))
}

/// Returns the path of a program from crates.io. If it is not installed, it is built for this
/// repository.
fn built(sh: &Shell, name: &str) -> Result<String, String> {
    if has(name) {
        return Ok(name.to_owned());
    }
    let program = format!("{TOOLS}/bin/{name}");
    if !Path::new(&program).exists() {
        sh.run(&format!("cargo install --quiet --locked --root {TOOLS} {name}"))?;
    }
    Ok(program)
}

/// Returns the path of mdbook in a version that the book is written for. If it is not installed, it
/// is built for this repository.
pub(crate) fn mdbook(sh: &Shell) -> Result<String, String> {
    let (own, (version, minor)) = (format!("{TOOLS}/bin/mdbook"), MDBOOK);
    let is_right = |program: &str| {
        let said = sh.output(&format!("{program} --version")).unwrap_or_default();
        said.trim().strip_prefix("mdbook v").is_some_and(|version| version.starts_with(minor))
    };
    if has("mdbook") && is_right("mdbook") {
        return Ok("mdbook".to_owned());
    }
    if !Path::new(&own).exists() || !is_right(&own) {
        let what = format!("mdbook@{version} --no-default-features --features search");
        sh.run(&format!("cargo install --quiet --locked --force --root {TOOLS} {what}"))?;
    }
    Ok(own)
}

/// Checks that a release's list of components is the same if it is made twice.
pub(crate) fn components(sh: &Shell) -> Result<(), String> {
    let first = sh.output("scripts/release sbom")?;
    let second = sh.output("scripts/release sbom")?;
    if first == second && !first.is_empty() {
        Ok(())
    } else {
        Err("two lists of components of the same commit differ".to_owned())
    }
}

/// Checks that the fuzz corpus is up to date. If formats have grown, decoders reject old bytes
/// early, and the code after that is not tested.
pub(crate) fn corpus(sh: &Shell) -> Result<(), String> {
    sh.run("target/debug/examples/corpus")?;
    let stale = sh.output("git status --porcelain -- proof/fuzz/corpus")?;
    if stale.is_empty() {
        return Ok(());
    }
    Err(format!(
        "the corpus is stale: run cargo run -p epicepoch-fuzz --example corpus, and commit\n{stale}"
    ))
}

/// Proves the protocol with the solvers that `proof/spec/requirements.txt` names.
pub(crate) fn spec(sh: &Shell) -> Result<(), String> {
    let python = spec_python(sh)?;
    sh.run(&format!("{python} -B proof/spec/spec.py table"))
}

/// Breaks every rule of the specifications, and asks a second solver every question.
pub(crate) fn spec_mutants(sh: &Shell) -> Result<(), String> {
    let python = spec_python(sh)?;
    sh.run(&format!("{python} -B proof/spec/spec.py mutants"))?;
    sh.run(&format!("{python} -B proof/spec/spec.py cross-check"))
}

fn spec_python(sh: &Shell) -> Result<String, String> {
    let python = format!("{TOOLS}/spec/bin/python");
    if !Path::new(&python).exists() {
        sh.run(&format!("python3 -m venv {TOOLS}/spec"))?;
    }
    sh.run(&format!("{python} -m pip install --quiet -r proof/spec/requirements.txt"))?;
    Ok(python)
}

/// Reports which lines of the core the simulator runs, if the compiler's profile tools are
/// installed.
pub(crate) fn coverage(sh: &Shell) -> Result<(), String> {
    match sh.status(sh.command("scripts/coverage"))?.code() {
        Some(0) => Ok(()),
        Some(2) => {
            sh.note("coverage was NOT measured: the profile tools of the compiler are missing");
            Ok(())
        }
        _ => Err("the simulator reaches too few lines of the core".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_of_licences_is_met_by_what_is_allowed() {
        let is = |expression: &str| is_allowed(expression, &|one| ["MIT", "ISC"].contains(&one));
        assert!(
            is("MIT")
                && is("Apache-2.0 OR MIT")
                && is("GPL-3.0/MIT")
                && is("(GPL-3.0 OR ISC) AND MIT")
        );
        assert!(is("Apache-2.0 WITH LLVM-exception OR ISC"));
        assert!(!is("") && !is("GPL-3.0") && !is("MIT AND GPL-3.0") && !is("MIT WITH x"));
    }

    #[test]
    fn a_list_is_read_from_the_rules() {
        let text = "[licenses]\n# why\nallow = [\"MIT\", \"ISC\"]\nexceptions = []";
        assert_eq!(list(text, "\nallow = [").into_iter().collect::<Vec<_>>(), ["ISC", "MIT"]);
    }
}
