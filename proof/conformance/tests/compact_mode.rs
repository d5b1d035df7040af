//! Tests every client with every scripted scenario, in compact mode: the scripted clusters give
//! compact timestamps, the client demands them, and returns their spelling in 64 bits. `scripted.rs`
//! has the scenarios of compact timestamps for every change. Here the Rust client is tested for every
//! change, too, and the others, which need more programs, every night.

mod drivers;

use drivers::{Sources, compact, go, holds_the_contract, java, python, rust, typescript};

#[test]
fn the_rust_client_holds_the_contract_in_compact_mode() {
    holds_the_contract(|| compact(rust()));
}

#[test]
#[ignore = "needs Go: cargo xtask nightly runs it"]
fn the_go_client_holds_the_contract_in_compact_mode() {
    holds_the_contract(|| compact(go(&Sources::of_repository(), false)));
}

#[test]
#[ignore = "needs a JDK: cargo xtask nightly runs it"]
fn the_java_client_holds_the_contract_in_compact_mode() {
    holds_the_contract(|| compact(java(&Sources::of_repository(), false)));
}

#[test]
#[ignore = "needs Python: cargo xtask nightly runs it"]
fn the_python_client_holds_the_contract_in_compact_mode() {
    holds_the_contract(|| compact(python(&Sources::of_repository())));
}

#[test]
#[ignore = "needs Node.js: cargo xtask nightly runs it"]
fn the_typescript_client_holds_the_contract_in_compact_mode() {
    holds_the_contract(|| compact(typescript(&Sources::of_repository())));
}
