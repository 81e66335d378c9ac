//! Which requests a rule is about: a `match`, compiled.
//!
//! Nothing here depends on how many rules there are; see [`RuleIndex`](crate::index::RuleIndex) for that.

mod expression;
mod glob;
mod networks;
mod normalize;
mod path;
mod request_view;
mod types;
mod values;

pub(crate) use expression::{CompiledExpression, ExpressionPurpose};
pub(crate) use glob::GlobMatcher;
pub use networks::Lists;
pub(crate) use networks::{access_list_from_entries, to_setting_error};
pub use normalize::{PathError, normalize_path};
pub(crate) use path::{NormalizedPath, PathMatcher, SegmentMatcher, Segments};
pub use request_view::RequestView;
pub(crate) use values::ValueSource;

use crate::model::{Expression, Match};
use networks::Networks;
use std::{fmt, sync::Arc};
use tidegate_core::SettingError;
use values::ValueCondition;

/// A [`Match`], ready to be asked. Clones are the same.
///
/// * `method`, `header`, `query` and `cookie` are compared as they are, with `*` for any text. Where a request has several
///   headers, parameters or cookies of a name, one that fits is enough.
/// * `path` is compared in its plain spelling, see [`RequestView`].
/// * `host` is compared in lower case, without a port and a last dot.
/// * `client` is the address of the client as trusted proxies tell it. A request whose client is not known is from nowhere.
/// * `listener` is the name of the listener that the request came in through. Where that is not known, as in a middleware
///   or a replayed log, no name matches.
/// * `when` is an expression. One that fails for a request counts as true in the match of a rule, so that the rule applies, and
///   as false in that of a route; under `not` the other way round. Failures are counted.
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
    not: Option<Matcher>,
    any: Box<[Matcher]>,
    when: Option<CompiledExpression>,
}

/// Why a request is none of those that are meant: the first that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// Its method.
    Method,
    /// Its path.
    Path,
    /// Its host.
    Host,
    /// A header, a parameter or a cookie: where, and which.
    Value(&'static str, Arc<str>),
    /// Its client.
    Client,
    /// The listener that it came in through.
    Listener,
    /// It is one of those that `not` leaves out.
    Not,
    /// It is none of those in `any`.
    Any,
    /// The expression.
    When,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Method => f.write_str("it is about other methods"),
            Self::Path => f.write_str("it is about other paths"),
            Self::Host => f.write_str("it is about other hosts"),
            Self::Value(place, name) => write!(f, "it wants another {place} `{name}`"),
            Self::Client => f.write_str("it is about clients from elsewhere"),
            Self::Listener => f.write_str("it is about other listeners"),
            Self::Not => f.write_str("its `not` leaves this out"),
            Self::Any => f.write_str("it is none of those that its `any` names"),
            Self::When => f.write_str("its `when` is not true"),
        }
    }
}

impl Matcher {
    /// A match of a policy with these lists. An error names what cannot be, and what to write instead.
    ///
    /// A request for which an expression fails is meant.
    pub fn new(matching: &Match, lists: &Lists) -> Result<Self, SettingError> {
        Self::build(matching, lists, true)
    }

    /// The same for a route: a request for which an expression fails is not meant.
    pub(crate) fn for_route(matching: &Match, lists: &Lists) -> Result<Self, SettingError> {
        Self::build(matching, lists, false)
    }

    fn build(matching: &Match, lists: &Lists, on_failure: bool) -> Result<Self, SettingError> {
        let value_conditions = ValueCondition::from_map(ValueSource::Header, &matching.headers)
            .chain(ValueCondition::from_map(ValueSource::Query, &matching.queries))
            .chain(ValueCondition::from_map(ValueSource::Cookie, &matching.cookies));
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
            not: matching.not.as_ref().map(|not| Self::build(not, lists, !on_failure)).transpose()?,
            any: matching
                .any
                .iter()
                .map(|each| Self::build(each, lists, on_failure))
                .collect::<Result<_, _>>()?,
            when: matching
                .when
                .as_ref()
                .map(|when| CompiledExpression::new(when, ExpressionPurpose::Condition { on_failure }))
                .transpose()?,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Whether this request is meant.
    #[inline]
    pub fn matches(&self, view: &RequestView<'_>) -> bool {
        self.mismatch(view).is_none()
    }

    /// Why this request is not meant; `None` if it is. What costs least is looked at first.
    pub fn mismatch(&self, view: &RequestView<'_>) -> Option<Mismatch> {
        let paths = &self.inner.paths;
        if !self.has_method(view) {
            return Some(Mismatch::Method);
        }
        if !paths.is_empty() && !paths.iter().any(|path| path.matches(view.path())) {
            return Some(Mismatch::Path);
        }
        self.mismatch_except_path(view)
    }

    /// Whether a request is meant whose path is known to be.
    pub(crate) fn matches_except_path(&self, view: &RequestView<'_>) -> bool {
        self.has_method(view) && self.mismatch_except_path(view).is_none()
    }

    fn has_method(&self, view: &RequestView<'_>) -> bool {
        let (methods, method) = (&self.inner.methods, view.head().method());
        methods.is_empty() || methods.iter().any(|known| **known == *method)
    }

    fn mismatch_except_path(&self, view: &RequestView<'_>) -> Option<Mismatch> {
        let MatcherInner { hosts, value_conditions: wanted, clients, listeners, not, any, when, .. } =
            &*self.inner;
        let is_host = |host: &str| hosts.iter().any(|glob| glob.matches(host.as_bytes()));
        if !hosts.is_empty() && !view.host().is_some_and(is_host) {
            return Some(Mismatch::Host);
        }
        if let Some(unmet) = wanted.iter().find(|wanted| !wanted.matches(view.head())) {
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
        when.as_ref().is_some_and(|when| !when.is_true(view)).then_some(Mismatch::When)
    }

    /// How often an expression in it could not be worked out.
    pub fn failures(&self) -> u64 {
        let when = self.inner.when.as_ref().map_or(0, CompiledExpression::failures);
        let not = self.inner.not.as_ref().map_or(0, Self::failures);
        self.inner.any.iter().map(Self::failures).fold(when.saturating_add(not), u64::saturating_add)
    }

    /// What a name of the path that fits stands for.
    pub(crate) fn capture<'s>(&self, name: &str, view: &'s RequestView<'_>) -> Option<&'s [u8]> {
        self.matching_path(view)?.capture(name, view.path())
    }

    /// The pattern that fits.
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

    /// Whether all requests are meant.
    pub(crate) fn is_unconditional(&self) -> bool {
        let MatcherInner {
            methods,
            paths,
            hosts,
            value_conditions: wanted,
            clients,
            listeners,
            not,
            any,
            when,
        } = &*self.inner;
        methods.is_empty()
            && paths.is_empty()
            && hosts.is_empty()
            && wanted.is_empty()
            && clients.is_none()
            && listeners.is_empty()
            && not.is_none()
            && any.is_empty()
            && when.is_none()
    }
}

/// Whether an expression can be a `when`, and what to write instead if not.
pub fn check_condition(expression: &Expression) -> Result<(), SettingError> {
    CompiledExpression::new(expression, ExpressionPurpose::Condition { on_failure: true }).map(drop)
}

/// Whether an expression can be a key, and what to write instead if not.
pub fn check_key(expression: &Expression) -> Result<(), SettingError> {
    CompiledExpression::new(expression, ExpressionPurpose::Key).map(drop)
}
