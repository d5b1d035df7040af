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
    /** The sum of the callers' counts. Under the lock until the batch is sent. */
    private long count;
    /** The calls that wait without a thread. Under the lock until the batch is taken. */
    private final List<AsyncCall<?>> calls = new ArrayList<>(0);
    /** How many callers have not left. */
    private final AtomicInteger callers = new AtomicInteger();

    /** The request's id, once sent. */
    private long id;
    /** When the request was sent, by {@link System#nanoTime()}. */
    private long sentAt;
    /** The highest timestamp returned before the request was sent; null if there was none. */
    private Timestamp floor;

    private final CountDownLatch done = new CountDownLatch(1);
    private TimestampRange answer;
    private EpicEpochException error;

    /** Adds a caller. Returns where its timestamps begin. */
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

    /** Closes the batch: it is sent now. */
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

    /** Returns what was asked, to check its answer. */
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
            // An answer that comes with the deadline is dropped: the deadline counts.
            isDone = done.await(deadline.left(), TimeUnit.NANOSECONDS) && !deadline.isOver();
        } finally {
            if (!isDone) {
                leave();
            }
        }
        return isDone;
    }

    /** Returns the answer to all callers, or null if there is an error. Call it when done. */
    TimestampRange answer() {
        return answer;
    }

    EpicEpochException error() {
        return error;
    }

    /**
     * A sent request.
     *
     * @param floor the highest timestamp returned before this sending, or null
     * @param at when it was sent
     */
    record Asked(long count, Timestamp floor, long at) {
        /** Throws unless this can be the answer of the node at that address. */
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
