package io.github.epicepoch;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.nio.ByteBuffer;
import java.util.HexFormat;

/**
 * The client's part of the handshake.
 *
 * @param features the features of the client, one bit for each
 * @param clusterName the name of the cluster that the client expects, or "" for any
 * @param cluster the cluster that this client has met, or null
 * @param agent name and version of the client
 * @param token a token of the node's token file, or "" for none
 * @param guarantee what all requests of the connection ask for, or null
 * @param format the format that all timestamps of the connection must have, or null
 */
record Hello(
        long features,
        String clusterName,
        Cluster cluster,
        String agent,
        String token,
        Guarantee guarantee,
        TimestampFormat format) {
    static final int NAME_BYTES_MAX = 64;
    static final int TOKEN_BYTES_MAX = 256;
    static final String NO_TOKEN =
            "a token is at most " + TOKEN_BYTES_MAX + " visible ASCII characters";

    /** The longest hello has every field at its limit. This is enough for all fields. */
    private static final int FIELDS_BYTES_MAX = 1024;

    byte[] toBytes() {
        ByteBuffer fields = ByteBuffer.allocate(FIELDS_BYTES_MAX);
        if (features != 0) {
            fields.putShort(Welcome.FEATURES).putShort((short) 8).putLong(features);
        }
        putText(fields, Welcome.CLUSTER_NAME, clusterName);
        if (cluster != null) {
            fields.putShort(Welcome.CLUSTER).putShort((short) 24);
            fields.put(HexFormat.of().parseHex(cluster.id())).putLong(cluster.history());
        }
        putText(fields, Welcome.AGENT, agent);
        putText(fields, Welcome.TOKEN, token);
        if (guarantee != null) {
            fields.putShort(Welcome.GUARANTEE).putShort((short) 1).put(value(guarantee));
        }
        if (format != null) {
            fields.putShort(Welcome.TIMESTAMP_FORMAT).putShort((short) 1).put(value(format));
        }
        fields.flip();
        ByteBuffer hello = ByteBuffer.allocate(Frame.HEAD_BYTES + fields.remaining());
        Frame.putHead(
                hello,
                Frame.HELLO,
                Frame.VERSION,
                Frame.VERSION << 8,
                fields.remaining(),
                Frame.MAGIC);
        return hello.put(fields).array();
    }

    private static byte value(Guarantee guarantee) {
        return switch (guarantee) {
            case QUORUM -> 0;
            case LEASE -> 1;
        };
    }

    private static byte value(TimestampFormat format) {
        return switch (format) {
            case WIDE -> 0;
            case COMPACT -> 1;
        };
    }

    private static void putText(ByteBuffer to, short tag, String text) {
        if (!text.isEmpty()) {
            byte[] bytes = text.getBytes(UTF_8);
            to.putShort(tag).putShort((short) bytes.length).put(bytes);
        }
    }

    /**
     * Returns whether a text may be sent as a token. The empty text stands for no token, and is
     * allowed.
     */
    static boolean isToken(String text) {
        return text.length() <= TOKEN_BYTES_MAX
                && text.chars().allMatch(each -> each > ' ' && each <= '~');
    }
}
