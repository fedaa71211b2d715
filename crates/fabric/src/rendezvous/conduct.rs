//! The conductor's side of a forming group, over connections.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use serde::Serialize;

use super::conductor::{Conductor, Word};
use super::frame::{read_json, write_json};
use super::wire::{Go, Shape};
use crate::channel::Channel;
use crate::error::FabricError;
use crate::timed::{end_of, timespec};

/// How often a conductor looks whether it is to stop.
const GLANCE: Duration = Duration::from_millis(50);
/// How long a rank may take to finish a message that it has begun, or to read one, which are small.
pub(crate) const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// Brings a group up whose ranks have been welcomed: `channels` lead to them and `hosts` numbers their hosts, by rank.
/// `check` may end it.
pub(crate) fn conduct(
    channels: &[&Channel],
    hosts: Vec<usize>,
    patience: Duration,
    mut check: impl FnMut() -> Result<(), FabricError>,
) -> Result<(), FabricError> {
    let started = Instant::now();
    let mut conductor = Conductor::new(hosts, patience, Duration::ZERO);
    while !conductor.is_done() {
        check()?;
        conductor.on_tick(started.elapsed())?;
        let awaited: Vec<usize> = conductor.awaited().collect();
        for rank in ranks_heard(&awaited, channels)? {
            let report = read_json(channels[rank], end_of(ANSWER_PATIENCE));
            let report = report.map_err(|cause| conductor.on_gone(rank, cause))?;
            match conductor.on_report(rank, report, started.elapsed())? {
                None => {}
                Some(Word::Go) => tell_all(channels, &Go)?,
                Some(Word::Shape(shape)) => {
                    tell_all(channels, &shape)?;
                    if let Shape::Impossible { why } = shape {
                        return Err(FabricError::Invalid(why));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Says the same to all ranks.
fn tell_all(channels: &[&Channel], message: &impl Serialize) -> Result<(), FabricError> {
    channels.iter().enumerate().try_for_each(|(rank, channel)| {
        let told = write_json(*channel, message, end_of(ANSWER_PATIENCE));
        told.map_err(|cause| FabricError::PeerLost { rank, cause })
    })
}

/// Those of the ranks in `silent` that have said something or gone, after a short wait.
fn ranks_heard(silent: &[usize], channels: &[&Channel]) -> Result<Vec<usize>, FabricError> {
    let mut sockets: Vec<_> = silent.iter().map(|&rank| PollFd::new(channels[rank], PollFlags::IN)).collect();
    match rustix::event::poll(&mut sockets, Some(&timespec(GLANCE))) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(FabricError::io("cannot wait for the ranks", error)),
    }
    let heard = silent.iter().zip(&sockets).filter(|(_, socket)| !socket.revents().is_empty());
    Ok(heard.map(|(&rank, _)| rank).collect())
}
