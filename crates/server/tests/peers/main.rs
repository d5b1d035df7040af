//! Mutual TLS between whole nodes over loopback: who is taken for a member of the cluster, on either
//! end of a connection, and who is not.

mod authorities;
mod crowd;
mod dialled;
mod intruders;
mod old_members;
mod rotation;
mod secured;
