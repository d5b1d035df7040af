//! Options that no client can keep to are refused when it is made.

use std::sync::Arc;
use std::time::Duration;

use epicepoch_client::{Client, NewClientError, Options, Via};

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
fn an_observer_that_nobody_would_tell_anything_is_refused() {
    let error = refused(|options| {
        options.via = Via::Http;
        options.observer = Some(Arc::new(Counting::default()));
    });
    assert_eq!(error, NewClientError::ObserverOverHttp);
}
