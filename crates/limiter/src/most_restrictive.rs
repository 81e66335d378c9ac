//! Several decisions of one question, as one answer.

use tidegate_core::{Decision, Micros, Outcome, Retry};

/// Keeps the decision that a caller must heed: the denial that lasts longest, else the longest delay, else the
/// one with the least left. So a caller that waits as told is let through by all of them.
#[derive(Default)]
pub(crate) struct MostRestrictive {
    strictest: Option<Decision>,
    count: usize,
}

impl MostRestrictive {
    pub(crate) fn add(&mut self, decision: Decision) {
        let decision = decision.with_quota(self.count);
        self.count += 1;
        if self.strictest.is_none_or(|heeded| severity(&decision) > severity(&heeded)) {
            self.strictest = Some(decision);
        }
    }

    /// The answer; without any decision there is nothing to deny.
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
