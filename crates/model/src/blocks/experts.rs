//! Mixtures of experts. All ranks of a stage route alike, and each computes a range of the width of every expert.
//!
//! Tokens are taken expert by expert: the rows of all buffers between routing and the last sum are assignments ([`Routes`]), so
//! that each expert's lie next to each other and its matrices are read once.

use kernels::{Activations, Forms, Gate, Matrix, Product, Rows, multiply};

use super::gathered::Gathered;
use super::run::{Part, Workplace};
use super::{Block, Columns, Output};
use crate::arch::{Blueprint, Experts, FeedForward, Layer, Routing};
use crate::placement::{Parts, Placement};
use crate::{Gguf, ModelError, Slices};

/// One layer's experts, as far as this rank holds them, without their last matrices.
struct Inputs {
    routing: Routing,
    used: usize,
    activation: Gate,
    norm: Vec<f32>,
    /// `[experts, hidden]`.
    router: Matrix,
    gates: Vec<Matrix>,
    ups: Vec<Matrix>,
}

/// The last matrices of the experts: of each some rows, that all ranks' columns are multiplied with.
struct Outputs {
    downs: Vec<Matrix>,
    used: usize,
    /// The output rows, by rank.
    rows: Parts,
    columns: Gathered,
}

/// Loads the experts of layer `index`.
pub(crate) fn experts(
    file: &Gguf,
    blueprint: &Blueprint,
    placement: &Placement,
    index: usize,
    experts: &Experts,
) -> Result<Block, ModelError> {
    let Layer { feed_forward, .. } = &blueprint.layers[index];
    let FeedForward { width, gate: activation, .. } = *feed_forward;
    let Experts { count, used, ref routing } = *experts;
    let hidden = blueprint.hidden;
    let (columns, rows) = (placement.columns(width), placement.rows(hidden));
    let name = |tensor: &str| format!("blk.{index}.{tensor}");
    let own = |tensor: &str, shape: (usize, usize), own: std::ops::Range<usize>| {
        let matrices = file.matrices(&name(tensor), count, shape.0, shape.1)?;
        Ok::<_, ModelError>(matrices.into_iter().map(|matrix| matrix.select_rows(own.clone())).collect::<Vec<_>>())
    };
    let inputs = Inputs {
        routing: routing.clone(),
        used,
        activation,
        norm: file.vector_of(&name("ffn_norm.weight"), hidden)?,
        router: file.matrix(&name("ffn_gate_inp.weight"), count, hidden)?,
        gates: own("ffn_gate_exps", (width, hidden), columns.own())?,
        ups: own("ffn_up_exps", (width, hidden), columns.own())?,
    };
    let downs = own("ffn_down_exps", (hidden, width), rows.own())?;
    let columns = Gathered::new(columns, &downs.iter().collect::<Vec<_>>());
    Ok(Block { columns: Box::new(inputs), output: Box::new(Outputs { downs, used, rows, columns }) })
}

impl Columns for Inputs {
    fn compute(&mut self, workplace: &mut Workplace<'_>, part: &mut Part<'_>, output: &dyn Output) {
        let (pool, own, tokens) = (workplace.pool, &mut *workplace.own, part.tokens);
        let (hidden, experts, columns) = (self.norm.len(), self.router.rows(), output.own_columns().len());
        let normed = Rows::Normed { x: part.hidden, weight: &self.norm, epsilon: workplace.epsilon };
        let normed_rows = &mut own.routed.normed[..tokens * hidden];
        normed.write(pool, normed_rows, 0, hidden);

        let scores = &mut own.routed.scores[..tokens * experts];
        let plain = Rows::Plain { x: normed_rows, columns: hidden };
        workplace.activations.load(pool, &plain, Forms::for_weights(&[&self.router]));
        let product = Product { weights: &self.router, bias: None, tokens: 0..tokens, out: scores, stride: experts };
        multiply(pool, workplace.activations, [product]);
        part.routes.choose(&self.routing, scores, experts, self.used);

        let gathered = &mut own.routed.gathered[..part.routes.len() * hidden];
        for (token, row) in part.routes.tokens().zip(gathered.chunks_exact_mut(hidden)) {
            row.copy_from_slice(&normed_rows[token * hidden..(token + 1) * hidden]);
        }
        let activations = &mut own.routed.activations;
        let forms = Forms::for_weights(&[&self.gates[0], &self.ups[0]]);
        activations.load(pool, &Rows::Plain { x: gathered, columns: hidden }, forms);
        let mut gate = std::mem::take(&mut own.gate);
        let mut up = std::mem::take(&mut own.up);
        let (gates, ups) = (&mut gate[..part.routes.len() * columns], &mut up[..part.routes.len() * columns]);
        let of_gates = products(&self.gates, part, gates, columns);
        multiply(pool, activations, of_gates.chain(products(&self.ups, part, ups, columns)));
        output.take_columns(workplace, &Rows::Gated { gate: gates, up: ups, kind: self.activation, columns }, part);
        (workplace.own.gate, workplace.own.up) = (gate, up);
    }

    fn matrices(&self) -> Vec<&Matrix> {
        std::iter::once(&self.router).chain(&self.gates).chain(&self.ups).collect()
    }

    fn matrices_mut(&mut self) -> Vec<&mut Matrix> {
        std::iter::once(&mut self.router).chain(&mut self.gates).chain(&mut self.ups).collect()
    }

    fn bytes_read(&self) -> usize {
        self.router.byte_len() + self.used * (self.gates[0].byte_len() + self.ups[0].byte_len())
    }
}

/// The products of the experts that have tokens with what is assigned to them.
fn products<'a>(
    weights: &'a [Matrix],
    part: &'a Part<'_>,
    mut out: &'a mut [f32],
    stride: usize,
) -> impl Iterator<Item = Product<'a>> {
    part.routes.experts().map(move |(expert, tokens)| {
        let (own, rest) = std::mem::take(&mut out).split_at_mut(tokens.len() * stride);
        out = rest;
        Product { weights: &weights[expert], bias: None, tokens, out: own, stride }
    })
}

impl Output for Outputs {
    fn own_columns(&self) -> std::ops::Range<usize> {
        self.columns.own()
    }

    fn is_whole(&self) -> bool {
        self.columns.is_whole()
    }

    fn take_columns(&self, workplace: &mut Workplace<'_>, own: &Rows<'_>, part: &mut Part<'_>) {
        self.columns.take(workplace.pool, own, part.travelling, &mut workplace.own.routed.activations);
    }

    fn gather_columns<'a>(&'a self, part: &'a mut Part<'_>) -> Slices<'a> {
        self.columns.slices(part.routes.len(), part.travelling)
    }

    fn multiply(&self, workplace: &mut Workplace<'_>, part: &mut Part<'_>) {
        let (pool, rows) = (workplace.pool, self.rows.own());
        let routed = &mut workplace.own.routed;
        self.columns.load(pool, part.routes.len(), part.travelling, &mut routed.activations);
        let partial = &mut routed.partial[..part.routes.len() * rows.len()];
        multiply(pool, &routed.activations, products(&self.downs, part, partial, rows.len()));
        let (partial, routes) = (&*partial, &*part.routes);
        let total = self.rows.total();
        pool.for_each_piece(&mut part.result[..part.tokens * total], total, |token, row| {
            let sums = &mut row[rows.clone()];
            sums.fill(0.0);
            for (assignment, weight) in routes.of_token(token) {
                let values = &partial[assignment * rows.len()..(assignment + 1) * rows.len()];
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * value);
            }
        });
    }

    fn gather_rows<'a>(&'a self, part: &'a mut Part<'_>) -> Slices<'a> {
        self.rows.slices(part.tokens, part.result)
    }

    fn add(&self, workplace: &Workplace<'_>, part: &mut Part<'_>) {
        Rows::Plain { x: part.result, columns: self.rows.total() }.add_to(workplace.pool, part.hidden);
    }

    fn matrices(&self) -> Vec<&Matrix> {
        self.downs.iter().collect()
    }

    fn matrices_mut(&mut self) -> Vec<&mut Matrix> {
        self.downs.iter_mut().collect()
    }

    fn bytes_read(&self) -> usize {
        self.used * self.downs[0].byte_len()
    }
}

/// The buffers of mixtures, with a row for each assignment where nothing else is said.
pub(super) struct Routed {
    pub(super) activations: Activations,
    /// The normed hidden state, `[tokens, hidden]`.
    normed: Vec<f32>,
    /// `[tokens, experts]`.
    scores: Vec<f32>,
    gathered: Vec<f32>,
    partial: Vec<f32>,
}

impl Routed {
    /// Buffers for `tokens` tokens, empty if there are no mixtures.
    pub(super) fn new(blueprint: &Blueprint, tokens: usize) -> Self {
        let mixtures = blueprint.layers.iter().filter_map(|layer| {
            layer.feed_forward.experts.as_ref().map(|experts| (layer.feed_forward.width, experts.count, experts.used))
        });
        let (width, count, used) = mixtures.fold((0, 0, 0), |largest, (width, count, used)| {
            (width.max(largest.0), count.max(largest.1), used.max(largest.2))
        });
        let (tokens, hidden) = (if count > 0 { tokens } else { 0 }, blueprint.hidden);
        Self {
            activations: Activations::new(tokens * used, width.max(hidden)),
            normed: vec![0.0; tokens * hidden],
            scores: vec![0.0; tokens * count],
            gathered: vec![0.0; tokens * used * hidden],
            partial: vec![0.0; tokens * used * hidden],
        }
    }
}
