//! Loads and unloads models as the shelf says.

use std::sync::Arc;

use super::shelf::Action;
use super::{Models, Shared};

impl Models {
    /// Does what there is to do until it is dropped. Without it, nothing is loaded or unloaded.
    pub(crate) async fn manage(&self) {
        let shared = &self.shared;
        if shared.loader.is_none() {
            return std::future::pending().await;
        }
        let mut changes = shared.changed.subscribe();
        loop {
            let due = loop {
                let mut state = shared.lock();
                match state.shelf.next(shared.now()) {
                    None => break state.shelf.due(),
                    Some(action) => {
                        drop(state);
                        shared.begin(action);
                    }
                }
            };
            let expiry = async {
                match due {
                    Some(due) => tokio::time::sleep(due.saturating_sub(shared.now())).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = changes.changed() => {}
                () = expiry => {}
            }
        }
    }
}

impl Shared {
    /// Begins to load or unload a model; neither can be stopped half-way.
    fn begin(self: &Arc<Self>, action: Action) {
        let shared = Arc::clone(self);
        // Nobody waits for the thread: what it has led to is told by `changed`.
        drop(tokio::task::spawn_blocking(move || match action {
            Action::Load(index) => shared.load(index),
            Action::Unload(index) => shared.unload(index),
        }));
    }

    fn load(&self, index: usize) {
        let Some(loader) = &self.loader else { return };
        let id = &self.offers[index].id;
        tracing::info!(model = %id, "loading a model");
        self.lock().slots[index].progress = (0, 0);
        let progress = |done, total| self.lock().slots[index].progress = (done, total);
        // A loader that panics must not leave everyone waiting.
        let loaded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| loader.load(id, &progress)));
        let loaded = loaded.unwrap_or_else(|_| Err("loading it came to an unexpected end".to_owned()));
        match loaded {
            Ok(loaded) => self.put(index, loaded),
            Err(problem) => {
                tracing::error!(model = %id, %problem, "a model cannot be loaded");
                let mut state = self.lock();
                let slot = &mut state.slots[index];
                slot.failures += 1;
                slot.failure = problem;
                state.shelf.failed(index);
                drop(state);
                self.changed.send_replace(());
            }
        }
    }

    fn unload(&self, index: usize) {
        tracing::info!(model = %self.offers[index].id, "unloading a model");
        let loaded = self.lock().slots[index].loaded.take();
        if let Some(loaded) = loaded {
            loaded.engine().shutdown();
        }
        self.lock().shelf.gone(index);
        self.changed.send_replace(());
    }
}
