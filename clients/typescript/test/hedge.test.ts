/**
 * Tests of hedged requests: the range of the second answer goes to no caller, whichever connection
 * it comes over.
 */

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";

import {
  Client,
  ProtocolError,
  Timestamp,
  WentBackwardsError,
  type Options,
} from "../src/index.js";
import { Kind } from "../src/frame.js";
import {
  connect,
  encodeWelcome,
  Hand,
  Node,
  Oracle,
  pause,
  random,
  until,
  type Peer,
} from "./node.js";

const AFTER = 20;
/**
 * The client leaves a silent node after this time, in milliseconds. It is so long that only the
 * copy can bring an answer in time.
 */
const ATTEMPT = 20_000;

function hedging(t: TestContext, node: Node, options: Options = {}): Promise<Client> {
  return connect(t, node, { hedgeAfter: AFTER, attemptTimeout: ATTEMPT, ...options });
}

/**
 * Returns a function that tells whether a connection is the one over which the first request came.
 */
function firstOnly(): (to: Peer) => boolean {
  let first: Peer | undefined;
  return (to) => (first ??= to) === to;
}

test("a stalled connection costs little more than the delay of the hedge", async (t) => {
  const [leader, oracle, isMain] = [await Node.start(t), new Oracle(), firstOnly()];
  let isStalled = false;
  leader.ask = (to, id, count) => {
    if (!isMain(to) || !isStalled) {
      oracle.serve(to, id, count);
    }
  };
  const client = await hedging(t, leader);
  let last = await client.timestamp();
  isStalled = true;
  for (let call = 0; call < 12; call++) {
    const begin = performance.now();
    const next = await client.timestamp();
    const took = performance.now() - begin;
    assert.ok(took >= AFTER - 1 && took < ATTEMPT / 4 && last < next, `${took}`);
    last = next;
  }
  assert.equal(leader.met, 2);
});

test("a silent leader is left for another node that answers the hedge", async (t) => {
  const [old, next, oracle] = [await Node.start(t, 1n), await Node.start(t, 2n), new Oracle()];
  let hasMoved = false;
  old.ask = (...request) => hasMoved || oracle.serve(...request);
  next.ask = oracle.serve;
  old.onHello = () => {
    const welcome = old.welcome(old);
    welcome.members.push({ node: 2n, addr: next.addr });
    return hasMoved ? undefined : welcome;
  };
  // The hedge waits for each node for an eighth of the attempt timeout, here 500 ms.
  const client = await hedging(t, old, { attemptTimeout: 4_000 });
  const before = await client.timestamp();
  hasMoved = true;
  assert.ok(before < (await client.timestamp()));
  await client.timestamp();
  assert.equal(client.leader, next.addr);
});

for (const burnt of ["copy", "first"]) {
  test(`a burnt range reaches nobody and raises no floor: the ${burnt} is burnt`, async (t) => {
    const [leader, hand] = [await Node.start(t), new Hand()];
    leader.ask = hand.ask;
    const client = await hedging(t, leader, { inFlight: 2 });
    const warm = client.timestamp();
    const first = await hand.take();
    const isMain = ({ to }: { to: Peer }) => to === first.to;
    first.answer(1n);
    assert.equal((await warm).index, 1n);

    const slow = client.timestamp();
    const asked = await hand.take(isMain);
    const again = await hand.take((one) => !isMain(one) && one.id === asked.id);
    // Two more callers ask. The first one's request is in flight. The second one's request waits,
    // because of the limit of requests in flight.
    const sent = client.timestamp();
    const next = await hand.take(isMain);
    const open = client.timestamp();

    const [winner, loser] = burnt === "copy" ? [asked, again] : [again, asked];
    winner.answer(10n);
    assert.equal((await slow).index, 10n);
    loser.answer(20n);
    const last = await hand.take(isMain);
    if (burnt === "copy") {
      // The second answer to the slow request comes over another connection than the next answers.
      // Give the client time to read it first.
      await pause(20);
    }
    next.answer(12n);
    assert.equal((await sent).index, 12n);
    last.answer(13n);
    assert.equal((await open).index, 13n);
    const later = client.timestamp();
    (await hand.take(isMain)).answer(14n);
    assert.equal((await later).index, 14n);
  });
}

test("a burnt answer that goes backwards is refused", async (t) => {
  const [leader, hand] = [await Node.start(t), new Hand()];
  leader.ask = hand.ask;
  const client = await hedging(t, leader);
  const warm = client.timestamp();
  const first = await hand.take();
  const isMain = ({ to }: { to: Peer }) => to === first.to;
  first.answer(100n);
  await warm;
  const slow = client.timestamp();
  const owed = await hand.take(isMain);
  (await hand.take((one) => !isMain(one))).answer(101n);
  await slow;
  // The late answer to the first request is wrong. It fails every caller that waits at that moment,
  // also this caller of another request.
  const waiting = assert.rejects(client.timestamp(), WentBackwardsError);
  await hand.take(isMain);
  owed.answer(1n);
  await waiting;
});

test("either answer may lie below what was returned since it was asked for", async (t) => {
  for (const isCopyFirst of [false, true]) {
    const [leader, hand] = [await Node.start(t), new Hand()];
    leader.ask = hand.ask;
    const client = await hedging(t, leader);
    const slow = client.timestamp();
    const first = await hand.take();
    const copy = await hand.take(({ to }) => to !== first.to);
    const quick = client.timestamp();
    (await hand.take(({ to, id }) => to === first.to && id !== first.id)).answer(2n);
    await quick;
    (isCopyFirst ? copy : first).answer(1n);
    assert.ok((await slow) < (await quick));
  }
});

test("a refusal of what the hedge has answered is no debt of the leader", async (t) => {
  for (const code of [4, 66]) {
    const [leader, hand] = [await Node.start(t), new Hand()];
    leader.ask = hand.ask;
    const client = await hedging(t, leader);
    const slow = client.timestamp();
    const first = await hand.take();
    (await hand.take(({ to }) => to !== first.to)).answer(1n);
    await slow;
    first.to.refuse(first.id, code);
    const next = client.timestamp();
    (await hand.take(({ to }) => to === first.to)).answer(2n);
    await next;
    // The first refusal was ignored, because the copy had an answer. A second refusal belongs to no
    // request, which violates the protocol.
    first.to.refuse(first.id, code);
    await assert.rejects(client.timestamp(), ProtocolError);
  }
});

test("frames that break the protocol are refused from the hedge, too", async (t) => {
  for (const bad of [
    { kind: Kind.ping, flags: 1 },
    { kind: Kind.pong, code: 1 },
    { kind: Kind.goodbye, id: 1n },
    { kind: Kind.leader, flags: 1 },
    { kind: Kind.request },
  ]) {
    const [leader, hand] = [await Node.start(t), new Hand()];
    leader.ask = hand.ask;
    const client = await hedging(t, leader);
    const call = assert.rejects(client.timestamp(), ProtocolError);
    const first = await hand.take();
    (await hand.take(({ to }) => to !== first.to)).to.say(bad);
    await call;
  }
});

test("answers that overtake each other leave the order of calls as it is", async (t) => {
  const [leader, oracle, next] = [await Node.start(t), new Oracle(), random(7)];
  leader.ask = (to, id, count) => {
    const after = next() % 8 === 0 ? 5 + (next() % 55) : (next() % 2000) / 1000;
    const taken = next() % 2 === 0 ? oracle.take(count) : undefined;
    setTimeout(() => to.answer(id, count, taken ?? oracle.take(count)), after);
  };
  const client = await hedging(t, leader);
  const calls: { begin: number; end: number; first: Timestamp; last: Timestamp }[] = [];
  let [moment, given] = [0, 0];
  const caller = async (at: number) => {
    for (let round = 0; round < 60; round++) {
      const begin = ++moment;
      const { first, last, count } = await client.timestamps(1 + (at % 3));
      calls.push({ begin, end: ++moment, first, last });
      given += count;
    }
  };
  await Promise.all(Array.from({ length: 16 }, (_, at) => caller(at)));
  calls.sort((one, other) => one.first.compare(other.first));
  let latest = 0;
  calls.forEach((call, at) => {
    assert.ok(at === 0 || (calls[at - 1] as typeof call).last < call.first, "given twice");
    assert.ok(call.end > latest, "the order of calls is broken");
    latest = Math.max(latest, call.begin);
  });
  assert.ok(oracle.next - 1n > given, "nothing was asked twice");
});

for (const why of ["no token", "a refusal"]) {
  test(`a second connection that does not open ends no call: ${why}`, async (t) => {
    const [leader, hand] = [await Node.start(t), new Hand()];
    leader.ask = hand.ask;
    let tries = 0;
    const tokenSource = () => {
      if (why === "no token" && leader.met > 0) {
        tries++;
        throw new Error("the file of tokens is gone");
      }
      return "";
    };
    leader.onHello = () => {
      if (leader.met === 1) {
        return leader.welcome(leader);
      }
      tries++;
      [...leader.peers].at(-1)?.refuse(0n, 18, "no token");
      return undefined;
    };
    const client = await hedging(t, leader, { tokenSource, attemptTimeout: 8_000 });
    const call = client.timestamp();
    const first = await hand.take();
    // The next attempt begins a second after the one before has failed.
    await until(() => tries >= 2);
    first.answer(1n);
    assert.equal((await call).index, 1n);
    assert.equal(client.leader, leader.addr);
  });
}

test("a second connection over a slow link opens in the end", async (t) => {
  const [leader, oracle, isMain] = [await Node.start(t), new Oracle(), firstOnly()];
  const attemptTimeout = 2_400;
  leader.onHello = () => {
    const [to, hello] = [[...leader.peers].at(-1) as Peer, encodeWelcome(leader.welcome(leader))];
    // The way of a hello and its answer. The first limit is an eighth of the attempt timeout.
    setTimeout(() => to.socket.write(hello), attemptTimeout / 6);
    return undefined;
  };
  let isHedged = false;
  leader.ask = (to, id, count) => {
    isHedged ||= !isMain(to);
    setTimeout(() => oracle.serve(to, id, count), isMain(to) ? 3 * AFTER : 0);
  };
  const client = await hedging(t, leader, { attemptTimeout });
  for (let call = 0; !isHedged; call++) {
    assert.ok(call < 500, `${leader.met} connections`);
    await client.timestamp();
  }
});

for (const why of ["silence", "a refusal"]) {
  test(`the second connection is dialled more and more seldom: ${why}`, async (t) => {
    const leader = await Node.start(t);
    const [first, dials] = [20, 12];
    let [tries, ended] = [0, 0];
    leader.onHello = () => {
      if (leader.met === 1) {
        return leader.welcome(leader);
      }
      if (++tries === dials) {
        ended = performance.now();
      }
      if (why === "a refusal") {
        [...leader.peers].at(-1)?.refuse(0n, 18, "no token");
      }
      return undefined;
    };
    const began = performance.now();
    await connect(t, leader, { hedgeAfter: first, attemptTimeout: 4 * first });
    await until(() => ended);
    // While no call waits, the pause doubles from 1 ms. Up to half of it is left out.
    const pauses = Array.from({ length: dials - 1 }, (_, at) => first + 2 ** at / 2);
    const least = pauses.reduce((sum, one) => sum + one) - dials; // Timers may fire early.
    assert.ok(ended - began > least, `${dials} dials in ${ended - began} ms`);
  });
}

test("while calls wait, the pause before the second connection stays short", async (t) => {
  const [leader, oracle] = [await Node.start(t), new Oracle()];
  const [first, dials] = [20, 16];
  let tries = 0;
  leader.onHello = () => {
    if (leader.peers.size === 1) {
      return leader.welcome(leader);
    }
    tries++;
    [...leader.peers].at(-1)?.refuse(0n, 18, "no token");
    return undefined;
  };
  leader.ask = (to, id, count) => setTimeout(() => oracle.serve(to, id, count), first / 2);
  const client = await connect(t, leader, { hedgeAfter: first, attemptTimeout: 8 * first });
  const began = performance.now();
  for (let call = 0; tries < dials && call < 2_000; call++) {
    await client.timestamp();
  }
  // A client without calls would take at least 9 s, as the test above shows. This takes 0.8 s.
  const took = performance.now() - began;
  assert.ok(tries >= dials && took < 9_000, `${tries} dials in ${took} ms`);
});

test("closing while the second connection opens leaves nothing behind", async (t) => {
  const leader = await Node.start(t);
  leader.ask = () => {};
  const client = await hedging(t, leader);
  leader.onHello = () => undefined;
  await until(() => leader.met >= 2);
  await client.close();
  await until(() => leader.peers.size === 0);
});
