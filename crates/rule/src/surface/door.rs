//! Who is let in at all: a list, bans, and what is held against those who came in.

use crate::{
    Answer,
    request::{Address, Head, Key, TrustedProxies},
};
use std::{fmt, net::IpAddr, sync::Arc, time::Duration};
use tidegate_core::header::seconds;
use tidegate_engine::{AccessControl, Stance, Standing};

/// Whom to let in, and what to tell the others.
#[derive(Clone)]
pub struct Door {
    control: Arc<AccessControl>,
    who: Who,
    unknown: Stance,
    answer: Arc<AnswerTo>,
}

#[derive(Clone)]
enum Who {
    Address(Arc<AddressOf>),
    Key(Key),
}

type AddressOf = dyn Fn(&dyn Head) -> Option<IpAddr> + Send + Sync;
type AnswerTo = dyn Fn(Standing) -> Answer + Send + Sync;

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

impl Door {
    /// Asks for the address at the other end of the connection, and keeps out whoever has none.
    pub fn new(control: impl Into<Arc<AccessControl>>) -> Self {
        Self {
            control: control.into(),
            who: Who::Address(Arc::new(|head| head.peer())),
            unknown: Stance::Deny,
            answer: Arc::new(forbidden),
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

    /// What becomes of a request without an address or a key.
    #[must_use]
    pub fn unknown(self, stance: Stance) -> Self {
        Self { unknown: stance, ..self }
    }

    /// What to answer to whoever is kept out. Who is unknown stands as denied.
    #[must_use]
    pub fn answer(self, answer: impl Fn(Standing) -> Answer + Send + Sync + 'static) -> Self {
        Self { answer: Arc::new(answer), ..self }
    }

    /// Lets a request in, or says why not.
    pub fn knock(&self, head: &dyn Head) -> Result<Guest, Box<Barred>> {
        let visitor = self.visitor(head);
        let standing = visitor.standing(&self.control).unwrap_or(match self.unknown {
            Stance::Allow => Standing::Unlisted,
            Stance::Deny => Standing::Denied,
        });
        match standing {
            Standing::Allowed | Standing::Unlisted => Ok(Guest { visitor, control: self.control.clone() }),
            Standing::Denied | Standing::Banned(_) => Err(Box::new(self.barred(standing))),
        }
    }

    fn visitor(&self, head: &dyn Head) -> Visitor {
        let found = match &self.who {
            Who::Address(find) => find(head).map(Visitor::Address),
            Who::Key(key) => key.find(head).map(|key| Visitor::Key(key.to_string().into())),
        };
        found.unwrap_or(Visitor::Unknown)
    }

    #[cold]
    fn barred(&self, standing: Standing) -> Barred {
        let retry_after = match standing {
            Standing::Banned(wait) => Some(wait.to_duration()),
            _ => None,
        };
        Barred { answer: (self.answer)(standing), reason: reason(standing), retry_after }
    }
}

/// 403, and when a ban ends.
fn forbidden(standing: Standing) -> Answer {
    let answer = Answer::forbidden(reason(standing));
    match standing {
        Standing::Banned(wait) => answer.header("retry-after", seconds(wait).to_string()),
        _ => answer,
    }
}

/// What to say of it, without telling more than that.
fn reason(standing: Standing) -> &'static str {
    match standing {
        Standing::Banned(_) => "banned for a time",
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
    fn standing(&self, control: &AccessControl) -> Option<Standing> {
        match self {
            Self::Address(address) => Some(match control.check(*address) {
                Standing::Unlisted => {
                    let banned = control.bans().check(&Address::of(*address).first());
                    banned.map_or(Standing::Unlisted, Standing::Banned)
                }
                listed => listed,
            }),
            Self::Key(key) => Some(control.check_key(key)),
            Self::Unknown => None,
        }
    }
}

/// A visitor who was let in.
#[derive(Clone)]
pub struct Guest {
    visitor: Visitor,
    control: Arc<AccessControl>,
}

impl Guest {
    /// It was denied further inside; the bans' own rule decides whether it is banned for that.
    pub fn denied(self) {
        let Self { visitor, control } = self;
        match visitor {
            Visitor::Address(address) => {
                if control.check(address) == Standing::Unlisted {
                    control.bans().record_denial(&Address::of(address).first());
                }
            }
            Visitor::Key(key) => _ = control.record_denial_of_key(&key),
            Visitor::Unknown => {}
        }
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Door").field(&self.control).finish()
    }
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guest").field(&self.visitor).finish()
    }
}
