//! The messages of Envoy's rate limit service and of its configuration.
//!
//! ```
//! use tidegate_proto::json;
//!
//! let request = json::parse_request(br#"{ "domain": "shop", "hitsAddend": 3 }"#)?;
//! assert_eq!((request.domain.as_str(), request.hits_addend), ("shop", 3));
//! # Ok::<_, json::JsonError>(())
//! ```
//!
//! The code is generated from the files under `proto`, which contain the used part of Envoy's API with its names
//! and field numbers. It is checked in, so that dependent crates need no code generator. A test generates it again
//! and compares; with `TIDEGATE_BLESS=1` it writes the files.
//!
//! | module | content |
//! |---|---|
//! | [`rls`] | the requests and responses of the rate limit service |
//! | [`discovery`] | the discovery service (xDS) that serves configurations |
//! | [`config`] | a configuration of limits |
//! | [`json`] | the request and the response as JSON |
//!
//! It does not
//!
//! - contain the whole API of Envoy;
//! - serve or connect: `tidegate-service` does.

pub mod json;

/// The requests and responses of the rate limit service.
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

    /// The file descriptors of the service, for gRPC reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/rls.bin");
}

/// The discovery service that serves configurations.
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

/// A configuration of limits.
pub mod config {
    pub use crate::generated::ratelimit::config::ratelimit::v3::{
        RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, RateLimitUnit,
    };
}

/// The modules are nested like the packages, because the generated code refers to other packages by relative paths.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    clippy::restriction,
    reason = "the code is generated"
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
