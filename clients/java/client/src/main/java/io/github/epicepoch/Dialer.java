package io.github.epicepoch;

import java.io.IOException;
import java.nio.channels.SocketChannel;
import java.time.Duration;

/** Makes connections to nodes, for programs that need a proxy or a socket option. */
@FunctionalInterface
public interface Dialer {
    /**
     * Connects to a node. When the client is closed, it interrupts the thread that runs this
     * method.
     *
     * @param host a name or a literal address, without brackets
     * @param port the port
     * @param timeout how long the attempt may take, above 0
     * @return a connected channel in blocking mode
     * @throws IOException if the connection cannot be made in time
     */
    SocketChannel dial(String host, int port, Duration timeout) throws IOException;

    /**
     * Returns the default dialer. It uses TCP, and tries the addresses of the host one after
     * another.
     *
     * @return a dialer
     */
    static Dialer tcp() {
        return TcpDialer::dial;
    }
}
