//! Timestamps as bytes, text and wall time.

use epicepoch_wire::{COMPACT_MAX, Epoch, EpochIndex, Timestamp, TimestampRange};
use serde_json::{Value, json};

use super::{hex, hold, number, unhex};

const TIMESTAMPS: [(u64, u64); 8] = [
    (0, 0),
    (0, 1),
    (1, 0),
    (1_700_000_000_123_456_789, 7),
    (1_700_000_000_123_456_789, 255),
    (1_700_000_000_123_456_789, 256),
    (1 << 63, 1 << 63),
    (u64::MAX, u64::MAX),
];

#[test]
fn timestamps_are_what_the_vectors_say() {
    let timestamps = TIMESTAMPS.map(|(epoch, index)| {
        let timestamp = Timestamp::new(Epoch(epoch), EpochIndex(index));
        json!({
            "epoch": number(epoch),
            "index": number(index),
            "bytes": hex(&timestamp.to_bytes()),
            "text": timestamp.to_string(),
        })
    });
    let wall_times = [0, 1, 1_700_000_000_123_456_789, u64::MAX].map(|unix_ns| {
        json!({
            "unix_ns": number(unix_ns),
            "lowest": Timestamp::lowest_at(unix_ns).to_string(),
            "highest": Timestamp::highest_at(unix_ns).to_string(),
        })
    });
    let ranges = [(5, 7, 1), (5, 7, 3), (1_700_000_000_123_456_789, 0, 1 << 32)];
    let ranges = ranges.map(|(epoch, index, count)| {
        let first = Timestamp::new(Epoch(epoch), EpochIndex(index));
        let range = TimestampRange::new(first, count).unwrap();
        json!({
            "bytes": hex(&range.to_bytes()),
            "first": range.first().to_string(),
            "count": number(count),
            "last": range.last().to_string(),
        })
    });
    let compact = [0, 1, (1 << 18) - 1, 1 << 18, 1_700_000_000_123 << 18 | 7, COMPACT_MAX];
    let compact = compact.map(|compact| {
        let timestamp = Timestamp::from_compact(compact).unwrap();
        json!({ "u64": number(compact), "text": timestamp.to_string() })
    });
    let not_compact = [(1, 0), (1_700_000_000_123_456_789, 7), (1_000_000, 1 << 18)];
    let not_compact = not_compact.map(|(epoch, index)| {
        let timestamp = Timestamp::new(Epoch(epoch), EpochIndex(index));
        assert_eq!(timestamp.to_compact(), None);
        timestamp.to_string()
    });
    let refused_compact = [COMPACT_MAX + 1, u64::MAX].map(|compact| {
        assert_eq!(Timestamp::from_compact(compact), None);
        number(compact)
    });
    let bad_texts =
        ["", "0x0000000000000000000000000000000", "00", "g0000000000000000000000000000000"];
    for text in bad_texts {
        assert!(text.parse::<Timestamp>().is_err(), "{text}");
    }
    let made = json!({
        "about": "Timestamps in rising order, as bytes, as text and as numbers; wall time to the \
                  lowest and the highest timestamp; the 24 bytes of format=range; texts that are \
                  none; compact timestamps in rising order, timestamps that have no compact spelling, \
                  and numbers that are no compact timestamp.",
        "timestamps": timestamps,
        "wall_times": wall_times,
        "ranges": ranges,
        "refused_texts": bad_texts,
        "compact": compact,
        "not_compact": not_compact,
        "refused_compact": refused_compact,
    });
    let stored = hold("timestamps", &made);
    let list = stored["timestamps"].as_array().unwrap();
    let bytes = |entry: &Value| unhex(entry["bytes"].as_str().unwrap());
    assert!(list.is_sorted_by(|a, b| bytes(a) < bytes(b)), "byte order is not time order");
    for entry in list {
        let timestamp: Timestamp = entry["text"].as_str().unwrap().parse().unwrap();
        assert_eq!(Timestamp::from_bytes(bytes(entry).try_into().unwrap()), timestamp);
        assert_eq!(number(timestamp.epoch.0), entry["epoch"]);
        assert_eq!(number(timestamp.index.0), entry["index"]);
    }
    for entry in stored["ranges"].as_array().unwrap() {
        let range = TimestampRange::from_bytes(bytes(entry)[..].try_into().unwrap()).unwrap();
        assert_eq!(range.last().to_string(), entry["last"]);
    }
}
