//! `tidegate simulate`: the arguments and what to do with them.

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

/// Show what quotas let through of a load, without waiting for it.
///
/// Time is virtual and starts at zero; the same arguments always give the same answer. Without arguments: two
/// bursts around the end of a window, against four ways to count `100/min`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SimulateArgs {
    /// Quotas to try, each one argument: '100/min burst 20' '5MB/s' '3 at once'
    #[arg(value_name = "QUOTA")]
    quotas: Vec<String>,

    /// How requests arrive
    #[arg(long, value_name = "SHAPE", default_value = "boundary", conflicts_with = "trace")]
    load: LoadShape,

    /// How many arrive while they do, as in 200/min [default: enough to show what the quotas do]
    #[arg(long, conflicts_with = "trace")]
    rate: Option<String>,

    /// What each request costs [default: 1; without --rate, more for quotas of over 100000 a window]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "trace")]
    cost: Option<u64>,

    /// How long requests arrive [default: two windows; 5s with --closed-loop]
    #[arg(long = "for", value_name = "TIME", value_parser = time::parse_length, conflicts_with = "trace")]
    length: Option<Micros>,

    /// Replay requests from a file, or from - for standard input: one time a line, then `cost N` if not 1
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    trace: Option<PathBuf>,

    /// The length of the worst window to look for [default: the longest period of the quotas, or 1min]
    #[arg(long, value_name = "TIME", value_parser = time::parse_length)]
    window: Option<Micros>,

    /// How long callers wait for their turn [default: the whole queue for leaky-bucket, 1s for smooth and
    /// warm-up, not at all for the others; never for quotas such as '3 at once']
    #[arg(long, value_name = "TIME", value_parser = time::parse)]
    wait: Option<Micros>,

    /// How long a request stays in flight, for quotas such as '3 at once'
    #[arg(long, value_name = "TIME", value_parser = time::parse_length, default_value = "100ms")]
    hold: Micros,

    /// Columns of the chart [default: $COLUMNS, or 80]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(20..=1000))]
    width: Option<u16>,

    /// Also draw a picture
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    svg: Option<PathBuf>,

    /// Print totals and bins for programs instead of the chart
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

/// Four ways to count the same rate.
const DEFAULT_QUOTAS: [&str; 4] =
    ["100/min fixed-window", "100/min sliding-window", "100/min burst 100", "100/min sliding-strict 60"];

/// Bins of the machine-readable output.
const JSON_BINS: usize = 120;

/// Runs the load against every quota and shows what came of it.
pub(crate) fn run(args: &SimulateArgs) -> Result<(), CliError> {
    let width = args.width.map_or_else(terminal::width, usize::from).clamp(20, 1_000);
    if let Some(scenes) = args.closed_loop.scenarios(args.length)? {
        let format = if args.json { ClosedLoopFormat::Json(JSON_BINS) } else { ClosedLoopFormat::Chart };
        return args.closed_loop.run(&scenes, &OutputOptions { width, svg: args.svg.as_deref(), format });
    }
    let scene = simulate(args)?;
    if let Some(path) = &args.svg {
        fs::write(path, svg::draw(&scene)).map_err(|error| CliError::cannot_write(path, &error))?;
    }
    let shown = match args.json {
        true => json::render_json(&scene, JSON_BINS),
        false => chart::draw(&scene, width, Paint::for_stdout()),
    };
    terminal::print(&shown)
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
    let most = MAX_DECISIONS / quotas.len();
    let (title, arrivals, length) = match trace {
        Some(LoadTrace { name, arrivals, .. }) => {
            let count = load::requests_text(arrivals.len() as u128);
            if arrivals.len() > most {
                let against = quotas.len();
                return Err(CliError::input(format!(
                    "{count} against {against} quotas are more than {MAX_DECISIONS} decisions\n\
                     try fewer quotas at a time, or a part of the trace"
                )));
            }
            (format!("trace: {count} of {name}"), arrivals, None)
        }
        None => {
            let load = synthetic_load(args, &quotas, window)?;
            (load.to_string(), load.arrivals(most)?, Some(load.length))
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
    let length = args.length.unwrap_or(window.plus(window));
    Ok(SyntheticLoad { shape, rate, cost, length, window })
}

fn parse_quotas(texts: &[String]) -> Result<Vec<Quota>, CliError> {
    let read = |text: &String| {
        text.parse().map_err(|error| {
            // `simulate 100/min burst 20` without quotes reads as three quotas.
            let joined = texts.join(" ");
            let hint = match joined.parse::<Quota>() {
                Ok(_) if texts.len() > 1 => format!("\nor is it one quota? quote it: '{joined}'"),
                _ => String::new(),
            };
            CliError::input(format!("{error}{hint}"))
        })
    };
    texts.iter().map(read).collect()
}

/// The time to show: the load, and twice that at most when callers go later.
fn time_span(
    arrivals: &[SimulatedRequest],
    length: Option<Micros>,
    runs: &[run::QuotaRun],
) -> (Micros, Micros) {
    let first = arrivals.first().map_or(Micros::ZERO, |arrival| arrival.at);
    let after = arrivals.last().map_or(Micros::ZERO, |arrival| arrival.at).plus(Micros::new(1));
    let (start, end) = match length {
        Some(length) => (Micros::ZERO, length),
        // A trace from far away, such as a log with dates, starts with its first request.
        None if first > after.since(first) => (first, after),
        None => (Micros::ZERO, after),
    };

    let last = runs.iter().filter_map(|run| run.admitted.last()).map(|passage| passage.at).max();
    let last = last.map_or(end, |last| last.plus(Micros::new(1)));
    let latest = end.plus(end.since(start));
    (start, end.max(last.min(latest)))
}
