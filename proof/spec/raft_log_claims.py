"""The claims of `raft_log.py`, and hints for the harder questions of its proof. Claims in capitals
are the results: `rounds.py` uses them, or safety.md names them."""

from __future__ import annotations

from logic import AND, EQ, IMP, NOT, OR, Claim, Question, State, World


def lower(w: World, one, other):
    return AND(w.le_term(one, other), NOT(EQ(one, other)))


def shorter(w: World, one, other):
    """Whether the first entry has a lower index than the second."""
    return AND(w.le_index(w.index(one), w.index(other)), NOT(EQ(w.index(one), w.index(other))))


def end_of(w: World, s: State, n, h):
    """Whether h is the last entry of the node's log."""
    return AND(s.log(n, h), w.all("Entry", lambda y: IMP(s.log(n, y), s.upto(y, h))))


def up_to_date(w: World, x, h):
    same = EQ(w.term_of(h), w.term_of(x))
    return OR(lower(w, w.term_of(h), w.term_of(x)), AND(same, w.le_index(w.index(h), w.index(x))))


def claims(w: World, s: State) -> dict[str, Claim]:
    return {**log_claims(w, s), **election_claims(w, s), **commit_claims(w, s), **change_claims(w, s)}


def log_claims(w: World, s: State) -> dict[str, Claim]:
    T, root, lt = w.term_of, w.root, lambda a, b: lower(w, a, b)
    along = lambda a, b: OR(s.upto(a, b), s.upto(b, a))
    other = lambda x, y: NOT(EQ(x, y))
    return {
        "upto-self": Claim("Entry", lambda x: s.upto(x, x)),
        "upto-created": Claim(
            "Entry Entry", lambda x, y: IMP(AND(s.upto(x, y), other(x, y)), AND(s.created(x), s.created(y)))
        ),
        "upto-transitive": Claim(
            "Entry Entry Entry", lambda x, y, z: IMP(AND(s.upto(x, y), s.upto(y, z)), s.upto(x, z))
        ),
        "upto-line": Claim("Entry Entry Entry", lambda x, y, z: IMP(AND(s.upto(x, z), s.upto(y, z)), along(x, y))),
        "upto-index": Claim("Entry Entry", lambda x, y: IMP(AND(s.upto(x, y), other(x, y)), shorter(w, x, y))),
        "TERMS-NEVER-FALL": Claim("Entry Entry", lambda x, y: IMP(s.upto(x, y), w.le_term(T(x), T(y)))),
        "root-first": Claim("Entry", lambda x: IMP(s.created(x), AND(s.created(root), s.upto(root, x)))),
        "reached-down": Claim(
            "Node Term Term", lambda n, t, u: IMP(AND(s.reached(n, t), w.le_term(u, t)), s.reached(n, u))
        ),
        "left-reached": Claim("Node Term", lambda n, t: IMP(s.left(n, t), s.reached(n, t))),
        "reached-left": Claim("Node Term Term", lambda n, t, u: IMP(AND(s.reached(n, t), lt(u, t)), s.left(n, u))),
        "log-created": Claim("Node Entry", lambda n, x: IMP(s.log(n, x), AND(s.created(x), s.reached(n, T(x))))),
        "log-line": Claim("Node Entry Entry", lambda n, x, y: IMP(AND(s.log(n, x), s.log(n, y)), along(x, y))),
        "log-prefix": Claim("Node Entry Entry", lambda n, x, y: IMP(AND(s.log(n, y), s.upto(x, y)), s.log(n, x))),
        "created-won": Claim(
            "Entry", lambda x: IMP(AND(s.created(x), other(x, root)), AND(s.won(T(x)), s.leader_log(T(x), x)))
        ),
        "leader-log-won": Claim(
            "Term Entry", lambda t, x: IMP(s.leader_log(t, x), AND(s.won(t), s.created(x), w.le_term(T(x), t)))
        ),
        "leader-log-line": Claim(
            "Term Entry Entry", lambda t, x, y: IMP(AND(s.leader_log(t, x), s.leader_log(t, y)), along(x, y))
        ),
        "leader-log-prefix": Claim(
            "Term Entry Entry", lambda t, x, y: IMP(AND(s.leader_log(t, y), s.upto(x, y)), s.leader_log(t, x))
        ),
        "leader-log-base": Claim(
            "Term Entry Entry",
            lambda t, e, x: IMP(AND(s.leader_log(t, e), lt(T(e), t), s.created(x), EQ(T(x), t)), s.upto(e, x)),
        ),
    }


def election_claims(w: World, s: State) -> dict[str, Claim]:
    T, root, lt = w.term_of, w.root, lambda a, b: lower(w, a, b)
    missing = lambda e, v: AND(s.won(v), lt(T(e), v), NOT(s.leader_log(v, e)))
    return {
        "won-term": Claim("Term", lambda t: IMP(s.won(t), lt(T(root), t))),
        "vote-once": Claim(
            "Node Term Node Node", lambda n, t, a, b: IMP(AND(s.voted(n, t, a), s.voted(n, t, b)), EQ(a, b))
        ),
        "vote-term": Claim(
            "Node Term Node", lambda n, t, c: IMP(s.voted(n, t, c), AND(s.reached(n, t), s.reached(c, t)))
        ),
        "head-term": Claim(
            "Node Term Entry",
            lambda c, t, x: IMP(s.head(c, t, x), AND(s.reached(c, t), s.created(x), lt(T(x), t), lt(T(root), t))),
        ),
        "head-one": Claim(
            "Node Term Entry Entry", lambda c, t, x, y: IMP(AND(s.head(c, t, x), s.head(c, t, y)), EQ(x, y))
        ),
        "candidate-term": Claim(
            "Node Term", lambda c, t: IMP(s.candidate(c, t), AND(s.reached(c, t), NOT(s.left(c, t)), lt(T(root), t)))
        ),
        "candidate-head": Claim(
            "Node Term Entry Entry",
            lambda c, t, x, y: IMP(AND(s.candidate(c, t), s.head(c, t, x)), EQ(s.log(c, y), s.upto(y, x))),
        ),
        "candidate-log": Claim(
            "Node Term Entry", lambda c, t, y: IMP(AND(s.candidate(c, t), s.log(c, y)), lt(T(y), t))
        ),
        "candidate-not-leader": Claim("Node Term", lambda c, t: IMP(s.led(t, c), NOT(s.candidate(c, t)))),
        "led-votes": Claim(
            "Term Node Node", lambda t, c, n: IMP(AND(s.led(t, c), w.member(n, s.election(t))), s.voted(n, t, c))
        ),
        "led-won": Claim("Term Node", lambda t, c: IMP(s.led(t, c), AND(s.won(t), s.reached(c, t)))),
        "won-led": Claim("Term", lambda t: IMP(s.won(t), s.led(t, s.winner(t)))),
        "won-head": Claim("Term", lambda t: s.won(t), "Entry", lambda t, h: s.head(s.winner(t), t, h)),
        "leader-log-head": Claim(
            "Term Entry Entry",
            lambda t, h, e: IMP(AND(s.won(t), s.head(s.winner(t), t, h), s.upto(e, h)), s.leader_log(t, e)),
        ),
        "ONE-LEADER": Claim("Term Node Node", lambda t, a, b: IMP(AND(s.led(t, a), s.led(t, b)), EQ(a, b))),
        "leads-led": Claim("Node Term", lambda c, t: IMP(s.leads(c, t), AND(s.led(t, c), NOT(s.left(c, t))))),
        "leads-log": Claim("Node Term Entry", lambda c, t, x: IMP(s.leads(c, t), EQ(s.leader_log(t, x), s.log(c, x)))),
        "acked-created": Claim(
            "Node Entry", lambda n, e: IMP(s.acked(n, e), AND(s.created(e), NOT(EQ(e, root)), s.reached(n, T(e))))
        ),
        # An entry that a node acknowledged is in the node's log, or the leader of a later term that
        # the node has reached lacks the entry.
        "acked-kept": Claim(
            "Node Entry",
            lambda n, e: AND(s.acked(n, e), NOT(s.log(n, e))),
            "Term",
            lambda n, e, v: AND(missing(e, v), s.reached(n, v)),
        ),
        # Two claims about entries of lower terms. A candidate that gets a vote has every such entry
        # that the voter acknowledged, unless a leader of the vote's term, or of a lower term, lacks
        # the entry. A candidate that is elected has every such entry that its voters acknowledged,
        # unless a leader of a lower term lacks the entry.
        "vote-complete": Claim(
            "Node Term Node Entry Entry",
            lambda n, t, c, x, e: AND(s.voted(n, t, c), s.head(c, t, x), s.acked(n, e), lt(T(e), t), NOT(s.upto(e, x))),
            "Term",
            lambda n, t, c, x, e, v: AND(missing(e, v), w.le_term(v, t)),
        ),
        "election-complete": Claim(
            "Term Node Entry",
            lambda t, n, e: AND(
                s.won(t), w.member(n, s.election(t)), s.acked(n, e), lt(T(e), t), NOT(s.leader_log(t, e))
            ),
            "Term",
            lambda t, n, e, v: AND(missing(e, v), lt(v, t)),
        ),
    }


def commit_claims(w: World, s: State) -> dict[str, Claim]:
    T, root, lt = w.term_of, w.root, lambda a, b: lower(w, a, b)
    along = lambda a, b: OR(s.upto(a, b), s.upto(b, a))
    return {
        "committed-acked": Claim(
            "Entry Quorum Entry Node", lambda e, q, c, n: IMP(AND(s.committed(e, q, c), w.member(n, q)), s.acked(n, e))
        ),
        "committed-done": Claim(
            "Entry Quorum Entry",
            lambda e, q, c: IMP(
                s.committed(e, q, c),
                AND(s.done(T(e), e), NOT(EQ(e, root)), w.is_change(c), s.upto(c, e), NOT(EQ(c, e)), w.quorum_of(q, c)),
            ),
        ),
        "committed-lag": Claim(
            "Entry Quorum Entry Entry",
            lambda e, q, c, f: IMP(
                AND(s.committed(e, q, c), w.is_change(f), s.upto(c, f), NOT(EQ(f, c)), s.upto(f, e)), s.next(c, f)
            ),
        ),
        "done-won": Claim("Term Entry", lambda u, e: IMP(s.done(u, e), AND(s.won(u), s.leader_log(u, e)))),
        "done-prefix": Claim("Term Entry Entry", lambda u, e, f: IMP(AND(s.done(u, f), s.upto(e, f)), s.done(u, e))),
        "done-by": Claim(
            "Term Entry",
            lambda u, e: AND(s.done(u, e), NOT(EQ(e, root))),
            "Entry Quorum Entry",
            lambda u, e, f, q, c: AND(
                s.committed(f, q, c), s.upto(e, f), s.upto(c, e), NOT(EQ(c, e)), w.le_term(T(f), u)
            ),
        ),
        # The central claim: every entry that a leader has committed is in the log of every later
        # leader.
        "done-complete": Claim(
            "Term Entry Term", lambda u, e, v: IMP(AND(s.done(u, e), s.won(v), lt(u, v)), s.leader_log(v, e))
        ),
        "COMMITTED-LINE": Claim(
            "Term Entry Term Entry", lambda u, e, v, f: IMP(AND(s.done(u, e), s.done(v, f)), along(e, f))
        ),
        # An entry that was appended after a higher term was won is not in that leader's log.
        "late-missing": Claim(
            "Entry Term", lambda x, v: IMP(s.late(x, v), AND(s.won(v), lt(T(x), v), NOT(s.leader_log(v, x))))
        ),
        "BARRIER": Claim("Entry Term", lambda x, v: IMP(s.reported(x), NOT(s.late(x, v)))),
        "reported-created": Claim("Entry", lambda x: IMP(s.reported(x), s.created(x))),
        "knows-log": Claim("Node Entry", lambda n, e: IMP(s.knows(n, e), s.log(n, e))),
        "knows-prefix": Claim("Node Entry Entry", lambda n, e, f: IMP(AND(s.knows(n, f), s.upto(e, f)), s.knows(n, e))),
        "knows-done": Claim(
            "Node Entry",
            lambda n, e: AND(s.knows(n, e), NOT(EQ(e, root))),
            "Term",
            lambda n, e, u: s.done(u, e),
        ),
        "leader-own": Claim(
            "Node Term Entry", lambda n, t, e: IMP(AND(s.leads(n, t), s.knows(n, e), EQ(T(e), t)), s.done(t, e))
        ),
        "leader-knows-log": Claim("Term Entry", lambda t, e: IMP(s.leader_knows(t, e), s.leader_log(t, e))),
        "leader-knows-done": Claim(
            "Term Entry",
            lambda t, e: AND(s.leader_knows(t, e), NOT(EQ(e, root))),
            "Term",
            lambda t, e, u: s.done(u, e),
        ),
    }


def change_claims(w: World, s: State) -> dict[str, Claim]:
    T, root, lt = w.term_of, w.root, lambda a, b: lower(w, a, b)
    beyond = lambda c, f: AND(w.is_change(f), s.upto(c, f), NOT(EQ(f, c)))
    return {
        "config-one": Claim("Node Entry Entry", lambda n, c, d: IMP(AND(s.config(n, c), s.config(n, d)), EQ(c, d))),
        "config-known": Claim("Node Entry", lambda n, c: IMP(s.config(n, c), AND(w.is_change(c), s.knows(n, c)))),
        "next-change": Claim(
            "Entry Entry", lambda c, f: IMP(s.next(c, f), AND(w.is_change(c), s.created(f), beyond(c, f)))
        ),
        "next-adjacent": Claim(
            "Entry Entry Entry",
            lambda c, g, f: IMP(AND(s.next(c, f), w.is_change(g), s.upto(c, g), s.upto(g, f)), OR(EQ(g, c), EQ(g, f))),
        ),
        "next-known": Claim(
            "Entry Entry",
            lambda c, f: AND(s.created(f), w.is_change(c), beyond(c, f)),
            "Entry",
            lambda c, f, g: OR(s.next(c, f), AND(w.is_change(g), s.upto(g, f), NOT(EQ(g, f)), NOT(s.upto(g, c)))),
        ),
        "next-meets": Claim(
            "Quorum Quorum Entry Entry",
            lambda p, q, c, d: AND(w.quorum_of(p, c), w.quorum_of(q, d), OR(EQ(c, d), s.next(c, d), s.next(d, c))),
            "Node",
            lambda p, q, c, d, n: AND(w.member(n, p), w.member(n, q)),
        ),
        # If a node has a change of members in its log, it knows that all earlier changes are
        # committed. So at most one change in its log is not known to be committed.
        "change-known": Claim(
            "Node Entry Entry", lambda n, e, f: IMP(AND(s.log(n, e), w.is_change(f), beyond(f, e)), s.knows(n, f))
        ),
        "candidate-applied": Claim(
            "Node Term Entry Entry",
            lambda n, t, c, e: IMP(AND(s.candidate(n, t), s.config(n, c), s.knows(n, e), w.is_change(e)), s.upto(e, c)),
        ),
        # A leader of a lower term has committed the configuration of a candidate. Or the candidate learned of the
        # configuration from an election; then each of its quorums has a voter that does not vote for it any more,
        # because that voter has left the term, or has an entry of the term.
        "candidate-done": Claim(
            "Node Term Entry",
            lambda n, t, c: AND(s.candidate(n, t), s.config(n, c), NOT(EQ(c, root)), NOT(s.hopeless(n, t))),
            "Term",
            lambda n, t, c, u: AND(s.done(u, c), lt(u, t)),
        ),
        "candidate-hopeless": Claim(
            "Node Term Entry Quorum",
            lambda n, t, c, q: AND(s.hopeless(n, t), s.candidate(n, t), s.config(n, c), w.quorum_of(q, c)),
            "Node Entry",
            lambda n, t, c, q, m, f: AND(
                w.member(m, q), NOT(s.voted(m, t, n)), OR(s.left(m, t), AND(s.acked(m, f), EQ(T(f), t)))
            ),
        ),
        "hopeless-reached": Claim("Node Term", lambda n, t: IMP(s.hopeless(n, t), s.reached(n, t))),
        "leader-change": Claim(
            "Node Term Entry",
            lambda n, t, e: AND(s.leads(n, t), s.knows(n, e), w.is_change(e), NOT(EQ(e, root))),
            "Term",
            lambda n, t, e, u: AND(s.done(u, e), w.le_term(u, t)),
        ),
        "candidate-lag": Claim(
            "Node Term Entry Entry",
            lambda n, t, c, f: IMP(AND(s.candidate(n, t), s.config(n, c), s.log(n, f), beyond(c, f)), s.next(c, f)),
        ),
        "leader-lag": Claim(
            "Node Term Entry Entry",
            lambda n, t, c, f: IMP(AND(s.leads(n, t), s.config(n, c), s.log(n, f), beyond(c, f)), s.next(c, f)),
        ),
        "asks-config": Claim("Node Term Entry", lambda n, t, c: IMP(s.leads(n, t), EQ(s.asks(t, c), s.config(n, c)))),
        "asks-change": Claim(
            "Term Entry", lambda t, c: IMP(s.asks(t, c), AND(s.won(t), w.is_change(c), s.leader_log(t, c)))
        ),
        "asks-lag": Claim(
            "Term Entry Entry", lambda t, c, f: IMP(AND(s.asks(t, c), s.leader_log(t, f), beyond(c, f)), s.next(c, f))
        ),
        "asks-done": Claim(
            "Term Entry",
            lambda t, c: AND(s.asks(t, c), NOT(EQ(c, root))),
            "Term",
            lambda t, c, u: AND(s.done(u, c), w.le_term(u, t)),
        ),
        "election-lag": Claim(
            "Term Entry Entry",
            lambda t, c, f: IMP(
                AND(s.won(t), s.elected_under(t, c), s.leader_log(t, f), lt(T(f), t), beyond(c, f)), s.next(c, f)
            ),
        ),
        "elected-under": Claim(
            "Term Entry",
            lambda t, c: IMP(
                s.elected_under(t, c),
                AND(s.won(t), w.is_change(c), w.quorum_of(s.election(t), c), s.leader_log(t, c), lt(T(c), t)),
            ),
        ),
        "elected-under-done": Claim(
            "Term Entry",
            lambda t, c: AND(s.elected_under(t, c), NOT(EQ(c, root))),
            "Term",
            lambda t, c, u: AND(s.done(u, c), lt(u, t)),
        ),
        "won-under": Claim("Term", lambda t: s.won(t), "Entry", lambda t, c: s.elected_under(t, c)),
        "ROUND-MEETS": Claim(
            "Term Quorum",
            lambda t, q: s.stale(t, q),
            "Term Node",
            lambda t, q, u, n: AND(s.won(u), lt(t, u), w.member(n, q), w.member(n, s.election(u))),
        ),
    }


# ---------------------------------------------------------------------------------------------------------------------
# Hints for the harder questions: the claims with "for some" that a question needs, and the things
# for which it needs them.


def win_lemmas(w: World, s: State, n, t, x, c, q) -> dict[str, Claim]:
    return {
        "win: has what is committed": Claim(
            "Term Entry", lambda u, e: IMP(AND(s.done(u, e), lower(w, u, t)), s.upto(e, x))
        ),
        "win: the quorums of a term meet": Claim(
            "", lambda: s.won(t), "Node", lambda m: AND(w.member(m, q), w.member(m, s.election(t)))
        ),
        "win: the first of its term": Claim("", lambda: NOT(s.won(t))),
    }


def commit_lemmas(w: World, s: State, n, t, x, q, c) -> dict[str, Claim]:
    return {
        "commit: later leaders have it": Claim("Term", lambda v: IMP(AND(s.won(v), lower(w, t, v)), s.leader_log(v, x)))
    }


lemmas = {"win": win_lemmas, "commit": commit_lemmas}


def has_hope(ask: Question) -> None:
    """The winner's configuration was committed by a leader of a lower term."""
    n, t, x, c, q = ask.args
    ask.use("candidate-done", n, t, c)
    ask.use("candidate-hopeless", n, t, c, q)


def has_what_is_committed(ask: Question) -> None:
    """Take the first committed entry that the winner's log lacks. Either the quorum that committed
    it meets the quorum of the election. Or a configuration is between those of the two quorums, and
    one of the two logs cannot lack it."""
    w, s, (n, t, x, c, q) = ask.w, ask.before, ask.args
    is_missing = lambda e, u: AND(s.done(u, e), lower(w, u, t), NOT(s.upto(e, x)))
    e, u = ask.lowest("Entry Term", lambda a, b: shorter(w, a, b), is_missing)
    f, p, d = ask.use("done-by", u, e)
    (m,) = ask.use("next-meets", p, q, d, c)
    ask.use("vote-complete", m, t, n, x, f)
    has_hope(ask)


def quorums_of_a_term_meet(ask: Question) -> None:
    s, (n, t, x, c, q) = ask.before, ask.args
    (d,) = ask.use("won-under", t)
    ask.use("next-meets", s.election(t), q, d, c)
    ask.use("elected-under-done", t, d)
    has_hope(ask)


def later_leaders_have_it(ask: Question) -> None:
    """Take the lowest later term whose leader lacks the committed entry x."""
    w, s, (n, t, x, q, c) = ask.w, ask.before, ask.args
    (v,) = ask.lowest(
        "Term", lambda a, b: lower(w, a, b), lambda v: AND(s.won(v), lower(w, t, v), NOT(s.leader_log(v, x)))
    )
    (d,) = ask.use("won-under", v)
    (m,) = ask.use("next-meets", q, s.election(v), c, d)
    ask.use("election-complete", v, m, x)
    ask.use("elected-under-done", v, d)
    ask.use("asks-done", t, c)


def round_meets(ask: Question) -> None:
    """Take the lowest later term that was won."""
    w, s, (t, q, c) = ask.w, ask.before, ask.args
    ask.use("ROUND-MEETS", *ask.things)
    (v,) = ask.lowest("Term", lambda a, b: lower(w, a, b), lambda v: AND(s.won(v), lower(w, t, v)))
    (d,) = ask.use("won-under", v)
    ask.use("next-meets", q, s.election(v), c, d)
    ask.use("elected-under-done", v, d)
    ask.use("asks-done", t, c)


def same(name: str):
    """A hint: the claim held for the same things before the action."""
    return lambda ask: ask.use(name, *ask.things) and None


def done_by(ask: Question) -> None:
    (n, t, x, q, c), (u, e) = ask.args, ask.things
    ask.use("done-by", u, e)
    (v,) = ask.use("asks-done", t, c)
    ask.use("done-by", v, e)


def election_complete(ask: Question) -> None:
    (n, t, x, c, q), (u, m, e) = ask.args, ask.things
    ask.use("election-complete", u, m, e)
    ask.use("vote-complete", m, t, n, x, e)


def acked_kept_by_voter(ask: Question) -> None:
    ask.use("vote-complete", *ask.things)
    ask.use("acked-kept", ask.args[0], ask.things[4])


def known_by_follower(ask: Question) -> None:
    (n, t, x, k), (m, e) = ask.args, ask.things
    ask.use("knows-done", m, e)
    ask.use("leader-knows-done", t, k)


def known_by_snapshot(ask: Question) -> None:
    (n, t, x, c), (m, e) = ask.args, ask.things
    ask.use("knows-done", m, e)
    ask.use("leader-knows-done", t, x)


def known_by_winner(ask: Question) -> None:
    (n, t, x, c, q), (u, e) = ask.args, ask.things
    ask.use("leader-knows-done", u, e)
    ask.use("knows-done", n, e)


def elected_under_done(ask: Question) -> None:
    (n, t, x, c, q), (u, d) = ask.args, ask.things
    ask.use("elected-under-done", u, d)
    has_hope(ask)


def asks_done_by_winner(ask: Question) -> None:
    (n, t, x, c, q), (u, d) = ask.args, ask.things
    ask.use("asks-done", u, d)
    has_hope(ask)


def asks_done_by_leader(ask: Question) -> None:
    (n, e, c), (u, d) = ask.args, ask.things
    ask.use("asks-done", u, d)
    ask.use("leader-change", n, u, e)


def change_of_winner(ask: Question) -> None:
    ask.use("leader-change", *ask.things)
    has_hope(ask)


def hopeless_at_first(ask: Question) -> None:
    """Take the quorum that committed the candidate's configuration."""
    (n, t, h, c), (m, u, d, q) = ask.args, ask.things
    ask.use("candidate-hopeless", m, u, d, q)
    (v,) = ask.use("knows-done", n, c)
    f, p, before = ask.use("done-by", v, c)
    ask.use("next-meets", p, q, before, c)


def still_hopeless(ask: Question) -> None:
    found = ask.use("candidate-hopeless", *ask.things)
    ask.use("acked-kept", *found)


hints = {
    ("win", "win: has what is committed"): has_what_is_committed,
    ("win", "win: the quorums of a term meet"): quorums_of_a_term_meet,
    ("commit", "commit: later leaders have it"): later_leaders_have_it,
    ("begin_round", "ROUND-MEETS"): round_meets,
    ("commit", "done-by"): done_by,
    ("win", "election-complete"): election_complete,
    ("vote", "vote-complete"): acked_kept_by_voter,
    ("replicate", "knows-done"): known_by_follower,
    ("replicate", "knows-log"): known_by_follower,
    ("install", "knows-done"): known_by_snapshot,
    ("install", "knows-log"): known_by_snapshot,
    ("win", "leader-knows-done"): known_by_winner,
    ("win", "elected-under-done"): elected_under_done,
    ("win", "asks-done"): asks_done_by_winner,
    ("apply_change", "asks-done"): asks_done_by_leader,
    ("win", "leader-change"): change_of_winner,
    ("campaign", "candidate-hopeless"): hopeless_at_first,
    ("vote", "candidate-hopeless"): still_hopeless,
    ("campaign", "candidate-lag"): lambda ask: ask.use("next-known", ask.things[2], ask.things[3]) and None,
    **{("", name): same(name) for name in (
        "won-head", "acked-kept", "vote-complete", "election-complete", "done-by", "knows-done", "candidate-done",
        "candidate-hopeless", "leader-change", "leader-knows-done", "next-known", "next-meets", "elected-under-done", "won-under", "asks-done",
        "ROUND-MEETS",
    )},
}  # fmt: skip
