//! Grouped-query attention (Ainslie et al., 2023) with its KV cache.
//!
//! A rank holds whole query heads, in any proportion, and the KV heads that these need. A KV head whose group of query
//! heads is cut is held on both sides of the cut.

use std::ops::Range;

use kernels::{Forms, KvCache, Matrix, Product, RopeLayout, Rows, attend, multiply, rms_norm_in_place};

use super::split_matrix::{Gathering, SplitMatrix};
use super::{Step, select, select_bias};
use crate::arch::{Attention, Blueprint, Layer};
use crate::placement::Placement;
use crate::split::kv_heads_for;
use crate::{Gguf, ModelError, ShardOptions};

/// One layer's attention, as far as this rank holds it.
pub(crate) struct AttentionBlock {
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
    output: SplitMatrix,
    /// One for each slot.
    caches: Vec<KvCache>,
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

    fn product<'a>(&'a self, out: &'a mut [f32]) -> Product<'a> {
        let stride = self.weights.rows();
        Product { weights: &self.weights, bias: self.bias.as_deref(), out, stride }
    }
}

impl AttentionBlock {
    pub(crate) fn load(
        file: &Gguf,
        blueprint: &Blueprint,
        placement: &Placement,
        index: usize,
        options: &ShardOptions,
    ) -> Result<Self, ModelError> {
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
        let cache = || KvCache::new(options.kv_type, options.context, kv_heads.len(), head_dim);
        Ok(Self {
            kv_head_of: heads.clone().map(|head| head / group - kv_heads.start).collect(),
            norm: file.vector_of(&name("attn_norm.weight"), hidden)?,
            query: Projection::load(file, &name("attn_q"), hidden, all_elements, elements(&heads))?,
            key: kv("attn_k")?,
            value: kv("attn_v")?,
            query_norm: head_norm("attn_q_norm.weight")?,
            key_norm: head_norm("attn_k_norm.weight")?,
            output: output.with_post_norm(post_norm),
            caches: (0..options.slots).map(|_| cache()).collect(),
            rope_layout: blueprint.ropes[attention.rope].layout,
            attention: attention.clone(),
            heads,
            kv_heads,
        })
    }

    /// The block's weights, in the order in which they are used.
    pub(crate) fn matrices(&self) -> [&Matrix; 4] {
        [&self.query.weights, &self.key.weights, &self.value.weights, self.output.weights()]
    }

    /// The same, to be moved.
    pub(crate) fn matrices_mut(&mut self) -> [&mut Matrix; 4] {
        [&mut self.query.weights, &mut self.key.weights, &mut self.value.weights, self.output.weights_mut()]
    }

    /// Adds attention over the hidden state [tokens, hidden] to it.
    pub(crate) fn forward(&mut self, step: &mut Step<'_>, hidden: &mut [f32]) -> Result<(), ModelError> {
        if !self.heads.is_empty() {
            self.attend_own_heads(step, hidden);
        }
        // Where there are more ranks than heads, or one's share is small, it has none, but computes its rows all the same.
        let columns = self.output.own_columns().len();
        let (gathering, scratch) = step.gathering();
        let own = Rows::Plain { x: &scratch.attended[..gathering.tokens * columns], columns };
        self.output.add_product(gathering, &own, hidden)
    }

    /// Computes this rank's heads, of which there are some, into the scratch's `attended`.
    fn attend_own_heads(&mut self, step: &mut Step<'_>, hidden: &[f32]) {
        let (angles, stretches) = (&step.angles[self.attention.rope], step.stretches);
        let (Gathering { pool, tokens, epsilon, buffers, .. }, scratch) = step.gathering();
        let head_dim = self.attention.head_dim;
        let normed = Rows::Normed { x: hidden, weight: &self.norm, epsilon };
        let weights = [&self.query.weights, &self.key.weights, &self.value.weights];
        buffers.activations.load(pool, &normed, Forms::for_weights(&weights));
        let queries = &mut scratch.queries[..tokens * self.heads.len() * head_dim];
        let keys = &mut scratch.keys[..tokens * self.kv_heads.len() * head_dim];
        let values = &mut scratch.values[..tokens * self.kv_heads.len() * head_dim];
        let mut products = [self.query.product(queries), self.key.product(keys), self.value.product(values)];
        multiply(pool, &buffers.activations, &mut products);
        if let (Some(query_norm), Some(key_norm)) = (&self.query_norm, &self.key_norm) {
            rms_norm_in_place(pool, queries, head_dim, query_norm, epsilon);
            rms_norm_in_place(pool, keys, head_dim, key_norm, epsilon);
        }
        angles.rotate(self.rope_layout, queries, self.heads.len(), head_dim);
        angles.rotate(self.rope_layout, keys, self.kv_heads.len(), head_dim);
        let shape = kernels::Attention {
            query_heads: self.heads.len(),
            head_dim,
            scale: self.attention.scale,
            window: self.attention.window,
            kv_head_of: &self.kv_head_of,
        };
        let attended = &mut scratch.attended[..queries.len()];
        let kv_width = self.kv_heads.len() * head_dim;
        let mut first = 0;
        for stretch in stretches {
            let rows = first * kv_width..(first + stretch.tokens) * kv_width;
            self.caches[stretch.slot].store(stretch.first_position, &keys[rows.clone()], &values[rows]);
            first += stretch.tokens;
        }
        attend(pool, &shape, &self.caches, stretches, queries, attended, &mut scratch.attention);
    }
}
