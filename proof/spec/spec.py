#!/usr/bin/env python3
"""Proves the protocol, shows that the specifications are not empty, and that every rule of them matters.

    spec.py                       the proof, the traces, and the check of what names what: seconds
    spec.py mutants               every rule broken: minutes
    spec.py cross-check [DIR]     every question of the proof asked of cvc5, a second solver; written to DIR
    spec.py table                 every claim with its time

README.md explains it. Exit code 0: all of it holds; "unknown" is a failure.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import z3

import arithmetic
import lease
import lease_traces
import places
import logic
import raft_log
import raft_log_traces
import rounds
import rounds_traces
import session

# Each specification, the module of its traces, and the fixed things that its good trace needs.
SPECS = [
    (rounds.SPEC, rounds_traces, rounds_traces.GOOD_WORLD),
    (raft_log.SPEC, raft_log_traces, {"entries": raft_log_traces.GOOD_ENTRIES}),
    (lease.SPEC, lease_traces, lease_traces.GOOD_WORLD),
    (session.SPEC, session, {}),
]
# What a mutant may change of its world: without its broken rules, the world is as it should be.
AXIOMS = ("quorums", "holds")


def prove(is_table: bool) -> bool:
    holds = True
    for spec, _, _ in SPECS:
        result = logic.prove(spec)
        holds &= result.holds
        lines = result.table().splitlines()
        print(f"{spec.name}: {'; '.join(goal for goal in spec.goals)}")
        print("\n".join(lines if is_table or not result.holds else lines[-1:]))
    for each in arithmetic.SUMS:
        answer = str(each.solver().check())
        holds &= answer == "unsat"
        print(f"{each.name}: {'holds' if answer == 'unsat' else f'FAILED {answer}'}")
    return holds


def traces() -> bool:
    """Runs the good trace of each specification: every action must happen, no rule may refuse a
    step, and every claim must hold after each step."""
    holds = True
    for spec, found, fixed in SPECS:
        ran = logic.run(found.concrete(fixed), found.GOOD, is_checked=True)
        unseen = {action.__name__ for action in spec.actions} - ran.seen
        is_good = not (ran.refused or ran.broken or unseen)
        holds &= is_good
        print(f"{spec.name}: a trace of {len(found.GOOD)} steps {'is right' if is_good else f'FAILED {ran} {unseen}'}")
    return holds


def names() -> bool:
    """Checks the names that connect the code, rules, mutants, claims and docs/safety.md."""
    wrong = places.check_code([spec for spec, _, _ in SPECS], [each.name for each in arithmetic.SUMS])
    claims = {f"arithmetic: {each.name}" for each in arithmetic.SUMS}
    for spec, found, _ in SPECS:
        broken = [rule for mutant in found.MUTANTS for rule in mutant.rules.split()] + found.SECOND_LOCKS
        wrong += places.check_mutants(spec, broken)
        claims |= {f"{spec.name}: {name}" for name in logic.prove(spec, is_asked=False).spent}
    rules = {name for spec, _, _ in SPECS for each in logic.rules_of(spec).values() for name in each}
    wrong += places.check_safety(claims, rules | {name for spec, _, _ in SPECS for name in spec.updates})
    wrong += places.check_monitor([spec for spec, _, _ in SPECS])
    print(
        "\n".join(wrong)
        or "names: every rule has a mutant (or begins with is-) and a check in the monitor, every action a place in the code, "
        "every S-rule its claims"
    )
    return not wrong


def mutants() -> bool:
    holds = True
    print("what is broken | what refuses the trace when nothing is | what the trace ends in | where the proof fails")
    for spec, found, _ in SPECS:
        print(spec.name)
        for mutant in found.MUTANTS:
            rules = mutant.rules.split()
            sane = logic.run(found.concrete({k: v for k, v in mutant.fixed.items() if k not in AXIOMS}), mutant.trace)
            ended = logic.run(found.concrete(mutant.fixed, rules), mutant.trace)
            # A mutant may break several rules together. Each of these rules alone must then refuse
            # the trace, so all of them have to be broken.
            others = [[rule for rule in rules if rule != one] for one in rules if len(rules) > 1]
            is_needed = all(logic.run(found.concrete(mutant.fixed, rest), mutant.trace).refused for rest in others)
            failed = logic.prove(spec, rules, is_first_enough=True).failed
            is_found = bool(sane.refused and not ended.refused and ended.broken and failed and is_needed)
            is_found &= all(answer == "sat" for _, _, answer in failed)
            holds &= is_found
            ends = " ".join(ended.broken) or f"NOT WRONG: {ended.refused} {ended.at}"
            where = f"{failed[0][0]}/{failed[0][1]}" if failed else "NOWHERE"
            mark = "ok " if is_found else "BAD"
            print(f"  {mark} {mutant.rules} | {sane.refused} ({sane.at}) | {ends} | {where}", flush=True)
        for rule in found.SECOND_LOCKS:
            failed = logic.prove(spec, [rule], is_first_enough=True).failed
            is_found = bool(failed) and failed[0][2] == "sat"
            holds &= is_found
            where = f"{failed[0][0]}/{failed[0][1]}" if failed else "NOWHERE"
            print(
                f"  {'ok ' if is_found else 'BAD'} {rule} | a second lock: no wrong answer by itself | {where}",
                flush=True,
            )
    for each in arithmetic.SUMS:
        for rule in each.rules:
            answer = str(each.solver([rule]).check())
            holds &= answer == "sat"
            print(f"  {'ok ' if answer == 'sat' else 'BAD'} {each.name}: {rule}")
    return holds


def cross_check(folder: Path) -> bool:
    """Writes the questions of the proof into `folder`, and asks cvc5 each of them."""
    import cvc5

    folder.mkdir(parents=True, exist_ok=True)
    for spec, _, _ in SPECS:
        logic.prove(spec, on_question=lambda name, solver: write(folder, name, solver), is_asked=False)
    for each in arithmetic.SUMS:
        write(folder, each.name, each.solver())
    said: Counter[str] = Counter()
    for path in sorted(folder.glob("*.smt2")):
        solver = cvc5.Solver(cvc5.TermManager())
        solver.setOption("tlimit-per", str(logic.TIMEOUT_MS))
        solver.setOption("enum-inst", "true")
        parser = cvc5.InputParser(solver)
        parser.setFileInput(cvc5.InputLanguage.SMT_LIB_2_6, str(path))
        answer = ""
        while not (command := parser.nextCommand()).isNull():
            answer += command.invoke(solver, parser.getSymbolManager())
        answer = answer.split("\n")[-2] if answer else "nothing"
        said[answer] += 1
        if answer != "unsat":
            print(f"  {path.name}: {answer}", flush=True)
    every = said.total()
    print(f"cvc5 agrees on {said['unsat']} of {every} questions")
    return said["unsat"] == every


def write(folder: Path, name: str, solver: z3.Solver) -> None:
    path = folder / (name.replace(" ", "-").replace(":", "") + ".smt2")
    path.write_text("(set-logic ALL)\n" + solver.to_smt2(), encoding="utf-8")


def main(arguments: list[str]) -> int:
    began = time.monotonic()
    match arguments:
        case [] | ["table"]:
            holds = all([names(), traces(), prove(arguments == ["table"])])
        case ["mutants"]:
            holds = mutants()
        case ["cross-check"]:
            with tempfile.TemporaryDirectory() as folder:
                holds = cross_check(Path(folder))
        case ["cross-check", folder]:
            holds = cross_check(Path(folder))
        case _:
            print(__doc__)
            return 2
    print(f"{'PROVED' if holds else 'FAILED'} in {time.monotonic() - began:.0f} s, z3 {z3.get_version_string()}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
