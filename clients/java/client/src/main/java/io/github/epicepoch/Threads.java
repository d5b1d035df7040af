package io.github.epicepoch;

import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/** The threads of one client: daemons, few, and interrupted when the client is closed. */
final class Threads {
    /** How long closing waits for threads that run the program's own code, such as hooks. */
    private static final long CLOSE_SECONDS_MAX = 5;

    private final ThreadFactory factory =
            task -> {
                Thread thread = new Thread(task, "epicepoch");
                thread.setDaemon(true);
                return thread;
            };
    private final ExecutorService workers = Executors.newCachedThreadPool(factory);
    private final ScheduledThreadPoolExecutor timer = new ScheduledThreadPoolExecutor(1, factory);
    /** The function that is called when a task fails, which is a bug. */
    private final Consumer<Throwable> failed;

    Threads(Consumer<Throwable> failed) {
        this.failed = failed;
        timer.setRemoveOnCancelPolicy(true);
    }

    /** Runs a task on its own thread. Does nothing once the client is closed. */
    void run(Runnable task) {
        try {
            workers.execute(guarded(task));
        } catch (RejectedExecutionException closed) {
            // The client is closed.
        }
    }

    /**
     * Runs a short task after a while. Does nothing once the client is closed.
     *
     * @return the timer, or null if the client is closed
     */
    ScheduledFuture<?> after(long nanos, Runnable task) {
        try {
            return timer.schedule(guarded(task), nanos, TimeUnit.NANOSECONDS);
        } catch (RejectedExecutionException closed) {
            return null;
        }
    }

    /** Runs a short task again and again. Does nothing once the client is closed. */
    void every(long nanos, Runnable task) {
        try {
            timer.scheduleWithFixedDelay(guarded(task), nanos, nanos, TimeUnit.NANOSECONDS);
        } catch (RejectedExecutionException closed) {
            // The client is closed.
        }
    }

    private Runnable guarded(Runnable task) {
        return () -> {
            try {
                task.run();
            } catch (Throwable bug) {
                failed.accept(bug);
                throw bug;
            }
        };
    }

    /** Returns how many timers wait. Tests use it. */
    int timers() {
        return timer.getQueue().size();
    }

    boolean isClosed() {
        return workers.isShutdown();
    }

    /** Interrupts all threads, and waits until they have ended. */
    void close() {
        timer.shutdownNow();
        workers.shutdownNow();
        if (Thread.currentThread().getName().equals("epicepoch")) {
            // A hook has closed the client, so this is a thread of the client. It cannot wait for
            // its own end.
            return;
        }
        try {
            timer.awaitTermination(CLOSE_SECONDS_MAX, TimeUnit.SECONDS);
            workers.awaitTermination(CLOSE_SECONDS_MAX, TimeUnit.SECONDS);
        } catch (InterruptedException gaveUp) {
            Thread.currentThread().interrupt();
        }
    }
}
