//! The layers: which parts of a crate may import which, and which crates may depend on which.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Parts of a directory, the lowest row first. A part is a file or a subdirectory. It may import
/// parts of its own row and of earlier rows.
type Rows = &'static [&'static [&'static str]];

const SERVER: Rows = &[
    &["sync", "abort", "build", "reload", "faults", "framed"],
    &["metrics"],
    &["security"],
    &["admin_queue", "addresses", "lease_clock"],
    &["shared"],
    &["peers"],
    &["worker"],
    &["storage", "consensus"],
    &["front"],
    &["node"],
];

/// `clients` drives the connections of the protocols below it. HTTP/3 has an endpoint of its own,
/// which adds its connections to `clients`.
const FRONT: Rows = &[
    &["deadlines", "sniff"],
    &["pipeline"],
    &["routes"],
    &["http1", "http2", "native"],
    &["clients"],
    &["http3"],
    &["door"],
    &["listener"],
];

/// Directories whose parts have layers. Every part of such a directory must be in a row.
const LAYERS: &[(&str, Rows)] =
    &[("crates/server/src", SERVER), ("crates/server/src/front", FRONT)];

/// Crates that ship, the lowest first. A crate may depend on earlier ones.
const SHIPPED: &[&str] =
    &["wire", "core", "storage", "certs", "time_source", "config", "client", "server", "cli"];
/// Pairs of shipped crates that must be independent: neither depends on the other, directly or
/// through other crates.
const APART: &[(&str, &str)] = &[("client", "core"), ("client", "storage"), ("server", "client")];
/// The only shipped crate that may depend on crates that prove and measure: `sim` and `bench` are
/// its commands.
const TOP: &str = "cli";

/// Returns why one file must not import another, or `None` if it may. Both paths are relative to
/// the root of the repository.
pub(crate) fn uphill(from: &Path, to: &Path) -> Option<String> {
    LAYERS.iter().find_map(|(directory, rows)| {
        let part = |file: &Path| {
            let first = file.strip_prefix(directory).ok()?.iter().next()?.to_str()?;
            Some(first.trim_end_matches(".rs").to_owned())
        };
        let row = |part: &String| rows.iter().position(|row| row.contains(&part.as_str()));
        let (from, to) = (part(from)?, part(to)?);
        (row(&from)? < row(&to)?).then(|| format!("{from} is below {to}"))
    })
}

/// The directories of the workspace's crates.
///
/// # Errors
/// When the workspace's directories cannot be read.
pub(crate) fn members() -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for top in ["crates", "proof", "tools", "examples"] {
        for entry in fs::read_dir(top).map_err(|error| format!("{top}: {error}"))? {
            let path = entry.map_err(|error| format!("{top}: {error}"))?.path();
            if path.join("Cargo.toml").exists() && path.join("src").exists() {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Reads a manifest. Returns the name of the package and the names of its dependencies, without
/// those that only tests or the build need.
pub(crate) fn manifest(text: &str) -> (String, Vec<String>) {
    let (mut section, mut name, mut dependencies) = ("", String::new(), Vec::new());
    for line in text.lines() {
        if let Some(header) = line.trim().strip_prefix('[') {
            section = header.trim_end_matches(']');
            dependencies.extend(section.strip_prefix("dependencies.").map(str::to_owned));
        } else if let Some((key, value)) = line.split_once('=') {
            let key = key.trim();
            match section {
                "package" if key == "name" => value.trim().trim_matches('"').clone_into(&mut name),
                "dependencies" => dependencies.push(key.trim_end_matches(".workspace").to_owned()),
                _ => {}
            }
        }
    }
    (name, dependencies)
}

/// Dependencies between crates that point the wrong way.
///
/// # Errors
/// When a manifest cannot be read.
pub(crate) fn between_crates(members: &[PathBuf]) -> Result<Vec<String>, String> {
    let mut manifests = BTreeMap::new();
    for member in members {
        let file = member.join("Cargo.toml");
        let text =
            fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let (package, dependencies) = manifest(&text);
        manifests.insert(package, (member.clone(), dependencies));
    }
    let directory = |path: &Path| {
        path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned()
    };
    let mut found = Vec::new();
    for (member, dependencies) in
        manifests.values().filter(|(member, _)| member.starts_with("crates"))
    {
        let from = directory(member);
        let rank = |name: &str| SHIPPED.iter().position(|shipped| *shipped == name);
        if rank(&from).is_none() {
            found.push(format!("{}: is not in the list SHIPPED of layers.rs", member.display()));
        }
        for (other, _) in dependencies.iter().filter_map(|name| manifests.get(name)) {
            let to = directory(other);
            let file = member.join("Cargo.toml");
            if !other.starts_with("crates") {
                if from != TOP {
                    found.push(format!(
                        "{}: depends on {}, which does not ship",
                        file.display(),
                        other.display()
                    ));
                }
            } else if rank(&to) >= rank(&from) || APART.contains(&(from.as_str(), to.as_str())) {
                found.push(format!("{}: {from} may not depend on {to}", file.display()));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn an_import_of_a_higher_layer_is_uphill() {
        let check = |from: &str, to: &str| {
            let server = Path::new("crates/server/src");
            uphill(&server.join(from), &server.join(to))
        };
        assert!(check("shared.rs", "consensus/plane.rs").is_some());
        assert_eq!(check("consensus/plane.rs", "shared.rs"), None);
        assert_eq!(check("worker/batch.rs", "worker/view.rs"), None);
        assert!(check("front/pipeline/queue.rs", "front/clients.rs").is_some());
        assert_eq!(check("front/clients.rs", "front/pipeline/queue.rs"), None);
    }

    #[test]
    fn every_part_of_a_directory_with_layers_has_a_place() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (directory, rows) in LAYERS {
            let mut parts = BTreeSet::new();
            for entry in fs::read_dir(root.join(directory)).expect("a directory") {
                let file = entry.expect("an entry").file_name();
                parts.insert(file.to_str().expect("a name").trim_end_matches(".rs").to_owned());
            }
            let roots = ["lib", "mod"].map(str::to_owned);
            let parts: Vec<String> = parts.into_iter().filter(|it| !roots.contains(it)).collect();
            let mut placed: Vec<&str> = rows.concat();
            placed.sort_unstable();
            assert_eq!(parts, placed, "{directory}");
        }
    }

    #[test]
    fn a_manifest_is_read_without_what_tests_need() {
        let text = "[package]\nname = \"a\"\n[dependencies]\nb.workspace = true\nc = { version = \"1\" }\n\
                    [dependencies.d]\nversion = \"1\"\n[dev-dependencies]\ne = \"1\"\n";
        let (name, dependencies) = manifest(text);
        assert_eq!((name.as_str(), dependencies.join(" ").as_str()), ("a", "b c d"));
    }
}
