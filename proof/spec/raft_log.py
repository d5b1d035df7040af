"""Raft's log while members change. Four things are proved, for any number of nodes, terms, entries
and changes of members. Committed entries are one sequence, in which terms never fall. A term has
one leader. If a higher term was won before a round began, every quorum of that round has a voter
that elected a leader of a higher term. If a barrier is reported as done, no leader of a higher term
had been elected when the barrier was appended (S17). `rounds.py` uses the first three results.

An entry stands for its leader's term, its index and the whole log before it. A configuration stands
for the entry that makes it. A node uses a configuration once it has applied that entry. A learner
is in no quorum. `arithmetic.py` proves that two majorities meet if one simple or joint change is
between their configurations. Pre-votes change nothing and are left out.
"""

from __future__ import annotations

from logic import AND, EQ, IF, IMP, NOT, OR, Spec, State, World
from raft_log_claims import claims, end_of, hints, lemmas, lower, shorter, up_to_date

SORTS = "Node Quorum Term Entry Index"
CONSTANTS = {"root": "Entry"}
FIXED = {
    "member": "Node Quorum",
    "le_term": "Term Term",
    "le_index": "Index Index",
    "term_of": "Entry -> Term",
    "index": "Entry -> Index",
    "is_change": "Entry",  # the entry makes a configuration; the root does
    "quorum_of": "Quorum Entry",  # the quorum is one of the configuration that the entry makes
}
STATE = {
    "created": "Entry",
    "upto": "Entry Entry",  # the first entry is in the log that ends with the second
    "reached": "Node Term",  # term <= the node's durable term
    "left": "Node Term",  # term < the node's durable term
    "log": "Node Entry",  # in memory
    "knows": "Node Entry",  # index <= the node's commit index
    "config": "Node Entry",  # the configuration that the node has applied
    "voted": "Node Term Node",  # durable, and has left
    "candidate": "Node Term",
    "head": "Node Term Entry",  # the end of the node's log when it asked for votes in this term
    # The node campaigned in this term, and no leader of a lower term had committed its configuration. It had learned of
    # the configuration from an election, and cannot win.
    "hopeless": "Node Term",
    "won": "Term",
    "led": "Term Node",
    "winner": "Term -> Node",
    "election": "Term -> Quorum",  # the voters whose votes won the term
    "elected_under": "Term Entry",  # the configuration in which these voters are a quorum
    "leads": "Node Term",
    "asks": "Term Entry",  # the configuration that this term's leader has published: rounds ask its voters
    "leader_log": "Term Entry",  # the entry was in the log of the term's leader
    "leader_knows": "Term Entry",  # the leader of the term knew that the entry was committed
    "acked": "Node Entry",  # the node has acknowledged the entry in the entry's own term, and has it on disk
    "committed": "Entry Quorum Entry",  # committed by acknowledgements of this quorum, in this configuration
    "done": "Term Entry",  # the leader of this term committed the entry, or a later one
    "next": "Entry Entry",  # the second configuration was made from the first
    "late": "Entry Term",  # this higher term had been won when the entry was appended
    "reported": "Entry",  # a leader has reported that this barrier is done
    "stale": "Term Quorum",  # a round of this term began after a higher one was won, and asks this quorum
}


def axioms(w: World) -> dict:
    return {
        "terms": w.order(w.le_term, "Term"),
        "indexes": w.order(w.le_index, "Index"),
        "first-term": w.all("Term", lambda t: w.le_term(w.term_of(w.root), t)),
        "first-index": w.all("Index", lambda i: w.le_index(w.index(w.root), i)),
        "genesis": w.is_change(w.root),
        # Two quorums of one configuration meet: proved in arithmetic.py.
        "disjoint-quorums": w.all(
            "Quorum Quorum Entry",
            lambda p, q, c: IMP(
                AND(w.quorum_of(p, c), w.quorum_of(q, c)), w.some("Node", lambda n: AND(w.member(n, p), w.member(n, q)))
            ),
        ),
    }


def moves(w: World, s: State, n, t) -> dict:
    """The changes when a node goes to the term t: it has left all lower terms."""
    return {
        "reached": lambda m, u: OR(s.reached(m, u), AND(EQ(m, n), w.le_term(u, t))),
        "left": lambda m, u: OR(s.left(m, u), AND(EQ(m, n), lower(w, u, t))),
    }


def follows(s: State, n, condition=True) -> dict:
    return {
        "candidate": lambda m, u: AND(s.candidate(m, u), NOT(AND(EQ(m, n), condition))),
        "leads": lambda m, u: AND(s.leads(m, u), NOT(AND(EQ(m, n), condition))),
    }


def counts(w: World, y, t):
    """Whether an acknowledgement given in term t counts for entry y: only if y is of that term."""
    return True if "counts-old-terms" in w.broken else EQ(w.term_of(y), t)


def changes_before(w: World, s: State, end, known):
    """In the log up to `end`, every change of members before the last one is in the log up to
    `known`."""
    return w.all(
        "Entry Entry",
        lambda e, f: IMP(
            AND(w.is_change(e), w.is_change(f), s.upto(e, end), s.upto(f, e), NOT(EQ(e, f))), s.upto(f, known)
        ),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Actions. Each yields its rules, by name, and returns what it changes. A rule whose name begins
# with `is-` says only what the step is about; every other rule has a mutant.


def campaign(w: World, s: State, n, t, h, c):
    """A node takes a new term and asks for votes. It has applied every change that it knows to be committed."""
    yield "new-term", NOT(s.reached(n, t))
    yield "is-end", end_of(w, s, n, h)
    yield "is-configuration", s.config(n, c)
    yield "unapplied-change", w.all("Entry", lambda e: IMP(AND(s.knows(n, e), w.is_change(e)), s.upto(e, c)))
    is_of_no_lower_term = w.all("Term", lambda u: IMP(s.done(u, c), w.le_term(t, u)))
    return {
        **moves(w, s, n, t),
        "candidate": lambda m, u: IF(EQ(m, n), EQ(u, t), s.candidate(m, u)),
        "head": lambda m, u, x: OR(s.head(m, u, x), AND(EQ(m, n), EQ(u, t), EQ(x, h))),
        "hopeless": lambda m, u: OR(s.hopeless(m, u), AND(EQ(m, n), EQ(u, t), NOT(EQ(c, w.root)), is_of_no_lower_term)),
        "leads": lambda m, u: AND(s.leads(m, u), NOT(EQ(m, n))),
    }


def vote(w: World, s: State, n, t, c, x, h):
    """A node votes, for a candidate whose log is not behind its own. It gives one vote in a term,
    and none in a term below its own. The vote is durable before it leaves."""
    yield "is-asked", s.head(c, t, x)
    yield "vote-in-old-term", NOT(s.left(n, t))
    yield "two-votes", w.all("Node", lambda o: IMP(s.voted(n, t, o), EQ(o, c)))
    yield "is-end", end_of(w, s, n, h)
    yield "vote-for-log-behind", up_to_date(w, x, h)
    voted = lambda m, u, o: OR(s.voted(m, u, o), AND(EQ(m, n), EQ(u, t), EQ(o, c)))
    return {**moves(w, s, n, t), **follows(s, n, NOT(EQ(n, c))), "voted": voted}


def win(w: World, s: State, n, t, x, c, q):
    """A candidate wins a term. A quorum of the configuration that the candidate has applied has
    voted for it."""
    yield "is-candidate", AND(s.candidate(n, t), s.head(n, t, x))
    yield "elected-under-another-configuration", s.config(n, c)
    yield "is-quorum", w.quorum_of(q, c)
    yield "elected-without-quorum", w.all("Node", lambda m: IMP(w.member(m, q), s.voted(m, t, n)))
    return {
        "won": lambda u: OR(s.won(u), EQ(u, t)),
        "led": lambda u, m: OR(s.led(u, m), AND(EQ(u, t), EQ(m, n))),
        "winner": lambda u: IF(EQ(u, t), n, s.winner(u)),
        "election": lambda u: IF(EQ(u, t), q, s.election(u)),
        "elected_under": lambda u, e: OR(s.elected_under(u, e), AND(EQ(u, t), EQ(e, c))),
        "asks": lambda u, e: IF(EQ(u, t), EQ(e, c), s.asks(u, e)),
        "leads": lambda m, u: IF(EQ(m, n), EQ(u, t), s.leads(m, u)),
        "candidate": lambda m, u: AND(s.candidate(m, u), NOT(EQ(m, n))),
        "leader_log": lambda u, y: OR(s.leader_log(u, y), AND(EQ(u, t), s.log(n, y))),
        "leader_knows": lambda u, y: OR(s.leader_knows(u, y), AND(EQ(u, t), s.knows(n, y))),
    }


def append(w: World, s: State, n, t, x, h, c):
    """The leader appends a new entry of its term. The entry may change the members only if the
    leader has applied all earlier changes, and only if each quorum before the change meets each
    quorum after it."""
    yield "is-leader", s.leads(n, t)
    yield "is-new", NOT(s.created(x))
    yield "is-of-its-term", EQ(w.term_of(x), t)
    yield "is-end", end_of(w, s, n, h)
    yield "is-after", shorter(w, h, x)
    yield "is-configuration", s.config(n, c)
    is_before = lambda e: IMP(AND(w.is_change(e), s.log(n, e)), s.upto(e, c))
    yield "two-changes", IMP(w.is_change(x), w.all("Entry", is_before))
    meet = lambda p, q: w.some("Node", lambda m: AND(w.member(m, p), w.member(m, q)))
    yield "unsafe-change", IMP(
        w.is_change(x),
        w.all("Quorum Quorum", lambda p, q: IMP(AND(w.quorum_of(p, c), w.quorum_of(q, x)), meet(p, q))),
    )
    return {
        "created": lambda y: OR(s.created(y), EQ(y, x)),
        "upto": lambda a, b: OR(s.upto(a, b), AND(EQ(b, x), s.upto(a, h))),
        "log": lambda m, y: OR(s.log(m, y), AND(EQ(m, n), EQ(y, x))),
        "leader_log": lambda u, y: OR(s.leader_log(u, y), AND(EQ(u, t), EQ(y, x))),
        "next": lambda a, b: OR(s.next(a, b), AND(w.is_change(x), EQ(a, c), EQ(b, x))),
        "late": lambda y, v: IF(EQ(y, x), AND(s.won(v), lower(w, t, v)), s.late(y, v)),
    }


def own_ack(w: World, s: State, n, t, x):
    """The leader acknowledges the entries of its own log that are durable."""
    yield "is-leader", s.leads(n, t)
    yield "is-in-log", s.log(n, x)
    return {"acked": lambda m, y: OR(s.acked(m, y), AND(EQ(m, n), s.upto(y, x), counts(w, y, t)))}


def replicate(w: World, s: State, n, t, x, k):
    """A follower takes a part of the log of a term's leader, with the commit index k, at any time
    after it was sent. It acknowledges this part once it is durable. It cuts off its own log only
    where its own log contradicts this part, and nothing that it knows to be committed."""
    yield "is-sent", AND(s.leader_log(t, x), s.leader_knows(t, k), s.upto(k, x))
    yield "append-without-commit", changes_before(w, s, x, k)
    yield "cuts-committed", OR(s.log(n, x), w.all("Entry", lambda e: IMP(s.knows(n, e), s.upto(e, x))))
    yield from follower(w, s, n, t)
    return take_log(w, s, n, t, x, k)


def install(w: World, s: State, n, t, x, c):
    """A follower takes a snapshot instead of the log up to x. The snapshot is the state that the
    leader has applied at x, with the configuration at x. Compaction needs no action, because the
    snapshot stands for the whole log up to x."""
    yield "is-sent", s.leader_log(t, x)
    yield "snapshot-of-uncommitted", s.leader_knows(t, x)
    yield "is-configuration", AND(w.is_change(c), s.upto(c, x))
    yield "snapshot-without-configuration", w.all(
        "Entry", lambda e: IMP(AND(w.is_change(e), s.upto(e, x)), s.upto(e, c))
    )
    yield "snapshot-goes-back", w.all("Entry", lambda e: IMP(s.config(n, e), s.upto(e, c)))
    yield from follower(w, s, n, t)
    config = lambda m, e: IF(EQ(m, n), EQ(e, c), s.config(m, e))
    return {**take_log(w, s, n, t, x, x), "config": config}


def learn(w: World, s: State, n, x, u):
    """A node learns from a message of an election that an entry of its log is committed. Messages of
    pre-votes change no term, so a leader of a term that the node has not reached may have committed
    it. A candidate follows again if a change of members is committed so: it has not applied that
    change."""
    yield "learns-while-leading", w.all("Term", lambda t: NOT(s.leads(n, t)))
    yield "is-in-log", s.log(n, x)
    yield "learns-uncommitted", s.done(u, x)
    is_new_change = w.some("Entry", lambda e: AND(w.is_change(e), s.upto(e, x), NOT(s.knows(n, e))))
    return {
        "knows": lambda m, y: OR(s.knows(m, y), AND(EQ(m, n), s.upto(y, x))),
        "candidate": s.candidate
        if "campaigns-on" in w.broken
        else lambda m, v: AND(s.candidate(m, v), NOT(AND(EQ(m, n), is_new_change))),
    }


def follower(w: World, s: State, n, t):
    yield "ack-in-old-term", NOT(s.left(n, t))
    yield "is-other", NOT(s.leads(n, t))


def take_log(w: World, s: State, n, t, x, k) -> dict:
    keeps = s.log(n, x) if "cuts-always" not in w.broken else False
    return {
        **moves(w, s, n, t),
        **follows(s, n),
        "log": lambda m, y: IF(AND(EQ(m, n), NOT(keeps)), s.upto(y, x), s.log(m, y)),
        "acked": lambda m, y: OR(s.acked(m, y), AND(EQ(m, n), s.upto(y, x), counts(w, y, t))),
        "knows": lambda m, y: OR(s.knows(m, y), AND(EQ(m, n), s.upto(y, k))),
    }


def crash(w: World, s: State, n, y, k, c):
    """A node crashes and forgets what is not durable. An entry and the commit index that came with
    it are durable together, in one transaction. After the restart the node has applied at least the
    entries of its record, and uses the configuration c of that record."""
    yield "is-end", AND(s.log(n, y), s.knows(n, k), s.upto(k, y))
    yield "early-ack", w.all("Entry", lambda e: IMP(AND(s.acked(n, e), s.log(n, e)), s.upto(e, y)))
    yield "commit-forgotten", changes_before(w, s, y, k)
    yield "is-configuration", AND(w.is_change(c), s.upto(c, k))
    return {
        "log": lambda m, z: IF(EQ(m, n), s.upto(z, y), s.log(m, z)),
        "knows": lambda m, z: IF(EQ(m, n), s.upto(z, k), s.knows(m, z)),
        "config": lambda m, z: IF(EQ(m, n), EQ(z, c), s.config(m, z)),
        **follows(s, n),
    }


def commit(w: World, s: State, n, t, x, q, c):
    """A quorum has acknowledged an entry in the entry's own term. So the entry is committed, and
    all entries before it."""
    yield "is-leader", s.leads(n, t)
    yield "is-in-log", AND(s.log(n, x), s.upto(c, x), NOT(EQ(c, x)))
    yield "counts-old-terms", EQ(w.term_of(x), t)
    yield "counted-in-another-configuration", s.config(n, c)
    yield "is-quorum", w.quorum_of(q, c)
    yield "committed-without-quorum", w.all("Node", lambda m: IMP(w.member(m, q), s.acked(m, x)))
    return {
        "committed": lambda y, p, d: OR(s.committed(y, p, d), AND(EQ(y, x), EQ(p, q), EQ(d, c))),
        "done": lambda u, y: OR(s.done(u, y), AND(EQ(u, t), s.upto(y, x))),
        "knows": lambda m, y: OR(s.knows(m, y), AND(EQ(m, n), s.upto(y, x))),
        "leader_knows": lambda u, y: OR(s.leader_knows(u, y), AND(EQ(u, t), s.upto(y, x))),
    }


def apply_change(w: World, s: State, n, e, c):
    """A node applies the entry e, the next change after its configuration c, and uses the
    configuration e from now on. A leader publishes the new voters in the same step (S7)."""
    yield "is-configuration", AND(s.config(n, c), w.is_change(e), s.upto(c, e), NOT(EQ(c, e)))
    yield "applies-uncommitted", s.knows(n, e)
    is_before = lambda f: IMP(AND(w.is_change(f), s.upto(f, e), NOT(EQ(f, e))), s.upto(f, c))
    yield "is-next", w.all("Entry", is_before)
    asks = s.asks if "late-voters" in w.broken else lambda u, z: IF(s.leads(n, u), EQ(z, e), s.asks(u, z))
    return {"config": lambda m, z: IF(EQ(m, n), EQ(z, e), s.config(m, z)), "asks": asks}


def begin_round(w: World, s: State, t, q, c):
    """A round of the leader of term t begins, perhaps when that leader does not lead any more. The
    round asks the voters that the leader published last."""
    yield "is-led", s.won(t)
    yield "old-voters", s.asks(t, c)
    yield "is-quorum", w.quorum_of(q, c)
    is_late = w.some("Term", lambda u: AND(s.won(u), lower(w, t, u)))
    return {"stale": lambda u, p: OR(s.stale(u, p), AND(EQ(u, t), EQ(p, q), is_late))}


def report(w: World, s: State, n, t, x):
    """A leader reports to an operator that a command has been carried out already. The leader
    appended the barrier x when the command came, and has applied the barrier in the same term
    (S17)."""
    yield "is-leader", s.leads(n, t)
    yield "barrier-of-another-term", EQ(w.term_of(x), t)
    yield "barrier-uncommitted", s.knows(n, x)
    return {"reported": lambda y: OR(s.reported(y), EQ(y, x))}


ACTIONS = {
    campaign: "Node Term Entry Entry",
    vote: "Node Term Node Entry Entry",
    win: "Node Term Entry Entry Quorum",
    append: "Node Term Entry Entry Entry",
    own_ack: "Node Term Entry",
    replicate: "Node Term Entry Entry",
    install: "Node Term Entry Entry",
    learn: "Node Entry Term",
    crash: "Node Entry Entry Entry",
    commit: "Node Term Entry Quorum Entry",
    apply_change: "Node Entry Entry",
    begin_round: "Term Quorum Entry",
    report: "Node Term Entry",
}


def initial(w: World, s: State) -> list:
    """At the beginning, every node has the genesis and nothing else."""
    no = "voted candidate head won led elected_under asks leads leader_log leader_knows acked committed done next stale"
    no += " left late reported hopeless"
    found = [w.all(STATE[name], lambda *a, f=getattr(s, name): NOT(f(*a))) for name in no.split()]
    found.append(w.all("Entry", lambda x: EQ(s.created(x), EQ(x, w.root))))
    found.append(w.all("Entry Entry", lambda x, y: EQ(s.upto(x, y), EQ(x, y))))
    for name in ("log", "knows", "config"):
        found.append(w.all("Node Entry", lambda n, x, f=getattr(s, name): EQ(f(n, x), EQ(x, w.root))))
    found.append(w.all("Node Term", lambda n, t: EQ(s.reached(n, t), EQ(t, w.term_of(w.root)))))
    return found


SPEC = Spec(
    "raft_log", SORTS, CONSTANTS, FIXED, STATE, ACTIONS, axioms, initial, claims,
    ("COMMITTED-LINE", "TERMS-NEVER-FALL", "ONE-LEADER", "ROUND-MEETS", "BARRIER"),
    hints, lemmas, ("cuts-always", "late-voters", "campaigns-on"),
)  # fmt: skip
