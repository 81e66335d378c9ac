//! The rate limit service: limits by descriptors, for Envoy and other clients of its protocol.
//!
//! ```text
//!   gRPC, /json ──▶ DomainRequest ──▶ DescriptorSet (limits) ──▶ counters ──▶ DomainVerdict ──▶ gRPC, /json
//! ```
//!
//! Transports only convert between wire types and these types; counters do not depend on a transport.

mod active_config;
mod count;
mod counters;
mod debug;
mod decide;
mod environment;
mod exposition;
mod health;
mod lookup;
mod metrics;
mod request;
mod reserve;
mod server;
mod service;
mod settings;
mod source;
mod startup;
mod statsd;
pub mod transport;
mod verdict;
pub mod xds;

pub use debug::{debug_page, health_page, metrics_page};
pub use decide::Decide;
pub use environment::{
    ApiToken, ConfigSourceSettings, CountingChoice, CountingSettings, Endpoint, Environment,
    EnvironmentError, GrpcBindAddress, HostnameVerification, Mogrifier, PrometheusSettings, RedisSettings,
    ResponseSettings, ServerTls, ServiceLogFormat, StartMode, StatsdProtocol, StatsdSettings,
    TidegateSettings, XdsEnvironment, XdsTlsFiles,
};
pub use health::{ConfigRequirement, HealthStatus, ServiceHealth, StoreRequirement};
pub use lookup::{ConfigLookup, DomainLookup};
pub use metrics::ServiceMetrics;
pub use request::{
    DecisionError, DomainRequest, DomainVerdict, LimitCode, LimitOverride, LimitStatus, RequestDescriptor,
};
pub use reserve::ReservedHits;
pub use server::{RateLimitServer, ServerError};
pub use service::DescriptorService;
pub use settings::{
    CountingMode, GlobalEnforcement, HeaderNames, OverLimitCounting, QuotaMode, ResponseBodyMode,
    ResponseHeaderMode, ResponseMetadataMode, ServiceSettings, SharedKeys, WindowClock,
};
pub use source::{ConfigLoadCounters, ConfigLoadError, DescriptorDirectory, Dotfiles};
pub use startup::ServerStores;
