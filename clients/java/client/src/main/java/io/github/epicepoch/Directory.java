package io.github.epicepoch;

import java.time.Duration;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;

/**
 * What the client knows of its cluster. It decides which node the client asks next, and after what
 * pause. It does no IO and reads no clock; times are those of {@link System#nanoTime()}.
 */
final class Directory {
    /**
     * The pause between attempts begins with BACKOFF_MIN and doubles. Its limit is BACKOFF_MAX
     * while callers wait, and IDLE_BACKOFF_MAX while none waits.
     */
    static final long BACKOFF_MIN = Duration.ofMillis(1).toNanos();

    static final long BACKOFF_MAX = Duration.ofMillis(50).toNanos();
    static final long IDLE_BACKOFF_MAX = Duration.ofSeconds(5).toNanos();

    private static final int BACKOFF_DOUBLINGS = 13;
    /**
     * How long the client ignores hints to a failed node. It is longer than an election takes. If
     * the failed node itself says that it leads, the client believes it.
     */
    private static final long SUSPICION = Duration.ofSeconds(1).toNanos();

    private static final int SUSPECTS_MAX = 2 * Welcome.MEMBERS_MAX;

    private final List<String> seeds;
    private List<String> members = List.of();
    /** The cluster and history of the first answer, or null. */
    private Cluster cluster;
    /** The address at which the leader probably is, or null. */
    private String leader;
    /**
     * The times at which nodes failed, by address. Other nodes may not have noticed the failure
     * yet, and still name a failed node as the leader.
     */
    private final Map<String, Long> suspects = new HashMap<>();

    private int turn;
    private int failedAttempts;

    /**
     * The pauses before the next attempt, in nanoseconds: while callers wait, and while none waits.
     */
    record Backoff(long pause, long idle) {}

    Directory(List<String> seeds) {
        this.seeds = List.copyOf(seeds);
    }

    synchronized List<String> members() {
        return members;
    }

    synchronized Cluster cluster() {
        return cluster;
    }

    /**
     * Returns the leader if one is known. Otherwise it returns one address after another: the
     * members first, then the other addresses that were given.
     */
    synchronized String next() {
        return leader != null ? leader : nextInTurn();
    }

    private String nextInTurn() {
        Set<String> all = new LinkedHashSet<>(members);
        all.addAll(seeds);
        return List.copyOf(all).get(Math.floorMod(turn++, all.size()));
    }

    /**
     * Returns the next address that differs from the given one, or the given one if no other is
     * known.
     */
    synchronized String other(String than) {
        String address = nextInTurn();
        return address.equals(than) ? nextInTurn() : address;
    }

    /** Applies a node's report of the cluster. */
    synchronized void learn(Cluster its, List<Member> reported) {
        if (cluster == null) {
            cluster = its;
        }
        if (!reported.isEmpty()) {
            members = reported.stream().map(Member::address).toList();
        }
    }

    /**
     * Takes the named node for the leader, unless it has failed a short time ago. Returns whether
     * it took it.
     */
    synchronized boolean follow(String address, long now) {
        if (isSuspect(address, now)) {
            return false;
        }
        leader = address;
        return true;
    }

    synchronized boolean isSuspect(String address, long now) {
        Long failed = suspects.get(address);
        return failed != null && now - failed < SUSPICION;
    }

    /** Forgets the leader, because it said that it does not lead. It is not recorded as failed. */
    synchronized void forgetLeader() {
        leader = null;
    }

    /** Records a failed node. */
    synchronized void fail(String address, long now) {
        if (address.equals(leader)) {
            leader = null;
        }
        if (suspects.size() > SUSPECTS_MAX) {
            suspects.clear();
        }
        suspects.put(address, now);
    }

    /** Records a node that says that it leads. Only an answer resets the count of failures. */
    synchronized void succeed(String address) {
        leader = address;
        suspects.remove(address);
    }

    /** Records an answer. */
    synchronized void answered() {
        failedAttempts = 0;
    }

    /** Records a failed attempt, and returns the pauses before the next one. */
    synchronized Backoff backoff() {
        return backoff(failedAttempts++);
    }

    /**
     * Returns two pauses before the next attempt: one while callers wait, and one while none waits.
     * Both double with each earlier failure. Up to half of a pause is random, so that clients that
     * lost the same leader do not return at the same moment.
     */
    static Backoff backoff(int failures) {
        long grown = BACKOFF_MIN << Math.min(failures, BACKOFF_DOUBLINGS);
        return new Backoff(
                jitter(Math.min(grown, BACKOFF_MAX)), jitter(Math.min(grown, IDLE_BACKOFF_MAX)));
    }

    /**
     * Returns how long the client waits, in nanoseconds, before it asks an overloaded leader again.
     */
    static long overloadPause() {
        return jitter(BACKOFF_MAX);
    }

    private static long jitter(long most) {
        return most - ThreadLocalRandom.current().nextLong(most / 2 + 1);
    }
}
