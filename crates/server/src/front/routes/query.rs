//! The parameters of a request for timestamps: `n`, `format` and `guarantee`; for the latest one, no
//! `n`.
//! The meaning of an invalid query is never guessed: the query is refused with a specific code. For
//! fast paths, this module also says which bytes of a query and which request ids they take.

use epicepoch_core::sequencer::LATEST;
use epicepoch_wire::http::{ErrorCode, RANGE_COUNT_MAX, REQUEST_ID_LEN_MAX};
use epicepoch_wire::interval::INTERVAL_N_MAX;
use epicepoch_wire::{COMPACT_INDEXES, EpochIndex, Guarantee, ProvedBy, Timestamp, TimestampRange};

use crate::shared::NodeShared;

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
    /// The compact timestamps, 8 bytes each, one after another.
    U64,
    /// The first compact timestamp and the count, 16 bytes.
    U64Range,
}

impl Format {
    const ALL: [Self; 5] = [Self::Binary, Self::Range, Self::Json, Self::U64, Self::U64Range];

    const fn name(self) -> &'static str {
        match self {
            Self::Binary => "binary",
            Self::Range => "range",
            Self::Json => "json",
            Self::U64 => "u64",
            Self::U64Range => "u64range",
        }
    }

    /// Whether the answer has only compact timestamps.
    #[inline]
    #[must_use]
    pub const fn is_compact(self) -> bool {
        matches!(self, Self::U64 | Self::U64Range)
    }

    /// Whether the answer has no list of timestamps.
    const fn is_range(self) -> bool {
        matches!(self, Self::Range | Self::U64Range)
    }
}

/// What requests may ask for at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// At most this many single timestamps.
    pub max_n: u64,
    /// Whether the cluster gives compact timestamps. Then no answer has more than a millisecond has,
    /// and fast paths give compact timestamps.
    pub is_compact: bool,
}

/// The limit of single timestamps in a cluster that gives wide ones.
impl From<u64> for Limits {
    fn from(max_n: u64) -> Self {
        Self { max_n, is_compact: false }
    }
}

impl Limits {
    /// The limits of a node that leads.
    #[inline]
    #[must_use]
    pub(crate) fn of(shared: &NodeShared) -> Self {
        Self { max_n: shared.max_n(), is_compact: shared.is_compact() }
    }

    /// The most timestamps of one answer.
    fn count_max(self, format: Format) -> u64 {
        let count_max = if format.is_range() { RANGE_COUNT_MAX } else { self.max_n };
        let is_compact = self.is_compact || format.is_compact();
        if is_compact { count_max.min(COMPACT_INDEXES) } else { count_max }
    }
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
    pub fn parse_latest_fast(query: &str, limits: Limits) -> Option<Self> {
        let ask = Self::parse_latest(query.strip_prefix('?')).ok()?;
        match ask.format {
            Format::Binary => Some(ask),
            Format::U64 => limits.is_compact.then_some(ask),
            Format::Range | Format::Json | Format::U64Range => None,
        }
    }

    /// Parses a query, with its question mark, that a fast path can answer. `None` for the others,
    /// which the service answers: invalid queries, JSON, long lists, and compact timestamps of a
    /// cluster that does not give them. It never stops giving them (S21), so a request that is parsed
    /// here gets them.
    #[inline]
    #[must_use]
    pub fn parse_fast(query: &str, limits: impl Into<Limits>) -> Option<Self> {
        let Some(query) = query.strip_prefix('?') else { return Some(Self::ONE) };
        let limits = limits.into();
        let ask = Self::parse(Some(query), limits).ok()?;
        if ask.format.is_compact() && !limits.is_compact {
            return None;
        }
        match ask.format {
            Format::Binary | Format::U64 => (ask.count <= LIST_COUNT_MAX).then_some(ask),
            Format::Range | Format::U64Range => Some(ask),
            Format::Json => None,
        }
    }

    /// Length of the answer's body if it is binary, bytes. A JSON body is longer.
    #[inline]
    #[must_use]
    pub const fn body_len(self) -> usize {
        match self.format {
            Format::Range => TimestampRange::LEN,
            Format::U64Range => 2 * size_of::<u64>(),
            Format::U64 if self.count == LATEST => size_of::<u64>(),
            Format::U64 => self.count as usize * size_of::<u64>(),
            // The latest timestamp is one, too.
            Format::Binary | Format::Json if self.count == LATEST => Timestamp::LEN,
            Format::Binary | Format::Json => self.count as usize * Timestamp::LEN,
        }
    }

    /// Appends the binary body of the answer. Its first timestamp, or the latest one, is `first`.
    ///
    /// # Panics
    /// When the epoch has too few timestamps from `first` on, or when they have no compact spelling,
    /// and the format needs one (S21).
    pub(crate) fn put_body(self, first: Timestamp, out: &mut Vec<u8>) {
        if self.count <= 1 && self.format == Format::Binary {
            return out.extend_from_slice(&first.to_bytes());
        }
        let Some(range) = TimestampRange::new(first, self.count.max(1)) else {
            unreachable!("a range within an epoch was taken")
        };
        if self.format.is_compact() {
            return put_compact(self.format, &range, out);
        }
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

    /// Parses a query for as many timestamps as `limits` allow. Other keys than these are refused:
    /// otherwise a misspelt `n` would get one timestamp without a warning, and a misspelt
    /// `guarantee` another guarantee.
    ///
    /// # Errors
    /// When any part of the query is invalid.
    pub fn parse(query: Option<&str>, limits: impl Into<Limits>) -> Result<Self, BadQuery> {
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
            Some(word) => {
                let found = Format::ALL.into_iter().find(|format| format.name() == word);
                found.ok_or_else(|| {
                    let text = "format must be binary, range, json, u64 or u64range".to_owned();
                    BadQuery { code: ErrorCode::BadFormat, text }
                })?
            }
        };
        let guarantee = parse_guarantee(guarantee)?;
        let limits = limits.into();
        let count_max = limits.count_max(format);
        let count = match n {
            None => Some(1),
            Some(text) => decimal(text).filter(|count| (1..=count_max).contains(count)),
        };
        count.map(|count| Self { count, format, guarantee }).ok_or_else(|| {
            let hint = match format {
                _ if count_max == COMPACT_INDEXES => {
                    "; a millisecond has no more compact timestamps"
                }
                Format::Binary | Format::Json => "; format=range allows more",
                Format::U64 => "; format=u64range allows more",
                Format::Range | Format::U64Range => "",
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
            Some("u64") => Format::U64,
            Some(_) => {
                let text = "format must be binary, json or u64".to_owned();
                return Err(BadQuery { code: ErrorCode::BadFormat, text });
            }
        };
        Ok(Self { count: LATEST, format, guarantee: parse_guarantee(guarantee)? })
    }
}

/// A parsed query for interval timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IntervalAsk {
    /// How many timestamps, from 1 to [`INTERVAL_N_MAX`].
    pub(crate) count: u64,
    pub(crate) is_json: bool,
}

impl IntervalAsk {
    /// Parses a query of `/interval`.
    ///
    /// # Errors
    /// When any part of the query is invalid.
    pub(crate) fn parse(query: Option<&str>) -> Result<Self, BadQuery> {
        let (mut n, mut format) = (None, None);
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (code, seen) = match key {
                "n" => (ErrorCode::BadCount, n.replace(value)),
                "format" => (ErrorCode::BadFormat, format.replace(value)),
                _ => {
                    let text = "unknown parameter; /interval takes n and format".to_owned();
                    return Err(BadQuery { code: ErrorCode::BadRequest, text });
                }
            };
            if seen.is_some() {
                return Err(BadQuery { code, text: format!("{key} is given twice; give it once") });
            }
        }
        let is_json = match format {
            None | Some("binary") => false,
            Some("json") => true,
            Some(_) => {
                let text = "format must be binary or json".to_owned();
                return Err(BadQuery { code: ErrorCode::BadFormat, text });
            }
        };
        let count = n.map_or(Some(1), decimal).filter(|count| (1..=INTERVAL_N_MAX).contains(count));
        count.map(|count| Self { count, is_json }).ok_or_else(|| {
            let text = format!("n must be a whole number from 1 to {INTERVAL_N_MAX}");
            BadQuery { code: ErrorCode::BadCount, text }
        })
    }
}

/// Appends compact timestamps: the first and the count, or all of them.
fn put_compact(format: Format, range: &TimestampRange, out: &mut Vec<u8>) {
    // S21: the format was accepted because the cluster gives compact timestamps.
    let first = range.compact_first().expect("S21: a timestamp without a compact spelling");
    if format == Format::U64Range {
        out.extend_from_slice(&first.to_be_bytes());
        return out.extend_from_slice(&range.count().to_be_bytes());
    }
    for compact in first..first + range.count() {
        out.extend_from_slice(&compact.to_be_bytes());
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
    fn a_query_for_interval_timestamps_takes_a_count_and_json() {
        let parse = |query| IntervalAsk::parse(query).map_err(|bad| bad.code);
        let ask = |count, is_json| Ok(IntervalAsk { count, is_json });
        assert_eq!(parse(None), ask(1, false));
        assert_eq!(parse(Some("n=4294967296&format=json")), ask(1 << 32, true));
        for (query, code) in [
            ("n=0", ErrorCode::BadCount),
            ("n=4294967297", ErrorCode::BadCount),
            ("n=+1", ErrorCode::BadCount),
            ("n=1&n=1", ErrorCode::BadCount),
            ("format=range", ErrorCode::BadFormat),
            ("guarantee=quorum", ErrorCode::BadRequest),
        ] {
            assert_eq!(parse(Some(query)), Err(code), "{query}");
        }
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
    fn compact_timestamps_are_at_most_those_of_a_millisecond() {
        const LIMITS: Limits = Limits { max_n: 1 << 20, is_compact: true };
        for (query, count_max) in [
            ("format=u64range", 1 << 18),
            ("format=u64", 1 << 18),
            ("format=range", 1 << 18),
            ("format=binary", 1 << 18),
            ("format=json", 1 << 18),
        ] {
            let parse = |count: u64| Ask::parse(Some(&format!("{query}&n={count}")), LIMITS);
            assert!(parse(count_max).is_ok_and(|ask| ask.count == count_max), "{query}");
            let bad = parse(count_max + 1).expect_err("too many");
            assert_eq!(bad.code, ErrorCode::BadCount);
            assert!(bad.text.contains("millisecond"), "{}", bad.text);
        }
        // A cluster that gives wide timestamps refuses the format later, when it has proved that.
        assert_eq!(parse("format=u64&n=65537"), Err(ErrorCode::BadCount));
        assert_eq!(parse("format=u64range&n=262144"), Ok((1 << 18, Format::U64Range)));
        assert_eq!(parse("format=u64range&n=262145"), Err(ErrorCode::BadCount));
    }

    #[test]
    fn fast_paths_give_compact_timestamps_only_where_the_cluster_does() {
        let fast = |query: &str, is_compact| {
            Ask::parse_fast(query, Limits { max_n: 9, is_compact }).map(|ask| ask.format)
        };
        let latest = |query: &str, is_compact| {
            Ask::parse_latest_fast(query, Limits { max_n: 9, is_compact }).map(|ask| ask.format)
        };
        for (query, format) in
            [("?format=u64", Format::U64), ("?format=u64range", Format::U64Range)]
        {
            assert_eq!((fast(query, true), fast(query, false)), (Some(format), None));
        }
        assert_eq!(latest("?format=u64", true), Some(Format::U64));
        assert_eq!((latest("?format=u64", false), latest("?format=u64range", true)), (None, None));
        assert_eq!(fast("?n=3", true), Some(Format::Binary));
    }

    #[test]
    fn a_compact_body_has_the_spellings_of_the_same_timestamps() {
        let first = Timestamp::from_compact(1_700_000_000_123 << 18 | 7).expect("a timestamp");
        for (query, len) in [("n=3&format=u64", 24), ("n=3&format=u64range", 16), ("format=u64", 8)]
        {
            let ask = Ask::parse(Some(query), 9).expect("a query");
            let mut out = Vec::new();
            ask.put_body(first, &mut out);
            assert_eq!((ask.body_len(), out.len()), (len, len), "{query}");
            let words: Vec<_> =
                out.as_chunks().0.iter().map(|word| u64::from_be_bytes(*word)).collect();
            let compact = first.to_compact().expect("compact");
            let expected =
                [compact, if query.contains("range") { 3 } else { compact + 1 }, compact + 2];
            assert_eq!(words, expected[..len / 8], "{query}");
        }
        let latest = Ask::parse_latest(Some("format=u64")).expect("a query");
        let mut out = Vec::new();
        latest.put_body(first, &mut out);
        assert_eq!((latest.body_len(), out.len()), (8, 8));
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
        let fast =
            Ask::parse_latest_fast("?guarantee=quorum", 9.into()).and_then(|ask| ask.guarantee);
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
