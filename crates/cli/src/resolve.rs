//! Looks up the names of nodes within a time limit. The system's lookup has no limit of ours and
//! cannot be ended, so it runs on a thread. A lookup that takes longer than the limit goes on, and
//! the next call for the same name gets its answer.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

type Answer = io::Result<Vec<SocketAddr>>;

/// The lookups that run, by name. There are at most as many as a command has names.
static RUNNING: Mutex<BTreeMap<String, Receiver<Answer>>> = Mutex::new(BTreeMap::new());

/// Returns the addresses of `name`, which is `host:port`.
///
/// # Errors
/// The name has no address, or there is no answer within `limit`.
pub(crate) fn resolve(name: &str, limit: Duration) -> Answer {
    if let Ok(addr) = name.parse() {
        return Ok(vec![addr]);
    }
    let found = within(name, limit, |name| Ok(name.to_socket_addrs()?.collect()))?;
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(found)
}

fn within(name: &str, limit: Duration, lookup: fn(&str) -> Answer) -> Answer {
    let running = lock().remove(name);
    let answer = running.unwrap_or_else(|| {
        let (tell, answer) = mpsc::channel();
        let asked = name.to_owned();
        thread::spawn(move || {
            let _ended = tell.send(lookup(&asked));
        });
        answer
    });
    match answer.recv_timeout(limit) {
        Ok(found) => found,
        Err(RecvTimeoutError::Timeout) => {
            lock().insert(name.to_owned(), answer);
            Err(io::Error::new(io::ErrorKind::TimedOut, "no name server answers in time"))
        }
        Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the lookup has failed")),
    }
}

fn lock() -> MutexGuard<'static, BTreeMap<String, Receiver<Answer>>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lookup_has_a_limit_and_the_next_call_gets_its_answer() {
        static MAY_ANSWER: Mutex<()> = Mutex::new(());
        let held = MAY_ANSWER.lock().expect("free");
        let slow = |_: &str| {
            let _released = MAY_ANSWER.lock().expect("released");
            Ok(vec![SocketAddr::from(([10, 0, 0, 1], 7))])
        };
        let late = within("slow:1", Duration::from_millis(1), slow).expect_err("no answer");
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        drop(held);
        let other = |_: &str| panic!("a second lookup of the same name");
        let found = within("slow:1", Duration::from_mins(1), other).expect("the first lookup");
        assert_eq!(found, [SocketAddr::from(([10, 0, 0, 1], 7))]);
    }

    #[test]
    fn a_number_is_not_looked_up_and_a_name_that_does_not_exist_is_an_error() {
        let addr = resolve("[::1]:8080", Duration::ZERO).expect("no lookup");
        assert_eq!(addr, [SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 8080))]);
        assert!(resolve("no port", Duration::from_mins(1)).is_err());
    }
}
