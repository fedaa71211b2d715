//! The pages: their routes, their headers, and what their files must not contain. What they do is tested by
//! `scripts/check-page` in a browser.

use std::path::{Path, PathBuf};

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::harness::{Answer, Server, within};
use crate::script::says;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("page")
}

/// The files of the page with their content, by their path from its folder. Tests are no part of it.
fn files() -> Vec<(String, String)> {
    let mut folders = vec![folder()];
    let mut files = Vec::new();
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(folder()).unwrap().to_str().unwrap().to_owned();
            match path.is_dir() {
                true if name == "tests" => {}
                true => folders.push(path),
                false if name == "package.json" => {}
                false => files.push((name, std::fs::read_to_string(path).unwrap())),
            }
        }
    }
    assert!(files.len() > 15, "the page is not where it was");
    files
}

async fn server() -> Server {
    Server::start(says("")).await
}

#[tokio::test]
async fn the_page_and_all_its_files_are_served() {
    let server = server().await;
    let mut pages = vec![("/".to_owned(), "index.html".to_owned()), ("/docs".to_owned(), "docs.html".to_owned())];
    pages.extend(files().into_iter().map(|(name, _)| (format!("/page/{name}"), name)));
    for (path, name) in pages {
        let answer = server.get(&path).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}");
        assert_eq!(answer.text(), std::fs::read_to_string(folder().join(&name)).unwrap(), "{path}");
        let kind = match name.rsplit_once('.').unwrap().1 {
            "js" => "text/javascript; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "svg" => "image/svg+xml",
            _ => "text/html; charset=utf-8",
        };
        assert_eq!(answer.headers["content-type"], kind, "{path}");
    }
}

#[tokio::test]
async fn nothing_else_is_served() {
    let server = server().await;
    for path in ["/page/", "/page/nothing.js", "/page/package.json", "/page/tests/sse.test.js", "/page/../Cargo.toml"] {
        let answer = server.get(path).await;
        assert_eq!((answer.error().0, answer.error().3.as_str()), (404, "unknown_url"), "{path}");
    }
    let (status, _, _, code) = server.post("/", &serde_json::json!({})).await.error();
    assert_eq!((status, code.as_str()), (405, "method_not_allowed"));
}

#[tokio::test]
async fn the_browser_is_told_to_allow_nothing_that_the_page_does_not_need() {
    let server = server().await;
    for path in ["/", "/docs", "/page/app.js"] {
        let answer = server.get(path).await;
        let policy = answer.headers["content-security-policy"].to_str().unwrap();
        for part in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for"] {
            assert!(policy.contains(part), "{part} is not in {policy}");
        }
        for part in ["unsafe", "http:", "https:", "data:", "*"] {
            assert!(!policy.contains(part), "{part} is in {policy}");
        }
        assert_eq!(answer.headers["x-content-type-options"], "nosniff");
        assert_eq!(answer.headers["referrer-policy"], "no-referrer");
    }
}

/// Asks for `path` with the tags that a cache knows.
async fn conditional(server: &Server, method: Method, path: &str, tags: &str) -> Answer {
    let stream = within(TcpStream::connect(server.address)).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(async { drop(connection.await) });
    let request = hyper::Request::builder().method(method).uri(path).header("host", "localhost");
    let request = request.header("if-none-match", tags).body(Full::new(Bytes::new())).unwrap();
    let (head, body) = within(sender.send_request(request)).await.unwrap().into_parts();
    let body = within(body.collect()).await.unwrap().to_bytes();
    connection.abort();
    Answer { status: head.status, headers: head.headers, body }
}

#[tokio::test]
async fn caches_ask_each_time_and_get_only_what_has_changed() {
    let server = server().await;
    let first = server.get("/page/app.js").await;
    let tag = first.headers["etag"].to_str().unwrap().to_owned();
    assert_eq!(first.headers["cache-control"], "no-cache");
    assert_ne!(server.get("/page/api.js").await.headers["etag"], tag.as_str());
    for (tags, status) in [
        (tag.clone(), 304),
        (format!("W/{tag}"), 304),
        (format!("\"other\", {tag}"), 304),
        ("*".to_owned(), 304),
        ("\"other\"".to_owned(), 200),
        ("nonsense".to_owned(), 200),
    ] {
        let answer = conditional(&server, Method::GET, "/page/app.js", &tags).await;
        assert_eq!(answer.status.as_u16(), status, "{tags}");
        assert_eq!(answer.headers["etag"], tag.as_str());
        assert_eq!(answer.headers["cache-control"], "no-cache");
        assert_eq!(answer.text().is_empty(), status == 304);
    }
    let head = conditional(&server, Method::HEAD, "/", "\"other\"").await;
    assert_eq!((head.status, head.text()), (StatusCode::OK, ""));
}

#[test]
fn the_files_read_no_text_as_html_and_fetch_nothing_from_elsewhere() {
    // Words that would let text become HTML or code; the policy forbids most of them as well.
    let words =
        ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser"];
    for (name, text) in files() {
        for word in words {
            assert!(!text.contains(word), "{name} contains {word}");
        }
        // Only what is loaded counts; links in text that models write are the reader's to follow.
        for place in
            ["src=\"http", "href=\"http", "src=\"//", "href=\"//", "url(", "@import", "import(\"http", "from \"http"]
        {
            assert!(!text.contains(place), "{name} contains {place}");
        }
        assert!(
            !text.contains("<style") && !text.contains(" style=") && !text.contains(" onclick"),
            "{name} has inline code"
        );
    }
}

#[test]
fn the_files_are_short_and_tidy() {
    for (name, text) in files() {
        assert!(text.lines().count() <= 400, "{name} has {} lines", text.lines().count());
        assert!(text.ends_with('\n'), "{name} does not end in a line break");
        for (number, line) in text.lines().enumerate() {
            assert!(line.chars().count() <= 200 || name.ends_with(".svg"), "{name}:{} is too long", number + 1);
            assert!(!line.ends_with(' ') && !line.contains('\t'), "{name}:{} has stray white space", number + 1);
        }
    }
}
