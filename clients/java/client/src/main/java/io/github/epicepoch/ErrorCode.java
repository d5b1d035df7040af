package io.github.epicepoch;

/** The reasons of a node's refusal. Numbers and names never change. */
public enum ErrorCode {
    /** Another node leads. */
    NOT_LEADER(1, true),
    /** The leader cannot reach a majority. */
    NO_QUORUM(2, true),
    /** An election is in progress, or no majority is up. */
    NO_LEADER(3, true),
    /** More requests wait than the node accepts. */
    OVERLOADED(4, true),
    /** The count is above what the cluster gives at once: 2^18, if it gives compact timestamps. */
    BAD_COUNT(5, false),
    /** This client broke the protocol; please report it. */
    BAD_REQUEST(7, false),
    /** The node is shutting down. */
    SHUTTING_DOWN(10, true),
    /** The node has not joined its cluster yet. */
    NOT_READY(11, true),
    /** The node is broken; its log says why. Unknown numbers are treated like this one. */
    INTERNAL(12, true),
    /** The node does not give timestamps over this port. */
    FORBIDDEN(13, false),
    /** The node accepts only clients with a token of its token file. */
    UNAUTHORIZED(18, false),
    /** The cluster gives wide timestamps, which have no compact spelling. */
    NOT_COMPACT(19, false),
    /** The cluster is in interval mode, and gives no timestamps of quorum mode. */
    OTHER_MODE(22, false),
    /** The node belongs to another cluster, or to another history of this client's cluster. */
    WRONG_CLUSTER(64, false),
    /** Client and node have no protocol version in common. */
    UNSUPPORTED_VERSION(65, false),
    /** The node does not know the request. */
    UNSUPPORTED(66, false);

    private final int number;
    private final boolean retryable;

    ErrorCode(int number, boolean retryable) {
        this.number = number;
        this.retryable = retryable;
    }

    /**
     * Returns the number on the wire.
     *
     * @return the number, above 0
     */
    public int number() {
        return number;
    }

    /**
     * Returns whether another attempt, at this node or another, may succeed. If so, the client
     * tries again until the caller's deadline.
     *
     * @return whether the client asks again
     */
    public boolean isRetryable() {
        return retryable;
    }

    static ErrorCode of(int number) {
        for (ErrorCode code : values()) {
            if (code.number == number) {
                return code;
            }
        }
        return INTERNAL;
    }
}
