//! `GET /`, `GET /docs` and `GET /page/{file}`: the chat page and the API's description, whose files are part of the
//! program.
//!
//! The pages are clients like any other: they know nothing but the API. Their files lie in `page/`; they are served as
//! they are there, and nothing is fetched from elsewhere.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Path;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::app::App;
use crate::error::{ApiError, Code};

/// What a page may do: run its own modules and talk to its own server, nothing else. There are no inline scripts or
/// styles, no frames and no forms, and `trusted-types` makes the browser refuse to read text as HTML at all.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// A file of the pages.
struct File {
    name: &'static str,
    kind: &'static str,
    content: &'static [u8],
}

/// The files named, with the type that their names' endings stand for.
macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(File { name: $name, kind: kind($name), content: include_bytes!(concat!("../page/", $name)) }),*]
    };
}

static FILES: &[File] = &files![
    "index.html",
    "api.js",
    "app.js",
    "chat.js",
    "clipboard.js",
    "composer.js",
    "docs.css",
    "docs.html",
    "docs.js",
    "elements.js",
    "generation.js",
    "icon.svg",
    "layout.css",
    "markdown/blocks.js",
    "markdown/dom.js",
    "markdown/growing.js",
    "markdown/inline.js",
    "message.js",
    "messages.css",
    "reasoning.js",
    "scrolling.js",
    "settings.js",
    "sidebar.js",
    "sse.js",
    "store.js",
    "theme.css",
    "theme.js",
];

/// The routes of the pages.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new().route("/", get(index)).route("/docs", get(docs)).route("/page/{*file}", get(file))
}

async fn index(headers: HeaderMap, uri: Uri) -> Response {
    respond("index.html", &headers, &uri)
}

async fn docs(headers: HeaderMap, uri: Uri) -> Response {
    respond("docs.html", &headers, &uri)
}

async fn file(Path(name): Path<String>, headers: HeaderMap, uri: Uri) -> Response {
    respond(&name, &headers, &uri)
}

/// The file called `name`, or only the word that it has not changed since the client got it.
fn respond(name: &str, headers: &HeaderMap, uri: &Uri) -> Response {
    let Some(file) = FILES.iter().find(|file| file.name == name) else {
        return ApiError::new(Code::UnknownUrl, format!("there is nothing at {}", uri.path())).into_response();
    };
    let tag = format!("\"{:016x}\"", fingerprint(file.content));
    let known = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let (status, body) = if known.flat_map(|tags| tags.split(',')).any(|known| matches(known, &tag)) {
        (StatusCode::NOT_MODIFIED, Body::empty())
    } else {
        (StatusCode::OK, Body::from(Bytes::from_static(file.content)))
    };
    let fixed = [
        (CONTENT_TYPE, file.kind),
        // All files must be of the same version, so browsers ask each time; the tag spares them the content.
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    let mut response = (status, fixed, body).into_response();
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

/// Whether a tag that a client knows is `tag`. The comparison is the weak one, as RFC 9110 (13.1.2) asks here.
fn matches(known: &str, tag: &str) -> bool {
    let known = known.trim();
    known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag
}

/// FNV-1a. It only has to tell versions of a file apart.
fn fingerprint(content: &[u8]) -> u64 {
    content.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The media type of a file of this name.
const fn kind(name: &str) -> &'static str {
    match name.as_bytes() {
        [.., b'.', b'j', b's'] => "text/javascript; charset=utf-8",
        [.., b'.', b'c', b's', b's'] => "text/css; charset=utf-8",
        [.., b'.', b's', b'v', b'g'] => "image/svg+xml",
        _ => "text/html; charset=utf-8",
    }
}
