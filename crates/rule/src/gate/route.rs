//! Which requests a rule is about, by their method and route.

use crate::request::RequestHead;
use std::borrow::Cow;

/// A route that a rule is about: one, or everything below one.
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

    /// The route as the router names it; the path where none has matched.
    pub(super) fn matches(&self, head: &dyn RequestHead) -> bool {
        let route = head.route().unwrap_or_else(|| head.path());
        match self {
            Self::Exact(one) => route == one,
            Self::Prefix(root) => {
                let rest = route.strip_prefix(&**root);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
        }
    }
}
