//! Which sequence is in which slot of the KV cache, and what is left there of earlier ones.

/// The slots, as rank 0 knows them.
pub(crate) struct Slots {
    slots: Vec<Slot>,
    /// Counts the sequences that were given a slot.
    taken: u64,
}

#[derive(Default)]
struct Slot {
    /// The tokens whose keys and values are there, in order.
    cached: Vec<u32>,
    busy: bool,
    /// The count of sequences when it was last given away.
    last_taken: u64,
}

impl Slots {
    pub(crate) fn new(count: usize) -> Self {
        Self { slots: (0..count).map(|_| Slot::default()).collect(), taken: 0 }
    }

    /// Takes a free slot for a sequence that begins with `prompt`, and drops what it holds beyond the beginning that both
    /// have in common, of at most `reusable` tokens. Returns the slot and the length of that beginning.
    ///
    /// It is the slot in which most is kept and least is lost; of equals the one that has not been taken for longest.
    /// Counting losses keeps the few tokens with which all conversations begin from driving one out after the other while
    /// other slots are empty.
    pub(crate) fn take(&mut self, prompt: &[u32], reusable: usize) -> Option<(usize, usize)> {
        let common = |slot: &Slot| {
            let same = slot.cached.iter().zip(prompt).take_while(|(cached, token)| cached == token).count();
            same.min(reusable)
        };
        let free = self.slots.iter().enumerate().filter(|(_, slot)| !slot.busy);
        let worth = |slot: &Slot| 2 * common(slot) as i64 - slot.cached.len() as i64;
        let (index, slot) = free.min_by_key(|(_, slot)| (-worth(slot), slot.last_taken))?;
        let reused = common(slot);
        self.taken += 1;
        let slot = &mut self.slots[index];
        slot.cached.truncate(reused);
        (slot.busy, slot.last_taken) = (true, self.taken);
        Some((index, reused))
    }

    /// Tokens in a slot.
    pub(crate) fn len(&self, slot: usize) -> usize {
        self.slots[slot].cached.len()
    }

    /// A step adds these tokens to a slot.
    pub(crate) fn extend(&mut self, slot: usize, tokens: &[u32]) {
        self.slots[slot].cached.extend_from_slice(tokens);
    }

    /// Takes back the last `tokens` tokens of a slot, whose keys and values are written over by those that come instead.
    pub(crate) fn take_back(&mut self, slot: usize, tokens: usize) {
        let cached = &mut self.slots[slot].cached;
        cached.truncate(cached.len().saturating_sub(tokens));
    }

    /// The sequence in a slot has ended; what it holds stays for others to begin with.
    pub(crate) fn release(&mut self, slot: usize) {
        self.slots[slot].busy = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_goes_where_its_beginning_is() {
        let mut slots = Slots::new(2);
        assert_eq!(slots.take(&[1, 2, 3], 2), Some((0, 0)));
        slots.extend(0, &[1, 2, 3, 4]);
        assert_eq!(slots.take(&[1, 2, 3], 2), Some((1, 0)));
        slots.extend(1, &[7, 8]);
        assert_eq!(slots.take(&[1], 0), None);
        slots.release(0);
        slots.release(1);
        assert_eq!(slots.take(&[1, 2, 3, 4, 5], 4), Some((0, 4)));
        assert_eq!(slots.len(0), 4);
        slots.release(0);
        // The last token is evaluated in any case.
        assert_eq!(slots.take(&[1, 2, 3, 4], 3), Some((0, 3)));
        assert_eq!(slots.len(0), 3);
    }

    #[test]
    fn a_beginning_that_all_share_drives_nobody_out_while_there_is_room() {
        let mut slots = Slots::new(3);
        for first in [1, 2] {
            let (slot, reused) = slots.take(&[9, first, 5], 2).unwrap();
            assert_eq!((slot, reused), (first as usize - 1, 0));
            slots.extend(slot, &[9, first, 5, 6, 7]);
            slots.release(slot);
        }
        assert_eq!(slots.take(&[9, 3, 5], 2), Some((2, 0)));
        slots.extend(2, &[9, 3, 5, 6, 7]);
        // Now something has to go: what is oldest.
        assert_eq!(slots.take(&[9, 4, 5], 2), Some((0, 1)));
    }
}
