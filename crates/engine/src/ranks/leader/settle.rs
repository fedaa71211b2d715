//! What comes of a step: answers are taken in, in the order of steps, and lead to tokens.

use model::LOGIT_ROWS;

use crate::ranks::leader::{Begun, Ended, Flight, Hidden, Leader, send};
use crate::ranks::member::RankError;
use crate::ranks::plan::Asked;
use crate::ranks::protocol::FromRank;
use crate::ranks::speculation::Outcome;
use crate::request::FinishReason;

impl Leader<'_> {
    /// Waits for what has been under way for longest, and goes on with it. False if nothing is.
    pub(super) fn settle(&mut self) -> Result<bool, RankError> {
        match self.flights.pop_front() {
            None => return Ok(false),
            Some(Flight::Step { asked, owners, hidden, begun, .. }) => {
                self.hear_answers(&asked, &owners)?;
                self.hear_hidden(&hidden)?;
                self.learn_pace(&begun, !asked.is_empty() || !hidden.is_empty());
            }
            Some(Flight::Report { ended, mut ranks }) => {
                self.member.finish_reports(&mut ranks)?;
                let Ended { id, finish, prefill_ms, decode_ms, drafts } = ended;
                self.tell_cache()?;
                self.tell(&FromRank::Done { id, finish, prefill_ms, decode_ms, drafts, ranks })?;
            }
        }
        Ok(true)
    }

    /// Notes how long a step took. Of one that is not waited for, or that others were in the way of, all that is known is how
    /// long its first stage took, and the others take about as long.
    fn learn_pace(&mut self, begun: &Begun, answered: bool) {
        let stages = self.member.job().layout.pipeline as u32;
        let took = if answered && begun.alone { begun.at.elapsed() } else { begun.first_stage * stages };
        self.pace.learn(begun.prompt_tokens, took + begun.drafting);
        if begun.prompt_tokens == 0 {
            self.drafting.learn_step(begun.tokens, took.as_secs_f64());
        }
    }

    /// Receives the answers to a step and tells the front what they have led to.
    fn hear_answers(&mut self, asked: &[Asked], owners: &[u64]) -> Result<(), RankError> {
        let mut tokens = Vec::new();
        let mut ended = Vec::new();
        let price = self.drafting.price(self.sequences.iter().filter(|sequence| sequence.prompt_left() == 0).count());
        for (asked, owners) in asked.chunks(LOGIT_ROWS).zip(owners.chunks(LOGIT_ROWS)) {
            let (answers, end_tokens) = self.member.receive_answers(asked)?;
            for (index, (&asked, &id)) in asked.iter().zip(owners).enumerate() {
                // One that is gone was cancelled in the meantime.
                let Some(sequence) = self.sequences.iter_mut().find(|sequence| sequence.id == id) else { continue };
                let outgoing = sequence.hear(answers.get(index, asked), end_tokens);
                if let Some((tokens, cached)) = outgoing.prompt {
                    send(self.control, &FromRank::Prompt { id, tokens, cached })?;
                }
                if outgoing.ready || outgoing.finish.is_some() {
                    let Outcome { right, gain } = sequence.settle(price);
                    self.drafting.learn_gain(gain);
                    if let Some(finish) = outgoing.finish {
                        ended.push((id, finish));
                    } else {
                        self.blocks.extend(sequence.slot, sequence.before_last(right));
                        self.schedule.wake(sequence.slot);
                    }
                }
                tokens.extend(outgoing.token.map(|token| (id, token)));
            }
        }
        if !tokens.is_empty() {
            self.tell(&FromRank::Tokens { tokens })?;
        }
        for (id, finish) in ended {
            if let Some(index) = self.sequences.iter().position(|sequence| sequence.id == id) {
                self.end(index, finish);
            }
        }
        Ok(())
    }

    /// Receives hidden states and tells the front of embeddings that they complete.
    fn hear_hidden(&mut self, hidden: &[Hidden]) -> Result<(), RankError> {
        if hidden.is_empty() {
            return Ok(());
        }
        let rows: Vec<usize> = hidden.iter().flat_map(|hidden| hidden.rows.clone()).collect();
        let values = self.member.receive_hidden(&rows)?;
        let width = values.len() / rows.len();
        let (mut rest, mut complete) = (values, Vec::new());
        for Hidden { owner, rows } in hidden {
            let (own, others) = rest.split_at(rows.len() * width);
            rest = others;
            // One that is gone was cancelled in the meantime.
            let sequence = self.sequences.iter_mut().find(|sequence| sequence.id == *owner);
            complete.extend(sequence.and_then(|sequence| sequence.hear_hidden(own, width)).map(|it| (*owner, it)));
        }
        for (id, (values, cached)) in complete {
            self.tell(&FromRank::Prompt { id, tokens: Vec::new(), cached })?;
            self.tell(&FromRank::Embedding { id, values })?;
            if let Some(index) = self.sequences.iter().position(|sequence| sequence.id == id) {
                self.end(index, FinishReason::Stop);
            }
        }
        Ok(())
    }
}
