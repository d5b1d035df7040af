//! The binary, as real processes on loopback: the contract over HTTP, faults, broken clocks and
//! disks, bad input, bad settings, footprint. Everything here is seen from outside; what one
//! replica does inside is the business of the simulator and of unit tests.
//!
//! Run all of it with `cargo test -p epicepoch --test cluster`, one claim with its name appended.
//! Only one test runs at a time ([`support::Turn`]): each starts three nodes and measures them,
//! and two clusters on one small machine would measure each other. Figures are written past the
//! capture of the test harness, so that they are seen in a passing run too.
//!
//! `EPICEPOCH_BIN=path` tests another binary; one below a directory `release` is a release build.
//! The tests that break clocks and disks need a test build, the only one that reads
//! `TEST_FAULTS_FILE`, and fail with another.

mod accepts;
mod advance;
mod bad_input;
mod bad_settings;
mod bench;
mod clients;
mod clock;
mod cluster_settings;
mod disk;
mod faults;
mod footprint;
mod formats;
mod full_disk;
mod hiccups;
mod http;
mod http3;
mod intruders;
mod links;
mod members;
mod moves;
mod nemesis;
mod places;
mod probe;
mod restore;
mod rights;
mod rolling;
mod slow_links;
mod smoke;
mod support;
mod tls;
mod transfers;
mod tune;
mod upgrades;
