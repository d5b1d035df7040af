package io.github.epicepoch;

/** What a request asks to be proved before it is answered. */
public enum Guarantee {
    /** A quorum is asked. The order of timestamps never depends on a clock. */
    QUORUM,
    /**
     * The leader may answer without asking a quorum, while it has a lease. If a clock then runs at a
     * wrong rate, or stands still with its machine, a timestamp may lie below one that was answered
     * before. No timestamp is given twice.
     */
    LEASE
}
