"""Traces of `lease.py` over three nodes. A moment is a number. In most traces, a lease lasts for less
than 2, and a hold takes 2. Ranges with capital names have a lease."""

from __future__ import annotations

import rounds_traces as plain
from lease import (
    SPEC, compact, forget, install, prove_by_lease, reach, read_clock, release, take, tick, truncate, withdraw_lease,
)  # fmt: skip
from logic import Concrete, Mutant
from rounds import (
    advance, allocate, arrive, assign, close, complete, crash, give_back, join, pass_back, propose, publish,
    read_grant, show_latest, start, step_down, take_back, withdraw,
)  # fmt: skip
from rounds_traces import START, elect, grant, look, serve

# Ranges by name: term, owner, low and high end. E renews the lease of A.
ABE = {"A": (1, "1a", 0, 10), "E": (1, "1a", 10, 20), "B": (2, "2a", 20, 30)}
OWN = {action.__name__: action for action in SPEC.actions}


def concrete(fixed: dict, broken=()) -> Concrete:
    """The world of rounds_traces.py, with moments and leases."""
    domain, what = plain.world({"ranges": ABE, **fixed})
    lengths, counted = fixed.get("lengths", {}), fixed.get("holds", lambda length: length)
    domain |= {"Tick": list(range(6)), "Length": [1, 2, 3], "Round": [*domain["Round"], "1b.2", "3b.1"]}
    domain["Req"] = [*domain["Req"], "u", "v"]
    what |= {
        "marked": str.isupper,
        "length": lambda x: lengths.get(x, 2),
        "le_tick": lambda a, b: a <= b,
        "le_length": lambda a, b: a <= b,
        "good": lambda a, c, length: c - a < length,
        "over": lambda b, d, length: d - b >= counted(length),
    }
    return Concrete(SPEC, domain, what, broken)


def steps(*parts: list) -> list:
    """A trace. The actions of rounds.py become those of lease.py that have their names."""
    return [(OWN[action.__name__], *args) for part in parts for action, *args in part]


def hold(r: str, x: str, at: int = 0) -> list:
    """The steps of a grant, with the lease that began at a moment."""
    return [(propose, x), (assign, x), (publish, r, x), (take, r, x, at)]


def check(d: str, grant: str, x: str, t: int) -> list:
    """The steps that prove a batch by lease."""
    return [(close, d), (read_grant, d, grant, t), (read_clock, d), (prove_by_lease, d, x)]


def get(q: str, d: str, x: str, ts: int) -> list:
    """The last steps of a request. No quorum has confirmed the round."""
    return [(allocate, q, d, frozenset(("s1", "s2")), x, ts), (complete, q)]


def by_lease(q: str, d: str, x: str, ts: int, t: int, lease: str = "") -> list:
    """The steps of a request that a lease answers."""
    return [(arrive, q), (join, q, d), *check(d, x, lease or x, t), *get(q, d, x, ts)]


def look_by_lease(q: str, d: str, x: str, ts: int, t: int) -> list:
    shown = [(show_latest, q, d, frozenset(("s1", "s2")), x, ts), (complete, q)]
    return [(arrive, q), (join, q, d), *check(d, x, x, t), *shown]


GOOD = steps(
    START,
    elect("1a", 1, "2a"),
    hold("1a", "A"),
    by_lease("p", "1a.1", "A", 5, 1),
    look_by_lease("s", "1a.2", "A", 5, 1),
    # Node 3 loses the entry, and gets it again with a snapshot. Node 2 compacts its log.
    [(reach, "2a", "A", 0), (reach, "3a", "A", 0), (compact, "2a", "A")],
    [(truncate, "3a", "A"), (forget, "3a", "A"), (install, "3a", "A", 3)],
    elect("2a", 2, "3a"),
    # The new leader waits for the end of the hold. Meanwhile the deposed leader still answers.
    [(propose, "B"), (assign, "B"), (tick, 1)],
    by_lease("u", "1a.0", "A", 7, 1),
    [(tick, 2), (publish, "2a", "B"), (take, "2a", "B", 0)],
    look("t", "2a.2", "B", 10, 2, "2a", "3a"),
    serve("q", "2a.1", "B", 12, 2, "2a", "3a"),
    [(advance, "B", 15), (withdraw, "2a"), (give_back, "2a", 2, 16), (pass_back, "2a", 2, 16)],
    # The transfer has failed, so the leader renews its lease. The next transfer succeeds.
    hold("2a", "E", 2),
    [(reach, "1a", "B", 2), (reach, "1a", "E", 2), (withdraw_lease, "2a"), (release, "2a")],
    [(withdraw, "2a"), (give_back, "2a", 2, 18), (take_back, "2a", 2, 18)],
    [(step_down, "1a"), (crash, "1a"), (start, "1b")],
    elect("1b", 3, "3a"),
    # The leases of node 2 are released. That of this node's earlier run counts from the start.
    [(tick, 4)],
    hold("1b", "C", 4),
    by_lease("r", "1b.1", "C", 19, 3),
    [(tick, 5)],
    serve("v", "1b.2", "C", 20, 3, "1b", "3a"),
)
GOOD_WORLD = {"ranges": plain.AB, "ts": [*plain.GOOD_WORLD["ts"], 7]}

FIRST = START + elect("1a", 1, "2a") + hold("1a", "A")
REACHED = [(reach, "2a", "A", 0)]
NEXT = elect("2a", 2, "3a") + grant("2a", "B")  # without waiting
NEWER = serve("p", "2a.1", "B", 25, 2, "2a", "3a")
LATE = by_lease("q", "1a.1", "A", 5, 1)  # the older leader answers a later request: wrong


def waited(at: int, r: str = "2a", x: str = "B", t: int = 2, other: str = "3a") -> list:
    """A leader is elected, waits until a moment, and publishes its grant."""
    return elect(r, t, other) + [(propose, x), (assign, x), (tick, at), (publish, r, x)]


def mutant(rules: str, *parts: list, **fixed) -> Mutant:
    return Mutant(rules, steps(*parts), fixed)


# Node 3 becomes the next leader, after a restart.
THIRD = {"ranges": {"A": (1, "1a", 0, 10), "B": (2, "3b", 20, 30)}}
BY_THIRD = elect("3b", 2, "2a") + grant("3b", "B") + serve("p", "3b.1", "B", 25, 2, "3b", "2a")
RELEASED = [(withdraw_lease, "1a"), (release, "1a")]

MUTANTS = [
    # The next leader waits.
    mutant("no-wait", FIRST, REACHED, NEXT, NEWER, LATE),
    mutant("no-wait", FIRST, REACHED, NEXT, NEWER, look_by_lease("s", "1a.1", "A", 5, 1)),
    mutant("no-wait", FIRST, REACHED, NEXT, [(advance, "B", 25)], LATE),
    mutant("applied-in-order", FIRST, NEXT, NEWER, LATE),
    mutant("short-hold", FIRST, REACHED, waited(1), NEWER, LATE, holds=lambda length: length - 1),
    mutant(
        "hold-counted-early",
        FIRST,
        REACHED,
        [(tick, 1), *hold("1a", "E", 1), (reach, "2a", "E", 0)],
        waited(2),
        NEWER,
        by_lease("q", "1a.1", "E", 15, 1),
    ),
    # The lease was shortened, and the leader has not applied the shorter one yet.
    mutant(
        "last-lease-only",
        FIRST,
        [(propose, "E"), (reach, "2a", "A", 0), (reach, "2a", "E", 0), (assign, "E")],
        waited(1),
        NEWER,
        LATE,
        lengths={"A": 3, "E": 1},
    ),
    # A second leader waits for the first one, and is replaced. The third must wait for both.
    mutant(
        "last-owner-only",
        FIRST,
        [*elect("2a", 2, "3a"), (propose, "B"), (assign, "B"), (reach, "3a", "A", 0), (reach, "3a", "B", 0)],
        waited(1, "3a", "C", 3, "2a"),
        serve("p", "3a.1", "C", 25, 3, "3a", "2a"),
        LATE,
        ranges={"A": (1, "1a", 0, 10), "B": (2, "2a", 10, 20), "C": (3, "3a", 20, 30)},
        lengths={"A": 3, "B": 1},
    ),
    # The arrival is forgotten.
    mutant("arrival-forgotten", FIRST, REACHED, NEXT, NEWER, LATE),
    mutant("snapshot-forgotten", FIRST, [(install, "2a", "A", 2)], NEXT, NEWER, LATE),
    mutant("snapshot-of-shorter-lease", FIRST, [(install, "2a", "A", 1)], waited(1), NEWER, LATE),
    mutant(
        "truncation-forgets",
        FIRST,
        [*REACHED, (propose, "E"), (reach, "2a", "E", 0), (truncate, "2a", "E")],
        NEXT,
        NEWER,
        LATE,
    ),
    mutant("forgets-what-it-has", FIRST, REACHED, [(forget, "2a", "A")], NEXT, NEWER, LATE),
    mutant("compaction-forgets", FIRST, REACHED, [(compact, "2a", "A")], NEXT, NEWER, LATE),
    mutant(
        "restart-forgets-log", FIRST, [(reach, "3a", "A", 0), (crash, "3a"), (start, "3b")], BY_THIRD, LATE, **THIRD
    ),
    mutant(
        "restart-forgets-state",
        FIRST,
        [(reach, "3a", "A", 0), (compact, "3a", "A"), (crash, "3a"), (start, "3b")],
        BY_THIRD,
        LATE,
        **THIRD,
    ),
    # The leader takes a lease.
    mutant(
        "lease-from-proposal",
        START,
        elect("1a", 1, "2a"),
        grant("1a", "a"),
        [(propose, "A"), (take, "1a", "A", 0), (reach, "2a", "a", 0)],
        NEXT,
        NEWER,
        by_lease("q", "1a.1", "a", 5, 1, "A"),
        ranges={"a": (1, "1a", 0, 10), "A": (1, "1a", 10, 20), "B": (2, "2a", 20, 30)},
    ),
    mutant(
        "lease-counted-late",
        START,
        elect("1a", 1, "2a"),
        [(propose, "A"), *REACHED, (tick, 1), (assign, "A"), (publish, "1a", "A"), (take, "1a", "A", 1)],
        waited(2),
        NEWER,
        LATE,
    ),
    # After a restart, node 1 leads again without a lease, and then takes that of its earlier run.
    mutant(
        "lease-of-another-run lease-without-leading lease-counted-late",
        FIRST,
        [(crash, "1a"), (start, "1b"), (reach, "3a", "A", 0)],
        waited(2, "1b", "b", 2, "2a"),
        [(take, "1b", "A", 2), (reach, "3a", "b", 2)],
        elect("3a", 3, "2a"),
        grant("3a", "C"),
        serve("p", "3a.1", "C", 25, 3, "3a", "2a"),
        by_lease("q", "1b.1", "b", 15, 2, "A"),
        ranges={"A": (1, "1a", 0, 10), "b": (2, "1b", 10, 20), "C": (3, "3a", 20, 30)},
    ),
    # The leader releases its lease.
    mutant("released-before-publication", FIRST, REACHED, RELEASED, NEXT, NEWER, LATE),
    mutant(
        "marked-between",
        START,
        elect("1a", 1, "2a"),
        [(withdraw_lease, "1a"), (propose, "A"), (release, "1a"), (assign, "A"), (publish, "1a", "A")],
        [(take, "1a", "A", 0), *REACHED],
        NEXT,
        NEWER,
        LATE,
    ),
    mutant(
        "lease-after-release",
        START,
        elect("1a", 1, "2a"),
        [(propose, "A"), *RELEASED, (assign, "A"), (publish, "1a", "A"), (take, "1a", "A", 0), *REACHED],
        NEXT,
        NEWER,
        LATE,
    ),
    mutant(
        "release-for-ever",
        FIRST,
        RELEASED,
        hold("1a", "E"),
        [*REACHED, (reach, "2a", "E", 0)],
        NEXT,
        NEWER,
        by_lease("q", "1a.1", "E", 15, 1),
    ),
    # Workers.
    mutant("lease-over", FIRST, REACHED, waited(2), NEWER, LATE),
    mutant("lease-over", FIRST, REACHED, waited(2), NEWER, look_by_lease("s", "1a.1", "A", 5, 1)),
    mutant(
        "without-lease",
        START,
        elect("1a", 1, "2a"),
        grant("1a", "a"),
        [(reach, "2a", "a", 0)],
        NEXT,
        NEWER,
        by_lease("q", "1a.1", "a", 5, 1),
        ranges={"a": (1, "1a", 0, 10), "B": (2, "2a", 20, 30)},
    ),
    mutant(
        "clock-before-publication",
        FIRST,
        REACHED,
        [(read_clock, "1a.1")],
        waited(2),
        NEWER,
        [step for step in LATE if step[0] is not read_clock],
    ),
    # These rules of rounds.py are needed for leases, too. While a leader waits, no advance is reported.
    mutant(
        "advance-unreserved",
        FIRST,
        REACHED,
        [*elect("2a", 2, "3a"), (propose, "B"), (assign, "B"), (advance, "B", 25)],
        LATE,
    ),
    # The publication is read before the close; then the clock, too.
    mutant(
        "read-before-close",
        FIRST,
        REACHED,
        [(read_grant, "1a.1", "A", 1)],
        RELEASED,
        NEXT,
        NEWER,
        [step for step in LATE if step[0] is not read_grant],
    ),
    mutant(
        "read-before-close",
        FIRST,
        REACHED,
        check("1a.1", "A", "A", 1)[1:],
        waited(2),
        NEWER,
        [(arrive, "q"), (join, "q", "1a.1"), (close, "1a.1"), *get("q", "1a.1", "A", 5)],
    ),
    # A request joins after the check.
    mutant(
        "late-join",
        FIRST,
        REACHED,
        check("1a.1", "A", "A", 1),
        waited(2),
        NEWER,
        [(arrive, "q"), (join, "q", "1a.1"), *get("q", "1a.1", "A", 5)],
    ),
]

# Rules that another rule backs up.
SECOND_LOCKS = ["kept-lease", "falling-terms"]
