//! Messages to the supervisor that started this process: `sd_notify(3)` of systemd, which is a
//! datagram to the socket that `NOTIFY_SOCKET` names. Without this variable nothing is sent.
//!
//! - `READY=1` once the node takes part: its directory and its ports are open. The node does not
//!   wait for its peers first, because they may be started after it.
//! - `STATUS=`: what the node does, whenever that changes.
//! - `WATCHDOG=1` while the consensus thread runs. If that thread hangs, the messages end, and
//!   systemd kills the process after `WatchdogSec`.
//! - `STOPPING=1` at the first signal, or when the node ends by itself, with `EXTEND_TIMEOUT_USEC=`,
//!   the time that this may take. So `TimeoutStopSec` cuts off no handover that the settings allow.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use epicepoch_config::Environment;
use epicepoch_server::Node;

/// The supervisor of this process, if it wants messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Supervisor(Option<Arc<Socket>>);

#[derive(Debug)]
struct Socket {
    socket: UnixDatagram,
    addr: SocketAddr,
    /// The supervisor ends the process if it gets no `WATCHDOG=1` for this long.
    watchdog: Option<Duration>,
    /// Ends the thread that sends, by being dropped.
    stop: Mutex<Option<Sender<()>>>,
}

impl Supervisor {
    /// Finds the supervisor in the variables that it has set.
    ///
    /// # Errors
    /// `NOTIFY_SOCKET` is no address of a Unix socket, or no socket can be made.
    pub(crate) fn find(environment: &Environment) -> io::Result<Self> {
        let Some(name) = environment.get(OsStr::new("NOTIFY_SOCKET")) else {
            return Ok(Self::default());
        };
        let addr = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(name)?,
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let socket = UnixDatagram::unbound()?;
        // A supervisor that does not read must not stop this process.
        socket.set_write_timeout(Some(SEND_MAX))?;
        let (watchdog, stop) = (watchdog(environment, std::process::id()), Mutex::default());
        Ok(Self(Some(Arc::new(Socket { socket, addr, watchdog, stop }))))
    }

    /// Says that the node takes part, and from now on what it does.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn follow(&self, node: &Arc<Node>) -> io::Result<()> {
        let Some(socket) = self.0.clone() else { return Ok(()) };
        let (stop, stopped) = channel();
        *socket.stop.lock().unwrap_or_else(PoisonError::into_inner) = Some(stop);
        let node = Arc::clone(node);
        let sending = move || socket.report(&node, &stopped);
        thread::Builder::new().name("supervisor".to_owned()).spawn(sending)?;
        Ok(())
    }

    /// Says that the process ends, and why. The node uses at most `limit` (`SHUTDOWN_TIMEOUT_MS`)
    /// for its orderly end; the supervisor is asked to wait for [`END_MAX`] more.
    pub(crate) fn stopping(&self, why: &str, limit: Duration) {
        if let Some(socket) = &self.0 {
            socket.stop.lock().unwrap_or_else(PoisonError::into_inner).take();
            // The process ends anyway. The supervisor then sees its exit code.
            let (why, limit_us) = (one_line(why), (limit + END_MAX).as_micros());
            let message = format!("STOPPING=1\nSTATUS={why}\nEXTEND_TIMEOUT_USEC={limit_us}");
            let _unheard = socket.send(&message);
        }
    }
}

impl Socket {
    fn send(&self, message: &str) -> io::Result<()> {
        self.socket.send_to_addr(message.as_bytes(), &self.addr).map(drop)
    }

    /// Sends that the node takes part, what it does, and that it lives, until the process stops.
    /// A lost message does no harm: what was not sent is in the next one.
    fn report(&self, node: &Node, stopped: &Receiver<()>) {
        let pause = self.watchdog.map_or(LOOK, |limit| LOOK.min(limit / 4));
        let (mut said, mut is_ready_said) = (String::new(), false);
        loop {
            let mut message = String::new();
            if !is_ready_said {
                message.push_str("READY=1\n");
            }
            let activity = node.activity();
            if activity != said {
                message.extend(["STATUS=", &activity, "\n"]);
                said = activity;
            }
            if self.watchdog.is_some_and(|limit| node.silence() < limit / 2) {
                message.push_str("WATCHDOG=1\n");
            }
            if !message.is_empty() {
                let is_sent = self.send(&message).is_ok();
                is_ready_said |= is_sent;
                if !is_sent {
                    said.clear();
                }
            }
            if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }
}

/// Returns the time limit of the watchdog, if there is one and it is meant for this process.
fn watchdog(environment: &Environment, process: u32) -> Option<Duration> {
    let number = |name: &str| environment.get(OsStr::new(name))?.to_str()?.parse::<u64>().ok();
    let is_ours = number("WATCHDOG_PID").is_none_or(|id| id == u64::from(process));
    let limit = number("WATCHDOG_USEC").filter(|limit| is_ours && *limit > 0);
    limit.map(Duration::from_micros)
}

/// A message has one line for each variable.
fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

/// Time between two looks at the node.
const LOOK: Duration = Duration::from_millis(500);
/// A message waits at most this long for the supervisor to read earlier ones.
const SEND_MAX: Duration = Duration::from_millis(100);
/// How much longer than `SHUTDOWN_TIMEOUT_MS` a process may take to end. The disk may use two
/// seconds of this time.
const END_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        variables.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn a_socket_is_a_path_or_an_abstract_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        let name = format!("epicepoch-test-{}", std::process::id());
        let hidden = SocketAddr::from_abstract_name(&name).expect("a name");
        for (variable, socket) in [
            (path.display().to_string(), UnixDatagram::bind(&path)),
            (format!("@{name}"), UnixDatagram::bind_addr(&hidden)),
        ] {
            let socket = socket.expect("bound");
            let supervisor = Supervisor::find(&environment(&[("NOTIFY_SOCKET", &variable)]));
            supervisor.expect("a socket").stopping("two\nlines", Duration::from_mins(1));
            let mut read = [0; 128];
            let len = socket.recv(&mut read).expect("a message");
            assert_eq!(&read[..len], b"STOPPING=1\nSTATUS=two lines\nEXTEND_TIMEOUT_USEC=65000000");
        }
        for wrong in ["", "relative", "vsock:2:1"] {
            assert!(Supervisor::find(&environment(&[("NOTIFY_SOCKET", wrong)])).is_err());
        }
        assert!(Supervisor::find(&Environment::new()).expect("none").0.is_none());
    }

    #[test]
    fn the_watchdog_of_another_process_is_not_ours() {
        let limit = |pid| environment(&[("WATCHDOG_USEC", "30000000"), ("WATCHDOG_PID", pid)]);
        assert_eq!(watchdog(&limit("7"), 7), Some(Duration::from_secs(30)));
        assert_eq!(watchdog(&limit("8"), 7), None);
        let limit = |usec| watchdog(&environment(&[("WATCHDOG_USEC", usec)]), 7);
        assert_eq!(limit("2000000"), Some(Duration::from_secs(2)));
        assert_eq!((limit("0"), limit("x")), (None, None));
    }
}
