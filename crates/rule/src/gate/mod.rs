//! Rules for requests, evaluated together.
//!
//! ```text
//!   request ──check──▶ Verdict ──▶ admitted ──▶ call ──response──▶ settle ──▶ slots, until the body has been sent
//!                         └──────▶ denied   ──▶ RejectionResponse
//! ```
//!
//! A gate is independent of frameworks: middleware passes it the [`RequestHead`](crate::request::RequestHead) of a
//! request and the [`ResponseHead`](crate::request::ResponseHead) of its response.

mod charge;
mod evaluate;
mod limit;
mod policy_fields;
mod prefetch;
mod queue;
mod rejection_shape;
mod reservations;
mod rollout;
mod route;
mod verdict;

pub use charge::{BodyCost, ChargePolicy, ResponseValues, StatedCost};
pub use evaluate::{Evaluation, LimitSelection, PendingEvaluation, RunMode};
pub use limit::RequestLimit;
pub use policy_fields::PolicyFields;
pub use prefetch::PreparedCheck;
pub use queue::{KeyQueue, LimitQueue, QueueGuard, measure_wait};
pub use rejection_shape::RejectionShape;
pub use rollout::{is_in_rollout, key_hash};
pub use verdict::{LimitDecision, LimitOutcome, RequestPermits, SettledCost, Verdict};

use crate::{
    HeaderStyle, NumberForm, RejectionNumbers, RejectionResponse,
    request::{AddressKey, RequestHead},
};
use std::{fmt, net::IpAddr, sync::Arc};
use tidegate_limiter::{Clock, Limiter};

/// A set of limits on requests. Those that apply to a request are evaluated together: all are charged, or
/// none is. Clones share state.
///
/// ```
/// use tidegate_rule::{RuleConfig, Gate, RequestLimit, Rules, request::key};
///
/// let rules = Rules::new();
/// let per_client = rules.declare(RuleConfig::new("per-client").quota("100/min")?)?;
/// let login = rules.declare(RuleConfig::new("login").quota("5/min")?)?;
/// let gate = Gate::new([
///     RequestLimit::new(per_client).key(key::peer()),
///     RequestLimit::new(login).key(key::peer()).methods(["POST"]).routes(["/login"]),
/// ]);
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
///
/// Rules in memory are decided jointly, and so are those of one store, in one round trip. If a request
/// involves several of these, memory is checked first, and a later denial releases earlier reservations. A
/// rule in shadow mode is checked after the others, for requests that they admit, and denies nothing.
#[derive(Clone)]
pub struct Gate {
    inner: Arc<GateInner>,
}

#[derive(Clone)]
struct GateInner {
    limits: Vec<RequestLimit>,
    /// The prefix bits of the peer address, if it is the only input of its only limit.
    peer_prefix_len: Option<u8>,
    header_style: HeaderStyle,
    wall_clock: Clock,
    make_rejection: Option<Arc<MakeRejection>>,
}

type MakeRejection = dyn Fn(&Gate, &Verdict) -> RejectionResponse + Send + Sync;

impl Gate {
    /// Creates a gate of these rules.
    pub fn new(limits: impl IntoIterator<Item = RequestLimit>) -> Self {
        let limits: Vec<RequestLimit> = limits.into_iter().collect();
        let peer_prefix_len = match &limits[..] {
            [only] => only.peer_key_prefix_len(),
            _ => None,
        };
        Self {
            inner: Arc::new(GateInner {
                limits,
                peer_prefix_len,
                header_style: HeaderStyle::default(),
                wall_clock: Clock::wall(),
                make_rejection: None,
            }),
        }
    }

    /// Replaces the response to denied requests. The function gets this gate and the verdict.
    #[must_use]
    pub fn with_rejection(
        mut self,
        make_rejection: impl Fn(&Self, &Verdict) -> RejectionResponse + Send + Sync + 'static,
    ) -> Self {
        Arc::make_mut(&mut self.inner).make_rejection = Some(Arc::new(make_rejection));
        self
    }

    /// Sets the style of the rate limit headers.
    #[must_use]
    pub fn with_header_style(mut self, style: HeaderStyle) -> Self {
        Arc::make_mut(&mut self.inner).header_style = style;
        self
    }

    /// Sets the clock for times in rate limit headers; the wall clock by default.
    #[must_use]
    pub fn with_wall_clock(mut self, clock: Clock) -> Self {
        Arc::make_mut(&mut self.inner).wall_clock = clock;
        self
    }

    /// Its limits, in order.
    pub fn limits(&self) -> &[RequestLimit] {
        &self.inner.limits
    }

    /// Evaluates all rules that apply to this request.
    #[inline]
    pub fn check(&self, head: &dyn RequestHead) -> Evaluation<Verdict> {
        evaluate::check(self, head)
    }

    /// Evaluates these limits for a request. The result replaces `verdict`, whose memory is reused; returns
    /// `None` if it is complete, otherwise its future.
    #[inline]
    pub fn evaluate(
        &self,
        head: &dyn RequestHead,
        limits: LimitSelection<'_>,
        run: RunMode<'_>,
        verdict: &mut Verdict,
    ) -> Option<PendingEvaluation<Verdict>> {
        evaluate::evaluate(self, head, limits, run, verdict)
    }

    /// The key of a request from this peer, if the peer address is the only input of its limits.
    #[inline]
    pub fn peer_key(&self, peer: impl FnOnce() -> Option<IpAddr>) -> Option<AddressKey> {
        self.inner.peer_prefix_len.and_then(|prefix_len| Some(AddressKey::with_prefix(peer()?, prefix_len)))
    }

    /// The limiter that alone decides on a request by its [`peer_key`](Self::peer_key), at a cost of one. `None` if that
    /// is not enough: then the request must be [checked](Self::check) by its head.
    #[inline]
    pub fn peer_limiter(&self) -> Option<&Limiter> {
        self.limits().first()?.rule().fast_limiter()
    }

    /// The style of the rate limit headers.
    #[inline]
    pub fn header_style(&self) -> HeaderStyle {
        self.inner.header_style
    }

    /// The clock for times in rate limit headers.
    pub fn wall_clock(&self) -> &Clock {
        &self.inner.wall_clock
    }

    /// The response to a denied request.
    #[cold]
    pub fn rejection_response(&self, verdict: &Verdict) -> RejectionResponse {
        self.rejection_response_in(verdict, NumberForm::Digits)
    }

    /// The same, with holes for its numbers in the form [`Holes`](NumberForm::Holes). A response of
    /// [`with_rejection`](Self::with_rejection) has none.
    #[cold]
    pub fn rejection_response_in(&self, verdict: &Verdict, form: NumberForm) -> RejectionResponse {
        match &self.inner.make_rejection {
            Some(make_rejection) => make_rejection(self, verdict),
            None => verdict.rejection_response_in(self, form),
        }
    }

    /// What the text of the response to a denied request depends on, and its numbers. `None` if there is no template for it: the
    /// gate has responses of its own, or the request has too many quotas.
    pub fn rejection_shape(&self, verdict: &Verdict) -> Option<(RejectionShape, RejectionNumbers)> {
        match self.inner.make_rejection {
            Some(_) => None,
            None => RejectionShape::of(verdict, self),
        }
    }
}

/// A gate of one rule.
impl From<RequestLimit> for Gate {
    fn from(limit: RequestLimit) -> Self {
        Self::new([limit])
    }
}

/// A gate of these rules.
impl<const N: usize> From<[RequestLimit; N]> for Gate {
    fn from(limits: [RequestLimit; N]) -> Self {
        Self::new(limits)
    }
}

/// A gate of these rules.
impl From<Vec<RequestLimit>> for Gate {
    fn from(limits: Vec<RequestLimit>) -> Self {
        Self::new(limits)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.limits()).finish()
    }
}
