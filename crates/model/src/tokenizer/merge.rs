//! The merging at the heart of byte-pair encoding: of all neighbours that may be joined, the best pair is, until none
//! are left.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A stretch of the text that is one token so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Symbol {
    /// The token.
    pub(super) id: u32,
    /// Where the stretch begins in the text.
    pub(super) start: u32,
    /// How many bytes it has; 0 once it is part of the symbol before it.
    pub(super) len: u32,
    previous: u32,
    next: u32,
}

/// What two neighbours become, and how soon: lower ranks first, then from left to right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Merge {
    pub(super) rank: u32,
    pub(super) id: u32,
}

/// A merge that was possible when it was queued. It still is if both symbols are there and as long as they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: u32,
    /// The length of both symbols together.
    len: u32,
    id: u32,
}

/// No neighbour.
const NONE: u32 = u32::MAX;

/// Symbols in a row and the merges that are possible among them. Kept from word to word so that memory is set aside
/// once.
#[derive(Debug, Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<Candidate>>,
}

impl Merger {
    /// Forgets all symbols.
    pub(super) fn clear(&mut self) {
        self.symbols.clear();
        self.queue.clear();
    }

    /// Appends a symbol of at least one byte. The caller keeps positions and the number of symbols below `u32::MAX`.
    pub(super) fn push(&mut self, id: u32, start: usize, len: usize) {
        let index = self.symbols.len() as u32;
        if let Some(last) = self.symbols.last_mut() {
            last.next = index;
        }
        let previous = index.checked_sub(1).unwrap_or(NONE);
        self.symbols.push(Symbol { id, start: start as u32, len: len as u32, previous, next: NONE });
    }

    /// Joins neighbours as long as `merge_of` allows it for any.
    pub(super) fn run(&mut self, merge_of: impl Fn(&Symbol, &Symbol) -> Option<Merge>) {
        for left in 0..(self.symbols.len() as u32).saturating_sub(1) {
            self.consider(left, &merge_of);
        }
        while let Some(Reverse(candidate)) = self.queue.pop() {
            let left = self.symbols[candidate.left as usize];
            if left.len == 0 || left.next == NONE {
                continue;
            }
            let right = self.symbols[left.next as usize];
            // Symbols only grow, so the same length together means that neither has changed.
            if left.len + right.len != candidate.len {
                continue;
            }
            self.symbols[left.next as usize].len = 0;
            let joined = &mut self.symbols[candidate.left as usize];
            joined.id = candidate.id;
            joined.len = candidate.len;
            joined.next = right.next;
            if right.next != NONE {
                self.symbols[right.next as usize].previous = candidate.left;
                self.consider(candidate.left, &merge_of);
            }
            if left.previous != NONE {
                self.consider(left.previous, &merge_of);
            }
        }
    }

    /// The tokens that are left, in order.
    pub(super) fn tokens(&self) -> impl Iterator<Item = u32> {
        self.symbols.iter().filter(|symbol| symbol.len > 0).map(|symbol| symbol.id)
    }

    /// Queues the merge of the symbol `left` with its neighbour to the right, which is there.
    fn consider(&mut self, left: u32, merge_of: &impl Fn(&Symbol, &Symbol) -> Option<Merge>) {
        let left_symbol = &self.symbols[left as usize];
        let right_symbol = &self.symbols[left_symbol.next as usize];
        if let Some(Merge { rank, id }) = merge_of(left_symbol, right_symbol) {
            let len = left_symbol.len + right_symbol.len;
            self.queue.push(Reverse(Candidate { rank, left, len, id }));
        }
    }
}
