//! A gRPC server with a limit per client, a limit per tenant, and a concurrency limit.
//!
//! ```text
//! cargo run -p tidegate --example tonic --features tower,tonic
//! ```
//!
//! The service is the health service of tonic, so no code has to be generated.

use std::{error::Error, io, net::SocketAddr, process::ExitCode};
use tidegate::{
    Gate, RequestLimit, RuleConfig, Rules,
    limiter::Semaphore,
    rule::request::key,
    tower::{ConcurrencyLayer, LimitLayer, RuleInterceptor},
};
use tokio::net::TcpListener;
use tonic::{
    Request,
    service::interceptor::InterceptedService,
    transport::{Channel, Endpoint, Server, server::TcpIncoming},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::StatusExt as _;

type ExampleServerError = Box<dyn Error + Send + Sync>;

/// Serves until the future is dropped.
async fn serve(listener: TcpListener) -> Result<(), ExampleServerError> {
    let rules = Rules::new();

    // A layer checks every call before it is decoded: five per hour and address.
    let per_client = rules.declare(RuleConfig::new("per-client").quota("5/h")?)?;
    let gate = Gate::new([RequestLimit::new(per_client).key(key::peer())]);
    let slots = Semaphore::new(100)?;

    // An interceptor belongs to one service and reads the metadata: three per hour and tenant.
    let per_tenant = rules.declare(RuleConfig::new("per-tenant").quota("3/h")?)?;
    let per_tenant = RequestLimit::new(per_tenant).key(key::header("x-tenant")?);
    let (_reporter, health) = tonic_health::server::health_reporter();
    let health = InterceptedService::new(health, RuleInterceptor::new(per_tenant)?);

    let server = Server::builder()
        .layer(LimitLayer::new(gate))
        .layer(ConcurrencyLayer::new(slots))
        .add_service(health)
        .serve_with_incoming(TcpIncoming::from(listener));
    Ok(server.await?)
}

/// Makes calls for two tenants, and writes their results.
async fn call(address: SocketAddr, out: &mut impl io::Write) -> Result<(), ExampleServerError> {
    let channel: Channel = Endpoint::from_shared(format!("http://{address}"))?.connect().await?;
    let mut client = HealthClient::new(channel);
    for tenant in ["acme", "acme", "acme", "acme", "umbrella", "umbrella"] {
        let mut check = Request::new(HealthCheckRequest::default());
        check.metadata_mut().insert("x-tenant", tenant.parse()?);
        match client.check(check).await {
            Ok(answer) => writeln!(out, "{tenant}: {:?}", answer.into_inner().status())?,
            Err(status) => {
                let by = status.message().split(':').next().unwrap_or_default();
                let when = match status.get_details_retry_info() {
                    Some(_) => "with a retry time",
                    None => "without a retry time",
                };
                writeln!(out, "{tenant}: {:?} by {by}, {when}", status.code())?;
            }
        }
    }
    Ok(())
}

/// Runs the server on a free port, and the client.
pub(crate) async fn run(out: &mut impl io::Write) -> Result<(), ExampleServerError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::select! {
        ended = serve(listener) => ended,
        called = call(address, out) => called,
    }
}

#[tokio::main]
#[allow(dead_code, reason = "the test calls `run`")]
async fn main() -> ExitCode {
    match run(&mut io::stdout()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tonic: {error}");
            ExitCode::FAILURE
        }
    }
}
