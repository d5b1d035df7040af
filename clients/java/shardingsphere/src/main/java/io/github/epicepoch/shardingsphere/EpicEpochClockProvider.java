package io.github.epicepoch.shardingsphere;

import io.github.epicepoch.ClientBuilder;
import io.github.epicepoch.EpicEpochClient;
import io.github.epicepoch.EpicEpochException;
import io.github.epicepoch.Timestamp;
import io.github.epicepoch.Tls;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.shardingsphere.globalclock.provider.GlobalClockProvider;

/**
 * Gives ShardingSphere the timestamps of an EpicEpoch cluster. In the settings of ShardingSphere's
 * global clock, it is {@code type: TSO, provider: epicepoch}. It connects when the first timestamp
 * is needed.
 *
 * <p>ShardingSphere has 64 bits for a timestamp: see {@link #spelling}. Both methods of the
 * interface get a new timestamp, because only a new one is above all earlier ones.
 *
 * <p>The property {@code addresses} is required. It has the host:port of members, with commas
 * between them. The other properties are optional: {@code clusterName}, {@code timeoutMillis},
 * {@code tokenFile}, {@code caFile}, {@code certFile} and {@code keyFile}. Other properties are
 * refused, because a misspelt {@code caFile} would otherwise mean plain text. {@code certFile} and
 * {@code keyFile} need each other and {@code caFile}. Without {@code caFile}, connections are in
 * plain text, and anyone on the network path can read the token.
 */
public final class EpicEpochClockProvider implements GlobalClockProvider {
    private static final long MILLI = 1_000_000;
    private static final int INDEX_BITS = 18;

    /** ShardingSphere passes exactly the properties of its settings, and adds none of its own. */
    private static final List<String> KNOWN =
            List.of(
                    "addresses",
                    "clusterName",
                    "timeoutMillis",
                    "tokenFile",
                    "caFile",
                    "certFile",
                    "keyFile");

    private Properties properties = new Properties();
    private EpicEpochClient client;
    /** Why the last attempt to connect failed, or null, and when. */
    private EpicEpochException failure;

    private long failedAt;

    /** Creates a provider. ShardingSphere calls this; programs do not. */
    public EpicEpochClockProvider() {}

    /**
     * Takes the properties. ShardingSphere calls this; programs do not.
     *
     * @throws IllegalArgumentException if a property is unknown, or needs another one
     */
    @Override
    public synchronized void init(Properties given) {
        check(given);
        if (client != null && !given.equals(properties)) {
            client.close();
            client = null;
        }
        failure = null;
        properties = (Properties) given.clone();
    }

    @Override
    public String getType() {
        return "TSO.epicepoch";
    }

    /**
     * Gets a new timestamp.
     *
     * @return the timestamp in 64 bits
     * @throws EpicEpochException if there is none; the subclass says why
     * @throws IllegalStateException if the cluster's timestamps have no spelling in 64 bits, or the
     *     thread is interrupted
     */
    @Override
    public long getCurrentTimestamp() {
        return getNextTimestamp();
    }

    /**
     * Gets a new timestamp.
     *
     * @return the timestamp in 64 bits
     * @throws EpicEpochException if there is none; the subclass says why
     * @throws IllegalStateException if the cluster's timestamps have no spelling in 64 bits, or the
     *     thread is interrupted
     */
    @Override
    public long getNextTimestamp() {
        try {
            return spelling(client().timestamp());
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("interrupted while waiting for a timestamp", error);
        }
    }

    /**
     * Returns the spelling of a timestamp in 64 bits: milliseconds, then 18 bits of the index.
     * Epochs must be whole milliseconds, and indexes must fit into 18 bits. Then the spellings have
     * the order of the timestamps. Other timestamps are refused, because two of them could get the
     * same spelling.
     *
     * @param timestamp a timestamp of a cluster in compact format
     * @return the spelling, above 0 until the year 3084
     * @throws IllegalStateException if the timestamp has no such spelling
     */
    public static long spelling(Timestamp timestamp) {
        boolean isWhole = Long.remainderUnsigned(timestamp.epoch(), MILLI) == 0;
        if (!isWhole || timestamp.index() >>> INDEX_BITS != 0) {
            throw new IllegalStateException(
                    timestamp + " has no spelling in 64 bits: ShardingSphere needs a cluster whose"
                            + " timestamps are compact");
        }
        return Long.divideUnsigned(timestamp.epoch(), MILLI) << INDEX_BITS | timestamp.index();
    }

    private static void check(Properties given) {
        for (Object name : given.keySet()) {
            require(
                    KNOWN.contains(name),
                    "the property " + name + " is unknown: correct or remove it; known are "
                            + String.join(", ", KNOWN));
        }
        requireWith(given, "certFile", "caFile");
        requireWith(given, "keyFile", "caFile");
        requireWith(given, "certFile", "keyFile");
        requireWith(given, "keyFile", "certFile");
    }

    private static void requireWith(Properties given, String name, String other) {
        require(
                !given.containsKey(name) || given.containsKey(other),
                "the property " + name + " needs the property " + other + ": set it, or remove "
                        + name);
    }

    private static void require(boolean holds, String otherwise) {
        if (!holds) {
            throw new IllegalArgumentException(otherwise);
        }
    }

    private EpicEpochClient client() throws InterruptedException {
        long called = System.nanoTime();
        synchronized (this) {
            if (client == null && failure != null && failedAt - called > 0) {
                // This thread has waited for an attempt that failed. If every such thread tried
                // again, the last one would wait for all their timeouts.
                throw failure;
            }
            if (client == null) {
                try {
                    client = builder().connect();
                } catch (EpicEpochException error) {
                    failure = error;
                    failedAt = System.nanoTime();
                    throw error;
                }
            }
            return client;
        }
    }

    private ClientBuilder builder() {
        String addresses = properties.getProperty("addresses", "").replace(" ", "");
        ClientBuilder builder = EpicEpochClient.builder(addresses.split(","));
        if (properties.containsKey("clusterName")) {
            builder.clusterName(properties.getProperty("clusterName"));
        }
        if (properties.containsKey("timeoutMillis")) {
            long millis = Long.parseLong(properties.getProperty("timeoutMillis"));
            builder.timeout(Duration.ofMillis(millis));
        }
        if (properties.containsKey("tokenFile")) {
            Path file = Path.of(properties.getProperty("tokenFile"));
            builder.tokenSource(() -> read(file));
        }
        if (properties.containsKey("caFile")) {
            builder.tls(tls());
        }
        return builder;
    }

    private static String read(Path file) {
        try {
            return Files.readString(file).strip();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private Tls tls() {
        try {
            Tls tls = Tls.trusting(Path.of(properties.getProperty("caFile")));
            if (!properties.containsKey("certFile")) {
                return tls;
            }
            return tls.showing(
                    Path.of(properties.getProperty("certFile")),
                    Path.of(properties.getProperty("keyFile")));
        } catch (IOException | GeneralSecurityException error) {
            throw new IllegalArgumentException("the files for TLS cannot be used", error);
        }
    }
}
