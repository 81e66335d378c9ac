//! Messages of Envoy's rate limit service, and of what configures it.
//!
//! They are generated from the files under `proto`, which say as much of Envoy's interface as is used here, with its names
//! and numbers, and are checked in: whoever depends on this crate builds no generator. A test generates them again and
//! compares; with `TIDEGATE_BLESS=1` it writes them.
//!
//! | module | holds |
//! |---|---|
//! | [`rls`] | what Envoy asks, and what it is told |
//! | [`discovery`] | how a configuration is asked for, taken and refused |
//! | [`config`] | a configuration |
//! | [`json`] | messages as text |

pub mod json;

/// What Envoy asks, and what it is told.
pub mod rls {
    pub use crate::generated::envoy::{
        config::core::v3::HeaderValue,
        extensions::common::ratelimit::v3::{
            RateLimitDescriptor,
            rate_limit_descriptor::{Entry, RateLimitOverride},
        },
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse,
            rate_limit_response::{Code, DescriptorStatus, Quota, RateLimit, quota, rate_limit::Unit},
            rate_limit_service_client::RateLimitServiceClient,
            rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
        },
        r#type::v3::RateLimitUnit,
    };

    /// What the service is, for those who ask it for its description: files as `protoc` describes them.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/rls.bin");
}

/// How a configuration is asked for, taken and refused.
pub mod discovery {
    pub use crate::generated::{
        envoy::{
            config::core::v3::Node,
            service::discovery::v3::{
                DiscoveryRequest, DiscoveryResponse,
                aggregated_discovery_service_client::AggregatedDiscoveryServiceClient,
                aggregated_discovery_service_server::{
                    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
                },
            },
        },
        google::rpc::Status,
    };
}

/// A configuration.
pub mod config {
    pub use crate::generated::ratelimit::config::ratelimit::v3::{
        RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, RateLimitUnit,
    };
}

/// As deep as the packages are: code of one refers to another by how far away it is.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    clippy::restriction,
    reason = "nobody wrote it"
)]
mod generated {
    pub mod envoy {
        pub mod config {
            pub mod core {
                pub mod v3 {
                    include!("generated/envoy.config.core.v3.rs");
                }
            }
        }
        pub mod extensions {
            pub mod common {
                pub mod ratelimit {
                    pub mod v3 {
                        include!("generated/envoy.extensions.common.ratelimit.v3.rs");
                    }
                }
            }
        }
        pub mod service {
            pub mod discovery {
                pub mod v3 {
                    include!("generated/envoy.service.discovery.v3.rs");
                }
            }
            pub mod ratelimit {
                pub mod v3 {
                    include!("generated/envoy.service.ratelimit.v3.rs");
                }
            }
        }
        pub mod r#type {
            pub mod v3 {
                include!("generated/envoy.type.v3.rs");
            }
        }
    }
    pub mod google {
        pub mod rpc {
            include!("generated/google.rpc.rs");
        }
    }
    pub mod ratelimit {
        pub mod config {
            pub mod ratelimit {
                pub mod v3 {
                    include!("generated/ratelimit.config.ratelimit.v3.rs");
                }
            }
        }
    }
}
