//! Route patterns of a rule.

use crate::request::RequestHead;
use std::borrow::Cow;

/// A route that a rule applies to: one, or everything below one.
#[derive(Clone, Debug)]
pub(super) enum RoutePattern {
    Exact(Cow<'static, str>),
    Prefix(String),
}

impl RoutePattern {
    pub(super) fn parse(route: Cow<'static, str>) -> Self {
        match route.strip_suffix("/*") {
            Some(root) => Self::Prefix(root.to_owned()),
            None => Self::Exact(route),
        }
    }

    /// Compares the route as the router names it, or the path without a matched route.
    pub(super) fn matches(&self, head: &dyn RequestHead) -> bool {
        let route = head.route().unwrap_or_else(|| head.path());
        match self {
            Self::Exact(one) => route == one,
            Self::Prefix(root) => {
                let suffix = route.strip_prefix(&**root);
                suffix.is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('/'))
            }
        }
    }
}
