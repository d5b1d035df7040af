package io.github.epicepoch;

import java.time.Duration;

/** The end of a wait, by {@link System#nanoTime()}. */
final class Deadline {
    /** The longest wait. Every clock can represent a time that is this far away. */
    static final Duration LONGEST = Duration.ofDays(366);

    private static final long MILLI = 1_000_000;

    private final long at;

    private Deadline(long at) {
        this.at = at;
    }

    static Deadline after(Duration timeout) {
        return after((timeout.compareTo(LONGEST) < 0 ? timeout : LONGEST).toNanos());
    }

    static Deadline after(long nanos) {
        return new Deadline(System.nanoTime() + nanos);
    }

    /** Returns this deadline, moved by a time to a later one. */
    Deadline plus(long nanos) {
        return new Deadline(at + nanos);
    }

    /** Returns the time that is left, in nanoseconds; 0 or less if it is over. */
    long left() {
        return at - System.nanoTime();
    }

    /** Returns the time that is left in whole milliseconds, rounded up; at least 1. */
    long leftMillis() {
        return Math.max(1, (left() + MILLI - 1) / MILLI);
    }

    boolean isOver() {
        return left() <= 0;
    }

    boolean isBefore(Deadline other) {
        return at - other.at < 0;
    }
}
