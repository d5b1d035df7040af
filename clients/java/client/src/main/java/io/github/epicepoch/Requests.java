package io.github.epicepoch;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;

/**
 * The calls that wait, and the requests that they share. This class never waits for the network. It
 * writes requests to the connection to the leader. The thread that reads this connection brings the
 * answers.
 */
final class Requests {
    /**
     * The limit of {@link ClientBuilder#inFlight}. It is below 1024, the number of requests that a
     * node reads before it answers.
     */
    static final int IN_FLIGHT_MAX = 256;
    /** At most this many calls wait. */
    static final int CALLS_MAX = 1 << 20;

    static final String SILENT = "it did not answer in time";

    /**
     * The pause before the client looks for expired calls again. It looks at all calls, and holds
     * the lock meanwhile. So calls that expire one after another share a look.
     */
    private static final long EXPIRY_PAUSE = Duration.ofMillis(1).toNanos();

    private static final UnreachableException OVERSIZE =
            new UnreachableException("the request is larger than the leader takes", null);

    private final Options options;
    private final Threads threads;
    private final AtomicInteger calls = new AtomicInteger();

    /** Guards everything below, and the {@link Hedger}. It is never held during IO. */
    final ReentrantLock lock = new ReentrantLock();

    /** A call that finds no connection signals this condition. */
    private final Condition wanted = lock.newCondition();

    /** The connection to the leader, or null. */
    private Connection leader;
    /** The batches that are not sent yet. Callers may join the last of them. */
    private final ArrayDeque<Batch> pending = new ArrayDeque<>();
    /** The batches in flight, by the low bits of the request's id. */
    private final Batch[] slots = new Batch[IN_FLIGHT_MAX];

    private int inFlight;
    private long lastId;
    /** Each of these two limits is the smaller one of the last leader's limit and this client's. */
    private long countLimit = Frame.COUNT_MAX;

    private int inFlightLimit;
    /** The time at which the client asks an overloaded leader again, or null. */
    private Deadline quietUntil;
    /** The highest timestamp that the client has returned to a caller, or null. */
    private Timestamp highest;
    /** The last failure since the last answer or new connection, or null. */
    private EpicEpochException lastError;
    /**
     * The time at which the client next looks for expired calls among those that wait without a
     * thread, or null.
     */
    private Deadline nextExpiry;
    /** The client does not look for expired calls before this time. */
    private Deadline expiryNotBefore = Deadline.after(0);
    /** The timer for {@link #nextExpiry}, or null. There is never a second one. */
    private ScheduledFuture<?> expiry;

    /** Why the client is closed, or null. */
    private EpicEpochException closed;
    /** Sends requests twice; null without {@link ClientBuilder#hedgeAfter}. */
    private Hedger hedger;

    /** A caller's place in a batch. */
    private record Share(Batch batch, long offset) {}

    Requests(Options options, Threads threads) {
        this.options = options;
        this.threads = threads;
        inFlightLimit = options.inFlight();
    }

    void hedgeWith(Hedger hedger) {
        this.hedger = hedger;
    }

    // Callers.

    /** Gets timestamps, or the latest one ({@link Batch#LATEST}), and waits for them. */
    TimestampRange call(long count, Deadline deadline) throws InterruptedException {
        enter();
        try {
            EpicEpochException last = null;
            while (!deadline.isOver()) {
                if (Thread.interrupted()) {
                    throw new InterruptedException();
                }
                Share mine = join(count, null);
                Batch batch = mine.batch();
                if (!batch.await(deadline)) {
                    break;
                }
                if (batch.answer() != null) {
                    return Batch.part(batch.answer(), mine.offset(), count);
                }
                last = batch.error();
                if (!last.isRetryable()) {
                    throw last.again();
                }
            }
            throw late(last);
        } finally {
            calls.decrementAndGet();
        }
    }

    /** Gets timestamps without a thread that waits. */
    void call(AsyncCall<?> call) {
        enter();
        if (call.deadline.isOver()) {
            expire(List.of(call));
        } else {
            ask(call);
        }
    }

    static void requireCount(long count) {
        if (count < 1 || count > Frame.COUNT_MAX) {
            String allowed = "allowed are 1 to " + Frame.COUNT_MAX;
            throw new CountException(count + " timestamps asked for; " + allowed, null);
        }
    }

    private void enter() {
        if (calls.incrementAndGet() > CALLS_MAX) {
            calls.decrementAndGet();
            throw new TooManyCallsException("more than " + CALLS_MAX + " calls wait", null);
        }
    }

    private void ask(AsyncCall<?> call) {
        try {
            join(call.count, call);
        } catch (EpicEpochException error) {
            settle(List.of(call), each -> each.completeExceptionally(error));
        }
    }

    /**
     * Adds a caller to the open batch, or opens a batch. Sends the batch if the limit of requests
     * in flight allows.
     *
     * @param call the call, if it waits without a thread; otherwise null
     */
    private Share join(long count, AsyncCall<?> call) {
        Share share;
        boolean isBusy;
        lock.lock();
        try {
            if (closed != null) {
                throw closed.again();
            }
            if (leader != null && count > countLimit) {
                String allowed = "the leader gives at most " + countLimit + " at once";
                throw new CountException(count + " timestamps asked for; " + allowed, null);
            }
            Batch last = pending.peekLast();
            boolean isNew = last == null || last.count() + count > countLimit;
            if (isNew) {
                last = new Batch();
                pending.add(last);
            }
            share = new Share(last, last.join(count, call));
            if (call != null) {
                call.offset = share.offset();
                expireAt(call.deadline);
            }
            if (leader == null) {
                wanted.signal();
            }
            // A caller that joins a batch sends it only if nothing is in flight. Otherwise the next
            // answer sends it. The caller that opened the batch may be paused before it sends.
            if (leader == null || inFlight >= inFlightLimit || (!isNew && inFlight > 0)) {
                return share;
            }
            isBusy = inFlight > 0;
        } finally {
            lock.unlock();
        }
        if (isBusy) {
            // The last answer woke several callers, and they are about to ask again. Yield, so that
            // they join this batch before it is sent.
            Thread.yield();
        }
        pump();
        return share;
    }

    /** Returns the error of a call whose deadline has come. */
    DeadlineExceededException late(EpicEpochException own) {
        lock.lock();
        try {
            EpicEpochException why = lastError != null ? lastError : own;
            return new DeadlineExceededException(
                    why != null ? why : new UnreachableException("no node has answered yet", null));
        } finally {
            lock.unlock();
        }
    }

    // Sending.

    /** Sends waiting batches, up to the limit of requests in flight. */
    void pump() {
        Connection to;
        byte[] frames;
        lock.lock();
        try {
            to = leader;
            frames = seal();
        } finally {
            lock.unlock();
        }
        send(to, frames);
    }

    /**
     * Moves waiting batches in flight. Returns their frames, or null if there are none. It drops
     * batches whose callers have all left.
     */
    byte[] seal() {
        int due = Math.min(pending.size(), inFlightLimit - inFlight);
        if (leader == null || due <= 0) {
            return null;
        }
        if (quietUntil != null && !quietUntil.isOver()) {
            return null;
        }
        quietUntil = null;
        ByteBuffer frames = ByteBuffer.allocate(due * Frame.HEAD_BYTES);
        while (inFlight < inFlightLimit && !pending.isEmpty()) {
            Batch batch = pending.remove();
            if (batch.callers() == 0) {
                continue;
            }
            // Take the next id whose slot is free.
            do {
                lastId++;
            } while (slots[slot(lastId)] != null);
            slots[slot(lastId)] = batch;
            inFlight++;
            batch.send(
                    lastId,
                    highest,
                    Batch.putRequest(frames, lastId, batch.count(), leader.welcome));
        }
        int length = frames.position();
        return length == 0 ? null : Arrays.copyOf(frames.array(), length);
    }

    static void send(Connection to, byte[] frames) {
        if (frames != null) {
            to.write(frames);
        }
    }

    private static int slot(long id) {
        return (int) (id & (IN_FLIGHT_MAX - 1));
    }

    /**
     * Removes and returns the batch that an answer belongs to. Returns null if no batch waits for
     * this answer.
     */
    Batch take(long id) {
        Batch batch = slots[slot(id)];
        if (batch == null || batch.id() != id) {
            return null;
        }
        slots[slot(id)] = null;
        inFlight--;
        return batch;
    }

    // Answers.

    /**
     * Gives an answer of the leader to its callers, and sends waiting batches.
     *
     * @throws EpicEpochException if the connection cannot be used any more
     */
    void answered(Connection from, long id, Frame.Answer given) {
        TimestampRange answer = given.range();
        Batch batch;
        byte[] frames;
        EpicEpochException error = null;
        lock.lock();
        try {
            requireLeader(from);
            batch = take(id);
            if (batch == null) {
                if (hedger != null && hedger.tookBurnt(from, id, given)) {
                    return;
                }
                throw Frame.broken("an answer to request " + id + ", which is not under way");
            }
            try {
                batch.asked().check(from.address, given);
                rise(answer);
            } catch (MalformedException | WentBackwardsException bad) {
                error = Connection.failure(from.address, bad);
            }
            frames = error == null ? seal() : null;
        } finally {
            lock.unlock();
        }
        send(from, frames);
        finish(batch, error == null ? answer : null, error);
        if (error != null) {
            throw error;
        }
    }

    /**
     * Gives a refusal of the leader to the callers of one request.
     *
     * @throws EpicEpochException the refusal, if the connection cannot be used any more
     */
    void refused(Connection from, long id, EpicEpochException refusal) {
        Batch batch;
        byte[] frames;
        List<Batch> oversize = List.of();
        boolean isOversize;
        boolean isOverloaded = isCode(refusal, ErrorCode.OVERLOADED);
        boolean keeps = isOverloaded || !refusal.isRetryable();
        lock.lock();
        try {
            requireLeader(from);
            batch = take(id);
            boolean isBurnt = hedger != null && hedger.forgive(id);
            if (batch == null && !isBurnt) {
                throw Frame.broken("a refusal of request " + id + ", which is not under way");
            }
            lastError = refusal;
            if (isOverloaded) {
                rest();
            }
            // A node refuses more than a millisecond has if its cluster has become compact since
            // the welcome. Then the smaller limit holds from now on.
            isOversize =
                    isCode(refusal, ErrorCode.BAD_COUNT)
                            && batch != null
                            && batch.count() > Timestamp.COMPACT_COUNT_MAX;
            if (isOversize) {
                oversize = limitCount(Math.min(countLimit, Timestamp.COMPACT_COUNT_MAX));
            }
            frames = keeps ? seal() : null;
        } finally {
            lock.unlock();
        }
        if (batch != null) {
            finish(batch, null, isOversize ? OVERSIZE : refusal);
        }
        oversize.forEach(each -> finish(each, null, OVERSIZE));
        if (!keeps) {
            throw refusal;
        }
        send(from, frames);
        options.failedAttempt(refusal);
    }

    private void requireLeader(Connection from) {
        if (leader != from) {
            throw Connection.unreachable(from.address, Connection.LEFT, null);
        }
    }

    static boolean isCode(EpicEpochException error, ErrorCode code) {
        return error instanceof RefusedException refused && refused.code() == code;
    }

    /** Records the highest returned timestamp. */
    void rise(TimestampRange answer) {
        lastError = null;
        Timestamp last = answer.last();
        if (highest == null || last.isAfter(highest)) {
            highest = last;
        }
    }

    Timestamp highest() {
        return highest;
    }

    /** Pauses requests to an overloaded leader, unless a pause has begun already. */
    private void rest() {
        if (quietUntil == null || quietUntil.isOver()) {
            long pause = Directory.overloadPause();
            quietUntil = Deadline.after(pause);
            threads.after(pause, this::pump);
        }
    }

    /** Ends the wait of a batch that was taken. Then calls the observer, which may be slow. */
    void finish(Batch batch, TimestampRange answer, EpicEpochException error) {
        int callers = batch.callers();
        long count = batch.count();
        Duration latency = batch.asked().age();
        batch.finish(answer, error);
        endWithoutThreads(batch.calls(), answer, error);
        if (answer != null) {
            options.observe(each -> each.answered(callers, count, latency));
        }
    }

    private void endWithoutThreads(
            List<AsyncCall<?>> waiting, TimestampRange answer, EpicEpochException error) {
        if (waiting.isEmpty()) {
            return;
        }
        if (answer != null) {
            settle(waiting, call -> give(call, answer));
        } else if (!error.isRetryable()) {
            settle(waiting, call -> call.completeExceptionally(error.again()));
        } else {
            waiting.forEach(call -> askAgain(call, error));
        }
    }

    private void give(AsyncCall<?> call, TimestampRange answer) {
        if (call.deadline.isOver()) {
            call.completeExceptionally(late(call.last));
        } else {
            call.succeed(answer);
        }
    }

    private void askAgain(AsyncCall<?> call, EpicEpochException error) {
        call.last = error;
        if (call.isDone()) {
            calls.decrementAndGet();
        } else if (call.deadline.isOver()) {
            expire(List.of(call));
        } else {
            ask(call);
        }
    }

    /**
     * Ends calls. The code that the program has attached to their futures runs on the executor of
     * the client.
     */
    private void settle(Collection<? extends AsyncCall<?>> ended, Consumer<AsyncCall<?>> end) {
        calls.addAndGet(-ended.size());
        Runnable all = () -> ended.forEach(end);
        try {
            options.executor().execute(all);
        } catch (Throwable refused) {
            // Usually a RejectedExecutionException. The calls end even if the executor has a bug.
            all.run();
        }
    }

    private void expire(Collection<? extends AsyncCall<?>> over) {
        settle(over, call -> call.completeExceptionally(late(call.last)));
    }

    /** Sets a timer for this deadline, to end calls that wait without a thread. */
    private void expireAt(Deadline deadline) {
        Deadline at = deadline.isBefore(expiryNotBefore) ? expiryNotBefore : deadline;
        if (nextExpiry == null || at.isBefore(nextExpiry)) {
            cancelExpiry();
            nextExpiry = at;
            expiry = threads.after(Math.max(0, at.left()), this::expireCalls);
        }
    }

    private void cancelExpiry() {
        nextExpiry = null;
        if (expiry != null) {
            expiry.cancel(false);
            expiry = null;
        }
    }

    private void expireCalls() {
        List<AsyncCall<?>> over = new ArrayList<>();
        lock.lock();
        try {
            // While this timer waited for the lock, a call may have set another one.
            cancelExpiry();
            Deadline next = null;
            for (Batch batch : batches()) {
                batch.calls()
                        .removeIf(
                                call -> {
                                    boolean isOver = call.deadline.isOver() || call.isDone();
                                    if (isOver) {
                                        batch.leave();
                                        over.add(call);
                                    }
                                    return isOver;
                                });
                for (AsyncCall<?> call : batch.calls()) {
                    if (next == null || call.deadline.isBefore(next)) {
                        next = call.deadline;
                    }
                }
            }
            expiryNotBefore = Deadline.after(EXPIRY_PAUSE);
            if (next != null) {
                expireAt(next);
            }
        } finally {
            lock.unlock();
        }
        if (!over.isEmpty()) {
            expire(over);
        }
    }

    // Connections.

    /** Returns the connection to the leader, or null. */
    Connection leader() {
        lock.lock();
        try {
            return leader;
        } finally {
            lock.unlock();
        }
    }

    /**
     * Uses a connection to a leader, and applies the leader's limits. Returns false if the client
     * is closed.
     */
    boolean connected(Connection to) {
        List<Batch> oversize;
        lock.lock();
        try {
            if (closed != null) {
                return false;
            }
            leader = to;
            lastError = null;
            quietUntil = null;
            inFlightLimit = (int) Math.min(to.welcome.inFlightMax, options.inFlight());
            oversize = limitCount(to.welcome.countLimit());
        } finally {
            lock.unlock();
        }
        oversize.forEach(batch -> finish(batch, null, OVERSIZE));
        pump();
        return true;
    }

    /**
     * Sets the largest count of a request. Returns the waiting batches that are larger. Their callers
     * must ask again, in smaller batches.
     */
    private List<Batch> limitCount(long limit) {
        List<Batch> oversize = new ArrayList<>();
        countLimit = limit;
        pending.removeIf(batch -> batch.count() > limit && oversize.add(batch));
        return oversize;
    }

    /**
     * Stops using the connection to the leader.
     *
     * @return the address of the second connection's node if it answers now, otherwise null
     */
    String disconnected() {
        lock.lock();
        try {
            leader = null;
            return hedger == null ? null : hedger.succeed();
        } finally {
            lock.unlock();
        }
    }

    /** Fails all calls, and leaves the leader. */
    void fail(EpicEpochException error) {
        Connection from;
        List<Batch> all;
        lock.lock();
        try {
            // Forget the connection and take all batches in one step, for two reasons. The thread
            // that reads this connection also fails all requests that it finds, with another error.
            // And an answer of the leader must not come for a request that no longer exists.
            from = leader;
            leader = null;
            all = takeAll(error);
        } finally {
            lock.unlock();
        }
        if (from != null) {
            from.leave(Connection.LEFT);
        }
        all.forEach(batch -> finish(batch, null, error));
    }

    /**
     * Ends every batch with an error, whether it was sent or not. The batch's callers decide
     * whether to ask again.
     */
    void failAll(EpicEpochException error) {
        List<Batch> all;
        lock.lock();
        try {
            all = takeAll(error);
        } finally {
            lock.unlock();
        }
        all.forEach(batch -> finish(batch, null, error));
    }

    private List<Batch> takeAll(EpicEpochException error) {
        List<Batch> all = batches();
        pending.clear();
        Arrays.fill(slots, null);
        inFlight = 0;
        lastError = error;
        return all;
    }

    /** Returns all batches, sent or not. */
    private List<Batch> batches() {
        List<Batch> all = new ArrayList<>(pending);
        all.addAll(sent());
        return all;
    }

    /** Returns the batches in flight. */
    List<Batch> sent() {
        List<Batch> sent = new ArrayList<>(inFlight);
        if (inFlight > 0) {
            for (Batch batch : slots) {
                if (batch != null) {
                    sent.add(batch);
                }
            }
        }
        return sent;
    }

    /**
     * Returns the age of the oldest request without an answer, in nanoseconds, or 0 if there is
     * none.
     */
    long oldest(long now) {
        lock.lock();
        try {
            long oldest = hedger == null ? 0 : hedger.oldest(now);
            for (Batch batch : sent()) {
                oldest = Math.max(oldest, batch.age(now));
            }
            return oldest;
        } finally {
            lock.unlock();
        }
    }

    /** Returns whether a request waits, or is in flight. The caller holds the lock. */
    boolean isAwaited() {
        return inFlight > 0 || !pending.isEmpty();
    }

    /** Waits until a call wants a leader, or until the deadline. */
    void awaitCalls(Deadline deadline) throws InterruptedException {
        lock.lock();
        try {
            while (pending.isEmpty() && !deadline.isOver()) {
                wanted.awaitNanos(deadline.left());
            }
        } finally {
            lock.unlock();
        }
    }

    /** Ends all calls, also those to come. They get the reason of the first close. */
    void close(EpicEpochException why) {
        lock.lock();
        try {
            if (closed == null) {
                closed = why;
            }
        } finally {
            lock.unlock();
        }
        fail(why);
    }
}
