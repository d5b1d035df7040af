//! Load, latency and correctness of a timestamp oracle, measured from outside, as a client sees it.
//!
//! - [`history`]: the black-box checker of uniqueness and real-time order; [`verdict`]: its
//!   findings.
//! - [`run`]: the generator of `epicepoch bench run`, and of the load of tests. [`http1`],
//!   [`http2`] and [`quic`]: its connections.
//! - [`answer_times`]: when answers came, and the silences between them.
//! - [`latency`]: histograms; [`hiccup`], [`machine`]: stalls and load of the machine.
//! - [`probe`]: the figures of `epicepoch probe`; [`exporter`] serves them.
//! - [`floor`]: what the machine itself can do.
//! - [`record`]: the report of a run in JSON, with [`encoded`] histograms; [`text`]: the same for
//!   people; [`hlog`]: its latency for other tools.
//! - [`compare`] with [`rank`]: several reports.

pub mod answer;
pub mod answer_times;
pub mod compare;
pub mod encoded;
pub mod exporter;
pub mod floor;
pub mod hiccup;
pub mod history;
pub mod hlog;
pub mod http1;
pub mod http2;
pub mod latency;
pub mod machine;
pub mod probe;
pub mod quic;
pub mod rank;
pub mod record;
pub mod run;
pub mod text;
pub mod verdict;

pub use answer::BrokenAnswer;
pub use answer_times::AnswerTimes;
pub use history::{History, Operation, Outcome};
pub use verdict::{Verdict, Violation};
