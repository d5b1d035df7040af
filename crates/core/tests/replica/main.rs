//! The replica, proven: stories whose names are the claims, the traps of the Raft library, and a
//! randomized run of whole clusters with a checker that must find planted bugs.

mod support;

mod advance;
mod campaigns;
mod chaos;
mod clients;
mod departure;
mod disks;
mod duties;
mod election;
mod format;
mod garbage;
mod leadership;
mod membership;
mod operators;
mod planted;
mod positions;
mod preferences;
mod refusals;
mod settings;
