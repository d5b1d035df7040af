//! Tests of the binary as real processes on loopback, seen from outside: the contract over HTTP,
//! faults, broken clocks and disks, bad input, bad settings, footprint.
//!
//! `cargo test -p epicepoch --test cluster` runs all tests; append a name to run one. Measured
//! figures are printed even if a test passes.
//!
//! `EPICEPOCH_BIN=path` tests another binary. A binary below a directory `release` counts as a
//! release build. Tests that break clocks and disks need a test build, because only that reads
//! `TEST_FAULTS_FILE`. They fail with any other build.

/// Tests that measure time and compare it with a bound. No other test runs meanwhile: each of these
/// tests starts with [`alone`](support::alone).
mod measuring {
    mod clocks;
    mod disks;
    mod followers;
    mod footprint;
    mod leases;
    mod links;
    mod long_links;
    mod processes;
    mod slow_links;
    mod stalls;
}
mod support;
/// All other tests. They run side by side, as many at once as the test harness has threads. They
/// wait for events with generous limits, so a busy machine makes them slower but does not make them
/// fail.
mod together {
    mod accepts;
    mod authz;
    mod bad_settings;
    mod bench;
    mod clocks;
    mod cluster_settings;
    mod compact;
    mod dev;
    mod disks;
    mod footprint;
    mod formats;
    mod forwarding;
    mod http;
    mod http3;
    mod init;
    mod intervals;
    mod intruders;
    mod lab;
    mod lease_rates;
    mod leases;
    mod links;
    mod logs;
    mod members;
    mod modes;
    mod moves;
    mod nemesis;
    mod output;
    mod probe;
    mod processes;
    mod restore;
    mod rolling;
    mod supervisor;
    mod tls;
    mod top;
    mod transfers;
    mod tune;
    mod unsettled;
    mod upgrades;
}
