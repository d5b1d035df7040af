//! The data plane: worker threads, each with its own event loop, clients, confirm links and rounds.
//! A request is answered on the thread that received it. Workers share the allocator, the
//! publication and the Promise. Apart from these they share only limits, metrics and mailboxes.
//!
//! - [`Workers`]: starts and ends the workers, and passes them connections.
//! - `thread`: the event loop of one worker: peers first, then clients.
//! - `front`: the interface of the code that serves a worker's clients.
//! - `processor`: the processor that a worker runs on, and whether it sleeps.
//! - `mailbox`: messages from other threads to a worker.
//! - `sequencer`: requests, rounds, answers, as the core decides; `admission`: how many may wait.
//! - `view`: the publication as a worker last read it.
//! - `links`, `link`, `confirm_link`: questions to other members.
//! - `confirm_answer`: answers to other members.
//! - `forwarding`: requests that another node answers; `forward_link`: the connection to that node.
//! - `client_tasks`: the tasks of clients, in the order in which they became ready.
//! - `turns`: splits long work, so that peers are served in between.
//! - `watched`: futures of the event loop that are polled only when they were woken.

use std::io;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use epicepoch_wire::peer_hello::{LinkKind, PeerHello};
use epicepoch_wire::{NodeId, WorkerId};

use crate::metrics::{ConnectionRefusal, Metrics};
use crate::security::authz::Port;
use crate::security::limits::{AddressLimits, ConnectionPermit};
use crate::security::tls::peer_stream::DetachedStream;
use crate::shared::NodeShared;

mod admission;
pub(crate) mod client_tasks;
mod confirm_answer;
mod confirm_link;
mod ended;
#[cfg(test)]
pub(crate) mod fixture;
mod forward_link;
mod forwarding;
pub(crate) mod front;
mod link;
mod links;
mod mailbox;
pub(crate) mod processor;
mod quic;
pub(crate) mod sequencer;
mod thread;
pub(crate) mod turns;
pub(crate) mod view;
mod watched;

use admission::AdmissionLimit;
use ended::{EndGuard, Ended};
use front::OpenFront;
use mailbox::{Mailbox, WorkerMessage};
use processor::CpuPlacement;
pub use processor::ProcessorError;
use quic::QuicSocket;

/// The workers of a node. Clones are handles to the same threads. When the last handle is dropped,
/// the threads end without finishing their requests.
#[derive(Clone, Debug)]
pub struct Workers(Arc<Handles>);

#[derive(Debug)]
struct Handles {
    boxes: Arc<[Mailbox]>,
    metrics: Arc<Metrics>,
    address_limits: Arc<AddressLimits>,
    /// Limits for operators. They are separate, so that clients cannot use up what operators need.
    operators: Arc<AddressLimits>,
    next: AtomicUsize,
    ended: Arc<Ended>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Workers {
    /// Starts the configured number of workers, as threads named `worker-N`. Each gets a front from
    /// `open_front`.
    ///
    /// # Errors
    /// When the system refuses a thread or an event queue.
    #[expect(clippy::needless_pass_by_value, reason = "the threads share what is given here")]
    pub(crate) fn spawn(
        shared: Arc<NodeShared>,
        metrics: Arc<Metrics>,
        open_front: OpenFront,
    ) -> io::Result<Self> {
        let count = shared.config.workers;
        let (boxes, receivers): (Vec<_>, Vec<_>) = (0..count).map(|_| Mailbox::new()).unzip();
        let boxes: Arc<[Mailbox]> = boxes.into();
        let admission = Arc::new(AdmissionLimit::new(shared.config.request_buffer));
        let handles = Handles {
            boxes: boxes.clone(),
            metrics: metrics.clone(),
            address_limits: AddressLimits::new(shared.config.limits.address_request_rate_max),
            operators: AddressLimits::new(None),
            next: AtomicUsize::new(0),
            ended: Arc::default(),
            threads: Mutex::default(),
        };
        // If a later step fails, dropping the handles ends the threads that have started.
        let workers = Self(Arc::new(handles));
        for (worker, messages) in receivers.into_iter().enumerate() {
            let start = thread::Start {
                worker: WorkerId(worker as u32),
                shared: shared.clone(),
                metrics: metrics.clone(),
                boxes: boxes.clone(),
                messages,
                open_front,
                admission: admission.clone(),
                ended: EndGuard(workers.0.ended.clone()),
            };
            let cpu_placement = CpuPlacement {
                cpu: shared.config.worker_cpus.get(worker).copied(),
                is_spinning: shared.config.busy_poll,
            };
            let thread = start.spawn(cpu_placement)?;
            workers.threads().push(thread);
        }
        Ok(workers)
    }

    /// Tells every worker to read the publication. Never blocks. Several quick calls may have the
    /// effect of one.
    pub fn notify_published(&self) {
        self.0.boxes.iter().for_each(Mailbox::notify_published);
    }

    /// Passes an inbound confirm link to its worker. The hello of the link was checked and answered
    /// with a welcome. The link is closed at once if the hello is for another kind of link, or if
    /// the worker cannot take the link.
    pub fn adopt_confirm_link(&self, from: NodeId, hello: PeerHello, stream: TcpStream) {
        self.adopt_detached_link(from, hello, stream.into());
    }

    /// [`Self::adopt_confirm_link`] for a connection that may use TLS.
    pub(crate) fn adopt_detached_link(
        &self,
        from: NodeId,
        hello: PeerHello,
        stream: DetachedStream,
    ) {
        let LinkKind::Confirm(worker) = hello.link else {
            tracing::warn!(peer = from.0, link = ?hello.link, "not a confirm link; closed");
            return;
        };
        let mailbox = &self.0.boxes[worker.0 as usize % self.0.boxes.len()];
        let message = WorkerMessage::ConfirmLink { from, hello: Box::new(hello), stream };
        if mailbox.put(message).is_err() {
            tracing::warn!(peer = from.0, "a worker that is full or ending takes no confirm link");
        }
    }

    /// Passes a client's connection that came in at `port` to the next worker in turn. If that
    /// worker cannot take it, the connection is closed at once and counted.
    pub(crate) fn adopt_client(
        &self,
        stream: TcpStream,
        port: Port,
        addr: SocketAddr,
        permit: ConnectionPermit,
    ) {
        let worker = self.0.next.fetch_add(1, Ordering::Relaxed) % self.0.boxes.len();
        if self.0.boxes[worker].put(WorkerMessage::Client(stream, port, permit)).is_err() {
            self.0.metrics.count_connection_refused(ConnectionRefusal::Worker);
            tracing::debug!(%addr, worker, "a worker that is full or ending takes no client");
        }
    }

    /// Passes each worker a socket of one UDP port. Its clients have the rights of clients of
    /// `port`.
    ///
    /// # Panics
    /// When the number of sockets is not the number of workers.
    pub(crate) fn serve_quic(
        &self,
        sockets: Vec<UdpSocket>,
        server: &quinn::ServerConfig,
        port: Port,
    ) {
        assert_eq!(sockets.len(), self.0.boxes.len(), "a socket for each worker");
        for (mailbox, socket) in self.0.boxes.iter().zip(sockets) {
            let address_limits = self.address_limits(port).clone();
            let server = server.clone();
            let socket = QuicSocket { socket, server, port, address_limits };
            if mailbox.put(WorkerMessage::Quic(Box::new(socket))).is_err() {
                tracing::warn!("a worker that is full or ending serves no HTTP/3");
            }
        }
    }

    /// How many connections came in at `port` and are open, including those that wait for their
    /// worker.
    pub fn connections(&self, port: Port) -> usize {
        self.address_limits(port).connections()
    }

    /// The per-address limits of connections that came in at `port`.
    pub(crate) fn address_limits(&self, port: Port) -> &Arc<AddressLimits> {
        match port {
            Port::Shared | Port::Clients => &self.0.address_limits,
            Port::Operations | Port::Peers => &self.0.operators,
        }
    }

    /// Stops accepting requests, finishes those in flight, and ends the threads. Idle connections
    /// are closed at once, busy ones after their answers. When `deadline` has passed, the rest is
    /// cut off. Returns whether every thread ended in time.
    pub fn shutdown(&self, deadline: Duration) -> bool {
        self.0.stop(deadline);
        let threads = self.0.boxes.len();
        let has_ended = self.0.ended.wait(threads, deadline + END_GRACE);
        if has_ended {
            for thread in self.threads().drain(..) {
                // `join` cannot fail, because a panic of a worker aborts the process.
                let _ = thread.join();
            }
        }
        has_ended
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.0.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handles {
    fn stop(&self, deadline: Duration) {
        let at = Instant::now() + deadline;
        self.boxes.iter().for_each(|mailbox| mailbox.stop(at));
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

/// How long after its deadline a worker may take to drop its connections and tasks.
const END_GRACE: Duration = Duration::from_millis(500);
