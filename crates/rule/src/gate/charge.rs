//! What a request pays, knowing how it was answered.

use crate::request::ResponseHead;
use std::{fmt, sync::Arc};

/// What a request pays, knowing how it was answered.
///
/// Its cost is always taken before the call, so that a hundred at once cannot slip through while none of them has been
/// answered; what it need not pay is given back then. A call that ends without an answer, because it failed or because the
/// client went away, pays what was taken: hanging up is no way around a limit.
///
/// ```
/// use tidegate_rule::{ChargePolicy, request::ResponseHead};
///
/// let failed_logins = ChargePolicy::only_if(|reply: &dyn ResponseHead| reply.status() == 401);
/// let not_our_faults = ChargePolicy::refund_if(|reply: &dyn ResponseHead| reply.status() >= 500);
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
    /// Its cost, whatever the answer is. The default.
    pub fn upfront() -> Self {
        Self::default()
    }

    /// Its cost, unless the answer is such: nobody pays for an error of the server, say.
    pub fn refund_if(test: impl Fn(&dyn ResponseHead) -> bool + Send + Sync + 'static) -> Self {
        Self { timing: ChargeTiming::RefundIf(Arc::new(test)) }
    }

    /// Nothing, unless the answer is such: only logins that failed count, say.
    pub fn only_if(test: impl Fn(&dyn ResponseHead) -> bool + Send + Sync + 'static) -> Self {
        Self { timing: ChargeTiming::OnlyIf(Arc::new(test)) }
    }

    /// What the answer says that it was worth, in a header for example; its cost if it says nothing. What is missing is
    /// charged even if those who come later must repay it.
    pub fn actual(price: impl Fn(&dyn ResponseHead) -> Option<u64> + Send + Sync + 'static) -> Self {
        Self { timing: ChargeTiming::Actual(Arc::new(price)) }
    }

    /// Whether it can be settled before there is an answer.
    #[inline]
    pub(super) fn is_upfront(&self) -> bool {
        matches!(self.timing, ChargeTiming::Upfront)
    }

    /// What a call of this cost pays after all.
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
