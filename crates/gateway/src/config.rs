//! The configuration of a gateway's workers.

use crate::Tracing;
use std::{collections::BTreeMap, num::NonZeroUsize, thread};
use tidegate_access::Prefix;
use tidegate_http_server::Roots;
use tidegate_policy::model::{AccessLogSpec, Connections, ForwardedHeaders, Policy, Upstream};

/// The connection and upstream settings of a policy. A [`RequestFilter`](crate::RequestFilter) applies its rules and routes.
#[derive(Clone, Debug)]
pub struct Config {
    /// The limits of client connections, before rules are checked.
    pub connections: Connections,
    /// The upstreams, by name.
    pub upstreams: BTreeMap<String, Upstream>,
    /// The proxies whose forwarding headers are extended. Those of other clients are replaced.
    pub trusted_proxies: Vec<Prefix>,
    /// The forwarding headers that are sent to servers.
    pub forwarded_headers: ForwardedHeaders,
    /// The access log.
    pub log: AccessLogSpec,
    /// The export of traces, if enabled.
    pub traces: Option<Tracing>,
    /// The CA certificates that verify upstream servers.
    pub roots: Roots,
    /// The number of worker threads.
    pub workers: NonZeroUsize,
}

/// The id of an upstream of a [`Config`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamId(pub(crate) usize);

impl Config {
    /// The configuration of this policy, with one worker per core.
    pub fn from_policy(policy: &Policy) -> Self {
        Self {
            connections: policy.connections.clone(),
            upstreams: policy.upstreams.clone(),
            trusted_proxies: policy.trusted_proxies.clone(),
            forwarded_headers: policy.forwarded_headers,
            log: policy.log.clone(),
            traces: policy.traces.clone().map(Tracing::new),
            roots: Roots::default(),
            workers: thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        }
    }

    /// Returns the id of the upstream with this name.
    pub fn upstream_id(&self, name: &str) -> Option<UpstreamId> {
        self.upstreams.keys().position(|known| known == name).map(UpstreamId)
    }
}
