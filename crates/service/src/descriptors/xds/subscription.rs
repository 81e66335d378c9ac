//! The xDS protocol of a stream, independent of the transport.

use crate::events;
use prost_types::Any;
use tidegate_proto::{
    config::RateLimitConfig,
    discovery::{DiscoveryRequest, DiscoveryResponse, Node, Status},
};

/// The resource type that the client requests.
pub(super) const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// `INVALID_ARGUMENT`.
const INVALID_ARGUMENT: i32 = 3;

/// The state of a subscription.
pub(super) struct Subscription {
    node: Node,
    /// The version of the active configuration.
    version: String,
    responses: u64,
}

impl Subscription {
    pub(super) fn new(node: &str) -> Self {
        let node = Node { id: node.to_owned(), user_agent_name: "tidegate".to_owned(), ..Node::default() };
        Self { node, version: String::new(), responses: 0 }
    }

    /// The number of responses so far.
    pub(super) fn response_count(&self) -> u64 {
        self.responses
    }

    /// The first request of a stream.
    pub(super) fn initial_request(&self) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info: self.version.clone(),
            node: Some(self.node.clone()),
            type_url: TYPE_URL.to_owned(),
            ..DiscoveryRequest::default()
        }
    }

    /// Applies a response and returns the ACK or NACK; `None` for resources of another type.
    pub(super) fn handle_response(
        &mut self,
        response: DiscoveryResponse,
        apply: &mut impl FnMut(Vec<RateLimitConfig>) -> Result<(), String>,
    ) -> Option<DiscoveryRequest> {
        self.responses += 1;
        if response.type_url != TYPE_URL {
            events::XdsTypeUnexpected { type_url: &response.type_url }.emit();
            return None;
        }
        let applied = decode_resources(&response.resources).and_then(apply);
        if applied.is_ok() {
            self.version = response.version_info;
        }
        Some(DiscoveryRequest {
            response_nonce: response.nonce,
            error_detail: applied.err().map(|message| {
                events::XdsConfigRejected { error: &message }.emit();
                Status { code: INVALID_ARGUMENT, message, details: Vec::new() }
            }),
            ..self.initial_request()
        })
    }
}

fn decode_resources(resources: &[Any]) -> Result<Vec<RateLimitConfig>, String> {
    let decode = |(index, any): (usize, &Any)| {
        any.to_msg().map_err(|error| format!("resources[{index}] is not a {TYPE_URL}: {error}"))
    };
    resources.iter().enumerate().map(decode).collect()
}
