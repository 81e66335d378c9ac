//! `client_max_body_size`: the maximum size of request bodies.

use super::{
    Importer,
    level::{BodySize, LevelSettings},
    servers::ServerBlock,
};
use tidegate_policy::model::RouteAction;

/// The default `client_max_body_size` of nginx.
pub(super) const DEFAULT_BODY_SIZE: u64 = 1 << 20;

impl Importer<'_> {
    /// Sets the largest body size of all locations. Where a location allows less, a rule checks `Content-Length`.
    pub(super) fn set_body_size(&mut self, above: &LevelSettings, servers: &[ServerBlock]) {
        let all = || servers.iter().flat_map(|server| &server.locations);
        let mut bodies: Vec<Option<BodySize>> = all()
            .filter(|it| matches!(it.action, Some(RouteAction::Forward(_))))
            .map(|it| it.settings.body)
            .collect();
        // If nothing is forwarded, only explicit sizes count.
        if bodies.is_empty() {
            bodies = all().map(|it| it.settings.body).chain([above.body]).filter(Option::is_some).collect();
        }
        let size = |body: &Option<BodySize>| body.map_or(Some(DEFAULT_BODY_SIZE), |body| body.bytes);
        let Some(largest) = bodies.iter().map(size).max_by_key(|size| size.unwrap_or(u64::MAX)) else {
            return;
        };
        self.policy.connections.body_size = largest;
    }
}
