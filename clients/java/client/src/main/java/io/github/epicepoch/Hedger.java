package io.github.epicepoch;

import io.github.epicepoch.Batch.Asked;
import java.lang.System.Logger.Level;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;

/**
 * Repeats slow requests over a second connection. The callers get the first answer. The other
 * answer is checked and dropped. Decision 14 in docs/decisions says why the order of timestamps
 * holds.
 */
final class Hedger {
    /** At most this many hedged requests wait for an answer on the second connection. */
    static final int COPIES_MAX = 64;
    /**
     * At most this many requests were answered over the second connection and not yet over the
     * first. These are called burnt. The limit is 1024, because a node reads that many requests of
     * a connection before it answers.
     */
    static final int BURNT_MAX = 1024;

    private static final long TURN_MIN = Duration.ofMillis(1).toNanos();
    private static final long TURN_MAX = Duration.ofMillis(5).toNanos();

    private final Options options;
    private final Threads threads;
    private final Requests requests;
    private final Directory directory;
    /** How long the client waits for one node before it tries the next one, in nanoseconds. */
    private final long timeout;

    // Everything below is guarded by the lock of the requests.

    /** The second connection, or null. */
    private Connection second;

    private boolean opening;
    /**
     * The address at which the second connection is opened next. If it is null, the hedger tries
     * the leader first, and then the other nodes.
     */
    private String next;

    private boolean triedLeader;
    private Deadline notBefore = Deadline.after(0);
    /** While no call waits, no second connection is opened before this time. */
    private Deadline idleUntil = notBefore;
    /**
     * How many second connections in a row took too long to open. Each doubles the time for the
     * next one, because a handshake may take longer than the timeout.
     */
    private int late;
    /** How many second connections in a row could not be used. */
    private int failures;
    /** The requests that were sent over the second connection and have no answer there yet. */
    private final Map<Long, Asked> copies = new HashMap<>();
    /**
     * The burnt requests, by id: answered over the second connection and not yet over the first.
     */
    private final Map<Long, Asked> burnt = new HashMap<>();
    /** The time at which the second connection last brought an answer. */
    private long answeredAt;

    Hedger(Options options, Threads threads, Requests requests, Directory directory) {
        this.options = options;
        this.threads = threads;
        this.requests = requests;
        this.directory = directory;
        timeout = Math.max(options.hedgeAfter(), options.attemptTimeout() / 8);
    }

    void start() {
        threads.every(Math.min(Math.max(options.hedgeAfter(), TURN_MIN), TURN_MAX), this::turn);
    }

    /**
     * Sends a copy of each request that is slow now. Opens the second connection if there is none.
     */
    private void turn() {
        Connection to;
        byte[] frames;
        long now = System.nanoTime();
        requests.lock.lock();
        try {
            if (copies.values().stream().anyMatch(copy -> now - copy.at() > timeout)) {
                leave(0);
            }
            Connection leader = requests.leader();
            to = second;
            frames = leader == null || to == null ? null : copy(now);
            if (second == null && !opening && leader != null && mayOpen()) {
                String address = next != null || triedLeader ? next : leader.address;
                next = null;
                triedLeader = true;
                opening = true;
                long grown = Math.min(timeout << late, options.attemptTimeout());
                long limit = Math.max(timeout, grown);
                threads.run(() -> open(address, leader.address, limit));
            }
        } finally {
            requests.lock.unlock();
        }
        Requests.send(to, frames);
    }

    /**
     * Returns whether the pause before the next second connection is over. A call that waits ends
     * the longer pause of an idle client.
     */
    private boolean mayOpen() {
        return notBefore.isOver() && (requests.isAwaited() || idleUntil.isOver());
    }

    /**
     * Lets the pause before the next second connection grow, because this one could not be used.
     * The pause begins now, but not before the given time.
     */
    private void pause(Deadline until) {
        Deadline begin = until.isOver() ? Deadline.after(0) : until;
        Directory.Backoff backoff = Directory.backoff(failures++);
        notBefore = begin.plus(backoff.pause());
        idleUntil = begin.plus(backoff.idle());
    }

    /** Returns the frames of the requests that are to be sent again, or null if there are none. */
    private byte[] copy(long now) {
        ByteBuffer frames = ByteBuffer.allocate(COPIES_MAX * Frame.HEAD_BYTES);
        for (Batch batch : requests.sent()) {
            if (copies.size() >= COPIES_MAX || burnt.size() >= BURNT_MAX) {
                break;
            }
            boolean isSlow = batch.age(now) >= options.hedgeAfter();
            if (isSlow
                    && batch.count() <= second.welcome.countLimit()
                    && !copies.containsKey(batch.id())) {
                // The client may have returned timestamps since it sent the first request. The
                // answer to the copy must be above these, too.
                boolean isLatest =
                        Batch.putRequest(frames, batch.id(), batch.count(), second.welcome);
                Asked copy = new Asked(batch.count(), isLatest, requests.highest(), now);
                copies.put(batch.id(), copy);
            }
        }
        byte[] bytes = new byte[frames.flip().remaining()];
        frames.get(bytes);
        return bytes.length == 0 ? null : bytes;
    }

    /**
     * Closes the second connection and forgets its copies. No other one is opened before the pause
     * ends.
     */
    private void leave(long pause) {
        if (second != null) {
            second.leave(Connection.LEFT);
            second = null;
        }
        copies.clear();
        notBefore = Deadline.after(pause);
    }

    /**
     * Opens the second connection and reads it until it ends.
     *
     * @param address the node, or null for the next one that is not the leader
     * @param limit how long this may take, in nanoseconds
     */
    private void open(String address, String leader, long limit) {
        Deadline until = Deadline.after(timeout);
        Deadline deadline = Deadline.after(limit);
        boolean isLate = false;
        Connection to = null;
        String hint = null;
        try {
            String target = address != null ? address : directory.other(leader);
            to = Connection.open(options, target, directory.cluster(), deadline);
            Member named = to.welcome.leader;
            if (!to.welcome.leads()) {
                to.leave(Connection.LEFT);
                to = null;
                if (named != null && !directory.isSuspect(named.address(), System.nanoTime())) {
                    hint = named.address();
                }
            }
        } catch (EpicEpochException error) {
            isLate = deadline.isOver();
            // Any other error says nothing about the leader, whose connection is in use.
            if (error instanceof WrongClusterException) {
                requests.fail(error);
                options.log(Level.ERROR, "no second connection", error);
                options.failedAttempt(error);
            }
        }
        requests.lock.lock();
        try {
            opening = false;
            next = hint;
            second = to;
            copies.clear();
            if (to != null) {
                late = 0;
                failures = 0;
                idleUntil = Deadline.after(0);
            } else {
                late += isLate && limit < options.attemptTimeout() ? 1 : 0;
                pause(until);
            }
        } finally {
            requests.lock.unlock();
        }
        if (to != null) {
            read(to);
        }
    }

    private void read(Connection from) {
        EpicEpochException why;
        try {
            while (!threads.isClosed()) {
                handle(from, from.next(null));
            }
            why = new ClosedException("the client is closed", null);
        } catch (MalformedException error) {
            why = Connection.failure(from.address, error);
        } catch (EpicEpochException error) {
            why = error;
        }
        from.leave(Connection.LEFT);
        requests.lock.lock();
        try {
            if (second == from) {
                // This end is no sign of a failure, because nodes close idle connections. So the
                // leader may be tried again.
                triedLeader = false;
                leave(timeout);
            }
        } finally {
            requests.lock.unlock();
        }
        if (why instanceof ProtocolException || why instanceof WentBackwardsException) {
            requests.fail(why);
            options.log(Level.ERROR, "a bad answer", why);
            options.failedAttempt(why);
        }
    }

    private void handle(Connection from, Frame frame) {
        switch (frame.kind()) {
            case Frame.ANSWER -> take(from, frame.id(), frame.toAnswer(options.guarantee()));
            case Frame.ERROR -> {
                EpicEpochException error = frame.toRefusal(from.address).error();
                if (error instanceof RefusedException refused
                        && refused.code() == ErrorCode.NOT_LEADER) {
                    requests.lock.lock();
                    try {
                        next = refused.advice();
                    } finally {
                        requests.lock.unlock();
                    }
                }
                throw error;
            }
            case Frame.LEADER -> {
                Member leader = frame.toLeader();
                if (leader == null || leader.node() != from.welcome.node) {
                    throw Connection.unreachable(from.address, "it leads no more", null);
                }
            }
            default -> from.handlePlain(frame);
        }
    }

    /** Passes an answer of the second connection to its callers, unless they have one already. */
    private void take(Connection from, long id, Frame.Answer given) {
        TimestampRange answer = given.range();
        Batch batch;
        Connection first;
        byte[] frames;
        requests.lock.lock();
        try {
            if (second != from) {
                // The answer came over an older connection. The copies belong to the new one.
                throw Connection.unreachable(from.address, Connection.LEFT, null);
            }
            Asked copy = copies.remove(id);
            if (copy == null) {
                throw Frame.broken("an answer to request " + id + ", which is not under way");
            }
            copy.check(from.address, given);
            answeredAt = System.nanoTime();
            batch = requests.take(id);
            if (batch == null) {
                return;
            }
            first = requests.leader();
            if (first != null) {
                // The first connection still owes its answer to this request. A connection that has
                // ended owes nothing.
                burnt.put(id, batch.asked());
            }
            requests.rise(answer);
            frames = requests.seal();
        } finally {
            requests.lock.unlock();
        }
        if (first != null && first.welcome.node != from.welcome.node) {
            // Only a leader answers, so the node of the first connection does not lead any more.
            first.leave("another node answers");
        }
        Requests.send(first, frames);
        requests.finish(batch, answer, null);
    }

    // Requests calls the methods below, and holds its lock.

    /**
     * Returns whether an answer of the first connection belongs to a request that the second
     * connection has already answered. If so, the answer is checked, and no caller gets it.
     */
    boolean tookBurnt(Connection from, long id, Frame.Answer answer) {
        Asked first = burnt.remove(id);
        if (first != null) {
            first.check(from.address, answer);
        }
        return first != null;
    }

    /**
     * Called when the first connection has brought a refusal of a request. Returns whether the
     * second connection has already answered this request, and forgets the request.
     */
    boolean forgive(long id) {
        return burnt.remove(id) != null;
    }

    /**
     * Returns the age, in nanoseconds, of the oldest request that only the second connection has
     * answered, or 0 if there is none.
     */
    long oldest(long now) {
        return burnt.values().stream().mapToLong(first -> now - first.at()).max().orElse(0);
    }

    /**
     * Forgets the answers that the first connection owed, because it has ended.
     *
     * @return the address of the second connection if it has brought an answer recently, otherwise
     *     null
     */
    String succeed() {
        burnt.clear();
        triedLeader = false;
        boolean answers = System.nanoTime() - answeredAt <= options.attemptTimeout();
        return second != null && answers ? second.address : null;
    }
}
