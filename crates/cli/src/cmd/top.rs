//! `tidegate top`: shows live statistics of a gateway.

use crate::{
    admin::{AdminArgs, AdminClient, block_on},
    error::CliError,
    terminal::{self, Paint},
    top::{Feed, FeedEvent, Frame, KeySelection, Screen, SortOrder, View, draw, read_keys},
};
use std::io::{self, IsTerminal as _, Write as _};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Show live statistics of a running gateway: rules, upstreams, stores, and the most denied keys.
///
/// Keys: q quits, s changes the order, p pauses. The command reconnects if the gateway restarts. Without a terminal it prints
/// one table.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    admin: AdminArgs,

    /// Print one table and exit
    #[arg(long)]
    once: bool,

    /// Sort the rules in this order
    #[arg(long, value_name = "ORDER", value_enum, default_value_t)]
    sort: SortOrder,

    /// Print a line of JSON each second: the response of `GET /api/v1/status`
    #[arg(long)]
    json: bool,

    /// Exit after this number of lines of JSON [default: never]
    #[arg(long, value_name = "N", requires = "json", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

const EXAMPLES: &str = "\
Examples:
  tidegate top
  tidegate top --admin http://gateway.internal:9091 --sort denied
  tidegate top --once > now.txt
  tidegate top --json --count 60 | jq -c '.requests'";

pub(crate) fn run(args: &TopArgs) -> Result<(), CliError> {
    let client = AdminClient::from_args(&args.admin)?;
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    block_on(async {
        match (args.json, args.once || !is_terminal) {
            (true, _) => print_json(client, args.count.or(args.once.then_some(1))).await,
            (false, true) => print_once(client, args.sort).await,
            (false, false) => run_interactive(client, args.sort).await,
        }
    })
}

/// Prints snapshots as they arrive.
async fn print_json(client: AdminClient, count: Option<u64>) -> Result<(), CliError> {
    let mut feed = Feed::start(client, KeySelection::None).await?;
    let mut remaining = count.unwrap_or(u64::MAX);
    while remaining > 0 {
        match feed.next().await {
            Some(FeedEvent::Snapshot(snapshot, _)) => {
                remaining -= 1;
                if terminal::try_print(&format!("{snapshot}\n"))? == terminal::OutputState::Closed {
                    break;
                }
            }
            // Ignore a closed standard error.
            Some(FeedEvent::Unavailable(error)) => {
                let _ = writeln!(io::stderr(), "{}; retrying", terminal::sanitize(&error));
            }
            None => break,
        }
    }
    Ok(())
}

/// Prints one table as soon as rates are available.
async fn print_once(client: AdminClient, order: SortOrder) -> Result<(), CliError> {
    let url = client.url().to_owned();
    let mut feed = Feed::start(client, KeySelection::Denied).await?;
    let mut view = View::new(order);
    while !view.has_rates() {
        match feed.next().await {
            Some(FeedEvent::Snapshot(snapshot, keys)) => view.add(*snapshot, keys),
            Some(FeedEvent::Unavailable(error)) => return Err(CliError::input(error)),
            None => break,
        }
    }
    let (width, _) = Screen::size();
    let width = if io::stdout().is_terminal() { width } else { terminal::width() };
    let frame =
        Frame { width, height: None, paint: Paint::for_stdout(), url: &url, footer: None, last_error: None };
    terminal::print(&draw(&view, &frame))
}

/// The state of the interactive view.
struct TopApp {
    view: View,
    url: String,
    is_paused: bool,
    last_error: Option<String>,
}

async fn run_interactive(client: AdminClient, order: SortOrder) -> Result<(), CliError> {
    let failed = |error: io::Error| CliError::input(format!("cannot use the terminal: {error}"));
    let url = client.url().to_owned();
    let mut signals = TerminationSignals::new().map_err(failed)?;
    let mut resized = signal(SignalKind::window_change()).map_err(failed)?;
    let mut feed = Feed::start(client, KeySelection::Denied).await?;
    let mut app = TopApp { view: View::new(order), url, is_paused: false, last_error: None };
    let screen = Screen::open().map_err(failed)?;
    let mut key_input = read_keys().map_err(failed)?;
    loop {
        tokio::select! {
            event = feed.next() => match event {
                Some(event) => app.handle_event(event),
                None => return Ok(()),
            },
            key = key_input.recv() => match key {
                Some(b'q' | b'Q' | 3 | 4) | None => return Ok(()),
                Some(key) => app.handle_key(key),
            },
            _ = resized.recv() => {}
            () = signals.wait() => return Ok(()),
        }
        screen.show(&app.draw()).map_err(failed)?;
    }
}

impl TopApp {
    fn handle_event(&mut self, event: FeedEvent) {
        match event {
            FeedEvent::Snapshot(snapshot, keys) => {
                self.last_error = None;
                if !self.is_paused {
                    self.view.add(*snapshot, keys);
                }
            }
            FeedEvent::Unavailable(error) => self.last_error = Some(error),
        }
    }

    fn handle_key(&mut self, key: u8) {
        match key {
            b's' | b'S' => self.view.order = self.view.order.next(),
            b'p' | b'P' | b' ' => self.is_paused = !self.is_paused,
            _ => {}
        }
    }

    fn draw(&self) -> String {
        let (width, height) = Screen::size();
        let pause_hint = if self.is_paused { "p: resume (paused)" } else { "p: pause" };
        let footer = format!("q: quit · s: sort ({}) · {pause_hint}", self.view.order.label());
        let (url, last_error) = (self.url.as_str(), self.last_error.as_deref());
        let paint = Paint::for_stdout();
        draw(
            &self.view,
            &Frame { width, height: Some(height), paint, url, footer: Some(&footer), last_error },
        )
    }
}

/// The signals that end the command.
struct TerminationSignals([Signal; 3]);

impl TerminationSignals {
    fn new() -> io::Result<Self> {
        Ok(Self([
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    async fn wait(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
