"""Rounds, Promises, votes, disks, grants and the allocator. Two things are proved, for any number
of nodes, data directories, runs, terms, ranges, rounds and requests. No timestamp is given twice. A
request gets a timestamp above every answer that was complete before it arrived. A request for the
latest timestamp gets one that is not below these answers, and below every later one.

Two results come from `raft_log.py`. Entries are applied in one order, in which terms never fall.
Two quorums share a voter where the rules `quorums-meet` and `round-meets-election` say so. Nothing
here reads a clock.
"""

from __future__ import annotations

from logic import AND, EQ, IF, IMP, NOT, OR, Spec, State, World
from rounds_claims import below, claims, lower

SORTS = "Id Store Quorum Term Run Range Round Req Ts"
CONSTANTS = {"ts0": "Ts"}
FIXED = {
    "member": "Store Quorum",  # this voter belongs to the quorum
    "le_term": "Term Term",
    "le_ts": "Ts Ts",
    "id_of": "Store -> Id",  # a store is a data directory, and claims to be this node
    "bound": "Store",  # the store is that of a member: each member's id is bound to one store
    "store": "Run -> Store",  # a run is one boot of the process on one data directory
    "term_of": "Range -> Term",  # a range is what applying one Reserve entry assigns: (low, high]
    "owner": "Range -> Run",
    "low": "Range -> Ts",
    "high": "Range -> Ts",
    "run_of": "Round -> Run",  # a round is one batch of one worker of one run
    "reader": "Req",  # the request asks for the latest timestamp, and takes none
}
STATE = {
    # A node: its memory, its durable state, and the messages that have left it.
    "used": "Run",
    "live": "Run",
    "promised": "Store Term",  # term <= Promise
    "durable": "Store Term",  # term <= the durable term
    "voted": "Store Term Id",  # in memory
    "kept": "Store Term Id",  # the vote is durable
    "sent": "Store Term Store",  # the vote has left
    "campaigns": "Run Term",
    "asked": "Run Term",  # requests for votes have left
    "counted": "Run Term Store",  # the candidate has counted this voter's vote
    "led": "Term Run",  # this run has won this term, at some time
    "won": "Term",
    "winner": "Term -> Run",
    "election": "Term -> Quorum",  # the voters whose votes won the term
    "leads": "Run Term",  # the run leads in this term now
    # The log.
    "proposed": "Range",
    "assigned": "Range",  # committed and applied
    "ceiling": "-> Ts",  # the end of the last range: the next one begins here
    "end": "Range -> Ts",  # the end of a range; it falls when the owner gives the rest back
    "base": "-> Ts",  # the low end of all ranges in a row that the last owner has
    "last_owner": "-> Run",
    "last_term": "-> Term",
    "stopped": "Range",  # the allocator gives nothing of this range any more
    "offered": "Run Term Ts",  # this run has proposed to give back what is above, and the entry is not applied
    "published": "Run Range",  # the ranges of the grant that the workers of this run read
    # Workers.
    "arrived": "Req",
    "joined": "Req",
    "batch": "Req -> Round",
    "closed": "Round",
    "read": "Round",  # the worker has read the publication
    "round_term": "Round -> Term",  # the term of the grant in the publication that the worker has read
    "out": "Round",  # Confirm has been sent
    "yes": "Round Store",
    "later": "Round Term",  # the term had been won when the worker read the publication
    "last": "Run -> Ts",  # the allocator's position
    "stamped": "Req",
    "stamp": "Req -> Ts",
    "source": "Req -> Range",  # the range that the timestamp is taken from, or read from
    "shown": "Req",  # the latest timestamp was read for this request
    "latest_of": "Req -> Ts",  # what was read
    "done": "Req",  # the client has received the answer
    "before": "Req Req",  # the answer to the first request was received before the second arrived
    # Advances by an operator.
    "advanced": "Range Ts",  # an advance to this timestamp of the range was reported: later answers must be above it
    "told": "Range Ts Req",  # the advance was reported before the request arrived
}


def axioms(w: World) -> dict:
    one_store = w.all(
        "Store Store", lambda m, n: IMP(AND(w.bound(m), w.bound(n), EQ(w.id_of(m), w.id_of(n))), EQ(m, n))
    )
    return {
        "terms": w.order(w.le_term, "Term"),
        "timestamps": w.order(w.le_ts, "Ts"),
        "one-store": one_store,
        "quorums": w.all("Quorum", lambda q: w.some("Store", lambda n: w.member(n, q))),
    }


# ---------------------------------------------------------------------------------------------------------------------
# Actions. Each yields its rules, by name, and returns what it changes. A rule whose name begins
# with `is-` says only what the step is about; every other rule has a mutant.


def start(w: World, s: State, r):
    """A process starts. It reads its Promise and its votes from the disk (S4, S6)."""
    n = w.store(r)
    yield "is-new", NOT(s.used(r))
    yield "one-run", w.all("Run", lambda o: IMP(EQ(w.store(o), n), NOT(s.live(o))))
    promised = lambda m, t: IF(EQ(m, n), s.durable(m, t), s.promised(m, t))
    if "restart-promise" in w.broken:
        promised = lambda m, t: AND(s.promised(m, t), NOT(EQ(m, n)))
    voted = lambda m, t, c: IF(EQ(m, n), s.kept(m, t, c), s.voted(m, t, c))
    if "forgotten-vote" in w.broken:
        voted = lambda m, t, c: AND(s.voted(m, t, c), NOT(EQ(m, n)))
    return {
        "used": lambda o: OR(EQ(o, r), s.used(o)),
        "live": lambda o: OR(EQ(o, r), s.live(o)),
        "promised": promised,
        "voted": voted,
    }


def crash(w: World, s: State, r):
    """A process ends, at any time. Messages that it has sent are still under way."""
    yield "is-live", s.live(r)
    return {"live": lambda o: AND(s.live(o), NOT(EQ(o, r)))}


def raise_promise(w: World, s: State, r, t):
    """A process raises its Promise to any term, for any reason."""
    n = w.store(r)
    yield "is-live", s.live(r)
    return {"promised": lambda m, u: OR(s.promised(m, u), AND(EQ(m, n), w.le_term(u, t)))}


def persist(w: World, s: State, r, t):
    """One transaction makes a term durable, together with all votes that are in memory (S6)."""
    n = w.store(r)
    yield "is-live", s.live(r)
    yield "hard-state", w.all("Term Id", lambda u, c: IMP(s.voted(n, u, c), OR(w.le_term(u, t), s.durable(n, u))))
    return {
        "durable": lambda m, u: OR(s.durable(m, u), AND(EQ(m, n), w.le_term(u, t))),
        "kept": lambda m, u, c: IF(EQ(m, n), s.voted(m, u, c), s.kept(m, u, c)),
    }


def campaign(w: World, s: State, r, t):
    """A candidate takes a term above its durable one."""
    yield "is-live", s.live(r)
    yield "new-term", NOT(s.durable(w.store(r), t))
    return {"campaigns": lambda o, u: OR(s.campaigns(o, u), AND(EQ(o, r), EQ(u, t)))}


def ask_votes(w: World, s: State, r, t):
    """A candidate sends its requests for votes, once the term is durable (S6)."""
    yield "is-live", s.live(r)
    yield "is-candidate", s.campaigns(r, t)
    yield "early-campaign", s.durable(w.store(r), t)
    return {"asked": lambda o, u: OR(s.asked(o, u), AND(EQ(o, r), EQ(u, t)))}


def vote(w: World, s: State, r, t, candidate):
    """A voter decides for a candidate, in memory only. It has one vote in a term."""
    n, c = w.store(r), w.id_of(w.store(candidate))
    yield "is-live", s.live(r)
    yield "is-asked", s.asked(candidate, t)
    yield "two-votes", w.all("Id", lambda o: IMP(s.voted(n, t, o), EQ(o, c)))
    return {"voted": lambda m, u, o: OR(s.voted(m, u, o), AND(EQ(m, n), EQ(u, t), EQ(o, c)))}


def send_vote(w: World, s: State, r, t, candidate):
    """The vote leaves. It is durable (S6), the Promise has been raised (S4), and the candidate's
    data directory is that of the member (S8)."""
    n, m, c = w.store(r), w.store(candidate), w.id_of(w.store(candidate))
    yield "is-live", s.live(r)
    yield "is-asked", s.asked(candidate, t)
    yield "is-decided", s.voted(n, t, c)
    yield "asked-by-another-store", w.bound(m)
    yield "early-vote", s.kept(n, t, c)
    yield "late-promise", s.promised(n, t)
    return {"sent": lambda k, u, o: OR(s.sent(k, u, o), AND(EQ(k, n), EQ(u, t), EQ(o, m)))}


def count_vote(w: World, s: State, r, t, n, m):
    """A candidate counts the vote that the store n has sent as the vote of the voter m. Both the id
    and the store of n must be those in the configuration (S8)."""
    yield "is-live", s.live(r)
    yield "is-sent", s.sent(n, t, w.store(r))
    yield "is-named", EQ(w.id_of(n), w.id_of(m))
    yield "vote-of-another-store", EQ(n, m)
    return {"counted": lambda o, u, k: OR(s.counted(o, u, k), AND(EQ(o, r), EQ(u, t), EQ(k, m)))}


def win(w: World, s: State, r, t, q):
    """A quorum has voted for the candidate, so the candidate leads. It drops any older grant in the
    same step."""
    yield "is-live", s.live(r)
    yield "is-asked", s.asked(r, t)
    yield "is-first", NOT(s.led(t, r))
    yield "no-quorum", w.all("Store", lambda m: IMP(w.member(m, q), s.counted(r, t, m)))
    # Proved in raft_log.py.
    meets = w.some("Store", lambda m: AND(w.member(m, q), w.member(m, s.election(t))))
    yield "quorums-meet", IMP(s.won(t), meets)
    return {
        "led": lambda u, o: OR(s.led(u, o), AND(EQ(u, t), EQ(o, r))),
        "won": lambda u: OR(s.won(u), EQ(u, t)),
        "winner": lambda u: IF(EQ(u, t), r, s.winner(u)),
        "election": lambda u: IF(EQ(u, t), q, s.election(u)),
        "leads": lambda o, u: IF(EQ(o, r), EQ(u, t), s.leads(o, u)),
        **forget_grant(w, s, r),
    }


def step_down(w: World, s: State, r):
    """A process stops leading, and drops its grant in the same step (S3)."""
    yield "is-live", s.live(r)
    return {"leads": lambda o, u: AND(s.leads(o, u), NOT(EQ(o, r))), **forget_grant(w, s, r)}


def forget_grant(w: World, s: State, r):
    if "kept-grant" in w.broken:
        return {}
    return {"published": lambda o, x: AND(s.published(o, x), NOT(EQ(o, r)))}


def propose(w: World, s: State, x):
    """A leader appends a reservation to the log of its term (S3)."""
    yield "is-live", s.live(w.owner(x))
    yield "is-new", NOT(s.proposed(x))
    yield "proposes-while-leading", s.leads(w.owner(x), w.term_of(x))
    return {"proposed": lambda y: OR(EQ(y, x), s.proposed(y))}


def assign(w: World, s: State, x):
    """A reservation is committed and applied. It gets the range that begins where the last range
    ended (S5)."""
    yield "is-proposed", s.proposed(x)
    yield "is-new", NOT(s.assigned(x))
    # Proved in raft_log.py: the order in which entries are applied.
    yield "terms-fall", w.all("Range", lambda y: IMP(s.assigned(y), w.le_term(w.term_of(y), w.term_of(x))))
    yield "ranges-overlap", w.le_ts(s.ceiling(), w.low(x))
    yield "is-range", below(w, w.low(x), w.high(x))
    # Follows from raft_log.py, too (README.md, "What is assumed"): what the owner offered to give back earlier was
    # applied earlier.
    r, t = w.owner(x), w.term_of(x)
    yield "log-order", OR(s.stopped(x), w.all("Ts", lambda ts: NOT(s.offered(r, t, ts))))
    top = w.ts0 if "ceiling-falls" in w.broken else w.high(x)
    is_same = AND(EQ(s.last_owner(), r), EQ(s.last_term(), t), w.some("Range", s.assigned))
    return {
        "assigned": lambda y: OR(EQ(y, x), s.assigned(y)),
        "ceiling": lambda: top,
        "end": lambda y: IF(EQ(y, x), w.high(x), s.end(y)),
        "base": lambda: IF(is_same, s.base(), w.low(x)),
        "last_owner": lambda: r,
        "last_term": lambda: t,
    }


def publish(w: World, s: State, r, x):
    """A process that applies a reservation publishes a grant, if the reservation is of this run and
    of the term that the run leads (S3). If the run already has a grant, a range that follows it
    extends it."""
    yield "is-live", s.live(r)
    yield "early-grant", s.assigned(x)
    yield "foreign-grant", EQ(w.owner(x), r)
    yield "grant-without-leading", s.leads(r, w.term_of(x))
    yield "late-grant", NOT(s.stopped(x))
    return {"published": lambda o, y: OR(s.published(o, y), AND(EQ(o, r), EQ(y, x)))}


def withdraw(w: World, s: State, r):
    """A leader that is about to hand over withdraws its grant, and its allocator stops."""
    yield "is-live", s.live(r)
    return {"published": lambda o, x: AND(s.published(o, x), NOT(EQ(o, r)))}


def give_back(w: World, s: State, r, t, ts):
    """The leader proposes to give back what is above a timestamp. Its allocator has stopped before,
    for good: it gives nothing more of any range that was proposed until now (S18)."""
    yield "is-live", s.live(r)
    yield "is-leader", s.leads(r, t)
    yield "offered-before-stop", w.all("Range", lambda x: NOT(s.published(r, x)))
    yield "offered-below-last", w.le_ts(s.last(r), ts)
    return {
        "offered": lambda o, u, e: OR(s.offered(o, u, e), AND(EQ(o, r), EQ(u, t), EQ(e, ts))),
        "stopped": lambda x: OR(s.stopped(x), AND(s.proposed(x), EQ(w.owner(x), r))),
    }


def take_back(w: World, s: State, r, t, ts):
    """The entry is committed and applied: the next range begins at the timestamp (S5, S18)."""
    yield "is-offered", s.offered(r, t, ts)
    yield "is-lower", w.le_ts(ts, s.ceiling())
    yield "back-of-another", AND(EQ(s.last_owner(), r), EQ(s.last_term(), t))
    yield "back-below-range", w.le_ts(s.base(), ts)
    is_cut = lambda x: AND(EQ(w.owner(x), r), EQ(w.term_of(x), t), w.le_ts(ts, s.end(x)))
    return {
        "offered": lambda o, u, e: AND(s.offered(o, u, e), NOT(AND(EQ(o, r), EQ(u, t), EQ(e, ts)))),
        "ceiling": lambda: ts,
        "end": lambda x: IF(is_cut(x), ts, s.end(x)),
    }


def pass_back(w: World, s: State, r, t, ts):
    """The entry is applied and changes nothing, or it is lost."""
    yield "is-offered", s.offered(r, t, ts)
    return {"offered": lambda o, u, e: AND(s.offered(o, u, e), NOT(AND(EQ(o, r), EQ(u, t), EQ(e, ts))))}


def arrive(w: World, s: State, q):
    """A request arrives. Its timestamp must be above every answer that has been received at this
    moment."""
    yield "is-new", NOT(s.arrived(q))
    return {
        "arrived": lambda p: OR(EQ(p, q), s.arrived(p)),
        "before": lambda b, p: IF(EQ(p, q), s.done(b), s.before(b, p)),
        "told": lambda x, ts, p: IF(EQ(p, q), s.advanced(x, ts), s.told(x, ts, p)),
    }


def join(w: World, s: State, q, d):
    """A request joins the open batch of any worker of any run, leader or not."""
    yield "is-arrived", s.arrived(q)
    yield "is-new", NOT(s.joined(q))
    yield "late-join", NOT(s.closed(d))
    return {
        "joined": lambda p: OR(EQ(p, q), s.joined(p)),
        "batch": lambda p: IF(EQ(p, q), d, s.batch(p)),
    }


def close(w: World, s: State, d):
    """The round begins. Its first step is to close the batch (S2)."""
    yield "is-live", s.live(w.run_of(d))
    yield "is-new", NOT(s.closed(d))
    return {"closed": lambda e: OR(EQ(e, d), s.closed(e))}


def read_grant(w: World, s: State, d, x, t):
    """After the close, the worker reads the publication (S2): the grant, about whose term it will
    ask, and the voters that it will ask. This step is `begin_round` in raft_log.py."""
    r = w.run_of(d)
    yield "is-live", s.live(r)
    yield "is-new", NOT(s.read(d))
    yield "read-before-close", s.closed(d)
    yield "without-grant", s.published(r, x)
    if "current-term-asked" in w.broken:
        yield "is-term", s.leads(r, t)
    yield "current-term-asked", EQ(t, w.term_of(x))
    return {
        "read": lambda e: OR(EQ(e, d), s.read(e)),
        "round_term": lambda e: IF(EQ(e, d), t, s.round_term(e)),
        "later": lambda e, u: IF(EQ(e, d), s.won(u), s.later(e, u)),
    }


def send_confirm(w: World, s: State, d):
    """The worker sends Confirm to every voter."""
    yield "is-live", s.live(w.run_of(d))
    yield "is-read", s.read(d)
    return {"out": lambda e: OR(EQ(e, d), s.out(e))}


def answer(w: World, s: State, r, d, n):
    """A node reads the frame, then its Promise, and says yes. The yes counts as that of the voter n
    (S4, S8). The asking node counts itself once it has closed the batch and read the publication.
    The yes may be counted at any later time. It also counts for every round of that run and term
    that had read the publication before the yes, whether its own Confirm was sent by then or not."""
    m = w.store(r)
    own = AND(s.read(d), EQ(m, w.store(w.run_of(d))))
    yield "is-live", s.live(r)
    yield "is-named", EQ(w.id_of(m), w.id_of(n))
    yield "any-reply-counts", OR(s.out(d), own)
    yield "yes-of-another-store", EQ(m, n)
    yield "blind-yes", w.all("Term", lambda u: IMP(s.promised(m, u), w.le_term(u, s.round_term(d))))
    same = lambda e: AND(s.read(e), EQ(w.run_of(e), w.run_of(d)), EQ(s.round_term(e), s.round_term(d)))
    if "yes-of-another-term" in w.broken:
        same = lambda e: AND(s.read(e), EQ(w.run_of(e), w.run_of(d)))
    if "yes-for-later-rounds" in w.broken:
        same = lambda e: EQ(w.run_of(e), w.run_of(d))
    return {"yes": lambda e, k: OR(s.yes(e, k), AND(EQ(k, n), OR(EQ(e, d), same(e))))}


def confirmed(w: World, s: State, q, d, k, x):
    """The rules of the allocator for a request, whether it takes a timestamp or reads the latest
    one. A quorum has confirmed the round. The grant that is published now is of the round's term
    (S3)."""
    r = w.run_of(d)
    yield "is-live", s.live(r)
    yield "is-joined", AND(s.joined(q), EQ(s.batch(q), d))
    yield "is-read", s.read(d)
    yield "unconfirmed", w.all("Store", lambda m: IMP(w.member(m, k), s.yes(d, m)))
    # Proved in raft_log.py.
    is_later = lambda t: AND(s.later(d, t), lower(w, s.round_term(d), t))
    common = lambda t, m: AND(is_later(t), w.member(m, k), w.member(m, s.election(t)))
    yield "round-meets-election", IMP(w.some("Term", is_later), w.some("Term Store", common))
    yield "without-grant", s.published(r, x)
    yield "any-grant", EQ(w.term_of(x), s.round_term(d))


def allocate(w: World, s: State, q, d, k, x, ts):
    """The allocator gives a timestamp, under its lock. The timestamp is in the grant's range and
    above the last timestamp (S1, S3)."""
    r = w.run_of(d)
    yield "is-writer", NOT(w.reader(q))
    yield from confirmed(w, s, q, d, k, x)
    yield "key-used-twice", NOT(s.stamped(q))
    yield "beyond-range", AND(below(w, w.low(x), ts), w.le_ts(ts, w.high(x)))
    yield "allocator-goes-back", below(w, s.last(r), ts)
    return {
        "stamped": lambda p: OR(EQ(p, q), s.stamped(p)),
        "stamp": lambda p: IF(EQ(p, q), ts, s.stamp(p)),
        "source": lambda p: IF(EQ(p, q), x, s.source(p)),
        "last": lambda o: IF(EQ(o, r), ts, s.last(o)),
    }


def show_latest(w: World, s: State, q, d, k, x, ts):
    """The allocator shows the latest timestamp, under its lock (S19). The code shows its last
    timestamp. If that is not above the grant's low end, the code shows the low end: what earlier
    leaders gave is not above it. Here, the allocator may show more, up to the end of the range. It
    gives nothing later that is not above what it has shown."""
    r = w.run_of(d)
    yield "is-reader", w.reader(q)
    yield from confirmed(w, s, q, d, k, x)
    yield "shown-twice", NOT(s.shown(q))
    yield "latest-below-last", w.le_ts(s.last(r), ts)
    yield "latest-below-range", w.le_ts(w.low(x), ts)
    yield "latest-beyond-range", w.le_ts(ts, w.high(x))
    changes = {
        "shown": lambda p: OR(EQ(p, q), s.shown(p)),
        "latest_of": lambda p: IF(EQ(p, q), ts, s.latest_of(p)),
        "source": lambda p: IF(EQ(p, q), x, s.source(p)),
    }
    if "latest-given-later" in w.broken:
        return changes
    return {**changes, "last": lambda o: IF(EQ(o, r), ts, s.last(o))}


def complete(w: World, s: State, q):
    """The client receives the answer, at any time after the timestamp was allocated or read."""
    yield "is-stamped", OR(s.stamped(q), s.shown(q))
    return {"done": lambda p: OR(EQ(p, q), s.done(p))}


def advance(w: World, s: State, x, ts):
    """The leader moves its allocator to a timestamp of its range, so that no later answer is below
    it, and reports the advance in the same step (S14)."""
    r = w.owner(x)
    yield "is-live", s.live(r)
    yield "advance-unreserved", AND(s.published(r, x), w.le_ts(ts, w.high(x)))
    changes = {"advanced": lambda y, u: OR(s.advanced(y, u), AND(EQ(y, x), EQ(u, ts)))}
    if "advance-keeps-range" in w.broken:
        return changes
    return {**changes, "last": lambda o: IF(AND(EQ(o, r), w.le_ts(s.last(r), ts)), ts, s.last(o))}


ACTIONS = {
    start: "Run",
    crash: "Run",
    raise_promise: "Run Term",
    persist: "Run Term",
    campaign: "Run Term",
    ask_votes: "Run Term",
    vote: "Run Term Run",
    send_vote: "Run Term Run",
    count_vote: "Run Term Store Store",
    win: "Run Term Quorum",
    step_down: "Run",
    propose: "Range",
    assign: "Range",
    publish: "Run Range",
    withdraw: "Run",
    give_back: "Run Term Ts",
    take_back: "Run Term Ts",
    pass_back: "Run Term Ts",
    arrive: "Req",
    join: "Req Round",
    close: "Round",
    read_grant: "Round Range Term",
    send_confirm: "Round",
    answer: "Run Round Store",
    allocate: "Req Round Quorum Range Ts",
    show_latest: "Req Round Quorum Range Ts",
    complete: "Req",
    advance: "Range Ts",
}


def initial(w: World, s: State) -> list:
    """At the beginning nothing has happened. Durable terms and Promises have any value, because a
    cluster may be old."""
    no = "used live voted kept sent campaigns asked counted led won leads proposed assigned published arrived "
    no += "joined closed read out yes later stamped shown done before advanced told stopped offered"
    found = [w.all(STATE[name], lambda *a, f=getattr(s, name): NOT(f(*a))) for name in no.split()]
    lowest = w.all("Ts", lambda a: w.le_ts(w.ts0, a))
    return [*found, w.all("Run", lambda r: EQ(s.last(r), w.ts0)), lowest, w.le_ts(s.base(), s.ceiling())]


SPEC = Spec(
    "rounds", SORTS, CONSTANTS, FIXED, STATE, ACTIONS, axioms, initial, claims,
    ("UNIQUE", "ORDER", "ADVANCE", "ADVANCE-LATEST", "LATEST-ABOVE", "LATEST-BELOW", "LATEST-RISES"),
    updates=("restart-promise", "forgotten-vote", "kept-grant", "ceiling-falls", "yes-of-another-term",
             "yes-for-later-rounds", "advance-keeps-range", "latest-given-later"),
)  # fmt: skip
