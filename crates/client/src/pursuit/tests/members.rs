//! Tests of what a call learns from lists of members, and from whom.

use super::*;

/// A node's address may be wrong, and the client must then still find its own cluster.
#[test]
fn a_node_of_another_name_does_not_fix_the_cluster() {
    let named = |cluster: &str, name: &str| {
        let json = format!(
            r#"{{"leader":{{"nodeID":2,"addr":"b:2"}},"members":[{{"nodeID":2,"addr":"b:2"}}],
                "clusterName":"{name}"}}"#
        );
        Given { cluster: Some(cluster.into()), ..answer(200, json) }
    };
    let foreign = |answer| Given { cluster: Some(OTHER.into()), ..answer };
    let mut world = World::new(&["x:9"], Goal::Timestamps(1));
    world.directory = Directory::new(vec!["x:9".to_owned()], 1).expecting(Some("mine".to_owned()));
    // A refusal does not say the name of the cluster.
    world.reply(foreign(refusal(ErrorCode::NotReady, None)));
    world.reply(named(OTHER, "yours"));
    let end = world.end();
    assert!(matches!(&end, End::AnotherCluster(e) if e.found == "\"yours\""), "{end:?}");
    world.call_again(Goal::Timestamps(1));
    world.reply(named(CLUSTER, "mine")).reply_from("b:2", ONE, stamped(range(5, 0, 1)));
    assert_eq!(world.end(), End::Timestamps(range(5, 0, 1)));
    // Now the cluster is fixed.
    world.call_again(Goal::Timestamps(1));
    world.reply(foreign(stamped(range(6, 0, 1))));
    let end = world.end();
    assert!(matches!(&end, End::AnotherCluster(e) if e.expected == CLUSTER), "{end:?}");
}

#[test]
fn a_node_that_has_not_joined_is_passed_over_and_does_not_empty_the_member_list() {
    let unborn =
        Given { cluster: Some(NONE.into()), ..answer(200, r#"{"leader":null,"members":[]}"#) };
    let mut world = World::new(&["x:9"], Goal::Timestamps(1));
    world.reply(led_by("a:1"));
    assert_eq!(world.lose(), "a:1");
    let known = world.directory.nearest();
    assert_eq!(known, ["x:9", "a:1", "b:2"]);
    for answer in [unborn, answer(200, r#"{"leader":null,"members":[]}"#)] {
        let joined = answer.cluster.as_deref() != Some(NONE);
        let (addr, path) = world.asked();
        world.reply_again(&addr, &path, answer);
        assert_eq!(world.directory.nearest(), known);
        let last = world.pursuit.failed_attempts.last();
        let not_ready = FailedAttempt::Refused { addr: addr.clone(), code: ErrorCode::NotReady };
        let leaderless = FailedAttempt::NoLeader { addr };
        assert_eq!(last, Some(if joined { leaderless } else { not_ready }));
    }
}

/// The leader stays for years, while all other members are replaced.
#[test]
fn the_members_are_read_again_also_while_calls_succeed() {
    const EVERY: Duration = Duration::from_secs(30);
    let call_again = |world: &mut World, after: Duration| {
        world.now += after;
        world.call_again(Goal::Timestamps(1));
        let calls = std::mem::replace(
            &mut world.pursuit,
            Pursuit::new(&world.directory, Goal::Members, world.now, SECOND),
        );
        world.pursuit = calls.refreshing_after(EVERY);
    };
    let mut world = World::new(&["x:9"], Goal::Timestamps(1));
    world.reply_from("x:9", "/members", led_by("a:1"));
    world.reply_from("a:1", ONE, stamped(range(5, 0, 1)));
    call_again(&mut world, EVERY / 2);
    world.reply_from("a:1", ONE, stamped(range(5, 1, 1)));
    call_again(&mut world, EVERY / 2);
    let new = r#"{"leader":null,"members":[{"nodeID":1,"addr":"a:1"},{"nodeID":3,"addr":"c:3"}]}"#;
    world.reply_from("a:1", "/members", answer(200, new));
    // The leader answers, so it stays the leader, whatever the list says.
    world.reply_from("a:1", ONE, stamped(range(5, 2, 1)));
    assert_eq!(world.directory.nearest(), ["x:9", "a:1", "c:3"]);
    // A leader that is silent then is not asked a second time: the call searches for another one.
    call_again(&mut world, EVERY);
    assert_eq!(world.asked(), ("a:1".to_owned(), "/members".to_owned()));
    let silent = FailedAttempt::Silent { addr: "a:1".to_owned() };
    let now = world.now;
    world.pursuit.handle_outcome(&mut world.directory, "a:1", "/members", Err(silent), now);
    let (other, path) = world.asked();
    assert_ne!(other, "a:1");
    world.reply_again(&other, &path, led_by("c:3"));
    world.reply_from("c:3", ONE, stamped(range(5, 3, 1)));
    assert_eq!(world.end(), End::Timestamps(range(5, 3, 1)));
    call_again(&mut world, EVERY / 2);
    world.reply_from("c:3", ONE, stamped(range(5, 4, 1)));
    // Without a list, the call asks the leader all the same.
    for bad in [answer(200, "<html>"), refusal(ErrorCode::Forbidden, None), list("null")] {
        call_again(&mut world, EVERY);
        world.reply_from("c:3", "/members", bad);
        assert_eq!(world.asked(), ("c:3".to_owned(), ONE.to_owned()));
    }
    // Another cluster is not hidden.
    call_again(&mut world, EVERY);
    world.reply(Given { cluster: Some(OTHER.into()), ..led_by("a:1") });
    assert!(matches!(world.end(), End::AnotherCluster(_)));
}
