//! Histograms in reports, in HdrHistogram's V2 encoding: compressed and in base64. HdrHistogram's
//! tools write the same text into `.hlog` files.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use serde::de::Error as _;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer as Read, Serialize, Serializer as Write};

use crate::latency::{self, QUANTILES};

/// Encodes a histogram as text.
#[must_use]
pub fn encode(histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new()
        .serialize(histogram, &mut bytes)
        .expect("writing into memory does not fail, and every count fits into the encoding");
    STANDARD.encode(bytes)
}

/// Reads a histogram. Returns `None` if the text is not a histogram.
#[must_use]
pub fn decode(text: &str) -> Option<Histogram<u64>> {
    Deserializer::new().deserialize(&mut &*STANDARD.decode(text).ok()?).ok()
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
        #[derive(Deserialize)]
        struct Stored {
            histogram: String,
        }
        let Stored { histogram } = Stored::deserialize(reader)?;
        let times = decode(&histogram);
        times.map(Self).ok_or_else(|| R::Error::custom("a histogram is damaged"))
    }
}
