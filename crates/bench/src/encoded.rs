//! Histograms as text: HdrHistogram's V2 encoding, compressed and in base64, as its tools write it
//! into `.hlog` files. Only histograms with the bounds of [`crate::latency`] come back, so that
//! whatever was read adds up without loss.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use serde::de::Error as _;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer as Read, Serialize, Serializer as Write};
use thiserror::Error;

use crate::latency::{self, DIGITS, LATENCY_NS_MAX, LATENCY_NS_MIN, QUANTILES};

/// Why a text is no histogram of ours.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum EncodedError {
    /// It is damaged, or something else.
    #[error("no HdrHistogram in its compressed V2 encoding: {0}")]
    Malformed(String),
    /// It was recorded with other bounds, so it cannot be added to others without loss.
    #[error("a histogram from {low} to {high} ns with {digits} digits, which is not ours")]
    OtherBounds {
        /// Its lowest value that is told from others.
        low: u64,
        /// Its highest value.
        high: u64,
        /// Its significant digits.
        digits: u8,
    },
}

/// The text of a histogram.
#[must_use]
pub fn encode(histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new()
        .serialize(histogram, &mut bytes)
        .expect("writing into memory does not fail, and every count fits into the encoding");
    STANDARD.encode(bytes)
}

/// The histogram of a text.
///
/// # Errors
/// It is none, or has other bounds.
pub fn decode(text: &str) -> Result<Histogram<u64>, EncodedError> {
    let malformed = |why: &dyn std::fmt::Display| EncodedError::Malformed(why.to_string());
    if text.len() > TEXT_LEN_MAX {
        return Err(malformed(&"it is longer than any of ours"));
    }
    let bytes = STANDARD.decode(text).map_err(|error| malformed(&error))?;
    let read: Result<Histogram<u64>, _> = Deserializer::new().deserialize(&mut bytes.as_slice());
    let histogram = read.map_err(|error| malformed(&error))?;
    let (low, high, digits) = (histogram.low(), histogram.high(), histogram.sigfig());
    if (low, high, digits) != (LATENCY_NS_MIN, LATENCY_NS_MAX, DIGITS) {
        return Err(EncodedError::OtherBounds { low, high, digits });
    }
    Ok(histogram)
}

/// A histogram of nanoseconds in a report: its percentiles for people and scripts, and all of it
/// as `histogram`, from which it is read back.
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
        /// Percentiles are computed, never read.
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

/// Longer than a histogram of ours with every bucket in use.
const TEXT_LEN_MAX: usize = 1 << 20;

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
    fn a_report_is_believed_only_where_count_and_histogram_agree() {
        let mut value = serde_json::to_value(Times(samples(3))).expect("JSON");
        let read: Times = serde_json::from_value(value.clone()).expect("the same");
        assert_eq!(read, Times(samples(3)));
        value["count"] = 1.into();
        assert!(serde_json::from_value::<Times>(value).is_err());
    }
}
