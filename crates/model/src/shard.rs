//! What one rank holds of a model, ready to run.

use std::io::{self, Read, Write};
use std::ops::Range;

use kernels::{
    Activations, Forms, KvCache, KvType, Matrix, Pool, Product, RopeAngles, Rows, Stretch, multiply, packed_len,
    rms_norm_in_place,
};

use crate::arch::Blueprint;
use crate::blocks::{self, Block, Scratch};
use crate::placement::{Parts, Placement};
use crate::{Gguf, ModelError};

/// Logits are computed for this many tokens at a time: more would need much memory (a vocabulary of floats each).
pub const LOGIT_ROWS: usize = 16;

/// A matrix `[rows, width]` of which each rank of a stage has computed some columns.
pub struct Slices<'a> {
    /// Its rows: tokens.
    pub rows: usize,
    /// Values in a row.
    pub width: usize,
    /// The columns of each rank of the stage.
    pub parts: &'a [Range<usize>],
    /// `[rows, width]`, with this rank's columns in their places.
    pub buffer: &'a mut [f32],
}

/// Why ranks could not exchange slices, in the words of whoever moves them.
pub type ExchangeError = Box<dyn std::error::Error + Send + Sync>;

/// How the ranks of a stage exchange slices. The engine implements it over its links.
pub trait Exchange {
    /// Completes the matrix with the columns of the other ranks.
    ///
    /// # Errors
    /// When a rank is lost or disagrees about what is exchanged.
    fn all_gather(&mut self, slices: Slices<'_>) -> Result<(), ExchangeError>;

    /// Whether what travels is on its way for so long that the ranks should compute something else meanwhile. All ranks of a
    /// stage must say the same.
    fn takes_its_time(&self) -> bool {
        false
    }

    /// As [`Exchange::all_gather`], and calls `compute` while the columns are on their way, which has nothing to do with the
    /// buffer. One that cannot do so calls it first, as here.
    ///
    /// # Errors
    /// As for [`Exchange::all_gather`]; then `compute` may not have been called.
    fn all_gather_while(&mut self, slices: Slices<'_>, compute: &mut dyn FnMut()) -> Result<(), ExchangeError> {
        compute();
        self.all_gather(slices)
    }
}

/// The exchange of a rank that is alone in its stage.
pub struct Alone;

impl Exchange for Alone {
    fn all_gather(&mut self, _: Slices<'_>) -> Result<(), ExchangeError> {
        Ok(())
    }
}

/// Sizes that are the caller's choice.
#[derive(Debug, Clone, Copy)]
pub struct ShardOptions {
    /// Threads that compute.
    pub threads: usize,
    /// Sequences that are under way at once.
    pub slots: usize,
    /// Positions that each of them may have.
    pub context: usize,
    /// Blocks of [`kernels::KvCache::BLOCK`] positions that the KV cache has for all of them together. One that is never
    /// used costs no memory.
    pub kv_blocks: usize,
    /// Most tokens in one step.
    pub step_tokens: usize,
    /// Type of the KV cache's elements.
    pub kv_type: KvType,
}

/// One rank's layers, and the embedding or the head where its stage is the first or the last.
pub struct Shard {
    pool: Pool,
    epsilon: f32,
    width: usize,
    embedding: Option<Embedding>,
    /// Two for each layer.
    blocks: Vec<Block>,
    head: Option<Head>,
    angles: Vec<RopeAngles>,
    /// For each slot the blocks of the KV cache that hold its positions, in order.
    tables: Vec<Vec<u32>>,
    scratch: Scratch,
    hidden: Vec<f32>,
}

struct Embedding {
    table: Matrix,
    scale: f32,
}

struct Head {
    norm: Vec<f32>,
    /// This rank's slice of the vocabulary.
    weights: Matrix,
    /// The hidden state of the tokens whose logits are wanted.
    picked: Vec<f32>,
    activations: Activations,
}

impl Shard {
    /// Prepares the part of the model in `file` that `placement` names. Weights stay in the file's map until
    /// [`Shard::pack`].
    ///
    /// # Errors
    /// When a tensor is missing or has another shape than the blueprint says, or threads cannot be started.
    pub fn load(
        file: &Gguf,
        blueprint: &Blueprint,
        placement: &Placement,
        options: ShardOptions,
    ) -> Result<Self, ModelError> {
        let mut blocks = Vec::new();
        for index in placement.layers.clone() {
            blocks.push(blocks::attention(file, blueprint, placement, index, &options)?);
            blocks.push(blocks::feed_forward(file, blueprint, placement, index)?);
        }
        let embedding = placement.first.then(|| Embedding::load(file, blueprint)).transpose()?;
        let head = placement.last.then(|| Head::load(file, blueprint, placement)).transpose()?;
        let angles = blueprint.ropes.iter().map(|rope| {
            let (frequencies, magnitude) = rope.frequencies();
            RopeAngles::new(frequencies, magnitude, options.step_tokens)
        });
        Ok(Self {
            pool: Pool::new(options.threads)?,
            epsilon: blueprint.epsilon,
            width: blueprint.hidden,
            embedding,
            blocks,
            head,
            angles: angles.collect(),
            tables: tables(&options),
            scratch: Scratch::new(blueprint, options),
            hidden: vec![0.0; options.step_tokens * blueprint.hidden],
        })
    }

    /// Moves the weights to memory of their own, in the order in which they are used, which makes everything faster.
    /// `progress` hears how many of [`Shard::packed_bytes`] are done. The embedding's rows stay in the file.
    ///
    /// # Errors
    /// When there is not enough memory, or the file cannot be read.
    pub fn pack(&mut self, progress: &mut dyn FnMut(usize)) -> Result<(), ModelError> {
        let mut matrices: Vec<&mut Matrix> = self.blocks.iter_mut().flat_map(Block::matrices_mut).collect();
        matrices.extend(self.head.iter_mut().map(|head| &mut head.weights));
        Ok(kernels::pack(&self.pool, &mut matrices, progress)?)
    }

    /// Compares the kernels that this machine uses with plain code, for each format of the weights. Takes a few milliseconds.
    ///
    /// # Errors
    /// When they do not agree, so that the model would talk nonsense.
    pub fn check_kernels(&self) -> Result<(), ModelError> {
        Ok(kernels::check_products(self.matrices())?)
    }

    /// Bytes of memory that [`Shard::pack`] takes.
    pub fn packed_bytes(&self) -> usize {
        self.matrices().map(packed_len).sum()
    }

    /// All weights that every token is multiplied with.
    fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        self.blocks.iter().flat_map(Block::matrices).chain(self.head.iter().map(|head| &head.weights))
    }

    /// Fills the hidden state with the embedded tokens. Only on the first stage; elsewhere it does nothing.
    pub fn embed(&mut self, tokens: &[u32]) {
        let Some(embedding) = &self.embedding else { return };
        for (&token, row) in tokens.iter().zip(self.hidden.chunks_exact_mut(self.width)) {
            embedding.table.row_into(token as usize, row);
            if embedding.scale != 1.0 {
                row.iter_mut().for_each(|value| *value *= embedding.scale);
            }
        }
    }

    /// The hidden state [tokens, width], to be sent to the next stage.
    pub fn hidden(&self, tokens: usize) -> &[f32] {
        &self.hidden[..tokens * self.width]
    }

    /// The hidden state [tokens, width], to be received from the stage before.
    pub fn hidden_mut(&mut self, tokens: usize) -> &mut [f32] {
        &mut self.hidden[..tokens * self.width]
    }

    /// The blocks of the KV cache that a slot has, in order of its positions.
    pub fn table(&self, slot: usize) -> &[u32] {
        &self.tables[slot]
    }

    /// Of the blocks of a slot keeps the first `kept`, and adds `more`.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn change_table(&mut self, slot: usize, kept: usize, more: impl IntoIterator<Item = u32>) {
        let table = &mut self.tables[slot];
        table.truncate(kept);
        table.extend(more);
    }

    /// Copies a block of the KV cache in all layers.
    ///
    /// # Panics
    /// When there is no such block.
    pub fn copy_kv_block(&mut self, from: u32, to: u32) {
        self.blocks.iter_mut().filter_map(Block::kv_cache_mut).for_each(|cache| cache.copy(from, to));
    }

    /// Writes what the first `blocks` blocks of the KV cache hold in all layers of this rank, in this machine's order of bytes.
    ///
    /// # Errors
    /// When `out` cannot take it.
    ///
    /// # Panics
    /// When there are fewer blocks.
    pub fn write_kv_blocks(&self, blocks: usize, out: &mut dyn Write) -> io::Result<()> {
        self.blocks.iter().filter_map(Block::kv_cache).try_for_each(|cache| cache.write_blocks(blocks, out))
    }

    /// Reads what [`Shard::write_kv_blocks`] has written of the same shard. Any bytes are keys and values.
    ///
    /// # Errors
    /// When `from` has not enough; then blocks may hold anything.
    ///
    /// # Panics
    /// When there are fewer blocks.
    pub fn read_kv_blocks(&mut self, blocks: usize, from: &mut dyn Read) -> io::Result<()> {
        self.blocks.iter_mut().filter_map(Block::kv_cache_mut).try_for_each(|cache| cache.read_blocks(blocks, from))
    }

    /// Runs this rank's layers over the hidden state of the tokens of all `stretches`, which stand one after the other.
    ///
    /// # Errors
    /// When the exchange with other ranks fails.
    ///
    /// # Panics
    /// When a slot, its positions or all tokens together are beyond what the options said.
    pub fn run_layers(&mut self, stretches: &[Stretch], exchange: &mut dyn Exchange) -> Result<(), ModelError> {
        let positions = |stretch: &Stretch| stretch.first_position..stretch.first_position + stretch.tokens;
        self.angles.iter_mut().for_each(|angles| angles.prepare(stretches.iter().flat_map(positions)));
        let tokens: usize = stretches.iter().map(|stretch| stretch.tokens).sum();
        let with = (&self.pool, &self.angles[..], &self.tables[..], self.epsilon);
        let hidden = &mut self.hidden[..tokens * self.width];
        blocks::run(&mut self.blocks, with, &mut self.scratch, stretches, hidden, exchange)
    }

    /// Computes this rank's slice of the logits for the tokens `rows` of the step, at most [`LOGIT_ROWS`]: element
    /// `i * stride + index` of `out` is the logit of the slice's `index`-th vocabulary entry for the token `rows[i]`. Only
    /// on the last stage; elsewhere it does nothing.
    pub fn logits(&mut self, rows: &[usize], out: &mut [f32], stride: usize) {
        let Some(head) = &mut self.head else { return };
        let picked = &mut head.picked[..rows.len() * self.width];
        for (row, to) in rows.iter().zip(picked.chunks_exact_mut(self.width)) {
            to.copy_from_slice(&self.hidden[row * self.width..(row + 1) * self.width]);
        }
        let normed = Rows::Normed { x: picked, weight: &head.norm, epsilon: self.epsilon };
        head.activations.load(&self.pool, &normed, Forms::for_weights(&[&head.weights]));
        let product = Product { weights: &head.weights, bias: None, tokens: 0..rows.len(), out, stride };
        multiply(&self.pool, &head.activations, [product]);
    }

    /// Values of a token's hidden state.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Writes the hidden states of the tokens `rows` of the step, as the final norm leaves them, to `out`,
    /// `[rows, width]`. Only on the last stage; elsewhere it does nothing.
    pub fn normed(&mut self, rows: &[usize], out: &mut [f32]) {
        let Some(head) = &self.head else { return };
        for (row, to) in rows.iter().zip(out.chunks_exact_mut(self.width)) {
            to.copy_from_slice(&self.hidden[row * self.width..(row + 1) * self.width]);
        }
        rms_norm_in_place(&self.pool, out, self.width, &head.norm, self.epsilon);
    }

    /// Bytes of weights that this rank reads per token.
    pub fn weight_bytes(&self) -> usize {
        let head = self.head.iter().map(|head| head.weights.byte_len());
        self.blocks.iter().map(Block::bytes_read).chain(head).sum()
    }
}

/// Tables with room for the whole context. Until it is said otherwise each slot has blocks of its own, as far as there are
/// enough.
fn tables(options: &ShardOptions) -> Vec<Vec<u32>> {
    let each = options.context.div_ceil(KvCache::BLOCK);
    let table = |slot: usize| {
        let mut table = Vec::with_capacity(each);
        table.extend(
            (slot * each..(slot + 1) * each).filter(|&block| block < options.kv_blocks).map(|block| block as u32),
        );
        table
    };
    (0..options.slots).map(table).collect()
}

impl Embedding {
    fn load(file: &Gguf, blueprint: &Blueprint) -> Result<Self, ModelError> {
        let table = file.matrix("token_embd.weight", blueprint.vocabulary, blueprint.hidden)?;
        Ok(Self { table, scale: blueprint.embedding_scale })
    }
}

impl Head {
    fn load(file: &Gguf, blueprint: &Blueprint, placement: &Placement) -> Result<Self, ModelError> {
        // Without a head of its own a model uses its embedding once more.
        let name = if file.find("output.weight").is_some() { "output.weight" } else { "token_embd.weight" };
        let parts: Parts = placement.rows(blueprint.vocabulary);
        Ok(Self {
            norm: file.vector_of("output_norm.weight", blueprint.hidden)?,
            weights: file.matrix(name, blueprint.vocabulary, blueprint.hidden)?.select_rows(parts.own()),
            picked: vec![0.0; LOGIT_ROWS * blueprint.hidden],
            activations: Activations::new(LOGIT_ROWS, blueprint.hidden),
        })
    }
}
