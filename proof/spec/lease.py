"""The leader lease: `rounds.py` with a second way to prove an answer. A leader marks a reservation
with a lease. Once it has applied the reservation, its workers answer without a round until the
lease is over. The next leader finds the reservation in its log, and publishes no grant before the
lease is over. The promises of `rounds.py` are proved again, for any mix of answers by round and
by lease.

One result comes from `raft_log.py`: what was committed in a lower term is in the log of a leader
before it applies an entry of its own (`applied-in-order`). One comes from `arithmetic.py`: a hold is
longer than a lease, although clocks drift (`short-hold`). Members may change: who votes for whom
does not matter here.

A tick is a moment of true time. Clocks are never compared. `good` says that the owner's clock, read
at a later moment, still shows that a lease of some length lasts. `over` says that another node's
clock has counted a hold of some length between two moments.
"""

from __future__ import annotations

import rounds
from lease_claims import claims
from logic import AND, EQ, IF, IMP, NOT, OR, Spec, State, World
from rounds_claims import lower

SORTS = rounds.SORTS + " Tick Length"
FIXED = {
    **rounds.FIXED,
    "marked": "Range",  # the reservation carries a lease
    "length": "Range -> Length",  # `lease_ms`
    "le_tick": "Tick Tick",
    "le_length": "Length Length",
    "good": "Tick Tick Length",  # a lease that began at the first moment may look good at the second
    "over": "Tick Tick Length",  # a hold that began at the first moment may be over at the second
}
STATE = {
    **rounds.STATE,
    "now": "-> Tick",
    "proposed_at": "Range -> Tick",
    # What a node knows of leases.
    "entered": "Store Range",  # the entry is in the node's log, or in its state
    "compacted": "Store Range",  # the entry is in its state only
    "noted": "Run Range",  # the run has noted when the entry reached it
    "came": "Run Range -> Tick",  # this is when: the hold begins
    "hold": "Run Range -> Length",  # the hold is that of a lease of this length
    "granted": "Range",  # the range has been in a published grant, at some time
    # The lease of a run.
    "lease": "Run Range",  # the lease that is published beside the grant: that of this reservation
    "lease_from": "Run -> Tick",  # when it began
    "withdrawn": "Range",  # the owner has published that it has no lease, and takes none of this reservation
    "released": "Range",  # a Release of its owner is behind the reservation in the log
    # Workers.
    "seen": "Round Range",  # the lease in the publication that the worker has read
    "seen_from": "Round -> Tick",
    "clocked": "Round",  # the worker has read the clock
    "clock": "Round -> Tick",
    "leased": "Round",  # the lease was good, and proves the batch
    "past": "Round Range",  # the range had been granted when the worker read the publication
}


def axioms(w: World) -> dict:
    return {
        **rounds.axioms(w),
        "ticks": w.order(w.le_tick, "Tick"),
        "lengths": w.order(w.le_length, "Length"),
        # Proved in arithmetic.py. A hold that does not begin before the lease, and is not that of a
        # shorter one, ends after it.
        "short-hold": w.all(
            "Tick Tick Tick Tick Length Length",
            lambda a, b, c, d, l, m: IMP(
                AND(w.le_tick(a, b), w.le_length(l, m), w.good(a, c, l), w.over(b, d, m)), NOT(w.le_tick(d, c))
            ),
        ),
    }


def changed(steps, changes: dict):
    """The rules of an action of `rounds.py`, which changes more here."""
    more = yield from steps
    return {**more, **changes}


def no_lease(w: World, s: State, r) -> dict:
    return {"lease": lambda o, x: AND(s.lease(o, x), NOT(EQ(o, r)))}


def forget_lease(w: World, s: State, r) -> dict:
    return {} if "kept-lease" in w.broken else no_lease(w, s, r)


# ---------------------------------------------------------------------------------------------------------------------
# Time, and the arrival of entries.


def tick(w: World, s: State, a):
    """Time passes."""
    yield "is-later", w.le_tick(s.now(), a)
    return {"now": lambda: a}


def start(w: World, s: State, r):
    """A process starts. The holds of all entries that its log or its state has begin now, because
    it does not know when they came."""
    n = w.store(r)
    found = lambda x: s.entered(n, x)
    if "restart-forgets-log" in w.broken:
        found = lambda x: s.compacted(n, x)
    if "restart-forgets-state" in w.broken:
        found = lambda x: AND(s.entered(n, x), NOT(s.compacted(n, x)))
    return (
        yield from changed(
            rounds.start(w, s, r),
            {
                "noted": lambda o, x: OR(s.noted(o, x), AND(EQ(o, r), found(x))),
                "came": lambda o, x: IF(EQ(o, r), s.now(), s.came(o, x)),
                "hold": lambda o, x: IF(EQ(o, r), w.length(x), s.hold(o, x)),
            },
        )
    )


def note(w: World, s: State, r, x, a, length) -> dict:
    """The changes when a run notes the arrival of an entry. It may keep an earlier arrival, which is
    also one after the proposal."""
    is_new = lambda o, y: AND(EQ(o, r), EQ(y, x), NOT(s.noted(r, x)))
    return {
        "noted": lambda o, y: OR(s.noted(o, y), AND(EQ(o, r), EQ(y, x))),
        "came": lambda o, y: IF(is_new(o, y), a, s.came(o, y)),
        "hold": lambda o, y: IF(is_new(o, y), length, s.hold(o, y)),
    }


def reach(w: World, s: State, r, x, a):
    """An entry reaches a node, which appends it and notes the time, before or after the entry is
    durable."""
    yield "is-live", s.live(r)
    yield "is-proposed", s.proposed(x)
    yield "hold-counted-early", w.le_tick(s.now(), a)
    entered = {"entered": lambda n, y: OR(s.entered(n, y), AND(EQ(n, w.store(r)), EQ(y, x)))}
    return entered if "arrival-forgotten" in w.broken else {**entered, **note(w, s, r, x, a, w.length(x))}


def install(w: World, s: State, r, x, length):
    """An entry reaches a node in a snapshot, which says only what the longest lease is that the
    state ever had. A backup from which a new history begins is such a snapshot, too."""
    n = w.store(r)
    yield "is-live", s.live(r)
    yield "is-proposed", s.proposed(x)
    yield "snapshot-of-shorter-lease", w.le_length(w.length(x), length)
    entered = {
        "entered": lambda m, y: OR(s.entered(m, y), AND(EQ(m, n), EQ(y, x))),
        "compacted": lambda m, y: OR(s.compacted(m, y), AND(EQ(m, n), EQ(y, x))),
    }
    return entered if "snapshot-forgotten" in w.broken else {**entered, **note(w, s, r, x, s.now(), length)}


def truncate(w: World, s: State, r, x):
    """A node loses an entry of its log, for any reason. It keeps the times that it has noted."""
    yield "is-live", s.live(r)
    lost = {"entered": lambda n, y: AND(s.entered(n, y), NOT(AND(EQ(n, w.store(r)), EQ(y, x))))}
    if "truncation-forgets" in w.broken:
        lost["noted"] = lambda o, y: AND(s.noted(o, y), NOT(AND(EQ(o, r), EQ(w.owner(y), w.owner(x)))))
    return lost


def forget(w: World, s: State, r, x):
    """A node forgets the time of an entry that it has lost."""
    yield "is-live", s.live(r)
    yield "forgets-what-it-has", NOT(s.entered(w.store(r), x))
    return {"noted": lambda o, y: AND(s.noted(o, y), NOT(AND(EQ(o, r), EQ(y, x))))}


def compact(w: World, s: State, r, x):
    """A node drops an entry from its log. The entry is in its state, and the node keeps the time that
    it has noted."""
    yield "is-live", s.live(r)
    yield "is-entered", s.entered(w.store(r), x)
    dropped = {"compacted": lambda n, y: OR(s.compacted(n, y), AND(EQ(n, w.store(r)), EQ(y, x)))}
    if "compaction-forgets" in w.broken:
        dropped["noted"] = lambda o, y: AND(s.noted(o, y), NOT(AND(EQ(o, r), EQ(y, x))))
    return dropped


# ---------------------------------------------------------------------------------------------------------------------
# Leaders.


def win(w: World, s: State, r, t, q):
    """A run leads. A candidate has only one term, its latest: see `candidate` in raft_log.py."""
    yield "falling-terms", w.all("Term", lambda u: IMP(s.led(u, r), w.le_term(u, t)))
    return (yield from changed(rounds.win(w, s, r, t, q), forget_lease(w, s, r)))


def step_down(w: World, s: State, r):
    """The lease ends with the grant, in the same step."""
    return (yield from changed(rounds.step_down(w, s, r), forget_lease(w, s, r)))


def withdraw(w: World, s: State, r):
    """Without a grant, there is no lease."""
    return (yield from changed(rounds.withdraw(w, s, r), no_lease(w, s, r)))


def propose(w: World, s: State, x):
    """A leader appends a reservation, with or without a lease."""
    is_released = lambda y: AND(s.released(y), EQ(w.owner(y), w.owner(x)))
    changes = {
        "proposed_at": lambda y: IF(EQ(y, x), s.now(), s.proposed_at(y)),
        "entered": lambda n, y: OR(s.entered(n, y), AND(EQ(n, w.store(w.owner(x))), EQ(y, x))),
    }
    if "release-for-ever" in w.broken:
        changes["released"] = lambda y: OR(s.released(y), AND(EQ(y, x), w.some("Range", is_released)))
    return (yield from changed(rounds.propose(w, s, x), changes))


def publish(w: World, s: State, r, x):
    """A leader publishes a grant only after every lease of another run is over or released. It waits
    for each reservation of a lower term that has a lease and that it has noted."""
    # Proved in raft_log.py: COMMITTED-LINE with TERMS-NEVER-FALL.
    is_earlier = lambda y: AND(s.assigned(y), lower(w, w.term_of(y), w.term_of(x)))
    yield "applied-in-order", w.all("Range", lambda y: IMP(is_earlier(y), s.entered(w.store(r), y)))
    is_foreign = lambda y: AND(lower(w, w.term_of(y), w.term_of(x)), NOT(EQ(w.owner(y), r)))
    waits = lambda y: AND(s.noted(r, y), w.marked(y), is_foreign(y))
    counted = waits
    if "last-lease-only" in w.broken:  # of an owner, only the lease that was marked last
        is_later = lambda y, z: AND(waits(z), EQ(w.owner(z), w.owner(y)), NOT(w.le_ts(w.low(z), w.low(y))))
        counted = lambda y: AND(waits(y), NOT(w.some("Range", lambda z: is_later(y, z))))
    if "last-owner-only" in w.broken:
        is_newer = lambda y, z: AND(waits(z), lower(w, w.term_of(y), w.term_of(z)))
        counted = lambda y: AND(waits(y), NOT(w.some("Range", lambda z: is_newer(y, z))))
    is_over = lambda y: w.over(s.came(r, y), s.now(), s.hold(r, y))
    yield "no-wait", w.all("Range", lambda y: IMP(counted(y), OR(s.released(y), is_over(y))))
    granted = {"granted": lambda y: OR(s.granted(y), EQ(y, x))}
    return (yield from changed(rounds.publish(w, s, r, x), granted))


def take(w: World, s: State, r, x, a):
    """A leader that applies its own reservation publishes the lease of it. The lease begins at the
    moment `a`: the leader has read its clock before it proposed. A later lease replaces an earlier
    one."""
    yield "is-live", s.live(r)
    yield "is-marked", w.marked(x)
    yield "lease-from-proposal", s.assigned(x)
    yield "lease-of-another-run", EQ(w.owner(x), r)
    yield "lease-without-leading", s.leads(r, w.term_of(x))
    yield "lease-counted-late", w.le_tick(a, s.proposed_at(x))
    yield "lease-after-release", NOT(s.withdrawn(x))
    return {
        "lease": lambda o, y: IF(EQ(o, r), EQ(y, x), s.lease(o, y)),
        "lease_from": lambda o: IF(EQ(o, r), a, s.lease_from(o)),
    }


def withdraw_lease(w: World, s: State, r):
    """The first half of a release: the leader publishes that it has no lease. It takes none of what
    it has proposed so far."""
    yield "is-live", s.live(r)
    withdrawn = {"withdrawn": lambda y: OR(s.withdrawn(y), AND(s.proposed(y), EQ(w.owner(y), r)))}
    return withdrawn if "released-before-publication" in w.broken else {**withdrawn, **no_lease(w, s, r)}


def release(w: World, s: State, r):
    """The second half: the leader appends Release, behind everything that it has proposed. In the
    code, both halves are one step. Here it is enough that the leader has marked nothing between
    them."""
    yield "is-live", s.live(r)
    is_own = lambda y: AND(s.proposed(y), EQ(w.owner(y), r))
    yield "marked-between", w.all("Range", lambda y: IMP(AND(is_own(y), w.marked(y)), s.withdrawn(y)))
    return {"released": lambda y: OR(s.released(y), is_own(y))}


# ---------------------------------------------------------------------------------------------------------------------
# Workers.


def read_grant(w: World, s: State, d, x, t):
    """The publication has the lease, too."""
    r = w.run_of(d)
    changes = {
        "seen": lambda e, y: IF(EQ(e, d), s.lease(r, y), s.seen(e, y)),
        "seen_from": lambda e: IF(EQ(e, d), s.lease_from(r), s.seen_from(e)),
        "past": lambda e, y: IF(EQ(e, d), s.granted(y), s.past(e, y)),
    }
    return (yield from changed(rounds.read_grant(w, s, d, x, t), changes))


def read_clock(w: World, s: State, d):
    """After the publication, the worker reads the clock."""
    yield "is-live", s.live(w.run_of(d))
    yield "is-new", NOT(s.clocked(d))
    yield "clock-before-publication", s.read(d)
    return {
        "clocked": lambda e: OR(s.clocked(e), EQ(e, d)),
        "clock": lambda e: IF(EQ(e, d), s.now(), s.clock(e)),
    }


def prove_by_lease(w: World, s: State, d, x):
    """The lease in the publication was good when the clock was read, so it proves the batch. It need
    not be good any more."""
    yield "is-live", s.live(w.run_of(d))
    yield "is-read", AND(s.read(d), s.clocked(d))
    yield "without-lease", s.seen(d, x)
    yield "lease-over", w.good(s.seen_from(d), s.clock(d), w.length(x))
    return {"leased": lambda e: OR(s.leased(e), EQ(e, d))}


def or_by_lease(s: State, d, steps):
    """The rules of the allocator. The rules about the round need not hold for a batch that a lease
    has proved."""
    while True:
        try:
            name, rule = next(steps)
        except StopIteration as end:
            return end.value
        yield name, OR(s.leased(d), rule) if name in ("unconfirmed", "round-meets-election") else rule


def allocate(w: World, s: State, q, d, k, x, ts):
    return (yield from or_by_lease(s, d, rounds.allocate(w, s, q, d, k, x, ts)))


def show_latest(w: World, s: State, q, d, k, x, ts):
    return (yield from or_by_lease(s, d, rounds.show_latest(w, s, q, d, k, x, ts)))


CHANGED = (start, win, step_down, withdraw, propose, publish, read_grant, allocate, show_latest)
ADDED = {
    tick: "Tick",
    reach: "Run Range Tick",
    install: "Run Range Length",
    truncate: "Run Range",
    forget: "Run Range",
    compact: "Run Range",
    take: "Run Range Tick",
    withdraw_lease: "Run",
    release: "Run",
    read_clock: "Round",
    prove_by_lease: "Round Range",
}
HERE = {action.__name__: action for action in CHANGED}
ACTIONS = {HERE.get(action.__name__, action): sorts for action, sorts in rounds.ACTIONS.items()} | ADDED


def initial(w: World, s: State) -> list:
    """At the beginning there are no leases."""
    no = "entered compacted noted granted lease withdrawn released seen clocked leased past"
    return rounds.initial(w, s) + [w.all(STATE[name], lambda *a, f=getattr(s, name): NOT(f(*a))) for name in no.split()]


SPEC = Spec(
    "lease", SORTS, rounds.CONSTANTS, FIXED, STATE, ACTIONS, axioms, initial, claims, rounds.SPEC.goals,
    updates=("restart-forgets-log", "restart-forgets-state", "arrival-forgotten", "snapshot-forgotten",
             "truncation-forgets", "compaction-forgets", "kept-lease", "release-for-ever", "last-lease-only",
             "last-owner-only", "released-before-publication"),
    base=rounds.SPEC,
)  # fmt: skip
