//! The event loop of one worker: a single-threaded runtime, on which peers come before clients.
//! Mail, timer and confirm links are polled by the loop's own future, before every few client
//! tasks; a busy client plane cannot keep a voter from answering. It never blocks.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use epicepoch_wire::hello::{Hello, LinkKind};
use epicepoch_wire::{NodeId, WorkerId};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, sleep, sleep_until};

use super::EndGuard;
use super::confirm_answer::Caller;
use super::links::Links;
use super::mail::{Letter, Letterbox};
use super::places::Places;
use super::processor::{Seat, spin};
use super::sequencer::Sequencer;
use super::signal::Signal;
use super::turns::Turns;
use super::watched::{Watch, Watched};
use crate::abort::AbortOnPanic;
use crate::http::connection::Clients;
use crate::metrics::Metrics;
use crate::peers::stream::Parcel;
use crate::shared::NodeShared;

/// Time between ticks while requests wait or rounds are in flight: an eighth of an election
/// timeout, within these bounds. A deadline is noticed that much late.
const TICK_MIN: Duration = Duration::from_millis(1);
/// See [`TICK_MIN`].
const TICK_MAX: Duration = Duration::from_millis(25);
/// Time between ticks of a worker with nothing to do.
const TICK_IDLE: Duration = Duration::from_millis(250);
/// Inbound confirm links at most: a link for each worker of each member, as far as one worker
/// serves them. A caller's older link of the same worker is closed first.
const CALLERS_MAX: usize = 1024;
/// Letters read before peers and clients get their turn.
const LETTERS_PER_TURN_MAX: usize = 256;
/// Threads for name resolution, which the system offers only as a blocking call.
const RESOLVERS_MAX: usize = 1;

/// What a worker's thread is started with.
pub(crate) struct Start {
    pub(crate) worker: WorkerId,
    pub(crate) shared: Arc<NodeShared>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) boxes: Arc<[Letterbox]>,
    pub(crate) letters: mpsc::Receiver<Letter>,
    pub(crate) places: Arc<Places>,
    pub(crate) ended: EndGuard,
}

impl Start {
    /// Starts the thread in its seat.
    pub(crate) fn spawn(self, seat: Seat) -> io::Result<JoinHandle<()>> {
        let mut builder = Builder::new_current_thread();
        builder.enable_io().enable_time().max_blocking_threads(RESOLVERS_MAX);
        builder.thread_name(format!("resolve-{}", self.worker));
        seat.spawn(&mut builder, |builder| self.spawn_on(builder.build()?, seat.is_spinning))
    }

    fn spawn_on(self, runtime: Runtime, is_spinning: bool) -> io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name(format!("worker-{}", self.worker)).spawn(move || {
            let _abort = AbortOnPanic("worker");
            if is_spinning {
                runtime.spawn(spin());
            }
            let Self { worker, shared, metrics, boxes, letters, places, ended } = self;
            let local = LocalSet::new();
            let timeout = shared.config.election_timeout;
            let node = shared.identity.node;
            let links = Links::new(node, worker, boxes.clone(), metrics.clone(), timeout);
            let sequencer = Rc::new(Sequencer::new(worker, shared, metrics, links, places));
            let turns = Arc::new(Turns::default());
            let worker = Worker {
                clients: Clients::new(sequencer.clone(), turns.clone()),
                sequencer,
                boxes,
                callers: RefCell::default(),
                watch: Arc::default(),
                turns,
                peers: RefCell::default(),
            };
            runtime.block_on(local.run_until(worker.serve(letters)));
            // Clients' tasks first: they hold places in the sequencer.
            drop(local);
            // A name that is being resolved is not waited for.
            runtime.shutdown_background();
            drop(ended);
        })
    }
}

/// One worker, on its own thread.
struct Worker {
    sequencer: Rc<Sequencer>,
    clients: Rc<Clients>,
    boxes: Arc<[Letterbox]>,
    /// Inbound confirm links by the worker that opened them: set to close one.
    callers: RefCell<BTreeMap<(NodeId, WorkerId), Rc<Signal>>>,
    watch: Arc<Watch>,
    turns: Arc<Turns>,
    /// Links that wait to be polled.
    peers: RefCell<Vec<Watched<'static>>>,
}

impl Worker {
    /// Serves until told to stop.
    async fn serve(self, letters: mpsc::Receiver<Letter>) {
        self.follow_publication();
        let mut mail = Watched::new(&self.watch, self.read_mail(letters));
        let mut ticks = Watched::new(&self.watch, self.tick());
        let mut sweeps = Watched::new(&self.watch, self.clients.clone().sweep());
        let mut handshakes = Watched::new(&self.watch, self.clients.clone().hand_out_turns());
        let mut turns = pin!(spawn_local(self.sequencer.clone().take_turns()));
        let mut peers = Vec::new();
        poll_fn(|context| {
            self.watch.note_waker(context);
            if mail.poll().is_ready() {
                return Poll::Ready(());
            }
            peers.append(&mut self.peers.borrow_mut());
            poll_peers(&mut peers);
            // These never end.
            let _: Poll<()> = ticks.poll();
            let _: Poll<()> = sweeps.poll();
            let _: Poll<()> = handshakes.poll();
            self.turns.begin(context);
            match turns.as_mut().poll(context) {
                Poll::Ready(Err(error)) if error.is_panic() => {
                    std::panic::resume_unwind(error.into_panic())
                }
                Poll::Ready(_) | Poll::Pending => Poll::Pending,
            }
        })
        .await;
        turns.abort();
    }

    async fn read_mail(&self, mut letters: mpsc::Receiver<Letter>) {
        let letterbox = &self.boxes[self.sequencer.worker.0 as usize];
        let mut letters_in_a_row = 0;
        let mut stop_at = None;
        loop {
            tokio::select! {
                biased;
                () = letterbox.rung() => {
                    if letterbox.take_published() {
                        self.follow_publication();
                    }
                    if stop_at.is_none() && let Some(at) = letterbox.stop_at() {
                        stop_at = Some(Instant::from_std(at));
                        self.clients.close();
                    }
                }
                () = self.clients.gone(), if stop_at.is_some() => return,
                () = sleep_until(stop_at.unwrap_or_else(Instant::now)), if stop_at.is_some() => {
                    return;
                }
                Some(letter) = letters.recv() => {
                    self.handle_letter(letter, stop_at.is_some());
                    letters_in_a_row += 1;
                    if letters_in_a_row >= LETTERS_PER_TURN_MAX {
                        letters_in_a_row = 0;
                        tokio::task::yield_now().await;
                    }
                }
            }
        }
    }

    fn handle_letter(&self, letter: Letter, is_stopping: bool) {
        match letter {
            Letter::Client(stream, port, permit) => {
                if !is_stopping {
                    self.clients.adopt(stream, port, permit);
                }
            }
            Letter::Http3(start) => {
                spawn_local(start.serve(self.clients.clone(), self.turns.clone()));
            }
            Letter::ConfirmLink { from, hello, stream } => self.adopt(from, *hello, stream),
            Letter::Forward { to, frame } => {
                let now_ns = self.sequencer.shared.clock.monotonic_ns();
                self.sequencer.links.forward(to, &frame, now_ns);
            }
            Letter::Reply { from, reply } => self.sequencer.handle_reply(from, &reply),
        }
    }

    fn follow_publication(&self) {
        let view = self.sequencer.handle_publication();
        self.clients.follow_publication();
        let new = self.sequencer.links.reconcile(&view.published);
        let mut peers = self.peers.borrow_mut();
        for link in new {
            peers.push(Watched::new(&self.watch, link.run(self.sequencer.clone())));
        }
    }

    /// Serves an inbound confirm link; an older one of the same caller is closed.
    fn adopt(&self, from: NodeId, hello: Hello, stream: Parcel) {
        let LinkKind::Confirm(worker) = hello.link else { return };
        // The peer is there: a link of our own to it need not wait out its pause.
        self.sequencer.links.nudge(from);
        let close = Rc::new(Signal::default());
        let mut callers = self.callers.borrow_mut();
        // A closed link's entry is the only one that holds its signal.
        callers.retain(|_, close| Rc::strong_count(close) > 1);
        if let Some(older) = callers.insert((from, worker), close.clone()) {
            older.set();
        } else if callers.len() > CALLERS_MAX {
            tracing::warn!(%from, %worker, "too many confirm links; closed");
            callers.remove(&(from, worker));
            return;
        }
        let cluster = self.sequencer.shared.core.published().cluster;
        let caller = Caller { from, hello, cluster };
        let serving = caller.serve(self.sequencer.clone(), stream);
        let serving = async move {
            tokio::select! {
                () = serving => {}
                () = close.wait() => {}
            }
        };
        self.peers.borrow_mut().push(Watched::new(&self.watch, serving));
    }

    /// Tells the sequencer the time: often while requests wait, seldom while none do.
    async fn tick(&self) {
        let sequencer = &self.sequencer;
        let tick = (sequencer.shared.config.election_timeout / 8).clamp(TICK_MIN, TICK_MAX);
        loop {
            if sequencer.is_active() {
                sleep(tick).await;
            } else {
                let is_first = sequencer.worker == WorkerId(0);
                let probes = is_first && sequencer.view().is_serving();
                let idle = if probes { sequencer.probe_interval() } else { TICK_IDLE };
                tokio::select! {
                    () = sleep(idle) => {}
                    () = sequencer.alarm.wait() => sleep(tick).await,
                }
            }
            sequencer.handle_tick();
        }
    }
}

/// Polls every link that something has happened for, and drops those that have ended.
fn poll_peers(peers: &mut Vec<Watched<'static>>) {
    let mut position = 0;
    while let Some(peer) = peers.get_mut(position) {
        if peer.poll().is_ready() {
            drop(peers.swap_remove(position));
        } else {
            position += 1;
        }
    }
}
