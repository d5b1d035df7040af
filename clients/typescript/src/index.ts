/**
 * Client of EpicEpoch, a replicated timestamp oracle that gives unique, strictly increasing 16-byte
 * timestamps.
 *
 * A {@link Client} finds the leader and follows it when it moves. It speaks the native protocol
 * (docs/protocol.md of the project) and needs Node.js alone. clients/README.md states the contract
 * of every client.
 */

export { Client, type CallOptions } from "./client.js";
export {
  ClosedError,
  CountError,
  DeadlineExceededError,
  EpicEpochError,
  NotCompactError,
  ProtocolError,
  RefusedError,
  TooManyCallsError,
  UnreachableError,
  WentBackwardsError,
  WrongClusterError,
  type RefusalCode,
} from "./errors.js";
export type { Cluster, Guarantee, TimestampFormat } from "./frame.js";
export type { Observer, Options } from "./options.js";
export { Timestamp, TimestampRange } from "./timestamp.js";
