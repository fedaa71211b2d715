//! `ropewalk bench collectives`: how long the ranks of a group take to exchange what they have.

use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde::Serialize;

use crate::commands::print_json;
use crate::group::{Gathering, local_ranks};
use crate::interrupt;
use crate::job::RankJob;
use crate::measure::{Collective, CollectivesJob, Dtype, Timing, gather_reports};
use crate::options::GroupOptions;
use crate::table;

/// The largest buffer that can be measured: 1 GiB.
const SIZE_MAX: usize = 1 << 30;

/// Measure collectives between ranks
///
/// Each rank is a process, on a core of its own as far as there are enough. Times are those of single calls, as rank 0
/// sees them, without anything in between.
#[derive(Args)]
#[command(after_help = "Examples:
  ropewalk bench collectives
  ropewalk bench collectives --ranks 2 --transport tcp --sizes 1K,8K,64K,16M --json
  ropewalk bench collectives --collective all_gather,barrier --ranks 4")]
pub(crate) struct Arguments {
    /// Bytes of the whole buffer, with K for 1024 and M for 1024 K
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_size,
        default_value = "1K,8K,16K,64K,1M,16M")]
    sizes: Vec<usize>,
    /// What to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "all_reduce")]
    collective: Vec<Collective>,
    /// The type of the elements
    #[arg(long, value_enum, default_value_t)]
    dtype: Dtype,
    /// How long each row is measured, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    seconds: f64,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(crate) group: GroupOptions,
}

/// One line of the result.
#[derive(Serialize)]
struct Row {
    collective: Collective,
    dtype: Dtype,
    bytes: usize,
    ranks: usize,
    transport: String,
    median_us: f64,
    p99_us: f64,
    /// What each rank's links carry, in 10^9 bytes per second: comparable between numbers of ranks.
    bus_gb_s: f64,
    calls: usize,
}

impl Row {
    fn new(timing: Timing, dtype: Dtype, ranks: usize) -> Self {
        let Timing { collective, bytes, median_us, p99_us, calls, transport } = timing;
        let others = ranks.saturating_sub(1) as f64;
        let share = match collective {
            Collective::AllReduce => 2.0 * others / ranks as f64,
            Collective::ReduceScatter | Collective::AllGather | Collective::AllToAll => others / ranks as f64,
            Collective::Broadcast => 1.0,
            Collective::Barrier => 0.0,
        };
        let bus_gb_s = if median_us > 0.0 { share * bytes as f64 / median_us / 1e3 } else { 0.0 };
        Self { collective, dtype, bytes, ranks, transport, median_us, p99_us, bus_gb_s, calls }
    }

    fn cells(&self) -> Vec<String> {
        let collective = serde_json::to_value(self.collective).ok();
        vec![
            collective.and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default(),
            self.bytes.to_string(),
            format!("{:.2}", self.median_us),
            format!("{:.2}", self.p99_us),
            format!("{:.3}", self.bus_gb_s),
            self.transport.clone(),
        ]
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    interrupt::install()?;
    let ranks = arguments.group.size();
    let element = arguments.dtype.bytes();
    if let Some(size) = arguments.sizes.iter().find(|&size| size % element != 0) {
        bail!("--sizes: {size} bytes are no whole number of elements of {element} bytes");
    }
    let parts = ranks * element;
    let shared_out = arguments.collective.contains(&Collective::AllToAll);
    if let Some(size) = arguments.sizes.iter().find(|&size| shared_out && size % parts != 0) {
        bail!("--sizes: {size} bytes cannot be shared out equally for all_to_all: take multiples of {parts}");
    }
    if !(0.0..=3600.0).contains(&arguments.seconds) {
        bail!("--seconds must be between 0 and 3600");
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let job = RankJob::Collectives(CollectivesJob {
        collectives: arguments.collective.clone(),
        dtype: arguments.dtype,
        sizes: arguments.sizes.clone(),
        budget: Duration::from_secs_f64(arguments.seconds),
        pin: local_ranks(ranks, &arguments.group.remote)? <= cores,
    });
    let gathering = Gathering::start(ranks, &arguments.group.remote, &arguments.group.links)?;
    let reports: Vec<Vec<Timing>> = gather_reports(gathering, &job)?;
    let rows: Vec<Row> = reports
        .into_iter()
        .next()
        .into_iter()
        .flatten()
        .map(|timing| Row::new(timing, arguments.dtype, ranks))
        .collect();
    if arguments.json {
        return print_json(&rows);
    }
    let header = ["collective", "bytes", "median us", "p99 us", "bus GB/s", "transport"];
    table::print(&header, &rows.iter().map(Row::cells).collect::<Vec<_>>())
}

/// A number of bytes such as 64, 8K or 16M.
fn parse_size(text: &str) -> Result<usize, String> {
    let expected = || format!("`{text}` is not a number of bytes such as 64, 8K or 16M, up to 1024M");
    let (digits, unit) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 1 << 10),
        None => text.strip_suffix(['M', 'm']).map_or((text, 1), |digits| (digits, 1 << 20)),
    };
    let size =
        digits.parse::<usize>().ok().and_then(|number| number.checked_mul(unit)).filter(|&size| size <= SIZE_MAX);
    size.ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("64"), Ok(64));
        assert_eq!(parse_size("8K"), Ok(8192));
        assert_eq!(parse_size("16m"), Ok(16 << 20));
        for wrong in ["", "K", "-1", "1.5K", "99999999999M", "2048M"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
