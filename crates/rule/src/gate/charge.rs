//! What a request is charged, depending on its response.

use crate::{
    body::{BodyValues, JsonPointer},
    request::ResponseHead,
};
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
    condition: ChargeCondition,
    source: CostSource,
    /// The largest part of a cost that exceeds the cost before the call; `None` for no limit.
    max_debt: Option<u64>,
}

/// Whether a request is charged at all.
#[derive(Clone, Default)]
enum ChargeCondition {
    #[default]
    Always,
    RefundIf(Arc<ResponseTest>),
    OnlyIf(Arc<ResponseTest>),
}

/// The source of the final cost.
#[derive(Clone, Default)]
enum CostSource {
    /// The cost before the call.
    #[default]
    Request,
    Head(Arc<ResponseCost>),
    Body(Arc<BodyCost>),
}

/// Computes the cost that a response states.
pub type StatedCost = dyn Fn(&ResponseValues) -> Option<u64> + Send + Sync;

type ResponseTest = dyn Fn(&dyn ResponseHead) -> bool + Send + Sync;
type ResponseCost = dyn Fn(&dyn ResponseHead) -> Option<u64> + Send + Sync;

/// The cost of a request that the body or the trailers of its response state.
pub struct BodyCost {
    /// The values of the body that it depends on.
    pub pointers: Arc<[JsonPointer]>,
    /// The trailer that it depends on, in lower case.
    pub trailer: Option<String>,
    /// Computes it; `None` if the response does not state it.
    pub compute: Box<StatedCost>,
}

/// The values of a response, when its body has ended.
#[derive(Clone, Debug, Default)]
pub struct ResponseValues {
    /// The values of the body; `None` if it was not read.
    pub body: Option<BodyValues>,
    /// The trailers, by names in lower case.
    pub trailers: Vec<(String, Vec<u8>)>,
}

/// The final cost of a call, when the head of its response is known.
pub(super) enum FinalCost {
    Known(u64),
    /// The head states it, or states none.
    Stated(Option<u64>),
    /// It is known when the body has ended.
    InBody(Arc<BodyCost>),
}

impl ChargePolicy {
    /// Charges the cost, whatever the response is. The default.
    pub fn upfront() -> Self {
        Self::default()
    }

    /// Charges the cost, and refunds it if the response satisfies this test: an error of the server, for
    /// example.
    pub fn refund_if(test: impl Fn(&dyn ResponseHead) -> bool + Send + Sync + 'static) -> Self {
        Self { condition: ChargeCondition::RefundIf(Arc::new(test)), ..Self::default() }
    }

    /// Charges the cost only if the response satisfies this test: a failed login, for example.
    pub fn only_if(test: impl Fn(&dyn ResponseHead) -> bool + Send + Sync + 'static) -> Self {
        Self { condition: ChargeCondition::OnlyIf(Arc::new(test)), ..Self::default() }
    }

    /// Charges the cost that the response states, in a header for example; the original cost if it states
    /// none. A higher cost is charged even if it exceeds the quota: later requests wait until it is repaid.
    pub fn actual(cost: impl Fn(&dyn ResponseHead) -> Option<u64> + Send + Sync + 'static) -> Self {
        Self::upfront().with_head_cost(cost)
    }

    /// Charges the cost that the head of the response states, under the same condition.
    #[must_use]
    pub fn with_head_cost(
        self,
        cost: impl Fn(&dyn ResponseHead) -> Option<u64> + Send + Sync + 'static,
    ) -> Self {
        Self { source: CostSource::Head(Arc::new(cost)), ..self }
    }

    /// Charges the cost that the body of the response states, under the same condition. Middleware that does not read bodies
    /// charges the original cost.
    #[must_use]
    pub fn with_body_cost(self, cost: BodyCost) -> Self {
        Self { source: CostSource::Body(Arc::new(cost)), ..self }
    }

    /// Limits the debt of a request: the part of its final cost that exceeds the original one. By default it is not limited.
    #[must_use]
    pub fn max_debt(self, max: u64) -> Self {
        Self { max_debt: Some(max), ..self }
    }

    /// Whether it is final before there is a response.
    #[inline]
    pub(super) fn is_upfront(&self) -> bool {
        matches!((&self.condition, &self.source), (ChargeCondition::Always, CostSource::Request))
    }

    /// The final cost of a call that this rule limits.
    pub(super) fn final_cost(&self, rule: &str, cost: u64, reply: &dyn ResponseHead) -> FinalCost {
        let is_charged = match &self.condition {
            ChargeCondition::Always => true,
            ChargeCondition::RefundIf(test) => !test(reply),
            ChargeCondition::OnlyIf(test) => test(reply),
        };
        match (&self.source, reply.recorded_cost(rule)) {
            _ if !is_charged => FinalCost::Known(0),
            (CostSource::Request, _) => FinalCost::Known(cost),
            (CostSource::Head(_) | CostSource::Body(_), Some(recorded)) => FinalCost::Stated(Some(recorded)),
            (CostSource::Head(stated), None) => FinalCost::Stated(stated(reply)),
            (CostSource::Body(stated), None) => FinalCost::InBody(stated.clone()),
        }
    }

    /// The cost to charge, if the response states this one.
    pub(super) fn limit_debt(&self, cost: u64, stated: Option<u64>) -> u64 {
        let max = self.max_debt.map_or(u64::MAX, |debt| cost.saturating_add(debt));
        stated.unwrap_or(cost).min(max)
    }
}

impl fmt::Debug for ChargePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let condition = match self.condition {
            ChargeCondition::Always => "always",
            ChargeCondition::RefundIf(_) => "refund if",
            ChargeCondition::OnlyIf(_) => "only if",
        };
        let source = match self.source {
            CostSource::Request => "request",
            CostSource::Head(_) => "response head",
            CostSource::Body(_) => "response body",
        };
        write!(f, "ChargePolicy({condition}, {source})")
    }
}

impl fmt::Debug for BodyCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pointers, trailer, compute: _ } = self;
        f.debug_struct("BodyCost")
            .field("pointers", pointers)
            .field("trailer", trailer)
            .finish_non_exhaustive()
    }
}
