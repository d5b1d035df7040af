//! The log of clients that send too much, with their addresses. For each kind of excess, at most
//! one client a second is logged, so that such clients cannot fill a disk. This module counts
//! nothing for metrics and refuses nothing: the callers do.

use std::net::IpAddr;

use super::line_limit::LineLimit;

/// How a client sends too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Excess {
    /// Its connection of HTTP/2 was closed for abuse.
    Http2Abuse,
    /// Its connection of HTTP/3 was closed for abuse.
    Http3Abuse,
    /// Its address exceeded its rate of requests.
    Rate,
}

impl Excess {
    const ALL: [Self; 3] = [Self::Http2Abuse, Self::Http3Abuse, Self::Rate];

    /// The value of the field `kind` in the log.
    const fn name(self) -> &'static str {
        match self {
            Self::Http2Abuse => "http2_abuse",
            Self::Http3Abuse => "http3_abuse",
            Self::Rate => "rate",
        }
    }
}

/// Logs clients that send too much.
#[derive(Debug, Default)]
pub struct ExcessLog {
    lines: [LineLimit; Excess::ALL.len()],
}

impl ExcessLog {
    /// Logs the client at `from`, if a line for this kind of excess is due.
    pub(crate) fn record(&self, kind: Excess, from: Option<IpAddr>, detail: &str, now_ns: u64) {
        let Some(others) = self.lines[kind as usize].due(now_ns) else { return };
        let addr = from.map_or_else(|| "unknown".to_owned(), |from| from.to_string());
        tracing::warn!(addr, kind = kind.name(), detail, others, "a client sends too much");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_lines_of_its_own() {
        for (position, kind) in Excess::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, position);
        }
    }
}
