//! `tidegate verify`: compares the decisions of a Redis server with those of the in-memory store.

use crate::{
    error::CliError,
    progress::ProgressBar,
    terminal::{self, Paint, Tone},
};
use serde_json::{Value, json};
use std::{cell::Cell, fmt::Write as _, ops::ControlFlow, rc::Rc, time::Duration};
use tidegate_core::AlgorithmKind;
use tidegate_redis::{RedisStore, VerifyOptions, VerifyReport, verify};

/// Compare the decisions of a Redis or Valkey server with those of the in-memory store.
///
/// Runs random traces of every algorithm and operation against both, at the same times. Reports any difference in outcome,
/// remaining, retry or reset with the steps that lead to it. Removes its keys afterwards.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct VerifyArgs {
    /// Connect to this server, as in redis://127.0.0.1:6379
    #[arg(long, value_name = "URL")]
    redis: String,

    /// Compare this number of steps
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    steps: u64,

    /// Seed the random traces
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Use this prefix for the keys
    #[arg(long, value_name = "TEXT", default_value = "tidegate-verify")]
    prefix: String,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tidegate verify --redis redis://127.0.0.1:6379
  tidegate verify --redis redis+cluster://10.0.0.1:6379,10.0.0.2:6379 --steps 1000000";

/// The deadline of a step; longer than that of a request, since no client waits.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &VerifyArgs) -> Result<(), CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CliError::input(format!("cannot start the runtime: {error}")))?;
    runtime.block_on(async {
        let builder = RedisStore::builder().prefix(&args.prefix).deadline(STEP_TIMEOUT);
        let store = builder.connect(&args.redis).await.map_err(|error| CliError::input(error.to_string()))?;
        let options = VerifyOptions { steps: args.steps, seed: args.seed };
        let mut bar = ProgressBar::new();
        let is_stopped = Rc::new(Cell::new(false));
        let stop = is_stopped.clone();
        let signal = async move {
            // Without signal handling the command cannot be stopped early.
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
            stop.set(true);
            std::future::pending().await
        };
        let progress = |done| {
            bar.show_count(done, args.steps);
            if is_stopped.get() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        // `verify` removes its keys also when it is stopped.
        let compared = tokio::select! {
            compared = verify(&store, options, progress) => compared,
            never = signal => never,
        };
        bar.clear();
        let compared = compared.map_err(|error| CliError::input(error.to_string()))?;
        match args.json {
            true => terminal::print(&format!("{:#}\n", render_json(&compared))),
            false => terminal::print(&report(&compared, Paint::for_stdout())),
        }
    })
}

fn render_json(compared: &VerifyReport) -> Value {
    let VerifyReport {
        steps,
        decisions,
        checks,
        denied,
        delayed,
        refunds,
        resets,
        quota_changes: changes,
        limit_switches: switches,
        renewals,
        quotas,
    } = compared;
    json!({
        "steps": steps,
        "decisions": decisions,
        "checks": checks,
        "denied": denied,
        "delayed": delayed,
        "refunds": refunds,
        "resets": resets,
        "quota_changes": changes,
        "quota_switches": switches,
        "renewals": renewals,
        "quotas": quotas,
        "algorithms": AlgorithmKind::names().collect::<Vec<_>>(),
    })
}

fn report(compared: &VerifyReport, paint: Paint) -> String {
    let VerifyReport { steps, decisions, checks, denied, delayed, refunds, .. } = compared;
    let VerifyReport { resets, quota_changes: changes, limit_switches: switches, renewals, quotas, .. } =
        compared;
    let names: Vec<_> = AlgorithmKind::names().collect();
    let mut text = paint.tone(Tone::Strong, format!("no difference in {steps} steps"));
    text.push('\n');
    let lines = [
        ("decisions", format!("{decisions}: {denied} denied, {delayed} delayed, {checks} on the fast path")),
        ("other steps", format!("{refunds} refunds, {resets} resets, {renewals} renewals")),
        ("mixed quotas", format!("{changes} changes, {switches} switches between quotas on one key")),
        ("quotas", format!("{quotas} of {}", names.join(", "))),
        ("compared", "outcome, limit, remaining, retry, reset, receipts".to_owned()),
    ];
    for (name, line) in lines {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {} {line}", paint.tone(Tone::Faint, format!("{name:<12}")));
    }
    text
}
