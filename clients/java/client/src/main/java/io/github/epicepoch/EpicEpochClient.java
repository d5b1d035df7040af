package io.github.epicepoch;

import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Function;

/**
 * Asks one cluster for timestamps. It finds the leader, follows it when it moves, and merges calls
 * that wait at the same time into one request. A call joins only a request that has not been sent
 * yet, so its timestamp is allocated after it began. If an answer is lost, its timestamps are never
 * used; nothing else is lost. So asking again is always safe, and the client asks again until the
 * call's deadline.
 *
 * <p>A client is safe for concurrent use, also by virtual threads. Threads should share one client,
 * because calls at the same time then share a request. Close a client that is no longer needed.
 */
public final class EpicEpochClient implements AutoCloseable {
    private final Options options;
    private final Requests requests;
    /** The threads of the client. This field and the next are not private: tests use them. */
    final Threads threads;
    /** What the client knows of its cluster. */
    final Directory directory;

    private final LeaderTracker tracker;
    private final Duration timeout;

    EpicEpochClient(Options options) {
        this.options = options;
        timeout = Duration.ofNanos(options.timeout());
        threads = new Threads(this::broken);
        requests = new Requests(options, threads);
        directory = new Directory(options.addresses());
        tracker = new LeaderTracker(options, threads, requests, directory);
    }

    /**
     * Finds a cluster with the default settings.
     *
     * @param addresses the client addresses, host:port, of any members; at least one
     * @return a client that has found the leader
     * @throws EpicEpochException if no leader is found in time, or no retry helps
     * @throws InterruptedException if the thread is interrupted
     */
    public static EpicEpochClient connect(String... addresses) throws InterruptedException {
        return builder(addresses).connect();
    }

    /**
     * Begins a client with other settings.
     *
     * @param addresses the client addresses, host:port, of any members; at least one
     * @return a builder
     * @throws IllegalArgumentException if there is no address, or one is not host:port
     */
    public static ClientBuilder builder(String... addresses) {
        return new ClientBuilder(List.of(addresses));
    }

    EpicEpochClient open() throws InterruptedException {
        if (options.hedgeAfter() > 0) {
            Hedger hedger = new Hedger(options, threads, requests, directory);
            requests.hedgeWith(hedger);
            hedger.start();
        }
        tracker.start();
        boolean isOpen = false;
        try {
            tracker.ready().get(options.timeout(), TimeUnit.NANOSECONDS);
            isOpen = true;
            return this;
        } catch (ExecutionException error) {
            throw ((EpicEpochException) error.getCause()).again();
        } catch (TimeoutException error) {
            throw requests.late(null);
        } finally {
            if (!isOpen) {
                close();
            }
        }
    }

    /**
     * Gets one timestamp. It is above every timestamp that any client of the cluster got before this
     * call began. The limit is {@link ClientBuilder#timeout}.
     *
     * @return the timestamp
     * @throws EpicEpochException if there is none; the subclass says why
     * @throws InterruptedException if the thread is interrupted; other calls go on
     */
    public Timestamp timestamp() throws InterruptedException {
        return timestamp(timeout);
    }

    /**
     * Gets one timestamp, like {@link #timestamp()}.
     *
     * @param limit how long the call may take
     * @return the timestamp
     * @throws EpicEpochException if there is none; the subclass says why
     * @throws InterruptedException if the thread is interrupted; other calls go on
     */
    public Timestamp timestamp(Duration limit) throws InterruptedException {
        return requests.call(1, Deadline.after(limit)).first();
    }

    /**
     * Gets timestamps of one epoch with consecutive indexes. If the leader fails, the call takes
     * longer. The call fails only at its deadline, or at an error that no retry cures.
     *
     * @param count how many, 1 to 2^32
     * @return the timestamps
     * @throws EpicEpochException if there are none; the subclass says why
     * @throws InterruptedException if the thread is interrupted; other calls go on
     */
    public TimestampRange timestamps(long count) throws InterruptedException {
        return timestamps(count, timeout);
    }

    /**
     * Gets timestamps, like {@link #timestamps(long)}.
     *
     * @param count how many, 1 to 2^32
     * @param limit how long the call may take
     * @return the timestamps
     * @throws EpicEpochException if there are none; the subclass says why
     * @throws InterruptedException if the thread is interrupted; other calls go on
     */
    public TimestampRange timestamps(long count, Duration limit) throws InterruptedException {
        Requests.requireCount(count);
        return requests.call(count, Deadline.after(limit));
    }

    /**
     * Gets the latest timestamp, and takes none. Every timestamp that any client of the cluster got
     * before this call began is at or below it. Every timestamp that is asked for after this call
     * has returned is above it. The limit is {@link ClientBuilder#timeout}.
     *
     * <p><b>It is no watermark:</b> a writer that has a timestamp at or below it may not have
     * written yet. It is not unique, so it must not be used as an id.
     *
     * @return the latest timestamp
     * @throws EpicEpochException if there is none; the subclass says why
     * @throws InterruptedException if the thread is interrupted; other calls go on
     */
    public Timestamp latest() throws InterruptedException {
        return latest(timeout);
    }

    /**
     * Gets the latest timestamp, like {@link #latest()}.
     *
     * @param limit how long the call may take
     * @return the latest timestamp
     * @throws EpicEpochException if there is none; the subclass says why
     * @throws InterruptedException if the thread is interrupted; other calls go on
     */
    public Timestamp latest(Duration limit) throws InterruptedException {
        return requests.call(Batch.LATEST, Deadline.after(limit)).first();
    }

    /**
     * Gets one timestamp in 64 bits, {@code milliseconds << 18 | index}: that of {@link #timestamp()},
     * and in the same order. The number is not negative. The cluster must give compact timestamps
     * ({@code TIMESTAMP_FORMAT=compact}). The limit is {@link ClientBuilder#timeout}.
     *
     * @return the compact timestamp
     * @throws EpicEpochException if there is none; a {@link NotCompactException} if the cluster gives
     *     wide timestamps
     * @throws InterruptedException if the thread is interrupted; other calls go on
     */
    public long compactTimestamp() throws InterruptedException {
        return compactTimestamps(1, timeout);
    }

    /**
     * Gets consecutive timestamps of one millisecond in 64 bits, like {@link #compactTimestamp()}. A
     * future of {@link #timestampsAsync(long)} becomes one of these with {@link
     * TimestampRange#compactFirst()}.
     *
     * @param count how many, 1 to 2^18
     * @param limit how long the call may take
     * @return the first of the compact timestamps
     * @throws EpicEpochException if there are none; the subclass says why
     * @throws InterruptedException if the thread is interrupted; other calls go on
     */
    public long compactTimestamps(long count, Duration limit) throws InterruptedException {
        return timestamps(count, limit).compactFirst();
    }

    /**
     * Gets the timestamp of {@link #latest()} in 64 bits, like {@link #compactTimestamp()}.
     *
     * @param limit how long the call may take
     * @return the latest compact timestamp
     * @throws EpicEpochException if there is none; the subclass says why
     * @throws InterruptedException if the thread is interrupted; other calls go on
     */
    public long compactLatest(Duration limit) throws InterruptedException {
        return new TimestampRange(latest(limit), 1).compactFirst();
    }

    /**
     * Gets the latest timestamp, like {@link #latest()}, and does not wait for it.
     *
     * @return a future that ends at its deadline at the latest, or fails with an
     *     {@link EpicEpochException}
     */
    public CompletableFuture<Timestamp> latestAsync() {
        return latestAsync(timeout);
    }

    /**
     * Gets the latest timestamp, like {@link #latestAsync()}.
     *
     * @param limit how long the call may take
     * @return a future that ends at its deadline at the latest, or fails with an
     *     {@link EpicEpochException}
     */
    public CompletableFuture<Timestamp> latestAsync(Duration limit) {
        return begin(Batch.LATEST, limit, TimestampRange::first);
    }

    /**
     * Gets one timestamp, like {@link #timestamp()}, and does not wait for it. If the future is
     * cancelled, no caller gets the timestamp.
     *
     * @return a future that ends at its deadline at the latest, or fails with an
     *     {@link EpicEpochException}
     */
    public CompletableFuture<Timestamp> timestampAsync() {
        return timestampAsync(timeout);
    }

    /**
     * Gets one timestamp, like {@link #timestampAsync()}.
     *
     * @param limit how long the call may take
     * @return a future that ends at its deadline at the latest, or fails with an
     *     {@link EpicEpochException}
     */
    public CompletableFuture<Timestamp> timestampAsync(Duration limit) {
        return begin(1, limit, TimestampRange::first);
    }

    /**
     * Gets timestamps, like {@link #timestamps(long)}, and does not wait for them. If the future is
     * cancelled, no caller gets the timestamps.
     *
     * @param count how many, 1 to 2^32
     * @return a future that ends at its deadline at the latest, or fails with an
     *     {@link EpicEpochException}
     */
    public CompletableFuture<TimestampRange> timestampsAsync(long count) {
        return timestampsAsync(count, timeout);
    }

    /**
     * Gets timestamps, like {@link #timestampsAsync(long)}.
     *
     * @param count how many, 1 to 2^32
     * @param limit how long the call may take
     * @return a future that ends at its deadline at the latest, or fails with an
     *     {@link EpicEpochException}
     */
    public CompletableFuture<TimestampRange> timestampsAsync(long count, Duration limit) {
        try {
            Requests.requireCount(count);
        } catch (EpicEpochException error) {
            return CompletableFuture.failedFuture(error);
        }
        return begin(count, limit, Function.identity());
    }

    private <T> CompletableFuture<T> begin(
            long count, Duration limit, Function<TimestampRange, T> view) {
        AsyncCall<T> call = new AsyncCall<>(count, Deadline.after(limit), view);
        try {
            requests.call(call);
        } catch (EpicEpochException error) {
            call.completeExceptionally(error);
        }
        return call;
    }

    /**
     * Returns the client addresses of the members, as the client last learned them. While the
     * cluster is reachable, the client learns them again every {@link
     * ClientBuilder#refreshInterval}.
     *
     * @return the addresses, host:port
     */
    public List<String> members() {
        return directory.members();
    }

    /**
     * Returns the address of the leader.
     *
     * @return the address, if this client has a connection to the leader
     */
    public Optional<String> leader() {
        return Optional.ofNullable(requests.leader()).map(connection -> connection.address);
    }

    /**
     * Returns the id and history of this client's cluster. They are known after the first handshake
     * with a node that names its cluster.
     *
     * @return the cluster, if it is known
     */
    public Optional<Cluster> cluster() {
        return Optional.ofNullable(directory.cluster());
    }

    /**
     * Ends all calls with a {@link ClosedException}, and closes all connections. Returns when the
     * client's threads have ended. A second call does nothing.
     */
    @Override
    public void close() {
        requests.close(new ClosedException("the client is closed", null));
        threads.close();
    }

    /**
     * Closes the client, because one of its threads has failed with a bug. Otherwise calls would
     * wait for a thread that no longer runs, and the other threads would go on without a use.
     */
    private void broken(Throwable bug) {
        ClosedException why = new ClosedException("the client is broken: " + bug, bug);
        requests.close(why);
        tracker.ready().completeExceptionally(why);
        try {
            options.log(Level.ERROR, "the client is broken", bug);
        } finally {
            // The last step, because it interrupts this thread, too.
            threads.close();
        }
    }
}
