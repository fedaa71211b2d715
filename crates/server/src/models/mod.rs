//! The models on offer: loaded when asked for by name, kept while there is room, unloaded when unused.

mod keep_alive;
mod lease;
mod loading;
mod shelf;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use engine::{Engine, ModelDetails, ModelInfo, Status};
use tokio::sync::watch;

pub use self::keep_alive::parse_keep_alive;
pub(crate) use self::lease::{Asker, Lease};
pub use self::shelf::Room;
use self::shelf::{Place, Shelf};
use crate::error::{ApiError, Code};
use crate::metrics::ModelMetrics;

/// A model that clients may ask for, as it is known before it is loaded.
#[derive(Debug, Clone)]
pub struct Offer {
    /// Its name.
    pub id: String,
    /// Seconds since the Unix epoch since when there is this model.
    pub created: u64,
    /// Tokens that prompt and answer together may take.
    pub context: usize,
    /// What its checkpoint says of itself.
    pub details: ModelDetails,
    /// Bytes of memory that it takes once it is loaded.
    pub memory_bytes: u64,
}

impl Offer {
    fn of(model: &ModelInfo) -> Self {
        let ModelInfo { id, created, context, details, .. } = model.clone();
        let memory_bytes = details.bytes;
        Self { id, created, context, details, memory_bytes }
    }
}

/// How models come into memory. The server does not know what that takes.
pub trait Loader: Send + Sync + 'static {
    /// Loads the model on offer under `id`, and says how far it is: bytes loaded, of how many. May take minutes; runs on a
    /// thread of its own.
    ///
    /// # Errors
    /// Why it cannot be loaded, in words for the client that has asked for it.
    fn load(&self, id: &str, progress: &dyn Fn(u64, u64)) -> Result<Box<dyn Loaded>, String>;
}

/// A model in memory. The server shuts the engine down before it drops it.
pub trait Loaded: Send + 'static {
    /// What runs it.
    fn engine(&self) -> &Engine;
}

impl Loaded for Engine {
    fn engine(&self) -> &Engine {
        self
    }
}

/// All models of a server. Clones share them.
#[derive(Clone)]
pub struct Models {
    shared: Arc<Shared>,
}

struct Shared {
    offers: Vec<Offer>,
    metrics: Vec<ModelMetrics>,
    /// `None` where there is nothing to load or unload.
    loader: Option<Box<dyn Loader>>,
    state: Mutex<State>,
    /// Told of every change that somebody may wait for.
    changed: watch::Sender<()>,
    started: Instant,
}

struct State {
    shelf: Shelf,
    slots: Vec<Slot>,
}

/// What is known of one model beside its place.
#[derive(Default)]
struct Slot {
    loaded: Option<Box<dyn Loaded>>,
    /// How far it is loaded, of how much, in bytes.
    progress: (u64, u64),
    /// How often it could not be loaded, and why not the last time.
    failures: u64,
    failure: String,
}

/// Where a model is, for lists.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Presence {
    /// It would have to be loaded.
    Absent,
    /// This share of it is loaded.
    Loading(f64),
    /// It is loaded, and unloaded after so much more time without use, if ever.
    Ready { expires_in: Option<Duration> },
}

impl From<Engine> for Models {
    fn from(engine: Engine) -> Self {
        Self::fixed(Box::new(engine))
    }
}

impl Models {
    /// One model, which runs already and stays.
    pub fn fixed(loaded: Box<dyn Loaded>) -> Self {
        let offer = Offer::of(loaded.engine().model());
        let models = Self::new(vec![offer], None, Room { models: 1, bytes: u64::MAX }, None);
        models.put(loaded);
        models
    }

    /// Models that `loader` loads when they are asked for, as long as there is `room` for them, and that are unloaded when
    /// nobody has used them for `keep_alive` (or only when another one needs the room). The first one is what a request gets
    /// that names none.
    pub fn on_demand(offers: Vec<Offer>, loader: impl Loader, room: Room, keep_alive: Option<Duration>) -> Self {
        Self::new(offers, Some(Box::new(loader)), room, keep_alive)
    }

    fn new(offers: Vec<Offer>, loader: Option<Box<dyn Loader>>, room: Room, keep_alive: Option<Duration>) -> Self {
        let shelf = Shelf::new(offers.iter().map(|offer| offer.memory_bytes), room, keep_alive);
        let slots = offers.iter().map(|_| Slot::default()).collect();
        let metrics = offers.iter().map(|offer| ModelMetrics::new(&offer.id)).collect();
        let state = Mutex::new(State { shelf, slots });
        let changed = watch::Sender::new(());
        let shared = Shared { offers, metrics, loader, state, changed, started: Instant::now() };
        Self { shared: Arc::new(shared) }
    }

    /// Unloads models that nobody has used for `keep_alive` from now on, unless a request has said otherwise. False if there
    /// is one model, which stays.
    pub fn keep_alive(&self, keep_alive: Option<Duration>) -> bool {
        if self.shared.loader.is_none() {
            return keep_alive.is_none();
        }
        self.shared.lock().shelf.keep_all(keep_alive);
        self.shared.changed.send_replace(());
        true
    }

    /// Puts a model that is loaded already into its place. One that is not on offer is dropped.
    pub fn put(&self, loaded: Box<dyn Loaded>) {
        if let Some(index) = self.index_of(&loaded.engine().model().id) {
            self.shared.put(index, loaded);
        }
    }

    /// Whether there is more than one.
    pub fn are_several(&self) -> bool {
        self.shared.offers.len() > 1
    }

    /// Why a loaded model does not run any more, if there is one.
    pub fn failure(&self) -> Option<String> {
        self.status().into_iter().find_map(|(_, status)| status?.failure)
    }

    /// Whether a model whose engine has failed is loaded again when it is asked for.
    pub(crate) fn can_be_loaded_anew(&self) -> bool {
        self.shared.loader.is_some()
    }

    /// Stops all models. To be called after the server has ended.
    pub fn shutdown(&self) {
        let loaded: Vec<_> = self.shared.lock().slots.iter_mut().filter_map(|slot| slot.loaded.take()).collect();
        loaded.iter().for_each(|loaded| loaded.engine().shutdown());
    }

    /// All that may be asked for.
    pub(crate) fn offers(&self) -> impl Iterator<Item = (&Offer, Presence)> {
        self.shared.offers.iter().enumerate().map(|(index, offer)| (offer, self.shared.presence(index)))
    }

    /// One of them, by its name.
    pub(crate) fn offer(&self, name: Option<&str>) -> Result<(&Offer, Presence), ApiError> {
        let index = self.find(name)?;
        Ok((&self.shared.offers[index], self.shared.presence(index)))
    }

    /// What the engine of each model does, if it is loaded, and the model's figures.
    pub(crate) fn status(&self) -> Vec<(&ModelMetrics, Option<Status>)> {
        let state = self.shared.lock();
        let status = |slot: &Slot| slot.loaded.as_ref().map(|loaded| loaded.engine().status());
        self.shared.metrics.iter().zip(&state.slots).map(|(metrics, slot)| (metrics, status(slot))).collect()
    }

    /// The number of the model that a request names.
    fn find(&self, name: Option<&str>) -> Result<usize, ApiError> {
        let Some(name) = name else { return Ok(0) };
        // Ollama's clients add the tag to names that have none.
        let untagged = name.strip_suffix(":latest").unwrap_or(name);
        self.index_of(name).or_else(|| self.index_of(untagged)).ok_or_else(|| {
            let names: Vec<_> = self.shared.offers.iter().map(|offer| format!("{:?}", offer.id)).collect();
            let verb = if names.len() == 1 { "does" } else { "do" };
            let message = format!("the model {name:?} does not run here: {} {verb}", names.join(", "));
            ApiError::of_field(Code::ModelNotFound, "model", message)
        })
    }

    fn index_of(&self, id: &str) -> Option<usize> {
        self.shared.offers.iter().position(|offer| offer.id == id)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since the server began.
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn put(&self, index: usize, loaded: Box<dyn Loaded>) {
        let mut state = self.lock();
        state.slots[index].loaded = Some(loaded);
        state.shelf.loaded(index, self.now());
        drop(state);
        self.changed.send_replace(());
    }

    fn presence(&self, index: usize) -> Presence {
        let state = self.lock();
        match state.shelf.place(index) {
            Place::Absent | Place::Leaving => Presence::Absent,
            Place::Loading => {
                let (done, total) = state.slots[index].progress;
                Presence::Loading(done as f64 / total.max(1) as f64)
            }
            Place::Ready => {
                let expiry = state.shelf.expiry(index);
                Presence::Ready { expires_in: expiry.map(|expiry| expiry.saturating_sub(self.now())) }
            }
        }
    }
}
