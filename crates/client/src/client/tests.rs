//! Tests of the names that a client is given, with a scripted resolver.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use socket2::{Domain, Socket, Type};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::*;

const WAIT_MAX: Duration = Duration::from_secs(20);

fn client(via: Via, attempt_timeout: Duration, resolver: Resolver) -> Client {
    let options = Options { via, attempt_timeout, timeout: WAIT_MAX, ..Options::default() };
    Client::resolving(["n2:8080"], options, resolver).unwrap()
}

/// A node that accepts connections, and its address.
async fn listening() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// Makes a call, and returns when its connection has arrived.
async fn reaches(client: Client, node: &TcpListener) {
    let call = tokio::spawn(async move { client.timestamp().await });
    timeout(WAIT_MAX, node.accept()).await.expect("the node is reached").unwrap();
    call.abort();
}

/// An address at which nothing answers, while the sockets live. The queue of the listener is full.
fn silent() -> io::Result<(SocketAddr, Vec<Socket>)> {
    let socket = || Socket::new(Domain::IPV4, Type::STREAM, None);
    let listener = socket()?;
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
    listener.listen(0)?;
    let addr = listener.local_addr()?;
    let mut sockets = vec![listener];
    for _ in 0..4 {
        let queued = socket()?;
        queued.set_nonblocking(true)?;
        // The connection is in progress, or will never be made.
        let _ = queued.connect(&addr);
        sockets.push(queued);
    }
    Ok((addr.as_socket().expect("an address of IP"), sockets))
}

#[tokio::test]
async fn a_host_whose_first_address_is_silent_is_reached_within_an_attempt() {
    let (silent, _sockets) = silent().unwrap();
    for via in [Via::Native, Via::Http] {
        let (node, addr) = listening().await;
        let resolver = Resolver::with(move |_| Ok(vec![silent, addr]));
        // The attempt is shorter than the longest wait for an address.
        reaches(client(via, Duration::from_millis(100), resolver), &node).await;
    }
}

#[tokio::test]
async fn a_host_whose_first_address_is_silent_is_reached_by_a_call_with_little_time() {
    let (silent, _sockets) = silent().unwrap();
    let (node, addr) = listening().await;
    let resolver = Resolver::with(move |_| Ok(vec![silent, addr]));
    let client = client(Via::Http, WAIT_MAX, resolver);
    // Over HTTP, an attempt ends with its call.
    let deadline = now() + Duration::from_millis(200);
    let call = tokio::spawn(async move { client.timestamps_before(1, deadline).await });
    timeout(WAIT_MAX, node.accept()).await.expect("the node is reached").unwrap();
    call.abort();
}

/// A dialer that finds a silent address first, and then `addr`. Also the number of lookups.
fn moving(silent: SocketAddr, addr: SocketAddr) -> (Dialer, Arc<AtomicUsize>) {
    let begun = Arc::new(AtomicUsize::new(0));
    let count = begun.clone();
    let resolver = Resolver::with(move |_| {
        Ok(vec![if count.fetch_add(1, Ordering::SeqCst) == 0 { silent } else { addr }])
    });
    (Dialer::new(None, Alpn::Native).with_resolver(Arc::new(resolver)), begun)
}

#[tokio::test]
async fn a_name_whose_old_address_is_silent_is_looked_up_again() {
    let (silent, _sockets) = silent().unwrap();
    let (_node, addr) = listening().await;
    let (dialer, begun) = moving(silent, addr);
    let gave_up = timeout(Duration::from_millis(100), dialer.dial("n2:8080")).await;
    assert!(gave_up.is_err(), "nothing answers at the old address");
    let moved = timeout(WAIT_MAX, dialer.dial("n2:8080")).await;
    moved.expect("the new address is found").unwrap();
    assert_eq!(begun.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn addresses_that_were_found_too_late_are_kept_for_the_next_attempt() {
    let (silent, _sockets) = silent().unwrap();
    let (_node, addr) = listening().await;
    let (dialer, begun) = moving(silent, addr);
    // The time of these attempts is over before they begin.
    let over = now();
    let late = async {
        while dialer.dial_before("n2:8080", over).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    let late = timeout(Duration::from_millis(100), late).await;
    assert!(late.is_err(), "nothing answers at the address");
    assert!(timeout(Duration::from_millis(100), dialer.dial("n2:8080")).await.is_err());
    assert_eq!(begun.load(Ordering::SeqCst), 1);
    timeout(WAIT_MAX, dialer.dial("n2:8080")).await.expect("it was looked up again").unwrap();
}

#[tokio::test]
async fn a_call_whose_lookup_hangs_says_so() {
    for via in [Via::Native, Via::Http] {
        let (answer, answers) = mpsc::channel();
        let answers = Mutex::new(answers);
        let resolver = Resolver::with(move |_| {
            answers.lock().unwrap().recv_timeout(WAIT_MAX).map_err(io::Error::other)
        });
        let client = client(via, Duration::from_millis(100), resolver);
        let says_so = async {
            let addr = "n2:8080".to_owned();
            let last = Some(FailedAttempt::SlowLookup { addr });
            let expected = TimestampsError::DeadlineExceeded { last };
            // On a busy machine, the client may find first that the time of the attempt is over.
            while client.timestamps_before(1, now() + Duration::from_millis(350)).await
                != Err(expected.clone())
            {}
        };
        timeout(WAIT_MAX / 2, says_so).await.expect("the error names the lookup");
        answer.send(Vec::new()).unwrap();
    }
}

#[test]
fn the_second_connection_has_less_time_to_open() {
    for (hedge_after_ms, expected_ms) in [(10, 50), (70, 70)] {
        let hedge_after = Some(Duration::from_millis(hedge_after_ms));
        let attempt_timeout = Duration::from_millis(400);
        let options = Options { attempt_timeout, hedge_after, ..Options::default() };
        let client = Client::new(["n2:8080"], options).unwrap();
        let core = &client.shared.core;
        assert_eq!(core.open_timeout(true), Duration::from_millis(expected_ms));
        assert_eq!(core.open_timeout(false), attempt_timeout);
    }
}

#[tokio::test]
async fn a_lookup_that_outlasts_an_attempt_is_not_begun_again_and_serves_later_calls() {
    for via in [Via::Native, Via::Http] {
        let (node, addr) = listening().await;
        let (answer, answers) = mpsc::channel();
        let (begun, answers) = (Arc::new(AtomicUsize::new(0)), Mutex::new(answers));
        let count = begun.clone();
        let resolver = Resolver::with(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            answers.lock().unwrap().recv_timeout(WAIT_MAX).map_err(io::Error::other)
        });
        let client = client(via, Duration::from_millis(10), resolver);
        let error = client.timestamps_before(1, now() + Duration::from_millis(200)).await;
        let is_late = matches!(error, Err(TimestampsError::DeadlineExceeded { .. }));
        assert!(is_late, "{via:?}: {error:?}");
        answer.send(vec![addr]).unwrap();
        reaches(client, &node).await;
        assert_eq!(begun.load(Ordering::SeqCst), 1, "{via:?}");
    }
}
