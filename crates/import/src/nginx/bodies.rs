//! `client_max_body_size`: how much a client may send.

use super::{
    Importer,
    level::{BodySize, Terms},
    servers::Server,
};
use tidegate_policy::model::RouteAction;

/// What nginx takes where no `client_max_body_size` is given.
pub(super) const USUAL_BODY: u64 = 1 << 20;

impl Importer<'_> {
    /// The largest body that is let through anywhere. Where less is, a rule refuses what is announced as larger.
    pub(super) fn body_size(&mut self, above: &Terms, servers: &[Server]) {
        let all = || servers.iter().flat_map(|server| &server.locations);
        let mut bodies: Vec<Option<BodySize>> = all()
            .filter(|it| matches!(it.action, Some(RouteAction::Forward(_))))
            .map(|it| it.terms.body)
            .collect();
        // Without anything that is passed on, only what is said counts.
        if bodies.is_empty() {
            bodies = all().map(|it| it.terms.body).chain([above.body]).filter(Option::is_some).collect();
        }
        let size = |body: &Option<BodySize>| body.map_or(Some(USUAL_BODY), |body| body.bytes);
        let Some(largest) = bodies.iter().map(size).max_by_key(|size| size.unwrap_or(u64::MAX)) else {
            return;
        };
        self.policy.connections.body_size = largest;
    }
}
