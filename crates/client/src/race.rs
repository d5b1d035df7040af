//! One connection to a host that has several addresses. If an address does not answer soon, the
//! next one is tried beside it, and the first that accepts is used (Happy Eyeballs, RFC 8305). This
//! module looks up no name, and tries each address once.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

/// Returns how long one of `count` addresses is tried before the next one, if the caller waits for
/// `time`. The last address has at least half of that.
pub(crate) fn next_after(count: usize, time: Duration) -> Duration {
    let parts = u32::try_from(2 * count.clamp(1, ADDRESSES_MAX)).unwrap_or(u32::MAX);
    NEXT_AFTER_MAX.min(time / parts)
}

/// Opens a connection to each address in turn, and returns the first that is open. The next address
/// begins when `next_after` has passed or an earlier one has failed; the earlier ones go on.
///
/// # Errors
/// Every address has failed. The error is that of the last one that failed.
pub(crate) async fn connect<S, F: Future<Output = io::Result<S>>>(
    addrs: Vec<SocketAddr>,
    next_after: Duration,
    open: impl Fn(SocketAddr) -> F,
) -> io::Result<S> {
    let mut waiting = addrs.into_iter().take(ADDRESSES_MAX);
    let mut opening = Vec::new();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        match waiting.next() {
            Some(addr) => opening.push(Box::pin(open(addr))),
            None if opening.is_empty() => return Err(last),
            None => {}
        }
        let ended = first(&mut opening);
        let ended = match waiting.len() {
            0 => ended.await,
            _ => match tokio::time::timeout(next_after, ended).await {
                Ok(ended) => ended,
                Err(_elapsed) => continue,
            },
        };
        match ended {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
}

/// Waits until one of the futures is ready, and removes it.
async fn first<F: Future + Unpin>(futures: &mut Vec<F>) -> F::Output {
    poll_fn(|context| {
        for at in 0..futures.len() {
            if let Poll::Ready(output) = Pin::new(&mut futures[at]).poll(context) {
                drop(futures.swap_remove(at));
                return Poll::Ready(output);
            }
        }
        Poll::Pending
    })
    .await
}

/// How long an address is tried before the next one, unless the caller has little time. RFC 8305,
/// section 8, recommends this time.
const NEXT_AFTER_MAX: Duration = Duration::from_millis(250);
/// At most this many addresses of a name are tried: as many as a cluster has members.
const ADDRESSES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::pending;

    use tokio::sync::oneshot;
    use tokio::time::timeout;

    use super::*;

    const WAIT_MAX: Duration = Duration::from_secs(20);
    /// Longer than any test runs.
    const NEVER: Duration = Duration::from_hours(1);

    fn addrs(count: u16) -> Vec<SocketAddr> {
        (1..=count).map(|port| ([127, 0, 0, 1], port).into()).collect()
    }

    #[tokio::test]
    async fn a_silent_address_does_not_keep_the_next_one_from_being_tried() {
        let open = |addr: SocketAddr| async move {
            if addr.port() < 3 {
                pending::<()>().await;
            }
            Ok(addr.port())
        };
        let connected = timeout(WAIT_MAX, connect(addrs(4), Duration::from_millis(1), open)).await;
        assert_eq!(connected.expect("not silent").unwrap(), 3);
    }

    #[tokio::test]
    async fn an_address_that_fails_is_followed_at_once_and_the_last_error_is_returned() {
        let tried = RefCell::new(Vec::new());
        let open = |addr: SocketAddr| {
            tried.borrow_mut().push(addr.port());
            async move { Err::<(), _>(io::Error::other(format!("port {}", addr.port()))) }
        };
        let connected = timeout(WAIT_MAX, connect(addrs(3), NEVER, open)).await;
        assert_eq!(connected.expect("at once").unwrap_err().to_string(), "port 3");
        assert_eq!(*tried.borrow(), [1, 2, 3]);
        let none = connect(Vec::new(), NEVER, open).await.unwrap_err();
        assert!(none.to_string().contains("no address"), "{none}");
    }

    #[tokio::test]
    async fn an_earlier_address_goes_on_while_the_next_ones_are_tried() {
        let (accept, accepted) = oneshot::channel();
        let (accept, accepted) = (RefCell::new(Some(accept)), RefCell::new(Some(accepted)));
        let open = |addr: SocketAddr| {
            // The first address accepts when the last one is tried.
            let accepted = accepted.take();
            if addr.port() == 3 {
                accept.take().expect("the last address").send(()).expect("the first goes on");
            }
            async move {
                match accepted {
                    Some(accepted) => accepted.await.map_err(io::Error::other)?,
                    None => pending().await,
                }
                Ok(addr.port())
            }
        };
        let connected = timeout(WAIT_MAX, connect(addrs(3), Duration::from_millis(1), open)).await;
        assert_eq!(connected.expect("it goes on").unwrap(), 1);
    }

    #[test]
    fn the_last_address_has_half_of_the_time_of_an_attempt() {
        let ms = Duration::from_millis;
        for (attempt_ms, count, expected) in
            [(500, 1, 250), (500, 2, 125), (100, 2, 25), (100, 5, 10), (10_000, 4, 250)]
        {
            let got = next_after(count, ms(attempt_ms));
            assert_eq!(got, ms(expected), "{attempt_ms} {count}");
        }
        assert_eq!(next_after(0, ms(1)), Duration::from_micros(500));
    }
}
