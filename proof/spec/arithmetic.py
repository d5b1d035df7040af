"""Claims about numbers alone. First: two quorums share a voter, for any number of voters.
`raft_log.py` uses this result in `unsafe-change` and `disjoint-quorums`. Second: the floor of a new
history is at or above every epoch of the old history (S13). Third: another node's hold outlasts a
lease, although the rates of their clocks differ (S20). `lease.py` uses this in `short-hold`.

Each claim rests on rules, for example on the margins of the floor. A mutant leaves out one rule,
and the claim must then fail.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import z3


@dataclass(frozen=True)
class Sum:
    """A claim about numbers. `parts` takes the names of the broken rules. It returns the premises,
    without those of broken rules, and the claim."""

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
# Quorums. Four facts about a node matter: whether it votes in configuration A, whether it votes in
# B, whether it is in quorum P, and whether it is in quorum Q. So there are 16 kinds of nodes, and
# any number of nodes of each kind.

Kinds = dict[tuple[bool, bool, bool, bool], z3.ArithRef]


def kinds() -> Kinds:
    return {
        kind: z3.Int("n" + "".join("01"[bit] for bit in kind)) for kind in itertools.product((False, True), repeat=4)
    }


def count(n: Kinds, where: Callable[[bool, bool, bool, bool], bool]) -> z3.ArithRef:
    return z3.Sum([number for kind, number in n.items() if where(*kind)])


def majority(n: Kinds, broken: frozenset[str], voters: Callable, quorum: Callable) -> z3.BoolRef:
    """Whether more than half of the `voters` are in the `quorum`, as `VoterSet::is_majority_of`
    says."""
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
    """P is a quorum of A and Q one of B. A has one voter more than B, or one less, or the same
    voters (if a learner comes or goes)."""
    n = kinds()
    premises = [*(x >= 0 for x in n.values()), majority(n, broken, in_a, in_p), majority(n, broken, in_b, in_q)]
    if "two-at-once" not in broken:
        premises.append(count(n, lambda a, b, p, q: a != b) <= 1)
    return premises, meet(n)


def joint(broken: frozenset[str], is_one_joint: bool) -> tuple[list, z3.BoolRef]:
    """Q is a quorum of the joint configuration of A and B: a majority of each. With `is_one_joint`,
    P is a quorum of the same joint configuration. Otherwise P is a quorum of A, from which the
    joint configuration comes. The change from the joint configuration to B needs no case of its
    own: it is the one with A, with A and B exchanged."""
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
    """The floor is at or above `epoch`, the highest epoch that the old history gave. After the
    backup, the old ceiling moved in one of four ways. Either it was always ahead of trusted time and
    rose only by the least step: at two million leaderships at most, and at renewals of leases, much
    slower than time passes. Or timestamps were compact, and it rose no faster than time passes, and
    by 135 ms at 14 leaderships at most. Or it rose to trusted time plus the window in effect, and
    after that by the least step, at one million leaderships at most and at renewals. Or it rose so,
    timestamps were compact, and after that it rose no faster than time passes, and by 135 ms at 7
    leaderships at most. The clock of the backup was ahead by one and a half bounds at most. Trusted time was within the bound of a clock that counted as right. That clock was within half a
    bound of right time. Right clocks differ by a leap second at most. The latest of the first
    members' clocks is not behind a right clock."""
    names = "epoch ceiling leaderships trusted window bound then now wall taken window_max bound_max backed_up passed"
    (
        epoch, ceiling, leaderships, trusted, window, bound, then, now, wall, taken, window_max, bound_max, backed_up,
        passed,
    ) = z3.Ints(names)
    numbers = [x >= 0 for x in z3.Ints(names)]
    is_stepped = z3.And(leaderships <= 2_000_000, epoch <= ceiling + (now - backed_up) + 1000 * leaderships)
    is_timed = z3.And(leaderships <= 1_000_000, epoch <= trusted + window + passed + 1000 * leaderships)
    half = (bound_max + 1) / 2  # rounded up, as in the code
    paces = 135_000_000 * leaderships
    is_paced = z3.And(leaderships <= 14, epoch <= ceiling + (now - backed_up) + paces)
    is_timed_and_paced = z3.And(leaderships <= 7, epoch <= trusted + window + passed + paces)
    premises = [
        *numbers,
        z3.Or(is_stepped, is_timed, is_paced, is_timed_and_paced),
        backed_up <= now,
        taken <= backed_up + bound_max + half,
        2 * trusted <= 2 * then + 3 * bound,
        then + passed <= now + SECOND,
        now <= wall,
    ]
    if "longest-window-forgotten" not in broken:
        premises.append(window <= window_max)
    if "widest-bound-forgotten" not in broken:
        premises.append(bound <= bound_max)

    def margin(rule: str, size: z3.ArithRef | int) -> z3.ArithRef | int:
        return 0 if rule in broken else size

    latest = z3.If(taken > wall, taken, wall)
    pace = latest - taken + bound_max + half
    by_ceiling = ceiling + margin("without-pace", pace) + margin("without-ceiling-margin", 2 * SECOND)
    by_clock = (
        latest + margin("without-window", window_max) + margin("without-bound", bound_max)
        + margin("without-sample-error", half) + margin("without-clock-margin", 2 * SECOND)
    )  # fmt: skip
    highest = z3.If(by_ceiling > by_clock, by_ceiling, by_clock)
    if "floor-of-backup" in broken:
        highest = by_ceiling
    return premises, epoch <= highest


# ---------------------------------------------------------------------------------------------------------------------
# The hold of a leader lease.


def hold(broken: frozenset[str]) -> tuple[list, z3.BoolRef]:
    """The hold is over after the last moment at which the lease may look good. The owner's clock
    read `began` at the true time `start`, and `read` at `checked`. The other node's clock read
    `came` at `arrival`, and `ended` at `answered`. In the time `x`, the owner's clock goes
    ahead by at least 8/9 of `x`, and the other's by at most 10/9: it may stand still. Nothing is
    assumed of what a clock shows."""
    lease, hold, longest = z3.Reals("lease hold longest")
    began, read, came, ended = z3.Reals("began read came ended")
    start, checked, arrival, answered = z3.Reals("start checked arrival answered")
    premises = [lease > 0, start <= checked, arrival <= answered, read - began < lease, ended - came >= hold]
    if "hold-as-long-as-lease" in broken:
        premises.append(hold >= longest)
    else:
        premises.append(4 * hold >= 5 * longest)
    if "hold-of-shorter-lease" not in broken:
        premises.append(longest >= lease)
    if "arrival-before-proposal" not in broken:
        premises.append(start <= arrival)
    if "slow-owner" not in broken:
        premises.append(9 * (read - began) >= 8 * (checked - start))
    if "fast-waiter" not in broken:
        premises.append(9 * (ended - came) <= 10 * (answered - arrival))
    return premises, checked < answered


HALF = "half-is-enough"
SUMS = [
    Sum("quorums of one configuration", (HALF,), one_configuration),
    Sum("quorums around a simple change", (HALF, "two-at-once"), simple_change),
    Sum("quorums around a joint one", (HALF, "one-half-is-enough"), lambda broken: joint(broken, False)),
    Sum("quorums of a joint one", (HALF, "one-half-is-enough"), lambda broken: joint(broken, True)),
    Sum(
        "restore: the floor",
        ("floor-of-backup", "without-pace", "without-ceiling-margin", "without-window", "without-bound",
         "without-sample-error", "without-clock-margin", "longest-window-forgotten", "widest-bound-forgotten"),
        floor,
    ),
    Sum(
        "a hold outlasts a lease",
        ("hold-as-long-as-lease", "hold-of-shorter-lease", "arrival-before-proposal", "slow-owner", "fast-waiter"),
        hold,
    ),
]  # fmt: skip
