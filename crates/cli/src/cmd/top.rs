//! `tidegate top`: what does the gateway do now?

use crate::{
    admin::{AdminArgs, AdminClient, block_on},
    error::CliError,
    terminal::{self, Paint},
    top::{Feed, FeedEvent, Frame, KeySelection, Order, Screen, View, draw, read_keys},
};
use std::io::{self, IsTerminal as _, Write as _};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Show the live numbers of a running gateway: rules, upstreams, stores, and the keys that are denied most.
///
/// Keys: q ends, s sorts, p pauses. A gateway that restarts is waited for. Where there is no terminal, one table is printed.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    admin: AdminArgs,

    /// Print one table, and end
    #[arg(long)]
    once: bool,

    /// The order of rules
    #[arg(long, value_name = "ORDER", value_enum, default_value_t)]
    sort: Order,

    /// Print a line of JSON each second: what `GET /api/v1/status` answers
    #[arg(long)]
    json: bool,

    /// End after so many lines of JSON [default: never]
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

/// Prints snapshots as they come.
async fn print_json(client: AdminClient, count: Option<u64>) -> Result<(), CliError> {
    let mut feed = Feed::start(client, KeySelection::None).await?;
    let mut left = count.unwrap_or(u64::MAX);
    while left > 0 {
        match feed.next().await {
            Some(FeedEvent::Snapshot(snapshot, _)) => {
                left -= 1;
                if terminal::try_print(&format!("{snapshot}\n"))? == terminal::OutputState::Closed {
                    break;
                }
            }
            // Nobody is left to tell when standard error is closed.
            Some(FeedEvent::Unavailable(why)) => {
                let _ = writeln!(io::stderr(), "{}; asks again", terminal::sanitize(&why));
            }
            None => break,
        }
    }
    Ok(())
}

/// Prints one table, as soon as there are rates.
async fn print_once(client: AdminClient, order: Order) -> Result<(), CliError> {
    let url = client.url().to_owned();
    let mut feed = Feed::start(client, KeySelection::Denied).await?;
    let mut view = View::new(order);
    while !view.has_rates() {
        match feed.next().await {
            Some(FeedEvent::Snapshot(snapshot, keys)) => view.add(*snapshot, keys),
            Some(FeedEvent::Unavailable(why)) => return Err(CliError::input(why)),
            None => break,
        }
    }
    let (width, _) = Screen::size();
    let width = if io::stdout().is_terminal() { width } else { terminal::width() };
    let frame =
        Frame { width, height: None, paint: Paint::for_stdout(), url: &url, footer: None, last_error: None };
    terminal::print(&draw(&view, &frame))
}

/// What a person looks at.
struct TopApp {
    view: View,
    url: String,
    is_paused: bool,
    last_error: Option<String>,
}

async fn run_interactive(client: AdminClient, order: Order) -> Result<(), CliError> {
    let failed = |error: io::Error| CliError::input(format!("no terminal: {error}"));
    let url = client.url().to_owned();
    let mut signals = TerminationSignals::new().map_err(failed)?;
    let mut resized = signal(SignalKind::window_change()).map_err(failed)?;
    let mut feed = Feed::start(client, KeySelection::Denied).await?;
    let mut app = TopApp { view: View::new(order), url, is_paused: false, last_error: None };
    let screen = Screen::open().map_err(failed)?;
    let mut key_input = read_keys().map_err(failed)?;
    loop {
        tokio::select! {
            told = feed.next() => match told {
                Some(told) => app.handle_event(told),
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
            FeedEvent::Unavailable(why) => self.last_error = Some(why),
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
        let pause_hint = if self.is_paused { "p goes on (paused)" } else { "p pauses" };
        let foot = format!("q ends · s sorts ({}) · {pause_hint}", self.view.order.label());
        let (url, trouble) = (self.url.as_str(), self.last_error.as_deref());
        let paint = Paint::for_stdout();
        draw(
            &self.view,
            &Frame { width, height: Some(height), paint, url, footer: Some(&foot), last_error: trouble },
        )
    }
}

/// The ways in which the system asks for an end.
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
