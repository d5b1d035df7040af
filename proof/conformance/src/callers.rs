//! Callers that use one client and ask repeatedly until they are stopped, and a record of all their
//! calls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::driver::{Call, Driver, DriverCommand, Settings};
use crate::lock;

/// Several callers of the same client.
#[derive(Debug)]
pub struct Callers {
    /// The client's name.
    pub name: String,
    callers: Vec<JoinHandle<Result<Vec<Call>, String>>>,
    shared: Arc<Shared>,
}

/// The calls of a client.
#[derive(Clone, Debug)]
pub struct Calls {
    /// The client's name.
    pub name: String,
    /// The calls, in no order.
    pub calls: Vec<Call>,
    /// Uncertainty of the driver's clock.
    pub clock_uncertainty: Duration,
}

#[derive(Debug)]
struct Shared {
    driver: Driver,
    is_over: AtomicBool,
    /// The latest begin of all answered calls.
    latest_start: Mutex<Option<Instant>>,
}

/// How the callers of a client ask.
#[derive(Clone, Copy, Debug)]
pub struct CallerSettings {
    /// Number of callers.
    pub callers: usize,
    /// Pause of a caller between calls. Without it the callers would overload the machine, and
    /// these tests are not about overload.
    pub pause: Duration,
    /// Timeout of a call.
    pub timeout: Duration,
}

impl Callers {
    /// Starts a driver and callers of its client.
    ///
    /// # Errors
    /// The driver does not start, or the client does not open.
    pub fn start(
        command: &DriverCommand,
        addrs: &[String],
        client: &Settings,
        settings: CallerSettings,
    ) -> Result<Self, String> {
        let driver = Driver::start(command)?;
        let opened = driver.open(addrs, client)?;
        opened.outcome.map_err(|refusal| format!("{} does not open: {refusal}", command.name))?;
        let is_over = AtomicBool::new(false);
        let shared = Arc::new(Shared { driver, is_over, latest_start: Mutex::default() });
        let callers = (0..settings.callers).map(|caller| {
            let shared = shared.clone();
            std::thread::spawn(move || shared.call(1 + caller as u64 % 3, settings))
        });
        let callers = callers.collect();
        Ok(Self { name: command.name.clone(), callers, shared })
    }

    /// Whether a call that began after `at` has been answered.
    #[must_use]
    pub fn is_answered_since(&self, at: Instant) -> bool {
        lock(&self.shared.latest_start).is_some_and(|start| start > at)
    }

    /// Stops the callers. Returns all calls.
    ///
    /// # Errors
    /// The driver failed.
    pub fn finish(self) -> Result<Calls, String> {
        self.shared.is_over.store(true, Ordering::SeqCst);
        let mut calls = Vec::new();
        for caller in self.callers {
            let theirs = caller.join().map_err(|_| "a caller panicked".to_owned())?;
            calls.extend(theirs.map_err(|why| format!("{}: {why}", self.name))?);
        }
        let clock_uncertainty = self.shared.driver.clock_uncertainty();
        Ok(Calls { name: self.name, calls, clock_uncertainty })
    }
}

impl Shared {
    fn call(&self, count: u64, settings: CallerSettings) -> Result<Vec<Call>, String> {
        let mut calls = Vec::new();
        while !self.is_over.load(Ordering::SeqCst) {
            // Every fourth call asks for the latest timestamp.
            let pending = if calls.len() % 4 == 3 {
                self.driver.begin_latest(settings.timeout)
            } else {
                self.driver.begin(count, Some(settings.timeout))
            };
            let call = pending.wait()?;
            if call.outcome.is_ok() {
                let mut latest = lock(&self.latest_start);
                *latest = (*latest).max(Some(call.start));
            }
            calls.push(call);
            std::thread::sleep(settings.pause);
        }
        Ok(calls)
    }
}
