/**
 * Timestamps as values: ordered, and with views as text, bytes and time. This module does no IO.
 */

const U64_MAX = (1n << 64n) - 1n;
const NANOSECONDS_PER_MS = 1_000_000n;
const COMPACT_BITS = 18n;
const COMPACT_INDEXES = 1n << COMPACT_BITS;
/** A millisecond has this many compact timestamps, so a request gets no more of them. */
export const COMPACT_COUNT_MAX = Number(COMPACT_INDEXES);
const COMPACT_MAX = ((U64_MAX / NANOSECONDS_PER_MS) << COMPACT_BITS) | (COMPACT_INDEXES - 1n);

/**
 * A moment that the oracle gave to exactly one caller. Timestamps have the same order as their
 * bytes and their texts: first by epoch, then by index. `<` and `>` compare them; `===` does not,
 * use {@link Timestamp.equals}.
 */
export class Timestamp {
  /** Unix time in nanoseconds, 0 to 2^64 - 1. */
  readonly epoch: bigint;
  /** Position within the epoch, 0 to 2^64 - 1. */
  readonly index: bigint;

  /** @throws RangeError if a part is not within 0 to 2^64 - 1. */
  constructor(epoch: bigint, index: bigint) {
    if (BigInt.asUintN(64, epoch) !== epoch || BigInt.asUintN(64, index) !== index) {
      throw new RangeError(`epoch ${epoch}, index ${index}: allowed are 0 to 2^64 - 1`);
    }
    this.epoch = epoch;
    this.index = index;
  }

  /**
   * Reads the 32 hexadecimal digits that {@link Timestamp.toString} writes.
   *
   * @throws SyntaxError if the text has another form.
   */
  static parse(text: string): Timestamp {
    if (!/^[0-9a-fA-F]{32}$/.test(text)) {
      throw new SyntaxError(`${JSON.stringify(text)} is not a timestamp of 32 hexadecimal digits`);
    }
    return new Timestamp(BigInt(`0x${text.slice(0, 16)}`), BigInt(`0x${text.slice(16)}`));
  }

  /**
   * Reads the 16 bytes that {@link Timestamp.toBytes} writes.
   *
   * @throws RangeError if there are not 16 bytes.
   */
  static fromBytes(bytes: Uint8Array): Timestamp {
    if (bytes.length !== 16) {
      throw new RangeError(`${bytes.length} bytes: a timestamp has 16`);
    }
    const view = new DataView(bytes.buffer, bytes.byteOffset, 16);
    return new Timestamp(view.getBigUint64(0), view.getBigUint64(8));
  }

  /**
   * Returns the lowest timestamp of a wall time, for queries that begin at that time. The time is a
   * date, or Unix time in nanoseconds. A time before 1970 or after 2554 counts as the nearest time
   * that has an epoch.
   */
  static lowest(at: Date | bigint): Timestamp {
    return new Timestamp(epochOf(at), 0n);
  }

  /**
   * Returns the highest timestamp of a wall time, for queries that end at that time. A date stands
   * for a whole millisecond, so its highest timestamp is in the last nanosecond of that
   * millisecond. A bigint stands for one nanosecond.
   */
  static highest(at: Date | bigint): Timestamp {
    const last = typeof at === "bigint" ? 0n : NANOSECONDS_PER_MS - 1n;
    return new Timestamp(epochOf(epochOf(at) + last), U64_MAX);
  }

  /**
   * Reads a compact timestamp, which {@link Timestamp.toCompact} returns.
   *
   * @throws RangeError if it is below 0, or above the last millisecond that has an epoch.
   */
  static fromCompact(compact: bigint): Timestamp {
    if (compact < 0n || compact > COMPACT_MAX) {
      throw new RangeError(`${compact} is no compact timestamp: allowed are 0 to ${COMPACT_MAX}`);
    }
    const epoch = (compact >> COMPACT_BITS) * NANOSECONDS_PER_MS;
    return new Timestamp(epoch, compact % COMPACT_INDEXES);
  }

  /**
   * Returns the compact spelling, `milliseconds << 18 | index`. Compact timestamps have the order of
   * their spellings. Returns `undefined` if there is none: the epoch is not a whole millisecond, or
   * the index is 2^18 or higher. In a cluster with `TIMESTAMP_FORMAT=compact` every timestamp has one.
   */
  toCompact(): bigint | undefined {
    if (this.epoch % NANOSECONDS_PER_MS !== 0n || this.index >= COMPACT_INDEXES) {
      return undefined;
    }
    return ((this.epoch / NANOSECONDS_PER_MS) << COMPACT_BITS) | this.index;
  }

  /** Returns a number below, equal to or above 0, as `Array.sort` expects it. */
  compare(other: Timestamp): number {
    if (this.epoch !== other.epoch) {
      return this.epoch < other.epoch ? -1 : 1;
    }
    if (this.index !== other.index) {
      return this.index < other.index ? -1 : 1;
    }
    return 0;
  }

  /** Returns whether this timestamp is lower than the other one. */
  isBefore(other: Timestamp): boolean {
    return this.compare(other) < 0;
  }

  /** Returns whether both are the same timestamp. */
  equals(other: Timestamp): boolean {
    return this.epoch === other.epoch && this.index === other.index;
  }

  /** Returns the timestamp as a number of 128 bits. JavaScript calls this for `<` and `>`. */
  valueOf(): bigint {
    return (this.epoch << 64n) | this.index;
  }

  /** Returns the bytes as 32 lower-case hexadecimal digits. */
  toString(): string {
    return hex(this.epoch) + hex(this.index);
  }

  /** Returns what {@link Timestamp.toString} returns. */
  toJSON(): string {
    return this.toString();
  }

  /** Returns the 16 bytes of the timestamp, to use as a key. */
  toBytes(): Uint8Array {
    const bytes = new Uint8Array(16);
    const view = new DataView(bytes.buffer);
    view.setBigUint64(0, this.epoch);
    view.setBigUint64(8, this.index);
    return bytes;
  }

  /** Returns the wall time of the epoch. A date has whole milliseconds; `epoch` is exact. */
  toDate(): Date {
    return new Date(Number(this.epoch / NANOSECONDS_PER_MS));
  }
}

/** Timestamps of one epoch with consecutive indexes, at least one. It iterates from the lowest. */
export class TimestampRange implements Iterable<Timestamp> {
  /** The lowest timestamp. */
  readonly first: Timestamp;
  /** The number of timestamps, 1 to 2^32. */
  readonly count: number;

  constructor(first: Timestamp, count: number) {
    this.first = first;
    this.count = count;
  }

  /** The highest timestamp. */
  get last(): Timestamp {
    return this.at(this.count - 1);
  }

  /**
   * Returns the timestamp at an offset.
   *
   * @throws RangeError unless the offset is an integer within 0 to `count - 1`.
   */
  at(offset: number): Timestamp {
    if (!Number.isInteger(offset) || offset < 0 || offset >= this.count) {
      throw new RangeError(`offset ${offset} of a range of ${this.count}`);
    }
    return new Timestamp(this.first.epoch, this.first.index + BigInt(offset));
  }

  /**
   * Returns the compact spelling of the lowest timestamp; those of the others follow it without a
   * gap. Returns undefined if a timestamp of the range has none. See {@link Timestamp.toCompact}.
   */
  toCompact(): bigint | undefined {
    return this.last.toCompact() === undefined ? undefined : this.first.toCompact();
  }

  *[Symbol.iterator](): Iterator<Timestamp> {
    for (let offset = 0; offset < this.count; offset++) {
      yield this.at(offset);
    }
  }
}

function epochOf(at: Date | bigint): bigint {
  const epoch = typeof at === "bigint" ? at : BigInt(at.getTime()) * NANOSECONDS_PER_MS;
  if (epoch < 0n) {
    return 0n;
  }
  return epoch > U64_MAX ? U64_MAX : epoch;
}

function hex(value: bigint): string {
  return value.toString(16).padStart(16, "0");
}
