"""The session of a client: callers share requests, a request may be sent twice, and a lost one is
sent again. Three things are proved, for any number of callers, requests and clients. A caller never
gets a timestamp that was allocated before its call (C1). It never gets one that another caller got
(C2). It gets only one that is above every timestamp that its client had returned before its request
was sent (C7).

Two rules say what the oracle does: `oracle-unique` and `oracle-order`. `rounds.py` proves them. C7
is proved without them. Each caller asks for one timestamp of its own. Callers that ask for the
latest timestamp may share one, and are left out.
"""

from __future__ import annotations

from logic import AND, EQ, IF, IMP, NOT, OR, Claim, Concrete, Mutant, Spec, State, World

SORTS = "Client Slot Call Request Sending Ts"
CONSTANTS = {"ts0": "Ts"}
FIXED = {
    "le_ts": "Ts Ts",
    "caller_of": "Call -> Client",
    "client_of": "Request -> Client",
    "slot": "Call -> Slot",  # slots of calls that have ended are used again
    "of": "Sending -> Request",  # a request has one sending, and one more for each copy by hedging
    "value": "Sending Call -> Ts",  # the part of the answer to a sending that is cut for a call
}
STATE = {
    "entered": "Call",
    "waiting": "Call",
    "placed": "Call Request",  # the call is in the batch of the request, and has no result yet
    "begun": "Request",  # the request has been sent at least once
    "sent": "Sending",
    "floor": "Sending -> Ts",  # the highest timestamp that any call of the client had got when this was sent
    "highest": "Client -> Ts",
    "allocated": "Sending",
    "received": "Sending",
    "returned": "Call",
    "result": "Call -> Ts",
    "given_by": "Call -> Sending",
    # The order of events: each relation says that one event was before another.
    "heard": "Sending Call",  # the answer had been received, by any client, when the call entered
    "older": "Sending Sending",  # the answer to the first had been received when the second was sent
    "returned_before": "Call Sending",  # the call, of the same client, had its result when the sending left
    "early": "Sending Call",  # the oracle allocated for the sending before the call entered
}


def below(w: World, one, other):
    return AND(w.le_ts(one, other), NOT(EQ(one, other)))


def axioms(w: World) -> dict:
    le = w.le_ts
    order = AND(
        w.all("Ts", lambda a: le(a, a)),
        w.all("Ts Ts", lambda a, b: IMP(AND(le(a, b), le(b, a)), EQ(a, b))),
        w.all("Ts Ts Ts", lambda a, b, c: IMP(AND(le(a, b), le(b, c)), le(a, c))),
        w.all("Ts Ts", lambda a, b: OR(le(a, b), le(b, a))),
        w.all("Ts", lambda a: le(w.ts0, a)),
    )
    return {"timestamps": order}


def enter(w: World, s: State, c):
    """A caller makes a call. No waiting call of its client may be in the same slot."""
    yield "is-new", NOT(s.entered(c))
    is_of_client = lambda o: EQ(w.caller_of(o), w.caller_of(c))
    yield "is-free", w.all("Call", lambda o: IMP(AND(s.waiting(o), is_of_client(o)), NOT(EQ(w.slot(o), w.slot(c)))))
    return {
        "entered": lambda o: OR(EQ(o, c), s.entered(o)),
        "waiting": lambda o: OR(EQ(o, c), s.waiting(o)),
        "heard": lambda x, o: IF(EQ(o, c), s.received(x), s.heard(x, o)),
    }


def leave(w: World, s: State, c):
    """A caller gives up, or its deadline passes. The call keeps its place in a batch."""
    yield "is-waiting", s.waiting(c)
    return {"waiting": lambda o: AND(s.waiting(o), NOT(EQ(o, c)))}


def take(w: World, s: State, c, r):
    """A waiting caller gets a place in the batch of a request of its client that has not been sent (C1)."""
    yield "is-waiting", s.waiting(c)
    yield "is-of-client", EQ(w.caller_of(c), w.client_of(r))
    yield "two-places", w.all("Request", lambda o: NOT(s.placed(c, o)))
    yield "late-join", NOT(s.begun(r))
    return {"placed": lambda o, p: OR(s.placed(o, p), AND(EQ(o, c), EQ(p, r)))}


def send(w: World, s: State, x):
    """A request is sent, or a copy of it (hedging). Its floor is the highest timestamp that its
    client has returned until now (C7)."""
    yield "is-new", NOT(s.sent(x))
    client = w.client_of(w.of(x))
    floor = s.floor if "old-floor" in w.broken else lambda y: IF(EQ(y, x), s.highest(client), s.floor(y))
    return {
        "sent": lambda y: OR(EQ(y, x), s.sent(y)),
        "begun": lambda r: OR(EQ(r, w.of(x)), s.begun(r)),
        "floor": floor,
        "older": lambda y, z: IF(EQ(z, x), s.received(y), s.older(y, z)),
        "returned_before": lambda b, z: IF(
            EQ(z, x), AND(s.returned(b), EQ(w.caller_of(b), client)), s.returned_before(b, z)
        ),
    }


def allocate(w: World, s: State, x):
    """The oracle allocates for a request that it has received."""
    yield "is-new", NOT(s.allocated(x))
    yield "is-sent", s.sent(x)
    yield "oracle-unique", w.all(
        "Sending Call Call", lambda y, c, d: IMP(s.allocated(y), NOT(EQ(w.value(y, d), w.value(x, c))))
    )
    yield "oracle-order", w.all(
        "Sending Call Call", lambda y, c, d: IMP(s.older(y, x), below(w, w.value(y, d), w.value(x, c)))
    )
    return {
        "allocated": lambda y: OR(EQ(y, x), s.allocated(y)),
        "early": lambda y, c: IF(EQ(y, x), NOT(s.entered(c)), s.early(y, c)),
    }


def receive(w: World, s: State, x):
    """The answer arrives, at any time after the allocation. The client cuts it into a part for each
    call."""
    yield "is-allocated", s.allocated(x)
    yield "parts-overlap", w.all("Call Call", lambda c, d: OR(EQ(c, d), NOT(EQ(w.value(x, c), w.value(x, d)))))
    return {"received": lambda y: OR(EQ(y, x), s.received(y))}


def give(w: World, s: State, x, r, c, d):
    """The answer to the sending x fills the place of the call c in the batch of the request r. The
    call d gets the result, because it is now in the slot of c. The rules ensure that d is c."""
    value, client = w.value(x, c), w.client_of(r)
    yield "is-received", s.received(x)
    yield "is-placed", s.placed(c, r)
    yield "is-slot", AND(EQ(w.slot(c), w.slot(d)), EQ(w.caller_of(d), client))
    yield "answer-of-another-request", EQ(w.of(x), r)
    yield "slot-of-another-call", EQ(c, d)
    yield "outcome-twice", s.waiting(d)
    yield "went-backwards", below(w, s.floor(x), value)
    return {
        "placed": lambda o, p: AND(s.placed(o, p), NOT(EQ(o, c))),
        "waiting": lambda o: AND(s.waiting(o), NOT(EQ(o, d))),
        "returned": lambda o: OR(EQ(o, d), s.returned(o)),
        "result": lambda o: IF(EQ(o, d), value, s.result(o)),
        "given_by": lambda o: IF(EQ(o, d), x, s.given_by(o)),
        "highest": lambda k: IF(AND(EQ(k, client), w.le_ts(s.highest(k), value)), value, s.highest(k)),
    }


def requeue(w: World, s: State, c, r):
    """The connection ends. A call whose request has no answer loses its place, and waits for a
    place in another request."""
    yield "is-placed", s.placed(c, r)
    return {"placed": lambda o, p: AND(s.placed(o, p), NOT(AND(EQ(o, c), EQ(p, r))))}


ACTIONS = {
    enter: "Call",
    leave: "Call",
    take: "Call Request",
    send: "Sending",
    allocate: "Sending",
    receive: "Sending",
    give: "Sending Request Call Call",
    requeue: "Call Request",
}


def initial(w: World, s: State) -> list:
    no = "entered waiting placed begun sent allocated received returned heard older returned_before early".split()
    found = [w.all(STATE[name], lambda *a, f=getattr(s, name): NOT(f(*a))) for name in no]
    return [*found, w.all("Client", lambda k: EQ(s.highest(k), w.ts0))]


def claims(w: World, s: State) -> dict[str, Claim]:
    by = s.given_by
    return {
        "waiting-entered": Claim("Call", lambda c: IMP(s.waiting(c), AND(s.entered(c), NOT(s.returned(c))))),
        "returned-entered": Claim("Call", lambda c: IMP(s.returned(c), AND(s.entered(c), s.received(by(c))))),
        "placed-entered": Claim("Call Request", lambda c, r: IMP(s.placed(c, r), s.entered(c))),
        "placed-client": Claim(
            "Call Request", lambda c, r: IMP(s.placed(c, r), EQ(w.caller_of(c), w.client_of(r)))
        ),
        "placed-once": Claim(
            "Call Request Request", lambda c, r, o: IMP(AND(s.placed(c, r), s.placed(c, o)), EQ(r, o))
        ),
        "allocated-sent": Claim("Sending", lambda x: IMP(s.allocated(x), s.sent(x))),
        "sent-begun": Claim("Sending", lambda x: IMP(s.sent(x), s.begun(w.of(x)))),
        "received-allocated": Claim("Sending", lambda x: IMP(s.received(x), s.allocated(x))),
        "older-received": Claim("Sending Sending", lambda y, x: IMP(s.older(y, x), AND(s.received(y), s.sent(x)))),
        "heard-received": Claim("Sending Call", lambda y, c: IMP(s.heard(y, c), AND(s.received(y), s.entered(c)))),
        "returned-value": Claim("Call", lambda c: IMP(s.returned(c), EQ(s.result(c), w.value(by(c), c)))),
        "result-below-highest": Claim("Call", lambda c: IMP(s.returned(c), w.le_ts(s.result(c), s.highest(w.caller_of(c))))),
        "returned-above-floor": Claim("Call", lambda c: IMP(s.returned(c), below(w, s.floor(by(c)), s.result(c)))),
        "before-floor": Claim(
            "Call Sending",
            lambda b, x: IMP(s.returned_before(b, x), AND(s.returned(b), s.sent(x), w.le_ts(s.result(b), s.floor(x)))),
        ),
        "values-unique": Claim(
            "Sending Sending Call Call",
            lambda x, y, c, d: IMP(
                AND(s.allocated(x), s.allocated(y), NOT(EQ(x, y))), NOT(EQ(w.value(x, c), w.value(y, d)))
            ),
        ),
        "parts-unique": Claim(
            "Sending Call Call",
            lambda x, c, d: IMP(AND(s.received(x), NOT(EQ(c, d))), NOT(EQ(w.value(x, c), w.value(x, d)))),
        ),
        "values-rise": Claim(
            "Sending Sending Call Call",
            lambda y, x, d, c: IMP(AND(s.older(y, x), s.allocated(x)), below(w, w.value(y, d), w.value(x, c))),
        ),
        # The central claim. A caller with a place in a batch had called before the batch was sent.
        # So the batch's timestamps were allocated after the call, and after every answer that had
        # arrived before the call.
        "placed-fresh": Claim(
            "Call Request Sending",
            lambda c, r, x: IMP(AND(s.placed(c, r), EQ(w.of(x), r), s.allocated(x)), NOT(s.early(x, c))),
        ),
        "placed-later": Claim(
            "Call Request Sending Sending",
            lambda c, r, x, y: IMP(AND(s.placed(c, r), EQ(w.of(x), r), s.sent(x), s.heard(y, c)), s.older(y, x)),
        ),
        "returned-later": Claim("Call Sending", lambda c, y: IMP(AND(s.returned(c), s.heard(y, c)), s.older(y, by(c)))),
        "FRESH": Claim("Call", lambda c: IMP(s.returned(c), NOT(s.early(by(c), c)))),
        "ONCE": Claim(
            "Call Call",
            lambda a, b: IMP(AND(s.returned(a), s.returned(b), NOT(EQ(a, b))), NOT(EQ(s.result(a), s.result(b)))),
        ),
        "ORDER": Claim(
            "Sending Call Call",
            lambda y, d, c: IMP(AND(s.returned(c), s.heard(y, c)), below(w, w.value(y, d), s.result(c))),
        ),
        "NEVER-BACK": Claim(
            "Call Call",
            lambda b, c: IMP(AND(s.returned(c), s.returned_before(b, by(c))), below(w, s.result(b), s.result(c))),
        ),
    }


SPEC = Spec(
    "session", SORTS, CONSTANTS, FIXED, STATE, ACTIONS, axioms, initial, claims,
    ("FRESH", "ONCE", "ORDER", "NEVER-BACK"), updates=("old-floor",),
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# Traces. One client has the calls a, b and c, and the requests 1 and 2. `1` is the first sending of
# request 1, and `1+` is its copy. Another client has the call o and the request o.

VALUES = {"1": 10, "1+": 20, "2": 30, "o": 5}


def concrete(fixed: dict, broken=()) -> Concrete:
    values = fixed.get("values", VALUES)
    domain = {
        "Client": ["k", "l"],
        "Slot": [1, 2],
        "Call": ["a", "b", "c", "o"],
        "Request": ["1", "2", "o"],
        "Sending": ["1", "1+", "2", "o"],
        "Ts": list(range(40)),
    }
    what = {
        "ts0": 0,
        "le_ts": lambda a, b: a <= b,
        "caller_of": lambda c: "l" if c == "o" else "k",
        "client_of": lambda r: "l" if r == "o" else "k",
        "slot": lambda c: {"a": 1, "b": 2, "c": fixed.get("slot", 2), "o": 1}[c],
        "of": lambda x: x[0],
        "value": lambda x, c: values[x] + "abco".index(c) * fixed.get("step", 1),
    }
    return Concrete(SPEC, domain, what, broken)


def asked(x: str, *calls: str) -> list:
    return [*((step) for c in calls for step in ((enter, c), (take, c, x[0]))), (send, x)]


def answered(x: str, *calls: str) -> list:
    return [(allocate, x), (receive, x), *((give, x, x[0], c, c) for c in calls)]


GOOD = (
    asked("o", "o") + answered("o", "o") + asked("1", "a", "b") + [(send, "1+"), (leave, "b")] + answered("1", "a") + [(requeue, "b", "1")]
    + [(allocate, "1+"), (receive, "1+")] + asked("2", "c") + answered("2", "c")
)  # fmt: skip

MUTANTS = [
    Mutant(
        "late-join",
        asked("1", "a") + [(allocate, "1"), (enter, "b"), (take, "b", "1"), (receive, "1"), (give, "1", "1", "b", "b")],
    ),
    Mutant(
        "answer-of-another-request",
        asked("1", "a") + [(allocate, "1"), (receive, "1")] + asked("2", "b") + [(give, "1", "2", "b", "b")],
    ),
    Mutant(
        "slot-of-another-call",
        asked("1", "a", "b") + [(allocate, "1"), (leave, "b"), (enter, "c"), (receive, "1")]
        + [(give, "1", "1", "b", "c")],
    ),
    Mutant(
        "oracle-unique",
        asked("1", "a") + asked("2", "b") + answered("1", "a") + answered("2", "b"),
        {"values": {**VALUES, "1": 11, "2": 10}},
    ),
    Mutant("parts-overlap", asked("1", "a", "b") + answered("1", "a", "b"), {"step": 0}),
    Mutant(
        "oracle-order",
        [(send, "o"), (allocate, "o"), (receive, "o"), *asked("1", "a"), *answered("1", "a")],
        {"values": {**VALUES, "o": 15}},
    ),
    Mutant(
        "went-backwards oracle-order",
        asked("1", "a") + answered("1", "a") + asked("2", "b") + answered("2", "b"),
        {"values": {**VALUES, "2": 5}},
    ),
    Mutant(
        "old-floor oracle-order",
        asked("1", "a") + answered("1", "a") + asked("2", "b") + answered("2", "b"),
        {"values": {**VALUES, "2": 5}},
    ),
]  # fmt: skip
SECOND_LOCKS = ["two-places", "outcome-twice"]
