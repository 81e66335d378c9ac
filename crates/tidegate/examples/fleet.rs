//! Two servers that share their limits in Redis.
//!
//! ```sh
//! redis-server --port 6379 --save ''
//! cargo run -p tidegate --example fleet --features axum,redis -- redis://127.0.0.1:6379
//! curl -i 127.0.0.1:3000; curl -i 127.0.0.1:3001        # five per minute on both together
//! ```
//!
//! Without the address, each server has its own counters in memory; only the settings differ.

use axum::{Router, routing::get};
use std::{
    env,
    error::Error,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};
use tidegate::{
    RequestLimit, RuleConfig,
    rule::{Settings, request::key},
    tower::LimitLayer,
};
use tokio::net::TcpListener;

/// Builds one server with its own rules and these settings.
pub(crate) fn app(settings: Settings) -> Result<Router, Box<dyn Error>> {
    let rules = tidegate::rules();
    rules.apply(settings)?;
    let requests = rules.declare(RuleConfig::new("requests").quota("5/min")?)?;
    let layer = LimitLayer::new(RequestLimit::new(requests).key(key::peer()));
    Ok(Router::new().route("/", get(async || "hello\n")).layer(layer))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let settings = || match env::args().nth(1) {
        // On a busy machine, Redis may need more than the default deadline of 5 ms, after which the failure mode applies.
        Some(url) => Settings::new().store_url(url).deadline(Duration::from_millis(250)),
        None => Settings::new(),
    };
    let serve = async |port: u16| -> Result<(), Box<dyn Error>> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        println!("listening on http://{}", listener.local_addr()?);
        let app = app(settings())?.into_make_service_with_connect_info::<SocketAddr>();
        Ok(axum::serve(listener, app).await?)
    };
    tokio::try_join!(serve(3000), serve(3001))?;
    Ok(())
}
