//! Which of the models on offer are in memory: no clock, no thread, only counts and the times that it is told.
//!
//! Models are loaded one after the other, in the order in which they were first asked for. One for which there is no room
//! takes that of the model which has not been used for longest. If all are in use, one of them takes no further requests
//! until those it has are done, so that nobody waits for ever behind a model that everyone else asks for.

use std::time::Duration;

/// How much may be in memory at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Models.
    pub models: usize,
    /// Bytes that they take together. A larger model is loaded all the same where it is the only one.
    pub bytes: u64,
}

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Load(usize),
    Unload(usize),
}

/// Where a model is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Absent,
    Loading,
    Ready,
    Leaving,
}

/// The models on offer, by number.
pub(super) struct Shelf {
    models: Vec<Model>,
    room: Room,
    /// How long a model stays without being used unless a request says otherwise; as long as there is room if `None`.
    keep: Option<Duration>,
    /// Counts the requests that have had to wait.
    turns: u64,
}

struct Model {
    bytes: u64,
    place: Place,
    /// Requests that use it.
    users: usize,
    /// Requests that wait for it, and the turn of the first of them.
    waiting: usize,
    turn: u64,
    /// How long it stays without being used, this time.
    keep: Option<Duration>,
    /// When it was last used.
    used: Duration,
    /// Whether it is to go as soon as nobody uses it, as it is broken or another one needs the room.
    yields: bool,
}

impl Shelf {
    /// Models of so many bytes, which stay for `keep` after their last use.
    pub(super) fn new(bytes: impl IntoIterator<Item = u64>, room: Room, keep: Option<Duration>) -> Self {
        let model = |bytes| Model {
            bytes,
            place: Place::Absent,
            users: 0,
            waiting: 0,
            turn: 0,
            keep,
            used: Duration::ZERO,
            yields: false,
        };
        Self { models: bytes.into_iter().map(model).collect(), room, keep, turns: 0 }
    }

    pub(super) fn place(&self, index: usize) -> Place {
        self.models[index].place
    }

    /// Requests that wait for a model.
    pub(super) fn waiting(&self, index: usize) -> usize {
        self.models[index].waiting
    }

    /// When a model that nobody uses is unloaded, if it is loaded and ever is.
    pub(super) fn expiry(&self, index: usize) -> Option<Duration> {
        let model = &self.models[index];
        (model.place == Place::Ready).then_some(model.keep?).map(|keep| model.used.saturating_add(keep))
    }

    /// Lends a model to a request, if it is there. False if the request has to wait.
    pub(super) fn lend(&mut self, index: usize) -> bool {
        let model = &mut self.models[index];
        let lends = model.place == Place::Ready && !model.yields;
        model.users += usize::from(lends);
        lends
    }

    /// A request to which a model was lent is done with it.
    pub(super) fn give_back(&mut self, index: usize, now: Duration) {
        let model = &mut self.models[index];
        model.users = model.users.saturating_sub(1);
        model.used = now;
    }

    /// A request begins to wait for a model.
    pub(super) fn wait(&mut self, index: usize) {
        let model = &mut self.models[index];
        if model.waiting == 0 {
            self.turns += 1;
            model.turn = self.turns;
        }
        model.waiting += 1;
    }

    /// A request waits no more, whether it got the model or not.
    pub(super) fn wait_no_more(&mut self, index: usize) {
        let model = &mut self.models[index];
        model.waiting = model.waiting.saturating_sub(1);
    }

    /// A model stays for `keep` after each use from now on, until it is unloaded.
    pub(super) fn keep(&mut self, index: usize, keep: Option<Duration>) {
        self.models[index].keep = keep;
    }

    /// Models stay for `keep` after each use from now on, except those of which a request has said otherwise.
    pub(super) fn keep_all(&mut self, keep: Option<Duration>) {
        let before = std::mem::replace(&mut self.keep, keep);
        self.models.iter_mut().filter(|model| model.keep == before).for_each(|model| model.keep = keep);
    }

    /// A model has been loaded.
    pub(super) fn loaded(&mut self, index: usize, now: Duration) {
        // Whoever was to make room has done so; what the next one needs is seen when it is its turn.
        self.models.iter_mut().filter(|model| model.place == Place::Ready).for_each(|model| model.yields = false);
        let model = &mut self.models[index];
        (model.place, model.used, model.yields, model.keep) = (Place::Ready, now, false, self.keep);
    }

    /// A model has been unloaded.
    pub(super) fn gone(&mut self, index: usize) {
        self.models[index].place = Place::Absent;
    }

    /// A model could not be loaded. All who wait for it are told so, and wait no more.
    pub(super) fn failed(&mut self, index: usize) {
        let model = &mut self.models[index];
        (model.place, model.waiting) = (Place::Absent, 0);
    }

    /// A model is of no use any more: it goes once nobody has it.
    pub(super) fn spoil(&mut self, index: usize) {
        self.models[index].yields = true;
    }

    /// What is to be done at the time `now`, if anything; the caller then does it and says when it is done.
    pub(super) fn next(&mut self, now: Duration) -> Option<Action> {
        let expired = |model: &Model| {
            let idle = model.place == Place::Ready && model.users == 0;
            let late = model.waiting == 0 && model.keep.is_some_and(|keep| now >= model.used.saturating_add(keep));
            idle && (late || model.yields)
        };
        if let Some(index) = self.models.iter().position(expired) {
            return Some(self.unload(index));
        }
        if self.models.iter().any(|model| matches!(model.place, Place::Loading | Place::Leaving)) {
            return None;
        }
        let wanted = |model: &&Model| model.place == Place::Absent && model.waiting > 0;
        let turn = self.models.iter().filter(wanted).map(|model| model.turn).min()?;
        let index = self.models.iter().position(|model| wanted(&model) && model.turn == turn)?;
        if self.fits(index) {
            self.models[index].place = Place::Loading;
            return Some(Action::Load(index));
        }
        let victim = self.victim(turn)?;
        if self.models[victim].users == 0 {
            return Some(self.unload(victim));
        }
        self.models[victim].yields = true;
        None
    }

    /// The next time at which a model is to be unloaded because nobody has used it.
    pub(super) fn due(&self) -> Option<Duration> {
        let idle = |index: &usize| self.models[*index].users == 0 && self.models[*index].waiting == 0;
        (0..self.models.len()).filter(idle).filter_map(|index| self.expiry(index)).min()
    }

    fn unload(&mut self, index: usize) -> Action {
        let model = &mut self.models[index];
        (model.place, model.yields) = (Place::Leaving, false);
        Action::Unload(index)
    }

    /// Whether there is room for one more model.
    fn fits(&self, index: usize) -> bool {
        let present = self.models.iter().filter(|model| model.place != Place::Absent);
        let (count, bytes) = present.fold((0, 0_u64), |(count, bytes), model| (count + 1, bytes + model.bytes));
        count == 0 || (count < self.room.models && bytes.saturating_add(self.models[index].bytes) <= self.room.bytes)
    }

    /// The model that makes room for the one whose turn is `turn`: rather one that nobody uses, then the one that has not
    /// been used for longest. Those for which others wait since before that turn stay.
    fn victim(&self, turn: u64) -> Option<usize> {
        let ready = |(_, model): &(usize, &Model)| {
            model.place == Place::Ready && !model.yields && (model.waiting == 0 || model.turn > turn)
        };
        // One that makes room already is enough for the moment.
        if self.models.iter().any(|model| model.place == Place::Ready && model.yields) {
            return None;
        }
        let models = self.models.iter().enumerate().filter(ready);
        models.min_by_key(|(_, model)| (model.users > 0, model.used)).map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn shelf(bytes: &[u64], models: usize) -> Shelf {
        Shelf::new(bytes.iter().copied(), Room { models, bytes: 100 }, Some(10 * SECOND))
    }

    fn load(shelf: &mut Shelf, index: usize, now: Duration) {
        shelf.wait(index);
        assert_eq!(shelf.next(now), Some(Action::Load(index)));
        shelf.loaded(index, now);
        assert!(shelf.lend(index));
        shelf.wait_no_more(index);
    }

    #[test]
    fn an_unused_model_goes_when_its_time_is_over() {
        let mut shelf = shelf(&[1], 1);
        assert!(!shelf.lend(0));
        load(&mut shelf, 0, SECOND);
        assert_eq!((shelf.next(100 * SECOND), shelf.due()), (None, None));
        shelf.give_back(0, 3 * SECOND);
        assert_eq!((shelf.next(12 * SECOND), shelf.due()), (None, Some(13 * SECOND)));
        assert_eq!(shelf.next(13 * SECOND), Some(Action::Unload(0)));
        shelf.gone(0);
        assert_eq!((shelf.place(0), shelf.next(99 * SECOND)), (Place::Absent, None));
        load(&mut shelf, 0, 99 * SECOND);
        shelf.keep(0, None);
        shelf.give_back(0, 100 * SECOND);
        assert_eq!((shelf.next(9999 * SECOND), shelf.due()), (None, None));
    }

    #[test]
    fn how_long_unused_models_stay_may_change() {
        let mut shelf = shelf(&[1, 1], 2);
        load(&mut shelf, 0, SECOND);
        load(&mut shelf, 1, SECOND);
        shelf.keep(1, Some(60 * SECOND));
        shelf.give_back(0, 2 * SECOND);
        shelf.give_back(1, 2 * SECOND);
        shelf.keep_all(Some(3 * SECOND));
        assert_eq!((shelf.expiry(0), shelf.expiry(1)), (Some(5 * SECOND), Some(62 * SECOND)));
        assert_eq!(shelf.next(5 * SECOND), Some(Action::Unload(0)));
        shelf.gone(0);
        shelf.keep_all(None);
        load(&mut shelf, 0, 6 * SECOND);
        assert_eq!((shelf.expiry(0), shelf.expiry(1)), (None, Some(62 * SECOND)));
    }

    #[test]
    fn the_least_recently_used_makes_room() {
        let mut shelf = shelf(&[60, 30, 50, 500], 3);
        load(&mut shelf, 0, SECOND);
        load(&mut shelf, 1, SECOND);
        shelf.give_back(0, 2 * SECOND);
        shelf.give_back(1, 3 * SECOND);
        shelf.wait(2);
        assert_eq!(shelf.next(4 * SECOND), Some(Action::Unload(0)));
        assert_eq!(shelf.next(4 * SECOND), None);
        shelf.gone(0);
        assert_eq!(shelf.next(4 * SECOND), Some(Action::Load(2)));
        shelf.loaded(2, 5 * SECOND);
        assert!(shelf.lend(2) && shelf.lend(1));
        shelf.wait_no_more(2);
        // One that is larger than all room is loaded when it is alone.
        shelf.wait(3);
        assert_eq!(shelf.next(5 * SECOND), None);
        shelf.give_back(2, 6 * SECOND);
        assert_eq!(shelf.next(6 * SECOND), None);
        assert!(!shelf.lend(1) && shelf.lend(2));
        shelf.give_back(1, 7 * SECOND);
        assert_eq!(shelf.next(7 * SECOND), Some(Action::Unload(1)));
        shelf.gone(1);
        assert_eq!(shelf.next(7 * SECOND), None);
        shelf.give_back(2, 7 * SECOND);
        assert_eq!(shelf.next(7 * SECOND), Some(Action::Unload(2)));
        shelf.gone(2);
        assert_eq!(shelf.next(7 * SECOND), Some(Action::Load(3)));
    }

    #[test]
    fn a_model_in_use_takes_no_more_while_another_waits_for_its_room() {
        let mut shelf = shelf(&[1, 1], 1);
        load(&mut shelf, 0, SECOND);
        shelf.wait(1);
        assert_eq!(shelf.next(SECOND), None);
        assert!(!shelf.lend(0));
        shelf.wait(0);
        shelf.give_back(0, 2 * SECOND);
        assert_eq!(shelf.next(2 * SECOND), Some(Action::Unload(0)));
        shelf.gone(0);
        assert_eq!(shelf.next(2 * SECOND), Some(Action::Load(1)));
        shelf.loaded(1, 3 * SECOND);
        // The first one waits as well, but came later.
        assert_eq!(shelf.next(3 * SECOND), None);
        assert!(shelf.lend(1));
        shelf.wait_no_more(1);
        assert_eq!(shelf.next(3 * SECOND), None);
        shelf.give_back(1, 4 * SECOND);
        assert_eq!(shelf.next(4 * SECOND), Some(Action::Unload(1)));
    }

    #[test]
    fn a_broken_model_is_replaced() {
        let mut shelf = shelf(&[1], 1);
        load(&mut shelf, 0, SECOND);
        shelf.spoil(0);
        assert!(!shelf.lend(0));
        shelf.wait(0);
        assert_eq!(shelf.next(SECOND), None);
        shelf.give_back(0, SECOND);
        assert_eq!(shelf.next(SECOND), Some(Action::Unload(0)));
        shelf.gone(0);
        assert_eq!(shelf.next(SECOND), Some(Action::Load(0)));
    }

    proptest! {
        /// Whatever is asked for in whatever order, everyone is served, there is never more in memory than allowed, and
        /// no model goes that somebody uses.
        #[test]
        fn everyone_is_served(
            bytes in prop::collection::vec(1_u64..80, 1..5),
            models in 1_usize..4,
            asked in prop::collection::vec((0_usize..5, 1_usize..4, any::<bool>()), 1..40),
        ) {
            let mut shelf = shelf(&bytes, models);
            let mut now = Duration::ZERO;
            let (mut waiting, mut using, mut under_way) = (Vec::new(), Vec::new(), None);
            let mut arrivals = asked.iter();
            for _ in 0..40 * asked.len() {
                now += SECOND;
                if let Some(&(model, duration, fails)) = arrivals.next() {
                    let model = model % bytes.len();
                    if shelf.lend(model) {
                        using.push((model, duration));
                    } else {
                        shelf.wait(model);
                        waiting.push((model, duration, fails));
                    }
                }
                if let Some(action) = under_way.take() {
                    match action {
                        Action::Load(model) => {
                            if waiting.iter().any(|&(waits, _, fails)| waits == model && fails) {
                                shelf.failed(model);
                                waiting.retain(|&(waits, _, _)| waits != model);
                            } else {
                                shelf.loaded(model, now);
                            }
                        }
                        Action::Unload(model) => {
                            prop_assert!(using.iter().all(|&(uses, _)| uses != model));
                            shelf.gone(model);
                        }
                    }
                }
                waiting.retain(|&(model, duration, _)| {
                    let lent = shelf.lend(model);
                    if lent {
                        shelf.wait_no_more(model);
                        using.push((model, duration));
                    }
                    !lent
                });
                using.iter_mut().for_each(|(_, left)| *left -= 1);
                using.retain(|&(model, left)| left > 0 || { shelf.give_back(model, now); false });
                under_way = shelf.next(now);
                let present: Vec<_> = (0..bytes.len()).filter(|&model| shelf.place(model) != Place::Absent).collect();
                let sum: u64 = present.iter().map(|&model| bytes[model]).sum();
                prop_assert!(present.len() <= 1 || (present.len() <= models && sum <= 100));
            }
            prop_assert!(waiting.is_empty() && using.is_empty(), "{waiting:?} {using:?}");
        }
    }
}
