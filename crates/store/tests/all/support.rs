//! What several tests need: wheels made on the spot, a pip that serves them, and a progress display that remembers.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use store::{HubSettings, PipCommand, Progress, Settings};
use zip::write::SimpleFileOptions;

/// Bytes that do not compress to nothing and differ by seed.
pub(crate) fn model_bytes(seed: u8, length: usize) -> Vec<u8> {
    let mut state = u32::from(seed) + 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(&mut next).take(length).collect()
}

pub(crate) fn sha256(bytes: &[u8]) -> store::Digest {
    store::Digest::new(Sha256::digest(bytes).into())
}

/// A wheel with these members and a true `RECORD`.
pub(crate) fn wheel(members: &[(&str, &[u8])]) -> Vec<u8> {
    let line = |(name, bytes): &(&str, &[u8])| {
        format!("{name},sha256={},{}\n", URL_SAFE_NO_PAD.encode(Sha256::digest(bytes)), bytes.len())
    };
    let record: String = members.iter().map(line).collect();
    archive(members, Some(&record))
}

/// An archive with these members and any `RECORD`.
pub(crate) fn archive(members: &[(&str, &[u8])], record: Option<&str>) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let record = record.map(|record| ("x-1.0.dist-info/RECORD", record.as_bytes()));
    for (name, bytes) in members.iter().copied().chain(record) {
        archive.start_file(name, SimpleFileOptions::default()).unwrap();
        archive.write_all(bytes).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

/// A folder with the store, the hub's cache, and a pip that serves the wheels put into it.
pub(crate) struct Place {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) settings: Settings,
}

/// Read by `/bin/sh` with pip's arguments: sets `$dest` and `$wanted`, and notes what was asked for.
const PRELUDE: &str = r#"
here=$(dirname "$0")
while [ $# -gt 0 ]; do
    case "$1" in
        --dest) dest=$2; shift ;;
        --only-binary) binary=$2; shift ;;
        --progress-bar) shift ;;
        --index-url|-i|--extra-index-url) exit 9 ;;
        -*) ;;
        *) wanted=$1 ;;
    esac
    shift
done
[ "$binary" = ":all:" ] || exit 8
echo "$wanted" >> "$here/asked"
"#;

/// Serves the wheel called as what is wanted, as pip does: to a temporary folder first.
pub(crate) const SERVE: &str = r#"
if [ ! -f "$here/$wanted.whl" ]; then
    echo "ERROR: No matching distribution found for $wanted" >&2
    exit 1
fi
echo "  Downloading $wanted-py3-none-any.whl (1.5 MB)"
cp "$here/$wanted.whl" "$TMPDIR/growing"
cp "$TMPDIR/growing" "$dest/package-1.0-py3-none-any.whl"
"#;

impl Place {
    pub(crate) fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let hub = HubSettings {
            cache: Some(folder.path().join("hub")),
            endpoint: "http://127.0.0.1:1".into(),
            token: None,
            offline: false,
            stall: Duration::from_secs(20),
            retry_pause: Duration::ZERO,
        };
        let settings = Settings { pip: Vec::new(), pip_stall: Duration::from_secs(60), hub };
        let mut place = Place { folder, settings };
        place.script(SERVE);
        place
    }

    /// Makes pip run this script.
    pub(crate) fn script(&mut self, body: &str) {
        let path = self.folder.path().join("fake-pip.sh");
        std::fs::write(&path, format!("{PRELUDE}{body}")).unwrap();
        self.settings.pip = vec![PipCommand::Program("/bin/sh".into(), vec![path.into()])];
    }

    /// Puts a wheel where pip finds it.
    pub(crate) fn serve(&self, wanted: &str, wheel: &[u8]) {
        std::fs::write(self.folder.path().join(format!("{wanted}.whl")), wheel).unwrap();
    }

    /// What pip was asked for so far.
    pub(crate) fn asked(&self) -> Vec<String> {
        let asked = std::fs::read_to_string(self.folder.path().join("asked")).unwrap_or_default();
        asked.lines().map(ToOwned::to_owned).collect()
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    pub(crate) fn store(&self) -> store::Store {
        store::Store::with_settings(self.root(), self.settings.clone()).unwrap()
    }

    /// All files of the store except locks, as paths relative to it.
    pub(crate) fn files(&self) -> Vec<String> {
        let mut files = Vec::new();
        collect(&self.root(), &self.root(), &mut files);
        files.retain(|file| !file.starts_with("locks/"));
        files.sort();
        files
    }

    /// All files of the hub's cache except locks.
    pub(crate) fn hub_files(&self) -> Vec<String> {
        let root = self.folder.path().join("hub");
        let mut files = Vec::new();
        collect(&root, &root, &mut files);
        files.retain(|file| !file.starts_with(".locks/"));
        files.sort();
        files
    }
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            collect(root, &entry.path(), files);
        } else {
            files.push(entry.path().strip_prefix(root).unwrap().to_str().unwrap().to_owned());
        }
    }
}

/// Remembers what it was told; cancels when told to.
#[derive(Default)]
pub(crate) struct Recorder {
    events: Mutex<Vec<String>>,
    advanced: Mutex<u64>,
    pub(crate) cancel: AtomicBool,
    /// Cancel once something has arrived.
    pub(crate) cancel_on_advance: AtomicBool,
}

impl Recorder {
    /// `start` and `finish` with what was told, `finish` with the bytes in between; and `waiting`.
    pub(crate) fn events(&self) -> Vec<String> {
        self.events.lock().unwrap().clone()
    }

    fn note(&self, event: String) {
        self.events.lock().unwrap().push(event);
    }
}

impl Progress for Recorder {
    fn start(&self, what: &str, total: Option<u64>) {
        *self.advanced.lock().unwrap() = 0;
        self.note(format!("start {what} {}", total.map_or("?".into(), |total| total.to_string())));
    }

    fn advance(&self, bytes: u64) {
        *self.advanced.lock().unwrap() += bytes;
        if self.cancel_on_advance.load(Ordering::Relaxed) {
            self.cancel.store(true, Ordering::Relaxed);
        }
    }

    fn finish(&self) {
        self.note(format!("finish {}", self.advanced.lock().unwrap()));
    }

    fn waiting(&self, why: &str) {
        self.note(format!("waiting {why}"));
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}
