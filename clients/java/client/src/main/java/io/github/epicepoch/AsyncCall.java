package io.github.epicepoch;

import java.util.concurrent.CompletableFuture;
import java.util.function.Function;

/**
 * A call that waits without a thread. When it is cancelled, its timestamps are skipped. Everything
 * but the future is under the lock of {@link Requests}, or belongs to the batch that is done.
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

    /** Gives the caller its part of an answer. Runs the caller's code. */
    void succeed(TimestampRange answer) {
        complete(view.apply(answer.part(offset, count)));
    }

    /** The future of a stage must not be one of ours. */
    @Override
    public <U> CompletableFuture<U> newIncompleteFuture() {
        return new CompletableFuture<>();
    }
}
