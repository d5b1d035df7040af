/**
 * The conformance driver of the TypeScript client (clients/README.md). It reads commands, one JSON
 * object per line, and writes the client's answers.
 */

import { createInterface } from "node:readline";

import {
  Client,
  ClosedError,
  CountError,
  DeadlineExceededError,
  ProtocolError,
  RefusedError,
  TimestampRange,
  WentBackwardsError,
  WrongClusterError,
} from "../src/index.js";

interface Command {
  do: "open" | "timestamps" | "latest" | "cancel" | "clock" | "close";
  id: number;
  addrs: string[];
  count: number;
  call: number;
  timeout_ms?: number;
  attempt_ms: number;
  refresh_ms: number;
  cluster?: string;
  hedge_ms?: number;
  guarantee?: "quorum" | "lease";
}

const origin = process.hrtime.bigint();
const calls = new Map<number, AbortController>();
let client: Client | undefined;

/** Carries out a command. If the command is a call, returns its timestamps. */
async function carryOut(command: Command): Promise<TimestampRange | void> {
  switch (command.do) {
    case "open":
      client = await Client.connect(command.addrs, {
        ...(command.timeout_ms !== undefined && { timeout: command.timeout_ms }),
        attemptTimeout: command.attempt_ms,
        refreshInterval: command.refresh_ms,
        ...(command.guarantee && { guarantee: command.guarantee }),
        ...(command.cluster && { clusterName: command.cluster }),
        ...(command.hedge_ms && { hedgeAfter: command.hedge_ms }),
      });
      return undefined;
    case "timestamps":
    case "latest": {
      const own = new AbortController();
      calls.set(command.id, own);
      try {
        const given = command.timeout_ms !== undefined && { timeout: command.timeout_ms };
        const options = { ...given, signal: own.signal };
        if (command.do === "latest") {
          return new TimestampRange(await (client as Client).latest(options), 1);
        }
        return await (client as Client).timestamps(command.count, options);
      } finally {
        calls.delete(command.id);
      }
    }
    case "cancel":
      return calls.get(command.call)?.abort();
    case "clock":
      return undefined;
    case "close":
      return client?.close();
  }
}

/** The names of the errors that the drivers of all languages share. */
function fault(error: unknown): string {
  if (error instanceof DOMException && error.name === "AbortError") {
    return "cancelled";
  }
  const faults = [
    [DeadlineExceededError, "deadline"],
    [ClosedError, "closed"],
    [CountError, "count"],
    [WrongClusterError, "wrong_cluster"],
    [WentBackwardsError, "backwards"],
    [ProtocolError, "protocol"],
    [RefusedError, "refused"],
  ] as const;
  return faults.find(([type]) => error instanceof type)?.[1] ?? "other";
}

/** Returns the nanoseconds since the start. */
function reading(): number {
  return Number(process.hrtime.bigint() - origin);
}

async function reply(command: Command): Promise<void> {
  const start = reading();
  let outcome = {};
  try {
    const range = await carryOut(command);
    outcome = range ? { first: range.first, count: range.count } : {};
  } catch (error) {
    outcome = { error: fault(error), text: String(error) };
  }
  const whole = { id: command.id, start, end: reading(), ...outcome };
  process.stdout.write(`${JSON.stringify(whole)}\n`);
}

const lines = createInterface({ input: process.stdin, crlfDelay: Infinity });
lines.on("line", (line) => void reply(JSON.parse(line) as Command));
lines.on("close", () => process.exit(0));
