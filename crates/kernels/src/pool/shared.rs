//! Writing one output from many threads without locks and without undefined behaviour.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// A slice of floats that several threads may write at once. Writes to one place race, but to a defined end: one of them
/// stays. On every usual machine such a write is a plain store.
#[derive(Clone, Copy)]
pub(crate) struct SharedValues<'a>(&'a [AtomicU32]);

impl<'a> SharedValues<'a> {
    /// Shares `values` until the end of its borrow.
    pub(crate) fn new(values: &'a mut [f32]) -> SharedValues<'a> {
        let words: &mut [u32] = bytemuck::cast_slice_mut(values);
        // SAFETY: `AtomicU32` has the size, alignment and bit validity of `u32`, and the exclusive borrow guarantees that
        // for 'a all accesses go through the atomics.
        SharedValues(unsafe { std::slice::from_raw_parts(words.as_mut_ptr().cast::<AtomicU32>(), words.len()) })
    }

    /// Writes one value.
    #[inline(always)]
    pub(crate) fn set(&self, index: usize, value: f32) {
        self.0[index].store(value.to_bits(), Ordering::Relaxed);
    }
}

/// A slice cut into pieces, each of which is handed out once, to whichever thread asks next.
pub(crate) struct Pieces<'a, T> {
    start: *mut T,
    length: usize,
    piece_length: usize,
    next: AtomicUsize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: sharing `Pieces` lets other threads have its parts exclusively, as sending `&mut [T]` to them would.
unsafe impl<T: Send> Sync for Pieces<'_, T> {}

impl<'a, T> Pieces<'a, T> {
    /// Cuts `values` into pieces of `piece_length`, the last of which may be shorter.
    pub(crate) fn new(values: &'a mut [T], piece_length: usize) -> Pieces<'a, T> {
        assert!(piece_length > 0, "a piece holds something");
        let (start, length) = (values.as_mut_ptr(), values.len());
        Pieces { start, length, piece_length, next: AtomicUsize::new(0), borrow: PhantomData }
    }

    /// The next piece and its index, until all are handed out.
    pub(crate) fn take(&self) -> Option<(usize, &'a mut [T])> {
        // Every thread asks once too often, and no more: the count cannot overflow.
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let from = index.checked_mul(self.piece_length).filter(|from| *from < self.length)?;
        let length = self.piece_length.min(self.length - from);
        // SAFETY: the piece lies within the slice, which is borrowed exclusively for 'a, and no other piece overlaps it: all
        // have another index, for the counter gives each one once.
        Some((index, unsafe { std::slice::from_raw_parts_mut(self.start.add(from), length) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_slice_once() {
        let mut values = [0; 10];
        let pieces = Pieces::new(&mut values, 4);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while let Some((index, piece)) = pieces.take() {
                        piece.iter_mut().for_each(|value| *value += index + 1);
                    }
                });
            }
        });
        assert_eq!(values, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3]);
        assert!(Pieces::new(&mut [0; 0], 3).take().is_none());
    }

    #[test]
    fn shared_values_are_written() {
        let mut values = [0.0; 3];
        let shared = SharedValues::new(&mut values);
        std::thread::scope(|scope| {
            scope.spawn(|| shared.set(0, 1.0));
            scope.spawn(|| shared.set(2, -2.0));
        });
        assert_eq!(values, [1.0, 0.0, -2.0]);
    }
}
