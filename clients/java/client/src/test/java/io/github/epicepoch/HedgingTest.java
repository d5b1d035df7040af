package io.github.epicepoch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.epicepoch.ScriptedNode.Oracle;
import io.github.epicepoch.ScriptedNode.Peer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Predicate;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * Tests of requests that are sent twice: the order of timestamps holds, and the range of the second
 * answer goes to no caller.
 */
class HedgingTest extends Scene {
    private static final Duration HEDGE = Duration.ofMillis(20);
    /**
     * The client leaves a silent node after this time. It is far longer than HEDGE, so only the
     * hedge can bring an answer in time.
     */
    private static final Duration ATTEMPT = Duration.ofSeconds(8);

    private EpicEpochClient hedging(ScriptedNode... nodes) throws InterruptedException {
        return connect(builder(nodes).hedgeAfter(HEDGE).attemptTimeout(ATTEMPT));
    }

    private ScheduledExecutorService timer() {
        ScheduledExecutorService timer = Executors.newScheduledThreadPool(1);
        closing(timer::shutdownNow);
        return timer;
    }

    @Test
    void aStalledConnectionCostsLittleMoreThanTheDelayOfTheHedge() throws Exception {
        Oracle oracle = new Oracle();
        AtomicBoolean stalled = new AtomicBoolean();
        ScriptedNode leader =
                leader(
                        (to, id, count) -> {
                            if (to.number > 1 || !stalled.get()) {
                                oracle.asked(to, id, count);
                            }
                        });
        EpicEpochClient client = hedging(leader);
        Timestamp last = client.timestamp();
        stalled.set(true);
        // This loop makes more calls than the number of requests that may be in flight.
        for (int call = 0; call < 12; call++) {
            long began = System.nanoTime();
            Timestamp next = client.timestamp();
            long took = System.nanoTime() - began;
            assertTrue(HEDGE.toNanos() <= took && took < ATTEMPT.toNanos() / 4, took + " ns");
            assertTrue(next.isAfter(last));
            last = next;
        }
        assertEquals(2, leader.met.get());
    }

    @Test
    void aSilentLeaderIsLeftForAnotherThatAnswersTheHedge() throws Exception {
        Oracle oracle = new Oracle();
        AtomicBoolean moved = new AtomicBoolean();
        ScriptedNode next = node(2);
        next.script = oracle;
        next.onHello = () -> next.welcome(next).toBytes();
        ScriptedNode old =
                leader(
                        (to, id, count) -> {
                            if (!moved.get()) {
                                oracle.asked(to, id, count);
                            }
                        });
        old.onHello =
                () -> {
                    var welcome = old.welcome(old);
                    welcome.members.add(new Member(2, next.address()));
                    return moved.get() ? null : welcome.toBytes();
                };
        EpicEpochClient client = hedging(old);
        Timestamp before = client.timestamp();
        moved.set(true);
        long began = System.nanoTime();
        assertTrue(client.timestamp().isAfter(before));
        assertTrue(System.nanoTime() - began < ATTEMPT.toNanos() / 2);
        for (int call = 0; call < 5; call++) {
            client.timestamp();
        }
        Optional<String> there = Optional.of(next.address());
        await("the client moves", () -> client.leader().equals(there));
    }

    private record Question(Peer to, long id, long count) {
        void answer(long index) {
            to.answer(id, count, new Timestamp(1, index));
        }
    }

    /** Keeps the requests that a node has read. The test answers them by hand. */
    private static final class Hand implements ScriptedNode.Asked {
        private final BlockingQueue<Question> kept = new LinkedBlockingQueue<>();

        @Override
        public void asked(Peer to, long id, long count) {
            kept.add(new Question(to, id, count));
        }

        Question take(Predicate<Question> wanted) throws InterruptedException {
            AtomicReference<Question> found = new AtomicReference<>();
            await(
                    "the client asks",
                    () -> {
                        kept.stream().filter(wanted).findFirst().ifPresent(found::set);
                        return found.get() != null;
                    });
            kept.remove(found.get());
            return found.get();
        }

        /**
         * Waits for the copy of a request: the request with the same id over another connection.
         */
        Question copyOf(Question asked) throws InterruptedException {
            return take(each -> each.to() != asked.to() && each.id() == asked.id());
        }

        /** Waits for the next request over a connection. */
        Question over(Peer connection) throws InterruptedException {
            return take(question -> question.to() == connection);
        }
    }

    private static void expect(long index, CompletableFuture<Timestamp> call) {
        assertEquals(new Timestamp(1, index), call.join());
    }

    /** Calls once, and answers with this index. Returns the request. */
    private static Question answered(EpicEpochClient client, Hand hand, long index)
            throws InterruptedException {
        var call = client.timestampAsync();
        Question asked = hand.take(any -> true);
        asked.answer(index);
        expect(index, call);
        return asked;
    }

    /**
     * A request and its copy both get an answer. Whichever comes second, its range goes to no
     * caller. Callers that wait meanwhile may get timestamps below that range.
     */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aBurntRangeGoesToNoCaller(boolean isCopyFirst) throws Exception {
        Hand hand = new Hand();
        ScriptedNode leader = leader(hand);
        EpicEpochClient client =
                connect(
                        builder(leader)
                                .hedgeAfter(HEDGE)
                                .attemptTimeout(Duration.ofMinutes(2))
                                .timeout(Duration.ofMinutes(1))
                                .inFlight(2));
        var warm = client.timestampAsync();
        Question first = hand.take(any -> true);
        Peer main = first.to();
        first.answer(1);
        expect(1, warm);

        var slow = client.timestampAsync();
        Question asked = hand.over(main);
        Question copy = hand.copyOf(asked);
        // Two more callers ask. The first one's request is in flight. The second one's request
        // waits, because of the limit of requests in flight.
        var sent = client.timestampAsync();
        Question next = hand.over(main);
        var open = client.timestampAsync();
        if (isCopyFirst) {
            copy.answer(10);
            expect(10, slow);
            // The client reads the answers of one connection in their order. So it has read this
            // second answer to the slow request when the next answers come.
            asked.answer(20);
        } else {
            asked.answer(10);
            expect(10, slow);
            copy.answer(20);
            // When the client answers this ping, it has already read the answer to the copy.
            awaitPong(copy.to());
        }
        Question last = hand.over(main);
        next.answer(12);
        expect(12, sent);
        last.answer(13);
        expect(13, open);
        var later = client.timestampAsync();
        hand.over(main).answer(14);
        expect(14, later);
    }

    private static void awaitPong(Peer to) throws InterruptedException {
        to.say(Frame.ping(99));
        await("the client answers a ping", () -> to.pongs.get() > 0);
    }

    /**
     * The client gets no token for its second connection. The first connection is healthy, so its
     * calls go on.
     */
    @Test
    void aMissingTokenOfTheSecondConnectionEndsNoCall() throws Exception {
        Hand hand = new Hand();
        ScriptedNode leader = leader(hand);
        AtomicInteger asked = new AtomicInteger();
        EpicEpochClient client =
                connect(
                        builder(leader)
                                .hedgeAfter(HEDGE)
                                .attemptTimeout(Duration.ofSeconds(4))
                                .tokenSource(
                                        () -> asked.incrementAndGet() == 1 ? "good" : "not good"));
        var call = client.timestampAsync();
        Question first = hand.take(any -> true);
        // When the second attempt begins, the first one has failed.
        await("the second connection is tried again", () -> asked.get() >= 3);
        first.answer(5);
        expect(5, call);
        assertEquals(1, leader.met.get());
    }

    /** A node refuses the second connection. The first connection is healthy, so its calls go on. */
    @Test
    void aRefusedSecondConnectionEndsNoCall() throws Exception {
        Hand hand = new Hand();
        ScriptedNode leader = leader(hand);
        AtomicInteger refused = new AtomicInteger();
        leader.onHello =
                () -> {
                    if (leader.met.get() == 1) {
                        return leader.welcome(leader).toBytes();
                    }
                    refused.incrementAndGet();
                    return refusal();
                };
        EpicEpochClient client =
                connect(builder(leader).hedgeAfter(HEDGE).attemptTimeout(Duration.ofSeconds(4)));
        var call = client.timestampAsync();
        Question first = hand.take(any -> true);
        // When the second attempt begins, the first one has failed.
        await("the second connection is tried again", () -> refused.get() >= 2);
        first.answer(5);
        expect(5, call);
    }

    /** A slow link needs more time for TCP and the hello than the first limit. */
    @Test
    void aSecondConnectionOverASlowLinkOpensInTheEnd() throws Exception {
        Duration attempt = Duration.ofMillis(2_400);
        Oracle oracle = new Oracle();
        ScheduledExecutorService timer = timer();
        AtomicBoolean hedged = new AtomicBoolean();
        ScriptedNode leader =
                leader(
                        (to, id, count) -> {
                            if (to.number > 1) {
                                hedged.set(true);
                            }
                            long after = to.number > 1 ? 0 : 3 * HEDGE.toMillis();
                            timer.schedule(
                                    () -> oracle.asked(to, id, count),
                                    after,
                                    TimeUnit.MILLISECONDS);
                        });
        leader.onHello =
                () -> {
                    // The way of a hello and its answer. The first limit is an eighth of an
                    // attempt's time.
                    pass(attempt.dividedBy(6));
                    return leader.welcome(leader).toBytes();
                };
        EpicEpochClient client =
                connect(builder(leader).hedgeAfter(HEDGE).attemptTimeout(attempt));
        for (int call = 0; !hedged.get(); call++) {
            assertTrue(call < 500, leader.met + " connections");
            client.timestamp();
        }
    }

    private static void pass(Duration time) {
        try {
            Thread.sleep(time.toMillis());
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    /**
     * While no call waits, the pause before the second connection doubles from 1 ms. Up to half of
     * it is left out.
     */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void theSecondConnectionIsDialledMoreAndMoreSeldom(boolean isSilent) throws Exception {
        int dials = 12;
        AtomicInteger tries = new AtomicInteger();
        AtomicLong ended = new AtomicLong();
        ScriptedNode leader = leader(new Oracle());
        leader.onHello =
                () -> {
                    if (leader.met.get() == 1) {
                        return leader.welcome(leader).toBytes();
                    }
                    if (tries.incrementAndGet() == dials) {
                        ended.set(System.nanoTime());
                    }
                    return isSilent ? null : refusal();
                };
        long began = System.nanoTime();
        connect(builder(leader).hedgeAfter(HEDGE).attemptTimeout(HEDGE.multipliedBy(4)));
        await("the second connection is dialled", () -> tries.get() >= dials);
        long least = 0;
        for (int at = 0; at < dials - 1; at++) {
            least += HEDGE.toNanos() + (Directory.BACKOFF_MIN << at) / 2;
        }
        long took = ended.get() - began;
        assertTrue(took >= least, dials + " dials in " + took + " ns");
    }

    /** A client without calls would take at least 9 s for these dials. This takes 3 s. */
    @Test
    void callsThatWaitKeepThePauseShort() throws Exception {
        int dials = 16;
        Oracle oracle = new Oracle();
        ScheduledExecutorService timer = timer();
        AtomicInteger tries = new AtomicInteger();
        long after = HEDGE.toMillis() / 2;
        ScriptedNode leader =
                leader(
                        (to, id, count) ->
                                timer.schedule(
                                        () -> oracle.asked(to, id, count),
                                        after,
                                        TimeUnit.MILLISECONDS));
        leader.onHello =
                () -> {
                    if (leader.met.get() == 1) {
                        return leader.welcome(leader).toBytes();
                    }
                    tries.incrementAndGet();
                    return refusal();
                };
        EpicEpochClient client =
                connect(builder(leader).hedgeAfter(HEDGE).attemptTimeout(HEDGE.multipliedBy(40)));
        long began = System.nanoTime();
        for (int call = 0; tries.get() < dials && call < 2_000; call++) {
            client.timestamp();
        }
        long took = System.nanoTime() - began;
        assertTrue(tries.get() >= dials, tries + " dials");
        assertTrue(took < Duration.ofSeconds(9).toNanos(), took + " ns");
    }

    private static byte[] refusal() {
        int code = ErrorCode.UNAUTHORIZED.number();
        return ScriptedNode.frame(Frame.ERROR, 0, code, 0, new byte[0]);
    }

    @Test
    void aBurntAnswerThatGoesBackwardsIsRefusedLoudly() throws Exception {
        Hand hand = new Hand();
        ScriptedNode leader = leader(hand);
        EpicEpochClient client = hedging(leader);
        Question first = answered(client, hand, 100);
        var slow = client.timestampAsync();
        Question asked = hand.over(first.to());
        hand.copyOf(asked).answer(101);
        expect(101, slow);
        // The late answer to the first request is wrong. It fails every caller that waits at that
        // moment, also this caller of another request.
        var waiting = begin(client::timestamp);
        hand.over(first.to());
        asked.answer(1);
        var error = assertThrows(ExecutionException.class, waiting::get);
        assertEquals(WentBackwardsException.class, error.getCause().getClass());
    }

    @Test
    void aCopysAnswerThatGoesBackwardsIsRefusedLoudly() throws Exception {
        Hand hand = new Hand();
        ScriptedNode leader = leader(hand);
        EpicEpochClient client = hedging(leader);
        Question first = answered(client, hand, 100);
        var slow = begin(client::timestamp);
        hand.copyOf(hand.over(first.to())).answer(100);
        var error = assertThrows(ExecutionException.class, slow::get);
        assertEquals(WentBackwardsException.class, error.getCause().getClass());
    }

    @Test
    void aFirstAnswerMayLieBelowWhatWasReturnedBeforeTheHedge() throws Exception {
        Hand hand = new Hand();
        ScriptedNode leader = leader(hand);
        EpicEpochClient client = hedging(leader);
        var slow = client.timestampAsync();
        Question asked = hand.take(any -> true);
        hand.copyOf(asked);
        var quick = client.timestampAsync();
        hand.over(asked.to()).answer(9);
        expect(9, quick);
        asked.answer(5);
        expect(5, slow);
    }

    @Test
    void aNodeThatSaysAgainThatItLeadsKeepsTheSecondConnection() throws Exception {
        Hand hand = new Hand();
        ScriptedNode leader = leader(hand);
        EpicEpochClient client = hedging(leader);
        var slow = client.timestampAsync();
        Question copy = hand.copyOf(hand.take(any -> true));
        copy.to().say(ScriptedNode.leaderNotice(leader.id, leader.address()));
        copy.answer(5);
        expect(5, slow);
        assertEquals(2, leader.met.get());
    }

    @ParameterizedTest
    @ValueSource(ints = {4, 66})
    void aRefusalOfWhatTheHedgeAnsweredIsNoDebtOfTheLeader(int code) throws Exception {
        Hand hand = new Hand();
        ScriptedNode leader = leader(hand);
        EpicEpochClient client = hedging(leader);
        var slow = client.timestampAsync();
        Question asked = hand.take(any -> true);
        hand.copyOf(asked).answer(5);
        expect(5, slow);
        asked.to().refuse(asked.id(), code, "");
        awaitPong(asked.to());
        // The refusal came for a request that the copy had already answered. So the client must
        // ignore it, and still use the same connection.
        var later = client.timestampAsync();
        hand.over(asked.to()).answer(6);
        expect(6, later);
        assertEquals(2, leader.met.get());
    }

    /**
     * Frames with reserved bits violate the protocol. The client must refuse them on the second
     * connection as it does on the first.
     */
    @ParameterizedTest
    @CsvSource({"2,1,0,0", "3,0,1,0", "4,0,0,1", "131,1,0,0"})
    void reservedBitsAreRefusedFromTheHedgeToo(int kind, int flags, int code, long id)
            throws Exception {
        Oracle oracle = new Oracle();
        AtomicBoolean stalled = new AtomicBoolean();
        ScriptedNode leader =
                leader(
                        (to, request, count) -> {
                            if (!stalled.get()) {
                                oracle.asked(to, request, count);
                            } else if (to.number > 1) {
                                to.say(ScriptedNode.frame(kind, flags, code, id, new byte[0]));
                            }
                        });
        EpicEpochClient client = hedging(leader);
        client.timestamp();
        stalled.set(true);
        assertThrows(ProtocolException.class, client::timestamp);
    }

    private record Call(long began, long ended, TimestampRange got) {}

    /**
     * The answers of a request and its copy come in any order. Even so, a call's timestamps must
     * lie above all that were returned before the call began, and no timestamp may be given twice.
     */
    @Test
    void answersThatOvertakeEachOtherLeaveTheOrderOfCallsAsItIs() throws Exception {
        Oracle oracle = new Oracle();
        ScheduledExecutorService timer = timer();
        Random random = new Random(1);
        ScriptedNode leader =
                leader(
                        (to, id, count) -> {
                            long after = random.nextInt(2000);
                            if (random.nextInt(8) == 0) {
                                after = 5000 + random.nextInt(55_000);
                            }
                            Timestamp early = random.nextBoolean() ? oracle.take(count) : null;
                            timer.schedule(
                                    () ->
                                            to.answer(
                                                    id,
                                                    count,
                                                    early != null ? early : oracle.take(count)),
                                    after,
                                    TimeUnit.MICROSECONDS);
                        });
        EpicEpochClient client = hedging(leader);
        List<CompletableFuture<List<Call>>> callers = new ArrayList<>();
        for (int caller = 0; caller < 8; caller++) {
            int count = 1 + caller % 3;
            callers.add(begin(() -> calls(client, count)));
        }
        List<Call> all = new ArrayList<>();
        for (var caller : callers) {
            all.addAll(caller.get());
        }
        all.sort(Comparator.comparing(call -> call.got().first()));
        long latest = Long.MIN_VALUE;
        Timestamp last = null;
        long given = 0;
        for (Call call : all) {
            assertTrue(last == null || call.got().first().isAfter(last), "given twice");
            assertTrue(call.ended() >= latest, "the order of calls is broken");
            latest = Math.max(latest, call.began());
            last = call.got().last();
            given += call.got().count();
        }
        assertTrue(oracle.taken() > given, "nothing was asked twice");
    }

    private static List<Call> calls(EpicEpochClient client, int count) throws Exception {
        List<Call> calls = new ArrayList<>();
        for (int call = 0; call < 60; call++) {
            long began = System.nanoTime();
            TimestampRange got = client.timestamps(count);
            calls.add(new Call(began, System.nanoTime(), got));
        }
        return calls;
    }
}
