package io.github.epicepoch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.SocketTimeoutException;
import java.time.Duration;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Tests of the default dialer. */
class TcpDialerTest extends Scene {
    @Test
    void anImpossiblePortOpensNoSocket() {
        int dials = 500;
        long before = openFiles();
        for (int dial = 0; dial < dials; dial++) {
            assertThrows(
                    IllegalArgumentException.class,
                    () -> TcpDialer.dial("127.0.0.1", 65_536, LONG));
        }
        long more = openFiles() - before;
        // The JVM may open a few files meanwhile.
        assertTrue(more < dials / 10, more + " files are still open");
    }

    @Test
    void aTimeoutOfManyDaysConnects() throws Exception {
        try (var listener = new ServerSocket(0, 1, InetAddress.getByName("127.0.0.1"))) {
            TcpDialer.dial("127.0.0.1", listener.getLocalPort(), Duration.ofDays(30)).close();
        }
    }

    @Test
    void aDeadlineThatIsOverIsNoUnknownHost() {
        assertThrows(
                SocketTimeoutException.class,
                () -> TcpDialer.dial("127.0.0.1", 1, Duration.ZERO));
    }

    /** A node may name any text as the leader's address. */
    @Test
    void aHintToAnImpossiblePortIsPassedOver() throws Exception {
        ScriptedNode leader = leader(new ScriptedNode.Oracle());
        ScriptedNode follower = node(2);
        follower.onHello =
                () -> {
                    var welcome = follower.welcome(null);
                    welcome.leader = new Member(1, "127.0.0.1:70000");
                    return welcome.toBytes();
                };
        connect(follower, leader).timestamp();
    }

    /** Only names have a time limit for their lookup, because literals need none. */
    @ParameterizedTest
    @CsvSource({
        "127.0.0.1,true",
        "0.0.0.0,true",
        "255.249.199.10,true",
        "::1,true",
        "fe80::1%1,true",
        "10-0-0-1,false",
        "256.0.0.1,false",
        "1.2.3,false",
        "1.2.3.4.5,false",
        "1.2.3.4.,false",
        "12,false",
        "localhost,false"
    })
    void aNameOfDigitsIsNoLiteral(String host, boolean isLiteral) {
        assertEquals(isLiteral, TcpDialer.isLiteral(host));
    }
}
