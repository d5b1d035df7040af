//! Looks up the names of peers. A system offers this only as a blocking call, which can take as long
//! as a name server that does not answer. So each lookup has a thread of its own, all tasks of the
//! node that want the same name share one lookup, and a lookup that hangs holds up no other name.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::sync::watch;

/// At most this many lookups run at a time. Each is for another name, and a cluster has fewer
/// members.
const LOOKUPS_MAX: usize = 64;
/// An answer is used for this long, also by tasks that ask after it has come. The reason: an attempt
/// to connect lasts a second. Without this, a name server that takes longer would never be in time.
const KEPT: Duration = Duration::from_secs(2);
/// A lookup that takes longer is logged, and again after each [`LOGGED_EVERY`].
const LATE: Duration = Duration::from_secs(1);
const LOGGED_EVERY: Duration = Duration::from_secs(10);

/// The addresses of a name, or the error of its lookup.
type Answer = Result<Vec<SocketAddr>, (io::ErrorKind, String)>;
/// Looks up one name (`host:port`), and blocks until there is an answer.
type Lookup = dyn Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// Looks up names for all tasks of a node.
pub(crate) struct Resolver {
    lookup: Arc<Lookup>,
    /// The processors of the thread that made the resolver. A thread inherits those of its starter,
    /// and workers may have only one.
    cpus: Option<CpuSet>,
    running: Mutex<BTreeMap<String, Running>>,
}

/// A lookup that has begun.
struct Running {
    began: Instant,
    logged: Option<Instant>,
    answer: watch::Receiver<Option<(Instant, Answer)>>,
}

impl Debug for Resolver {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Resolver").finish_non_exhaustive()
    }
}

impl Default for Resolver {
    fn default() -> Self {
        Self::with(|addr| Ok(addr.to_socket_addrs()?.collect()))
    }
}

impl Resolver {
    pub(super) fn with(
        lookup: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        let cpus = sched_getaffinity(None).ok();
        Self { lookup: Arc::new(lookup), cpus, running: Mutex::default() }
    }

    /// Returns the addresses of `addr` (`host:port`). Cancel safe: the lookup goes on, and the next
    /// call for the same name gets its answer.
    ///
    /// # Errors
    /// When the name has no address, or no name server answers, or too many lookups run.
    pub(crate) async fn resolve(&self, addr: &str) -> io::Result<Vec<SocketAddr>> {
        if let Ok(literal) = addr.parse() {
            return Ok(vec![literal]);
        }
        let mut answer = self.begin(addr)?;
        let answered = answer.wait_for(Option::is_some).await;
        let gone = || io::Error::other("the lookup ended without an answer");
        let (_, answer) = answered.map_err(|_| gone())?.clone().ok_or_else(gone)?;
        answer.map_err(|(kind, text)| io::Error::new(kind, text))
    }

    /// Begins a lookup, or takes part in one that has begun.
    fn begin(&self, addr: &str) -> io::Result<watch::Receiver<Option<(Instant, Answer)>>> {
        let now = Instant::now();
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|_, it| it.is_of_use(now));
        if let Some(it) = running.get_mut(addr) {
            it.log_if_late(addr, now);
            return Ok(it.answer.clone());
        }
        if running.len() >= LOOKUPS_MAX {
            return Err(io::Error::other("too many names are being looked up"));
        }
        let (sender, answer) = watch::channel(None);
        let (lookup, name, cpus) = (self.lookup.clone(), addr.to_owned(), self.cpus);
        thread::Builder::new().name("resolve".to_owned()).spawn(move || {
            if let Some(error) = cpus.and_then(|cpus| sched_setaffinity(None, &cpus).err()) {
                tracing::warn!(%error, "a resolver stays on its worker's processor");
            }
            let answer = lookup(&name).map_err(|error| (error.kind(), error.to_string()));
            sender.send_replace(Some((Instant::now(), answer)));
        })?;
        running
            .insert(addr.to_owned(), Running { began: now, logged: None, answer: answer.clone() });
        Ok(answer)
    }
}

impl Running {
    /// Whether a new task may take part: the answer is still to come, or it names addresses and is
    /// not old. After a failure, the next task begins another lookup.
    fn is_of_use(&self, now: Instant) -> bool {
        match &*self.answer.borrow() {
            None => self.answer.has_changed().is_ok(),
            Some((at, Ok(_))) => now.saturating_duration_since(*at) < KEPT,
            Some((_, Err(_))) => false,
        }
    }

    fn log_if_late(&mut self, addr: &str, now: Instant) {
        let took = now.saturating_duration_since(self.began);
        let is_waiting = self.answer.borrow().is_none();
        let is_new = self.logged.is_none_or(|at| now.saturating_duration_since(at) >= LOGGED_EVERY);
        if is_waiting && took >= LATE && is_new {
            self.logged = Some(now);
            let waited_ms = took.as_millis() as u64;
            tracing::warn!(addr, waited_ms, "no answer from the name server yet");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Sender, channel};

    use tokio::time::timeout;

    use super::*;

    const ADDR: ([u8; 4], u16) = ([10, 0, 0, 2], 60001);
    const WAIT_MAX: Duration = Duration::from_mins(1);

    /// A resolver whose answers the test gives, and how many lookups have begun.
    fn by_hand() -> (Arc<Resolver>, Sender<io::Result<Vec<SocketAddr>>>, Arc<AtomicUsize>) {
        let (answers, given) = channel();
        let (begun, given) = (Arc::new(AtomicUsize::new(0)), Mutex::new(given));
        let count = begun.clone();
        let resolver = Resolver::with(move |name| {
            if name == "other:1" {
                return Ok(vec![ADDR.into()]);
            }
            count.fetch_add(1, Ordering::Relaxed);
            given.lock().unwrap().recv_timeout(WAIT_MAX).expect("an answer of the test")
        });
        (Arc::new(resolver), answers, begun)
    }

    #[tokio::test(flavor = "current_thread")]
    async fn one_lookup_serves_all_and_an_attempt_that_gave_up_finds_its_answer() {
        let (resolver, answers, begun) = by_hand();
        let gave_up = timeout(Duration::from_millis(1), resolver.resolve("n2:1")).await;
        assert!(gave_up.is_err());
        let (one, two) = (resolver.clone(), resolver.clone());
        answers.send(Ok(vec![ADDR.into()])).unwrap();
        let both = tokio::join!(one.resolve("n2:1"), two.resolve("n2:1"));
        assert_eq!((both.0.unwrap(), both.1.unwrap()), (vec![ADDR.into()], vec![ADDR.into()]));
        assert_eq!(resolver.resolve("n2:1").await.unwrap(), [ADDR.into()], "it is kept");
        assert_eq!(begun.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_lookup_that_hangs_holds_up_no_other_name() {
        let (resolver, answers, _) = by_hand();
        let hangs = timeout(Duration::from_millis(1), resolver.resolve("n2:1")).await;
        assert!(hangs.is_err());
        assert_eq!(resolver.resolve("other:1").await.unwrap(), [ADDR.into()]);
        assert_eq!(resolver.resolve("10.0.0.2:60001").await.unwrap(), [ADDR.into()]);
        drop(answers);
    }

    #[test]
    fn a_lookup_for_a_pinned_worker_runs_where_the_resolver_was_made() {
        let cpus = || sched_getaffinity(None).expect("the processors of this thread");
        let before = cpus();
        let (sender, seen) = channel();
        let resolver = Resolver::with(move |_| {
            sender.send(cpus()).expect("the test waits");
            Ok(vec![ADDR.into()])
        });
        let pinned = thread::spawn(move || {
            let mut one = CpuSet::new();
            one.set((0..1024).find(|cpu| before.is_set(*cpu)).expect("a processor"));
            sched_setaffinity(None, &one).expect("a processor of its own");
            resolver.begin("n2:1").map(drop)
        });
        pinned.join().expect("it ends").expect("a thread");
        assert!(seen.recv_timeout(WAIT_MAX).expect("a lookup") == before);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn after_a_failure_the_next_attempt_asks_again() {
        let (resolver, answers, begun) = by_hand();
        answers.send(Err(io::Error::other("no such name"))).unwrap();
        let error = resolver.resolve("n2:1").await.unwrap_err();
        assert_eq!(error.to_string(), "no such name");
        answers.send(Ok(vec![ADDR.into()])).unwrap();
        assert_eq!(resolver.resolve("n2:1").await.unwrap(), [ADDR.into()]);
        assert_eq!(begun.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_late_lookup_is_logged_again_and_again_but_not_often() {
        let (_sender, answer) = watch::channel(None);
        let began = Instant::now();
        let mut running = Running { began, logged: None, answer };
        let mut logged = Vec::new();
        for s in 0..=22 {
            let before = running.logged;
            running.log_if_late("n2:1", began + Duration::from_secs(s));
            if running.logged != before {
                logged.push(s);
            }
        }
        assert_eq!(logged, [1, 11, 21]);
    }
}
