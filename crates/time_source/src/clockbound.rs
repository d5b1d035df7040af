//! The source `clockbound`: the segment is read with `pread`, before and after the clock. It is
//! never mapped.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::segment::{LENGTH, Segment};
use crate::{OpenError, Reading, Unknown, clock};

#[derive(Debug)]
pub(crate) struct ClockBound {
    path: PathBuf,
    file: File,
    /// The marker at the opening. Once it moved, nothing is given.
    disruption: u64,
}

impl ClockBound {
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        let failed = |reason| OpenError { path: path.display().to_string(), reason };
        let file = File::open(path).map_err(|error| failed(missing(&error)))?;
        let (segment, ()) = stable(&file, || Ok(())).map_err(failed)?;
        Ok(Self { path: path.to_owned(), file, disruption: segment.disruption })
    }

    pub(crate) fn read(&mut self) -> Result<Reading, Unknown> {
        // The wall clock first: the age is that of the reading, or more.
        let (segment, (real_ns, coarse_ns)) =
            stable(&self.file, || Ok((clock::realtime()?, clock::coarse())))?;
        if segment.disruption != self.disruption {
            return Err(Unknown::Disrupted);
        }
        if coarse_ns.saturating_sub(segment.as_of_ns) > QUIET_NS_MAX && self.is_replaced() {
            return Err(Unknown::Missing("another file has taken its place".to_owned()));
        }
        Reading::around(real_ns, segment.bound_at(coarse_ns)?, segment.disruption)
    }

    /// Whether the path leads to another file than the open one. A daemon that was started again may
    /// have made one. As long as there is no other file, the open one serves: its bound grows.
    fn is_replaced(&self) -> bool {
        let place = |it: std::fs::Metadata| (it.dev(), it.ino());
        let now = std::fs::metadata(&self.path).map(place);
        now.is_ok_and(|now| self.file.metadata().map(place).is_ok_and(|open| open != now))
    }
}

/// Reads the segment, then `clock`, then the segment again, until both are the same and complete.
fn stable<T>(
    file: &File,
    mut clock: impl FnMut() -> Result<T, Unknown>,
) -> Result<(Segment, T), Unknown> {
    for _ in 0..TRIES {
        let before = bytes(file)?;
        let time = clock()?;
        if bytes(file)? != before {
            continue;
        }
        match Segment::decode(&before) {
            Err(Unknown::Torn) => {}
            segment => return Ok((segment?, time)),
        }
    }
    Err(Unknown::Torn)
}

fn bytes(file: &File) -> Result<[u8; LENGTH], Unknown> {
    let mut bytes = [0; LENGTH];
    file.read_exact_at(&mut bytes, 0).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Unknown::Malformed("segment size"),
        _ => missing(&error),
    })?;
    Ok(bytes)
}

fn missing(error: &io::Error) -> Unknown {
    Unknown::Missing(error.to_string())
}

/// How often a segment that changes is read again. The daemon writes once a second.
const TRIES: usize = 16;
/// The content may be this old before its file is compared with the path. The daemon writes once a
/// second.
const QUIET_NS_MAX: u64 = 3_000_000_000;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::segment::Status;
    use crate::segment::tests::{GOOD, bytes as encoded};

    /// A segment that is valid now.
    fn fresh(bound_ns: u64) -> Segment {
        let as_of_ns = clock::coarse();
        Segment { as_of_ns, void_after_ns: as_of_ns + 1_000_000_000_000, bound_ns, ..GOOD }
    }

    fn opened(segment: &Segment) -> (tempfile::NamedTempFile, ClockBound) {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().write_all_at(&encoded(4, segment), 0).unwrap();
        let source = ClockBound::open(file.path()).unwrap();
        (file, source)
    }

    #[test]
    fn a_reading_holds_the_clock() {
        let (_file, mut source) = opened(&fresh(40_000));
        let reading = source.read().unwrap();
        assert!(reading.latest_ns - reading.earliest_ns >= 80_000);
        assert_eq!(reading.disruption, 7);
    }

    #[test]
    fn a_marker_that_moved_is_refused_until_the_source_is_opened_again() {
        let (file, mut source) = opened(&fresh(40_000));
        let moved = Segment { disruption: 8, ..fresh(40_000) };
        file.as_file().write_all_at(&encoded(6, &moved), 0).unwrap();
        assert_eq!(source.read(), Err(Unknown::Disrupted));
        assert_eq!(source.read(), Err(Unknown::Disrupted));
        assert_eq!(ClockBound::open(file.path()).unwrap().read().unwrap().disruption, 8);
    }

    #[test]
    fn a_segment_that_is_being_written_is_torn() {
        let (file, mut source) = opened(&fresh(40_000));
        file.as_file().write_all_at(&encoded(5, &fresh(1)), 0).unwrap();
        assert_eq!(source.read(), Err(Unknown::Torn));
        file.as_file()
            .write_all_at(&encoded(6, &Segment { status: Status::Unknown, ..fresh(1) }), 0)
            .unwrap();
        assert_eq!(source.read(), Err(Unknown::Unsynchronized));
        file.as_file().set_len(79).unwrap();
        assert_eq!(source.read(), Err(Unknown::Malformed("segment size")));
    }

    #[test]
    fn a_segment_in_the_place_of_a_quiet_one_ends_the_source() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shm0");
        let quiet = Segment { as_of_ns: clock::coarse() - QUIET_NS_MAX - 1, ..fresh(40_000) };
        std::fs::write(&path, encoded(4, &quiet)).unwrap();
        let mut source = ClockBound::open(&path).unwrap();
        assert!(source.read().is_ok(), "nothing has taken its place");
        std::fs::remove_file(&path).unwrap();
        assert!(source.read().is_ok(), "without a file, the open one serves");
        std::fs::write(&path, encoded(4, &Segment { disruption: 8, ..fresh(1) })).unwrap();
        assert!(matches!(source.read(), Err(Unknown::Missing(_))));
        assert_eq!(ClockBound::open(&path).unwrap().read().unwrap().disruption, 8);
        // A segment that is still written is not compared with the path.
        source.file = File::options().write(true).read(true).open(&path).unwrap();
        std::fs::rename(&path, directory.path().join("moved")).unwrap();
        std::fs::write(&path, encoded(4, &fresh(2))).unwrap();
        source.disruption = 8;
        assert!(source.read().is_ok());
    }

    #[test]
    fn a_missing_segment_cannot_be_opened() {
        let directory = tempfile::tempdir().unwrap();
        let error = ClockBound::open(&directory.path().join("shm0")).unwrap_err();
        assert!(matches!(error.reason, Unknown::Missing(_)));
    }

    /// The source changes after it was read: the clock is read again with it.
    #[test]
    fn the_clock_is_read_with_the_segment_that_it_is_used_with() {
        let (file, source) = opened(&fresh(1));
        let mut calls = 0;
        let (segment, call) = stable(&source.file, || {
            calls += 1;
            if calls == 1 {
                file.as_file().write_all_at(&encoded(6, &fresh(2)), 0).unwrap();
            }
            Ok(calls)
        })
        .unwrap();
        assert_eq!((segment.bound_ns, call), (2, 2));
    }

    /// A writer as the daemon: odd, content, even. The bound and the marker always belong together.
    #[test]
    fn a_reader_never_sees_half_of_an_update() {
        let (file, source) = opened(&Segment { disruption: 1, bound_ns: 1, ..fresh(1) });
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for update in 1..5_000_u64 {
                    let generation = u16::try_from(update * 2 % 60_000 + 2).unwrap();
                    let content = Segment { disruption: update, bound_ns: update, ..GOOD };
                    let whole = encoded(generation, &content);
                    let file = file.as_file();
                    file.write_all_at(&(generation + 1).to_ne_bytes(), 14).unwrap();
                    file.write_all_at(&whole[48..56], 48).unwrap();
                    file.write_all_at(&whole[56..], 56).unwrap();
                    file.write_all_at(&generation.to_ne_bytes(), 14).unwrap();
                }
                done.store(true, Ordering::Release);
            });
            while !done.load(Ordering::Acquire) {
                if let Ok((segment, ())) = stable(&source.file, || Ok(())) {
                    assert_eq!(segment.bound_ns, segment.disruption);
                }
            }
        });
        let (segment, ()) = stable(&source.file, || Ok(())).unwrap();
        assert_eq!(segment.bound_ns, 4_999, "nobody writes any more");
    }
}
