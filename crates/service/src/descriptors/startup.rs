//! Builds the parts of the rate limit service from its environment.

use super::{
    ConfigLoadError, ConfigSourceSettings, CountingChoice, DescriptorDirectory, DescriptorService,
    Environment, ResponseHeaderMode, ServerError, ServiceSettings, SharedKeys, StartMode, WindowClock,
    server::ConfigSource,
    xds::{DEFAULT_MAX_MESSAGE_SIZE, XdsBackoff, XdsClient, XdsSettings, XdsTls},
};
use crate::events;
use http::{HeaderName, HeaderValue};
use std::sync::Arc;
use tidegate_http_server::{Certificate, Roots};
use tidegate_limiter::{CounterStore, Store};
use tidegate_policy::model::Tls;
use tokio_rustls::rustls::pki_types::ServerName;

/// The stores of the counters.
#[derive(Clone, Debug, Default)]
pub struct ServerStores {
    /// The store of Tidegate limiters; without it, the service counts in memory.
    pub store: Option<Arc<dyn Store>>,
    /// The same for limits per second, if it is a separate store.
    pub per_second: Option<Arc<dyn Store>>,
    /// The store of counters in the keys of envoyproxy/ratelimit.
    pub counter_store: Option<Arc<dyn CounterStore>>,
    /// The same for limits per second, if it is a separate store.
    pub counter_store_per_second: Option<Arc<dyn CounterStore>>,
}

/// Opens the source of the configuration. Loads it at once if it is a folder.
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
                // A missing folder is more often a typing error than a folder that appears later.
                (Err(ConfigLoadError::Unreadable { path, source }), StartMode::WaitForConfig)
                    if path == *folder =>
                {
                    return Err(ServerError::Config(
                        ConfigLoadError::Unreadable { path, source }.to_string(),
                    ));
                }
                // An invalid file can be corrected while the service runs, as in envoyproxy/ratelimit.
                (Err(error), _) => {
                    service.metrics().record_config_error();
                    events::InitialConfigRejected { error: &error }.emit();
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

/// Builds the settings of the service.
pub(super) fn service_settings(
    environment: &Environment,
    stores: ServerStores,
) -> Result<ServiceSettings, ServerError> {
    let Environment { counting, responses, tidegate: own, .. } = environment;
    let ServerStores { store, per_second, counter_store, counter_store_per_second } = stores;
    let shared_keys = match (own.counting, counter_store) {
        (CountingChoice::Reference | CountingChoice::Atomic, _) => None,
        (CountingChoice::Shared, Some(counter_store)) => Some(SharedKeys {
            counter_store,
            per_second: counter_store_per_second,
            prefix: counting.prefix.clone(),
            jitter: counting.expiration_jitter,
            window_time: WindowClock::System,
        }),
        (CountingChoice::Shared, None) => {
            return Err(ServerError::Unsupported(
                "TIDEGATE_COUNTING=shared requires a Redis store; set REDIS_URL to that of envoyproxy/ratelimit",
            ));
        }
    };
    Ok(ServiceSettings {
        counting: own.counting.mode(),
        store,
        per_second,
        shared_keys,
        local_cache: counting.local_cache,
        deadline: environment.deadline(),
        lease: own.lease,
        outage: own.outage,
        over_limit_counting: counting.over_limit_counting,
        enforcement: counting.enforcement,
        quota_mode: counting.quota_mode,
        near_limit_ratio: counting.near_limit_ratio,
        headers: own.headers.clone().unwrap_or_else(|| {
            responses.headers.clone().map_or(ResponseHeaderMode::None, ResponseHeaderMode::Custom)
        }),
        body: own.body,
        metadata: responses.metadata,
        ..ServiceSettings::default()
    })
}

/// Loads the certificate of the gRPC server, and the CA of client certificates.
pub(super) fn load_certificate(environment: &Environment) -> Result<Option<Arc<Certificate>>, ServerError> {
    let Some(tls) = &environment.tls else { return Ok(None) };
    let name = match (&tls.client_name, &tls.client_ca) {
        (None, _) => None,
        (Some(name), Some(_)) => {
            let problem = "invalid GRPC_CLIENT_TLS_SAN; set it to a host name or an IP address, such as envoy.example.org";
            Some(ServerName::try_from(name.clone()).map_err(|_| ServerError::Unsupported(problem))?)
        }
        // Ignoring the name would admit clients that the operator means to reject.
        (Some(_), None) => {
            return Err(ServerError::Unsupported(
                "GRPC_CLIENT_TLS_SAN requires a CA; set GRPC_CLIENT_TLS_CACERT too",
            ));
        }
    };
    let files =
        Tls { certificate: tls.certificate.clone(), key: tls.key.clone(), client_ca: tls.client_ca.clone() };
    Certificate::load_with_client_name(&files, name.as_ref()).map(Some).map_err(ServerError::Listen)
}
