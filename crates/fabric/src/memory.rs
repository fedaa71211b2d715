//! The memory that a collective works on, and the local part of its work.

use crate::arithmetic::Folder;
use crate::plan::{Buffer, Fold};

/// The caller's buffer.
pub(crate) enum Main<'a> {
    /// Sends from and receives into the same buffer, at different places.
    Shared(&'a mut [u8]),
    /// Sends from one and receives into another.
    Apart { from: &'a [u8], to: &'a mut [u8] },
}

/// The caller's buffer and the fabric's.
pub(crate) struct Memory<'a, 'b> {
    pub(crate) main: &'a mut Main<'b>,
    pub(crate) scratch: &'a mut [u8],
}

impl Memory<'_, '_> {
    /// What is sent from.
    #[inline]
    pub(crate) fn source(&self, buffer: Buffer) -> &[u8] {
        match (buffer, &*self.main) {
            (Buffer::Scratch, _) => self.scratch,
            (Buffer::Main, Main::Shared(bytes)) => bytes,
            (Buffer::Main, Main::Apart { from, .. }) => from,
        }
    }

    /// What is received into.
    #[inline]
    pub(crate) fn target(&mut self, buffer: Buffer) -> &mut [u8] {
        match (buffer, &mut *self.main) {
            (Buffer::Scratch, _) => self.scratch,
            (Buffer::Main, Main::Shared(bytes)) => bytes,
            (Buffer::Main, Main::Apart { to, .. }) => to,
        }
    }

    /// Folds block by block, each of which is read from all sources before it is written.
    pub(crate) fn fold(&mut self, folder: &mut Folder, fold: &Fold) {
        let Some((first, others)) = fold.sources.split_first() else { return };
        for start in (0..fold.elements).step_by(Folder::BLOCK) {
            let count = (fold.elements - start).min(Folder::BLOCK);
            folder.begin(first.encoding, &self.source(first.buffer)[first.range(start, count)], count);
            for place in others {
                let source = &self.source(place.buffer)[place.range(start, count)];
                folder.fold(fold.operator, place.encoding, source, count);
            }
            let target = &fold.target;
            let bytes = &mut self.target(target.buffer)[target.range(start, count)];
            folder.store(target.encoding, bytes, count);
        }
    }
}

/// Memory that is aligned for every type of element.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    words: Vec<u128>,
}

impl Scratch {
    /// So many bytes of any content.
    #[inline]
    pub(crate) fn bytes(&mut self, length: usize) -> &mut [u8] {
        let words = length.div_ceil(size_of::<u128>());
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
        &mut bytemuck::cast_slice_mut(&mut self.words)[..length]
    }
}
