"""What is arithmetic and has no steps: two quorums share a voter, for any number of voters (`raft_log.py` takes it for
`unsafe-change` and `disjoint-quorums`); and the floor of a new history is at or above every epoch of the old one (S13).

Each question has a claim and its margins; each margin that is left out is a mutant, and must make the claim fail.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import z3


@dataclass(frozen=True)
class Sum:
    """A claim about numbers. `parts` gives, without the rules that are broken, the premises and the claim."""

    name: str
    rules: tuple[str, ...]
    parts: Callable[[frozenset[str]], tuple[list, z3.BoolRef]]

    def solver(self, broken: Iterable[str] = ()) -> z3.Solver:
        premises, claim = self.parts(frozenset(broken))
        solver = z3.Solver()
        solver.set("timeout", 60_000)
        solver.add(*premises, z3.Not(claim))
        return solver


# ---------------------------------------------------------------------------------------------------------------------
# Quorums. A node is of one of 16 kinds: it votes in the configuration A, in B, and it is in the quorum P, in Q. There
# are any number of each kind.

Kinds = dict[tuple[bool, bool, bool, bool], z3.ArithRef]


def kinds() -> Kinds:
    return {
        kind: z3.Int("n" + "".join("01"[bit] for bit in kind)) for kind in itertools.product((False, True), repeat=4)
    }


def count(n: Kinds, where: Callable[[bool, bool, bool, bool], bool]) -> z3.ArithRef:
    return z3.Sum([number for kind, number in n.items() if where(*kind)])


def majority(n: Kinds, broken: frozenset[str], voters: Callable, quorum: Callable) -> z3.BoolRef:
    """`VoterSet::is_majority_of`: more than half."""
    twice = 2 * count(n, lambda *kind: voters(*kind) and quorum(*kind))
    every = count(n, voters)
    return twice >= every if "half-is-enough" in broken else twice > every


in_a, in_b = (lambda a, b, p, q: a), (lambda a, b, p, q: b)
in_p, in_q = (lambda a, b, p, q: p), (lambda a, b, p, q: q)


def meet(n: Kinds) -> z3.BoolRef:
    return count(n, lambda a, b, p, q: p and q and (a or b)) >= 1


def one_configuration(broken: frozenset[str]) -> tuple[list, z3.BoolRef]:
    n = kinds()
    return [*(x >= 0 for x in n.values()), majority(n, broken, in_a, in_p), majority(n, broken, in_a, in_q)], meet(n)


def simple_change(broken: frozenset[str]) -> tuple[list, z3.BoolRef]:
    """A has one voter more than B, or one less, or the same (a learner comes or goes)."""
    n = kinds()
    premises = [*(x >= 0 for x in n.values()), majority(n, broken, in_a, in_p), majority(n, broken, in_b, in_q)]
    if "two-at-once" not in broken:
        premises.append(count(n, lambda a, b, p, q: a != b) <= 1)
    return premises, meet(n)


def joint(broken: frozenset[str], is_one_joint: bool) -> tuple[list, z3.BoolRef]:
    """Q is a quorum of the joint configuration of A and B: a majority of each. P is a quorum of A, which it comes from;
    or P is a quorum of the same joint configuration. Leaving it to B is the first case with A and B exchanged."""
    n = kinds()
    both = [majority(n, broken, in_a, in_q), majority(n, broken, in_b, in_q)]
    quorum = [z3.Or(both)] if "one-half-is-enough" in broken else both
    others = [majority(n, broken, in_a, in_p)]
    if is_one_joint:
        halves = [majority(n, broken, in_a, in_p), majority(n, broken, in_b, in_p)]
        others = [z3.Or(halves)] if "one-half-is-enough" in broken else halves
    return [*(x >= 0 for x in n.values()), *quorum, *others], meet(n)


# ---------------------------------------------------------------------------------------------------------------------
# The floor of a restore, nanoseconds: `core/src/restore.rs`.

SECOND = 1_000_000_000


def floor(broken: frozenset[str]) -> tuple[list, z3.BoolRef]:
    """`epoch` is the highest that the old history gave. After the backup its ceiling rose to trusted time plus the
    window of that time, or was ahead of that all the time; and it rose by the least step at some leaderships: at two
    million of them at most, or one million after it had last risen with the time. Trusted time was within the bound of
    a clock that counted as right, and that clock within half a bound of right time. Right clocks differ by a leap
    second at most. Of the first members' clocks the latest is not behind a right one."""
    names = "epoch ceiling leaderships trusted window bound then now wall taken window_max bound_max"
    epoch, ceiling, leaderships, trusted, window, bound, then, now, wall, taken, window_max, bound_max = z3.Ints(names)
    numbers = [x >= 0 for x in z3.Ints(names)]
    is_stepped = z3.And(leaderships <= 2_000_000, epoch <= ceiling + 1000 * leaderships)
    is_timed = z3.And(leaderships <= 1_000_000, epoch <= trusted + window + 1000 * leaderships)
    premises = [
        *numbers,
        z3.Or(is_stepped, is_timed),
        2 * trusted <= 2 * then + 3 * bound,
        then <= now + SECOND,
        now <= wall,
    ]
    if "longest-window-forgotten" not in broken:
        premises.append(window <= window_max)
    if "widest-bound-forgotten" not in broken:
        premises.append(bound <= bound_max)

    def margin(rule: str, size: z3.ArithRef | int) -> z3.ArithRef | int:
        return 0 if rule in broken else size

    half = (bound_max + 1) / 2  # rounded up, as in the code
    latest = z3.If(taken > wall, taken, wall)
    by_ceiling = ceiling + margin("without-ceiling-margin", 2 * SECOND)
    by_clock = (
        latest + margin("without-window", window_max) + margin("without-bound", bound_max)
        + margin("without-sample-error", half) + margin("without-clock-margin", 2 * SECOND)
    )  # fmt: skip
    highest = z3.If(by_ceiling > by_clock, by_ceiling, by_clock)
    if "floor-of-backup" in broken:
        highest = by_ceiling
    return premises, epoch <= highest


HALF = "half-is-enough"
SUMS = [
    Sum("quorums of one configuration", (HALF,), one_configuration),
    Sum("quorums around a simple change", (HALF, "two-at-once"), simple_change),
    Sum("quorums around a joint one", (HALF, "one-half-is-enough"), lambda broken: joint(broken, False)),
    Sum("quorums of a joint one", (HALF, "one-half-is-enough"), lambda broken: joint(broken, True)),
    Sum(
        "restore: the floor",
        ("floor-of-backup", "without-ceiling-margin", "without-window", "without-bound", "without-sample-error",
         "without-clock-margin", "longest-window-forgotten", "widest-bound-forgotten"),
        floor,
    ),
]  # fmt: skip
