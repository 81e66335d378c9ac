//! An axum server under load, with and without the layer.

use axum::{Router, ServiceExt as _, body::Body, extract::Request, response::Response, routing::get};
use std::{
    convert::Infallible,
    net::SocketAddr,
    process::{self, Command, Stdio},
    thread,
};
use tidegate::{
    Gate, RequestLimit, RuleConfig, Rules,
    rule::{HeaderStyle, request::key},
    tower::LimitLayer,
};
use tidegate_bench::{BenchResult, interleaved::median, suite::Measurement};
use tokio::{net::TcpListener, runtime::Builder};
use tower::{Layer as _, Service, util::MapResponseLayer};

pub(crate) const ABOUT: &str = "requests per second of an axum server under wrk with the layer around its router (keyed by address, headers off), over without";

/// The servers alternate, with one second each, so that a slow phase of the machine does not favour one of them.
const ROUNDS: usize = 9;

pub(crate) fn measure() -> BenchResult<Measurement> {
    // One core for the servers, the other for the load.
    let pid = process::id().to_string();
    let _ = Command::new("taskset").args(["-cp", "0", &pid]).stdout(Stdio::null()).status();
    let app = || Router::new().route("/", get(async || "hello"));
    let nothing = MapResponseLayer::new(|response: Response| response);
    // A layer around a router must return the body type that axum serves.
    let body = || MapResponseLayer::new(|response: Response<_>| response.map(Body::new));
    let servers = [
        serve(app())?,
        serve(body().layer(limit_layer(HeaderStyle::None)?.layer(app())))?,
        serve(body().layer(limit_layer(HeaderStyle::Ietf)?.layer(app())))?,
        serve(app().layer(limit_layer(HeaderStyle::Ietf)?))?,
        serve(app().layer(nothing))?,
    ];
    for server in servers {
        run_wrk(server)?;
    }
    let mut ratios: [Vec<f64>; 5] = Default::default();
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let mut rates = [0.0; 5];
        for offset in 0..servers.len() {
            let index = (offset + round) % servers.len();
            rates[index] = run_wrk(servers[index])?;
        }
        without.push(rates[0]);
        with.push(rates[1]);
        ratios.iter_mut().zip(rates).for_each(|(ratios, rate)| ratios.push(rate / rates[0]));
    }
    let [_, _, headers, inside, nothing] = ratios.each_ref().map(|ratios| median(ratios));
    let figures = format!(
        "{:.0} requests/s with, {:.0} without; with headers {headers:.3}; with headers and added by `Router::layer` {inside:.3}, \
         where a layer that does nothing is {nothing:.3}",
        median(&with),
        median(&without),
    );
    Ok(Measurement::from_rounds(&ratios[1], figures))
}

fn limit_layer(fields: HeaderStyle) -> BenchResult<LimitLayer> {
    let rule = Rules::new().declare(RuleConfig::new("api").quota("1000000000/s")?)?;
    Ok(LimitLayer::new(Gate::new([RequestLimit::new(rule).key(key::peer())]).with_header_style(fields)))
}

/// Starts a server on a new thread, until the program ends.
fn serve<S>(app: S) -> BenchResult<SocketAddr>
where
    S: Service<Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + 'static,
{
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    thread::spawn(move || runtime.block_on(async { axum::serve(listener, service).await }));
    Ok(address)
}

/// Runs wrk and returns the requests per second; all responses must be successful.
fn run_wrk(address: SocketAddr) -> BenchResult<f64> {
    let url = format!("http://{address}/");
    let output =
        Command::new("taskset").args(["-c", "1", "wrk", "-t1", "-c32", "-d1s", &url]).output().map_err(
            |error| format!("cannot run wrk: {error}; install it, for example with `apt-get install wrk`"),
        )?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || text.contains("Non-2xx") || text.contains("Socket errors") {
        return Err(format!("unexpected responses of {url}:\n{text}").into());
    }
    let line = text.lines().find_map(|line| line.trim().strip_prefix("Requests/sec:"));
    line.and_then(|figure| figure.trim().parse().ok())
        .ok_or_else(|| format!("unexpected wrk output:\n{text}").into())
}
