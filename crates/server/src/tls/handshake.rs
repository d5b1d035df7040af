//! The handshakes of one worker. A step of one costs as much as hundreds of requests, so at most
//! one is taken in a turn of the event loop: peers and requests have theirs between. At most
//! [`UNDER_WAY_MAX`] are under way; beyond that the oldest gives way, which with clients that mean
//! it has long been over. How long one may take is for the sweep of the connections to say.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use epicepoch_certs::rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio::task::yield_now;
use tokio_rustls::TlsAcceptor;

use super::socket::Socket;
use crate::worker::signal::Signal;

/// Handshakes of one worker under way at most. Each keeps some ten kilobytes.
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
    gives_way: Rc<Cell<bool>>,
    turn: Rc<Turn>,
}

/// Held by a handshake until it is over.
struct UnderWay<'a> {
    handshakes: &'a Handshakes,
    id: u64,
    gives_way: Rc<Cell<bool>>,
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
    /// Shakes hands. `is_over` tells, whenever the task is woken, that it is not to go on.
    pub(crate) async fn shake(
        &self,
        config: &Arc<ServerConfig>,
        stream: TcpStream,
        mut is_over: impl FnMut(&mut Context<'_>) -> bool,
    ) -> Shaken {
        let turn = Rc::new(Turn::default());
        let under_way = self.begin(&turn);
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

    fn begin(&self, turn: &Rc<Turn>) -> UnderWay<'_> {
        let id = self.next.replace(self.next.get() + 1);
        let gives_way = Rc::new(Cell::new(false));
        let mut under_way = self.under_way.borrow_mut();
        under_way.insert(id, Slot { gives_way: gives_way.clone(), turn: turn.clone() });
        if under_way.len() > UNDER_WAY_MAX
            && let Some((_, oldest)) = under_way.pop_first()
        {
            oldest.gives_way.set(true);
            oldest.turn.wake();
        }
        UnderWay { handshakes: self, id, gives_way }
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
        let slot = self.handshakes.under_way.borrow_mut().remove(&self.id);
        if let Some(slot) = slot {
            slot.turn.stage.set(Stage::Idle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn the_oldest_gives_way_to_one_too_many() {
        let handshakes = Handshakes::default();
        let turn = || Rc::new(Turn::default());
        let mut under_way: Vec<_> = (0..UNDER_WAY_MAX).map(|_| handshakes.begin(&turn())).collect();
        assert!(under_way.iter().all(|it| !it.gives_way.get()));
        drop(under_way.pop());
        under_way.push(handshakes.begin(&turn()));
        assert!(under_way.iter().all(|it| !it.gives_way.get()));
        under_way.push(handshakes.begin(&turn()));
        let giving: Vec<_> = under_way.iter().map(|it| it.gives_way.get()).collect();
        assert!(giving[0] && giving[1..].iter().all(|gives_way| !gives_way));
        drop(under_way);
        assert!(handshakes.under_way.borrow().is_empty());
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
