package io.github.epicepoch;

/** The format that all timestamps of a client must have. */
public enum TimestampFormat {
    /** Any timestamp. */
    WIDE,
    /**
     * Each timestamp has a spelling in 64 bits. A cluster that gives wide timestamps refuses each
     * call with {@link ErrorCode#NOT_COMPACT}.
     */
    COMPACT
}
