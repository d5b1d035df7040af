//! Fuzz targets. Each takes arbitrary bytes, and must neither panic nor fail its assertions.
//! `scripts/fuzz` runs them with a fuzzing engine; a plain `cargo test` runs them on the corpus.
//! They never open a socket, and no shipped crate depends on them.
//!
//! - `wire`: frames, payloads, Raft messages, the native protocol, records, timestamps.
//! - `text`: queries, requests, settings and other files, members, HTTP answers, certificates,
//!   promises.
//! - `client_answer`: answers over HTTP/1.1, as clients read them.
//! - `clock`: what states the bound of a clock: ClockBound's segment, chronyd's reply.
//! - `tune`: nodes' reports about their links, as `epicepoch tune` reads them.
//! - `storage`: a database file with any damage.
//! - `replica`: the consensus plane of one node, fed with messages, ticks, crashes.
//! - `script`: bytes as a script of events; [`epicepoch_sim::script`] runs a cluster from one.
//! - `planted`: a bug that the engine must find.

mod client_answer;
mod clock;
mod cluster;
mod planted;
mod replica;
mod script;
mod storage;
mod text;
mod tune;
mod wire;

/// A fuzz target. Its corpus has the same name.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the target.
    pub name: &'static str,
    /// Runs the target on one input.
    ///
    /// # Panics
    /// If the input shows a bug.
    pub run: fn(&[u8]),
}

/// All targets that must hold for every input. `planted` is not among them, because the engine must
/// find its bug.
pub const TARGETS: [Target; 25] = [
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
    Target { name: "grpc", run: targets::grpc },
    Target { name: "http3_control", run: targets::http3_control },
    Target { name: "settings", run: targets::settings },
    Target { name: "files", run: targets::files },
    Target { name: "members", run: targets::members },
    Target { name: "http_answer", run: targets::http_answer },
    Target { name: "client_answer", run: targets::client_answer },
    Target { name: "http2_answer", run: targets::http2_answer },
    Target { name: "certificate", run: targets::certificate },
    Target { name: "clock_segment", run: targets::clock_segment },
    Target { name: "clock_tracking", run: targets::clock_tracking },
    Target { name: "tune", run: targets::tune },
    Target { name: "storage", run: targets::storage },
    Target { name: "replica", run: targets::replica },
    Target { name: "cluster", run: targets::cluster },
];

/// The targets as functions. Each is the body of one fuzzing binary.
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
        /// Messages of gRPC and of PD.
        wire::grpc;
        /// Timestamps and ranges.
        wire::timestamp;
        /// Queries of `/timestamp`.
        text::http_query;
        /// Requests on the fast path of HTTP/1.1.
        text::http_request;
        /// Frames of an HTTP/2 client, as the abuse meter counts them.
        text::http2_frames;
        /// Requests over HTTP/2, as a node reads them.
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
        /// Answers over HTTP/1.1, as clients read them.
        client_answer::client_answer;
        /// Answers over HTTP/2, as the load generator reads them.
        text::http2_answer;
        /// Certificates.
        text::certificate;
        /// Segments of ClockBound.
        clock::clock_segment;
        /// Replies of chronyd.
        clock::clock_tracking;
        /// Answers of nodes about their links.
        tune::tune;
        /// Damaged database files.
        storage::storage;
        /// The consensus plane of one node.
        replica::replica;
        /// A cluster.
        cluster::cluster;
        /// A bug that must be found.
        planted::planted;
    }
}
