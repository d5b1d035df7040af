//! Load, latency and correctness of a timestamp oracle, measured from outside: over its HTTP
//! interface, as any client sees it. It knows nothing of Raft and never looks into a server.
//!
//! - [`history`]: the black-box checker. Was any timestamp given twice, did any answer come out
//!   of real-time order?
//! - [`verdict`]: what the checker found, told as a story.
//! - [`http1`], [`http2`], [`http3`]: connections that are thin enough to measure with.
//! - [`load`]: the closed-loop load generator, which follows the leader or drives every node.
//! - [`report`]: what a load saw: answers, failures by kind, latency, the longest silence.
//! - [`run`]: the generator of `epicepoch bench run`: open and closed loop, several transports.
//! - [`latency`]: its histograms; [`hiccup`], [`machine`]: what the machine did meanwhile.
//! - [`probe`]: what a long-lived probe has seen; [`exporter`] serves it to scrapers.
//! - [`floor`]: what the machine can do at all; [`knee`]: what the service can.
//! - [`surroundings`]: what a report says about nodes, wire and machine; [`html`]: a report as a
//!   page.
//! - [`slo`]: promises and whether they were kept.
//! - [`record`]: the report of a run as it is kept; [`encoded`], [`hlog`]: its histograms.
//! - [`merge`], [`compare`] with [`rank`], [`trend`]: several reports.
//! - [`text`], [`json`]: how it is all shown.

pub mod compare;
pub mod encoded;
pub mod exporter;
pub mod floor;
pub mod hiccup;
pub mod history;
pub mod hlog;
pub mod html;
pub mod http1;
pub mod http2;
pub mod http3;
pub mod json;
pub mod knee;
pub mod latency;
pub mod load;
pub mod machine;
pub mod merge;
pub mod probe;
pub mod rank;
pub mod record;
pub mod report;
pub mod run;
pub mod slo;
pub mod surroundings;
pub mod text;
pub mod trend;
pub mod verdict;

pub use history::{History, Operation, Outcome};
pub use load::{LoadConfig, Node, Routing, RunningLoad};
pub use report::{AnswerTimes, FailureKind, Report};
pub use verdict::{Verdict, Violation};
