//! Grouped-query attention (Ainslie et al., 2023) with its KV cache.
//!
//! A rank holds whole query heads, in any proportion, and the KV heads that these need. A KV head whose group of query
//! heads is cut is held on both sides of the cut.

use std::ops::Range;

use kernels::{Batch, Forms, KvCache, Matrix, Product, RopeLayout, Rows, attend, multiply, rms_norm_in_place};

use super::run::{Part, Workplace};
use super::{Block, Columns, Output, SplitMatrix, select, select_bias};
use crate::arch::{Attention, Blueprint, Layer};
use crate::placement::Placement;
use crate::split::kv_heads_for;
use crate::{Gguf, ModelError, ShardOptions};

/// One layer's attention, as far as this rank holds it, without its last matrix.
struct Heads {
    attention: Attention,
    rope_layout: RopeLayout,
    /// This rank's query heads.
    heads: Range<usize>,
    /// The KV heads that they need.
    kv_heads: Range<usize>,
    /// For each of this rank's query heads the index of its KV head in the cache.
    kv_head_of: Vec<usize>,
    norm: Vec<f32>,
    query: Projection,
    key: Projection,
    value: Projection,
    query_norm: Option<Vec<f32>>,
    key_norm: Option<Vec<f32>>,
    cache: KvCache,
}

/// Rows of a matrix that only this rank needs.
struct Projection {
    weights: Matrix,
    bias: Option<Vec<f32>>,
}

impl Projection {
    fn load(file: &Gguf, name: &str, columns: usize, rows: usize, own: Range<usize>) -> Result<Self, ModelError> {
        let weights = select(file, &format!("{name}.weight"), columns, rows, own.clone())?;
        let bias = select_bias(file, &format!("{name}.bias"), rows, own)?;
        Ok(Self { weights, bias })
    }

    fn product<'a>(&'a self, tokens: usize, out: &'a mut [f32]) -> Product<'a> {
        let stride = self.weights.rows();
        Product { weights: &self.weights, bias: self.bias.as_deref(), tokens: 0..tokens, out, stride }
    }
}

/// Loads the attention of layer `index`.
pub(crate) fn attention(
    file: &Gguf,
    blueprint: &Blueprint,
    placement: &Placement,
    index: usize,
    options: &ShardOptions,
) -> Result<Block, ModelError> {
    let Layer { attention, post_norms, .. } = &blueprint.layers[index];
    let (hidden, head_dim) = (blueprint.hidden, attention.head_dim);
    let group = attention.heads / attention.kv_heads;
    let parts = placement.heads(attention);
    let heads = parts.own();
    let kv_heads = kv_heads_for(&heads, group);
    let name = |tensor: &str| format!("blk.{index}.{tensor}");
    let elements = |heads: &Range<usize>| heads.start * head_dim..heads.end * head_dim;
    let kv = |tensor: &str| {
        let rows = attention.kv_heads * head_dim;
        Projection::load(file, &name(tensor), hidden, rows, elements(&kv_heads))
    };
    let head_norm =
        |tensor: &str| attention.query_key_norm.then(|| file.vector_of(&name(tensor), head_dim)).transpose();
    let all_elements = attention.heads * head_dim;
    let output = SplitMatrix::load(file, &name("attn_output"), parts.scaled(head_dim), placement.rows(hidden))?;
    let post_norm = post_norms.then(|| file.vector_of(&name("post_attention_norm.weight"), hidden)).transpose()?;
    let columns = Heads {
        kv_head_of: heads.clone().map(|head| head / group - kv_heads.start).collect(),
        norm: file.vector_of(&name("attn_norm.weight"), hidden)?,
        query: Projection::load(file, &name("attn_q"), hidden, all_elements, elements(&heads))?,
        key: kv("attn_k")?,
        value: kv("attn_v")?,
        query_norm: head_norm("attn_q_norm.weight")?,
        key_norm: head_norm("attn_k_norm.weight")?,
        cache: KvCache::new(options.kv_type, options.kv_blocks, kv_heads.len(), head_dim),
        rope_layout: blueprint.ropes[attention.rope].layout,
        attention: attention.clone(),
        heads,
        kv_heads,
    };
    Ok(Block { columns: Box::new(columns), output: output.with_post_norm(post_norm) })
}

impl Columns for Heads {
    fn compute(&mut self, workplace: &mut Workplace<'_>, part: &mut Part<'_>, output: &dyn Output) {
        // Where there are more ranks than heads, or one's share is small, it has none.
        if !self.heads.is_empty() {
            self.attend(workplace, part);
        }
        let columns = output.own_columns().len();
        let attended = std::mem::take(&mut workplace.own.attended);
        output.take_columns(workplace, &Rows::Plain { x: &attended[..part.tokens * columns], columns }, part);
        workplace.own.attended = attended;
    }

    fn matrices(&self) -> Vec<&Matrix> {
        vec![&self.query.weights, &self.key.weights, &self.value.weights]
    }

    fn matrices_mut(&mut self) -> Vec<&mut Matrix> {
        vec![&mut self.query.weights, &mut self.key.weights, &mut self.value.weights]
    }

    fn kv_cache(&self) -> Option<&KvCache> {
        Some(&self.cache)
    }

    fn kv_cache_mut(&mut self) -> Option<&mut KvCache> {
        Some(&mut self.cache)
    }
}

impl Heads {
    /// Computes this rank's heads, of which there are some, into the workplace's `attended`.
    fn attend(&mut self, workplace: &mut Workplace<'_>, part: &Part<'_>) {
        let Workplace { pool, angles, tables, epsilon, activations, own } = workplace;
        let (pool, epsilon, head_dim) = (*pool, *epsilon, self.attention.head_dim);
        let angles = &angles[self.attention.rope];
        let normed = Rows::Normed { x: part.hidden, weight: &self.norm, epsilon };
        let weights = [&self.query.weights, &self.key.weights, &self.value.weights];
        activations.load(pool, &normed, Forms::for_weights(&weights));
        let queries = &mut own.queries[..part.tokens * self.heads.len() * head_dim];
        let keys = &mut own.keys[..part.tokens * self.kv_heads.len() * head_dim];
        let values = &mut own.values[..part.tokens * self.kv_heads.len() * head_dim];
        let products = [(&self.query, &mut *queries), (&self.key, &mut *keys), (&self.value, &mut *values)];
        multiply(pool, activations, products.map(|(projection, out)| projection.product(part.tokens, out)));
        if let (Some(query_norm), Some(key_norm)) = (&self.query_norm, &self.key_norm) {
            rms_norm_in_place(pool, queries, head_dim, query_norm, epsilon);
            rms_norm_in_place(pool, keys, head_dim, key_norm, epsilon);
        }
        angles.rotate(self.rope_layout, part.first, queries, self.heads.len(), head_dim);
        angles.rotate(self.rope_layout, part.first, keys, self.kv_heads.len(), head_dim);
        let kv_width = self.kv_heads.len() * head_dim;
        let mut first = 0;
        for stretch in part.stretches {
            let rows = first * kv_width..(first + stretch.tokens) * kv_width;
            self.cache.store(&tables[stretch.slot], stretch.first_position, &keys[rows.clone()], &values[rows]);
            first += stretch.tokens;
        }
        let shape = kernels::Attention {
            query_heads: self.heads.len(),
            head_dim,
            scale: self.attention.scale,
            window: self.attention.window,
            kv_head_of: &self.kv_head_of,
        };
        let attended = &mut own.attended[..queries.len()];
        let batch = Batch { cache: &self.cache, tables, stretches: part.stretches };
        attend(pool, &shape, batch, queries, attended, &mut own.attention);
    }
}
