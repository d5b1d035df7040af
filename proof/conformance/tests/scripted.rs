//! Tests every client with every scripted scenario. `planted_clients.rs` tests the scenarios
//! themselves, with faults that are planted in clients.
//!
//! `-- --include-ignored` adds the clients that need the tools of their languages.

mod drivers;

use epicepoch_conformance::scenarios;

use drivers::{
    Sources, go, hedging, holds, holds_the_contract, java, python, python_threads, rust, typescript,
};

#[test]
fn the_rust_client_holds_the_contract() {
    holds_the_contract(rust);
}

#[test]
fn the_rust_client_holds_the_contract_with_hedged_requests() {
    holds_the_contract(|| hedging(rust()));
}

#[test]
#[ignore = "needs a JDK: cargo xtask ci runs it"]
fn the_java_client_holds_the_contract() {
    holds_the_contract(|| java(&Sources::of_repository(), false));
}

#[test]
#[ignore = "needs a JDK: cargo xtask ci runs it"]
fn the_java_client_holds_the_contract_with_futures() {
    holds_the_contract(|| java(&Sources::of_repository(), true));
}

#[test]
#[ignore = "needs Go, which a build in Rust alone does not: cargo xtask ci runs it"]
fn the_go_client_holds_the_contract() {
    holds_the_contract(|| go(&Sources::of_repository(), false));
}

#[test]
#[ignore = "needs Go, which a build in Rust alone does not: cargo xtask ci runs it"]
fn the_go_client_holds_the_contract_with_futures() {
    holds_the_contract(|| go(&Sources::of_repository(), true));
}

/// The Rust client asks for intervals over HTTP, which the suite's nodes do not speak. Its own
/// tests have the same cases.
#[test]
#[ignore = "needs Go, which a build in Rust alone does not: cargo xtask ci runs it"]
fn the_go_client_holds_the_contract_of_interval_mode() {
    holds(|| go(&Sources::of_repository(), false), &scenarios::intervals());
}

#[test]
#[ignore = "needs Python: cargo xtask ci runs it"]
fn the_python_client_holds_the_contract() {
    holds_the_contract(|| python(&Sources::of_repository()));
}

#[test]
#[ignore = "needs Python: cargo xtask ci runs it"]
fn the_python_client_for_threads_holds_the_contract() {
    holds_the_contract(|| python_threads(&Sources::of_repository()));
}

#[test]
#[ignore = "needs Node.js: cargo xtask ci runs it"]
fn the_typescript_client_holds_the_contract() {
    holds_the_contract(|| typescript(&Sources::of_repository()));
}
