package io.github.epicepoch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.epicepoch.ScriptedNode.Oracle;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicReference;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLServerSocket;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Tests of TLS, with self-signed certificates. */
class TlsTest extends Scene {
    private static final String PASSWORD = "changeit";

    @TempDir static Path directory;

    /**
     * Makes two self-signed certificates for 127.0.0.1 with their keys, called "one" and "other".
     * The files are NAME.p12, NAME.pem and NAME.key.
     */
    @BeforeAll
    static void makeCertificates() throws Exception {
        for (String name : List.of("one", "other")) {
            Path store = directory.resolve(name + ".p12");
            String keytool = Path.of(System.getProperty("java.home"), "bin", "keytool").toString();
            String command =
                    "-genkeypair -alias own -keyalg EC -dname CN=node -ext san=ip:127.0.0.1"
                            + " -validity 2 -storetype PKCS12 -storepass " + PASSWORD;
            List<String> words = new ArrayList<>(List.of(keytool));
            words.addAll(List.of(command.split(" ")));
            words.addAll(List.of("-keystore", store.toString()));
            ProcessBuilder made = new ProcessBuilder(words);
            made.redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD);
            assertEquals(0, made.start().waitFor());
            KeyStore keys = load(name);
            write(name + ".pem", "CERTIFICATE", keys.getCertificate("own").getEncoded());
            byte[] key = keys.getKey("own", PASSWORD.toCharArray()).getEncoded();
            write(name + ".key", "PRIVATE KEY", key);
        }
    }

    private static KeyStore load(String name) throws Exception {
        KeyStore store = KeyStore.getInstance("PKCS12");
        try (InputStream in = Files.newInputStream(directory.resolve(name + ".p12"))) {
            store.load(in, PASSWORD.toCharArray());
        }
        return store;
    }

    private static void write(String file, String type, byte[] bytes) throws Exception {
        String text = Base64.getMimeEncoder().encodeToString(bytes);
        String pem = "-----BEGIN " + type + "-----\n" + text + "\n-----END " + type + "-----\n";
        Files.writeString(directory.resolve(file), pem);
    }

    private static Path pem(String name) {
        return directory.resolve(name + ".pem");
    }

    private static Path key(String name) {
        return directory.resolve(name + ".key");
    }

    /**
     * Starts a node with certificate "one". If wantsClients is true, the node accepts only clients
     * with the same certificate.
     */
    private ScriptedNode secured(boolean wantsClients) throws Exception {
        KeyStore store = load("one");
        var keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        keys.init(store, PASSWORD.toCharArray());
        KeyStore trusted = KeyStore.getInstance("PKCS12");
        trusted.load(null, null);
        trusted.setCertificateEntry("client", store.getCertificate("own"));
        var trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(trusted);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys.getKeyManagers(), trust.getTrustManagers(), null);
        InetAddress loopback = InetAddress.getByName("127.0.0.1");
        var listener =
                (SSLServerSocket)
                        context.getServerSocketFactory().createServerSocket(0, 16, loopback);
        SSLParameters parameters = listener.getSSLParameters();
        parameters.setApplicationProtocols(new String[] {"epicepoch/1"});
        parameters.setNeedClientAuth(wantsClients);
        listener.setSSLParameters(parameters);
        ScriptedNode node = closing(new ScriptedNode(1, listener));
        node.script = new Oracle();
        return node;
    }

    /** Tries to connect, which must fail, and returns the reason. */
    private static String refusal(ClientBuilder builder) {
        Options options = builder.options();
        String address = options.addresses().get(0);
        return assertThrows(
                        UnreachableException.class,
                        () -> Connection.open(options, address, null, Deadline.after(LONG)))
                .getMessage();
    }

    @Test
    void aTrustedNodeAnswersManyCallsAtOnce() throws Exception {
        ScriptedNode leader = secured(false);
        EpicEpochClient client = connect(builder(leader).tls(Tls.trusting(pem("one"))));
        List<CompletableFuture<Integer>> callers = new ArrayList<>();
        for (int caller = 0; caller < 8; caller++) {
            callers.add(
                    begin(
                            () -> {
                                Timestamp last = client.timestamp();
                                for (int call = 0; call < 500; call++) {
                                    Timestamp next = client.timestamp();
                                    assertTrue(next.isAfter(last));
                                    last = next;
                                }
                                return 500;
                            }));
        }
        for (var caller : callers) {
            assertEquals(500, caller.get());
        }
        assertEquals(1, leader.met.get());
    }

    @Test
    void aNodeThatIsNotTrustedOrHasAnotherNameIsRefused() throws Exception {
        ScriptedNode leader = secured(false);
        String foreign = refusal(builder(leader).tls(Tls.trusting(pem("other"))));
        assertTrue(foreign.contains("PKIX"), foreign);
        String named = leader.address().replace("127.0.0.1", "localhost");
        Tls trusting = Tls.trusting(pem("one"));
        String another = refusal(EpicEpochClient.builder(named).tls(trusting));
        assertTrue(another.contains("localhost"), another);
        String plain = assertThrows(ProtocolException.class, builder(leader)::connect).getMessage();
        String advice = "this port speaks TLS; this client speaks plain text: set ClientBuilder.tls";
        assertTrue(plain.contains(advice), plain);
        assertEquals(0, leader.asked.get());
    }

    @Test
    void aPortThatDoesNotSpeakTlsIsCalledThat() throws Exception {
        try (var listener = new ServerSocket(0, 16, InetAddress.getByName("127.0.0.1"))) {
            ScriptedNode.daemon(() -> answerWithHttp(listener));
            String address = "127.0.0.1:" + listener.getLocalPort();
            ClientBuilder builder = EpicEpochClient.builder(address);
            String said = refusal(builder.tls(Tls.trusting(pem("one"))));
            assertTrue(said.contains("this port does not speak TLS: leave"), said);
        }
    }

    /** Answers as a node without TLS answers the beginning of a TLS handshake. */
    private static void answerWithHttp(ServerSocket listener) {
        try (Socket socket = listener.accept()) {
            socket.getInputStream().read(new byte[2048]);
            byte[] answer = "HTTP/1.1 400 Bad Request\r\n\r\n".getBytes(StandardCharsets.US_ASCII);
            socket.getOutputStream().write(answer);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    @Test
    void aNodeThatWantsACertificateGetsOne() throws Exception {
        ScriptedNode leader = secured(true);
        Tls trusting = Tls.trusting(pem("one"));
        Tls own = trusting.showing(pem("one"), key("one"));
        connect(builder(leader).tls(own)).timestamp();
        refusal(builder(leader).tls(trusting));
        refusal(builder(leader).tls(trusting.showing(pem("other"), key("other"))));
    }

    @Test
    void filesAreReadAgainBeforeEachConnectionAndBadOnesHarmNothing() throws Exception {
        ScriptedNode leader = secured(false);
        Path current = directory.resolve("current.pem");
        Files.copy(pem("one"), current);
        EpicEpochClient client = connect(builder(leader).tls(Tls.trusting(current)));
        client.timestamp();
        Files.writeString(current, "half a certificate");
        leader.hangUp();
        client.timestamp();
        Files.copy(pem("other"), current, StandardCopyOption.REPLACE_EXISTING);
        leader.hangUp();
        assertThrows(
                DeadlineExceededException.class,
                () -> client.timestamp(Duration.ofMillis(300)));
        Files.copy(pem("one"), current, StandardCopyOption.REPLACE_EXISTING);
        client.timestamp();
    }

    @Test
    void aProgramMayHaveContextsOfItsOwn() throws Exception {
        SSLContext trustsNobody = SSLContext.getInstance("TLS");
        trustsNobody.init(null, new TrustManager[0], null);
        refusal(builder(secured(false)).tls(Tls.of(() -> trustsNobody)));
        refusal(
                builder(secured(false))
                        .tls(
                                Tls.of(
                                        () -> {
                                            throw new IllegalStateException("no context");
                                        })));
    }

    /** A context of TLS 1.2 offers no cipher suite of TLS 1.3, so no handshake can begin. */
    @Test
    void aContextThatCannotBeUsedLeavesNothingOpen() throws Exception {
        SSLContext old = SSLContext.getInstance("TLSv1.2");
        old.init(null, null, null);
        Dialer nowhere = (host, port, timeout) -> SocketChannel.open();
        ClientBuilder builder =
                EpicEpochClient.builder("127.0.0.1:1").dialer(nowhere).tls(Tls.of(() -> old));
        int attempts = 200;
        long before = openFiles();
        for (int attempt = 0; attempt < attempts; attempt++) {
            refusal(builder);
        }
        long more = openFiles() - before;
        // The JVM may open a few files meanwhile.
        assertTrue(more < attempts / 10, more + " files are still open");
    }

    /**
     * TLS has to answer a KeyUpdate. Another thread may write this answer before the thread that
     * reads does. The frame behind the KeyUpdate must not wait for further bytes of the node.
     */
    @Test
    void aFrameBehindAKeyUpdateIsReadAtOnce() throws Exception {
        ScriptedNode leader = secured(false);
        CompletableFuture<Void> said = new CompletableFuture<>();
        leader.script =
                (to, id, count) -> {
                    try {
                        // With TLS 1.3, this sends a KeyUpdate.
                        ((SSLSocket) to.socket).startHandshake();
                    } catch (IOException error) {
                        throw new UncheckedIOException(error);
                    }
                    to.answer(id, count, new Timestamp(1, 1));
                    said.complete(null);
                };
        int port = Integer.parseInt(leader.address().split(":")[1]);
        AtomicReference<Wire> other = new AtomicReference<>();
        TlsRecords records =
                new TlsRecords(Tls.trusting(pem("one")).engine("127.0.0.1", port)) {
                    @Override
                    int read(SocketChannel from, ByteBuffer to) throws IOException {
                        int read = super.read(from, to);
                        if (wantsToWrite() && other.get() != null) {
                            other.getAndSet(null).write(new byte[0]);
                        }
                        return read;
                    }
                };
        SocketChannel channel = closing(Dialer.tcp().dial("127.0.0.1", port, LONG));
        Wire wire = new Wire(channel, records, LONG.toNanos());
        wire.handshake(Deadline.after(LONG));
        ByteBuffer request = ByteBuffer.allocate(Frame.HEAD_BYTES);
        Frame.putRequest(request, 1, 1);
        wire.write(request.array());
        said.get();
        other.set(wire);
        assertEquals(Frame.ANSWER, wire.next(Deadline.after(LONG)).kind());
        assertNull(other.get());
        wire.leave(Connection.LEFT);
    }

    @Test
    void filesThatCannotBeUsedAreSaidSo() throws Exception {
        write("bad.key", "PRIVATE KEY", new byte[] {1});
        Files.writeString(key("bad"), Files.readString(key("bad")).replace("AQ==", "AQ="));
        assertThrows(IOException.class, () -> Tls.trusting(pem("none")));
        assertThrows(GeneralSecurityException.class, () -> Tls.trusting(key("one")));
        assertThrows(
                GeneralSecurityException.class,
                () -> Tls.trusting(pem("one")).showing(pem("one"), pem("one")));
        assertThrows(
                GeneralSecurityException.class,
                () -> Tls.trusting(pem("one")).showing(pem("one"), key("bad")));
    }
}
