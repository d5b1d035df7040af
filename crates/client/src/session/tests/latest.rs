//! Tests of calls for the latest timestamp.

use super::*;

#[test]
fn callers_that_want_the_latest_timestamp_share_requests_and_take_none() {
    let (mut world, link) = World::serving();
    let readers = [LATEST, LATEST].map(|count| world.call(count));
    let request = world.asked(link);
    assert_eq!(request, Request::latest(request.id));
    let late = world.call(LATEST);
    let second = world.asked(link);
    // It may be what the client had returned before: index 0.
    world.answer(link, request, 0);
    assert_eq!(
        readers.map(|call| world.outcome(call)),
        [0; 2].map(|index| Some(Ok(range(index, 1))))
    );
    assert_eq!(world.outcome(late), None, "it came after the request was sent");
    world.answer(link, second, 7);
    assert_eq!(world.outcome(late), Some(Ok(range(7, 1))));
    // With timestamps in the same request, the latest one is the last of them.
    let mixed = [LATEST, 2, LATEST, 3].map(|count| world.call(count));
    let request = world.asked(link);
    assert_eq!(request.count(), 5);
    world.answer(link, request, 10);
    let got = mixed.map(|call| world.outcome(call));
    let own = [range(14, 1), range(10, 2), range(14, 1), range(12, 3)];
    assert_eq!(got, own.map(|range| Some(Ok(range))));
}

#[test]
fn the_latest_timestamp_is_never_below_and_a_later_timestamp_always_above_what_was_returned() {
    for (count, index, is_right) in
        [(LATEST, 9, false), (LATEST, 10, true), (1, 10, false), (1, 11, true)]
    {
        let (mut world, link) = World::serving();
        let reader = world.call(LATEST);
        let request = world.asked(link);
        world.answer(link, request, 10);
        assert_eq!(world.outcome(reader), Some(Ok(range(10, 1))));
        let call = world.call(count);
        let request = world.asked(link);
        world.answer(link, request, index);
        match world.outcome(call) {
            Some(Ok(got)) if is_right => assert_eq!(got, range(index, 1)),
            Some(Err(TimestampsError::WentBackwards { .. })) if !is_right => {}
            got => panic!("{count} at {index}: {got:?}"),
        }
    }
}

#[test]
fn the_latest_timestamp_is_not_taken_for_a_timestamp_of_the_caller_or_the_other_way_round() {
    for count in [LATEST, 1] {
        let (mut world, link) = World::serving();
        let call = world.call(count);
        let Request { id, .. } = world.asked(link);
        let wrong =
            if count == LATEST { Request::new(id, 1).unwrap() } else { Request::latest(id) };
        world.answer(link, wrong, 10);
        let got = world.outcome(call);
        assert!(matches!(got, Some(Err(TimestampsError::BadAnswer(_)))), "{count}: {got:?}");
    }
}

#[test]
fn a_node_that_is_too_old_for_the_latest_timestamp_is_asked_for_one_that_nobody_else_gets() {
    let mut world = World::new(None);
    world.features = 0;
    let link = world.warm_up();
    let readers = [LATEST, LATEST].map(|count| world.call(count));
    let request = world.asked(link);
    assert_eq!(request.count(), 1);
    world.answer(link, request, 5);
    assert_eq!(
        readers.map(|call| world.outcome(call)),
        [5; 2].map(|index| Some(Ok(range(index, 1))))
    );
    let writer = world.call(1);
    let request = world.asked(link);
    world.answer(link, request, 6);
    assert_eq!(world.outcome(writer), Some(Ok(range(6, 1))));
}
