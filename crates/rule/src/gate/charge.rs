//! What a request pays, knowing how it was answered.

use crate::request::Reply;
use std::{fmt, sync::Arc};

/// What a request pays, knowing how it was answered.
///
/// Its cost is always taken before the call, so that a hundred at once cannot slip through while none of them has been
/// answered; what it need not pay is given back then. A call that ends without an answer, because it failed or because the
/// client went away, pays what was taken: hanging up is no way around a limit.
///
/// ```
/// use tidegate_rule::{Charge, request::Reply};
///
/// let failed_logins = Charge::only_if(|reply: &dyn Reply| reply.status() == 401);
/// let not_our_faults = Charge::refund_if(|reply: &dyn Reply| reply.status() >= 500);
/// ```
#[derive(Clone, Default)]
pub struct Charge {
    pub(super) when: When,
}

#[derive(Clone, Default)]
pub(super) enum When {
    #[default]
    Ahead,
    RefundIf(Arc<Test>),
    OnlyIf(Arc<Test>),
    Actual(Arc<Price>),
}

type Test = dyn Fn(&dyn Reply) -> bool + Send + Sync;
type Price = dyn Fn(&dyn Reply) -> Option<u64> + Send + Sync;

impl Charge {
    /// Its cost, whatever the answer is. The default.
    pub fn ahead() -> Self {
        Self::default()
    }

    /// Its cost, unless the answer is such: nobody pays for an error of the server, say.
    pub fn refund_if(test: impl Fn(&dyn Reply) -> bool + Send + Sync + 'static) -> Self {
        Self { when: When::RefundIf(Arc::new(test)) }
    }

    /// Nothing, unless the answer is such: only logins that failed count, say.
    pub fn only_if(test: impl Fn(&dyn Reply) -> bool + Send + Sync + 'static) -> Self {
        Self { when: When::OnlyIf(Arc::new(test)) }
    }

    /// What the answer says that it was worth, in a header for example; its cost if it says nothing. What is missing is
    /// charged even if those who come later must repay it.
    pub fn actual(price: impl Fn(&dyn Reply) -> Option<u64> + Send + Sync + 'static) -> Self {
        Self { when: When::Actual(Arc::new(price)) }
    }

    /// Whether it can be settled before there is an answer.
    #[inline]
    pub(super) fn is_ahead(&self) -> bool {
        matches!(self.when, When::Ahead)
    }

    /// What a call of this cost pays after all.
    pub(super) fn due(&self, cost: u64, reply: &dyn Reply) -> u64 {
        match &self.when {
            When::Ahead => cost,
            When::RefundIf(test) => {
                if test(reply) {
                    0
                } else {
                    cost
                }
            }
            When::OnlyIf(test) => {
                if test(reply) {
                    cost
                } else {
                    0
                }
            }
            When::Actual(price) => price(reply).unwrap_or(cost),
        }
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.when {
            When::Ahead => "Ahead",
            When::RefundIf(_) => "RefundIf",
            When::OnlyIf(_) => "OnlyIf",
            When::Actual(_) => "Actual",
        })
    }
}
