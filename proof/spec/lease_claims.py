"""The claims of `lease.py`: those of `rounds.py`, and these about leases."""

from __future__ import annotations

import rounds_claims
from logic import AND, EQ, IMP, NOT, OR, Claim, State, World
from rounds_claims import lower


def claims(w: World, s: State) -> dict[str, Claim]:
    T = w.term_of
    own = lambda x, d: AND(EQ(w.owner(x), w.run_of(d)), EQ(T(x), s.round_term(d)))
    return {
        **rounds_claims.claims(w, s),
        # A run leads one term at a time, and its terms rise. Its grant and its lease are of this term.
        "leads-one": Claim("Run Term Term", lambda r, t, u: IMP(AND(s.leads(r, t), s.leads(r, u)), EQ(t, u))),
        "leads-newest": Claim("Run Term Term", lambda r, t, u: IMP(AND(s.leads(r, t), s.led(u, r)), w.le_term(u, t))),
        "grant-leads": Claim("Run Range", lambda r, x: IMP(s.published(r, x), s.leads(r, T(x)))),
        "published-granted": Claim("Run Range", lambda r, x: IMP(s.published(r, x), s.granted(x))),
        "granted-assigned": Claim("Range", lambda x: IMP(s.granted(x), s.assigned(x))),
        "stamped-granted": Claim("Req", lambda q: IMP(OR(s.stamped(q), s.shown(q)), s.granted(s.source(q)))),
        "advanced-granted": Claim("Range Ts", lambda x, ts: IMP(s.advanced(x, ts), s.granted(x))),
        "lease-owned": Claim(
            "Run Range",
            lambda r, x: IMP(
                s.lease(r, x),
                AND(
                    s.assigned(x),
                    w.marked(x),
                    EQ(w.owner(x), r),
                    s.leads(r, T(x)),
                    NOT(s.withdrawn(x)),
                    w.le_tick(s.lease_from(r), s.proposed_at(x)),
                ),
            ),
        ),
        "proposed-before": Claim("Range", lambda x: IMP(s.proposed(x), w.le_tick(s.proposed_at(x), s.now()))),
        # Holds: a run has noted every entry of another run that its log or its state has. It counts
        # from a moment after the proposal, and long enough.
        "entered-proposed": Claim("Store Range", lambda n, x: IMP(s.entered(n, x), s.proposed(x))),
        "entered-noted": Claim(
            "Run Range",
            lambda r, x: IMP(AND(s.live(r), s.entered(w.store(r), x), NOT(EQ(w.owner(x), r))), s.noted(r, x)),
        ),
        "noted-after": Claim(
            "Run Range",
            lambda r, x: IMP(s.noted(r, x), AND(s.proposed(x), w.le_tick(s.proposed_at(x), s.came(r, x)))),
        ),
        "hold-covers": Claim("Run Range", lambda r, x: IMP(s.noted(r, x), w.le_length(w.length(x), s.hold(r, x)))),
        "withdrawn-proposed": Claim("Range", lambda x: IMP(s.withdrawn(x), s.proposed(x))),
        "released-withdrawn": Claim("Range", lambda x: IMP(AND(s.released(x), w.marked(x)), s.withdrawn(x))),
        # A leader has published a grant. Then every lease of another run in a lower term is withdrawn,
        # or looks over at any clock that is read from now on.
        "granted-after-leases": Claim(
            "Range Range Tick Tick",
            lambda y, x, a, c: IMP(
                AND(
                    s.granted(y),
                    s.assigned(x),
                    w.marked(x),
                    lower(w, T(x), T(y)),
                    NOT(EQ(w.owner(x), w.owner(y))),
                    w.le_tick(a, s.proposed_at(x)),
                    w.le_tick(s.now(), c),
                    w.good(a, c, w.length(x)),
                ),
                s.withdrawn(x),
            ),
        ),
        # What the worker has read.
        "seen-read": Claim(
            "Round Range",
            lambda d, x: IMP(
                s.seen(d, x),
                AND(s.read(d), s.assigned(x), w.marked(x), own(x, d), w.le_tick(s.seen_from(d), s.proposed_at(x))),
            ),
        ),
        "clocked-read": Claim("Round", lambda d: IMP(s.clocked(d), s.read(d))),
        "leased-read": Claim("Round", lambda d: IMP(s.leased(d), s.read(d))),
        "past-read": Claim("Round Range", lambda d, y: IMP(s.past(d, y), AND(s.read(d), s.granted(y)))),
        "past-known": Claim(
            "Req Req",
            lambda b, q: IMP(AND(s.before(b, q), s.joined(q), s.read(s.batch(q))), s.past(s.batch(q), s.source(b))),
        ),
        "past-told": Claim(
            "Range Ts Req",
            lambda x, ts, q: IMP(AND(s.told(x, ts, q), s.joined(q), s.read(s.batch(q))), s.past(s.batch(q), x)),
        ),
        # The central claim. A grant of a higher term had been published when the worker read the
        # publication. Then the lease that the worker has read looks over at every later clock, and
        # at the one that the worker reads.
        "no-stale-lease": Claim(
            "Round Range Range Tick",
            lambda d, y, x, c: IMP(
                AND(s.past(d, y), s.seen(d, x), lower(w, s.round_term(d), T(y)), w.le_tick(s.now(), c)),
                NOT(w.good(s.seen_from(d), c, w.length(x))),
            ),
        ),
        "no-stale-clock": Claim(
            "Round Range Range",
            lambda d, y, x: IMP(
                AND(s.past(d, y), s.seen(d, x), lower(w, s.round_term(d), T(y)), s.clocked(d)),
                NOT(w.good(s.seen_from(d), s.clock(d), w.length(x))),
            ),
        ),
        # The lease proves the same as a round: no higher term had answered before the batch closed.
        "LEASED-NEWEST": Claim(
            "Round Range", lambda d, y: IMP(AND(s.leased(d), s.past(d, y)), w.le_term(T(y), s.round_term(d)))
        ),
    }
