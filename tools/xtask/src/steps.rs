//! The steps of the tiers: the name of each, its commands, its time limit, and whether it runs
//! beside the others.

use crate::shell::Shell;
use crate::{builds, changes, dependencies, night, site, smoke};

/// A set of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    /// The steps that a developer runs after an edit.
    Check,
    /// The steps that must succeed before a change is accepted.
    Ci,
    /// All steps.
    Nightly,
}

/// How a step runs.
pub(crate) enum Run {
    /// Commands that run one after the other. Words are separated by white space, variables come
    /// first. `$PWD` stands for the root, `$BUILDS` for the build directory of steps that run beside
    /// the tests, and `$THREADS` for two threads per processor.
    Commands(&'static [&'static str]),
    /// A function, for steps that need more than commands.
    Function(fn(&Shell) -> Result<(), String>),
}

/// A step.
pub(crate) struct Step {
    /// Name of the step, for `--only`.
    pub(crate) name: &'static str,
    /// What is true if the step succeeds.
    pub(crate) title: &'static str,
    /// The tiers that contain the step.
    pub(crate) tiers: &'static [Tier],
    /// Time limit, seconds.
    pub(crate) bound: u64,
    /// How the step runs.
    pub(crate) run: Run,
    /// Whether `ci` runs the step beside the others. In the other tiers all steps run one after the
    /// other.
    pub(crate) beside: Beside,
    /// Steps that must succeed first.
    pub(crate) after: &'static [&'static str],
    /// Whether the output is printed as it comes.
    pub(crate) is_live: bool,
}

/// Whether a step runs beside the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beside {
    /// The step never runs beside others.
    No,
    /// The step mostly downloads and computes little, so it always runs beside the others.
    Downloads,
    /// The step mostly waits, and judges no times. It runs once the steps that it needs have ended, in
    /// a queue of its own and at the usual priority, because it starts nodes.
    Waits,
    /// The step computes, and runs beside others only under two conditions. The tests are compiled,
    /// because all others wait for that. And `$BUILDS` is in memory, because otherwise the compiler's
    /// writes would delay the disk writes of real processes in other steps.
    Computes,
}

impl Step {
    const fn new(
        name: &'static str,
        title: &'static str,
        tiers: &'static [Tier],
        bound: u64,
        run: Run,
    ) -> Self {
        Self { name, title, tiers, bound, run, beside: Beside::No, after: &[], is_live: false }
    }

    const fn beside(self, beside: Beside) -> Self {
        Self { beside, ..self }
    }

    const fn live(self) -> Self {
        Self { is_live: true, ..self }
    }

    const fn after(self, after: &'static [&'static str]) -> Self {
        Self { after, ..self }
    }
}

const ALL: &[Tier] = &[Tier::Check, Tier::Ci, Tier::Nightly];
const BOTH: &[Tier] = &[Tier::Ci, Tier::Nightly];
const CHECK: &[Tier] = &[Tier::Check];
const CI: &[Tier] = &[Tier::Ci];
const NIGHT: &[Tier] = &[Tier::Nightly];

use Run::{Commands, Function};

/// All steps, in the order in which they run.
#[rustfmt::skip]
pub(crate) const STEPS: &[Step] = &[
    Step::new("format", "rustfmt reports nothing", ALL, 60, Commands(&["cargo fmt --all --check"])),
    Step::new("documents", "Links, paths and names in documents exist", ALL, 60, Function(|sh| sh.own("documents"))),
    Step::new("clients", "Names, defaults and errors of the clients match clients/README.md", ALL, 60,
        Function(|sh| sh.own("clients"))),
    Step::new("catalogue", "docs/testing-catalogue.md is up to date", ALL, 60,
        Function(|sh| sh.own("catalogue --check"))),
    Step::new("alerts", "docs/alerts.md has the alerts of deploy/prometheus, and each has a test", ALL, 60,
        Function(|sh| sh.own("alerts --check"))),
    Step::new("book", "Each document is in the book, and its links lead to something there", ALL, 60,
        Function(|sh| sh.own("book --check"))),
    Step::new("release-list", "Each fault before a release is found, and only the client's crates can be published", BOTH,
        240, Commands(&["scripts/release-test", "scripts/release crates --list"])),
    Step::new("imports", "No circle of imports, no import of a higher layer", ALL, 60,
        Function(|sh| sh.own("imports"))),
    Step::new("tools", "The programs that other steps need are installed", BOTH, 1500, Function(dependencies::tools))
        .beside(Beside::Downloads),
    Step::new("old-program", "The oldest supported version builds", BOTH, 1500,
        Function(smoke::old_program)).beside(Beside::Computes),
    Step::new("release-build", "The release build succeeds", BOTH, 1500, Commands(&[
        "cargo build --release --locked --target-dir $BUILDS",
    ])).beside(Beside::Computes),
    Step::new("lints", "clippy reports nothing", ALL, 1500, Commands(&[
        "cargo clippy --workspace --all-targets --locked --target-dir $BUILDS/lints -- -D warnings",
        "cargo clippy -p epicepoch-core -p epicepoch-server --features epicepoch-core/loom,epicepoch-server/loom \
            --lib --tests --locked --target-dir $BUILDS/lints -- -D warnings",
    ])).beside(Beside::Computes),
    Step::new("rustdoc", "rustdoc reports nothing", BOTH, 900, Commands(&[
        "RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps --locked --target-dir $BUILDS/lints",
    ])).beside(Beside::Computes),
    Step::new("changed-tests", "The tests that a change can affect succeed", CHECK, 1200,
        Function(changes::tests)),
    Step::new("changed-planted", "Planted bugs near the change are found", CHECK, 600,
        Function(|sh| changes::planted(sh, false))),
    Step::new("tests-build", "The tests of the workspace compile", BOTH, 1500, Commands(&[
        "cargo test --workspace --locked --no-run",
        // Nodes under test would wait for the disk while it takes what the compiler has written.
        "sync",
    ])),
    Step::new("tests", "All tests of the workspace succeed, including clusters of real processes", BOTH, 1800,
        // Many tests mostly wait: with one thread per processor, the processors were idle half of the time.
        Commands(&["RUST_TEST_THREADS=$THREADS cargo test --workspace --locked"])).after(&["tests-build"]).live(),
    Step::new("planted-near", "Planted bugs near the change, and today's quarter of those found soon, are found", CI, 900,
        Function(|sh| changes::planted(sh, true))).beside(Beside::Computes),
    Step::new("planted", "Every planted bug is found by its checker", NIGHT, 1800, Function(night::planted)),
    Step::new("planted-server", "The server's tests find the faults that are planted in copies of it", NIGHT, 1800,
        Commands(&["scripts/planted-server"])),
    Step::new("spec", "The solver proves the protocol, and each part of the specification names its code", BOTH, 400,
        Function(dependencies::spec)).beside(Beside::Computes),
    Step::new("spec-mutants", "Each rule of the specification is needed, and a second solver agrees", NIGHT, 2400,
        Function(dependencies::spec_mutants)),
    Step::new("corpus", "The fuzz corpus is up to date", BOTH, 60,
        Function(dependencies::corpus)).after(&["tests"]),
    Step::new("fuzz-short", "Each fuzz target survives a second of changed inputs", CI, 300, Commands(&[
        "EPICEPOCH_FUZZ_MS=1000 cargo test --workspace --locked --test corpus -- --ignored --nocapture",
    ])).after(&["tests"]),
    Step::new("fuzz", "The fuzzing engine finds the planted bug and no other", NIGHT, 1500,
        Function(night::fuzz)),
    Step::new("interleavings", "Code that threads share is correct in every order of steps", NIGHT, 1500, Commands(&[
        "cargo test -p epicepoch-core --features loom --test interleavings --locked",
        "cargo test -p epicepoch-server --features loom --lib --locked interleavings",
    ])),
    Step::new("go", "Go client: vet, tests with the race detector, a short fuzz, each benchmark once", BOTH, 900,
        Function(smoke::go)).after(&["tests"]),
    Step::new("python", "Python client: types, tests with each Python, wheel and sdist", BOTH, 300, Commands(&[
        "EPICEPOCH_BIN=target/debug/epicepoch scripts/python-client",
    ])).after(&["tests"]),
    Step::new("java", "Java client: documentation, tests, calls from virtual threads", BOTH, 300,
        Function(smoke::java)).after(&["tests"]),
    Step::new("typescript", "TypeScript client: tests, package, benchmark", BOTH, 300,
        Function(smoke::typescript)).after(&["tests"]),
    Step::new("conformance", "Each client keeps the contract, also while leaders are killed", BOTH, 900, Commands(&[
        "EPICEPOCH_BIN=$PWD/target/debug/epicepoch cargo test --workspace --locked --test scripted --test kills \
         -- --ignored --nocapture",
        // This is the command with which the author of another client would test it.
        "EPICEPOCH_BIN=target/debug/epicepoch target/debug/conformance --kills 1 -- \
         target/debug/conformance-rust-driver",
    ])).after(&["tests"]),
    Step::new("all-scenarios", "Scenarios find each fault in copies of clients. Clients pass all with compact timestamps",
        NIGHT, 1800, Commands(&[
        "EPICEPOCH_BIN=$PWD/target/debug/epicepoch cargo test --workspace --locked --test planted_clients \
         --test compact_mode -- --ignored --nocapture",
    ])).after(&["tests"]),
    Step::new("pd", "PD's own client and one of our gRPC service work, also while leaders are killed", BOTH, 500,
        Commands(&["scripts/pd-client target/debug/epicepoch 3"])).after(&["tests"]),
    Step::new("percolator", "The example keeps its money under kills, and a planted mistake is found", BOTH, 300,
        Function(smoke::percolator)).after(&["tests"]),
    Step::new("adapters", "Badger and client-go keep their money under kills, and planted mistakes are found", BOTH, 400,
        Function(smoke::adapters)).after(&["tests"]),
    Step::new("slatedb", "SlateDB keeps its money under lost leaders and owners, and planted mistakes are found", NIGHT, 1800,
        Commands(&[
        "EPICEPOCH_BIN=$PWD/target/debug/epicepoch cargo test --quiet --locked --manifest-path \
         examples/slatedb/Cargo.toml -- --nocapture",
    ])).after(&["tests"]),
    Step::new("licences", "deny.toml allows the licences and sources of all dependencies", BOTH, 120,
        Function(dependencies::licences)),
    Step::new("client-alone", "The Rust client compiles alone, with as many crates as its page says", BOTH, 300,
        Function(dependencies::client_alone)).beside(Beside::Computes),
    Step::new("crates", "The client's crates build from their packages alone", NIGHT, 1200,
        Commands(&["scripts/release crates"])),
    Step::new("attacks", "A good client is served during each attack, a second each", BOTH, 400, Commands(&[
        "BIN=$PWD/target/debug/epicepoch ATTACK=$PWD/target/debug/attack scripts/attack --smoke",
    ])).after(&["tests", "tools"]),
    Step::new("wire", "Bytes on the wire: h2spec, TLS, and segments in a capture", BOTH, 500, Commands(&[
        "EPICEPOCH_BIN=target/debug/epicepoch LOCKSTEP=target/debug/examples/lockstep scripts/wire",
    ])).after(&["tests", "tools"]),
    Step::new("page", "The pages of a node and of the lab work in a browser and ask nobody else", BOTH, 240, Commands(&[
        "BIN=target/debug/epicepoch scripts/page",
        "BIN=target/debug/epicepoch scripts/lab-page",
        "BIN=target/debug/epicepoch scripts/incidents --quick leader-lost top",
    ])).beside(Beside::Waits).after(&["tests", "tools"]),
    Step::new("prometheus", "A real Prometheus gets what rules and dashboard need, and a healthy cluster no alert", BOTH,
        300, Function(smoke::prometheus)).after(&["tests", "tools"]),
    Step::new("upgrade", "The oldest supported version and this one work in one cluster", BOTH, 1500,
        Function(smoke::upgrade)).after(&["tests", "old-program"]),
    Step::new("release", "The release build is copied to target/release", BOTH, 900, Function(builds::release))
        .after(&["release-build"]),
    Step::new("no-faults", "A release build refuses test faults and planted bugs", BOTH, 60,
        Function(smoke::no_faults)).after(&["release"]),
    Step::new("footprint", "An idle release build takes little, and restarts soon", NIGHT, 300, Commands(&[
        "EPICEPOCH_BIN=$PWD/target/release/epicepoch cargo test -p epicepoch --locked --test cluster measuring::footprint \
         -- --nocapture",
    ])).after(&["tests", "release"]),
    Step::new("seeds", "Simulated clusters keep every invariant on 60 fresh seeds", CI, 120, Commands(&[
        "target/release/epicepoch sim --jobs 2 --seeds 60",
    ])).after(&["release"]),
    Step::new("smoke", "The README's commands, a load and SIGTERM", BOTH, 400,
        Function(smoke::readme)).after(&["release", "tools"]),
    Step::new("reproducible", "Two builds of a release in different directories are equal", NIGHT, 3600,
        Commands(&["scripts/release check"])),
    Step::new("packages", "Archive, Debian package, image and compose file of a release work", NIGHT, 3600,
        Function(dependencies::release_files)).after(&["tools"]),
    Step::new("chart", "Real nodes run with the chart's settings. The API server's validation accepts its objects", NIGHT,
        1500, Commands(&[
        "go -C proof/chart vet ./...",
        "EPICEPOCH_BIN=target/debug/epicepoch go -C proof/chart test ./...",
    ])).after(&["tests"]),
    Step::new("components", "Two lists of a release's components are equal", BOTH, 120,
        Function(dependencies::components)),
    Step::new("fresh-seeds", "Simulated clusters keep every invariant, on 200 fresh seeds or more", NIGHT, 400,
        Function(night::seeds)).after(&["release"]),
    Step::new("recorded-seeds", "A recorded block of clean seeds has the same traces again", NIGHT, 1200, Commands(&[
        "rm -rf target/xtask/nights",
        "scripts/nights target/xtask/nights --check",
    ])),
    Step::new("nemesis", "Clusters of real processes survive random faults", NIGHT, 600, Function(night::nemesis))
        .after(&["tests"]),
    Step::new("cut-links", "A leader whose links are cut is replaced", NIGHT, 900, Function(night::links))
        .after(&["tests"]),
    Step::new("moves", "A node that moves is soon found while its name server fails", NIGHT, 300,
        Commands(&["scripts/moves --trials 10"])).after(&["release"]),
    Step::new("chrony", "Order holds in interval mode while real chronyds are stopped, killed and lose their server",
        NIGHT, 400, Commands(&["scripts/chrony"])).after(&["tests"]),
    Step::new("gate", "The cost of a request is within the accepted limits", NIGHT, 400, Commands(&["scripts/gate"])),
    Step::new("http3", "HTTP/3 clients of other projects work with a cluster", NIGHT, 700,
        Commands(&["scripts/http3-clients"])),
    Step::new("compare", "The comparison with other systems runs, a second each", NIGHT, 1500, Commands(&[
        "scripts/compare --smoke",
        "cargo test --quiet --release --locked --manifest-path tools/compare/Cargo.toml",
    ])),
    Step::new("site", "The book becomes a site: all links work, search finds, no other address is asked", NIGHT, 1200,
        Function(site::step)),
    Step::new("scale", "The measurement of growing clusters runs, a second each", NIGHT, 300,
        Commands(&["scripts/scale --smoke"])),
    Step::new("measurements", "The measurements of docs/performance.md run, a second each", NIGHT,
        600, Function(smoke::measurements)),
    Step::new("coverage", "The simulator covers the lines of the core", NIGHT, 1800, Function(dependencies::coverage)),
    Step::new("deny", "cargo-deny reports nothing", NIGHT, 1800, Function(dependencies::deny)),
    Step::new("audit", "cargo-audit reports nothing", NIGHT, 1200,
        Function(dependencies::audit)),
];

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_readme_has_the_command_of_the_tests() {
        let step = STEPS.iter().find(|step| step.name == "tests").expect("a step");
        let Commands([.., command]) = step.run else { panic!("commands") };
        let command = command.strip_prefix("RUST_TEST_THREADS=$THREADS ").expect("more threads");
        let readme = include_str!("../../../README.md");
        assert!(readme.contains(&format!("```sh\n{command}\n```")), "{command}");
    }

    #[test]
    fn ci_runs_every_test_that_the_command_of_the_readme_leaves_out() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let grep = ["grep", "-l", r"^#\[ignore", "--", "*/tests/*.rs"];
        let found = Command::new("git").args(grep).current_dir(root).output();
        let found = String::from_utf8(found.expect("git is installed").stdout).expect("UTF-8");
        let runs = |target: &str| {
            let is_run_by = |command: &&str| {
                command.contains(" -- --ignored") && command.contains(&format!("--test {target} "))
            };
            // These take long, and ci plays the same scenarios with the clients as they are.
            let is_long = ["compact_mode", "planted_clients"].contains(&target);
            let tier = if is_long { Tier::Nightly } else { Tier::Ci };
            STEPS.iter().filter(|step| step.tiers.contains(&tier)).any(|step| match step.run {
                Commands(commands) => commands.iter().any(is_run_by),
                Function(_) => false,
            })
        };
        assert!(!found.is_empty(), "the tests of clients in other languages are left out");
        for path in found.lines() {
            let (_, file) = path.split_once("/tests/").expect("a test");
            let target = file.split(['/', '.']).next().expect("a name");
            assert!(runs(target), "no step of ci runs the ignored tests of {path}");
        }
    }

    #[test]
    fn a_step_waits_for_steps_before_it_that_are_in_its_tiers() {
        for (at, step) in STEPS.iter().enumerate() {
            for name in step.after {
                let before = STEPS[..at].iter().find(|step| step.name == *name);
                let before = before.unwrap_or_else(|| panic!("{} waits for {name}", step.name));
                assert!(step.tiers.iter().all(|tier| before.tiers.contains(tier)), "{}", step.name);
            }
            assert_eq!(
                STEPS.iter().filter(|other| other.name == step.name).count(),
                1,
                "{}",
                step.name
            );
        }
    }
}
