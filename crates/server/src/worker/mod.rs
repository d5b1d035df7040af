//! The data plane: worker threads, each with its own event loop, clients, confirm links and
//! rounds. A request is answered on the thread that received it. Workers share the allocator, the
//! publication and the Promise, and nothing else that matters.
//!
//! - [`Workers`]: starts, feeds and ends them.
//! - `thread`: the event loop of one worker: peers first, then clients.
//! - `processor`: where that thread runs, and whether it sleeps.
//! - `mail`: what other threads tell a worker.
//! - `sequencer`: requests, rounds, answers.
//! - `batch`: where requests wait; `places`: how many may.
//! - `view`: what a worker last saw published.
//! - `links`, `confirm_link`: questions to other members.
//! - `confirm_answer`: answers to other members.
//! - `signal`: how tasks of one worker wake each other.
//! - `turns`: so that what costs long leaves peers their turn.
//! - `watched`: what the event loop waits for, polled only when it was woken.

use std::io;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use epicepoch_certs::rustls;
use epicepoch_wire::hello::{Hello, LinkKind};
use epicepoch_wire::{NodeId, WorkerId};
use quinn_proto::crypto::rustls::NoInitialCipherSuite;

use crate::config::Config;
use crate::http::http3::{endpoint, limits};
use crate::metrics::{ConnectionRefusal, Metrics};
use crate::origins::{ConnectionPermit, Origins};
use crate::peers::stream::Parcel;
use crate::rights::Port;
use crate::shared::NodeShared;

pub(crate) mod batch;
mod confirm_answer;
mod confirm_link;
mod links;
mod mail;
mod places;
pub(crate) mod processor;
pub(crate) mod sequencer;
pub(crate) mod signal;
mod thread;
pub(crate) mod turns;
pub(crate) mod view;
mod watched;

use mail::{Letter, Letterbox};
use places::Places;
pub use processor::ProcessorError;
use processor::Seat;

/// The workers of a node. Clones are handles to the same threads; when the last one goes, the
/// threads end without finishing their requests.
#[derive(Clone, Debug)]
pub struct Workers(Arc<Handles>);

#[derive(Debug)]
struct Handles {
    boxes: Arc<[Letterbox]>,
    metrics: Arc<Metrics>,
    origins: Arc<Origins>,
    /// Operators apart: clients must not take their places.
    operators: Arc<Origins>,
    next: AtomicUsize,
    ended: Arc<Ended>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Workers {
    /// Starts as many workers as the configuration says, as threads named `worker-N`.
    ///
    /// # Errors
    /// When the system has no thread or no event queue to give.
    #[expect(clippy::needless_pass_by_value, reason = "the threads share what is given here")]
    pub fn spawn(shared: Arc<NodeShared>, metrics: Arc<Metrics>) -> io::Result<Self> {
        let count = shared.config.workers;
        let (boxes, receivers): (Vec<_>, Vec<_>) = (0..count).map(|_| Letterbox::new()).unzip();
        let boxes: Arc<[Letterbox]> = boxes.into();
        let places = Arc::new(Places::new(shared.config.request_buffer));
        let handles = Handles {
            boxes: boxes.clone(),
            metrics: metrics.clone(),
            origins: Origins::new(shared.config.limits.address_request_rate_max),
            operators: Origins::new(None),
            next: AtomicUsize::new(0),
            ended: Arc::default(),
            threads: Mutex::default(),
        };
        // From here on a failure drops the handles, which ends the threads that have started.
        let workers = Self(Arc::new(handles));
        for (worker, letters) in receivers.into_iter().enumerate() {
            let start = thread::Start {
                worker: WorkerId(worker as u32),
                shared: shared.clone(),
                metrics: metrics.clone(),
                boxes: boxes.clone(),
                letters,
                places: places.clone(),
                ended: EndGuard(workers.0.ended.clone()),
            };
            let seat = Seat {
                cpu: shared.config.worker_cpus.get(worker).copied(),
                is_spinning: shared.config.busy_poll,
            };
            let thread = start.spawn(seat)?;
            workers.threads().push(thread);
        }
        Ok(workers)
    }

    /// Tells every worker to look at the publication. Never blocks; calls in quick succession
    /// may be seen as one.
    pub fn notify_published(&self) {
        self.0.boxes.iter().for_each(Letterbox::notify_published);
    }

    /// Hands over an inbound confirm link whose hello was checked and answered with a welcome.
    /// Closed at once if it is no confirm link, or if the worker cannot take it.
    pub fn adopt_confirm_link(&self, from: NodeId, hello: Hello, stream: TcpStream) {
        self.adopt_packed_link(from, hello, stream.into());
    }

    /// [`Self::adopt_confirm_link`] of a connection that may be secured.
    pub(crate) fn adopt_packed_link(&self, from: NodeId, hello: Hello, stream: Parcel) {
        let LinkKind::Confirm(worker) = hello.link else {
            tracing::warn!(%from, link = ?hello.link, "not a confirm link; closed");
            return;
        };
        let letterbox = &self.0.boxes[worker.0 as usize % self.0.boxes.len()];
        let letter = Letter::ConfirmLink { from, hello: Box::new(hello), stream };
        if letterbox.put(letter).is_err() {
            tracing::warn!(%from, "a worker that is full or ending takes no confirm link");
        }
    }

    /// Hands over a client's connection that came in at `port`, to each worker in turn. Closed at
    /// once, and counted, if the worker cannot take it.
    pub(crate) fn adopt_client(
        &self,
        stream: TcpStream,
        port: Port,
        addr: SocketAddr,
        permit: ConnectionPermit,
    ) {
        let worker = self.0.next.fetch_add(1, Ordering::Relaxed) % self.0.boxes.len();
        if self.0.boxes[worker].put(Letter::Client(stream, port, permit)).is_err() {
            self.0.metrics.count_connection_refused(ConnectionRefusal::Worker);
            tracing::debug!(%addr, worker, "a worker that is full or ending takes no client");
        }
    }

    /// Serves HTTP/3 with a socket and an endpoint for each worker, all of one UDP port, whose
    /// clients may do what those of `port` may.
    ///
    /// # Errors
    /// When `tls` is not one that QUIC can begin with.
    ///
    /// # Panics
    /// When there are not as many sockets as workers.
    pub fn serve_http3(
        &self,
        sockets: Vec<UdpSocket>,
        tls: Arc<rustls::ServerConfig>,
        port: Port,
        config: &Config,
    ) -> Result<(), NoInitialCipherSuite> {
        assert_eq!(sockets.len(), self.0.boxes.len(), "a socket for each worker");
        let server = limits::server(tls, config.limits.idle_timeout)?;
        let endpoint = limits::endpoint();
        let room = endpoint::Room {
            origins: self.origins(port).clone(),
            connections_max: config.connections_max,
            address_connections_max: config.limits.address_connections_max,
        };
        for (letterbox, socket) in self.0.boxes.iter().zip(sockets) {
            let (server, endpoint, room) = (server.clone(), endpoint.clone(), room.clone());
            let start = endpoint::Start { socket, endpoint, server, room, port };
            if letterbox.put(Letter::Http3(Box::new(start))).is_err() {
                tracing::warn!("a worker that is full or ending serves no HTTP/3");
            }
        }
        Ok(())
    }

    /// How many connections there are that came in at `port`, those that wait for their worker
    /// included.
    pub fn connections(&self, port: Port) -> usize {
        self.origins(port).connections()
    }

    /// Where those come from that came in at `port`.
    pub(crate) fn origins(&self, port: Port) -> &Arc<Origins> {
        match port {
            Port::Shared | Port::Clients => &self.0.origins,
            Port::Operations | Port::Peers => &self.0.operators,
        }
    }

    /// Stops taking requests, finishes those in flight, and ends the threads. Idle connections
    /// are closed, busy ones after their answer; what is not finished by `deadline` from now is
    /// cut off. Returns whether every thread has ended in time.
    pub fn shutdown(&self, deadline: Duration) -> bool {
        self.0.stop(deadline);
        let threads = self.0.boxes.len();
        let has_ended = self.0.ended.wait(threads, deadline + END_GRACE);
        if has_ended {
            for thread in self.threads().drain(..) {
                // A worker that panics has ended the process.
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
        self.boxes.iter().for_each(|letterbox| letterbox.stop(at));
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

/// Counts the threads that have ended.
#[derive(Debug, Default)]
struct Ended {
    count: Mutex<usize>,
    changed: Condvar,
}

impl Ended {
    /// Waits until `count` have ended; returns whether they have, after `timeout` at most.
    fn wait(&self, count: usize, timeout: Duration) -> bool {
        let ended = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(ended, timeout, |ended| *ended < count);
        *waited.unwrap_or_else(PoisonError::into_inner).0 >= count
    }
}

/// Held by a worker's thread: dropped, it counts the thread as ended.
#[derive(Debug)]
pub(crate) struct EndGuard(Arc<Ended>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        *self.0.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.changed.notify_all();
    }
}

/// What a worker may take beyond its deadline to drop what it holds.
const END_GRACE: Duration = Duration::from_millis(500);
