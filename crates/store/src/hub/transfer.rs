//! The download of one file: resumed where it was interrupted, now or in an earlier run, until it is whole.

use ureq::Body;
use ureq::http::Response;

use super::api::{Client, Trouble};
use crate::incoming::{CopyError, Incoming};
use crate::{Progress, StoreError};

/// How often in a row a try may bring nothing new.
const TRIES: u32 = 5;

/// Appends to `incoming` what lies at `url` until it has `bytes`, or all that the other side has if those are not
/// known.
///
/// # Errors
/// The hub refuses, stays out of reach, or the disk fails. What arrived stays in `incoming`.
pub(super) fn download(
    client: &Client<'_>,
    url: &str,
    name: &str,
    bytes: Option<u64>,
    incoming: &mut Incoming<'_>,
    progress: &dyn Progress,
) -> Result<(), StoreError> {
    let mut retries = client.retries(name, TRIES, progress);
    let transfer = Transfer { client, url, name, bytes, progress };
    // Only bytes beyond the furthest point count as success, so that the tries end even if the other side always
    // begins anew.
    let mut furthest = incoming.written();
    loop {
        match transfer.attempt(incoming) {
            Ok(()) => return Ok(()),
            Err(Trouble::Final(error)) => return Err(error),
            Err(Trouble::Passing(detail)) => {
                if incoming.written() > furthest {
                    furthest = incoming.written();
                    retries.forget();
                }
                retries.wait(detail)?;
            }
        }
    }
}

struct Transfer<'a> {
    client: &'a Client<'a>,
    url: &'a str,
    name: &'a str,
    bytes: Option<u64>,
    progress: &'a dyn Progress,
}

impl Transfer<'_> {
    fn attempt(&self, incoming: &mut Incoming<'_>) -> Result<(), Trouble> {
        if self.bytes == Some(incoming.written()) {
            return Ok(());
        }
        if self.bytes.is_some_and(|bytes| incoming.written() > bytes) {
            self.restart(incoming)?;
        }
        let have = incoming.written();
        let mut response = self.client.get(self.url, have, self.name)?;
        let rest = match response.status().as_u16() {
            206 => match content_range(&response) {
                Some((first, total)) if first == have => total.map(|total| total.saturating_sub(have)),
                _ => {
                    self.restart(incoming)?;
                    return Err(Trouble::Passing("another part of the file arrived than was asked for".to_owned()));
                }
            },
            200 => {
                if have > 0 {
                    tracing::debug!("{}: no resuming there, beginning anew", self.name);
                    self.restart(incoming)?;
                }
                response.body().content_length()
            }
            // The part that is asked for does not exist: what is here is none of this file.
            416 => {
                self.restart(incoming)?;
                return Err(Trouble::Passing("the unfinished download does not fit the file".to_owned()));
            }
            status => return Err(self.client.refused(status, self.name)),
        };
        let rest = self.bytes.map(|bytes| bytes.saturating_sub(incoming.written())).or(rest);
        self.receive(&mut response, rest, incoming)
    }

    fn receive(
        &self,
        response: &mut Response<Body>,
        rest: Option<u64>,
        incoming: &mut Incoming<'_>,
    ) -> Result<(), Trouble> {
        if let Some(rest) = rest {
            incoming.reserve(rest).map_err(Trouble::Final)?;
        }
        let limit = rest.unwrap_or(u64::MAX);
        let copied = incoming.append(&mut response.body_mut().as_reader(), limit, self.progress, &mut |_| {});
        match copied {
            Ok(copied) if rest.is_none_or(|rest| copied == rest) => Ok(()),
            Ok(_) => Err(Trouble::Passing("the connection ended early".to_owned())),
            Err(CopyError::Read(error)) => Err(Trouble::Passing(error.to_string())),
            Err(CopyError::Fatal(error)) => Err(Trouble::Final(error)),
        }
    }

    fn restart(&self, incoming: &mut Incoming<'_>) -> Result<(), Trouble> {
        incoming.restart().map_err(Trouble::Final)?;
        self.progress.start(&format!("downloading {}", self.name), self.bytes);
        Ok(())
    }
}

/// The first byte, and the bytes of the whole if they are stated, of `Content-Range: bytes FIRST-LAST/WHOLE`.
fn content_range(response: &Response<Body>) -> Option<(u64, Option<u64>)> {
    let value = response.headers().get("Content-Range")?.to_str().ok()?;
    let (range, whole) = value.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, _) = range.split_once('-')?;
    Some((first.trim().parse().ok()?, whole.trim().parse().ok()))
}
