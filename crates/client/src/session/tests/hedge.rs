//! Tests of requests that are sent a second time, over a second connection.

use super::*;

/// Makes the session send one request over both connections. Returns the call, the request and its
/// copy.
fn asked_twice(world: &mut World, first: LinkId, second: LinkId) -> (usize, Request, Request) {
    let call = world.call(1);
    let request = world.asked(first);
    assert_eq!(world.all_asked(second), [], "it is too early for a copy");
    world.pass(AFTER);
    let copy = world.asked(second);
    assert_eq!(copy, request);
    assert_eq!(world.all_asked(second), [], "one copy is enough");
    (call, request, copy)
}

#[test]
fn the_second_answer_of_a_hedged_request_goes_to_no_caller() {
    for is_hedge_first in [false, true] {
        let (mut world, first, second) = World::hedging();
        let (call, request, copy) = asked_twice(&mut world, first, second);
        // Two calls wait when the second answer arrives: `sent`, whose request was sent already,
        // and `open`. No call gets the timestamps of that second answer.
        world.pass(AFTER / 4);
        let sent = world.call(1);
        let next = world.asked(first);
        let open = world.call(1);
        if is_hedge_first {
            world.answer(second, copy, 10);
            assert_eq!(world.outcome(call), Some(Ok(range(10, 1))));
            world.answer(first, request, 20);
        } else {
            world.answer(first, request, 10);
            assert_eq!(world.outcome(call), Some(Ok(range(10, 1))));
            world.answer(second, copy, 20);
        }
        assert_eq!((world.outcome(sent), world.outcome(open)), (None, None));
        let last = world.asked(first);
        // No call got the second answer, with index 20. So later answers below 20 are valid.
        world.answer(first, next, 12);
        world.answer(first, last, 13);
        assert_eq!(world.outcome(sent), Some(Ok(range(12, 1))));
        assert_eq!(world.outcome(open), Some(Ok(range(13, 1))));
        assert_eq!(world.closed, [], "neither connection is left");
    }
}

#[test]
fn a_reply_of_a_second_connection_that_was_left_is_not_taken_for_its_successors() {
    let (mut world, first, old) = World::hedging();
    let (call, request, copy) = asked_twice(&mut world, first, old);
    world.session.handle_closed(old, &"reset", world.now);
    world.turn();
    world.pass(ATTEMPT / 8);
    let new = world.opened("a:1", 1, 1);
    // Another call gets index 30 before the first request is copied again, over the new second
    // connection. So the answer to the new copy must be above 30.
    let quick = world.call(1);
    let other = world.asked(first);
    world.answer(first, other, 30);
    assert_eq!(world.outcome(quick), Some(Ok(range(30, 1))));
    assert_eq!(world.asked(new), request);
    world.answer(old, copy, 20);
    assert_eq!(world.outcome(call), None);
    world.answer(new, request, 31);
    assert_eq!(world.outcome(call), Some(Ok(range(31, 1))));
}

#[test]
fn a_copy_asks_for_the_latest_timestamp_as_far_as_its_own_node_can_say() {
    for (first_features, second_features) in [(FEATURE_LATEST, 0), (0, FEATURE_LATEST)] {
        for is_hedged in [false, true] {
            let mut world = World::new(Some(AFTER));
            world.features = first_features;
            let first = world.warm_up();
            world.features = second_features;
            let second = world.opened("a:1", 1, 1);
            let call = world.call(LATEST);
            let request = world.asked(first);
            world.pass(AFTER);
            let copy = world.asked(second);
            assert_eq!(request.count(), 1 - first_features);
            assert_eq!((copy.id, copy.count()), (request.id, 1 - second_features));
            let (link, asked) = if is_hedged { (second, copy) } else { (first, request) };
            world.answer(link, asked, 4);
            assert_eq!(world.outcome(call), Some(Ok(range(4, 1))));
            let (link, asked) = if is_hedged { (first, request) } else { (second, copy) };
            world.answer(link, asked, 3);
            assert_eq!(world.closed, [], "the other answer is valid, too");
        }
    }
}

#[test]
fn callers_of_a_refused_request_do_not_get_the_answer_to_its_copy() {
    let (mut world, first, second) = World::hedging();
    let (call, request, copy) = asked_twice(&mut world, first, second);
    world.refuse(first, request, ErrorCode::Overloaded);
    world.pass(Duration::from_millis(45));
    // The call `late` shares the repeated request. It was made after the copy was sent, so it must
    // not get the answer to the copy.
    let late = world.call(1);
    let again = world.asked(first);
    assert_eq!((again.count(), again.id == request.id), (2, false));
    world.answer(second, copy, 10);
    assert_eq!((world.outcome(call), world.outcome(late)), (None, None));
    world.answer(first, again, 20);
    let got = [call, late].map(|call| world.outcome(call));
    assert_eq!(got, [range(20, 1), range(21, 1)].map(|range| Some(Ok(range))));
}

#[test]
fn another_leader_that_answers_the_hedge_is_moved_to() {
    let (mut world, first, second) = World::hedging();
    let call = world.call(1);
    world.asked(first);
    // The leader does not answer the copy, either. So the second connection goes to the next node.
    world.pass(AFTER);
    world.asked(second);
    world.pass(ATTEMPT / 8);
    let (link, addr) = world.opening.back().cloned().expect("another node is tried");
    assert!(link.is_hedge() && addr == "b:2", "{addr}");
    world.opening.clear();
    world.opening.push_back((link, addr));
    let second = world.opened("b:2", 2, 2);
    let copy = world.asked(second);
    world.answer(second, copy, 10);
    assert_eq!(world.outcome(call), Some(Ok(range(10, 1))));
    assert!(world.closed.contains(&first) && world.closed.contains(&second));
    let later = world.call(1);
    let first = world.opened("b:2", 2, 2);
    let request = world.asked(first);
    world.answer(first, request, 20);
    assert_eq!(world.outcome(later), Some(Ok(range(20, 1))));
}

#[test]
fn a_leader_that_answers_only_over_the_second_connection_is_asked_again_first() {
    let (mut world, first, second) = World::hedging();
    let call = world.call(1);
    world.asked(first);
    world.pass(AFTER);
    let copy = world.asked(second);
    world.answer(second, copy, 10);
    assert_eq!(world.outcome(call), Some(Ok(range(10, 1))));
    world.pass(ATTEMPT);
    assert!(world.closed.contains(&first), "it has not answered in time");
    world.call(1);
    let addr = world.opening.pop_front().expect("a connection is wanted").1;
    assert_eq!(addr, "a:1", "it is not suspected");
}

#[test]
fn a_request_is_copied_once_and_only_if_the_node_accepts_its_count() {
    for (count, is_copied) in [(1, true), (2, true), (3, false)] {
        let mut world = World::new(Some(AFTER));
        let first = world.warm_up();
        world.count_max = 2;
        let second = world.opened("a:1", 1, 1);
        world.call(count);
        world.asked(first);
        world.pass(AFTER);
        assert_eq!(world.all_asked(second).len(), usize::from(is_copied), "{count}");
        world.pass(AFTER / 2);
        assert_eq!(world.all_asked(second), [], "{count}");
    }
}

#[test]
fn the_second_connection_goes_from_node_to_node_until_one_leads() {
    let mut world = World::of(&["a:1", "b:2"], Some(AFTER));
    world.warm_up();
    let mut tried = Vec::new();
    for _ in 0..5 {
        let (link, addr) = world.opening.pop_front().expect("a second connection is wanted");
        tried.push(addr);
        let failed = FailedAttempt::lost("x", &"reset");
        world.session.handle_opened(link, Err(failed.into()), world.now);
        world.pass(ATTEMPT / 8);
    }
    assert_eq!(tried, ["a:1", "b:2", "b:2", "b:2", "b:2"], "the leader is tried once");
    // A node that names another leader is left at once, and that leader is tried next.
    let follower = world.opened("b:2", 2, 3);
    assert!(world.closed.contains(&follower));
    world.pass(ATTEMPT / 8);
    let next = &world.opening.front().expect("a second connection is wanted").1;
    assert_eq!(next, "c:3");
}

#[test]
fn a_second_connection_is_left_only_for_a_reason_and_the_first_stays() {
    for (bytes, waiting, is_left) in [
        (goodbye(), 0, true),
        (ping(7), 0, false),
        (pong(7), 0, false),
        (ping(7), OUT_LEN_MAX, true),
    ] {
        let (mut world, _, second) = World::hedging();
        let mut out = vec![0; waiting];
        world.session.handle_received(second, &bytes, world.now, &mut out);
        world.turn();
        assert_eq!(world.closed, vec![second; usize::from(is_left)], "{bytes:?}");
    }
}

#[test]
fn a_refusal_of_a_copy_names_who_is_tried_next_and_spares_the_other_copies() {
    let (mut world, first, second) = World::hedging();
    let calls @ [(_, refused), (_, answered)] = [1, 2].map(|count| {
        let call = world.call(count);
        (call, world.asked(first))
    });
    world.pass(AFTER);
    assert_eq!(world.all_asked(second), [refused, answered]);
    let code = ErrorCode::NotLeader as u16;
    let mut bytes = Vec::new();
    ErrorFrame { code, closes: false, id: refused.id, text: "c:3" }.encode(&mut bytes);
    bytes.extend(answered.answer(stamp(10)));
    world.receive(second, &bytes);
    let outcomes = calls.map(|(call, _)| world.outcome(call));
    assert_eq!(outcomes, [None, Some(Ok(range(10, 2)))]);
    assert_eq!(world.closed, [second]);
    world.pass(ATTEMPT / 8);
    assert_eq!(world.opening.front().expect("a second connection is wanted").1, "c:3");
}

#[test]
fn a_second_connection_to_another_cluster_fails_the_calls() {
    let mut world = World::new(Some(AFTER));
    world.warm_up();
    let call = world.call(1);
    let (link, _) = world.opening.pop_front().expect("a second connection is wanted");
    let refusal = OpenError::AnotherCluster("its name is \"other\"".to_owned());
    world.session.handle_opened(link, Err(refusal), world.now);
    world.turn();
    let outcome = world.outcome(call);
    assert!(matches!(outcome, Some(Err(TimestampsError::AnotherCluster(_)))), "{outcome:?}");
}
