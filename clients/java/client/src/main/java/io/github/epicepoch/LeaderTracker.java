package io.github.epicepoch;

import java.lang.System.Logger.Level;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * Keeps a connection to the leader. It finds the leader and reads the answers. It leaves a leader
 * that is silent, and follows leadership to another node.
 */
final class LeaderTracker {
    /**
     * At most this many hints are followed in a row without a pause, because two nodes may name
     * each other.
     */
    private static final int HOPS_MAX = 3;
    /**
     * The longest pause between two looks for silence and idleness, nanoseconds. Nodes close
     * connections that are idle for a second or more, also if an attempt may take longer.
     */
    private static final long WATCH_MAX = TimeUnit.MILLISECONDS.toNanos(100);

    private final Options options;
    private final Threads threads;
    private final Requests requests;
    private final Directory directory;
    /**
     * Completes when the client first connects to a leader, or fails when it meets an error that no
     * retry cures, or a bug.
     */
    private final CompletableFuture<Void> ready = new CompletableFuture<>();

    private final AtomicBoolean refreshing = new AtomicBoolean();
    /**
     * The times at which the members were last read and, below, at which a ping was last sent. Only
     * the timer uses them.
     */
    private long refreshed = System.nanoTime();

    private long pinged = refreshed;

    LeaderTracker(Options options, Threads threads, Requests requests, Directory directory) {
        this.options = options;
        this.threads = threads;
        this.requests = requests;
        this.directory = directory;
    }

    CompletableFuture<Void> ready() {
        return ready;
    }

    void start() {
        threads.run(this::run);
        threads.every(Math.min(options.attemptTimeout() / 5, WATCH_MAX), this::watch);
    }

    private void run() {
        // How many connections in a row have brought no answer.
        int fruitless = 0;
        try {
            while (!threads.isClosed()) {
                Connection to = establish();
                EpicEpochException why = serve(to);
                if (threads.isClosed()) {
                    return;
                }
                requests.failAll(why);
                Level level = why.isRetryable() ? Level.INFO : Level.ERROR;
                options.log(level, "left the leader at " + to.address, why);
                options.failedAttempt(why);
                fruitless = to.answered ? 0 : fruitless + 1;
                if (Requests.isCode(why, ErrorCode.OVERLOADED)) {
                    TimeUnit.NANOSECONDS.sleep(Directory.overloadPause());
                } else if (fruitless > HOPS_MAX
                        || (fruitless > 0 && !Requests.isCode(why, ErrorCode.NOT_LEADER))) {
                    pauseBeforeNext();
                }
            }
        } catch (InterruptedException interrupt) {
            // Usually the client is closed. Otherwise a hook has interrupted its thread, and the
            // client cannot follow the leader without this thread.
            if (!threads.isClosed()) {
                throw new IllegalStateException(
                        "the program interrupted a thread of the client", interrupt);
            }
        }
    }

    /**
     * Waits before the next attempt. The pause grows with each failure, and is much longer while no
     * caller waits.
     */
    private void pauseBeforeNext() throws InterruptedException {
        Directory.Backoff backoff = directory.backoff();
        TimeUnit.NANOSECONDS.sleep(backoff.pause());
        if (ready.isDone()) {
            requests.awaitCalls(Deadline.after(backoff.idle() - backoff.pause()));
        }
    }

    /** Returns a connection to a node that leads. */
    private Connection establish() throws InterruptedException {
        for (int hops = 0; ; ) {
            if (threads.isClosed()) {
                throw new InterruptedException();
            }
            String address = directory.next();
            try {
                Connection to = attempt(address, hops < HOPS_MAX);
                if (to != null) {
                    return to;
                }
                hops++;
            } catch (EpicEpochException error) {
                hops = 0;
                requests.failAll(error);
                if (!error.isRetryable()) {
                    ready.completeExceptionally(error);
                    options.log(Level.ERROR, "no leader at " + address, error);
                }
                options.failedAttempt(error);
                pauseBeforeNext();
            }
        }
    }

    /**
     * Asks one node whether it leads.
     *
     * @return the connection, or null if the node names another leader that the client may ask at
     *     once
     */
    private Connection attempt(String address, boolean mayFollow) {
        Connection to;
        try {
            Deadline deadline = Deadline.after(options.attemptTimeout());
            to = Connection.open(options, address, directory.cluster(), deadline);
        } catch (EpicEpochException error) {
            directory.fail(address, System.nanoTime());
            throw error;
        }
        boolean leads = false;
        try {
            directory.learn(to.welcome.cluster, to.welcome.members);
            leads = to.welcome.leads();
            if (!leads && !follows(to.welcome.leader, mayFollow)) {
                directory.forgetLeader();
                Member later = to.awaitLeader(Deadline.after(options.attemptTimeout() / 4));
                leads = later != null && later.node() == to.welcome.node;
                if (!leads && !follows(later, mayFollow)) {
                    throw RefusedException.of(address, ErrorCode.NO_LEADER);
                }
            }
            if (leads) {
                directory.succeed(address);
            }
            return leads ? to : null;
        } finally {
            if (!leads) {
                to.leave(Connection.LEFT);
            }
        }
    }

    private boolean follows(Member hint, boolean mayFollow) {
        return hint != null && mayFollow && directory.follow(hint.address(), System.nanoTime());
    }

    /** Lets callers use a connection until it ends or the node stops leading. Returns why. */
    private EpicEpochException serve(Connection to) {
        if (!requests.connected(to)) {
            to.leave(Connection.LEFT);
            return new ClosedException("the client is closed", null);
        }
        ready.complete(null);
        options.log(Level.INFO, "following the leader at " + to.address, null);
        options.observe(each -> each.connected(to.address));
        EpicEpochException why = read(to);
        to.leave(Connection.LEFT);
        String answering = requests.disconnected();
        long now = System.nanoTime();
        if (answering != null && why.isRetryable()) {
            directory.succeed(answering);
        } else if (why instanceof RefusedException refused
                && refused.code() == ErrorCode.NOT_LEADER
                && !refused.advice().equals(to.address)) {
            // The client believes a node that says that it does not lead. The leader that the node
            // names may be one that has just failed.
            if (!directory.follow(refused.advice(), now)) {
                directory.forgetLeader();
            }
        } else if (!(why.getCause() instanceof RefusedException)) {
            // A node that only refuses a revoked token has not failed. It still leads.
            directory.fail(to.address, now);
        }
        return why;
    }

    /** Passes answers to callers until the connection cannot be used any more. Returns why. */
    private EpicEpochException read(Connection from) {
        try {
            for (; ; ) {
                handle(from, from.next(null));
            }
        } catch (MalformedException error) {
            return Connection.failure(from.address, error);
        } catch (EpicEpochException why) {
            return why;
        }
    }

    private void handle(Connection from, Frame frame) {
        switch (frame.kind()) {
            case Frame.ANSWER -> {
                requests.answered(from, frame.id(), frame.toAnswer(options.guarantee()));
                if (!from.answered) {
                    from.answered = true;
                    directory.answered();
                }
            }
            case Frame.ERROR -> {
                Frame.Refusal refusal = frame.toRefusal(from.address);
                EpicEpochException error = refusal.error();
                if (refusal.closes() && Requests.isCode(error, ErrorCode.UNAUTHORIZED)) {
                    // The token was valid at the handshake and was revoked since. The token source
                    // may have a new one, so the client connects again.
                    throw new UnreachableException(error.getMessage(), error);
                }
                if (refusal.closes()) {
                    throw error;
                }
                requests.refused(from, frame.id(), error);
            }
            case Frame.LEADER -> {
                Member leader = frame.toLeader();
                if (leader != null && leader.node() != from.welcome.node) {
                    // The named leader is only a hint. But a node names another leader only when it
                    // does not lead itself.
                    throw RefusedException.of(
                            from.address, ErrorCode.NOT_LEADER.number(), leader.address());
                }
            }
            default -> from.handlePlain(frame);
        }
    }

    /** Finds requests without an answer, keeps an idle connection alive, refreshes the members. */
    private void watch() {
        Connection to = requests.leader();
        long now = System.nanoTime();
        if (to == null) {
            return;
        }
        if (requests.oldest(now) > options.attemptTimeout()) {
            options.log(Level.WARNING, "the leader at " + to.address + " does not answer", null);
            to.leave(Requests.SILENT);
            return;
        }
        if (now - refreshed > options.refreshInterval()) {
            refreshed = now;
            if (refreshing.compareAndSet(false, true)) {
                // The refresh waits for a node, so it has its own thread. Meanwhile this timer
                // still notices a silent leader.
                threads.run(() -> refresh(to.address));
            }
        }
        if (now - pinged > to.welcome.pingEvery()) {
            pinged = now;
            to.write(Frame.ping(1));
        }
    }

    /** Learns the members from a new handshake. */
    private void refresh(String address) {
        try {
            Deadline deadline = Deadline.after(options.attemptTimeout());
            Connection to = Connection.open(options, address, directory.cluster(), deadline);
            to.leave(Connection.LEFT);
            directory.learn(to.welcome.cluster, to.welcome.members);
        } catch (EpicEpochException error) {
            options.log(Level.DEBUG, "the members were not read from " + address, error);
        } finally {
            refreshing.set(false);
        }
    }
}
