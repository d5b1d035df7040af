//! Standard output. If its reader leaves, as in `| head -1`, a command either ends or goes on. Each
//! command chooses one of the two functions below. A broken network connection is never mistaken
//! for a reader that left.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::io::{self, IsTerminal, StdoutLock, Write};

/// Standard output of a command.
pub(crate) struct Output {
    out: StdoutLock<'static>,
    is_product: bool,
}

/// Returns standard output for a command that only prints. When the reader leaves, the command ends
/// with an error that [`is_of_reader`] recognizes. That is a normal end, not a failure.
pub(crate) fn product() -> Output {
    Output { out: io::stdout().lock(), is_product: true }
}

/// Returns standard output for a command that reports its work. When the reader leaves, the command
/// goes on, and its exit code stays the same.
pub(crate) fn account() -> Output {
    Output { out: io::stdout().lock(), is_product: false }
}

/// Whether standard output is a terminal that can move its cursor. `term` is the value of `TERM`.
pub(crate) fn moves_cursor(term: Option<&str>) -> bool {
    io::stdout().is_terminal() && term != Some("dumb")
}

/// Whether an error of [`product`] means that the reader left.
pub(crate) fn is_of_reader(error: &io::Error) -> bool {
    error.get_ref().is_some_and(<dyn Error + Send + Sync>::is::<ReaderLeft>)
}

#[derive(Debug)]
struct ReaderLeft;

impl Display for ReaderLeft {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("the reader of standard output has left")
    }
}

impl Error for ReaderLeft {}

impl Output {
    /// Returns the result of a write, or `unread` if the reader has left and the command goes on.
    fn judge<T>(&self, written: io::Result<T>, unread: T) -> io::Result<T> {
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                if self.is_product {
                    Err(io::Error::other(ReaderLeft))
                } else {
                    Ok(unread)
                }
            }
            written => written,
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes);
        self.judge(written, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.out.flush();
        self.judge(flushed, ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_product_ends_with_its_reader() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        let ended = product().judge(Err(broken()), 7).expect_err("it ends");
        assert!(is_of_reader(&ended));
        assert!(matches!(account().judge(Err(broken()), 7), Ok(7)));
        assert!(!is_of_reader(&broken()), "of a socket");
        // Every other error of standard output is reported.
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        for output in [product, account] {
            let error = output().judge(Err(full()), 7).expect_err("it fails");
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        }
    }
}
