//! SIGTERM and SIGINT: the first asks for an orderly end, the second ends the process at once.

use std::io;
use std::thread;

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// Calls `stop` at the first signal; a second one ends the process with 128 and its number, as
/// a shell would report it. Signals are caught from the return of this function on.
pub(crate) fn watch(stop: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let entered = runtime.enter();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    drop(entered);
    let next = async move || {
        tokio::select! {
            _ = terminate.recv() => SignalKind::terminate(),
            _ = interrupt.recv() => SignalKind::interrupt(),
        }
    };
    let waiting = move || {
        let mut next = next;
        let first = runtime.block_on(next());
        tracing::info!(signal = first.as_raw_value(), "stopping; a second signal stops at once");
        stop();
        let second = runtime.block_on(next());
        tracing::warn!(signal = second.as_raw_value(), "stopped at once");
        std::process::exit(SIGNAL_CODE + second.as_raw_value());
    };
    thread::Builder::new().name("signals".to_owned()).spawn(waiting)?;
    Ok(())
}

/// Added to the number of the signal that ended a process.
const SIGNAL_CODE: i32 = 128;
