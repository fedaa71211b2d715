//! Messages that are combined with what is there while they come.

use std::io::IoSliceMut;

use super::{Peer, Verdict, receive};
use crate::arithmetic::Folder;
use crate::error::FabricError;
use crate::memory::Scratch;
use crate::message::HEADER_BYTES;
use crate::plan::Combine;

/// What is combined at a time: little enough to stay in the first cache together with what it is combined with, or
/// enough to be worth a system call and not too much for the second cache.
const PIECE_BYTES: usize = 8 << 10;
const PIECE_BYTES_BY_CALL: usize = 128 << 10;

/// Where pieces are received before they are combined.
pub(crate) struct Pieces {
    scratch: Scratch,
    /// Bytes of an incomplete element at the beginning.
    held: usize,
    pub(crate) folder: Box<Folder>,
}

impl Pieces {
    pub(crate) fn new() -> Self {
        Self { scratch: Scratch::default(), held: 0, folder: Folder::new() }
    }
}

impl Peer {
    /// As [`Peer::pull`], combining what has come with the bytes of `main`, which are those of the message.
    pub(crate) fn pull_combining(
        &mut self,
        main: &mut [u8],
        combine: Combine,
        pieces: &mut Pieces,
    ) -> Result<bool, FabricError> {
        let size = if self.is_moved_by_calls() { PIECE_BYTES_BY_CALL } else { PIECE_BYTES };
        let turn = self.turn_bytes();
        let element = combine.encoding.bytes(1);
        let piece = pieces.scratch.bytes(size);
        let mut moved = 0;
        while self.incoming.is_open() && moved < turn {
            let position = self.incoming.position();
            // What is there must have been sent before it changes.
            let limit = if combine.behind_send { self.outgoing.position() } else { main.len() };
            let room = limit.saturating_sub(position).min(size - pieces.held);
            let has_header = self.incoming.done >= HEADER_BYTES;
            self.held_back = has_header && room == 0;
            if self.held_back {
                break;
            }
            let body = &mut piece[pieces.held..pieces.held + room];
            let taken = self.receive_piece(body)?;
            if taken == 0 {
                break;
            }
            moved += taken;
            let came = self.incoming.position() - position;
            if self.has_new_header(taken) && self.verify()? == Verdict::Stale {
                self.put_back(&piece[..came]);
                continue;
            }
            let start = position - pieces.held;
            let there = pieces.held + came;
            let whole = there - there % element;
            let (operator, encoding) = (combine.operator, combine.encoding);
            let target = &mut main[start..start + whole];
            pieces.folder.combine(operator, encoding, target, &piece[..whole], combine.incoming_first);
            piece.copy_within(whole..there, 0);
            pieces.held = there - whole;
        }
        if moved == 0 {
            self.still_there()?;
        }
        Ok(moved > 0)
    }

    #[inline]
    fn receive_piece(&mut self, body: &mut [u8]) -> Result<usize, FabricError> {
        let done = self.incoming.done;
        let header = IoSliceMut::new(&mut self.incoming.header[done.min(HEADER_BYTES)..]);
        let parts = &mut [header, IoSliceMut::new(body)];
        let taken = receive(&mut *self.link, &mut self.stale, parts).map_err(|cause| self.lost(cause))?;
        self.incoming.done += taken;
        Ok(taken)
    }
}
