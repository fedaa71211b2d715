//! Weights laid out in the order in which the kernels for quantized formats read them.
//!
//! A tile is eight rows (see [`Quantized`]); tiles follow each other, so that a product with one token reads all weights in one
//! go from the first byte to the last. Packed weights lie in memory of their own, in large pages, which saves the processor
//! much searching for addresses: this alone makes reading up to twice as fast as from a file's map.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Mutex;

use bytes::Bytes;

use crate::formats::{Quantized, with_format};
use crate::matrix::{Data, ROWS};
use crate::simd::LANES;
use crate::{KernelError, Matrix, Pool};

/// Bytes of packed weights that a thread makes at a time.
const PORTION_BYTES: usize = 256 << 10;

/// Somewhere the stored bytes of a matrix can be read without touching a memory map, whose pages would count as this
/// process's memory.
pub trait ReadAt: Send + Sync + fmt::Debug {
    /// Fills `buffer` from byte `offset` on.
    ///
    /// # Errors
    /// When there are not as many bytes, or they cannot be read.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

/// Moves all weights to one piece of new memory, packed where the format is a quantized one, on all threads. `progress` hears
/// how many bytes of it are done.
///
/// # Errors
/// When the memory cannot be had, or weights cannot be read; the matrices then are what they were.
pub fn pack(pool: &Pool, matrices: &mut [&mut Matrix], progress: &mut dyn FnMut(usize)) -> Result<(), KernelError> {
    let size = matrices.iter().map(|matrix| aligned(packed_len(matrix))).sum();
    let mut memory = mapped::Memory::new(size).map_err(|source| KernelError::Memory { bytes: size, source })?;
    let mut rest = &mut memory[..];
    let mut done = 0;
    for matrix in &*matrices {
        let (place, after) = rest.split_at_mut(aligned(packed_len(matrix)));
        pack_matrix(pool, matrix, &mut place[..packed_len(matrix)])?;
        rest = after;
        done += packed_len(matrix);
        progress(done);
    }
    let memory = memory.into_bytes();
    let mut offset = 0;
    for matrix in matrices {
        let length = packed_len(matrix);
        matrix.move_to(memory.slice(offset..offset + length));
        offset += aligned(length);
    }
    Ok(())
}

/// The bytes that [`pack`] will take for a matrix.
pub fn packed_len(matrix: &Matrix) -> usize {
    with_format!(matrix.dtype(),
        float _F => matrix.byte_len(),
        quantized F => matrix.tiles() * tile_bytes::<F>(matrix.columns())
    )
}

/// Matrices begin at cache lines.
fn aligned(length: usize) -> usize {
    length.next_multiple_of(64)
}

/// Bytes of a packed tile.
pub(crate) fn tile_bytes<F: Quantized>(columns: usize) -> usize {
    columns / F::VALUES * F::PACKED_BYTES
}

fn pack_matrix(pool: &Pool, matrix: &Matrix, packed: &mut [u8]) -> Result<(), KernelError> {
    let failure = Mutex::new(None);
    let read = |rows: Range<usize>, then: &mut dyn FnMut(&[u8])| {
        if let Err(source) = matrix.with_stored_rows(rows, then) {
            *failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(source);
        }
    };
    with_format!(matrix.dtype(),
        float _F => {
            let rows = (PORTION_BYTES / matrix.row_bytes()).max(1);
            pool.for_each_piece(packed, rows * matrix.row_bytes(), |piece, packed| {
                let first = piece * rows;
                let range = first..first + packed.len() / matrix.row_bytes();
                read(range, &mut |stored| packed.copy_from_slice(stored));
            });
        },
        quantized F => {
            let tile = tile_bytes::<F>(matrix.columns());
            let tiles = (PORTION_BYTES / tile).max(1);
            pool.for_each_piece(packed, tiles * tile, |piece, packed| {
                let first = piece * tiles * ROWS;
                let range = first..matrix.rows().min(first + packed.len() / tile * ROWS);
                read(range, &mut |stored| pack_rows::<F>(stored, matrix.row_bytes(), packed));
            });
        }
    );
    match failure.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some(source) => Err(KernelError::Read { source }),
        None => Ok(()),
    }
}

/// Packs whole tiles; the last one may have fewer rows, the missing ones of which become zeros.
fn pack_rows<F: Quantized>(stored: &[u8], row_bytes: usize, packed: &mut [u8]) {
    // Enough for a block of any format.
    const NONE: [u8; 256] = [0; 256];
    let blocks = row_bytes / F::BYTES;
    let tiles = stored.chunks(ROWS * row_bytes).zip(packed.chunks_exact_mut(blocks * F::PACKED_BYTES));
    for (stored, packed) in tiles {
        let rows = stored.len() / row_bytes;
        for (block, packed) in packed.chunks_exact_mut(F::PACKED_BYTES).enumerate() {
            let rows: [&[u8]; LANES] = std::array::from_fn(|row| match row < rows {
                true => &stored[row * row_bytes + block * F::BYTES..][..F::BYTES],
                false => &NONE[..F::BYTES],
            });
            F::pack(&rows, packed);
        }
    }
}

thread_local! {
    /// Where a thread packs tiles of matrices that are not packed, and reads stored rows.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Lends `f` this thread's scratch memory, so that it is allocated once only.
#[inline(always)]
pub(crate) fn with_scratch<T>(f: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    let mut scratch = SCRATCH.take();
    let result = f(&mut scratch);
    SCRATCH.set(scratch);
    result
}

impl Matrix {
    /// A packed tile, which is made in `scratch` if the matrix is not packed.
    pub(crate) fn tile<'a, F: Quantized>(&'a self, tile: usize, scratch: &'a mut Vec<u8>) -> &'a [u8] {
        let length = tile_bytes::<F>(self.columns());
        match self.data() {
            Data::Packed(bytes) => &bytes[tile * length..][..length],
            Data::Stored(bytes) => {
                let rows = tile * ROWS..self.rows().min((tile + 1) * ROWS);
                let stored = &bytes[rows.start * self.row_bytes()..rows.end * self.row_bytes()];
                scratch.resize(length, 0);
                pack_rows::<F>(stored, self.row_bytes(), scratch);
                scratch
            }
        }
    }

    /// Takes over bytes that [`pack`] has made.
    fn move_to(&mut self, bytes: Bytes) {
        let data = with_format!(self.dtype(), float _F => Data::Stored(bytes), quantized _F => Data::Packed(bytes));
        self.set_data(data);
    }
}
