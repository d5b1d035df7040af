//! Whole nodes over loopback, in one process. Mutual TLS: which peers each end accepts, and which it
//! refuses. How a cluster begins, and what operators are answered.

mod accepted;
mod authorities;
mod crowd;
mod dialled;
mod founding;
mod intruders;
mod lines;
mod old_members;
mod operators;
mod rotation;
mod secured;
