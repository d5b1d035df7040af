//! Histograms as text: HdrHistogram's V2 encoding, compressed and in base64, as its tools write it
//! into `.hlog` files. Only histograms with the bounds of [`crate::latency`] are read, so that
//! adding them up loses nothing.

use std::io::Read as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use serde::de::Error as _;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer as Read, Serialize, Serializer as Write};
use thiserror::Error;

use crate::latency::{self, DIGITS, LATENCY_NS_MAX, LATENCY_NS_MIN, QUANTILES};

/// Why a text cannot be read as a histogram.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum EncodedError {
    /// The text is damaged, or is no histogram.
    #[error("no HdrHistogram in its compressed V2 encoding: {0}")]
    Malformed(String),
    /// The histogram has other bounds, so adding it to ours would lose precision.
    #[error("a histogram from {low} to {high} ns with {digits} digits, which is not ours")]
    OtherBounds {
        /// Its lowest distinct value, nanoseconds.
        low: u64,
        /// Its highest value, nanoseconds.
        high: u64,
        /// Its significant digits.
        digits: u8,
    },
}

/// Encodes a histogram as text.
#[must_use]
pub fn encode(histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new()
        .serialize(histogram, &mut bytes)
        .expect("writing into memory does not fail, and every count fits into the encoding");
    STANDARD.encode(bytes)
}

/// Reads a histogram.
///
/// # Errors
/// The text is damaged, or has other bounds.
pub fn decode(text: &str) -> Result<Histogram<u64>, EncodedError> {
    let malformed = |why: &dyn std::fmt::Display| EncodedError::Malformed(why.to_string());
    if text.len() > TEXT_LEN_MAX {
        return Err(malformed(&"it is longer than any of ours"));
    }
    let bytes = STANDARD.decode(text).map_err(|error| malformed(&error))?;
    let Some((head, deflated)) = bytes.split_first_chunk::<8>() else {
        return Err(malformed(&"it is cut"));
    };
    if head[..4] != COMPRESSED {
        return Err(malformed(&"it begins otherwise"));
    }
    let mut plain = Vec::new();
    let mut inflated = ZlibDecoder::new(deflated).take(PLAIN_LEN_MAX as u64 + 1);
    inflated.read_to_end(&mut plain).map_err(|error| malformed(&error))?;
    parse(&plain)
}

/// Reads the V2 encoding, neither compressed nor in base64.
///
/// # Errors
/// The bytes are damaged, or have other bounds.
pub fn parse(plain: &[u8]) -> Result<Histogram<u64>, EncodedError> {
    let malformed = |why: &dyn std::fmt::Display| EncodedError::Malformed(why.to_string());
    // The library allocates as many counts as the header claims, so the header is checked first.
    let Some((head, counts)) = plain.split_first_chunk::<HEAD_LEN>() else {
        return Err(malformed(&"it is cut"));
    };
    let number = |at: usize| u64::from_be_bytes(head[at..at + 8].try_into().expect("eight bytes"));
    let half = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
    // If the bytes were compressed, the library would inflate them and trust the header inside.
    if head[..4] != PLAIN {
        return Err(malformed(&"it begins otherwise"));
    }
    if plain.len() > PLAIN_LEN_MAX || half(4) as usize != counts.len() {
        return Err(malformed(&"its counts are not as long as it says"));
    }
    let (digits, low, high) = (half(12), number(16), number(24));
    if (low, high, digits) != (LATENCY_NS_MIN, LATENCY_NS_MAX, u32::from(DIGITS)) {
        let digits = u8::try_from(digits).unwrap_or(u8::MAX);
        return Err(EncodedError::OtherBounds { low, high, digits });
    }
    // This number would mean more empty buckets than the library can negate. No real count is so
    // large.
    if counts.windows(9).any(|number| number == [0xff; 9]) {
        return Err(malformed(&"it has a number that cannot be"));
    }
    Deserializer::new().deserialize(&mut &*plain).map_err(|error| malformed(&error))
}

/// A histogram of nanoseconds in a report. It is written as percentiles for people and scripts, and
/// as the field `histogram`. Only that field is read back.
#[derive(Clone, Debug, PartialEq)]
pub struct Times(pub Histogram<u64>);

impl Default for Times {
    fn default() -> Self {
        Self(latency::histogram())
    }
}

impl Serialize for Times {
    fn serialize<S: Write>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(times) = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("count", &times.len())?;
        if !times.is_empty() {
            for (name, share) in QUANTILES {
                map.serialize_entry(name, &times.value_at_quantile(share))?;
            }
            map.serialize_entry("min", &times.min())?;
            map.serialize_entry("max", &times.max())?;
            map.serialize_entry("mean", &times.mean())?;
        }
        map.serialize_entry("histogram", &encode(times))?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for Times {
    fn deserialize<R: Read<'de>>(reader: R) -> Result<Self, R::Error> {
        /// Percentiles are computed when writing, and ignored when reading.
        #[derive(Deserialize)]
        struct Stored {
            count: u64,
            histogram: String,
        }
        let Stored { count, histogram } = Stored::deserialize(reader)?;
        let times = decode(&histogram).map_err(R::Error::custom)?;
        if times.len() != count {
            return Err(R::Error::custom("count is not that of the histogram"));
        }
        Ok(Self(times))
    }
}

/// Longest text of a histogram, bytes: longer than any of ours.
const TEXT_LEN_MAX: usize = 1 << 20;
/// Longest uncompressed histogram, bytes: about 21,500 buckets of at most nine bytes.
const PLAIN_LEN_MAX: usize = 1 << 19;
/// The first bytes of the compressed encoding; its length follows.
const COMPRESSED: [u8; 4] = [0x1c, 0x84, 0x93, 0x14];
const PLAIN: [u8; 4] = [0x1c, 0x84, 0x93, 0x13];
/// Length of the header: kind, length of the counts, an offset, digits, bounds and a ratio.
const HEAD_LEN: usize = 40;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn samples(seed: u64) -> Histogram<u64> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut histogram = latency::histogram();
        for _ in 0..50_000 {
            let nanos = 10_u64.pow(random.u32(0..12)) * random.u64(1..10) + random.u64(0..1000);
            latency::record(&mut histogram, Duration::from_nanos(nanos));
        }
        histogram
    }

    #[test]
    fn what_was_written_is_read_back_without_loss() {
        for histogram in [latency::histogram(), samples(1)] {
            let text = encode(&histogram);
            assert!(text.starts_with("HISTFAAA"), "{text}");
            let read = decode(&text).expect("a histogram");
            assert_eq!(read, histogram);
            assert_eq!((read.min(), read.max()), (histogram.min(), histogram.max()));
        }
    }

    #[test]
    fn parts_that_were_written_and_read_add_up_to_the_whole() {
        let mut whole = latency::histogram();
        let mut merged = latency::histogram();
        for seed in 0..4 {
            whole.add(samples(seed)).expect("the same bounds");
            merged.add(decode(&encode(&samples(seed))).expect("ours")).expect("the same bounds");
        }
        assert_eq!(merged, whole);
    }

    #[test]
    fn what_is_damaged_or_not_ours_is_refused() {
        let text = encode(&samples(2));
        for wrong in ["", "HISTFAAA", "?", &text[..text.len() / 2 / 4 * 4], &"A".repeat(1 << 21)] {
            assert!(matches!(decode(wrong), Err(EncodedError::Malformed(_))), "{wrong:.20}");
        }
        let other = Histogram::new_with_bounds(1, 1 << 20, 2).expect("bounds");
        let error = decode(&encode(&other)).expect_err("other bounds");
        assert_eq!(error, EncodedError::OtherBounds { low: 1, high: 1 << 20, digits: 2 });
    }

    #[test]
    fn a_number_that_cannot_be_is_refused_before_anything_is_made_of_it() {
        let mut plain = Vec::new();
        hdrhistogram::serialization::V2Serializer::new()
            .serialize(&samples(4), &mut plain)
            .expect("memory");
        assert_eq!(parse(&plain), Ok(samples(4)));
        assert!(plain.len() < PLAIN_LEN_MAX / 4);
        // The header claims four gigabytes of counts.
        let mut long = plain.clone();
        long[4..8].fill(0xff);
        // The counts claim more empty buckets than the library can negate.
        let mut empty = plain.clone();
        empty[HEAD_LEN..HEAD_LEN + 9].fill(0xff);
        // The library would inflate these bytes and trust the header inside.
        let mut within = plain.clone();
        within[..4].copy_from_slice(&COMPRESSED);
        for wrong in [&long[..], &empty, &within, &plain[..plain.len() - 1], &plain[..HEAD_LEN - 1]]
        {
            assert!(matches!(parse(wrong), Err(EncodedError::Malformed(_))));
        }
        // The same header in a text, and a text that inflates to more than any histogram.
        for wrong in [long, vec![0; 1 << 26]] {
            let mut bytes = [&COMPRESSED[..], &[0; 4]].concat();
            let level = flate2::Compression::best();
            let mut writer = flate2::write::ZlibEncoder::new(&mut bytes, level);
            std::io::Write::write_all(&mut writer, &wrong).expect("memory");
            writer.finish().expect("memory");
            let refused = decode(&STANDARD.encode(&bytes));
            assert!(matches!(refused, Err(EncodedError::Malformed(_))), "{refused:?}");
        }
    }

    #[test]
    fn a_report_is_believed_only_where_count_and_histogram_agree() {
        let mut value = serde_json::to_value(Times(samples(3))).expect("JSON");
        let read: Times = serde_json::from_value(value.clone()).expect("the same");
        assert_eq!(read, Times(samples(3)));
        value["count"] = 1.into();
        assert!(serde_json::from_value::<Times>(value).is_err());
    }
}
