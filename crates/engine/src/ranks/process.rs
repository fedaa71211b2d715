//! The life of a rank: load, wait for the others, work, end.

use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use fabric::{ControlReceiver, ControlSender, Fabric, Joined};
use model::Gguf;

use crate::ranks::leader::{Leader, send};
use crate::ranks::loading::Pace;
use crate::ranks::member::{Member, RankError};
use crate::ranks::prompt_cache::SavedCache;
use crate::ranks::protocol::{DraftFile, FromRank, Job, ToRank};
use crate::ranks::speculation::DraftModel;

/// The listening thread waits this long at a time; it is woken at once when the connection ends.
const LISTEN: Duration = Duration::from_secs(60);

/// Runs a rank that has joined its group, with the model at `path`, until the group ends.
///
/// # Errors
/// When the model cannot be loaded, or another rank or the front is lost. The front has been told, if it could be.
pub fn run_rank(joined: Joined, job: Job, path: &Path) -> Result<(), RankError> {
    let (control, receiver) = joined.control.split();
    let (orders_in, orders) = mpsc::channel();
    std::thread::scope(|scope| {
        // The sender goes with the thread: orders end when the front's connection does.
        scope.spawn(move || listen(receiver, orders_in));
        let mut control = Hangup(control);
        let result = work(joined.fabric, job, path, &mut control.0, &orders);
        if let Err(error) = &result {
            let failed = FromRank::Failed { message: error.to_string(), lost: error.lost_rank() };
            if let Err(unreachable) = send(&mut control.0, &failed) {
                tracing::debug!("the front could not be told: {unreachable}");
            }
        }
        result
    })
}

/// Ends the connection to the front when a rank ends, even by a panic. That in turn ends the listening thread.
struct Hangup(ControlSender);

impl Drop for Hangup {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Leaves a group that this rank has joined but cannot work for, and tells the front why.
pub fn decline(joined: Joined, why: &str) {
    let failed = FromRank::Failed { message: why.to_owned(), lost: None };
    let (mut control, _) = joined.control.split();
    if let Err(unreachable) = send(&mut control, &failed) {
        tracing::debug!("the front could not be told: {unreachable}");
    }
}

fn work(
    fabric: Fabric,
    job: Job,
    path: &Path,
    control: &mut ControlSender,
    orders: &Receiver<ToRank>,
) -> Result<(), RankError> {
    let started = Instant::now();
    let file = Gguf::open(path)?;
    check_same_model(&file, job.model_bytes, path)?;
    let mut pace = Pace::new(started);
    let mut progress = |done: usize, total: usize| {
        if pace.is_due(Instant::now()) {
            let loading = FromRank::Loading { done: done as u64, total: total as u64 };
            // A front that does not hear this will not hear that the rank is ready either.
            let _ = send(control, &loading);
        }
    };
    // Before the weights, for which there is so much less room then.
    let draft_model = if fabric.rank() == 0 { load_draft_model(&file, &job)? } else { None };
    let mut member = Member::load(fabric, &file, job, &mut progress)?;
    let load_ms = started.elapsed().as_secs_f64() * 1000.0;
    let saved = SavedCache::of(member.job(), member.rank(), path);
    let before = saved.as_ref().and_then(|saved| saved.restore(&mut member));
    let restored = before.as_ref().map(|before| before.run);
    send(control, &FromRank::Ready { load_ms, weight_bytes: member.weight_bytes(), restored })?;
    // The others may still load. The front's connection ends if it gives up on them.
    let Ok(ToRank::Start { restored }) = orders.recv() else { return Ok(()) };
    let (member, texts) = if member.rank() > 0 {
        member.follow()?;
        (member, Vec::new())
    } else {
        let mut leader = Leader::new(member, draft_model, path, control, orders);
        if let Some(before) = before.filter(|_| restored) {
            leader = leader.with_texts(before.texts);
        }
        leader.lead()?;
        leader.into_parts()
    };
    if let Some(saved) = saved {
        saved.save(&member, texts);
    }
    Ok(())
}

/// The small model that drafts, if the job names one.
fn load_draft_model(large: &Gguf, job: &Job) -> Result<Option<DraftModel>, RankError> {
    let Some(DraftFile { path, model_bytes, .. }) = job.draft_model.as_ref().filter(|_| job.draft_max > 0) else {
        return Ok(None);
    };
    let file = Gguf::open(Path::new(path))?;
    check_same_model(&file, *model_bytes, Path::new(path))?;
    DraftModel::load(&file, large, job).map(Some)
}

fn check_same_model(file: &Gguf, expected: u64, path: &Path) -> Result<(), RankError> {
    let found = model_bytes(file);
    if found == expected {
        return Ok(());
    }
    Err(RankError::OtherModel { path: path.display().to_string(), found, expected })
}

/// Bytes of all tensors of a model: the number that [`Job::model_bytes`] holds.
pub fn model_bytes(file: &Gguf) -> u64 {
    file.tensors().map(|tensor| tensor.byte_len as u64).sum()
}

/// Passes the front's messages on, until its connection ends.
fn listen(mut receiver: ControlReceiver, orders: Sender<ToRank>) {
    loop {
        let message = match receiver.recv(LISTEN) {
            Ok(Some(message)) => message,
            Ok(None) => continue,
            Err(error) => {
                tracing::debug!("the control channel ended: {error}");
                return;
            }
        };
        match serde_json::from_slice(&message) {
            Ok(order) => {
                if orders.send(order).is_err() {
                    return;
                }
            }
            Err(error) => tracing::warn!("the front sent something that makes no sense: {error}"),
        }
    }
}
