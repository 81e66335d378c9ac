//! `tidegate serve`: puts a policy in front of servers.

use crate::{
    failure::Failure,
    serve::{
        example::Example,
        report,
        service::{self, ServiceArgs},
    },
    terminal::{self, Paint},
};
use std::{
    io::{self, Write as _},
    num::NonZeroUsize,
    path::PathBuf,
};
use tidegate_gateway::{Gateway, GatewayError, Handle, PolicySource};
use tidegate_policy::model;
use tidegate_service::descriptors::{Environment, LogFormat};
use tokio::{
    runtime::Builder,
    signal::unix::{Signal, SignalKind, signal},
};
use tracing_subscriber::{
    Layer as _,
    filter::{LevelFilter, Targets},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

/// Put a policy in force in front of the servers that it names.
///
/// The file is read again when it or one that it includes changes, on SIGHUP, and when an operator asks for it (`POST
/// /reload` where the policy says `admin`). One that is wrong changes nothing. Without a file, an example is served on
/// loopback.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The policy, in YAML, TOML or JSON
    file: Option<PathBuf>,

    /// Threads that serve; one for each core unless told otherwise
    #[arg(long, value_name = "COUNT")]
    workers: Option<NonZeroUsize>,

    /// Print where it listens as a line of JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    service: ServiceArgs,
}

const EXAMPLES: &str = "\
SIGTERM and SIGINT end it when requests in flight have ended; a second one ends it at once.

Examples:
  tidegate serve
  tidegate serve policy.yaml
  tidegate serve --envoy-config limits/";

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let service = args.service.environment()?;
    log(service.as_ref());
    let mut runtime = Builder::new_multi_thread();
    if service.is_none() {
        // Workers have threads of their own. Two more: what a store answers does not wait while a policy is read.
        runtime.worker_threads(1);
    }
    let runtime = runtime.enable_all().build();
    let runtime = runtime.map_err(|error| Failure::input(format!("no runtime: {error}")))?;
    match service {
        Some(environment) => runtime.block_on(decide(&environment, args)),
        None => runtime.block_on(serve(args)),
    }
}

/// Writes the log to standard error: what is worth knowing, unless a decision service is told otherwise.
fn log(service: Option<&Environment>) {
    let level = service.and_then(|said| said.log_level.parse().ok()).unwrap_or(LevelFilter::INFO);
    // What libraries tell of themselves is for their authors.
    let filter = Targets::new().with_default(level.min(LevelFilter::WARN)).with_target("tidegate", level);
    let lines =
        tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false).with_ansi(false);
    let registry = tracing_subscriber::registry();
    match service.map(|said| said.log_format) {
        Some(LogFormat::Json) => registry.with(lines.json().flatten_event(true).with_filter(filter)).init(),
        Some(LogFormat::Text) | None => registry.with(lines.with_filter(filter)).init(),
    }
}

/// Serves limits by descriptors.
async fn decide(environment: &Environment, args: &Args) -> Result<(), Failure> {
    let Signals { end, .. } = Signals::new()?;
    let host = service::open(environment)?;
    let addresses = host.addresses();
    terminal::print(&match args.json {
        true => report::json(&addresses),
        false => report::lines(&addresses, Paint::of_stdout()),
    })?;
    let ended = async {
        end.first().await;
        tracing::info!("ends when requests in flight have ended");
    };
    host.run(ended).await.map_err(|error| Failure::input(error.to_string()))
}

async fn serve(args: &Args) -> Result<(), Failure> {
    let signals = Signals::new()?;
    let (source, example) = match &args.file {
        Some(file) => (PolicySource::file(file), None),
        None => {
            let example = Example::start().map_err(|error| failed(&error.into()))?;
            (PolicySource::given(example.policy()), Some(example))
        }
    };
    let mut gateway = Gateway::open(source, tidegate::rules()).map_err(|error| failed(&error))?;
    if let Some(workers) = args.workers {
        gateway = gateway.workers(workers);
    }
    let paint = Paint::of_stdout();
    let addresses = report::addresses(&gateway);
    let told = match &example {
        _ if args.json => report::json(&addresses),
        Some(example) => example.report(&gateway, paint),
        None => report::lines(&addresses, paint),
    };
    let log = &gateway.policy().log;
    let is_log = !args.json && log.format != model::AccessLogFormat::None && log.file.is_none();
    let Signals { hangup, end } = signals;
    tokio::spawn(reload_on(hangup, gateway.handle()));
    let mut printed = Ok(());
    let ended = async {
        // Nobody waits for an end before it serves; and where it does not come to that, nothing was begun.
        printed = match is_log {
            // Standard output is the access log, and nothing but that.
            true => write!(io::stderr(), "{told}").map_err(|error| Failure::input(error.to_string())),
            false => terminal::print(&told),
        };
        if printed.is_ok() {
            end.first().await;
            tracing::info!("ends when requests in flight have ended");
        }
    };
    gateway.run(ended).await.map_err(|error| failed(&error))?;
    printed
}

/// What the system may tell this process.
struct Signals {
    hangup: Signal,
    end: End,
}

/// The two ways to ask for an end.
struct End {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::input(format!("no signals: {error}")));
        Ok(Self {
            hangup: listen(SignalKind::hangup())?,
            end: End {
                interrupt: listen(SignalKind::interrupt())?,
                terminate: listen(SignalKind::terminate())?,
            },
        })
    }
}

impl End {
    /// Waits for the first; the second ends the process there and then.
    async fn first(mut self) {
        self.next().await;
        tokio::spawn(async move {
            self.next().await;
            std::process::exit(130);
        });
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

async fn reload_on(mut hangup: Signal, gateway: Handle) {
    while hangup.recv().await.is_some() {
        // The gateway tells how it went.
        let _ = gateway.reload().await;
    }
}

fn failed(error: &GatewayError) -> Failure {
    Failure::input(error.to_string())
}
