//! Tests of the decisions of a call over HTTP, without a socket.

use epicepoch_wire::{Epoch, EpochIndex};

use super::*;
use crate::directory::BACKOFF_MAX;

mod members;

const CLUSTER: &str = "00000000000000000000000000000abc.0000000000000001";
const OTHER: &str = "00000000000000000000000000000def.0000000000000001";
const NONE: &str = "00000000000000000000000000000000.0000000000000000";
const SECOND: Duration = Duration::from_secs(1);

/// An answer with values of its own.
#[derive(Clone, Default)]
struct Given {
    status: u16,
    cluster: Option<String>,
    error: Option<String>,
    leader: Option<String>,
    proof: Option<String>,
    body: Vec<u8>,
}

impl Given {
    fn answer(&self) -> Answer<'_> {
        let Self { status, cluster, error, leader, proof, body } = self;
        Answer {
            status: *status,
            cluster: cluster.as_deref(),
            error: error.as_deref(),
            leader: leader.as_deref(),
            proof: proof.as_deref(),
            body,
        }
    }
}

/// A call under test, its directory, and a clock that only the test moves.
struct World {
    now: Instant,
    directory: Directory,
    pursuit: Pursuit,
}

#[expect(clippy::needless_pass_by_value, reason = "a story has an answer once")]
impl World {
    fn new(seeds: &[&str], goal: Goal) -> Self {
        let seeds = seeds.iter().map(|&seed| seed.to_owned()).collect();
        let (directory, now) = (Directory::new(seeds, 1), Instant::now());
        let pursuit = Pursuit::new(&directory, goal, now + SECOND, SECOND / 4);
        Self { now, directory, pursuit }
    }

    fn call_again(&mut self, goal: Goal) {
        self.pursuit = Pursuit::new(&self.directory, goal, self.now + SECOND, SECOND / 4);
    }

    /// Returns the address and path that the call asks next. If the call waits first, the clock is
    /// moved to the end of the wait.
    fn asked(&mut self) -> (String, String) {
        loop {
            match self.pursuit.poll_action(&mut self.directory, self.now) {
                Action::Ask { addr, path, .. } => return (addr, path.into_owned()),
                Action::Wait { until } => {
                    assert!(until - self.now <= BACKOFF_MAX);
                    self.now = until;
                }
                Action::Finish(end) => panic!("finished with {end:?}"),
            }
        }
    }

    fn end(&mut self) -> End {
        match self.pursuit.poll_action(&mut self.directory, self.now) {
            Action::Finish(end) => end,
            other => panic!("not finished: {other:?}"),
        }
    }

    fn reply(&mut self, answer: Given) -> &mut Self {
        let (addr, path) = self.asked();
        self.pursuit.handle_outcome(
            &mut self.directory,
            &addr,
            &path,
            Ok(answer.answer()),
            self.now,
        );
        self
    }

    fn reply_from(&mut self, addr: &str, path: &str, answer: Given) -> &mut Self {
        assert_eq!(self.asked(), (addr.to_owned(), path.to_owned()));
        self.reply_again(addr, path, answer)
    }

    fn reply_again(&mut self, addr: &str, path: &str, answer: Given) -> &mut Self {
        self.pursuit.handle_outcome(&mut self.directory, addr, path, Ok(answer.answer()), self.now);
        self
    }

    /// The call is told who leads, if the last answer was so wrong that the client asks.
    fn find_leader(&mut self) {
        if self.directory.leader().is_none() {
            self.reply(led_by("b:2"));
        }
    }

    fn lose(&mut self) -> String {
        let (addr, path) = self.asked();
        let lost = FailedAttempt::Lost { addr: addr.clone(), reason: "reset".into() };
        self.pursuit.handle_outcome(&mut self.directory, &addr, &path, Err(lost), self.now);
        addr
    }
}

fn answer(status: u16, body: impl Into<Vec<u8>>) -> Given {
    Given { status, cluster: Some(CLUSTER.into()), body: body.into(), ..Given::default() }
}

fn refusal(code: ErrorCode, leader: Option<&str>) -> Given {
    let (error, leader) = (Some(code.name().to_owned()), leader.map(str::to_owned));
    Given { error, leader, ..answer(code.status(), "say why\n") }
}

fn list(leader: &str) -> Given {
    let json = format!(
        r#"{{"leader":{leader},"members":[{{"nodeID":1,"addr":"a:1"}},{{"nodeID":2,"addr":"b:2"}}]}}"#
    );
    answer(200, json)
}

fn led_by(addr: &str) -> Given {
    list(&format!(r#"{{"nodeID":1,"addr":"{addr}"}}"#))
}

fn range(epoch: u64, index: u64, count: u64) -> TimestampRange {
    let first = Timestamp::new(Epoch(epoch), EpochIndex(index));
    TimestampRange::new(first, count).expect("a range")
}

fn stamped(range: TimestampRange) -> Given {
    answer(200, range.to_bytes().to_vec())
}

const ONE: &str = "/timestamp?format=range&n=1";

#[test]
fn the_leader_is_found_once_and_then_asked_directly() {
    let mut world = World::new(&["x:9"], Goal::Timestamps(1));
    world.reply_from("x:9", "/members", led_by("b:2"));
    world.reply_from("b:2", ONE, stamped(range(5, 0, 1)));
    assert_eq!(world.end(), End::Timestamps(range(5, 0, 1)));
    world.call_again(Goal::Timestamps(1));
    world.reply_from("b:2", ONE, stamped(range(5, 1, 1)));
    assert_eq!(world.end(), End::Timestamps(range(5, 1, 1)));
}

#[test]
fn a_deposed_leader_sends_the_client_on_without_a_wait() {
    let mut world = World::new(&["x:9"], Goal::Timestamps(1));
    let before = world.now;
    world.reply(led_by("a:1"));
    world.reply_from("a:1", ONE, refusal(ErrorCode::NotLeader, Some("b:2")));
    world.reply_from("b:2", ONE, stamped(range(5, 0, 1)));
    assert_eq!(world.end(), End::Timestamps(range(5, 0, 1)));
    assert_eq!(world.now, before);
}

#[test]
fn nodes_that_send_the_client_in_circles_make_it_wait() {
    let mut world = World::new(&["x:9"], Goal::Timestamps(1));
    world.reply(led_by("a:1"));
    for (from, to) in [("a:1", "b:2"), ("b:2", "a:1"), ("a:1", "b:2"), ("b:2", "a:1")] {
        world.reply_from(from, ONE, refusal(ErrorCode::NotLeader, Some(to)));
    }
    let action = world.pursuit.poll_action(&mut world.directory, world.now);
    assert!(matches!(action, Action::Wait { .. }), "{action:?}");
    assert_eq!(world.asked().1, "/members");
}

#[test]
fn a_lost_leader_makes_the_client_ask_every_node_in_turn() {
    let mut world = World::new(&["x:9"], Goal::Timestamps(1));
    world.reply(led_by("a:1"));
    assert_eq!(world.lose(), "a:1");
    let mut asked: Vec<_> = (0..6).map(|_| world.lose()).collect();
    asked.sort();
    assert_eq!(asked, ["a:1", "a:1", "b:2", "b:2", "x:9", "x:9"]);
}

#[test]
fn the_call_ends_at_its_deadline_and_names_the_last_failed_attempt() {
    let mut world = World::new(&["x:9", "y:9"], Goal::Timestamps(1));
    let begin = world.now;
    let end = loop {
        match world.pursuit.poll_action(&mut world.directory, world.now) {
            Action::Finish(end) => break end,
            Action::Wait { until } => world.now = until,
            Action::Ask { until, .. } => {
                assert!(until <= begin + SECOND);
                world.lose();
            }
        }
    };
    assert_eq!(world.now, begin + SECOND);
    assert!(matches!(end, End::DeadlineExceeded(Some(FailedAttempt::Lost { .. }))), "{end:?}");
    assert!(
        world.pursuit.failed_attempts.count > 20,
        "waits are bounded: {}",
        world.pursuit.failed_attempts.count
    );
}

#[test]
fn a_live_nodes_refusal_is_reported_rather_than_a_dead_nodes_silence() {
    let mut world = World::new(&["x:9", "y:9"], Goal::Timestamps(1));
    world.reply(list("null")).lose();
    let refused = world.pursuit.failed_attempts.last();
    assert!(matches!(refused, Some(FailedAttempt::NoLeader { .. })), "{refused:?}");
    for _ in 0..world.directory.address_count() {
        world.lose();
    }
    let lost = world.pursuit.failed_attempts.last();
    assert!(matches!(lost, Some(FailedAttempt::Lost { .. })), "nobody lives any more: {lost:?}");
}

#[test]
fn an_overloaded_leader_is_asked_again_after_the_longest_wait() {
    let mut world = World::new(&["x:9"], Goal::Timestamps(1));
    world.reply(led_by("a:1"));
    let before = world.now;
    world.reply_from("a:1", ONE, refusal(ErrorCode::Overloaded, None));
    assert_eq!(world.asked(), ("a:1".into(), ONE.into()));
    assert!(world.now - before >= BACKOFF_MAX / 4);
}

#[test]
fn a_leader_without_a_quorum_is_left_for_the_others() {
    for code in [ErrorCode::NoQuorum, ErrorCode::ShuttingDown, ErrorCode::Internal] {
        let mut world = World::new(&["x:9"], Goal::Timestamps(1));
        world.reply(led_by("a:1"));
        world.reply_from("a:1", ONE, refusal(code, None));
        assert_eq!(world.asked().1, "/members", "{code}");
    }
}

#[test]
fn an_election_is_waited_out() {
    let mut world = World::new(&["x:9"], Goal::Timestamps(1));
    world.reply(list("null")).reply(list("null")).reply(led_by("b:2"));
    world.reply_from("b:2", ONE, stamped(range(5, 0, 1)));
    assert_eq!(world.end(), End::Timestamps(range(5, 0, 1)));
}

#[test]
fn another_cluster_or_history_is_refused_at_once() {
    let history = "00000000000000000000000000000abc.0000000000000002";
    for found in [OTHER, history] {
        let mut world = World::new(&["x:9"], Goal::Timestamps(1));
        world.reply(led_by("b:2"));
        world.reply(Given { cluster: Some(found.into()), ..stamped(range(5, 0, 1)) });
        let end = world.end();
        assert!(matches!(&end, End::AnotherCluster(e) if e.found == found), "{end:?}");
    }
}

#[test]
fn a_cluster_of_another_name_or_of_none_is_refused_at_once() {
    for (body, is_believed) in [
        (r#"{"leader":null,"members":[],"clusterName":"mine"}"#, true),
        (r#"{"leader":null,"members":[],"clusterName":"yours"}"#, false),
        (r#"{"leader":null,"members":[]}"#, false),
    ] {
        let mut world = World::new(&["x:9"], Goal::Members);
        world.directory =
            Directory::new(vec!["x:9".to_owned()], 1).expecting(Some("mine".to_owned()));
        world.reply(answer(200, body));
        let end = world.end();
        assert_eq!(matches!(end, End::Members(_)), is_believed, "{end:?}");
        assert_eq!(matches!(end, End::AnotherCluster(_)), !is_believed, "{end:?}");
    }
}

#[test]
fn a_node_that_has_not_joined_contradicts_no_cluster_but_stamps_nothing() {
    let mut world = World::new(&["x:9"], Goal::Timestamps(1));
    let unborn = |answer| Given { cluster: Some(NONE.into()), ..answer };
    world.reply(unborn(led_by("b:2"))).reply(unborn(stamped(range(5, 0, 1))));
    let end = world.end();
    assert!(matches!(end, End::BadAnswer(BadAnswer::Foreign { .. })), "{end:?}");
}

#[test]
fn a_client_that_knows_its_cluster_takes_no_timestamps_of_a_node_that_names_none() {
    let given = range(5, 0, 1);
    for goal in [Goal::Timestamps(1), Goal::Latest] {
        for cluster in [Some(NONE), None, Some("0.1"), Some(CLUSTER)] {
            let answered = match goal {
                Goal::Latest => answer(200, given.first().to_bytes().to_vec()),
                Goal::Timestamps(_) | Goal::Members => stamped(given),
            };
            let mut world = World::new(&["x:9"], goal);
            world.reply(led_by("b:2"));
            world.reply(Given { cluster: cluster.map(str::to_owned), ..answered });
            match world.end() {
                End::Timestamps(_) | End::Latest(_) => assert_eq!(cluster, Some(CLUSTER)),
                End::BadAnswer(error @ BadAnswer::Foreign { .. }) => {
                    assert_ne!(cluster, Some(CLUSTER));
                    assert!(error.to_string().contains("of no cluster"), "{error}");
                    assert_eq!(world.directory.highest(), None, "it counts for nothing");
                }
                end => panic!("{cluster:?}: {end:?}"),
            }
        }
    }
}

#[test]
fn the_first_timestamps_fix_the_cluster_of_a_client_that_accepts_any() {
    let mut world = World::new(&["x:9"], Goal::Timestamps(1));
    world.directory.set_leader("x:9".to_owned());
    world.reply_from("x:9", ONE, stamped(range(5, 0, 1)));
    assert_eq!(world.end(), End::Timestamps(range(5, 0, 1)));
    assert_eq!(world.directory.cluster(), Some(CLUSTER));
}

#[test]
fn a_node_that_has_not_joined_does_not_say_who_the_members_are() {
    let mut world = World::new(&["x:9", "y:9"], Goal::Members);
    let none = answer(200, r#"{"leader":null,"members":[]}"#);
    world.reply_from("x:9", "/members", Given { cluster: Some(NONE.into()), ..none });
    world.reply_from("y:9", "/members", led_by("b:2"));
    let end = world.end();
    assert!(matches!(&end, End::Members(members) if members.members.len() == 2), "{end:?}");
}

#[test]
fn an_answer_below_what_was_returned_before_is_refused() {
    let mut world = World::new(&["x:9"], Goal::Timestamps(4));
    world.reply(led_by("b:2")).reply(stamped(range(5, 6, 4)));
    assert_eq!(world.end(), End::Timestamps(range(5, 6, 4)));
    world.call_again(Goal::Timestamps(1));
    for first in [9, 0] {
        world.reply(stamped(range(5, first, 1)));
        assert!(matches!(world.end(), End::WentBackwards { .. }), "{first}");
        world.call_again(Goal::Timestamps(1));
        world.reply(led_by("b:2"));
    }
    world.reply(stamped(range(5, 10, 1)));
    assert_eq!(world.end(), End::Timestamps(range(5, 10, 1)));
}

#[test]
fn the_latest_timestamp_is_between_what_was_returned_before_and_what_is_asked_for_later() {
    let latest = |epoch, index| {
        let timestamp = range(epoch, index, 1).first();
        (answer(200, timestamp.to_bytes().to_vec()), timestamp)
    };
    let mut world = World::new(&["x:9"], Goal::Latest);
    world.reply_from("x:9", "/members", led_by("b:2"));
    let (before, low) = latest(4, u64::MAX);
    world.reply_from("b:2", "/latest", before);
    assert_eq!(world.end(), End::Latest(low));
    // A timestamp that is requested later is above it.
    for (epoch, is_right) in [(4, false), (5, true)] {
        world.call_again(Goal::Timestamps(1));
        world.find_leader();
        world.reply_from("b:2", ONE, stamped(range(epoch, 3, 1)));
        assert_eq!(matches!(world.end(), End::Timestamps(_)), is_right, "{epoch}");
    }
    // It may be a timestamp that was returned, and be the same again, but it never goes back.
    for (index, is_right) in [(3, true), (3, true), (2, false), (9, true), (8, false)] {
        world.call_again(Goal::Latest);
        world.find_leader();
        let (answer, timestamp) = latest(5, index);
        world.reply_from("b:2", "/latest", answer);
        match world.end() {
            End::Latest(latest) => assert!(is_right && latest == timestamp, "{index}"),
            End::WentBackwards { .. } => assert!(!is_right, "{index}"),
            end => panic!("{end:?}"),
        }
    }
}

#[test]
fn requests_name_the_guarantee_of_the_client() {
    for (goal, path) in [
        (Goal::Timestamps(3), "/timestamp?format=range&n=3&guarantee=lease"),
        (Goal::Latest, "/latest?guarantee=lease"),
        (Goal::Members, "/members"),
    ] {
        let mut world = World::new(&["x:9"], Goal::Timestamps(1));
        world.directory.set_leader("x:9".to_owned());
        world.call_again(goal);
        world.pursuit = Pursuit::new(&world.directory, goal, world.now + SECOND, SECOND / 4)
            .asking_for(Some(Guarantee::Lease));
        assert_eq!(world.asked(), ("x:9".to_owned(), path.to_owned()));
    }
}

#[test]
fn an_answer_that_a_lease_has_proved_is_an_error_if_a_quorum_was_asked_for() {
    let (none, quorum, lease) = (None, Some(Guarantee::Quorum), Some(Guarantee::Lease));
    for (guarantee, proof, is_right) in [
        (none, None, true),
        (none, Some("lease"), true),
        (quorum, None, true),
        (quorum, Some("round"), true),
        (quorum, Some("lease"), false),
        (quorum, Some("promise"), false),
        (lease, None, true),
        (lease, Some("round"), true),
        (lease, Some("lease"), true),
    ] {
        let given = range(4, 7, 1);
        for goal in [Goal::Timestamps(1), Goal::Latest] {
            let mut world = World::new(&["x:9"], goal);
            world.pursuit.guarantee = guarantee;
            let answered = match goal {
                Goal::Latest => answer(200, given.first().to_bytes().to_vec()),
                Goal::Timestamps(_) | Goal::Members => stamped(given),
            };
            let answered = Given { proof: proof.map(str::to_owned), ..answered };
            world.reply(led_by("b:2")).reply(answered);
            match world.end() {
                End::Timestamps(_) | End::Latest(_) => assert!(is_right, "{guarantee:?} {proof:?}"),
                End::BadAnswer(error) => {
                    assert!(!is_right && error.to_string().contains("lease"), "{error}");
                }
                end => panic!("{end:?}"),
            }
        }
    }
}

#[test]
fn a_call_that_names_a_guarantee_is_told_that_the_node_is_too_old() {
    for guarantee in [None, Some(Guarantee::Quorum), Some(Guarantee::Lease)] {
        for goal in [Goal::Timestamps(1), Goal::Latest] {
            let mut world = World::new(&["x:9"], goal);
            world.pursuit.guarantee = guarantee;
            world.reply(led_by("b:2")).reply(refusal(ErrorCode::BadRequest, None));
            let end = world.end();
            let End::BadAnswer(error @ BadAnswer::Refused { .. }) = &end else { panic!("{end:?}") };
            assert_eq!(error.to_string().contains(TOO_OLD), guarantee.is_some(), "{error}");
        }
    }
}

#[test]
fn an_answer_that_is_no_latest_timestamp_is_an_error_at_once() {
    for (bad, says) in [
        (answer(200, vec![0; 24]), "24 bytes"),
        (answer(200, ""), "0 bytes"),
        (refusal(ErrorCode::NotFound, None), "too old"),
    ] {
        let mut world = World::new(&["x:9"], Goal::Latest);
        world.reply(led_by("b:2")).reply(bad);
        let end = world.end();
        let End::BadAnswer(error) = &end else { panic!("{end:?}") };
        assert!(error.to_string().contains(says), "{error}");
    }
    // A node of an older version may have lost the lead without saying so.
    let mut world = World::new(&["x:9"], Goal::Latest);
    world.reply(led_by("b:2")).reply(refusal(ErrorCode::NotFound, None));
    world.end();
    assert_eq!(world.directory.leader(), None, "the next call asks who leads");
    let mut world = World::new(&["x:9"], Goal::Latest);
    let other = Given { leader: Some("c:3".into()), ..refusal(ErrorCode::NotLeader, None) };
    world.reply(led_by("b:2")).reply(other);
    assert_eq!(world.asked(), ("c:3".to_owned(), "/latest".to_owned()), "the leader is followed");
}

#[test]
fn concurrent_calls_may_return_in_any_order() {
    let mut world = World::new(&["x:9"], Goal::Timestamps(1));
    world.reply(led_by("b:2"));
    world.asked();
    let mut other = Pursuit::new(&world.directory, Goal::Timestamps(1), world.now + SECOND, SECOND);
    other.handle_outcome(
        &mut world.directory,
        "b:2",
        ONE,
        Ok(stamped(range(5, 1, 1)).answer()),
        world.now,
    );
    world.reply_again("b:2", ONE, stamped(range(5, 0, 1)));
    assert_eq!(world.end(), End::Timestamps(range(5, 0, 1)));
}

#[test]
fn timestamps_returned_before_a_second_attempt_lie_below_its_answer() {
    let mut world = World::new(&["x:9"], Goal::Timestamps(1));
    world.reply(led_by("b:2"));
    world.asked();
    let mut other = Pursuit::new(&world.directory, Goal::Timestamps(1), world.now + SECOND, SECOND);
    other.handle_outcome(
        &mut world.directory,
        "b:2",
        ONE,
        Ok(stamped(range(5, 1, 1)).answer()),
        world.now,
    );
    world.reply_again("b:2", ONE, refusal(ErrorCode::Overloaded, None));
    world.reply(stamped(range(5, 0, 1)));
    assert!(matches!(world.end(), End::WentBackwards { .. }));
}

#[test]
fn an_answer_that_no_oracle_gives_is_an_error_at_once() {
    let no_reason = Given { error: None, ..answer(404, "") };
    for bad in [answer(200, vec![0; 16]), stamped(range(5, 0, 2)), no_reason] {
        let mut world = World::new(&["x:9"], Goal::Timestamps(1));
        world.reply(led_by("b:2")).reply(bad);
        assert!(matches!(world.end(), End::BadAnswer(BadAnswer::Foreign { .. })));
        assert_eq!(world.directory.leader(), None, "the next call asks who leads");
    }
    let mut world = World::new(&["x:9"], Goal::Timestamps(1));
    world.reply(led_by("b:2")).reply(refusal(ErrorCode::BadCount, None));
    let end = world.end();
    assert!(
        matches!(&end, End::BadAnswer(BadAnswer::Refused { message, .. }) if message == "say why"),
        "{end:?}"
    );
    let mut world = World::new(&["x:9"], Goal::Members);
    world.reply(answer(200, "<html>"));
    assert!(matches!(world.end(), End::BadAnswer(BadAnswer::Foreign { .. })));
}

#[test]
fn a_hint_that_is_no_address_is_not_followed() {
    let mut world = World::new(&["x:9"], Goal::Timestamps(1));
    world.reply(led_by("a:1"));
    world.reply_from("a:1", ONE, refusal(ErrorCode::NotLeader, Some("b:2\r\nx: y")));
    assert_eq!(world.asked().1, "/members");
}

#[test]
fn counts_outside_the_bounds_are_refused_without_asking() {
    for count in [0, RANGE_COUNT_MAX + 1] {
        let mut world = World::new(&["x:9"], Goal::Timestamps(count));
        assert_eq!(world.end(), End::Count(count));
    }
}

#[test]
fn a_hint_about_a_node_that_has_just_fallen_silent_is_not_followed() {
    let mut world = World::new(&["x:9"], Goal::Timestamps(1));
    world.reply(led_by("a:1"));
    assert_eq!(world.lose(), "a:1");
    // Node a:1 did not answer. The other node still names it as the leader. The client does not
    // follow that hint: it asks every address in turn.
    for _ in 0..2 {
        let (addr, path) = world.asked();
        assert_eq!(path, "/members");
        if addr != "a:1" {
            world.reply_again(&addr, &path, led_by("a:1"));
            assert_eq!(world.asked().1, "/members", "{addr} knows no better yet");
        }
    }
    // When a:1 itself says that it leads, the client believes it at once.
    world.reply_again("a:1", "/members", led_by("a:1"));
    world.now += BACKOFF_MAX;
    world.reply_from("a:1", ONE, stamped(range(5, 0, 1)));
    assert_eq!(world.end(), End::Timestamps(range(5, 0, 1)));
}

#[test]
fn a_range_at_the_deadline_is_not_returned_and_still_counts_for_the_order() {
    let mut world = World::new(&["b:2"], Goal::Timestamps(1));
    world.reply_from("b:2", "/members", led_by("b:2"));
    world.asked();
    world.now += SECOND;
    world.reply_again("b:2", ONE, stamped(range(5, 7, 1)));
    assert_eq!(world.end(), End::DeadlineExceeded(None));
    world.call_again(Goal::Timestamps(1));
    world.reply_from("b:2", ONE, stamped(range(5, 7, 1)));
    assert!(matches!(world.end(), End::WentBackwards { .. }));
}

#[test]
fn a_refusal_for_another_cluster_gives_the_clients_own_error() {
    let mut world = World::new(&["b:2"], Goal::Timestamps(1));
    world.reply_from("b:2", "/members", led_by("b:2"));
    world.reply_from("b:2", ONE, refusal(ErrorCode::WrongCluster, None));
    let End::AnotherCluster(error) = world.end() else { panic!("it is of another cluster") };
    assert_eq!((error.addr.as_str(), error.expected.as_str()), ("b:2", CLUSTER));
    assert_eq!(error.found, "say why");
}
