package io.github.epicepoch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Tests with real nodes, while leaders are killed and told to stop. */
class ClusterTest extends Scene {
    @TempDir Path directory;

    /** The timestamps that all callers have got. */
    private static final class Seen {
        final AtomicReference<Timestamp> highest = new AtomicReference<>(new Timestamp(0, 0));
        final Set<Timestamp> given = ConcurrentHashMap.newKeySet();

        void call(EpicEpochClient client, boolean waits) throws InterruptedException {
            Timestamp floor = highest.get();
            Timestamp got = waits ? client.timestamp() : client.timestampAsync().join();
            assertTrue(got.isAfter(floor), got + " is not above " + floor);
            assertTrue(given.add(got), got + " was given twice");
            highest.accumulateAndGet(got, (a, b) -> a.isAfter(b) ? a : b);
        }
    }

    @Test
    void aCallOutlivesItsLeader() throws Exception {
        RealCluster cluster = closing(RealCluster.start(directory, 3));
        String[] addresses = cluster.addresses();
        EpicEpochClient client =
                closing(EpicEpochClient.builder(addresses).timeout(LONG).connect());
        Seen seen = new Seen();
        AtomicBoolean over = new AtomicBoolean();
        List<CompletableFuture<Void>> callers = new ArrayList<>();
        for (int caller = 0; caller < 8; caller++) {
            boolean waits = caller % 2 == 0;
            callers.add(
                    begin(
                            () -> {
                                while (!over.get()) {
                                    seen.call(client, waits);
                                    Thread.sleep(1);
                                }
                                return null;
                            }));
        }
        for (boolean isKilled : new boolean[] {true, false}) {
            int leader = cluster.number(awaitLeader(client));
            cluster.stop(leader, isKilled);
            Timestamp before = seen.highest.get();
            await(
                    "another leader answers",
                    () ->
                            seen.highest.get().isAfter(before)
                                    && client.leader()
                                            .filter(now -> !now.equals(addresses[leader]))
                                            .isPresent());
            cluster.start(leader);
            cluster.awaitReady(leader);
        }
        over.set(true);
        for (var caller : callers) {
            caller.get();
        }
        assertEquals(Set.of(addresses), Set.copyOf(client.members()));
        assertFalse(seen.given.isEmpty());
    }

    private static String awaitLeader(EpicEpochClient client) throws InterruptedException {
        AtomicReference<String> leader = new AtomicReference<>();
        await(
                "the client has a leader",
                () -> {
                    client.leader().ifPresent(leader::set);
                    return leader.get() != null;
                });
        return leader.get();
    }

    @Test
    void aSecuredNodeServesItsOwnClientsAlone() throws Exception {
        Path own = directory.resolve("own");
        Path foreign = directory.resolve("foreign");
        RealCluster.certificates(own);
        RealCluster.certificates(foreign);
        RealCluster cluster = closing(RealCluster.startSecured(directory, own));
        Tls trusting = Tls.trusting(own.resolve("ca.pem"));
        Tls shown = shows(trusting, own);
        ClientBuilder builder =
                EpicEpochClient.builder(cluster.addresses()).timeout(RealCluster.START);
        EpicEpochClient client = closing(builder.tls(shown).connect());
        Seen seen = new Seen();
        for (int call = 0; call < 100; call++) {
            seen.call(client, true);
        }
        Tls stranger = Tls.trusting(foreign.resolve("ca.pem"));
        for (Tls wrong : List.of(trusting, shows(trusting, foreign), stranger)) {
            ClientBuilder refused =
                    EpicEpochClient.builder(cluster.addresses())
                            .timeout(Duration.ofMillis(500))
                            .tls(wrong);
            assertThrows(DeadlineExceededException.class, refused::connect);
        }
        seen.call(client, true);
    }

    private static Tls shows(Tls tls, Path directory) throws Exception {
        return tls.showing(
                directory.resolve("client-app.pem"), directory.resolve("client-app.key"));
    }
}
