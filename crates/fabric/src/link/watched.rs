//! The sockets that a rank sleeps on.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use crate::error::Cause;
use crate::timed::timespec;

/// The most sockets that are watched at once.
const SOCKETS_MAX: usize = 64;

/// A list of sockets of fixed capacity, so that to sleep takes no memory from the allocator.
#[derive(Debug)]
pub struct Watched<'a> {
    sockets: [Option<(BorrowedFd<'a>, PollFlags)>; SOCKETS_MAX],
    count: usize,
    overflowed: bool,
}

impl<'a> Watched<'a> {
    /// An empty list.
    pub fn new() -> Self {
        Self { sockets: [None; SOCKETS_MAX], count: 0, overflowed: false }
    }

    /// Adds a socket. One that finds no room is noted in [`Watched::overflowed`].
    pub fn add(&mut self, socket: BorrowedFd<'a>, flags: PollFlags) {
        match self.sockets.get_mut(self.count) {
            Some(place) => {
                *place = Some((socket, flags));
                self.count += 1;
            }
            None => self.overflowed = true,
        }
    }

    /// The number of sockets in the list.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is no socket in the list.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether there were more sockets than are watched, so that a sleeper must wake up by itself every now and then.
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Sleeps until one of the sockets is ready or has failed. False when none was within `at_most`.
    ///
    /// # Errors
    /// When the system does not let it sleep.
    pub fn wait(&self, at_most: Duration) -> Result<bool, Cause> {
        let Some((first, _)) = self.sockets[0] else {
            std::thread::sleep(at_most);
            return Ok(false);
        };
        let mut polled: [PollFd<'_>; SOCKETS_MAX] = std::array::from_fn(|index| {
            let (socket, flags) = self.sockets[index].unwrap_or((first, PollFlags::empty()));
            PollFd::from_borrowed_fd(socket, flags)
        });
        match rustix::event::poll(&mut polled[..self.count], Some(&timespec(at_most))) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Default for Watched<'_> {
    fn default() -> Self {
        Self::new()
    }
}
