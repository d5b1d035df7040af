//! Standard output, and what it means that nobody reads it any more, as behind `| head -1`. It
//! decides from standard output alone: a connection that breaks is never taken for a reader that left.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::io::{self, StdoutLock, Write};

/// Standard output of a command.
pub(crate) struct Output {
    out: StdoutLock<'static>,
    is_product: bool,
}

/// For a command that does nothing but print: a reader that left is an error which ends it, and which
/// [`is_of_reader`] knows. That is how pipes end, and no failure.
pub(crate) fn product() -> Output {
    Output { out: io::stdout().lock(), is_product: true }
}

/// For a command that says what it has done or found: with a reader that left it goes on, and its exit
/// code stays what it is.
pub(crate) fn account() -> Output {
    Output { out: io::stdout().lock(), is_product: false }
}

/// Whether an error of [`product`] says that the reader left.
pub(crate) fn is_of_reader(error: &io::Error) -> bool {
    error.get_ref().is_some_and(<dyn Error + Send + Sync>::is::<ReaderLeft>)
}

#[derive(Debug)]
struct ReaderLeft;

impl Display for ReaderLeft {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("whoever read standard output has left")
    }
}

impl Error for ReaderLeft {}

impl Output {
    /// What came of writing, or `unread` where nobody reads it and nobody has to.
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
    fn only_a_product_ends_with_its_reader_and_no_broken_connection_is_one() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        let ended = product().judge(Err(broken()), 7).expect_err("it ends");
        assert!(is_of_reader(&ended));
        assert!(matches!(account().judge(Err(broken()), 7), Ok(7)));
        assert!(!is_of_reader(&broken()), "of a socket");
        // Whatever else is wrong with standard output is told.
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        for output in [product, account] {
            let error = output().judge(Err(full()), 7).expect_err("it fails");
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        }
    }
}
