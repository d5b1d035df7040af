//! Tests of frames that arrive together with the welcome, behind it. Often nothing comes later.

use std::sync::{Arc, Mutex};

use epicepoch_client::{Client, FailedAttempt, Observer, Options, TimestampsError};
use epicepoch_wire::http::ErrorCode;
use tokio::time::timeout;

use crate::node::{Node, Oracle, Play};
use crate::{WAIT_MAX, leading, patient};

#[tokio::test]
async fn a_leader_that_is_named_right_behind_the_welcome_is_asked() {
    let oracle = Arc::new(Oracle::default());
    let follower = Node::start(&oracle, Play::WelcomeAndTell).await;
    let leader = Node::start(&oracle, Play::Lead).await;
    leader.now_leads();
    // Only the notice names the leader.
    oracle.members.lock().unwrap().clear();
    patient(&[&follower]).timestamp().await.unwrap();
    assert_eq!(leader.asked().len(), 1);
}

/// Keeps the first failed attempt.
#[derive(Debug, Default)]
struct First(Mutex<Option<FailedAttempt>>);

impl Observer for First {
    fn failed_attempt(&self, attempt: &FailedAttempt) {
        self.0.lock().unwrap().get_or_insert_with(|| attempt.clone());
    }
}

#[tokio::test]
async fn a_node_that_leaves_right_behind_the_welcome_is_heard() {
    let (_, node) = leading().await;
    node.now_plays(Play::WelcomeAndLeave);
    let first = Arc::new(First::default());
    let mut options = Options::default();
    options.timeout = WAIT_MAX;
    options.observer = Some(first.clone());
    let client = Client::new([node.addr.to_string()], options).unwrap();
    let call = tokio::spawn(async move { client.timestamp().await });
    let failed = async {
        while first.0.lock().unwrap().is_none() {
            tokio::task::yield_now().await;
        }
    };
    timeout(WAIT_MAX, failed).await.expect("an attempt fails");
    node.now_plays(Play::Lead);
    call.await.unwrap().unwrap();
    let (addr, code) = (node.addr.to_string(), ErrorCode::ShuttingDown);
    assert_eq!(*first.0.lock().unwrap(), Some(FailedAttempt::Refused { addr, code }));
}

#[tokio::test]
async fn a_refusal_right_behind_the_welcome_ends_the_call() {
    let (_, node) = leading().await;
    node.now_plays(Play::WelcomeAndRefuse(ErrorCode::WrongCluster));
    let error = patient(&[&node]).timestamp().await.unwrap_err();
    assert!(matches!(error, TimestampsError::AnotherCluster(_)), "{error}");
}

#[tokio::test]
async fn a_ping_right_behind_the_welcome_is_answered() {
    let (_, node) = leading().await;
    node.now_plays(Play::WelcomeAndPing);
    patient(&[&node]).timestamp().await.unwrap();
}
