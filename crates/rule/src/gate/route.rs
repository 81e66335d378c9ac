//! Which requests a rule is about, by their method and route.

use crate::request::Head;
use std::borrow::Cow;

/// A route that a rule is about: one, or everything below one.
#[derive(Clone, Debug)]
pub(super) enum Route {
    One(Cow<'static, str>),
    Below(String),
}

impl Route {
    pub(super) fn of(route: Cow<'static, str>) -> Self {
        match route.strip_suffix("/*") {
            Some(root) => Self::Below(root.to_owned()),
            None => Self::One(route),
        }
    }

    /// The route as the router names it; the path where none has matched.
    pub(super) fn matches(&self, head: &dyn Head) -> bool {
        let route = head.route().unwrap_or_else(|| head.path());
        match self {
            Self::One(one) => route == one,
            Self::Below(root) => {
                let rest = route.strip_prefix(&**root);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
        }
    }
}
