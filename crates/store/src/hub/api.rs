//! Questions to the hub, and what its answers mean.

use std::net::IpAddr;
use std::time::Duration;

use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use ureq::config::RedirectAuthHeaders;
use ureq::http::Response;
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::cache::is_commit;
use crate::lock::pause;
use crate::paths::check_relative;
use crate::{Digest, HubSettings, HubSource, Progress, StoreError, Token};

/// Longest list of files that is read: room for a hundred thousand.
const LONGEST_LISTING: u64 = 64 << 20;

/// How often a question is asked before the hub counts as out of reach.
const LISTING_TRIES: u32 = 3;

/// A client for one repository.
pub(super) struct Client<'a> {
    agent: Agent,
    endpoint: &'a str,
    token: Option<&'a Token>,
    repository: String,
    retry_pause: Duration,
}

/// The newest commit of a repository, and its files.
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: Vec<RemoteFile>,
}

/// A file of a repository, with what the hub says about it.
pub(super) struct RemoteFile {
    /// Its path in the repository, which leads nowhere else.
    pub(super) name: String,
    pub(super) bytes: Option<u64>,
    /// Known for large files, which all models are.
    pub(super) digest: Option<Digest>,
    /// The content's identity in git.
    git_blob: Option<String>,
}

/// Why one try failed.
pub(super) enum Trouble {
    /// The next try may succeed.
    Passing(String),
    /// It will not.
    Final(StoreError),
}

/// Counts tries and waits between them, longer each time.
pub(super) struct Retries<'a> {
    what: &'a str,
    tries: u32,
    failed: u32,
    pause: Duration,
    progress: &'a dyn Progress,
}

impl<'a> Client<'a> {
    pub(super) fn new(settings: &'a HubSettings, source: &HubSource) -> Result<Client<'a>, StoreError> {
        let endpoint = settings.endpoint.trim_end_matches('/');
        let host = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
        let Some(host) = host.filter(|host| !host.is_empty()) else {
            return Err(StoreError::BadEndpoint { endpoint: settings.endpoint.clone() });
        };
        // The system's certificates, so that a company's own authority counts as it does for pip and the browser.
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let stall = Some(settings.stall);
        let mut config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .user_agent(concat!("ropewalk/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(stall)
            .timeout_connect(stall)
            .timeout_recv_response(stall)
            .timeout_per_read(stall)
            .timeout_per_write(stall);
        if is_loopback(host) {
            config = config.proxy(None);
        }
        Ok(Client {
            agent: config.build().new_agent(),
            endpoint,
            token: settings.token.as_ref(),
            repository: source.repository_id(),
            retry_pause: settings.retry_pause,
        })
    }

    /// The address of a file of a commit.
    pub(super) fn file_url(&self, commit: &str, file: &str) -> String {
        format!("{}/{}/resolve/{commit}/{}", self.endpoint, self.repository, percent_encoded(file))
    }

    /// The newest commit and its files. Files whose names lead elsewhere are left out.
    pub(super) fn listing(&self, progress: &dyn Progress) -> Result<Listing, StoreError> {
        let url = format!("{}/api/models/{}/revision/main?blobs=true", self.endpoint, self.repository);
        let mut retries = self.retries(&self.repository, LISTING_TRIES, progress);
        loop {
            match self.try_listing(&url) {
                Ok(listing) => return Ok(listing),
                Err(Trouble::Final(error)) => return Err(error),
                Err(Trouble::Passing(detail)) => retries.wait(detail)?,
            }
        }
    }

    fn try_listing(&self, url: &str) -> Result<Listing, Trouble> {
        let mut response = self.get(url, 0, &self.repository)?;
        if response.status() != 200 {
            return Err(self.refused(response.status().as_u16(), &self.repository));
        }
        let body = response.body_mut().with_config().limit(LONGEST_LISTING).read_to_vec();
        let body = body.map_err(|error| self.failed(error, &self.repository))?;
        let unusable = |problem: String| Trouble::Final(self.bad_answer(&self.repository, problem));
        let answer: Answer = serde_json::from_slice(&body).map_err(|error| unusable(error.to_string()))?;
        if !is_commit(&answer.sha) {
            return Err(unusable("it names no commit".to_owned()));
        }
        let plain = answer.siblings.into_iter().filter(|file| check_relative(&file.rfilename).is_ok());
        Ok(Listing { commit: answer.sha, files: plain.map(RemoteFile::from).collect() })
    }

    /// One request for what lies at `url` from byte `from` on; redirects are followed. `what` names it in errors.
    pub(super) fn get(&self, url: &str, from: u64, what: &str) -> Result<Response<Body>, Trouble> {
        let mut request = self.agent.get(url);
        if let Some(token) = self.token {
            request = request.header("Authorization", format!("Bearer {}", token.secret()));
        }
        if from > 0 {
            request = request.header("Range", format!("bytes={from}-"));
        }
        request.call().map_err(|error| self.failed(error, what))
    }

    pub(super) fn retries<'r>(&self, what: &'r str, tries: u32, progress: &'r dyn Progress) -> Retries<'r> {
        Retries { what, tries, failed: 0, pause: self.retry_pause, progress }
    }

    /// What a status other than success means.
    pub(super) fn refused(&self, status: u16, what: &str) -> Trouble {
        let repository = self.repository.clone();
        match status {
            401 => Trouble::Final(StoreError::HubUnauthorized { repository }),
            403 => {
                let page = format!("{}/{repository}", self.endpoint);
                Trouble::Final(StoreError::HubForbidden { repository, page })
            }
            404 if what == repository => Trouble::Final(StoreError::HubMissing { what: format!("model {repository}") }),
            404 => Trouble::Final(StoreError::HubMissing { what: format!("file {what} in {repository}") }),
            408 | 425 | 429 | 500..=599 => Trouble::Passing(format!("the hub answers with status {status}")),
            _ => Trouble::Final(self.bad_answer(what, format!("its status is {status}"))),
        }
    }

    pub(super) fn bad_answer(&self, what: &str, problem: String) -> StoreError {
        StoreError::HubAnswer { what: what.to_owned(), problem }
    }

    fn failed(&self, error: ureq::Error, what: &str) -> Trouble {
        use ureq::Error;
        match error {
            Error::BadUri(_)
            | Error::Http(_)
            | Error::InvalidProxyUrl
            | Error::TooManyRedirects
            | Error::RedirectFailed
            | Error::BodyExceedsLimit(_) => Trouble::Final(self.bad_answer(what, error.to_string())),
            Error::Rustls(error) => {
                // Machines without any certificates are the usual reason, and waiting gives them none.
                let detail = format!("{error} (is the system's package of CA certificates installed?)");
                Trouble::Final(StoreError::Network { what: what.to_owned(), detail })
            }
            error => Trouble::Passing(error.to_string()),
        }
    }
}

impl RemoteFile {
    /// The name of the file's content in the cache. The hub's clients take the SHA-256 of large files and git's own
    /// hash of small ones; where a mirror states neither, a name of our own stands for the file of that commit.
    pub(super) fn blob_name(&self, commit: &str) -> String {
        match (&self.digest, &self.git_blob) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(hash)) => hash.clone(),
            (None, None) => {
                Digest::new(Sha256::digest(format!("{commit}/{}", self.name)).into()).to_string()[..40].to_owned()
            }
        }
    }
}

impl Retries<'_> {
    /// Waits for the next try; with none left, the hub is out of reach.
    pub(super) fn wait(&mut self, detail: String) -> Result<(), StoreError> {
        self.failed += 1;
        if self.failed >= self.tries {
            return Err(StoreError::Network { what: self.what.to_owned(), detail });
        }
        self.progress.waiting(&format!("{}: {detail}; trying again", self.what));
        pause(self.pause * 2u32.pow(self.failed - 1), self.progress)
    }

    /// Something arrived: what failed before no longer counts.
    pub(super) fn forget(&mut self) {
        self.failed = 0;
    }
}

/// The hub's answer about a repository, as far as it matters here.
#[derive(Deserialize)]
struct Answer {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    #[serde(alias = "oid")]
    sha256: Option<String>,
    size: Option<u64>,
}

impl From<Sibling> for RemoteFile {
    fn from(file: Sibling) -> RemoteFile {
        let lfs = file.lfs.as_ref();
        let is_hash = |hash: &String| hash.len() == 40 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        RemoteFile {
            bytes: lfs.and_then(|lfs| lfs.size).or(file.size),
            digest: lfs.and_then(|lfs| lfs.sha256.as_ref()?.parse().ok()),
            git_blob: file.blob_id.filter(is_hash),
            name: file.rfilename,
        }
    }
}

/// Encodes a path for use in an address, byte by byte except for what never needs it.
fn percent_encoded(path: &str) -> String {
    let mut encoded = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => encoded.push(byte as char),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// Whether the host of an address is this machine, which no proxy can reach.
fn is_loopback(host: &str) -> bool {
    let host = host.split('/').next().unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!(percent_encoded("a b/ü#?.gguf"), "a%20b/%C3%BC%23%3F.gguf");
        assert!(is_loopback("127.0.0.1:80/x") && is_loopback("localhost") && is_loopback("[::1]:8080"));
        assert!(!is_loopback("huggingface.co") && !is_loopback("10.0.0.1"));
    }

    #[test]
    fn answers_are_read_leniently() {
        let text = r#"{"sha": "abc", "private": false, "siblings": [
            {"rfilename": "a.gguf", "size": 5, "blobId": "x", "lfs": {"sha256": "00", "size": 7, "pointerSize": 1}},
            {"rfilename": "b.gguf"}]}"#;
        let answer: Answer = serde_json::from_str(text).unwrap();
        let files: Vec<RemoteFile> = answer.siblings.into_iter().map(RemoteFile::from).collect();
        assert_eq!((files[0].bytes, files[0].digest, &files[0].git_blob), (Some(7), None, &None));
        assert_eq!(files[1].bytes, None);
        assert_eq!(files[1].blob_name("abc").len(), 40);
        assert_ne!(files[0].blob_name("abc"), files[1].blob_name("abc"));
    }
}
