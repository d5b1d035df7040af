package io.github.epicepoch;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.function.Supplier;

/** The settings of a client that is to be made. Every setting has a default. */
public final class ClientBuilder {
    private static final Duration ATTEMPT_TIMEOUT_MIN = Duration.ofMillis(10);
    private static final Duration REFRESH_INTERVAL_MIN = Duration.ofMillis(100);

    private static final int PORT_MAX = 65_535;

    private final List<String> addresses;
    private String clusterName = "";
    private Duration timeout = Duration.ofSeconds(2);
    private Duration attemptTimeout = Duration.ofMillis(500);
    private Duration refreshInterval = Duration.ofSeconds(30);
    private int inFlight = 4;
    private Duration hedgeAfter = Duration.ZERO;
    private Supplier<String> tokenSource = () -> "";
    private Tls tls;
    private Dialer dialer = Dialer.tcp();
    private Observer observer = new Observer() {};
    private Guarantee guarantee;
    private TimestampFormat timestampFormat;
    private System.Logger logger;
    private Executor executor = new CompletableFuture<>().defaultExecutor();

    ClientBuilder(List<String> addresses) {
        require(!addresses.isEmpty(), "no address given; allowed are one or more of host:port");
        for (String address : addresses) {
            require(
                    isAddress(address),
                    "\"" + address + "\" is not an address; use host:port, such as localhost:8881");
        }
        this.addresses = addresses;
    }

    /**
     * Sets how long connecting may take, and each call that has no limit of its own.
     *
     * @param timeout above 0 and at most 366 days; default 2 s, the time of several elections
     * @return this builder
     */
    public ClientBuilder timeout(Duration timeout) {
        this.timeout = checked("timeout", timeout, Duration.ofNanos(1));
        return this;
    }

    /**
     * Sets how long one node may take to accept a connection, to read or to answer. After that time
     * the client asks another node.
     *
     * @param timeout at least 10 ms; default 500 ms: longer than a loaded node needs, and shorter
     *     than a caller wants to wait in a failover
     * @return this builder
     */
    public ClientBuilder attemptTimeout(Duration timeout) {
        attemptTimeout = checked("attemptTimeout", timeout, ATTEMPT_TIMEOUT_MIN);
        return this;
    }

    /**
     * Sets how often the client reads the list of members again.
     *
     * @param interval at least 100 ms; default 30 s: members change rarely
     * @return this builder
     */
    public ClientBuilder refreshInterval(Duration interval) {
        refreshInterval = checked("refreshInterval", interval, REFRESH_INTERVAL_MIN);
        return this;
    }

    /**
     * Sets how many requests may be in flight at once. When that many are in flight, new callers
     * share the next request. A higher value lowers the latency under light load and costs more
     * requests under heavy load.
     *
     * @param requests 1 to 256; default 4
     * @return this builder
     */
    public ClientBuilder inFlight(int requests) {
        int most = Requests.IN_FLIGHT_MAX;
        require(1 <= requests && requests <= most, "inFlight is 1 to " + most + ": " + requests);
        inFlight = requests;
        return this;
    }

    /**
     * Rejects nodes of a cluster with another name.
     *
     * @param name the {@code CLUSTER} of the nodes, 1 to 64 bytes; default: any name is accepted,
     *     and the client keeps to the cluster of the first node that answers
     * @return this builder
     */
    public ClientBuilder clusterName(String name) {
        int bytes = name.getBytes(UTF_8).length;
        require(
                1 <= bytes && bytes <= Hello.NAME_BYTES_MAX,
                "\"" + name + "\" is no name of a cluster; allowed are 1 to "
                        + Hello.NAME_BYTES_MAX + " bytes");
        clusterName = name;
        return this;
    }

    /**
     * Sends a request a second time if it has had no answer for some time. The copy goes over
     * another connection to the leader. If that connection fails, the copy goes to the next known
     * node. The first answer counts; the timestamps of the other answer are never used. The client
     * looks for slow requests every {@code after}, but at least every 5 ms and at most every 1 ms.
     *
     * @param after above 0; default never, because hedging costs a connection and, if the whole
     *     cluster is slow, up to twice the requests
     * @return this builder
     */
    public ClientBuilder hedgeAfter(Duration after) {
        hedgeAfter = checked("hedgeAfter", after, Duration.ofNanos(1));
        return this;
    }

    /**
     * Sets the guarantee that all requests of the client ask for. With {@link Guarantee#LEASE}, a
     * timestamp may lie below an earlier one if a clock is wrong. All clients of a keyspace must use
     * one guarantee. A node that is too old for guarantees refuses the client. So name one only
     * when all nodes are new enough, and stop naming it before they go back.
     *
     * @param guarantee the guarantee; by default requests name none, and get that of the cluster, a
     *     quorum
     * @return this builder
     */
    public ClientBuilder guarantee(Guarantee guarantee) {
        this.guarantee = guarantee;
        return this;
    }

    /**
     * Sets the format that all timestamps must have. With {@link TimestampFormat#COMPACT}, a cluster
     * that gives wide ones refuses each call with {@link ErrorCode#NOT_COMPACT}. Programs need it
     * that call {@link Timestamp#compact} themselves: the calls for compact timestamps check each
     * one. A node that is too old for compact timestamps refuses the client.
     *
     * @param timestampFormat the format; by default none is named, and any timestamp is accepted
     * @return this builder
     */
    public ClientBuilder timestampFormat(TimestampFormat timestampFormat) {
        this.timestampFormat = timestampFormat;
        return this;
    }

    /**
     * Uses TLS on every connection.
     *
     * @param tls the authorities that the client trusts, and its certificate; default plain TCP
     * @return this builder
     */
    public ClientBuilder tls(Tls tls) {
        this.tls = Objects.requireNonNull(tls, "tls");
        return this;
    }

    /**
     * Sends a token to every node. Use it only over TLS; otherwise anyone on the network path can
     * read it.
     *
     * @param token one of the nodes' {@code CLIENT_TOKEN_FILE}, 1 to 256 visible ASCII characters;
     *     default none
     * @return this builder
     */
    public ClientBuilder token(String token) {
        require(!token.isEmpty() && Hello.isToken(token), Hello.NO_TOKEN);
        return tokenSource(() -> token);
    }

    /**
     * Calls a function for the {@linkplain #token token} at each connection, so that the token can
     * change. If the function throws anything or returns no valid token, the client does not connect.
     * It tries again until the deadline of the call, like after a failure of the network. A node that
     * stops accepting a token closes its connections, and the client connects again.
     *
     * @param source returns the token, or null for none; it must return quickly; default none
     * @return this builder
     */
    public ClientBuilder tokenSource(Supplier<String> source) {
        tokenSource = Objects.requireNonNull(source, "source");
        return this;
    }

    /**
     * Sets how connections are made.
     *
     * @param dialer makes connections; default {@link Dialer#tcp()}
     * @return this builder
     */
    public ClientBuilder dialer(Dialer dialer) {
        this.dialer = Objects.requireNonNull(dialer, "dialer");
        return this;
    }

    /**
     * Sets hooks for metrics.
     *
     * @param observer has functions that the client calls at answers, failed attempts and
     *     connections; default none
     * @return this builder
     */
    public ClientBuilder observer(Observer observer) {
        this.observer = Objects.requireNonNull(observer, "observer");
        return this;
    }

    /**
     * Logs leader changes and failures.
     *
     * @param logger a logger; default: nothing is logged
     * @return this builder
     */
    public ClientBuilder logger(System.Logger logger) {
        this.logger = Objects.requireNonNull(logger, "logger");
        return this;
    }

    /**
     * Sets the executor that completes futures. The code that the program has attached to a future
     * runs there, too. With {@code Runnable::run}, this code runs on the client's own threads. That
     * is fastest, but then the code must never block.
     *
     * @param executor runs short tasks; default that of {@link CompletableFuture}
     * @return this builder
     */
    public ClientBuilder executor(Executor executor) {
        this.executor = Objects.requireNonNull(executor, "executor");
        return this;
    }

    /**
     * Finds the leader.
     *
     * @return a client that has found it
     * @throws EpicEpochException if no leader is found in time, or no retry helps
     * @throws InterruptedException if the thread is interrupted
     */
    public EpicEpochClient connect() throws InterruptedException {
        return new EpicEpochClient(options()).open();
    }

    Options options() {
        return new Options(
                addresses,
                clusterName,
                timeout.toNanos(),
                attemptTimeout.toNanos(),
                refreshInterval.toNanos(),
                inFlight,
                hedgeAfter.toNanos(),
                guarantee,
                timestampFormat,
                tokenSource,
                tls,
                dialer,
                observer,
                logger,
                executor);
    }

    private static boolean isAddress(String text) {
        if (!text.matches("(\\[[^\\]]+\\]|[^:\\[\\]]+):[0-9]{1,5}")) {
            return false;
        }
        int port = Integer.parseInt(text.substring(text.lastIndexOf(':') + 1));
        return 1 <= port && port <= PORT_MAX;
    }

    private static Duration checked(String option, Duration given, Duration least) {
        Duration most = Deadline.LONGEST;
        require(
                given.compareTo(least) >= 0 && given.compareTo(most) <= 0,
                option + " is " + given + "; allowed are " + least + " to " + most);
        return given;
    }

    private static void require(boolean holds, String otherwise) {
        if (!holds) {
            throw new IllegalArgumentException(otherwise);
        }
    }
}
