//! The link: a stream in each direction, cut into pieces that travel over all rails.
//!
//! Pieces are numbered, and each lane keeps its order, so that the next piece of the stream is always the oldest of some
//! lane. What is lost or damaged over an unreliable connection ends the link with [`Cause::Damaged`]. It is not sent
//! again: a frame that comes twice needs a receive of its own, and a message that meets none can break an unreliable
//! connection for good; where cables are sound, losses are too rare to be worth that.
//!
//! A lost frame shows by the next one of its lane. So that the last one does not go unnoticed, a side whose pieces are
//! not being consumed asks for a sign every now and then.

use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use super::frame::FrameKind;
use super::rail::Rail;
use super::wire::{Lane, Wire};
use crate::error::Cause;
use crate::link::{Cable, Interest, Link, LinkCounters, Transport, Watched};

/// How long a side waits in vain before it asks for a sign, first and at most.
const PROBE_PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];
/// A side that polls in vain looks at the clock this often.
const LOOKS_PER_TIME: u32 = 1024;
/// How long a sleeper sleeps before it looks again: nothing wakes it up.
const NAP: Duration = Duration::from_micros(50);
/// How long the end of a link waits for messages on the way to go out, if it is healthy, and if it is broken.
const DRAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_millis(200)];
/// How long it then stays for the goodbye of the other side, which may be about to leave as well: over a reliable
/// connection, who says goodbye to nobody waits in vain for it to be acknowledged.
const LINGER: Duration = Duration::from_millis(100);
/// How long pieces may be missing after the other side's goodbye.
const FAREWELL: Duration = Duration::from_secs(2);

/// A link over one or more rails.
pub(crate) struct RdmaLink<W: Wire> {
    rails: Vec<Rail<W>>,
    cables: Vec<Cable>,
    /// The number of the next piece to send, and of the next to consume.
    next_out: u32,
    next_in: u32,
    /// The rail that long messages took last.
    rail_out: usize,
    /// Where the next piece lies, if it is known.
    head: Option<(usize, Lane)>,
    lost: Option<Cause>,
    /// When the other side's goodbye was first looked at.
    farewell: Option<Instant>,
    idle: Idle,
}

/// How long nothing has come.
struct Idle {
    /// Looks in vain since the last look at the clock.
    looks: u32,
    /// When nothing had come for the first time, or the last sign was asked for.
    since: Option<Instant>,
    pause: Duration,
}

impl Idle {
    const NONE: Self = Self { looks: 0, since: None, pause: PROBE_PAUSES[0] };
}

impl<W: Wire> RdmaLink<W> {
    /// A link over rails that work, of which there is at least one. `cables` are their addresses.
    pub(crate) fn new(rails: Vec<Rail<W>>, cables: Vec<Cable>) -> Self {
        let (rail_out, head, lost, farewell) = (0, None, None, None);
        Self { rails, cables, next_out: 0, next_in: 0, rail_out, head, lost, farewell, idle: Idle::NONE }
    }

    /// Whether messages may get lost on the way.
    #[cfg(test)]
    pub(crate) fn is_unreliable(&self) -> bool {
        self.rails.iter().all(|rail| rail.shape().unreliable)
    }

    /// Takes in what has happened on all rails, and answers what has to be. An error stays.
    fn poll(&mut self) {
        if self.lost.is_some() {
            return;
        }
        let mut happened = false;
        for rail in &mut self.rails {
            match rail.poll().and_then(|it| rail.tell().map(|()| it)) {
                Ok(it) => happened |= it,
                Err(cause) => self.lost = Some(cause),
            }
        }
        if happened {
            self.idle = Idle::NONE;
            return;
        }
        self.idle.looks += 1;
        if self.idle.looks >= LOOKS_PER_TIME {
            self.tend(Instant::now());
        }
    }

    /// Asks for signs where losses would not show otherwise, if nothing has come for long enough.
    fn tend(&mut self, now: Instant) {
        self.idle.looks = 0;
        let since = *self.idle.since.get_or_insert(now);
        if now.duration_since(since) < self.idle.pause {
            return;
        }
        self.idle.since = Some(now);
        self.idle.pause = (self.idle.pause * 2).min(PROBE_PAUSES[1]);
        for rail in self.rails.iter_mut().filter(|rail| rail.shape().unreliable) {
            if let Err(cause) = rail.probe() {
                self.lost.get_or_insert(cause);
            }
        }
    }

    /// Where the next piece of the stream lies, if it has come.
    fn head(&mut self) -> Option<(usize, Lane)> {
        if self.head.is_none() {
            let next = self.next_in;
            let mut rails = self.rails.iter_mut().enumerate();
            self.head = rails.find_map(|(index, rail)| {
                let mut lanes = Lane::BOTH.into_iter();
                let lane = lanes.find(|lane| rail.oldest(*lane).is_some_and(|piece| piece.piece == next))?;
                Some((index, lane))
            });
        }
        self.head
    }

    /// As [`RdmaLink::head`], after a look for more if need be.
    fn look(&mut self) -> Option<(usize, Lane)> {
        self.head().or_else(|| {
            self.poll();
            self.head()
        })
    }

    /// Why nothing more will come, if so. To be asked when nothing has.
    fn end(&mut self) -> Option<Cause> {
        if let Some(ends_at) = self.rails.iter().find_map(|rail| rail.ends_at) {
            if ends_at == self.next_in {
                return Some(Cause::Closed);
            }
            // Other lanes may still bring what was sent before.
            let now = Instant::now();
            let since = *self.farewell.get_or_insert(now);
            if self.lost.is_none() && now.duration_since(since) > FAREWELL {
                self.lost = Some(Cause::Damaged("pieces were missing at the end".to_owned()));
            }
        }
        self.lost.clone()
    }

    /// The rail and lane for the next piece of a message of which so many bytes are left. `None` when there is no room.
    fn lane_for(&mut self, left: usize) -> Option<(usize, Lane)> {
        let count = self.rails.len();
        let shape = self.rails[0].shape();
        if left <= shape.small_bytes_max {
            return (0..count).find(|&rail| self.rails[rail].has_room(Lane::Small)).map(|rail| (rail, Lane::Small));
        }
        let next = (1..=count).map(|step| (self.rail_out + step) % count);
        let rail = next.into_iter().find(|&rail| self.rails[rail].has_room(Lane::Bulk))?;
        self.rail_out = rail;
        Some((rail, Lane::Bulk))
    }

    /// Sends bytes of `parts` from `at` on as one piece. Returns how many; none when there is no room.
    fn send_some(&mut self, parts: &[IoSlice<'_>], at: usize, left: usize) -> Result<usize, Cause> {
        let place = self.lane_for(left).or_else(|| {
            self.poll();
            self.lane_for(left)
        });
        let Some((rail, lane)) = place.filter(|_| self.lost.is_none()) else { return Ok(0) };
        let rail = &mut self.rails[rail];
        let count = left.min(rail.piece_bytes_max(lane));
        rail.send_piece(lane, self.next_out, |target| {
            copy_parts(parts, at, &mut target[..count]);
            count
        })?;
        self.next_out = self.next_out.wrapping_add(1);
        Ok(count)
    }

    /// Fills `target` from the piece at hand. Returns how many bytes there were.
    fn take(&mut self, (rail, lane): (usize, Lane), target: &mut [u8]) -> usize {
        let rail = &mut self.rails[rail];
        let Some(piece) = rail.oldest(lane) else { return 0 };
        let rest = piece.rest();
        let count = rest.len().min(target.len());
        target[..count].copy_from_slice(&rest[..count]);
        piece.consume(count);
        if piece.rest().is_empty() {
            self.next_in = self.next_in.wrapping_add(1);
            self.head = None;
            // What has come counts, whatever happens now.
            if let Err(cause) = rail.release(lane).and_then(|()| rail.tell()) {
                self.lost.get_or_insert(cause);
            }
        }
        count
    }

    fn is_ready(&mut self, interest: Interest) -> bool {
        if interest.receive && self.look().is_some() {
            return true;
        }
        self.poll();
        self.end().is_some()
            || interest.receive && self.head().is_some()
            || interest.send && self.rails.iter().any(|rail| rail.has_room(Lane::Small) && rail.has_room(Lane::Bulk))
    }

    /// Says goodbye and waits for all messages to go out, so that no port works for a link that is gone.
    fn close(&mut self) {
        self.poll();
        let healthy = self.lost.is_none() && !self.is_left();
        let started = Instant::now();
        let patience = if healthy { DRAIN[0] } else { DRAIN[1] };
        let unreliable = self.rails.iter().all(|rail| rail.shape().unreliable);
        let mut said = (!healthy).then_some(started);
        while started.elapsed() < patience && self.lost.is_none() {
            let out: usize = self.rails.iter().map(Rail::sends_out).sum();
            match said {
                None if self.is_left() => said = Some(started),
                // The last words go out before the goodbye, so that a slower lane is not overtaken by it.
                None if out == 0 => match self.rails[0].send_note(Lane::Small, FrameKind::Goodbye, self.next_out) {
                    Ok(sent) => said = sent.then(Instant::now),
                    Err(cause) => self.lost = Some(cause),
                },
                Some(at) if out == 0 && (self.is_left() || unreliable || at.elapsed() > LINGER) => return,
                _ => {}
            }
            self.poll();
            std::thread::yield_now();
        }
    }

    /// Whether the other side has said goodbye.
    fn is_left(&self) -> bool {
        self.rails.iter().any(|rail| rail.ends_at.is_some())
    }
}

/// Copies from the parts, taken as one, from `at` on. They are at least as long as is asked for.
fn copy_parts(parts: &[IoSlice<'_>], mut at: usize, mut target: &mut [u8]) {
    for part in parts {
        let rest = part.get(at..).unwrap_or(&[]);
        at = at.saturating_sub(part.len());
        let count = rest.len().min(target.len());
        let (filled, left) = target.split_at_mut(count);
        filled.copy_from_slice(&rest[..count]);
        target = left;
    }
}

impl<W: Wire> Link for RdmaLink<W> {
    fn try_send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize, Cause> {
        if let Some(cause) = self.end() {
            return Err(cause);
        }
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let mut done = 0;
        while done < total {
            let count = self.send_some(parts, done, total - done)?;
            if count == 0 {
                break;
            }
            done += count;
        }
        match self.lost.clone() {
            Some(cause) if done == 0 && total > 0 => Err(cause),
            _ => Ok(done),
        }
    }

    fn try_recv(&mut self, parts: &mut [IoSliceMut<'_>]) -> Result<usize, Cause> {
        let mut done = 0;
        for part in parts.iter_mut() {
            let mut at = 0;
            while at < part.len() {
                let Some(place) = self.look() else {
                    return if done > 0 { Ok(done) } else { self.end().map_or(Ok(0), Err) };
                };
                let count = self.take(place, &mut part[at..]);
                at += count;
                done += count;
            }
        }
        Ok(done)
    }

    fn is_readable(&mut self) -> Result<bool, Cause> {
        if self.look().is_some() {
            return Ok(true);
        }
        self.end().map_or(Ok(false), Err)
    }

    fn rest(&mut self, interest: Interest, at_most: Duration) -> Result<bool, Cause> {
        let started = Instant::now();
        loop {
            if self.is_ready(interest) {
                return Ok(true);
            }
            let now = Instant::now();
            self.tend(now);
            let Some(left) = at_most.checked_sub(now.duration_since(started)) else { return Ok(false) };
            std::thread::sleep(left.min(NAP));
        }
    }

    fn watch<'a>(&'a self, _interest: Interest, _sockets: &mut Watched<'a>) {}

    fn transport(&self) -> Transport {
        Transport::Rdma
    }

    fn cables(&self) -> Vec<Cable> {
        self.cables.clone()
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters { errors: self.rails.iter().map(|rail| rail.stale_frames).sum(), ..LinkCounters::default() }
    }
}

impl<W: Wire> Drop for RdmaLink<W> {
    fn drop(&mut self) {
        self.close();
    }
}
