//! Callers of one client that ask and ask again, each with a deadline, until they are told to
//! stop; and every call that they made.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::driver::{Call, Driver, DriverCommand, Settings};
use crate::lock;

/// See the module.
#[derive(Debug)]
pub struct Crowd {
    /// Whose callers they are.
    pub name: String,
    callers: Vec<JoinHandle<Result<Vec<Call>, String>>>,
    shared: Arc<Shared>,
}

/// What the callers of a crowd did.
#[derive(Clone, Debug)]
pub struct Calls {
    /// Whose they are.
    pub name: String,
    /// In no order.
    pub calls: Vec<Call>,
    /// How far a moment of the driver may lie from where it is taken to be.
    pub clock_uncertainty: Duration,
}

#[derive(Debug)]
struct Shared {
    driver: Driver,
    is_over: AtomicBool,
    /// Start of the latest call that was answered.
    latest_start: Mutex<Option<Instant>>,
}

/// How a crowd asks.
#[derive(Clone, Copy, Debug)]
pub struct Manners {
    /// Callers of the one client.
    pub callers: usize,
    /// Between two calls of a caller: what is measured is the client, not the machine under load.
    pub pause: Duration,
    /// How long a call may take.
    pub timeout: Duration,
}

impl Crowd {
    /// Starts a driver, and callers of its client.
    ///
    /// # Errors
    /// When the driver does not start or the client does not open.
    pub fn start(
        command: &DriverCommand,
        addrs: &[String],
        settings: &Settings,
        manners: Manners,
    ) -> Result<Self, String> {
        let driver = Driver::start(command)?;
        let opened = driver.open(addrs, settings)?;
        opened.outcome.map_err(|refusal| format!("{} does not open: {refusal}", command.name))?;
        let is_over = AtomicBool::new(false);
        let shared = Arc::new(Shared { driver, is_over, latest_start: Mutex::default() });
        let callers = (0..manners.callers).map(|caller| {
            let shared = shared.clone();
            std::thread::spawn(move || shared.call(1 + caller as u64 % 3, manners))
        });
        let callers = callers.collect();
        Ok(Self { name: command.name.clone(), callers, shared })
    }

    /// Whether a call that began after `at` has been answered.
    #[must_use]
    pub fn is_answered_since(&self, at: Instant) -> bool {
        lock(&self.shared.latest_start).is_some_and(|start| start > at)
    }

    /// Stops the callers; all that they did.
    ///
    /// # Errors
    /// When the driver is at fault.
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
    fn call(&self, count: u64, manners: Manners) -> Result<Vec<Call>, String> {
        let mut calls = Vec::new();
        while !self.is_over.load(Ordering::SeqCst) {
            let call = self.driver.begin(count, manners.timeout).wait()?;
            if call.outcome.is_ok() {
                let mut latest = lock(&self.latest_start);
                *latest = (*latest).max(Some(call.start));
            }
            calls.push(call);
            std::thread::sleep(manners.pause);
        }
        Ok(calls)
    }
}
