//! The source `chrony`: chronyd's tracking over its command port. One answer serves several
//! readings for [`REUSE_NS_MAX`], while the wall clock keeps the pace of the raw clock. What the
//! clock was corrected by since the question widens the bound, and a step voids the answer.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::clock::Moment;
use crate::setting::ChronyAddress;
use crate::tracking::{self, Tracking};
use crate::{Reading, Unknown};

#[derive(Debug)]
pub(crate) struct Chrony {
    address: ChronyAddress,
    sequence: u32,
    last: Option<Answer>,
}

#[derive(Clone, Copy, Debug)]
struct Answer {
    tracking: Tracking,
    /// Before the question, and after the answer.
    asked: Moment,
    answered: Moment,
}

impl Chrony {
    pub(crate) fn new(address: ChronyAddress) -> Self {
        // Another process's answers must not be taken for this one's.
        let sequence = Moment::now().map_or(0, |it| it.real_ns as u32);
        Self { address, sequence, last: None }
    }

    pub(crate) fn read(&mut self) -> Result<Reading, Unknown> {
        for _ in 0..TRIES {
            let answer = match self.last {
                Some(answer) => answer,
                None => self.ask()?,
            };
            self.last = Some(answer);
            let now = Moment::now()?;
            match answer.bound_at(&now)? {
                Some(bound_ns) => return Reading::around(now.real_ns, bound_ns, 0),
                None => self.last = None,
            }
        }
        Err(Unknown::Stepped)
    }

    fn ask(&mut self) -> Result<Answer, Unknown> {
        self.sequence = self.sequence.wrapping_add(1);
        let asked = Moment::now()?;
        let tracking = self.exchange()?;
        Ok(Answer { tracking, asked, answered: Moment::now()? })
    }

    /// A socket for each question: chronyd may have been started again since the last one.
    fn exchange(&self) -> Result<Tracking, Unknown> {
        let socket = Socket::open(&self.address).map_err(|error| missing(&error))?;
        let until = Instant::now() + Duration::from_millis(ANSWER_MS_MAX);
        socket.send(&tracking::request(self.sequence)).map_err(|error| missing(&error))?;
        let mut buffer = [0; tracking::LENGTH + 1];
        for _ in 0..FOREIGN_MAX {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let length = socket.receive(&mut buffer, left).map_err(|error| missing(&error))?;
            let bytes = &buffer[..length];
            if tracking::sequence(bytes) == Some(self.sequence) {
                return tracking::decode(bytes, self.sequence);
            }
        }
        Err(Unknown::Missing("no answer".to_owned()))
    }
}

impl Answer {
    /// The bound of the wall clock at a later moment, or `None` if the answer does not serve any
    /// more.
    fn bound_at(&self, now: &Moment) -> Result<Option<u64>, Unknown> {
        let age_ns = now.raw_ns.saturating_add(now.gap_ns).saturating_sub(self.asked.raw_ns);
        // chronyd looked at the clock somewhere between the question and the answer.
        let corrected = self
            .asked
            .disagreement_ns(&self.answered)
            .saturating_add(self.answered.disagreement_ns(now));
        if age_ns > REUSE_NS_MAX || corrected > CORRECTED_NS_MAX {
            return Ok(None);
        }
        let since_s = (now.real_ns / 1_000_000_000).saturating_sub(self.tracking.updated_s);
        if since_s > UPDATED_S_MAX {
            return Err(Unknown::Stale(since_s));
        }
        let drift_ns = (age_ns * RAW_PPM_MAX).div_ceil(1_000_000);
        Ok(Some(self.tracking.bound_ns.saturating_add(corrected).saturating_add(drift_ns)))
    }
}

/// A socket to chronyd.
enum Socket {
    Udp(UdpSocket),
    Unix(UnixDatagram, #[expect(dead_code, reason = "its drop removes the file")] Bound),
}

/// The file of our end of a Unix socket, removed at the end.
struct Bound(PathBuf);

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Socket {
    fn open(address: &ChronyAddress) -> io::Result<Self> {
        match address {
            ChronyAddress::Udp(address) => {
                let local: SocketAddr = match address {
                    SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
                    SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
                };
                let socket = UdpSocket::bind(local)?;
                socket.connect(address)?;
                Ok(Self::Udp(socket))
            }
            ChronyAddress::Unix(path) => {
                static NEXT: AtomicU32 = AtomicU32::new(0);
                let own = format!(
                    "epicepoch.{}.{}.sock",
                    std::process::id(),
                    NEXT.fetch_add(1, Ordering::Relaxed)
                );
                let own = path.parent().unwrap_or(Path::new("/")).join(own);
                let socket = UnixDatagram::bind(&own)?;
                let bound = Bound(own);
                // chronyd runs as another user, and must be able to answer.
                std::fs::set_permissions(&bound.0, std::fs::Permissions::from_mode(0o666))?;
                socket.connect(path)?;
                Ok(Self::Unix(socket, bound))
            }
        }
    }

    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Udp(socket) => socket.send(bytes),
            Self::Unix(socket, _) => {
                socket.set_write_timeout(Some(Duration::from_millis(ANSWER_MS_MAX)))?;
                socket.send(bytes)
            }
        }
    }

    fn receive(&self, buffer: &mut [u8], left: Duration) -> io::Result<usize> {
        match self {
            Self::Udp(socket) => {
                socket.set_read_timeout(Some(left))?;
                socket.recv(buffer)
            }
            Self::Unix(socket, _) => {
                socket.set_read_timeout(Some(left))?;
                socket.recv(buffer)
            }
        }
    }
}

fn missing(error: &io::Error) -> Unknown {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            Unknown::Missing("no answer".to_owned())
        }
        _ => Unknown::Missing(error.to_string()),
    }
}

/// How long an answer of chronyd is waited for.
pub(crate) const ANSWER_MS_MAX: u64 = 20;
/// Questions of one reading. The second is needed when an answer became too old, or the clock was
/// stepped.
pub(crate) const TRIES: usize = 2;
/// Datagrams with another sequence number that are skipped in one exchange.
const FOREIGN_MAX: usize = 16;
/// How long an answer serves. It also is the longest that a new answer may have taken.
const REUSE_NS_MAX: u64 = 25_000_000;
/// A correction above this is a step: chronyd slews by a twelfth at most, 2.1 ms in that time.
const CORRECTED_NS_MAX: u64 = 3_000_000;
/// How far the rate of the raw clock may be from true, parts per million: what the kernel can
/// correct.
const RAW_PPM_MAX: u64 = 500;
/// chronyd asks its servers at least every 1,024 s by default; after four times that, they are
/// gone.
const UPDATED_S_MAX: u64 = 4_096;

#[cfg(test)]
#[path = "chrony_tests.rs"]
mod tests;
