package io.github.epicepoch;

/** Bytes that break the protocol. {@link Connection} adds which node sent them. */
final class MalformedException extends RuntimeException {
    private static final long serialVersionUID = 1;

    MalformedException(String what) {
        super(what);
    }
}
