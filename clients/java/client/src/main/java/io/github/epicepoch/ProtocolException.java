package io.github.epicepoch;

/**
 * An answer that no oracle gives. The address is probably wrong: correct it.
 */
public final class ProtocolException extends EpicEpochException {
    private static final long serialVersionUID = 1;

    ProtocolException(String message, Throwable cause) {
        super(message, cause);
    }

    @Override
    ProtocolException again() {
        return new ProtocolException(getMessage(), this);
    }
}
