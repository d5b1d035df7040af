package io.github.epicepoch;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.SSLEngineResult;
import javax.net.ssl.SSLEngineResult.HandshakeStatus;
import javax.net.ssl.SSLEngineResult.Status;
import javax.net.ssl.SSLException;

/**
 * Turns frames into TLS records and back. It never waits. One thread may read while another one
 * writes, but two threads must not write at the same time. It is not final: a test extends it.
 */
class TlsRecords {
    /** The types of TLS records, from change_cipher_spec to heartbeat: the first byte of each. */
    private static final byte RECORD_MIN = 20;

    private static final byte RECORD_MAX = 24;

    private static final String NO_TLS =
            "this port does not speak TLS: leave ClientBuilder.tls out, or set CLIENT_TLS on the"
                    + " node";

    private final SSLEngine engine;
    /** Bytes of records that were read from the network and are not decrypted yet. */
    private final ByteBuffer records;
    /** Whether the first byte has come. */
    private boolean heard;

    /** Whether the last read was a step of the handshake. */
    private boolean moved;

    TlsRecords(SSLEngine engine) throws SSLException {
        this.engine = engine;
        records = ByteBuffer.allocate(engine.getSession().getPacketBufferSize());
        engine.beginHandshake();
    }

    /** Returns how many bytes one record may need. */
    int recordBytes() {
        return engine.getSession().getPacketBufferSize();
    }

    /** Returns how many bytes of data one record may hold. */
    int dataBytes() {
        return engine.getSession().getApplicationBufferSize();
    }

    boolean isHandshaking() {
        return engine.getHandshakeStatus() != HandshakeStatus.NOT_HANDSHAKING;
    }

    boolean wantsToWrite() {
        return engine.getHandshakeStatus() == HandshakeStatus.NEED_WRAP;
    }

    boolean hasMoved() {
        return moved;
    }

    /**
     * Reads and decrypts the bytes that have come.
     *
     * @return the number of decrypted bytes; 0 if none have come, -1 at the end of the connection
     */
    int read(SocketChannel from, ByteBuffer to) throws IOException {
        moved = false;
        for (; ; ) {
            records.flip();
            SSLEngineResult result;
            try {
                result = engine.unwrap(records, to);
            } finally {
                records.compact();
            }
            boolean progress = runTasks() || result.bytesConsumed() > 0;
            moved |= progress;
            if (result.bytesProduced() > 0) {
                return result.bytesProduced();
            }
            if (result.getStatus() == Status.CLOSED) {
                return -1;
            }
            if (result.getStatus() == Status.BUFFER_OVERFLOW) {
                throw new SSLException("a record that is too large");
            }
            if (result.getStatus() == Status.BUFFER_UNDERFLOW) {
                int read = from.read(records);
                if (read <= 0) {
                    return read;
                }
                if (!heard && (records.get(0) < RECORD_MIN || records.get(0) > RECORD_MAX)) {
                    throw new SSLException(NO_TLS);
                }
                heard = true;
            } else if (wantsToWrite()) {
                return 0;
            } else if (!progress) {
                throw new SSLException("TLS comes to nothing");
            }
        }
    }

    /** Turns bytes into one record. */
    void write(ByteBuffer from, ByteBuffer to) throws SSLException {
        SSLEngineResult result = engine.wrap(from, to);
        runTasks();
        if (result.getStatus() != Status.OK) {
            throw new SSLException("the TLS connection is closed");
        }
    }

    /** Runs the tasks that the TLS engine leaves to its user. Returns whether there was a task. */
    private boolean runTasks() {
        if (engine.getHandshakeStatus() != HandshakeStatus.NEED_TASK) {
            return false;
        }
        for (Runnable task; (task = engine.getDelegatedTask()) != null; ) {
            task.run();
        }
        return true;
    }
}
