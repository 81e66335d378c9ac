//! What a request is charged, depending on its response.

use crate::request::ResponseHead;
use std::{fmt, sync::Arc};

/// What a request is charged, depending on its response.
///
/// The cost is always charged before the call, so that concurrent requests cannot exceed the limit while
/// their responses are pending; afterwards the difference is refunded. A call without a response, because it
/// failed or because the client disconnected, is charged in full: disconnecting does not evade a limit.
///
/// ```
/// use tidegate_rule::{ChargePolicy, request::ResponseHead};
///
/// let failed_logins = ChargePolicy::only_if(|reply: &dyn ResponseHead| reply.status() == 401);
/// let client_errors_only = ChargePolicy::refund_if(|reply: &dyn ResponseHead| reply.status() >= 500);
/// ```
#[derive(Clone, Default)]
pub struct ChargePolicy {
    pub(super) timing: ChargeTiming,
}

#[derive(Clone, Default)]
pub(super) enum ChargeTiming {
    #[default]
    Upfront,
    RefundIf(Arc<ResponseTest>),
    OnlyIf(Arc<ResponseTest>),
    Actual(Arc<ResponseCost>),
}

type ResponseTest = dyn Fn(&dyn ResponseHead) -> bool + Send + Sync;
type ResponseCost = dyn Fn(&dyn ResponseHead) -> Option<u64> + Send + Sync;

impl ChargePolicy {
    /// Charges the cost, whatever the response is. The default.
    pub fn upfront() -> Self {
        Self::default()
    }

    /// Charges the cost, and refunds it if the response satisfies this test: an error of the server, for
    /// example.
    pub fn refund_if(test: impl Fn(&dyn ResponseHead) -> bool + Send + Sync + 'static) -> Self {
        Self { timing: ChargeTiming::RefundIf(Arc::new(test)) }
    }

    /// Charges the cost only if the response satisfies this test: a failed login, for example.
    pub fn only_if(test: impl Fn(&dyn ResponseHead) -> bool + Send + Sync + 'static) -> Self {
        Self { timing: ChargeTiming::OnlyIf(Arc::new(test)) }
    }

    /// Charges the cost that the response states, in a header for example; the original cost if it states
    /// none. A higher cost is charged even if it exceeds the quota: later requests wait until it is repaid.
    pub fn actual(price: impl Fn(&dyn ResponseHead) -> Option<u64> + Send + Sync + 'static) -> Self {
        Self { timing: ChargeTiming::Actual(Arc::new(price)) }
    }

    /// Whether it is final before there is a response.
    #[inline]
    pub(super) fn is_upfront(&self) -> bool {
        matches!(self.timing, ChargeTiming::Upfront)
    }

    /// The final cost of a call.
    pub(super) fn final_cost(&self, cost: u64, reply: &dyn ResponseHead) -> u64 {
        match &self.timing {
            ChargeTiming::Upfront => cost,
            ChargeTiming::RefundIf(test) => {
                if test(reply) {
                    0
                } else {
                    cost
                }
            }
            ChargeTiming::OnlyIf(test) => {
                if test(reply) {
                    cost
                } else {
                    0
                }
            }
            ChargeTiming::Actual(price) => price(reply).unwrap_or(cost),
        }
    }
}

impl fmt::Debug for ChargePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.timing {
            ChargeTiming::Upfront => "Upfront",
            ChargeTiming::RefundIf(_) => "RefundIf",
            ChargeTiming::OnlyIf(_) => "OnlyIf",
            ChargeTiming::Actual(_) => "Actual",
        })
    }
}
