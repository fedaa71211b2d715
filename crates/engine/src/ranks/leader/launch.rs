//! What begins a step: who takes part, with what, and where there is room for it.

use std::time::Instant;

use crate::ranks::leader::{ANSWERS_AHEAD_MAX, Begun, Flight, Hidden, Leader};
use crate::ranks::member::RankError;
use crate::ranks::plan::{Asked, Wanted};
use crate::ranks::protocol::FromRank;

impl Leader<'_> {
    /// Begins the next step, if there is one and a stage to begin it. Returns whether it did.
    pub(super) fn launch(&mut self) -> Result<bool, RankError> {
        let free = self.free_stages();
        if free == 0 {
            return Ok(false);
        }
        let room = self.pace.room(self.member.job().step_tokens);
        self.schedule.next(if self.shares_step() { 1 } else { free }, room, &mut self.shares);
        let prompt_tokens = self.place_shares();
        if self.shares.is_empty() {
            return Ok(false);
        }
        // Drafts take none of the room: their time is in that of steps without prompts, which was left free. What the draft
        // model has not seen yet is not, so it gets what the prompts leave.
        let left = room.saturating_sub(prompt_tokens);
        let drafting = self.drafting.draft(&mut self.sequences, &self.shares, left)?;
        let (asked, owners, hidden) = self.assemble();
        let alone = !self.flights.iter().any(|flight| matches!(flight, Flight::Step { .. }));
        let rows = hidden.iter().map(|hidden| hidden.rows.len()).sum();
        let bytes = self.member.answer_bytes(&asked) + self.member.hidden_bytes(rows);
        let at = Instant::now();
        self.member.lead_step(&self.step)?;
        let (first_stage, tokens) = (at.elapsed(), self.step.tokens.len());
        let begun = Begun { at, drafting, first_stage, alone, prompt_tokens, tokens };
        self.flights.push_back(Flight::Step { asked, owners, hidden, bytes, begun });
        if prompt_tokens > 0 {
            self.cache_changed = true;
            self.tell_cache()?;
            self.tell(&FromRank::Progress {})?;
        }
        Ok(true)
    }

    /// Makes room for what sequences are to take in the next step; those for which there is none get their turn later. Returns
    /// how many tokens of prompts are left.
    fn place_shares(&mut self) -> usize {
        let (mut busy, mut prompt_tokens) = (self.awaited(), 0);
        let mut shares = std::mem::take(&mut self.shares);
        shares.retain(|share| {
            let sequence = self.sequences.iter().find(|sequence| sequence.slot == share.slot);
            let Some((id, prompt)) = sequence.map(|it| (it.id, it.prompt_left() > 0)) else { return false };
            if !self.make_room(share.slot, share.tokens, &busy) {
                self.schedule.postpone(*share, prompt);
                return false;
            }
            busy.push(id);
            prompt_tokens += if prompt { share.tokens } else { 0 };
            true
        });
        self.shares = shares;
        prompt_tokens
    }

    /// Puts the next step together. Returns what is asked of it, whom each answer concerns, and whose hidden states are wanted.
    fn assemble(&mut self) -> (Vec<Asked>, Vec<u64>, Vec<Hidden>) {
        self.step.clear();
        let (mut asked, mut owners, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
        for share in &self.shares {
            let Some(sequence) = self.sequences.iter_mut().find(|sequence| sequence.slot == share.slot) else {
                continue;
            };
            let drafted = sequence.drafted();
            if drafted > 0 && !self.blocks.reserve(share.slot, 1 + drafted) {
                sequence.retract();
            }
            let (tokens, wanted) = sequence.take(share.tokens);
            self.step.push(share.slot, self.blocks.len(share.slot), tokens, wanted);
            self.blocks.tell(share.slot, &mut self.step);
            // What was drafted is there when it turns out to be right.
            self.blocks.extend(share.slot, &tokens[..share.tokens]);
            asked.clear();
            asked.extend(self.step.asked());
            owners.resize(asked.len(), sequence.id);
            let end = self.step.tokens.len();
            match wanted {
                Wanted::Hidden => hidden.push(Hidden { owner: sequence.id, rows: end - share.tokens..end }),
                Wanted::LastHidden => hidden.push(Hidden { owner: sequence.id, rows: end - 1..end }),
                _ => {}
            }
        }
        (asked, owners, hidden)
    }

    /// Makes room for `tokens` more tokens of the sequence in `slot`. Those have to make way that are least urgent, of equals
    /// the youngest; if that is the one that asks, it does itself. `busy` have tokens in steps under way and stay. False if
    /// there is no room now.
    fn make_room(&mut self, slot: usize, tokens: usize, busy: &[u64]) -> bool {
        while !self.blocks.reserve(slot, tokens) {
            let movable = self.sequences.iter().enumerate().filter(|(_, sequence)| !busy.contains(&sequence.id));
            // Sequences are in the order in which they got their slots.
            let victim = movable.max_by_key(|(index, sequence)| (sequence.priority(), *index)).map(|(index, _)| index);
            let Some(victim) = victim else { return false };
            let displaced = self.sequences.remove(victim);
            let itself = displaced.slot == slot;
            self.schedule.remove(displaced.slot);
            self.blocks.release(displaced.slot);
            self.preemptions += 1;
            let place = self.displaced.partition_point(|other| other.id < displaced.id);
            self.displaced.insert(place, displaced);
            if itself {
                return false;
            }
        }
        true
    }

    /// Sequences of which answers are under way.
    fn awaited(&self) -> Vec<u64> {
        let mut awaited = Vec::new();
        for flight in &self.flights {
            if let Flight::Step { owners, hidden, .. } = flight {
                awaited.extend(owners);
                awaited.extend(hidden.iter().map(|hidden| hidden.owner));
            }
        }
        awaited
    }

    /// How many more steps can be under way now.
    pub(super) fn free_stages(&self) -> usize {
        let (mut steps, mut answers) = (0, 0);
        for flight in &self.flights {
            if let Flight::Step { bytes, .. } = flight {
                steps += 1;
                answers += bytes;
            }
        }
        if answers > ANSWERS_AHEAD_MAX { 0 } else { self.member.job().layout.pipeline.saturating_sub(steps) }
    }

    /// Whether a step should take whoever can go on: when all logits are wanted, and the answers to one token of each
    /// sequence are so long that it will be the only one under way, or stages have no cores of their own. There, to share
    /// a pass over the weights is worth more than to keep all stages busy.
    fn shares_step(&self) -> bool {
        let all = self.sequences.iter().filter(|sequence| sequence.wants_all_logits()).count();
        let crowded = self.member.job().crowded;
        all > 0 && (crowded || all * self.member.answer_bytes(&[Asked { row: 0, best: None }]) > ANSWERS_AHEAD_MAX)
    }
}
