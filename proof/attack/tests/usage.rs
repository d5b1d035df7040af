//! Tests of the command line. A mistyped command must end with an error. Otherwise it would look
//! like an attack that did no harm.

use std::process::Command;

#[test]
fn a_command_that_is_misspelt_fails_and_prints_the_usage() {
    for words in [&["flod", "ping", "127.0.0.1:1", "1"][..], &["flood", "pong", "127.0.0.1:1", "1"]]
    {
        let output =
            Command::new(env!("CARGO_BIN_EXE_attack")).args(words).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(
            String::from_utf8_lossy(&output.stderr).starts_with("attack flood KIND"),
            "{words:?}"
        );
    }
}
