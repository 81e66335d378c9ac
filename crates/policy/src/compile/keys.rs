//! For whom, at what cost, of which tier: what a policy says, as functions of a request.

use crate::{
    matching::{CompiledExpression, ExpressionPurpose, Matcher, RequestView},
    model::{self, CostSpec, KeyPart, KeySpec, PrioritySpec, StatusPattern, Tiers},
};
use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tidegate_core::SettingError;
use tidegate_limiter::WaitPriority;
use tidegate_rule::{
    ChargePolicy,
    request::{
        AddressKey, DuplicateKeys, KeyValue, RequestHead, RequestKey, ResponseHead, TrustedProxies, key,
    },
};

/// What keys of one rule are made from.
pub(crate) struct KeyCompiler<'a> {
    pub(crate) proxies: &'a TrustedProxies,
    pub(crate) is_direct: bool,
    pub(crate) user: Option<&'a KeySpec>,
    pub(crate) matcher: &'a Matcher,
    /// What happens to requests with several values where one is taken.
    pub(crate) duplicates: DuplicateKeys,
    /// What takes one value of a header, a cookie or a parameter.
    pub(crate) single_value_keys: RefCell<Vec<RequestKey>>,
    /// The expressions of its keys, which count what they cannot work out.
    pub(crate) expressions: RefCell<Vec<Arc<CompiledExpression>>>,
}

/// Classes of requests, the most important first, and the share of an adaptive limit that each is sure of.
pub(crate) const CLASSES: [(&str, f64); 4] =
    [("critical", 20.0), ("high", 20.0), ("normal", 20.0), ("low", 5.0)];

impl KeyCompiler<'_> {
    pub(crate) fn compile(&self, spec: &KeySpec) -> Result<RequestKey, SettingError> {
        match spec {
            KeySpec::All => Ok(key::all()),
            KeySpec::Part(part) => self.compile_part(part),
            KeySpec::Composite(parts) => self.compile_all(parts, RequestKey::and),
            KeySpec::First(parts) => self.compile_all(parts, RequestKey::or),
        }
    }

    fn compile_all(
        &self,
        parts: &[KeySpec],
        join: fn(RequestKey, RequestKey) -> RequestKey,
    ) -> Result<RequestKey, SettingError> {
        let mut keys = parts.iter().map(|part| self.compile(part));
        match keys.next() {
            None => Ok(key::all()),
            Some(first) => keys.try_fold(first?, |all, next| Ok(join(all, next?))),
        }
    }

    fn compile_part(&self, part: &KeyPart) -> Result<RequestKey, SettingError> {
        let matcher = self.matcher.clone();
        Ok(match part {
            KeyPart::Ip { bits } => self.client_key().ipv6_prefix(*bits),
            KeyPart::User => self.user_key()?,
            KeyPart::Method => key::method(),
            KeyPart::Host => key::host(),
            KeyPart::Path => key::path(),
            KeyPart::Request => {
                let count = AtomicU64::new(0);
                key::custom(move |_| Some(KeyValue::Number(count.fetch_add(1, Ordering::Relaxed))))
            }
            KeyPart::Route => {
                let proxies = self.proxies.clone();
                key::custom(move |head| {
                    let route =
                        matcher.matching_path(&RequestView::new(head, &proxies))?.pattern().to_owned();
                    Some(KeyValue::from(route))
                })
            }
            KeyPart::Header(name) => self.add_single_value_key(key::header(name)?),
            KeyPart::Cookie(name) => self.add_single_value_key(key::cookie(name)?),
            KeyPart::Query(name) => self.add_single_value_key(key::query(name.as_str())),
            KeyPart::Capture(name) => {
                if !self.matcher.paths().iter().any(|path| path.has_capture(name)) {
                    let fix = format!("write `{{{name}}}` in the path of its `match`");
                    return Err(SettingError::new(format!("no path has a `{name}` to be captured"), fix));
                }
                let (name, proxies): (Arc<str>, _) = (name.as_str().into(), self.proxies.clone());
                key::custom(move |head| {
                    let view = RequestView::new(head, &proxies);
                    matcher.capture(&name, &view).map(|value| KeyValue::from_bytes(value.to_vec()))
                })
            }
            KeyPart::Cel(expression) => {
                let expression = Arc::new(CompiledExpression::new(expression, ExpressionPurpose::Key)?);
                let proxies = self.proxies.clone();
                self.expressions.borrow_mut().push(expression.clone());
                key::custom(move |head| expression.evaluate_key(&RequestView::new(head, &proxies)))
            }
        })
    }

    /// The address of the client.
    pub(crate) fn client_key(&self) -> RequestKey {
        // Quicker, and the same where nobody is trusted to say otherwise.
        match self.is_direct {
            true => key::peer(),
            false => key::client(self.proxies.clone()),
        }
    }

    fn add_single_value_key(&self, key: RequestKey) -> RequestKey {
        let key = key.duplicates(self.duplicates);
        self.single_value_keys.borrow_mut().push(key.clone());
        key
    }

    fn user_key(&self) -> Result<RequestKey, SettingError> {
        let spec = self.user.ok_or_else(|| {
            SettingError::new(
                "nothing says who the user is",
                "say it under `user`, as in `user: header x-user`",
            )
        })?;
        if contains_user(spec) {
            return Err(SettingError::new(
                "`user` says that the user is the user",
                "name a header or a cookie there",
            ));
        }
        self.compile(spec)
    }

    /// `None` for a cost of one: most rules need not ask.
    pub(crate) fn compile_cost(&self, cost: &CostSpec) -> Result<Option<Arc<CostFn>>, SettingError> {
        Ok(match cost {
            CostSpec::Fixed(1) => None,
            CostSpec::Fixed(cost) => {
                let cost = *cost;
                Some(Arc::new(move |_| cost))
            }
            CostSpec::FromRequest { part, default: otherwise, max: most } => {
                let (key, otherwise, most) = (self.compile_part(part)?, *otherwise, *most);
                // Nobody makes a request free by saying so.
                Some(Arc::new(move |head| {
                    key.find(head).as_ref().and_then(parse_number).unwrap_or(otherwise).clamp(1, most.max(1))
                }))
            }
        })
    }

    /// The place of a request's tier; the last is that of all others.
    pub(crate) fn compile_tier(&self, tiers: &Tiers) -> Result<Arc<IndexFn>, SettingError> {
        let by = self.compile(&tiers.key)?;
        let names: Vec<Arc<str>> = tiers.quotas.iter().map(|(name, _)| name.as_str().into()).collect();
        Ok(Arc::new(move |head| {
            let found = by.find(head);
            let place = found.and_then(|found| names.iter().position(|name| equals(&found, name)));
            place.unwrap_or(names.len())
        }))
    }

    /// The place of a request's class among [`CLASSES`].
    pub(crate) fn compile_class(&self, class: &PrioritySpec) -> Result<Arc<IndexFn>, SettingError> {
        match class {
            PrioritySpec::Fixed(name) => {
                let place = class_index(name)?;
                Ok(Arc::new(move |_| place))
            }
            PrioritySpec::FromRequest { key: by, default: otherwise } => {
                let (by, otherwise) = (self.compile(by)?, class_index(otherwise)?);
                Ok(Arc::new(move |head| {
                    let found = by.find(head);
                    let place =
                        found.and_then(|found| CLASSES.iter().position(|(name, _)| equals(&found, name)));
                    place.unwrap_or(otherwise)
                }))
            }
        }
    }
}

/// A number that depends on the request.
pub(crate) type CostFn = dyn Fn(&dyn RequestHead) -> u64 + Send + Sync;
/// A place that depends on the request.
pub(crate) type IndexFn = dyn Fn(&dyn RequestHead) -> usize + Send + Sync;

/// Who goes first in a line: the more important.
pub(crate) fn class_priority(class: usize) -> WaitPriority {
    WaitPriority(u8::try_from(CLASSES.len().saturating_sub(class)).unwrap_or(0))
}

pub(crate) fn compile_charge(charge: &model::ChargeSpec) -> ChargePolicy {
    match charge {
        model::ChargeSpec::If(dues) => {
            let dues = dues.clone();
            ChargePolicy::only_if(move |reply: &dyn ResponseHead| matches_status(&dues, reply.status()))
        }
        model::ChargeSpec::Unless(dues) => {
            let dues = dues.clone();
            ChargePolicy::refund_if(move |reply: &dyn ResponseHead| matches_status(&dues, reply.status()))
        }
        model::ChargeSpec::Header(name) => {
            let name = name.clone();
            ChargePolicy::actual(move |reply: &dyn ResponseHead| {
                str::from_utf8(reply.header(&name)?).ok()?.trim().parse().ok()
            })
        }
    }
}

fn matches_status(dues: &[StatusPattern], status: u16) -> bool {
    dues.iter().any(|due| match due {
        StatusPattern::Status(one) => *one == status,
        // `4xx` is kept as 4 or as 400, whoever reads it.
        StatusPattern::Class(hundred) => *hundred == status / 100 || *hundred == status / 100 * 100,
    })
}

fn parse_number(value: &KeyValue<'_>) -> Option<u64> {
    match value {
        KeyValue::Number(number) => Some(*number),
        KeyValue::Text(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn equals(value: &KeyValue<'_>, name: &str) -> bool {
    match value {
        KeyValue::Text(text) => text == name,
        other => other.to_string() == name,
    }
}

fn class_index(name: &str) -> Result<usize, SettingError> {
    CLASSES.iter().position(|(known, _)| *known == name).ok_or_else(|| {
        let known = CLASSES.map(|(name, _)| name).join(", ");
        SettingError::new(format!("unknown priority `{name}`"), format!("use one of {known}"))
    })
}

fn contains_user(spec: &KeySpec) -> bool {
    match spec {
        KeySpec::All => false,
        KeySpec::Part(part) => *part == KeyPart::User,
        KeySpec::Composite(parts) | KeySpec::First(parts) => parts.iter().any(contains_user),
    }
}

/// Whether every request has such a key.
pub(crate) fn is_always_present(key: &KeySpec) -> bool {
    match key {
        KeySpec::All
        | KeySpec::Part(KeyPart::Ip { .. } | KeyPart::Method | KeyPart::Path | KeyPart::Request) => true,
        KeySpec::Part(_) => false,
        KeySpec::Composite(parts) => parts.iter().all(is_always_present),
        KeySpec::First(parts) => parts.iter().any(is_always_present),
    }
}

/// Whether a ban follows this key. A ban of a `path` would be for everybody there, so it follows the address, as that of an `ip`
/// does.
pub(crate) fn can_ban_by_key(key: &KeySpec) -> bool {
    *key != KeySpec::Part(KeyPart::Ip { bits: AddressKey::IPV6_PREFIX_BITS }) && identifies_client(key)
}

fn identifies_client(key: &KeySpec) -> bool {
    match key {
        KeySpec::All
        | KeySpec::Part(
            KeyPart::Method | KeyPart::Host | KeyPart::Path | KeyPart::Route | KeyPart::Request,
        ) => false,
        KeySpec::Part(_) => true,
        KeySpec::Composite(parts) => parts.iter().any(identifies_client),
        KeySpec::First(parts) => !parts.is_empty() && parts.iter().all(identifies_client),
    }
}
