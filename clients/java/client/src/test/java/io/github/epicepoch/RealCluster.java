package io.github.epicepoch;

import java.io.File;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Assumptions;

/** A cluster of real nodes on loopback. {@code EPICEPOCH_BIN} is the path of their binary. */
final class RealCluster implements AutoCloseable {
    /** A node is ready within this time, also a debug build on a busy machine. */
    static final Duration START = Duration.ofSeconds(30);

    /** The ports that were given to nodes. A node listens at its port only some time later. */
    private static final Set<Integer> PORTS = ConcurrentHashMap.newKeySet();

    private final Path directory;
    private final List<String> addresses = new ArrayList<>();
    private final List<List<String>> commands = new ArrayList<>();
    private final List<Process> nodes = new ArrayList<>();

    private RealCluster(Path directory) {
        this.directory = directory;
    }

    /** Returns the path of the binary. Without a path, the test is skipped; in CI it fails. */
    private static String binary() {
        String binary = System.getenv("EPICEPOCH_BIN");
        if (binary == null) {
            if (System.getenv("CI") != null) {
                throw new IllegalStateException("set EPICEPOCH_BIN to the epicepoch binary");
            }
            Assumptions.abort("EPICEPOCH_BIN names no binary");
        }
        return new File(binary).getAbsolutePath();
    }

    static RealCluster start(Path directory, int size) throws Exception {
        RealCluster cluster = new RealCluster(directory);
        List<String> peers = new ArrayList<>();
        for (int id = 1; id <= size; id++) {
            peers.add(id + "=127.0.0.1:" + freePort());
        }
        for (int id = 1; id <= size; id++) {
            String raft = peers.get(id - 1).split("=")[1];
            cluster.add(id, raft, "--peers", String.join(",", peers));
        }
        cluster.begin();
        return cluster;
    }

    /** Starts one node that accepts only clients with a certificate. It has further settings. */
    static RealCluster startSecured(Path directory, Path certificates, String... more)
            throws Exception {
        RealCluster cluster = new RealCluster(directory);
        List<String> settings =
                new ArrayList<>(
                        List.of(
                                "--single",
                                "--client-tls",
                                "on",
                                "--cert-file",
                                certificates.resolve("node-1.pem").toString(),
                                "--key-file",
                                certificates.resolve("node-1.key").toString(),
                                "--client-ca-file",
                                certificates.resolve("ca.pem").toString()));
        settings.addAll(List.of(more));
        cluster.add(1, "127.0.0.1:" + freePort(), settings.toArray(String[]::new));
        cluster.start(0);
        return cluster;
    }

    /** Makes an authority, and certificates for a node and a client. */
    static void certificates(Path directory) throws Exception {
        for (String words : List.of("ca", "node 1=127.0.0.1", "client app")) {
            List<String> command = new ArrayList<>(List.of(binary(), "certs"));
            command.addAll(List.of(words.split(" ")));
            command.addAll(3, List.of("--dir", directory.toString()));
            ProcessBuilder made = new ProcessBuilder(command);
            made.redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD);
            if (made.start().waitFor() != 0) {
                throw new IllegalStateException(String.join(" ", command));
            }
        }
    }

    private void add(int id, String raft, String... more) throws IOException {
        int port = freePort();
        addresses.add("127.0.0.1:" + port);
        List<String> command = new ArrayList<>(List.of(binary(), "serve", "--bootstrap"));
        command.addAll(List.of("--node-id", Integer.toString(id), "--raft-addr", raft));
        command.addAll(List.of("--http-port", Integer.toString(port)));
        command.addAll(List.of("--data-dir", directory.resolve("node" + id).toString()));
        command.addAll(List.of(more));
        commands.add(command);
        nodes.add(null);
    }

    /**
     * Returns a port at which nothing listens, each port once. It is below the ports that the
     * system gives to outgoing connections. Otherwise some connection could take the port before
     * the node listens there.
     */
    private static int freePort() throws IOException {
        for (int attempt = 0; attempt < 100; attempt++) {
            int port = 20_000 + ThreadLocalRandom.current().nextInt(12_000);
            try (var listener = new ServerSocket(port, 1, InetAddress.getByName("127.0.0.1"))) {
                if (PORTS.add(listener.getLocalPort())) {
                    return port;
                }
            } catch (IOException taken) {
                continue;
            }
        }
        throw new IOException("no free port between 20000 and 32000");
    }

    private void begin() throws Exception {
        boolean isReady = false;
        try {
            for (int at = 0; at < nodes.size(); at++) {
                start(at);
            }
            for (int at = 0; at < nodes.size(); at++) {
                awaitReady(at);
            }
            isReady = true;
        } finally {
            if (!isReady) {
                close();
            }
        }
    }

    void start(int at) throws IOException {
        File log = directory.resolve("node" + (at + 1) + ".log").toFile();
        ProcessBuilder node = new ProcessBuilder(commands.get(at));
        // Without a certificate, a node writes one into its working directory.
        node.directory(directory.toFile());
        node.redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.appendTo(log));
        nodes.set(at, node.start());
    }

    void awaitReady(int at) throws Exception {
        var request =
                HttpRequest.newBuilder(URI.create("http://" + addresses.get(at) + "/ready"))
                        .timeout(Duration.ofSeconds(1))
                        .build();
        HttpClient http = HttpClient.newHttpClient();
        Deadline deadline = Deadline.after(START);
        while (!deadline.isOver()) {
            try {
                if (http.send(request, HttpResponse.BodyHandlers.discarding()).statusCode() == 200) {
                    return;
                }
            } catch (IOException notYet) {
                // It starts.
            }
            Thread.sleep(20);
        }
        throw new IllegalStateException(addresses.get(at) + " is not ready");
    }

    String[] addresses() {
        return addresses.toArray(String[]::new);
    }

    /** Returns the number of the node at an address, from 0. */
    int number(String address) {
        return addresses.indexOf(address);
    }

    void stop(int at, boolean isKilled) {
        Process node = nodes.set(at, null);
        if (node != null) {
            if (isKilled) {
                node.destroyForcibly();
            } else {
                node.destroy();
            }
            node.onExit().orTimeout(30, TimeUnit.SECONDS).join();
        }
    }

    @Override
    public void close() {
        for (int at = 0; at < nodes.size(); at++) {
            stop(at, true);
        }
    }
}
