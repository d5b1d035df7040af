package io.github.epicepoch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.epicepoch.ScriptedNode.Oracle;
import io.github.epicepoch.ScriptedNode.Peer;
import java.time.Duration;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * Tests of calls: which calls share a request, which timestamps each call gets, and how calls end.
 */
class CallsTest extends Scene {
    /** A request that a node has read and not answered. */
    private record Question(Peer to, long id, long count) {
        void answer(Timestamp first) {
            to.answer(id, count, first);
        }
    }

    @Test
    void aLatestTimestampIsTheLastOfASharedRequestAndTakesNone() {
        Batch batch = new Batch();
        long[] counts = {Batch.LATEST, 2, Batch.LATEST, 3};
        long[] firsts = {14, 10, 14, 12};
        long[] offsets = new long[counts.length];
        for (int at = 0; at < counts.length; at++) {
            offsets[at] = batch.join(counts[at], null);
        }
        TimestampRange answer = new TimestampRange(new Timestamp(1, 10), batch.count());
        for (int at = 0; at < counts.length; at++) {
            TimestampRange own = Batch.part(answer, offsets[at], counts[at]);
            assertEquals(new Timestamp(1, firsts[at]), own.first());
            assertEquals(Math.max(counts[at], 1), own.count());
        }
    }

    @Test
    void aLatestTimestampMayBeTheOneThatWasReturnedAndALaterTimestampMayNot() {
        Batch.Asked reader = new Batch.Asked(Batch.LATEST, true, new Timestamp(1, 9), 0);
        Batch.Asked writer = new Batch.Asked(1, false, new Timestamp(1, 9), 0);
        reader.check("a:1", answer(9, true));
        writer.check("a:1", answer(10, false));
        assertThrows(WentBackwardsException.class, () -> reader.check("a:1", answer(8, true)));
        assertThrows(MalformedException.class, () -> reader.check("a:1", answer(10, false)));
        assertThrows(WentBackwardsException.class, () -> writer.check("a:1", answer(9, false)));
        assertThrows(MalformedException.class, () -> writer.check("a:1", answer(10, true)));
    }

    private static Frame.Answer answer(long index, boolean isLatest) {
        return new Frame.Answer(new TimestampRange(new Timestamp(1, index), 1), isLatest);
    }

    @Test
    void aNodeThatIsTooOldIsAskedForATimestampThatNobodyElseGets() throws Exception {
        EpicEpochClient client = patient(leader(new Oracle()), 4);
        Timestamp before = client.timestamp();
        Timestamp latest = client.latest();
        assertEquals(before.index() + 1, latest.index());
        assertEquals(before.index() + 2, client.latestAsync().get().index());
        assertEquals(before.index() + 3, client.timestamp().index());
    }

    private final BlockingQueue<Question> questions = new LinkedBlockingQueue<>();

    private Question question() throws InterruptedException {
        Question next = questions.poll(LONG.toSeconds(), TimeUnit.SECONDS);
        assertNotNull(next, "no request came");
        return next;
    }

    private ScriptedNode keeping() {
        return leader((to, id, count) -> questions.add(new Question(to, id, count)));
    }

    private EpicEpochClient patient(ScriptedNode leader, int inFlight) throws Exception {
        return connect(builder(leader).inFlight(inFlight));
    }

    @Test
    void aRequestWhoseCallersHaveLeftIsNotSent() throws Exception {
        Oracle oracle = new Oracle();
        ScriptedNode leader = keeping();
        leader.onHello =
                () -> {
                    var welcome = leader.welcome(leader);
                    welcome.countMax = 10;
                    return welcome.toBytes();
                };
        EpicEpochClient client = patient(leader, 1);
        var first = begin(client::timestamp);
        Question early = question();
        // Each of these fills a request, and waits behind the first one until its deadline.
        for (int call = 0; call < 3; call++) {
            assertThrows(
                    DeadlineExceededException.class,
                    () -> client.timestamps(10, Duration.ofMillis(20)));
        }
        var last = client.timestampsAsync(9);
        early.answer(oracle.take(1));
        Question next = question();
        assertEquals(9, next.count());
        next.answer(oracle.take(9));
        assertEquals(9, last.get().count());
        first.get();
    }

    @Test
    void aCallerNeverJoinsARequestThatWasSent() throws Exception {
        Oracle oracle = new Oracle();
        EpicEpochClient client = patient(keeping(), 1);
        var first = begin(client::timestamp);
        Question early = question();
        // The node now allocates the first request's timestamp. The calls below begin after that,
        // so they must not share it.
        Timestamp taken = oracle.take(1);
        List<CompletableFuture<Timestamp>> later = new ArrayList<>();
        for (int call = 0; call < 3; call++) {
            later.add(client.timestampAsync());
        }
        early.answer(taken);
        Question second = question();
        assertEquals(3, second.count());
        second.answer(oracle.take(3));
        Set<Timestamp> distinct = ConcurrentHashMap.newKeySet();
        for (var call : later) {
            assertTrue(call.get().isAfter(first.get()));
            distinct.add(call.get());
        }
        assertEquals(3, distinct.size());
    }

    /**
     * The thread that opened a batch may be paused just before it sends. Here it is the thread of
     * the client that has found a leader: the executor, which ends a call, keeps it.
     */
    @Test
    void aCallerSendsABatchThatAnotherThreadIsSlowToSend() throws Exception {
        AtomicReference<CountDownLatch> gate = new AtomicReference<>(new CountDownLatch(0));
        Dialer dialer =
                (host, port, timeout) -> {
                    awaitLatch(gate.get());
                    return Dialer.tcp().dial(host, port, timeout);
                };
        ScriptedNode leader = leader(new Oracle());
        leader.onHello =
                () -> {
                    var welcome = leader.welcome(leader);
                    welcome.countMax = 10;
                    return welcome.toBytes();
                };
        CountDownLatch kept = new CountDownLatch(1);
        CountDownLatch released = new CountDownLatch(1);
        Executor executor =
                task -> {
                    kept.countDown();
                    awaitLatch(released);
                    task.run();
                };
        EpicEpochClient client = connect(builder(leader).dialer(dialer).executor(executor));
        closing(released::countDown);
        gate.set(new CountDownLatch(1));
        leader.hangUp();
        await("the leader is lost", () -> client.leader().isEmpty());
        client.timestampAsync();
        // The leader allows no such call, so it ends when there is a leader again.
        client.timestampsAsync(11);
        gate.get().countDown();
        awaitLatch(kept);
        client.timestampAsync();
        await("the batch is sent", () -> leader.asked.get() == 1);
    }

    private static void awaitLatch(CountDownLatch latch) {
        try {
            latch.await(LONG.toSeconds(), TimeUnit.SECONDS);
        } catch (InterruptedException closed) {
            // The test is over.
        }
    }

    @Test
    void answersMayComeInAnotherOrder() throws Exception {
        Oracle oracle = new Oracle();
        EpicEpochClient client = patient(keeping(), 3);
        List<CompletableFuture<TimestampRange>> calls = new ArrayList<>();
        List<Question> asked = new ArrayList<>();
        for (int count : new int[] {3, 5, 7}) {
            calls.add(client.timestampsAsync(count));
            asked.add(0, question());
        }
        for (Question each : asked) {
            each.answer(oracle.take(each.count()));
        }
        assertEquals(3, calls.get(0).get().count());
        assertEquals(5, calls.get(1).get().count());
        assertEquals(7, calls.get(2).get().count());
    }

    /** One call waits for the wrong answer, one for another answer, and one for its turn. */
    @Test
    void anAnswerThatGoesBackwardsFailsAllCallsThatWait() throws Exception {
        EpicEpochClient client = patient(keeping(), 2);
        var warm = client.timestampAsync();
        question().answer(new Timestamp(1, 100));
        warm.get();
        var first = client.timestampAsync();
        Question asked = question();
        var second = begin(client::timestamp);
        question();
        var third = client.timestampAsync();
        asked.answer(new Timestamp(1, 50));
        for (var call : List.of(first, second, third)) {
            var error = assertThrows(ExecutionException.class, call::get).getCause();
            assertInstanceOf(WentBackwardsException.class, error);
        }
    }

    @Test
    void aCallerThatIsInterruptedLeavesTheOthersAlone() throws Exception {
        EpicEpochClient client = patient(keeping(), 1);
        AtomicReference<Thread> caller = new AtomicReference<>();
        var gone =
                begin(
                        () -> {
                            caller.set(Thread.currentThread());
                            return client.timestamp();
                        });
        Question question = question();
        var other = client.timestampAsync();
        var cancelled = client.timestampAsync();
        cancelled.cancel(true);
        caller.get().interrupt();
        assertInstanceOf(
                InterruptedException.class,
                assertThrows(ExecutionException.class, gone::get).getCause());
        assertThrows(CancellationException.class, cancelled::get);
        question.answer(new Timestamp(1, 1));
        question().answer(new Timestamp(1, 2));
        assertEquals(new Timestamp(1, 2), other.get());
    }

    /** All callers share one connection. The write of an interrupted caller must not close it. */
    @Test
    void anInterruptedThreadSendsNothingAndClosesNothing() throws Exception {
        ScriptedNode leader = leader(new Oracle());
        EpicEpochClient client = connect(leader);
        client.timestamp();
        Thread.currentThread().interrupt();
        assertThrows(InterruptedException.class, client::timestamp);
        assertFalse(Thread.interrupted());
        // An asynchronous call does not wait, so it works on an interrupted thread, too.
        Thread.currentThread().interrupt();
        var future = client.timestampAsync();
        assertTrue(Thread.interrupted());
        future.get();
        assertEquals(1, leader.met.get());
    }

    @Test
    void theDeadlineEndsACallAndTheErrorSaysWhy() throws Exception {
        ScriptedNode leader = leader((to, id, count) -> to.refuse(id, 2, "no majority"));
        EpicEpochClient client = connect(leader);
        Duration limit = Duration.ofSeconds(1);
        var error =
                assertThrows(DeadlineExceededException.class, () -> client.timestamp(limit));
        RefusedException why = assertInstanceOf(RefusedException.class, error.getCause());
        assertEquals(ErrorCode.NO_QUORUM, why.code());
        assertEquals(leader.address(), why.address());
        assertEquals(
                "no timestamp before the deadline: "
                        + leader.address()
                        + " refused with NO_QUORUM: no majority",
                error.getMessage());
        var future = client.timestampAsync(limit);
        var late = assertThrows(ExecutionException.class, future::get).getCause();
        assertInstanceOf(DeadlineExceededException.class, late);
        assertInstanceOf(RefusedException.class, late.getCause());
    }

    /** Each call has an earlier deadline than the calls before it, so it replaces their timer. */
    @Test
    void callsWithoutThreadsShareOneTimer() throws Exception {
        EpicEpochClient client = patient(keeping(), 1);
        for (int call = 0; call < 100; call++) {
            client.timestampAsync(LONG.minusMillis(call));
        }
        // The second timer is the one that watches the leader.
        assertTrue(client.threads.timers() <= 2, client.threads.timers() + " timers");
        // The timer of a call that has ended makes way for that of the next one.
        var first = client.timestampAsync(Duration.ofMillis(20));
        var second = client.timestampAsync(Duration.ofMillis(10));
        for (var call : List.of(second, first)) {
            var error = assertThrows(ExecutionException.class, call::get).getCause();
            assertInstanceOf(DeadlineExceededException.class, error);
        }
        assertTrue(client.threads.timers() <= 2, client.threads.timers() + " timers");
    }

    /** Each look for expired calls looks at all calls. So many calls must not need many looks. */
    @Test
    void callsThatExpireOneAfterAnotherEndTogether() throws Exception {
        List<Long> ends = Collections.synchronizedList(new ArrayList<>());
        Executor executor =
                task -> {
                    ends.add(System.nanoTime());
                    task.run();
                };
        EpicEpochClient client = connect(builder(keeping()).executor(executor));
        List<CompletableFuture<Timestamp>> calls = new ArrayList<>();
        for (int call = 0; call < 200; call++) {
            Duration limit = Duration.ofMillis(200).plus(call * 100L, ChronoUnit.MICROS);
            calls.add(client.timestampAsync(limit));
        }
        for (var call : calls) {
            assertThrows(ExecutionException.class, call::get);
        }
        long millis = (ends.get(ends.size() - 1) - ends.get(0)) / 1_000_000;
        assertTrue(ends.size() <= millis + 2, ends.size() + " looks in " + millis + " ms");
    }

    @Test
    void aSilentLeaderIsSaidToBeSilent() throws Exception {
        ScriptedNode leader = leader((to, id, count) -> {});
        EpicEpochClient client = connect(builder(leader).attemptTimeout(Duration.ofMillis(50)));
        Duration limit = Duration.ofSeconds(2);
        var future = client.timestampAsync(limit);
        var waited = assertThrows(DeadlineExceededException.class, () -> client.timestamp(limit));
        var late = assertThrows(ExecutionException.class, future::get).getCause();
        for (Throwable error : List.of(waited, late)) {
            assertTrue(error.getMessage().contains("did not answer in time"), error.getMessage());
        }
    }

    @Test
    void aCallWithoutTimeIsNotAnswered() throws Exception {
        EpicEpochClient client = connect(leader(new Oracle()));
        for (Duration none : List.of(Duration.ZERO, Duration.ofSeconds(-1))) {
            assertThrows(DeadlineExceededException.class, () -> client.timestamp(none));
            var future = client.timestampAsync(none);
            var error = assertThrows(ExecutionException.class, future::get).getCause();
            assertInstanceOf(DeadlineExceededException.class, error);
        }
        client.timestamp(Duration.ofSeconds(Long.MAX_VALUE));
    }

    @Test
    void aCountOutsideTheLimitsIsRefused() throws Exception {
        EpicEpochClient client = connect(leader(new Oracle()));
        for (long count : new long[] {-1, 0, Frame.COUNT_MAX + 1}) {
            assertThrows(CountException.class, () -> client.timestamps(count));
            var future = client.timestampsAsync(count);
            var error = assertThrows(ExecutionException.class, future::get).getCause();
            assertInstanceOf(CountException.class, error);
        }
        assertEquals(Frame.COUNT_MAX, client.timestamps(Frame.COUNT_MAX).count());
    }

    @Test
    void aClosedClientEndsItsCallsAndItsThreads() throws Exception {
        EpicEpochClient client = patient(keeping(), 4);
        var waiting = begin(client::timestamp);
        question();
        var future = client.timestampAsync();
        client.close();
        client.close();
        for (var call : List.of(waiting, future, client.timestampAsync())) {
            var error = assertThrows(ExecutionException.class, call::get).getCause();
            assertInstanceOf(ClosedException.class, error);
        }
        assertThrows(ClosedException.class, client::timestamp);
        assertEquals(Optional.empty(), client.leader());
    }

    /**
     * Code that runs when a future completes may call the client again, and wait for the answer.
     */
    @Test
    void codeBehindAFutureMayCallTheClient() throws Exception {
        EpicEpochClient client = connect(leader(new Oracle()));
        var second =
                client.timestampAsync()
                        .thenApply(
                                first -> {
                                    Timestamp next = client.timestampAsync().join();
                                    assertTrue(first.isBefore(next));
                                    return next;
                                });
        second.get(LONG.toSeconds(), TimeUnit.SECONDS);
    }

    @ParameterizedTest
    @ValueSource(
            classes = {
                RejectedExecutionException.class,
                IllegalStateException.class,
                AssertionError.class
            })
    void anExecutorThatTakesNoTaskLeavesNoCallWithoutAnEnd(Class<? extends Throwable> thrown)
            throws Exception {
        Throwable error = thrown.getConstructor().newInstance();
        Executor full = task -> Scene.<RuntimeException>throwing(error);
        EpicEpochClient client = connect(builder(leader(new Oracle())).executor(full));
        for (int call = 0; call < 2; call++) {
            client.timestampAsync().get(LONG.toSeconds(), TimeUnit.SECONDS);
        }
    }

    /**
     * Some callers give up, and leave batches that others have joined. This happens while the
     * batches wait for a leader, and while they are in flight. No caller may get another caller's
     * timestamps, and no caller may stay without an answer.
     */
    @Test
    void callersThatLeaveDoNotDisturbThoseWhoJoin() throws Exception {
        Oracle oracle = new Oracle();
        AtomicInteger asked = new AtomicInteger();
        ScriptedNode leader =
                leader(
                        (to, id, count) -> {
                            if (asked.incrementAndGet() % 50 == 0) {
                                to.close();
                            } else {
                                oracle.asked(to, id, count);
                            }
                        });
        EpicEpochClient client = connect(builder(leader).inFlight(2));
        Set<Timestamp> given = ConcurrentHashMap.newKeySet();
        List<CompletableFuture<Integer>> callers = new ArrayList<>();
        for (int caller = 0; caller < 16; caller++) {
            boolean hurries = caller % 2 == 0;
            boolean waits = caller % 4 < 2;
            callers.add(begin(() -> callAgainAndAgain(client, hurries, waits, given)));
        }
        int answered = 0;
        for (var caller : callers) {
            answered += caller.get(60, TimeUnit.SECONDS);
        }
        assertEquals(answered, given.size());
    }

    private static int callAgainAndAgain(
            EpicEpochClient client, boolean hurries, boolean waits, Set<Timestamp> given)
            throws Exception {
        int answered = 0;
        for (int round = 0; round < 200; round++) {
            Duration limit = hurries ? Duration.ofNanos(round % 7 * 20_000) : LONG;
            try {
                Timestamp got =
                        waits ? client.timestamp(limit) : client.timestampAsync(limit).join();
                given.add(got);
                answered++;
            } catch (DeadlineExceededException | CompletionException late) {
                assertTrue(hurries, late.toString());
            }
        }
        return answered;
    }

    @Test
    void manyCallersShareRequestsAndGetDistinctTimestamps() throws Exception {
        ScriptedNode leader = leader(new Oracle());
        EpicEpochClient client = connect(leader);
        int callers = 100;
        int each = 50;
        Set<Timestamp> distinct = ConcurrentHashMap.newKeySet();
        List<CompletableFuture<Void>> all = new ArrayList<>();
        for (int caller = 0; caller < callers; caller++) {
            all.add(begin(() -> rising(client, each, distinct)));
        }
        for (var caller : all) {
            caller.get();
        }
        assertEquals(callers * each, distinct.size());
        // How many calls share a request depends on how busy the machine is.
        assertTrue(leader.asked.get() < callers * each, leader.asked + " requests");
    }

    private static Void rising(EpicEpochClient client, int calls, Set<Timestamp> distinct)
            throws InterruptedException {
        Timestamp last = new Timestamp(0, 0);
        for (int call = 0; call < calls; call++) {
            Timestamp next = client.timestamp();
            assertTrue(next.isAfter(last));
            distinct.add(next);
            last = next;
        }
        return null;
    }

    /**
     * Runs only on Java 21 and later. An interrupted virtual thread can close the socket that it
     * writes to. The connection, which all callers share, must stay open.
     */
    @Test
    void virtualThreadsMayCallAndBeInterrupted() throws Exception {
        ExecutorService threads;
        try {
            var factory = Executors.class;
            threads =
                    (ExecutorService)
                            factory.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
        } catch (NoSuchMethodException older) {
            Assumptions.abort("this Java has no virtual threads");
            return;
        }
        ScriptedNode leader = leader(new Oracle());
        EpicEpochClient client = connect(leader);
        Set<Timestamp> distinct = ConcurrentHashMap.newKeySet();
        int callers = 2000;
        CountDownLatch ended = new CountDownLatch(callers);
        AtomicInteger answered = new AtomicInteger();
        for (int caller = 0; caller < callers; caller++) {
            boolean isInterrupted = caller % 3 == 0;
            threads.execute(
                    () -> {
                        try {
                            if (isInterrupted) {
                                Thread.currentThread().interrupt();
                                client.timestampAsync().whenComplete((got, error) -> {});
                                client.timestamp();
                            }
                            distinct.add(client.timestamp());
                            answered.incrementAndGet();
                        } catch (InterruptedException expected) {
                            assertTrue(isInterrupted);
                        } finally {
                            ended.countDown();
                        }
                    });
        }
        assertTrue(ended.await(60, TimeUnit.SECONDS));
        assertEquals(callers - (callers + 2) / 3, answered.get());
        assertEquals(answered.get(), distinct.size());
        assertEquals(1, leader.met.get());
        threads.shutdown();
    }
}
