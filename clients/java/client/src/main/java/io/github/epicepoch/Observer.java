package io.github.epicepoch;

import java.time.Duration;

/**
 * Hooks for metrics. Every method does nothing by default. The client calls them on its own
 * threads, after it has told the callers. They must return quickly. Anything that they throw is
 * logged and has no other effect.
 */
public interface Observer {
    /**
     * A request was answered.
     *
     * @param callers how many calls shared it
     * @param timestamps how many timestamps it brought; 0 if all calls ask for the latest one
     * @param latency the time from sending to answer
     */
    default void answered(int callers, long timestamps, Duration latency) {}

    /**
     * A request was refused, a connection ended, or an attempt to find the leader failed. The
     * client calls this method also while no call waits.
     *
     * @param why the reason
     */
    default void failedAttempt(EpicEpochException why) {}

    /**
     * A connection to the leader was made.
     *
     * @param address the leader's address
     */
    default void connected(String address) {}
}
