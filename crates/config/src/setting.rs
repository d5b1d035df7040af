//! One row of the table of settings, and how its text becomes a value.

use std::ops::RangeInclusive;

use crate::config::Config;
use crate::values::{switch, whole_number};

/// One setting. Its flag and its key follow from its name: `HTTP_PORT` is `--http-port` on the
/// command line and `http_port` in the file.
#[derive(Debug)]
pub struct Setting {
    /// The name of the environment variable, in capitals.
    pub name: &'static str,
    /// The placeholder for the value in the help.
    pub value: &'static str,
    /// The value if none is given.
    pub default: DefaultValue,
    /// What the setting does, for the help.
    pub help: &'static str,
    /// The type of the value, its range, and the field that holds it.
    pub kind: Kind,
}

/// The value that a setting has if the operator gives none.
#[derive(Clone, Copy, Debug)]
pub enum DefaultValue {
    /// The default is this text, parsed like a text that the operator gave.
    Is(&'static str),
    /// There is no fixed default. This text describes it for people: the setting is required, is
    /// absent, or follows from other settings.
    Words(&'static str),
}

/// The type of a value.
#[derive(Debug)]
pub enum Kind {
    /// A whole number.
    Number {
        /// The values allowed, both ends included.
        range: RangeInclusive<u64>,
        /// The unit in words; empty for a number without a unit.
        unit: &'static str,
        /// Reads the field.
        get: fn(&Config) -> u64,
        /// Writes the value, which is within `range`, to its field.
        set: fn(&mut Config, u64),
    },
    /// On or off.
    Switch(fn(&mut Config, bool)),
    /// Any other text.
    Text {
        /// The values allowed, in words.
        allowed: &'static str,
        /// Parses the text and writes the value to its field. Returns `None` if the text is not
        /// allowed.
        set: fn(&mut Config, &str) -> Option<()>,
    },
}

impl Setting {
    /// Returns the name of the flag, without the dashes in front.
    #[must_use]
    pub fn flag(&self) -> String {
        self.name.to_ascii_lowercase().replace('_', "-")
    }

    /// Returns the key in the TOML file.
    #[must_use]
    pub fn key(&self) -> String {
        self.name.to_ascii_lowercase()
    }

    /// The values allowed, in words.
    #[must_use]
    pub fn allowed(&self) -> String {
        match &self.kind {
            Kind::Number { range, unit, .. } => {
                let space = if unit.is_empty() { "" } else { " " };
                let (min, max) = (range.start(), range.end());
                if *max == u64::MAX {
                    format!("allowed is a whole number from {min}{space}{unit}")
                } else {
                    format!("allowed is a whole number from {min} to {max}{space}{unit}")
                }
            }
            Kind::Switch(_) => "allowed are 1, true, on and 0, false, off".to_owned(),
            Kind::Text { allowed, .. } => format!("allowed is {allowed}"),
        }
    }

    /// Parses `text` into its field; `None` if the text is not allowed.
    #[must_use]
    pub fn apply(&self, config: &mut Config, text: &str) -> Option<()> {
        match &self.kind {
            Kind::Number { range, set, .. } => {
                let number = whole_number(text).filter(|number| range.contains(number))?;
                set(config, number);
                Some(())
            }
            Kind::Switch(set) => {
                set(config, switch(text)?);
                Some(())
            }
            Kind::Text { set, .. } => set(config, text),
        }
    }
}

impl DefaultValue {
    /// The text that the help shows.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Is(text) | Self::Words(text) => text,
        }
    }
}
