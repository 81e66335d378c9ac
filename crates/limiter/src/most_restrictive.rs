//! Combines the decisions of several quotas into one.

use tidegate_core::{Decision, Micros, Outcome, Retry};

/// Selects the decision that binds the caller: the denial with the longest wait, else the longest delay, else the lowest
/// remaining count. A caller that waits for it is allowed by all quotas.
#[derive(Default)]
pub(crate) struct MostRestrictive {
    strictest: Option<Decision>,
    count: usize,
}

impl MostRestrictive {
    pub(crate) fn add(&mut self, decision: Decision) {
        let decision = decision.with_quota(self.count);
        self.count += 1;
        if self.strictest.is_none_or(|strictest| severity(&decision) > severity(&strictest)) {
            self.strictest = Some(decision);
        }
    }

    /// The combined decision; without any decision, unlimited.
    pub(crate) fn finish(self) -> Decision {
        self.strictest.unwrap_or_else(Decision::unlimited)
    }
}

/// Orders decisions by how much they bind the caller.
fn severity(decision: &Decision) -> (u8, Micros, u64) {
    let scarcity = u64::MAX - decision.remaining();
    match decision.outcome() {
        Outcome::Deny(Retry::Never) => (4, Micros::ZERO, scarcity),
        Outcome::Deny(Retry::WhenReleased) => (3, Micros::ZERO, scarcity),
        Outcome::Deny(Retry::After(wait)) => (2, wait, scarcity),
        Outcome::Delay(wait) => (1, wait, scarcity),
        Outcome::Allow => (0, Micros::ZERO, scarcity),
    }
}
