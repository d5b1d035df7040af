package io.github.epicepoch;

import java.io.EOFException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.CancelledKeyException;
import java.nio.channels.ClosedSelectorException;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.ReentrantLock;

/**
 * One TCP connection, with TLS or without. One thread reads it. Any thread may write, and none
 * waits for the node: if the network does not take all bytes at once, the thread that reads writes
 * the others later. So a caller can be interrupted, or run on a virtual thread, without harm to the
 * connection.
 */
final class Wire {
    /**
     * At most this many bytes wait for a node that does not read. That is enough for about 4,000
     * pongs.
     */
    static final int OUTBOX_BYTES_MAX = 64 << 10;

    static final String DOES_NOT_READ = "it does not read";

    private static final int READ_BYTES = 16 << 10;
    private static final int OUTBOX_BYTES = 1 << 10;
    /**
     * TLS sometimes has bytes of its own to write, without data. To write them, this empty array is
     * written.
     */
    private static final byte[] NOTHING = {};

    private final SocketChannel channel;
    private final Selector selector;
    private final SelectionKey key;
    /** TLS, or null for plain TCP. */
    private final TlsRecords tls;

    private final long writeTimeout;
    /** Why this client closed the connection, or null if it did not. The first reason stays. */
    private final AtomicReference<IOException> left = new AtomicReference<>();

    /**
     * Bytes that were read and not yet used for a frame. Only the thread that reads uses this
     * buffer.
     */
    private final ByteBuffer in;

    private final ReentrantLock writing = new ReentrantLock();
    /** Bytes that are to be written to the network. Guarded by {@link #writing}. */
    private ByteBuffer out = ByteBuffer.allocate(OUTBOX_BYTES);
    /**
     * When a write that the network does not take is given up, or null if there is none. Guarded by
     * {@link #writing}.
     */
    private Deadline stalled;

    /**
     * Takes over a connected channel.
     *
     * @param tls TLS, or null for plain TCP
     * @param writeTimeout how long the node may take to read what was written, nanoseconds
     */
    Wire(SocketChannel channel, TlsRecords tls, long writeTimeout) throws IOException {
        this.channel = channel;
        this.tls = tls;
        this.writeTimeout = writeTimeout;
        channel.configureBlocking(false);
        channel.socket().setTcpNoDelay(true);
        selector = Selector.open();
        key = channel.register(selector, SelectionKey.OP_READ);
        int room = tls == null ? READ_BYTES : tls.dataBytes();
        in = ByteBuffer.allocate(Frame.HEAD_BYTES + Frame.TAIL_BYTES_MAX + room).flip();
    }

    /** Does the TLS handshake, if there is TLS. */
    void handshake(Deadline deadline) throws IOException {
        while (tls != null && tls.isHandshaking()) {
            if (tls.wantsToWrite()) {
                write(NOTHING);
                requireOpen();
            } else if (!fill(deadline, false)) {
                throw new InterruptedIOException("no TLS handshake in time");
            }
        }
    }

    /**
     * Returns the first byte of the next frame.
     *
     * @return the byte, or -1 at the deadline
     */
    int peek(Deadline deadline) throws IOException {
        while (!in.hasRemaining()) {
            if (!fill(deadline, true)) {
                return -1;
            }
        }
        return in.get(in.position()) & 0xff;
    }

    /**
     * Returns the next frame.
     *
     * @param deadline the end of the wait, or null for none
     * @return the frame, or null at the deadline
     */
    Frame next(Deadline deadline) throws IOException {
        for (; ; ) {
            Frame frame = Frame.read(in);
            if (frame != null || !fill(deadline, true)) {
                return frame;
            }
        }
    }

    /** Reads some bytes. Returns false at the deadline. */
    private boolean fill(Deadline deadline, boolean data) throws IOException {
        in.compact();
        try {
            for (; ; ) {
                int read = tls == null ? channel.read(in) : tls.read(channel, in);
                if (read < 0) {
                    throw new EOFException("it closed the connection");
                }
                if (read > 0 || (tls != null && !data && tls.hasMoved())) {
                    return true;
                }
                if (tls != null && tls.wantsToWrite()) {
                    write(NOTHING);
                    requireOpen();
                } else if (tls != null && tls.hasMoved()) {
                    // The read stops at a record that TLS has to answer, such as KeyUpdate. Here
                    // another thread has written the answer meanwhile. The records behind it may
                    // have been read from the network already, so do not wait for the network.
                    continue;
                } else if (!await(deadline)) {
                    return false;
                }
            }
        } catch (IOException error) {
            throw reason(error);
        } finally {
            in.flip();
        }
    }

    /**
     * Waits until there is something to read, and writes waiting bytes meanwhile. Returns false at
     * the deadline.
     */
    private boolean await(Deadline deadline) throws IOException {
        Deadline sooner = deadline;
        writing.lock();
        try {
            if (stalled != null && (sooner == null || stalled.isBefore(sooner))) {
                sooner = stalled;
            }
        } finally {
            writing.unlock();
        }
        try {
            if (sooner == null) {
                selector.select();
            } else if (!sooner.isOver()) {
                selector.select(sooner.leftMillis());
            }
            selector.selectedKeys().clear();
        } catch (ClosedSelectorException closed) {
            throw new EOFException("it was closed");
        }
        if (Thread.currentThread().isInterrupted()) {
            throw new InterruptedIOException("the client is closed");
        }
        writing.lock();
        try {
            flush();
            if (stalled != null && stalled.isOver()) {
                throw new IOException(DOES_NOT_READ);
            }
        } finally {
            writing.unlock();
        }
        return deadline == null || !deadline.isOver();
    }

    /**
     * Writes frames, now or when the network takes them. If the write fails, the connection is
     * closed, and the thread that reads it gets the error.
     */
    void write(byte[] frames) {
        IOException failure = null;
        writing.lock();
        try {
            if (left.get() == null) {
                put(frames);
                flush();
            }
        } catch (IOException error) {
            failure = error;
        } finally {
            writing.unlock();
        }
        if (failure != null) {
            leave(failure);
        }
    }

    private void put(byte[] frames) throws IOException {
        if (out.position() + frames.length > OUTBOX_BYTES_MAX) {
            throw new IOException(DOES_NOT_READ);
        }
        ByteBuffer from = ByteBuffer.wrap(frames);
        if (tls == null) {
            reserve(frames.length);
            out.put(from);
            return;
        }
        do {
            reserve(tls.recordBytes());
            tls.write(from, out);
        } while (from.hasRemaining() || tls.wantsToWrite());
    }

    private void reserve(int bytes) {
        if (out.remaining() < bytes) {
            int size = Math.max(2 * out.capacity(), out.position() + bytes);
            out = ByteBuffer.allocate(size).put(out.flip());
        }
    }

    /** Gives waiting bytes to the network. The caller holds {@link #writing}. */
    private void flush() throws IOException {
        if (out.position() == 0) {
            return;
        }
        out.flip();
        int written;
        try {
            written = channel.write(out);
        } finally {
            out.compact();
        }
        boolean waits = out.position() > 0;
        try {
            if (waits != (stalled != null)) {
                key.interestOps(SelectionKey.OP_READ | (waits ? SelectionKey.OP_WRITE : 0));
                selector.wakeup();
            }
        } catch (CancelledKeyException closed) {
            throw new EOFException("it was closed");
        }
        if (!waits) {
            stalled = null;
        } else if (written > 0 || stalled == null) {
            stalled = Deadline.after(writeTimeout);
        }
    }

    /** Closes the connection for a reason. If it is called again, the first reason stays. */
    void leave(String why) {
        leave(new IOException(why));
    }

    private void leave(IOException why) {
        if (left.compareAndSet(null, why)) {
            try (channel) {
                selector.close();
            } catch (IOException ignored) {
                // An error while closing has no effect: the connection is not used any more.
            }
        }
    }

    private void requireOpen() throws IOException {
        IOException why = left.get();
        if (why != null) {
            throw why;
        }
    }

    /**
     * Returns the reason for which this client closed the connection, or the given error if the
     * client did not close it.
     */
    private IOException reason(IOException error) {
        IOException why = left.get();
        return why != null ? why : error;
    }
}
