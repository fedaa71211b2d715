//! The arithmetic of reductions: elements of several members folded into one, always in the same order.
//!
//! Numbers are added up in 32 bits, a block at a time that stays in the first cache. Whatever is not a number ends as
//! the same NaN, because which of several NaNs an addition returns differs between processors, and even between two
//! compilations of the same loop.

mod encoding;
mod kernels;
#[cfg(test)]
mod tests;

pub(crate) use self::encoding::Encoding;
use self::kernels::{accumulate, accumulate_behind};
use crate::element::Operator;

/// Folds elements of several sources, a block at a time.
pub(crate) struct Folder {
    block: [f32; Self::BLOCK],
    other: [f32; Self::BLOCK],
}

impl Folder {
    /// The elements of a block: a multiple of those that [`Encoding::Int8`] takes together.
    pub(crate) const BLOCK: usize = 1024;

    pub(crate) fn new() -> Box<Self> {
        Box::new(Self { block: [0.0; Self::BLOCK], other: [0.0; Self::BLOCK] })
    }

    /// Begins a block of `count` elements with those of the first source.
    pub(crate) fn begin(&mut self, encoding: Encoding, source: &[u8], count: usize) {
        encoding.decode(source, &mut self.block[..count]);
    }

    /// Folds the elements of the next source in.
    pub(crate) fn fold(&mut self, operator: Operator, encoding: Encoding, source: &[u8], count: usize) {
        let block = &mut self.block[..count];
        if encoding == Encoding::F32 {
            accumulate(operator, block, bytemuck::cast_slice(source));
        } else {
            let other = &mut self.other[..count];
            encoding.decode(source, other);
            accumulate(operator, block, other);
        }
    }

    /// Writes the block.
    pub(crate) fn store(&self, encoding: Encoding, target: &mut [u8], count: usize) {
        encoding.encode(&self.block[..count], target);
    }

    /// Folds whole elements that come in with those that are there, of the same encoding. `incoming_first` says which
    /// come first in the team's order.
    pub(crate) fn combine(
        &mut self,
        operator: Operator,
        encoding: Encoding,
        main: &mut [u8],
        incoming: &[u8],
        incoming_first: bool,
    ) {
        let accumulate = if incoming_first { accumulate_behind } else { accumulate };
        if encoding == Encoding::F32 {
            return accumulate(operator, bytemuck::cast_slice_mut(main), bytemuck::cast_slice(incoming));
        }
        let bytes = encoding.bytes(Self::BLOCK);
        for (main, incoming) in main.chunks_mut(bytes).zip(incoming.chunks(bytes)) {
            let count = encoding.elements(main.len());
            let (block, other) = (&mut self.block[..count], &mut self.other[..count]);
            encoding.decode(main, block);
            encoding.decode(incoming, other);
            accumulate(operator, block, other);
            encoding.encode(block, main);
        }
    }
}
