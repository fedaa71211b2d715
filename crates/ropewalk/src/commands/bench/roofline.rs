//! A model's figures as shares of what the machine could do at best.

use std::time::Duration;

use kernels::Pool;
use model::Blueprint;

use crate::measure::limits::{Bound, Limits, any_weights};
use crate::measure::work::{Sizes, Work};
use crate::models;
use crate::options::{LayoutOptions, ModelOptions};
use crate::session::Session;

/// Memory that is read to learn how fast that is: more than caches hold.
const MEMORY: usize = 192 << 20;
/// How long the limits are measured.
const BUDGET: Duration = Duration::from_secs(1);

/// A model's work and this machine's limits.
pub(super) struct Roofline {
    sizes: Sizes,
    chunk: usize,
    limits: Option<Limits>,
}

impl Roofline {
    pub(super) fn new(model: &ModelOptions, layout: &LayoutOptions) -> anyhow::Result<Self> {
        let (_, file) = models::open(model)?;
        let blueprint = Blueprint::from_gguf(&file)?;
        let sizes = Sizes::new(&file, &blueprint, layout.cache_type.kv_type());
        Ok(Self { sizes, chunk: layout.ubatch_size, limits: None })
    }

    /// Measures with as many threads as all ranks have, which do nothing meanwhile.
    pub(super) fn measure(&mut self, session: &Session) -> anyhow::Result<()> {
        let pool = Pool::new(session.layout.ranks() * session.threads)?;
        self.limits = Some(Limits::measure(&pool, &any_weights(MEMORY)?, BUDGET));
        Ok(())
    }

    /// Of `sequences` sequences at once, which together make `tok_s` tokens a second.
    pub(super) fn decode_share(&self, depth: usize, generated: usize, sequences: usize, tok_s: f64) -> f64 {
        // The depth grows while tokens are generated.
        let middle = depth as f64 + generated as f64 / 2.0;
        let work = self.sizes.decode(middle, sequences as f64);
        self.least(&work).map_or(0.0, |(seconds, _)| seconds * tok_s / sequences as f64)
    }

    pub(super) fn prefill_share(&self, depth: usize, prompt: usize, tok_s: f64) -> f64 {
        let work = self.sizes.prefill(depth as f64, prompt as f64, self.chunk as f64);
        self.least(&work).map_or(0.0, |(seconds, _)| seconds * tok_s / prompt as f64)
    }

    fn least(&self, work: &Work) -> Option<(f64, Bound)> {
        self.limits.map(|limits| limits.least_seconds(work))
    }

    pub(super) fn print(&self) -> anyhow::Result<()> {
        crate::commands::print_now("\nthe limits, with as many threads as the ranks have together:\n")?;
        super::kernels::print_limits(self.limits.as_slice())
    }
}
