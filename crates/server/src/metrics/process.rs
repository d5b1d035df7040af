//! What the operating system says about this process: the figures that every program exports under
//! the prefix `process_`. Each scrape reads them.

use std::fs;
use std::io;

use rustix::process::{Resource, getrlimit};

/// Figures of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessFigures {
    /// Memory in RAM, bytes.
    pub(crate) resident_bytes: u64,
    /// Address space, bytes.
    pub(crate) virtual_bytes: u64,
    /// Open file descriptors.
    pub(crate) open_fds: u64,
    /// The limit of open file descriptors. `None`: no limit.
    pub(crate) max_fds: Option<u64>,
}

impl ProcessFigures {
    /// Reads the figures from `/proc` (proc(5)).
    ///
    /// # Errors
    /// There is no `/proc`: the system is not Linux, or hides it from this process.
    pub(crate) fn read() -> io::Result<Self> {
        let status = fs::read_to_string("/proc/self/status")?;
        let bytes = |field: &str| kibibytes(&status, field).ok_or(io::ErrorKind::InvalidData);
        Ok(Self {
            resident_bytes: bytes("VmRSS:")? * 1024,
            virtual_bytes: bytes("VmSize:")? * 1024,
            open_fds: open_fds()?,
            max_fds: getrlimit(Resource::Nofile).current,
        })
    }
}

/// The value of a line such as `VmRSS:   5120 kB`.
fn kibibytes(status: &str, field: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(field))?;
    value.trim().strip_suffix(" kB")?.parse().ok()
}

/// Since Linux 6.2 the directory has the number as its size. On older systems its entries are
/// counted, without the one that this needs.
fn open_fds() -> io::Result<u64> {
    match fs::metadata("/proc/self/fd")?.len() {
        0 => Ok((fs::read_dir("/proc/self/fd")?.count() as u64).saturating_sub(1)),
        count => Ok(count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_follow_what_the_process_uses() {
        const MORE: usize = 64 << 20;
        let before = ProcessFigures::read().expect("Linux");
        let memory = std::hint::black_box(vec![1_u8; MORE]);
        // More files than other tests close meanwhile.
        let files: Vec<_> = (0..200).map(|_| fs::File::open("/dev/null").expect("it")).collect();
        let after = ProcessFigures::read().expect("Linux");
        assert!(after.resident_bytes >= before.resident_bytes + (MORE / 2) as u64);
        assert!(after.virtual_bytes >= after.resident_bytes);
        assert!(after.open_fds >= before.open_fds + 100, "{before:?} {after:?}");
        assert!(after.max_fds.is_none_or(|max| max >= after.open_fds));
        drop((memory, files));
    }

    #[test]
    fn a_value_of_the_status_is_read_from_its_own_line() {
        let status = "Name:\tVmRSS: 1 kB\nVmRSS:\t    5120 kB\nVmSize: 7\n";
        assert_eq!(kibibytes(status, "VmRSS:"), Some(5120));
        assert_eq!(kibibytes(status, "VmSize:"), None);
        assert_eq!(kibibytes(status, "VmHWM:"), None);
    }
}
