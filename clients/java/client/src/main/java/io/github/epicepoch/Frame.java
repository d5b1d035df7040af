package io.github.epicepoch;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;

/**
 * One frame of docs/protocol.md. Everything that is read has a limit, and a violation is a
 * {@link MalformedException}. This class does no IO.
 *
 * @param kind the kind, 0 to 255
 * @param flags the flags, 0 to 255
 * @param code the code, 0 to 65535
 * @param argument the argument, unsigned 32 bits
 * @param id the id
 * @param tail what follows the head; valid until the next frame is read
 */
record Frame(int kind, int flags, int code, long argument, long id, ByteBuffer tail) {
    static final int HEAD_BYTES = 16;
    static final int TAIL_BYTES_MAX = 32768;
    static final int ADDRESS_BYTES_MAX = 260;
    static final int ERROR_TEXT_BYTES_MAX = 512;
    /** The largest count of a request in version 1. */
    static final long COUNT_MAX = 1L << 32;

    static final int REQUEST = 0x01;
    static final int PING = 0x02;
    static final int PONG = 0x03;
    static final int GOODBYE = 0x04;
    static final int ANSWER = 0x41;
    static final int HELLO = 0x80;
    static final int WELCOME = 0x81;
    static final int ERROR = 0x82;
    static final int LEADER = 0x83;

    /** The id of Hello and Welcome: EPOCHTSO. */
    static final long MAGIC = 0x45504f434854534fL;
    static final int VERSION = 1;

    private static final int WIDE_TAIL_BYTES = 16;
    private static final int ERROR_CLOSES = 1;
    /** The flag of a request for the latest timestamp, and of its answer. */
    private static final int FLAG_LATEST = 1;
    /** The flag of an answer that the lease of the leader has proved. */
    private static final int FLAG_LEASE = 2;
    /** The feature of a node that answers requests for the latest timestamp. */
    static final long FEATURE_LATEST = 1;

    /** This client follows to the leader: no node sends its requests on. */
    static final long FEATURE_DIRECT = 4;

    /**
     * The answer to a request.
     *
     * @param isLatest whether the range is the latest timestamp, and not timestamps for this client
     *     alone
     */
    record Answer(TimestampRange range, boolean isLatest) {}

    /** A refusal of one request or of a connection. */
    record Refusal(EpicEpochException error, boolean closes) {}

    /**
     * Reads the next frame.
     *
     * @return the frame, or null if the buffer does not hold all of it; nothing is consumed then
     */
    static Frame read(ByteBuffer from) {
        if (from.remaining() < HEAD_BYTES) {
            return null;
        }
        int at = from.position();
        int kind = from.get(at) & 0xff;
        long argument = from.getInt(at + 4) & 0xffff_ffffL;
        int size = tailBytes(kind, argument);
        if (from.remaining() < HEAD_BYTES + size) {
            return null;
        }
        ByteBuffer tail = from.slice(at + HEAD_BYTES, size);
        from.position(at + HEAD_BYTES + size);
        return new Frame(
                kind,
                from.get(at + 1) & 0xff,
                from.getShort(at + 2) & 0xffff,
                argument,
                from.getLong(at + 8),
                tail);
    }

    /**
     * Returns the length of the tail. The two highest bits of the kind tell it, so this works for
     * unknown kinds, too.
     */
    private static int tailBytes(int kind, long argument) {
        switch (kind >> 6) {
            case 0:
                return 0;
            case 1:
                return WIDE_TAIL_BYTES;
            case 2:
                if (argument > TAIL_BYTES_MAX) {
                    throw broken(
                            "a tail of " + argument + " bytes, the limit is " + TAIL_BYTES_MAX);
                }
                return (int) argument;
            default:
                throw broken("kind " + Integer.toHexString(kind) + " has no length");
        }
    }

    /** Writes a request for 1 to {@link #COUNT_MAX} timestamps. */
    static void putRequest(ByteBuffer to, long id, long count) {
        putHead(to, REQUEST, 0, 0, count - 1, id);
    }

    /** Writes a request for the latest timestamp. */
    static void putLatest(ByteBuffer to, long id) {
        putHead(to, REQUEST, FLAG_LATEST, 0, 0, id);
    }

    static byte[] ping(long id) {
        return plain(PING, id);
    }

    static byte[] pong(long id) {
        return plain(PONG, id);
    }

    private static byte[] plain(int kind, long id) {
        ByteBuffer frame = ByteBuffer.allocate(HEAD_BYTES);
        putHead(frame, kind, 0, 0, 0, id);
        return frame.array();
    }

    static void putHead(ByteBuffer to, int kind, int flags, int code, long argument, long id) {
        to.put((byte) kind).put((byte) flags).putShort((short) code);
        to.putInt((int) argument).putLong(id);
    }

    /**
     * Reads an Answer to a client that asks for a guarantee, or for none if it is null. Only a client
     * that asks for a lease accepts an answer that a lease has proved.
     */
    Answer toAnswer(Guarantee guarantee) {
        boolean isAllowed = guarantee == Guarantee.LEASE || (flags & FLAG_LEASE) == 0;
        require(isAllowed, "an answer that a lease has proved, which was not asked for");
        int others = flags & ~FLAG_LEASE;
        boolean isLatest = others == FLAG_LATEST;
        boolean isPlain = code == 0 && (others == 0 || (isLatest && argument == 0));
        require(isPlain, "an answer with reserved bits");
        Timestamp first = Timestamp.read(tail.duplicate());
        long count = argument + 1;
        require(
                Long.compareUnsigned(first.index() + argument, first.index()) >= 0,
                "an answer that leaves its epoch");
        return new Answer(new TimestampRange(first, count), isLatest);
    }

    /** Reads an Error of the node at an address. */
    Refusal toRefusal(String address) {
        require((flags & ~ERROR_CLOSES) == 0, "an error with unknown flags");
        String text = text(tail, ERROR_TEXT_BYTES_MAX, "the text of an error");
        return new Refusal(RefusedException.of(address, code, text), (flags & ERROR_CLOSES) != 0);
    }

    /**
     * Reads a Leader notice.
     *
     * @return the leader, or null if no node leads
     */
    Member toLeader() {
        require(flags == 0 && code == 0, "a leader with reserved bits");
        if (id == 0 && !tail.hasRemaining()) {
            return null;
        }
        require(id != 0 && tail.hasRemaining(), "a leader without an id or an address");
        return new Member(id, text(tail, ADDRESS_BYTES_MAX, "the address of a leader"));
    }

    /** Checks a Ping, Pong or Goodbye. */
    void requirePlain() {
        require(
                flags == 0 && code == 0 && argument == 0 && (kind != GOODBYE || id == 0),
                "a frame of kind " + Integer.toHexString(kind) + " with reserved bits");
    }

    static void require(boolean holds, String otherwise) {
        if (!holds) {
            throw broken(otherwise);
        }
    }

    static MalformedException broken(String what) {
        return new MalformedException(what);
    }

    /** Reads all bytes as text. */
    static String text(ByteBuffer bytes, int longest, String what) {
        require(bytes.remaining() <= longest, what + " is longer than " + longest + " bytes");
        try {
            return UTF_8.newDecoder().decode(bytes.duplicate()).toString();
        } catch (CharacterCodingException error) {
            throw broken(what + " is not UTF-8");
        }
    }
}
