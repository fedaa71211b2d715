//! One process at a time fetches a model; the others wait for it and then use what it fetched.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::{Progress, StoreError};

/// How often a waiting process looks whether the lock is free, and whether it was cancelled itself.
const POLL: Duration = Duration::from_millis(100);

/// An exclusive lock among processes. The system releases it when its holder ends, however it ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: Option<File>,
}

impl Lock {
    /// Waits until no other process holds the lock at `path`, a file that stays for good: deleting it would let two
    /// processes hold two locks of the same name.
    ///
    /// The wait has no limit of its own: the holder's transfers have, and a holder that died holds nothing.
    pub(crate) fn acquire(path: &Path, what: &str, progress: &dyn Progress) -> Result<Lock, StoreError> {
        let mut told = false;
        loop {
            if let Some(lock) = Lock::try_acquire(path)? {
                return Ok(lock);
            }
            if !told {
                progress.waiting(&format!("another process is fetching {what}; waiting for it"));
                told = true;
            }
            pause(POLL, progress)?;
        }
    }

    /// The lock at `path`, or `None` if another process still holds it after `patience`. A child process that is just
    /// being started can share it for a moment longer than its holder.
    pub(crate) fn acquire_within(path: &Path, patience: Duration) -> Result<Option<Lock>, StoreError> {
        let end = Instant::now() + patience;
        loop {
            let lock = Lock::try_acquire(path)?;
            if lock.is_some() || Instant::now() >= end {
                return Ok(lock);
            }
            std::thread::sleep(POLL / 10);
        }
    }

    /// The lock at `path`, or `None` while another process holds it.
    pub(crate) fn try_acquire(path: &Path) -> Result<Option<Lock>, StoreError> {
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).open(path);
        let file = file.map_err(StoreError::cache_io("create", path))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock { _file: Some(file) })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                // Some network file systems have no locks. Landing by rename keeps even two downloads at once right.
                tracing::warn!("no locks on this file system: {}", path.display());
                Ok(Some(Lock { _file: None }))
            }
            Err(TryLockError::Error(error)) => Err(StoreError::cache_io("lock", path)(error)),
        }
    }
}

/// Sleeps, but ends soon after the caller cancels.
pub(crate) fn pause(duration: Duration, progress: &dyn Progress) -> Result<(), StoreError> {
    let mut left = duration;
    loop {
        if progress.is_cancelled() {
            return Err(StoreError::Cancelled);
        }
        if left.is_zero() {
            return Ok(());
        }
        let step = left.min(POLL);
        std::thread::sleep(step);
        left -= step;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Sends each reason for waiting.
    struct Waits(mpsc::SyncSender<String>);

    impl Progress for Waits {
        fn start(&self, _: &str, _: Option<u64>) {}
        fn advance(&self, _: u64) {}
        fn finish(&self) {}
        fn waiting(&self, why: &str) {
            self.0.send(why.to_owned()).unwrap();
        }
    }

    #[test]
    fn the_second_waits_for_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let (sender, waits) = mpsc::sync_channel(8);
        let first = Lock::acquire(&path, "m", &Waits(sender.clone())).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| Lock::acquire(&path, "m", &Waits(sender)).map(drop));
            assert_eq!(waits.recv().unwrap(), "another process is fetching m; waiting for it");
            drop(first);
            second.join().unwrap().unwrap();
        });
        assert!(waits.try_recv().is_err(), "it says so once");
    }
}
