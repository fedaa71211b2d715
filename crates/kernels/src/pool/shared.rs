//! Writing one output from many threads without locks and without undefined behaviour.

use std::sync::atomic::{AtomicU32, Ordering};

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
        #[allow(unsafe_code)]
        SharedValues(unsafe { std::slice::from_raw_parts(words.as_mut_ptr().cast::<AtomicU32>(), words.len()) })
    }

    /// Writes one value.
    #[inline(always)]
    pub(crate) fn set(&self, index: usize, value: f32) {
        self.0[index].store(value.to_bits(), Ordering::Relaxed);
    }
}
