package io.github.epicepoch;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * A request that callers share. They join it while it is open, under the lock of {@link Requests}.
 * It is closed when it is sent, and then no caller can join. So every timestamp in its answer is
 * allocated after all of its callers asked.
 */
final class Batch {
    /** The sum of the callers' counts. Guarded by the lock until the batch is sent. */
    private long count;
    /** The calls that wait without a thread. Guarded by the lock until the batch is taken. */
    private final List<AsyncCall<?>> calls = new ArrayList<>(0);
    /** How many callers have not left. */
    private final AtomicInteger callers = new AtomicInteger();

    /** The request's id, once sent. */
    private long id;
    /** The time at which the request was sent, by {@link System#nanoTime()}. */
    private long sentAt;
    /**
     * The highest timestamp that the client had returned when it sent the request; null if there
     * was none.
     */
    private Timestamp floor;

    private final CountDownLatch done = new CountDownLatch(1);
    private TimestampRange answer;
    private EpicEpochException error;

    /** Adds a caller. Returns the offset in the answer at which the caller's timestamps begin. */
    long join(long wanted, AsyncCall<?> call) {
        long offset = count;
        count += wanted;
        callers.incrementAndGet();
        if (call != null) {
            calls.add(call);
        }
        return offset;
    }

    void leave() {
        callers.decrementAndGet();
    }

    /** Closes the batch, because it is sent now. */
    void send(long id, Timestamp floor) {
        this.id = id;
        this.floor = floor;
        sentAt = System.nanoTime();
    }

    long id() {
        return id;
    }

    long count() {
        return count;
    }

    List<AsyncCall<?>> calls() {
        return calls;
    }

    int callers() {
        return callers.get();
    }

    long age(long now) {
        return now - sentAt;
    }

    /** Returns what is needed to check the answer. */
    Asked asked() {
        return new Asked(count, floor, sentAt);
    }

    /** Ends the wait of all callers. */
    void finish(TimestampRange answer, EpicEpochException error) {
        this.answer = answer;
        this.error = error;
        done.countDown();
    }

    /** Waits until the batch is done. Returns false if the deadline comes first. */
    boolean await(Deadline deadline) throws InterruptedException {
        boolean isDone = false;
        try {
            // If the answer and the deadline come at the same moment, the deadline counts and the
            // answer is dropped.
            isDone = done.await(deadline.left(), TimeUnit.NANOSECONDS) && !deadline.isOver();
        } finally {
            if (!isDone) {
                leave();
            }
        }
        return isDone;
    }

    /**
     * Returns the answer for all callers together, or null if there is an error. Call it only when
     * the batch is done.
     */
    TimestampRange answer() {
        return answer;
    }

    EpicEpochException error() {
        return error;
    }

    /**
     * What is needed to check the answer of a sent request.
     *
     * @param floor the highest timestamp that the client had returned when it sent the request, or
     *     null
     * @param at the time at which it was sent
     */
    record Asked(long count, Timestamp floor, long at) {
        /** Throws if the given answer, from the node at this address, does not fit the request. */
        void check(String address, TimestampRange given) {
            if (given.count() != count) {
                throw new MalformedException(given.count() + " timestamps, not " + count);
            }
            if (floor != null && !given.first().isAfter(floor)) {
                String what = address + " gave " + given.first() + ", not above " + floor;
                throw new WentBackwardsException("timestamps went backwards: " + what, null);
            }
        }

        Duration age() {
            return Duration.ofNanos(System.nanoTime() - at);
        }
    }
}
