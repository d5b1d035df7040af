package io.github.epicepoch;

/**
 * More than 2^20 calls wait for one client. Call again when some have ended.
 */
public final class TooManyCallsException extends EpicEpochException {
    private static final long serialVersionUID = 1;

    TooManyCallsException(String message, Throwable cause) {
        super(message, cause);
    }

    @Override
    TooManyCallsException again() {
        return new TooManyCallsException(getMessage(), this);
    }
}
