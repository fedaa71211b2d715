//! Several models, loaded when they are asked for.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use engine::{Engine, EngineError, Limits, Observer, Request};
use hyper::Method;
use serde_json::{Value, json};
use server::{Loaded, Loader, Models, Offer, Options, Room};

use crate::harness::{CONTEXT, Exchange, Server, model, with, within};
use crate::script::{AtOnce, MODEL, Run, say, tokens};

const CHAT: &str = "/v1/chat/completions";
const NAMES: [&str; 3] = ["first", "second", "third"];

/// A loader that does as it is told.
#[derive(Clone, Default)]
struct Shop {
    loads: Arc<Mutex<Vec<String>>>,
    /// What becomes of the next loads; those after them go well.
    next: Arc<Mutex<VecDeque<Next>>>,
    /// Models in memory.
    present: Arc<AtomicUsize>,
}

enum Next {
    Fails(&'static str),
    /// Half of it is loaded, and the rest when told.
    Waits(mpsc::Receiver<()>),
    /// Its engine fails with the first request.
    Breaks,
    Panics,
}

struct Item {
    engine: Engine,
    present: Arc<AtomicUsize>,
}

impl Loaded for Item {
    fn engine(&self) -> &Engine {
        &self.engine
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        self.present.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Loader for Shop {
    fn load(&self, id: &str, progress: &dyn Fn(u64, u64)) -> Result<Box<dyn Loaded>, String> {
        self.loads.lock().unwrap().push(id.to_owned());
        let next = self.next.lock().unwrap().pop_front();
        let mut breaks = false;
        match next {
            None => {}
            Some(Next::Fails(why)) => return Err(why.to_owned()),
            Some(Next::Waits(told)) => {
                progress(5, 10);
                told.recv_timeout(Duration::from_secs(20)).unwrap();
            }
            Some(Next::Breaks) => breaks = true,
            Some(Next::Panics) => panic!("the loader panics, as this test wants"),
        }
        Ok(Box::new(self.item(id, breaks)))
    }
}

impl Shop {
    /// A model whose answers are its name.
    fn item(&self, id: &str, breaks: bool) -> Item {
        let name = tokens(id);
        let backend = AtOnce(move |request: &Request, observer: &mut dyn Observer| -> Run {
            if breaks {
                return Err(EngineError::RankLost { rank: 0, cause: "this test wants it".to_owned() });
            }
            Ok(say(&name, request, observer))
        });
        self.present.fetch_add(1, Ordering::SeqCst);
        let engine = Engine::start(model(id), Limits { running: 2, waiting: 8 }, Box::new(backend));
        Item { engine, present: Arc::clone(&self.present) }
    }

    /// A server of three models, the first of which is loaded.
    async fn open(&self, room: usize, keep_alive: Option<Duration>) -> Server {
        self.open_with(room, keep_alive, Options::default()).await
    }

    async fn open_with(&self, room: usize, keep_alive: Option<Duration>, options: Options) -> Server {
        let offer = |id: &&str| Offer {
            id: (*id).to_owned(),
            created: 1_700_000_000,
            context: CONTEXT,
            details: MODEL.details.clone(),
            memory_bytes: 1,
        };
        let room = Room { models: room, bytes: 100 };
        let models = Models::on_demand(NAMES.iter().map(offer).collect(), self.clone(), room, keep_alive);
        let first = self.item(NAMES[0], false);
        let engine = first.engine.clone();
        models.put(Box::new(first));
        Server::of(models, engine, options, Arc::default()).await
    }

    fn loads(&self) -> Vec<String> {
        self.loads.lock().unwrap().clone()
    }

    fn present(&self) -> usize {
        self.present.load(Ordering::SeqCst)
    }
}

fn chat(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "Who are you?"}]})
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

/// Reads a stream until it has said `words`.
async fn read_until(stream: &mut Exchange, words: &str) {
    let mut read = String::new();
    while !read.contains(words) {
        read += &stream.next().await.unwrap_or_else(|| panic!("{words:?} is not in {read}"));
    }
}

/// What the list of models says of each: loaded, loading or unloaded.
async fn places(server: &Server) -> Vec<String> {
    let list = server.get("/v1/models").await.ok();
    let status = |model: &Value| model["status"]["value"].as_str().unwrap().to_owned();
    list["data"].as_array().unwrap().iter().map(status).collect()
}

/// Asks for the list until it is as expected.
async fn become_places(server: &Server, expected: [&str; 3]) {
    within(async {
        while places(server).await != expected {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn models_are_loaded_when_asked_for() {
    let shop = Shop::default();
    let server = shop.open(2, None).await;
    assert_eq!(places(&server).await, ["loaded", "unloaded", "unloaded"]);
    assert_eq!(text(&server.post(CHAT, &chat("first")).await.ok()), "first");
    assert_eq!(text(&server.post(CHAT, &chat("second")).await.ok()), "second");
    assert_eq!(shop.loads(), ["second"]);
    assert_eq!(places(&server).await, ["loaded", "loaded", "unloaded"]);
    // There is room for two: the one that was used last stays.
    assert_eq!(text(&server.post(CHAT, &chat("third")).await.ok()), "third");
    become_places(&server, ["unloaded", "loaded", "loaded"]).await;
    let running = server.get("/api/ps").await.ok();
    let names: Vec<_> = running["models"].as_array().unwrap().iter().map(|model| &model["name"]).collect();
    assert_eq!(names, ["second", "third"]);
    assert_eq!(server.get("/api/tags").await.ok()["models"].as_array().unwrap().len(), 3);
    let metrics = server.get("/metrics").await;
    let metrics = metrics.text();
    for name in NAMES {
        let count = format!("generation_tokens_total{{model_name=\"{name}\"}} {}", tokens(name).len() + 1);
        assert!(metrics.contains(&count), "{count} is not in {metrics}");
    }
    assert_eq!(metrics.matches("# TYPE ropewalk:generation_tokens ").count(), 1);
}

#[tokio::test]
async fn a_model_that_is_not_on_offer_is_not_found() {
    let shop = Shop::default();
    let server = shop.open(2, None).await;
    for (path, request) in [(CHAT, chat("fourth")), ("/api/show", json!({"model": "fourth"}))] {
        let answer = server.post(path, &request).await;
        assert_eq!(answer.status, 404, "{}", answer.text());
        assert!(answer.text().contains("third"), "{}", answer.text());
    }
    assert_eq!(server.get("/v1/models/fourth").await.status, 404);
    assert_eq!(shop.loads(), [""; 0]);
}

#[tokio::test]
async fn many_requests_share_one_load_and_nobody_starves() {
    let shop = Shop::default();
    let server = shop.open(1, None).await;
    let asked: Vec<_> = (0..24).map(|index| NAMES[index % 3]).collect();
    let requests: Vec<_> = asked.iter().map(|name| chat(name)).collect();
    let answers = requests.iter().map(|request| server.post(CHAT, request));
    let answers = within(futures_util::future::join_all(answers)).await;
    for (name, answer) in asked.iter().zip(answers) {
        assert_eq!(text(&answer.ok()), *name);
    }
    assert!(shop.loads().len() < 24, "{:?}", shop.loads());
    within(async {
        while shop.present() > 1 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_load_that_fails_is_told_and_can_be_tried_again() {
    let shop = Shop::default();
    shop.next.lock().unwrap().extend([Next::Fails("its file is cut off"), Next::Panics]);
    let server = shop.open(2, None).await;
    let answer = server.post(CHAT, &chat("second")).await;
    assert_eq!(answer.status, 503);
    assert!(answer.text().contains("its file is cut off"), "{}", answer.text());
    assert_eq!(server.post(CHAT, &chat("second")).await.status, 503);
    assert_eq!(text(&server.post(CHAT, &chat("second")).await.ok()), "second");
}

#[tokio::test]
async fn lists_say_how_far_a_model_is_loaded() {
    let shop = Shop::default();
    let (tell, told) = mpsc::channel();
    shop.next.lock().unwrap().push_back(Next::Waits(told));
    let server = shop.open(2, None).await;
    let request = chat("second");
    let waiting = server.post(CHAT, &request);
    tokio::pin!(waiting);
    let loading = async {
        become_places(&server, ["loaded", "loading", "unloaded"]).await;
        while server.get("/v1/models/second").await.ok()["status"]["progress"] != 0.5 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::select! {
        answer = &mut waiting => panic!("an answer before the model is there: {}", answer.text()),
        () = within(loading) => {}
    }
    tell.send(()).unwrap();
    assert_eq!(text(&within(waiting).await.ok()), "second");
}

#[tokio::test]
async fn a_model_goes_when_its_time_is_over() {
    let shop = Shop::default();
    let server = shop.open(2, None).await;
    let load = json!({"model": "second", "keep_alive": 0});
    let answer = server.post("/api/generate", &load).await.ok();
    assert_eq!(answer["done_reason"], "load");
    become_places(&server, ["loaded", "unloaded", "unloaded"]).await;
    let chat = json!({"model": "third:latest", "stream": false, "keep_alive": "1h",
        "messages": [{"role": "user", "content": "Who?"}]});
    let answer = server.post("/api/chat", &chat).await.ok();
    assert_eq!(answer["message"]["content"], "third");
    assert!(answer["load_duration"].as_u64().unwrap() > 0);
    assert_eq!(places(&server).await, ["loaded", "unloaded", "loaded"]);
    let wrong = json!({"model": "third", "keep_alive": "soon"});
    assert_eq!(server.post("/api/generate", &wrong).await.status, 400);
}

#[tokio::test]
async fn a_broken_model_is_loaded_anew() {
    let shop = Shop::default();
    shop.next.lock().unwrap().push_back(Next::Breaks);
    let server = shop.open(2, None).await;
    assert_eq!(server.post(CHAT, &chat("second")).await.status, 503);
    assert_eq!(server.get("/health").await.status, 503);
    // Which no new start of the server has to mend.
    assert_eq!(server.get("/live").await.ok()["status"], "ok");
    assert_eq!(text(&server.post(CHAT, &chat("second")).await.ok()), "second");
    assert_eq!(server.get("/health").await.status, 200);
    assert_eq!(shop.loads(), ["second", "second"]);
}

#[tokio::test]
async fn a_stream_that_waits_for_its_model_says_how_far_it_is() {
    let shop = Shop::default();
    let options = Options { keep_alive_interval: Duration::from_millis(20), ..Options::default() };
    let server = shop.open_with(2, None, options).await;
    let chat = json!({"model": "second", "stream": true, "messages": [{"role": "user", "content": "Who?"}]});
    for (path, request, word) in [
        (CHAT, &chat, ": the model is loading, 50% done\n\n"),
        ("/v1/messages", &with(chat.clone(), json!({"max_tokens": 9})), ": the model is loading, 50% done\n\n"),
        ("/api/chat", &chat, "\"content\":\"\"}"),
    ] {
        let (tell, told) = mpsc::channel();
        shop.next.lock().unwrap().push_back(Next::Waits(told));
        let mut stream = server.send(Method::POST, path, Some("application/json"), request.to_string().into()).await;
        read_until(&mut stream, word).await;
        tell.send(()).unwrap();
        let rest = within(stream.answer()).await;
        assert_eq!(rest.status, 200);
        assert!(rest.text().contains("sec"), "{}", rest.text());
        // What follows is to load it again.
        server.post("/api/generate", &json!({"model": "second", "keep_alive": 0})).await.ok();
        become_places(&server, ["loaded", "unloaded", "unloaded"]).await;
    }
}

#[tokio::test]
async fn a_stream_whose_model_cannot_be_loaded_ends_with_the_reason() {
    let shop = Shop::default();
    let options = Options { keep_alive_interval: Duration::from_millis(20), ..Options::default() };
    let server = shop.open_with(2, None, options).await;
    let (tell, told) = mpsc::channel();
    shop.next.lock().unwrap().extend([Next::Waits(told)]);
    let chat = json!({"model": "second", "stream": true, "messages": [{"role": "user", "content": "Who?"}]});
    let mut stream = server.send(Method::POST, CHAT, Some("application/json"), chat.to_string().into()).await;
    read_until(&mut stream, "50% done").await;
    // Nobody tells it to go on any more, which lets the loader panic.
    drop(tell);
    let rest = within(stream.answer()).await;
    assert!(rest.text().contains("\"code\":\"model_load_failed\""), "{}", rest.text());
}
