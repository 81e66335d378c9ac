//! `tidegate bench`: does the gateway admit what its policy says?

use super::check;
use crate::{
    bench::{
        self, BenchHttpVersion, BenchOutcome, BenchPlan, BenchTarget, ExpectedPolicy, LoadPhase,
        RequestTemplate, Schedule,
    },
    error::CliError,
    progress::ProgressBar,
    simulate::{load::parse_rate, time},
    terminal::{self, Paint},
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
use tidegate_replay::ReplayProgress;
use tokio::runtime::Builder;

/// Send a load by an exact schedule, and compare what was admitted with what a policy says.
///
/// Each request has a moment at which it is due and goes then, whatever the gateway does; how long an answer took counts from
/// that moment. With a policy, each request is also asked of that policy in memory, at the moment it was sent, as if the gateway
/// had just begun.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// Where to send it, as in http://127.0.0.1:8080/login
    #[arg(value_name = "URL", value_hint = ValueHint::Url)]
    url: String,

    /// How much, as in 500/s or 30/min
    #[arg(long, value_name = "RATE", default_value = "100/s")]
    rate: String,

    /// How long
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time::parse_length)]
    duration: Micros,

    /// So much for so long, as in 10s@100/s; several follow each other
    #[arg(long = "phase", value_name = "TIME@RATE", conflicts_with_all = ["rate", "duration"])]
    phases: Vec<LoadPhase>,

    /// How many keys take turns, in a header: key-0, key-1 and so on [default: no header]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    keys: Option<u32>,

    /// The header that tells keys apart
    #[arg(long, value_name = "NAME", default_value = "x-user", requires = "keys")]
    key_header: HeaderName,

    /// Connections, each with one request at a time
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    connections: u16,

    /// Speak HTTP/2: agreed on over https://, known beforehand over http://
    #[arg(long)]
    http2: bool,

    /// Believe whom the authorities in this file know, in PEM, and nobody else [default: those of the system]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    cacert: Option<PathBuf>,

    /// The method of requests
    #[arg(long, value_name = "METHOD", default_value = "GET")]
    method: Method,

    /// One of their headers, as in 'x-plan: gold'
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = parse_header)]
    headers: Vec<(HeaderName, HeaderValue)>,

    /// Their body: a text, or @FILE
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    body: String,

    /// How long an answer may take
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time::parse_length)]
    timeout: Micros,

    /// The policy that the gateway serves, to compare with
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    policy: Option<PathBuf>,

    /// End with 3 if more than this part of the requests was admitted or denied against the policy [without a share: 1%]
    #[arg(long, value_name = "SHARE", num_args = 0..=1, default_missing_value = "1%", requires = "policy")]
    expect: Option<Percent>,

    /// Another status that is a denial, beside 429 and those of the policy
    #[arg(long = "denied", value_name = "STATUS", value_parser = clap::value_parser!(u16).range(100..=599))]
    denied: Vec<u16>,

    /// Send it even if that is not this machine: a load that nobody expects is an attack
    #[arg(long)]
    remote: bool,

    /// Print the report for programs
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Exit codes: 0 done, 1 the report could not be written, 2 nothing could be sent or nothing was answered, 3 it is not what was expected (with --expect).

Examples:
  tidegate bench http://127.0.0.1:8080/ --rate 500/s --duration 30s
  tidegate bench http://127.0.0.1:8080/login --phase 10s@5/s --phase 2s@200/s --keys 20 --policy policy.yaml
  tidegate bench http://127.0.0.1:8080/ --keys 100 --key-header x-api-key --policy policy.yaml --expect 0.5%
  tidegate bench https://localhost:8443/ --http2 --cacert authority.pem";

pub(crate) fn run(args: &BenchArgs) -> Result<(), CliError> {
    let plan = build_plan(args)?;
    let length = plan.schedule.length();
    let stop = Arc::new(AtomicBool::new(false));
    let mut bar = ProgressBar::new();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| CliError::input(format!("no runtime: {error}")))?;
    let outcome = runtime.block_on(async {
        let signal_stop = stop.clone();
        tokio::spawn(async move {
            // What was sent until then is told.
            if tokio::signal::ctrl_c().await.is_ok() {
                signal_stop.store(true, Ordering::Relaxed);
            }
        });
        let show = |requests, since: Micros| {
            bar.show(ReplayProgress { requests, bytes_read: since.get(), total_bytes: Some(length.get()) });
        };
        bench::run(plan, stop.clone(), show).await
    });
    bar.clear();
    let outcome = outcome?;
    match args.json {
        true => terminal::print(&format!("{:#}\n", bench::render_json(&outcome, &args.url)))?,
        false => terminal::print(&bench::render_text(&outcome, &args.url, Paint::for_stdout()))?,
    }
    if outcome.sent > 0 && outcome.statuses.is_empty() {
        return Err(CliError::input(
            "not one request was answered; see that it is there, and which HTTP it speaks",
        ));
    }
    args.expect.map_or(Ok(()), |most| check_expected(&outcome, most))
}

fn build_plan(args: &BenchArgs) -> Result<BenchPlan, CliError> {
    let version = if args.http2 { BenchHttpVersion::Http2 } else { BenchHttpVersion::Http1 };
    let target = BenchTarget::parse(&args.url, version, args.cacert.as_deref())?;
    if !target.is_loopback() && !args.remote {
        return Err(CliError::input(format!(
            "{} is {}, which is not this machine; say --remote if whoever runs it expects a load",
            args.url,
            target.address.ip()
        )));
    }
    let phases = match args.phases.is_empty() {
        false => args.phases.clone(),
        true => vec![LoadPhase::new(args.duration, parse_rate(&args.rate)?).map_err(CliError::input)?],
    };
    let twin = args.policy.as_deref().map(expected_policy).transpose()?;
    let policy_statuses = twin.iter().flat_map(|twin| twin.denial_statuses().iter().copied());
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
        expected: twin,
    })
}

fn expected_policy(path: &Path) -> Result<ExpectedPolicy, CliError> {
    let policy = check::read_policy(path)?;
    // Names of files in it were read with it.
    ExpectedPolicy::new(&policy, Path::new(""), Clock::system().now())
}

fn check_expected(outcome: &BenchOutcome, max_difference: Percent) -> Result<(), CliError> {
    let difference = outcome.difference().unwrap_or(0);
    let allowed = (outcome.sent as f64 * max_difference.as_f64()) as u64;
    match difference > allowed {
        false => Ok(()),
        true => Err(CliError::Mismatch(format!(
            "{difference} of {} requests were admitted or denied against the policy, more than {max_difference} of them",
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
    let wrong = || "a header is a name, a colon and a value; write 'x-plan: gold'".to_owned();
    let (name, value) = text.split_once(':').ok_or_else(wrong)?;
    let name = HeaderName::try_from(name.trim()).map_err(|_| wrong())?;
    Ok((name, HeaderValue::try_from(value.trim()).map_err(|_| wrong())?))
}
