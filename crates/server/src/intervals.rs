//! Interval mode of this node: its clock source and its [`Stamper`] behind one lock, and the marks
//! on their way to the disk. It decides nothing about timestamps.
//!
//! - `sampler`: a thread that reads the source while nobody asks.

pub(crate) mod sampler;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

use epicepoch_core::interval::peers::{Agreement, PeerIntervals};
use epicepoch_core::interval::{NodeIdTooHigh, Opening, Reading, Stamper, Uncertain};
use epicepoch_core::publication::Published;
use epicepoch_storage::Intervals as Stored;
use epicepoch_time_source::{SourceSetting, TimeSource, raw_ns};
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::interval::IntervalStamp;
use epicepoch_wire::{Mode, NodeId};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::abort::AbortOnPanic;
use crate::config::Config;
use crate::faults::Faults;

/// A request waits at most this long for a mark on the disk.
const MARK_WAIT_MAX: Duration = Duration::from_secs(1);

/// A source that gave no reading is asked again after this time.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Writes a mark, Unix nanoseconds, and returns at once. [`Intervals::handle_mark`] says that it is
/// durable.
type WriteMark = Box<dyn Fn(u64) + Send + Sync>;

/// Gives the interval timestamps of a node.
pub struct Intervals {
    /// `INTERVAL_SOURCE`; `None` if it is not set.
    setting: Option<String>,
    inner: Mutex<Inner>,
    /// What the other voters have told of the time, taken after `inner`. The consensus thread takes
    /// it alone: it must not wait for a clock source.
    peers: Mutex<PeerIntervals>,
    /// The last reading of the sampler, which is told to the others; taken alone.
    sampled: Mutex<Option<Reading>>,
    /// The highest mark that is on the disk, for the stamper. The storage thread must not wait for
    /// `inner`: a worker may ask the clock source under that lock.
    durable_ns: AtomicU64,
    /// The change of the mode for which this node is to stop giving timestamps; 0 for none. Whoever
    /// has the lock of `inner` obeys it before the stamper is asked (S26).
    closing: AtomicU64,
    /// The durable mark.
    marked: watch::Sender<u64>,
    write_mark: OnceLock<WriteMark>,
}

struct Inner {
    stamper: Result<Stamper, NodeIdTooHigh>,
    source: Source,
}

/// The clock source.
#[derive(Default)]
struct Source {
    open: Option<TimeSource>,
    /// Makes the clock wrong in tests.
    faults: Faults,
    /// When the source last gave no reading, and why.
    failed: Option<(Instant, Refused)>,
}

/// Why a node gives no interval timestamp.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refused {
    /// The cluster is in quorum mode, as far as this node knows.
    #[error("MODE is quorum here; ask for /timestamp, or have an operator change the mode")]
    QuorumMode,
    /// Interval mode closes.
    #[error(
        "MODE becomes quorum, and this node gives no more intervals; epicepoch settings list \
             says which nodes are waited for"
    )]
    Closing,
    /// This node has applied that it was removed.
    #[error("this node was removed from the cluster; ask another node")]
    Removed,
    /// An earlier leader may still answer by its lease.
    #[error("a lease of quorum mode may not be over; retry")]
    LeaseRuns,
    /// No source of clock bounds is configured.
    #[error("INTERVAL_SOURCE of this node is not set")]
    NoSource,
    /// The source does not know the bound of the clock.
    #[error("the clock source {name} gives no reading: {reason}")]
    Source {
        /// `INTERVAL_SOURCE`.
        name: String,
        /// What the source says.
        reason: String,
    },
    /// The node id is too high.
    #[error(transparent)]
    Node(#[from] NodeIdTooHigh),
    /// The reading allows no timestamp.
    #[error(transparent)]
    Uncertain(#[from] Uncertain),
}

impl Refused {
    /// The code for clients.
    #[must_use]
    pub fn code(&self, published: &Published) -> ErrorCode {
        match self {
            _ if !published.is_joined() => ErrorCode::NotReady,
            Self::QuorumMode => ErrorCode::OtherMode,
            Self::Uncertain(Uncertain::Stopped) => ErrorCode::ShuttingDown,
            Self::Closing
            | Self::Removed
            | Self::LeaseRuns
            | Self::NoSource
            | Self::Source { .. }
            | Self::Node(_)
            | Self::Uncertain(_) => ErrorCode::Uncertain,
        }
    }
}

/// What a node knows of its clock now, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntervalState {
    /// The source, as it was set; `None` if it is not set.
    pub source: Option<String>,
    /// Half the width of the interval, nanoseconds; `None` if it is not known.
    pub bound_ns: Option<u64>,
    /// The durable mark, Unix nanoseconds.
    pub mark_ns: u64,
    /// The intervals of this node and the other voters; `None` if this node's own is not known.
    pub agreement: Option<Agreement>,
    /// Why the node gives no interval timestamps; `None` if it does.
    pub refusal: Option<String>,
    /// Whether interval mode closes, as this node has applied it (S26).
    pub is_closing: bool,
}

impl Intervals {
    /// The intervals of a run of `node`, which begins with what its data directory has.
    #[must_use]
    pub fn new(node: NodeId, stored: Stored, setting: Option<String>, bound_max: Duration) -> Self {
        let Stored { mark_ns, closed } = stored;
        let bound_max_ns = u64::try_from(bound_max.as_nanos()).unwrap_or(u64::MAX);
        let stamper = Stamper::new(node, mark_ns, closed, bound_max_ns);
        Self {
            setting,
            inner: Mutex::new(Inner { stamper, source: Source::default() }),
            peers: Mutex::new(PeerIntervals::new(node)),
            sampled: Mutex::new(None),
            durable_ns: AtomicU64::new(mark_ns),
            closing: AtomicU64::new(0),
            marked: watch::Sender::new(mark_ns),
            write_mark: OnceLock::new(),
        }
    }

    /// The intervals of a run of the node with this configuration.
    #[must_use]
    pub fn of(config: &Config, stored: Stored, faults: Faults) -> Self {
        let settings = config.intervals.clone();
        let mut it = Self::new(config.node_id, stored, settings.source, settings.bound_max);
        it.inner.get_mut().unwrap_or_else(PoisonError::into_inner).source.faults = faults;
        it
    }

    /// Gives the function that writes marks. Until then, no timestamp needs one that is not there.
    pub fn set_writer(&self, write_mark: impl Fn(u64) + Send + Sync + 'static) {
        // A node has one storage thread, so this is called once.
        let _is_set = self.write_mark.set(Box::new(write_mark));
    }

    /// Takes `n` timestamps for a request that has arrived. Waits for a mark that is on its way to
    /// the disk, for a second at most, and then reads the clock again.
    ///
    /// # Errors
    /// Why nothing is given.
    pub async fn stamp(&self, published: &Published, n: u64) -> Result<IntervalStamp, Refused> {
        let deadline = Instant::now() + MARK_WAIT_MAX;
        let mut marked = self.marked.subscribe();
        loop {
            let outcome = self.stamp_at_once(published, n);
            if outcome != Err(Refused::Uncertain(Uncertain::MarkBehind)) {
                return outcome;
            }
            // The sender lives as long as `self`.
            if timeout_at(deadline, marked.changed()).await.is_err() {
                return outcome;
            }
        }
    }

    /// Like [`Intervals::stamp`], without waiting.
    ///
    /// # Errors
    /// Why nothing is given now.
    pub fn stamp_at_once(&self, published: &Published, n: u64) -> Result<IntervalStamp, Refused> {
        let outcome = self.read(published, |stamper, opening, reading, peers| {
            stamper.stamp(opening, reading, peers, n)
        });
        outcome.map(|(_, stamp)| stamp)
    }

    /// Reads the source while nobody asks, so that it notices what happens to the clock, and has the
    /// mark written that the next request needs.
    ///
    /// # Errors
    /// Why the node gives no timestamps now.
    pub(crate) fn sample(&self, published: &Published) -> Result<(), Refused> {
        let taken = self.read(published, |stamper, opening, reading, peers| {
            // A node that refuses goes on to tell the others its time: they compare it with theirs.
            Ok(stamper.sample(opening, reading, peers))
        });
        *lock(&self.sampled) = taken.as_ref().ok().map(|(reading, _)| *reading);
        let (_, outcome) = taken?;
        Ok(outcome?)
    }

    /// Reads the source, and passes the reading to the stamper.
    fn read<T>(
        &self,
        published: &Published,
        take: impl FnOnce(&mut Stamper, Opening, Reading, &PeerIntervals) -> Result<T, Uncertain>,
    ) -> Result<(Reading, T), Refused> {
        let opening = opening(published)?;
        // A client's task that panics ends alone. A broken rule of the stamper must end the process.
        let _abort = AbortOnPanic("interval timestamps");
        let mut inner = lock(&self.inner);
        let inner = &mut *inner;
        let stamper = inner.stamper.as_mut().map_err(|error| *error)?;
        // S26: `published` may have been read before the node was told to stop.
        self.obey(stamper);
        // Read under the lock, after the request has arrived.
        let reading = inner.source.read(self.setting.as_deref())?;
        stamper.handle_mark(self.durable_ns.load(Ordering::Acquire));
        let outcome = {
            let mut peers = lock(&self.peers);
            peers.begin(opening.change, reading.raw_from_ns);
            take(stamper, opening, reading, &peers)
        };
        if let (Some(mark_ns), Some(write_mark)) = (stamper.poll_mark(), self.write_mark.get()) {
            write_mark(mark_ns);
        }
        Ok((reading, outcome?))
    }

    /// Names the voters, whose intervals are compared.
    pub fn set_voters(&self, voters: impl Iterator<Item = NodeId>) {
        lock(&self.peers).set_voters(voters);
    }

    /// Takes what a peer told of the time when it answered a ping, and the round trip of that by the
    /// monotonic clock, nanoseconds; `None` if the peer does not know the time. The answer had arrived
    /// at `arrived_raw_ns` of the raw clock.
    pub fn handle_report(
        &self,
        peer: NodeId,
        told: Option<((u64, u64), u64)>,
        arrived_raw_ns: u64,
    ) {
        // The monotonic clock may be slewed by up to an eleventh.
        let trip_ns = told.map_or(0, |(_, trip_ns)| trip_ns.saturating_add(trip_ns / 8));
        let told = told.map(|(interval, _)| interval);
        lock(&self.peers).handle_report(peer, told, trip_ns, arrived_raw_ns);
    }

    /// What this node tells a peer of the time now: the earliest and the latest time. `None` in
    /// quorum mode, and if the sampler's last reading has failed or is old.
    #[must_use]
    pub fn told(&self) -> Option<(u64, u64)> {
        let sampled = *lock(&self.sampled);
        sampled?.at(raw_ns())
    }

    /// A mark is on the disk.
    pub fn handle_mark(&self, mark_ns: u64) {
        self.durable_ns.fetch_max(mark_ns, Ordering::AcqRel);
        self.marked.send_replace(mark_ns);
    }

    /// Stops giving timestamps until a later change of the mode than `change` is applied (S26). Returns
    /// the highest time that was given, or `None` while another thread holds the lock: then call it
    /// again. Tell nobody before `change` is durable.
    pub fn close(&self, change: u64) -> Option<u64> {
        self.closing.fetch_max(change, Ordering::SeqCst);
        let mut inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // A worker asks the clock source under the lock, and this thread must not wait for that.
            Err(TryLockError::WouldBlock) => return None,
        };
        match &mut inner.stamper {
            Ok(stamper) => Some(self.obey(stamper)),
            // A node with such an id has given nothing.
            Err(NodeIdTooHigh(_)) => Some(0),
        }
    }

    /// Closes the stamper if this node was told to stop. Returns the highest time that was given.
    fn obey(&self, stamper: &mut Stamper) -> u64 {
        stamper.close(self.closing.load(Ordering::SeqCst))
    }

    /// Gives nothing any more, and has the exact mark written. Called after the workers have ended
    /// and before the storage thread does.
    pub fn stop(&self) {
        let mut inner = lock(&self.inner);
        let Ok(stamper) = &mut inner.stamper else { return };
        stamper.handle_mark(self.durable_ns.load(Ordering::Acquire));
        let (before_ns, exact_ns) = (stamper.mark_ns(), stamper.stop());
        if exact_ns != before_ns
            && let Some(write_mark) = self.write_mark.get()
        {
            write_mark(exact_ns);
        }
    }

    /// Reads the clock, for people, and says whether this node would give timestamps. It takes none.
    #[must_use]
    pub fn state(&self, published: &Published) -> IntervalState {
        let mut inner = lock(&self.inner);
        let inner = &mut *inner;
        let reading = inner.source.read(self.setting.as_deref());
        let bound_ns = reading.as_ref().ok().and_then(|it| {
            it.latest_ns.checked_sub(it.earliest_ns).map(|width_ns| width_ns.div_ceil(2))
        });
        let mut peers = lock(&self.peers);
        if let (Ok(opening), Ok(reading)) = (opening(published), &reading) {
            peers.begin(opening.change, reading.raw_from_ns);
        }
        let agreement = reading.as_ref().ok().map(|reading| peers.compare(reading));
        let refusal = match (opening(published), &inner.stamper, reading) {
            (Err(refused), ..) | (Ok(_), Ok(_), Err(refused)) => Some(refused),
            (Ok(_), Err(error), _) => Some(Refused::Node(*error)),
            (Ok(opening), Ok(stamper), Ok(reading)) => {
                stamper.would_refuse(opening, reading, &peers).map(Refused::Uncertain)
            }
        };
        IntervalState {
            source: self.setting.clone(),
            bound_ns,
            mark_ns: *self.marked.borrow(),
            agreement,
            refusal: refusal.map(|refused| refused.to_string()),
            is_closing: published.closing.is_some(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Interval mode as this node has applied it, if it may give timestamps.
fn opening(published: &Published) -> Result<Opening, Refused> {
    match (published.mode, published.opening) {
        (Mode::Quorum, _) => Err(Refused::QuorumMode),
        (Mode::Interval, None) if published.closing.is_some() => Err(Refused::Closing),
        (Mode::Interval, None) if !published.is_joined() => Err(Refused::Removed),
        (Mode::Interval, None) => Err(Refused::LeaseRuns),
        (Mode::Interval, Some(opening)) => Ok(opening),
    }
}

impl Source {
    /// Reads the source, and opens it first if it is not open. A source that has failed is not asked
    /// again for [`RETRY_AFTER`]: one that does not answer keeps the worker waiting each time.
    fn read(&mut self, setting: Option<&str>) -> Result<Reading, Refused> {
        let setting = setting.ok_or(Refused::NoSource)?;
        if let Some((at, refused)) = &self.failed
            && at.elapsed() < RETRY_AFTER
        {
            return Err(refused.clone());
        }
        let reading = self.ask(setting);
        self.failed = reading.as_ref().err().map(|refused| (Instant::now(), refused.clone()));
        reading
    }

    fn ask(&mut self, setting: &str) -> Result<Reading, Refused> {
        let unknown = |reason: String| Refused::Source { name: setting.to_owned(), reason };
        let source = if let Some(source) = &mut self.open {
            source
        } else {
            let parsed = setting.parse::<SourceSetting>().map_err(|it| unknown(it.to_string()))?;
            self.open.insert(TimeSource::open(&parsed).map_err(|it| unknown(it.to_string()))?)
        };
        let raw_from_ns = raw_ns();
        let reading = source.read();
        let raw_until_ns = raw_ns();
        if reading.is_err() && source.is_of_segment() {
            // Only a segment that is opened again is that of a daemon which was started again. Its
            // readings name the disruption, so the stamper waits.
            self.open = None;
        }
        let reading = reading.map_err(|it| unknown(it.to_string()))?;
        let epicepoch_time_source::Reading { earliest_ns, latest_ns, disruption } = reading;
        let wrong_ns = self.faults.wall_offset_ns();
        let (earliest_ns, latest_ns) = (
            earliest_ns.saturating_add_signed(wrong_ns),
            latest_ns.saturating_add_signed(wrong_ns),
        );
        Ok(Reading { earliest_ns, latest_ns, disruption, raw_from_ns, raw_until_ns })
    }
}

impl fmt::Debug for Intervals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Intervals").field("setting", &self.setting).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use epicepoch_core::publication::Identity;
    use epicepoch_wire::bootstrap::Member;
    use epicepoch_wire::{BootId, Epoch, StoreId};

    use super::*;

    const NODE: NodeId = NodeId(3);

    fn published(mode: Mode, ceiling: Option<Epoch>) -> Published {
        let identity = Identity { node: NODE, store: StoreId(1), boot: BootId(1) };
        let opening = ceiling.map(|ceiling| Opening { ceiling, change: 1 });
        let (raft_addr, client_addr) = ("n3:1".to_owned(), "n3:2".to_owned());
        let me = Member { node: NODE, store: StoreId(1), raft_addr, client_addr };
        let members = Arc::new([(NODE, me)].into());
        Published { mode, opening, members, ..Published::nothing(identity) }
    }

    fn open() -> Published {
        published(Mode::Interval, Some(Epoch(1)))
    }

    /// The intervals of a node that is the only voter.
    fn intervals(mark_ns: u64, source: Option<&str>) -> Arc<Intervals> {
        let source = source.map(str::to_owned);
        let stored = Stored { mark_ns, closed: 0 };
        let intervals = Intervals::new(NODE, stored, source, Duration::from_millis(10));
        intervals.set_voters([NODE].into_iter());
        Arc::new(intervals)
    }

    /// A node whose disk acknowledges every mark at once.
    fn with_disk(mark_ns: u64, source: &str) -> (Arc<Intervals>, Arc<Mutex<Vec<u64>>>) {
        let intervals = intervals(mark_ns, Some(source));
        let written = Arc::new(Mutex::new(Vec::new()));
        let (marks, disk) = std::sync::mpsc::channel();
        intervals.set_writer(move |mark_ns| {
            let _ended = marks.send(mark_ns);
        });
        let (node, list) = (Arc::downgrade(&intervals), Arc::clone(&written));
        std::thread::spawn(move || {
            for mark_ns in disk {
                list.lock().unwrap().push(mark_ns);
                if let Some(node) = node.upgrade() {
                    node.handle_mark(mark_ns);
                }
            }
        });
        (intervals, written)
    }

    #[tokio::test]
    async fn a_request_waits_for_the_mark_that_it_needs() {
        let (intervals, written) = with_disk(0, "fixed=1ms");
        let first = intervals.stamp(&open(), 2).await.unwrap();
        let second = intervals.stamp(&open(), 1).await.unwrap();
        assert!(second.timestamp() > first.timestamp());
        assert_eq!((first.node(), first.count(), second.count()), (NODE, 0, 2));
        let marks = written.lock().unwrap().clone();
        assert!(marks[0] > first.latest_ns(), "{marks:?}");
        let state = intervals.state(&open());
        assert_eq!((state.bound_ns, state.refusal), (Some(1_000_000), None));
    }

    #[tokio::test]
    async fn without_a_disk_a_request_is_refused_in_time() {
        let intervals = intervals(0, Some("fixed=1ms"));
        let refused = Err(Refused::Uncertain(Uncertain::MarkBehind));
        assert_eq!(intervals.stamp(&open(), 1).await, refused);
    }

    /// A client's task catches panics. The broken rule of a stamper must end the process even so.
    #[test]
    fn a_stamper_that_fails_ends_the_process() {
        const NAME: &str = "intervals::tests::a_stamper_that_fails_ends_the_process";
        const CHILD: &str = "EPICEPOCH_TEST_STAMPER_FAILS";
        if std::env::var_os(CHILD).is_some() {
            let intervals = intervals(0, Some("fixed=1ms"));
            let failed = || intervals.read::<()>(&open(), |_, _, _, _| panic!("S24: planned"));
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(failed));
            println!("the process goes on: {}", caught.is_err());
            return;
        }
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let ended = child.args([NAME, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(!ended.status.success() && !said.contains("the process goes on"), "{said}");
        assert!(String::from_utf8_lossy(&ended.stderr).contains("S24: planned"), "{ended:?}");
    }

    #[test]
    fn after_samples_the_first_request_is_answered_at_once() {
        let (intervals, written) = with_disk(0, "fixed=1ms");
        let refused = Err(Refused::Uncertain(Uncertain::MarkBehind));
        assert_eq!(intervals.stamp_at_once(&open(), 1), refused, "nothing was sampled");
        let began = std::time::Instant::now();
        // A mark may come late from the disk, so samples go on, as the sampler's do.
        let mut count = written.lock().unwrap().len();
        while intervals.stamp_at_once(&open(), 1).is_err() {
            assert!(began.elapsed() < Duration::from_secs(30), "after {count} marks");
            assert_eq!(intervals.sample(&open()), Ok(()));
            count = written.lock().unwrap().len();
            std::thread::yield_now();
        }
        let quorum = published(Mode::Quorum, None);
        assert_eq!(intervals.sample(&quorum), Err(Refused::QuorumMode));
    }

    /// Another node of the same machine, so that the raw clocks are one.
    #[test]
    fn a_node_tells_its_time_and_refuses_if_another_contradicts_it() {
        let (intervals, _disk) = with_disk(0, "fixed=1ms");
        assert_eq!(intervals.told(), None, "nothing was sampled");
        intervals.set_voters([NODE, NodeId(4)].into_iter());
        let unheard = Err(Refused::Uncertain(Uncertain::Unheard));
        assert_eq!(intervals.sample(&open()), unheard);
        // A node that refuses tells its time, too.
        let (earliest_ns, latest_ns) = intervals.told().unwrap();
        assert!(latest_ns - earliest_ns >= 2_000_000);
        let told = |ahead_ns: u64| Some(((earliest_ns + ahead_ns, latest_ns + ahead_ns), 0));
        intervals.handle_report(NodeId(4), told(1_000_000_000_000), raw_ns());
        let refusal = intervals.state(&open()).refusal.unwrap();
        assert!(refusal.contains("contradicts 1 of the 1 other voters"), "{refusal}");
        let contradicted = Uncertain::Contradicted { others: 1, known: 1 };
        assert_eq!(intervals.sample(&open()), Err(Refused::Uncertain(contradicted)));
        let refused = intervals.stamp_at_once(&open(), 1);
        assert_eq!(refused, Err(Refused::Uncertain(contradicted)));
        // An interval that holds every moment contradicts none.
        let wide = Some(((0, u64::MAX), 0));
        intervals.handle_report(NodeId(4), wide, raw_ns());
        assert_eq!(intervals.sample(&open()), Ok(()));
        let agreement = Agreement { known: 2, agreeing: 2 };
        assert_eq!(intervals.state(&open()).agreement, Some(agreement));
        intervals.handle_report(NodeId(4), None, raw_ns());
        let agreement = Agreement { known: 1, agreeing: 1 };
        assert_eq!(intervals.state(&open()).agreement, Some(agreement));
    }

    #[tokio::test]
    async fn a_stop_writes_the_exact_mark() {
        let (intervals, written) = with_disk(0, "fixed=1ms");
        let last = intervals.stamp(&open(), 2).await.unwrap();
        intervals.stop();
        let began = Instant::now();
        while written.lock().unwrap().last() != Some(&last.latest_ns()) {
            assert!(began.elapsed() < Duration::from_secs(30), "{:?}", written.lock().unwrap());
            tokio::task::yield_now().await;
        }
        let refused = intervals.stamp(&open(), 1).await;
        assert_eq!(refused, Err(Refused::Uncertain(Uncertain::Stopped)));
    }

    #[tokio::test]
    async fn a_node_refuses_in_quorum_mode_and_without_a_source() {
        let quorum = published(Mode::Quorum, None);
        let held = published(Mode::Interval, None);
        let removed = Published { members: Arc::default(), ..held.clone() };
        let (with, without) = (intervals(0, Some("fixed=1ms")), intervals(0, None));
        assert_eq!(with.stamp(&quorum, 1).await, Err(Refused::QuorumMode));
        assert_eq!(with.stamp(&held, 1).await, Err(Refused::LeaseRuns));
        assert_eq!(with.stamp(&removed, 1).await, Err(Refused::Removed));
        assert_eq!(without.stamp(&open(), 1).await, Err(Refused::NoSource));
        let wide = intervals(0, Some("fixed=11ms"));
        let refused = wide.stamp(&open(), 1).await;
        assert!(matches!(refused, Err(Refused::Uncertain(Uncertain::TooWide { .. }))));
        assert!(wide.state(&open()).refusal.unwrap().contains("INTERVAL_BOUND_MAX_MS"));
        assert_eq!(without.state(&open()).source, None);
        let high = Intervals::new(NodeId(40_000), Stored::default(), None, Duration::ZERO);
        assert!(matches!(high.stamp(&open(), 1).await, Err(Refused::Node(_))));
    }

    /// S26: the publication that a request was read with may be older than the order to stop.
    #[tokio::test]
    async fn a_node_that_was_told_to_stop_gives_nothing_by_an_older_publication() {
        let (intervals, _) = with_disk(0, "fixed=1ms");
        let last = intervals.stamp(&open(), 2).await.unwrap();
        let held = lock(&intervals.inner);
        assert_eq!(intervals.close(2), None, "a worker holds the lock");
        drop(held);
        let closed = Err(Refused::Uncertain(Uncertain::Closed { closed: 2 }));
        assert_eq!(intervals.stamp(&open(), 1).await, closed);
        assert_eq!(intervals.close(2), Some(last.latest_ns()));
        let closing = Published { closing: Some(2), ..published(Mode::Interval, None) };
        assert_eq!(intervals.stamp(&closing, 1).await, Err(Refused::Closing));
        assert!(intervals.state(&closing).refusal.unwrap().contains("MODE becomes quorum"));
        // The change is cancelled.
        let opening = Some(Opening { ceiling: Epoch(1), change: 3 });
        let again = Published { opening, ..open() };
        assert!(intervals.stamp(&again, 1).await.unwrap().timestamp() > last.timestamp());
    }
}
