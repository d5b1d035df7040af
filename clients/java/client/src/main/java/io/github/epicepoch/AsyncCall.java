package io.github.epicepoch;

import java.util.concurrent.CompletableFuture;
import java.util.function.Function;

/**
 * A call that waits without a thread. If it is cancelled, no caller gets its timestamps. The lock
 * of {@link Requests} guards all fields. When the call's batch is done, only the thread that ends
 * the batch uses them.
 *
 * @param <T> what the caller gets
 */
final class AsyncCall<T> extends CompletableFuture<T> {
    final long count;
    final Deadline deadline;
    private final Function<TimestampRange, T> view;
    /** Where this call's timestamps begin in its batch. */
    long offset;
    /** The last error of this call, or null. */
    EpicEpochException last;

    AsyncCall(long count, Deadline deadline, Function<TimestampRange, T> view) {
        this.count = count;
        this.deadline = deadline;
        this.view = view;
    }

    /** Completes the future with the caller's part of an answer. This runs code of the caller. */
    void succeed(TimestampRange answer) {
        complete(view.apply(Batch.part(answer, offset, count)));
    }

    /**
     * Java calls this for the future of a further stage, such as {@code thenApply}. That future is
     * not a call, so it gets Java's own class.
     */
    @Override
    public <U> CompletableFuture<U> newIncompleteFuture() {
        return new CompletableFuture<>();
    }
}
