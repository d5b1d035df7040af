//! Looks up the names of nodes. A system offers this only as a blocking call that cannot be ended,
//! and it can take longer than an attempt to connect. So each lookup has a thread of its own. All
//! attempts that want the same name share one lookup, and an attempt that gives up leaves the
//! answer to the next one. The server does the same for its peers. This module never connects.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::sync::watch;

use crate::clock::now;

/// The addresses of a name, or the error of its lookup.
type Answer = Result<Vec<SocketAddr>, (io::ErrorKind, String)>;
/// An answer, and when it came. `None` while the lookup runs.
type Answered = watch::Receiver<Option<(Instant, Answer)>>;
/// Looks up one name (`host:port`), and blocks until there is an answer.
type Lookup = dyn Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// A lookup took longer than its caller could wait. It goes on.
#[derive(Clone, Copy, Debug, Error)]
#[error("the lookup took too long")]
pub(crate) struct SlowLookup;

/// Looks up names for all connections of a client.
pub(crate) struct Resolver {
    lookup: Arc<Lookup>,
    /// The lookups that run, and the answers that are kept, by name.
    lookups: Mutex<HashMap<String, Answered>>,
}

impl Default for Resolver {
    fn default() -> Self {
        Self::with(|addr| Ok(addr.to_socket_addrs()?.collect()))
    }
}

impl Resolver {
    pub(crate) fn with(
        lookup: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        Self { lookup: Arc::new(lookup), lookups: Mutex::default() }
    }

    /// Returns the addresses of `addr` (`host:port`). If the future is dropped, the lookup goes on,
    /// and the next call for the same name gets its answer.
    ///
    /// # Errors
    /// The name has no address, no name server answers, or too many lookups run.
    pub(crate) async fn resolve(&self, addr: &str) -> io::Result<Vec<SocketAddr>> {
        if let Ok(literal) = addr.parse() {
            return Ok(vec![literal]);
        }
        let mut answered = self.begin(addr)?;
        let answer = answered.wait_for(Option::is_some).await;
        let ended = || io::Error::other("the lookup ended without an answer");
        let (_, answer) = answer.map_err(|_| ended())?.clone().ok_or_else(ended)?;
        answer.map_err(|(kind, text)| io::Error::new(kind, text))
    }

    /// Forgets the addresses of a name, because no connection to them was made. The node may have
    /// moved. A lookup that runs goes on.
    pub(crate) fn forget(&self, addr: &str) {
        self.lock().retain(|name, answered| name != addr || answered.borrow().is_none());
    }

    /// Begins a lookup, or takes part in one that has begun.
    fn begin(&self, addr: &str) -> io::Result<Answered> {
        let (at, mut lookups) = (now(), self.lock());
        lookups.retain(|_, answered| is_of_use(answered, at));
        if let Some(answered) = lookups.get(addr) {
            return Ok(answered.clone());
        }
        if lookups.len() >= LOOKUPS_MAX {
            return Err(io::Error::other("too many names are being looked up"));
        }
        let (answer, answered) = watch::channel(None);
        let (lookup, name) = (self.lookup.clone(), addr.to_owned());
        thread::Builder::new().name("epicepoch-lookup".to_owned()).spawn(move || {
            let found = lookup(&name).map_err(|error| (error.kind(), error.to_string()));
            answer.send_replace(Some((now(), found)));
        })?;
        lookups.insert(addr.to_owned(), answered.clone());
        Ok(answered)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Answered>> {
        self.lookups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether another attempt may use a lookup: it runs, or it has found addresses and is not old.
/// After a failure, the next attempt begins another lookup.
fn is_of_use(answered: &Answered, now: Instant) -> bool {
    match &*answered.borrow() {
        // An error says that the thread has ended without an answer.
        None => answered.has_changed().is_ok(),
        Some((at, Ok(_))) => now.saturating_duration_since(*at) < KEPT,
        Some((_, Err(_))) => false,
    }
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Resolver").finish_non_exhaustive()
    }
}

/// Addresses are used for this long after they were found. Within this time, a client that waits
/// 500 ms for each node has asked nine silent nodes, and is back at the name.
const KEPT: Duration = Duration::from_secs(5);
/// At most this many names are looked up or kept. That is enough for all members and seeds of a
/// large cluster.
const LOOKUPS_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Sender, channel};

    use tokio::time::timeout;

    use super::*;

    const ADDR: ([u8; 4], u16) = ([10, 0, 0, 2], 8080);
    const WAIT_MAX: Duration = Duration::from_secs(20);

    /// A resolver whose answers the test gives, and the number of lookups that have begun.
    fn scripted() -> (Resolver, Sender<io::Result<Vec<SocketAddr>>>, Arc<AtomicUsize>) {
        let (answers, given) = channel();
        let (begun, given) = (Arc::new(AtomicUsize::new(0)), Mutex::new(given));
        let count = begun.clone();
        let resolver = Resolver::with(move |name| {
            if name == "other:1" {
                return Ok(vec![ADDR.into()]);
            }
            count.fetch_add(1, Ordering::SeqCst);
            given.lock().unwrap().recv_timeout(WAIT_MAX).expect("an answer of the test")
        });
        (resolver, answers, begun)
    }

    #[tokio::test]
    async fn an_attempt_that_gave_up_leaves_its_lookup_to_the_next_ones() {
        let (resolver, answers, begun) = scripted();
        for _ in 0..3 {
            let gave_up = timeout(Duration::from_millis(1), resolver.resolve("n2:1")).await;
            assert!(gave_up.is_err());
        }
        answers.send(Ok(vec![ADDR.into()])).unwrap();
        let both = tokio::join!(resolver.resolve("n2:1"), resolver.resolve("n2:1"));
        assert_eq!((both.0.unwrap(), both.1.unwrap()), (vec![ADDR.into()], vec![ADDR.into()]));
        assert_eq!(resolver.resolve("n2:1").await.unwrap(), [ADDR.into()], "it is kept");
        assert_eq!(begun.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_lookup_that_hangs_holds_up_no_other_name_and_no_literal_address() {
        let (resolver, answers, _) = scripted();
        let hangs = timeout(Duration::from_millis(1), resolver.resolve("n2:1")).await;
        assert!(hangs.is_err());
        assert_eq!(resolver.resolve("other:1").await.unwrap(), [ADDR.into()]);
        assert_eq!(resolver.resolve("10.0.0.2:8080").await.unwrap(), [ADDR.into()]);
        drop(answers);
    }

    #[tokio::test]
    async fn a_failure_and_addresses_that_refuse_are_looked_up_again() {
        let (resolver, answers, begun) = scripted();
        answers.send(Err(io::Error::other("no such name"))).unwrap();
        let error = resolver.resolve("n2:1").await.unwrap_err();
        assert_eq!(error.to_string(), "no such name");
        for expected in [2, 3] {
            answers.send(Ok(vec![ADDR.into()])).unwrap();
            assert_eq!(resolver.resolve("n2:1").await.unwrap(), [ADDR.into()]);
            assert_eq!(begun.load(Ordering::SeqCst), expected);
            resolver.forget("n2:1");
        }
    }

    #[tokio::test]
    async fn addresses_are_kept_for_a_while_and_a_running_lookup_as_long_as_it_takes() {
        let (resolver, answers, _) = scripted();
        let begun = now();
        let mut answered = resolver.begin("n2:1").unwrap();
        resolver.forget("n2:1");
        assert!(is_of_use(&answered, begun + 100 * KEPT), "it runs");
        answers.send(Ok(vec![ADDR.into()])).unwrap();
        let at = answered.wait_for(Option::is_some).await.unwrap().as_ref().unwrap().0;
        assert!(is_of_use(&answered, at + KEPT / 2));
        assert!(!is_of_use(&answered, at + KEPT));
    }

    #[tokio::test]
    async fn lookups_are_bounded() {
        let (resolver, answers, _) = scripted();
        let sender = {
            let (sender, answered) = watch::channel(None);
            let names = (0..LOOKUPS_MAX).map(|at| (format!("m{at}:1"), answered.clone()));
            resolver.lock().extend(names);
            sender
        };
        let error = resolver.resolve("n2:1").await.unwrap_err();
        assert!(error.to_string().contains("too many"), "{error}");
        // The lookups have ended without an answer.
        drop(sender);
        answers.send(Ok(vec![ADDR.into()])).unwrap();
        assert_eq!(resolver.resolve("n2:1").await.unwrap(), [ADDR.into()]);
    }
}
