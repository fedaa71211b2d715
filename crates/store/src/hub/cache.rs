//! The hub's cache on this machine, in the layout that all of its clients share: `blobs` named by content, `snapshots`
//! of commits that link to them, and `refs` from branches to commits.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use hf_hub::{Cache, CacheRepo, Repo};

use crate::lock::Lock;
use crate::paths::check_relative;
use crate::source::has_gguf_ending;
use crate::{Digest, HubSettings, HubSource, Progress, StoreError};

/// The cache of one repository.
pub(super) struct HubCache {
    repository: CacheRepo,
    /// Everything of the repository.
    folder: PathBuf,
    /// The locks of its blobs, where the hub's Python client has them too.
    locks: PathBuf,
}

impl HubCache {
    pub(super) fn open(settings: &HubSettings, source: &HubSource) -> Result<HubCache, StoreError> {
        let root = cache_root(settings)?;
        let repository = Repo::model(source.repository_id());
        let name = repository.folder_name();
        let locks = root.join(".locks").join(&name);
        let folder = root.join(&name);
        Ok(HubCache { repository: Cache::new(root).repo(repository), folder, locks })
    }

    /// Where the content called `blob` lies.
    pub(super) fn blob(&self, blob: &str) -> PathBuf {
        self.folder.join("blobs").join(blob)
    }

    /// Where the content called `blob` grows; the folder exists afterwards.
    pub(super) fn incomplete(&self, blob: &str) -> Result<PathBuf, StoreError> {
        let blobs = self.folder.join("blobs");
        fs::create_dir_all(&blobs).map_err(StoreError::io("create", &blobs))?;
        Ok(blobs.join(format!("{blob}.incomplete")))
    }

    /// Where a file of a commit is found.
    pub(super) fn pointer(&self, commit: &str, file: &str) -> PathBuf {
        self.repository.pointer_path(commit).join(file)
    }

    /// Keeps other processes, this program's or the Python client's, from downloading the same content.
    pub(super) fn lock(&self, blob: &str, file: &str, progress: &dyn Progress) -> Result<Lock, StoreError> {
        fs::create_dir_all(&self.locks).map_err(StoreError::io("create", &self.locks))?;
        Lock::acquire(&self.locks.join(format!("{blob}.lock")), file, progress)
    }

    /// Makes the verified content at `incomplete` the blob, and the file of the commit link to it.
    pub(super) fn land(&self, incomplete: &Path, blob: &str, commit: &str, file: &str) -> Result<(), StoreError> {
        let landed = self.blob(blob);
        fs::rename(incomplete, &landed).map_err(StoreError::io("create", &landed))?;
        self.link(blob, commit, file)
    }

    /// Makes the file of the commit link to the blob, and the main branch refer to the commit.
    pub(super) fn link(&self, blob: &str, commit: &str, file: &str) -> Result<(), StoreError> {
        let pointer = self.pointer(commit, file);
        let folder = pointer.parent().unwrap_or(&pointer);
        fs::create_dir_all(folder).map_err(StoreError::io("create", folder))?;
        // From `snapshots/COMMIT/`, and from each folder of the file's own path, one step up.
        let up: PathBuf = std::iter::repeat_n("..", 2 + file.matches('/').count()).collect();
        let fresh = folder.join(format!(".{blob}.link"));
        let _ = fs::remove_file(&fresh);
        make_link(&up.join("blobs").join(blob), &self.blob(blob), &fresh).map_err(StoreError::io("create", &fresh))?;
        fs::rename(&fresh, &pointer).map_err(StoreError::io("create", &pointer))?;
        self.repository.create_ref(commit).map_err(StoreError::io("write references in", &self.folder))
    }

    /// The commit that the main branch refers to, as far as the cache knows.
    pub(super) fn newest_commit(&self) -> Option<String> {
        let commit = fs::read_to_string(self.folder.join("refs").join("main")).ok()?;
        let commit = commit.trim();
        is_commit(commit).then(|| commit.to_owned())
    }

    /// The GGUF files that the cache has of a commit, as paths in the repository.
    pub(super) fn files(&self, commit: &str) -> Vec<String> {
        let root = self.repository.pointer_path(commit);
        let mut files = Vec::new();
        collect(&root, "", 0, &mut files);
        files
    }
}

/// Whether text can be the name of a commit: it becomes the name of a folder.
pub(super) fn is_commit(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// The digest that the name of a link's target states: blobs of large files are named by their SHA-256.
pub(super) fn ends_in_digest(pointer: &Path) -> Option<Digest> {
    fs::canonicalize(pointer).ok()?.file_name()?.to_str()?.parse().ok()
}

/// Deletes a file of a snapshot, and the content that it links to; returns the bytes that were freed. Paths outside
/// the hub's cache are left alone: records that name such were made with another `HF_HOME`.
pub(crate) fn remove_file(settings: &HubSettings, pointer: &Path) -> Result<u64, StoreError> {
    let root = cache_root(settings)?;
    let Some(repository) = repository_of(&root, pointer) else {
        tracing::warn!("{} does not lie in the hub's cache {}; it stays", pointer.display(), root.display());
        return Ok(0);
    };
    let Ok(content) = fs::canonicalize(pointer) else { return Ok(0) };
    let inside = fs::canonicalize(&repository).is_ok_and(|repository| content.starts_with(repository));
    if !inside {
        tracing::warn!("{} links out of the hub's cache; it stays", pointer.display());
        return Ok(0);
    }
    let bytes = fs::metadata(&content).map_or(0, |metadata| metadata.len());
    fs::remove_file(&content).map_err(StoreError::io("remove", &content))?;
    match fs::remove_file(pointer) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::io("remove", pointer)(error)),
        _ => Ok(bytes),
    }
}

/// The folder of the repository that a snapshot's file belongs to, if the path has the form of one in the cache.
fn repository_of(root: &Path, pointer: &Path) -> Option<PathBuf> {
    let inner = pointer.strip_prefix(root).ok()?;
    let mut names = inner.components().map(|component| match component {
        Component::Normal(name) => name.to_str(),
        _ => None,
    });
    let (repository, snapshots) = (names.next()??, names.next()??);
    let plain = names.all(|name| name.is_some());
    (plain && repository.starts_with("models--") && snapshots == "snapshots").then(|| root.join(repository))
}

fn cache_root(settings: &HubSettings) -> Result<PathBuf, StoreError> {
    let root = settings.cache.as_ref().ok_or(StoreError::NoHome { variable: "HF_HOME" })?;
    std::path::absolute(root).map_err(StoreError::io("find", root))
}

fn collect(folder: &Path, prefix: &str, depth: usize, files: &mut Vec<String>) {
    const DEEPEST: usize = 8;
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.filter_map(Result::ok) {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = format!("{prefix}{name}");
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && depth < DEEPEST {
            collect(&entry.path(), &format!("{path}/"), depth + 1, files);
        } else if has_gguf_ending(&name) && check_relative(&path).is_ok() {
            files.push(path);
        }
    }
    files.sort();
}

#[cfg(unix)]
fn make_link(relative: &Path, _target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(relative, link)
}

/// Symbolic links need rights on other systems; a second name for the same content does not.
#[cfg(not(unix))]
fn make_link(_relative: &Path, target: &Path, link: &Path) -> io::Result<()> {
    fs::hard_link(target, link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_snapshots_belong_to_a_repository() {
        let root = Path::new("/hub");
        let repository = |path: &str| repository_of(root, Path::new(path));
        assert_eq!(repository("/hub/models--a--b/snapshots/c0ffee/m.gguf"), Some("/hub/models--a--b".into()));
        for other in [
            "/hub/models--a--b/blobs/x",
            "/hub/../etc/passwd",
            "/hub/models--a--b/snapshots/../../../etc/passwd",
            "/elsewhere/models--a--b/snapshots/c/m.gguf",
            "/hub/m.gguf",
        ] {
            assert_eq!(repository(other), None, "{other}");
        }
    }

    #[test]
    fn commits_are_plain_names() {
        assert!(is_commit("c0ffee"));
        for bad in ["", "..", "a/b", "a b", &"a".repeat(65)] {
            assert!(!is_commit(bad), "{bad}");
        }
    }
}
