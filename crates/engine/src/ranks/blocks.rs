//! Which sequence has which blocks of the KV cache, and what is left in them of earlier ones.
//!
//! Blocks form a tree: each holds up to [`BLOCK`] tokens and follows another one, or begins a text. A sequence that begins
//! as others did shares their full blocks and copies the last one where it goes on differently; nobody writes a block that
//! somebody else reads. What nobody uses any more stays until its place is needed, the least recently used first.

use std::collections::{BTreeMap, HashMap};

use kernels::KvCache;
use serde::{Deserialize, Serialize};

use crate::ranks::plan::Step;

/// Positions in a block.
pub(crate) const BLOCK: usize = KvCache::BLOCK;

/// What begins texts: no block has this name.
const ROOT: u64 = 0;

/// The blocks, as rank 0 knows them. Blocks change owners in the order in which steps are planned, which is that in which
/// ranks carry them out.
pub(crate) struct Blocks {
    blocks: Vec<Block>,
    slots: Vec<Slot>,
    /// Blocks that hold nothing.
    free: Vec<u32>,
    /// Blocks that nobody uses, by when they were last used.
    idle: BTreeMap<u64, u32>,
    /// The blocks that follow one, by its name.
    followers: HashMap<u64, Vec<u32>>,
    /// Copies that the next step begins with.
    copies: Vec<[u32; 2]>,
    names: u64,
    uses: u64,
}

#[derive(Default)]
struct Block {
    /// Sequences that use it.
    users: usize,
    /// No other one, before or after it, has the same name; so what follows a block that is gone follows nothing.
    name: u64,
    follows: u64,
    /// The tokens whose keys and values it holds.
    tokens: Vec<u32>,
    /// When it was last used, while it is idle.
    used: u64,
}

#[derive(Default)]
struct Slot {
    busy: bool,
    table: Vec<u32>,
    /// Tokens whose keys and values are there.
    length: usize,
    /// Blocks of the table that the ranks know of.
    told: usize,
}

/// What a block holds, and where in the tree it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Text {
    block: u32,
    name: u64,
    /// The name of the block before it; 0 where a text begins.
    follows: u64,
    tokens: Vec<u32>,
}

impl Blocks {
    pub(crate) fn new(slots: usize, blocks: usize) -> Self {
        Self {
            blocks: (0..blocks).map(|_| Block::default()).collect(),
            slots: (0..slots).map(|_| Slot::default()).collect(),
            free: (0..blocks as u32).rev().collect(),
            idle: BTreeMap::new(),
            followers: HashMap::new(),
            copies: Vec::new(),
            names: ROOT,
            uses: 0,
        }
    }

    /// What all blocks hold, those that were used last at the end.
    pub(crate) fn texts(&self) -> Vec<Text> {
        // What was to be copied there never was.
        let missing = |block: u32| self.copies.iter().any(|[_, to]| *to == block);
        let held = |&(index, block): &(u32, &Block)| !block.tokens.is_empty() && !missing(index);
        let mut held: Vec<_> = (0..).zip(&self.blocks).filter(held).collect();
        held.sort_by_key(|(_, block)| if block.users > 0 { u64::MAX } else { block.used });
        let text = |(block, Block { name, follows, tokens, .. }): (u32, &Block)| Text {
            block,
            name: *name,
            follows: *follows,
            tokens: tokens.clone(),
        };
        held.into_iter().map(text).collect()
    }

    /// The same blocks with nothing in use, and what they held before a restart. What makes no sense is left out: texts may
    /// come from a damaged file.
    pub(crate) fn with_texts(mut self, texts: Vec<Text>, vocabulary: usize) -> Self {
        let mut taken = vec![false; self.blocks.len()];
        let mut waiting: HashMap<u64, Vec<(usize, Text)>> = HashMap::new();
        for (age, text) in texts.into_iter().enumerate() {
            let fits = text.name != ROOT && (1..=BLOCK).contains(&text.tokens.len());
            let known = text.tokens.iter().all(|&token| (token as usize) < vocabulary);
            let free = taken.get_mut(text.block as usize).is_some_and(|taken| !std::mem::replace(taken, true));
            if fits && known && free {
                waiting.entry(text.follows).or_default().push((age, text));
            }
        }
        // From the beginnings on, so that nothing follows what is not there.
        let (mut parents, mut kept) = (vec![(ROOT, ROOT)], Vec::new());
        while let Some((parent, name_in_file)) = parents.pop() {
            for (age, text) in waiting.remove(&name_in_file).unwrap_or_default() {
                self.names += 1;
                let Text { block, name, tokens, .. } = text;
                if tokens.len() == BLOCK {
                    parents.push((self.names, name));
                }
                self.followers.entry(parent).or_default().push(block);
                self.blocks[block as usize] = Block { users: 0, name: self.names, follows: parent, tokens, used: 0 };
                kept.push((age, block));
            }
        }
        kept.sort_unstable();
        self.free.retain(|free| kept.iter().all(|(_, block)| block != free));
        for (_, block) in kept {
            self.uses += 1;
            self.blocks[block as usize].used = self.uses;
            self.idle.insert(self.uses, block);
        }
        self
    }

    /// Takes a free slot for a sequence that begins with `tokens`, of which at most `reusable` need not be evaluated again.
    /// Returns the slot and how many of them are there already. `None` if there is no slot, or no room for these tokens and
    /// one more.
    pub(crate) fn take(&mut self, tokens: &[u32], reusable: usize) -> Option<(usize, usize)> {
        let slot = self.slots.iter().position(|slot| !slot.busy)?;
        let copies = self.copies.len();
        (self.slots[slot].busy, self.slots[slot].told) = (true, 0);
        let reused = self.reuse(slot, &tokens[..reusable.min(tokens.len())]);
        if self.missing(slot, tokens.len() + 1 - reused) > self.available() {
            // What was to be copied there never will be.
            for [_, to] in self.copies.drain(copies..) {
                self.blocks[to as usize].tokens.clear();
            }
            self.release(slot);
            return None;
        }
        Some((slot, reused))
    }

    /// Gives a slot the blocks that hold the beginning of `tokens`; says how many tokens that are.
    fn reuse(&mut self, slot: usize, tokens: &[u32]) -> usize {
        let mut reused = 0;
        for (block, common) in self.beginning(tokens).collect::<Vec<_>>() {
            let Block { users, tokens: ref held, follows, .. } = self.blocks[block as usize];
            // It goes on differently, or somebody may go on with it. Only the last one is like that.
            let copied = common < BLOCK && (common < held.len() || users > 0);
            self.hold(block);
            if copied {
                let copy = self.allocate(follows);
                self.let_go(block);
                let Some(copy) = copy else { break };
                self.copies.push([block, copy]);
                let [from, to] = [block, copy].map(|block| block as usize);
                self.blocks[to].tokens = self.blocks[from].tokens[..common].to_vec();
                self.slots[slot].table.push(copy);
            } else {
                self.slots[slot].table.push(block);
            }
            reused += common;
        }
        self.slots[slot].length = reused;
        reused
    }

    /// How many tokens a prompt would find.
    pub(crate) fn reusable(&self, tokens: &[u32]) -> usize {
        self.beginning(tokens).map(|(_, common)| common).sum()
    }

    /// The blocks that hold the beginning of `tokens`, and how many of these each of them has. All but the last one are full.
    fn beginning(&self, tokens: &[u32]) -> impl Iterator<Item = (u32, usize)> {
        let mut rest = Some((ROOT, tokens));
        std::iter::from_fn(move || {
            let (parent, tokens) = rest.take()?;
            let (block, common) = self.best_follower(parent, tokens)?;
            if common == BLOCK {
                rest = Some((self.blocks[block as usize].name, &tokens[common..]));
            }
            Some((block, common))
        })
    }

    /// Of the blocks that follow `parent` the one with most of these tokens, and how many it has, if any.
    fn best_follower(&self, parent: u64, tokens: &[u32]) -> Option<(u32, usize)> {
        let common = |block: &u32| {
            let held = &self.blocks[*block as usize].tokens;
            (*block, held.iter().zip(tokens).take_while(|(held, token)| held == token).count())
        };
        let followers = self.followers.get(&parent)?.iter().map(common);
        followers.max_by_key(|(_, common)| *common).filter(|(_, common)| *common > 0)
    }

    /// Makes room for `tokens` more tokens in a slot. False if there is none; then nothing has changed.
    pub(crate) fn reserve(&mut self, slot: usize, tokens: usize) -> bool {
        let missing = self.missing(slot, tokens);
        if missing > self.available() {
            return false;
        }
        for _ in 0..missing {
            let last = self.slots[slot].table.last().map_or(ROOT, |&block| self.blocks[block as usize].name);
            let block = self.allocate(last);
            self.slots[slot].table.extend(block);
        }
        true
    }

    /// Blocks that a slot lacks for so many more tokens.
    fn missing(&self, slot: usize, tokens: usize) -> usize {
        let Slot { table, length, .. } = &self.slots[slot];
        (length + tokens).div_ceil(BLOCK).saturating_sub(table.len())
    }

    /// Tokens in a slot.
    pub(crate) fn len(&self, slot: usize) -> usize {
        self.slots[slot].length
    }

    /// A step adds these tokens to a slot, for which room was reserved.
    pub(crate) fn extend(&mut self, slot: usize, tokens: &[u32]) {
        let Slot { table, length, .. } = &mut self.slots[slot];
        for &token in tokens {
            let held = &mut self.blocks[table[*length / BLOCK] as usize].tokens;
            held.truncate(*length % BLOCK);
            held.push(token);
            *length += 1;
        }
    }

    /// Adds to a step what ranks have to know of a slot's blocks.
    pub(crate) fn tell(&mut self, slot: usize, step: &mut Step) {
        step.copies.append(&mut self.copies);
        let Slot { table, told, .. } = &mut self.slots[slot];
        if *told < table.len() {
            step.change(slot, *told, &table[*told..]);
            *told = table.len();
        }
    }

    /// The sequence in a slot has ended or makes room; what it holds stays for others to begin with.
    pub(crate) fn release(&mut self, slot: usize) {
        let Slot { busy, table, length, told } = &mut self.slots[slot];
        (*busy, *length, *told) = (false, 0, 0);
        let table = std::mem::take(table);
        // The last ones first, so that a block never goes before those that follow it.
        table.into_iter().rev().for_each(|block| self.let_go(block));
    }

    /// Blocks that sequences use, and all.
    pub(crate) fn usage(&self) -> (usize, usize) {
        (self.blocks.len() - self.available(), self.blocks.len())
    }

    /// Blocks that nobody uses.
    fn available(&self) -> usize {
        self.free.len() + self.idle.len()
    }

    fn hold(&mut self, block: u32) {
        let held = &mut self.blocks[block as usize];
        held.users += 1;
        if held.users == 1 {
            self.idle.remove(&held.used);
        }
    }

    fn let_go(&mut self, block: u32) {
        let held = &mut self.blocks[block as usize];
        held.users -= 1;
        if held.users > 0 {
            return;
        }
        if held.tokens.is_empty() {
            self.forget(block);
            self.free.push(block);
        } else {
            self.uses += 1;
            held.used = self.uses;
            self.idle.insert(held.used, block);
        }
    }

    /// A block of its own for a sequence, which follows the one called `parent`.
    fn allocate(&mut self, parent: u64) -> Option<u32> {
        let block = self.free.pop().or_else(|| {
            let (_, block) = self.idle.pop_first()?;
            self.forget(block);
            Some(block)
        })?;
        self.names += 1;
        self.blocks[block as usize] = Block { users: 1, name: self.names, follows: parent, ..Block::default() };
        self.followers.entry(parent).or_default().push(block);
        Some(block)
    }

    /// Takes a block out of the tree.
    fn forget(&mut self, block: u32) {
        let Block { name, follows, .. } = self.blocks[block as usize];
        self.followers.remove(&name);
        if let Some(followers) = self.followers.get_mut(&follows) {
            followers.retain(|follower| *follower != block);
            if followers.is_empty() {
                self.followers.remove(&follows);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The blocks of a rank: what it would find in each position of its sequences.
    #[derive(Default)]
    struct Rank {
        memory: HashMap<u32, Vec<Option<u32>>>,
        tables: HashMap<usize, Vec<u32>>,
    }

    impl Rank {
        fn carry_out(&mut self, step: &Step) {
            for [from, to] in &step.copies {
                let copied = self.memory.get(from).cloned().unwrap_or_default();
                self.memory.insert(*to, copied);
            }
            let mut added = step.added.iter();
            for change in &step.changes {
                let table = self.tables.entry(change.slot).or_default();
                table.truncate(change.kept);
                table.extend(added.by_ref().take(change.added));
            }
            let mut tokens = step.tokens.iter();
            for stretch in &step.stretches {
                for position in stretch.first_position..stretch.first_position + stretch.tokens {
                    let block = self.tables[&stretch.slot][position / BLOCK];
                    let memory = self.memory.entry(block).or_default();
                    memory.resize(memory.len().max(BLOCK), None);
                    memory[position % BLOCK] = tokens.next().copied();
                }
            }
        }

        fn sees(&self, slot: usize, length: usize) -> Vec<Option<u32>> {
            (0..length).map(|position| self.memory[&self.tables[&slot][position / BLOCK]][position % BLOCK]).collect()
        }
    }

    fn run(blocks: &mut Blocks, rank: &mut Rank, slot: usize, tokens: &[u32], drafts: &[u32]) -> bool {
        if !blocks.reserve(slot, tokens.len() + drafts.len()) {
            return false;
        }
        let mut step = Step::default();
        let all = [tokens, drafts].concat();
        step.push(slot, blocks.len(slot), &all, crate::ranks::plan::Wanted::Nothing);
        blocks.tell(slot, &mut step);
        blocks.extend(slot, tokens);
        rank.carry_out(&step);
        true
    }

    #[test]
    fn texts_survive_a_restart() {
        let (mut blocks, mut rank) = (Blocks::new(3, 8), Rank::default());
        let text: Vec<u32> = (0..70).collect();
        blocks.take(&text, 69);
        assert!(run(&mut blocks, &mut rank, 0, &text, &[]));
        blocks.release(0);
        // This one's copy is never made, as no step begins.
        blocks.take(&text, 66);
        let mut texts = blocks.texts();
        assert_eq!(texts.len(), 3);
        let again = Blocks::new(3, 8).with_texts(texts.clone(), 100);
        assert_eq!((again.reusable(&text), again.usage()), (70, (0, 8)));
        // Texts that make no sense take what follows them along, and no block is given away twice.
        assert_eq!(Blocks::new(3, 8).with_texts(texts.clone(), 69).reusable(&text), 64);
        texts.iter_mut().for_each(|text| text.block = 9);
        assert_eq!(Blocks::new(3, 8).with_texts(texts.clone(), 100).reusable(&text), 0);
        texts.iter_mut().for_each(|text| text.block = 5);
        let mut once = Blocks::new(1, 8).with_texts(texts, 100);
        assert!(once.reusable(&text) <= BLOCK);
        assert!(once.take(&text, 0).is_some() && once.reserve(0, 5 * BLOCK));
        assert_eq!(
            once.usage().0 as u64,
            once.slots[0].table.iter().collect::<std::collections::HashSet<_>>().len() as u64
        );
    }

    proptest! {
        #[test]
        fn any_texts_leave_blocks_that_work(
            texts in prop::collection::vec((0u32..12, 0u64..6, 0u64..6, prop::collection::vec(0u32..4, 0..40)), 0..12),
        ) {
            let texts = texts.into_iter().map(|(block, name, follows, tokens)| Text { block, name, follows, tokens });
            let mut blocks = Blocks::new(2, 8).with_texts(texts.collect(), 3);
            prop_assert_eq!(blocks.usage(), (0, 8));
            let text = vec![1; 7 * BLOCK];
            prop_assert!(blocks.take(&text, text.len() - 1).is_some());
            prop_assert!(blocks.reserve(0, text.len() - blocks.len(0)));
            let table = &blocks.slots[0].table;
            prop_assert_eq!(table.iter().collect::<std::collections::HashSet<_>>().len(), table.len());
        }
    }

    #[test]
    fn beginnings_are_shared_and_ends_copied() {
        let (mut blocks, mut rank) = (Blocks::new(3, 8), Rank::default());
        let text: Vec<u32> = (0..70).collect();
        assert_eq!(blocks.take(&text, 69), Some((0, 0)));
        assert!(run(&mut blocks, &mut rank, 0, &text, &[]));
        assert_eq!(blocks.usage(), (3, 8));
        // While the first one is under way: two blocks are shared, the third is copied.
        assert_eq!(blocks.take(&text, 69), Some((1, 69)));
        assert_eq!(blocks.usage(), (4, 8));
        assert!(run(&mut blocks, &mut rank, 1, &text[69..], &[]));
        let other = [&text[..66], &[9, 9, 9]].concat();
        assert_eq!(blocks.take(&other, 68), Some((2, 66)));
        assert!(run(&mut blocks, &mut rank, 2, &other[66..], &[]));
        for (slot, expected) in [(0, &text), (1, &text), (2, &other)] {
            assert!(
                rank.sees(slot, expected.len()).iter().eq(expected
                    .iter()
                    .map(|&id| Some(id))
                    .collect::<Vec<_>>()
                    .iter())
            );
        }
        [0, 1, 2].into_iter().for_each(|slot| blocks.release(slot));
        assert_eq!(blocks.usage(), (0, 8));
        // One that goes on where another has ended takes its blocks over as they are.
        let longer = [&text[..], &[1, 2, 3]].concat();
        assert_eq!(blocks.take(&longer, 72), Some((0, 70)));
        assert_eq!(blocks.usage(), (3, 8));
    }

    #[test]
    fn what_does_not_fit_is_refused_and_leaves_no_trace() {
        let mut blocks = Blocks::new(2, 3);
        assert_eq!(blocks.take(&[1; 96], 95), None);
        assert_eq!(blocks.take(&[1; 95], 94), Some((0, 0)));
        assert!(blocks.reserve(0, 96) && !blocks.reserve(0, 97));
        assert_eq!(blocks.take(&[2], 0), None);
        blocks.release(0);
        assert_eq!(blocks.usage(), (0, 3));
        assert!(blocks.followers.is_empty());
    }

    #[derive(Debug, Clone)]
    enum Event {
        /// A prompt of a family, so many tokens of which are the family's.
        Arrive {
            family: u32,
            common: usize,
            own: usize,
        },
        /// The sequence goes on by some tokens, after drafts of which none was right.
        GoOn {
            which: usize,
            tokens: usize,
            drafts: usize,
        },
        End {
            which: usize,
        },
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            2 => (0_u32..3, 0_usize..80, 1_usize..40)
                .prop_map(|(family, common, own)| Event::Arrive { family, common, own }),
            4 => (0_usize..8, 1_usize..40, 0_usize..6)
                .prop_map(|(which, tokens, drafts)| Event::GoOn { which, tokens, drafts }),
            1 => (0_usize..8).prop_map(|which| Event::End { which }),
        ]
    }

    proptest! {
        /// Whatever comes: each sequence reads exactly its own tokens, no block is lost or has two owners, and in the end
        /// all are free.
        #[test]
        fn everyone_reads_what_it_wrote(events in prop::collection::vec(event(), 1..120), count in 4_usize..24) {
            let (mut blocks, mut rank) = (Blocks::new(4, count), Rank::default());
            let mut running: Vec<(usize, Vec<u32>)> = Vec::new();
            let mut fresh = 1000;
            for event in events {
                match event {
                    Event::Arrive { family, common, own } => {
                        let mut prompt: Vec<u32> = (0..common as u32).map(|token| family * 100 + token).collect();
                        prompt.extend((0..own as u32).map(|token| fresh + token % 3));
                        fresh += 1;
                        let reusable = prompt.len() - 1;
                        let expected = blocks.reusable(&prompt[..reusable]);
                        if let Some((slot, reused)) = blocks.take(&prompt, reusable) {
                            prop_assert!(reused <= expected && reused + BLOCK > expected, "{reused} of {expected}");
                            prop_assert!(run(&mut blocks, &mut rank, slot, &prompt[reused..], &[]));
                            running.push((slot, prompt));
                        }
                    }
                    Event::GoOn { which, tokens, drafts } if !running.is_empty() => {
                        let index = which % running.len();
                        let (slot, text) = &mut running[index];
                        fresh += 1;
                        let more = vec![fresh; tokens];
                        if run(&mut blocks, &mut rank, *slot, &more, &vec![7; drafts]) {
                            text.extend(more);
                        } else {
                            let (slot, _) = running.swap_remove(index);
                            blocks.release(slot);
                        }
                    }
                    Event::End { which } if !running.is_empty() => {
                        let (slot, _) = running.swap_remove(which % running.len());
                        blocks.release(slot);
                    }
                    Event::GoOn { .. } | Event::End { .. } => {}
                }
                for (slot, text) in &running {
                    prop_assert_eq!(blocks.len(*slot), text.len());
                    let seen: Vec<_> = rank.sees(*slot, text.len()).into_iter().flatten().collect();
                    prop_assert_eq!(&seen, text);
                }
                let held: std::collections::HashSet<_> = blocks.slots.iter().flat_map(|slot| &slot.table).collect();
                prop_assert_eq!(blocks.usage(), (held.len(), count));
                let users: usize = blocks.blocks.iter().map(|block| block.users).sum();
                prop_assert_eq!(users, blocks.slots.iter().map(|slot| slot.table.len()).sum::<usize>());
            }
            running.into_iter().for_each(|(slot, _)| blocks.release(slot));
            prop_assert_eq!(blocks.usage(), (0, count));
        }
    }
}
