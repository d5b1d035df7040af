package io.github.epicepoch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.epicepoch.ScriptedNode.Oracle;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Supplier;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Tests of which node the client asks, and when: hints, lost leaders, refusals, pauses, limits. */
class LeaderTest extends Scene {
    private static final Duration HALF_SECOND = Duration.ofMillis(500);

    @Test
    void aFollowerNamesTheLeaderAndTheClientGoesThere() throws Exception {
        ScriptedNode leader = leader(new Oracle());
        ScriptedNode follower = node(2);
        follower.onHello = () -> follower.welcome(leader).toBytes();
        EpicEpochClient client = connect(follower);
        assertEquals(5, client.timestamps(5).count());
        assertEquals(0, follower.asked.get());
        assertEquals(Optional.of(leader.address()), client.leader());
        assertEquals(Optional.of(ScriptedNode.CLUSTER), client.cluster());
    }

    @Test
    void aLostAnswerIsAskedForAgain() throws Exception {
        Oracle oracle = new Oracle();
        ScriptedNode leader = node(1);
        leader.script =
                (to, id, count) -> {
                    Timestamp first = oracle.take(count);
                    if (leader.asked.get() == 1) {
                        to.close();
                    } else {
                        to.answer(id, count, first);
                    }
                };
        assertEquals(new Timestamp(1, 2), connect(leader).timestamp());
    }

    @Test
    void aLeaderThatGoesSilentIsReplacedWithinTheCall() throws Exception {
        Oracle oracle = new Oracle();
        AtomicBoolean moved = new AtomicBoolean();
        ScriptedNode next = node(2);
        ScriptedNode old = node(1);
        old.script =
                (to, id, count) -> {
                    if (!moved.get()) {
                        oracle.asked(to, id, count);
                    }
                };
        old.onHello =
                () -> {
                    var welcome = old.welcome(old);
                    welcome.members.add(new Member(2, next.address()));
                    return moved.get() ? null : welcome.toBytes();
                };
        next.script = oracle;
        next.onHello = () -> next.welcome(moved.get() ? next : old).toBytes();
        EpicEpochClient client = connect(builder(old).attemptTimeout(Duration.ofMillis(50)));
        Timestamp before = client.timestamp();
        moved.set(true);
        assertTrue(client.timestamp().isAfter(before));
        Optional<String> there = Optional.of(next.address());
        await("the client moves", () -> client.leader().equals(there));
    }

    @Test
    void aNoticeOfANewLeaderIsFollowed() throws Exception {
        ScriptedNode next = node(2);
        next.script = new Oracle();
        ScriptedNode old =
                leader(
                        (to, id, count) ->
                                to.say(ScriptedNode.leaderNotice(2, next.address())));
        EpicEpochClient client = connect(old);
        client.timestamp();
        assertEquals(Optional.of(next.address()), client.leader());
    }

    @Test
    void answersThatGoBackwardsAreRefusedLoudly() throws Exception {
        ScriptedNode leader = node(1);
        leader.script =
                (to, id, count) -> to.answer(id, count, new Timestamp(10 - leader.asked.get(), 0));
        EpicEpochClient client = connect(leader);
        client.timestamp();
        var error = assertThrows(WentBackwardsException.class, client::timestamp);
        // The error has the stack of the call. Its cause has the stack of the place that noticed
        // the wrong answer.
        assertTrue(
                Arrays.stream(error.getStackTrace())
                        .anyMatch(at -> at.getClassName().equals(LeaderTest.class.getName())));
        assertInstanceOf(WentBackwardsException.class, error.getCause());
    }

    @Test
    void anotherClusterIsRefused() throws Exception {
        ScriptedNode leader = leader(new Oracle());
        EpicEpochClient client = connect(leader);
        client.timestamp();
        leader.onHello =
                () -> {
                    var welcome = leader.welcome(leader);
                    welcome.cluster = new Cluster(ScriptedNode.CLUSTER.id(), 2);
                    return welcome.toBytes();
                };
        leader.hangUp();
        assertThrows(WrongClusterException.class, client::timestamp);
    }

    @Test
    void aServerOfAnotherProtocolIsNoOracle() throws Exception {
        try (ServerSocket other = new ServerSocket(0, 8, InetAddress.getByName("127.0.0.1"))) {
            ScriptedNode.daemon(
                    () -> {
                        try {
                            while (true) {
                                other.accept().getOutputStream().write("HTTP/1.1 400".getBytes());
                            }
                        } catch (IOException closed) {
                            // The test is over.
                        }
                    });
            String address = "127.0.0.1:" + other.getLocalPort();
            ClientBuilder builder = EpicEpochClient.builder(address).timeout(LONG);
            assertThrows(ProtocolException.class, builder::connect);
        }
    }

    @Test
    void membersAreKeptFresh() throws Exception {
        ScriptedNode leader = leader(new Oracle());
        EpicEpochClient client =
                connect(
                        builder(leader)
                                .refreshInterval(Duration.ofMillis(100))
                                .attemptTimeout(HALF_SECOND));
        leader.onHello =
                () -> {
                    var welcome = leader.welcome(leader);
                    welcome.members.add(new Member(9, "new.example:8080"));
                    return welcome.toBytes();
                };
        List<String> both = List.of(leader.address(), "new.example:8080");
        await("the members are read", () -> client.members().equals(both));
    }

    @Test
    void aLeaderIsPingedAlsoIfTheMembersAreReadOften() throws Exception {
        ScriptedNode leader = leader(new Oracle());
        leader.onHello =
                () -> {
                    var welcome = leader.welcome(leader);
                    welcome.idleMillis = 300;
                    return welcome.toBytes();
                };
        connect(
                builder(leader)
                        .refreshInterval(Duration.ofMillis(100))
                        .attemptTimeout(HALF_SECOND));
        await("the leader is pinged", () -> leader.pings.get() > 0);
    }

    @Test
    void aLeaderIsPingedAlsoIfAnAttemptMayTakeLong() throws Exception {
        ScriptedNode leader = leader(new Oracle());
        leader.onHello =
                () -> {
                    var welcome = leader.welcome(leader);
                    welcome.idleMillis = 300;
                    return welcome.toBytes();
                };
        connect(builder(leader).attemptTimeout(Duration.ofMinutes(5)));
        await("the leader is pinged", () -> leader.pings.get() > 0);
    }

    /** The notice behind the other frame has come already. It comes too late all the same. */
    @Test
    void aNodeWithoutALeaderIsHeardNoLongerThanUntilTheDeadline() throws Exception {
        ScriptedNode node = node(1);
        node.onHello =
                () -> {
                    byte[] notice = ScriptedNode.leaderNotice(1, node.address());
                    byte[] welcome = node.welcome(null).toBytes();
                    return ByteBuffer.allocate(welcome.length + Frame.HEAD_BYTES + notice.length)
                            .put(welcome)
                            .put(Frame.pong(7))
                            .put(notice)
                            .array();
                };
        Options options = builder(node).options();
        Connection connection =
                Connection.open(options, node.address(), null, Deadline.after(LONG));
        closing(() -> connection.leave("the test is over"));
        assertNull(connection.awaitLeader(Deadline.after(0)));
    }

    @Test
    void anOverloadedLeaderHasAPauseFromAllCallersAndIsNotLeft() throws Exception {
        ScriptedNode leader = node(1);
        Oracle oracle = new Oracle();
        CompletableFuture<Runnable> refuse = new CompletableFuture<>();
        CompletableFuture<Long> again = new CompletableFuture<>();
        leader.script =
                (to, id, count) -> {
                    if (leader.asked.get() == 1) {
                        refuse.complete(() -> to.refuse(id, 4, ""));
                        return;
                    }
                    again.complete(System.nanoTime());
                    oracle.asked(to, id, count);
                };
        EpicEpochClient client = connect(builder(leader).inFlight(1));
        var first = client.timestampAsync();
        Runnable refused = refuse.get();
        var second = client.timestampAsync();
        long began = System.nanoTime();
        refused.run();
        // The pause is random, between half of BACKOFF_MAX and all of it.
        assertTrue(again.get() - began >= Directory.BACKOFF_MAX / 2);
        first.get();
        second.get();
        assertEquals(1, leader.met.get());
    }

    @ParameterizedTest
    @ValueSource(ints = {2, 4, 66})
    void aRefusalOfNothingBreaksTheProtocol(int code) throws Exception {
        ScriptedNode leader = leader((to, id, count) -> to.refuse(id + 1, code, ""));
        assertThrows(ProtocolException.class, connect(leader)::timestamp);
    }

    @ParameterizedTest
    @ValueSource(ints = {7, 13, 18, 64, 65, 66})
    void aRefusalThatNoRetryHealsEndsTheCallAtOnce(int code) throws Exception {
        ScriptedNode leader = leader((to, id, count) -> to.refuse(id, code, "no"));
        EpicEpochClient client = connect(leader);
        var error = assertThrows(EpicEpochException.class, client::timestamp);
        if (error instanceof RefusedException refused) {
            assertEquals(code, refused.number());
        } else {
            assertEquals(64, code);
            assertInstanceOf(WrongClusterException.class, error);
        }
        assertEquals(1, leader.asked.get());
    }

    @Test
    void aLeaderThatRefusesEverythingIsNotAskedWithoutPause() throws Exception {
        ScriptedNode leader = leader((to, id, count) -> to.refuse(id, 12, ""));
        EpicEpochClient client = connect(leader);
        assertThrows(DeadlineExceededException.class, () -> client.timestamp(HALF_SECOND));
        // The pause between attempts grows from 1 ms to 50 ms, which allows about 25 attempts in
        // half a second. The limit is more than twice that.
        assertTrue(leader.met.get() <= 60, leader.met + " connections");
    }

    @Test
    void twoNodesThatNameEachOtherAreNotAskedWithoutPause() throws Exception {
        ScriptedNode one = node(1);
        ScriptedNode two = node(2);
        one.script = (to, id, count) -> to.refuse(id, 1, two.address());
        two.script = (to, id, count) -> to.refuse(id, 1, one.address());
        EpicEpochClient client = connect(one, two);
        assertThrows(DeadlineExceededException.class, () -> client.timestamp(HALF_SECOND));
        int met = one.met.get() + two.met.get();
        assertTrue(met <= 80, met + " connections");
    }

    @Test
    void anIdleClientSeldomLooksForALeader() throws Exception {
        ScriptedNode leader = leader(new Oracle());
        AtomicBoolean down = new AtomicBoolean();
        AtomicInteger dials = new AtomicInteger();
        Dialer dialer =
                (host, port, timeout) -> {
                    dials.incrementAndGet();
                    if (down.get()) {
                        throw new IOException("down");
                    }
                    return Dialer.tcp().dial(host, port, timeout);
                };
        EpicEpochClient client = connect(builder(leader).dialer(dialer));
        client.timestamp();
        // A call may return before its answer is entered in the directory. When the second call
        // returns, the first answer is entered for certain.
        client.timestamp();
        down.set(true);
        // Pretend that 20 attempts have failed in a row. The next pauses without callers then take
        // 2.5 to 5 seconds.
        for (int attempt = 0; attempt < 20; attempt++) {
            client.directory.backoff();
        }
        dials.set(0);
        leader.hangUp();
        Thread.sleep(1000);
        assertTrue(1 <= dials.get() && dials.get() <= 4, dials + " attempts");
        // A new call does not wait for the end of a long pause.
        down.set(false);
        long began = System.nanoTime();
        client.timestamp();
        long took = System.nanoTime() - began;
        assertTrue(took < Directory.IDLE_BACKOFF_MAX / 4, took + " ns");
    }

    @Test
    void theLimitsOfAWelcomeAreKept() throws Exception {
        Oracle oracle = new Oracle();
        AtomicInteger under = new AtomicInteger();
        AtomicInteger deepest = new AtomicInteger();
        AtomicInteger largest = new AtomicInteger();
        BlockingQueue<Runnable> answers = new LinkedBlockingQueue<>();
        ScriptedNode leader =
                leader(
                        (to, id, count) -> {
                            largest.accumulateAndGet((int) count, Math::max);
                            deepest.accumulateAndGet(under.incrementAndGet(), Math::max);
                            answers.add(
                                    () -> {
                                        under.decrementAndGet();
                                        oracle.asked(to, id, count);
                                    });
                        });
        leader.onHello =
                () -> {
                    var welcome = leader.welcome(leader);
                    welcome.countMax = 10;
                    welcome.inFlightMax = 2;
                    return welcome.toBytes();
                };
        EpicEpochClient client = connect(builder(leader).inFlight(8));
        assertThrows(CountException.class, () -> client.timestamps(11));
        var calls = new ConcurrentLinkedQueue<CompletableFuture<TimestampRange>>();
        for (int call = 0; call < 12; call++) {
            calls.add(client.timestampsAsync(4));
        }
        while (calls.stream().anyMatch(call -> !call.isDone())) {
            Runnable answer = answers.poll();
            if (answer != null) {
                answer.run();
            } else {
                Thread.sleep(1);
            }
        }
        calls.forEach(call -> assertEquals(4, call.join().count()));
        assertEquals(8, largest.get());
        assertEquals(2, deepest.get());
    }

    @Test
    void callersWhoMetWithoutALeaderPartIfTheNextOneGivesLess() throws Exception {
        AtomicInteger limit = new AtomicInteger(1000);
        AtomicInteger largest = new AtomicInteger();
        AtomicBoolean down = new AtomicBoolean();
        Oracle oracle = new Oracle();
        ScriptedNode leader =
                leader(
                        (to, id, count) -> {
                            largest.accumulateAndGet((int) count, Math::max);
                            oracle.asked(to, id, count);
                        });
        leader.onHello =
                () -> {
                    var welcome = leader.welcome(leader);
                    welcome.countMax = limit.get();
                    return welcome.toBytes();
                };
        Dialer dialer =
                (host, port, timeout) -> {
                    while (down.get()) {
                        Thread.onSpinWait();
                    }
                    return Dialer.tcp().dial(host, port, timeout);
                };
        EpicEpochClient client = connect(builder(leader).dialer(dialer));
        down.set(true);
        limit.set(10);
        leader.hangUp();
        await("the leader is lost", () -> client.leader().isEmpty());
        List<CompletableFuture<TimestampRange>> calls =
                Stream.generate(() -> client.timestampsAsync(4)).limit(5).toList();
        down.set(false);
        for (var call : calls) {
            assertEquals(4, call.get().count());
        }
        assertTrue(largest.get() <= 10, "a request for " + largest);
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aLeaderWithoutAClusterIsNotAsked(boolean byNotice) throws Exception {
        ScriptedNode leader = leader(new Oracle());
        EpicEpochClient client = connect(leader);
        client.timestamp();
        leader.onHello =
                () -> {
                    var welcome = leader.welcome(byNotice ? null : leader);
                    welcome.cluster = null;
                    byte[] bytes = welcome.toBytes();
                    byte[] notice = ScriptedNode.leaderNotice(1, leader.address());
                    byte[] both = Arrays.copyOf(bytes, bytes.length + notice.length);
                    System.arraycopy(notice, 0, both, bytes.length, notice.length);
                    return byNotice ? both : bytes;
                };
        int asked = leader.asked.get();
        leader.hangUp();
        // When the second attempt begins, the first one has failed, and the call hears why.
        await("it is tried again", () -> leader.met.get() > 2);
        var error =
                assertThrows(
                        DeadlineExceededException.class, () -> client.timestamp(HALF_SECOND));
        var why = assertInstanceOf(RefusedException.class, error.getCause());
        assertEquals(ErrorCode.NOT_READY, why.code());
        assertEquals(asked, leader.asked.get());
        leader.onHello = () -> leader.welcome(leader).toBytes();
        client.timestamp();
    }

    /** The node sends pings without end and reads nothing. So the client's pongs pile up. */
    @Test
    void aNodeThatDoesNotReadIsLeftAndKeepsNoCallerPastItsDeadline() throws Exception {
        ScriptedNode leader = node(1);
        AtomicBoolean floods = new AtomicBoolean(true);
        leader.script =
                (to, id, count) -> {
                    byte[] pings = new byte[256 * Frame.HEAD_BYTES];
                    for (int at = 0; at < pings.length; at += Frame.HEAD_BYTES) {
                        System.arraycopy(Frame.ping(7), 0, pings, at, Frame.HEAD_BYTES);
                    }
                    while (floods.get() && !to.socket.isClosed()) {
                        to.say(pings);
                    }
                };
        closing(() -> floods.set(false));
        Dialer narrow =
                (host, port, timeout) -> {
                    SocketChannel channel = Dialer.tcp().dial(host, port, timeout);
                    channel.socket().setSendBufferSize(4096);
                    return channel;
                };
        // The attempt timeout is long. So the client can leave the node in time only because too
        // many bytes wait for the node.
        ClientBuilder patient = builder(leader).attemptTimeout(Duration.ofMinutes(1));
        EpicEpochClient client = connect(patient.dialer(narrow));
        assertThrows(
                DeadlineExceededException.class, () -> client.timestamp(Duration.ofMillis(100)));
        await("the client leaves the node", () -> leader.met.get() > 1);
    }

    private static Stream<Throwable> whatHooksThrow() {
        return Stream.of(
                new IllegalStateException("a hook"),
                new AssertionError("a hook"),
                new IOException("a hook"));
    }

    @ParameterizedTest
    @MethodSource("whatHooksThrow")
    void hooksThatFailHarmNothing(Throwable thrown) throws Exception {
        ConcurrentLinkedQueue<String> seen = new ConcurrentLinkedQueue<>();
        Observer observer =
                new Observer() {
                    @Override
                    public void answered(int callers, long timestamps, Duration latency) {
                        seen.add("answered " + callers + " with " + timestamps);
                        Scene.<RuntimeException>throwing(thrown);
                    }

                    @Override
                    public void failedAttempt(EpicEpochException why) {
                        seen.add("failedAttempt " + why.getClass().getSimpleName());
                        Scene.<RuntimeException>throwing(thrown);
                    }

                    @Override
                    public void connected(String address) {
                        seen.add("connected");
                        Scene.<RuntimeException>throwing(thrown);
                    }
                };
        ScriptedNode leader = leader(new Oracle());
        EpicEpochClient client = connect(builder(leader).observer(observer));
        client.timestamps(3);
        leader.hangUp();
        await("the loss is seen", () -> seen.contains("failedAttempt UnreachableException"));
        client.timestamp();
        assertEquals("connected", seen.peek());
        assertTrue(seen.contains("answered 1 with 3"), seen.toString());
    }

    /** The hook waits until the call has ended. The call must not wait for the hook. */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aCallEndsBeforeTheHooksOfItsAnswer(boolean isRefused) throws Exception {
        CountDownLatch ended = new CountDownLatch(1);
        CompletableFuture<Boolean> inTime = new CompletableFuture<>();
        Observer observer =
                new Observer() {
                    @Override
                    public void answered(int callers, long timestamps, Duration latency) {
                        awaitCall();
                    }

                    @Override
                    public void failedAttempt(EpicEpochException why) {
                        awaitCall();
                    }

                    private void awaitCall() {
                        try {
                            inTime.complete(ended.await(LONG.toSeconds(), TimeUnit.SECONDS));
                        } catch (InterruptedException closed) {
                            inTime.complete(false);
                        }
                    }
                };
        // This refusal also closes the connection.
        byte[] refusal = ScriptedNode.frame(Frame.ERROR, 1, 66, 0, new byte[0]);
        ScriptedNode leader =
                leader(isRefused ? (to, id, count) -> to.say(refusal) : new Oracle());
        EpicEpochClient client =
                connect(builder(leader).observer(observer).timeout(LONG.multipliedBy(2)));
        try {
            client.timestamp();
            assertFalse(isRefused);
        } catch (RefusedException refused) {
            assertTrue(isRefused);
        }
        ended.countDown();
        assertTrue(inTime.get());
    }

    /** A thread of the client that ends must not leave calls that nobody ends. */
    @ParameterizedTest
    @MethodSource("unexpected")
    void aDialerThatThrowsWhatItMayNotClosesTheClient(Throwable thrown) throws Exception {
        AtomicBoolean fails = new AtomicBoolean();
        Dialer dialer =
                (host, port, timeout) -> {
                    if (fails.get()) {
                        Scene.<RuntimeException>throwing(thrown);
                    }
                    return Dialer.tcp().dial(host, port, timeout);
                };
        ScriptedNode leader = node(1);
        leader.script = (to, id, count) -> leader.hangUp();
        EpicEpochClient client = connect(builder(leader).dialer(dialer));
        fails.set(true);
        // The second call comes after the end. It must hear the reason, too.
        for (int call = 0; call < 2; call++) {
            var error = assertThrows(ClosedException.class, client::timestamp);
            assertTrue(error.getMessage().contains(thrown.toString()), error.getMessage());
        }
        await("its other threads are told to end", client.threads::isClosed);
        ClientBuilder another = builder(leader).dialer(dialer);
        var error = assertThrows(ClosedException.class, another::connect);
        assertTrue(error.getMessage().contains(thrown.toString()), error.getMessage());
    }

    @Test
    void aHookThatInterruptsItsThreadClosesTheClient() throws Exception {
        Observer observer =
                new Observer() {
                    @Override
                    public void connected(String address) {
                        Thread.currentThread().interrupt();
                    }
                };
        EpicEpochClient client = connect(builder(leader(new Oracle())).observer(observer));
        // The connection may bring some answers before the client notices the interrupt.
        var error =
                assertThrows(
                        ClosedException.class,
                        () -> {
                            while (true) {
                                client.timestamp();
                            }
                        });
        assertTrue(error.getMessage().contains("interrupted"), error.getMessage());
    }

    private static Stream<Throwable> unexpected() {
        return Stream.of(new AssertionError("a dialer"), new Exception("a dialer"));
    }

    @Test
    void eachConnectionShowsTheTokenOfThatMoment() throws Exception {
        ScriptedNode leader = leader(new Oracle());
        AtomicInteger turn = new AtomicInteger();
        List<String> tokens = List.of("first", "second");
        EpicEpochClient client =
                connect(builder(leader).tokenSource(() -> tokens.get(turn.get())));
        for (Cluster known : Arrays.asList(null, ScriptedNode.CLUSTER)) {
            client.timestamp();
            String token = tokens.get(turn.get());
            long features = Frame.FEATURE_LATEST | Frame.FEATURE_DIRECT;
            Hello hello = new Hello(features, "", known, Connection.AGENT, token, null, null);
            assertArrayEquals(hello.toBytes(), leader.hellos.take());
            turn.set(1);
            leader.hangUp();
        }
    }

    /** A node closes the connections of a client whose token it does not accept any more. */
    @Test
    void aRevokedTokenIsReplacedWithinTheCall() throws Exception {
        AtomicReference<String> token = new AtomicReference<>("old");
        AtomicBoolean revokes = new AtomicBoolean(true);
        int code = ErrorCode.UNAUTHORIZED.number();
        byte[] refusal = ScriptedNode.frame(Frame.ERROR, 1, code, 0, new byte[0]);
        Oracle oracle = new Oracle();
        ScriptedNode leader =
                leader(
                        (to, id, count) -> {
                            if (revokes.getAndSet(false)) {
                                token.set("new");
                                to.say(refusal);
                            } else {
                                oracle.asked(to, id, count);
                            }
                        });
        ScriptedNode other = node(2);
        BlockingQueue<EpicEpochException> failures = new LinkedBlockingQueue<>();
        Observer observer =
                new Observer() {
                    @Override
                    public void failedAttempt(EpicEpochException why) {
                        failures.add(why);
                    }
                };
        EpicEpochClient client =
                connect(builder(leader, other).tokenSource(token::get).observer(observer));
        client.timestamp();
        var why = assertInstanceOf(UnreachableException.class, failures.take());
        assertInstanceOf(RefusedException.class, why.getCause());
        for (String sent : List.of("old", "new")) {
            String hello = new String(leader.hellos.take(), StandardCharsets.ISO_8859_1);
            assertTrue(hello.contains(sent), hello);
        }
        // The leader has not failed, so the client asks no other node who leads.
        assertEquals(0, other.met.get());
        // If there is no better token, the call ends at once.
        leader.onHello = () -> refusal;
        revokes.set(true);
        var refused = assertThrows(RefusedException.class, client::timestamp);
        assertEquals(ErrorCode.UNAUTHORIZED, refused.code());
    }

    private static Stream<Arguments> sourcesWithoutAToken() {
        AssertionError error = new AssertionError("no vault");
        IOException checked = new IOException("no vault");
        return Stream.of(
                Arguments.of((Supplier<String>) () -> "no token", "no valid token"),
                Arguments.of((Supplier<String>) () -> failing(error), "no vault"),
                Arguments.of((Supplier<String>) () -> failing(checked), "no vault"));
    }

    private static String failing(Throwable error) {
        Scene.<RuntimeException>throwing(error);
        return "";
    }

    @ParameterizedTest
    @MethodSource("sourcesWithoutAToken")
    void aClientWithoutAValidTokenTriesAgain(Supplier<String> bad, String why) throws Exception {
        ScriptedNode leader = leader(new Oracle());
        AtomicReference<Supplier<String>> source = new AtomicReference<>(bad);
        AtomicInteger asked = new AtomicInteger();
        Supplier<String> counted =
                () -> {
                    asked.incrementAndGet();
                    return source.get().get();
                };
        ClientBuilder builder =
                builder(leader).tokenSource(counted).timeout(Duration.ofSeconds(2));
        var never = assertThrows(DeadlineExceededException.class, builder::connect);
        assertTrue(never.getMessage().contains(why), never.getMessage());
        source.set(() -> "good");
        EpicEpochClient client = connect(builder.timeout(LONG));
        client.timestamp();
        source.set(bad);
        int before = asked.get();
        leader.hangUp();
        // When the second attempt begins, the first one has failed, and the call hears why.
        await("it is tried again", () -> asked.get() >= before + 2);
        var late =
                assertThrows(
                        DeadlineExceededException.class, () -> client.timestamp(HALF_SECOND));
        assertInstanceOf(UnreachableException.class, late.getCause());
        assertTrue(late.getMessage().contains(why), late.getMessage());
        source.set(() -> "better");
        client.timestamp();
    }

    @Test
    void settingsThatCannotBeMeantAreRefused() {
        ClientBuilder builder = EpicEpochClient.builder("127.0.0.1:1", "[::1]:1", "db1:8080");
        for (Runnable setting :
                List.<Runnable>of(
                        () -> EpicEpochClient.builder(),
                        () -> EpicEpochClient.builder("localhost"),
                        () -> EpicEpochClient.builder("::1:80"),
                        () -> EpicEpochClient.builder("db1:8080:"),
                        () -> EpicEpochClient.builder("db1:0"),
                        () -> EpicEpochClient.builder("db1:65536"),
                        () -> builder.timeout(Duration.ZERO),
                        () -> builder.timeout(Duration.ofDays(367)),
                        () -> builder.attemptTimeout(Duration.ofMillis(9)),
                        () -> builder.refreshInterval(Duration.ofMillis(99)),
                        () -> builder.inFlight(0),
                        () -> builder.inFlight(257),
                        () -> builder.hedgeAfter(Duration.ZERO),
                        () -> builder.clusterName(""),
                        () -> builder.clusterName("é".repeat(33)),
                        () -> builder.token(""),
                        () -> builder.token("a b"),
                        () -> builder.token("x".repeat(257)))) {
            assertThrows(IllegalArgumentException.class, setting::run);
        }
    }
}
