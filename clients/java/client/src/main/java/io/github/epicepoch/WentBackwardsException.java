package io.github.epicepoch;

/**
 * A timestamp was not above one that this client had returned before, or a latest timestamp was
 * below one. No caller gets it, because it may have been given before. All calls that wait fail.
 * Stop, and find out why. There are two clusters behind one address, or a cluster was restored
 * without a new history.
 */
public final class WentBackwardsException extends EpicEpochException {
    private static final long serialVersionUID = 1;

    WentBackwardsException(String message, Throwable cause) {
        super(message, cause);
    }

    @Override
    WentBackwardsException again() {
        return new WentBackwardsException(getMessage(), this);
    }
}
