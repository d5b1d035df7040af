//! The drivers of all clients. Cargo builds the Rust drivers together with these tests. This module
//! builds the others.

use std::path::{Path, PathBuf};
use std::process::Command;

use epicepoch_conformance::DriverCommand;

fn driver(name: &str, program: impl Into<PathBuf>, arguments: &[&str]) -> DriverCommand {
    let program = program.into().into_os_string().into_string().expect("a path in UTF-8");
    let words = std::iter::once(program).chain(arguments.iter().map(ToString::to_string));
    DriverCommand { name: name.to_owned(), words: words.collect() }
}

/// The driver of `epicepoch-client`.
pub(crate) fn rust() -> DriverCommand {
    driver("rust", env!("CARGO_BIN_EXE_conformance-rust-driver"), &[])
}

/// The driver of `epicepoch-client`, with hedging after 3 ms.
pub(crate) fn hedging_rust() -> DriverCommand {
    driver("rust, hedging", env!("CARGO_BIN_EXE_conformance-rust-driver"), &["--hedge", "3"])
}

/// The driver of the simplest client, with a planted bug or none.
pub(crate) fn naive(plant: &str) -> DriverCommand {
    driver("naive", env!("CARGO_BIN_EXE_conformance-naive-driver"), &["--plant", plant])
}

/// The driver of `clients/java`. It makes blocking calls or, if `is_async` is true, asynchronous
/// ones.
pub(crate) fn java(is_async: bool) -> DriverCommand {
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/java/client/src");
    let package = Path::new("java/io/github/epicepoch");
    let classes = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conformance-java-driver");
    let main = std::fs::read_dir(client.join("main").join(package)).expect("the client is there");
    let tests = ["ConformanceDriver.java", "Json.java"];
    let sources = main.map(|entry| entry.expect("an entry").path());
    let sources = sources.chain(tests.map(|name| client.join("test").join(package).join(name)));
    let mut build = Command::new("javac");
    let status = build.arg("-d").arg(&classes).args(sources).status().expect("a JDK is installed");
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
pub(crate) fn python() -> DriverCommand {
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/python/conformance.py");
    driver("python", "python3", &["-B", client.to_str().expect("a path in UTF-8")])
}

/// The driver of `clients/go`.
pub(crate) fn go() -> DriverCommand {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conformance-go-driver");
    let mut build = Command::new("go");
    build.arg("build").arg("-o").arg(&program).arg("./conformance");
    build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/go"));
    let status = build.status().expect("Go is installed");
    assert!(status.success(), "the Go driver does not build: {status}");
    driver("go", program, &[])
}

/// The driver of `clients/typescript`. If the TypeScript compiler is missing, it is installed.
pub(crate) fn typescript() -> DriverCommand {
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/typescript");
    let npm = |arguments: &[&str]| {
        let status = Command::new("npm").args(arguments).current_dir(&client).status();
        let status = status.expect("npm is installed");
        assert!(status.success(), "npm {arguments:?}: {status}");
    };
    if !client.join("node_modules").exists() {
        npm(&["ci", "--no-audit", "--no-fund"]);
    }
    npm(&["run", "--silent", "build"]);
    let program = client.join("dist/conformance/driver.js");
    driver("typescript", "node", &[program.to_str().expect("a path in UTF-8")])
}
