//! The machine's floor as JSON, for scripts. Runs are in [`crate::record`]. Times are nanoseconds.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::encoded::Times;
use crate::floor::Floor;
use crate::machine::Machine;
use crate::record::{FORMAT, MachineFacts};

/// What `epicepoch bench floor --json` prints.
#[must_use]
pub fn floor(floor: &Floor) -> Value {
    let times = |times: &Histogram<u64>| Times(times.clone());
    json!({
        "format": FORMAT,
        "kind": "floor",
        "echo_sleeping_ns": times(&floor.echo_sleeping_ns),
        "echo_spinning_ns": times(&floor.echo_spinning_ns),
        "echo_rate_plain": floor.rate_plain,
        "echo_rate_pipelined": floor.rate_pipelined,
        "frame_rate_pipelined": floor.rate_frames,
        "fsync_ns": times(&floor.fsync_ns),
        "clock_read_ns": nanos(floor.clock),
        "wake_ns": times(&floor.wake_ns),
        "machine": MachineFacts::new(&Machine::read()),
    })
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
