//! Whom a list and bans keep out.

use super::{service::Controlled, visitor::Visitor};
use crate::held::Terms;
use std::{fmt, net::IpAddr, sync::Arc};
use tidegate_core::{Micros, Report, header::seconds};
use tidegate_engine::{AccessControl, Stance, Standing};
use tidegate_rule::{
    Answer,
    request::{Head, Key, Reply, TrustedProxies},
};
use tower_layer::Layer;

/// Keeps out whom a list or a ban keeps out, and bans whoever is denied too often further inside.
///
/// ```
/// use tidegate_engine::{AccessControl, Bans};
/// use tidegate_rule::request::TrustedProxies;
/// use tidegate_tower::AccessLayer;
///
/// let bans = Bans::builder().automatic("10/min for 1h".parse()?).build()?;
/// let control = AccessControl::new("deny 192.0.2.0/24".parse()?, bans);
/// let layer = AccessLayer::new(control)
///     .behind(TrustedProxies::new(["10.0.0.0/8"])?)
///     .ban_on(|reply| reply.status() == 429);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Whoever is kept out is answered with 403, in gRPC with `PERMISSION_DENIED`, and a ban says in `Retry-After` when it ends.
/// A request whose sender is not known is kept out too: a list that nobody is held against would go unnoticed. See
/// [`unknown`](Self::unknown).
///
/// Bans of addresses of IPv6 hold for the network of 64 bits that a client has to itself.
#[derive(Clone)]
pub struct AccessLayer {
    door: Door,
    terms: Terms,
}

/// Whom to let in, and what to tell the others.
#[derive(Clone)]
pub(super) struct Door {
    pub(super) control: Arc<AccessControl>,
    who: Who,
    pub(super) unknown: Stance,
    pub(super) answer: Arc<AnswerTo>,
}

#[derive(Clone)]
enum Who {
    Address(Arc<AddressOf>),
    Key(Key),
}

type AddressOf = dyn Fn(&dyn Head) -> Option<IpAddr> + Send + Sync;
type AnswerTo = dyn Fn(Standing) -> Answer + Send + Sync;

impl AccessLayer {
    /// Asks for the address at the other end of the connection. Behind a proxy that is the proxy: see
    /// [`behind`](Self::behind).
    pub fn new(control: impl Into<Arc<AccessControl>>) -> Self {
        let door = Door {
            control: control.into(),
            who: Who::Address(Arc::new(|head| head.peer())),
            unknown: Stance::Deny,
            answer: Arc::new(forbidden),
        };
        let terms = Terms { classify: Arc::new(|_| Report::Ignored), ..Terms::new("access") };
        Self { door, terms }
    }

    /// Asks for the address of the client, as these proxies tell it.
    #[must_use]
    pub fn behind(self, proxies: TrustedProxies) -> Self {
        self.address(move |head| proxies.client(head))
    }

    /// Asks for an address that a function finds.
    #[must_use]
    pub fn address(mut self, find: impl Fn(&dyn Head) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        self.door.who = Who::Address(Arc::new(find));
        self
    }

    /// Asks for a key instead of an address: the `key` lines of a list, and bans of keys.
    #[must_use]
    pub fn key(mut self, key: Key) -> Self {
        self.door.who = Who::Key(key);
        self
    }

    /// What becomes of a request without an address or a key; it is kept out unless told otherwise.
    #[must_use]
    pub fn unknown(mut self, stance: Stance) -> Self {
        self.door.unknown = stance;
        self
    }

    /// Counts an answer as a denial where this says so, and has the bans' own rule decide on a ban: a limit further inside
    /// that answers with 429, say.
    #[must_use]
    pub fn ban_on(mut self, is_denial: impl Fn(&dyn Reply) -> bool + Send + Sync + 'static) -> Self {
        self.terms.classify = Arc::new(move |reply| match reply.is_some_and(&is_denial) {
            true => Report::Failure,
            false => Report::Ignored,
        });
        self
    }

    /// What to answer to whoever is kept out. Who is unknown stands as denied.
    #[must_use]
    pub fn answer(mut self, answer: impl Fn(Standing) -> Answer + Send + Sync + 'static) -> Self {
        self.door.answer = Arc::new(answer);
        self
    }
}

impl Door {
    pub(super) fn visitor(&self, head: &dyn Head) -> Visitor {
        let found = match &self.who {
            Who::Address(find) => find(head).map(Visitor::Address),
            Who::Key(key) => key.find(head).map(|key| Visitor::Key(key.to_string().into())),
        };
        found.unwrap_or(Visitor::Unknown)
    }
}

/// 403, and when a ban ends.
fn forbidden(standing: Standing) -> Answer {
    let problem = format!(r#"{{"title":"Forbidden","status":403,"detail":"{}"}}"#, reason(standing));
    let answer = Answer::new(403).json(problem).header("content-type", "application/problem+json");
    match standing {
        Standing::Banned(wait) => answer.header("retry-after", seconds(wait).to_string()),
        _ => answer,
    }
}

/// What to say of it, without telling more than that.
pub(super) fn reason(standing: Standing) -> &'static str {
    match standing {
        Standing::Banned(_) => "banned for a time",
        _ => "not let in",
    }
}

/// When it is worth asking again.
pub(super) fn retry(standing: Standing) -> Option<Micros> {
    match standing {
        Standing::Banned(wait) => Some(wait),
        _ => None,
    }
}

impl<S> Layer<S> for AccessLayer {
    type Service = Controlled<S>;

    fn layer(&self, inner: S) -> Controlled<S> {
        Controlled::new(inner, Arc::new(self.door.clone()), Arc::new(self.terms.clone()))
    }
}

impl fmt::Debug for AccessLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AccessLayer").field(&self.door.control).finish()
    }
}
