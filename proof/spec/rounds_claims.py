"""The claims of `rounds.py`. Those in capitals are the promises to users."""

from __future__ import annotations

from logic import AND, EQ, IMP, NOT, OR, Claim, State, World


def below(w: World, one, other):
    return AND(w.le_ts(one, other), NOT(EQ(one, other)))


def lower(w: World, one, other):
    return AND(w.le_term(one, other), NOT(EQ(one, other)))


def claims(w: World, s: State) -> dict[str, Claim]:
    rank = lambda q: w.term_of(s.source(q))
    live_once = lambda a, b: IMP(AND(s.live(a), s.live(b), EQ(w.store(a), w.store(b))), EQ(a, b))
    same_store = lambda a, b: EQ(w.store(a), w.store(b))
    return {
        "run-used": Claim("Run", lambda r: IMP(s.live(r), s.used(r))),
        "run-one": Claim("Run Run", live_once),
        "campaign-used": Claim("Run Term", lambda r, t: IMP(s.campaigns(r, t), s.used(r))),
        "asked-campaign": Claim("Run Term", lambda r, t: IMP(s.asked(r, t), s.campaigns(r, t))),
        "asked-durable": Claim("Run Term", lambda r, t: IMP(s.asked(r, t), s.durable(w.store(r), t))),
        "campaign-once": Claim(
            "Run Run Term",
            lambda a, b, t: IMP(AND(s.campaigns(a, t), s.asked(b, t), same_store(a, b), NOT(EQ(a, b))), NOT(s.live(a))),
        ),
        "asked-once": Claim(
            "Run Run Term", lambda a, b, t: IMP(AND(s.asked(a, t), s.asked(b, t), same_store(a, b)), EQ(a, b))
        ),
        "vote-once": Claim(
            "Store Term Id Id", lambda n, t, a, b: IMP(AND(s.voted(n, t, a), s.voted(n, t, b)), EQ(a, b))
        ),
        "vote-kept": Claim("Store Term Id", lambda n, t, c: IMP(s.kept(n, t, c), s.voted(n, t, c))),
        "vote-term": Claim("Store Term Id", lambda n, t, c: IMP(s.kept(n, t, c), s.durable(n, t))),
        "sent-durable": Claim("Store Term Store", lambda n, t, m: IMP(s.sent(n, t, m), s.kept(n, t, w.id_of(m)))),
        "sent-promised": Claim("Store Term Store", lambda n, t, m: IMP(s.sent(n, t, m), s.promised(n, t))),
        "sent-to-member": Claim("Store Term Store", lambda n, t, m: IMP(s.sent(n, t, m), w.bound(m))),
        "counted-sent": Claim("Run Term Store", lambda r, t, n: IMP(s.counted(r, t, n), s.sent(n, t, w.store(r)))),
        "led-asked": Claim("Term Run", lambda t, r: IMP(s.led(t, r), AND(s.asked(r, t), s.won(t)))),
        "led-quorum": Claim(
            "Term Run Store", lambda t, r, n: IMP(AND(s.led(t, r), w.member(n, s.election(t))), s.counted(r, t, n))
        ),
        "won-led": Claim("Term", lambda t: IMP(s.won(t), s.led(t, s.winner(t)))),
        "won-quorum": Claim(
            "Term Store",
            lambda t, n: IMP(AND(s.won(t), w.member(n, s.election(t))), AND(s.durable(n, t), s.promised(n, t))),
        ),
        "election-safety": Claim("Term Run Run", lambda t, a, b: IMP(AND(s.led(t, a), s.led(t, b)), EQ(a, b))),
        "leads-led": Claim("Run Term", lambda r, t: IMP(s.leads(r, t), s.led(t, r))),
        "proposed-led": Claim("Range", lambda x: IMP(s.proposed(x), s.led(w.term_of(x), w.owner(x)))),
        "assigned-proposed": Claim("Range", lambda x: IMP(s.assigned(x), s.proposed(x))),
        "range-below-ceiling": Claim("Range", lambda x: IMP(s.assigned(x), w.le_ts(s.end(x), s.ceiling()))),
        "range-end": Claim("Range", lambda x: IMP(s.assigned(x), OR(s.stopped(x), EQ(s.end(x), w.high(x))))),
        "base-below-ceiling": Claim("", lambda: w.le_ts(s.base(), s.ceiling())),
        "earlier-below-base": Claim(
            "Range",
            lambda x: IMP(
                s.assigned(x),
                OR(AND(EQ(w.owner(x), s.last_owner()), EQ(w.term_of(x), s.last_term())), w.le_ts(s.end(x), s.base())),
            ),
        ),
        "last-term": Claim("Range", lambda x: IMP(s.assigned(x), w.le_term(w.term_of(x), s.last_term()))),
        "offered-led": Claim("Run Term Ts", lambda r, t, ts: IMP(s.offered(r, t, ts), s.led(t, r))),
        "offered-stopped": Claim(
            "Run Term Ts Range",
            lambda r, t, ts, x: IMP(
                AND(s.offered(r, t, ts), s.assigned(x), EQ(w.owner(x), r), EQ(w.term_of(x), t)), s.stopped(x)
            ),
        ),
        "grant-not-stopped": Claim("Run Range", lambda r, x: IMP(s.published(r, x), NOT(s.stopped(x)))),
        "offered-above-stamps": Claim(
            "Run Term Ts Req",
            lambda r, t, ts, q: IMP(
                AND(s.offered(r, t, ts), s.stamped(q), EQ(w.run_of(s.batch(q)), r), EQ(rank(q), t)),
                w.le_ts(s.stamp(q), ts),
            ),
        ),
        "offered-above-shown": Claim(
            "Run Term Ts Req",
            lambda r, t, ts, q: IMP(
                AND(s.offered(r, t, ts), s.shown(q), EQ(w.run_of(s.batch(q)), r), EQ(rank(q), t)),
                w.le_ts(s.latest_of(q), ts),
            ),
        ),
        "offered-above-advances": Claim(
            "Run Term Ts Range Ts",
            lambda r, t, ts, x, to: IMP(
                AND(s.offered(r, t, ts), s.advanced(x, to), EQ(w.owner(x), r), EQ(w.term_of(x), t)), w.le_ts(to, ts)
            ),
        ),
        "ranges-disjoint": Claim(
            "Range Range",
            lambda x, y: IMP(
                AND(s.assigned(x), s.assigned(y), NOT(EQ(x, y))),
                OR(w.le_ts(s.end(x), w.low(y)), w.le_ts(s.end(y), w.low(x))),
            ),
        ),
        "ranges-rise": Claim(
            "Range Range",
            lambda x, y: IMP(
                AND(s.assigned(x), s.assigned(y), lower(w, w.term_of(x), w.term_of(y))), w.le_ts(s.end(x), w.low(y))
            ),
        ),
        "grant-owned": Claim("Run Range", lambda r, x: IMP(s.published(r, x), AND(s.assigned(x), EQ(w.owner(x), r)))),
        "read-closed": Claim("Round", lambda d: IMP(s.read(d), s.closed(d))),
        "out-read": Claim("Round", lambda d: IMP(s.out(d), s.read(d))),
        "read-led": Claim("Round", lambda d: IMP(s.read(d), s.led(s.round_term(d), w.run_of(d)))),
        "yes-read": Claim("Round Store", lambda d, n: IMP(s.yes(d, n), s.read(d))),
        "joined-arrived": Claim("Req", lambda q: IMP(s.joined(q), s.arrived(q))),
        "done-stamped": Claim("Req", lambda q: IMP(s.done(q), OR(s.stamped(q), s.shown(q)))),
        "stamped-writer": Claim("Req", lambda q: IMP(s.stamped(q), NOT(w.reader(q)))),
        "shown-reader": Claim("Req", lambda q: IMP(s.shown(q), w.reader(q))),
        "before-done": Claim("Req Req", lambda b, a: IMP(s.before(b, a), AND(s.done(b), s.arrived(a)))),
        "stamped-joined": Claim("Req", lambda q: IMP(s.stamped(q), AND(s.joined(q), s.read(s.batch(q))))),
        "stamped-in-range": Claim(
            "Req",
            lambda q: IMP(
                s.stamped(q),
                AND(
                    s.assigned(s.source(q)),
                    EQ(w.owner(s.source(q)), w.run_of(s.batch(q))),
                    below(w, w.low(s.source(q)), s.stamp(q)),
                    w.le_ts(s.stamp(q), s.end(s.source(q))),
                ),
            ),
        ),
        "shown-joined": Claim("Req", lambda q: IMP(s.shown(q), AND(s.joined(q), s.read(s.batch(q))))),
        "shown-in-range": Claim(
            "Req",
            lambda q: IMP(
                s.shown(q),
                AND(
                    s.assigned(s.source(q)),
                    EQ(w.owner(s.source(q)), w.run_of(s.batch(q))),
                    w.le_ts(w.low(s.source(q)), s.latest_of(q)),
                    w.le_ts(s.latest_of(q), s.end(s.source(q))),
                ),
            ),
        ),
        "shown-behind": Claim("Req", lambda q: IMP(s.shown(q), w.le_ts(s.latest_of(q), s.last(w.run_of(s.batch(q)))))),
        "stamped-behind": Claim("Req", lambda q: IMP(s.stamped(q), w.le_ts(s.stamp(q), s.last(w.run_of(s.batch(q)))))),
        # The central claim. Take a complete answer, and a request that arrived after it. When the
        # round of that request read the publication, the term of the answer had already been won.
        # So every voter that elected the leader of that term says no to such a round, if the
        # round's term is lower.
        "later-known": Claim(
            "Req Req",
            lambda b, q: IMP(AND(s.before(b, q), s.joined(q), s.read(s.batch(q))), s.later(s.batch(q), rank(b))),
        ),
        "no-stale-yes": Claim(
            "Round Term Store",
            lambda d, t, n: IMP(
                AND(s.read(d), s.later(d, t), lower(w, s.round_term(d), t), w.member(n, s.election(t))),
                NOT(s.yes(d, n)),
            ),
        ),
        "later-won": Claim("Round Term", lambda d, t: IMP(s.later(d, t), s.won(t))),
        "advanced-owned": Claim(
            "Range Ts",
            lambda x, ts: IMP(
                s.advanced(x, ts), AND(s.assigned(x), w.le_ts(ts, s.end(x)), w.le_ts(ts, s.last(w.owner(x))))
            ),
        ),
        "told-arrived": Claim(
            "Range Ts Req", lambda x, ts, q: IMP(s.told(x, ts, q), AND(s.advanced(x, ts), s.arrived(q)))
        ),
        "told-later": Claim(
            "Range Ts Req",
            lambda x, ts, q: IMP(
                AND(s.told(x, ts, q), s.joined(q), s.read(s.batch(q))), s.later(s.batch(q), w.term_of(x))
            ),
        ),
        "UNIQUE": Claim(
            "Req Req", lambda a, b: IMP(AND(s.stamped(a), s.stamped(b), NOT(EQ(a, b))), NOT(EQ(s.stamp(a), s.stamp(b))))
        ),
        "ORDER": Claim(
            "Req Req",
            lambda b, a: IMP(AND(s.before(b, a), s.stamped(b), s.stamped(a)), below(w, s.stamp(b), s.stamp(a))),
        ),
        "LATEST-ABOVE": Claim(
            "Req Req", lambda b, q: IMP(AND(s.before(b, q), s.stamped(b), s.shown(q)), w.le_ts(s.stamp(b), s.latest_of(q)))
        ),
        "LATEST-BELOW": Claim(
            "Req Req", lambda b, q: IMP(AND(s.before(b, q), s.shown(b), s.stamped(q)), below(w, s.latest_of(b), s.stamp(q)))
        ),
        "LATEST-RISES": Claim(
            "Req Req",
            lambda b, q: IMP(AND(s.before(b, q), s.shown(b), s.shown(q)), w.le_ts(s.latest_of(b), s.latest_of(q))),
        ),
        "ADVANCE": Claim(
            "Range Ts Req", lambda x, ts, q: IMP(AND(s.told(x, ts, q), s.stamped(q)), below(w, ts, s.stamp(q)))
        ),
        "ADVANCE-LATEST": Claim(
            "Range Ts Req", lambda x, ts, q: IMP(AND(s.told(x, ts, q), s.shown(q)), w.le_ts(ts, s.latest_of(q)))
        ),
    }
