//! Which tokens the next step takes: no clock, no socket, only counts.
//!
//! A step takes one token of each sequence that has one to go on with, and as much of the waiting prompts as fits beside
//! them. So neither a long prompt keeps answers from going on, nor do answers keep a prompt from being evaluated. Nor does a
//! long prompt hold up short ones: those that are nearly done go first, but the oldest always gets a part of the room.

use std::collections::VecDeque;

/// The part of the room for prompts that the oldest of them gets in any case: one over so many.
const OLDEST: usize = 4;

/// The sequences under way.
#[derive(Default)]
pub(crate) struct Schedule {
    /// Prompts in the order of their arrival; sequences that go on, the one first that has waited longest for its turn.
    queue: VecDeque<Entry>,
    /// A buffer that is used again: the places of waiting prompts in the queue.
    prompts: Vec<usize>,
}

struct Entry {
    slot: usize,
    /// Tokens of its prompt that no step has taken yet.
    prompt_left: usize,
    /// Whether the token with which it goes on is not known yet.
    waits: bool,
    /// Tokens that the step that is being planned takes of the prompt.
    taken: usize,
}

impl Entry {
    /// Whether it has a token to go on with.
    fn is_ready(&self) -> bool {
        self.prompt_left == 0 && !self.waits
    }

    /// Takes up to `most` tokens of its prompt into the next step, and says how many.
    fn take(&mut self, most: usize) -> usize {
        let tokens = self.prompt_left.min(most);
        self.prompt_left -= tokens;
        self.taken += tokens;
        tokens
    }
}

/// The part of a step that one sequence gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) slot: usize,
    pub(crate) tokens: usize,
}

impl Schedule {
    /// A sequence has come, of whose prompt `tokens` are to be evaluated.
    pub(crate) fn add(&mut self, slot: usize, tokens: usize) {
        self.queue.push_back(Entry { slot, prompt_left: tokens, waits: true, taken: 0 });
    }

    /// The next token of a sequence is known.
    pub(crate) fn wake(&mut self, slot: usize) {
        if let Some(entry) = self.queue.iter_mut().find(|entry| entry.slot == slot) {
            entry.waits = false;
        }
    }

    /// A step could not take the share of a sequence, `prompt` if it was one of its prompt.
    pub(crate) fn postpone(&mut self, Share { slot, tokens }: Share, prompt: bool) {
        if let Some(entry) = self.queue.iter_mut().find(|entry| entry.slot == slot) {
            if prompt {
                entry.prompt_left += tokens;
            } else {
                entry.waits = false;
            }
        }
    }

    /// A sequence has ended.
    pub(crate) fn remove(&mut self, slot: usize) {
        self.queue.retain(|entry| entry.slot != slot);
    }

    /// How many sequences are under way.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Plans the next step, which may take `room` tokens of prompts, into `shares`; there are none when no sequence can go
    /// on.
    ///
    /// With `free` stages of a pipeline idle, sequences are left for as many steps, so that each stage gets its own.
    pub(crate) fn next(&mut self, free: usize, room: usize, shares: &mut Vec<Share>) {
        shares.clear();
        let ready = self.queue.iter().filter(|entry| entry.is_ready()).count();
        let most = ready.div_ceil(free.max(1));
        for entry in self.queue.iter_mut().filter(|entry| entry.is_ready()).take(most) {
            entry.waits = true;
            shares.push(Share { slot: entry.slot, tokens: 1 });
        }
        for share in &*shares {
            let place = self.queue.iter().position(|entry| entry.slot == share.slot);
            let entry = place.and_then(|place| self.queue.remove(place));
            self.queue.extend(entry);
        }
        self.share_room(room);
        for entry in self.queue.iter_mut().filter(|entry| entry.taken > 0) {
            shares.push(Share { slot: entry.slot, tokens: std::mem::take(&mut entry.taken) });
        }
    }

    /// Shares out `room` tokens to the prompts that wait.
    fn share_room(&mut self, mut room: usize) {
        let Self { queue, prompts, .. } = self;
        prompts.clear();
        prompts.extend((0..queue.len()).filter(|&place| queue[place].prompt_left > 0));
        let Some(&oldest) = prompts.first() else { return };
        room -= queue[oldest].take(room.div_ceil(OLDEST));
        prompts.sort_by_key(|&place| queue[place].prompt_left);
        for &place in &*prompts {
            room -= queue[place].take(room);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn next(schedule: &mut Schedule, free: usize) -> Vec<(usize, usize)> {
        next_with(schedule, free, 8)
    }

    fn next_with(schedule: &mut Schedule, free: usize, room: usize) -> Vec<(usize, usize)> {
        let mut shares = Vec::new();
        schedule.next(free, room, &mut shares);
        shares.iter().map(|share| (share.slot, share.tokens)).collect()
    }

    #[test]
    fn answers_go_on_while_a_long_prompt_is_evaluated() {
        let mut schedule = Schedule::default();
        schedule.add(0, 3);
        assert_eq!(next(&mut schedule, 1), [(0, 3)]);
        assert_eq!(next(&mut schedule, 1), []);
        schedule.add(1, 20);
        schedule.wake(0);
        assert_eq!(next(&mut schedule, 1), [(0, 1), (1, 8)]);
        schedule.wake(0);
        assert_eq!(next(&mut schedule, 1), [(0, 1), (1, 8)]);
        assert_eq!(next(&mut schedule, 1), [(1, 4)]);
        schedule.wake(1);
        schedule.wake(0);
        assert_eq!(next(&mut schedule, 1), [(1, 1), (0, 1)]);
    }

    #[test]
    fn short_prompts_share_a_step_in_order() {
        let mut schedule = Schedule::default();
        [(2, 3), (0, 4), (1, 6)].into_iter().for_each(|(slot, tokens)| schedule.add(slot, tokens));
        assert_eq!(next(&mut schedule, 1), [(2, 3), (0, 4), (1, 1)]);
        schedule.remove(0);
        assert_eq!(next(&mut schedule, 1), [(1, 5)]);
    }

    #[test]
    fn a_short_prompt_passes_a_long_one_which_still_goes_on() {
        let mut schedule = Schedule::default();
        schedule.add(0, 100);
        assert_eq!(next(&mut schedule, 1), [(0, 8)]);
        schedule.add(1, 6);
        schedule.add(2, 9);
        assert_eq!(next(&mut schedule, 1), [(0, 2), (1, 6)]);
        schedule.add(3, 1);
        assert_eq!(next(&mut schedule, 1), [(0, 2), (2, 5), (3, 1)]);
        assert_eq!(next(&mut schedule, 1), [(0, 4), (2, 4)]);
        assert_eq!(next(&mut schedule, 1), [(0, 8)]);
    }

    #[test]
    fn what_was_postponed_comes_again() {
        let mut schedule = Schedule::default();
        schedule.add(0, 12);
        schedule.add(1, 1);
        assert_eq!(next(&mut schedule, 1), [(0, 7), (1, 1)]);
        schedule.postpone(Share { slot: 0, tokens: 7 }, true);
        schedule.wake(1);
        assert_eq!(next(&mut schedule, 1), [(1, 1), (0, 8)]);
        schedule.postpone(Share { slot: 1, tokens: 1 }, false);
        assert_eq!(next(&mut schedule, 1), [(1, 1), (0, 4)]);
    }

    #[test]
    fn sequences_are_shared_out_over_idle_stages() {
        let mut schedule = Schedule::default();
        (0..4).for_each(|slot| schedule.add(slot, 1));
        assert_eq!(next(&mut schedule, 3).len(), 4);
        (0..4).for_each(|slot| schedule.wake(slot));
        assert_eq!(next(&mut schedule, 3), [(0, 1), (1, 1)]);
        assert_eq!(next(&mut schedule, 2), [(2, 1)]);
        assert_eq!(next(&mut schedule, 1), [(3, 1)]);
        schedule.wake(1);
        schedule.wake(0);
        assert_eq!(next(&mut schedule, 1), [(0, 1), (1, 1)]);
    }

    proptest! {
        /// However long prompts are and however many stages are idle: every sequence that can go on does so within as
        /// many steps as there are sequences, and no prompt waits for longer than those before it take.
        #[test]
        fn nobody_starves(prompts in prop::collection::vec(1_usize..40, 1..8), room in 1_usize..9, stages in 1_usize..4) {
            let mut schedule = Schedule::default();
            prompts.iter().enumerate().for_each(|(slot, &tokens)| schedule.add(slot, tokens));
            let mut left = prompts.clone();
            let mut since = vec![0; prompts.len()];
            let total: usize = prompts.iter().sum();
            for turn in 0..total.div_ceil(room) + 3 * prompts.len() {
                let shares = next_with(&mut schedule, stages, room);
                let of_prompts: usize = shares.iter().filter(|share| left[share.0] > 0).map(|share| share.1).sum();
                prop_assert_eq!(of_prompts, room.min(left.iter().sum()));
                since.iter_mut().for_each(|since| *since += 1);
                for (slot, tokens) in shares {
                    prop_assert!(tokens == 1 || left[slot] >= tokens, "step {turn}");
                    left[slot] = left[slot].saturating_sub(tokens);
                    since[slot] = 0;
                    if left[slot] == 0 {
                        schedule.wake(slot);
                    }
                }
                let answering = (0..prompts.len()).filter(|&slot| left[slot] == 0);
                prop_assert!(answering.into_iter().all(|slot| since[slot] <= prompts.len()));
            }
            prop_assert!(left.iter().all(|&left| left == 0));
        }
    }
}
