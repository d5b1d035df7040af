//! The processors that workers run on, and how workers wait: pinned and spinning, if the settings
//! say so. This module never chooses a processor by itself.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use thiserror::Error;
use tokio::runtime::Builder;
use tokio::task::yield_now;

use crate::config::CPU_MAX;

/// Why workers cannot run on the configured processors.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProcessorError {
    /// The process may not use this processor. Name other processors, or allow this one.
    #[error(
        "WORKER_CPUS has processor {cpu}, which this machine has not or this process may not use; \
         allowed are {allowed}"
    )]
    Forbidden {
        /// The processor that may not be used.
        cpu: usize,
        /// The processors that the process may use.
        allowed: String,
    },
    /// The system does not say which processors the process may use.
    #[error("the processors that this process may use cannot be read")]
    Unknown(#[from] io::Error),
}

/// Checks that this process may use these processors.
///
/// # Errors
/// The first processor that it may not use.
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

/// The processors as text, such as `0, 1, 3`.
fn listed(set: &CpuSet) -> String {
    let numbers = (0..=CPU_MAX).filter(|cpu| set.is_set(*cpu));
    numbers.map(|cpu| cpu.to_string()).collect::<Vec<_>>().join(", ")
}

/// Where one worker runs, and how it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CpuPlacement {
    /// The worker's processor; `None` when the worker is not pinned.
    pub(super) cpu: Option<usize>,
    /// Whether the worker spins, that is, never sleeps.
    pub(super) is_spinning: bool,
}

impl CpuPlacement {
    /// Starts a thread with this placement.
    ///
    /// # Errors
    /// The error of the system.
    pub(super) fn spawn<T>(
        self,
        runtime: &mut Builder,
        spawn: impl FnOnce(&mut Builder) -> io::Result<T>,
    ) -> io::Result<T> {
        if self.is_spinning {
            // The runtime checks the sockets after every task. Otherwise it would run the spin task
            // many times before it sees that an answer has arrived.
            runtime.event_interval(1);
        }
        let Some(cpu) = self.cpu else { return spawn(runtime) };
        let before = sched_getaffinity(None)?;
        let mut cpu_placement = CpuSet::new();
        cpu_placement.set(cpu);
        // A new thread inherits the processors of the thread that starts it.
        sched_setaffinity(None, &cpu_placement)?;
        let spawned = spawn(runtime);
        sched_setaffinity(None, &before)?;
        spawned
    }
}

/// Keeps a runtime from sleeping. This task belongs to the runtime, not to the worker's own set of
/// tasks. So spinning only checks the sockets, and does not poll the worker.
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
        let cpu_placement = CpuPlacement { cpu: Some(cpu), is_spinning: false };
        let mut runtime = Builder::new_current_thread();
        let pinned = cpu_placement.spawn(&mut runtime, |runtime| {
            runtime.build()?;
            std::thread::Builder::new().spawn(own)
        });
        assert_eq!(pinned.unwrap().join().unwrap(), [cpu]);
        assert_eq!(own(), before);
    }

    #[test]
    fn a_processor_that_is_not_there_is_refused_by_its_number() {
        assert!(check(&[]).is_ok());
        assert!(check(&own()).is_ok());
        let error = check(&[1023]).unwrap_err().to_string();
        assert!(error.starts_with("WORKER_CPUS has processor 1023, "), "{error}");
    }

    #[test]
    fn processors_are_listed_by_their_numbers() {
        let mut set = CpuSet::new();
        for cpu in [0, 3, 12] {
            set.set(cpu);
        }
        assert_eq!(listed(&set), "0, 3, 12");
    }
}
