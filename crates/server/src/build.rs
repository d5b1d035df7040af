//! The build of this program, as its nodes report it: version, commit, profile and target. The
//! binary knows these values; this crate only passes them on.

/// A build of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    /// The version, such as `0.2.0`.
    pub version: &'static str,
    /// The commit of the sources, or [`UNKNOWN`].
    pub commit: &'static str,
    /// The build profile, such as `release`, or [`UNKNOWN`].
    pub profile: &'static str,
    /// The target of the compiler, such as `x86_64-unknown-linux-gnu`, or [`UNKNOWN`].
    pub target: &'static str,
}

/// The value of a field that the builder of the program did not know.
pub const UNKNOWN: &str = "unknown";

impl Default for Build {
    /// A program that knows only the version of this crate, such as a test.
    fn default() -> Self {
        let version = env!("CARGO_PKG_VERSION");
        Self { version, commit: UNKNOWN, profile: UNKNOWN, target: UNKNOWN }
    }
}
