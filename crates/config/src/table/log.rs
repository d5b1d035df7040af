//! Settings of the log.

use crate::setting::DefaultValue::{Is, Words};
use crate::setting::{Kind, Setting};

pub(crate) const LOG: &[Setting] = &[
    Setting {
        name: "DEBUG",
        value: "SWITCH",
        default: Is("off"),
        help: "Log debug messages, too",
        kind: Kind::Switch(|c, on| c.logging.debug = on),
    },
    Setting {
        name: "PRETTY",
        value: "SWITCH",
        default: Words("off (JSON lines); on for dev"),
        help: "Log lines for people instead of JSON",
        kind: Kind::Switch(|c, on| c.logging.pretty = on),
    },
    Setting {
        name: "LOG_TIME_MS",
        value: "SWITCH",
        default: Words("off (RFC 3339)"),
        help: "Log the time as Unix milliseconds",
        kind: Kind::Switch(|c, on| c.logging.time_ms = on),
    },
];
