package io.github.epicepoch;

/**
 * A node accepted no connection, closed one, or did not answer in time, or there was no valid token
 * for it. The client asks again until the deadline, so a caller sees this only as the cause of a
 * {@link DeadlineExceededException}.
 */
public final class UnreachableException extends EpicEpochException {
    private static final long serialVersionUID = 1;

    UnreachableException(String message, Throwable cause) {
        super(message, cause);
    }

    @Override
    boolean isRetryable() {
        return true;
    }

    @Override
    UnreachableException again() {
        return new UnreachableException(getMessage(), this);
    }
}
