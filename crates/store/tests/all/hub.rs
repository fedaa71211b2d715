//! Models of the hub, which is a small server on loopback here.
#![cfg(unix)]

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use store::{HubFiles, LocalModel, Options, Source, StoreError, Token};

use crate::server::{Reply, Request, Server};
use crate::support::{Place, Recorder, model_bytes, sha256};

const COMMIT: &str = "c0ffee0123456789c0ffee0123456789c0ffee01";

/// What the pretended hub has, and how it misbehaves.
#[derive(Default)]
struct Repository {
    files: BTreeMap<String, Vec<u8>>,
    /// Say this digest instead of the true one.
    lie: Option<String>,
    /// Files are not called large: no digest is stated.
    small: bool,
    /// Answer requests for files with these first, in this order.
    replies: Mutex<Vec<Reply>>,
    /// Answer questions about the repository with these first.
    listings: Mutex<Vec<Reply>>,
    /// Cut each answer to a request for a file after so many bytes.
    cut: Option<usize>,
    /// Answer with all of a file whatever range is asked for.
    ignore_ranges: bool,
}

impl Repository {
    fn of(files: &[(&str, &[u8])]) -> Repository {
        let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect();
        Repository { files, ..Repository::default() }
    }

    fn serve(self) -> Server {
        let this = Arc::new(self);
        Server::start(move |request| this.answer(request))
    }

    fn answer(&self, request: &Request) -> Reply {
        if request.path == "/api/models/org/name/revision/main?blobs=true" {
            return pop(&self.listings).unwrap_or_else(|| self.listing());
        }
        if let Some(reply) = pop(&self.replies) {
            return reply;
        }
        let name = request.path.strip_prefix(&format!("/org/name/resolve/{COMMIT}/"));
        let Some(bytes) = name.and_then(|name| self.files.get(&name.replace("%20", " "))) else {
            return Reply::status(404);
        };
        let reply = if self.ignore_ranges { Reply::bytes(bytes.clone()) } else { Reply::range(request, bytes) };
        Reply { cut: self.cut, ..reply }
    }

    fn listing(&self) -> Reply {
        let sibling = |(name, bytes): (&String, &Vec<u8>)| {
            let digest = self.lie.clone().unwrap_or_else(|| sha256(bytes).to_string());
            let lfs = if self.small {
                "null".into()
            } else {
                format!(r#"{{"sha256": "{digest}", "size": {}}}"#, bytes.len())
            };
            let hash = "ab".repeat(20);
            format!(r#"{{"rfilename": {name:?}, "size": {}, "blobId": "{hash}", "lfs": {lfs}}}"#, bytes.len())
        };
        let siblings: Vec<String> = self.files.iter().map(sibling).collect();
        Reply::bytes(format!(r#"{{"id": "org/name", "sha": "{COMMIT}", "siblings": [{}]}}"#, siblings.join(",")))
    }
}

fn pop(replies: &Mutex<Vec<Reply>>) -> Option<Reply> {
    let mut replies = replies.lock().unwrap();
    if replies.is_empty() { None } else { Some(replies.remove(0)) }
}

fn place(server: &Server) -> Place {
    let mut place = Place::new();
    place.settings.hub.endpoint = server.url();
    place
}

fn pull(place: &Place, model: &str) -> Result<LocalModel, StoreError> {
    place.store().resolve(&model.parse().unwrap(), &Options::default())
}

fn error(place: &Place, model: &str) -> String {
    pull(place, model).unwrap_err().to_string()
}

/// The ranges that were asked for in requests for files.
fn ranges(server: &Server) -> Vec<Option<usize>> {
    let files = server.requests().into_iter().filter(|request| request.path.contains("/resolve/"));
    files.map(|request| request.range_start()).collect()
}

#[test]
fn a_file_lands_in_the_hub_s_own_cache() {
    let bytes = model_bytes(1, 300_000);
    let server = Repository::of(&[("README.md", b"hi"), ("sub/the model.gguf", &bytes)]).serve();
    let place = place(&server);
    let source: Source = "hf:org/name".parse().unwrap();
    let progress = Recorder::default();
    let model = place.store().resolve(&source, &Options { offline: false, progress: &progress }).unwrap();
    assert_eq!(std::fs::read(&model.path).unwrap(), bytes);
    assert_eq!((model.name.as_str(), model.bytes, model.digest), ("name", 300_000, Some(sha256(&bytes))));
    assert_eq!(progress.events(), ["start downloading sub/the model.gguf 300000", "finish 300000"]);
    assert_eq!(
        place.hub_files(),
        [
            format!("models--org--name/blobs/{}", sha256(&bytes)),
            "models--org--name/refs/main".into(),
            format!("models--org--name/snapshots/{COMMIT}/sub/the model.gguf"),
        ]
    );
    let link = std::fs::read_link(&model.path).unwrap();
    assert_eq!(link.to_str().unwrap(), format!("../../../blobs/{}", sha256(&bytes)));
    assert_eq!(place.files().len(), 1, "only the record: {:?}", place.files());

    // From now on nobody is asked.
    let requests = server.requests().len();
    drop(server);
    assert_eq!(requests, 2);
    assert_eq!(pull(&place, "hf:org/name").unwrap(), model);
    assert_eq!(place.store().list().unwrap()[0].source, "hf:org/name");
}

#[test]
fn the_file_is_chosen_as_for_packages_but_q4_k_m_is_preferred() {
    let (a, b, c) = (model_bytes(1, 10), model_bytes(2, 20), model_bytes(3, 30));
    let server = Repository::of(&[("m-Q2_K.gguf", &a), ("m-Q4_K_M.gguf", &b), ("mmproj-F16.gguf", &c)]).serve();
    let place = place(&server);
    assert_eq!(pull(&place, "hf:org/name").unwrap().bytes, 20);
    assert_eq!(pull(&place, "hf:org/name:m-Q2_K.gguf").unwrap().bytes, 10);
    assert_eq!(pull(&place, "hf:org/name:mmproj-F16.gguf").unwrap().bytes, 30);
    let missing = error(&place, "hf:org/name:m-Q9.gguf");
    assert!(missing.contains("no file m-Q9.gguf") && missing.contains("m-Q2_K.gguf"), "{missing}");
}

#[test]
fn without_an_obvious_file_the_choice_is_the_user_s() {
    let server = Repository::of(&[("m-Q2_K.gguf", b"a"), ("m-Q8_0.gguf", b"b")]).serve();
    let text = error(&place(&server), "hf:org/name");
    assert!(text.contains("hf:org/name:FILE") && text.contains("m-Q2_K.gguf\n  m-Q8_0.gguf"), "{text}");
    let server = Repository::of(&[("model.safetensors", b"a")]).serve();
    let text = error(&place(&server), "hf:org/name");
    assert!(text.contains("has no GGUF file"), "{text}");
}

#[test]
fn all_parts_of_a_split_model_come() {
    let (a, b) = (model_bytes(1, 1000), model_bytes(2, 2000));
    let server = Repository::of(&[("m-00001-of-00002.gguf", &a), ("m-00002-of-00002.gguf", &b)]).serve();
    let place = place(&server);
    let model = pull(&place, "hf:org/name").unwrap();
    assert!(model.path.ends_with("m-00001-of-00002.gguf"));
    assert_eq!((model.bytes, model.files.len(), model.digest), (3000, 2, None));
    assert_eq!(std::fs::read(&model.files[1].path).unwrap(), b);
    assert_eq!(model.files[1].path.parent(), model.path.parent());
}

#[test]
fn an_interrupted_transfer_goes_on_where_it_ended() {
    let bytes = model_bytes(1, 100_000);
    let repository = Repository { cut: Some(30_000), ..Repository::of(&[("m.gguf", &bytes)]) };
    let server = repository.serve();
    let place = place(&server);
    let model = pull(&place, "hf:org/name").unwrap();
    assert_eq!(std::fs::read(&model.path).unwrap(), bytes);
    assert_eq!(ranges(&server), [None, Some(30_000), Some(60_000), Some(90_000)]);
}

#[test]
fn a_later_run_goes_on_where_an_earlier_one_failed() {
    let bytes = model_bytes(1, 100_000);
    let mut replies = vec![Reply::bytes(bytes.clone()).cut(40_000)];
    replies.resize(20, Reply::status(503));
    let repository = Repository { replies: Mutex::new(replies), ..Repository::of(&[("m.gguf", &bytes)]) };
    let server = repository.serve();
    let mut place = place(&server);
    let failed = error(&place, "hf:org/name");
    assert!(failed.contains("503") && failed.contains("what has arrived is kept"), "{failed}");
    assert!(place.hub_files()[0].ends_with(".incomplete"), "{:?}", place.hub_files());
    assert!(place.files().is_empty());
    drop(server);

    let server = Repository::of(&[("m.gguf", &bytes)]).serve();
    place.settings.hub.endpoint = server.url();
    let progress = Recorder::default();
    let source = "hf:org/name".parse().unwrap();
    let model = place.store().resolve(&source, &Options { offline: false, progress: &progress }).unwrap();
    assert_eq!(std::fs::read(&model.path).unwrap(), bytes);
    assert_eq!(ranges(&server), [Some(40_000)]);
    assert_eq!(progress.events(), ["start downloading m.gguf 100000", "finish 100000"]);
}

#[test]
fn a_server_without_ranges_begins_anew() {
    let bytes = model_bytes(1, 50_000);
    let replies = Mutex::new(vec![Reply::bytes(bytes.clone()).cut(20_000)]);
    let repository = Repository { replies, ignore_ranges: true, ..Repository::of(&[("m.gguf", &bytes)]) };
    let server = repository.serve();
    let place = place(&server);
    let model = pull(&place, "hf:org/name").unwrap();
    assert_eq!(std::fs::read(&model.path).unwrap(), bytes);
    assert_eq!(ranges(&server), [None, Some(20_000)]);
}

#[test]
fn a_server_that_always_ends_early_is_given_up() {
    let bytes = model_bytes(1, 50_000);
    let repository = Repository { cut: Some(20_000), ignore_ranges: true, ..Repository::of(&[("m.gguf", &bytes)]) };
    let server = repository.serve();
    let place = place(&server);
    let text = error(&place, "hf:org/name");
    assert!(text.contains("cannot download m.gguf"), "{text}");
    assert!(ranges(&server).len() < 10);
}

#[test]
fn unfinished_files_that_do_not_fit_are_dropped() {
    let bytes = model_bytes(1, 50_000);
    for left in [&model_bytes(2, 60_000)[..], &bytes[..]] {
        let server = Repository::of(&[("m.gguf", &bytes)]).serve();
        let place = place(&server);
        let blobs = place.folder.path().join("hub/models--org--name/blobs");
        std::fs::create_dir_all(&blobs).unwrap();
        std::fs::write(blobs.join(format!("{}.incomplete", sha256(&bytes))), left).unwrap();
        assert_eq!(std::fs::read(pull(&place, "hf:org/name").unwrap().path).unwrap(), bytes);
    }
}

#[test]
fn the_wrong_digest_leaves_nothing() {
    let bytes = model_bytes(1, 5_000);
    let lie = sha256(b"something else").to_string();
    let server = Repository { lie: Some(lie.clone()), ..Repository::of(&[("m.gguf", &bytes)]) }.serve();
    let place = place(&server);
    let text = error(&place, "hf:org/name");
    assert!(text.contains(&lie) && text.contains(&sha256(&bytes).to_string()) && text.contains("m.gguf"), "{text}");
    assert_eq!(place.hub_files(), [""; 0]);
    assert_eq!(place.files(), [""; 0]);
}

#[test]
fn a_small_file_without_a_digest_is_verified_by_size() {
    let bytes = model_bytes(1, 5_000);
    let server = Repository { small: true, ..Repository::of(&[("m.gguf", &bytes)]) }.serve();
    let place = place(&server);
    let model = pull(&place, "hf:org/name").unwrap();
    assert_eq!(model.digest, Some(sha256(&bytes)));
    assert_eq!(place.hub_files()[0], format!("models--org--name/blobs/{}", "ab".repeat(20)));
}

#[test]
fn refusals_say_what_to_do() {
    let cases = [
        (401, "set HF_TOKEN"),
        (403, "its terms must be accepted at http://127.0.0.1"),
        (404, "the hub has no model org/name"),
        (418, "its status is 418"),
    ];
    for (status, message) in cases {
        let listings = Mutex::new(vec![Reply::status(status)]);
        let server = Repository { listings, ..Repository::of(&[("m.gguf", b"x")]) }.serve();
        let mut place = place(&server);
        place.settings.hub.token = Token::new("hf_secret");
        let text = error(&place, "hf:org/name");
        assert!(text.contains(message) && !text.contains("hf_secret"), "{status}: {text}");

        let replies = Mutex::new(vec![Reply::status(status)]);
        let server = Repository { replies, ..Repository::of(&[("m.gguf", b"x")]) }.serve();
        place.settings.hub.endpoint = server.url();
        let text = error(&place, "hf:org/name");
        let message = if status == 404 { "the hub has no file m.gguf in org/name" } else { message };
        assert!(text.contains(message), "{status}: {text}");
        assert_eq!(place.files(), [""; 0]);
    }
}

#[test]
fn passing_troubles_are_waited_for() {
    let listings = Mutex::new(vec![Reply::status(503), Reply::status(429)]);
    let replies = Mutex::new(vec![Reply::status(500), Reply::status(502)]);
    let server = Repository { listings, replies, ..Repository::of(&[("m.gguf", b"model")]) }.serve();
    let place = place(&server);
    let progress = Recorder::default();
    let options = Options { offline: false, progress: &progress };
    place.store().resolve(&"hf:org/name".parse().unwrap(), &options).unwrap();
    let waits = progress.events().iter().filter(|event| event.contains("trying again")).count();
    assert_eq!(waits, 4, "{:?}", progress.events());
}

#[test]
fn answers_that_make_no_sense_are_errors() {
    let mut answers = ["", "[]", "<html>", r#"{"sha": "../../x", "siblings": []}"#].map(Reply::bytes).to_vec();
    answers.push(Reply::status(302));
    answers.push(Reply::status(302).header("Location", "http://[broken"));
    answers.push(Reply::status(302).header("Location", "/api/models/org/name/revision/main?blobs=true"));
    for answer in answers {
        let server = Repository { listings: Mutex::new(vec![answer.clone(); 30]), ..Repository::default() }.serve();
        let text = error(&place(&server), "hf:org/name");
        // A redirect that is no address counts as a path of the same server, which has nothing there.
        let messages = ["cannot be used", "cannot download", "the hub has no model"];
        assert!(messages.iter().any(|message| text.contains(message)), "{answer:?}: {text}");
    }
}

#[test]
fn names_that_lead_out_of_the_repository_are_left_out() {
    let server = Repository::of(&[("../../../escaped.gguf", b"x"), ("/tmp/escaped.gguf", b"x")]).serve();
    let place = place(&server);
    let text = error(&place, "hf:org/name");
    assert!(text.contains("has no GGUF file"), "{text}");
    assert_eq!(place.hub_files(), [""; 0]);
}

#[test]
fn the_token_goes_to_the_hub_alone() {
    let bytes = model_bytes(1, 1000);
    let content = bytes.clone();
    let store = Server::start(move |request| Reply::range(request, &content));
    // The same machine by another name, as far as the client can tell.
    let location = format!("http://localhost:{}/blob", store.port());
    let replies = Mutex::new(vec![Reply::status(302).header("Location", &location)]);
    let server = Repository { replies, ..Repository::of(&[("m.gguf", &bytes)]) }.serve();
    let mut place = place(&server);
    place.settings.hub.token = Token::new("hf_secret");
    assert_eq!(std::fs::read(pull(&place, "hf:org/name").unwrap().path).unwrap(), bytes);
    let sent = |server: &Server| {
        server.requests().iter().filter(|request| request.headers.contains_key("authorization")).count()
    };
    assert_eq!((sent(&server), sent(&store), store.requests().len()), (2, 0, 1));
}

#[test]
fn offline_uses_what_any_client_downloaded() {
    let bytes = model_bytes(1, 1000);
    let server = Repository::of(&[("m.gguf", &bytes)]).serve();
    let mut place = place(&server);
    place.settings.hub.offline = true;
    let text = error(&place, "hf:org/name");
    assert!(text.contains("HF_HUB_OFFLINE") && text.contains("ropewalk pull hf:org/name"), "{text}");

    // As the Python client would leave it.
    let folder = place.folder.path().join("hub/models--org--name");
    let snapshot = folder.join("snapshots").join(COMMIT);
    for sub in [&folder.join("blobs"), &folder.join("refs"), &snapshot] {
        std::fs::create_dir_all(sub).unwrap();
    }
    let blob = folder.join("blobs").join(sha256(&bytes).to_string());
    std::fs::write(&blob, &bytes).unwrap();
    std::fs::write(folder.join("refs/main"), COMMIT).unwrap();
    std::os::unix::fs::symlink(format!("../../blobs/{}", sha256(&bytes)), snapshot.join("m.gguf")).unwrap();
    let model = pull(&place, "hf:org/name").unwrap();
    assert_eq!((model.path.clone(), model.digest), (snapshot.join("m.gguf"), Some(sha256(&bytes))));
    assert_eq!(pull(&place, "hf:org/name:m.gguf").unwrap().path, model.path);
    assert!(error(&place, "hf:org/name:n.gguf").contains("not in the cache"));
    assert!(server.requests().is_empty());

    // Damaged content is not adopted: online it is downloaded again.
    place.store().remove(&"hf:org/name".parse().unwrap(), HubFiles::Keep).unwrap();
    std::fs::write(&blob, vec![0; bytes.len()]).unwrap();
    assert!(error(&place, "hf:org/name").contains("not in the cache"));
    place.settings.hub.offline = false;
    assert_eq!(std::fs::read(pull(&place, "hf:org/name").unwrap().path).unwrap(), bytes);
}

#[test]
fn without_a_network_the_hub_s_cache_serves() {
    let bytes = model_bytes(1, 1000);
    let server = Repository::of(&[("m.gguf", &bytes)]).serve();
    let mut place = place(&server);
    let model = pull(&place, "hf:org/name").unwrap();
    place.store().remove(&model.source, HubFiles::Keep).unwrap();
    // Nothing listens on this port.
    place.settings.hub.endpoint = "http://127.0.0.1:1".into();
    assert_eq!(pull(&place, "hf:org/name").unwrap(), model);
    assert!(error(&place, "hf:org/other").contains("check the network"));
}

#[test]
fn known_content_is_not_downloaded_twice() {
    let bytes = model_bytes(1, 1000);
    let server = Repository::of(&[("m.gguf", &bytes)]).serve();
    let place = place(&server);
    pull(&place, "hf:org/name").unwrap();
    pull(&place, "hf:org/name:m.gguf").unwrap();
    assert_eq!(ranges(&server).len(), 1);
}

#[test]
fn removing_keeps_or_deletes_the_hub_s_files() {
    let bytes = model_bytes(1, 1000);
    let server = Repository::of(&[("m.gguf", &bytes)]).serve();
    let mut place = place(&server);
    let model = pull(&place, "hf:org/name").unwrap();
    assert_eq!(place.store().remove(&model.source, HubFiles::Keep).unwrap(), 0);
    assert_eq!((place.store().list().unwrap().len(), place.hub_files().len()), (0, 3));

    pull(&place, "hf:org/name").unwrap();
    // A record made with another cache says nothing about this one.
    let cache = place.settings.hub.cache.replace(place.folder.path().join("elsewhere"));
    assert_eq!(place.store().remove(&model.source, HubFiles::Delete).unwrap(), 0);
    assert!(model.path.exists());
    place.settings.hub.cache = cache;

    pull(&place, "hf:org/name").unwrap();
    assert_eq!(place.store().remove(&model.source, HubFiles::Delete).unwrap(), 1000);
    assert_eq!(place.hub_files(), ["models--org--name/refs/main"]);
}

#[test]
fn cancelling_keeps_what_arrived() {
    let bytes = model_bytes(1, 4_000_000);
    let server = Repository::of(&[("m.gguf", &bytes)]).serve();
    let place = place(&server);
    let progress = Recorder::default();
    progress.cancel_on_advance.store(true, Ordering::Relaxed);
    let options = Options { offline: false, progress: &progress };
    let error = place.store().resolve(&"hf:org/name".parse().unwrap(), &options).unwrap_err();
    assert!(matches!(error, StoreError::Cancelled), "{error}");
    assert!(place.hub_files()[0].ends_with(".incomplete"), "{:?}", place.hub_files());
    assert_eq!(std::fs::read(pull(&place, "hf:org/name").unwrap().path).unwrap(), bytes);
}

#[test]
fn a_malformed_endpoint_is_named() {
    let mut place = Place::new();
    for endpoint in ["huggingface.co", "ftp://x", "https://", ""] {
        place.settings.hub.endpoint = endpoint.into();
        let text = error(&place, "hf:org/name");
        assert!(text.contains("HF_ENDPOINT"), "{endpoint}: {text}");
    }
}
