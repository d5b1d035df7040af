package io.github.epicepoch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.Test;

/** Tests this client against the golden vectors that all implementations share. */
class VectorsTest {
    private static final HexFormat HEX = HexFormat.of();
    /** These errors exist only over HTTP. */
    private static final Set<String> OTHERS =
            Set.of(
                    "BAD_FORMAT",
                    "NOT_FOUND",
                    "METHOD_NOT_ALLOWED",
                    "REFUSED",
                    "BUSY",
                    "NOT_CAUGHT_UP",
                    "UNSETTLED",
                    "UNCERTAIN");

    private static Map<String, Object> vectors(String name) throws IOException {
        Path file = Path.of("../../../crates/wire/vectors", name);
        return Json.object(Json.parse(Files.readString(file)));
    }

    private static List<Map<String, Object>> all(String file, String... lists) throws IOException {
        List<Map<String, Object>> all = new ArrayList<>();
        for (String list : lists) {
            Json.list(vectors(file).get(list)).forEach(each -> all.add(Json.object(each)));
        }
        all.removeIf(vector -> "client".equals(vector.get("from")));
        return all;
    }

    private static String text(Map<String, Object> object, String name) {
        return object.get(name) instanceof String text ? text : "";
    }

    private static long number(Map<String, Object> object, String name) {
        return Long.parseUnsignedLong(object.get(name).toString());
    }

    @Test
    void framesAreWrittenAsTheVectorsSay() throws IOException {
        List<Map<String, Object>> vectors = all("native.json", "to_server");
        assertTrue(vectors.size() >= 5);
        for (Map<String, Object> vector : vectors) {
            byte[] written = written(Json.object(vector.get("means")));
            assertEquals(vector.get("hex"), HEX.formatHex(written), text(vector, "name"));
        }
    }

    private static byte[] written(Map<String, Object> means) {
        switch (text(means, "kind")) {
            case "request":
                ByteBuffer request = ByteBuffer.allocate(Frame.HEAD_BYTES);
                Frame.putRequest(request, number(means, "id"), number(means, "count"));
                return request.array();
            case "latest":
                ByteBuffer latest = ByteBuffer.allocate(Frame.HEAD_BYTES);
                Frame.putLatest(latest, number(means, "id"));
                return latest.array();
            case "ping":
                return Frame.ping(number(means, "id"));
            case "pong":
                return Frame.pong(number(means, "id"));
            default:
                assertEquals("hello", means.get("kind"));
                Cluster cluster =
                        means.get("cluster") == null
                                ? null
                                : new Cluster(text(means, "cluster"), number(means, "history"));
                return new Hello(
                                number(means, "features"),
                                text(means, "cluster_name"),
                                cluster,
                                text(means, "agent"),
                                text(means, "token"),
                                means.get("guarantee") == null
                                        ? null
                                        : Guarantee.valueOf(
                                                text(means, "guarantee").toUpperCase(Locale.ROOT)),
                                means.get("timestamp_format") == null
                                        ? null
                                        : TimestampFormat.valueOf(
                                                text(means, "timestamp_format")
                                                        .toUpperCase(Locale.ROOT)))
                        .toBytes();
        }
    }

    @Test
    void framesAreReadAsTheVectorsSay() throws IOException {
        List<Map<String, Object>> vectors = all("native.json", "to_client", "read_only");
        assertTrue(vectors.size() >= 15);
        for (Map<String, Object> vector : vectors) {
            ByteBuffer bytes = ByteBuffer.wrap(HEX.parseHex(text(vector, "hex")));
            assertEquals(vector.get("means"), read(Frame.read(bytes)), text(vector, "name"));
            assertEquals(0, bytes.remaining());
        }
    }

    @Test
    void aFrameIsReadOnlyWhenAllOfItIsThere() throws IOException {
        for (Map<String, Object> vector : all("native.json", "to_client", "read_only")) {
            byte[] bytes = HEX.parseHex(text(vector, "hex"));
            for (int cut = 0; cut < bytes.length; cut++) {
                ByteBuffer part = ByteBuffer.wrap(bytes, 0, cut);
                assertEquals(null, Frame.read(part));
                assertEquals(cut, part.remaining());
            }
        }
    }

    /**
     * Reads a frame as the client does. Returns its fields under the names that the vectors use.
     */
    static Map<String, Object> read(Frame frame) {
        Map<String, Object> means = new HashMap<>();
        String id = Long.toUnsignedString(frame.id());
        switch (frame.kind()) {
            case Frame.ANSWER -> {
                Frame.Answer given = frame.toAnswer(Guarantee.LEASE);
                String proof = "round";
                try {
                    frame.toAnswer(Guarantee.QUORUM);
                } catch (MalformedException lease) {
                    proof = "lease";
                }
                means.put("proof", proof);
                TimestampRange answer = given.range();
                means.put("kind", given.isLatest() ? "latest_answer" : "answer");
                means.put("id", id);
                if (given.isLatest()) {
                    means.put("latest", answer.first().toString());
                    return means;
                }
                means.put("count", Long.toString(answer.count()));
                means.put("first", answer.first().toString());
            }
            case Frame.ERROR -> {
                Frame.Refusal refusal = frame.toRefusal("node");
                boolean isKnown = ErrorCode.of(frame.code()).number() == frame.code();
                means.put("kind", "error");
                means.put("id", id);
                means.put("code", (long) frame.code());
                means.put("name", isKnown ? ErrorCode.of(frame.code()).name() : null);
                means.put("closes", refusal.closes());
                String[] said = refusal.error().getMessage().split(": ", 2);
                means.put("text", said.length < 2 ? "" : said[1]);
            }
            case Frame.LEADER -> {
                Member leader = frame.toLeader();
                means.put("kind", "leader");
                means.put("node", leader == null ? "0" : Long.toString(leader.node()));
                means.put("addr", leader == null ? "" : leader.address());
            }
            case Frame.PING, Frame.PONG -> {
                frame.requirePlain();
                means.put("kind", frame.kind() == Frame.PING ? "ping" : "pong");
                means.put("id", id);
            }
            case Frame.GOODBYE -> {
                frame.requirePlain();
                means.put("kind", "goodbye");
            }
            case Frame.WELCOME -> means.putAll(welcome(Welcome.read(frame)));
            case Frame.REQUEST, Frame.HELLO -> throw Frame.broken("only clients send it");
            default -> means.put("kind", "unknown");
        }
        return means;
    }

    private static Map<String, Object> welcome(Welcome welcome) {
        Map<String, Object> means = new HashMap<>();
        means.put("kind", "welcome");
        means.put("version", 1L);
        means.put("features", Long.toUnsignedString(welcome.features));
        means.put("cluster_name", welcome.clusterName);
        means.put("cluster", welcome.cluster == null ? null : welcome.cluster.id());
        means.put("history", welcome.cluster == null ? null : "" + welcome.cluster.history());
        means.put("node", Long.toString(welcome.node));
        means.put("leader", welcome.leader == null ? null : member(welcome.leader));
        means.put("in_flight_max", welcome.inFlightMax);
        means.put("idle_ms", welcome.idleMillis);
        means.put("count_max", Long.toUnsignedString(welcome.countMax));
        means.put("members", welcome.members.stream().map(VectorsTest::member).toList());
        return means;
    }

    private static Map<String, Object> member(Member member) {
        return Map.of("node", Long.toString(member.node()), "addr", member.address());
    }

    @Test
    void framesThatBreakTheProtocolAreRefused() throws IOException {
        List<Map<String, Object>> vectors = all("native.json", "refused");
        assertTrue(vectors.size() >= 5);
        for (Map<String, Object> vector : vectors) {
            byte[] bytes = HEX.parseHex(text(vector, "hex"));
            ByteBuffer padded = ByteBuffer.allocate(Math.max(bytes.length, Frame.HEAD_BYTES));
            padded.put(bytes).rewind();
            assertThrows(
                    MalformedException.class,
                    () -> read(Frame.read(padded)),
                    text(vector, "name"));
        }
    }

    @Test
    void answersOfIntervalModeAreSkippedAsUnknownFrames() throws IOException {
        List<Map<String, Object>> vectors = all("intervals.json", "answers", "refused_answers");
        assertTrue(vectors.size() >= 10);
        for (Map<String, Object> vector : vectors) {
            ByteBuffer bytes = ByteBuffer.wrap(HEX.parseHex(text(vector, "hex")));
            assertEquals(Map.of("kind", "unknown"), read(Frame.read(bytes)), text(vector, "name"));
            assertEquals(0, bytes.remaining());
        }
    }

    @Test
    void errorsHaveTheirNumbers() throws IOException {
        int known = 0;
        for (Map<String, Object> vector : all("errors.json", "errors")) {
            String name = text(vector, "name");
            ErrorCode code = ErrorCode.of((int) number(vector, "number"));
            if (OTHERS.contains(name)) {
                assertEquals(ErrorCode.INTERNAL, code);
                continue;
            }
            known++;
            assertEquals(name, code.name());
            // The vectors call INTERNAL not retryable, because the node is broken. The client
            // retries it, because another node may answer.
            boolean isRetryable = vector.get("retryable").equals(true) || name.equals("INTERNAL");
            assertEquals(isRetryable, code.isRetryable(), name);
        }
        assertEquals(ErrorCode.values().length, known);
    }

    @Test
    void timestampsAreThoseOfTheVectors() throws IOException {
        Timestamp last = null;
        for (Map<String, Object> vector : all("timestamps.json", "timestamps")) {
            Timestamp parsed = Timestamp.parse(text(vector, "text"));
            assertEquals(vector.get("text"), parsed.toString());
            assertArrayEquals(HEX.parseHex(text(vector, "bytes")), parsed.toBytes());
            assertEquals(parsed, Timestamp.fromBytes(parsed.toBytes()));
            assertEquals(number(vector, "epoch"), parsed.epoch());
            assertEquals(number(vector, "index"), parsed.index());
            assertTrue(last == null || last.isBefore(parsed) && parsed.isAfter(last));
            last = parsed;
        }
        for (Object text : Json.list(vectors("timestamps.json").get("refused_texts"))) {
            assertThrows(
                    IllegalArgumentException.class, () -> Timestamp.parse((String) text));
        }
        long lastCompact = -1;
        for (Map<String, Object> vector : all("timestamps.json", "compact")) {
            Timestamp parsed = Timestamp.parse(text(vector, "text"));
            long compact = number(vector, "u64");
            assertEquals(compact, parsed.compact().orElseThrow());
            assertEquals(parsed, Timestamp.fromCompact(compact));
            assertTrue(lastCompact < compact && compact <= Timestamp.COMPACT_MAX);
            lastCompact = compact;
        }
        assertEquals(Timestamp.COMPACT_MAX, lastCompact);
        for (Object text : Json.list(vectors("timestamps.json").get("not_compact"))) {
            assertTrue(Timestamp.parse((String) text).compact().isEmpty());
        }
        for (Object text : Json.list(vectors("timestamps.json").get("refused_compact"))) {
            long refused = Long.parseUnsignedLong((String) text);
            assertThrows(IllegalArgumentException.class, () -> Timestamp.fromCompact(refused));
        }
        for (Map<String, Object> vector : all("timestamps.json", "ranges")) {
            Timestamp first = Timestamp.parse(text(vector, "first"));
            TimestampRange range = new TimestampRange(first, number(vector, "count"));
            assertEquals(vector.get("last"), range.last().toString());
        }
    }

    @Test
    void wallTimesAreThoseOfTheVectors() throws IOException {
        for (Map<String, Object> vector : all("timestamps.json", "wall_times")) {
            long nanos = number(vector, "unix_ns");
            Instant at =
                    Instant.ofEpochSecond(
                            Long.divideUnsigned(nanos, 1_000_000_000),
                            Long.remainderUnsigned(nanos, 1_000_000_000));
            assertEquals(vector.get("lowest"), Timestamp.lowest(at).toString());
            assertEquals(vector.get("highest"), Timestamp.highest(at).toString());
            assertEquals(at, Timestamp.lowest(at).toInstant());
        }
        assertEquals(new Timestamp(0, 0), Timestamp.lowest(Instant.ofEpochSecond(-1)));
        assertEquals(new Timestamp(-1, 0), Timestamp.lowest(Instant.MAX));
        // The highest epoch is the last nanosecond that fits into 64 bits. A later time counts as
        // that epoch.
        Instant last = new Timestamp(-1, 0).toInstant();
        assertEquals(new Timestamp(-1, -1), Timestamp.highest(last.plusNanos(1)));
        assertEquals(new Timestamp(-2, 0), Timestamp.lowest(last.minusNanos(1)));
    }
}
