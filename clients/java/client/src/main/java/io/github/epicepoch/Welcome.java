package io.github.epicepoch;

import static io.github.epicepoch.Frame.broken;
import static io.github.epicepoch.Frame.require;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Set;

/** The node's part of the handshake. */
final class Welcome {
    static final int MEMBERS_MAX = 64;

    static final short FEATURES = 0x0001;
    static final short CLUSTER_NAME = 0x0002;
    static final short CLUSTER = 0x0003;
    static final short AGENT = 0x0004;
    static final short NODE = 0x0005;
    static final short LEADER = 0x0006;
    static final short IN_FLIGHT_MAX = 0x0007;
    static final short IDLE = 0x0008;
    static final short COUNT_MAX = 0x0009;
    static final short MEMBER = 0x000a;
    static final short TOKEN = (short) 0x8001;
    static final short GUARANTEE = (short) 0x8002;
    static final short TIMESTAMP_FORMAT = (short) 0x8004;

    /** The idle limit of a node that names none. */
    private static final Duration IDLE_DEFAULT = Duration.ofSeconds(120);
    /** The shortest idle limit that the client accepts from a node. */
    private static final Duration IDLE_MIN = Duration.ofMillis(300);

    long features;
    String clusterName = "";
    /** The cluster, or null if the node has joined none. */
    Cluster cluster;
    long node;
    /** The leader, or null if the node knows none. */
    Member leader;
    /** Unsigned 32 bits, not 0. */
    long inFlightMax;
    /** Unsigned 32 bits; 0 stands for the default. */
    long idleMillis;
    /** Unsigned 64 bits, not 0. */
    long countMax;
    final List<Member> members = new ArrayList<>();

    /** Reads a Welcome. */
    static Welcome read(Frame frame) {
        require(frame.id() == Frame.MAGIC, "another magic");
        require(
                frame.flags() == Frame.VERSION,
                "version " + frame.flags() + ", which was not offered");
        require(frame.code() == 0, "a welcome with reserved bits");
        Welcome welcome = new Welcome();
        Set<Short> seen = new HashSet<>();
        ByteBuffer tail = frame.tail().duplicate();
        while (tail.hasRemaining()) {
            require(tail.remaining() >= 4, "a field that is cut off");
            short tag = tail.getShort();
            int length = tail.getShort() & 0xffff;
            require(tail.remaining() >= length, "a field that is cut off");
            // Only the field MEMBER and fields of later versions may repeat.
            require(seen.add(tag) || tag < 0 || tag >= MEMBER, name(tag) + " twice");
            welcome.take(tag, tail.slice(tail.position(), length));
            tail.position(tail.position() + length);
        }
        require(
                welcome.node != 0 && welcome.inFlightMax != 0 && welcome.countMax != 0,
                "a welcome without a node id or its limits");
        return welcome;
    }

    private void take(short tag, ByteBuffer value) {
        switch (tag) {
            case FEATURES -> features = sized(tag, value, 8).getLong();
            case CLUSTER_NAME -> clusterName = Frame.text(value, Hello.NAME_BYTES_MAX, name(tag));
            case CLUSTER -> {
                byte[] id = new byte[16];
                sized(tag, value, 24).get(id);
                cluster = new Cluster(HexFormat.of().formatHex(id), value.getLong());
                require(!cluster.id().equals("0".repeat(32)), "a cluster without an id");
            }
            case NODE -> node = sized(tag, value, 8).getLong();
            case LEADER -> leader = member(tag, value);
            case IN_FLIGHT_MAX -> inFlightMax = sized(tag, value, 4).getInt() & 0xffff_ffffL;
            case IDLE -> idleMillis = sized(tag, value, 4).getInt() & 0xffff_ffffL;
            case COUNT_MAX -> countMax = sized(tag, value, 8).getLong();
            case MEMBER -> {
                require(members.size() < MEMBERS_MAX, "more than " + MEMBERS_MAX + " members");
                members.add(member(tag, value));
            }
            default -> {
                if (tag < 0) {
                    throw broken(name(tag) + ", which must be understood and is not");
                }
            }
        }
    }

    private static ByteBuffer sized(short tag, ByteBuffer value, int bytes) {
        require(value.remaining() == bytes, name(tag) + " with " + value.remaining() + " bytes");
        return value;
    }

    private static Member member(short tag, ByteBuffer value) {
        require(value.remaining() > 8, name(tag) + " with " + value.remaining() + " bytes");
        long node = value.getLong();
        require(node != 0, name(tag) + " with the node id 0");
        return new Member(node, Frame.text(value, Frame.ADDRESS_BYTES_MAX, name(tag)));
    }

    private static String name(short tag) {
        return "field 0x" + HexFormat.of().toHexDigits(tag);
    }

    /** Returns whether the node answers requests for the latest timestamp. */
    boolean hasLatest() {
        return (features & Frame.FEATURE_LATEST) != 0;
    }

    /** Returns whether the node calls itself the leader. */
    boolean leads() {
        return leader != null && leader.node() == node;
    }

    /**
     * Returns the largest count of a request that the node accepts, but at most the limit of
     * version 1.
     */
    long countLimit() {
        return Long.compareUnsigned(countMax, Frame.COUNT_MAX) < 0 ? countMax : Frame.COUNT_MAX;
    }

    /** Returns the time between pings on an idle connection, in nanoseconds. */
    long pingEvery() {
        Duration limit = idleMillis == 0 ? IDLE_DEFAULT : Duration.ofMillis(idleMillis);
        return (limit.compareTo(IDLE_MIN) < 0 ? IDLE_MIN : limit).toNanos() / 3;
    }
}
