//! Where workers run and how they wait: pinned to processors, and spinning, if they are told to.
//! It never chooses a processor by itself.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use thiserror::Error;
use tokio::runtime::Builder;
use tokio::task::yield_now;

use crate::config::WORKER_CPUS;

/// Why workers cannot run where they are told to.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProcessorError {
    /// Name other processors, or let the process use this one.
    #[error(
        "WORKER_CPUS has processor {cpu}, which this machine has not or this process may not use; \
         allowed are {allowed}"
    )]
    Forbidden {
        /// The processor.
        cpu: usize,
        /// Those that the process may use.
        allowed: String,
    },
    /// The system does not tell which processors there are.
    #[error("the processors that this process may use cannot be read")]
    Unknown(#[from] io::Error),
}

/// Refuses processors that this process may not use.
///
/// # Errors
/// The first of them.
pub(crate) fn check(cpus: &[usize]) -> Result<(), ProcessorError> {
    if cpus.is_empty() {
        return Ok(());
    }
    let own = sched_getaffinity(None).map_err(io::Error::from)?;
    match cpus.iter().find(|cpu| !own.is_set(**cpu)) {
        None => Ok(()),
        Some(cpu) => Err(ProcessorError::Forbidden { cpu: *cpu, allowed: listed(&own) }),
    }
}

/// `0, 1, 3`
fn listed(set: &CpuSet) -> String {
    let numbers = (0..=WORKER_CPUS.max as usize).filter(|cpu| set.is_set(*cpu));
    numbers.map(|cpu| cpu.to_string()).collect::<Vec<_>>().join(", ")
}

/// How one worker waits, and where it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    /// Its processor, if it is pinned.
    pub(super) cpu: Option<usize>,
    /// Whether it spins.
    pub(super) is_spinning: bool,
}

impl Seat {
    /// Starts a thread in this seat. What a thread starts later would inherit its place, so
    /// `runtime` sends its other threads back to where the caller may run.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn spawn<T>(
        self,
        runtime: &mut Builder,
        spawn: impl FnOnce(&mut Builder) -> io::Result<T>,
    ) -> io::Result<T> {
        if self.is_spinning {
            // One task, then a look at the sockets: with more, an answer waits for the spinning.
            runtime.event_interval(1);
        }
        let Some(cpu) = self.cpu else { return spawn(runtime) };
        let before = sched_getaffinity(None)?;
        runtime.on_thread_start(move || {
            if let Err(error) = sched_setaffinity(None, &before) {
                tracing::warn!(%error, "a resolver stays on its worker's processor");
            }
        });
        let mut seat = CpuSet::new();
        seat.set(cpu);
        // A thread begins where the one runs that starts it.
        sched_setaffinity(None, &seat)?;
        let spawned = spawn(runtime);
        sched_setaffinity(None, &before)?;
        spawned
    }
}

/// Keeps a runtime from sleeping. It is a task of the runtime and not of the worker's own set, so
/// that the worker is not polled for it: a turn is a look at the sockets and nothing else.
pub(super) async fn spin() {
    loop {
        yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Vec<usize> {
        let set = sched_getaffinity(None).unwrap();
        (0..1024).filter(|cpu| set.is_set(*cpu)).collect()
    }

    #[test]
    fn a_pinned_thread_runs_on_its_processor_and_its_starter_where_it_did() {
        let before = own();
        let cpu = *before.last().unwrap();
        let seat = Seat { cpu: Some(cpu), is_spinning: false };
        let mut runtime = Builder::new_current_thread();
        let pinned = seat.spawn(&mut runtime, |runtime| {
            let runtime = runtime.build()?;
            let body = move || {
                let resolver = runtime.block_on(runtime.spawn_blocking(own)).unwrap();
                (own(), resolver)
            };
            std::thread::Builder::new().spawn(body)
        });
        assert_eq!(pinned.unwrap().join().unwrap(), (vec![cpu], before.clone()));
        assert_eq!(own(), before);
    }

    #[test]
    fn a_processor_that_is_not_there_is_refused_by_its_number() {
        assert!(check(&[]).is_ok());
        assert!(check(&own()).is_ok());
        let error = check(&[1023]).unwrap_err().to_string();
        assert!(error.starts_with("WORKER_CPUS has processor 1023, "), "{error}");
    }
}
