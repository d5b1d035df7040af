//! The binary as real processes on loopback, seen from outside: the contract over HTTP, faults, broken clocks
//! and disks, bad input, bad settings, footprint.
//!
//! Run all tests with `cargo test -p epicepoch --test cluster`, one with its name appended. Figures
//! bypass the capture of the test harness, so a passing run shows them too.
//!
//! `EPICEPOCH_BIN=path` tests another binary; one below a directory `release` is a release build.
//! Tests that break clocks and disks need a test build, the only one that reads
//! `TEST_FAULTS_FILE`, and fail with another.

/// Tests that hold a time to a bound or compare times. They run one at a time, and no other test
/// runs beside them: each starts with [`alone`](support::alone).
mod measuring {
    mod clocks;
    mod disks;
    mod footprint;
    mod links;
    mod long_links;
    mod processes;
    mod slow_links;
    mod stalls;
}
mod support;
/// All other tests. They run side by side, as many at once as the test harness has threads. They
/// wait for events with generous limits, so a busy machine makes them slower but fails none.
mod together {
    mod accepts;
    mod advance;
    mod authz;
    mod bad_settings;
    mod bench;
    mod clocks;
    mod cluster_settings;
    mod disks;
    mod footprint;
    mod formats;
    mod http;
    mod http3;
    mod intruders;
    mod links;
    mod members;
    mod moves;
    mod nemesis;
    mod probe;
    mod processes;
    mod restore;
    mod rolling;
    mod tls;
    mod transfers;
    mod tune;
    mod unsettled;
    mod upgrades;
    mod zones;
}
