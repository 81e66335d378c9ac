//! `tidegate simulate`: its arguments and output.

use super::closed_loop::{ClosedLoopArgs, ClosedLoopFormat, OutputOptions};
use crate::{
    error::CliError,
    simulate::{
        Simulation, chart, json,
        load::{self, LoadShape, MAX_DECISIONS, SyntheticLoad},
        rate,
        run::{self, CallerBehavior},
        svg, time,
        trace::LoadTrace,
    },
    terminal::{self, Paint},
};
use clap::ValueHint;
use std::{fs, path::PathBuf};
use tidegate_core::{Micros, Quota};
use tidegate_simulation::SimulatedRequest;

/// Simulate which requests of a load quotas admit, in virtual time.
///
/// Time starts at zero; the same arguments always give the same result. Without arguments: two bursts around the end of a
/// window, against four algorithms for `100/min`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SimulateArgs {
    /// Simulate these quotas, each one argument: '100/min burst 20' '5MB/s' '3 at once'
    #[arg(value_name = "QUOTA")]
    quotas: Vec<String>,

    /// Use this shape of load
    #[arg(long, value_name = "SHAPE", default_value = "boundary", conflicts_with = "trace")]
    load: LoadShape,

    /// Set the rate of requests, as in 200/min [default: enough to exceed the quotas]
    #[arg(long, conflicts_with = "trace")]
    rate: Option<String>,

    /// Set the cost of each request [default: 1; without --rate, more for quotas above 100000 per window]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "trace")]
    cost: Option<u64>,

    /// Set the duration of the load [default: two windows; 5s with --closed-loop]
    #[arg(long = "for", value_name = "TIME", value_parser = time::parse_length, conflicts_with = "trace")]
    length: Option<Micros>,

    /// Read requests from a file, or from - for standard input: one time per line, then `cost N` if not 1
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    trace: Option<PathBuf>,

    /// Search the worst window of this length [default: the longest period of the quotas, or 1min]
    #[arg(long, value_name = "TIME", value_parser = time::parse_length)]
    window: Option<Micros>,

    /// Let callers wait at most this long [default: the whole queue for leaky-bucket, 1s for smooth and
    /// warm-up, not at all for the others; never for quotas such as '3 at once']
    #[arg(long, value_name = "TIME", value_parser = time::parse)]
    wait: Option<Micros>,

    /// Keep each request in flight for this time, for quotas such as '3 at once'
    #[arg(long, value_name = "TIME", value_parser = time::parse_length, default_value = "100ms")]
    hold: Micros,

    /// Limit the chart to this number of columns [default: $COLUMNS, or 80]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(20..=1000))]
    width: Option<u16>,

    /// Also write an SVG image
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    svg: Option<PathBuf>,

    /// Print totals and bins as JSON instead of the chart
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    closed_loop: ClosedLoopArgs,
}

const EXAMPLES: &str = "\
Examples:
  tidegate simulate
  tidegate simulate '100/min burst 20' '100/min leaky-bucket queue 20' --load ramp
  tidegate simulate '10/s sliding-log' --load steady --rate 15/s --for 5s --svg picture.svg
  tidegate simulate '3 at once' --hold 250ms --load on-off --for 10s
  tidegate simulate 100/min --trace requests.txt
  tidegate simulate --closed-loop surge-10 --svg picture.svg";

/// Four algorithms for the same rate.
const DEFAULT_QUOTAS: [&str; 4] =
    ["100/min fixed-window", "100/min sliding-window", "100/min burst 100", "100/min sliding-strict 60"];

/// Bins of the machine-readable output.
const JSON_BINS: usize = 120;

/// Runs the load against every quota and prints the result.
pub(crate) fn run(args: &SimulateArgs) -> Result<(), CliError> {
    let width = args.width.map_or_else(terminal::width, usize::from).clamp(20, 1_000);
    if let Some(scenarios) = args.closed_loop.scenarios(args.length)? {
        let format = if args.json { ClosedLoopFormat::Json(JSON_BINS) } else { ClosedLoopFormat::Chart };
        return args.closed_loop.run(&scenarios, &OutputOptions { width, svg: args.svg.as_deref(), format });
    }
    let simulation = simulate(args)?;
    if let Some(path) = &args.svg {
        fs::write(path, svg::draw(&simulation)).map_err(|error| CliError::cannot_write(path, &error))?;
    }
    let text = match args.json {
        true => json::render_json(&simulation, JSON_BINS),
        false => chart::draw(&simulation, width, Paint::for_stdout()),
    };
    terminal::print(&text)
}

fn simulate(args: &SimulateArgs) -> Result<Simulation, CliError> {
    let mut quotas = parse_quotas(&args.quotas)?;
    let trace = args.trace.as_ref().map(|path| LoadTrace::read(path, MAX_DECISIONS)).transpose()?;
    if quotas.is_empty() {
        quotas = trace.as_ref().map(|trace| trace.quotas.clone()).unwrap_or_default();
    }
    if quotas.is_empty() {
        quotas = parse_quotas(&DEFAULT_QUOTAS.map(String::from))?;
    }

    let window = args.window.or_else(|| quotas.iter().filter_map(rate::period).max());
    let window = window.unwrap_or(Micros::from_secs(60));
    let max_requests = MAX_DECISIONS / quotas.len();
    let (title, arrivals, length) = match trace {
        Some(LoadTrace { name, arrivals, .. }) => {
            let count = load::requests_text(arrivals.len() as u128);
            if arrivals.len() > max_requests {
                let against = quotas.len();
                return Err(CliError::input(format!(
                    "{count} with {against} quotas exceed {MAX_DECISIONS} decisions\n\
                     use fewer quotas at a time, or a part of the trace"
                )));
            }
            (format!("trace: {count} of {name}"), arrivals, None)
        }
        None => {
            let load = synthetic_load(args, &quotas, window)?;
            (load.to_string(), load.arrivals(max_requests)?, Some(load.length))
        }
    };

    let behavior = CallerBehavior { max_wait: args.wait, hold_time: args.hold };
    let runs: Vec<_> =
        quotas.iter().map(|quota| run::simulate_quota(*quota, &arrivals, window, behavior)).collect();
    let (start, end) = time_span(&arrivals, length, &runs);
    Ok(Simulation { title, arrivals, runs, window, start, end })
}

fn synthetic_load(args: &SimulateArgs, quotas: &[Quota], window: Micros) -> Result<SyntheticLoad, CliError> {
    let shape = args.load;
    let (rate, cost) = match &args.rate {
        Some(rate) => (load::parse_rate(rate)?, args.cost.unwrap_or(1)),
        None => {
            let cost = args.cost.unwrap_or_else(|| load::default_cost(quotas, window, args.hold));
            (load::default_rate(shape, quotas, window, args.hold, cost), cost)
        }
    };
    let length = args.length.unwrap_or(window.saturating_add(window));
    Ok(SyntheticLoad { shape, rate, cost, length, window })
}

fn parse_quotas(texts: &[String]) -> Result<Vec<Quota>, CliError> {
    let read = |text: &String| {
        text.parse().map_err(|error| {
            // `simulate 100/min burst 20` without quotes reads as three quotas.
            let joined = texts.join(" ");
            let hint = match joined.parse::<Quota>() {
                Ok(_) if texts.len() > 1 => format!("\nif it is one quota, quote it: '{joined}'"),
                _ => String::new(),
            };
            CliError::input(format!("{error}{hint}"))
        })
    };
    texts.iter().map(read).collect()
}

/// The time range of the chart: the load, extended to at most twice its length if delayed requests run later.
fn time_span(
    arrivals: &[SimulatedRequest],
    length: Option<Micros>,
    runs: &[run::QuotaRun],
) -> (Micros, Micros) {
    let first = arrivals.first().map_or(Micros::ZERO, |arrival| arrival.at);
    let after = arrivals.last().map_or(Micros::ZERO, |arrival| arrival.at).saturating_add(Micros::new(1));
    let (start, end) = match length {
        Some(length) => (Micros::ZERO, length),
        // A trace with absolute times, such as a log, starts with its first request.
        None if first > after.saturating_sub(first) => (first, after),
        None => (Micros::ZERO, after),
    };

    let last = runs.iter().filter_map(|run| run.admitted.last()).map(|request| request.at).max();
    let last = last.map_or(end, |last| last.saturating_add(Micros::new(1)));
    let latest = end.saturating_add(end.saturating_sub(start));
    (start, end.max(last.min(latest)))
}
