"""Traces of `raft_log.py`. In the good trace every action happens: one leader follows another while
members change. Besides, there is a mutant for each rule."""

from __future__ import annotations

import itertools

from logic import Concrete, Mutant
from raft_log import (
    SPEC, append, apply_change, begin_round, campaign, commit, crash, install, learn, own_ack, replicate, report, vote,
    win,
)  # fmt: skip

# Entries by name: term, index, and the voters if the entry makes a configuration.
PLAIN = {"root": (0, 0, (1, 2, 3)), "a": (1, 1), "a2": (1, 2), "b": (2, 3), "c": (2, 2), "d": (1, 1), "g": (4, 3)}
# The first voters are 1 and 2. The entry D adds 3, and E removes 1.
GROWS = {"root": (0, 0, (1, 2)), "D": (1, 1, (1, 2, 3)), "E": (2, 2, (2,)), "x": (5, 9), "y": (4, 8), "z": (2, 9)}
# The members change from node 1 alone to nodes 1 and 2, then to node 2 alone.
MOVES = {
    "root": (0, 0, (1,)),
    "D": (1, 1, (1, 2)),
    "F": (1, 2, (2,)),
    "x": (3, 9),
    "y": (2, 8),
    "v": (1, 8),
    "u": (2, 9),
}


def is_majority(q: frozenset, voters: tuple) -> bool:
    return q <= set(voters) and 2 * len(q) > len(voters)


def concrete(fixed: dict, broken=()) -> Concrete:
    entries = fixed.get("entries", PLAIN)
    nodes = list(range(1, fixed.get("nodes", 3) + 1))
    voters = lambda x: entries[x][2] if len(entries[x]) > 2 else ()
    subsets = [frozenset(c) for size in nodes for c in itertools.combinations(nodes, size)]
    chosen = fixed.get("quorums")
    domain = {
        "Node": nodes,
        "Quorum": [frozenset(q) for q in chosen] if chosen else subsets,
        "Term": list(range(7)),
        "Entry": list(entries),
        "Index": list(range(10)),
    }
    what = {
        "root": "root",
        "member": lambda n, q: n in q,
        "le_term": lambda a, b: a <= b,
        "le_index": lambda a, b: a <= b,
        "term_of": lambda x: entries[x][0],
        "index": lambda x: entries[x][1],
        "is_change": lambda x: len(entries[x]) > 2,
        "quorum_of": lambda q, x: bool(voters(x)) and (bool(chosen) or is_majority(q, voters(x))),
        "start": {
            "created": lambda x: x == "root",
            "upto": lambda x, y: x == y,
            "log": lambda n, x: x == "root",
            "knows": lambda n, x: x == "root",
            "config": lambda n, x: x == "root",
            "reached": lambda n, t: t == 0,
        },
    }
    return Concrete(SPEC, domain, what, broken)


def elect(c: int, t: int, h: str, config: str, **votes: str) -> list:
    """The steps in which c, whose log ends with h, wins by its own vote and others. A parameter
    such as `n3="a"` is a vote of node 3, whose log ends with the entry a."""
    others = {int(name[1]): end for name, end in votes.items()}
    q = frozenset([c, *others])
    return [
        (campaign, c, t, h, config),
        (vote, c, t, c, h, h),
        *((vote, n, t, c, h, end) for n, end in others.items()),
        (win, c, t, h, config, q),
    ]


def commits(c: int, t: int, x: str, h: str, config: str, n: int = 0, known: str = "root") -> list:
    """The steps in which c appends x after h, and both c and n acknowledge x."""
    follower = [(replicate, n, t, x, known)] if n else []
    return [
        (append, c, t, x, h, config),
        *follower,
        (own_ack, c, t, x),
        (commit, c, t, x, frozenset((c, n) if n else (c,)), config),
    ]


Q1, Q2, Q13, Q23 = (frozenset(q) for q in ((1,), (2,), (1, 3), (2, 3)))
FIRST = elect(1, 1, "root", "root", n2="root") + commits(1, 1, "a", "root", "root", 2)
THIRD = elect(3, 2, "root", "root", n2="root") + commits(3, 2, "c", "root", "root", 2)

GOOD_ENTRIES = {"root": (0, 0, (1, 2)), "a": (1, 1), "D": (1, 2, (1, 2, 3)), "b": (2, 3), "E": (2, 4, (1, 3)), "c": (4, 5)}
GOOD = (
    FIRST
    + commits(1, 1, "D", "a", "root", 2, "a")
    + [(apply_change, 1, "D", "root"), (install, 3, 1, "D", "D"), (begin_round, 1, Q13, "D")]
    + [(crash, 2, "D", "a", "root"), (learn, 2, "D", 1), (replicate, 2, 1, "D", "D"), (apply_change, 2, "D", "root")]
    + elect(3, 2, "D", "D", n2="D")
    + [(begin_round, 1, Q13, "D")]
    + commits(3, 2, "b", "D", "D", 1, "D")
    + [(report, 3, 2, "b")]
    # The leader of term 4 commits E. Node 2 has only reached term 2 when it learns that, and campaigns without hope.
    + [(append, 3, 2, "E", "b", "D"), (replicate, 2, 2, "E", "b")]
    + elect(3, 4, "E", "D", n1="b")
    + commits(3, 4, "c", "E", "D", 1, "b")
    + [(learn, 2, "E", 4), (apply_change, 2, "E", "D"), (campaign, 2, 3, "E", "E"), (vote, 2, 3, 2, "E", "E")]
)

# Leader 1 adds node 2 as a voter, then removes itself, and knows that both changes are committed.
MOVED = (
    elect(1, 1, "root", "root")
    + commits(1, 1, "D", "root", "root")
    + [(apply_change, 1, "D", "root")]
    + commits(1, 1, "F", "D", "D", 2, "D")
)
# Node 2 leads alone, in term 2.
ALONE = [(replicate, 2, 1, "F", "F"), (apply_change, 2, "D", "root"), (apply_change, 2, "F", "D")] + elect(
    2, 2, "F", "F"
)
ANSWERS = commits(2, 2, "y", "F", "F")
BACK = elect(1, 3, "F", "root") + commits(1, 3, "x", "F", "root")


def moves(rules: str, trace: list, **fixed) -> Mutant:
    return Mutant(rules, trace, {"entries": MOVES, **fixed})


def grows(rules: str, trace: list, **fixed) -> Mutant:
    return Mutant(rules, trace, {"entries": GROWS, **fixed})


MUTANTS = [
    # The log.
    Mutant("two-votes", FIRST[:4] + elect(3, 1, "root", "root", n2="root")),
    Mutant(
        "new-term",
        FIRST[:4] + [(append, 1, 1, "a", "root", "root"), *((replicate, n, 1, "a", "root") for n in (2, 3))]
        + [(commit, 1, 1, "a", Q23, "root"), (crash, 1, "root", "root", "root"), (campaign, 1, 1, "root", "root")]
        + [(win, 1, 1, "root", "root", frozenset((1, 2)))] + commits(1, 1, "d", "root", "root", 2),
    ),
    Mutant("vote-for-log-behind", FIRST + elect(3, 2, "root", "root", n2="a") + commits(3, 2, "c", "root", "root", 2)),
    Mutant("early-ack", FIRST + [(crash, 2, "root", "root", "root")] + THIRD),
    Mutant("ack-in-old-term", FIRST[:-3] + THIRD[:-4] + FIRST[-3:] + THIRD[-4:]),
    Mutant(
        "counts-old-terms",
        FIRST[:4] + [(append, 1, 1, "a", "root", "root")] + elect(3, 2, "root", "root", n2="root")
        + [(append, 3, 2, "c", "root", "root")] + elect(1, 3, "a", "root", n2="root")
        + [(replicate, 2, 3, "a", "root"), (own_ack, 1, 3, "a"), (commit, 1, 3, "a", frozenset((1, 2)), "root")]
        + elect(3, 4, "c", "root", n2="a") + commits(3, 4, "g", "c", "root", 2),
    ),
    Mutant(
        "elected-without-quorum",
        FIRST + [step for step in elect(3, 2, "root", "root", n2="a") if step[:2] != (vote, 2)]
        + commits(3, 2, "c", "root", "root", 2),
    ),
    Mutant("committed-without-quorum", [step for step in FIRST if step[0] is not replicate] + THIRD),
    Mutant(
        "cuts-always",
        FIRST[:4] + [(append, 1, 1, "a", "root", "root")] + commits(1, 1, "a2", "a", "root", 2)
        + [(replicate, 2, 1, "a", "root"), (replicate, 3, 1, "a", "root")]
        + elect(3, 2, "a", "root", n2="a") + commits(3, 2, "b", "a", "root", 2),
    ),
    Mutant(
        "disjoint-quorums",
        FIRST + elect(3, 2, "root", "root") + commits(3, 2, "c", "root", "root"),
        {"quorums": ((1, 2), (3,))},
    ),
    Mutant(
        "barrier-uncommitted",
        FIRST + elect(2, 2, "a", "root", n3="root")
        + [(append, 1, 1, "a2", "a", "root"), (report, 1, 1, "a2")],
    ),
    Mutant(
        "barrier-of-another-term",
        FIRST[:4] + elect(3, 2, "root", "root", n2="root") + [(append, 1, 1, "a", "root", "root")]
        + elect(1, 3, "a", "root", n2="root") + commits(1, 3, "e", "a", "root", 2) + [(report, 1, 3, "a")],
        {"entries": {**PLAIN, "e": (3, 4)}},
    ),
    # Members.
    moves("elected-under-another-configuration", MOVED + [(apply_change, 1, "F", "D")] + ALONE + ANSWERS
          + elect(1, 3, "F", "F")[:2] + [(win, 1, 3, "F", "root", Q1), (begin_round, 2, Q2, "F")]),
    moves("counted-in-another-configuration", MOVED + [(apply_change, 1, "F", "D")] + ALONE + ANSWERS
          + commits(1, 1, "v", "F", "F")[:-1] + [(commit, 1, 1, "v", Q1, "root")]),
    moves("old-voters", MOVED + [(apply_change, 1, "F", "D")] + ALONE + [(begin_round, 1, Q1, "root")]),
    moves("late-voters", MOVED + [(apply_change, 1, "F", "D")] + ALONE + [(begin_round, 1, Q1, "root")]),
    moves("unapplied-change", MOVED + ALONE + ANSWERS + [(crash, 1, "F", "F", "root")] + BACK),
    moves("commit-forgotten", MOVED + ALONE + ANSWERS + [(crash, 1, "F", "root", "root")] + BACK),
    moves(
        "append-without-commit",
        [(campaign, 2, 1, "root", "root"), (vote, 1, 1, 2, "root", "root"), (win, 2, 1, "root", "root", Q1)]
        + [(append, 2, 1, "D", "root", "root"), (replicate, 1, 1, "D", "root")]
        + [(commit, 2, 1, "D", Q1, "root"), (apply_change, 2, "D", "root")]
        + commits(2, 1, "F", "D", "D", 1, "root") + [(apply_change, 2, "F", "D")] + commits(2, 1, "v", "F", "F") + BACK,
    ),
    moves("snapshot-without-configuration unapplied-change", MOVED + ALONE + ANSWERS
          + [(crash, 1, "F", "F", "root"), (install, 1, 2, "F", "root")] + BACK),
    moves("snapshot-goes-back unapplied-change", MOVED + [(apply_change, 1, "F", "D")] + ALONE + ANSWERS
          + [(install, 1, 2, "root", "root")] + BACK),
    grows(
        "two-changes",
        elect(1, 1, "root", "root", n2="root")
        + [(append, 1, 1, "D", "root", "root"), (append, 1, 1, "G", "D", "root"), (replicate, 2, 1, "D", "root")]
        + [(own_ack, 1, 1, "G"), (commit, 1, 1, "D", frozenset((1, 2)), "root"), (replicate, 2, 1, "G", "D")]
        + [(commit, 1, 1, "G", frozenset((1, 2)), "root"), (replicate, 2, 1, "G", "G")]
        + [(apply_change, 2, "D", "root"), (apply_change, 2, "G", "D"), (apply_change, 1, "D", "root")]
        + elect(2, 2, "G", "G") + commits(2, 2, "z", "G", "G")
        + [(append, 1, 1, "v", "G", "D"), (replicate, 3, 1, "v", "G"), (own_ack, 1, 1, "v")]
        + [(commit, 1, 1, "v", Q13, "D")],
        entries={**GROWS, "G": (1, 2, (2,)), "v": (1, 8)},
    ),
    Mutant(
        "unsafe-change",
        elect(3, 1, "root", "root", n2="root") + commits(3, 1, "U", "root", "root", 2)
        + [(apply_change, 3, "U", "root")]
        + elect(2, 2, "U", "root", n1="root") + commits(2, 2, "y", "U", "root", 1) + commits(3, 1, "x", "U", "U"),
        {"entries": {"root": (0, 0, (1, 2, 3)), "U": (1, 1, (3,)), "y": (2, 2), "x": (1, 2)}},
    ),
    grows(
        "applies-uncommitted",
        elect(1, 1, "root", "root", n2="root")
        + [(append, 1, 1, "D", "root", "root"), (replicate, 3, 1, "D", "root"), (apply_change, 3, "D", "root")]
        + [(crash, 1, "root", "root", "root")] + elect(2, 2, "root", "root", n1="root")
        + [(append, 2, 2, "E", "root", "root"), (apply_change, 2, "E", "root"), (own_ack, 2, 2, "E")]
        + commits(2, 2, "z", "E", "E")
        + elect(3, 5, "D", "D", n1="root") + commits(3, 5, "x", "D", "D", 1),
    ),
    grows(
        "snapshot-of-uncommitted",
        elect(1, 1, "root", "root", n2="root") + [(append, 1, 1, "D", "root", "root"), (install, 3, 1, "D", "D")]
        + [(crash, 1, "root", "root", "root")] + elect(2, 2, "root", "root", n1="root")
        + [(append, 2, 2, "E", "root", "root"), (install, 4, 2, "E", "E")]
        + [(campaign, 4, 4, "E", "E"), (vote, 2, 4, 4, "E", "E"), (win, 4, 4, "E", "E", Q2)]
        + [(append, 4, 4, "y", "E", "E"), (replicate, 2, 4, "y", "E"), (commit, 4, 4, "y", Q2, "E")]
        + elect(3, 5, "D", "D", n1="root") + commits(3, 5, "x", "D", "D", 1),
        nodes=4,
    ),
    # The leader of term 2 does not have x. The leader of term 3 has it from the leader of term 1, and commits it.
    Mutant(
        "learns-while-leading",
        FIRST[:4] + elect(2, 2, "root", "root", n3="root")[:-1] + [(win, 2, 2, "root", "root", Q23)]
        + [(append, 1, 1, "a", "root", "root"), (replicate, 4, 1, "a", "root")]
        + [(campaign, 4, 3, "a", "root"), (vote, 2, 3, 4, "a", "root"), (vote, 3, 3, 4, "a", "root")]
        + [(win, 4, 3, "a", "root", Q23), (append, 4, 3, "g", "a", "root")]
        + [(replicate, n, 3, "g", "root") for n in (2, 3)] + [(commit, 4, 3, "g", Q23, "root")]
        + [(learn, 1, "a", 3), (report, 1, 1, "a")],
        {"entries": {**PLAIN, "g": (3, 3)}, "nodes": 4},
    ),
    grows(
        "learns-uncommitted",
        elect(1, 1, "root", "root", n2="root") + [(append, 1, 1, "D", "root", "root"), (replicate, 3, 1, "D", "root")]
        + [(learn, 3, "D", 1), (apply_change, 3, "D", "root"), (crash, 1, "root", "root", "root")]
        + elect(2, 2, "root", "root", n1="root")
        + [(append, 2, 2, "E", "root", "root"), (replicate, 4, 2, "E", "root")]
        + [(learn, 4, "E", 2), (apply_change, 4, "E", "root")]
        + [(campaign, 4, 4, "E", "E"), (vote, 2, 4, 4, "E", "E"), (win, 4, 4, "E", "E", Q2)]
        + [(append, 4, 4, "y", "E", "E"), (replicate, 2, 4, "y", "E"), (commit, 4, 4, "y", Q2, "E")]
        + elect(3, 5, "D", "D", n1="root") + commits(3, 5, "x", "D", "D", 1),
        nodes=4,
    ),
]  # fmt: skip

# Rules that another rule backs up: if one of them alone is broken, the proof fails, but no trace
# ends in a wrong answer.
SECOND_LOCKS = ["vote-in-old-term", "cuts-committed", "campaigns-on"]
