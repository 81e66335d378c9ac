//! An axum server under load, with the layer and without.

use axum::{Router, routing::get};
use std::{net::SocketAddr, process::Command, thread};
use tidegate::{Declaration, RequestLimit, Rules, request::key, tower::LimitLayer};
use tidegate_bench::{Result, suite::Measured, turns::median};
use tokio::{net::TcpListener, runtime::Builder};

pub(crate) const ABOUT: &str = "requests per second of an axum server under wrk with the layer (keyed by address, with headers), over without";

/// Both are measured in turns, each for a second at a time, so that a slow moment of the machine hits neither in particular.
const ROUNDS: usize = 14;

pub(crate) fn measure() -> Result<Measured> {
    let rule = Rules::new().rule(Declaration::of("api").quota("1000000000/s")?)?;
    let layer = LimitLayer::new(RequestLimit::new(rule).key(key::peer()));
    let app = || Router::new().route("/", get(async || "hello"));
    let (with, without) = (serve(app().layer(layer))?, serve(app())?);
    wrk(with)?;
    wrk(without)?;
    let (mut limited, mut plain, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let (ours, theirs) = match round % 2 {
            0 => {
                let ours = wrk(with)?;
                (ours, wrk(without)?)
            }
            _ => {
                let theirs = wrk(without)?;
                (wrk(with)?, theirs)
            }
        };
        limited.push(ours);
        plain.push(theirs);
        ratios.push(ours / theirs);
    }
    let figures = format!("{:.0} requests/s with, {:.0} without", median(&limited), median(&plain));
    Ok(Measured { value: median(&ratios), figures })
}

/// A server on a thread of its own, until the program ends.
fn serve(app: Router) -> Result<SocketAddr> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    thread::spawn(move || runtime.block_on(async { axum::serve(listener, service).await }));
    Ok(address)
}

/// Requests per second, all of which must be answered well.
fn wrk(address: SocketAddr) -> Result<f64> {
    let url = format!("http://{address}/");
    let output = Command::new("wrk")
        .args(["-t1", "-c32", "-d1s", &url])
        .output()
        .map_err(|error| format!("wrk: {error}; install it, for example with `apt-get install wrk`"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || text.contains("Non-2xx") || text.contains("Socket errors") {
        return Err(format!("wrk on {url} did not go well:\n{text}").into());
    }
    let line = text.lines().find_map(|line| line.trim().strip_prefix("Requests/sec:"));
    line.and_then(|figure| figure.trim().parse().ok()).ok_or_else(|| format!("wrk said\n{text}").into())
}
