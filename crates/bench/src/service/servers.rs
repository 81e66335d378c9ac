//! The servers: the decision service, and stubs that respond without a decision.

use crate::BenchResult;
use axum::{Router, routing};
use std::{net::SocketAddr, num::NonZeroUsize, path::Path, sync::Arc, time::Duration};
use tidegate_gateway::{Gateway, PolicySource};
use tidegate_proto::rls::{
    Code, RateLimitRequest, RateLimitResponse, RateLimitService, RateLimitServiceServer,
};
use tidegate_redis::RedisStore;
use tidegate_service::descriptors::{Environment, RateLimitServer, ServerStores};
use tokio::{net::TcpListener, runtime::Runtime};
use tonic::{Request, Response, Status, transport::Server};

/// Runs the decision service with the limits of a folder.
pub(crate) fn serve_limits(folder: &str, address: &str, store: &str) -> BenchResult<()> {
    let address: SocketAddr = address.parse()?;
    let (folder, port) = (Path::new(folder), address.port().to_string());
    let root = folder.parent().ok_or("the folder has no parent")?.display().to_string();
    let name = folder.file_name().ok_or("the folder has no name")?.to_string_lossy().into_owned();
    let variables = [
        ("RUNTIME_ROOT", root.as_str()),
        ("RUNTIME_SUBDIRECTORY", ""),
        ("RUNTIME_APPDIRECTORY", name.as_str()),
        ("GRPC_PORT", port.as_str()),
        ("PORT", "0"),
        ("DEBUG_PORT", "0"),
    ];
    let environment = Environment::parse(variables).map_err(|error| error.to_string())?;
    runtime()?.block_on(async {
        let store = match store {
            "" => None,
            url => Some(Arc::new(RedisStore::builder().deadline(DEADLINE).connect(url).await?)
                as Arc<dyn tidegate_limiter::Store>),
        };
        let server = RateLimitServer::open(&environment, ServerStores { store, ..ServerStores::default() })
            .map_err(|error| error.to_string())?;
        server.run(std::future::pending()).await.map_err(|error| error.to_string())?;
        Ok(())
    })
}

/// Longer than the service's own deadline.
const DEADLINE: Duration = Duration::from_millis(100);

/// Runs the HTTP decision API of a policy.
pub(crate) fn serve_policy(file: &str) -> BenchResult<()> {
    let gateway = Gateway::open(PolicySource::file(Path::new(file)), tidegate::rules())?;
    runtime()?.block_on(gateway.workers(NonZeroUsize::MIN).run(std::future::pending()))?;
    Ok(())
}

/// Runs a tonic server that responds OK without a decision.
pub(crate) fn serve_stub_grpc(address: &str) -> BenchResult<()> {
    let address = address.parse()?;
    let serve = Server::builder().add_service(RateLimitServiceServer::new(StubService)).serve(address);
    Ok(runtime()?.block_on(serve)?)
}

struct StubService;

#[tonic::async_trait]
impl RateLimitService for StubService {
    async fn should_rate_limit(
        &self,
        _: Request<RateLimitRequest>,
    ) -> std::result::Result<Response<RateLimitResponse>, Status> {
        Ok(Response::new(RateLimitResponse { overall_code: Code::Ok.into(), ..Default::default() }))
    }
}

/// Runs an axum server that responds 200 without a decision.
pub(crate) fn serve_stub_http(address: &str) -> BenchResult<()> {
    runtime()?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        let router = Router::new().route("/v1/check", routing::post(|| async { r#"{"allowed":true}"# }));
        Ok(axum::serve(listener, router).await?)
    })
}

/// One worker thread, because it has one core.
fn runtime() -> BenchResult<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
}
