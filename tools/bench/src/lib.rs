//! Load, latency and correctness of a timestamp oracle, measured from outside, as a client sees it.
//!
//! - [`history`]: the black-box checker of uniqueness and real-time order; [`verdict`]: its
//!   findings.
//! - [`run`]: the generator of `epicepoch bench run`, and of the load of tests. [`http1`],
//!   [`http2`] and [`quic`]: its connections.
//! - [`answer_times`], and the silences between them.
//! - [`latency`]: histograms; [`hiccup`], [`machine`]: stalls and load of the machine.
//! - [`probe`]: the figures of `epicepoch probe`; [`exporter`] serves them.
//! - [`floor`]: what the machine itself can do; [`knee`]: how much load the service takes.
//! - [`record`]: the report of a run in JSON, with [`surroundings`] (nodes and wire) and
//!   [`encoded`] (histograms); [`hlog`]: its latency for other tools.
//! - [`slo`]: promises and whether they were kept.
//! - [`merge`], [`compare`] with [`rank`], [`trend`]: several reports.
//! - [`text`], [`json`], [`html`]: reports for people and scripts.

pub mod answer;
pub mod answer_times;
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
pub mod json;
pub mod knee;
pub mod latency;
pub mod machine;
pub mod merge;
pub mod probe;
pub mod quic;
pub mod rank;
pub mod record;
pub mod run;
pub mod slo;
pub mod surroundings;
pub mod text;
pub mod trend;
pub mod verdict;

pub use answer::BrokenAnswer;
pub use answer_times::AnswerTimes;
pub use history::{History, Operation, Outcome};
pub use verdict::{Verdict, Violation};
