//! `tidegate serve`: runs the gateway or the rate limit service.

use crate::{
    error::CliError,
    events,
    serve::{
        demo, report,
        service::{self, ServiceArgs},
        traffic,
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

/// Run a gateway that enforces a policy in front of its upstreams.
///
/// The policy is reloaded when its file or an included file changes, on SIGHUP, and on `POST /reload` of the admin listener.
/// An invalid policy is rejected, and the previous one stays active. Without a file, the command serves a demo on loopback:
/// a gateway with a dashboard, in front of a built-in server.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    /// Serve this policy, in YAML, TOML or JSON
    file: Option<PathBuf>,

    /// Use this number of worker threads [default: one per core]
    #[arg(long, value_name = "COUNT")]
    workers: Option<NonZeroUsize>,

    /// Print the addresses of the listeners as a line of JSON
    #[arg(long)]
    json: bool,

    /// Send requests to the demo, so that the dashboard has data: about 20 per second
    #[arg(long, conflicts_with_all = ["file", "envoy_config"])]
    demo_traffic: bool,

    #[command(flatten)]
    service: ServiceArgs,
}

const EXAMPLES: &str = "\
SIGTERM and SIGINT shut down gracefully: requests in flight complete first. A second signal exits at once.

Examples:
  tidegate serve --demo-traffic
  tidegate serve policy.yaml
  tidegate serve --envoy-config limits/";

pub(crate) fn run(args: &ServeArgs) -> Result<(), CliError> {
    let service = args.service.environment()?;
    init_log(service.as_ref());
    let mut runtime = Builder::new_multi_thread();
    if service.is_none() {
        // Gateway workers have their own threads. This one serves stores, also while a policy is read on the main thread.
        runtime.worker_threads(1);
    }
    let runtime = runtime.enable_all().build();
    let runtime = runtime.map_err(|error| CliError::input(format!("cannot start the runtime: {error}")))?;
    match service {
        Some(environment) => runtime.block_on(serve_descriptors(&environment, args)),
        None => runtime.block_on(serve_gateway(args)),
    }
}

/// Writes the log to standard error, at the level `info` or as the environment of the rate limit service sets it.
fn init_log(service: Option<&Environment>) {
    let level =
        service.and_then(|environment| environment.log_level.parse().ok()).unwrap_or(LevelFilter::INFO);
    // Libraries log only warnings and errors.
    let filter = Targets::new().with_default(level.min(LevelFilter::WARN)).with_target("tidegate", level);
    let lines =
        tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false).with_ansi(false);
    let registry = tracing_subscriber::registry();
    match service.map(|environment| environment.log_format) {
        Some(ServiceLogFormat::Json) => {
            registry.with(lines.json().flatten_event(true).with_filter(filter)).init();
        }
        Some(ServiceLogFormat::Text) | None => registry.with(lines.with_filter(filter)).init(),
    }
}

/// Runs the rate limit service.
async fn serve_descriptors(environment: &Environment, args: &ServeArgs) -> Result<(), CliError> {
    let Signals { shutdown: signals, .. } = Signals::new()?;
    let server = service::open_server(environment)?;
    let addresses = server.addresses();
    terminal::print(&match args.json {
        true => report::address_json(&addresses),
        false => report::address_lines(&addresses, Paint::for_stdout()),
    })?;
    let shutdown = async {
        signals.wait().await;
        events::ShutdownStarted.emit();
    };
    server.run(shutdown).await.map_err(|error| CliError::input(error.to_string()))
}

async fn serve_gateway(args: &ServeArgs) -> Result<(), CliError> {
    let signals = Signals::new()?;
    let source = match &args.file {
        Some(file) => PolicySource::file(file),
        None => PolicySource::inline(demo::policy()),
    };
    let mut gateway = Gateway::open(source, tidegate::rules()).map_err(|error| to_cli_error(&error))?;
    if let Some(workers) = args.workers {
        gateway = gateway.workers(workers);
    }
    let paint = Paint::for_stdout();
    let addresses = report::addresses(&gateway);
    let report_text = match &args.file {
        _ if args.json => report::address_json(&addresses),
        Some(_) => report::address_lines(&addresses, paint),
        None => demo::report(&gateway, paint),
    };
    let traffic_target = gateway.addresses().first().copied().filter(|_| args.demo_traffic);
    let log = &gateway.policy().log;
    let is_stdout_log = !args.json && log.format != model::AccessLogFormat::None && log.file.is_none();
    let Signals { hangup, shutdown: shutdown_signals } = signals;
    tokio::spawn(reload_on_hangup(hangup, gateway.handle()));
    let mut printed = Ok(());
    let shutdown = async {
        // The gateway polls this future only when it serves, so a failed start prints no addresses.
        printed = match is_stdout_log {
            // Standard output contains only the access log.
            true => write!(io::stderr(), "{report_text}").map_err(|error| CliError::input(error.to_string())),
            false => terminal::print(&report_text),
        };
        if printed.is_ok() {
            let _traffic = traffic_target.map(traffic::start);
            shutdown_signals.wait().await;
            events::ShutdownStarted.emit();
        }
    };
    gateway.run(shutdown).await.map_err(|error| to_cli_error(&error))?;
    printed
}

/// The signals that the process handles.
struct Signals {
    hangup: Signal,
    shutdown: ShutdownSignals,
}

/// The signals that request a shutdown.
struct ShutdownSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Self, CliError> {
        let listen =
            |kind| signal(kind).map_err(|error| CliError::input(format!("cannot handle signals: {error}")));
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
    /// Waits for the first signal; a second one exits the process at once.
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
        // The gateway logs the result.
        let _ = gateway.reload().await;
    }
}

fn to_cli_error(error: &GatewayError) -> CliError {
    CliError::input(error.to_string())
}
