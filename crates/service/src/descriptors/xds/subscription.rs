//! What is said on a stream: it knows no wire.

use prost_types::Any;
use tidegate_proto::{
    config::RateLimitConfig,
    discovery::{DiscoveryRequest, DiscoveryResponse, Node, Status},
};

/// The kind of resources that is asked for.
pub(super) const KIND: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// `INVALID_ARGUMENT`.
const REFUSED: i32 = 3;

/// What is in force, by the word of a server.
pub(super) struct Subscription {
    node: Node,
    /// Of what is in force.
    version: String,
    heard: u64,
}

impl Subscription {
    pub(super) fn new(node: &str) -> Self {
        let node = Node { id: node.to_owned(), user_agent_name: "tidegate".to_owned(), ..Node::default() };
        Self { node, version: String::new(), heard: 0 }
    }

    /// How many responses there were.
    pub(super) fn heard(&self) -> u64 {
        self.heard
    }

    /// What a stream begins with.
    pub(super) fn first(&self) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info: self.version.clone(),
            node: Some(self.node.clone()),
            type_url: KIND.to_owned(),
            ..DiscoveryRequest::default()
        }
    }

    /// Hands a response over, and says what is answered; nothing to one that nobody has asked for.
    pub(super) fn answer(
        &mut self,
        response: DiscoveryResponse,
        take: &mut impl FnMut(Vec<RateLimitConfig>) -> Result<(), String>,
    ) -> Option<DiscoveryRequest> {
        self.heard += 1;
        if response.type_url != KIND {
            tracing::warn!(kind = %response.type_url, "the server of limits sent what nobody asked for");
            return None;
        }
        let taken = read(&response.resources).and_then(take);
        if taken.is_ok() {
            self.version = response.version_info;
        }
        Some(DiscoveryRequest {
            response_nonce: response.nonce,
            error_detail: taken.err().map(|message| {
                tracing::warn!(why = %message, "limits of the server were refused; what was in force stays");
                Status { code: REFUSED, message, details: Vec::new() }
            }),
            ..self.first()
        })
    }
}

fn read(resources: &[Any]) -> Result<Vec<RateLimitConfig>, String> {
    let read = |(place, any): (usize, &Any)| {
        any.to_msg().map_err(|error| format!("resources[{place}] is no {KIND}: {error}"))
    };
    resources.iter().enumerate().map(read).collect()
}
