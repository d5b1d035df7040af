//! Settings of the log. The binary starts the log.

/// Settings of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Logging {
    /// Log at debug level instead of info (`DEBUG`).
    pub debug: bool,
    /// Write lines for people instead of JSON (`PRETTY`).
    pub pretty: bool,
    /// Write times as Unix milliseconds instead of RFC 3339 (`LOG_TIME_MS`).
    pub time_ms: bool,
}
