//! What a scenario plays on: scripted nodes, one driver, and a record of every call, which is
//! checked against what the nodes gave when the scenario is over.

use std::sync::Arc;
use std::time::Duration;

use epicepoch_wire::TimestampRange;

use crate::Verdict;
use crate::driver::{Call, Driver, DriverCommand, Pending, Refusal, Settings};
use crate::node::{Cast, Node};
use crate::protocol::Fault;

/// See the module.
#[derive(Debug)]
pub struct Stage {
    /// What the nodes have in common.
    pub cast: Arc<Cast>,
    driver: Driver,
    nodes: Nodes,
    calls: Vec<Call>,
}

impl Stage {
    /// An empty stage with a driver that has no client yet.
    ///
    /// # Errors
    /// When the driver does not start.
    pub fn new(command: &DriverCommand) -> Result<Self, String> {
        let driver = Driver::start(command)?;
        Ok(Self { cast: Arc::default(), driver, nodes: Nodes::default(), calls: Vec::new() })
    }

    /// A node that is not listed by any.
    pub fn unlisted_node(&mut self) -> Node {
        let node = Node::start(&self.cast, self.nodes.0.len() as u64 + 1);
        self.nodes.0.push(node.clone());
        node
    }

    /// A member that all nodes list.
    pub fn node(&mut self) -> Node {
        let node = self.unlisted_node();
        self.cast.lists(&node);
        node
    }

    /// A member that all nodes list and name as their leader.
    pub fn leader(&mut self) -> Node {
        let node = self.node();
        self.cast.is_led_by(&node);
        node
    }

    /// A client that begins with these nodes. It must open.
    ///
    /// # Errors
    /// When it does not.
    pub fn open(&self, nodes: &[&Node]) -> Verdict {
        self.open_with(nodes, &Settings::default())
    }

    /// The same with other settings.
    ///
    /// # Errors
    /// When it does not open.
    pub fn open_with(&self, nodes: &[&Node], settings: &Settings) -> Verdict {
        let addrs: Vec<_> = nodes.iter().map(|node| node.addr()).collect();
        self.open_at(&addrs, settings)
    }

    /// The same at any addresses.
    ///
    /// # Errors
    /// When it does not open.
    pub fn open_at(&self, addrs: &[String], settings: &Settings) -> Verdict {
        let opened = self.driver.open(addrs, settings)?;
        opened.outcome.map(drop).map_err(|refusal| format!("the client does not open: {refusal}"))
    }

    /// Opens and calls; what goes wrong first. A client may connect in either step.
    ///
    /// # Errors
    /// When nothing goes wrong.
    pub fn first_refusal(&mut self, addrs: &[String], timeout: Duration) -> Result<Call, String> {
        self.first_refusal_with(addrs, &Settings { timeout, ..Settings::default() })
    }

    /// The same with other settings; their time for opening is also that of the call.
    ///
    /// # Errors
    /// When nothing goes wrong.
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
        let called = self.call(1, timeout)?;
        match called.outcome {
            Err(_) => Ok(called),
            Ok(range) => Err(format!("the call was answered with {}", range.first())),
        }
    }

    /// One call, whatever comes of it.
    ///
    /// # Errors
    /// When the driver is at fault.
    pub fn call(&mut self, count: u64, timeout: Duration) -> Result<Call, String> {
        let pending = self.begin(count, timeout);
        self.end(pending)
    }

    /// One call that must be answered.
    ///
    /// # Errors
    /// When it is not.
    pub fn answered(&mut self, count: u64) -> Result<TimestampRange, String> {
        let call = self.call(count, CALL_MAX)?;
        call.outcome.map_err(|refusal| format!("a call failed: {refusal}"))
    }

    /// One call that must fail so.
    ///
    /// # Errors
    /// When it does not.
    pub fn refused(&mut self, count: u64, fault: Fault) -> Result<Call, String> {
        let call = self.call(count, CALL_MAX)?;
        expect_fault(&call, fault)?;
        Ok(call)
    }

    /// Begins a call.
    #[must_use]
    pub fn begin(&self, count: u64, timeout: Duration) -> Pending {
        self.driver.begin(count, timeout)
    }

    /// Waits for what comes of a call, and notes it for the check.
    ///
    /// # Errors
    /// When the driver is at fault.
    pub fn end(&mut self, pending: Pending) -> Result<Call, String> {
        let call = pending.wait()?;
        self.calls.push(call.clone());
        Ok(call)
    }

    /// Makes the caller of a call give up.
    ///
    /// # Errors
    /// When the driver is at fault.
    pub fn cancel(&self, pending: &Pending) -> Verdict {
        self.driver.cancel(pending).map(drop)
    }

    /// Closes the client.
    ///
    /// # Errors
    /// When the driver is at fault.
    pub fn close(&self) -> Verdict {
        self.driver.close().map(drop)
    }

    /// Ends the scenario: what holds in all of them is checked.
    ///
    /// # Errors
    /// With the first thing that does not hold.
    pub fn finish(self) -> Verdict {
        self.cast.oracle.check(&self.calls)?;
        for node in &self.nodes.0 {
            if let Some(offence) = node.seen().offences.first() {
                return Err(format!("C8: the client sent {offence}"));
            }
        }
        self.driver.finish()
    }
}

/// The nodes of a stage, which end with it.
#[derive(Debug, Default)]
struct Nodes(Vec<Node>);

impl Drop for Nodes {
    fn drop(&mut self) {
        self.0.iter().for_each(Node::stop);
    }
}

/// Holds a call to how it must have failed.
///
/// # Errors
/// When it did not, or not so.
pub fn expect_fault(call: &Call, fault: Fault) -> Verdict {
    match &call.outcome {
        Err(refusal) if refusal.fault == fault => Ok(()),
        Err(Refusal { fault: other, text }) => {
            Err(format!("the call failed with {other:?} instead of {fault:?}: {text}"))
        }
        Ok(range) => Err(format!("the call was answered with {}", range.first())),
    }
}

/// How long a call of a scenario may take that says nothing else.
pub const CALL_MAX: Duration = Duration::from_secs(3);
