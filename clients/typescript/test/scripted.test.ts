/** Tests of the client with scripted nodes: merging, leader changes, deadlines, close. */

import assert from "node:assert/strict";
import { createServer } from "node:net";
import { test } from "node:test";

import {
  Client,
  ClosedError,
  CountError,
  DeadlineExceededError,
  ProtocolError,
  RefusedError,
  Timestamp,
  TimestampRange,
  UnreachableError,
  WentBackwardsError,
  WrongClusterError,
} from "../src/index.js";
import { Batch, Call, checkAnswer, LATEST } from "../src/batch.js";
import { COUNT_MAX, Kind } from "../src/frame.js";
import { settings } from "../src/options.js";
import { Session } from "../src/session.js";
import { CLUSTER, connect, Hand, Node, Oracle, pause, until, type Peer } from "./node.js";

test("a follower names the leader, and the client goes there", async (t) => {
  const [leader, follower] = [await Node.start(t, 1n), await Node.start(t, 2n)];
  follower.onHello = () => follower.welcome(leader);
  const client = await connect(t, follower);
  const range = await client.timestamps(5);
  assert.equal(range.count, 5);
  assert.deepEqual([follower.asked, client.leader], [0, leader.addr]);
  assert.deepEqual(client.cluster, CLUSTER);
});

test("a node that learns of its leader later is waited for", async (t) => {
  const node = await Node.start(t);
  node.onHello = () => {
    setTimeout(() => node.peers.forEach((peer) => peer.leader(node)), 20);
    return node.welcome();
  };
  await (await connect(t, node)).timestamp();
  assert.equal(node.met, 1);
});

test("callers share a request, and no caller joins one that was sent", async (t) => {
  const [leader, hand, oracle] = [await Node.start(t), new Hand(), new Oracle()];
  leader.ask = hand.ask;
  const client = await connect(t, leader, { inFlight: 1 });
  const early = client.timestamp();
  const first = await hand.take();
  // The first request's timestamp is allocated now and sent later. The calls below begin in
  // between, so they must not share it.
  const taken = oracle.take(1);
  const late = [client.timestamps(1), client.timestamps(2), client.timestamps(3)];
  await pause(20);
  assert.deepEqual([leader.asked, first.count], [1, 1]);
  first.to.answer(first.id, 1, taken);
  const second = await hand.take();
  assert.equal(second.count, 6);
  second.to.answer(second.id, 6, oracle.take(6));
  const ranges = await Promise.all(late);
  assert.deepEqual(
    [(await early).index, ...ranges.flatMap((range) => [...range].map((one) => one.index))],
    [1n, 2n, 3n, 4n, 5n, 6n, 7n],
  );
});

test("many callers get distinct, rising timestamps with few requests", async (t) => {
  const leader = await Node.start(t);
  const client = await connect(t, leader);
  const given = new Set<string>();
  const caller = async () => {
    let last: Timestamp | undefined;
    for (let round = 0; round < 50; round++) {
      const next = await client.timestamp();
      assert.ok(!last || last < next);
      given.add(String(next));
      last = next;
    }
  };
  await Promise.all(Array.from({ length: 200 }, caller));
  assert.equal(given.size, 10_000);
  assert.ok(leader.asked < 500, `${leader.asked} requests for 10,000 calls`);
});

test("a lost answer is asked for again", async (t) => {
  const [leader, oracle] = [await Node.start(t), new Oracle()];
  leader.ask = (to, id, count) => {
    const first = oracle.take(count);
    if (leader.asked === 1) {
      to.socket.destroy();
    } else {
      to.answer(id, count, first);
    }
  };
  assert.equal((await (await connect(t, leader)).timestamp()).index, 2n);
});

test("a leader that goes silent is replaced within the call", async (t) => {
  const [old, next, oracle] = [await Node.start(t, 1n), await Node.start(t, 2n), new Oracle()];
  let hasMoved = false;
  old.ask = (...request) => hasMoved || oracle.serve(...request);
  next.ask = oracle.serve;
  old.onHello = () => {
    const welcome = old.welcome(old);
    welcome.members.push({ node: 2n, addr: next.addr });
    return hasMoved ? undefined : welcome;
  };
  next.onHello = () => next.welcome(hasMoved ? next : old);
  const client = await connect(t, old, { attemptTimeout: 50 });
  const before = await client.timestamp();
  hasMoved = true;
  assert.ok(before < (await client.timestamp()));
  assert.equal(client.leader, next.addr);
});

test("a notice of a new leader, and its name in a refusal, are followed", async (t) => {
  for (const how of ["notice", "refusal"]) {
    const [old, next] = [await Node.start(t, 1n), await Node.start(t, 2n)];
    old.ask = (to, id) => (how === "notice" ? to.leader(next) : to.refuse(id, 1, next.addr));
    const client = await connect(t, old);
    await client.timestamp();
    assert.equal(client.leader, next.addr);
  }
});

test("a node that says goodbye is left", async (t) => {
  const leader = await Node.start(t);
  let isFirst = true;
  leader.ask = (to, id, count) => {
    if (isFirst) {
      isFirst = false;
      to.say({ kind: Kind.goodbye });
    } else {
      to.answer(id, count, new Timestamp(1n, 1n));
    }
  };
  await (await connect(t, leader)).timestamp();
  assert.equal(leader.met, 2);
});

test("answers may come in another order", async (t) => {
  const [leader, hand, oracle] = [await Node.start(t), new Hand(), new Oracle()];
  leader.ask = hand.ask;
  const client = await connect(t, leader, { inFlight: 3 });
  const calls = [];
  for (const count of [3, 5, 7]) {
    calls.push(client.timestamps(count));
    await until(() => hand.kept.length === calls.length);
  }
  for (const { to, id, count } of hand.kept.reverse()) {
    oracle.serve(to, id, count);
  }
  const counts = (await Promise.all(calls)).map((range) => range.count);
  assert.deepEqual(counts, [3, 5, 7]);
});

test("answers that go backwards are refused", async (t) => {
  const leader = await Node.start(t);
  leader.ask = (to, id, count) => {
    to.answer(id, count, new Timestamp(10n - BigInt(leader.asked), 0n));
  };
  const client = await connect(t, leader);
  await client.timestamp();
  await assert.rejects(client.timestamp(), WentBackwardsError);
});

test("another cluster, another history and another name are refused", async (t) => {
  const leader = await Node.start(t);
  const client = await connect(t, leader);
  await client.timestamp();
  leader.onHello = () => ({ ...leader.welcome(leader), cluster: { ...CLUSTER, history: 2n } });
  leader.hangUp();
  await until(() => client.leader === undefined);
  await assert.rejects(client.timestamp(), WrongClusterError);
  const named = { clusterName: "payments", timeout: 30_000 };
  await assert.rejects(Client.connect([leader.addr], named), WrongClusterError);
});

test("a server of another protocol is no oracle", async (t) => {
  for (const banner of ["HTTP/1.1 400 Bad Request\r\n\r\n", "220\r\n"]) {
    const server = createServer((socket) => socket.on("error", () => {}).end(banner));
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    t.after(() => server.close());
    const { port } = server.address() as { port: number };
    await assert.rejects(Client.connect([`127.0.0.1:${port}`]), ProtocolError);
  }
});

test("the deadline ends a call, and its error says why", async (t) => {
  const leader = await Node.start(t);
  leader.ask = (to, id) => to.refuse(id, 2);
  const client = await connect(t, leader, { attemptTimeout: 20 });
  const limits = [() => ({ timeout: 1_000 }), () => ({ signal: AbortSignal.timeout(1_000) })];
  for (const limit of limits) {
    const begin = performance.now();
    const error = await client.timestamp(limit()).catch((error: Error) => error);
    const took = performance.now() - begin;
    assert.ok(took > 990 && took < 5_000, `${took}`);
    assert.ok(error instanceof DeadlineExceededError);
    assert.match(error.message, /NO_QUORUM|NO_LEADER|cannot be reached/);
    assert.ok(error.cause instanceof RefusedError || error.cause instanceof UnreachableError);
  }
  await assert.rejects(client.timestamp({ timeout: 0 }), DeadlineExceededError);
  // Node.js turns a timer that is too long into one of a millisecond. These timeouts are too long
  // for a timer, and must still work.
  leader.ask = new Oracle().serve;
  for (const timeout of [2 ** 40, Infinity]) {
    await client.timestamp({ timeout });
  }
});

test("an answer that comes after the deadline is discarded, and the others stay", async () => {
  const batch = new Batch();
  const calls = [10, 20].map((deadline) => new Call(2, deadline, () => {}));
  calls.forEach((call) => batch.add(call));
  batch.succeed(new TimestampRange(new Timestamp(1n, 5n), 4), 10, () => new Error("late"));
  await assert.rejects((calls[0] as Call).promise, /late/);
  assert.equal((await (calls[1] as Call).promise).first.index, 7n);
});

test("a latest timestamp is the last of a shared request, and takes none", async () => {
  const batch = new Batch();
  const calls = [LATEST, 2, LATEST, 3].map((count) => new Call(count, 20, () => {}));
  calls.forEach((call) => batch.add(call));
  batch.succeed(new TimestampRange(new Timestamp(1n, 10n), batch.count), 10, () => new Error("late"));
  const got = await Promise.all(calls.map((call) => call.promise));
  const firsts = got.map(({ first, count }) => [first.index, count]);
  assert.deepEqual(firsts, [[14n, 1], [10n, 2], [14n, 1], [12n, 3]]);
});

test("a latest timestamp may be the one that was returned, and a later timestamp may not", () => {
  const at = (index: bigint) => new TimestampRange(new Timestamp(1n, index), 1);
  const floor = at(9n).first;
  const reader = { count: LATEST, isLatest: true, floor };
  const writer = { count: 1, isLatest: false, floor };
  checkAnswer(reader, "a:1", { range: at(9n), isLatest: true });
  checkAnswer(writer, "a:1", { range: at(10n), isLatest: false });
  for (const [sent, index, isLatest, error] of [
    [reader, 8n, true, WentBackwardsError],
    [reader, 10n, false, ProtocolError],
    [writer, 9n, false, WentBackwardsError],
    [writer, 10n, true, ProtocolError],
  ] as const) {
    assert.throws(() => checkAnswer(sent, "a:1", { range: at(index), isLatest }), error);
  }
});

test("a node that is too old is asked for a timestamp that nobody else gets", async (t) => {
  const client = await connect(t, await Node.start(t));
  const before = await client.timestamp();
  const calls = [client.latest(), client.latest({ timeout: 10_000 })];
  const [one, two] = await Promise.all(calls);
  assert.deepEqual([one, two], [two, new Timestamp(1n, before.index + 1n)]);
  assert.equal((await client.timestamp()).index, before.index + 2n);
  const gone = new AbortController();
  gone.abort();
  await assert.rejects(client.latest({ signal: gone.signal }), { name: "AbortError" });
});

test("a silent leader is said to be silent", async (t) => {
  const leader = await Node.start(t);
  leader.ask = () => {};
  const client = await connect(t, leader, { attemptTimeout: 50 });
  await assert.rejects(client.timestamp({ timeout: 500 }), /did not answer in time/);
});

test("the reason of a call is not one that was over before it", async (t) => {
  const [leader, oracle] = [await Node.start(t), new Oracle()];
  leader.ask = (to, id, count) => {
    if (leader.asked === 1) {
      to.refuse(id, 4);
    } else if (leader.asked === 2) {
      oracle.serve(to, id, count);
    }
  };
  const client = await connect(t, leader);
  await client.timestamp();
  const error = await client.timestamp({ timeout: 100 }).catch((error: Error) => error);
  assert.doesNotMatch(String(error), /OVERLOADED/);
});

test("a caller that gives up leaves the others alone", async (t) => {
  const [leader, hand] = [await Node.start(t), new Hand()];
  leader.ask = hand.ask;
  const client = await connect(t, leader, { inFlight: 1 });
  const own = new AbortController();
  const options = { signal: own.signal };
  const sent = [client.timestamp(options), client.timestamp()] as const;
  const first = await hand.take();
  const waiting = [client.timestamp(options), client.timestamp()] as const;
  own.abort(new Error("enough"));
  await assert.rejects(sent[0], /enough/);
  await assert.rejects(waiting[0], /enough/);
  await assert.rejects(client.timestamp(options), /enough/);
  assert.equal(first.count, 2);
  first.answer(10n);
  assert.equal((await sent[1]).index, 11n);
  // One of the two waiting callers has given up before its request was sent. So the request asks
  // for one timestamp only.
  const second = await hand.take();
  assert.equal(second.count, 1);
  second.answer(20n);
  assert.equal((await waiting[1]).index, 20n);
});

test("callers that leave do not disturb those who join", async (t) => {
  const [leader, oracle] = [await Node.start(t), new Oracle()];
  leader.ask = (to, id, count) => {
    if (leader.asked % 50 === 0) {
      to.socket.destroy();
    } else {
      oracle.serve(to, id, count);
    }
  };
  const client = await connect(t, leader, { inFlight: 2 });
  const given = new Set<string>();
  let got = 0;
  const caller = async (at: number) => {
    for (let round = 0; round < 100; round++) {
      const timeout = at % 2 === 0 ? 0.02 * (round % 7) : 5_000;
      try {
        given.add(String(await client.timestamp({ timeout })));
        got++;
      } catch (error) {
        assert.ok(at % 2 === 0 && error instanceof DeadlineExceededError, String(error));
      }
    }
  };
  await Promise.all(Array.from({ length: 64 }, (_, at) => caller(at)));
  assert.equal(given.size, got);
  assert.ok(got >= 3_200);
});

test("a closed client ends its calls and connections", async (t) => {
  const leader = await Node.start(t);
  leader.ask = () => {};
  const client = await connect(t, leader, { hedgeAfter: 5 });
  const call = client.timestamp();
  await until(() => leader.met === 2);
  const ended = assert.rejects(call, ClosedError);
  await client.close();
  await ended;
  await assert.rejects(client.timestamp(), ClosedError);
  await until(() => leader.peers.size === 0);
  await client.close();
});

test("connecting ends at its limit, at a signal, and at a node that is down", async (t) => {
  const node = await Node.start(t);
  node.onHello = () => undefined;
  const options = { attemptTimeout: 20, timeout: 1_000 };
  await assert.rejects(Client.connect([node.addr], options), DeadlineExceededError);
  const signal = AbortSignal.abort(new Error("enough"));
  await assert.rejects(Client.connect([node.addr], { ...options, signal }), /enough/);
  await assert.rejects(Client.connect(["127.0.0.1:1"], options), (error: Error) => {
    return error instanceof DeadlineExceededError && error.cause instanceof UnreachableError;
  });
  await until(() => node.peers.size === 0);
});

test("a count or an option that cannot be meant is refused", async (t) => {
  const leader = await Node.start(t);
  const client = await connect(t, leader);
  for (const count of [0, -1, 0.5, NaN, COUNT_MAX + 1]) {
    await assert.rejects(client.timestamps(count), CountError);
  }
  assert.equal(leader.asked, 0);
  assert.equal((await client.timestamps(COUNT_MAX)).count, COUNT_MAX);
  for (const bad of [
    { timeout: 0 },
    { attemptTimeout: 1 },
    { refreshInterval: NaN },
    { inFlight: 257 },
    { hedgeAfter: 0 },
    { clusterName: "" },
    { clusterName: "n".repeat(65) },
  ]) {
    await assert.rejects(Client.connect([leader.addr], bad), RangeError);
  }
  await assert.rejects(Client.connect([leader.addr], { token: "a b" }), TypeError);
  for (const addrs of [[], ["host"], ["host:0"], ["host:65536"], ["::1:80"]]) {
    await assert.rejects(Client.connect(addrs), TypeError);
  }
});

test("an idle connection is kept while the members are learned", async (t) => {
  const leader = await Node.start(t);
  leader.onHello = () => ({ ...leader.welcome(leader), idleMs: 300 });
  const patient = settings({ timeout: 30_000, attemptTimeout: 600_000 });
  // The members are learned again at each check of the connection.
  const session = new Session([leader.addr], { ...patient, refreshInterval: 0 });
  t.after(() => session.close());
  await session.opened(undefined);
  await until(() => leader.pings >= 3 && leader.met >= 4);
  // The node does not answer any more. Only one connection at a time asks for the members.
  let silent = 0;
  leader.onHello = () => {
    silent++;
    return undefined;
  };
  await until(() => silent > 0);
  const { pings } = leader;
  await until(() => leader.pings >= pings + 3);
  assert.equal(silent, 1);
});

test("members are learned again", async (t) => {
  const leader = await Node.start(t);
  const client = await connect(t, leader, { refreshInterval: 100 });
  leader.onHello = () => {
    const welcome = leader.welcome(leader);
    welcome.members.push({ node: 9n, addr: "new.example:8080" });
    return welcome;
  };
  await until(() => client.members.length === 2);
});

test("the observer sees requests, failed attempts and leaders, and cannot disturb", async (t) => {
  const leader = await Node.start(t);
  const seen: string[] = [];
  const thrown: unknown[] = [];
  process.once("warning", (error) => thrown.push(error));
  const client = await connect(t, leader, {
    observer: {
      answered: (callers, timestamps) => seen.push(`${callers} callers, ${timestamps} timestamps`),
      failedAttempt: (error) => seen.push(error.name),
      connected: (addr) => {
        seen.push(addr);
        throw new Error("of the observer");
      },
    },
  });
  await Promise.all([client.timestamps(2), client.timestamp()]);
  leader.hangUp();
  await until(() => seen.length >= 3);
  assert.deepEqual(seen.slice(0, 3), [leader.addr, "2 callers, 3 timestamps", "UnreachableError"]);
  await until(() => thrown.length === 1);
});

test("a hook may throw anything, at once or later", async (t) => {
  const warnings: unknown[] = [];
  const warn = (warning: unknown) => warnings.push(warning);
  process.on("warning", warn);
  t.after(() => process.off("warning", warn));
  for (const thrown of [undefined, 7, Object.create(null)]) {
    const leader = await Node.start(t);
    const connected = () => {
      throw thrown;
    };
    const answered = async () => connected();
    warnings.length = 0;
    const client = await connect(t, leader, { observer: { answered, connected } });
    await client.timestamp({ timeout: 5_000 });
    await until(() => warnings.length === 2);
  }
});

test("a token source that fails is asked again", async (t) => {
  const leader = await Node.start(t);
  const throws = (thrown: unknown) => () => {
    throw thrown;
  };
  const sources: [() => string, RegExp][] = [
    [throws(new ClosedError()), /the client is closed/],
    [() => "a b", /a token has up to/],
    [() => 7 as unknown as string, /must be of type string/],
    [throws(Object.create(null)), /cannot be reached: \[Object: null prototype\] \{\}/],
  ];
  for (const [source, said] of sources) {
    let tries = 0;
    const client = await connect(t, leader, { tokenSource: () => (++tries > 2 ? "good" : source()) });
    await client.timestamp();
    assert.equal(tries, 3);
    const options = { tokenSource: source, timeout: 300 };
    await assert.rejects(Client.connect([leader.addr], options), (error: Error) => {
      assert.ok(error instanceof DeadlineExceededError);
      assert.ok(error.cause instanceof UnreachableError);
      return said.test(error.message);
    });
  }
});

test("the error for a node that cannot be reached says why, whatever the reason is", () => {
  const refused = ["::1", "127.0.0.1"].map((host) => new Error(`connect ECONNREFUSED ${host}:1`));
  for (const [why, said] of [
    // This is the error of Node.js for a host with several addresses.
    [new AggregateError(refused), "connect ECONNREFUSED ::1:1; connect ECONNREFUSED 127.0.0.1:1"],
    [Object.assign(new Error(), { code: "ECONNRESET" }), "ECONNRESET"],
    [new RangeError(), "RangeError"],
    [undefined, "undefined"],
    ["a text", "a text"],
  ]) {
    assert.equal(new UnreachableError("a:1", why).message, `a:1 cannot be reached: ${said}`);
  }
});

test("pings are answered with their ids, in order", async (t) => {
  const leader = await Node.start(t);
  await connect(t, leader);
  const [peer] = leader.peers as Set<Peer>;
  [2n ** 64n - 1n, 78n].forEach((id) => peer?.say({ kind: Kind.ping, id }));
  await until(() => leader.pongs.length === 2);
  assert.deepEqual(leader.pongs, [2n ** 64n - 1n, 78n]);
});
