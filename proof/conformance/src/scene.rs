//! The scripted nodes and the driver of a scenario, and a record of every call. When the scenario
//! ends, the record is checked against the timestamps that the nodes gave.

use std::sync::Arc;
use std::time::Duration;

use epicepoch_wire::{Timestamp, TimestampFormat, TimestampRange};

use crate::Verdict;
use crate::driver::{Call, Driver, DriverCommand, Pending, Refusal, Settings};
use crate::node::{Node, ScriptedCluster};
use crate::protocol::Fault;

/// The nodes and the driver of a scenario.
#[derive(Debug)]
pub struct Scene {
    /// The state that the nodes share.
    pub scripted: Arc<ScriptedCluster>,
    driver: Driver,
    nodes: Nodes,
    calls: Vec<Call>,
    is_unsupported: bool,
}

impl Scene {
    /// Makes a scene without nodes. Its driver has no client yet.
    ///
    /// # Errors
    /// The driver does not start.
    pub fn new(command: &DriverCommand) -> Result<Self, String> {
        let driver = Driver::start(command)?;
        let (scripted, nodes) = (Arc::<ScriptedCluster>::default(), Nodes::default());
        if command.is_compact {
            scripted.oracle.gives(TimestampFormat::Compact);
        }
        Ok(Self { scripted, driver, nodes, calls: Vec::new(), is_unsupported: false })
    }

    /// Whether the client has a second connection for hedged requests.
    pub fn hedges(&self) -> bool {
        self.driver.hedges()
    }

    /// Whether every client needs compact timestamps.
    pub fn needs_compact(&self) -> bool {
        self.driver.needs_compact()
    }

    /// Adds a node that is not a member.
    pub fn unlisted_node(&mut self) -> Node {
        let node = Node::start(&self.scripted, self.nodes.0.len() as u64 + 1);
        self.nodes.0.push(node.clone());
        node
    }

    /// Adds a node that is a member.
    pub fn node(&mut self) -> Node {
        let node = self.unlisted_node();
        self.scripted.lists(&node);
        node
    }

    /// Adds a member that all nodes name as the leader.
    pub fn leader(&mut self) -> Node {
        let node = self.node();
        self.scripted.is_led_by(&node);
        node
    }

    /// Opens a client that starts with these nodes.
    ///
    /// # Errors
    /// The client does not open.
    pub fn open(&self, nodes: &[&Node]) -> Verdict {
        self.open_with(nodes, &Settings::default())
    }

    /// Like [`Self::open`], with other settings.
    ///
    /// # Errors
    /// The client does not open.
    pub fn open_with(&self, nodes: &[&Node], settings: &Settings) -> Verdict {
        let addrs: Vec<_> = nodes.iter().map(|node| node.addr()).collect();
        self.open_at(&addrs, settings)
    }

    /// Like [`Self::open`], with any addresses.
    ///
    /// # Errors
    /// The client does not open.
    pub fn open_at(&self, addrs: &[String], settings: &Settings) -> Verdict {
        let opened = self.driver.open(addrs, settings)?;
        opened.outcome.map(drop).map_err(|refusal| format!("the client does not open: {refusal}"))
    }

    /// Opens a client with settings that not every client has. Returns whether this client has
    /// them. If it has not, the scenario ends without a result.
    ///
    /// # Errors
    /// The client does not open.
    pub fn opens_with(&mut self, nodes: &[&Node], settings: &Settings) -> Result<bool, String> {
        let addrs: Vec<_> = nodes.iter().map(|node| node.addr()).collect();
        match self.driver.open(&addrs, settings)?.outcome {
            Ok(_) => Ok(true),
            Err(Refusal { fault: Fault::Unsupported, .. }) => {
                self.is_unsupported = true;
                Ok(false)
            }
            Err(refusal) => Err(format!("the client does not open: {refusal}")),
        }
    }

    /// Opens a client and calls it. Returns the error of the step that fails first. Either step may
    /// fail, because a client may connect when it is made or at its first call.
    ///
    /// # Errors
    /// Both steps succeed.
    pub fn first_refusal(&mut self, addrs: &[String], timeout: Duration) -> Result<Call, String> {
        self.first_refusal_with(addrs, &Settings { timeout: Some(timeout), ..Settings::default() })
    }

    /// Like [`Self::first_refusal`], with other settings. Opening and the call both have the
    /// timeout of these settings.
    ///
    /// # Errors
    /// Both steps succeed.
    pub fn first_refusal_with(
        &mut self,
        addrs: &[String],
        settings: &Settings,
    ) -> Result<Call, String> {
        let timeout = settings.timeout;
        let opened = self.driver.open(addrs, settings)?;
        if opened.outcome.is_err() {
            return Ok(opened);
        }
        let pending = self.driver.begin(1, timeout);
        let called = self.end(pending)?;
        match called.outcome {
            Err(_) => Ok(called),
            Ok(range) => Err(format!("the call was answered with {}", range.first())),
        }
    }

    /// Makes one call, and returns its result, whatever it is.
    ///
    /// # Errors
    /// The driver failed.
    pub fn call(&mut self, count: u64, timeout: Duration) -> Result<Call, String> {
        let pending = self.begin(count, timeout);
        self.end(pending)
    }

    /// Makes one call, which must succeed.
    ///
    /// # Errors
    /// The call fails.
    pub fn answered(&mut self, count: u64) -> Result<TimestampRange, String> {
        let call = self.call(count, CALL_MAX)?;
        call.outcome.map_err(|refusal| format!("a call failed: {refusal}"))
    }

    /// Makes one call, which must fail with this kind of error.
    ///
    /// # Errors
    /// The call succeeds, or fails with another kind.
    pub fn refused(&mut self, count: u64, fault: Fault) -> Result<Call, String> {
        let call = self.call(count, CALL_MAX)?;
        expect_fault(&call, fault)?;
        Ok(call)
    }

    /// Begins a call.
    #[must_use]
    pub fn begin(&self, count: u64, timeout: Duration) -> Pending {
        self.driver.begin(count, Some(timeout))
    }

    /// Begins a call for the latest timestamp.
    #[must_use]
    pub fn begin_latest(&self) -> Pending {
        self.driver.begin_latest(CALL_MAX)
    }

    /// Makes one call for the latest timestamp, which must succeed.
    ///
    /// # Errors
    /// The call fails.
    pub fn latest(&mut self) -> Result<Timestamp, String> {
        let pending = self.begin_latest();
        let call = self.end(pending)?;
        let range = call.outcome.map_err(|refusal| format!("a call failed: {refusal}"))?;
        Ok(range.first())
    }

    /// Makes one call for the latest timestamp, which must fail with this kind of error.
    ///
    /// # Errors
    /// The call succeeds, or fails with another kind.
    pub fn latest_refused(&mut self, fault: Fault) -> Verdict {
        let pending = self.begin_latest();
        expect_fault(&self.end(pending)?, fault)
    }

    /// Makes one call for a timestamp of interval mode, and returns its result, whatever it is. The
    /// nodes' oracle does not know this timestamp, so the scenario checks it.
    ///
    /// # Errors
    /// The driver failed.
    pub fn interval(&self, timeout: Duration) -> Result<Call, String> {
        self.driver.begin_interval(timeout).wait()
    }

    /// Begins a call that has the client's timeout.
    #[must_use]
    pub fn begin_without_timeout(&self, count: u64) -> Pending {
        self.driver.begin(count, None)
    }

    /// Waits for a call, and records it for the check.
    ///
    /// # Errors
    /// The driver failed.
    pub fn end(&mut self, pending: Pending) -> Result<Call, String> {
        let call = pending.wait()?;
        self.calls.push(call.clone());
        Ok(call)
    }

    /// Cancels a call.
    ///
    /// # Errors
    /// The driver failed.
    pub fn cancel(&self, pending: &Pending) -> Verdict {
        self.driver.cancel(pending).map(drop)
    }

    /// Closes the client.
    ///
    /// # Errors
    /// The driver failed.
    pub fn close(&self) -> Verdict {
        self.driver.close().map(drop)
    }

    /// Ends the scenario, and makes the checks that every scenario has. Returns whether the client
    /// supports what the scenario tests.
    ///
    /// # Errors
    /// The first violation.
    pub fn finish(self) -> Result<bool, String> {
        self.scripted.oracle.check(&self.calls)?;
        for node in &self.nodes.0 {
            if let Some(offence) = node.seen().offences.first() {
                return Err(format!("C8: the client sent {offence}"));
            }
        }
        self.driver.finish()?;
        Ok(!self.is_unsupported)
    }
}

/// The nodes of a scenario. The nodes end when this value is dropped.
#[derive(Debug, Default)]
struct Nodes(Vec<Node>);

impl Drop for Nodes {
    fn drop(&mut self) {
        self.0.iter().for_each(Node::stop);
    }
}

/// Checks that a call failed with this kind of error.
///
/// # Errors
/// The call succeeded, or failed with another kind.
pub fn expect_fault(call: &Call, fault: Fault) -> Verdict {
    match &call.outcome {
        Err(refusal) if refusal.fault == fault => Ok(()),
        Err(Refusal { fault: other, text }) => {
            Err(format!("the call failed with {other:?} instead of {fault:?}: {text}"))
        }
        Ok(range) => Err(format!("the call was answered with {}", range.first())),
    }
}

/// Default timeout of a call.
pub const CALL_MAX: Duration = Duration::from_secs(3);
