//! A shop on axum: logins, an API with plans, a streaming download, and a nested function with its own limit.
//!
//! ```sh
//! cargo run -p tidegate --example axum --features axum
//! curl -i -d 'wrong' 127.0.0.1:3000/login                       # six times within a minute
//! curl -i -H 'x-api-key: free-1' 127.0.0.1:3000/api/items       # four times; pro-1 has a larger quota
//! curl -o /dev/null 127.0.0.1:3000/download                     # at 256 kB/s, two at once
//! curl -i -H 'x-api-key: pro-1' 127.0.0.1:3000/api/export       # once per hour and customer
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
        BandwidthLayer, ContextExtractor, ContextLayer, LimitLayer, RequestBandwidth,
        key::{extension, find_extension},
    },
};
use tokio::net::TcpListener;

/// A customer, identified by the API key of a request.
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

/// Builds the application with these rules.
pub(crate) fn app(rules: &Rules) -> Result<Router, Box<dyn Error>> {
    let rule = |declaration| rules.declare(declaration).map(RequestLimit::new);

    // Only failed logins are charged, so successful logins never lock a client out.
    let login = rule(RuleConfig::new("login").quota("5/min")?)?
        .key(key::peer())
        .charge(ChargePolicy::only_if(|reply: &dyn ResponseHead| reply.status() == 401));
    // Each customer has the quota of its plan. Requests without an API key are counted by address, with the free plan.
    let plans = RuleConfig::new("api").tiers(["3/min".parse()?, "1000/min".parse()?]);
    let api = rule(plans)?
        .key(extension(|customer: &Customer| Some(customer.name.as_str().into())).or(key::peer()))
        .tier(|head| {
            find_extension(head).map_or(CustomerPlan::Free, |customer: &Customer| customer.plan) as usize
        });
    // Downloads hold their slot until the last byte has been sent.
    let downloads = rule(RuleConfig::new("downloads").quota("2 at once")?)?.key(key::peer());
    let bandwidths = Bandwidth::builder().build_keyed("256kB/s")?;
    // A limit for all requests together.
    let everything = rule(RuleConfig::new("everything").quota("1000/s")?)?;

    let downloads = Router::new()
        .route("/download", get(download))
        .layer(BandwidthLayer::new(RequestBandwidth::by_key(bandwidths, key::peer())))
        .layer(LimitLayer::new(downloads));
    let context = ContextExtractor::new()
        .user(|head| find_extension(head).map(|customer: &Customer| customer.name.as_str().into()));
    let api = Router::new()
        .route("/items", get(items))
        .route("/export", get(export))
        .layer(LimitLayer::new(api))
        .layer(ContextLayer::new(context))
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

/// Responds with a megabyte in chunks.
async fn download() -> Body {
    Body::from_stream(DownloadChunks(16))
}

async fn export() -> Result<String, Limited> {
    orders().await
}

/// A nested function whose key comes from the context of the request, not from an argument.
#[limit("1/h", key = user, message = "one export per hour")]
async fn orders() -> Result<String, Limited> {
    Ok("order 1, order 2\n".to_owned())
}

/// Identifies the customer by the API key. A real application would look it up.
async fn identify_customer(mut request: Request, next: Next) -> Response {
    let name = request.headers().get("x-api-key").and_then(|key| key.to_str().ok());
    if let Some(name) = name.map(str::to_owned) {
        let plan = if name.starts_with("pro-") { CustomerPlan::Pro } else { CustomerPlan::Free };
        request.extensions_mut().insert(Customer { name, plan });
    }
    next.run(request).await.into_response()
}

/// The remaining chunks of 64 kB.
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
