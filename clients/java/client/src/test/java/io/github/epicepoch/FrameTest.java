package io.github.epicepoch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;
import java.util.regex.Pattern;
import java.util.stream.LongStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * Tests properties of the decoder with random bytes. A failure names its seed; the same seed
 * repeats the failure.
 */
class FrameTest {
    private static final int INPUTS = 2000;

    static LongStream seeds() {
        return LongStream.range(0, 20);
    }

    /** Any bytes are either read as a frame, taken as the beginning of a frame, or refused. */
    @ParameterizedTest
    @MethodSource("seeds")
    void anyBytesAreAFrameOrAreRefused(long seed) throws Exception {
        Random random = new Random(seed);
        List<byte[]> frames = frames();
        for (int input = 0; input < INPUTS; input++) {
            byte[] bytes = frames.get(random.nextInt(frames.size())).clone();
            for (int change = random.nextInt(4); change > 0; change--) {
                bytes[random.nextInt(bytes.length)] = (byte) random.nextInt();
            }
            if (random.nextInt(4) == 0) {
                random.nextBytes(bytes);
            }
            ByteBuffer from = ByteBuffer.wrap(bytes, 0, random.nextInt(bytes.length + 1));
            try {
                for (Frame frame; (frame = Frame.read(from)) != null; ) {
                    assertTrue(frame.tail().remaining() <= Frame.TAIL_BYTES_MAX);
                    VectorsTest.read(frame);
                }
                assertTrue(from.remaining() < Frame.HEAD_BYTES + Frame.TAIL_BYTES_MAX);
            } catch (MalformedException refused) {
                assertTrue(!refused.getMessage().isEmpty());
            }
        }
    }

    private static List<byte[]> frames() throws Exception {
        String vectors = Files.readString(Path.of("../../../crates/wire/vectors/native.json"));
        List<byte[]> frames = new ArrayList<>();
        var hex = Pattern.compile("\"hex\": \"([0-9a-f]+)\"").matcher(vectors);
        while (hex.find()) {
            frames.add(HexFormat.of().parseHex(hex.group(1)));
        }
        assertTrue(frames.size() > 40);
        return frames;
    }

    /** The same bytes give the same frames, however they are cut into pieces. */
    @ParameterizedTest
    @MethodSource("seeds")
    void framesDoNotDependOnHowBytesAreCut(long seed) {
        Random random = new Random(seed);
        ByteBuffer sent = ByteBuffer.allocate(1 << 16);
        List<Long> ids = new ArrayList<>();
        while (sent.remaining() > 2048) {
            byte[] tail = new byte[random.nextInt(1024)];
            int kind = new int[] {0x3f, 0x7f, 0xbf}[random.nextInt(3)];
            ids.add(random.nextLong());
            byte[] body = kind == 0xbf ? tail : new byte[kind == 0x7f ? 16 : 0];
            sent.put(ScriptedNode.frame(kind, 0, 0, ids.get(ids.size() - 1), body));
        }
        sent.flip();
        List<Long> read = new ArrayList<>();
        ByteBuffer in = ByteBuffer.allocate(1 << 16).flip();
        while (sent.hasRemaining()) {
            in.compact();
            int piece = Math.min(sent.remaining(), 1 + random.nextInt(500));
            in.put(sent.slice(sent.position(), piece));
            sent.position(sent.position() + piece);
            in.flip();
            for (Frame frame; (frame = Frame.read(in)) != null; ) {
                read.add(frame.id());
            }
        }
        assertEquals(ids, read);
        assertEquals(0, in.remaining());
    }

    /** Reads a welcome that has the required fields, followed by the given ones. */
    private static Welcome welcome(byte[]... fields) {
        ByteBuffer more = ByteBuffer.allocate(1024);
        for (byte[] field : fields) {
            more.put(field);
        }
        var welcome = new ScriptedNode.EditableWelcome(1);
        welcome.idleMillis = 0;
        welcome.more = new byte[more.flip().remaining()];
        more.get(welcome.more);
        return Welcome.read(Frame.read(ByteBuffer.wrap(welcome.toBytes())));
    }

    private static byte[] field(int tag, int length) {
        return ByteBuffer.allocate(4 + length)
                .putShort((short) tag)
                .putShort((short) length)
                .array();
    }

    @Test
    void aWelcomeMayNameNoIdleLimit() {
        assertEquals(Duration.ofSeconds(40).toNanos(), welcome().pingEvery());
    }

    @ParameterizedTest
    @ValueSource(ints = {0x000b, 0x003f, 0x0040, 0x7fff})
    void unknownFieldsOfLaterVersionsMayRepeat(int tag) {
        welcome(field(tag, 1), field(tag, 1));
    }

    @Test
    void knownFieldsMayNotRepeatAndSomeFieldsMustBeKnown() {
        byte[] agent = field(Welcome.AGENT, 1);
        assertThrows(MalformedException.class, () -> welcome(agent, agent));
        assertThrows(MalformedException.class, () -> welcome(field(0x8000, 0)));
        assertThrows(MalformedException.class, () -> welcome(field(0x7fff, 9), new byte[3]));
    }

    @Test
    void aRangeKnowsItsTimestamps() {
        TimestampRange range = new TimestampRange(new Timestamp(5, 7), 3);
        assertEquals(3, range.stream().count());
        assertEquals(new Timestamp(5, 9), range.last());
        List<Long> indexes = new ArrayList<>();
        range.forEach(timestamp -> indexes.add(timestamp.index()));
        assertEquals(List.of(7L, 8L, 9L), indexes);
        assertThrows(IndexOutOfBoundsException.class, () -> range.at(3));
        assertThrows(
                IllegalArgumentException.class,
                () -> new TimestampRange(new Timestamp(5, -1), 2));
    }

    /** Timestamps, their bytes and their texts must have the same order. */
    @ParameterizedTest
    @MethodSource("seeds")
    void bytesAndTextsHaveTheOrderOfTimestamps(long seed) {
        Random random = new Random(seed);
        for (int input = 0; input < INPUTS; input++) {
            Timestamp one = timestamp(random);
            Timestamp other = timestamp(random);
            int order = Integer.signum(one.compareTo(other));
            assertEquals(order, Integer.signum(one.toString().compareTo(other.toString())));
            int bytes = Arrays.compareUnsigned(one.toBytes(), other.toBytes());
            assertEquals(order, Integer.signum(bytes));
            assertEquals(one, Timestamp.parse(one.toString()));
            assertEquals(one.epoch(), Timestamp.lowest(one.toInstant()).epoch());
        }
    }

    private static Timestamp timestamp(Random random) {
        long few = random.nextInt(3) - 1;
        return new Timestamp(random.nextBoolean() ? few : random.nextLong(), random.nextLong());
    }
}
