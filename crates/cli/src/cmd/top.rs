//! `tidegate top`: what does the gateway do now?

use crate::{
    admin::{AdminArgs, Operator, block_on},
    failure::Failure,
    terminal::{self, Paint},
    top::{Feed, Frame, Keys, Order, Screen, Told, View, draw, keys},
};
use std::io::{self, IsTerminal as _, Write as _};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Show the live numbers of a running gateway: rules, upstreams, stores, and the keys that are denied most.
///
/// Keys: q ends, s sorts, p pauses. A gateway that restarts is waited for. Where there is no terminal, one table is printed.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
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

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let operator = Operator::of(&args.admin)?;
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    block_on(async {
        match (args.json, args.once || !is_terminal) {
            (true, _) => lines(operator, args.count.or(args.once.then_some(1))).await,
            (false, true) => once(operator, args.sort).await,
            (false, false) => watch(operator, args.sort).await,
        }
    })
}

/// Prints snapshots as they come.
async fn lines(operator: Operator, count: Option<u64>) -> Result<(), Failure> {
    let mut feed = Feed::start(operator, Keys::Without).await?;
    let mut left = count.unwrap_or(u64::MAX);
    while left > 0 {
        match feed.next().await {
            Some(Told::Snapshot(snapshot, _)) => {
                left -= 1;
                if terminal::print_more(&format!("{snapshot}\n"))? == terminal::Reader::Left {
                    break;
                }
            }
            // Nobody is left to tell when standard error is closed.
            Some(Told::Away(why)) => {
                let _ = writeln!(io::stderr(), "{}; asks again", terminal::harmless(&why));
            }
            None => break,
        }
    }
    Ok(())
}

/// Prints one table, as soon as there are rates.
async fn once(operator: Operator, order: Order) -> Result<(), Failure> {
    let url = operator.url().to_owned();
    let mut feed = Feed::start(operator, Keys::Denied).await?;
    let mut view = View::new(order);
    while !view.has_rates() {
        match feed.next().await {
            Some(Told::Snapshot(snapshot, keys)) => view.add(*snapshot, keys),
            Some(Told::Away(why)) => return Err(Failure::input(why)),
            None => break,
        }
    }
    let (width, _) = Screen::size();
    let width = if io::stdout().is_terminal() { width } else { terminal::width() };
    let frame =
        Frame { width, height: None, paint: Paint::of_stdout(), url: &url, foot: None, trouble: None };
    terminal::print(&draw(&view, &frame))
}

/// What a person looks at.
struct Watch {
    view: View,
    url: String,
    is_paused: bool,
    trouble: Option<String>,
}

async fn watch(operator: Operator, order: Order) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::input(format!("no terminal: {error}"));
    let url = operator.url().to_owned();
    let mut ends = Ends::new().map_err(failed)?;
    let mut resized = signal(SignalKind::window_change()).map_err(failed)?;
    let mut feed = Feed::start(operator, Keys::Denied).await?;
    let mut watch = Watch { view: View::new(order), url, is_paused: false, trouble: None };
    let screen = Screen::take().map_err(failed)?;
    let mut typed = keys().map_err(failed)?;
    loop {
        tokio::select! {
            told = feed.next() => match told {
                Some(told) => watch.hear(told),
                None => return Ok(()),
            },
            key = typed.recv() => match key {
                Some(b'q' | b'Q' | 3 | 4) | None => return Ok(()),
                Some(key) => watch.press(key),
            },
            _ = resized.recv() => {}
            () = ends.any() => return Ok(()),
        }
        screen.show(&watch.draw()).map_err(failed)?;
    }
}

impl Watch {
    fn hear(&mut self, told: Told) {
        match told {
            Told::Snapshot(snapshot, keys) => {
                self.trouble = None;
                if !self.is_paused {
                    self.view.add(*snapshot, keys);
                }
            }
            Told::Away(why) => self.trouble = Some(why),
        }
    }

    fn press(&mut self, key: u8) {
        match key {
            b's' | b'S' => self.view.order = self.view.order.next(),
            b'p' | b'P' | b' ' => self.is_paused = !self.is_paused,
            _ => {}
        }
    }

    fn draw(&self) -> String {
        let (width, height) = Screen::size();
        let pause = if self.is_paused { "p goes on (paused)" } else { "p pauses" };
        let foot = format!("q ends · s sorts ({}) · {pause}", self.view.order.words());
        let (url, trouble) = (self.url.as_str(), self.trouble.as_deref());
        let paint = Paint::of_stdout();
        draw(&self.view, &Frame { width, height: Some(height), paint, url, foot: Some(&foot), trouble })
    }
}

/// The ways in which the system asks for an end.
struct Ends([Signal; 3]);

impl Ends {
    fn new() -> io::Result<Self> {
        Ok(Self([
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    async fn any(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
