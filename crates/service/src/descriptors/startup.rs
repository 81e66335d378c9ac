//! What a decision service is made of, as its environment says.

use super::{
    ConfigLoadError, ConfigSourceSettings, CountingChoice, DescriptorDirectory, DescriptorService,
    Environment, ResponseHeaderMode, ServerError, ServiceSettings, SharedKeys, StartMode, WindowClock,
    server::ConfigSource,
    xds::{DEFAULT_MAX_MESSAGE_SIZE, XdsBackoff, XdsClient, XdsSettings, XdsTls},
};
use http::{HeaderName, HeaderValue};
use std::sync::Arc;
use tidegate_http_server::{Certificate, Roots};
use tidegate_limiter::{CounterStore, Store};
use tidegate_policy::model::Tls;
use tokio_rustls::rustls::pki_types::ServerName;

/// Where a decision service counts.
#[derive(Clone, Debug, Default)]
pub struct ServerStores {
    /// What is counted by limiters of ours; in this process without it.
    pub store: Option<Arc<dyn Store>>,
    /// The same for limits per second, if that is another.
    pub per_second: Option<Arc<dyn Store>>,
    /// The numbers that a fleet of envoyproxy/ratelimit counts in.
    pub counter_store: Option<Arc<dyn CounterStore>>,
    /// The same for limits per second, if those are elsewhere.
    pub counter_store_per_second: Option<Arc<dyn CounterStore>>,
}

/// Reads the limits, or begins to ask for them.
pub(super) fn open_config_source(
    environment: &Environment,
    service: &DescriptorService,
) -> Result<ConfigSource, ServerError> {
    match &environment.source {
        ConfigSourceSettings::Folder { folder, dotfiles } => {
            let source = DescriptorDirectory::new(folder).with_dotfiles(*dotfiles).merge(environment.merge);
            let mut source = Box::new(source);
            match (source.load(), environment.start) {
                (Ok(set), _) => service.load(Arc::new(set)),
                // A folder that is not there is a typing error more often than one that comes later.
                (Err(ConfigLoadError::Unreadable { path, source }), StartMode::WaitForConfig)
                    if path == *folder =>
                {
                    return Err(ServerError::Config(
                        ConfigLoadError::Unreadable { path, source }.to_string(),
                    ));
                }
                // A file with a mistake is corrected while it runs, as in envoyproxy/ratelimit.
                (Err(error), _) => {
                    service.metrics().record_config_error();
                    tracing::error!(%error, "configuration rejected; serving without limits until it is corrected");
                }
            }
            Ok(ConfigSource::Folder(source))
        }
        ConfigSourceSettings::Xds(xds) => {
            let header = |(name, value): &(String, String)| {
                let (name, value) = (HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?);
                Some((name, value))
            };
            let client = XdsClient::new(XdsSettings {
                server: xds.server.clone(),
                node_id: xds.node_id.clone(),
                tls: xds.tls.as_ref().map(|tls| XdsTls {
                    roots: tls.ca.clone().map_or(Roots::System, Roots::File),
                    identity: tls.certificate.clone().zip(tls.key.clone()),
                    server_name: tls.server_name.clone(),
                }),
                headers: xds.headers.iter().filter_map(header).collect(),
                backoff: XdsBackoff { initial: xds.backoff.0, max: xds.backoff.1 },
                max_message_size: xds.max_message.unwrap_or(DEFAULT_MAX_MESSAGE_SIZE),
            });
            let client = client.map_err(|error| ServerError::Config(error.to_string()))?;
            Ok(ConfigSource::Xds(Box::new(client), environment.merge))
        }
    }
}

/// How it counts, and what it tells.
pub(super) fn service_settings(
    environment: &Environment,
    stores: ServerStores,
) -> Result<ServiceSettings, ServerError> {
    let Environment { counting, responses: answers, tidegate: own, .. } = environment;
    let ServerStores { store, per_second, counter_store, counter_store_per_second } = stores;
    let shared = match (own.counting, counter_store) {
        (CountingChoice::Reference | CountingChoice::Atomic, _) => None,
        (CountingChoice::Shared, Some(tally)) => Some(SharedKeys {
            counter_store: tally,
            per_second: counter_store_per_second,
            prefix: counting.prefix.clone(),
            jitter: counting.expiration_jitter,
            window_time: WindowClock::System,
        }),
        (CountingChoice::Shared, None) => {
            return Err(ServerError::Unsupported(
                "TIDEGATE_COUNTING is `shared`, and there is no store to share; set REDIS_URL to that of the fleet",
            ));
        }
    };
    Ok(ServiceSettings {
        counting: own.counting.mode(),
        store,
        per_second,
        shared_keys: shared,
        local_cache: counting.local_cache,
        deadline: environment.deadline(),
        lease: own.lease,
        outage: own.outage,
        over_limit_counting: counting.over_limit_counting,
        enforcement: counting.enforcement,
        quota_mode: counting.quota_mode,
        near_limit_ratio: counting.near_limit_ratio,
        headers: own.headers.clone().unwrap_or_else(|| {
            answers.headers.clone().map_or(ResponseHeaderMode::None, ResponseHeaderMode::Custom)
        }),
        body: own.body,
        metadata: answers.metadata,
        ..ServiceSettings::default()
    })
}

/// Its certificate, and of whom it wants one.
pub(super) fn load_certificate(environment: &Environment) -> Result<Option<Arc<Certificate>>, ServerError> {
    let Some(tls) = &environment.tls else { return Ok(None) };
    let name = match (&tls.client_name, &tls.client_ca) {
        (None, _) => None,
        (Some(name), Some(_)) => {
            let unable =
                "GRPC_CLIENT_TLS_SAN is no name of a host and no address; say one, such as envoy.example.org";
            Some(ServerName::try_from(name.clone()).map_err(|_| ServerError::Unsupported(unable))?)
        }
        // To leave it out would let in whom it keeps out.
        (Some(_), None) => {
            return Err(ServerError::Unsupported(
                "GRPC_CLIENT_TLS_SAN means nothing without an authority; set GRPC_CLIENT_TLS_CACERT, too",
            ));
        }
    };
    let files =
        Tls { certificate: tls.certificate.clone(), key: tls.key.clone(), client_ca: tls.client_ca.clone() };
    Certificate::load_with_client_name(&files, name.as_ref()).map(Some).map_err(ServerError::Listen)
}
