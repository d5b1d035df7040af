package io.github.epicepoch;

/**
 * No request may have this count. Ask for 1 to 2^32 timestamps, or for no more than the leader
 * allows.
 */
public final class CountException extends EpicEpochException {
    private static final long serialVersionUID = 1;

    CountException(String message, Throwable cause) {
        super(message, cause);
    }

    @Override
    CountException again() {
        return new CountException(getMessage(), this);
    }
}
