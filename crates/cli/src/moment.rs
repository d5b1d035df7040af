//! How all commands show a timestamp and its wall time.

use epicepoch_wire::{Epoch, Timestamp};
use serde_json::{Value, json};

/// Formats the wall time of an epoch as RFC 3339, in UTC, with all nine digits.
pub(crate) fn time(Epoch(unix_ns): Epoch) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(unix_ns))
        .map_or_else(|_| format!("{unix_ns} ns after 1970"), |time| format!("{time:.9}"))
}

/// Returns one line for people: the timestamp, then `key=value` pairs. A timestamp with a compact
/// spelling has one more.
pub(crate) fn line(timestamp: Timestamp) -> String {
    let Timestamp { epoch, index } = timestamp;
    let compact = timestamp.to_compact().map(|compact| format!(" u64={compact}"));
    let compact = compact.unwrap_or_default();
    format!("{timestamp} epoch={epoch} index={index} time={}{compact}", time(epoch))
}

/// Returns the content of [`line()`] as JSON. Numbers are strings, because many readers of JSON
/// cannot hold them exactly as numbers.
pub(crate) fn object(timestamp: Timestamp) -> Value {
    let Timestamp { epoch, index } = timestamp;
    let mut object = json!({
        "hex": timestamp.to_string(),
        "epoch": epoch.to_string(),
        "index": index.to_string(),
        "time": time(epoch),
    });
    if let Some(compact) = timestamp.to_compact() {
        object["u64"] = compact.to_string().into();
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_timestamp_has_a_wall_time_with_nanoseconds() {
        assert_eq!(time(Epoch(0)), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(time(Epoch(1_700_000_000_000_000_001)), "2023-11-14T22:13:20.000000001Z");
        assert_eq!(time(Epoch(u64::MAX)), "2554-07-21T23:34:33.709551615Z");
    }

    #[test]
    fn line_and_object_say_the_same() {
        let timestamp = Timestamp::from(0x1797_9cfe_362a_0000_0000_0000_0000_0005);
        assert_eq!(
            line(timestamp),
            "17979cfe362a00000000000000000005 epoch=1700000000000000000 index=5 \
             time=2023-11-14T22:13:20.000000000Z u64=445644800000000005"
        );
        assert!(!line(Timestamp::from(1 << 64)).contains("u64"), "not a whole millisecond");
        let object = object(timestamp);
        assert_eq!(object["epoch"], "1700000000000000000");
        assert_eq!(object["hex"], "17979cfe362a00000000000000000005");
        assert_eq!(object["u64"], "445644800000000005");
    }
}
