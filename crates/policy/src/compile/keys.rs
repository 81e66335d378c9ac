//! Compiles keys, costs, tiers and priorities to functions of a request.

use super::identity::{CompiledIdentity, CredentialKinds};
use crate::{
    index::RuleIndex,
    matching::{CompiledExpression, ExpressionPurpose, Matcher, RequestView},
    model::{CostSpec, KeyPart, KeySpec, PrioritySpec, RouteSpec, Tiers},
};
use std::{
    cell::{Cell, RefCell},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tidegate_core::{LARGEST_EXACT, SettingError};
use tidegate_limiter::WaitPriority;
use tidegate_rule::{
    body::JsonPointer,
    request::{
        AddressKey, DescriptorHead, DuplicateKeys, KeyValue, RequestHead, RequestKey, TrustedProxies, key,
    },
};

/// Compiles the keys of a rule.
pub(crate) struct KeyCompiler<'a> {
    pub(crate) proxies: &'a TrustedProxies,
    pub(crate) uses_peer_address: bool,
    pub(crate) user: Option<&'a KeySpec>,
    /// Verifies credentials, if the policy defines how.
    pub(crate) identity: Option<&'a CompiledIdentity>,
    /// The credentials that its keys read.
    pub(crate) credentials: Cell<CredentialKinds>,
    pub(crate) matcher: &'a Matcher,
    pub(crate) routes: &'a Arc<RouteTable>,
    /// Whether descriptors are decided, whose hits multiply the cost.
    pub(crate) has_descriptors: bool,
    /// What happens to requests that repeat a value.
    pub(crate) duplicates: DuplicateKeys,
    /// The keys that read a single header, cookie, query parameter or entry of a descriptor.
    pub(crate) single_value_keys: RefCell<Vec<RequestKey>>,
    /// The values of the body that its keys read.
    pub(crate) body_pointers: RefCell<Vec<JsonPointer>>,
    /// The expressions of its keys, which count their failures.
    pub(crate) expressions: RefCell<Vec<Arc<CompiledExpression>>>,
}

/// The routes of a policy.
#[derive(Debug, Default)]
pub(crate) struct RouteTable {
    pub(crate) routes: Vec<RouteSpec>,
    pub(crate) index: RuleIndex,
}

impl RouteTable {
    /// The index of the first route that matches.
    pub(crate) fn find(&self, view: &RequestView<'_>) -> Option<usize> {
        match self.index.matchers().first().is_some_and(Matcher::is_unconditional) {
            true => Some(0),
            false => self.index.find_first(view),
        }
    }

    fn find_upstream(&self, view: &RequestView<'_>) -> Option<&str> {
        let route = if view.is_descriptor() { None } else { self.find(view) };
        self.routes.get(route?)?.upstream()
    }
}

/// The priority classes, highest first, with the share of an adaptive limit that is reserved for each.
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
            KeyPart::Ip { prefix_len } => self.client_address_key().ipv6_prefix(*prefix_len),
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
            KeyPart::Upstream => {
                let (routes, proxies) = (self.routes.clone(), self.proxies.clone());
                key::custom(move |head| {
                    let upstream = routes.find_upstream(&RequestView::new(head, &proxies))?;
                    Some(KeyValue::from(upstream.to_owned()))
                })
            }
            KeyPart::Header(name) => self.add_single_value_key(key::header(name)?),
            KeyPart::Cookie(name) => self.add_single_value_key(key::cookie(name)?),
            KeyPart::Query(name) => self.add_single_value_key(key::query(name.as_str())),
            KeyPart::Descriptor(name) => self.add_single_value_key(key::descriptor(name.as_str())),
            KeyPart::Body(pointer) => {
                self.body_pointers.borrow_mut().push(pointer.clone());
                key::body(pointer.clone())
            }
            KeyPart::Jwt(claim) => {
                let kind = CredentialKinds::JWT;
                let jwt = self.identity.and_then(CompiledIdentity::jwt).ok_or_else(|| kind.undefined())?;
                self.credentials.set(self.credentials.get().union(kind));
                or_recorded(part, jwt.clone().key(claim.clone()))
            }
            KeyPart::ApiKey(name) => {
                let kind = CredentialKinds::API_KEY;
                let keys =
                    self.identity.and_then(CompiledIdentity::api_keys).ok_or_else(|| kind.undefined())?;
                self.credentials.set(self.credentials.get().union(kind));
                or_recorded(part, keys.clone().key(*name))
            }
            KeyPart::ClientCertificate(name) => {
                self.credentials.set(self.credentials.get().union(CredentialKinds::CLIENT_CERTIFICATE));
                or_recorded(part, key::client_certificate(*name))
            }
            KeyPart::Capture(name) => {
                if !self.matcher.paths().iter().any(|path| path.has_capture(name)) {
                    let fix = format!("add `{{{name}}}` to the path of its `match`");
                    return Err(SettingError::new(format!("no path captures `{name}`"), fix));
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
                key::custom(move |head| {
                    let view = RequestView::new(head, &proxies);
                    if view.is_descriptor() { None } else { expression.evaluate_key(&view) }
                })
            }
        })
    }

    /// The key of the client address.
    pub(crate) fn client_address_key(&self) -> RequestKey {
        client_address_key(self.proxies, self.uses_peer_address)
    }

    fn add_single_value_key(&self, key: RequestKey) -> RequestKey {
        let key = key.duplicates(self.duplicates);
        self.single_value_keys.borrow_mut().push(key.clone());
        key
    }

    fn user_key(&self) -> Result<RequestKey, SettingError> {
        let spec = self.user.ok_or_else(|| {
            SettingError::new("the policy does not define `user`", "define it, as in `user: header x-user`")
        })?;
        if contains_user(spec) {
            return Err(SettingError::new("`user` refers to itself", "use a header or a cookie"));
        }
        self.compile(spec)
    }

    /// Compiles a cost; `None` for a cost of 1, which most rules have.
    pub(crate) fn compile_cost(
        &self,
        rule: &str,
        cost: &CostSpec,
    ) -> Result<Option<Arc<CostFn>>, SettingError> {
        let cost = self.compile_cost_per_hit(rule, cost)?;
        if !self.has_descriptors {
            return Ok(cost);
        }
        Ok(Some(Arc::new(move |head| {
            let hits = head.descriptor().map_or(1, DescriptorHead::hits);
            cost.as_ref().map_or(1, |cost| cost(head)).saturating_mul(hits).min(LARGEST_EXACT)
        })))
    }

    fn compile_cost_per_hit(&self, rule: &str, cost: &CostSpec) -> Result<Option<Arc<CostFn>>, SettingError> {
        Ok(match cost {
            CostSpec::Fixed(1) => None,
            CostSpec::Fixed(cost) => {
                let cost = *cost;
                Some(Arc::new(move |_| cost))
            }
            CostSpec::FromRequest { from, default, max } => {
                let (key, default, max) = (self.compile(from)?, *default, *max);
                let rule = rule.to_owned();
                // A client must not make its requests free.
                Some(Arc::new(move |head| {
                    let stated = key.find(head).as_ref().and_then(parse_number);
                    let cost = stated.or_else(|| head.recorded_cost(&rule)).unwrap_or(default);
                    cost.clamp(1, max.max(1))
                }))
            }
        })
    }

    /// Compiles the function that returns the index of a request's tier; the last index is the default tier.
    pub(crate) fn compile_tier(&self, tiers: &Tiers) -> Result<Arc<IndexFn>, SettingError> {
        let key = self.compile(&tiers.key)?;
        let names: Vec<Arc<str>> = tiers.quotas.iter().map(|(name, _)| name.as_str().into()).collect();
        Ok(Arc::new(move |head| {
            let found = key.find(head);
            let index = found.and_then(|found| names.iter().position(|name| equals(&found, name)));
            index.unwrap_or(names.len())
        }))
    }

    /// Compiles the function that returns the index of a request's class in [`CLASSES`].
    pub(crate) fn compile_class(&self, class: &PrioritySpec) -> Result<Arc<IndexFn>, SettingError> {
        match class {
            PrioritySpec::Fixed(name) => {
                let index = class_index(name)?;
                Ok(Arc::new(move |_| index))
            }
            PrioritySpec::FromRequest { key, default, .. } => {
                let (key, default) = (self.compile(key)?, class_index(default)?);
                Ok(Arc::new(move |head| {
                    let found = key.find(head);
                    let index =
                        found.and_then(|found| CLASSES.iter().position(|(name, _)| equals(&found, name)));
                    index.unwrap_or(default)
                }))
            }
        }
    }
}

/// A key of a credential, or its recorded value: logs contain no credentials.
fn or_recorded(part: &KeyPart, verified: RequestKey) -> RequestKey {
    let name = part.to_string();
    key::custom(move |head| verified.find(head).or_else(|| head.recorded_key(&name).map(KeyValue::from)))
}

/// The key of the client address.
pub(super) fn client_address_key(proxies: &TrustedProxies, uses_peer_address: bool) -> RequestKey {
    // Faster, and equivalent without trusted proxies.
    match uses_peer_address {
        true => key::peer(),
        false => key::client(proxies.clone()),
    }
}

/// A number that depends on the request.
pub(crate) type CostFn = dyn Fn(&dyn RequestHead) -> u64 + Send + Sync;
/// An index that depends on the request.
pub(crate) type IndexFn = dyn Fn(&dyn RequestHead) -> usize + Send + Sync;

/// The priority of a class in a wait queue.
pub(crate) fn class_priority(class: usize) -> WaitPriority {
    WaitPriority(u8::try_from(CLASSES.len().saturating_sub(class)).unwrap_or(0))
}

fn parse_number(value: &KeyValue<'_>) -> Option<u64> {
    match value {
        KeyValue::Number(number) => Some(*number),
        KeyValue::Text(text) => text.trim().parse().ok(),
        KeyValue::Fallback(_, value) => parse_number(value),
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

/// Whether every request has this key.
pub(crate) fn is_always_present(key: &KeySpec) -> bool {
    match key {
        KeySpec::All
        | KeySpec::Part(KeyPart::Ip { .. } | KeyPart::Method | KeyPart::Path | KeyPart::Request) => true,
        KeySpec::Part(_) => false,
        KeySpec::Composite(parts) => parts.iter().all(is_always_present),
        KeySpec::First(parts) => parts.iter().any(is_always_present),
    }
}

/// Whether bans apply to this key. A ban of a `path` would affect all its clients, so it applies to the address instead, as for
/// `ip`.
pub(crate) fn can_ban_by_key(key: &KeySpec) -> bool {
    *key != KeySpec::Part(KeyPart::Ip { prefix_len: AddressKey::IPV6_PREFIX_LEN }) && identifies_client(key)
}

fn identifies_client(key: &KeySpec) -> bool {
    match key {
        KeySpec::All
        | KeySpec::Part(
            KeyPart::Method
            | KeyPart::Host
            | KeyPart::Path
            | KeyPart::Route
            | KeyPart::Upstream
            | KeyPart::Request,
        ) => false,
        KeySpec::Part(_) => true,
        KeySpec::Composite(parts) => parts.iter().any(identifies_client),
        KeySpec::First(parts) => !parts.is_empty() && parts.iter().all(identifies_client),
    }
}
