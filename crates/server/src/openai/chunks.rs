//! Streams of chunks, all of one shape, ended by `[DONE]` or by an error event.

use serde::Serialize;

use crate::error::ApiError;
use crate::plan::Plan;
use crate::run::Progress;
use crate::stream::{Piece, Writer};

/// One API's way to write progress as chunks.
pub(super) trait Chunks: Send + 'static {
    /// What the API sends in one event.
    type Chunk: Serialize;

    /// The chunk for what happened to generation `index` of `plan`, where it is worth one.
    fn chunk(&mut self, plan: &Plan, index: usize, progress: Progress) -> Option<Self::Chunk>;

    /// The chunk after the last generation, where the API has one.
    fn last(&mut self) -> Option<Self::Chunk>;
}

/// Writes chunks as the pieces of a stream.
pub(super) struct ChunkWriter<C>(pub(super) C);

impl<C: Chunks> Writer for ChunkWriter<C> {
    fn progress(&mut self, plan: &Plan, index: usize, progress: Progress) -> Vec<Piece> {
        self.0.chunk(plan, index, progress).iter().map(Piece::json).collect()
    }

    fn end(&mut self) -> Vec<Piece> {
        let last = self.0.last();
        let marker = Piece { name: None, data: "[DONE]".to_owned() };
        last.iter().map(Piece::json).chain([marker]).collect()
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Piece> {
        vec![Piece::json(&super::error_body(error))]
    }
}
