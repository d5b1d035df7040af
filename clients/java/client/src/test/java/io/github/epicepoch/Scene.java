package io.github.epicepoch;

import static org.junit.jupiter.api.Assertions.fail;

import com.sun.management.UnixOperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.AfterEach;

/**
 * What tests with scripted nodes share. Nodes and clients that a test makes here are closed when
 * the test ends.
 */
abstract class Scene {
    /** A limit that no step of these tests reaches, even on a machine that stalls. */
    static final Duration LONG = Duration.ofSeconds(10);

    private final List<AutoCloseable> open = new ArrayList<>();

    @AfterEach
    void closeAll() throws Exception {
        for (AutoCloseable each : open) {
            each.close();
        }
    }

    <T extends AutoCloseable> T closing(T resource) {
        open.add(0, resource);
        return resource;
    }

    ScriptedNode node(long id) {
        return closing(new ScriptedNode(id));
    }

    /** Starts a node that leads, and answers requests by a script. */
    ScriptedNode leader(ScriptedNode.Asked script) {
        ScriptedNode leader = node(1);
        leader.script = script;
        return leader;
    }

    /**
     * Returns the settings of a client with a long attempt timeout. So it does not leave a node
     * only because the machine stalls.
     */
    static ClientBuilder builder(ScriptedNode... nodes) {
        String[] addresses = new String[nodes.length];
        for (int at = 0; at < nodes.length; at++) {
            addresses[at] = nodes[at].address();
        }
        return EpicEpochClient.builder(addresses).timeout(LONG).attemptTimeout(LONG);
    }

    EpicEpochClient connect(ClientBuilder builder) throws InterruptedException {
        return closing(builder.connect());
    }

    EpicEpochClient connect(ScriptedNode... nodes) throws InterruptedException {
        return connect(builder(nodes));
    }

    /** Runs a call on a thread of its own. */
    static <T> CompletableFuture<T> begin(Callable<T> call) {
        CompletableFuture<T> future = new CompletableFuture<>();
        ScriptedNode.daemon(
                () -> {
                    try {
                        future.complete(call.call());
                    } catch (Throwable error) {
                        future.completeExceptionally(error);
                    }
                });
        return future;
    }

    /** Throws anything. Other languages of the JVM do not check exceptions. */
    @SuppressWarnings("unchecked")
    static <T extends Throwable> void throwing(Throwable any) throws T {
        throw (T) any;
    }

    /** Returns how many files and sockets this process has open. */
    static long openFiles() {
        var system = (UnixOperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getOpenFileDescriptorCount();
    }

    /** Waits for an event. */
    static void await(String what, BooleanSupplier happened) throws InterruptedException {
        Deadline deadline = Deadline.after(LONG);
        while (!happened.getAsBoolean()) {
            if (deadline.isOver()) {
                fail("not within " + LONG + ": " + what);
            }
            Thread.sleep(1);
        }
    }
}
