//! What is said on a stream: it knows no wire.

use prost_types::Any;
use tidegate_proto::{
    config::RateLimitConfig,
    discovery::{DiscoveryRequest, DiscoveryResponse, Node, Status},
};

/// The kind of resources that is asked for.
pub(super) const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// `INVALID_ARGUMENT`.
const INVALID_ARGUMENT: i32 = 3;

/// What is in force, by the word of a server.
pub(super) struct Subscription {
    node: Node,
    /// Of what is in force.
    version: String,
    responses: u64,
}

impl Subscription {
    pub(super) fn new(node: &str) -> Self {
        let node = Node { id: node.to_owned(), user_agent_name: "tidegate".to_owned(), ..Node::default() };
        Self { node, version: String::new(), responses: 0 }
    }

    /// How many responses there were.
    pub(super) fn response_count(&self) -> u64 {
        self.responses
    }

    /// What a stream begins with.
    pub(super) fn initial_request(&self) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info: self.version.clone(),
            node: Some(self.node.clone()),
            type_url: TYPE_URL.to_owned(),
            ..DiscoveryRequest::default()
        }
    }

    /// Hands a response over, and says what is answered; nothing to one that nobody has asked for.
    pub(super) fn handle_response(
        &mut self,
        response: DiscoveryResponse,
        apply: &mut impl FnMut(Vec<RateLimitConfig>) -> Result<(), String>,
    ) -> Option<DiscoveryRequest> {
        self.responses += 1;
        if response.type_url != TYPE_URL {
            tracing::warn!(kind = %response.type_url, "the server of limits sent what nobody asked for");
            return None;
        }
        let applied = decode_resources(&response.resources).and_then(apply);
        if applied.is_ok() {
            self.version = response.version_info;
        }
        Some(DiscoveryRequest {
            response_nonce: response.nonce,
            error_detail: applied.err().map(|message| {
                tracing::warn!(why = %message, "limits of the server were refused; what was in force stays");
                Status { code: INVALID_ARGUMENT, message, details: Vec::new() }
            }),
            ..self.initial_request()
        })
    }
}

fn decode_resources(resources: &[Any]) -> Result<Vec<RateLimitConfig>, String> {
    let decode = |(place, any): (usize, &Any)| {
        any.to_msg().map_err(|error| format!("resources[{place}] is no {TYPE_URL}: {error}"))
    };
    resources.iter().enumerate().map(decode).collect()
}
