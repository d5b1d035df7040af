package io.github.epicepoch;

import java.io.Serializable;
import java.nio.ByteBuffer;
import java.time.Instant;
import java.util.HexFormat;
import java.util.OptionalLong;

/**
 * A moment that the oracle gave to exactly one caller. Timestamps have the same order as their
 * bytes and as their text: first by epoch, then by index. Both numbers are unsigned.
 *
 * @param epoch Unix time in nanoseconds
 * @param index position within the epoch, from 0
 */
public record Timestamp(long epoch, long index) implements Comparable<Timestamp>, Serializable {
    /** The length of a timestamp in bytes. */
    public static final int BYTES = 16;

    /** The largest compact timestamp. */
    public static final long COMPACT_MAX = ((-1L >>> 6) / 15_625L << 18) | 0x3ffff;

    /** A millisecond has this many compact timestamps, so a request gets no more of them. */
    static final long COMPACT_COUNT_MAX = 1 << 18;

    private static final long NANOS = 1_000_000_000;
    private static final long MILLIS = 1_000_000;
    private static final int COMPACT_BITS = 18;
    private static final HexFormat HEX = HexFormat.of();

    /**
     * Returns the lowest timestamp of a wall time, for queries that begin at that time.
     *
     * @param at a wall time; before 1970 counts as 1970, and after 2554 as the highest epoch
     * @return the timestamp with the index 0
     */
    public static Timestamp lowest(Instant at) {
        return new Timestamp(epochOf(at), 0);
    }

    /**
     * Returns the highest timestamp of a wall time, for queries that end at that time.
     *
     * @param at a wall time; before 1970 counts as 1970, and after 2554 as the highest epoch
     * @return the timestamp with the highest index
     */
    public static Timestamp highest(Instant at) {
        return new Timestamp(epochOf(at), -1);
    }

    private static long epochOf(Instant at) {
        long seconds = at.getEpochSecond();
        if (seconds < 0) {
            return 0;
        }
        if (seconds > Long.divideUnsigned(-1, NANOS)) {
            return -1;
        }
        long whole = seconds * NANOS;
        long epoch = whole + at.getNano();
        return Long.compareUnsigned(epoch, whole) < 0 ? -1 : epoch;
    }

    /**
     * Reads the bytes that {@link #toBytes()} writes.
     *
     * @param bytes exactly 16 bytes
     * @return the timestamp
     * @throws IllegalArgumentException if there are more or fewer bytes
     */
    public static Timestamp fromBytes(byte[] bytes) {
        if (bytes.length != BYTES) {
            throw new IllegalArgumentException("a timestamp has 16 bytes, not " + bytes.length);
        }
        return read(ByteBuffer.wrap(bytes));
    }

    /**
     * Reads a compact timestamp, which {@link #compact()} returns.
     *
     * @param compact a number from 0 to {@link #COMPACT_MAX}
     * @return the timestamp
     * @throws IllegalArgumentException if the number is anything else
     */
    public static Timestamp fromCompact(long compact) {
        if (compact < 0 || compact > COMPACT_MAX) {
            throw new IllegalArgumentException(
                    compact + " is no compact timestamp, allowed are 0 to " + COMPACT_MAX);
        }
        return new Timestamp((compact >> COMPACT_BITS) * MILLIS, compact & (1 << COMPACT_BITS) - 1);
    }

    /**
     * Returns the compact spelling, {@code milliseconds << 18 | index}. Compact timestamps have the
     * order of their spellings. In a cluster with {@code TIMESTAMP_FORMAT=compact} every timestamp
     * has one.
     *
     * @return a number that is not negative; empty if the epoch is not a whole millisecond, or if
     *     the index is 2^18 or higher
     */
    public OptionalLong compact() {
        boolean isCompact =
                Long.remainderUnsigned(epoch, MILLIS) == 0 && index >>> COMPACT_BITS == 0;
        return isCompact
                ? OptionalLong.of(Long.divideUnsigned(epoch, MILLIS) << COMPACT_BITS | index)
                : OptionalLong.empty();
    }

    static Timestamp read(ByteBuffer from) {
        return new Timestamp(from.getLong(), from.getLong());
    }

    /**
     * Reads the text that {@link #toString()} writes.
     *
     * @param text exactly 32 hexadecimal digits
     * @return the timestamp
     * @throws IllegalArgumentException if the text is anything else
     */
    public static Timestamp parse(CharSequence text) {
        if (text.length() != 2 * BYTES) {
            throw new IllegalArgumentException(
                    "a timestamp has 32 hexadecimal digits, \"" + text + "\" has not");
        }
        return new Timestamp(
                HexFormat.fromHexDigitsToLong(text, 0, BYTES),
                HexFormat.fromHexDigitsToLong(text, BYTES, 2 * BYTES));
    }

    /**
     * Returns the timestamp as a key. The order of the bytes is the order of the timestamps.
     *
     * @return 16 bytes, big-endian: the epoch, then the index
     */
    public byte[] toBytes() {
        return ByteBuffer.allocate(BYTES).putLong(epoch).putLong(index).array();
    }

    /**
     * Returns the wall time of the epoch.
     *
     * @return a time between 1970 and 2554
     */
    public Instant toInstant() {
        return Instant.ofEpochSecond(
                Long.divideUnsigned(epoch, NANOS), Long.remainderUnsigned(epoch, NANOS));
    }

    /**
     * Compares the order of two timestamps.
     *
     * @param other another timestamp
     * @return whether this timestamp is lower
     */
    public boolean isBefore(Timestamp other) {
        return compareTo(other) < 0;
    }

    /**
     * Compares the order of two timestamps.
     *
     * @param other another timestamp
     * @return whether this timestamp is higher
     */
    public boolean isAfter(Timestamp other) {
        return compareTo(other) > 0;
    }

    @Override
    public int compareTo(Timestamp other) {
        int order = Long.compareUnsigned(epoch, other.epoch);
        return order != 0 ? order : Long.compareUnsigned(index, other.index);
    }

    /**
     * Returns the bytes as text. The order of the texts is the order of the timestamps.
     *
     * @return 32 lower-case hexadecimal digits
     */
    @Override
    public String toString() {
        return HEX.toHexDigits(epoch) + HEX.toHexDigits(index);
    }
}
