//! `ropewalk link`: how good the links between the ranks are, and what is wrong with them.

use std::time::Duration;

use clap::Args;
use fabric::{LinkMeasurement, ProbeOptions, Warning, diagnose};
use serde::Serialize;

use super::{print_json, print_now};
use crate::group::Gathering;
use crate::interrupt;
use crate::job::RankJob;
use crate::measure::{LinksJob, gather_reports};
use crate::options::GroupOptions;
use crate::table;

/// Measure all links of a group and say what is wrong with them
///
/// Prints a row for each direction of each link: what it is made of, latency one way, bandwidth, lost packets, frames sent
/// again and errors. Warns about links that are slow, lossy, asymmetric, or below what they are rated for, and about pairs
/// of ranks without a cable of their own.
#[derive(Args)]
#[command(after_help = "Examples:
  ropewalk link
  ropewalk link --ranks 4 --remote-ranks 3 --rendezvous 192.168.1.10:7000 --secret-file secret --json")]
pub(crate) struct Arguments {
    /// About how long each measurement of a link may take, in milliseconds; fast links need less
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    budget: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(crate) group: GroupOptions,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    ranks: usize,
    links: Vec<LinkMeasurement>,
    warnings: Vec<Warning>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    interrupt::install()?;
    let ranks = arguments.group.size();
    let options = ProbeOptions { budget: Duration::from_millis(arguments.budget) };
    let gathering = Gathering::start(ranks, &arguments.group.remote, &arguments.group.links)?;
    let reports: Vec<Vec<LinkMeasurement>> = gather_reports(gathering, &RankJob::Links(LinksJob { options }))?;
    let links: Vec<_> = reports.into_iter().flatten().collect();
    let warnings = diagnose(&links);
    let report = Report { ranks, links, warnings };
    if arguments.json {
        return print_json(&report);
    }
    let header = ["from", "to", "transport", "cables", "latency us", "p99 us", "MB/s", "lost", "retries", "errors"];
    table::print(&header, &report.links.iter().map(cells).collect::<Vec<_>>())?;
    for warning in &report.warnings {
        print_now(&format!("warning: {warning}\n"))?;
    }
    Ok(())
}

fn cells(link: &LinkMeasurement) -> Vec<String> {
    let known = |count: Option<u64>| count.map_or("?".to_owned(), |count| count.to_string());
    vec![
        link.from.to_string(),
        link.to.to_string(),
        format!("{}{}", link.transport, if link.encrypted { ", encrypted" } else { "" }),
        if link.hops > 1 { format!("{} in a row", link.hops) } else { link.cables.to_string() },
        format!("{:.1}", link.latency_us_median),
        format!("{:.1}", link.latency_us_p99),
        format!("{:.1}", link.bandwidth / 1e6),
        link.loss.map_or("?".to_owned(), |loss| format!("{:.1}%", loss * 100.0)),
        known(link.retries),
        known(link.errors),
    ]
}
