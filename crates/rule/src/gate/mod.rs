//! Rules for requests, asked together.
//!
//! ```text
//!   request ──ask──▶ Rulings ──verdict──▶ admitted ──▶ call ──reply──▶ settle ──▶ slots, until the body has been sent
//!                                  └────▶ refused  ──▶ Answer
//! ```
//!
//! A gate knows no wire: a surface shows it the [`Head`](crate::request::Head) of a request, and the
//! [`Reply`](crate::request::Reply) to it.

mod ask;
mod charge;
mod foresee;
mod labels;
mod limit;
mod queue;
mod route;
mod rulings;
mod share;
mod taken;
mod verdict;

pub use ask::{Asked, Asking};
pub use charge::Charge;
pub use foresee::{Aim, Stay};
pub use labels::Labels;
pub use limit::RequestLimit;
pub use queue::{KeyQueue, Queue, Waiting, add_wait};
pub use rulings::{HeldSlots, Judged, Judgement, Quick, QuickRuling, Rulings};
pub use share::{is_chosen, key_hash};
pub use verdict::{Ruling, Verdict};

use crate::{
    Answer, Fields,
    request::{Address, Head},
};
use std::{fmt, net::IpAddr, sync::Arc};

/// Rules for requests. Those that apply to a request are asked together: all are charged, or none is. Clones are the same
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
/// Rules that are counted in memory are decided as a whole, and so are those of one store, in one round trip. Where a
/// request spans several of these, memory is asked first, and a later denial gives back what was taken before. A rule in
/// shadow mode is asked after the others, about requests that they let through, and refuses nothing.
#[derive(Clone)]
pub struct Gate {
    inner: Arc<Inner>,
}

#[derive(Clone)]
struct Inner {
    limits: Vec<RequestLimit>,
    /// The bits of a peer's address, if all that is counted is peers, by one rule for all requests.
    peer_bits: Option<u8>,
    fields: Fields,
    answer: Option<Arc<MakeAnswer>>,
}

type MakeAnswer = dyn Fn(&Verdict<'_>) -> Answer + Send + Sync;

impl Gate {
    /// A gate of these rules.
    pub fn new(limits: impl IntoIterator<Item = RequestLimit>) -> Self {
        let limits: Vec<RequestLimit> = limits.into_iter().collect();
        let peer_bits = match &limits[..] {
            [only] => only.peer_bits_of_all(),
            _ => None,
        };
        Self { inner: Arc::new(Inner { limits, peer_bits, fields: Fields::default(), answer: None }) }
    }

    /// The same, with an answer of your own to whoever is refused.
    #[must_use]
    pub fn answer(mut self, answer: impl Fn(&Verdict<'_>) -> Answer + Send + Sync + 'static) -> Self {
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

    /// Asks all rules that apply to this request: at once where everything is at hand, else as a future that owns all it
    /// needs.
    #[inline]
    pub fn ask(&self, head: &dyn Head) -> Asked {
        ask::ask(self, head)
    }

    /// The same for a caller that can neither wait nor block. A rule that is declared to wait decides as one that is not.
    /// Rules that are counted in a store are not asked: those that are enforced refuse, as where the store is unavailable and
    /// the rule closed.
    pub fn ask_now(&self, head: &dyn Head) -> Rulings {
        ask::ask_now(self, head)
    }

    /// Asks only where one rule applies that decides by itself, and makes of its numbers what will be told of them. If there
    /// is more to it, nothing is decided, and [`Gate::ask_at_length`] does it. A surface need not know the difference; it is
    /// quicker for those who are let through.
    #[inline]
    pub fn ask_quickly<T>(&self, head: &dyn Head, tell: impl FnOnce(QuickRuling<'_>) -> T) -> Quick<T> {
        match ask::ask_at_hand(self, head) {
            Some((place, decision)) if decision.is_granted() => {
                Quick::Admitted(tell(QuickRuling { place, decision: &decision }))
            }
            Some((place, decision)) => Quick::refused(place, decision),
            None => Quick::Undecided,
        }
    }

    /// The peer as a key, where one rule for all requests counts nothing else: [`Gate::ask_by_peer`] is quicker then.
    #[inline]
    pub fn peer(&self, peer: impl FnOnce() -> Option<IpAddr>) -> Option<Address> {
        let bits = self.inner.peer_bits?;
        Some(Address::of_prefix(peer()?, bits))
    }

    /// [`Gate::ask_quickly`] where [`Gate::peer`] is all that is counted. What goes in and what comes back are small on
    /// purpose, since most requests go this way.
    #[inline]
    pub fn ask_by_peer<T>(&self, peer: Address, tell: impl FnOnce(QuickRuling<'_>) -> T) -> Quick<T> {
        let only = self.limits().first();
        let Some(limiter) = only.and_then(|only| only.rule().at_hand()) else { return Quick::Undecided };
        let decision = limiter.check_cost(&peer, 1);
        match decision.is_granted() {
            true => Quick::Admitted(tell(QuickRuling { place: 0, decision: &decision })),
            false => Quick::refused(0, decision),
        }
    }

    /// Asks all rules that apply to this request, after [`Gate::ask_quickly`] had nothing to say.
    pub fn ask_at_length(&self, head: &dyn Head) -> Asked {
        ask::ask_several(self, head)
    }

    /// Asks the limits at these places in [`Gate::limits`], and no others, whatever each of them says of the requests that
    /// it is about: for whoever has an index, and knows which ones apply.
    pub fn ask_those(&self, head: &dyn Head, places: &[usize]) -> Asked {
        ask::ask_those(self, head, places)
    }

    /// What the rulings mean.
    #[inline]
    pub fn verdict<'a>(&'a self, rulings: &'a Rulings) -> Verdict<'a> {
        Verdict::new(self, rulings)
    }

    /// Which headers tell clients what is left.
    #[inline]
    pub fn told(&self) -> Fields {
        self.inner.fields
    }

    /// What to answer to a request that was refused.
    #[cold]
    pub fn answer_to(&self, verdict: &Verdict<'_>) -> Answer {
        match &self.inner.answer {
            Some(answer) => answer(verdict),
            None => verdict.answer(),
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
