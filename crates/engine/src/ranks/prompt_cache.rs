//! What a group keeps on disk of its KV cache, so that conversations go on after a restart without being evaluated again.
//!
//! Each rank writes one file when the group ends in good order: a header, and what the blocks of its layers hold. Rank 0's
//! header has the texts as well. Nothing is restored unless the files of all ranks are of one run, of the same model and layout.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::ranks::blocks::Text;
use crate::ranks::member::Member;
use crate::ranks::protocol::{Job, PromptCache};

/// Changes whenever the files do.
const FORMAT: u32 = 1;
/// No header is longer: it has about eight bytes for each token of the cache.
const HEADER_BYTES_MAX: u64 = 1 << 30;

/// One rank's file.
pub(crate) struct SavedCache {
    file: PathBuf,
    run: u64,
    identity: String,
    kv_blocks: usize,
}

/// What stands before the keys and values.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    format: u32,
    /// What the blocks belong to. It must be the same to the letter.
    identity: String,
    /// Which run of a group has written it.
    run: u64,
    /// How many blocks there are.
    blocks: usize,
    /// What they hold, in the file of rank 0.
    texts: Vec<Text>,
}

/// What was restored.
pub(crate) struct Restored {
    pub(crate) run: u64,
    pub(crate) texts: Vec<Text>,
}

impl SavedCache {
    /// The file of rank `rank`, which has loaded the model at `model`. `None` if the job keeps none.
    pub(crate) fn of(job: &Job, rank: usize, model: &Path) -> Option<Self> {
        let PromptCache { folder, run } = job.prompt_cache.as_ref()?;
        let modified = fs::metadata(model).and_then(|metadata| metadata.modified()).ok();
        let modified = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0, |age| age.as_nanos());
        let Job { model_bytes, layout, kv_blocks, kv_type, .. } = job;
        let identity = format!(
            "{} of {model_bytes} bytes, last changed at {modified}; {layout:?}, rank {rank}; {kv_blocks} blocks of {kv_type:?}",
            model.display()
        );
        let file = Path::new(folder).join(format!("rank-{rank}.kv"));
        Some(Self { file, run: *run, identity, kv_blocks: *kv_blocks })
    }

    /// Reads the file into the rank's cache, if there is one that fits. What it holds counts only if all ranks have the same.
    pub(crate) fn restore(&self, member: &mut Member) -> Option<Restored> {
        match self.read(member) {
            Ok(restored) => restored,
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!("the KV cache in {} is left aside: {error}", self.file.display());
                None
            }
        }
    }

    fn read(&self, member: &mut Member) -> io::Result<Option<Restored>> {
        let mut file = BufReader::new(File::open(&self.file)?);
        let mut length = [0; 8];
        file.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        if length > HEADER_BYTES_MAX {
            return Err(io::Error::other("its header is too long"));
        }
        let mut header = Vec::new();
        file.by_ref().take(length).read_to_end(&mut header)?;
        let header: Header = serde_json::from_slice(&header)?;
        if (header.format, &header.identity) != (FORMAT, &self.identity) || header.blocks > self.kv_blocks {
            tracing::info!("the KV cache in {} is of another model or layout", self.file.display());
            return Ok(None);
        }
        member.read_kv_blocks(header.blocks, &mut file)?;
        Ok(Some(Restored { run: header.run, texts: header.texts }))
    }

    /// Writes the file, with `texts` on rank 0. What cannot be written is no failure of the group: the next one begins anew.
    pub(crate) fn save(&self, member: &Member, texts: Vec<Text>) {
        let partial = self.file.with_extension("partial");
        let written = self.write(&partial, member, texts).and_then(|()| fs::rename(&partial, &self.file));
        if let Err(error) = written {
            tracing::warn!("the KV cache cannot be kept in {}: {error}", self.file.display());
            // It may not even have been created.
            let _ = fs::remove_file(&partial);
        }
    }

    fn write(&self, partial: &Path, member: &Member, texts: Vec<Text>) -> io::Result<()> {
        if let Some(folder) = partial.parent() {
            fs::create_dir_all(folder)?;
        }
        let (identity, blocks) = (self.identity.clone(), member.kv_blocks_used());
        let header = serde_json::to_vec(&Header { format: FORMAT, identity, run: self.run, blocks, texts })?;
        let mut file = BufWriter::new(File::create(partial)?);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        member.write_kv_blocks(blocks, &mut file)?;
        file.into_inner()?.sync_all()
    }
}
