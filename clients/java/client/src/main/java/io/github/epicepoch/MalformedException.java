package io.github.epicepoch;

/** Bytes violate the protocol. {@link Connection} adds the address of the node that sent them. */
final class MalformedException extends RuntimeException {
    private static final long serialVersionUID = 1;

    MalformedException(String what) {
        super(what);
    }
}
