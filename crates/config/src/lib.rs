//! The settings of a node: one table, parsed and checked once. The caller passes flags, environment
//! and file as text, and gets a checked [`Config`]. This crate reads no environment and no command
//! line. The only file that it opens is the TOML file of settings.
//!
//! - [`config`]: every setting as a typed field; [`defaults`] fills the fields, [`check`] checks
//!   them.
//! - [`table`]: the name, default, range, help and field of every setting; [`setting`]: one row of
//!   it.
//! - [`sources`]: the priority of the sources: flag, environment variable, file, default.
//! - [`mod@file`]: the TOML file; [`values`]: the text of a setting becomes a value.
//! - [`addresses`], [`allowed_from`], [`authz`], [`intervals`], [`leases`], [`limits`], [`links`], [`logging`],
//!   [`tls`]: parts of a configuration.
//! - [`timing`]: which election settings links of a given round trip need; [`tune`]: whether a
//!   cluster has them.
//! - [`error`]: why a configuration is refused.

pub mod addresses;
pub mod allowed_from;
pub mod authz;
pub mod check;
pub mod config;
pub mod defaults;
pub mod error;
pub mod file;
pub mod intervals;
pub mod leases;
pub mod limits;
pub mod links;
pub mod logging;
pub mod setting;
pub mod sources;
pub mod table;
pub mod timing;
pub mod tls;
pub mod tune;
pub mod values;

pub use addresses::{host_and_port, is_loopback};
pub use allowed_from::{AllowedFrom, NETWORKS_MAX};
pub use authz::AuthorizationConfig;
pub use config::{
    CLUSTER_NAME_DEFAULT, CLUSTER_NAME_LEN_MAX, Config, PEERS_MAX, RESERVATION_ELECTIONS_MIN,
};
pub use defaults::{default_raft_bind, default_reservation};
pub use error::ConfigError;
pub use intervals::Intervals;
pub use leases::{LeaseClock, Leases};
pub use limits::Limits;
pub use links::{Links, PeerTlsMode};
pub use logging::Logging;
pub use setting::{DefaultValue, Kind, Setting};
pub use sources::{CONFIG, Effective, Environment, Flags, Given, Scope, SettingError, variable};
pub use table::{Group, settings};
pub use timing::{Timing, is_too_tight};
pub use tls::{CERT_FILE_DEFAULT, ClientTlsMode, KEY_FILE_DEFAULT, Tls};
pub use values::{CPU_MAX, whole_number};
