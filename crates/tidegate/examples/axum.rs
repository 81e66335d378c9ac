//! A shop on axum: logins, an API with plans, a download that streams, and a function deep below that is limited by itself.
//!
//! ```sh
//! cargo run -p tidegate --example axum --features axum
//! curl -i -d 'wrong' 127.0.0.1:3000/login                       # six times within a minute
//! curl -i -H 'x-api-key: free-1' 127.0.0.1:3000/api/items       # four times; with pro-1 it takes longer
//! curl -o /dev/null 127.0.0.1:3000/download                     # at 256 kB/s, and two at once
//! curl -i -H 'x-api-key: pro-1' 127.0.0.1:3000/api/export       # once an hour for each customer
//! ```

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures_core::Stream;
use std::{
    convert::Infallible,
    error::Error,
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    task::{Context, Poll},
};
use tidegate::{
    Limited, RequestLimit, RuleConfig, Rules,
    bandwidth::Bandwidth,
    limit,
    rule::{
        ChargePolicy,
        request::{ResponseHead, key},
    },
    tower::{
        BandwidthLayer, FactsLayer, LimitLayer, RequestBandwidth, RequestFacts,
        key::{extension, find_extension},
    },
};
use tokio::net::TcpListener;

/// A customer, as the application knows it from the key of a request.
#[derive(Clone)]
struct Customer {
    name: String,
    plan: CustomerPlan,
}

#[derive(Clone, Copy)]
enum CustomerPlan {
    Free,
    Pro,
}

/// The whole application, under the rules of this program.
pub(crate) fn app(rules: &Rules) -> Result<Router, Box<dyn Error>> {
    let rule = |declaration| rules.declare(declaration).map(RequestLimit::new);

    // Only logins that fail count, so that nobody is locked out by logging in often.
    let login = rule(RuleConfig::new("login").quota("5/min")?)?
        .key(key::peer())
        .charge(ChargePolicy::only_if(|reply: &dyn ResponseHead| reply.status() == 401));
    // Each customer by its plan; who has no key is counted by address, as a free one.
    let plans = RuleConfig::new("api").tiers(["3/min".parse()?, "1000/min".parse()?]);
    let api = rule(plans)?
        .key(extension(|customer: &Customer| Some(customer.name.as_str().into())).or(key::peer()))
        .tier(|head| {
            find_extension(head).map_or(CustomerPlan::Free, |customer: &Customer| customer.plan) as usize
        });
    // Downloads hold their place until the last byte has been sent.
    let downloads = rule(RuleConfig::new("downloads").quota("2 at once")?)?.key(key::peer());
    let bandwidths = Bandwidth::builder().build_keyed("256kB/s")?;
    // And everything together, whoever it is.
    let everything = rule(RuleConfig::new("everything").quota("1000/s")?)?;

    let downloads = Router::new()
        .route("/download", get(download))
        .layer(BandwidthLayer::new(RequestBandwidth::by_key(bandwidths, key::peer())))
        .layer(LimitLayer::new(downloads));
    let facts = RequestFacts::new()
        .user(|head| find_extension(head).map(|customer: &Customer| customer.name.as_str().into()));
    let api = Router::new()
        .route("/items", get(items))
        .route("/export", get(export))
        .layer(LimitLayer::new(api))
        .layer(FactsLayer::new(facts))
        .layer(middleware::from_fn(identify_customer));
    Ok(Router::new()
        .route("/login", post(log_in).layer(LimitLayer::new(login)))
        .merge(downloads)
        .nest("/api", api)
        .layer(LimitLayer::new(everything)))
}

async fn log_in(password: String) -> StatusCode {
    match password.as_str() {
        "open sesame" => StatusCode::OK,
        _ => StatusCode::UNAUTHORIZED,
    }
}

async fn items() -> &'static str {
    "tea, coffee\n"
}

/// A megabyte, a piece at a time.
async fn download() -> Body {
    Body::from_stream(DownloadChunks(16))
}

async fn export() -> Result<String, Limited> {
    orders().await
}

/// Deep below, with neither the request nor the customer among its arguments.
#[limit("1/h", key = user, message = "one export an hour")]
async fn orders() -> Result<String, Limited> {
    Ok("order 1, order 2\n".to_owned())
}

/// Who sent a request, by its key. A real application would look it up.
async fn identify_customer(mut request: Request, next: Next) -> Response {
    let name = request.headers().get("x-api-key").and_then(|key| key.to_str().ok());
    if let Some(name) = name.map(str::to_owned) {
        let plan = if name.starts_with("pro-") { CustomerPlan::Pro } else { CustomerPlan::Free };
        request.extensions_mut().insert(Customer { name, plan });
    }
    next.run(request).await.into_response()
}

/// So many pieces of 64 kB.
struct DownloadChunks(usize);

impl Stream for DownloadChunks {
    type Item = Result<Vec<u8>, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(rest) = self.0.checked_sub(1) else { return Poll::Ready(None) };
        self.0 = rest;
        Poll::Ready(Some(Ok(vec![b'.'; 64_000])))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 3000)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let app = app(Rules::global())?.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, app).await?)
}
