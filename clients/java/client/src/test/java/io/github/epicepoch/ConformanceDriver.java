package io.github.epicepoch;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The conformance driver of this client. It reads commands, one JSON object per line, and writes
 * the client's answers; see clients/README.md. With {@code --async} it makes asynchronous calls.
 */
final class ConformanceDriver {
    private static final long ORIGIN = System.nanoTime();

    private final boolean isAsync;
    private final PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    /** For each call in progress, by its id, the function that gives the call up. */
    private final Map<Long, Runnable> calls = new ConcurrentHashMap<>();

    private volatile EpicEpochClient client;
    /** Whether the client needs compact timestamps, and the replies have their spellings. */
    private volatile boolean isCompact;

    private ConformanceDriver(List<String> arguments) {
        isAsync = arguments.contains("--async");
    }

    public static void main(String[] arguments) throws IOException {
        ConformanceDriver driver = new ConformanceDriver(List.of(arguments));
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            driver.carryOut(Json.object(Json.parse(line)));
        }
        if (driver.client != null) {
            // At its end, the JVM waits 0.3 s for threads that read from a socket.
            driver.client.close();
        }
        System.exit(0);
    }

    private interface Action {
        TimestampRange run() throws Exception;
    }

    private void carryOut(Map<String, Object> command) {
        long id = (Long) command.get("id");
        switch ((String) command.get("do")) {
            case "open" -> start(() -> answer(id, () -> open(command)));
            case "timestamps", "latest" -> call(id, command);
            case "cancel" ->
                    answer(
                            id,
                            () -> {
                                Runnable giveUp = calls.get((Long) command.get("call"));
                                if (giveUp != null) {
                                    giveUp.run();
                                }
                                return null;
                            });
            case "clock" -> answer(id, () -> null);
            case "close" ->
                    start(
                            () ->
                                    answer(
                                            id,
                                            () -> {
                                                client.close();
                                                return null;
                                            }));
            default -> throw new IllegalArgumentException(command.toString());
        }
    }

    private static Thread start(Runnable task) {
        Thread thread = new Thread(task);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private static Duration millis(Map<String, Object> command, String name) {
        return Duration.ofMillis((Long) command.get(name));
    }

    private TimestampRange open(Map<String, Object> command) throws InterruptedException {
        String[] addresses = Json.list(command.get("addrs")).toArray(String[]::new);
        ClientBuilder builder =
                EpicEpochClient.builder(addresses)
                        .attemptTimeout(millis(command, "attempt_ms"))
                        .refreshInterval(millis(command, "refresh_ms"));
        if (command.get("timeout_ms") != null) {
            builder.timeout(millis(command, "timeout_ms"));
        }
        if (command.get("cluster") instanceof String name) {
            builder.clusterName(name);
        }
        if (command.get("guarantee") instanceof String word) {
            builder.guarantee(Guarantee.valueOf(word.toUpperCase(Locale.ROOT)));
        }
        if (command.get("hedge_ms") != null) {
            builder.hedgeAfter(millis(command, "hedge_ms"));
        }
        isCompact = Boolean.TRUE.equals(command.get("compact"));
        if (isCompact) {
            builder.timestampFormat(TimestampFormat.COMPACT);
        }
        client = builder.connect();
        return null;
    }

    private void call(long id, Map<String, Object> command) {
        boolean isLatest = command.get("do").equals("latest");
        long count = isLatest ? 1 : (Long) command.get("count");
        boolean hasLimit = command.get("timeout_ms") != null;
        Duration limit = hasLimit ? millis(command, "timeout_ms") : null;
        EpicEpochClient asked = client;
        if (!isAsync) {
            // Enter the call before it starts. The next command may already cancel it.
            Action ask =
                    () -> {
                        if (isCompact && hasLimit) {
                            return compact(asked, isLatest, count, limit);
                        }
                        if (isLatest) {
                            Timestamp latest = hasLimit ? asked.latest(limit) : asked.latest();
                            return new TimestampRange(latest, 1);
                        }
                        return hasLimit ? asked.timestamps(count, limit) : asked.timestamps(count);
                    };
            Thread thread = new Thread(() -> answer(id, ask));
            thread.setDaemon(true);
            calls.put(id, thread::interrupt);
            thread.start();
            return;
        }
        long began = now();
        CompletableFuture<TimestampRange> future;
        if (isLatest) {
            CompletableFuture<Timestamp> latest =
                    hasLimit ? asked.latestAsync(limit) : asked.latestAsync();
            future = latest.thenApply(one -> new TimestampRange(one, 1));
        } else {
            future = hasLimit ? asked.timestampsAsync(count, limit) : asked.timestampsAsync(count);
        }
        calls.put(id, () -> future.cancel(true));
        future.whenComplete((range, error) -> reply(id, began, range, error));
    }

    /** Makes a call for compact timestamps, and reads what it returns. */
    private static TimestampRange compact(
            EpicEpochClient asked, boolean isLatest, long count, Duration limit)
            throws InterruptedException {
        long first =
                isLatest ? asked.compactLatest(limit) : asked.compactTimestamps(count, limit);
        return new TimestampRange(Timestamp.fromCompact(first), count);
    }

    private void answer(long id, Action action) {
        long began = now();
        TimestampRange range = null;
        Throwable error = null;
        try {
            range = action.run();
        } catch (Exception failure) {
            error = failure;
        }
        reply(id, began, range, error);
    }

    private static long now() {
        return System.nanoTime() - ORIGIN;
    }

    private void reply(long id, long began, TimestampRange range, Throwable error) {
        String line = "{\"id\":" + id + ",\"start\":" + began + ",\"end\":" + now();
        if (range != null && isCompact) {
            try {
                line += ",\"u64\":\"" + range.compactFirst() + "\",\"count\":" + range.count();
            } catch (NotCompactException wide) {
                error = wide;
            }
        } else if (range != null) {
            line += ",\"first\":\"" + range.first() + "\",\"count\":" + range.count();
        }
        if (error != null) {
            Throwable why = error instanceof CompletionException ? error.getCause() : error;
            line += ",\"error\":\"" + fault(why) + "\",\"text\":" + Json.quote(why.toString());
        }
        calls.remove(id);
        synchronized (out) {
            out.println(line + "}");
            out.flush();
        }
    }

    /** Returns the name of an error that the drivers of all languages share. */
    private static String fault(Throwable why) {
        if (why instanceof InterruptedException || why instanceof CancellationException) {
            return "cancelled";
        } else if (why instanceof DeadlineExceededException) {
            return "deadline";
        } else if (why instanceof ClosedException) {
            return "closed";
        } else if (why instanceof CountException) {
            return "count";
        } else if (why instanceof WrongClusterException) {
            return "wrong_cluster";
        } else if (why instanceof WentBackwardsException) {
            return "backwards";
        } else if (why instanceof ProtocolException) {
            return "protocol";
        } else if (why instanceof NotCompactException
                || why instanceof RefusedException refused
                        && refused.code() == ErrorCode.NOT_COMPACT) {
            return "not_compact";
        } else if (why instanceof RefusedException) {
            return "refused";
        }
        return "other";
    }
}
