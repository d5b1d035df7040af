//! The drivers of all clients. Cargo builds the Rust drivers together with these tests. This module
//! builds the others, from the clients of the repository or from copies of them.

#![allow(dead_code, reason = "each test file needs only a part")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use epicepoch_conformance::DriverCommand;
use epicepoch_conformance::scenarios;
use epicepoch_conformance::suite::{Scenario, play_all};

/// Waits for the turn of this test. Only one test builds drivers and runs clients at a time, because
/// that disturbs the times that others measure.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks that a client passes all scenarios. It builds the driver only when it is this test's
/// turn. A build at another time would disturb the times of other tests, and might replace files
/// that they run.
#[track_caller]
pub(crate) fn holds_the_contract(driver: impl FnOnce() -> DriverCommand) {
    holds(driver, &scenarios::all());
}

/// Checks that a client passes these scenarios, as [`holds_the_contract`] does.
#[track_caller]
pub(crate) fn holds(driver: impl FnOnce() -> DriverCommand, scenarios: &[Scenario]) {
    let _turn = turn();
    let driver = driver();
    let played = play_all(&driver, scenarios, |played| println!("{played}"));
    let broken: Vec<_> = played.iter().filter(|played| played.verdict.is_err()).collect();
    assert!(broken.is_empty(), "{}: {broken:#?}", driver.name);
    let unsupported: Vec<_> = played.iter().filter(|played| !played.is_supported).collect();
    assert!(unsupported.is_empty(), "{}: {unsupported:#?}", driver.name);
}

/// The binary of the nodes: the one that `EPICEPOCH_BIN` names, or a development build.
pub(crate) fn binary() -> PathBuf {
    if let Some(binary) = std::env::var_os("EPICEPOCH_BIN") {
        return binary.into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut build = cargo_build();
    build.args(["--locked", "--test", "cluster"]).current_dir(&root);
    assert!(build.status().expect("cargo runs").success(), "the binary does not build");
    root.join("target/debug/epicepoch")
}

/// A directory with the sources of clients, laid out like the repository.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) root: PathBuf,
    /// The directory of the drivers that are built from these sources.
    pub(crate) built: PathBuf,
}

impl Sources {
    /// The sources of the repository.
    pub(crate) fn of_repository() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        Self { root, built: env!("CARGO_TARGET_TMPDIR").into() }
    }

    fn client(&self, language: &str) -> PathBuf {
        self.root.join("clients").join(language)
    }
}

/// Begins a command of cargo that builds tests. It builds them as a part of the whole workspace,
/// whose dependencies are built already in most cases. A build of one package would have other
/// features, and would take long.
fn cargo_build() -> Command {
    let mut build = Command::new(env!("CARGO"));
    build.args(["test", "--quiet", "--workspace", "--no-run"]);
    // Cargo runs a test with variables that describe the test's package. Remove them here.
    // Otherwise this second cargo would take them for new input of some build scripts, and build
    // their packages again.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            build.env_remove(&*name);
        }
    }
    build
}

fn driver(name: &str, program: impl Into<PathBuf>, arguments: &[&str]) -> DriverCommand {
    let program = program.into().into_os_string().into_string().expect("a path in UTF-8");
    let words = std::iter::once(program).chain(arguments.iter().map(ToString::to_string));
    DriverCommand { name: name.to_owned(), words: words.collect(), hedge: None, is_compact: false }
}

/// A driver whose client sends a request a second time after 3 ms without an answer.
pub(crate) fn hedging(driver: DriverCommand) -> DriverCommand {
    let name = format!("{}, hedging", driver.name);
    DriverCommand { name, hedge: Some(Duration::from_millis(3)), ..driver }
}

/// A driver whose client needs compact timestamps, and that gives their spelling in 64 bits. The
/// clusters of all its scenarios are compact.
pub(crate) fn compact(driver: DriverCommand) -> DriverCommand {
    let name = format!("{}, compact", driver.name);
    DriverCommand { name, is_compact: true, ..driver }
}

/// The driver of `epicepoch-client`.
pub(crate) fn rust() -> DriverCommand {
    driver("rust", env!("CARGO_BIN_EXE_conformance-rust-driver"), &[])
}

/// Builds the driver of the copy of `epicepoch-client` in `sources`. Returns the path of the
/// program.
pub(crate) fn rust_copy(sources: &Sources) -> PathBuf {
    let mut build = cargo_build();
    build.args(["--offline", "--test", "scripted"]).current_dir(&sources.root);
    build.arg("--target-dir").arg(&sources.built);
    // Cargo takes the dependencies from the directory of the tests. They are built there already.
    let ours = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a target directory");
    build.env("CARGO_BUILD_BUILD_DIR", ours);
    assert!(build.status().expect("cargo runs").success(), "the Rust driver does not build");
    sources.built.join("debug/conformance-rust-driver")
}

/// The driver of a copy of `epicepoch-client` whose faults are planted. One fault is on.
pub(crate) fn faulty_rust(program: &Path, fault: &str) -> DriverCommand {
    let program = program.to_str().expect("a path in UTF-8");
    driver(&format!("rust-{fault}"), "env", &[&format!("EPICEPOCH_FAULT={fault}"), program])
}

/// The driver of `clients/java`. It makes blocking calls or, if `is_async` is true, asynchronous
/// ones.
pub(crate) fn java(sources: &Sources, is_async: bool) -> DriverCommand {
    let client = sources.client("java").join("client/src");
    let package = Path::new("java/io/github/epicepoch");
    let classes = sources.built.join("conformance-java-driver");
    let main = std::fs::read_dir(client.join("main").join(package)).expect("the client is there");
    let tests = ["ConformanceDriver.java", "Json.java"];
    let files = main.map(|entry| entry.expect("an entry").path());
    let files = files.chain(tests.map(|name| client.join("test").join(package).join(name)));
    let mut build = Command::new("javac");
    // The build is over before the second compiler of the JVM would help.
    build.arg("-J-XX:TieredStopAtLevel=1");
    let status = build.arg("-d").arg(&classes).args(files).status().expect("a JDK is installed");
    assert!(status.success(), "the Java driver does not build: {status}");
    let classes = classes.to_str().expect("a path in UTF-8");
    // Use only the first compiler of the JVM. Most scenarios are over before the second compiler
    // would help.
    let words =
        ["-XX:TieredStopAtLevel=1", "-cp", classes, "io.github.epicepoch.ConformanceDriver"];
    let (name, more) = if is_async { ("java, futures", Some("--async")) } else { ("java", None) };
    driver(name, "java", &words.into_iter().chain(more).collect::<Vec<_>>())
}

/// The driver of `clients/python`. It needs no build.
pub(crate) fn python(sources: &Sources) -> DriverCommand {
    let program = sources.client("python").join("conformance.py");
    driver("python", "python3", &["-B", program.to_str().expect("a path in UTF-8")])
}

/// The driver of `clients/python`, with the client for threads.
pub(crate) fn python_threads(sources: &Sources) -> DriverCommand {
    let mut driver = python(sources);
    driver.name.push_str(", threads");
    driver.words.push("--threads".to_owned());
    driver
}

/// The driver of `clients/go`. It makes calls that wait or, if `is_async` is true, asynchronous
/// ones.
pub(crate) fn go(sources: &Sources, is_async: bool) -> DriverCommand {
    let program = sources.built.join("conformance-go-driver");
    let mut build = Command::new("go");
    build.arg("build").arg("-o").arg(&program).arg("./conformance");
    build.current_dir(sources.client("go"));
    let status = build.status().expect("Go is installed");
    assert!(status.success(), "the Go driver does not build: {status}");
    if is_async {
        return driver("go, futures", program, &["--futures"]);
    }
    driver("go", program, &[])
}

/// The driver of `clients/typescript`. If the TypeScript compiler is missing in the repository, it is
/// installed there. A copy of the client uses the same compiler.
pub(crate) fn typescript(sources: &Sources) -> DriverCommand {
    let npm = |directory: &Path, arguments: &[&str]| {
        let status = Command::new("npm").args(arguments).current_dir(directory).status();
        let status = status.expect("npm is installed");
        assert!(status.success(), "npm {arguments:?}: {status}");
    };
    let original = Sources::of_repository().client("typescript");
    let modules = original.join("node_modules");
    if !modules.exists() {
        npm(&original, &["ci", "--no-audit", "--no-fund"]);
    }
    let client = sources.client("typescript");
    let linked = client.join("node_modules");
    if !linked.exists() {
        std::os::unix::fs::symlink(&modules, &linked).expect("to link the compiler");
    }
    // The types of the compiler's own libraries are not checked again.
    npm(&client, &["run", "--silent", "build", "--", "--skipLibCheck"]);
    let program = client.join("dist/conformance/driver.js");
    driver("typescript", "node", &[program.to_str().expect("a path in UTF-8")])
}
