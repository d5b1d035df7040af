//! Runs without a planted bug. No invariant is violated, a healed cluster answers, every kind of
//! fault occurs, and the same seed gives the same run.

use epicepoch_sim::run::{Options, run};
use epicepoch_sim::summary::Summary;

/// Seeds of the default generator. They take some ten seconds in a development build. Of any hundred
/// seeds, some miss a rare kind of fault, or meet a known gap of S11 more often than usual: if a
/// change of the simulator shifts what is drawn, choose others.
const FIRST: u64 = 1_000;
const SEEDS: u64 = 100;

/// The events that a hundred runs must include: every kind of fault, and every action of operators.
/// Kinds that a hundred runs may miss are left out, and so are those that `disks.rs` checks.
const KINDS: [&str; 88] = [
    // Processes.
    "consensus paused",
    "crash",
    "of these pauses, for up to a minute",
    "one worker paused",
    "power failure of all",
    "process paused",
    "restart at once",
    "told to stop",
    "workers paused",
    // Links.
    "borrowed link had ended",
    "bridge partition",
    "confirm link full",
    "confirm links broken",
    "confirm links full",
    "divided in a change",
    "far apart all along",
    "link broken",
    "link slow",
    "links cut",
    "mailbox full",
    "links of a node slow",
    "node cut off",
    "one-way cut",
    "snapshot lost",
    "split in two",
    // Disks.
    "disk bit flipped",
    "disk failing",
    "disk full",
    "disk rolled back",
    "disk slow",
    "disk stuck",
    "no room for a write",
    "rolled back: refused by a peer",
    "start refused: damaged disk",
    "sync failed",
    // Clocks.
    "clock creeping",
    "clock frozen",
    "clock stepped",
    "clocks of a machine creeping",
    "clocks wrong unseen by a majority",
    "started with a wrong clock",
    // Members and leaders.
    "founding missed",
    "handover asked",
    "handover to a better place",
    "joined with a member's state",
    "member removed",
    "membership change",
    "mistaken change",
    "node moved",
    "prudent change",
    "accepts failing",
    "handover where accepts fail",
    // Versions.
    "message of another version",
    "node downgraded",
    "node updated",
    "node updated after a refusal",
    "stopped: of a newer format",
    // The epoch.
    "advance back",
    "advance beyond a window",
    "advance far",
    "advance in a window",
    "advance too far",
    // Settings.
    "bound lowered",
    "bound raised",
    "interval raised",
    "interval shortened",
    "leader zones changed",
    "settings changed",
    "settings refused: old format",
    "settings refused: unknown zone",
    "settings taken in",
    "window raised",
    "window shortened",
    // Loss of all data.
    "backup of a stopped node",
    "backup taken",
    "message of an ended history",
    "restore refused: wrong clock",
    "restored from a backup",
    // Clients with sessions.
    "call answered",
    "call ended by its deadline",
    "range burnt",
    "request sent twice",
    // Checks that come after all nodes, or all but a minority, have healed.
    "clocks believed again",
    "cut off for good",
    "deaf for good",
    "disk stuck for good",
    "down for good",
    "worker without links for good",
];

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [1, 2, 3] {
        let silent = Options { seconds: 20, ..Options::new(seed) };
        let told = Options { trace_len: usize::MAX, ..silent };
        let (a, b, c) = (run(silent), run(told), run(told));
        assert_eq!((a.hash, a.summary.events), (b.hash, b.summary.events), "seed {seed}");
        assert_eq!(b.trace, c.trace, "seed {seed}, to the last line");
        assert!(b.trace.len() > 5_000, "a run of {} lines", b.trace.len());
    }
}

#[test]
fn another_seed_gives_another_run() {
    let hash = |seed| run(Options { seconds: 5, ..Options::new(seed) }).hash;
    assert_ne!(hash(1), hash(2));
}

#[test]
fn clusters_under_every_fault_keep_every_invariant_and_answer_when_healed() {
    let mut summary = Summary::default();
    for seed in FIRST..FIRST + SEEDS {
        let outcome = run(Options::new(seed));
        assert_eq!(outcome.failure, None, "seed {seed}: replay with epicepoch sim --seed {seed}");
        summary.add(&outcome.summary);
    }
    println!("{summary}");
    // The runs must be busy enough, because a run with few requests or faults proves little.
    let seconds = summary.simulated_ns / 1_000_000_000;
    assert!(summary.requests / seconds >= 100, "{} requests", summary.requests);
    assert!(
        summary.leader_changes_median() >= 3,
        "{} leader changes",
        summary.leader_changes_median()
    );
    assert!(summary.handed_back > 1_000, "{} answers over borrowed links", summary.handed_back);
    assert!(summary.handed_back_late > 100, "{} of them late", summary.handed_back_late);
    let missing: Vec<&str> =
        KINDS.into_iter().filter(|kind| !summary.faults.contains_key(kind)).collect();
    assert!(missing.is_empty(), "none of {missing:?} in {:?}", summary.faults);
    for kind in ["epoch advanced by an operator", "format raised", "settings", "snapshot installed"]
    {
        assert!(summary.reports.contains_key(kind), "{kind}: {:?}", summary.reports);
    }
    // If a leader meets a known gap of S11, S11 is not checked in the rest of the run, or not until
    // the gap closes. Such runs must stay rare. Otherwise a bug that leaves clocks uncompared could
    // hide in them.
    for gap in ["clock believed without a majority's", "clock guessed at a start, behind"] {
        let times = summary.faults.get(gap).copied();
        assert!(times.unwrap_or(0) <= SEEDS / 50, "{gap} in {times:?} runs");
    }
}

#[test]
fn clusters_of_one_to_five_and_of_seven_answer() {
    for nodes in [1, 2, 3, 4, 5, 7] {
        let mut summary = Summary::default();
        // Several seeds are run for each size, because a seed with many faults may have few
        // answers.
        for seed in 0..8 {
            let outcome = run(Options { seconds: 20, nodes: Some(nodes), ..Options::new(seed) });
            assert_eq!(outcome.failure, None, "{nodes} nodes, seed {seed}");
            summary.add(&outcome.summary);
        }
        assert!(summary.answered > 8 * 500, "{nodes} nodes: {summary}");
    }
}

/// In a long run some messages arrive minutes late; shorter runs have none.
#[test]
fn runs_of_ten_minutes_have_messages_that_are_minutes_old() {
    let mut old = 0;
    for seed in 0..4 {
        let outcome = run(Options { seconds: 600, ..Options::new(seed) });
        assert_eq!(outcome.failure, None, "seed {seed}, 600 seconds");
        old += outcome.summary.messages_old;
    }
    assert!(old > 0);
}
