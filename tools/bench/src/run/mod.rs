//! The generator: sends requests in an open or a closed loop and counts the results. Each thread
//! has its own runtime, connections and histograms, which are merged at the end.
//!
//! - [`config`]: what to do, and the transports. `window`: begin, warm-up and end. `pacer`: when
//!   each request is due.
//! - `load_connection`: what all connections share. `pipe` keeps a TCP connection busy, `channel`
//!   holds its bytes; `http1`, `h2c` and `native` are its protocols. `http3` and `client` drive
//!   libraries.
//! - `counts`: what is counted; `statistics`: the counts of one thread. [`time_series`]: the counts by interval. `checker`:
//!   checks answers.
//! - [`monitor`]: a measurement without an end. [`load`]: the load of tests; `kept`: its answers.
//! - [`measurement`]: the result, and whether the generator can be trusted.
//!
//! It never judges the service.

mod channel;
mod checker;
mod client;
pub mod config;
mod counts;
mod h2c;
mod http1;
mod http3;
mod kept;
pub mod load;
mod load_connection;
pub mod measurement;
pub mod monitor;
mod native;
mod pacer;
mod pipe;
mod statistics;
pub mod time_series;
mod window;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use tokio::task::{JoinSet, LocalSet};

pub use checker::Checked;
pub use config::{Arrivals, Pace, Routing, RunConfig, Target, Transport};
pub use counts::{Counts, Failures, Live, Wire, failure};
pub use measurement::{Bottleneck, Generator, Measurement};

use crate::hiccup::HiccupMeter;
use crate::machine::{self, CpuTicks, Machine};
use checker::{Checker, ToChecker};
use load_connection::LoadConnection;
use pacer::Pacer;
use statistics::{Shared, Statistics};
use time_series::TimeSeries;
use window::Window;

/// Runs a measurement to its end. Calls `watch` about once a second, also in the warm-up, with the
/// counts since the last call and the time since the first request.
///
/// # Panics
/// If a number of the configuration is out of its range, or a thread cannot be started.
pub fn run(config: RunConfig, mut watch: impl FnMut(&Live, Duration)) -> Measurement {
    config.assert_sound();
    let machine = Machine::read();
    let window = Window::new(&config, Instant::now() + HEAD_START);
    let shared = Arc::new(Shared::new(window));
    let threads = config.threads_used();
    let checking = config.verify.then(|| Checker::start(Instant::now(), threads));
    let (checker, lines) = checking.unzip();
    let config = Arc::new(config);
    let running = start(&config, &shared, lines.unwrap_or_default());
    let meter = HiccupMeter::start(window.from..window.end);
    let started = SystemTime::now() + window.from.saturating_duration_since(Instant::now());

    let mut look = Look::new(&shared, &mut watch);
    look.until(window.from);
    let before = Reading::take(&config);
    look.until(window.end);
    let after = Reading::take(&config);
    let load_after = machine::load();
    // The threads now wait for the last answers, at most as long as the request timeout.
    while !running.iter().all(JoinHandle::is_finished) {
        look.until(Instant::now() + LOOK_AT_THE_END);
    }
    look.take();
    let Look { time_series, mut counts, .. } = look;
    for thread in running {
        counts.merge(&thread.join().expect("a generator thread never panics"));
    }
    let over = Instant::now();
    let hiccups = meter.stop();
    let mut verified = checker.map(Checker::join);
    if let Some(checked) = &mut verified {
        checked.verdict.totals.unknown = counts::unknown(&counts.failures);
        checked.verdict.totals.refused = counts.refused();
        counts.unverified += checked.left_out;
    }
    // A spinning thread is always busy, so its busy time says nothing.
    let busy = counts.busy.filter(|_| !config.spin);
    let generator = Generator::new(&config, &counts, busy);
    Measurement {
        elapsed: shared.last_answer() - window.from,
        gap_max: shared.gap_max(over),
        checked: verified,
        generator,
        started,
        intervals: time_series.finish(&window, config.interval),
        hiccups,
        cpu_shares: before.shares_until(&after),
        server_cpu: before.server_cpu_until(&after, &config.pids),
        machine,
        load_after,
        counts,
        config: Arc::unwrap_or_clone(config),
    }
}

/// Adds up the counts that the threads hand over, and shows them once a second.
struct Look<'a, W> {
    shared: &'a Shared,
    watch: &'a mut W,
    time_series: TimeSeries,
    counts: Counts,
    live: Live,
    shown: Instant,
}

impl<'a, W: FnMut(&Live, Duration)> Look<'a, W> {
    fn new(shared: &'a Shared, watch: &'a mut W) -> Self {
        let (time_series, counts, live) = (TimeSeries::new(), Counts::new(), Live::new());
        Self { shared, watch, time_series, counts, live, shown: shared.window.began }
    }

    fn take(&mut self) {
        self.time_series.take(&self.shared.exchange, &mut self.counts, &mut self.live);
    }

    fn until(&mut self, end: Instant) {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(LOOK));
            self.take();
            let now = Instant::now();
            if now.saturating_duration_since(self.shown) >= SHOW {
                self.shown = now;
                (self.watch)(&self.live, now.saturating_duration_since(self.shared.window.began));
                self.live.clear();
            }
        }
    }
}

/// Starts the threads of a generator.
fn start(
    config: &Arc<RunConfig>,
    shared: &Arc<Shared>,
    lines: Vec<ToChecker>,
) -> Vec<JoinHandle<Counts>> {
    let mut lines = lines.into_iter();
    let threads = (0..config.threads_used()).map(|thread| {
        let (config, shared, checker) = (config.clone(), shared.clone(), lines.next());
        let body = move || drive(thread, &config, &shared, checker);
        let builder = std::thread::Builder::new().name(format!("bench-{thread}"));
        builder.spawn(body).expect("threads can be started")
    });
    threads.collect()
}

/// Sets `busy` to the share of the time between the warm-up and the end in which this thread ran or
/// waited for a processor. A busy thread makes both readings late. So the share is a share of the
/// time between the readings.
async fn watch_busy(window: Window, busy: Rc<Cell<Option<f64>>>) {
    tokio::time::sleep_until(window.from.into()).await;
    let (began, before) = (Instant::now(), machine::thread_busy());
    tokio::time::sleep_until(window.end.into()).await;
    let (wall, after) = (began.elapsed(), machine::thread_busy());
    let spent = after.zip(before).map(|(after, before)| after.saturating_sub(before));
    // A thread that made its first reading after half of the run had no time left: it counts as
    // busy all the time.
    let is_late = began > window.from + (window.end - window.from) / 2;
    let share = |spent: Duration| if is_late { 1.0 } else { spent.div_duration_f64(wall).min(1.0) };
    busy.set(spent.map(share));
}

fn drive(
    thread: usize,
    config: &Arc<RunConfig>,
    shared: &Arc<Shared>,
    checker: Option<ToChecker>,
) -> Counts {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    if config.spin {
        // Poll the sockets after every task.
        builder.event_interval(1);
    }
    let runtime = builder.enable_all().build().expect("a runtime can be built");
    if config.spin {
        runtime.spawn(spin());
    }
    let open_loop = matches!(config.pace, Pace::Open { .. });
    let statistics =
        Rc::new(RefCell::new(Statistics::new(shared.clone(), open_loop, config.interval, checker)));
    let (local, busy) = (LocalSet::new(), Rc::new(Cell::new(None)));
    let unsent = local.block_on(&runtime, async {
        let pacer = Pacer::new(config, shared.window, thread).expect("a timer can be made");
        let clock = pacer.clone();
        let keeping = tokio::task::spawn_local(async move { clock.keep_time().await });
        let ticked = statistics.clone();
        let ticking = tokio::task::spawn_local(async move {
            let mut ticks = tokio::time::interval(TICK);
            for tick in 0_u64.. {
                ticks.tick().await;
                ticked.borrow_mut().report_to_checker();
                if tick.is_multiple_of(TICKS_PER_PIECE) {
                    ticked.borrow_mut().hand_over();
                }
            }
        });
        tokio::time::sleep_until(shared.window.began.into()).await;
        let standing = tokio::task::spawn_local(stand_still(config.planted_standstill));
        let watching = tokio::task::spawn_local(watch_busy(shared.window, busy.clone()));
        let mut tasks = JoinSet::new();
        for connection in (thread..config.connections).step_by(config.threads_used()) {
            let load = LoadConnection::new(
                connection,
                config.clone(),
                pacer.clone(),
                statistics.clone(),
                shared.clone(),
            );
            match config.transport_of(connection) {
                Transport::Http1 { pipeline } => {
                    tasks.spawn_local(pipe::drive::<http1::Answers>(load, pipeline))
                }
                Transport::H2c { streams } => {
                    tasks.spawn_local(pipe::drive::<h2c::Streams>(load, streams))
                }
                Transport::Http3 { streams } => tasks.spawn_local(http3::drive(load, streams)),
                Transport::Native { in_flight } => {
                    tasks.spawn_local(pipe::drive::<native::Ids>(load, in_flight))
                }
                Transport::Client { callers } => tasks.spawn_local(client::drive(load, callers)),
            };
        }
        let is_whole = tokio::select! {
            () = async { while tasks.join_next().await.is_some() {} } => true,
            () = shared.stopped() => false,
        };
        tasks.shutdown().await;
        ticking.abort();
        keeping.abort();
        standing.abort();
        // A thread without idle time may still have to make its last reading, so wait for it. A
        // load that was ended makes no last reading.
        if is_whole && !shared.is_ending() {
            let _done = watching.await;
        } else {
            watching.abort();
        }
        let _aborted = (ticking.await, keeping.await, standing.await);
        // A run that was stopped early has no planned end, so no request counts as unsent.
        if is_whole { pacer.unsent() } else { 0 }
    });
    drop(local);
    let statistics = Rc::try_unwrap(statistics).expect("every task has ended").into_inner();
    let mut counts = statistics.finish();
    counts.unsent += unsent;
    counts.busy = busy.get();
    counts
}

/// Starts the threads of a measurement without an end, and the checker if there is one.
fn start_endless(
    config: RunConfig,
    shared: &Arc<Shared>,
) -> (Vec<JoinHandle<Counts>>, Option<Checker>) {
    config.assert_sound();
    let threads = config.threads_used();
    let checking = config.verify.then(|| Checker::start(Instant::now(), threads));
    let (checker, lines) = checking.unzip();
    (start(&Arc::new(config), shared, lines.unwrap_or_default()), checker)
}

/// Keeps a runtime from sleeping.
async fn spin() {
    loop {
        tokio::task::yield_now().await;
    }
}

/// Stops the thread from time to time: see [`RunConfig::planted_standstill`].
async fn stand_still(length: Duration) {
    while !length.is_zero() {
        tokio::time::sleep(STANDSTILLS_APART).await;
        std::thread::sleep(length);
    }
}

/// The kernel's counters at one moment.
struct Reading {
    ticks: Option<CpuTicks>,
    servers: Vec<Option<Duration>>,
}

impl Reading {
    fn take(config: &RunConfig) -> Self {
        let servers = config.pids.iter().map(|pid| machine::process_cpu(*pid)).collect();
        Self { ticks: CpuTicks::read(), servers }
    }

    fn shares_until(&self, after: &Self) -> Option<(f64, f64)> {
        Some(after.ticks?.shares_since(self.ticks?))
    }

    fn server_cpu_until(&self, after: &Self, pids: &[u32]) -> Vec<(u32, Option<Duration>)> {
        let spent = self.servers.iter().zip(&after.servers);
        let spent = spent.map(|(from, to)| Some((*to)?.saturating_sub((*from)?)));
        pids.iter().copied().zip(spent).collect()
    }
}

/// Time from the start of the threads to the first request.
const HEAD_START: Duration = Duration::from_millis(20);
/// Time between two reports of a thread to the checker.
const TICK: Duration = Duration::from_millis(100);
/// A thread hands over its counts after this many reports to the checker.
const TICKS_PER_PIECE: u64 = 5;
/// Time between two planted standstills.
const STANDSTILLS_APART: Duration = Duration::from_millis(500);
/// Time between two moments at which the counts of all threads are added up.
const LOOK: Duration = Duration::from_millis(250);
/// At the end of a run, while the last answers come: time between two moments at which the counts
/// of all threads are added up.
const LOOK_AT_THE_END: Duration = Duration::from_millis(5);
/// Time between two calls of `watch`.
const SHOW: Duration = Duration::from_secs(1);
