package io.github.epicepoch;

import java.util.List;
import java.util.concurrent.Executor;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * The settings of a client; {@link ClientBuilder} documents them. Times are in nanoseconds.
 *
 * @param hedgeAfter after how long a request is sent a second time; 0 for never
 * @param guarantee what all requests ask for; null if they name none
 * @param timestampFormat the format that all timestamps must have; null for any
 * @param tls the TLS settings; null for plain TCP
 * @param log where leader changes and failures are logged; null for no log
 */
record Options(
        List<String> addresses,
        String clusterName,
        long timeout,
        long attemptTimeout,
        long refreshInterval,
        int inFlight,
        long hedgeAfter,
        Guarantee guarantee,
        TimestampFormat timestampFormat,
        Supplier<String> tokenSource,
        Tls tls,
        Dialer dialer,
        Observer observer,
        System.Logger log,
        Executor executor) {

    void log(System.Logger.Level level, String message, Throwable why) {
        if (log != null) {
            log.log(level, message, why);
        }
    }

    /**
     * Calls the observer. If it throws anything, the client only logs it. Otherwise an error of the
     * program's code would end the thread that reads the answers.
     */
    void observe(Consumer<Observer> call) {
        try {
            call.accept(observer);
        } catch (Throwable error) {
            log(System.Logger.Level.ERROR, "the observer failed", error);
        }
    }

    void failedAttempt(EpicEpochException why) {
        observe(each -> each.failedAttempt(why));
    }
}
