//! The TLS handshakes of one thread: those of a worker's clients, or those of peers. One step of a
//! handshake costs as much as hundreds of requests. So each turn of the event loop takes at most
//! one step, and does its other work before the next step.
//!
//! The number of handshakes under way is limited ([`UNDER_WAY_MAX`] per worker). If a new handshake
//! exceeds the limit, the address with the most handshakes loses its oldest one. So one address
//! cannot keep others out. An expected member is a caller from an address at which a member is
//! known. Its handshakes are dropped last, and never wait behind strangers. The caller of this
//! module limits the time of a handshake.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use epicepoch_certs::config::ALPN_FORWARD;
use epicepoch_certs::rustls::server::{Acceptor, ClientHello};
use epicepoch_certs::rustls::{ServerConfig, ServerConnection};
use tokio::net::TcpStream;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor};

use super::socket::Socket;
use crate::security::limits::Key;
use crate::sync::signal::Signal;

/// At most this many handshakes are under way on one worker. Each handshake needs some ten
/// kilobytes, and all of them are examined when one must be dropped.
pub(crate) const UNDER_WAY_MAX: usize = 512;
/// TLS accepts no more answers for a client while its records hold this many unsent bytes.
const RECORDS_LEN_MAX: usize = 32 << 10;

/// What a client is told at a port on which only nodes speak TLS: a record with the fatal alert
/// `no_application_protocol` (RFC 8446, 5.1 and 6; RFC 7301, 3.2).
const ONLY_NODES: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 120];

/// The TLS handshakes of one thread.
#[derive(Debug)]
pub(crate) struct Handshakes {
    under_way_max: usize,
    pace: Option<Pace>,
    /// The handshakes under way, in the order in which they began.
    under_way: RefCell<BTreeMap<u64, Slot>>,
    waiting: RefCell<Waiting>,
    has_waiting: Signal,
    next: Cell<u64>,
}

/// At most `steps` steps in each `period`, even if the thread is otherwise idle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) steps: u32,
    pub(crate) period: Duration,
}

/// The settings of rustls for the callers of a client port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offers<'a> {
    /// For clients; `None` if clients speak no TLS.
    pub(crate) clients: Option<&'a Arc<ServerConfig>>,
    /// For nodes that send requests on; `None` if nodes have no certificates.
    pub(crate) forwarders: Option<&'a Arc<ServerConfig>>,
}

/// The other end of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Beginner {
    from: Option<Key>,
    is_expected: bool,
}

impl Beginner {
    /// A caller from address `from`. `is_expected` says whether a member is known at this address.
    pub(crate) fn at(from: Option<IpAddr>, is_expected: bool) -> Self {
        Self { from: from.map(Key::of), is_expected }
    }
}

/// The handshakes that wait for a turn.
#[derive(Debug, Default)]
struct Waiting {
    expected: VecDeque<Rc<Turn>>,
    others: VecDeque<Rc<Turn>>,
}

/// An entry of [`Handshakes`]: a handshake under way.
#[derive(Debug)]
struct Slot {
    who: Beginner,
    gives_way: Rc<Cell<bool>>,
    turn: Rc<Turn>,
}

/// A handshake holds this value until the handshake is over.
struct UnderWay<'a> {
    handshakes: &'a Handshakes,
    id: u64,
    gives_way: Rc<Cell<bool>>,
    turn: Rc<Turn>,
}

/// How a handshake ended.
pub(crate) enum Shaken {
    /// The handshake succeeded.
    Secured(Socket),
    /// The handshake failed. TLS has told the caller why, if it reads.
    Failed { stream: Option<TcpStream>, error: io::Error, caller: Offered },
    /// The handshake was dropped in favour of another, or the connection was closed.
    Dropped,
}

/// What a caller asked for when its handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offered {
    /// The protocols of clients, or none, or the handshake failed before.
    Client,
    /// The protocol of nodes that send requests on.
    Forwarder,
}

/// A handshake that has failed.
struct Failure {
    error: io::Error,
    stream: Option<TcpStream>,
    caller: Offered,
}

/// The next step of a handshake, which waits for its turn.
#[derive(Debug)]
struct Turn {
    is_expected: bool,
    stage: Cell<Stage>,
    waker: RefCell<Option<Waker>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// No step is due.
    #[default]
    Idle,
    /// The step is in the queue.
    Waiting,
    /// The handshake may take one step.
    Granted,
}

impl Default for Handshakes {
    /// The handshakes of a worker's clients.
    fn default() -> Self {
        Self::new(UNDER_WAY_MAX, None)
    }
}

impl Handshakes {
    /// Allows at most `under_way_max` handshakes at once, with the speed limit `pace`.
    pub(crate) fn new(under_way_max: usize, pace: Option<Pace>) -> Self {
        Self {
            under_way_max,
            pace,
            under_way: RefCell::default(),
            waiting: RefCell::default(),
            has_waiting: Signal::default(),
            next: Cell::default(),
        }
    }

    /// Runs the handshake `begun` to its end, one step per turn. Returns `None` if another
    /// handshake has taken its place.
    pub(crate) async fn advance<T>(
        &self,
        who: Beginner,
        begun: impl Future<Output = T>,
    ) -> Option<T> {
        let under_way = self.begin(who);
        let mut begun = pin!(begun);
        poll_fn(|context| {
            if under_way.gives_way.get() {
                return Poll::Ready(None);
            }
            ready!(self.poll_turn(&under_way.turn, context));
            begun.as_mut().poll(context).map(Some)
        })
        .await
    }

    /// Does the handshake with a client at `from`. `is_over` is called whenever the task is woken;
    /// if it returns `true`, the handshake is dropped.
    pub(crate) async fn shake(
        &self,
        from: Option<IpAddr>,
        offers: Offers<'_>,
        stream: TcpStream,
        mut is_over: impl FnMut(&mut Context<'_>) -> bool,
    ) -> Shaken {
        let under_way = self.begin(Beginner::at(from, false));
        let mut accept = pin!(offers.accept(stream));
        poll_fn(|context| {
            if under_way.gives_way.get() || is_over(context) {
                return Poll::Ready(Shaken::Dropped);
            }
            ready!(self.poll_turn(&under_way.turn, context));
            let shaken = ready!(accept.as_mut().poll(context));
            Poll::Ready(match shaken {
                Ok(stream) => Shaken::Secured(Socket::secured(stream)),
                Err(Failure { error, stream, caller }) => Shaken::Failed { stream, error, caller },
            })
        })
        .await
    }

    /// Lets waiting handshakes take their steps, one per turn of the event loop. Never returns.
    pub(crate) async fn hand_out_turns(&self) {
        let (mut began, mut taken) = (Instant::now(), 0);
        loop {
            self.has_waiting.wait().await;
            loop {
                if let Some(Pace { steps, period }) = self.pace {
                    if taken >= steps {
                        sleep_until(began + period).await;
                    }
                    if began.elapsed() >= period {
                        (began, taken) = (Instant::now(), 0);
                    }
                }
                let next = self.waiting.borrow_mut().next();
                let Some(turn) = next else { break };
                // Skips a handshake that is over.
                if turn.stage.get() == Stage::Waiting {
                    taken += 1;
                    turn.stage.set(Stage::Granted);
                    turn.wake();
                    yield_now().await;
                }
            }
        }
    }

    fn begin(&self, who: Beginner) -> UnderWay<'_> {
        let turn = Rc::new(Turn {
            is_expected: who.is_expected,
            stage: Cell::default(),
            waker: RefCell::default(),
        });
        let id = self.next.replace(self.next.get() + 1);
        let gives_way = Rc::new(Cell::new(false));
        let mut under_way = self.under_way.borrow_mut();
        if under_way.len() >= self.under_way_max
            && let Some(slot) = one_too_many(&under_way).and_then(|id| under_way.remove(&id))
        {
            slot.gives_way.set(true);
            slot.turn.stage.set(Stage::Idle);
            slot.turn.wake();
        }
        under_way.insert(id, Slot { who, gives_way: gives_way.clone(), turn: turn.clone() });
        UnderWay { handshakes: self, id, gives_way, turn }
    }

    fn poll_turn(&self, turn: &Rc<Turn>, context: &Context<'_>) -> Poll<()> {
        turn.record_waker(context);
        match turn.stage.get() {
            Stage::Granted => {
                turn.stage.set(Stage::Idle);
                return Poll::Ready(());
            }
            Stage::Waiting => {}
            Stage::Idle => {
                turn.stage.set(Stage::Waiting);
                self.waiting.borrow_mut().add(turn.clone());
                self.has_waiting.set();
            }
        }
        Poll::Pending
    }
}

impl Offers<'_> {
    /// Does a handshake. A caller that offers the protocol of nodes that send requests on must show
    /// the certificate of a node, and speaks no other protocol. All other callers are clients. If
    /// clients speak no TLS, the port has TLS for no other caller, whatever its certificate.
    async fn accept(self, stream: TcpStream) -> Result<TlsStream<TcpStream>, Failure> {
        let limit = |session: &mut ServerConnection| {
            session.set_buffer_limit(Some(RECORDS_LEN_MAX));
        };
        let failed =
            |caller| move |(error, stream)| Failure { error, stream: Some(stream), caller };
        let Some(forwarders) = self.forwarders else {
            let Some(clients) = self.clients else {
                return Err(failed(Offered::Client)((io::ErrorKind::Unsupported.into(), stream)));
            };
            let accept = TlsAcceptor::from(clients.clone()).accept_with(stream, limit);
            return accept.into_fallible().await.map_err(failed(Offered::Client));
        };
        let mut hello = LazyConfigAcceptor::new(Acceptor::default(), stream);
        let begun = match (&mut hello).await {
            Ok(begun) => begun,
            Err(error) => {
                return Err(Failure { error, stream: hello.take_io(), caller: Offered::Client });
            }
        };
        let (config, caller) = if is_of_forwarder(&begun.client_hello()) {
            (forwarders, Offered::Forwarder)
        } else if let Some(clients) = self.clients {
            (clients, Offered::Client)
        } else {
            // The caller learns it if its socket takes these few bytes, as an empty one does.
            let _ = begun.io.try_write(&ONLY_NODES);
            let error = io::Error::new(io::ErrorKind::InvalidData, "only nodes speak TLS here");
            return Err(failed(Offered::Client)((error, begun.io)));
        };
        let accept = begun.into_stream_with(config.clone(), limit);
        accept.into_fallible().await.map_err(failed(caller))
    }
}

/// Whether a caller offers the protocol of nodes that send requests on.
fn is_of_forwarder(hello: &ClientHello<'_>) -> bool {
    hello.alpn().into_iter().flatten().any(|alpn| alpn == ALPN_FORWARD)
}

/// Returns the handshake to drop: the oldest one of the address that has the most. If several
/// addresses have the most, it is the oldest of all their handshakes. Strangers are dropped before
/// expected members.
fn one_too_many(under_way: &BTreeMap<u64, Slot>) -> Option<u64> {
    let mut of_address: HashMap<Beginner, (bool, usize, Reverse<u64>)> = HashMap::new();
    for (id, slot) in under_way {
        let first = (!slot.who.is_expected, 0, Reverse(*id));
        of_address.entry(slot.who).or_insert(first).1 += 1;
    }
    of_address.into_values().max().map(|(_, _, Reverse(oldest))| oldest)
}

impl Waiting {
    fn add(&mut self, turn: Rc<Turn>) {
        if turn.is_expected {
            self.expected.push_back(turn);
        } else {
            self.others.push_back(turn);
        }
    }

    fn next(&mut self) -> Option<Rc<Turn>> {
        self.expected.pop_front().or_else(|| self.others.pop_front())
    }
}

impl Turn {
    fn record_waker(&self, context: &Context<'_>) {
        let mut noted = self.waker.borrow_mut();
        if !noted.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *noted = Some(context.waker().clone());
        }
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.handshakes.under_way.borrow_mut().remove(&self.id);
        // A handshake that was dropped must not use up a turn.
        self.turn.stage.set(Stage::Idle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn stranger(last: u8) -> Beginner {
        Beginner::at(Some([192, 0, 2, last].into()), false)
    }

    fn expected(last: u8) -> Beginner {
        Beginner { is_expected: true, ..stranger(last) }
    }

    #[test]
    fn expected_peers_never_wait_behind_unexpected_ones() {
        let handshakes = Handshakes::new(4, None);
        let context = Context::from_waker(Waker::noop());
        let begin = |who| {
            let under_way = handshakes.begin(who);
            assert!(handshakes.poll_turn(&under_way.turn, &context).is_pending());
            under_way
        };
        // There are many strangers with one handshake each, and a peer with three. One stranger has
        // the peer's address, because it began before the peer was known.
        let first = begin(stranger(1));
        let peer = [(); 3].map(|()| begin(expected(9)));
        let others: Vec<_> = (2..100).map(|last| begin(stranger(last))).collect();
        assert!(first.gives_way.get());
        assert!(peer.iter().all(|it| !it.gives_way.get()));
        let left: Vec<_> = others.iter().map(|it| it.gives_way.get()).collect();
        assert!(left[..97].iter().all(|gives_way| *gives_way) && !left[97], "{left:?}");
        // `more` takes the place of the last stranger. With `fifth`, all are of the peer, and its
        // oldest handshake is dropped.
        let more = begin(expected(9));
        assert!(others[97].gives_way.get() && !peer[0].gives_way.get());
        let fifth = begin(expected(9));
        assert!(peer[0].gives_way.get() && !more.gives_way.get() && !fifth.gives_way.get());
        drop(others);
        drop((first, fifth));
        let unknown = begin(stranger(3));
        let late = begin(expected(8));
        let mut handing_out = pin!(handshakes.hand_out_turns());
        for expected in [&peer[1], &peer[2], &more] {
            assert!(poll(handing_out.as_mut()).is_pending());
            assert_eq!(expected.turn.stage.get(), Stage::Granted);
        }
        assert_eq!(late.turn.stage.get(), Stage::Waiting);
        assert!(poll(handing_out.as_mut()).is_pending());
        assert_eq!(late.turn.stage.get(), Stage::Granted);
        assert_eq!(unknown.turn.stage.get(), Stage::Idle, "it gave way");
    }

    #[test]
    fn no_more_steps_than_its_pace_are_taken_in_a_period() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let period = Duration::from_hours(1);
            let handshakes = Handshakes::new(8, Some(Pace { steps: 2, period }));
            let context = Context::from_waker(Waker::noop());
            let all: Vec<_> = (0..4).map(|_| handshakes.begin(stranger(1))).collect();
            for it in &all {
                assert!(handshakes.poll_turn(&it.turn, &context).is_pending());
            }
            let mut handing_out = pin!(handshakes.hand_out_turns());
            for _ in 0..10 {
                assert!(poll(handing_out.as_mut()).is_pending());
            }
            let granted = all.iter().filter(|it| it.turn.stage.get() == Stage::Granted).count();
            assert_eq!(granted, 2);
        });
    }

    #[test]
    fn the_oldest_of_the_address_with_the_most_gives_way() {
        let handshakes = Handshakes::default();
        let begin = |last| handshakes.begin(stranger(last));
        let good = begin(1);
        let mut flood: Vec<_> = (1..UNDER_WAY_MAX).map(|_| begin(2)).collect();
        assert!(flood.iter().chain([&good]).all(|it| !it.gives_way.get()));
        drop(flood.pop());
        flood.push(begin(2));
        assert!(flood.iter().chain([&good]).all(|it| !it.gives_way.get()), "one has gone");
        // Client 2 begins one handshake after another, and client 3 begins one in the middle of
        // this flood.
        flood.extend((0..UNDER_WAY_MAX).map(|_| begin(2)));
        let other = begin(3);
        flood.push(begin(2));
        assert!(!good.gives_way.get() && !other.gives_way.get());
        let left: Vec<_> = flood.iter().map(|it| it.gives_way.get()).collect();
        let newest = left.len() - (UNDER_WAY_MAX - 2);
        assert!(left[..newest].iter().all(|gives_way| *gives_way));
        assert!(left[newest..].iter().all(|gives_way| !gives_way));
        drop((flood, good, other));
        assert!(handshakes.under_way.borrow().is_empty());
    }

    #[test]
    fn a_handshake_that_gave_way_takes_no_turn() {
        let handshakes = Handshakes::default();
        let context = Context::from_waker(Waker::noop());
        let begin = |last| {
            let under_way = handshakes.begin(stranger(last));
            assert!(handshakes.poll_turn(&under_way.turn, &context).is_pending());
            let turn = under_way.turn.clone();
            (under_way, turn)
        };
        let (first, gone) = begin(1);
        let kept: Vec<_> = (0..UNDER_WAY_MAX).map(|_| begin(1)).collect();
        assert!(first.gives_way.get());
        drop(first);
        let mut handing_out = pin!(handshakes.hand_out_turns());
        assert!(poll(handing_out.as_mut()).is_pending());
        assert_eq!(gone.stage.get(), Stage::Idle);
        assert_eq!(kept[0].1.stage.get(), Stage::Granted, "the first turn is one that is alive's");
    }

    #[test]
    fn one_step_is_taken_in_a_turn_of_the_loop() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(poll_fn(|_| {
            let handshakes = Handshakes::default();
            let mut handing_out = pin!(handshakes.hand_out_turns());
            let begun: Vec<_> = (0..3).map(|_| handshakes.begin(stranger(1))).collect();
            let turns: Vec<_> = begun.iter().map(|it| it.turn.clone()).collect();
            let context = Context::from_waker(Waker::noop());
            let is_granted = |turn| handshakes.poll_turn(turn, &context).is_ready();
            assert!(turns.iter().all(|turn| !is_granted(turn)), "none before its turn");
            // A handshake that is over no longer waits for a turn.
            turns[1].stage.set(Stage::Idle);
            for expected in [[true, false, false], [false, false, true]] {
                assert!(poll(handing_out.as_mut()).is_pending());
                let granted: Vec<_> =
                    turns.iter().map(|turn| turn.stage.get() == Stage::Granted).collect();
                assert_eq!(granted, expected);
                let granted = turns.iter().filter(|turn| turn.stage.get() == Stage::Granted);
                granted.for_each(|turn| turn.stage.set(Stage::Idle));
            }
            Poll::Ready(())
        }));
    }
}
