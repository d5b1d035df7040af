package io.github.epicepoch;

import io.github.epicepoch.Batch.Asked;
import java.lang.System.Logger.Level;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;

/**
 * Repeats slow requests over a second connection. The callers get the first answer. The other one is
 * checked and dropped. Decision 14 in docs/decisions says why the order holds.
 */
final class Hedger {
    /** At most this many hedged requests wait for an answer on the second connection. */
    static final int COPIES_MAX = 64;
    /**
     * At most this many requests were answered over the second connection and not yet over the
     * first. A node reads this many requests before it answers.
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
    /** The address to try next. If it is null, the leader comes first and then the other nodes. */
    private String next;

    private boolean triedLeader;
    private Deadline notBefore = Deadline.after(0);
    /** The requests that were sent over the second connection and have no answer there yet. */
    private final Map<Long, Asked> copies = new HashMap<>();
    /** The requests that were answered over the second connection and not yet over the first. */
    private final Map<Long, Asked> burnt = new HashMap<>();
    /** When the second connection last brought an answer. */
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

    /** Repeats the requests that are slow now, and opens the second connection if necessary. */
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
            if (second == null && !opening && leader != null && notBefore.isOver()) {
                String address = next != null || triedLeader ? next : leader.address;
                next = null;
                triedLeader = true;
                opening = true;
                threads.run(() -> open(address, leader.address));
            }
        } finally {
            requests.lock.unlock();
        }
        Requests.send(to, frames);
    }

    /** Returns the frames of the requests that are to be sent again, or null. */
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
                // Its answer must also lie above what was returned since the first sending.
                copies.put(batch.id(), new Asked(batch.count(), requests.highest(), now));
                Frame.putRequest(frames, batch.id(), batch.count());
            }
        }
        byte[] bytes = new byte[frames.flip().remaining()];
        frames.get(bytes);
        return bytes.length == 0 ? null : bytes;
    }

    /** Closes the second connection and forgets its copies. */
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
     */
    private void open(String address, String leader) {
        Deadline until = Deadline.after(timeout);
        Connection to = null;
        String hint = null;
        try {
            String target = address != null ? address : directory.other(leader);
            to = Connection.open(options, target, directory.cluster(), until);
            Member named = to.welcome.leader;
            if (!to.welcome.leads()) {
                to.leave(Connection.LEFT);
                to = null;
                if (named != null && !directory.isSuspect(named.address(), System.nanoTime())) {
                    hint = named.address();
                }
            }
        } catch (EpicEpochException error) {
            if (!error.isRetryable()) {
                options.log(Level.ERROR, "no second connection", error);
                options.setback(error);
                requests.fail(error);
            }
        }
        requests.lock.lock();
        try {
            opening = false;
            next = hint;
            notBefore = until;
            second = to;
            copies.clear();
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
                // Nodes close idle connections, so the leader may be healthy.
                triedLeader = false;
                leave(timeout);
            }
        } finally {
            requests.lock.unlock();
        }
        if (why instanceof ProtocolException || why instanceof WentBackwardsException) {
            options.log(Level.ERROR, "a bad answer", why);
            options.setback(why);
            requests.fail(why);
        }
    }

    private void handle(Connection from, Frame frame) {
        switch (frame.kind()) {
            case Frame.ANSWER -> take(from, frame.id(), frame.toAnswer());
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
                frame.toLeader();
                throw Connection.unreachable(from.address, "it leads no more", null);
            }
            default -> from.handlePlain(frame);
        }
    }

    /** Passes an answer of the second connection to its callers, unless they have one already. */
    private void take(Connection from, long id, TimestampRange answer) {
        Batch batch;
        Connection first;
        byte[] frames;
        requests.lock.lock();
        try {
            if (second != from) {
                // The copies belong to a newer connection.
                throw Connection.unreachable(from.address, Connection.LEFT, null);
            }
            Asked copy = copies.remove(id);
            if (copy == null) {
                throw Frame.broken("an answer to request " + id + ", which is not under way");
            }
            copy.check(from.address, answer);
            answeredAt = System.nanoTime();
            batch = requests.take(id);
            if (batch == null) {
                return;
            }
            first = requests.leader();
            if (first != null) {
                // The first connection still owes its answer. If it has ended, no answer is owed.
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

    // For the requests, under their lock.

    /**
     * Returns whether an answer of the first connection belongs to a burnt request. If so, the
     * answer is checked, and no caller gets it.
     */
    boolean tookBurnt(Connection from, long id, TimestampRange answer) {
        Asked first = burnt.remove(id);
        if (first != null) {
            first.check(from.address, answer);
        }
        return first != null;
    }

    /** Removes a burnt request. Returns whether the first connection owed its answer. */
    boolean forgive(long id) {
        return burnt.remove(id) != null;
    }

    /** Returns the age of the oldest burnt request, or 0. */
    long oldest(long now) {
        return burnt.values().stream().mapToLong(first -> now - first.at()).max().orElse(0);
    }

    /**
     * Forgets the answers that the first connection owed, because it has ended.
     *
     * @return the address that answers over the second connection, or null
     */
    String succeed() {
        burnt.clear();
        triedLeader = false;
        boolean answers = System.nanoTime() - answeredAt <= options.attemptTimeout();
        return second != null && answers ? second.address : null;
    }
}
