//! `tidegate serve`: puts a policy in front of servers.

use crate::{
    error::CliError,
    serve::{
        example::ExampleGateway,
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
use tidegate_gateway::{Gateway, GatewayError, GatewayHandle, PolicySource};
use tidegate_policy::model;
use tidegate_service::descriptors::{Environment, ServiceLogFormat};
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
pub(crate) struct ServeArgs {
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

pub(crate) fn run(args: &ServeArgs) -> Result<(), CliError> {
    let service = args.service.environment()?;
    init_log(service.as_ref());
    let mut runtime = Builder::new_multi_thread();
    if service.is_none() {
        // Workers have threads of their own. Two more: what a store answers does not wait while a policy is read.
        runtime.worker_threads(1);
    }
    let runtime = runtime.enable_all().build();
    let runtime = runtime.map_err(|error| CliError::input(format!("no runtime: {error}")))?;
    match service {
        Some(environment) => runtime.block_on(serve_descriptors(&environment, args)),
        None => runtime.block_on(serve_gateway(args)),
    }
}

/// Writes the log to standard error: what is worth knowing, unless a decision service is told otherwise.
fn init_log(service: Option<&Environment>) {
    let level = service.and_then(|said| said.log_level.parse().ok()).unwrap_or(LevelFilter::INFO);
    // What libraries tell of themselves is for their authors.
    let filter = Targets::new().with_default(level.min(LevelFilter::WARN)).with_target("tidegate", level);
    let lines =
        tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false).with_ansi(false);
    let registry = tracing_subscriber::registry();
    match service.map(|said| said.log_format) {
        Some(ServiceLogFormat::Json) => {
            registry.with(lines.json().flatten_event(true).with_filter(filter)).init();
        }
        Some(ServiceLogFormat::Text) | None => registry.with(lines.with_filter(filter)).init(),
    }
}

/// Serves limits by descriptors.
async fn serve_descriptors(environment: &Environment, args: &ServeArgs) -> Result<(), CliError> {
    let Signals { shutdown: end, .. } = Signals::new()?;
    let host = service::open_server(environment)?;
    let addresses = host.addresses();
    terminal::print(&match args.json {
        true => report::address_json(&addresses),
        false => report::address_lines(&addresses, Paint::for_stdout()),
    })?;
    let shutdown = async {
        end.wait().await;
        tracing::info!("ends when requests in flight have ended");
    };
    host.run(shutdown).await.map_err(|error| CliError::input(error.to_string()))
}

async fn serve_gateway(args: &ServeArgs) -> Result<(), CliError> {
    let signals = Signals::new()?;
    let (source, example) = match &args.file {
        Some(file) => (PolicySource::file(file), None),
        None => {
            let example = ExampleGateway::start().map_err(|error| to_cli_error(&error.into()))?;
            (PolicySource::inline(example.policy()), Some(example))
        }
    };
    let mut gateway = Gateway::open(source, tidegate::rules()).map_err(|error| to_cli_error(&error))?;
    if let Some(workers) = args.workers {
        gateway = gateway.workers(workers);
    }
    let paint = Paint::for_stdout();
    let addresses = report::addresses(&gateway);
    let report_text = match &example {
        _ if args.json => report::address_json(&addresses),
        Some(example) => example.report(&gateway, paint),
        None => report::address_lines(&addresses, paint),
    };
    let log = &gateway.policy().log;
    let is_stdout_log = !args.json && log.format != model::AccessLogFormat::None && log.file.is_none();
    let Signals { hangup, shutdown: end } = signals;
    tokio::spawn(reload_on_hangup(hangup, gateway.handle()));
    let mut printed = Ok(());
    let shutdown = async {
        // Nobody waits for an end before it serves; and where it does not come to that, nothing was begun.
        printed = match is_stdout_log {
            // Standard output is the access log, and nothing but that.
            true => write!(io::stderr(), "{report_text}").map_err(|error| CliError::input(error.to_string())),
            false => terminal::print(&report_text),
        };
        if printed.is_ok() {
            end.wait().await;
            tracing::info!("ends when requests in flight have ended");
        }
    };
    gateway.run(shutdown).await.map_err(|error| to_cli_error(&error))?;
    printed
}

/// What the system may tell this process.
struct Signals {
    hangup: Signal,
    shutdown: ShutdownSignals,
}

/// The two ways to ask for an end.
struct ShutdownSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Self, CliError> {
        let listen = |kind| signal(kind).map_err(|error| CliError::input(format!("no signals: {error}")));
        Ok(Self {
            hangup: listen(SignalKind::hangup())?,
            shutdown: ShutdownSignals {
                interrupt: listen(SignalKind::interrupt())?,
                terminate: listen(SignalKind::terminate())?,
            },
        })
    }
}

impl ShutdownSignals {
    /// Waits for the first; the second ends the process there and then.
    async fn wait(mut self) {
        self.recv().await;
        tokio::spawn(async move {
            self.recv().await;
            std::process::exit(130);
        });
    }

    async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

async fn reload_on_hangup(mut hangup: Signal, gateway: GatewayHandle) {
    while hangup.recv().await.is_some() {
        // The gateway tells how it went.
        let _ = gateway.reload().await;
    }
}

fn to_cli_error(error: &GatewayError) -> CliError {
    CliError::input(error.to_string())
}
