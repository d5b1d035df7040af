package io.github.epicepoch;

/**
 * A call asked for compact timestamps, and the cluster gives wide ones. Ask for wide timestamps, or
 * have an operator change the cluster. With {@link TimestampFormat#COMPACT}, the node refuses
 * instead, with {@link ErrorCode#NOT_COMPACT}.
 */
public final class NotCompactException extends EpicEpochException {
    private static final long serialVersionUID = 1;

    NotCompactException(String message, Throwable cause) {
        super(message, cause);
    }

    @Override
    NotCompactException again() {
        return new NotCompactException(getMessage(), this);
    }
}
