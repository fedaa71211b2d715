//! Model names in, local files out: downloads and the cache folder.
//!
//! A MODEL as the user writes it is parsed into a [`Source`]; a [`Store`] turns the source into a [`LocalModel`],
//! from its cache folder or by fetching it:
//!
//! ```no_run
//! use store::{Options, Source, Store};
//!
//! let source: Source = "smollm2".parse()?;
//! let store = Store::open(Store::default_root()?)?;
//! let model = store.resolve(&source, &Options::default())?;
//! println!("{} lies at {}", model.name, model.path.display());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The cache folder
//!
//! ```text
//! models/KEY/model.json    what was fetched, from where, with which digests
//! models/KEY/FILE.gguf     the model itself (absent for hub models, whose files stay in the hub's own cache)
//! partial/KEY/             downloads that have not ended yet; whatever is whole in it is used by the next try
//! locks/KEY.lock           held by the process that fetches or removes KEY
//! ```
//!
//! # Invariants
//!
//! - A folder under `models/` appears by one rename, after every size and digest was verified: there are no
//!   unfinished files under final names.
//! - No name from outside (a package's member, a hub's file list, a command line) leads out of the folder that it
//!   belongs to.
//! - No code of a downloaded package runs: only wheels are taken, and only read as archives.
//! - Every wait ends: transfers by stall deadlines, retries by a bound, waiting for another process when that
//!   process ends, and all of them when [`Progress::is_cancelled`] says so.
#![forbid(unsafe_code)]

mod catalogue;
mod choose;
mod digest;
mod disk;
mod error;
mod hub;
mod incoming;
mod lock;
mod paths;
mod pip;
mod progress;
mod record;
#[cfg(test)]
#[allow(dead_code, reason = "the tests outside use all of it")]
#[path = "../tests/all/server.rs"]
mod server;
mod settings;
mod source;
mod store;
mod suggest;

pub use catalogue::{CATALOGUE, KnownModel, Origin, WheelMember};
pub use digest::{BadDigest, Digest};
pub use error::StoreError;
pub use progress::{Progress, Silent};
pub use record::ModelFile;
pub use settings::{HubSettings, PipCommand, Settings, Token};
pub use source::{HubSource, PipSource, Source, SourceError};
pub use store::{Entry, HubFiles, LocalModel, Options, Store};
