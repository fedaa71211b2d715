//! `ropewalk bench kernels`: what each kernel takes, next to what this machine could do at best.

use std::time::Duration;

use anyhow::bail;
use bytes::Bytes;
use clap::Args;
use kernels::{DType, KvType, Pool};
use serde::Serialize;

use crate::commands::{print_json, print_now};
use crate::measure::kernels::{Heads, Kernel, Size, attention, empty_job, product, small_ones};
use crate::measure::limits::{Limits, any_weights};
use crate::measure::work::Work;
use crate::table;

/// Weights of all products with one format and size together, and keys and values likewise: more than caches hold.
const ROTATED: usize = 192 << 20;
/// How long the limits are measured, before the kernels and once more after them.
const LIMITS: Duration = Duration::from_millis(500);
/// The formats of usual checkpoints.
const FORMATS: &[DType] = &[
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q8_0,
    DType::Q4K,
    DType::Q5K,
    DType::Q6K,
    DType::Mxfp4,
    DType::F16,
    DType::BF16,
];
/// The types of KV caches that are in use.
const CACHES: &[KvType] = &[KvType::F16, KvType::Q8_0];
/// Heads of SmolLM2 135M, Qwen2.5 0.5B and Gemma 3 270M.
const HEADS: &[Heads] =
    &[Heads { query: 9, kv: 3, dim: 64 }, Heads { query: 14, kv: 2, dim: 64 }, Heads { query: 4, kv: 1, dim: 256 }];
/// Tokens of a call of attention, and the positions that the last of them sees.
const DEPTHS: &[(usize, usize)] = &[(1, 512), (1, 4096), (512, 512), (512, 4096)];

/// Measure single kernels against the limits of this machine
///
/// Each kernel runs over sizes of real models, products of one token over more weights than the caches hold. Limits are
/// measured in the same run: reading memory in large pages, reading the second-level cache, and multiplying in registers.
/// The share is that of the nearest limit. Times are the best of many short rounds, so that others disturb them little.
#[derive(Args)]
#[command(after_help = "Examples:
  ropewalk bench kernels
  ropewalk bench kernels --only multiply --formats Q4_1,Q8_0 --sizes 576x1536,49152x576 --tokens 1,512
  ropewalk bench kernels --only attention --threads 2 --json")]
pub(crate) struct Arguments {
    /// Only kernels whose names contain one of these, such as multiply, attention, norm or job
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Formats of weights [default: those of usual checkpoints]
    #[arg(long, value_name = "FORMATS", value_delimiter = ',', value_parser = parse_format)]
    formats: Vec<DType>,
    /// Rows and columns of the weights
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_size,
        default_value = "576x1536,896x4864,4096x4096,49152x576")]
    sizes: Vec<Size>,
    /// Tokens in one call of a product or a small kernel
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "1,8,512",
        value_parser = clap::value_parser!(u16).range(1..=4096))]
    tokens: Vec<u16>,
    /// Threads; several values give several rows [default: 1 and all cores]
    #[arg(long, short = 't', value_name = "K", value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Vec<u16>,
    /// How long each row is measured, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0.1)]
    seconds: f64,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// All that was measured.
#[derive(Serialize)]
struct Report {
    limits: Vec<Limits>,
    kernels: Vec<Row>,
}

/// One line of the result.
#[derive(Serialize)]
struct Row {
    kernel: String,
    shape: String,
    tokens: usize,
    threads: usize,
    best_us: f64,
    median_us: f64,
    gb_s: f64,
    gop_s: f64,
    /// The time that the machine would need at best, by the best time. Absent where nothing is read or computed.
    share: Option<f64>,
    /// The limit that is meant.
    bound: &'static str,
}

/// A kernel's times, until all limits are known.
struct Timed {
    row: Row,
    work: Work,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if !(0.0..=60.0).contains(&arguments.seconds) {
        bail!("--seconds must be between 0 and 60");
    }
    let weights = any_weights(ROTATED)?;
    let mut report = Report { limits: Vec::new(), kernels: Vec::new() };
    for threads in thread_counts(arguments) {
        let pool = Pool::new(threads)?;
        let mut limits = Limits::measure(&pool, &weights, LIMITS);
        let timed = measure(arguments, &pool, &weights)?;
        limits.raise(&Limits::measure(&pool, &weights, LIMITS));
        report.kernels.extend(timed.into_iter().map(|timed| timed.finish(&limits)));
        report.limits.push(limits);
    }
    if arguments.json {
        return print_json(&report);
    }
    print_limits(&report.limits)?;
    let header = ["kernel", "shape", "tokens", "threads", "best us", "median us", "GB/s", "GOP/s", "share", "of"];
    table::print(&header, &report.kernels.iter().map(Row::cells).collect::<Vec<_>>())
}

/// The limits as a table of their own.
pub(super) fn print_limits(limits: &[Limits]) -> anyhow::Result<()> {
    let cells = limits.iter().map(|it| {
        let figures = [it.memory_gb_s, it.cache_gb_s, it.integer_gop_s, it.float_gop_s];
        std::iter::once(it.threads.to_string()).chain(figures.map(|figure| format!("{figure:.1}"))).collect()
    });
    table::print(
        &["threads", "memory GB/s", "cache GB/s", "integers GOP/s", "floats GOP/s"],
        &cells.collect::<Vec<_>>(),
    )?;
    print_now("\n")
}

fn thread_counts(arguments: &Arguments) -> Vec<usize> {
    if !arguments.threads.is_empty() {
        return arguments.threads.iter().map(|&threads| threads.into()).collect();
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores > 1 { vec![1, cores] } else { vec![1] }
}

fn measure(arguments: &Arguments, pool: &Pool, weights: &Bytes) -> anyhow::Result<Vec<Timed>> {
    let wanted = |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| name.contains(only));
    let budget = Duration::from_secs_f64(arguments.seconds);
    let mut timed = Vec::new();
    let mut take = |mut kernel: Kernel<'_>| {
        if wanted(&kernel.name) {
            timed.push(Timed::new(&mut kernel, pool.threads(), budget));
        }
    };
    let formats = if arguments.formats.is_empty() { FORMATS } else { &arguments.formats };
    for &dtype in formats.iter().filter(|dtype| wanted(&format!("multiply {dtype}"))) {
        for &size in &arguments.sizes {
            for &tokens in &arguments.tokens {
                product(pool, weights, dtype, size, tokens.into())?.map(&mut take);
            }
        }
    }
    for &kind in CACHES.iter().filter(|kind| wanted(&format!("attention {kind:?}"))) {
        let cases = HEADS.iter().flat_map(|heads| DEPTHS.iter().map(move |depth| (*heads, *depth)));
        cases.for_each(|(heads, depth)| take(attention(pool, kind, heads, depth, ROTATED)));
    }
    for &tokens in &arguments.tokens {
        small_ones(pool, tokens.into(), 576, 1536).into_iter().for_each(&mut take);
    }
    take(empty_job(pool));
    Ok(timed)
}

impl Timed {
    fn new(kernel: &mut Kernel<'_>, threads: usize, budget: Duration) -> Self {
        let (times, work) = (kernel.time(budget), kernel.work);
        let row = Row {
            kernel: kernel.name.clone(),
            shape: kernel.shape.clone(),
            tokens: kernel.tokens,
            threads,
            best_us: times.best * 1e6,
            median_us: times.median * 1e6,
            gb_s: (work.bytes + work.cached_bytes) / times.best / 1e9,
            gop_s: (work.integer_operations + work.float_operations) / times.best / 1e9,
            share: None,
            bound: "",
        };
        Self { row, work }
    }

    fn finish(self, limits: &Limits) -> Row {
        let Self { row, work } = self;
        if work == Work::default() {
            return row;
        }
        let (least, bound) = limits.least_seconds(&work);
        Row { share: Some(least * 1e6 / row.best_us), bound: bound.word(), ..row }
    }
}

impl Row {
    fn cells(&self) -> Vec<String> {
        vec![
            self.kernel.clone(),
            self.shape.clone(),
            self.tokens.to_string(),
            self.threads.to_string(),
            format!("{:.2}", self.best_us),
            format!("{:.2}", self.median_us),
            format!("{:.2}", self.gb_s),
            format!("{:.1}", self.gop_s),
            self.share.map_or_else(|| "?".to_owned(), |share| format!("{:.0}%", share * 100.0)),
            self.bound.to_owned(),
        ]
    }
}

fn parse_format(text: &str) -> Result<DType, String> {
    let known = DType::ALL.iter().find(|dtype| dtype.name().eq_ignore_ascii_case(text));
    known.copied().ok_or_else(|| {
        let names: Vec<&str> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
        format!("`{text}` is none of {}", names.join(", "))
    })
}

/// Rows and columns such as 576x1536.
fn parse_size(text: &str) -> Result<Size, String> {
    let numbers = text.split_once('x').and_then(|(rows, columns)| Some((rows.parse().ok()?, columns.parse().ok()?)));
    match numbers {
        Some((rows @ 1..=1_000_000, columns @ 1..=1_000_000)) => Ok(Size { rows, columns }),
        _ => Err(format!("`{text}` is not a number of rows and of columns, such as 576x1536")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_formats_are_read() {
        assert_eq!(parse_size("576x1536"), Ok(Size { rows: 576, columns: 1536 }));
        assert!(["", "5", "5x", "x5", "0x5", "5x9999999"].iter().all(|wrong| parse_size(wrong).is_err()));
        assert_eq!(parse_format("q4_k"), Ok(DType::Q4K));
        assert!(parse_format("Q9").is_err_and(|message| message.contains("MXFP4")));
    }
}
