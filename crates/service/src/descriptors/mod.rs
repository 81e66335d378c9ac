//! The decision service: limits by descriptors, for Envoy and whoever speaks its protocol.
//!
//! ```text
//!   gRPC, /json ──▶ DomainAsk ──▶ DescriptorSet (which limits) ──▶ counters (how many) ──▶ DomainVerdict ──▶ gRPC, /json
//! ```
//!
//! Wires translate and decide nothing; counters know no wire.

mod ask;
mod count;
mod counters;
mod debug;
mod decide;
mod environment;
mod exposition;
mod force;
mod health;
mod held;
mod host;
mod lookup;
mod metrics;
mod opening;
mod service;
mod settings;
mod source;
mod statsd;
mod verdict;
pub mod wire;
pub mod xds;

pub use ask::{
    AskedDescriptor, DescriptorFault, DescriptorStatus, DomainAsk, DomainVerdict, OverLimit, Override,
};
pub use debug::{debug_page, health_page, metrics_page};
pub use decide::Decide;
pub use environment::{
    AdminToken, AnswerSettings, CountingSettings, CountingWay, Endpoint, Environment, EnvironmentError,
    GrpcEndpoint, HostNames, LogFormat, Mogrifier, OwnSettings, PrometheusSettings, RedisSettings, ServerTls,
    SourceSettings, Start, StatsdProtocol, StatsdSettings, XdsFiles, XdsVariables,
};
pub use health::{ConfigNeed, Health, HealthStatus, StoreNeed};
pub use held::HeldHits;
pub use host::{HostError, ServiceHost};
pub use lookup::{DomainLookup, Lookup};
pub use metrics::ServiceMetrics;
pub use opening::HostStores;
pub use service::DescriptorService;
pub use settings::{
    Counting, Enforcement, HeaderNames, QuotaMode, ServiceSettings, SharedKeys, TellBody, TellHeaders,
    TellMetadata, WhenOver, WindowTime,
};
pub use source::{DescriptorSource, Dotfiles, LoadCounts, SourceError};
