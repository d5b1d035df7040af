package io.github.epicepoch;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketTimeoutException;
import java.net.UnknownHostException;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.regex.Pattern;

/** Connects over TCP. The time limit holds for the lookup of the name, too. */
final class TcpDialer {
    /**
     * The lookups in progress, by name. Java cannot cancel a lookup. So there is at most one for
     * each name, and further connections wait for it.
     */
    private static final ConcurrentHashMap<String, FutureTask<InetAddress[]>> LOOKUPS =
            new ConcurrentHashMap<>();

    private static final String BYTE = "(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])";

    private static final Pattern IPV4 = Pattern.compile(BYTE + "(\\." + BYTE + "){3}");

    private TcpDialer() {}

    static SocketChannel dial(String host, int port, Duration timeout) throws IOException {
        Deadline deadline = Deadline.after(timeout);
        InetAddress[] all = isLiteral(host) ? InetAddress.getAllByName(host) : look(host, deadline);
        IOException last = new SocketTimeoutException("no time was left to connect to " + host);
        for (int at = 0; at < all.length && !deadline.isOver(); at++) {
            // Each address gets an equal part of the time that is left.
            long millis = Math.max(1, deadline.leftMillis() / (all.length - at));
            // A port above 65535 throws here, before there is a channel to close.
            InetSocketAddress address = new InetSocketAddress(all[at], port);
            SocketChannel channel = SocketChannel.open();
            try {
                channel.socket().connect(address, (int) Math.min(millis, Integer.MAX_VALUE));
                return channel;
            } catch (IOException error) {
                channel.close();
                last = error;
            }
        }
        throw last;
    }

    /**
     * Returns whether Java takes the host for an IP address, without a lookup. Java accepts no name
     * with a colon.
     */
    static boolean isLiteral(String host) {
        return host.indexOf(':') >= 0 || IPV4.matcher(host).matches();
    }

    private static InetAddress[] look(String host, Deadline deadline) throws IOException {
        FutureTask<InetAddress[]> lookup =
                LOOKUPS.computeIfAbsent(
                        host,
                        name -> {
                            var task = new FutureTask<>(() -> InetAddress.getAllByName(name));
                            Thread thread =
                                    new Thread(
                                            () -> {
                                                task.run();
                                                LOOKUPS.remove(name, task);
                                            },
                                            "epicepoch-lookup");
                            thread.setDaemon(true);
                            thread.start();
                            return task;
                        });
        try {
            return lookup.get(Math.max(0, deadline.left()), TimeUnit.NANOSECONDS);
        } catch (TimeoutException error) {
            throw new SocketTimeoutException("the lookup of " + host + " took too long");
        } catch (ExecutionException error) {
            if (error.getCause() instanceof UnknownHostException unknown) {
                throw unknown;
            }
            throw new IOException("the lookup of " + host + " failed", error.getCause());
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("the lookup of " + host + " was interrupted");
        }
    }
}
