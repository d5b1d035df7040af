//! Mutual TLS between whole nodes over loopback: which peers each end accepts, and which it refuses.

mod accepted;
mod authorities;
mod crowd;
mod dialled;
mod intruders;
mod old_members;
mod rotation;
mod secured;
