//! `tidegate bench`: compares the decisions of a gateway with its policy.

use super::{
    check,
    suggest::{exists_error, output_format, write_policy},
};
use crate::{
    bench::{
        self, BenchHttpVersion, BenchOutcome, BenchPlan, BenchTarget, ExpectedPolicy, LoadPhase,
        RequestTemplate, Schedule,
        find::{self, FindOutcome, FindTarget, LoadStep, MissedTarget, RateSearch},
    },
    error::CliError,
    progress::ProgressBar,
    simulate::{load::parse_rate, time},
    terminal::{self, Paint, sanitize},
};
use bytes::Bytes;
use clap::ValueHint;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tidegate::Clock;
use tidegate_core::{Micros, Percent};
use tidegate_policy::PolicyFormat;
use tidegate_replay::ReplayProgress;
use tokio::runtime::{Builder, Runtime};

/// Send a load with an exact schedule, and compare the admitted requests with a policy.
///
/// Each request is sent at its due time, even if the gateway is slow; latency counts from the due time. With --policy, each
/// request is also evaluated in memory at the time it was sent, with the state of a gateway that has just started.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// Send requests to this URL, as in http://127.0.0.1:8080/login
    #[arg(value_name = "URL", value_hint = ValueHint::Url)]
    url: String,

    /// Send requests at this rate, as in 500/s or 30/min
    #[arg(long, value_name = "RATE", default_value = "100/s")]
    rate: String,

    /// Send requests for this time
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time::parse_length)]
    duration: Micros,

    /// Add a phase of this time and rate, as in 10s@100/s; phases run one after the other
    #[arg(long = "phase", value_name = "TIME@RATE", conflicts_with_all = ["rate", "duration"])]
    phases: Vec<LoadPhase>,

    /// Rotate through this number of keys in a header: key-0, key-1 and so on [default: no header]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    keys: Option<u32>,

    /// Send the key in this header
    #[arg(long, value_name = "NAME", default_value = "x-user", requires = "keys")]
    key_header: HeaderName,

    /// Open this number of connections, each with one request at a time
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    connections: u16,

    /// Use HTTP/2: negotiated with ALPN over https://, with prior knowledge over http://
    #[arg(long)]
    http2: bool,

    /// Verify the server with the CA certificates (PEM) in this file [default: those of the system]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    cacert: Option<PathBuf>,

    /// Use this request method
    #[arg(long, value_name = "METHOD", default_value = "GET")]
    method: Method,

    /// Add a request header, as in 'x-plan: gold'
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = parse_header)]
    headers: Vec<(HeaderName, HeaderValue)>,

    /// Send this body: a text, or @FILE
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    body: String,

    /// Fail a request after this time
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time::parse_length)]
    timeout: Micros,

    /// Compare the decisions with this policy, which the gateway should serve
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    policy: Option<PathBuf>,

    /// Exit with 3 if the decisions on more than this share of the requests differ from the policy [without a share: 1%]
    #[arg(long, value_name = "SHARE", num_args = 0..=1, default_missing_value = "1%", requires = "policy")]
    expect: Option<Percent>,

    /// Count this status as a denial too, besides 429 and those of the policy
    #[arg(long = "denied", value_name = "STATUS", value_parser = clap::value_parser!(u16).range(100..=599))]
    denied: Vec<u16>,

    /// Allow a target that is not this machine; an unexpected load is an attack
    #[arg(long)]
    remote: bool,

    #[command(flatten)]
    find: FindArgs,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// The options of a search for the highest rate.
#[derive(Debug, clap::Args)]
struct FindArgs {
    /// Find the highest rate within a target: raise the rate from --rate, with a load of --duration at each rate
    #[arg(long, conflicts_with_all = ["phases", "policy"])]
    find: bool,

    /// With --find, keep the 99th percentile of the latency below this time
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = time::parse_length, requires = "find")]
    max_latency: Micros,

    /// With --find, keep the share of failed requests and of responses 5xx below this share
    #[arg(long, value_name = "SHARE", default_value = "1%", requires = "find")]
    max_errors: Percent,

    /// With --find, send at most this number of requests per second
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100_000,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000),
        requires = "find"
    )]
    max_rate: u64,

    /// With --find, set the quota below the highest rate by this share
    #[arg(long, value_name = "SHARE", default_value = "20%", requires = "find")]
    headroom: Percent,

    /// With --find, write a picture of latency and errors by rate
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "find")]
    svg: Option<PathBuf>,

    /// With --find, write the quota to this policy file, in YAML, TOML or JSON; its rule is in shadow mode
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "find")]
    out: Option<PathBuf>,

    /// Overwrite the file in --out
    #[arg(long, requires = "out")]
    force: bool,
}

const EXAMPLES: &str = "\
Exit codes: 0 success, 1 the report could not be written, 2 invalid arguments, no response, or no rate within the target (with --find), 3 decisions differ from the policy (with --expect).

Examples:
  tidegate bench http://127.0.0.1:8080/ --rate 500/s --duration 30s
  tidegate bench http://127.0.0.1:8080/login --phase 10s@5/s --phase 2s@200/s --keys 20 --policy policy.yaml
  tidegate bench http://127.0.0.1:8080/ --keys 100 --key-header x-api-key --policy policy.yaml --expect 0.5%
  tidegate bench https://localhost:8443/ --http2 --cacert ca.pem
  tidegate bench http://127.0.0.1:9000/search --find --max-latency 100ms --svg knee.svg --out capacity.yaml";

pub(crate) fn run(args: &BenchArgs) -> Result<(), CliError> {
    let runner = BenchRunner::new()?;
    match args.find.find {
        true => run_find(args, &runner),
        false => run_load(args, &runner),
    }
}

/// Runs loads until the first interrupt.
struct BenchRunner {
    runtime: Runtime,
    stop: Arc<AtomicBool>,
}

impl BenchRunner {
    fn new() -> Result<Self, CliError> {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime =
            runtime.map_err(|error| CliError::input(format!("cannot start the runtime: {error}")))?;
        let stop = Arc::new(AtomicBool::new(false));
        let signal_stop = stop.clone();
        runtime.spawn(async move {
            // Report the requests that were sent until then.
            if tokio::signal::ctrl_c().await.is_ok() {
                signal_stop.store(true, Ordering::Relaxed);
            }
        });
        Ok(Self { runtime, stop })
    }

    fn is_interrupted(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn run(&self, plan: BenchPlan) -> Result<BenchOutcome, CliError> {
        let length = plan.schedule.length();
        let mut bar = ProgressBar::new();
        let show = |requests, since: Micros| {
            bar.show(ReplayProgress { requests, bytes_read: since.get(), total_bytes: Some(length.get()) });
        };
        let outcome = self.runtime.block_on(bench::run(plan, self.stop.clone(), show));
        bar.clear();
        outcome
    }
}

fn run_load(args: &BenchArgs, runner: &BenchRunner) -> Result<(), CliError> {
    let phases = match args.phases.is_empty() {
        false => args.phases.clone(),
        true => vec![LoadPhase::new(args.duration, parse_rate(&args.rate)?).map_err(CliError::input)?],
    };
    let outcome = runner.run(build_plan(args, phases)?)?;
    match args.json {
        true => terminal::print(&format!("{:#}\n", bench::render_json(&outcome, &args.url)))?,
        false => terminal::print(&bench::render_text(&outcome, &args.url, Paint::for_stdout()))?,
    }
    check_responses(&outcome)?;
    args.expect.map_or(Ok(()), |max_difference| check_expected(&outcome, max_difference))
}

fn check_responses(outcome: &BenchOutcome) -> Result<(), CliError> {
    match outcome.sent > 0 && outcome.statuses.is_empty() {
        false => Ok(()),
        true => Err(CliError::input(
            "no request was answered; check that the server is running and which HTTP version it supports",
        )),
    }
}

fn run_find(args: &BenchArgs, runner: &BenchRunner) -> Result<(), CliError> {
    let find = &args.find;
    let format = find.out.as_deref().map(output_format).transpose()?;
    if let Some(path) = find.out.as_deref().filter(|path| !find.force && path.exists()) {
        return Err(exists_error(path));
    }
    let outcome = find_knee(args, runner)?;
    match args.json {
        true => terminal::print(&format!("{:#}\n", find::render_json(&outcome)))?,
        false => terminal::print(&find::render_text(&outcome, Paint::for_stdout()))?,
    }
    if let Some(path) = &find.svg {
        fs::write(path, find::draw(&outcome)).map_err(|error| CliError::cannot_write(path, &error))?;
    }
    if runner.is_interrupted() {
        return Err(CliError::input("the search was interrupted; no quota was written"));
    }
    if let Some(denied) = outcome.denied_step() {
        return Err(CliError::input(format!(
            "a rate limit denied requests at {}/s, so its quota was measured instead of the server; \
             send the load to the server itself, or turn the limit off",
            denied.rate
        )));
    }
    let policy = find::build_policy(&outcome, &args.method);
    let Some(policy) = policy.map_err(|problems| CliError::input(problems.to_string()))? else {
        let start = outcome.steps.iter().map(|step| step.rate).min().unwrap_or(1);
        return Err(CliError::input(format!(
            "the target is missed even at {start}/s; use a higher --max-latency or --max-errors"
        )));
    };
    if let (Some(path), Some(format)) = (&find.out, format) {
        let comment = match format {
            PolicyFormat::Json => String::new(),
            PolicyFormat::Yaml | PolicyFormat::Toml => format!(
                "# Found by a load test of {}: p99 of at most {}, errors of at most {}.\n\
                 # In shadow mode: remove `mode` to enforce the rule.\n",
                sanitize(&outcome.url),
                outcome.target.max_latency,
                outcome.target.max_errors
            ),
        };
        write_policy(path, &(comment + &policy.print(format)), find.force)?;
    }
    Ok(())
}

/// Sends a load at each rate of the search.
fn find_knee(args: &BenchArgs, runner: &BenchRunner) -> Result<FindOutcome, CliError> {
    let find = &args.find;
    let target = FindTarget { max_latency: find.max_latency, max_errors: find.max_errors };
    let first = parse_rate(&args.rate)?;
    let start = u128::from(first.amount()) * 1_000_000 / u128::from(first.period().get());
    let mut search = RateSearch::new(u64::try_from(start).unwrap_or(u64::MAX), find.max_rate);
    let mut steps = Vec::new();
    while let Some(rate) = search.next_rate() {
        let phase = LoadPhase::new(args.duration, parse_rate(&format!("{rate}/s"))?);
        let plan = build_plan(args, vec![phase.map_err(CliError::input)?])?;
        let denied_statuses = plan.denied_statuses.clone();
        let outcome = runner.run(plan)?;
        if runner.is_interrupted() {
            break;
        }
        check_responses(&outcome)?;
        let step = LoadStep::new(rate, &outcome, &denied_statuses, args.connections.into(), target);
        let is_denied = step.missed == Some(MissedTarget::Denied);
        search.record(rate, step.missed.is_none());
        steps.push(step);
        // Lower rates would find the quota of the rate limit.
        if is_denied {
            break;
        }
    }
    Ok(FindOutcome {
        url: args.url.clone(),
        target,
        headroom: find.headroom,
        steps,
        knee: search.knee(),
        is_max_rate: search.is_at_max(),
    })
}

fn build_plan(args: &BenchArgs, phases: Vec<LoadPhase>) -> Result<BenchPlan, CliError> {
    let version = if args.http2 { BenchHttpVersion::Http2 } else { BenchHttpVersion::Http1 };
    let target = BenchTarget::parse(&args.url, version, args.cacert.as_deref())?;
    if !target.is_loopback() && !args.remote {
        return Err(CliError::input(format!(
            "{} resolves to {}, which is not this machine; add --remote if its operator expects the load",
            args.url,
            target.address.ip()
        )));
    }
    let expected = args.policy.as_deref().map(expected_policy).transpose()?;
    let policy_statuses = expected.iter().flat_map(|policy| policy.denial_statuses().iter().copied());
    let denied: BTreeSet<u16> = args.denied.iter().copied().chain([429]).chain(policy_statuses).collect();
    let mut headers = HeaderMap::new();
    args.headers.iter().for_each(|(name, value)| _ = headers.append(name.clone(), value.clone()));
    let keys = args.keys.map(|count| (args.key_header.clone(), count));
    let template =
        RequestTemplate { method: args.method.clone(), headers, body: read_body(&args.body)?, keys };
    Ok(BenchPlan {
        target,
        template,
        schedule: Schedule::new(phases),
        connections: args.connections.into(),
        timeout: args.timeout.into(),
        denied_statuses: denied,
        expected,
    })
}

fn expected_policy(path: &Path) -> Result<ExpectedPolicy, CliError> {
    let policy = check::read_policy(path)?;
    // File names in the policy are already resolved.
    ExpectedPolicy::new(&policy, Path::new(""), Clock::system().now())
}

fn check_expected(outcome: &BenchOutcome, max_difference: Percent) -> Result<(), CliError> {
    let difference = outcome.difference().unwrap_or(0);
    let allowed = (outcome.sent as f64 * max_difference.as_f64()) as u64;
    match difference > allowed {
        false => Ok(()),
        true => Err(CliError::Mismatch(format!(
            "decisions on {difference} of {} requests differ from the policy, more than {max_difference}",
            outcome.sent
        ))),
    }
}

fn read_body(text: &str) -> Result<Bytes, CliError> {
    match text.strip_prefix('@') {
        None => Ok(Bytes::from(text.to_owned())),
        Some(path) => match fs::read(path) {
            Ok(bytes) => Ok(bytes.into()),
            Err(error) => Err(CliError::input(format!("--body: cannot read {path}: {error}"))),
        },
    }
}

fn parse_header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let invalid = || "a header is a name, a colon and a value; write 'x-plan: gold'".to_owned();
    let (name, value) = text.split_once(':').ok_or_else(invalid)?;
    let name = HeaderName::try_from(name.trim()).map_err(|_| invalid())?;
    Ok((name, HeaderValue::try_from(value.trim()).map_err(|_| invalid())?))
}
