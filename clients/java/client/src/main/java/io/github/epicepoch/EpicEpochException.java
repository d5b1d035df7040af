package io.github.epicepoch;

/**
 * Why a call returned no timestamps. Each subclass is one reason, and says what the caller can do.
 * A caller that gives up gets Java's own {@link InterruptedException}, or
 * {@link java.util.concurrent.CancellationException} from a future.
 */
public abstract sealed class EpicEpochException extends RuntimeException
        permits ClosedException,
                CountException,
                DeadlineExceededException,
                NotCompactException,
                ProtocolException,
                RefusedException,
                TooManyCallsException,
                UnreachableException,
                WentBackwardsException,
                WrongClusterException {
    private static final long serialVersionUID = 1;

    EpicEpochException(String message, Throwable cause) {
        super(message, cause);
    }

    /** Returns whether another attempt, at this node or another, may succeed. */
    boolean isRetryable() {
        return false;
    }

    /**
     * Returns the same reason for another caller, with the stack of the current thread. Callers
     * share a request, and each needs to see where its own call was made.
     */
    abstract EpicEpochException again();
}
