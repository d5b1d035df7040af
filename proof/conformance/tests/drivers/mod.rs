//! The drivers. Cargo builds the Rust ones with these tests. This module builds the Go driver.

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
