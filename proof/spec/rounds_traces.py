"""Traces of `rounds.py` over three nodes. In the good trace every action happens and every answer
is right. Besides, there is a mutant for each rule."""

from __future__ import annotations

from logic import Concrete, Mutant
from rounds import (
    SPEC, advance, allocate, answer, arrive, ask_votes, assign, campaign, close, complete, count_vote, crash, give_back,
    join, pass_back, persist,
    propose, publish, raise_promise, read_grant, send_confirm, send_vote, show_latest, start, step_down, take_back,
    vote, win, withdraw,
)  # fmt: skip

# Ranges by name: term, owner, low and high end.
AB = {"A": (1, "1a", 0, 10), "B": (2, "2a", 10, 20), "E": (2, "2a", 20, 30), "C": (3, "1b", 18, 30)}


def concrete(fixed: dict, broken=()) -> Concrete:
    return Concrete(SPEC, *world(fixed), broken)


def world(fixed: dict) -> tuple[dict, dict]:
    """The things and the fixed functions of a world with the nodes 1, 2 and 3. `1a` and `1b` are two runs of node 1 on its data directory
    `s1`. `1w` is a run of node 1 after its directory was emptied, which makes it another directory,
    `w1`."""
    ranges = fixed.get("ranges", AB)
    pairs = fixed.get("quorums", (("s1", "s2"), ("s1", "s3"), ("s2", "s3")))
    domain = {
        "Id": [1, 2, 3],
        "Store": ["s1", "s2", "s3", "w1", "w3"],
        "Quorum": [frozenset(pair) for pair in pairs],
        "Term": [0, 1, 2, 3],
        "Run": ["1a", "1b", "1w", "2a", "3a", "3b", "3w"],
        "Range": list(ranges),
        "Round": ["1a.0", "1a.1", "1a.2", "1b.1", "1w.1", "2a.1", "2a.2", "3a.1"],
        "Req": ["p", "q", "r", "s", "t"],
        "Ts": fixed.get("ts", list(range(31))),
    }
    what = {
        "ts0": 0,
        "member": lambda n, q: n in q,
        "le_term": lambda a, b: a <= b,
        "le_ts": lambda a, b: a <= b,
        "id_of": lambda n: int(n[1]),
        "bound": lambda n: n[0] == "s",
        "store": lambda r: ("w" if r[1] == "w" else "s") + r[0],
        "run_of": lambda d: d[:2],
        "term_of": lambda x: ranges[x][0],
        "owner": lambda x: ranges[x][1],
        "low": lambda x: ranges[x][2],
        "high": lambda x: ranges[x][3],
        "reader": lambda q: q in "st",
    }
    return domain, what


def store(run: str) -> str:
    return ("w" if run[1] == "w" else "s") + run[0]


def ballot(r: str, t: int, candidate: str, without=(), voter: str = "") -> list:
    """The steps in which run r votes for the candidate, who counts the vote as that of `voter`."""
    steps = [
        (vote, r, t, candidate),
        (raise_promise, r, t),
        (persist, r, t),
        (send_vote, r, t, candidate),
        (count_vote, candidate, t, store(r), voter or store(r)),
    ]
    return [each for each in steps if each[0] not in without]


def elect(r: str, t: int, *others: str, without=()) -> list:
    """The steps in which r wins by its own vote and those of `others`. The others' steps leave out
    the actions `without`."""
    found = [(campaign, r, t), (persist, r, t), (ask_votes, r, t), *ballot(r, t, r)]
    for other in others:
        found += ballot(other, t, r, without)
    return [*found, (win, r, t, frozenset(store(o) for o in (r, *others)))]


def grant(r: str, *ranges: str) -> list:
    return [step for x in ranges for step in ((propose, x), (assign, x), (publish, r, x))]


def ask(d: str, x: str, t: int, *voters: str) -> list:
    return [(close, d), (read_grant, d, x, t), (send_confirm, d), *((answer, v, d, store(v)) for v in voters)]


def take(q: str, d: str, x: str, ts: int, *voters: str) -> list:
    return [(allocate, q, d, frozenset(store(v) for v in voters), x, ts), (complete, q)]


def serve(q: str, d: str, x: str, ts: int, t: int, *voters: str) -> list:
    """The steps of a request, from its arrival to its answer."""
    return [(arrive, q), (join, q, d), *ask(d, x, t, *voters), *take(q, d, x, ts, *voters)]


def look(q: str, d: str, x: str, ts: int, t: int, *voters: str) -> list:
    """The steps of a request for the latest timestamp, from its arrival to its answer."""
    shown = [(show_latest, q, d, frozenset(store(v) for v in voters), x, ts), (complete, q)]
    return [(arrive, q), (join, q, d), *ask(d, x, t, *voters), *shown]


START = [(start, "1a"), (start, "2a"), (start, "3a")]
FIRST = START + elect("1a", 1, "2a") + grant("1a", "A")
NEXT = elect("2a", 2, "3a") + grant("2a", "B")
NEWER = serve("p", "2a.1", "B", 12, 2, "2a", "3a")  # the newer leader answers, and the client receives the answer
STALE = serve("q", "1a.1", "A", 5, 1, "1a", "3a")  # the older leader answers a later request: wrong
AGAIN = [(crash, "3a"), (start, "3b")]
LATE = [(arrive, "q"), (join, "q", "1a.1")]

GOOD = (
    FIRST
    + serve("p", "1a.1", "A", 5, 1, "1a", "3a")
    + look("s", "1a.2", "A", 5, 1, "1a", "3a")
    + NEXT
    # Before the next leader's first timestamp, the latest one is at most the low end of its range.
    + look("t", "2a.2", "B", 10, 2, "2a", "3a")
    + serve("q", "2a.1", "B", 12, 2, "2a", "3a")
    + [(advance, "B", 15)]
    # The transfer after the first entry fails, so the leader reserves again. After the second one it succeeds.
    + [(withdraw, "2a"), (give_back, "2a", 2, 16), (pass_back, "2a", 2, 16)]
    + grant("2a", "E")
    + [(withdraw, "2a"), (give_back, "2a", 2, 18), (take_back, "2a", 2, 18)]
    + [(step_down, "1a"), (crash, "1a"), (start, "1b")]
    + elect("1b", 3, "3a")
    + grant("1b", "C")
    + serve("r", "1b.1", "C", 19, 3, "1b", "3a")
)
# The timestamps of the good trace. With fewer of them, the claims are checked faster.
GOOD_WORLD = {"ts": [0, 5, 10, 12, 15, 16, 18, 19, 20, 30]}
TWO = {"ranges": {"A": (1, "1a", 0, 10), "D": (1, "2a", 10, 20)}}

# The leader has answered, stops, and offers what is above its last timestamp. The next leader's range begins there.
BACK = {"ranges": {"A": (1, "1a", 0, 10), "D": (1, "1a", 10, 20), "B": (2, "2a", 5, 15)}}
FIFTH = FIRST + serve("p", "1a.1", "A", 5, 1, "1a", "3a")
OFFER = [(withdraw, "1a"), (give_back, "1a", 1, 5)]
AFTER = [(take_back, "1a", 1, 5)] + NEXT + serve("r", "2a.1", "B", 8, 2, "2a", "3a")


def late(ts: int) -> list:
    """The steps of one more request to the first leader."""
    return serve("q", "1a.2", "A", ts, 1, "1a", "3a")


MUTANTS = [
    # What is given back at a handover.
    Mutant("offered-before-stop", FIFTH + OFFER[1:] + late(8) + AFTER, BACK),
    Mutant("offered-below-last", FIFTH + late(8) + OFFER + AFTER, BACK),
    Mutant("late-grant", FIFTH + OFFER + [(publish, "1a", "A")] + late(8) + AFTER, BACK),
    Mutant(
        "log-order",
        FIFTH
        + OFFER
        + grant("1a", "D")
        + serve("q", "1a.2", "D", 12, 1, "1a", "3a")
        + [(take_back, "1a", 1, 5)]
        + NEXT
        + serve("r", "2a.1", "B", 12, 2, "2a", "3a"),
        BACK,
    ),
    Mutant(
        "back-of-another",
        FIFTH
        + [(withdraw, "1a"), (give_back, "1a", 1, 10)]
        + NEXT
        + serve("q", "2a.1", "B", 12, 2, "2a", "3a")
        + [(take_back, "1a", 1, 10), *elect("3a", 3, "2a"), *grant("3a", "C")]
        + serve("r", "3a.1", "C", 12, 3, "3a", "2a"),
        {"ranges": {"A": (1, "1a", 0, 10), "B": (2, "2a", 10, 20), "C": (3, "3a", 10, 20)}},
    ),
    Mutant(
        "back-below-range",
        FIFTH
        + NEXT
        + [(withdraw, "2a"), (give_back, "2a", 2, 0), (take_back, "2a", 2, 0), *elect("3a", 3, "2a"), *grant("3a", "C")]
        + serve("r", "3a.1", "C", 5, 3, "3a", "2a"),
        {"ranges": {"A": (1, "1a", 0, 10), "B": (2, "2a", 10, 20), "C": (3, "3a", 0, 20)}},
    ),
    # Rounds.
    Mutant(
        "late-join",
        FIRST + ask("1a.1", "A", 1, "1a", "2a") + NEXT + NEWER + LATE + take("q", "1a.1", "A", 5, "1a", "2a"),
    ),
    Mutant(
        "read-before-close",
        FIRST
        + ask("1a.1", "A", 1)[1:2]
        + elect("3a", 2)
        + grant("3a", "D")
        + serve("p", "3a.1", "D", 12, 2, "3a")
        + LATE
        + [(close, "1a.1"), (send_confirm, "1a.1"), (answer, "1a", "1a.1", "s1"), (answer, "2a", "1a.1", "s2")]
        + take("q", "1a.1", "A", 5, "1a", "2a"),
        {"ranges": {"A": (1, "1a", 0, 10), "D": (2, "3a", 10, 20)}, "quorums": (("s1", "s2"), ("s3",))},
    ),
    Mutant("unconfirmed", FIRST + NEXT + NEWER + [step for step in STALE if step[0] is not answer]),
    Mutant("blind-yes", FIRST + NEXT + NEWER + STALE),
    Mutant(
        "yes-for-later-rounds",
        FIRST
        + ask("1a.0", "A", 1, "1a", "2a")
        + NEXT
        + NEWER
        + LATE
        + ask("1a.1", "A", 1)
        + take("q", "1a.1", "A", 5, "1a", "2a"),
    ),
    Mutant(
        "round-meets-election",
        FIRST
        + elect("3a", 2)
        + grant("3a", "D")
        + serve("p", "3a.1", "D", 12, 2, "3a")
        + serve("q", "1a.1", "A", 5, 1, "1a", "2a"),
        {"ranges": {"A": (1, "1a", 0, 10), "D": (2, "3a", 10, 20)}, "quorums": (("s1", "s2"), ("s3",))},
    ),
    Mutant(
        "quorums-meet",
        START
        + elect("1a", 1, "2a")
        + grant("1a", "A")
        + elect("3a", 1)
        + grant("3a", "D")
        + serve("p", "3a.1", "D", 12, 1, "3a")
        + serve("q", "1a.1", "A", 5, 1, "1a", "2a"),
        {"ranges": {"A": (1, "1a", 0, 10), "D": (1, "3a", 10, 20)}, "quorums": (("s1", "s2"), ("s3",))},
    ),
    Mutant(
        "yes-of-another-store",
        FIRST
        + NEXT
        + NEWER
        + [(crash, "3a"), (start, "3w"), (arrive, "q"), (join, "q", "1a.1")]
        + ask("1a.1", "A", 1, "1a")
        + [(answer, "3w", "1a.1", "s3")]
        + take("q", "1a.1", "A", 5, "1a", "3a"),
    ),
    # Promises, votes, disks.
    Mutant("late-promise", FIRST + elect("2a", 2, "3a", without=[raise_promise]) + grant("2a", "B") + NEWER + STALE),
    Mutant(
        "early-vote",
        FIRST
        + elect("2a", 2, "3a", without=[persist])
        + grant("2a", "B")
        + NEWER
        + AGAIN
        + serve("q", "1a.1", "A", 5, 1, "1a", "3b"),
    ),
    Mutant(
        "hard-state",
        FIRST
        + [(persist, "3a", 0) if step == (persist, "3a", 2) else step for step in NEXT]
        + NEWER
        + AGAIN
        + serve("q", "1a.1", "A", 5, 1, "1a", "3b"),
    ),
    Mutant("restart-promise", FIRST + NEXT + NEWER + AGAIN + serve("q", "1a.1", "A", 5, 1, "1a", "3b")),
    Mutant(
        "forgotten-vote",
        START
        + elect("1a", 1, "3a")
        + grant("1a", "A")
        + AGAIN
        + elect("2a", 1, "3b")
        + grant("2a", "D")
        + serve("p", "2a.1", "D", 12, 1, "2a", "3b")
        + serve("q", "1a.1", "A", 5, 1, "1a", "3b"),
        TWO,
    ),
    Mutant(
        "two-votes",
        START
        + elect("1a", 1, "3a")
        + grant("1a", "A")
        + elect("2a", 1, "3a")
        + grant("2a", "D")
        + serve("p", "2a.1", "D", 12, 1, "2a", "3a")
        + STALE,
        TWO,
    ),
    Mutant(
        "vote-of-another-store",
        START
        + elect("1a", 1, "3a")
        + grant("1a", "A")
        + [(crash, "3a"), (start, "3w"), (campaign, "2a", 1)]
        + [(persist, "2a", 1), (ask_votes, "2a", 1), *ballot("2a", 1, "2a"), *ballot("3w", 1, "2a", voter="s3")]
        + [(win, "2a", 1, frozenset(("s2", "s3"))), *grant("2a", "D"), (start, "3b")]
        + serve("p", "2a.1", "D", 12, 1, "2a", "3b")
        + serve("q", "1a.1", "A", 5, 1, "1a", "3b"),
        TWO,
    ),
    Mutant(
        "asked-by-another-store",
        [*START, (start, "1w")]
        + [step for r in ("1a", "1w") for step in ((campaign, r, 1), (persist, r, 1), (ask_votes, r, 1))]
        + [step for r in ("1a", "1w") for o in ("2a", "3a") for step in ballot(o, 1, r)]
        + [step for r in ("1a", "1w") for step in ((win, r, 1, frozenset(("s2", "s3"))),)]
        + grant("1a", "A")
        + grant("1w", "D")
        + serve("p", "1w.1", "D", 12, 1, "2a", "3a")
        + serve("q", "1a.1", "A", 5, 1, "2a", "3a"),
        {"ranges": {"A": (1, "1a", 0, 10), "D": (1, "1w", 10, 20)}},
    ),
    Mutant(
        "no-quorum",
        FIRST
        + [step for step in NEXT if not (step[1] == "3a" or step[0] is count_vote and step[3] == "s3")]
        + serve("p", "2a.1", "B", 12, 2, "2a", "3a")
        + STALE,
    ),
    Mutant(
        "one-run",
        [*START, (start, "1b"), (campaign, "1a", 1), (campaign, "1b", 1), (persist, "1a", 1)]
        + [(ask_votes, "1a", 1), (ask_votes, "1b", 1), *ballot("1a", 1, "1a"), *ballot("3a", 1, "1a")]
        + [(count_vote, "1b", 1, "s1", "s1"), (count_vote, "1b", 1, "s3", "s3")]
        + [(win, "1a", 1, frozenset(("s1", "s3"))), (win, "1b", 1, frozenset(("s1", "s3")))]
        + grant("1a", "A")
        + grant("1b", "D")
        + serve("p", "1b.1", "D", 12, 1, "1b", "3a")
        + STALE,
        {"ranges": {"A": (1, "1a", 0, 10), "D": (1, "1b", 10, 20)}},
    ),
    # Ranges and grants.
    Mutant(
        "ranges-overlap",
        FIRST + serve("p", "1a.1", "A", 7, 1, "1a", "3a") + NEXT + serve("q", "2a.1", "B", 7, 2, "2a", "3a"),
        {"ranges": {"A": (1, "1a", 0, 10), "B": (2, "2a", 5, 15)}},
    ),
    Mutant(
        "ceiling-falls",
        FIRST + serve("p", "1a.1", "A", 7, 1, "1a", "3a") + NEXT + serve("q", "2a.1", "B", 7, 2, "2a", "3a"),
        {"ranges": {"A": (1, "1a", 0, 10), "B": (2, "2a", 0, 10)}},
    ),
    Mutant(
        "terms-fall",
        START
        + elect("1a", 1, "2a")
        + grant("1a", "D")
        + [(arrive, "p"), (join, "p", "1a.1")]
        + ask("1a.1", "D", 1, "1a", "2a")
        + NEXT
        + grant("1a", "A")
        + take("p", "1a.1", "A", 25, "1a", "2a")
        + serve("q", "2a.1", "B", 12, 2, "2a", "3a"),
        {"ranges": {"D": (1, "1a", 0, 10), "B": (2, "2a", 10, 20), "A": (1, "1a", 20, 30)}},
    ),
    Mutant(
        "early-grant",
        START
        + elect("1a", 1, "2a")
        + [(propose, "A"), (publish, "1a", "A")]
        + serve("p", "1a.1", "A", 5, 1, "1a", "3a")
        + NEXT
        + serve("q", "2a.1", "B", 5, 2, "2a", "3a"),
        {"ranges": {"A": (1, "1a", 0, 10), "B": (2, "2a", 0, 10)}},
    ),
    Mutant(
        "foreign-grant grant-without-leading",
        FIRST
        + serve("p", "1a.1", "A", 5, 1, "1a", "3a")
        + [(publish, "2a", "A")]
        + serve("q", "2a.1", "A", 5, 1, "2a", "3a"),
    ),
    Mutant(
        "proposes-while-leading grant-without-leading",
        START
        + elect("2a", 2, "3a")
        + grant("1a", "D")
        + grant("2a", "B")
        + NEWER
        + serve("q", "1a.1", "D", 5, 2, "1a", "3a"),
        {"ranges": {"D": (2, "1a", 0, 10), "B": (2, "2a", 10, 20)}},
    ),
    Mutant(
        "current-term-asked any-grant kept-grant",
        FIRST + NEXT + NEWER + elect("1a", 3, "3a") + serve("q", "1a.1", "A", 5, 3, "1a", "3a"),
    ),
    # The allocator.
    Mutant(
        "without-grant",
        FIRST
        + [(propose, "E")]
        + serve("p", "1a.1", "E", 15, 1, "1a", "3a")
        + NEXT
        + serve("q", "2a.1", "B", 15, 2, "2a", "3a"),
        {"ranges": {**AB, "E": (1, "1a", 10, 20)}},
    ),
    Mutant(
        "key-used-twice",
        FIRST
        + serve("p", "1a.1", "A", 5, 1, "1a", "3a")
        + serve("q", "1a.2", "A", 6, 1, "1a", "3a")
        + take("p", "1a.1", "A", 7, "1a", "3a"),
    ),
    # The latest timestamp.
    Mutant("latest-below-last", FIFTH + look("s", "1a.2", "A", 0, 1, "1a", "3a")),
    Mutant("latest-below-range", FIFTH + NEXT + look("s", "2a.1", "B", 4, 2, "2a", "3a")),
    Mutant(
        "latest-beyond-range",
        FIFTH + look("s", "1a.2", "A", 15, 1, "1a", "3a") + NEXT + serve("q", "2a.1", "B", 12, 2, "2a", "3a"),
    ),
    Mutant("latest-given-later", FIRST + look("s", "1a.1", "A", 8, 1, "1a", "3a") + late(8)),
    Mutant(
        "shown-twice",
        FIRST
        + look("s", "1a.1", "A", 0, 1, "1a", "3a")
        + serve("q", "1a.2", "A", 5, 1, "1a", "3a")
        + [(show_latest, "s", "1a.1", frozenset(("s1", "s3")), "A", 5)],
    ),
    Mutant("advance-unreserved", FIRST + [(advance, "A", 15)] + NEXT + serve("p", "2a.1", "B", 12, 2, "2a", "3a")),
    Mutant("advance-keeps-range", FIRST + [(advance, "A", 8)] + serve("p", "1a.1", "A", 5, 1, "1a", "3a")),
    Mutant(
        "beyond-range",
        FIRST + serve("p", "1a.1", "A", 15, 1, "1a", "3a") + NEXT + serve("q", "2a.1", "B", 15, 2, "2a", "3a"),
    ),
    Mutant(
        "allocator-goes-back",
        FIRST + serve("p", "1a.1", "A", 5, 1, "1a", "3a") + serve("q", "1a.2", "A", 5, 1, "1a", "3a"),
    ),
]

# Rules that another rule backs up: if one of them alone is broken, the proof fails, but no trace
# ends in a wrong answer.
SECOND_LOCKS = ["early-campaign", "new-term", "any-reply-counts", "yes-of-another-term"]
