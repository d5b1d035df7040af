//! The parameters of a request for timestamps: `n`, `format` and `guarantee`; for the latest one, no
//! `n`.
//! The meaning of an invalid query is never guessed: the query is refused with a specific code. For
//! fast paths, this module also says which bytes of a query and which request ids they take.

use epicepoch_core::sequencer::LATEST;
use epicepoch_wire::http::{ErrorCode, RANGE_COUNT_MAX, REQUEST_ID_LEN_MAX};
use epicepoch_wire::{EpochIndex, Guarantee, ProvedBy, Timestamp, TimestampRange};

/// At most this many bytes in a query on a fast path: all parameters with their longest values.
const FAST_QUERY_LEN_MAX: usize = 64;
/// At most this many timestamps in one answer of a fast path, 16 kB. Longer lists are made in
/// chunks while they are sent; a fast path cannot do that.
pub const LIST_COUNT_MAX: u64 = 1000;

/// The form of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The timestamps, 16 bytes each, one after another.
    #[default]
    Binary,
    /// The first timestamp and the count, 24 bytes.
    Range,
    /// JSON, for people.
    Json,
}

/// A parsed query. Invariant: `count` is [`LATEST`], or at least 1 and at most the maximum of its
/// format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// How many timestamps.
    pub count: u64,
    /// The form of the answer.
    pub format: Format,
    /// The guarantee that the request names, if it names one. Then the answer always says what has
    /// proved it.
    pub guarantee: Option<Guarantee>,
}

/// Why a query is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadQuery {
    /// The specific error code.
    pub code: ErrorCode,
    /// One line that tells the client what to do.
    pub text: String,
}

impl Ask {
    /// A request for one timestamp.
    pub(crate) const ONE: Self = Self { count: 1, format: Format::Binary, guarantee: None };

    /// What the answer says of its proof, if `proved_by` has proved it. The answer to a request that
    /// names no guarantee says it only of a lease.
    #[inline]
    #[must_use]
    pub fn shown(self, proved_by: ProvedBy) -> Option<ProvedBy> {
        let is_shown = self.guarantee.is_some() || proved_by == ProvedBy::Lease;
        is_shown.then_some(proved_by)
    }

    /// Parses a query for the latest timestamp, with its question mark, that a fast path can
    /// answer. `None` for the others, which the service answers: invalid queries and JSON.
    #[must_use]
    pub fn parse_latest_fast(query: &str) -> Option<Self> {
        let ask = Self::parse_latest(query.strip_prefix('?')).ok()?;
        (ask.format == Format::Binary).then_some(ask)
    }

    /// Parses a query, with its question mark, that a fast path can answer. `None` for the others,
    /// which the service answers: invalid queries, JSON and long lists.
    #[inline]
    #[must_use]
    pub fn parse_fast(query: &str, max_n: u64) -> Option<Self> {
        let Some(query) = query.strip_prefix('?') else { return Some(Self::ONE) };
        let ask = Self::parse(Some(query), max_n).ok()?;
        match ask.format {
            Format::Binary => (ask.count <= LIST_COUNT_MAX).then_some(ask),
            Format::Range => Some(ask),
            Format::Json => None,
        }
    }

    /// Length of the answer's body if it is binary, bytes. A JSON body is longer.
    #[inline]
    #[must_use]
    pub const fn body_len(self) -> usize {
        match self.format {
            Format::Range => TimestampRange::LEN,
            // The latest timestamp is one, too.
            Format::Binary | Format::Json if self.count == LATEST => Timestamp::LEN,
            Format::Binary | Format::Json => self.count as usize * Timestamp::LEN,
        }
    }

    /// Appends the binary body of the answer. Its first timestamp, or the latest one, is `first`.
    ///
    /// # Panics
    /// When the epoch has too few timestamps from `first` on.
    pub(crate) fn put_body(self, first: Timestamp, out: &mut Vec<u8>) {
        if self.count <= 1 && self.format == Format::Binary {
            return out.extend_from_slice(&first.to_bytes());
        }
        let Some(range) = TimestampRange::new(first, self.count) else {
            unreachable!("a range within an epoch was taken")
        };
        if self.format == Format::Range {
            return out.extend_from_slice(&range.to_bytes());
        }
        let start = out.len();
        out.resize(start + self.body_len(), 0);
        let (places, _) = out[start..].as_chunks_mut();
        for (place, at) in places.iter_mut().zip(0..) {
            // The range does not go beyond the last index.
            let index = EpochIndex(first.index.0 + at);
            *place = Timestamp::new(first.epoch, index).to_bytes();
        }
    }

    /// Parses a query for at most `max_n` single timestamps. Other keys than these are refused:
    /// otherwise a misspelt `n` would get one timestamp without a warning, and a misspelt
    /// `guarantee` another guarantee.
    ///
    /// # Errors
    /// When any part of the query is invalid.
    pub fn parse(query: Option<&str>, max_n: u64) -> Result<Self, BadQuery> {
        let Some(query) = query else { return Ok(Self::ONE) };
        let (mut n, mut format, mut guarantee) = (None, None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (code, seen) = match key {
                "n" => (ErrorCode::BadCount, n.replace(value)),
                "format" => (ErrorCode::BadFormat, format.replace(value)),
                "guarantee" => (ErrorCode::BadRequest, guarantee.replace(value)),
                _ => {
                    let text = "unknown parameter; /timestamp takes n, format and guarantee".into();
                    return Err(BadQuery { code: ErrorCode::BadRequest, text });
                }
            };
            if seen.is_some() {
                return Err(BadQuery { code, text: format!("{key} is given twice; give it once") });
            }
        }
        let format = match format {
            None => Format::default(),
            Some("binary") => Format::Binary,
            Some("range") => Format::Range,
            Some("json") => Format::Json,
            Some(_) => {
                let text = "format must be binary, range or json".to_owned();
                return Err(BadQuery { code: ErrorCode::BadFormat, text });
            }
        };
        let guarantee = parse_guarantee(guarantee)?;
        let count_max = match format {
            Format::Binary | Format::Json => max_n,
            Format::Range => RANGE_COUNT_MAX,
        };
        let count = match n {
            None => Some(1),
            Some(text) => decimal(text).filter(|count| (1..=count_max).contains(count)),
        };
        count.map(|count| Self { count, format, guarantee }).ok_or_else(|| {
            let hint = match format {
                Format::Binary | Format::Json => "; format=range allows more",
                Format::Range => "",
            };
            let text = format!("n must be a whole number from 1 to {count_max}{hint}");
            BadQuery { code: ErrorCode::BadCount, text }
        })
    }

    /// Parses a query for the latest timestamp. It takes no `n` and no range: there is only one
    /// latest timestamp.
    ///
    /// # Errors
    /// When any part of the query is invalid.
    pub fn parse_latest(query: Option<&str>) -> Result<Self, BadQuery> {
        let (mut format, mut guarantee) = (None, None);
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (code, seen) = match key {
                "format" => (ErrorCode::BadFormat, format.replace(value)),
                "guarantee" => (ErrorCode::BadRequest, guarantee.replace(value)),
                _ => {
                    let text = "unknown parameter; /latest takes format and guarantee".to_owned();
                    return Err(BadQuery { code: ErrorCode::BadRequest, text });
                }
            };
            if seen.is_some() {
                return Err(BadQuery { code, text: format!("{key} is given twice; give it once") });
            }
        }
        let format = match format {
            None | Some("binary") => Format::Binary,
            Some("json") => Format::Json,
            Some(_) => {
                let text = "format must be binary or json".to_owned();
                return Err(BadQuery { code: ErrorCode::BadFormat, text });
            }
        };
        Ok(Self { count: LATEST, format, guarantee: parse_guarantee(guarantee)? })
    }
}

/// Parses the value of `guarantee`, if it is given.
fn parse_guarantee(given: Option<&str>) -> Result<Option<Guarantee>, BadQuery> {
    let Some(word) = given else { return Ok(None) };
    word.parse().map(Some).map_err(|_| {
        let text = "guarantee must be quorum or lease".to_owned();
        BadQuery { code: ErrorCode::BadRequest, text }
    })
}

/// The query at the start of `bytes`, with its question mark; empty if there is none. A fast path
/// takes letters, digits, `=` and `&`. `None` if the query is too long.
#[inline]
pub(crate) fn fast_query(bytes: &[u8]) -> Option<&str> {
    let Some((b'?', rest)) = bytes.split_first() else { return Some("") };
    let is_of_query = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'=' | b'&');
    let len = rest.iter().take_while(|byte| is_of_query(byte)).count();
    if len > FAST_QUERY_LEN_MAX { None } else { std::str::from_utf8(&bytes[..=len]).ok() }
}

/// Whether a fast path takes this request id.
pub(crate) fn is_fast_request_id(id: &[u8]) -> bool {
    (1..=REQUEST_ID_LEN_MAX).contains(&id.len())
}

/// Parses a number of decimal digits only: no sign, no space, no exponent.
fn decimal(text: &str) -> Option<u64> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_plain { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<(u64, Format), ErrorCode> {
        let asked = Ask::parse(Some(query), 65_536);
        asked.map(|ask| (ask.count, ask.format)).map_err(|bad| bad.code)
    }

    #[test]
    fn valid_queries_are_parsed() {
        let one = Ask { count: 1, format: Format::Binary, guarantee: None };
        assert_eq!(Ask::parse(None, 9), Ok(one));
        for (query, count, format) in [
            ("", 1, Format::Binary),
            ("n=3", 3, Format::Binary),
            ("n=0003", 3, Format::Binary),
            ("n=65536", 65_536, Format::Binary),
            ("format=json", 1, Format::Json),
            ("format=range&n=4294967296", 1 << 32, Format::Range),
            ("n=4294967296&format=range", 1 << 32, Format::Range),
            ("&n=2&", 2, Format::Binary),
        ] {
            assert_eq!(parse(query), Ok((count, format)), "{query}");
        }
    }

    #[test]
    fn a_bad_count_is_refused() {
        for query in [
            "n=0",
            "n=-1",
            "n=1e30",
            "n=abc",
            "n=",
            "n",
            "n=65537",
            "n=1&n=1",
            "n=+1",
            "n=%31",
            "n=1.0",
            "n= 1",
            "n=99999999999999999999999",
            "n=65537&format=json",
            "n=4294967297&format=range",
            "n=0x10",
            "n=１",
        ] {
            assert_eq!(parse(query), Err(ErrorCode::BadCount), "{query}");
        }
    }

    #[test]
    fn a_query_for_the_latest_timestamp_takes_a_format_and_nothing_else() {
        let parse = |query| {
            let ask = Ask::parse_latest(query).map_err(|bad| bad.code)?;
            assert_eq!(ask.count, LATEST);
            Ok(ask.format)
        };
        assert_eq!(parse(None), Ok(Format::Binary));
        for (query, format) in [
            ("", Format::Binary),
            ("format=binary", Format::Binary),
            ("&format=json&", Format::Json),
        ] {
            assert_eq!(parse(Some(query)), Ok(format), "{query}");
        }
        for query in ["format=range", "format=", "format", "format=json&format=json"] {
            assert_eq!(parse(Some(query)), Err(ErrorCode::BadFormat), "{query}");
        }
        for query in ["n=1", "n=1&format=json", "Format=json"] {
            assert_eq!(parse(Some(query)), Err(ErrorCode::BadRequest), "{query}");
        }
    }

    #[test]
    fn a_guarantee_is_named_once_by_one_of_its_two_words() {
        for (query, named) in [
            ("", None),
            ("guarantee=quorum", Some(Guarantee::Quorum)),
            ("guarantee=lease", Some(Guarantee::Lease)),
            ("format=json&guarantee=lease", Some(Guarantee::Lease)),
        ] {
            for ask in [Ask::parse(Some(query), 9), Ask::parse_latest(Some(query))] {
                let ask = ask.expect("a valid query");
                assert_eq!(ask.guarantee, named, "{query}");
                let (round, lease) = (ProvedBy::Round, ProvedBy::Lease);
                assert_eq!(ask.shown(round), named.map(|_| round), "{query}");
                assert_eq!(ask.shown(lease), Some(lease), "{query}");
            }
        }
        for query in [
            "guarantee=",
            "guarantee",
            "guarantee=Lease",
            "guarantee=round",
            "guarantee=lease&guarantee=lease",
            "guarantee=lease&guarantee=quorum",
            "garantee=lease",
        ] {
            assert_eq!(parse(query), Err(ErrorCode::BadRequest), "{query}");
            let latest = Ask::parse_latest(Some(query)).map_err(|bad| bad.code);
            assert_eq!(latest.err(), Some(ErrorCode::BadRequest), "{query}");
        }
        let fast = Ask::parse_fast("?n=3&guarantee=lease", 9).and_then(|ask| ask.guarantee);
        assert_eq!(fast, Some(Guarantee::Lease));
        let fast = Ask::parse_latest_fast("?guarantee=quorum").and_then(|ask| ask.guarantee);
        assert_eq!(fast, Some(Guarantee::Quorum));
        assert_eq!(Ask::parse_fast("?guarantee=none", 9), None);
    }

    #[test]
    fn a_bad_format_and_an_unknown_key_are_refused() {
        for query in ["format=xml", "format=", "format", "format=json&format=json", "format=JSON"] {
            assert_eq!(parse(query), Err(ErrorCode::BadFormat), "{query}");
        }
        for query in ["m=3", "N=3", "=3", "count=3&n=1", "n =3"] {
            assert_eq!(parse(query), Err(ErrorCode::BadRequest), "{query}");
        }
    }
}
