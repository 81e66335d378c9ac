//! `client_max_body_size`: how much a client may send.

use super::{
    Importer,
    level::{BodySize, LevelSettings},
    servers::ServerBlock,
};
use tidegate_policy::model::RouteAction;

/// What nginx takes where no `client_max_body_size` is given.
pub(super) const DEFAULT_BODY_SIZE: u64 = 1 << 20;

impl Importer<'_> {
    /// The largest body that is let through anywhere. Where less is, a rule refuses what is announced as larger.
    pub(super) fn set_body_size(&mut self, above: &LevelSettings, servers: &[ServerBlock]) {
        let all = || servers.iter().flat_map(|server| &server.locations);
        let mut bodies: Vec<Option<BodySize>> = all()
            .filter(|it| matches!(it.action, Some(RouteAction::Forward(_))))
            .map(|it| it.settings.body)
            .collect();
        // Without anything that is passed on, only what is said counts.
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
