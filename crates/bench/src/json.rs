//! The machine's floor as it is kept: what `bench floor --json` prints, and what a report of
//! `bench run --floor` has in it. Runs are in [`crate::record`]. Times are nanoseconds.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::encoded::Times;
use crate::floor::Floor;
use crate::latency::{quantile, shown};
use crate::machine::Machine;
use crate::record::{FORMAT, MachineFacts, Run};

/// What the machine can do at all; see [`Floor`] for what each figure is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FloorRecord {
    /// Round trips while both ends sleep.
    pub echo_sleeping_ns: Times,
    /// Round trips while both ends spin.
    pub echo_spinning_ns: Times,
    /// Echoes per second, one for each call of the kernel.
    pub echo_rate_plain: f64,
    /// Echoes per second, many for each call.
    pub echo_rate_pipelined: f64,
    /// The same with the sizes of the native protocol.
    pub frame_rate_pipelined: f64,
    /// A write of 4 KiB and its fsync.
    pub fsync_ns: Times,
    /// One clock read.
    pub clock_read_ns: u64,
    /// Waking a sleeping thread.
    pub wake_ns: Times,
}

impl FloorRecord {
    /// As it is kept.
    #[must_use]
    pub fn new(floor: &Floor) -> Self {
        Self {
            echo_sleeping_ns: Times(floor.echo_sleeping_ns.clone()),
            echo_spinning_ns: Times(floor.echo_spinning_ns.clone()),
            echo_rate_plain: floor.rate_plain,
            echo_rate_pipelined: floor.rate_pipelined,
            frame_rate_pipelined: floor.rate_frames,
            fsync_ns: Times(floor.fsync_ns.clone()),
            clock_read_ns: nanos(floor.clock),
            wake_ns: Times(floor.wake_ns.clone()),
        }
    }
}

/// What a run is held against.
#[derive(Clone, Debug, PartialEq)]
pub struct Beside {
    /// What the machine does.
    pub what: &'static str,
    /// How long, or how often per second.
    pub floor: String,
    /// What of the run is held against it.
    pub of: &'static str,
    /// That figure of the run.
    pub run: String,
    /// How many times the floor it is.
    pub times: f64,
}

/// A run as multiples of its floor; empty if the floor was not measured. A request that a cluster
/// answers waits for two round trips, the client's and the quorum's, so two echoes are its floor.
#[must_use]
pub fn beside(run: &Run) -> Vec<Beside> {
    let Some(floor) = &run.floor else { return Vec::new() };
    let median = |times: &Times| quantile(&times.0, 0.5);
    let latency = |what, of: &'static str, share: f64, floor: Duration| {
        let run = quantile(&run.latency_ns.0, share);
        let times = run.as_secs_f64() / floor.as_secs_f64().max(1e-9);
        Beside { what, floor: shown(floor), of, run: shown(run), times }
    };
    let rate = |what, floor: f64| Beside {
        what,
        floor: format!("{floor:.0}/s"),
        of: "rate",
        run: format!("{:.0}/s", run.rate),
        times: run.rate / floor.max(1e-9),
    };
    let asleep = median(&floor.echo_sleeping_ns) * ECHOES_PER_REQUEST;
    let spinning = median(&floor.echo_spinning_ns) * ECHOES_PER_REQUEST;
    vec![
        latency("two echoes, both ends sleep", "p50", 0.5, asleep),
        latency("two echoes, both ends sleep", "p99", 0.99, asleep),
        latency("two echoes, both ends spin", "p50", 0.5, spinning),
        latency("wake-up of a sleeping thread", "p50", 0.5, median(&floor.wake_ns)),
        latency("write of 4 KiB and fsync", "p50", 0.5, median(&floor.fsync_ns)),
        rate("echoes, one per call", floor.echo_rate_plain),
        rate("echoes, pipelined", floor.echo_rate_pipelined),
        rate("native frames, pipelined", floor.frame_rate_pipelined),
    ]
}

/// What `epicepoch bench floor --json` prints.
#[must_use]
pub fn floor(floor: &Floor) -> Value {
    let mut value = json!(FloorRecord::new(floor));
    value["format"] = json!(FORMAT);
    value["kind"] = json!("floor");
    value["machine"] = json!(MachineFacts::new(&Machine::read()));
    value
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The client's round trip and the quorum's.
const ECHOES_PER_REQUEST: u32 = 2;
