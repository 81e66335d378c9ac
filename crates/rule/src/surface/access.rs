//! Whom a list and bans keep out.

use super::terms::Terms;
use crate::{
    Answer,
    request::{Address, Head, Key, KeyValue, PeerWarning, Reply, TrustedProxies},
};
use std::{fmt, net::IpAddr, sync::Arc, time::Duration};
use tidegate_access::{AccessControl, AccessDecision, AccessMatch, ListAction};
use tidegate_core::header::ceil_seconds;
use tidegate_overload::Report;

/// A list and bans in front of requests, and bans for whoever is denied too often further inside.
///
/// ```
/// use tidegate_access::{AccessControl, Bans};
/// use tidegate_rule::{request::TrustedProxies, surface::RequestAccess};
///
/// let bans = Bans::builder().automatic("10/min for 1h".parse()?).build()?;
/// let control = AccessControl::new("deny 192.0.2.0/24".parse()?, bans);
/// let access = RequestAccess::new(control)
///     .behind(TrustedProxies::new(["10.0.0.0/8"])?)
///     .ban_on(|reply| reply.status() == 429);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Whoever is kept out is answered with 403, and a ban says in `Retry-After` when it ends. A request whose sender is not known
/// is kept out too: a list that nobody is held against would go unnoticed. See [`unknown`](Self::unknown).
///
/// Bans of addresses of IPv6 hold for the network of 64 bits that a client has to itself. Clones share the list and the bans.
#[derive(Clone)]
pub struct RequestAccess {
    control: Arc<AccessControl>,
    who: Who,
    /// Whom bans hold for, where that is not who the list is asked about.
    ban_by: Option<Key>,
    unknown: ListAction,
    warning: PeerWarning,
    answer: Arc<AnswerTo>,
    terms: Arc<Terms>,
}

#[derive(Clone)]
enum Who {
    Address(Arc<AddressOf>),
    Key(Key),
}

type AddressOf = dyn Fn(&dyn Head) -> Option<IpAddr> + Send + Sync;
type AnswerTo = dyn Fn(AccessDecision) -> Answer + Send + Sync;

impl RequestAccess {
    /// Asks for the address at the other end of the connection. Behind a proxy that is the proxy: see
    /// [`behind`](Self::behind).
    pub fn new(control: impl Into<Arc<AccessControl>>) -> Self {
        Self {
            control: control.into(),
            who: Who::Address(Arc::new(|head| head.peer())),
            ban_by: None,
            unknown: ListAction::Deny,
            warning: PeerWarning::default(),
            answer: Arc::new(forbidden),
            terms: Arc::new(Terms { classify: Arc::new(|_| Report::Ignored), ..Terms::new("access") }),
        }
    }

    /// Asks for the address of the client, as these proxies tell it.
    #[must_use]
    pub fn behind(self, proxies: TrustedProxies) -> Self {
        self.address(move |head| proxies.client(head))
    }

    /// Asks for an address that a function finds.
    #[must_use]
    pub fn address(self, find: impl Fn(&dyn Head) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        Self { who: Who::Address(Arc::new(find)), ..self }
    }

    /// Asks for a key instead of an address: the `key` lines of a list, and bans of keys.
    #[must_use]
    pub fn key(self, key: Key) -> Self {
        Self { who: Who::Key(key), ..self }
    }

    /// Has bans hold for a key, and counts denials by it, while the list is asked about the address: users who share an
    /// address are banned one by one. A request without the key is banned by its address.
    #[must_use]
    pub fn ban_by(self, key: Key) -> Self {
        Self { ban_by: Some(key), ..self }
    }

    /// What becomes of a request without an address or a key; it is kept out unless told otherwise.
    #[must_use]
    pub fn unknown(self, stance: ListAction) -> Self {
        Self { unknown: stance, ..self }
    }

    /// Counts an answer as a denial where this says so, and has the bans' own rule decide on a ban: a limit further inside
    /// that answers with 429, say.
    #[must_use]
    pub fn ban_on(mut self, is_denial: impl Fn(&dyn Reply) -> bool + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.terms).classify =
            Arc::new(move |reply| match reply.is_some_and(&is_denial) {
                true => Report::Failure,
                false => Report::Ignored,
            });
        self
    }

    /// What to answer to whoever is kept out. Who is unknown stands as denied.
    #[must_use]
    pub fn answer(self, answer: impl Fn(AccessDecision) -> Answer + Send + Sync + 'static) -> Self {
        Self { answer: Arc::new(answer), ..self }
    }

    /// Lets a request in, or says why not.
    pub fn knock(&self, head: &dyn Head) -> Result<Guest, Box<Barred>> {
        let (visitor, ban_key) = (self.visitor(head), self.ban_key(head));
        let standing = visitor.standing(ban_key.as_deref(), &self.control).unwrap_or(match self.unknown {
            ListAction::Allow => AccessDecision::Unlisted,
            ListAction::Deny => AccessDecision::Denied,
        });
        match standing {
            AccessDecision::Allowed | AccessDecision::Unlisted => {
                Ok(Guest { visitor, ban_key, standing, control: self.control.clone() })
            }
            AccessDecision::Denied | AccessDecision::Banned(_) => Err(Box::new(self.barred(standing))),
        }
    }

    /// How it judges the answers to those whom it lets in: a failure is a denial further inside.
    pub fn terms(&self) -> &Arc<Terms> {
        &self.terms
    }

    /// Whom it judges by a request; `None` if that does not tell.
    pub fn who<'a>(&self, head: &'a dyn Head) -> Option<KeyValue<'a>> {
        match &self.who {
            Who::Address(find) => find(head).map(|address| KeyValue::Text(address.to_string().into())),
            Who::Key(key) => key.find(head),
        }
    }

    fn visitor(&self, head: &dyn Head) -> Visitor {
        let found = match &self.who {
            Who::Address(find) => {
                let address = find(head);
                if address.is_none() {
                    self.warning.check(head);
                }
                address.map(Visitor::Address)
            }
            Who::Key(key) => key.find(head).map(|key| Visitor::Key(key.to_string().into())),
        };
        found.unwrap_or(Visitor::Unknown)
    }

    /// Whom bans hold for, where that is not who the list is asked about.
    pub fn ban_key(&self, head: &dyn Head) -> Option<Box<str>> {
        self.ban_by.as_ref()?.find(head).map(|key| key.to_string().into())
    }

    #[cold]
    fn barred(&self, standing: AccessDecision) -> Barred {
        let retry_after = match standing {
            AccessDecision::Banned(wait) => Some(wait.to_duration()),
            _ => None,
        };
        Barred { answer: (self.answer)(standing), reason: reason(standing), retry_after }
    }
}

/// What is told to whoever is not let in.
#[derive(Debug)]
pub struct Barred {
    /// The answer.
    pub answer: Answer,
    /// The reason in a few words, without telling more than that.
    pub reason: &'static str,
    /// When it is worth asking again, if that is known.
    pub retry_after: Option<Duration>,
}

/// 403, and when a ban ends.
fn forbidden(standing: AccessDecision) -> Answer {
    let answer = Answer::forbidden(reason(standing));
    match standing {
        AccessDecision::Banned(wait) => answer.header("retry-after", ceil_seconds(wait).to_string()),
        _ => answer,
    }
}

/// What to say of it, without telling more than that.
fn reason(standing: AccessDecision) -> &'static str {
    match standing {
        AccessDecision::Banned(_) => "banned for a time",
        _ => "not let in",
    }
}

/// Who a request is from, as lists and bans know it.
#[derive(Clone, Debug)]
enum Visitor {
    Address(IpAddr),
    Key(Box<str>),
    Unknown,
}

impl Visitor {
    /// Where it stands; `None` for one of whom nothing is known.
    ///
    /// A client of IPv6 has a whole network to itself, so bans hold for that; lists say for themselves how far they reach.
    fn standing(&self, ban_key: Option<&str>, control: &AccessControl) -> Option<AccessDecision> {
        match (self, ban_key) {
            (Self::Address(address), Some(key)) => Some(match control.list().check(*address) {
                AccessMatch::Allowed => AccessDecision::Allowed,
                AccessMatch::Denied => AccessDecision::Denied,
                AccessMatch::Unlisted => {
                    control.bans().check(key).map_or(AccessDecision::Unlisted, AccessDecision::Banned)
                }
            }),
            (Self::Address(address), None) => Some(match control.check(*address) {
                AccessDecision::Unlisted => {
                    let banned = control.bans().check(&Address::of(*address).first());
                    banned.map_or(AccessDecision::Unlisted, AccessDecision::Banned)
                }
                listed => listed,
            }),
            (Self::Key(key), _) => Some(control.check_key(key)),
            (Self::Unknown, _) => None,
        }
    }
}

/// A visitor who was let in.
#[derive(Clone)]
pub struct Guest {
    visitor: Visitor,
    ban_key: Option<Box<str>>,
    standing: AccessDecision,
    control: Arc<AccessControl>,
}

impl Guest {
    /// Whether it is on the list, or only not kept out.
    pub fn standing(&self) -> AccessDecision {
        self.standing
    }

    /// It was answered, and that counts as this: a failure is a denial further inside, and the bans' own rule decides whether
    /// it is banned for that.
    pub fn answered(self, report: Report) {
        if report == Report::Failure {
            self.denied();
        }
    }

    fn denied(self) {
        let Self { visitor, ban_key, control, standing } = self;
        match (visitor, ban_key) {
            (Visitor::Address(_), Some(key)) => {
                if standing == AccessDecision::Unlisted {
                    control.bans().record_denial(&*key);
                }
            }
            (Visitor::Address(address), None) => {
                if control.check(address) == AccessDecision::Unlisted {
                    control.bans().record_denial(&Address::of(address).first());
                }
            }
            (Visitor::Key(key), _) => _ = control.record_key_denial(&key),
            (Visitor::Unknown, _) => {}
        }
    }
}

impl From<AccessControl> for RequestAccess {
    fn from(control: AccessControl) -> Self {
        Self::new(control)
    }
}

impl From<Arc<AccessControl>> for RequestAccess {
    fn from(control: Arc<AccessControl>) -> Self {
        Self::new(control)
    }
}

impl fmt::Debug for RequestAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RequestAccess").field(&self.control).finish()
    }
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guest").field(&self.visitor).finish()
    }
}
