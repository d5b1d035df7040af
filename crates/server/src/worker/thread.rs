//! The event loop of one worker: a single-threaded runtime that serves peers before clients. The
//! loop's own future polls mailbox, timer and confirm links before every few client tasks. So busy
//! clients cannot keep a voter from answering. It never blocks.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use epicepoch_core::confirm::ALONE_NS;
use epicepoch_wire::peer_hello::{LinkKind, PeerHello};
use epicepoch_wire::{NodeId, WorkerId};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::task::{self, LocalSet, spawn_local};
use tokio::time::{Instant, sleep, sleep_until};

use super::admission::AdmissionLimit;
use super::client_tasks::ClientTasks;
use super::confirm_answer::Caller;
use super::ended::EndGuard;
use super::forward_link;
use super::front::{Front, OpenFront};
use super::links::Links;
use super::mailbox::{Mailbox, WorkerMessage};
use super::processor::{CpuPlacement, spin};
use super::sequencer::Sequencer;
use super::turns::Turns;
use super::watched::{Watch, Watched};
use crate::abort::AbortOnPanic;
use crate::metrics::Metrics;
use crate::security::tls::peer_stream::DetachedStream;
use crate::shared::NodeShared;
use crate::sync::signal::Signal;
use crate::sync::ticker::Ticker;

/// The shortest time between ticks while requests wait or rounds are in flight. The time is an
/// eighth of the election timeout, but at least [`TICK_MIN`] and at most [`TICK_MAX`]. So a
/// deadline is noticed up to 25 ms late.
const TICK_MIN: Duration = Duration::from_millis(1);
/// The longest time between ticks while requests wait or rounds are in flight.
const TICK_MAX: Duration = Duration::from_millis(25);
/// Time between ticks while a worker has no work.
const TICK_IDLE: Duration = Duration::from_millis(250);
/// The looks for late answers end when so many have found nothing to wait for. To start and stop the
/// timer costs more than a look.
const LOOKS_IN_VAIN_MAX: usize = 10;
/// Time between two looks for late answers.
const LATE_LOOK: Duration = Duration::from_millis(1);
/// At most this many inbound confirm links on one worker. Each comes from one worker of another
/// member. A new link from the same worker of a member closes the older one first.
const CALLERS_MAX: usize = 1024;
/// At most this many messages are read before peers and clients get their turn.
const MESSAGES_PER_TURN_MAX: usize = 256;

/// The parts of a worker, before its thread is started.
pub(crate) struct Start {
    pub(crate) worker: WorkerId,
    pub(crate) shared: Arc<NodeShared>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) boxes: Arc<[Mailbox]>,
    pub(crate) messages: mpsc::Receiver<WorkerMessage>,
    pub(crate) open_front: OpenFront,
    pub(crate) admission: Arc<AdmissionLimit>,
    pub(crate) ended: EndGuard,
}

impl Start {
    /// Starts the thread on its processor.
    pub(crate) fn spawn(self, cpu_placement: CpuPlacement) -> io::Result<JoinHandle<()>> {
        let mut builder = Builder::new_current_thread();
        builder.enable_io().enable_time();
        cpu_placement.spawn(&mut builder, |builder| {
            self.spawn_on(builder.build()?, cpu_placement.is_spinning)
        })
    }

    fn spawn_on(self, runtime: Runtime, is_spinning: bool) -> io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name(format!("worker-{}", self.worker)).spawn(move || {
            let _abort = AbortOnPanic("worker");
            if is_spinning {
                runtime.spawn(spin());
            }
            let Self { worker, shared, metrics, boxes, messages, open_front, admission, ended } =
                self;
            let local = LocalSet::new();
            let timeout = shared.config.election_timeout;
            let me = shared.identity;
            let links = Links::new(me, worker, boxes.clone(), metrics.clone(), timeout, ALONE_NS);
            let sequencer = Rc::new(Sequencer::new(worker, shared, metrics, links, admission));
            let turns = Arc::new(Turns::default());
            let tasks = Rc::new(ClientTasks::default());
            let worker = Worker {
                front: open_front(sequencer.clone(), turns.clone(), tasks.clone()),
                sequencer,
                boxes,
                callers: RefCell::default(),
                watch: Arc::default(),
                turns,
                tasks: tasks.clone(),
                peers: RefCell::default(),
            };
            runtime.block_on(local.run_until(async {
                worker.serve(messages).await;
                // Clients' tasks are dropped first, because they hold slots of the sequencer.
                tasks.clear();
            }));
            drop(local);
            drop(runtime);
            drop(ended);
        })
    }
}

/// Inbound confirm links, by the worker that opened them. Setting the signal closes the link, which
/// holds a second reference to it.
#[derive(Default)]
struct Callers(BTreeMap<(NodeId, WorkerId), Rc<Signal>>);

impl Callers {
    /// Adds a link, and closes an older one of the same caller. Returns the signal of the new link;
    /// `None` if there are too many links.
    fn add(&mut self, from: NodeId, worker: WorkerId) -> Option<Rc<Signal>> {
        let close = Rc::new(Signal::default());
        // When a link has closed, this map holds the only reference to its signal. Such entries are
        // removed.
        self.0.retain(|_, close| Rc::strong_count(close) > 1);
        if let Some(older) = self.0.insert((from, worker), close.clone()) {
            older.set();
        } else if self.0.len() > CALLERS_MAX {
            self.0.remove(&(from, worker));
            return None;
        }
        Some(close)
    }
}

/// One worker, on its own thread.
struct Worker {
    sequencer: Rc<Sequencer>,
    front: Box<dyn Front>,
    boxes: Arc<[Mailbox]>,
    callers: RefCell<Callers>,
    watch: Arc<Watch>,
    turns: Arc<Turns>,
    tasks: Rc<ClientTasks>,
    /// New links that the event loop does not poll yet.
    peers: RefCell<Vec<Watched<'static>>>,
}

impl Worker {
    /// Runs the event loop until the worker has stopped.
    async fn serve(self, messages: mpsc::Receiver<WorkerMessage>) {
        self.follow_publication();
        let mut mail = Watched::new(&self.watch, self.read_mail(messages));
        let mut ticks = Watched::new(&self.watch, self.tick());
        let mut late = Watched::new(&self.watch, self.ask_late());
        let chores = self.front.chores().into_iter();
        let mut chores: Vec<_> = chores.map(|it| Watched::new(&self.watch, it)).collect();
        if self.sequencer.forwarding.is_some() {
            chores.push(Watched::new(&self.watch, forward_link::run(self.sequencer.clone())));
        }
        let (tasks, turns) = (self.tasks.clone(), self.turns.clone());
        let clients = spawn_local(async move { tasks.run(&turns).await });
        // The tasks that never end. The batch closes after the clients that are ready.
        let mut endless = [clients, spawn_local(self.sequencer.clone().take_turns())];
        let mut panics =
            Watched::new(&self.watch, poll_fn(|context| resume_panic(&mut endless, context)));
        let mut peers = Vec::new();
        poll_fn(|context| {
            self.watch.record_waker(context);
            if mail.poll().is_ready() {
                return Poll::Ready(());
            }
            peers.append(&mut self.peers.borrow_mut());
            poll_peers(&mut peers);
            // Ticks, late questions and chores never end.
            let _: Poll<()> = ticks.poll();
            let _: Poll<()> = late.poll();
            for chore in &mut chores {
                let _: Poll<()> = chore.poll();
            }
            self.turns.begin(context);
            let _: Poll<()> = panics.poll();
            Poll::Pending
        })
        .await;
        drop(panics);
        for task in endless {
            task.abort();
        }
    }

    async fn read_mail(&self, mut messages: mpsc::Receiver<WorkerMessage>) {
        let mailbox = &self.boxes[self.sequencer.worker.0 as usize];
        let mut messages_in_a_row = 0;
        let mut stop_at = None;
        loop {
            tokio::select! {
                biased;
                () = mailbox.notified() => {
                    if mailbox.take_published() {
                        self.follow_publication();
                    }
                    if stop_at.is_none() && let Some(at) = mailbox.stop_at() {
                        stop_at = Some(Instant::from_std(at));
                        self.front.close();
                    }
                }
                () = self.front.gone().wait(), if stop_at.is_some() => return,
                () = sleep_until(stop_at.unwrap_or_else(Instant::now)), if stop_at.is_some() => {
                    let worker = self.sequencer.worker.0;
                    tracing::warn!(worker, "clients were cut off: their requests or connections \
                                            did not end in time");
                    return;
                }
                Some(message) = messages.recv() => {
                    self.handle_message(message, stop_at.is_some());
                    messages_in_a_row += 1;
                    if messages_in_a_row >= MESSAGES_PER_TURN_MAX {
                        messages_in_a_row = 0;
                        task::yield_now().await;
                    }
                }
            }
        }
    }

    fn handle_message(&self, message: WorkerMessage, is_stopping: bool) {
        match message {
            WorkerMessage::Client(stream, port, permit) => {
                if !is_stopping {
                    self.front.adopt(stream, port, permit);
                }
            }
            WorkerMessage::Quic(socket) => self.front.serve_quic(*socket),
            WorkerMessage::ConfirmLink { from, hello, stream } => self.adopt(from, *hello, stream),
            WorkerMessage::Forward { to, frame } => {
                let now_ns = self.sequencer.shared.clock.monotonic_ns();
                self.sequencer.links.forward(to, &frame, now_ns);
            }
            WorkerMessage::Reply { from, reply } => self.sequencer.handle_reply(from, &reply),
        }
    }

    fn follow_publication(&self) {
        let view = self.sequencer.handle_publication();
        self.front.follow_publication();
        let new = self.sequencer.links.reconcile(&view.published);
        let mut peers = self.peers.borrow_mut();
        for link in new {
            peers.push(Watched::new(&self.watch, link.run(self.sequencer.clone())));
        }
    }

    /// Serves an inbound confirm link, and closes an older one of the same caller.
    fn adopt(&self, from: NodeId, hello: PeerHello, stream: DetachedStream) {
        let LinkKind::Confirm(worker) = hello.link else { return };
        // The peer runs, so this worker's own link to it need not wait any longer to reconnect.
        self.sequencer.links.nudge(from);
        let Some(close) = self.callers.borrow_mut().add(from, worker) else {
            tracing::warn!(peer = from.0, worker = worker.0, "too many confirm links; closed");
            return;
        };
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

    /// While rounds begin that ask a part of the voters, looks for late answers. Asks the others
    /// then.
    async fn ask_late(&self) {
        let mut looks = Ticker::new(LATE_LOOK);
        loop {
            self.sequencer.round_begun().await;
            let mut in_vain = 0;
            while in_vain < LOOKS_IN_VAIN_MAX {
                looks.tick().await;
                in_vain = if self.sequencer.ask_rest_if_late() { 0 } else { in_vain + 1 };
            }
            looks.stop();
        }
    }

    /// Calls the sequencer at each tick: often while requests wait, seldom otherwise.
    async fn tick(&self) {
        let sequencer = &self.sequencer;
        let tick = tick_interval(sequencer.shared.config.election_timeout);
        loop {
            if sequencer.is_active() {
                sleep(tick).await;
            } else {
                tokio::select! {
                    () = sleep(idle_interval(sequencer)) => {}
                    () = sequencer.alarm.wait() => sleep(tick).await,
                }
            }
            sequencer.handle_tick();
        }
    }
}

/// Time between ticks while requests wait or rounds are in flight.
fn tick_interval(election_timeout: Duration) -> Duration {
    (election_timeout / 8).clamp(TICK_MIN, TICK_MAX)
}

/// Time between ticks while a worker has no work. The first worker of a leader wakes for the probe.
fn idle_interval(sequencer: &Sequencer) -> Duration {
    let probes = sequencer.worker == WorkerId(0) && sequencer.view().is_serving();
    if probes { sequencer.probe_interval() } else { TICK_IDLE }
}

/// Polls every link that was woken, and drops those that have ended.
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

/// Goes on with the panic of a task that never ends otherwise.
fn resume_panic(endless: &mut [task::JoinHandle<()>], context: &mut Context<'_>) -> Poll<()> {
    for one in endless {
        if let Poll::Ready(Err(error)) = Pin::new(one).poll(context)
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }
    Poll::Pending
}

#[cfg(test)]
mod tests {
    use epicepoch_core::publication::Role;

    use super::super::fixture::{publish, published, sequencer};
    use super::*;

    #[test]
    fn a_link_beyond_the_limit_is_refused_until_another_one_has_ended() {
        let mut callers = Callers::default();
        let mut add = |node, worker| callers.add(NodeId(node), WorkerId(worker));
        let mut open: Vec<_> =
            (0..CALLERS_MAX as u32).map(|worker| add(2, worker).expect("a place")).collect();
        assert!(add(3, 0).is_none());
        let newer = add(2, 0).expect("the place of the older link");
        assert!(open[0].is_set() && !newer.is_set() && !open[1].is_set());
        drop(open.pop());
        let _other = add(3, 0).expect("the place of the link that has ended");
        assert!(add(3, 1).is_none());
    }

    #[test]
    fn a_worker_ticks_often_while_it_has_work_and_otherwise_only_for_probes() {
        let ms = Duration::from_millis;
        assert_eq!([1, 48, 1_000].map(|it| tick_interval(ms(it))), [1, 6, 25].map(ms));
        for worker in [0, 1] {
            let sequencer = sequencer(WorkerId(worker));
            assert_eq!(idle_interval(&sequencer), TICK_IDLE);
            publish(&sequencer, published(Role::Leader, 3));
            // Two election timeouts without a round cost the leadership.
            let probe = sequencer.shared.config.election_timeout / 2;
            assert_ne!(probe, TICK_IDLE);
            let expected = if worker == 0 { probe } else { TICK_IDLE };
            assert_eq!(idle_interval(&sequencer), expected);
        }
    }
}
