//! Tests `epicepoch lab`: it runs real nodes behind delayed links, and says what distance costs.

use std::collections::BTreeMap;
use std::fs;
use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::alone;
use crate::support::node::command;

/// The published experiment with a tenth of its delay, in a second for each measurement.
const TWO_DC: &str = r#"
name = "two-dc-5ms"
[regions]
names = ["dc1", "dc2"]
one_way_ms = [[0, 5], [0, 0]]
[nodes]
1 = "dc1"
2 = "dc2"
3 = "dc2"
[clients]
dc1 = { weight = 1 }
[measure]
leader = "dc1"
"#;

fn lab(dir: &TempDir, file: &str, args: &[&str]) -> Output {
    let path = dir.path().join("topology.toml");
    fs::write(&path, file).expect("a temporary file");
    let mut command = command(&BTreeMap::new(), dir.path());
    command.arg("lab").arg(path).args(args).output().expect("the binary can be started")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A round from the leader costs a round trip to the other data centre. The loss of the data centre
/// with the majority stops the service, and no answer comes from the rest.
#[test]
fn a_lab_measures_what_is_expected_and_refuses_without_a_majority() {
    let _alone = alone();
    let dir = TempDir::new().expect("a temporary directory");
    let page = dir.path().join("lab.html");
    let page_argument = format!("--html={}", page.display());
    let args = ["--seconds=1", "--only=2,3", "--output=json", &page_argument];
    let output = lab(&dir, TWO_DC, &args);
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{:?} {out} {error}", output.status);
    assert!(error.contains("verifying the links"), "{error}");
    let report: Value = serde_json::from_str(&out).expect("JSON");
    let lab = &report["lab"];
    let cells = lab["cells"].as_array().expect("cells");
    assert!(!cells.is_empty() && report["verify"]["violations"] == 0, "{out}");
    let survived: Vec<&Value> =
        lab["outages"].as_array().expect("outages").iter().map(|it| &it["survivable"]).collect();
    assert_eq!(survived, [true, false], "{out}");
    let page = fs::read_to_string(page).expect("the page");
    assert!(page.starts_with("<!doctype html>") || page.starts_with("<!DOCTYPE html>"), "{page}");
}

/// A wrong file is refused before a node is started, with the name of what is wrong.
#[test]
fn a_wrong_topology_is_refused_by_name() {
    let dir = TempDir::new().expect("a temporary directory");
    for (from, to, said) in [
        ("2 = \"dc2\"", "2 = \"dc9\"", "dc9"),
        ("[[0, 5], [0, 0]]", "[[0, 5]]", "one_way_ms"),
        ("leader = \"dc1\"", "leader = \"dc9\"", "dc9"),
        ("[measure]", "[mesure]", "mesure"),
    ] {
        let output = lab(&dir, &TWO_DC.replace(from, to), &["--dry"]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{to}: {error}");
        assert!(error.contains(said), "{to}: {error}");
    }
    let output = lab(&dir, TWO_DC, &["--dry"]);
    assert!(text(&output.stdout).contains("5.0"), "{}", text(&output.stderr));
}
