"""A list of the functions in the code that each action and rule of the specifications stands for,
and checks that nothing is missing.

Paths begin below `crates/`; each is followed by functions of that file. "the world" stands for
events that no code of ours makes. "the library" is the Raft library, which
`core/src/replica/settle.rs` calls. The name of another specification means that it proves the rule.
A rule that is not listed is in the function of its action.
"""

from __future__ import annotations

import re
from pathlib import Path

from logic import Spec, Symbolic, rules_of

ROOT = Path(__file__).resolve().parents[2]
WORDS = ("the world", "the library", "arithmetic.py", "raft_log.py", "rounds.py")

CODE: dict[str, dict[str, str]] = {
    "rounds": {
        "start": "core/src/publication.rs new; server/src/node.rs start_with_faults",
        "one-run": "server/src/storage/mod.rs open",
        "restart-promise": "core/src/publication.rs new",
        "forgotten-vote": "core/src/log.rs initial_state",
        "crash": "the world",
        "raise_promise": "core/src/promise.rs raise; core/src/replica/settle.rs observe",
        "persist": "core/src/replica/outbox.rs push_write; storage/src/stored.rs after",
        "hard-state": "core/src/replica/settle.rs take_ready",
        "campaign": "core/src/replica/campaign.rs campaign; the library",
        "ask_votes": "core/src/replica/outbox.rs push_message",
        "vote": "core/src/replica/mod.rs handle_message; the library",
        "send_vote": "core/src/replica/outbox.rs push_message persisted",
        "asked-by-another-store": "core/src/replica/refusal.rs check_message; server/src/consensus/bootstrap.rs join",
        "late-promise": "core/src/replica/settle.rs call observe",
        "count_vote": "core/src/replica/refusal.rs check_message; the library",
        "win": "the library; core/src/replica/settle.rs observe_leadership",
        "quorums-meet": "raft_log.py",
        "step_down": "core/src/replica/settle.rs observe; core/src/replica/apply.rs publish_change",
        "kept-grant": "core/src/replica/settle.rs observe",
        "propose": "core/src/replica/reservation.rs reserve",
        "proposes-while-leading": "core/src/replica/reservation.rs reserve; core/src/state.rs reserve",
        "assign": "core/src/state.rs reserve",
        "terms-fall": "raft_log.py",
        "ceiling-falls": "core/src/replica/apply.rs install",
        "publish": "core/src/replica/apply.rs assign",
        "log-order": "raft_log.py",
        "late-grant": "core/src/replica/apply.rs assign; core/src/replica/give_back.rs answer_again",
        "withdraw": "core/src/replica/give_back.rs begin_giving_back; core/src/allocator.rs stop",
        "give_back": "core/src/replica/give_back.rs give_back_if_stopped",
        "offered-before-stop": "core/src/allocator.rs stop; core/src/replica/give_back.rs handle_allocator_stopped",
        "take_back": "core/src/state.rs give_back",
        "pass_back": "core/src/state.rs give_back",
        "arrive": "the world",
        "join": "core/src/sequencer.rs join; core/src/sequencer/wait_queue.rs enter",
        "late-join": "core/src/sequencer/wait_queue.rs close",
        "close": "core/src/confirm.rs begin; core/src/sequencer.rs begin",
        "read_grant": "core/src/confirm.rs begin",
        "send_confirm": "server/src/worker/links.rs ask",
        "answer": "core/src/confirm/answers.rs handle_confirm; core/src/confirm.rs handle_reply",
        "yes-of-another-store": "core/src/confirm.rs count; core/src/quorum.rs position",
        "blind-yes": "core/src/confirm/answers.rs handle_confirm; core/src/confirm.rs count",
        "any-reply-counts": "core/src/confirm.rs handle_reply",
        "yes-of-another-term": "core/src/confirm.rs handle_reply",
        "yes-for-later-rounds": "core/src/confirm.rs handle_reply",
        "allocate": "core/src/allocator.rs allocate",
        "key-used-twice": "core/src/confirm.rs spend",
        "unconfirmed": "core/src/confirm.rs poll_confirmed is_confirmed",
        "round-meets-election": "raft_log.py",
        "allocator-goes-back": "core/src/allocator.rs advanced",
        "show_latest": "core/src/allocator.rs latest; core/src/sequencer.rs complete",
        "shown-twice": "core/src/confirm.rs spend",
        "latest-given-later": "core/src/allocator.rs advanced",
        "complete": "the world",
        "advance": "core/src/replica/advance.rs take_advance",
    },
    "raft_log": {
        "campaign": "core/src/replica/campaign.rs campaign; the library",
        "vote": "core/src/replica/mod.rs handle_message; the library",
        "win": "the library",
        "append": "the library; core/src/replica/mod.rs propose_change",
        "unsafe-change": "arithmetic.py; core/src/replica/apply.rs library_change",
        "disjoint-quorums": "arithmetic.py; core/src/quorum.rs is_quorum",
        "own_ack": "core/src/replica/settle.rs on_persisted; the library",
        "replicate": "core/src/replica/mod.rs handle_message; core/src/log.rs append; the library",
        "append-without-commit": "the library",
        "cuts-always": "the library",
        "cuts-committed": "core/src/replica/refusal.rs contradicts_commit",
        "install": "core/src/replica/apply.rs install; core/src/replica/refusal.rs check_snapshot",
        "crash": "core/src/replica/mod.rs new; the world",
        "learn": "the library",
        "early-ack": "core/src/replica/outbox.rs push_message",
        "commit-forgotten": "core/src/replica/settle.rs take_ready; core/src/durable.rs apply",
        "commit": "the library",
        "apply_change": "core/src/replica/apply.rs apply_membership apply_change",
        "late-voters": "core/src/replica/apply.rs publish_change apply_configuration",
        "begin_round": "core/src/confirm.rs begin",
        "report": "core/src/replica/barrier.rs propose_barrier barrier_state; core/src/admin.rs already answer",
    },
    "lease": {
        "tick": "the world",
        "reach": "core/src/replica/settle.rs take_ready; core/src/lease.rs handle_entries wait_for",
        "hold-counted-early": "server/src/consensus/plane.rs read_lease_clocks; core/src/lease.rs set_clock",
        "install": "core/src/replica/apply.rs install; core/src/lease.rs handle_snapshot",
        "snapshot-of-shorter-lease": "core/src/state.rs apply",
        "truncate": "core/src/log.rs append",
        "truncation-forgets": "core/src/lease.rs handle_entries",
        "forget": "core/src/lease.rs handle_entries wait_for",
        "compact": "core/src/log.rs compact",
        "compaction-forgets": "core/src/lease.rs wait_for",
        "restart-forgets-log": "core/src/replica/lease.rs longest_ms",
        "restart-forgets-state": "core/src/replica/lease.rs longest_ms",
        "falling-terms": "the library",
        "kept-lease": "core/src/replica/settle.rs observe observe_leadership",
        "applied-in-order": "raft_log.py",
        "short-hold": "arithmetic.py",
        "no-wait": "core/src/replica/mod.rs publish; core/src/lease.rs is_over",
        "last-lease-only": "core/src/lease.rs wait_for",
        "last-owner-only": "core/src/lease.rs until_ns",
        "take": "core/src/replica/apply.rs assign; core/src/lease.rs take",
        "lease-counted-late": "core/src/replica/reservation.rs reserve; core/src/lease.rs propose",
        "lease-after-release": "core/src/lease.rs withdraw take",
        "withdraw_lease": "core/src/replica/lease.rs release_lease; core/src/lease.rs withdraw",
        "release": "core/src/replica/lease.rs release_lease; core/src/lease.rs release",
        "release-for-ever": "core/src/lease.rs handle_entries",
        "read_clock": "core/src/confirm.rs prove_by_lease",
        "prove_by_lease": "core/src/confirm.rs prove_by_lease",
    },
    "session": {
        "enter": "client/src/session.rs enter; client/src/waiters.rs enter",
        "leave": "client/src/waiters.rs leave expire",
        "take": "client/src/waiters.rs take_batch",
        "send": "client/src/session/exchange.rs send ask_twice; client/src/session/hedge.rs ask",
        "old-floor": "client/src/session/exchange.rs send ask_twice",
        "allocate": "rounds.py",
        "receive": "client/src/session/exchange.rs answered handle_hedged",
        "parts-overlap": "client/src/waiters.rs answer",
        "give": "client/src/session/state.rs give_out; client/src/waiters.rs answer finish",
        "answer-of-another-request": "client/src/session/exchange.rs take",
        "slot-of-another-call": "client/src/waiters.rs finish",
        "went-backwards": "client/src/session/state.rs check; client/src/directory.rs record_returned",
        "requeue": "client/src/session/exchange.rs end; client/src/waiters.rs requeue",
    },
}
SUM_CODE: dict[str, str] = {
    "quorums of one configuration": "core/src/quorum.rs is_majority_of is_quorum",
    "quorums around a simple change": "core/src/quorum.rs is_majority_of is_quorum",
    "quorums around a joint one": "core/src/quorum.rs is_quorum",
    "quorums of a joint one": "core/src/quorum.rs is_quorum",
    "restore: the floor": "core/src/restore.rs floor latest_clock",
    "a hold outlasts a lease": "core/src/lease.rs lease_ns hold_ns",
}


def places(name: str, text: str) -> list[str]:
    """Returns what is wrong with the places of a specification or of a sum: files and functions that
    do not exist."""
    wrong = []
    for place in text.split("; "):
        if place in WORDS:
            continue
        path, *functions = place.split()
        file = ROOT / "crates" / path
        source = file.read_text(encoding="utf-8") if file.is_file() else ""
        if not source or not functions:
            wrong.append(f"no file, or no function of it: {place}")
        wrong += [f"{path} has no function {name}" for name in functions if not re.search(rf"\bfn {name}\b", source)]
    return wrong


def check_code(specs: list[Spec], sums: list[str]) -> list[str]:
    wrong = [f"{name}: {each}" for name, text in SUM_CODE.items() for each in places(name, text)]
    wrong += [f"no place in the code for: {name}" for name in set(sums) ^ set(SUM_CODE)]
    for spec in specs:
        known, rules = CODE[spec.name], own_rules(spec)
        names = {rule for each in rules.values() for rule in each} | set(spec.updates) | set(rules)
        names |= set(spec.axioms(Symbolic(spec)))
        needed = {action for action in rules if not is_extended(spec, action)}
        # The function of an extended action has the place that it has in the base. So a new rule of it needs its own.
        needed |= {
            rule for action, new in rules.items() if is_extended(spec, action) for rule in new if rule[:3] != "is-"
        }
        wrong += [f"{spec.name}: {name} has no place in the code" for name in sorted(needed - set(known))]
        wrong += [f"{spec.name}: there is no action or rule {name}" for name in known if name not in names]
        wrong += [f"{spec.name}/{name}: {each}" for name, text in known.items() for each in places(spec.name, text)]
    return wrong


def own_rules(spec: Spec) -> dict[str, list[str]]:
    """The rules of each action, without those that the base of the specification has."""
    base = rules_of(spec.base) if spec.base else {}
    found = {name: [rule for rule in rules if rule not in base.get(name, [])] for name, rules in rules_of(spec).items()}
    return {name: rules for name, rules in found.items() if rules or name not in base}


def is_extended(spec: Spec, action: str) -> bool:
    return spec.base is not None and action in {each.__name__ for each in spec.base.actions}


# Specifications whose rules the simulator's monitor does not check. The checkers of
# `proof/sim/src/world/sessions.rs` see every call and every answer of a client's session instead.
UNWATCHED = ["session", "lease"]


def check_monitor(specs: list[Spec]) -> list[str]:
    """Compares the rules that the simulator's monitor checks with those of the specifications, both
    ways. The monitor names a rule "specification/action/rule" where it checks the rule. An update
    may be checked in any action."""
    folder = ROOT / "proof/sim/src"
    files = [folder / "monitor.rs", *sorted((folder / "monitor").glob("*.rs"))]
    source = "\n".join(file.read_text(encoding="utf-8") for file in files if file.name != "tests.rs")
    found = set(re.findall(r'"([a-z_]+/[a-z_]+/[a-z-]+)"', source))
    known, updates = set(), set()
    for spec in [spec for spec in specs if spec.name not in UNWATCHED]:
        rules = rules_of(spec)
        known |= {f"{spec.name}/{action}/{rule}" for action, names in rules.items() for rule in names}
        of_updates = {f"{spec.name}/{action}/{rule}" for action in rules for rule in spec.updates}
        updates |= of_updates
        checked = {name.split("/")[2] for name in found & of_updates}
        known |= {f"{spec.name}/(update)/{rule}" for rule in set(spec.updates) - checked}
    wrong = [f"the monitor does not check {name}" for name in sorted(known - found)]
    return wrong + [f"the monitor checks {name}, which is no rule" for name in sorted(found - known - updates)]


def check_mutants(spec: Spec, broken: list[str]) -> list[str]:
    """Returns a finding for every rule that has no mutant."""
    rules = {rule for each in own_rules(spec).values() for rule in each if not rule.startswith("is-")} | set(
        spec.updates
    )
    return [f"{spec.name}: the rule {rule} has no mutant" for rule in sorted(rules - set(broken))]


# docs/safety.md has at least so many invariants.
INVARIANTS_MIN = 27


def check_safety(claims: set[str], rules: set[str]) -> list[str]:
    """Checks that each invariant of docs/safety.md names claims that exist, or says that none is
    proved, and that every claim or rule named anywhere there exists. Returns what is wrong."""
    text = (ROOT / "docs/safety.md").read_text(encoding="utf-8")
    specs = "|".join(sorted({name.split(":")[0] for name in claims}))
    every = set(re.findall(rf"`((?:{specs}): [^`]+)`", text))
    wrong = [f"docs/safety.md names {name}, which is no claim" for name in sorted(every - claims)]
    named = {name for group in re.findall(r"\[(`[a-z-]+`(?:, `[a-z-]+`)*)\]", text) for name in group.strip("`").split("`, `")}
    wrong += [f"docs/safety.md names {name}, which is no rule" for name in sorted(named - rules)]
    found = re.split(r"^### (S\d+) ", text, flags=re.MULTILINE)[1:]
    for number, section in zip(found[::2], found[1::2]):
        section = re.split(r"^## ", section, flags=re.MULTILINE)[0]
        said = re.search(r"^- \*\*Proved\*\*(.*?)(?=^- |^\n|\Z)", section, flags=re.MULTILINE | re.DOTALL)
        named = re.findall(r"`([a-z_]+): ([^`]+)`", said.group(1)) if said else []
        if not said or not named and "nothing" not in said.group(1):
            wrong.append(f"docs/safety.md: {number} names no claim that is proved, and does not say that there is none")
    is_whole = len(found) >= 2 * INVARIANTS_MIN
    return wrong + ([] if is_whole else [f"docs/safety.md: where are the invariants S1 to S{INVARIANTS_MIN}?"])
