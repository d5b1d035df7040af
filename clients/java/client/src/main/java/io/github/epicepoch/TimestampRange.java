package io.github.epicepoch;

import java.io.Serializable;
import java.util.Iterator;
import java.util.Objects;
import java.util.OptionalLong;
import java.util.stream.LongStream;
import java.util.stream.Stream;

/**
 * Timestamps of one epoch with consecutive indexes.
 *
 * @param first the lowest timestamp
 * @param count the number of timestamps, at least 1
 */
public record TimestampRange(Timestamp first, long count)
        implements Iterable<Timestamp>, Serializable {

    /**
     * Creates a range.
     *
     * @param first the lowest timestamp
     * @param count the number of timestamps
     * @throws IllegalArgumentException if the range is empty, or leaves its epoch
     */
    public TimestampRange {
        Objects.requireNonNull(first, "first");
        if (count < 1 || Long.compareUnsigned(first.index() + (count - 1), first.index()) < 0) {
            throw new IllegalArgumentException(count + " timestamps from " + first);
        }
    }

    /**
     * Returns one timestamp of the range.
     *
     * @param offset the place in the range, from 0
     * @return the timestamp
     * @throws IndexOutOfBoundsException unless {@code 0 <= offset < count}
     */
    public Timestamp at(long offset) {
        Objects.checkIndex(offset, count);
        return new Timestamp(first.epoch(), first.index() + offset);
    }

    /**
     * Returns the highest timestamp.
     *
     * @return the timestamp at {@code count - 1}
     */
    public Timestamp last() {
        return at(count - 1);
    }

    /**
     * Returns the compact spelling of the lowest timestamp. Those of the others follow it without a
     * gap. See {@link Timestamp#compact()}.
     *
     * @return a number that is not negative
     * @throws NotCompactException if a timestamp of the range has no compact spelling
     */
    public long compactFirst() {
        OptionalLong spelling = first.compact();
        if (spelling.isEmpty() || last().compact().isEmpty()) {
            String advice =
                    "change the cluster with epicepoch settings set TIMESTAMP_FORMAT=compact";
            String what = "the cluster gave " + first + ", which does not fit into 64 bits";
            throw new NotCompactException(what + ": " + advice, null);
        }
        return spelling.getAsLong();
    }

    /**
     * Returns the timestamps, lowest first.
     *
     * @return a stream of {@code count} timestamps
     */
    public Stream<Timestamp> stream() {
        return LongStream.range(0, count).mapToObj(this::at);
    }

    @Override
    public Iterator<Timestamp> iterator() {
        return stream().iterator();
    }

    /** Returns the part of this range that belongs to one caller. */
    TimestampRange part(long offset, long size) {
        return new TimestampRange(at(offset), size);
    }
}
