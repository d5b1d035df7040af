//! The table of settings. Each row is at the same time an environment variable, a flag and a key of
//! the TOML file. Only this row has the name, default, range, help and field of a setting.

use crate::setting::Setting;

mod addresses;
mod identity;
mod limits;
mod log;
mod protocols;
mod security;
mod time;

/// The settings that the help shows below one heading.
#[derive(Debug)]
pub struct Group {
    /// The heading.
    pub heading: &'static str,
    /// Whether each node of a cluster has its own value. The command `dev` chooses such values
    /// itself.
    pub is_per_node: bool,
    /// The settings, in the order of the help.
    pub settings: &'static [Setting],
}

/// Every setting, in the order of the help.
pub static TABLE: [Group; 8] = [
    Group { heading: "Node and cluster", is_per_node: true, settings: identity::IDENTITY },
    Group { heading: "Addresses", is_per_node: true, settings: addresses::ADDRESSES },
    Group { heading: "Certificates", is_per_node: false, settings: security::TLS },
    Group { heading: "Epochs, elections and timeouts", is_per_node: false, settings: time::TIME },
    Group { heading: "Limits", is_per_node: false, settings: limits::LIMITS },
    Group { heading: "Protocols", is_per_node: false, settings: protocols::PROTOCOLS },
    Group { heading: "Authorization", is_per_node: false, settings: security::AUTHORIZATION },
    Group { heading: "Log", is_per_node: false, settings: log::LOG },
];

/// Every setting, in the order of the help.
pub fn settings() -> impl Iterator<Item = &'static Setting> {
    TABLE.iter().flat_map(|group| group.settings)
}

/// Returns the setting with this environment variable.
#[must_use]
pub fn named(name: &str) -> Option<&'static Setting> {
    settings().find(|setting| setting.name == name)
}
