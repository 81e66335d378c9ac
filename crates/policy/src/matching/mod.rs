//! Compiled matches: which requests a rule or a route applies to.
//!
//! [`RuleIndex`](crate::index::RuleIndex) finds the matching rules among many.

mod cost_expression;
mod expression;
mod glob;
mod identity;
mod networks;
mod normalize;
mod path;
mod request_view;
mod types;
mod values;

pub(crate) use cost_expression::CostExpression;
pub(crate) use expression::{CompiledExpression, ExpressionPurpose};
pub(crate) use glob::GlobMatcher;
pub use networks::Lists;
pub(crate) use networks::{access_list_from_entries, to_setting_error};
pub use normalize::{PathError, normalize_path};
pub(crate) use path::{NormalizedPath, PathMatcher, SegmentMatcher, Segments};
pub use request_view::RequestView;
pub(crate) use values::ValueSource;

use crate::{
    compile::{CompiledIdentity, CredentialKinds},
    model::{Expression, Match},
};
use identity::CredentialCondition;
use networks::Networks;
use std::{fmt, sync::Arc};
use tidegate_core::SettingError;
use values::ValueCondition;

/// A compiled [`Match`]. Clones share their state.
///
/// * `method`, `header`, `query`, `cookie`, `descriptor` and `client-cert` are compared exactly, with `*` for any text. If a
///   request repeats a header, parameter, cookie, entry or name, one match is enough.
/// * `path` is compared in its normalized form, see [`RequestView`].
/// * `host` is compared in lower case, without a port and a trailing dot.
/// * `client` is the address of the client as trusted proxies report it. A request with an unknown client matches no network.
/// * `jwt` and `api-key` are compared exactly, with `*` for any text, with the verified credential. A missing or invalid one
///   meets no condition. One that is not verified, because its address sent too many invalid ones, counts as an expression
///   that fails.
/// * `listener` is the name of the listener that received the request. If it is unknown, as in a middleware or a replayed log,
///   no name matches.
/// * `when` is an expression. If it fails for a request, it counts as true in the match of a rule, so that the rule applies,
///   and as false in that of a route; under `not` the other way round. Failures are counted.
/// * A descriptor meets no condition on a method, path, host, header, query, cookie, client certificate, listener or expression,
///   and an HTTP request none on a descriptor.
#[derive(Clone, Debug)]
pub struct Matcher {
    inner: Arc<MatcherInner>,
}

#[derive(Debug)]
struct MatcherInner {
    methods: Box<[Box<str>]>,
    paths: Box<[PathMatcher]>,
    hosts: Box<[GlobMatcher]>,
    value_conditions: Box<[ValueCondition]>,
    clients: Option<Networks>,
    listeners: Box<[Box<str>]>,
    credentials: Box<[CredentialCondition]>,
    not: Option<Matcher>,
    any: Box<[Matcher]>,
    when: Option<CompiledExpression>,
}

/// The reason why a request does not match: the first condition that fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The method.
    Method,
    /// The path.
    Path,
    /// The host.
    Host,
    /// A header, query parameter, cookie, entry of a descriptor or name in the client certificate: its source and its name.
    Value(&'static str, Arc<str>),
    /// The client address.
    Client,
    /// The listener.
    Listener,
    /// A part of a verified credential.
    Credential(Arc<str>),
    /// `not` excludes the request.
    Not,
    /// No item of `any` matches.
    Any,
    /// The expression.
    When,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Method => f.write_str("method does not match"),
            Self::Path => f.write_str("path does not match"),
            Self::Host => f.write_str("host does not match"),
            Self::Value(source, name) => write!(f, "{source} `{name}` does not match"),
            Self::Client => f.write_str("client address does not match"),
            Self::Listener => f.write_str("listener does not match"),
            Self::Credential(part) => write!(f, "{part} does not match"),
            Self::Not => f.write_str("excluded by its `not`"),
            Self::Any => f.write_str("no item of its `any` matches"),
            Self::When => f.write_str("its `when` is false"),
        }
    }
}

impl Matcher {
    /// Compiles a match of a rule with these lists, and without an identity. An error has the problem and the fix.
    ///
    /// A request for which an expression fails matches.
    pub fn new(matching: &Match, lists: &Lists) -> Result<Self, SettingError> {
        Self::for_rule(matching, lists, None)
    }

    /// Compiles a match of a rule.
    pub(crate) fn for_rule(
        matching: &Match,
        lists: &Lists,
        identity: Option<&Arc<CompiledIdentity>>,
    ) -> Result<Self, SettingError> {
        Self::build(matching, (lists, identity), true)
    }

    /// Compiles a match of a route. A request for which an expression fails does not match.
    pub(crate) fn for_route(
        matching: &Match,
        lists: &Lists,
        identity: Option<&Arc<CompiledIdentity>>,
    ) -> Result<Self, SettingError> {
        Self::build(matching, (lists, identity), false)
    }

    fn build(
        matching: &Match,
        (lists, identity): (&Lists, Option<&Arc<CompiledIdentity>>),
        on_failure: bool,
    ) -> Result<Self, SettingError> {
        let value_conditions = ValueCondition::from_map(ValueSource::Header, &matching.headers)
            .chain(ValueCondition::from_map(ValueSource::Query, &matching.queries))
            .chain(ValueCondition::from_map(ValueSource::Cookie, &matching.cookies))
            .chain(ValueCondition::from_map(ValueSource::Descriptor, &matching.descriptor))
            .chain(ValueCondition::from_certificate(&matching.client_certificate));
        let clients = match matching.clients.is_empty() {
            true => None,
            false => Some(Networks::new(&matching.clients, lists)?),
        };
        let inner = MatcherInner {
            methods: matching.methods.iter().map(|method| method.as_str().into()).collect(),
            paths: matching.paths.iter().map(PathMatcher::new).collect(),
            hosts: matching.hosts.iter().map(GlobMatcher::new).collect(),
            value_conditions: value_conditions.collect(),
            clients,
            listeners: matching.listeners.iter().map(|name| name.as_str().into()).collect(),
            credentials: CredentialCondition::from_match(matching, identity, on_failure)?,
            not: matching
                .not
                .as_ref()
                .map(|not| Self::build(not, (lists, identity), !on_failure))
                .transpose()?,
            any: matching
                .any
                .iter()
                .map(|each| Self::build(each, (lists, identity), on_failure))
                .collect::<Result<_, _>>()?,
            when: matching
                .when
                .as_ref()
                .map(|when| CompiledExpression::new(when, ExpressionPurpose::Condition { on_failure }))
                .transpose()?,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Whether this request matches.
    #[inline]
    pub fn matches(&self, view: &RequestView<'_>) -> bool {
        self.mismatch(view).is_none()
    }

    /// Returns the reason why this request does not match; `None` if it does. The cheapest conditions are checked first.
    pub fn mismatch(&self, view: &RequestView<'_>) -> Option<Mismatch> {
        let paths = &self.inner.paths;
        if !self.has_method(view) {
            return Some(Mismatch::Method);
        }
        let has_path = || !view.is_descriptor() && paths.iter().any(|path| path.matches(view.path()));
        if !paths.is_empty() && !has_path() {
            return Some(Mismatch::Path);
        }
        self.mismatch_except_path(view)
    }

    /// Whether a request matches whose path is known to match.
    pub(crate) fn matches_except_path(&self, view: &RequestView<'_>) -> bool {
        self.has_method(view) && self.mismatch_except_path(view).is_none()
    }

    fn has_method(&self, view: &RequestView<'_>) -> bool {
        let (methods, method) = (&self.inner.methods, view.head().method());
        methods.is_empty() || methods.iter().any(|known| **known == *method)
    }

    fn mismatch_except_path(&self, view: &RequestView<'_>) -> Option<Mismatch> {
        let MatcherInner { hosts, value_conditions, clients, listeners, credentials, not, any, when, .. } =
            &*self.inner;
        let is_host = |host: &str| hosts.iter().any(|glob| glob.matches(host.as_bytes()));
        if !hosts.is_empty() && !view.host().is_some_and(is_host) {
            return Some(Mismatch::Host);
        }
        if let Some(unmet) = value_conditions.iter().find(|condition| !condition.matches(view.head())) {
            return Some(Mismatch::Value(unmet.source.name(), unmet.name.clone()));
        }
        let is_client = |clients: &Networks| view.client().is_some_and(|client| clients.contains(client));
        if clients.as_ref().is_some_and(|clients| !is_client(clients)) {
            return Some(Mismatch::Client);
        }
        let is_listener = |listener: &str| listeners.iter().any(|known| **known == *listener);
        if !listeners.is_empty() && !view.head().listener().is_some_and(is_listener) {
            return Some(Mismatch::Listener);
        }
        if not.as_ref().is_some_and(|not| not.matches(view)) {
            return Some(Mismatch::Not);
        }
        if !any.is_empty() && !any.iter().any(|each| each.matches(view)) {
            return Some(Mismatch::Any);
        }
        let is_false = |when: &CompiledExpression| view.is_descriptor() || !when.is_true(view);
        if when.as_ref().is_some_and(is_false) {
            return Some(Mismatch::When);
        }
        let unmet = credentials.iter().find(|condition| !condition.matches(view))?;
        Some(Mismatch::Credential(unmet.to_string().into()))
    }

    /// The credentials that it reads.
    pub(crate) fn credentials(&self) -> CredentialKinds {
        let MatcherInner { credentials, not, any, .. } = &*self.inner;
        let inner = not.iter().chain(any).map(Self::credentials);
        credentials
            .iter()
            .map(CredentialCondition::kind)
            .chain(inner)
            .fold(CredentialKinds::default(), CredentialKinds::union)
    }

    /// The number of failed evaluations of its expressions.
    pub fn failures(&self) -> u64 {
        let when = self.inner.when.as_ref().map_or(0, CompiledExpression::failures);
        let not = self.inner.not.as_ref().map_or(0, Self::failures);
        self.inner.any.iter().map(Self::failures).fold(when.saturating_add(not), u64::saturating_add)
    }

    /// The segment that a name captures in the matching path.
    pub(crate) fn capture<'s>(&self, name: &str, view: &'s RequestView<'_>) -> Option<&'s [u8]> {
        self.matching_path(view)?.capture(name, view.path())
    }

    /// The path pattern that matches.
    pub(crate) fn matching_path(&self, view: &RequestView<'_>) -> Option<&PathMatcher> {
        self.inner.paths.iter().find(|path| path.matches(view.path()))
    }

    pub(crate) fn methods(&self) -> &[Box<str>] {
        &self.inner.methods
    }

    pub(crate) fn paths(&self) -> &[PathMatcher] {
        &self.inner.paths
    }

    pub(crate) fn hosts(&self) -> &[GlobMatcher] {
        &self.inner.hosts
    }

    pub(crate) fn any(&self) -> &[Self] {
        &self.inner.any
    }

    /// Whether all requests match.
    pub(crate) fn is_unconditional(&self) -> bool {
        let MatcherInner {
            methods,
            paths,
            hosts,
            value_conditions,
            clients,
            listeners,
            credentials,
            not,
            any,
            when,
        } = &*self.inner;
        methods.is_empty()
            && paths.is_empty()
            && hosts.is_empty()
            && value_conditions.is_empty()
            && clients.is_none()
            && listeners.is_empty()
            && credentials.is_empty()
            && not.is_none()
            && any.is_empty()
            && when.is_none()
    }
}

/// Checks that an expression can be a `when`. An error has the problem and the fix.
pub fn check_condition(expression: &Expression) -> Result<(), SettingError> {
    CompiledExpression::new(expression, ExpressionPurpose::Condition { on_failure: true }).map(drop)
}

/// Checks that an expression can be a key. An error has the problem and the fix.
pub fn check_key(expression: &Expression) -> Result<(), SettingError> {
    CompiledExpression::new(expression, ExpressionPurpose::Key).map(drop)
}

/// Checks that an expression can be a cost. An error has the problem and the fix.
pub fn check_cost(expression: &Expression) -> Result<(), SettingError> {
    CostExpression::new(expression).map(drop)
}
