//! What a policy says, as values: one type for each thing that a file can say.
//!
//! Everything here was checked when it was read. Two files that say the same, in YAML, TOML or JSON, are equal values.

mod action;
mod decisions;
mod key;
mod matching;
mod observe;
mod rule;
mod server;

pub use action::{Fallback, OnLimit, Reject};
pub use decisions::{AdminSpec, Decisions, EnvVariable, Token};
pub use key::{CostSpec, Expression, KeyPart, KeySpec};
pub use matching::{Glob, Match, Network, PathPattern, PathTail, Segment, ValueGlobs};
pub use observe::{KeyDisplay, Metrics, Observe};
pub use rule::{
    AccessSpec, AdaptiveSpec, BandwidthSpec, BreakerSpec, ChargeSpec, PrioritySpec, QueueOrder, QueueSpec,
    Quotas, RuleEnforcement, RuleSpec, StatusPattern, Tiers,
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

/// All that a file says, with what it includes (`include: [more.yaml]`), and with `templates` written out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// `listen`: where requests come in.
    pub listen: Vec<ListenerSpec>,
    /// `admin`: where operators come in, and what they must know.
    pub admin: AdminSpec,
    /// `decisions`: where programs ask for decisions, over HTTP.
    pub decisions: Option<Decisions>,
    /// `connections`: what a client may do before any rule is asked.
    pub connections: Connections,
    /// `upstreams`: where requests go, by name.
    pub upstreams: BTreeMap<String, Upstream>,
    /// `routes`: which requests go where; the first that matches.
    pub routes: Vec<RouteSpec>,
    /// `log`: what is written of each request.
    pub log: AccessLogSpec,
    /// `traces`: where spans of requests are sent.
    pub traces: Option<Traces>,
    /// `metrics`: where all numbers are sent.
    pub metrics: Option<Metrics>,
    /// `observe`: what is kept of single requests, for operators.
    pub observe: Observe,
    /// `store` and `stores`: where counts are kept.
    pub stores: Stores,
    /// `trusted-proxies`: whose word on addresses of clients counts.
    pub trusted_proxies: Vec<Prefix>,
    /// `introduce`: what servers are told of clients.
    pub forwarded_headers: ForwardedHeaders,
    /// `user`: where the name of a user is found in a request; rules with the key `user` need it.
    pub user: Option<KeySpec>,
    /// `headers`: how clients are told what is left.
    pub headers: HeaderStyle,
    /// `lists`: addresses by the name of their list.
    pub lists: BTreeMap<String, AddressList>,
    /// `rules`, in their order.
    pub rules: Vec<RuleSpec>,
}

/// Where counts are kept. Shows no addresses in [`Debug`](fmt::Debug), since they may hold passwords.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Stores {
    /// `store`: that of rules that name none; memory where it is left out. An address as in settings, which may name
    /// variables of the environment.
    pub default: Option<String>,
    /// `stores`: others, by name.
    pub named: BTreeMap<String, String>,
    /// `prefix`: what all keys in a store start with.
    pub prefix: Option<String>,
    /// `deadline`: how long a store may take.
    pub deadline: Option<Duration>,
    /// `on-outage`: what is decided when it is away.
    pub on_outage: Option<FailureMode>,
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stores")
            .field("default", &self.default.as_ref().map(|_| "…"))
            .field("named", &self.named.keys())
            .field("prefix", &self.prefix)
            .field("deadline", &self.deadline)
            .field("on_outage", &self.on_outage)
            .finish()
    }
}

/// Addresses, said here or in files: `office: [192.0.2.0/24]`, or `{ networks: 192.0.2.0/24, files: [office.txt] }`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressList {
    /// Networks that are said here.
    pub networks: Vec<Prefix>,
    /// Files with one network on each line, which are read again when they change.
    pub files: Vec<PathBuf>,
}
