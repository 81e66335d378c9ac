//! For whom, at what cost, of which tier: what a policy says, as functions of a request.

use crate::{
    matching::{CompiledExpression, Matcher, Purpose, Seen},
    model::{self, Cost, Due, Key as Said, Part, Priority as Class, Tiers},
};
use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tidegate_core::SettingError;
use tidegate_limiter::Priority;
use tidegate_rule::{
    Charge,
    request::{Address, Duplicates, Head, Key, KeyValue, Reply, TrustedProxies, key},
};

/// What keys of one rule are made from.
pub(crate) struct Keys<'a> {
    pub(crate) proxies: &'a TrustedProxies,
    pub(crate) trusts_nobody: bool,
    pub(crate) user: Option<&'a Said>,
    pub(crate) matcher: &'a Matcher,
    /// What happens to requests with several values where one is taken.
    pub(crate) duplicates: Duplicates,
    /// What takes one value of a header, a cookie or a parameter.
    pub(crate) single: RefCell<Vec<Key>>,
    /// The expressions of its keys, which count what they cannot work out.
    pub(crate) expressions: RefCell<Vec<Arc<CompiledExpression>>>,
}

/// Classes of requests, the most important first, and the share of an adaptive limit that each is sure of.
pub(crate) const CLASSES: [(&str, f64); 4] =
    [("critical", 20.0), ("high", 20.0), ("normal", 20.0), ("low", 5.0)];

impl Keys<'_> {
    pub(crate) fn key(&self, said: &Said) -> Result<Key, SettingError> {
        match said {
            Said::All => Ok(key::all()),
            Said::Part(part) => self.part(part),
            Said::Every(parts) => self.fold(parts, Key::and),
            Said::First(parts) => self.fold(parts, Key::or),
        }
    }

    fn fold(&self, parts: &[Said], join: fn(Key, Key) -> Key) -> Result<Key, SettingError> {
        let mut keys = parts.iter().map(|part| self.key(part));
        match keys.next() {
            None => Ok(key::all()),
            Some(first) => keys.try_fold(first?, |all, next| Ok(join(all, next?))),
        }
    }

    fn part(&self, part: &Part) -> Result<Key, SettingError> {
        let matcher = self.matcher.clone();
        Ok(match part {
            Part::Ip { bits } => self.client().ipv6_prefix(*bits),
            Part::User => self.user()?,
            Part::Method => key::method(),
            Part::Host => key::host(),
            Part::Path => key::path(),
            Part::Request => {
                let count = AtomicU64::new(0);
                key::by(move |_| Some(KeyValue::Number(count.fetch_add(1, Ordering::Relaxed))))
            }
            Part::Route => {
                let proxies = self.proxies.clone();
                key::by(move |head| {
                    let route = matcher.path_of(&Seen::new(head, &proxies))?.shown().to_owned();
                    Some(KeyValue::from(route))
                })
            }
            Part::Header(name) => self.single(key::header(name)?),
            Part::Cookie(name) => self.single(key::cookie(name)?),
            Part::Query(name) => self.single(key::query(name.as_str())),
            Part::Capture(name) => {
                if !self.matcher.paths().iter().any(|path| path.names(name)) {
                    let fix = format!("write `{{{name}}}` in the path of its `match`");
                    return Err(SettingError::new(format!("no path has a `{name}` to be captured"), fix));
                }
                let (name, proxies): (Arc<str>, _) = (name.as_str().into(), self.proxies.clone());
                key::by(move |head| {
                    let seen = Seen::new(head, &proxies);
                    matcher.capture(&name, &seen).map(|value| KeyValue::from_bytes(value.to_vec()))
                })
            }
            Part::Cel(expression) => {
                let expression = Arc::new(CompiledExpression::new(expression, Purpose::Key)?);
                let proxies = self.proxies.clone();
                self.expressions.borrow_mut().push(expression.clone());
                key::by(move |head| expression.key(&Seen::new(head, &proxies)))
            }
        })
    }

    /// The address of the client.
    pub(crate) fn client(&self) -> Key {
        // Quicker, and the same where nobody is trusted to say otherwise.
        match self.trusts_nobody {
            true => key::peer(),
            false => key::client(self.proxies.clone()),
        }
    }

    fn single(&self, key: Key) -> Key {
        let key = key.duplicates(self.duplicates);
        self.single.borrow_mut().push(key.clone());
        key
    }

    fn user(&self) -> Result<Key, SettingError> {
        let said = self.user.ok_or_else(|| {
            SettingError::new(
                "nothing says who the user is",
                "say it under `user`, as in `user: header x-user`",
            )
        })?;
        if names_user(said) {
            return Err(SettingError::new(
                "`user` says that the user is the user",
                "name a header or a cookie there",
            ));
        }
        self.key(said)
    }

    /// `None` for a cost of one: most rules need not ask.
    pub(crate) fn cost(&self, cost: &Cost) -> Result<Option<Arc<Number>>, SettingError> {
        Ok(match cost {
            Cost::Fixed(1) => None,
            Cost::Fixed(cost) => {
                let cost = *cost;
                Some(Arc::new(move |_| cost))
            }
            Cost::Found { part, otherwise, most } => {
                let (key, otherwise, most) = (self.part(part)?, *otherwise, *most);
                // Nobody makes a request free by saying so.
                Some(Arc::new(move |head| {
                    key.find(head).as_ref().and_then(number).unwrap_or(otherwise).clamp(1, most.max(1))
                }))
            }
        })
    }

    /// The place of a request's tier; the last is that of all others.
    pub(crate) fn tier(&self, tiers: &Tiers) -> Result<Arc<Tier>, SettingError> {
        let by = self.key(&tiers.by)?;
        let names: Vec<Arc<str>> = tiers.each.iter().map(|(name, _)| name.as_str().into()).collect();
        Ok(Arc::new(move |head| {
            let found = by.find(head);
            let place = found.and_then(|found| names.iter().position(|name| is(&found, name)));
            place.unwrap_or(names.len())
        }))
    }

    /// The place of a request's class among [`CLASSES`].
    pub(crate) fn class(&self, class: &Class) -> Result<Arc<Tier>, SettingError> {
        match class {
            Class::Always(name) => {
                let place = class_of(name)?;
                Ok(Arc::new(move |_| place))
            }
            Class::Found { by, otherwise } => {
                let (by, otherwise) = (self.key(by)?, class_of(otherwise)?);
                Ok(Arc::new(move |head| {
                    let found = by.find(head);
                    let place = found.and_then(|found| CLASSES.iter().position(|(name, _)| is(&found, name)));
                    place.unwrap_or(otherwise)
                }))
            }
        }
    }
}

/// A number that depends on the request.
pub(crate) type Number = dyn Fn(&dyn Head) -> u64 + Send + Sync;
/// A place that depends on the request.
pub(crate) type Tier = dyn Fn(&dyn Head) -> usize + Send + Sync;

/// Who goes first in a line: the more important.
pub(crate) fn rank(class: usize) -> Priority {
    Priority(u8::try_from(CLASSES.len().saturating_sub(class)).unwrap_or(0))
}

pub(crate) fn charge(charge: &model::Charge) -> Charge {
    match charge {
        model::Charge::If(dues) => {
            let dues = dues.clone();
            Charge::only_if(move |reply: &dyn Reply| is_due(&dues, reply.status()))
        }
        model::Charge::Unless(dues) => {
            let dues = dues.clone();
            Charge::refund_if(move |reply: &dyn Reply| is_due(&dues, reply.status()))
        }
        model::Charge::Header(name) => {
            let name = name.clone();
            Charge::actual(move |reply: &dyn Reply| {
                str::from_utf8(reply.header(&name)?).ok()?.trim().parse().ok()
            })
        }
    }
}

fn is_due(dues: &[Due], status: u16) -> bool {
    dues.iter().any(|due| match due {
        Due::Status(one) => *one == status,
        // `4xx` is kept as 4 or as 400, whoever reads it.
        Due::Hundred(hundred) => *hundred == status / 100 || *hundred == status / 100 * 100,
    })
}

fn number(value: &KeyValue<'_>) -> Option<u64> {
    match value {
        KeyValue::Number(number) => Some(*number),
        KeyValue::Text(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn is(value: &KeyValue<'_>, name: &str) -> bool {
    match value {
        KeyValue::Text(text) => text == name,
        other => other.to_string() == name,
    }
}

fn class_of(name: &str) -> Result<usize, SettingError> {
    CLASSES.iter().position(|(known, _)| *known == name).ok_or_else(|| {
        let known = CLASSES.map(|(name, _)| name).join(", ");
        SettingError::new(format!("unknown priority `{name}`"), format!("use one of {known}"))
    })
}

fn names_user(said: &Said) -> bool {
    match said {
        Said::All => false,
        Said::Part(part) => *part == Part::User,
        Said::Every(parts) | Said::First(parts) => parts.iter().any(names_user),
    }
}

/// Whether every request has such a key.
pub(crate) fn is_always_there(key: &Said) -> bool {
    match key {
        Said::All | Said::Part(Part::Ip { .. } | Part::Method | Part::Path | Part::Request) => true,
        Said::Part(_) => false,
        Said::Every(parts) => parts.iter().all(is_always_there),
        Said::First(parts) => parts.iter().any(is_always_there),
    }
}

/// Whether a ban follows this key. A ban of a `path` would be for everybody there, so it follows the address, as that of an `ip`
/// does.
pub(crate) fn bans_follow(key: &Said) -> bool {
    *key != Said::Part(Part::Ip { bits: Address::PREFIX }) && names_client(key)
}

fn names_client(key: &Said) -> bool {
    match key {
        Said::All | Said::Part(Part::Method | Part::Host | Part::Path | Part::Route | Part::Request) => false,
        Said::Part(_) => true,
        Said::Every(parts) => parts.iter().any(names_client),
        Said::First(parts) => !parts.is_empty() && parts.iter().all(names_client),
    }
}
