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
 * Turns frames into TLS records and back. It never waits. One thread may read while another writes,
 * but no two may write.
 */
final class TlsRecords {
    private final SSLEngine engine;
    /** Bytes of records that were read and not used. */
    private final ByteBuffer records;
    /** Whether the last read brought the handshake forward. */
    private boolean moved;

    TlsRecords(SSLEngine engine) throws SSLException {
        this.engine = engine;
        records = ByteBuffer.allocate(engine.getSession().getPacketBufferSize());
        engine.beginHandshake();
    }

    /** Returns the room that one record may need. */
    int recordBytes() {
        return engine.getSession().getPacketBufferSize();
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
     * Reads what there is.
     *
     * @return the number of bytes for frames; 0 if there are none now, -1 at the end
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

    /** Runs what the engine leaves to its user. Returns whether there was anything. */
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
