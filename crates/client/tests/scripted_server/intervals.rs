//! Tests of interval mode.

use epicepoch_client::IntervalError;
use epicepoch_wire::interval::IntervalStamp;

use super::*;

/// No node of these tests is silent on purpose, so a busy machine ends no attempt.
fn options() -> Options {
    let mut options = super::options();
    options.attempt_timeout = WAIT_MAX;
    options
}

fn client(servers: &[&Server]) -> Client {
    client_with(servers, options())
}

fn stamp(node: u64) -> IntervalStamp {
    IntervalStamp::new(10, 20, NodeId(node), 0).expect("an interval")
}

fn stamp_of(node: u64) -> Line {
    Line::Say(response("200 OK", "", &stamp(node).to_bytes()))
}

fn refused(status: &str, code: &str) -> Line {
    Line::Say(response(status, &format!("epicepoch-error: {code}\r\n"), b"no\n"))
}

fn other_mode() -> Line {
    refused("422 Unprocessable Content", "OTHER_MODE")
}

fn uncertain() -> Line {
    refused("503 Service Unavailable", "UNCERTAIN")
}

/// A node that lags behind a change of the mode says the same as a cluster in quorum mode.
#[tokio::test]
async fn a_node_that_lags_behind_a_change_of_the_mode_is_passed_over() {
    let (lagging, other) = (Server::start().await, Server::start().await);
    lagging.will(other_mode());
    other.will(stamp_of(2)).will(stamp_of(2));
    let client = client(&[&lagging, &other]);
    for _ in 0..2 {
        let got = client.intervals(1, deadline()).await.expect("the other node is certain");
        assert_eq!(got.timestamp, stamp(2).timestamp());
    }
    assert_eq!((lagging.asked().len(), other.asked().len()), (1, 2));
}

#[tokio::test]
async fn a_cluster_in_quorum_mode_ends_a_call_after_each_node_was_asked_once() {
    let nodes = [Server::start().await, Server::start().await, Server::start().await];
    for (node, line) in nodes.iter().zip([other_mode(), Line::HangUp, other_mode()]) {
        node.will(line);
    }
    let error = client(&[&nodes[0], &nodes[1], &nodes[2]]).intervals(1, deadline()).await;
    let Err(IntervalError::BadAnswer(BadAnswer::Refused { addr, code, .. })) = error else {
        panic!("{error:?}");
    };
    assert_eq!((addr, code), (nodes[0].addr.to_string(), ErrorCode::OtherMode));
    assert_eq!(nodes.map(|node| node.asked().len()), [1; 3]);
}

#[tokio::test]
async fn a_node_that_is_uncertain_proves_that_the_cluster_is_in_interval_mode() {
    let (lagging, unsure) = (Server::start().await, Server::start().await);
    lagging.will(other_mode()).will(other_mode()).will(stamp_of(1));
    unsure.will(uncertain()).will(uncertain());
    let got = client(&[&lagging, &unsure]).intervals(1, deadline()).await;
    assert_eq!(got.expect("the node has caught up").timestamp, stamp(1).timestamp());
    assert_eq!((lagging.asked().len(), unsure.asked().len()), (3, 2));
}

/// The way back from interval mode is rare, so the client needs no other node to believe that this one
/// lags.
#[tokio::test]
async fn a_client_that_has_met_interval_mode_knows_that_a_node_lags() {
    let node = Server::start().await;
    node.will(stamp_of(1)).will(other_mode()).will(other_mode()).will(stamp_of(1));
    let client = client(&[&node]);
    for _ in 0..2 {
        let got = client.intervals(1, deadline()).await.expect("it has caught up");
        assert_eq!(got.timestamp, stamp(1).timestamp());
    }
    assert_eq!(node.asked().len(), 4);
}

/// Each of these nodes is broken, old or behind a busy proxy. Another one is well.
#[tokio::test]
async fn a_refusal_of_one_node_does_not_end_a_call_for_an_interval() {
    for line in [
        refused("500 Internal Server Error", "INTERNAL"),
        refused("404 Not Found", "NOT_FOUND"),
        Line::Say(response("429 Too Many Requests", "", b"")),
        Line::Say(response("500 Internal Server Error", "", b"")),
        Line::Say(response("502 Bad Gateway", "", b"")),
    ] {
        let (bad, good) = (Server::start().await, Server::start().await);
        bad.will(line);
        good.will(stamp_of(2));
        let got = client(&[&bad, &good]).intervals(1, deadline()).await.expect("another is well");
        assert_eq!(got.timestamp, stamp(2).timestamp());
    }
    let node = Server::start().await;
    node.will(refused("404 Not Found", "NOT_FOUND"));
    let error = client(&[&node]).intervals(1, deadline()).await;
    let Err(IntervalError::BadAnswer(BadAnswer::Refused { code, .. })) = error else {
        panic!("{error:?}");
    };
    assert_eq!(code, ErrorCode::NotFound, "all nodes are too old");
}

#[tokio::test]
async fn a_node_that_ended_a_call_is_not_asked_first_by_the_next() {
    let (first, second) = (Server::start().await, Server::start().await);
    first.will(uncertain()).will(stamp_of(1));
    second.will(stamp_of(2)).will(refused("403 Forbidden", "FORBIDDEN"));
    let client = client(&[&first, &second]);
    assert!(client.intervals(1, deadline()).await.is_ok());
    assert!(client.intervals(1, deadline()).await.is_err(), "the second node is asked first");
    let got = client.intervals(1, deadline()).await.expect("the first node is well");
    assert_eq!(got.timestamp, stamp(1).timestamp());
    assert_eq!((first.asked().len(), second.asked().len()), (2, 2));
}

/// The answer and the end of the call's time come at the same moment, as in a process that was stopped.
#[tokio::test]
async fn an_interval_after_the_deadline_is_not_returned_and_its_node_is_not_silent() {
    // If the machine stalls, the call ends before the request arrives. So the test is repeated.
    for _ in 0..10 {
        let (node, other) = (Server::start().await, Server::start().await);
        let Line::Say(bytes) = stamp_of(1) else { unreachable!("it says a stamp") };
        node.will(Line::SayAndStall(bytes, Duration::from_millis(400))).will(stamp_of(1));
        other.will(stamp_of(2));
        let client = client(&[&node, &other]);
        let short = Instant::now() + Duration::from_millis(200);
        let error = client.intervals(1, short).await;
        assert!(matches!(error, Err(IntervalError::DeadlineExceeded { .. })), "{error:?}");
        let got = client.intervals(1, deadline()).await.expect("both are certain");
        if got.timestamp == stamp(1).timestamp() {
            return;
        }
    }
    panic!("the node that answered too late was not asked first");
}

/// The calls have less time than an attempt, so none of them asks two nodes if the first is silent. If
/// they read the members before, that ends them, too.
#[tokio::test]
async fn a_call_that_ends_at_a_silent_node_sends_the_next_one_elsewhere() {
    for reads_members in [false, true] {
        let (silent, other) = (Server::start().await, Server::start().await);
        let mut options = options();
        if reads_members {
            options.refresh_interval = Duration::ZERO;
            other.will(Line::Say(named("", &[&silent, &other], None)));
        }
        other.will(stamp_of(2));
        let client = client_with(&[&silent, &other], options);
        let mut error = None;
        // If the machine stalls, the deadline may pass before any node is asked. So this is repeated.
        for _ in 0..10 {
            error = client.intervals(1, Instant::now() + Duration::from_millis(200)).await.err();
            if error != Some(IntervalError::DeadlineExceeded { last: None }) {
                break;
            }
        }
        let last = Some(FailedAttempt::Silent { addr: silent.addr.to_string() });
        assert_eq!(error, Some(IntervalError::DeadlineExceeded { last }));
        let got = client.intervals(1, deadline()).await.expect("the other node is certain");
        assert_eq!(got.timestamp, stamp(2).timestamp());
        assert!(silent.asked().len() <= 1, "the silent node was asked again");
    }
}

/// The first node uses the time of an attempt, so the second one has only the rest of the call.
#[tokio::test]
async fn a_node_that_had_only_the_rest_of_a_call_is_not_silent() {
    for reads_members in [false, true] {
        let (first, second) = (Server::start().await, Server::start().await);
        let mut options = options();
        options.attempt_timeout = Duration::from_millis(400);
        if reads_members {
            options.refresh_interval = Duration::ZERO;
        }
        let client = client_with(&[&first, &second], options);
        let error = client.intervals(1, Instant::now() + Duration::from_millis(600)).await;
        assert!(matches!(error, Err(IntervalError::DeadlineExceeded { .. })), "{error:?}");
        if reads_members {
            second.will(Line::Say(named("", &[&first, &second], None)));
        }
        second.will(stamp_of(2));
        let got = client.intervals(1, deadline()).await.expect("the second node is certain");
        assert_eq!(got.timestamp, stamp(2).timestamp());
        assert!(first.asked().len() <= 1, "the second node counts as silent");
    }
}

#[tokio::test]
async fn a_caller_that_gives_up_says_nothing_about_the_node() {
    let (first, second) = (Server::start().await, Server::start().await);
    first.will(Line::Silence).will(stamp_of(1));
    let client = client(&[&first, &second]);
    let given_up = async {
        while first.asked().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        answered = client.intervals(1, deadline()) => panic!("{answered:?}"),
        () = given_up => {}
    }
    let got = client.intervals(1, deadline()).await.expect("the first node is certain");
    assert_eq!(got.timestamp, stamp(1).timestamp());
    assert_eq!((first.asked().len(), second.asked().len()), (2, 0));
}

/// Intervals do not say the name of their cluster, and this one is of a cluster that has no name yet.
#[tokio::test]
async fn a_client_that_knows_the_name_takes_no_interval_of_another_cluster() {
    let (wrong, right) = (Server::start().await, Server::start().await);
    wrong.will(Line::Say(named_of(OTHER, "yours", &[&wrong], None))).will(Line::HangUp);
    let client = named_client(&[&wrong, &right], options());
    let error = client.intervals(1, deadline()).await;
    assert!(matches!(error, Err(IntervalError::AnotherCluster(_))), "{error:?}");
    assert_eq!(wrong.asked(), ["/members"]);
    // The second node has not joined at first. A request is sent again if a kept connection ends, so
    // the first node hangs up twice for one request.
    let unborn = r#"{"clusterName":"mine","leader":null,"members":[]}"#;
    right.will(Line::Say(response_of(NONE, "200 OK", "", unborn.as_bytes())));
    wrong.will(Line::HangUp).will(Line::HangUp);
    right.will(Line::Say(named("mine", &[&right], None))).will(stamp_of(2)).will(stamp_of(2));
    for _ in 0..2 {
        let got = client.intervals(1, deadline()).await.expect("the right node is certain");
        assert_eq!(got.timestamp, stamp(2).timestamp());
    }
    assert_eq!(right.asked(), ["/members", "/members", "/interval?n=1", "/interval?n=1"]);
}

#[tokio::test]
async fn an_interval_of_no_cluster_is_refused() {
    let bytes = stamp(1).to_bytes();
    let nameless =
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", bytes.len()).into_bytes();
    for answer in [[nameless, bytes.to_vec()].concat(), response_of(NONE, "200 OK", "", &bytes)] {
        let node = Server::start().await;
        node.will(stamp_of(1)).will(Line::Say(answer));
        let client = client(&[&node]);
        assert!(client.intervals(1, deadline()).await.is_ok());
        let error = client.intervals(1, deadline()).await;
        let is_right = matches!(error, Err(IntervalError::BadAnswer(BadAnswer::Foreign { .. })));
        assert!(is_right, "{error:?}");
    }
}

/// With an interval of zero, each call reads the members once.
#[tokio::test]
async fn the_members_are_read_again_also_while_calls_succeed() {
    let (old, new) = (Server::start().await, Server::start().await);
    let mut options = options();
    options.refresh_interval = Duration::ZERO;
    let client = client_with(&[&old], options);
    old.will(Line::Say(named("", &[&old, &new], None))).will(stamp_of(1));
    assert!(client.intervals(1, deadline()).await.is_ok());
    // The node that the client was given is gone. The request goes over its kept connection, and then
    // over a new one. After that, the other node is asked first.
    for _ in 0..2 {
        old.will(Line::HangUp);
    }
    new.will(stamp_of(2));
    let got = client.intervals(1, deadline()).await.expect("the new member is known");
    assert_eq!(got.timestamp, stamp(2).timestamp());
    new.will(Line::Say(led_by(new.addr))).will(stamp_of(2));
    assert!(client.intervals(1, deadline()).await.is_ok());
    new.will(Line::Say(led_by(new.addr))).will(Line::Say(led_by(new.addr)));
    new.will(Line::Say(stamped(range(0, 1))));
    client.members(deadline()).await.expect("a list");
    assert_eq!(client.timestamps_before(1, deadline()).await, Ok(range(0, 1)));
    let (members, interval) = ("/members", "/interval?n=1");
    let expected = [interval, members, interval, members, members, "/timestamp?format=range&n=1"];
    assert_eq!(new.asked(), expected);
}

#[tokio::test]
async fn a_reader_is_told_by_how_much_what_it_found_is_still_ahead() {
    let node = Server::start().await;
    // The node is sure that 10 ns are past.
    let found = |ms: u64| Timestamp::new(Epoch(9 + ms * 1_000_000), EpochIndex(0));
    let mut options = options();
    options.timeout = WAIT_MAX;
    node.will(stamp_of(1));
    let patient = client_with(&[&node], options.clone());
    assert_eq!(patient.must_retry(found(0), found(0)).await, Ok(true));
    options.timeout = Duration::from_millis(300);
    let mut text = String::new();
    // If the machine stalls, the answer may come after the deadline. So the test is repeated.
    for _ in 0..10 {
        node.will(stamp_of(1));
        let client = client_with(&[&node], options.clone());
        let error = client.must_retry(found(0), found(3_600_000)).await;
        text = error.expect_err("it is an hour ahead").to_string();
        if text.contains("3600000 ms ahead") {
            return;
        }
    }
    panic!("{text}");
}
