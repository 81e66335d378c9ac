//! Rate limit decisions for other programs: Envoy's rate limit service, and an HTTP API.
//!
//! ```
//! use std::sync::Arc;
//! use tidegate_policy::descriptors::{DescriptorEntry, DescriptorFile, DescriptorSet, DomainMerge};
//! use tidegate_service::descriptors::{
//!     DescriptorService, DomainRequest, LimitCode, RequestDescriptor, ServiceSettings,
//! };
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let text = "domain: shop\ndescriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 1 } }]";
//! let file = DescriptorFile { name: "shop.yaml".to_owned(), text: text.to_owned() };
//! let service = DescriptorService::new(ServiceSettings::default())?;
//! service.load(Arc::new(DescriptorSet::read(&[file], DomainMerge::Reject)?));
//!
//! let entries = vec![DescriptorEntry { key: "user".to_owned(), value: "ann".to_owned() }];
//! let descriptors = vec![RequestDescriptor { entries, ..RequestDescriptor::default() }];
//! let request = DomainRequest { domain: "shop".to_owned(), descriptors, ..DomainRequest::default() };
//! assert_eq!(service.decide(request.clone()).await?.overall_code, LimitCode::Ok);
//! assert_eq!(service.decide(request).await?.overall_code, LimitCode::OverLimit);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | noun | meaning |
//! |---|---|
//! | [`descriptors`] | the rate limit service: limits by descriptors, for Envoy and other clients of its protocol |
//! | domain | a named tree of limits; a request names one |
//! | descriptor | a list of key-value entries that selects a limit and its counter |
//! | verdict | the decision on a request, with the status of each descriptor |
//! | [`decisions`] | the decision API: the rules of a policy, over HTTP with JSON |
//! | query | a rule, a key and a cost in a request to the decision API |
//! | reservation | tokens that are charged now and settled later; an expired one stays charged |
//! | permit | concurrency slots; an expired one is released |
//!
//! It does not
//!
//! - proxy requests (see `tidegate-gateway`),
//! - read the environment of the process or parse arguments (see `tidegate-cli`),
//! - connect to Redis; the caller passes the stores.

pub mod decisions;
pub mod descriptors;
mod events;
mod reservations;
