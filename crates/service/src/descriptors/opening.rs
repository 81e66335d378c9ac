//! What a decision service is made of, as its environment says.

use super::{
    CountingWay, DescriptorService, DescriptorSource, Environment, HostError, ServiceSettings, SharedKeys,
    SourceError, SourceSettings, Start, TellHeaders, WindowTime,
    host::Limits,
    xds::{Backoff, MAX_MESSAGE, XdsClient, XdsSettings, XdsTls},
};
use http::{HeaderName, HeaderValue};
use std::sync::Arc;
use tidegate_http_server::{Certificate, Roots};
use tidegate_limiter::{CounterStore, Store};
use tidegate_policy::model::Tls;
use tokio_rustls::rustls::pki_types::ServerName;

/// Where a decision service counts.
#[derive(Clone, Debug, Default)]
pub struct HostStores {
    /// What is counted by limiters of ours; in this process without it.
    pub store: Option<Arc<dyn Store>>,
    /// The same for limits per second, if that is another.
    pub per_second: Option<Arc<dyn Store>>,
    /// The numbers that a fleet of envoyproxy/ratelimit counts in.
    pub tally: Option<Arc<dyn CounterStore>>,
    /// The same for limits per second, if those are elsewhere.
    pub tally_per_second: Option<Arc<dyn CounterStore>>,
}

/// Reads the limits, or begins to ask for them.
pub(super) fn limits(environment: &Environment, service: &DescriptorService) -> Result<Limits, HostError> {
    match &environment.source {
        SourceSettings::Folder { folder, dotfiles } => {
            let source = DescriptorSource::new(folder).dotfiles(*dotfiles).merge(environment.merge);
            let mut source = Box::new(source);
            match (source.load(), environment.start) {
                (Ok(set), _) => service.load(Arc::new(set)),
                // A folder that is not there is a typing error more often than one that comes later.
                (Err(SourceError::Unread { path, source }), Start::WithDescriptors) if path == *folder => {
                    return Err(HostError::Limits(SourceError::Unread { path, source }.to_string()));
                }
                // A file with a mistake is corrected while it runs, as in envoyproxy/ratelimit.
                (Err(error), _) => {
                    service.metrics().config_refused();
                    tracing::error!(%error, "configuration rejected; serving without limits until it is corrected");
                }
            }
            Ok(Limits::Folder(source))
        }
        SourceSettings::Xds(said) => {
            let header = |(name, value): &(String, String)| {
                let (name, value) = (HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?);
                Some((name, value))
            };
            let client = XdsClient::new(XdsSettings {
                server: said.server.clone(),
                node: said.node_id.clone(),
                tls: said.tls.as_ref().map(|tls| XdsTls {
                    roots: tls.authority.clone().map_or(Roots::System, Roots::File),
                    identity: tls.certificate.clone().zip(tls.key.clone()),
                    name: tls.server_name.clone(),
                }),
                headers: said.headers.iter().filter_map(header).collect(),
                backoff: Backoff { first: said.backoff.0, most: said.backoff.1 },
                max_message: said.max_message.unwrap_or(MAX_MESSAGE),
            });
            let client = client.map_err(|error| HostError::Limits(error.to_string()))?;
            Ok(Limits::Server(Box::new(client), environment.merge))
        }
    }
}

/// How it counts, and what it tells.
pub(super) fn settings(environment: &Environment, stores: HostStores) -> Result<ServiceSettings, HostError> {
    let Environment { counting, answers, own, .. } = environment;
    let HostStores { store, per_second, tally, tally_per_second } = stores;
    let shared = match (own.counting, tally) {
        (CountingWay::Theirs | CountingWay::Atomic, _) => None,
        (CountingWay::Shared, Some(tally)) => Some(SharedKeys {
            tally,
            per_second: tally_per_second,
            prefix: counting.prefix.clone(),
            jitter: counting.expiration_jitter,
            time: WindowTime::Wall,
        }),
        (CountingWay::Shared, None) => {
            return Err(HostError::Unable(
                "TIDEGATE_COUNTING is `shared`, and there is no store to share; set REDIS_URL to that of the fleet",
            ));
        }
    };
    Ok(ServiceSettings {
        counting: own.counting.counting(),
        store,
        per_second,
        shared,
        local_cache: counting.local_cache,
        deadline: environment.deadline(),
        lease: own.lease,
        outage: own.outage,
        when_over: counting.over_limit,
        enforcement: counting.shadow,
        quota_mode: counting.quota_mode,
        near_limit_ratio: counting.near_limit_ratio,
        headers: own
            .headers
            .clone()
            .unwrap_or_else(|| answers.headers.clone().map_or(TellHeaders::Nothing, TellHeaders::Three)),
        body: own.body,
        metadata: answers.metadata,
        ..ServiceSettings::default()
    })
}

/// Its certificate, and of whom it wants one.
pub(super) fn certificate(environment: &Environment) -> Result<Option<Arc<Certificate>>, HostError> {
    let Some(tls) = &environment.tls else { return Ok(None) };
    let name = match (&tls.client_name, &tls.client_authority) {
        (None, _) => None,
        (Some(name), Some(_)) => {
            let unable =
                "GRPC_CLIENT_TLS_SAN is no name of a host and no address; say one, such as envoy.example.org";
            Some(ServerName::try_from(name.clone()).map_err(|_| HostError::Unable(unable))?)
        }
        // To leave it out would let in whom it keeps out.
        (Some(_), None) => {
            return Err(HostError::Unable(
                "GRPC_CLIENT_TLS_SAN means nothing without an authority; set GRPC_CLIENT_TLS_CACERT, too",
            ));
        }
    };
    let files = Tls {
        certificate: tls.certificate.clone(),
        key: tls.key.clone(),
        client_ca: tls.client_authority.clone(),
    };
    Certificate::load_for(&files, name.as_ref()).map(Some).map_err(HostError::Listen)
}
