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
  NotCompactError,
  ProtocolError,
  RefusedError,
  type Timestamp,
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
  compact?: boolean;
}

/** The fields of a reply to a call. */
type Given = { first: Timestamp; count: number } | { u64: string; count: number };

const origin = process.hrtime.bigint();
const calls = new Map<number, AbortController>();
let client: Client | undefined;
/** Whether the client needs compact timestamps, and makes the calls for them. */
let isCompact = false;

/** Carries out a command. If the command is a call, returns its timestamps. */
async function carryOut(command: Command): Promise<Given | void> {
  switch (command.do) {
    case "open":
      isCompact = command.compact === true;
      client = await Client.connect(command.addrs, {
        ...(command.timeout_ms !== undefined && { timeout: command.timeout_ms }),
        attemptTimeout: command.attempt_ms,
        refreshInterval: command.refresh_ms,
        ...(command.guarantee && { guarantee: command.guarantee }),
        ...(isCompact && { timestampFormat: "compact" as const }),
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
        const asked = client as Client;
        if (command.do === "latest") {
          return isCompact
            ? { u64: String(await asked.compactLatest(options)), count: 1 }
            : { first: await asked.latest(options), count: 1 };
        }
        const { count } = command;
        if (isCompact) {
          return { u64: String(await asked.compactTimestamps(count, options)), count };
        }
        const range = await asked.timestamps(count, options);
        return { first: range.first, count: range.count };
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
  if (error instanceof RefusedError && error.code === "NOT_COMPACT") {
    return "not_compact";
  }
  const faults = [
    [NotCompactError, "not_compact"],
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
    outcome = (await carryOut(command)) ?? {};
  } catch (error) {
    outcome = { error: fault(error), text: String(error) };
  }
  const whole = { id: command.id, start, end: reading(), ...outcome };
  process.stdout.write(`${JSON.stringify(whole)}\n`);
}

const lines = createInterface({ input: process.stdin, crlfDelay: Infinity });
lines.on("line", (line) => void reply(JSON.parse(line) as Command));
lines.on("close", () => process.exit(0));
