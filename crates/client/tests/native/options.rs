//! Tests of a client's options: a client with invalid options cannot be created.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use epicepoch_client::{Client, NewClientError, Options, Token, TokenSource, Via};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

use crate::Counting;

fn refused(set: impl FnOnce(&mut Options)) -> NewClientError {
    let mut options = Options::default();
    set(&mut options);
    Client::new(["localhost:1"], options).expect_err("options that cannot be kept to")
}

#[test]
fn times_that_nothing_can_take_and_times_without_an_end_are_refused() {
    for given in [Duration::ZERO, Duration::MAX, Options::DURATION_MAX + Duration::from_nanos(1)] {
        let error = |option| NewClientError::Duration { option, given };
        assert_eq!(refused(|options| options.timeout = given), error("timeout"));
        assert_eq!(refused(|options| options.attempt_timeout = given), error("attempt_timeout"));
        assert_eq!(refused(|options| options.hedge_after = Some(given)), error("hedge_after"));
    }
}

#[tokio::test]
async fn the_longest_times_there_may_be_are_no_trouble() {
    let (_, node) = crate::leading().await;
    let mut options = Options::default();
    options.timeout = Options::DURATION_MAX;
    options.attempt_timeout = Options::DURATION_MAX;
    options.hedge_after = Some(Options::DURATION_MAX);
    options.refresh_interval = Duration::MAX;
    let client = Client::new([node.addr.to_string()], options).unwrap();
    client.timestamp().await.unwrap();
    client.timestamp().await.unwrap();
}

#[test]
fn an_observer_that_would_never_be_called_is_refused() {
    let error = refused(|options| {
        options.via = Via::Http;
        options.observer = Some(Arc::new(Counting::default()));
    });
    assert_eq!(error, NewClientError::ObserverOverHttp);
}

#[tokio::test]
async fn each_connection_shows_the_token_that_its_source_gives_then() {
    for via in [Via::Native, Via::Http] {
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let given = Arc::new(AtomicU32::new(0));
        let mut options = Options::default();
        options.via = via;
        options.timeout = Duration::from_secs(20);
        options.token = Token::new("never-shown-0000");
        let source = given.clone();
        options.token_source = Some(TokenSource::new(move || {
            Token::new(&format!("token-{:010}", source.fetch_add(1, Ordering::Relaxed)))
        }));
        let client = Client::new([port.local_addr().unwrap().to_string()], options).unwrap();
        let asking = tokio::spawn(async move { client.timestamp().await });
        for expected in ["token-0000000000", "token-0000000001"] {
            let (mut stream, _) = port.accept().await.unwrap();
            let mut said = Vec::new();
            while !String::from_utf8_lossy(&said).contains(expected) {
                let read = stream.read_buf(&mut said).await.unwrap();
                assert!(read > 0, "{via:?}: {:?}", String::from_utf8_lossy(&said));
            }
            assert!(!String::from_utf8_lossy(&said).contains("never-shown"));
            // The connection is closed here. So the client connects again, and must use the next
            // token.
        }
        asking.abort();
    }
}
