//! The golden vectors are bytes and their meaning, for implementations in every language. This test
//! makes them and compares them with the files `vectors/*.json`. It fails if a file differs.
//! `UPDATE_VECTORS=1 cargo test -p epicepoch-wire --test vectors` writes the files anew. A change
//! of an existing line in a file breaks the protocol.

mod errors;
mod intervals;
mod native;
mod timestamps;

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.chars().map(|digit| digit.to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Writes a 64-bit number as a text, because not every JSON reader can hold 64-bit numbers exactly.
fn number(value: u64) -> Value {
    Value::String(value.to_string())
}

/// Checks that `vectors/<name>.json` has the value `made`, and returns it. With `UPDATE_VECTORS`,
/// writes the file first.
fn hold(name: &str, made: &Value) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("vectors/{name}.json"));
    let text = serde_json::to_string_pretty(made).unwrap() + "\n";
    if std::env::var_os("UPDATE_VECTORS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap();
    assert!(
        stored == text,
        "{} is not what the code makes; if the protocol is meant to change, write it anew with \
         UPDATE_VECTORS=1",
        path.display()
    );
    serde_json::from_str(&stored).unwrap()
}
