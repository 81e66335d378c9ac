//! The data model of policies.
//!
//! The reader validates all values. Files with the same content in YAML, TOML or JSON are equal values.

mod action;
mod decisions;
mod identity;
mod key;
mod load;
mod matching;
mod observe;
mod overrides;
mod rule;
mod server;

pub use action::{Fallback, FallbackResponse, OnLimit, Reject};
pub use decisions::{AdminSpec, DecisionListener, EnvVariable, OperatorRole, OperatorToken, Token};
pub(crate) use identity::DEFAULT_INVALID_QUOTA;
pub use identity::{ApiKeysSpec, IdentitySpec, JwtSpec, KeySetLocation};
pub(crate) use key::DEFAULT_COST;
pub use key::{CostSpec, Expression, KeyPart, KeySpec};
pub use load::{FailingSpec, FeatureSpec, LoadSignalSpec, LoadSpec, ScaleSpec, ShedSpec};
pub use matching::{
    ApiKeyMatch, ClientCertificateMatch, Glob, Match, Network, PathPattern, PathTail, Segment, ValueGlobs,
};
pub use observe::{KeyDisplay, Metrics, Observe};
pub use overrides::OverrideLocation;
pub(crate) use rule::MIN_PLAIN_SIZE;
pub use rule::{
    AccessSpec, AdaptiveSpec, BandwidthRate, BandwidthSpec, BreakerSpec, BreakerWindow, ChargeSpec,
    PrioritySpec, QueueOrder, QueueSpec, Quotas, RuleEnforcement, RuleSpec, SettleSource, SettleSpec,
    StatusPattern, Tiers,
};
pub use server::{
    AccessLogFormat, AccessLogSpec, Balance, Connections, EscapedSlashes, ForwardedHeaders, HealthCheck,
    ListenerSpec, Protocol, Respond, Retries, RouteAction, RouteSpec, Timeouts, Tls, Traces, Underscores,
    Upstream, UpstreamServer,
};

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};
use tidegate_access::Prefix;
use tidegate_limiter::FailureMode;
use tidegate_rule::HeaderStyle;

/// A policy, with included files merged and templates expanded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// `listen`: the addresses that the gateway listens on.
    pub listen: Vec<ListenerSpec>,
    /// `admin`: the admin API.
    pub admin: AdminSpec,
    /// `decisions`: the decision API over HTTP.
    pub decisions: Option<DecisionListener>,
    /// `envoy`: the rate limit service for Envoy, over gRPC.
    pub envoy: Option<DecisionListener>,
    /// `connections`: limits of connections and requests that apply before any rule.
    pub connections: Connections,
    /// `upstreams` by name.
    pub upstreams: BTreeMap<String, Upstream>,
    /// `routes`. The first one that matches applies.
    pub routes: Vec<RouteSpec>,
    /// `log`: the access log.
    pub log: AccessLogSpec,
    /// `traces`: the export of spans.
    pub traces: Option<Traces>,
    /// `metrics`: the export of metrics.
    pub metrics: Option<Metrics>,
    /// `observe`: what is recorded of single requests.
    pub observe: Observe,
    /// `overrides`: where the overrides of quotas by operators are stored.
    pub overrides: Option<OverrideLocation>,
    /// `store` and `stores`: the stores of the counters.
    pub stores: Stores,
    /// `trusted-proxies`: the proxies whose `X-Forwarded-For` header determines the address of the client.
    pub trusted_proxies: Vec<Prefix>,
    /// `forwarded-headers`: the headers that describe the client to upstream servers.
    pub forwarded_headers: ForwardedHeaders,
    /// `user`: where a request carries the name of the user. Rules with the key `user` need it.
    pub user: Option<KeySpec>,
    /// `identity`: how clients prove who they are. Rules with the key `jwt` need it.
    pub identity: IdentitySpec,
    /// `headers`: the style of the rate limit headers.
    pub headers: HeaderStyle,
    /// `load`: how the load of the machine is measured.
    pub load: Option<LoadSpec>,
    /// `features`, the most important first.
    pub features: Vec<FeatureSpec>,
    /// `feature-recovery`: the minimum time between two features that are enabled again.
    pub feature_recovery: Option<Duration>,
    /// `lists`: address lists by name.
    pub lists: BTreeMap<String, AddressList>,
    /// `rules`, in order.
    pub rules: Vec<RuleSpec>,
}

impl Policy {
    /// The files besides the policy itself: of lists and of keys. They are reloaded when they change.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let key_set = match self.identity.jwt.as_ref().map(|jwt| &jwt.keys) {
            Some(KeySetLocation::File(file)) => Some(file),
            _ => None,
        };
        let api_keys = self.identity.api_keys.as_ref().map(|keys| &keys.file);
        self.lists.values().flat_map(|list| &list.files).chain(key_set).chain(api_keys)
    }
}

/// The stores of the counters. [`Debug`](fmt::Debug) omits addresses, because they may contain passwords.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Stores {
    /// `store`: the default store; memory if `None`. An address as in settings, which may contain environment variables.
    pub default: Option<String>,
    /// `stores`: other stores by name.
    pub named: BTreeMap<String, String>,
    /// `prefix`: the prefix of all keys in a store.
    pub prefix: Option<String>,
    /// `deadline`: the time that a decision waits for a store.
    pub deadline: Option<Duration>,
    /// `failure-mode`: the decision while a store is unavailable.
    pub failure_mode: Option<FailureMode>,
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stores")
            .field("default", &self.default.as_ref().map(|_| "…"))
            .field("named", &self.named.keys())
            .field("prefix", &self.prefix)
            .field("deadline", &self.deadline)
            .field("failure_mode", &self.failure_mode)
            .finish()
    }
}

/// An address list: `internal: [192.0.2.0/24]`, or `{ networks: 192.0.2.0/24, files: [internal.txt] }`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressList {
    /// Networks in the policy file.
    pub networks: Vec<Prefix>,
    /// Files with one network per line. They are reloaded when they change.
    pub files: Vec<PathBuf>,
}
