//! SIGTERM, SIGINT and SIGHUP. The first signal starts a graceful shutdown. A later signal ends the
//! process at once, unless it only repeats the first. If the process was started with SIGHUP
//! ignored, as by `nohup`, SIGHUP stays ignored.

use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Calls `stop` at the first signal, and ignores repetitions within [`ECHO_MAX`]. A later signal
/// ends the process with exit code 128 plus its number, as a shell reports it. When this function
/// returns, signals are caught.
pub(crate) fn watch(stop: impl FnOnce() + Send + 'static) -> io::Result<()> {
    watch_and_leave(stop, || ())
}

/// Like [`watch`], and calls `leave` before a later signal ends the process. It must not wait for
/// anything.
pub(crate) fn watch_and_leave(
    stop: impl FnOnce() + Send + 'static,
    leave: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let entered = runtime.enter();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = if hangup_is_ours() { Some(signal(SignalKind::hangup())?) } else { None };
    drop(entered);
    let mut next = async move || {
        tokio::select! {
            _ = terminate.recv() => SignalKind::terminate(),
            _ = interrupt.recv() => SignalKind::interrupt(),
            () = received(hangup.as_mut()) => SignalKind::hangup(),
        }
    };
    let waiting = move || {
        let first = runtime.block_on(next());
        let echoes_end = Instant::now() + ECHO_MAX;
        tracing::info!(
            signal = first.as_raw_value(),
            "stopping; another signal after {ECHO_MAX:?} ends the process at once"
        );
        stop();
        let later = loop {
            let later = runtime.block_on(next());
            if Instant::now() >= echoes_end {
                break later;
            }
        };
        leave();
        tracing::warn!(signal = later.as_raw_value(), "stopped at once");
        std::process::exit(SIGNAL_CODE + later.as_raw_value());
    };
    thread::Builder::new().name("signals".to_owned()).spawn(waiting)?;
    Ok(())
}

/// Waits for the signal. If the signal is not watched, waits for ever.
async fn received(watched: Option<&mut Signal>) {
    match watched {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether SIGHUP ends this process. The result is `false` if the process inherited an ignored
/// SIGHUP, as from `nohup`, or if that is unknown.
fn hangup_is_ours() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    is_ignored(&status, SignalKind::hangup()) == Some(false)
}

/// Whether a process ignores a signal, read from its status in proc(5).
fn is_ignored(status: &str, signal: SignalKind) -> Option<bool> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
    Some(mask >> (signal.as_raw_value() - 1) & 1 == 1)
}

/// For this long after the first signal, another one counts as its repetition. For example,
/// `timeout` signals its child and then the child's whole group. A person needs longer to press
/// Ctrl-C again.
const ECHO_MAX: Duration = Duration::from_secs(1);
/// Base of the exit code: the number of the signal is added.
const SIGNAL_CODE: i32 = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_is_read_from_the_mask() {
        let status = "Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001000\n";
        assert_eq!(is_ignored(status, SignalKind::hangup()), Some(false));
        let status = status.replace("1000", "1001");
        assert_eq!(is_ignored(&status, SignalKind::hangup()), Some(true));
        assert_eq!(is_ignored("", SignalKind::hangup()), None);
    }
}
