/** The errors of the client. Each says what the caller can do. */

import { inspect } from "node:util";

/** The base of all errors of this package. */
export class EpicEpochError extends Error {
  override name = "EpicEpochError";
}

/**
 * No timestamp came before the deadline. Try again, or with a later deadline. `cause` is the error
 * of the last failed attempt: an {@link UnreachableError} or a {@link RefusedError}.
 */
export class DeadlineExceededError extends EpicEpochError {
  override name = "DeadlineExceededError";

  constructor(last?: Error) {
    const reason = last?.message ?? "no node has answered yet";
    super(`no timestamp before the deadline: ${reason}`, { cause: last });
  }
}

/** The client is closed. */
export class ClosedError extends EpicEpochError {
  override name = "ClosedError";

  constructor() {
    super("the client is closed");
  }
}

/**
 * The count of a request is out of range. Ask for at least 1 timestamp, and at most as many as the
 * node allows. No node allows more than 2^32.
 */
export class CountError extends EpicEpochError {
  override name = "CountError";

  constructor(count: number, most: number) {
    super(`${count} timestamps asked for; allowed are 1 to ${most}`);
  }
}

/**
 * A call asked for compact timestamps, and the cluster gives wide ones. Ask for wide timestamps, or
 * have an operator change the cluster. If {@link Options.timestampFormat} is `compact`, the node
 * refuses instead: see `NOT_COMPACT` of {@link RefusedError}.
 */
export class NotCompactError extends EpicEpochError {
  override name = "NotCompactError";

  constructor(first: { toString(): string }) {
    const advice = "change the cluster with epicepoch settings set TIMESTAMP_FORMAT=compact";
    super(`the cluster gave ${first}, which does not fit into 64 bits: ${advice}`);
  }
}

/** Too many calls wait. Try again when some of them have ended. */
export class TooManyCallsError extends EpicEpochError {
  override name = "TooManyCallsError";

  constructor(most: number) {
    super(`${most} calls wait already`);
  }
}

/** No oracle gives such an answer. The address is probably wrong. */
export class ProtocolError extends EpicEpochError {
  override name = "ProtocolError";
}

/**
 * A timestamp was not above one that this client had returned before, or a latest timestamp was
 * below one. The caller does not get it, because it may have been given before. The cause is two
 * clusters behind one address, or a cluster restored without a new history.
 */
export class WentBackwardsError extends EpicEpochError {
  override name = "WentBackwardsError";
}

/**
 * A node accepts no connection, has closed it or does not answer, or the function `tokenSource` or
 * `tls` failed. The client tries again. So a caller sees this only as the `cause` of another error.
 */
export class UnreachableError extends EpicEpochError {
  override name = "UnreachableError";
  /** The address of the node. */
  readonly addr: string;

  constructor(addr: string, why: unknown) {
    super(`${addr} cannot be reached: ${textOf(why)}`, { cause: why });
    this.addr = addr;
  }
}

/** Returns what an error says. It may be anything that a function of the program has thrown. */
function textOf(why: unknown): string {
  if (!(why instanceof Error)) {
    return typeof why === "string" ? why : inspect(why);
  }
  // If a host has several addresses, the error of Node.js has no message, but one error for each.
  const each = why instanceof AggregateError ? why.errors.map((one) => textOf(one)).join("; ") : "";
  return why.message || each || (why as NodeJS.ErrnoException).code || why.name;
}

/** Names of the refusals of the native protocol, by number. */
const REFUSALS = {
  1: "NOT_LEADER",
  2: "NO_QUORUM",
  3: "NO_LEADER",
  4: "OVERLOADED",
  5: "BAD_COUNT",
  7: "BAD_REQUEST",
  10: "SHUTTING_DOWN",
  11: "NOT_READY",
  12: "INTERNAL",
  13: "FORBIDDEN",
  18: "UNAUTHORIZED",
  19: "NOT_COMPACT",
  22: "OTHER_MODE",
  64: "WRONG_CLUSTER",
  65: "UNSUPPORTED_VERSION",
  66: "UNSUPPORTED",
} as const;

/** The name of a refusal. */
export type RefusalCode = (typeof REFUSALS)[keyof typeof REFUSALS];

/** The refusals that another attempt, at this node or another one, may cure. */
const CURABLE: ReadonlySet<RefusalCode> = new Set<RefusalCode>([
  "NOT_LEADER",
  "NO_QUORUM",
  "NO_LEADER",
  "OVERLOADED",
  "SHUTTING_DOWN",
  "NOT_READY",
  "INTERNAL",
]);

/**
 * A node refused. If another attempt may help, the client tries again. A caller then sees the
 * refusal only as the `cause` of another error.
 */
export class RefusedError extends EpicEpochError {
  override name = "RefusedError";
  /** The address of the node. */
  readonly addr: string;
  /** The name of the refusal. A number that this client does not know is `INTERNAL`. */
  readonly code: RefusalCode;
  /** The number on the wire. */
  readonly number: number;
  /** The advice of the node. With `NOT_LEADER` it is the address of the leader. */
  readonly text: string;

  constructor(addr: string, number: number, text = "") {
    const code = refusalCode(number) ?? "INTERNAL";
    super(`${addr} refused with ${code}${text && `: ${text}`}`);
    this.addr = addr;
    this.code = code;
    this.number = number;
    this.text = text;
  }
}

/**
 * The node belongs to another cluster, or to another history of this client's cluster. Correct the
 * address.
 */
export class WrongClusterError extends RefusedError {
  override name = "WrongClusterError";
}

/** Returns the name of a refusal, or undefined if the number is not known. */
export function refusalCode(number: number): RefusalCode | undefined {
  return (REFUSALS as Record<number, RefusalCode>)[number];
}

/** Makes the error for a refusal of a node. */
export function refusal(addr: string, number: number, text = ""): RefusedError {
  const isWrongCluster = refusalCode(number) === "WRONG_CLUSTER";
  return new (isWrongCluster ? WrongClusterError : RefusedError)(addr, number, text);
}

/** Returns whether an error is the refusal with this name. */
export function isRefusal(error: Error, code: RefusalCode): error is RefusedError {
  return error instanceof RefusedError && error.code === code;
}

/** Returns whether another attempt, at this node or another one, may succeed. */
export function isCurable(error: Error): boolean {
  if (error instanceof RefusedError) {
    return CURABLE.has(error.code);
  }
  return error instanceof UnreachableError;
}
