//! The replica in short scenarios: Raft's rules, the Raft library's traps, damaged disks, members
//! that come and go. `proof/sim` covers random faults over whole clusters.

mod support;

mod admin;
mod advance;
mod campaigns;
mod clients;
mod closing;
mod disks;
mod election;
mod format;
mod garbage;
mod give_back;
mod graceful_shutdown;
mod leader_checks;
mod leadership;
mod leases;
mod membership;
mod operators;
mod own_disk;
mod positions;
mod preferences;
mod refusals;
mod settings;
