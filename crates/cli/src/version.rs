//! The build of this binary: version, commit, profile and target. `build.rs` finds the commit.

use std::fmt::Write as _;

use epicepoch_server::build::Build;

/// Returns the build of this binary.
pub(crate) fn build() -> Build {
    Build {
        version: env!("CARGO_PKG_VERSION"),
        commit: env!("BUILD_COMMIT"),
        profile: profile(env!("BUILD_PROFILE"), cfg!(debug_assertions)),
        target: env!("BUILD_TARGET"),
    }
}

/// Names the profile. Cargo calls a profile by the one that it inherits, so `release` may also be a
/// build for tests. Such a build can be told to break its clock and its disk.
fn profile(cargos: &'static str, has_assertions: bool) -> &'static str {
    match cargos {
        "release" if has_assertions => "release-with-debug-assertions",
        other => other,
    }
}

/// The text of `epicepoch --version`, after the name of the program.
pub(crate) fn text() -> String {
    let Build { version, commit, profile, target } = build();
    let mut text = version.to_owned();
    for (name, value) in [("commit", commit), ("profile", profile), ("target", target)] {
        let _infallible = write!(text, "\n{name} {value}");
    }
    text
}

/// Logs the build, as the first line of a process that runs until it is stopped.
pub(crate) fn log() {
    let Build { version, commit, profile, target } = build();
    tracing::info!(version, commit, profile, build_target = target, "epicepoch starts");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_build_that_can_break_its_disk_is_not_called_a_release() {
        assert_eq!(profile("release", false), "release");
        assert_eq!(profile("release", true), "release-with-debug-assertions");
        assert_eq!(profile("debug", true), "debug");
    }
}
