//! Load, latency and correctness of a timestamp oracle, measured from outside: over its HTTP
//! interface, as any client sees it. It knows nothing of Raft and never looks into a server.
//!
//! - [`history`]: the black-box checker. Was any timestamp given twice, did any answer come out
//!   of real-time order?
//! - [`verdict`]: what the checker found, told as a story.
//! - [`http1`]: an HTTP/1.1 connection that is thin enough to measure with.
//! - [`load`]: the closed-loop load generator, which follows the leader or drives every node.
//! - [`report`]: what a load saw: answers, failures by kind, latency, the longest silence.

pub mod history;
pub mod http1;
pub mod load;
pub mod report;
pub mod verdict;

pub use history::{History, Operation, Outcome};
pub use load::{LoadConfig, Node, Routing, RunningLoad};
pub use report::{AnswerTimes, FailureKind, Report};
pub use verdict::{Verdict, Violation};
