package io.github.epicepoch;

/**
 * A node refused. If another attempt may succeed, the client tries again until the deadline. Then
 * the caller sees this refusal only as the cause of a {@link DeadlineExceededException}.
 */
public final class RefusedException extends EpicEpochException {
    private static final long serialVersionUID = 1;

    /** The address of the node. */
    private final String address;
    /** The number on the wire. */
    private final int number;
    /** The node's advice. With NOT_LEADER it is the leader's address. */
    private final String advice;

    RefusedException(String address, int number, String advice, Throwable cause) {
        super(describe(address, ErrorCode.of(number), advice), cause);
        this.address = address;
        this.number = number;
        this.advice = advice;
    }

    private static String describe(String address, ErrorCode code, String advice) {
        String what = address + " refused with " + code;
        return advice.isEmpty() ? what : what + ": " + advice;
    }

    /** Returns the exception for a refusal. WRONG_CLUSTER has its own exception. */
    static EpicEpochException of(String address, int number, String advice) {
        if (number == ErrorCode.WRONG_CLUSTER.number()) {
            return new WrongClusterException(
                    describe(address, ErrorCode.WRONG_CLUSTER, advice), null);
        }
        return new RefusedException(address, number, advice, null);
    }

    static EpicEpochException of(String address, ErrorCode code) {
        return of(address, code.number(), "");
    }

    /**
     * Returns the reason.
     *
     * @return the reason; {@link ErrorCode#INTERNAL} if this client does not know the number
     */
    public ErrorCode code() {
        return ErrorCode.of(number);
    }

    /**
     * Returns the number of the reason on the wire.
     *
     * @return the number
     */
    public int number() {
        return number;
    }

    /**
     * Returns the address of the node that refused.
     *
     * @return host:port
     */
    public String address() {
        return address;
    }

    /** Returns the node's advice: with NOT_LEADER, the leader's address. */
    String advice() {
        return advice;
    }

    @Override
    boolean isRetryable() {
        return code().isRetryable();
    }

    @Override
    RefusedException again() {
        return new RefusedException(address, number, advice, this);
    }
}
