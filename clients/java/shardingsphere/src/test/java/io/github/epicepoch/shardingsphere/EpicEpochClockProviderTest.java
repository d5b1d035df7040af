package io.github.epicepoch.shardingsphere;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.epicepoch.DeadlineExceededException;
import io.github.epicepoch.RefusedException;
import io.github.epicepoch.Timestamp;
import java.io.DataInputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import org.apache.shardingsphere.globalclock.provider.GlobalClockProvider;
import org.apache.shardingsphere.infra.spi.type.typed.TypedSPILoader;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

class EpicEpochClockProviderTest {
    private static final long MILLIS = 1_700_000_000_123L;

    /** A limit that no step of these tests reaches, even on a machine that stalls. */
    private static final int LONG_MILLIS = 10_000;

    private static GlobalClockProvider provider(ServerSocket node, int timeoutMillis) {
        Properties properties = new Properties();
        properties.setProperty("addresses", "127.0.0.1:" + node.getLocalPort());
        properties.setProperty("timeoutMillis", Integer.toString(timeoutMillis));
        return TypedSPILoader.getService(GlobalClockProvider.class, "TSO.epicepoch", properties);
    }

    /** Starts a node that gives only timestamps of this epoch. */
    private static ServerSocket node(long epoch) throws IOException {
        ServerSocket node = listen();
        daemon(
                () -> {
                    while (!node.isClosed()) {
                        try (Socket client = node.accept()) {
                            serve(client, epoch);
                        } catch (IOException left) {
                            // The client has left, or the test is over.
                        }
                    }
                });
        return node;
    }

    private static ServerSocket listen() throws IOException {
        return new ServerSocket(0, 8, InetAddress.getByName("127.0.0.1"));
    }

    private static Thread daemon(Runnable task) {
        Thread thread = new Thread(task);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private static void readHello(DataInputStream in) throws IOException {
        byte[] head = new byte[16];
        in.readFully(head);
        in.skipNBytes(ByteBuffer.wrap(head).getInt(4));
    }

    private static void serve(Socket client, long epoch) throws IOException {
        var in = new DataInputStream(client.getInputStream());
        readHello(in);
        ByteBuffer welcome = ByteBuffer.allocate(256).position(16);
        welcome.putShort((short) 3).putShort((short) 24).putLong(1).putLong(1).putLong(1);
        welcome.putShort((short) 5).putShort((short) 8).putLong(1);
        welcome.putShort((short) 6).putShort((short) 13).putLong(1).put("a.b:1".getBytes());
        welcome.putShort((short) 7).putShort((short) 4).putInt(1024);
        welcome.putShort((short) 9).putShort((short) 8).putLong(1L << 32);
        int length = welcome.position();
        welcome.putInt(0, 0x81010000).putInt(4, length - 16).putLong(8, 0x45504f434854534fL);
        client.getOutputStream().write(welcome.array(), 0, length);
        byte[] head = new byte[16];
        for (long index = 0; ; index++) {
            in.readFully(head);
            ByteBuffer answer = ByteBuffer.allocate(32).put(head).putLong(epoch).putLong(index);
            client.getOutputStream().write(answer.put(0, (byte) 0x41).array());
        }
    }

    @Test
    void aCompactClusterGivesRisingTimestamps() throws IOException {
        try (ServerSocket node = node(MILLIS * 1_000_000)) {
            GlobalClockProvider provider = provider(node, LONG_MILLIS);
            assertInstanceOf(EpicEpochClockProvider.class, provider);
            assertEquals(MILLIS << 18, provider.getCurrentTimestamp());
            assertEquals((MILLIS << 18) + 1, provider.getNextTimestamp());
            assertEquals((MILLIS << 18) + 2, provider.getCurrentTimestamp());
        }
    }

    @Test
    void aTimestampThatDoesNotFitIsRefusedAndNotCut() throws IOException {
        try (ServerSocket node = node(MILLIS * 1_000_000 + 1)) {
            GlobalClockProvider provider = provider(node, LONG_MILLIS);
            assertThrows(IllegalStateException.class, provider::getNextTimestamp);
        }
        Timestamp large = new Timestamp(MILLIS * 1_000_000, 1 << 18);
        assertThrows(
                IllegalStateException.class, () -> EpicEpochClockProvider.spelling(large));
    }

    @Test
    void aClusterThatCannotBeReachedIsSaidToBe() throws IOException {
        GlobalClockProvider provider;
        try (ServerSocket free = new ServerSocket(0)) {
            provider = provider(free, 300);
        }
        assertThrows(DeadlineExceededException.class, provider::getNextTimestamp);
    }

    /** Such settings ask for TLS. Plain text would give away the token. */
    @ParameterizedTest
    @CsvSource({
        "certFile keyFile, certFile needs the property caFile",
        "keyFile, keyFile needs the property caFile",
        "caFile certFile, certFile needs the property keyFile",
        "caFile keyFile, keyFile needs the property certFile",
        "tokenFile cafile, cafile is unknown",
        "tls, tls is unknown"
    })
    void settingsThatAskForTlsNeverMeanPlainText(String names, String why) {
        Properties properties = new Properties();
        properties.setProperty("addresses", "127.0.0.1:1");
        for (String name : names.split(" ")) {
            properties.setProperty(name, "file.pem");
        }
        var error =
                assertThrows(
                        IllegalArgumentException.class,
                        () ->
                                TypedSPILoader.getService(
                                        GlobalClockProvider.class, "TSO.epicepoch", properties));
        assertTrue(error.getMessage().startsWith("the property " + why), error.getMessage());
    }

    /** The first attempt to connect reads the files. */
    @ParameterizedTest
    @ValueSource(strings = {"caFile", "caFile certFile keyFile"})
    void aMissingFileOfTlsNeverMeansPlainText(String names) throws IOException {
        try (ServerSocket node = node(MILLIS * 1_000_000)) {
            Properties properties = new Properties();
            properties.setProperty("addresses", "127.0.0.1:" + node.getLocalPort());
            for (String name : names.split(" ")) {
                properties.setProperty(name, "no-such-file.pem");
            }
            GlobalClockProvider provider =
                    TypedSPILoader.getService(
                            GlobalClockProvider.class, "TSO.epicepoch", properties);
            assertThrows(IllegalArgumentException.class, provider::getNextTimestamp);
        }
    }

    /** Otherwise each thread makes an attempt of its own, one after another. */
    @Test
    void threadsThatWaitForAnAttemptShareItsFailure() throws Exception {
        try (ServerSocket node = listen()) {
            GlobalClockProvider provider = provider(node, LONG_MILLIS);
            var first = new CompletableFuture<RuntimeException>();
            var second = new CompletableFuture<RuntimeException>();
            daemon(() -> first.complete(failure(provider)));
            try (Socket client = node.accept()) {
                readHello(new DataInputStream(client.getInputStream()));
                Thread waiting = daemon(() -> second.complete(failure(provider)));
                while (waiting.getState() != Thread.State.BLOCKED) {
                    Thread.sleep(1);
                }
                ByteBuffer refusal = ByteBuffer.allocate(16).putInt(0x82010012);
                client.getOutputStream().write(refusal.array());
                assertInstanceOf(RefusedException.class, first.get());
                assertSame(first.get(), second.get());
            }
        }
    }

    private static RuntimeException failure(GlobalClockProvider provider) {
        return assertThrows(RuntimeException.class, provider::getNextTimestamp);
    }

    @Test
    void spellingsHaveTheOrderOfTimestamps() {
        Random random = new Random(1);
        for (int input = 0; input < 10_000; input++) {
            Timestamp one = compact(random);
            Timestamp other = compact(random);
            int order = Integer.signum(one.compareTo(other));
            long difference =
                    EpicEpochClockProvider.spelling(one) - EpicEpochClockProvider.spelling(other);
            assertEquals(order, Long.signum(difference));
            assertTrue(EpicEpochClockProvider.spelling(one) >= 0);
        }
    }

    private static Timestamp compact(Random random) {
        return new Timestamp((MILLIS + random.nextInt(3)) * 1_000_000, random.nextInt(1 << 18));
    }
}
