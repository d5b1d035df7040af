//! Waits for a time. tokio's timer has a resolution of 1 ms, which is too coarse for links between
//! zones. So this is a `timerfd`. If the system gives none, tokio's timer is used.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;
use tokio::time::sleep_until;

/// A timer of one direction of one connection. It is opened at the first wait.
#[derive(Debug, Default)]
pub(crate) struct Alarm(Option<AsyncFd<OwnedFd>>);

impl Alarm {
    /// Waits until `at`. Returns at once if `at` has passed. It may be dropped while it waits.
    pub(crate) async fn until(&mut self, at: Instant) {
        // tokio's timer takes a millisecond for a time that has passed, too.
        if at <= Instant::now() {
            return;
        }
        if self.0.is_none() {
            self.0 = open().ok();
        }
        let Some(timer) = &self.0 else { return sleep_until(at.into()).await };
        loop {
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            // A wait that was dropped may have left an expiration behind. Then the loop goes
            // round once more.
            if set(timer, left).is_err() {
                return sleep_until(at.into()).await;
            }
            let Ok(mut ready) = timer.readable().await else {
                return sleep_until(at.into()).await;
            };
            let _expirations = rustix::io::read(timer.get_ref(), &mut [0_u8; 8]);
            ready.clear_ready();
        }
    }
}

fn open() -> io::Result<AsyncFd<OwnedFd>> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    // This call is deprecated, because a type may give out a descriptor that it does not own. This
    // type is an `OwnedFd`, and the replacement is unsafe.
    #[allow(deprecated)]
    AsyncFd::new(timerfd_create(TimerfdClockId::Monotonic, flags)?)
}

fn set(timer: &AsyncFd<OwnedFd>, left: Duration) -> io::Result<()> {
    let value = Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    };
    let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
    timerfd_settime(timer.get_ref(), TimerfdTimerFlags::empty(), &once)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wait_is_never_short_and_a_dropped_one_disturbs_no_other() {
        let mut alarm = Alarm::default();
        let from = Instant::now();
        let dropped = alarm.until(from + Duration::from_millis(20));
        assert!(tokio::time::timeout(Duration::ZERO, dropped).await.is_err());
        for micros in [300, 0, 700, 1_500] {
            let at = Instant::now() + Duration::from_micros(micros);
            alarm.until(at).await;
            assert!(Instant::now() >= at);
        }
        let past = tokio::time::timeout(Duration::ZERO, alarm.until(from)).await;
        assert!(past.is_ok(), "a time that has passed is not waited for");
    }
}
