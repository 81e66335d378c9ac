//! Rules for requests, evaluated together.
//!
//! ```text
//!   request ──check──▶ Verdict ──▶ admitted ──▶ call ──response──▶ settle ──▶ slots, until the body has been sent
//!                         └──────▶ denied   ──▶ Answer
//! ```
//!
//! A gate knows no wire: a surface shows it the [`Head`](crate::request::Head) of a request, and the
//! [`Reply`](crate::request::Reply) to it.

mod charge;
mod claims;
mod evaluate;
mod labels;
mod limit;
mod prefetch;
mod queue;
mod route;
mod share;
mod verdict;

pub use charge::Charge;
pub use evaluate::{Evaluation, Limits, Pending, Run};
pub use labels::Labels;
pub use limit::RequestLimit;
pub use prefetch::PreparedCheck;
pub use queue::{KeyQueue, Queue, Waiting, add_wait};
pub use share::{is_chosen, key_hash};
pub use verdict::{HeldSlots, LimitDecision, LimitOutcome, Verdict};

use crate::{
    Answer, Fields,
    request::{Address, Head},
};
use std::{fmt, net::IpAddr, sync::Arc};
use tidegate_core::Decision;

/// Rules for requests. Those that apply to a request are evaluated together: all are charged, or none is. Clones are the same
/// gate.
///
/// ```
/// use tidegate_rule::{Declaration, Gate, RequestLimit, Rules, request::key};
///
/// let rules = Rules::new();
/// let per_client = rules.rule(Declaration::of("per-client").quota("100/min")?)?;
/// let login = rules.rule(Declaration::of("login").quota("5/min")?)?;
/// let gate = Gate::new([
///     RequestLimit::new(per_client).key(key::peer()),
///     RequestLimit::new(login).key(key::peer()).methods(["POST"]).routes(["/login"]),
/// ]);
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
///
/// Rules that are counted in memory are decided jointly, and so are those of one store, in one round trip. Where a request
/// spans several of these, memory comes first, and a later denial gives back what was reserved before. A rule in shadow mode
/// is checked after the others, for requests that they admit, and denies nothing.
#[derive(Clone)]
pub struct Gate {
    inner: Arc<Inner>,
}

#[derive(Clone)]
struct Inner {
    limits: Vec<RequestLimit>,
    /// The bits of the peer's address, if its only limit reads nothing else of a request.
    peer_bits: Option<u8>,
    fields: Fields,
    answer: Option<Arc<MakeAnswer>>,
}

type MakeAnswer = dyn Fn(&Gate, &Verdict) -> Answer + Send + Sync;

impl Gate {
    /// A gate of these rules.
    pub fn new(limits: impl IntoIterator<Item = RequestLimit>) -> Self {
        let limits: Vec<RequestLimit> = limits.into_iter().collect();
        let peer_bits = match &limits[..] {
            [only] => only.only_peer_bits(),
            _ => None,
        };
        Self { inner: Arc::new(Inner { limits, peer_bits, fields: Fields::default(), answer: None }) }
    }

    /// The same, with a response of your own to denied requests. The function gets this gate and the verdict.
    #[must_use]
    pub fn answer(mut self, answer: impl Fn(&Self, &Verdict) -> Answer + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.inner).answer = Some(Arc::new(answer));
        self
    }

    /// The same, with other headers to tell clients what is left.
    #[must_use]
    pub fn fields(mut self, fields: Fields) -> Self {
        Arc::make_mut(&mut self.inner).fields = fields;
        self
    }

    /// Its rules, in their order.
    pub fn limits(&self) -> &[RequestLimit] {
        &self.inner.limits
    }

    /// Evaluates all rules that apply to this request.
    #[inline]
    pub fn check(&self, head: &dyn Head) -> Evaluation<Verdict> {
        evaluate::check(self, head)
    }

    /// Evaluates these limits for a request. The result replaces `verdict`, whose memory is used again; `None` if it is there,
    /// else its future.
    #[inline]
    pub fn evaluate(
        &self,
        head: &dyn Head,
        limits: Limits<'_>,
        run: Run<'_>,
        verdict: &mut Verdict,
    ) -> Option<Pending<Verdict>> {
        evaluate::evaluate(self, head, limits, run, verdict)
    }

    /// The key of a request from this peer, if its rules read nothing else of a request.
    #[inline]
    pub fn peer_key(&self, peer: impl FnOnce() -> Option<IpAddr>) -> Option<Address> {
        self.inner.peer_bits.and_then(|bits| Some(Address::of_prefix(peer()?, bits)))
    }

    /// Checks a request by its [`peer_key`](Self::peer_key). `None` if that is not enough: then nothing is charged, and its
    /// head has to be [checked](Self::check).
    #[inline]
    pub fn check_peer(&self, peer: Address) -> Option<Decision> {
        evaluate::check_peer(self, peer)
    }

    /// Which headers tell clients what is left.
    #[inline]
    pub fn told(&self) -> Fields {
        self.inner.fields
    }

    /// The response to a denied request.
    #[cold]
    pub fn answer_to(&self, verdict: &Verdict) -> Answer {
        match &self.inner.answer {
            Some(answer) => answer(self, verdict),
            None => verdict.answer(self),
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
