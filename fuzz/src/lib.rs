//! Fuzz targets: each takes arbitrary bytes and must neither panic nor break what it asserts. The
//! engine feeds them under `scripts/fuzz`; a plain `cargo test` feeds them the corpus. It never
//! opens a socket, and nothing that ships depends on it.
//!
//! - `wire`: frames, payloads, Raft messages, the native protocol, records, timestamps.
//! - `text`: queries, requests, settings and other files, members, HTTP answers, certificates,
//!   promises.
//! - `report`: reports of measurements.
//! - `tune`: what nodes say of their links, as the binary's `tune_report` reads it.
//! - `storage`: a database file with any damage.
//! - `replica`: one replica, fed with messages, ticks, crashes.
//! - `script`: bytes as a script of events; [`epicepoch_sim::script`] runs a cluster of it.
//! - `planted`: a bug that must be found.
//! - `config_file`, `settings`, `sources`, `logging`, `tune_report`: those of the binary, which is no library.

// The modules of the binary bring their unit tests along, which need the rest of the binary and run
// there: this crate has none of its own, and is empty where tests are compiled in.
#![cfg(not(test))]

#[allow(dead_code, reason = "what only the commands use is not used here")]
#[path = "../../crates/cli/src/config_file.rs"]
mod config_file;
#[allow(dead_code, reason = "what only the commands use is not used here")]
#[path = "../../crates/cli/src/logging.rs"]
mod logging;
#[allow(dead_code, reason = "what only the commands use is not used here")]
#[path = "../../crates/cli/src/settings.rs"]
mod settings;
#[allow(dead_code, reason = "what only the commands use is not used here")]
#[path = "../../crates/cli/src/sources.rs"]
mod sources;
#[path = "../../crates/cli/src/tune/report.rs"]
mod tune_report;

mod cluster;
mod planted;
mod replica;
mod report;
mod script;
mod storage;
mod text;
mod tune;
mod wire;

/// A target: its name, which is also the name of its corpus, and what takes the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name.
    pub name: &'static str,
    /// Takes one input.
    ///
    /// # Panics
    /// When the input shows a bug.
    pub run: fn(&[u8]),
}

/// Every target that must hold. `planted` is not among them: it must not.
pub const TARGETS: [Target; 24] = [
    Target { name: "frame", run: targets::frame },
    Target { name: "payload", run: targets::payload },
    Target { name: "raft_message", run: targets::raft_message },
    Target { name: "native", run: targets::native },
    Target { name: "record", run: targets::record },
    Target { name: "timestamp", run: targets::timestamp },
    Target { name: "http_query", run: targets::http_query },
    Target { name: "http_request", run: targets::http_request },
    Target { name: "http2_frames", run: targets::http2_frames },
    Target { name: "http2_request", run: targets::http2_request },
    Target { name: "http3_control", run: targets::http3_control },
    Target { name: "settings", run: targets::settings },
    Target { name: "files", run: targets::files },
    Target { name: "members", run: targets::members },
    Target { name: "http_answer", run: targets::http_answer },
    Target { name: "http2_answer", run: targets::http2_answer },
    Target { name: "http3_answer", run: targets::http3_answer },
    Target { name: "certificate", run: targets::certificate },
    Target { name: "report", run: targets::report },
    Target { name: "tune", run: targets::tune },
    Target { name: "slo", run: targets::slo },
    Target { name: "storage", run: targets::storage },
    Target { name: "replica", run: targets::replica },
    Target { name: "cluster", run: targets::cluster },
];

/// The targets as functions, each the whole of one fuzzing binary.
pub mod targets {
    macro_rules! targets {
        ($($(#[$doc:meta])* $module:ident::$name:ident;)*) => {
            $($(#[$doc])* pub fn $name(data: &[u8]) { super::$module::$name(data); })*
        };
    }

    targets! {
        /// Frames on a stream.
        wire::frame;
        /// Payloads of frames.
        wire::payload;
        /// Raft messages.
        wire::raft_message;
        /// The native protocol.
        wire::native;
        /// States, commands, changes, entries, snapshots.
        wire::record;
        /// Timestamps and ranges.
        wire::timestamp;
        /// Queries of `/timestamp`.
        text::http_query;
        /// The hot request of HTTP/1.1.
        text::http_request;
        /// What a client of HTTP/2 sends, as it is counted.
        text::http2_frames;
        /// What a client of HTTP/2 sends, as a node understands it.
        text::http2_request;
        /// The control stream of a client of HTTP/3.
        text::http3_control;
        /// Backups, identities, tokens.
        text::files;
        /// Files of settings.
        text::settings;
        /// Bodies of `/members`.
        text::members;
        /// HTTP answers.
        text::http_answer;
        /// Answers over HTTP/2, as the load generator reads them.
        text::http2_answer;
        /// Answers over HTTP/3, as the load generator reads them.
        text::http3_answer;
        /// Certificates.
        text::certificate;
        /// Reports of measurements, and their histograms.
        report::report;
        /// Answers of nodes about their links.
        tune::tune;
        /// Promises about measurements.
        text::slo;
        /// Damaged database files.
        storage::storage;
        /// One replica.
        replica::replica;
        /// A cluster.
        cluster::cluster;
        /// A bug that must be found.
        planted::planted;
    }
}
