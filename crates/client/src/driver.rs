//! The driver: the task that carries out what the session decides. The driver owns the connections,
//! the timer and the observer. It makes no decisions.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use epicepoch_wire::native::Welcome;
use epicepoch_wire::{Guarantee, TimestampFormat};
use tokio::sync::Notify;

use crate::clock::now;
use crate::dial::Dialer;
use crate::error::{OpenError, TimestampsError};
use crate::link::Link;
use crate::observer::Observer;
use crate::session::{Action, LinkId, Notice, Session};

/// The state that callers and the driver share.
#[derive(Debug)]
pub(crate) struct Core {
    session: Mutex<Session>,
    options: CoreOptions,
    /// Opens connections of the native protocol.
    dialer: Dialer,
    /// Notified when a caller opens a batch, and when the client is dropped.
    notify: Notify,
    /// Whether the last client was dropped.
    is_closed: AtomicBool,
    /// Whether a driver runs.
    is_driven: AtomicBool,
}

/// The options of the client that its connections need.
#[derive(Debug)]
pub(crate) struct CoreOptions {
    pub(crate) attempt_timeout: Duration,
    pub(crate) hedge_after: Option<Duration>,
    /// The required cluster name.
    pub(crate) cluster_name: Option<String>,
    /// The guarantee that each client hello names.
    pub(crate) guarantee: Option<Guarantee>,
    /// The format of timestamps that each client hello names.
    pub(crate) timestamp_format: Option<TimestampFormat>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
}

impl Core {
    pub(crate) fn new(session: Session, options: CoreOptions, dialer: Dialer) -> Self {
        Self {
            session: Mutex::new(session),
            options,
            dialer,
            notify: Notify::new(),
            is_closed: AtomicBool::new(false),
            is_driven: AtomicBool::new(false),
        }
    }

    /// Locks the session. Callers hold the lock only for a decision, never across an await.
    pub(crate) fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the driver take a turn.
    pub(crate) fn notify(&self) {
        self.notify.notify_one();
    }

    /// Ends the driver.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.notify.notify_one();
    }

    /// Starts a driver if none runs.
    ///
    /// # Errors
    /// The caller is outside of a tokio runtime.
    pub(crate) fn ensure_driven(self: &Arc<Self>) -> Result<(), TimestampsError> {
        if self.is_driven.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            self.is_driven.store(false, Ordering::Release);
            return Err(TimestampsError::Stopped);
        };
        runtime.spawn(Driver::new(self.clone()).run());
        Ok(())
    }

    /// Connects to the node at `addr`. The caller waits until `until`.
    async fn open(
        self: Arc<Self>,
        addr: String,
        until: Instant,
    ) -> Result<(Link, Welcome), OpenError> {
        let asked = (self.options.guarantee, self.options.timestamp_format);
        Link::open(&self.dialer, (&addr, until), self.options.cluster_name.as_deref(), asked).await
    }

    /// How long the session waits until a connection is open.
    pub(crate) fn open_timeout(&self, is_hedge: bool) -> Duration {
        match self.options.hedge_after.filter(|_| is_hedge) {
            Some(after) => after.max(self.options.attempt_timeout / HEDGE_FRACTION),
            None => self.options.attempt_timeout,
        }
    }

    /// Opens another connection to the node at `addr`, only to read the list of members in its
    /// welcome.
    async fn refresh(self: Arc<Self>, addr: String) {
        let until = now() + self.options.attempt_timeout;
        let opening = self.clone().open(addr.clone(), until);
        let opening = tokio::time::timeout_at(until.into(), opening);
        if let Ok(Ok((_, welcome))) = opening.await {
            self.session().handle_refreshed(&addr, &welcome);
        }
    }
}

/// The task that carries out the actions of a session.
struct Driver {
    core: Arc<Core>,
    first: Connection,
    second: Connection,
    /// The wakers of callers whose calls have ended. They are woken when no lock is held.
    wakers: Vec<Waker>,
    notices: Vec<Notice>,
}

/// Why the driver takes a turn.
enum Next {
    /// An event of the first connection, which the driver reports first.
    First(Event),
    /// An event of the second connection, which the driver reports first.
    Second(Event),
    /// A caller or a timer.
    Turn,
}

/// One of the two connections of a session.
enum Connection {
    None,
    Opening(LinkId, Opening),
    Open(LinkId, Link),
}

type Opening = Pin<Box<dyn Future<Output = Result<(Link, Welcome), OpenError>> + Send>>;

/// An event of a connection.
enum Event {
    Opened(LinkId, Box<Result<Welcome, OpenError>>),
    Received,
    Closed(LinkId, io::Error),
}

/// When the driver ends, for any reason, it stops the waiting callers.
impl Drop for Driver {
    fn drop(&mut self) {
        let mut session = self.core.session();
        session.stop();
        session.take_wakers(&mut self.wakers);
        // The flag is cleared while the session is locked. So a later caller finds that no driver
        // runs, and starts one.
        self.core.is_driven.store(false, Ordering::Release);
        drop(session);
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

impl Driver {
    fn new(core: Arc<Core>) -> Self {
        let (first, second) = (Connection::None, Connection::None);
        Self { core, first, second, wakers: Vec::new(), notices: Vec::new() }
    }

    /// Serves callers until the client is dropped.
    async fn run(mut self) {
        let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
        while !self.core.is_closed.load(Ordering::Acquire) {
            let timeout = self.turn();
            if let Some(timeout) = timeout.map(Into::into)
                && timer.deadline() != timeout
            {
                timer.as_mut().reset(timeout);
            }
            let is_waking = self.wake_some();
            let has_second = self.second.link().is_some();
            let mut notified = pin!(self.core.notify.notified());
            let mut others = pin!(tokio::task::yield_now());
            // This is written out, because a macro for it would need more crates.
            let next = poll_fn(|context| {
                if let Poll::Ready(event) = self.first.poll_event(context) {
                    return Poll::Ready(Next::First(event));
                }
                if has_second && let Poll::Ready(event) = self.second.poll_event(context) {
                    return Poll::Ready(Next::Second(event));
                }
                let is_next = notified.as_mut().poll(context).is_ready()
                    || (timeout.is_some() && timer.as_mut().poll(context).is_ready())
                    || (is_waking && others.as_mut().poll(context).is_ready());
                if is_next { Poll::Ready(Next::Turn) } else { Poll::Pending }
            });
            match next.await {
                Next::First(event) => Self::report(&self.core, &mut self.first, event),
                Next::Second(event) => Self::report(&self.core, &mut self.second, event),
                Next::Turn => {}
            }
        }
    }

    /// Reports an event of a connection to the session.
    fn report(core: &Core, connection: &mut Connection, event: Event) {
        let mut session = core.session();
        match (event, connection) {
            (Event::Received, Connection::Open(link, open)) => {
                let (received, out) = open.buffers();
                let taken = session.handle_received(*link, received, now(), out);
                open.consume(taken);
            }
            (Event::Opened(link, opened), _) => session.handle_opened(link, *opened, now()),
            (Event::Closed(link, error), _) => session.handle_closed(link, &error, now()),
            (Event::Received, Connection::None | Connection::Opening(..)) => {}
        }
    }

    /// Carries out the session's present actions. Returns the time at which the session wants its
    /// next turn.
    fn turn(&mut self) -> Option<Instant> {
        let now = now();
        let mut session = self.core.session();
        session.handle_time(now);
        for connection in [&mut self.first, &mut self.second] {
            if let Connection::Open(link, open) = connection {
                session.poll_transmit(*link, now, &mut open.out);
            }
        }
        session.take_wakers(&mut self.wakers);
        if self.core.options.observer.is_some() {
            session.take_notices(&mut self.notices);
        }
        let timeout = session.timeout();
        let mut action = session.poll_action();
        drop(session);
        while let Some(next) = action {
            self.carry_out(next);
            action = self.core.session().poll_action();
        }
        if let Some(observer) = &self.core.options.observer {
            for notice in self.notices.drain(..) {
                match notice {
                    Notice::Connected(addr) => observer.connected(&addr),
                    Notice::FailedAttempt(failed_attempt) => {
                        observer.failed_attempt(&failed_attempt);
                    }
                    Notice::Answered { callers, timestamps, latency } => {
                        observer.answered(callers, timestamps, latency);
                    }
                }
            }
        }
        timeout
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Open { link, addr } => {
                let until = now() + self.core.open_timeout(link.is_hedge());
                let opening = Box::pin(self.core.clone().open(addr, until));
                *self.connection(link) = Connection::Opening(link, opening);
            }
            Action::Close { link } => {
                let connection = self.connection(link);
                if connection.link() == Some(link) {
                    *connection = Connection::None;
                }
            }
            Action::Refresh { addr } => {
                tokio::spawn(self.core.clone().refresh(addr));
            }
        }
    }

    fn connection(&mut self, link: LinkId) -> &mut Connection {
        if link.is_hedge() { &mut self.second } else { &mut self.first }
    }

    /// Wakes some of the callers whose calls have ended. Returns whether any are left. Waking
    /// thousands of callers takes longer than a round trip. Meanwhile the next requests of the
    /// first callers can be sent.
    fn wake_some(&mut self) -> bool {
        let waiting = self.wakers.len();
        let some = waiting.min(WAKE_AT_ONCE.max(waiting / WAKE_FRACTION));
        self.wakers.drain(..some).for_each(Waker::wake);
        !self.wakers.is_empty()
    }
}

impl Connection {
    fn link(&self) -> Option<LinkId> {
        match self {
            Self::None => None,
            Self::Opening(link, _) | Self::Open(link, _) => Some(*link),
        }
    }

    /// Polls for the next event. No event is lost if the caller stops polling.
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        match self {
            Self::Open(link, open) => match ready!(open.poll_exchange(context)) {
                Ok(()) => Poll::Ready(Event::Received),
                Err(error) => Poll::Ready(Event::Closed(*link, error)),
            },
            Self::Opening(link, opening) => {
                let (link, opened) = (*link, ready!(opening.as_mut().poll(context)));
                let (connection, opened) = match opened {
                    Ok((open, welcome)) => (Self::Open(link, open), Ok(welcome)),
                    Err(error) => (Self::None, Err(error)),
                };
                *self = connection;
                Poll::Ready(Event::Opened(link, Box::new(opened)))
            }
            Self::None => Poll::Pending,
        }
    }
}

/// The session gives a node of the second connection this part of `attempt_timeout`, or
/// `hedge_after` if that is longer.
const HEDGE_FRACTION: u32 = 8;
/// At least this many callers are woken in one turn, or all if there are fewer. If more than four
/// times as many are to be woken, a quarter of them is woken. Four requests may be in flight, so
/// all callers are woken before these requests are answered.
const WAKE_AT_ONCE: usize = 256;
const WAKE_FRACTION: usize = 4;
