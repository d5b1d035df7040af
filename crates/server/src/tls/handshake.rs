//! The handshakes of one worker. A step of one costs as much as hundreds of requests, so at most
//! one is taken in a turn of the event loop: peers and requests have theirs between. At most
//! [`UNDER_WAY_MAX`] are under way; beyond that one gives way: the oldest of the address that has
//! the most under way, so that nobody keeps others out by beginning many. How long one may take is
//! for the sweep of the connections to say.

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

use epicepoch_certs::rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio::task::yield_now;
use tokio_rustls::TlsAcceptor;

use super::socket::Socket;
use crate::origins::Key;
use crate::worker::signal::Signal;

/// Handshakes of one worker under way at most. Each keeps some ten kilobytes, and as many are looked
/// at when one has to give way.
pub(crate) const UNDER_WAY_MAX: usize = 512;
/// Bytes of answers that wait in TLS records for a client that does not read, before no more are
/// taken.
const RECORDS_LEN_MAX: usize = 32 << 10;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Handshakes {
    /// By the order in which they began.
    under_way: RefCell<BTreeMap<u64, Slot>>,
    waiting: RefCell<VecDeque<Rc<Turn>>>,
    has_waiting: Signal,
    next: Cell<u64>,
}

/// A handshake that is under way.
#[derive(Debug)]
struct Slot {
    from: Option<Key>,
    gives_way: Rc<Cell<bool>>,
    turn: Rc<Turn>,
}

/// Held by a handshake until it is over.
struct UnderWay<'a> {
    handshakes: &'a Handshakes,
    id: u64,
    gives_way: Rc<Cell<bool>>,
    turn: Rc<Turn>,
}

/// How a handshake ended.
pub(crate) enum Shaken {
    /// The client may speak.
    Secured(Socket),
    /// It failed; the client is told why, if it reads.
    Failed(TcpStream, io::Error),
    /// It was to give way, or nobody waits for it any more.
    Dropped,
}

/// A handshake's next step, that waits for its turn.
#[derive(Debug, Default)]
struct Turn {
    stage: Cell<Stage>,
    waker: RefCell<Option<Waker>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Nothing is to be done.
    #[default]
    Idle,
    /// Among those that wait.
    Waiting,
    /// It may take one step.
    Granted,
}

impl Handshakes {
    /// Shakes hands with a client at `from`. `is_over` tells, whenever the task is woken, that it is
    /// not to go on.
    pub(crate) async fn shake(
        &self,
        from: Option<IpAddr>,
        config: &Arc<ServerConfig>,
        stream: TcpStream,
        mut is_over: impl FnMut(&mut Context<'_>) -> bool,
    ) -> Shaken {
        let turn = Rc::new(Turn::default());
        let under_way = self.begin(from.map(Key::of), &turn);
        let acceptor = TlsAcceptor::from(config.clone());
        let accept = acceptor.accept_with(stream, |session| {
            session.set_buffer_limit(Some(RECORDS_LEN_MAX));
        });
        let mut accept = pin!(accept.into_fallible());
        poll_fn(|context| {
            if under_way.gives_way.get() || is_over(context) {
                return Poll::Ready(Shaken::Dropped);
            }
            ready!(self.poll_turn(&turn, context));
            let shaken = ready!(accept.as_mut().poll(context));
            Poll::Ready(match shaken {
                Ok(stream) => Shaken::Secured(Socket::secured(stream)),
                Err((error, stream)) => Shaken::Failed(stream, error),
            })
        })
        .await
    }

    /// Lets those that wait take their steps, one in each turn of the event loop, for ever.
    pub(crate) async fn hand_out_turns(&self) {
        loop {
            self.has_waiting.wait().await;
            loop {
                let next = self.waiting.borrow_mut().pop_front();
                let Some(turn) = next else { break };
                // What is over waits no more.
                if turn.stage.get() == Stage::Waiting {
                    turn.stage.set(Stage::Granted);
                    turn.wake();
                    yield_now().await;
                }
            }
        }
    }

    fn begin(&self, from: Option<Key>, turn: &Rc<Turn>) -> UnderWay<'_> {
        let id = self.next.replace(self.next.get() + 1);
        let gives_way = Rc::new(Cell::new(false));
        let mut under_way = self.under_way.borrow_mut();
        if under_way.len() >= UNDER_WAY_MAX
            && let Some(slot) = one_too_many(&under_way).and_then(|id| under_way.remove(&id))
        {
            slot.gives_way.set(true);
            slot.turn.stage.set(Stage::Idle);
            slot.turn.wake();
        }
        under_way.insert(id, Slot { from, gives_way: gives_way.clone(), turn: turn.clone() });
        UnderWay { handshakes: self, id, gives_way, turn: turn.clone() }
    }

    fn poll_turn(&self, turn: &Rc<Turn>, context: &Context<'_>) -> Poll<()> {
        turn.note_waker(context);
        match turn.stage.get() {
            Stage::Granted => {
                turn.stage.set(Stage::Idle);
                return Poll::Ready(());
            }
            Stage::Waiting => {}
            Stage::Idle => {
                turn.stage.set(Stage::Waiting);
                self.waiting.borrow_mut().push_back(turn.clone());
                self.has_waiting.set();
            }
        }
        Poll::Pending
    }
}

/// The oldest of the address that has the most, and of such addresses of the one whose oldest began
/// first.
fn one_too_many(under_way: &BTreeMap<u64, Slot>) -> Option<u64> {
    let mut of_address: HashMap<Option<Key>, (usize, Reverse<u64>)> = HashMap::new();
    for (id, slot) in under_way {
        of_address.entry(slot.from).or_insert((0, Reverse(*id))).0 += 1;
    }
    of_address.into_values().max().map(|(_, Reverse(oldest))| oldest)
}

impl Turn {
    fn note_waker(&self, context: &Context<'_>) {
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
        // Also where it gave way: it waits no more, and no turn is lost on it.
        self.turn.stage.set(Stage::Idle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn key(last: u8) -> Key {
        Key::of([192, 0, 2, last].into())
    }

    #[test]
    fn the_oldest_of_the_address_with_the_most_gives_way() {
        let handshakes = Handshakes::default();
        let begin = |last| handshakes.begin(Some(key(last)), &Rc::new(Turn::default()));
        let good = begin(1);
        let mut flood: Vec<_> = (1..UNDER_WAY_MAX).map(|_| begin(2)).collect();
        assert!(flood.iter().chain([&good]).all(|it| !it.gives_way.get()));
        drop(flood.pop());
        flood.push(begin(2));
        assert!(flood.iter().chain([&good]).all(|it| !it.gives_way.get()), "one has gone");
        // It goes on, and another client comes between.
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
            let turn = Rc::new(Turn::default());
            let under_way = handshakes.begin(Some(key(last)), &turn);
            assert!(handshakes.poll_turn(&turn, &context).is_pending());
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
            let turns: Vec<_> = (0..3).map(|_| Rc::new(Turn::default())).collect();
            let context = Context::from_waker(Waker::noop());
            let is_granted = |turn| handshakes.poll_turn(turn, &context).is_ready();
            assert!(turns.iter().all(|turn| !is_granted(turn)), "none before its turn");
            // One that is over waits no more.
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
