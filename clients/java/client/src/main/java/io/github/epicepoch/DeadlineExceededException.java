package io.github.epicepoch;

/**
 * No timestamp came before the deadline. The {@linkplain #getCause() cause} is the error of the
 * last failed attempt, such as an {@link UnreachableException} or a {@link RefusedException}. Call
 * again later, or with more time.
 */
public final class DeadlineExceededException extends EpicEpochException {
    private static final long serialVersionUID = 1;

    DeadlineExceededException(EpicEpochException last) {
        super("no timestamp before the deadline: " + last.getMessage(), last);
    }

    @Override
    DeadlineExceededException again() {
        return new DeadlineExceededException((EpicEpochException) getCause());
    }
}
