//! Reads from the kernel the load, stolen time and CPU time of this machine and its processes. It
//! works only on Linux, and returns `None` if `/proc` lacks a figure.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A description of the machine, and its load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Kernel release.
    pub kernel: String,
    /// Model of the first processor.
    pub cpu: String,
    /// Processors that this process may use.
    pub cpus: usize,
    /// Load averages over 1, 5 and 15 minutes, before the run.
    #[serde(rename = "load_before")]
    pub load: Option<[f64; 3]>,
}

impl Machine {
    /// Reads the current state.
    #[must_use]
    pub fn read() -> Self {
        let release = rustix::system::uname();
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = info.lines().find_map(|line| line.strip_prefix("model name"));
        let model = model.and_then(|rest| rest.split_once(':')).map(|(_, name)| name.trim());
        Self {
            kernel: release.release().to_string_lossy().into_owned(),
            cpu: model.unwrap_or("unknown").to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            load: load(),
        }
    }
}

/// Load averages over 1, 5 and 15 minutes.
#[must_use]
pub fn load() -> Option<[f64; 3]> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    let mut parts = text.split(' ').map(str::parse);
    Some([parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?])
}

/// Time of all processors since the machine started, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTicks {
    /// Total time.
    pub total: u64,
    /// Time spent idle or waiting for a disk.
    pub idle: u64,
    /// Time that the host of this virtual machine took for other guests.
    pub steal: u64,
}

impl CpuTicks {
    /// Reads `/proc/stat`.
    #[must_use]
    pub fn read() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = line.split_whitespace().map_while(|it| it.parse().ok()).collect();
        // The total has only the first eight fields: guest time (the next two) is already part of
        // user and nice. See `proc_stat(5)`.
        let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
        let total = ticks.iter().take(8).sum();
        Some(Self { total, idle: at(3) + at(4), steal: at(7) })
    }

    /// Shares `(busy, stolen)` of the time since `before`.
    #[must_use]
    pub fn shares_since(self, before: Self) -> (f64, f64) {
        let total = self.total.saturating_sub(before.total).max(1) as f64;
        let idle = self.idle.saturating_sub(before.idle) as f64;
        let steal = self.steal.saturating_sub(before.steal) as f64;
        (1.0 - idle / total, steal / total)
    }
}

/// CPU time of a process, user and system, including ended threads. Its resolution is a tick,
/// usually 10 ms.
#[must_use]
pub fn process_cpu(pid: u32) -> Option<Duration> {
    ticks_of(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads fields 14 and 15 of `proc_pid_stat(5)`. The name in field 2 may contain any character.
fn ticks_of(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11).map(str::parse::<u64>);
    let ticks = fields.next()?.ok()? + fields.next()?.ok()?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Some(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

/// Time that the calling thread ran or waited for a processor. If the kernel does not report the
/// waiting, this is only the time that the thread ran.
#[must_use]
pub fn thread_busy() -> Option<Duration> {
    let Ok(text) = fs::read_to_string("/proc/thread-self/schedstat") else {
        return ticks_of(&fs::read_to_string("/proc/thread-self/stat").ok()?);
    };
    let mut parts = text.split_whitespace().map(str::parse::<u64>);
    let (ran, waited) = (parts.next()?.ok()?, parts.next()?.ok()?);
    Some(Duration::from_nanos(ran + waited))
}

/// CPU time of the calling thread.
#[must_use]
pub fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_told_from_idle_and_busy() {
        let before = CpuTicks::parse("cpu  10 0 10 70 10 0 0 0 5 0\ncpu0 1\n").unwrap();
        let after = CpuTicks::parse("cpu  30 0 20 110 10 0 0 30 5 0\n").unwrap();
        let idle = CpuTicks { total: 100, idle: 80, steal: 0 };
        assert_eq!(before, idle);
        assert_eq!(after.shares_since(before), (0.6, 0.3));
        assert_eq!(CpuTicks::parse("intr 1 2"), None);
    }

    #[test]
    fn a_process_name_with_spaces_and_brackets_is_no_field() {
        let stat = "7 (a ) b) S 1 1 1 0 -1 1 1 1 1 1 100 50 0 0 20 0 1 0 1 1";
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(ticks_of(stat), Some(Duration::from_secs_f64(150.0 / ticks)));
        assert_eq!(ticks_of("7 (a"), None);
    }

    #[test]
    fn this_process_and_this_thread_are_known_to_the_kernel() {
        assert!(process_cpu(std::process::id()).is_some());
        assert!(process_cpu(u32::MAX).is_none());
        assert!(thread_busy().is_some());
        assert!(CpuTicks::read().is_some_and(|ticks| ticks.total > 0));
        assert!(load().is_some());
    }
}
