package io.github.epicepoch;

/**
 * The address belongs to another cluster, or to another history of the same cluster. Correct the
 * addresses. If the cluster was restored from a backup, create another client, and do not mix
 * timestamps of the two histories.
 */
public final class WrongClusterException extends EpicEpochException {
    private static final long serialVersionUID = 1;

    WrongClusterException(String message, Throwable cause) {
        super(message, cause);
    }

    @Override
    WrongClusterException again() {
        return new WrongClusterException(getMessage(), this);
    }
}
