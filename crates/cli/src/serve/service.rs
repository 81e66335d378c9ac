//! `tidegate serve --envoy-config`: limits by descriptors, for Envoy.

use crate::{
    failure::Failure,
    terminal::{self, Paint, Tone},
};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tidegate_redis::RedisStore;
use tidegate_server::descriptors::{DescriptorSource, HostSettings, ServiceHost, ServiceSettings};

/// What the command line says of a decision service.
#[derive(Debug, clap::Args)]
pub(crate) struct ServiceArgs {
    /// Serve limits by descriptors: a folder of files in the form of envoyproxy/ratelimit
    #[arg(long, value_name = "DIR", conflicts_with_all = ["file", "workers"])]
    pub(crate) envoy_config: Option<PathBuf>,

    /// Where to count; in this process unless told otherwise
    #[arg(long, value_name = "URL", requires = "envoy_config")]
    store: Option<String>,

    /// Where gRPC is spoken
    #[arg(long, value_name = "ADDRESS", requires = "envoy_config", default_value = "127.0.0.1:8081")]
    grpc: SocketAddr,

    /// Where `/json` and `/healthcheck` are
    #[arg(long, value_name = "ADDRESS", requires = "envoy_config", default_value = "127.0.0.1:8080")]
    http: SocketAddr,

    /// Where `/rlconfig`, `/stats` and `/metrics` are
    #[arg(long, value_name = "ADDRESS", requires = "envoy_config", default_value = "127.0.0.1:6070")]
    debug: SocketAddr,
}

/// Envoy waits for 20 ms unless told otherwise.
const DEADLINE: Duration = Duration::from_millis(10);

/// Reads the files and binds the addresses.
pub(crate) fn open(args: &ServiceArgs, directory: &Path) -> Result<ServiceHost, Failure> {
    let mut service = ServiceSettings::default();
    if let Some(url) = &args.store {
        let store = RedisStore::builder().deadline(DEADLINE).open(url);
        service.store = Some(Arc::new(store.map_err(|error| Failure::input(error.to_string()))?));
    }
    let settings = HostSettings {
        http: args.http,
        grpc: args.grpc,
        debug: args.debug,
        source: DescriptorSource::directory(directory),
        service,
    };
    ServiceHost::open(settings).map_err(|error| Failure::input(error.to_string()))
}

/// Says where it listens.
pub(crate) fn tell(host: &ServiceHost, paint: Paint) -> Result<(), Failure> {
    let [http, grpc, debug] = host.addresses();
    let strong = |text: String| paint.tone(Tone::Strong, text);
    let (grpc, json) = (strong(grpc.to_string()), strong(format!("http://{http}/json")));
    terminal::print(&format!(
        "gRPC     {grpc}\nJSON     {json}\npages    {}\n",
        strong(format!("http://{debug}/"))
    ))
}
