//! Where the bytes of a message lie in a buffer.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;

/// The pieces handed to a link in one call.
pub(crate) const PIECES: usize = 16;

/// `rows` pieces of `bytes` bytes, the first at `start`, each `stride` after the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    start: usize,
    bytes: usize,
    rows: usize,
    stride: usize,
}

impl Layout {
    /// No bytes at all.
    pub(crate) const EMPTY: Self = Self { start: 0, bytes: 0, rows: 0, stride: 0 };

    /// One piece.
    pub(crate) fn contiguous(range: Range<usize>) -> Self {
        Self { start: range.start, bytes: range.len(), rows: 1, stride: range.len() }
    }

    /// The bytes `columns` of each of `rows` rows of `width` bytes.
    pub(crate) fn columns(rows: usize, width: usize, columns: Range<usize>) -> Self {
        if columns.len() == width {
            return Self::contiguous(0..rows * width);
        }
        Self { start: columns.start, bytes: columns.len(), rows, stride: width }
    }

    /// The length of the message.
    pub(crate) fn len(&self) -> usize {
        self.bytes * self.rows
    }

    /// The bytes that the message is made of, when they are in one piece.
    #[inline]
    pub(crate) fn as_range(&self) -> Option<Range<usize>> {
        match self.len() {
            0 => Some(0..0),
            length => (self.rows == 1).then(|| self.start..self.start + length),
        }
    }

    /// Copies the beginning of the message out of the buffer.
    pub(crate) fn read(&self, buffer: &[u8], mut message: &mut [u8]) {
        for (start, length) in self.spans(0) {
            let (part, rest) = message.split_at_mut(length.min(message.len()));
            part.copy_from_slice(&buffer[start..start + part.len()]);
            message = rest;
        }
    }

    /// Where in the buffer a byte of the message lies.
    #[cfg(test)]
    pub(crate) fn place_of(&self, position: usize) -> usize {
        self.start + position / self.bytes * self.stride + position % self.bytes
    }

    /// Collects what follows byte `position` of the message: returns the number of pieces.
    pub(crate) fn pieces<'a>(&self, buffer: &'a [u8], position: usize, pieces: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        for (start, length) in self.spans(position).take(pieces.len()) {
            pieces[count] = IoSlice::new(&buffer[start..start + length]);
            count += 1;
        }
        count
    }

    /// As [`Layout::pieces`], for receiving.
    pub(crate) fn pieces_mut<'a>(&self, buffer: &'a mut [u8], position: usize, pieces: &mut [IoSliceMut<'a>]) -> usize {
        let mut count = 0;
        let mut rest = buffer;
        let mut rest_start = 0;
        for (start, length) in self.spans(position).take(pieces.len()) {
            let (piece, after) = rest.split_at_mut(start - rest_start + length);
            pieces[count] = IoSliceMut::new(&mut piece[start - rest_start..]);
            (rest, rest_start) = (after, start + length);
            count += 1;
        }
        count
    }

    /// Start and length in the buffer of each piece from byte `position` of the message on.
    pub(crate) fn spans(&self, position: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let Self { start, bytes, rows, stride } = *self;
        // Pieces without bytes are none.
        let row = position.checked_div(bytes).unwrap_or(rows);
        let skip = position.checked_rem(bytes).unwrap_or(0);
        (row..rows).enumerate().map(move |(index, row)| {
            let skip = if index == 0 { skip } else { 0 };
            (start + row * stride + skip, bytes - skip)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(layout: &Layout, buffer: &[u8], position: usize) -> Vec<u8> {
        let mut pieces = [IoSlice::new(&[]); PIECES];
        let count = layout.pieces(buffer, position, &mut pieces);
        pieces[..count].iter().flat_map(|piece| piece.to_vec()).collect()
    }

    proptest::proptest! {
        #[test]
        fn pieces_are_the_columns(rows in 0usize..12, width in 1usize..9, a in 0usize..9, b in 0usize..9, at: usize) {
            let columns = a.min(b).min(width)..a.max(b).min(width);
            let mut buffer: Vec<u8> = (0..rows * width).map(|index| index as u8).collect();
            let expected: Vec<u8> = buffer.chunks(width).flat_map(|row| row[columns.clone()].to_vec()).collect();
            let layout = Layout::columns(rows, width, columns);
            proptest::prop_assert_eq!(layout.len(), expected.len());
            let position = at % (expected.len() + 1);
            proptest::prop_assert_eq!(&gather(&layout, &buffer, position), &expected[position..]);
            let mut pieces: [IoSliceMut<'_>; PIECES] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
            let count = layout.pieces_mut(&mut buffer, position, &mut pieces);
            let found: Vec<u8> = pieces[..count].iter().flat_map(|piece| piece.to_vec()).collect();
            proptest::prop_assert_eq!(&found, &expected[position..]);
        }
    }
}
