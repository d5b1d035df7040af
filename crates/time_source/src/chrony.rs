//! The source `chrony`: chronyd's tracking over its command port. One answer serves several
//! readings for [`REUSE_NS_MAX`], while the wall clock keeps the pace of the raw clock. What the
//! clock was corrected by since the question widens the bound. chronyd does not notice that another
//! program steps the clock. So after a step its answers do not count until it has compared the clock
//! with its servers again.

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
    /// The last answer, which is kept as long as no newer one is there: the clock is compared with it.
    last: Option<Answer>,
    /// The last step of the clock that was seen, as long as chronyd may not know of it.
    step: Option<Step>,
}

/// A step of the clock. chronyd's last update may be from before it, also if this source has not
/// heard of that update yet. So only an update that comes after an answer to a question asked since
/// then is surely from after the step.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// chronyd has given no answer since the step was seen.
    Unanswered,
    /// The first answer named this update, Unix seconds.
    Answered(u64),
}

/// Whether an answer still serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Serves {
    /// It does, with this bound, nanoseconds.
    Bound(u64),
    /// It is too old.
    TooOld,
    /// The clock was stepped since.
    Stepped,
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
        Self { address, sequence, last: None, step: None }
    }

    pub(crate) fn read(&mut self) -> Result<Reading, Unknown> {
        for asked in 0..=TRIES {
            let now = Moment::now()?;
            if let Some(answer) = self.last {
                match answer.serves_at(&now)? {
                    Serves::Bound(bound_ns) if self.step.is_none() => {
                        return Reading::around(now.real_ns, bound_ns, 0);
                    }
                    Serves::Stepped => self.step = Some(Step::Unanswered),
                    Serves::Bound(_) | Serves::TooOld => {}
                }
            }
            if asked == TRIES {
                break;
            }
            let answer = self.ask()?;
            self.last = Some(answer);
            self.check_updated(&answer.tracking)?;
        }
        Err(Unknown::Slow)
    }

    /// Checks that chronyd has compared the clock with its servers since it was stepped. The time of
    /// an update moves a little while the clock is slewed.
    fn check_updated(&mut self, tracking: &Tracking) -> Result<(), Unknown> {
        let updated_s = tracking.updated_s;
        self.step = match self.step {
            None => None,
            Some(Step::Unanswered) => Some(Step::Answered(updated_s)),
            // A step back may put a later update before that one.
            Some(Step::Answered(before_s)) if updated_s.abs_diff(before_s) > 1 => None,
            step => step,
        };
        if self.step.is_none() { Ok(()) } else { Err(Unknown::Stepped) }
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
    /// Whether the answer serves at a later moment, and with which bound of the wall clock.
    fn serves_at(&self, now: &Moment) -> Result<Serves, Unknown> {
        let age_ns = now.raw_ns.saturating_add(now.gap_ns).saturating_sub(self.asked.raw_ns);
        // chronyd looked at the clock somewhere between the question and the answer.
        let corrected = self
            .asked
            .disagreement_ns(&self.answered)
            .saturating_add(self.answered.disagreement_ns(now));
        if corrected > CORRECTED_NS_MAX.saturating_add(age_ns / SLEW_PART_MAX) {
            return Ok(Serves::Stepped);
        }
        if age_ns > REUSE_NS_MAX {
            return Ok(Serves::TooOld);
        }
        let now_s = now.real_ns / 1_000_000_000;
        // An update in the future was before a step back. A leap second is such a step, by a second.
        if self.tracking.updated_s > now_s + 1 {
            return Err(Unknown::Stepped);
        }
        let since_s = now_s.saturating_sub(self.tracking.updated_s);
        if since_s > UPDATED_S_MAX {
            return Err(Unknown::Stale(since_s));
        }
        let drift_ns = (age_ns * RAW_PPM_MAX).div_ceil(1_000_000);
        let bound_ns = self.tracking.bound_ns.saturating_add(corrected).saturating_add(drift_ns);
        Ok(Serves::Bound(bound_ns))
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
/// Questions of one reading. The second is needed if the first answer took so long that it is too old.
pub(crate) const TRIES: usize = 2;
/// Datagrams with another sequence number that are skipped in one exchange.
const FOREIGN_MAX: usize = 16;
/// How long an answer serves. It also is the longest that a new answer may have taken.
const REUSE_NS_MAX: u64 = 25_000_000;
/// A correction is a step if it is above this and above what chronyd may have slewed. Smaller steps
/// only widen the bound, until the next answer.
const CORRECTED_NS_MAX: u64 = 1_000_000;
/// chronyd slews by at most this part of the time (`maxslewrate`, 83,333.333 ppm by default).
const SLEW_PART_MAX: u64 = 11;
/// How far the rate of the raw clock may be from true, parts per million: what the kernel can
/// correct.
const RAW_PPM_MAX: u64 = 500;
/// chronyd asks its servers at least every 1,024 s by default; after four times that, they are
/// gone.
const UPDATED_S_MAX: u64 = 4_096;

#[cfg(test)]
#[path = "chrony_tests.rs"]
mod tests;
