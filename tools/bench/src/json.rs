//! The machine's floor in reports: `bench floor --json` and `bench run --floor`. Runs are in
//! [`crate::record`]. Times are nanoseconds.

use std::time::Duration;

use serde_json::{Value, json};

use crate::encoded::Times;
use crate::floor::Floor;
use crate::latency::{quantile, shown};
use crate::machine::Machine;
use crate::record::{FORMAT, MachineFacts, Run};
pub use crate::surroundings::FloorRecord;

/// A figure of a run next to the floor's figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Beside {
    /// Name of the floor's figure.
    pub what: &'static str,
    /// Value of the floor's figure: a time, or a rate per second.
    pub floor: String,
    /// Name of the run's figure.
    pub of: &'static str,
    /// Value of the run's figure.
    pub run: String,
    /// The run's figure as a multiple of the floor's.
    pub times: f64,
}

/// Returns figures of a run as multiples of its floor, or nothing without a floor. A request to a
/// cluster takes two round trips, the client's and the quorum's, so its floor is two echoes.
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

/// The JSON that `epicepoch bench floor --json` prints.
#[must_use]
pub fn floor(floor: &Floor) -> Value {
    let mut value = json!(FloorRecord::new(floor));
    value["format"] = json!(FORMAT);
    value["kind"] = json!("floor");
    value["machine"] = json!(MachineFacts::new(&Machine::read()));
    value
}

/// Round trips of a request: the client's and the quorum's.
const ECHOES_PER_REQUEST: u32 = 2;
