"""Specifications, and the two ways to read them: with z3 for proofs, with Python for traces.

A specification has state, actions and claims. An action has rules (guards, each with a name) and
says what it changes. A claim is a formula that has to hold in every reachable state. For the proof,
z3 reads the specification with sorts of any size (`Symbolic`). For traces, Python reads the same
text with a few things of each sort (`Concrete`).

This module knows nothing of the protocol.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import z3

Formula = Any  # a bool in a trace, a z3 expression in a proof
TIMEOUT_MS = 60_000


def AND(*parts: Formula) -> Formula:
    rest = [part for part in parts if part is not True]
    if any(part is False for part in rest):
        return False
    return True if not rest else rest[0] if len(rest) == 1 else z3.And(*rest)


def OR(*parts: Formula) -> Formula:
    rest = [part for part in parts if part is not False]
    if any(part is True for part in rest):
        return True
    return False if not rest else rest[0] if len(rest) == 1 else z3.Or(*rest)


def NOT(part: Formula) -> Formula:
    return (not part) if isinstance(part, bool) else z3.Not(part)


def IMP(when: Formula, then: Formula) -> Formula:
    return OR(NOT(when), then)


def IF(condition: Formula, then: Formula, otherwise: Formula) -> Formula:
    if isinstance(condition, bool):
        return then if condition else otherwise
    if isinstance(then, bool) or isinstance(otherwise, bool):
        return AND(IMP(condition, then), OR(condition, otherwise))
    return z3.If(condition, then, otherwise)


def EQ(one: Any, other: Any) -> Formula:
    return one == other


@dataclass(frozen=True)
class Claim:
    """The claim that `body` holds for all things of `sorts`. If `some` names sorts, the claim is
    another one: where `body` holds, `then` holds for some things of the sorts in `some`. z3 does
    not use such a claim as a general premise, because functions between sorts would form a cycle,
    and the questions would become undecidable. A hint says where z3 may use it."""

    sorts: str
    body: Callable[..., Formula]
    some: str = ""
    then: Callable[..., Formula] | None = None

    def formula(self, w: World) -> Formula:
        if self.then is None:
            return w.all(self.sorts, self.body)
        return w.all(self.sorts, lambda *xs: IMP(self.body(*xs), w.some(self.some, lambda *ys: self.then(*xs, *ys))))


@dataclass(frozen=True)
class Spec:
    """A specification. A signature is written as "Node Term -> Quorum"; a signature without an
    arrow is that of a relation."""

    name: str
    sorts: str
    constants: dict[str, str]
    fixed: dict[str, str]  # never changes
    state: dict[str, str]
    actions: dict[Callable, str]
    axioms: Callable[[World], dict[str, Formula]]
    initial: Callable[[World, State], list[Formula]]
    claims: Callable[[World, State], dict[str, Claim]]
    goals: tuple[str, ...]  # the claims that users rely on
    hints: dict[tuple[str, str], Callable[[Question], None]] = field(default_factory=dict)
    # Claims that follow from the rules of an action. They are proved first, and are then premises
    # of the other questions about that action.
    lemmas: dict[str, Callable[..., dict[str, Claim]]] = field(default_factory=dict)
    updates: tuple[str, ...] = ()  # rules that are not guards: if one is broken, an action changes something else
    base: Spec | None = None  # the specification that this one extends; its rules have their mutants there


def signature(text: str) -> tuple[list[str], str]:
    arguments, _, result = text.partition("->")
    return arguments.split(), result.strip() or "Bool"


class State:
    """A state: functions by name. An update makes a new state whose functions may use those of the
    old one."""

    def __init__(self, functions: dict[str, Callable], is_remembered: bool = False):
        self._functions = {n: remembered(f) for n, f in functions.items()} if is_remembered else functions
        self.__dict__.update(self._functions)

    def updated(self, changes: dict[str, Callable], is_remembered: bool = False) -> State:
        new = {n: remembered(f) for n, f in changes.items()} if is_remembered else changes
        return State({**self._functions, **new})


def remembered(function: Callable) -> Callable:
    known: dict[tuple, Any] = {}

    def look_up(*args: Any) -> Any:
        if args not in known:
            known[args] = function(*args)
        return known[args]

    return look_up


class World:
    """A meaning for formulas: `Symbolic` or `Concrete`. The rules in `broken` do not hold."""

    spec: Spec
    broken: frozenset[str]

    def all(self, sorts: str, body: Callable[..., Formula]) -> Formula:
        raise NotImplementedError

    def some(self, sorts: str, body: Callable[..., Formula]) -> Formula:
        raise NotImplementedError

    def order(self, le: Callable[[Any, Any], Formula], sort: str) -> Formula:
        """`le` is a total order of the sort."""
        return AND(
            self.all(sort, lambda a: le(a, a)),
            self.all(f"{sort} {sort}", lambda a, b: IMP(AND(le(a, b), le(b, a)), EQ(a, b))),
            self.all(f"{sort} {sort} {sort}", lambda a, b, c: IMP(AND(le(a, b), le(b, c)), le(a, c))),
            self.all(f"{sort} {sort}", lambda a, b: OR(le(a, b), le(b, a))),
        )

    def step(self, s: State, action: Callable, args: Sequence[Any]) -> tuple[list[tuple[str, Formula]], dict]:
        """Returns the rules of a step, without those that are broken, and the changes that the step
        makes."""
        rules, generator = [], action(self, s, *args)
        while True:
            try:
                rules.append(next(generator))
            except StopIteration as end:
                return [rule for rule in rules if rule[0] not in self.broken], end.value


class Symbolic(World):
    def __init__(self, spec: Spec, broken: Iterable[str] = ()):
        self.spec, self.broken = spec, frozenset(broken)
        self.sort = {name: z3.DeclareSort(name) for name in spec.sorts.split()}
        self.sort["Bool"] = z3.BoolSort()
        self.made, self.depth = itertools.count(), 0
        for name, sort in spec.constants.items():
            setattr(self, name, z3.Const(name, self.sort[sort]))
        for name, text in spec.fixed.items():
            setattr(self, name, self.function(name, text))
        self.state = State({name: self.function(name, text) for name, text in spec.state.items()})

    def function(self, name: str, text: str) -> Callable:
        arguments, result = signature(text)
        name += "_"  # some names are words of SMT-LIB
        if not arguments:
            constant = z3.Const(name, self.sort[result])
            return lambda: constant
        return z3.Function(name, *[self.sort[s] for s in arguments], self.sort[result])

    def variables(self, sorts: str, prefix: str) -> list[Any]:
        return [z3.Const(f"{prefix}{s}{i}", self.sort[s]) for i, s in enumerate(sorts.split())]

    def fresh(self, sorts: str) -> list[Any]:
        return [z3.Const(f"c{next(self.made)}", self.sort[s]) for s in sorts.split()]

    def all(self, sorts: str, body: Callable[..., Formula]) -> Formula:
        return self.quantified(z3.ForAll, sorts, body)

    def some(self, sorts: str, body: Callable[..., Formula]) -> Formula:
        return self.quantified(z3.Exists, sorts, body)

    def quantified(self, quantifier: Callable, sorts: str, body: Callable[..., Formula]) -> Formula:
        # Variables are named by depth. So the same text always gives the same formula, and no
        # variable hides another one.
        self.depth += 1
        xs = self.variables(sorts, f"v{self.depth}")
        formula = body(*xs)
        self.depth -= 1
        return formula if isinstance(formula, bool) or not xs else quantifier(xs, formula)


class Concrete(World):
    """A world with a few things of each sort. `fixed` gives the functions and constants that never
    change."""

    def __init__(self, spec: Spec, domain: dict[str, list], fixed: dict[str, Any], broken: Iterable[str] = ()):
        self.spec, self.broken, self.domain = spec, frozenset(broken), {**domain, "Bool": [False, True]}
        self.__dict__.update(fixed)
        first = {name: self.domain[signature(text)[1]][0] for name, text in spec.state.items()}
        start = {name: (lambda *args, value=value: value) for name, value in first.items()}
        start.update(fixed.get("start", {}))
        self.state = State(start, is_remembered=True)

    def all(self, sorts: str, body: Callable[..., Formula]) -> Formula:
        return all(body(*xs) for xs in itertools.product(*[self.domain[s] for s in sorts.split()]))

    def some(self, sorts: str, body: Callable[..., Formula]) -> Formula:
        return any(body(*xs) for xs in itertools.product(*[self.domain[s] for s in sorts.split()]))


class Question:
    """One question to z3: can the claim fail after the action, if the premises hold? `args` are the
    things that the action concerns. `things` are those for which the claim fails. `before` and
    `after` are the states around the action."""

    def __init__(self, w: Symbolic, before: State, after: State, args: Sequence[Any], things: Sequence[Any]):
        self.w, self.before, self.after, self.args, self.things = w, before, after, args, things
        self.premises: list[Formula] = []

    def use(self, name: str, *things: Any) -> list[Any]:
        """Makes a claim a premise, for these things and in the state before the action. If the
        claim says that some things exist, returns these."""
        claim = self.w.spec.claims(self.w, self.before)[name]
        found = self.w.fresh(claim.some)
        then = claim.then(*things, *found) if claim.then else True
        self.premises.append(IMP(claim.body(*things), then) if claim.then else claim.body(*things))
        return found

    def lowest(self, sorts: str, is_below: Callable[..., Formula], holds: Callable[..., Formula]) -> list[Any]:
        """Adds a premise by induction. So far, the property `holds` is true of finitely many
        things. So, if it is true of any, it is true of some lowest ones, and these are returned.
        `is_below` compares things; if `sorts` names several, it compares only the first of each
        tuple."""
        w, low = self.w, self.w.fresh(sorts)
        none_is_lower = w.all(sorts, lambda *xs: IMP(holds(*xs), NOT(is_below(xs[0], low[0]))))
        self.premises.append(w.all(sorts, lambda *xs: IMP(holds(*xs), AND(holds(*low), none_is_lower))))
        return low


@dataclass
class Result:
    """What a proof found."""

    failed: list[tuple[str, str, str]]  # action, claim, z3's answer
    spent: dict[str, list[float]]  # by claim: how long each question took, seconds

    @property
    def holds(self) -> bool:
        return not self.failed

    def table(self) -> str:
        bad = {name for _, name, _ in self.failed}
        lines = [f"  {'claim':26} questions     time  holds"]
        for name, took in self.spent.items():
            lines.append(f"  {name:26} {len(took):9} {sum(took) * 1000:5.0f} ms  {'NO' if name in bad else 'yes'}")
        every = [each for took in self.spent.values() for each in took]
        lines.append(
            f"  {len(self.spent)} claims, {len(every)} questions, {len(self.failed)} failed, {sum(every):.1f} s"
        )
        return "\n".join([*lines, *(f"  FAILED {' '.join(each)}" for each in self.failed)])


def prove(
    spec: Spec,
    broken: Iterable[str] = (),
    is_first_enough: bool = False,
    is_asked: bool = True,
    on_question: Callable[[str, z3.Solver], None] | None = None,
) -> Result:
    """Asks z3 for every claim whether it holds at the beginning, and after every action that may
    change it. If `is_asked` is false, the questions are only made and passed to `on_question`."""
    w = Symbolic(spec, broken)
    s, axioms = w.state, [axiom for name, axiom in spec.axioms(w).items() if name not in w.broken]
    before = spec.claims(w, s)
    formulas = {name: claim.formula(w) for name, claim in before.items()}
    held = [formulas[name] for name, claim in before.items() if not claim.some]
    result = Result([], {name: [] for name in before})

    def ask(action: str, name: str, claim: Claim, premises: list[Formula], question: Question) -> None:
        solver = z3.Solver()
        solver.set("timeout", TIMEOUT_MS)
        things = question.things
        fails = (
            AND(claim.body(*things), NOT(w.some(claim.some, lambda *ys: claim.then(*things, *ys))))
            if claim.then
            else NOT(claim.body(*things))
        )
        if fails is False:
            return
        hint = spec.hints.get((action, name)) or spec.hints.get(("", name))
        if hint and action != "initial":  # a hint speaks of the state before, and the beginning has none
            hint(question)
        solver.add(*[p for p in [*premises, *question.premises, fails] if p is not True])
        if on_question:
            on_question(f"{spec.name}-{action}-{name}", solver)
        began = time.perf_counter()
        answer = str(solver.check()) if is_asked else "unsat"
        result.spent[name].append(time.perf_counter() - began)
        if answer != "unsat":
            result.failed.append((action, name, answer))

    for name, claim in before.items():
        ask("initial", name, claim, axioms + spec.initial(w, s), Question(w, s, s, [], w.variables(claim.sorts, "x")))
    for action, sorts in spec.actions.items():
        args = w.variables(sorts, "a")
        rules, changes = w.step(s, action, args)
        after = s.updated(changes)
        premises = axioms + held + [formula for _, formula in rules]
        for name, claim in spec.lemmas.get(action.__name__, lambda *_: {})(w, s, *args).items():
            result.spent.setdefault(name, [])
            question = Question(w, s, s, args, w.variables(claim.sorts, "x"))
            ask(action.__name__, name, claim, premises, question)
            premises.append(claim.formula(w))
        touched = spec.claims(w, after)
        for name, claim in touched.items():
            things = w.variables(claim.sorts, "x")
            if is_same(w, before[name], claim, things):
                continue
            if is_first_enough and result.failed:
                return result
            ask(action.__name__, name, claim, premises, Question(w, s, after, args, things))
    return result


def is_same(w: Symbolic, before: Claim, after: Claim, things: list[Any]) -> bool:
    """Whether a claim is the same formula before and after an action, so that it need not be
    proved."""
    found = w.variables(before.some, "y")

    def both(claim: Claim) -> Formula:
        return IMP(claim.body(*things), claim.then(*things, *found)) if claim.then else claim.body(*things)

    one, other = both(before), both(after)
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return one.eq(other)


# ---------------------------------------------------------------------------------------------------------------------
# Traces.


@dataclass(frozen=True)
class Mutant:
    """Broken rules and a trace. With these rules broken, the trace ends in a wrong answer. With no
    rule broken, a rule refuses a step of the trace."""

    rules: str
    trace: list[tuple]
    fixed: dict[str, Any] = field(default_factory=dict)


@dataclass
class Ran:
    """How a trace ended."""

    refused: str  # the rule that refused a step, "" if none did
    at: str
    broken: list[str]  # the goals that do not hold at the end
    seen: set[str]  # the actions that happened


def run(w: Concrete, trace: list[tuple], is_checked: bool = False) -> Ran:
    """Runs a trace. With `is_checked`, asserts that the axioms hold, that the first state is
    allowed, and that every claim holds after each step."""
    s, seen = w.state, set()
    if is_checked:
        assert all(w.spec.axioms(w).values()), w.spec.axioms(w)
        assert all(w.spec.initial(w, s)), "the beginning"
    for number, (action, *args) in enumerate(trace, 1):
        at = f"step {number}, {action.__name__}"
        sorts = w.spec.actions.get(action, "").split()
        if len(sorts) != len(args) or any(arg not in w.domain[sort] for arg, sort in zip(args, sorts)):
            return Ran("no such thing", at, [], seen)
        rules, changes = w.step(s, action, args)
        refused = [name for name, holds in rules if not holds]
        if refused:
            return Ran(refused[0], at, [], seen)
        s = s.updated(changes, is_remembered=True)
        seen.add(action.__name__)
        if is_checked:
            for name, claim in w.spec.claims(w, s).items():
                assert claim.formula(w), f"{name} does not hold after {at} {args}"
    claims = w.spec.claims(w, s)
    return Ran("", "", [name for name in w.spec.goals if not claims[name].formula(w)], seen)


def rules_of(spec: Spec) -> dict[str, list[str]]:
    """Returns the names of the rules of each action."""
    w = Symbolic(spec)
    found = {}
    for action, sorts in spec.actions.items():
        found[action.__name__] = [name for name, _ in w.step(w.state, action, w.variables(sorts, "a"))[0]]
    return found
