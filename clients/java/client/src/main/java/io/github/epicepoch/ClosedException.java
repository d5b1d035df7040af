package io.github.epicepoch;

/**
 * The client is closed. Create another one.
 */
public final class ClosedException extends EpicEpochException {
    private static final long serialVersionUID = 1;

    ClosedException(String message, Throwable cause) {
        super(message, cause);
    }

    @Override
    ClosedException again() {
        return new ClosedException(getMessage(), this);
    }
}
