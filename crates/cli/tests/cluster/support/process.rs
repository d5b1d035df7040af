//! Figures of a process and a directory, as the kernel reports them: memory, CPU time, bytes on
//! disk. Also the limits of this process.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Resident memory, bytes.
pub(crate) fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process exists");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.expect("a process has a resident size") * 1024
}

/// Returns the CPU time of all threads of a process that still run. Its resolution is nanoseconds.
pub(crate) fn processor_time(pid: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process exists");
    let nanos = tasks.filter_map(|task| {
        // A thread may end while its figures are read. Such a thread is left out.
        processor_nanos(&task.ok()?.path())
    });
    Duration::from_nanos(nanos.sum())
}

/// Returns the CPU time of the thread that calls. Its resolution is nanoseconds.
pub(crate) fn processor_time_of_thread() -> Duration {
    let nanos = processor_nanos(Path::new("/proc/thread-self"));
    Duration::from_nanos(nanos.expect("a thread has a run time"))
}

/// The first field of `schedstat` of a thread: how long it has run, in nanoseconds.
fn processor_nanos(task: &Path) -> Option<u64> {
    let text = fs::read_to_string(task.join("schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// Returns how often the threads of a process that still run have waited and were woken.
pub(crate) fn wakeups(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process exists");
    let counts = tasks.filter_map(|task| {
        // A thread may end while its figures are read. Such a thread is left out.
        let text = fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line?.trim().parse::<u64>().ok()
    });
    counts.sum()
}

/// Returns how many bytes the files below `dir` take on disk.
pub(crate) fn disk_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => disk_bytes(&entry.path()),
        Ok(data) => data.len().max(data.blocks() * 512),
        // Files may be deleted while the directory is read. Such files count as empty.
        Err(_) => 0,
    };
    entries.filter_map(Result::ok).map(of).sum()
}

/// Whether this process ignores SIGHUP, as under `nohup`.
pub(crate) fn is_hangup_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("this process exists");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.expect("a process has a mask of ignored signals") & 1 == 1
}

/// Raises the limit of this process to at least `wanted` open files.
pub(crate) fn raise_descriptor_limit(wanted: u64) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        let maximum = limit.maximum.map_or(wanted, |maximum| maximum.max(wanted));
        let raised = Rlimit { current: Some(wanted), maximum: Some(maximum) };
        setrlimit(Resource::Nofile, raised).expect("the descriptor limit can be raised");
    }
}
