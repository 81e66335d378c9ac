//! What a gateway is told before it starts.

use crate::Tracing;
use std::{collections::BTreeMap, num::NonZeroUsize, thread};
use tidegate_access::Prefix;
use tidegate_http_server::Roots;
use tidegate_policy::model::{AccessLogSpec, Connections, ForwardedHeaders, Policy, Upstream};

/// What a policy says of connections and upstreams; its rules and routes are the business of a [`RequestFilter`](crate::RequestFilter).
#[derive(Clone, Debug)]
pub struct Config {
    /// What a client may do before anything is judged.
    pub connections: Connections,
    /// Where requests go, by name.
    pub upstreams: BTreeMap<String, Upstream>,
    /// Whose word on clients counts: their forwarding headers are added to, those of others are replaced.
    pub trusted_proxies: Vec<Prefix>,
    /// What servers are told of clients.
    pub forwarded_headers: ForwardedHeaders,
    /// What is written of each request.
    pub log: AccessLogSpec,
    /// Where traces of requests are sent, if anywhere.
    pub traces: Option<Tracing>,
    /// Whose certificates of servers are believed.
    pub roots: Roots,
    /// Threads.
    pub workers: NonZeroUsize,
}

/// An upstream of a [`Config`], found once by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamId(pub(crate) usize);

impl Config {
    /// What this policy says, on a thread for each core.
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

    /// The upstream with this name.
    pub fn upstream_id(&self, name: &str) -> Option<UpstreamId> {
        self.upstreams.keys().position(|known| known == name).map(UpstreamId)
    }
}
