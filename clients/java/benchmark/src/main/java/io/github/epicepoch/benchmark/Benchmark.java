package io.github.epicepoch.benchmark;

import io.github.epicepoch.EpicEpochClient;
import io.lettuce.core.RedisClient;
import io.lettuce.core.api.StatefulRedisConnection;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.atomic.LongAdder;
import java.util.function.Supplier;

/**
 * Measures what a call costs: the latency of one caller, and the rate of a thousand callers that
 * share a client. For comparison it also measures a bare echo on loopback, and INCR of a Redis
 * server.
 *
 * <p>{@code EPICEPOCH_BIN} names a release build of the nodes, and {@code REDIS_URL} a Redis server.
 */
public final class Benchmark {
    private static final int CALLERS = 1000;
    private static final int PORT = 28_881;
    private static final int RAFT_PORT = 28_981;

    private final long nanos;
    /** The first failure of a call on another thread. It ends the benchmark. */
    private final AtomicReference<Throwable> failure = new AtomicReference<>();

    private interface Call {
        void run() throws Exception;
    }

    private Benchmark(double seconds) {
        nanos = (long) (seconds * 1e9);
    }

    /**
     * Runs all measurements.
     *
     * @param arguments how many seconds each measurement takes
     * @throws Exception if something does not start, or a call fails
     */
    public static void main(String[] arguments) throws Exception {
        Benchmark benchmark = new Benchmark(Double.parseDouble(arguments[0]));
        System.out.println("Java " + Runtime.version());
        if (arguments.length > 1) {
            echo(Integer.parseInt(arguments[1]));
            return;
        }
        benchmark.echo();
        benchmark.oracle();
        if (System.getenv("REDIS_URL") != null) {
            benchmark.redis(System.getenv("REDIS_URL"));
        }
        System.exit(0);
    }

    /** Measures an echo: sends 16 bytes to another process, which sends them back. */
    private void echo() throws Exception {
        int port = PORT - 1;
        String java = ProcessHandle.current().info().command().orElse("java");
        String classes = System.getProperty("java.class.path");
        Process other =
                new ProcessBuilder(java, "-cp", classes, Benchmark.class.getName(), "0", "" + port)
                        .start();
        try (Socket socket = connect(port)) {
            byte[] bytes = new byte[16];
            oneCaller(
                    "echo",
                    () -> {
                        socket.getOutputStream().write(bytes);
                        socket.getInputStream().readNBytes(bytes, 0, bytes.length);
                    });
        } finally {
            other.destroy();
        }
    }

    private static void echo(int port) throws IOException {
        try (var listener = new ServerSocket(port, 1, InetAddress.getByName("127.0.0.1"));
                Socket socket = listener.accept()) {
            socket.setTcpNoDelay(true);
            byte[] bytes = new byte[16];
            while (socket.getInputStream().readNBytes(bytes, 0, bytes.length) > 0) {
                socket.getOutputStream().write(bytes);
            }
        }
    }

    private static Socket connect(int port) throws Exception {
        for (int attempt = 0; ; attempt++) {
            try {
                Socket socket = new Socket("127.0.0.1", port);
                socket.setTcpNoDelay(true);
                return socket;
            } catch (IOException notYet) {
                if (attempt == 100) {
                    throw notYet;
                }
                Thread.sleep(50);
            }
        }
    }

    private void oracle() throws Exception {
        Path data = Files.createTempDirectory("epicepoch");
        Process nodes =
                new ProcessBuilder(
                                System.getenv("EPICEPOCH_BIN"),
                                "dev",
                                "--http-port-base=" + PORT,
                                "--raft-port-base=" + RAFT_PORT,
                                "--data-dir=" + data)
                        .redirectErrorStream(true)
                        .redirectOutput(data.resolve("log").toFile())
                        .start();
        try (EpicEpochClient client =
                EpicEpochClient.builder("127.0.0.1:" + PORT)
                        .timeout(Duration.ofSeconds(30))
                        .executor(Runnable::run)
                        .connect()) {
            oneCaller("epicepoch", client::timestamp);
            callers("epicepoch", client::timestamp);
            futures("epicepoch", client::timestampAsync);
        } finally {
            nodes.destroy();
            nodes.waitFor();
        }
    }

    private void redis(String url) throws Exception {
        RedisClient client = RedisClient.create(url);
        try (StatefulRedisConnection<String, String> connection = client.connect()) {
            oneCaller("redis INCR", () -> connection.sync().incr("epicepoch-benchmark"));
            callers("redis INCR", () -> connection.sync().incr("epicepoch-benchmark"));
            futures("redis INCR", () -> connection.async().incr("epicepoch-benchmark"));
        }
        client.shutdown();
    }

    private void oneCaller(String name, Call call) throws Exception {
        long warm = System.nanoTime() + nanos;
        while (System.nanoTime() < warm) {
            call.run();
        }
        long[] took = new long[1 << 21];
        int calls = 0;
        long began = System.nanoTime();
        long before = began;
        while (before - began < nanos && calls < took.length) {
            call.run();
            long after = System.nanoTime();
            took[calls++] = after - before;
            before = after;
        }
        Arrays.sort(took, 0, calls);
        String latency =
                String.format(
                        ", p50 %.1f us, p99 %.1f us",
                        took[calls / 2] / 1e3, took[calls * 99 / 100] / 1e3);
        report(name + ", one caller", calls, before - began, latency);
    }

    /**
     * Measures threads that call again and again: first threads of the system, then virtual threads
     * if this Java has them.
     */
    private void callers(String name, Call call) throws Exception {
        callers(name + ", 1,000 threads", Executors.newCachedThreadPool(), call);
        try {
            var virtual = Executors.class.getMethod("newVirtualThreadPerTaskExecutor");
            ExecutorService threads = (ExecutorService) virtual.invoke(null);
            callers(name + ", 1,000 virtual threads", threads, call);
        } catch (NoSuchMethodException older) {
            // Java 17 has none.
        }
    }

    private void callers(String name, ExecutorService threads, Call call) throws Exception {
        LongAdder calls = new LongAdder();
        CountDownLatch ended = new CountDownLatch(CALLERS);
        long until = System.nanoTime() + 2 * nanos;
        for (int caller = 0; caller < CALLERS; caller++) {
            threads.execute(
                    () -> {
                        try {
                            while (System.nanoTime() < until) {
                                call.run();
                                calls.increment();
                            }
                        } catch (Exception error) {
                            failure.compareAndSet(null, error);
                        } finally {
                            ended.countDown();
                        }
                    });
        }
        measure(name, calls);
        ended.await();
        threads.shutdown();
        requireNoFailure(name);
    }

    /** Measures futures. Each asks again when it completes. */
    private void futures(String name, Supplier<CompletionStage<?>> call) throws Exception {
        LongAdder calls = new LongAdder();
        long until = System.nanoTime() + 2 * nanos;
        CountDownLatch ended = new CountDownLatch(CALLERS);
        for (int caller = 0; caller < CALLERS; caller++) {
            askAgain(call, calls, until, ended);
        }
        measure(name + ", 1,000 futures", calls);
        ended.await();
        requireNoFailure(name);
    }

    private void requireNoFailure(String name) {
        if (failure.get() != null) {
            throw new IllegalStateException("a call failed: " + name, failure.get());
        }
    }

    private void askAgain(
            Supplier<CompletionStage<?>> call, LongAdder calls, long until, CountDownLatch ended) {
        call.get()
                .whenComplete(
                        (got, error) -> {
                            if (error != null) {
                                failure.compareAndSet(null, error);
                            }
                            if (error != null || System.nanoTime() > until) {
                                ended.countDown();
                                return;
                            }
                            calls.increment();
                            askAgain(call, calls, until, ended);
                        });
    }

    /** Prints the rate of calls in the second half of the time. The first half warms up. */
    private void measure(String name, LongAdder calls) throws InterruptedException {
        Thread.sleep(Duration.ofNanos(nanos).toMillis());
        long before = calls.sum();
        long began = System.nanoTime();
        Thread.sleep(Duration.ofNanos(nanos * 9 / 10).toMillis());
        report(name, calls.sum() - before, System.nanoTime() - began, "");
    }

    private static void report(String name, long calls, long took, String more) {
        System.out.printf("%-36s %,10.0f /s%s%n", name, calls * 1e9 / took, more);
    }
}
