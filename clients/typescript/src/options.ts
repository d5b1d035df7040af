/** The settings of a client: their meaning, their defaults, and which values are refused. */

import type { ConnectionOptions } from "node:tls";

import {
  GUARANTEES,
  NAME_MAX,
  TIMESTAMP_FORMATS,
  TOKEN_MAX,
  type Guarantee,
  type TimestampFormat,
} from "./frame.js";

/** Functions that the client calls, for metrics. They must return quickly. */
export interface Observer {
  /**
   * A request was answered. The arguments are the number of callers that shared it, the number of
   * timestamps, and the milliseconds from sending to answer. The number of timestamps is 0 if all
   * callers ask for the latest one.
   */
  answered?(callers: number, timestamps: number, latency: number): void;
  /** A request was refused, a connection has ended, or an attempt to find the leader has failed. */
  failedAttempt?(error: Error): void;
  /** The client is connected to a leader. */
  connected?(addr: string): void;
}

/** Options of {@link Client.connect}. All times are milliseconds. */
export interface Options {
  /**
   * How long connecting may take, and a call without its own timeout. Default 2,000, the time of
   * several elections.
   */
  timeout?: number;
  /**
   * How long one node may take to accept a connection, to read or to answer. After that time the
   * client asks another node. Default 500: longer than a loaded node needs, and shorter than a
   * caller wants to wait in a failover. At least 10.
   */
  attemptTimeout?: number;
  /** How often the client learns the members again. Default 30,000. At least 100. */
  refreshInterval?: number;
  /**
   * How many requests may be in flight at once, 1 to 256. Default 4. When that many are in flight,
   * new callers share the next request. A higher value lowers the latency under light load and
   * costs more requests under heavy load.
   */
  inFlight?: number;
  /**
   * The name of the cluster, 1 to 64 bytes. Nodes of another name are refused. By default any name
   * is accepted, and the client keeps to the cluster of the first node that answers.
   */
  clusterName?: string;
  /**
   * Time after which a request without an answer is sent a second time. The copy goes over another
   * connection to the leader. If that connection fails, the copy goes to the next known node. The
   * first answer counts; the timestamps of the other answer are never used. The client looks for
   * slow requests every `hedgeAfter`, but at least every 5 ms and at most every 1 ms. Default
   * never, because hedging costs a connection and, if the whole cluster is slow, up to twice the
   * requests.
   */
  hedgeAfter?: number;
  /**
   * The guarantee that all requests ask for. With `lease`, the leader may answer without asking a
   * quorum. If a clock then runs at a wrong rate, or stands still with its machine, a timestamp may
   * lie below one that was answered before. No timestamp is given twice. All clients of a keyspace
   * must use one guarantee. A node that is too old for guarantees refuses the client. So name one
   * only when all nodes are new enough, and stop naming it before they go back. By default requests
   * name none, and get that of the cluster, a quorum.
   */
  guarantee?: Guarantee;
  /**
   * The format that all timestamps must have. With `compact`, a cluster that gives wide ones refuses
   * each call with `NOT_COMPACT`. Programs need it that call {@link Timestamp.toCompact} themselves:
   * the calls for compact timestamps check each one. A node that is too old for compact timestamps
   * refuses the client. By default none is named, and any timestamp is accepted.
   */
  timestampFormat?: TimestampFormat;
  /**
   * TLS on every connection, with these options of node:tls: `ca` for the cluster's authority,
   * `cert` and `key` if nodes ask for a certificate. Without `ca`, the client trusts the
   * authorities of Node.js. If this is a function, it is called at each connection, so that
   * certificates can change. Default plain TCP. The client uses TLS 1.3 unless `minVersion` is set.
   */
  tls?: ConnectionOptions | (() => ConnectionOptions);
  /**
   * A token from the nodes' `CLIENT_TOKEN_FILE`: up to 256 visible ASCII characters. Default none.
   * Use it only over TLS; otherwise anyone on the network path can read it.
   */
  token?: string;
  /**
   * A function that returns the token. It is called at each connection, so that the token can
   * change: a node ends a connection whose token is no longer valid, and the client connects again.
   * It is used instead of `token`. If it throws or returns an invalid token, the client tries again
   * until the deadline, as if the node were unreachable.
   */
  tokenSource?: () => string;
  /** Functions for metrics. Default none. */
  observer?: Observer;
  /** A signal that ends connecting. It has no effect on the connected client. */
  signal?: AbortSignal;
}

/** Options with their defaults. */
export type Settings = Options &
  Required<Pick<Options, "timeout" | "attemptTimeout" | "refreshInterval" | "inFlight">>;

const DEFAULTS = {
  timeout: 2_000,
  attemptTimeout: 500,
  refreshInterval: 30_000,
  inFlight: 4,
};

/** The longest time that a timer of Node.js takes, milliseconds. */
export const DURATION_MAX_MS = 2 ** 31 - 1;
/**
 * The limit of `inFlight`. It is below 1024, the number of requests that a node reads before it
 * answers.
 */
const IN_FLIGHT_MAX = 256;

/** Checks options and adds the defaults. Throws a RangeError or a TypeError. */
export function settings(options: Options): Settings {
  const given = Object.entries(options).filter(([, value]) => value !== undefined);
  const all: Settings = { ...DEFAULTS, ...Object.fromEntries(given) };
  inRange("timeout", all.timeout, Number.MIN_VALUE, DURATION_MAX_MS);
  inRange("attemptTimeout", all.attemptTimeout, 10, DURATION_MAX_MS);
  inRange("refreshInterval", all.refreshInterval, 100, DURATION_MAX_MS);
  inRange("inFlight", all.inFlight, 1, IN_FLIGHT_MAX);
  inRange("hedgeAfter", all.hedgeAfter ?? 1, Number.MIN_VALUE, DURATION_MAX_MS);
  if (all.clusterName !== undefined) {
    inRange("bytes of clusterName", Buffer.byteLength(all.clusterName), 1, NAME_MAX);
  }
  if (all.guarantee !== undefined && !Object.hasOwn(GUARANTEES, all.guarantee)) {
    throw new TypeError(`guarantee is "${all.guarantee}"; allowed are quorum and lease`);
  }
  const format = all.timestampFormat;
  if (format !== undefined && !Object.hasOwn(TIMESTAMP_FORMATS, format)) {
    throw new TypeError(`timestampFormat is "${format}"; allowed are wide and compact`);
  }
  checkedToken(all.token ?? "");
  return all;
}

/** Returns the token for a new connection. Returns an empty text if there is no token. */
export function currentToken(all: Settings): string {
  return checkedToken(all.tokenSource ? all.tokenSource() : (all.token ?? ""));
}

function checkedToken(token: string): string {
  if (token.length > TOKEN_MAX || !/^[!-~]*$/.test(token)) {
    throw new TypeError(`a token has up to ${TOKEN_MAX} visible ASCII characters`);
  }
  return token;
}

function inRange(name: string, value: number, least: number, most: number): void {
  if (typeof value !== "number" || !(value >= least && value <= most)) {
    const from = least === Number.MIN_VALUE ? "more than 0" : String(least);
    throw new RangeError(`${name} is ${value}; allowed are ${from} to ${most}`);
  }
}

/** Splits `host:port` or `[host]:port`. Returns undefined if the text is neither. */
export function splitAddress(addr: string): { host: string; port: number } | undefined {
  const parts = /^(?:\[([^\]]+)\]|([^:\s]+)):(\d{1,5})$/.exec(addr);
  const host = parts?.[1] ?? parts?.[2];
  const port = Number(parts?.[3]);
  return host && port >= 1 && port <= 65_535 ? { host, port } : undefined;
}
