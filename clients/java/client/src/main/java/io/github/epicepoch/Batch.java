package io.github.epicepoch;

import java.nio.ByteBuffer;
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
    /** The count of a call for the latest timestamp, which takes none. */
    static final long LATEST = 0;

    /**
     * The sum of the callers' counts; 0 if all ask for the latest timestamp. Guarded by the lock
     * until the batch is sent.
     */
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
    /** Whether the request that was sent asks for the latest timestamp. */
    private boolean isLatest;

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
    void send(long id, Timestamp floor, boolean isLatest) {
        this.id = id;
        this.floor = floor;
        this.isLatest = isLatest;
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
        return new Asked(count, isLatest, floor, sentAt);
    }

    /**
     * Writes a request for callers that take so many timestamps together. A node that is too old to
     * say which timestamp is the latest is asked for one timestamp, which no caller gets as its own.
     * It is valid as the latest one: it is above all that was answered before the request, and below
     * all that is asked for later.
     *
     * @return whether the request asks for the latest timestamp
     */
    static boolean putRequest(ByteBuffer to, long id, long count, Welcome node) {
        boolean isLatest = count == LATEST && node.hasLatest();
        if (isLatest) {
            Frame.putLatest(to, id);
        } else {
            Frame.putRequest(to, id, Math.max(count, 1));
        }
        return isLatest;
    }

    /**
     * Returns a caller's part of an answer. A caller that asks for the latest timestamp gets the
     * last one of the answer. All callers of the batch have called before the request was sent, so
     * no timestamp from before is above that one, and later ones are.
     */
    static TimestampRange part(TimestampRange answer, long offset, long count) {
        return count == LATEST
                ? new TimestampRange(answer.last(), 1)
                : answer.part(offset, count);
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
     * @param count how many timestamps the callers take together; 0 if all ask for the latest one
     * @param isLatest whether the frame asks for the latest timestamp
     * @param floor the highest timestamp that the client had returned when it sent the request, or
     *     null
     * @param at the time at which it was sent
     */
    record Asked(long count, boolean isLatest, Timestamp floor, long at) {
        /** Throws if the given answer, from the node at this address, does not fit the request. */
        void check(String address, Frame.Answer answer) {
            TimestampRange given = answer.range();
            long expected = Math.max(count, 1);
            if (given.count() != expected) {
                throw new MalformedException(given.count() + " timestamps, not " + expected);
            }
            if (answer.isLatest() != isLatest) {
                throw new MalformedException(
                        isLatest
                                ? "a timestamp for this client alone instead of the latest one"
                                : "the latest timestamp instead of one for this client alone");
            }
            if (isLatest && given.first().equals(floor)) {
                return;
            }
            if (floor != null && !given.first().isAfter(floor)) {
                String what = address + " gave " + given.first();
                what += ", and " + floor + " was returned before";
                throw new WentBackwardsException("timestamps went backwards: " + what, null);
            }
        }

        Duration age() {
            return Duration.ofNanos(System.nanoTime() - at);
        }
    }
}
