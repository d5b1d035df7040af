package io.github.epicepoch;

import java.io.IOException;
import java.nio.channels.SocketChannel;
import java.time.Duration;

/** One connection to a node, after its handshake. */
final class Connection {
    /** Why this client left a connection that it does not need any more. */
    static final String LEFT = "it was left";

    /** The first byte of a TLS server's answer to anything but TLS (RFC 8446, section 5.1). */
    private static final int TLS_ALERT = 0x15;

    private static final String PLAIN =
            "; this client speaks plain text: set ClientBuilder.tls";

    static final String AGENT = "epicepoch-java/0.1";

    final String address;
    final Welcome welcome;
    /**
     * Whether this connection has brought an answer. Only the thread that reads the connection uses
     * this field.
     */
    boolean answered;

    private final Wire wire;

    private Connection(String address, Wire wire, Welcome welcome) {
        this.address = address;
        this.wire = wire;
        this.welcome = welcome;
    }

    /**
     * Connects to a node and does the handshake.
     *
     * @param expected the cluster that this client has met, or null
     * @throws EpicEpochException if there is no connection; the subclass says why
     */
    static Connection open(Options options, String address, Cluster expected, Deadline deadline) {
        String token = token(options, address);
        int colon = address.lastIndexOf(':');
        String host = address.substring(0, Math.max(0, colon)).replaceAll("^\\[|]$", "");
        Wire wire = null;
        try {
            int port = Integer.parseInt(address.substring(colon + 1));
            wire = dial(options, host, port, deadline);
            wire.handshake(deadline);
            String name = options.clusterName();
            Guarantee guarantee = options.guarantee();
            long features = Frame.FEATURE_LATEST | Frame.FEATURE_DIRECT;
            TimestampFormat format = options.timestampFormat();
            Hello hello = new Hello(features, name, expected, AGENT, token, guarantee, format);
            wire.write(hello.toBytes());
            Welcome welcome = welcome(wire, address, deadline, options, token);
            check(welcome, address, name, expected);
            return new Connection(address, wire, welcome);
        } catch (IOException | RuntimeException error) {
            if (wire != null) {
                wire.leave(LEFT);
            }
            throw failure(address, error);
        }
    }

    /**
     * Gets the token from its source. A source that fails is retried like a node that fails,
     * because its next token may be good.
     */
    private static String token(Options options, String address) {
        String token;
        try {
            token = options.tokenSource().get();
        } catch (Throwable error) {
            throw unreachable(address, "the token source failed: " + error, error);
        }
        if (token != null && !Hello.isToken(token)) {
            String what = "the token source gave no valid token: " + Hello.NO_TOKEN;
            throw unreachable(address, what, null);
        }
        return token == null ? "" : token;
    }

    private static Wire dial(Options options, String host, int port, Deadline deadline)
            throws IOException {
        Duration timeout = Duration.ofMillis(deadline.leftMillis());
        SocketChannel channel = options.dialer().dial(host, port, timeout);
        try {
            Tls tls = options.tls();
            TlsRecords records = tls == null ? null : new TlsRecords(tls.engine(host, port));
            return new Wire(channel, records, options.attemptTimeout());
        } catch (IOException | RuntimeException error) {
            channel.close();
            throw error;
        }
    }

    private static Welcome welcome(
            Wire wire, String address, Deadline deadline, Options options, String token)
            throws IOException {
        // A server of another protocol may send less than a frame and then wait. So check the first
        // byte before a whole frame has come.
        int kind = wire.peek(deadline);
        Frame.require(
                kind != TLS_ALERT || options.tls() != null, "this port speaks TLS" + PLAIN);
        Frame.require(
                kind < 0 || kind == Frame.WELCOME || kind == Frame.ERROR,
                "a hello was answered with a byte of 0x" + Integer.toHexString(kind));
        Frame frame = wire.next(deadline);
        if (frame == null) {
            throw unreachable(address, Requests.SILENT, null);
        }
        if (frame.kind() == Frame.ERROR) {
            throw advised(frame.toRefusal(address).error(), options, token);
        }
        return Welcome.read(frame);
    }

    /** Adds to a refused handshake what the program must set. */
    private static EpicEpochException advised(
            EpicEpochException error, Options options, String token) {
        if (!(error instanceof RefusedException refusal)) {
            return error;
        }
        String advice = refusal.advice();
        if (refusal.code() == ErrorCode.UNAUTHORIZED && token.isEmpty()) {
            String set = "missing token: set ClientBuilder.token or ClientBuilder.tokenSource";
            advice = set + "; the node says: " + advice;
        } else if (refusal.code() == ErrorCode.UNSUPPORTED && options.guarantee() != null) {
            // A node refuses a guarantee only if it does not know the field.
            String old = "this node is too old for guarantees: update it, or leave guarantee out";
            advice = old + "; the node says: " + advice;
        } else if (refusal.code() == ErrorCode.BAD_REQUEST && options.tls() == null) {
            // A node that accepts only TLS answers this. Its text says so.
            advice += PLAIN;
        }
        return RefusedException.of(refusal.address(), refusal.number(), advice);
    }

    private static void check(Welcome welcome, String address, String name, Cluster expected) {
        if (!name.isEmpty() && !welcome.clusterName.equals(name)) {
            String found = "a cluster named \"" + welcome.clusterName + "\", not \"" + name + "\"";
            throw new WrongClusterException(address + " belongs to " + found, null);
        }
        if (expected != null && welcome.cluster != null && !welcome.cluster.equals(expected)) {
            String found = "cluster " + welcome.cluster + ", but this client talks to " + expected;
            throw new WrongClusterException(address + " belongs to " + found, null);
        }
        if (welcome.leads()) {
            requireCluster(welcome, address);
        }
    }

    /** Refuses a leader that names no cluster, because its timestamps may have any order. */
    private static void requireCluster(Welcome welcome, String address) {
        if (welcome.cluster == null) {
            String advice = "it leads and names no cluster";
            throw RefusedException.of(address, ErrorCode.NOT_READY.number(), advice);
        }
    }

    /**
     * Listens for a while to a node that knows no leader. Nodes send a notice when they learn of a
     * leader. Afterwards the connection is used only if the node itself leads.
     *
     * @return the leader, or null if the node names none
     */
    Member awaitLeader(Deadline deadline) {
        try {
            for (; ; ) {
                Frame frame = next(deadline);
                if (frame == null) {
                    return null;
                }
                Member leader = frame.kind() == Frame.LEADER ? frame.toLeader() : null;
                if (leader != null && leader.node() == welcome.node) {
                    requireCluster(welcome, address);
                }
                if (leader != null) {
                    return leader;
                }
                // A node that never stops to send other frames is left, too.
                if (deadline.isOver() || Thread.currentThread().isInterrupted()) {
                    return null;
                }
            }
        } catch (MalformedException error) {
            throw failure(address, error);
        }
    }

    /**
     * Returns the next frame.
     *
     * @param deadline the end of the wait, or null for none
     * @return the frame, or null at the deadline
     * @throws EpicEpochException if there is no further frame; the subclass says why
     */
    Frame next(Deadline deadline) {
        try {
            return wire.next(deadline);
        } catch (IOException | MalformedException error) {
            throw failure(address, error);
        }
    }

    /**
     * Handles a frame that means the same on the first and on the second connection, such as a
     * ping. Skips frames of later versions.
     */
    void handlePlain(Frame frame) {
        switch (frame.kind()) {
            case Frame.PING -> {
                frame.requirePlain();
                write(Frame.pong(frame.id()));
            }
            case Frame.PONG -> frame.requirePlain();
            case Frame.GOODBYE -> {
                frame.requirePlain();
                throw RefusedException.of(address, ErrorCode.SHUTTING_DOWN);
            }
            case Frame.REQUEST, Frame.HELLO, Frame.WELCOME ->
                    throw Frame.broken("a frame of kind 0x" + Integer.toHexString(frame.kind()));
            default -> {}
        }
    }

    /** Writes frames. If the write fails, {@link #next} throws the error. */
    void write(byte[] frames) {
        wire.write(frames);
    }

    /** Closes the connection for a reason. If it is called again, the first reason stays. */
    void leave(String why) {
        wire.leave(why);
    }

    /**
     * Returns the error for the caller. A retry cannot cure a violation of the protocol. It may
     * cure any other error.
     */
    static EpicEpochException failure(String address, Exception error) {
        if (error instanceof MalformedException) {
            String what = " gave an answer that no oracle gives: " + error.getMessage();
            return new ProtocolException(address + what, error);
        }
        if (error instanceof EpicEpochException known) {
            return known;
        }
        String what = error.getMessage();
        return unreachable(address, what == null ? error.toString() : what, error);
    }

    static UnreachableException unreachable(String address, String what, Throwable cause) {
        return new UnreachableException(address + " cannot be reached: " + what, cause);
    }
}
