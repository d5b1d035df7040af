//! The storage backend below the database. It applies injected faults before every sync, and passes
//! all other calls on. It takes no lock, because the data directory is locked as a whole.

use std::io;

use redb::StorageBackend;

use crate::faults::Faults;

/// A storage backend with injected faults.
#[derive(Debug)]
pub(super) struct Disk<B> {
    inner: B,
    faults: Faults,
}

impl<B: StorageBackend> Disk<B> {
    pub(super) fn new(inner: B, faults: &Faults) -> Self {
        Self { inner, faults: faults.clone() }
    }
}

impl<B: StorageBackend> StorageBackend for Disk<B> {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.faults.before_sync()?;
        self.inner.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }
}
