//! Determines the facts about a request.

use crate::{
    Facts,
    request::{RequestHead, TrustedProxies},
};
use std::{fmt, sync::Arc};

/// Determines the facts about a request: by default, the peer address and no user.
///
/// ```
/// use tidegate_rule::{request::TrustedProxies, middleware::RequestFacts};
///
/// let facts = RequestFacts::new()
///     .trusted_proxies(TrustedProxies::new(["10.0.0.0/8"])?)
///     .user(|head| head.header("x-user").and_then(|user| str::from_utf8(user).ok()).map(Into::into));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone)]
pub struct RequestFacts {
    proxies: TrustedProxies,
    user: Option<Arc<UserLookup>>,
    extenders: Vec<Arc<AddFacts>>,
}

type UserLookup = dyn Fn(&dyn RequestHead) -> Option<Arc<str>> + Send + Sync;
type AddFacts = dyn Fn(&dyn RequestHead, Facts) -> Facts + Send + Sync;

impl RequestFacts {
    /// Creates the default: the peer address and no user.
    pub fn new() -> Self {
        Self { proxies: TrustedProxies::none(), user: None, extenders: Vec::new() }
    }

    /// Resolves the client address through these proxies.
    #[must_use]
    pub fn trusted_proxies(self, proxies: TrustedProxies) -> Self {
        Self { proxies, ..self }
    }

    /// Finds the user: in what the application has already decoded and verified, such as claims in the
    /// extensions.
    #[must_use]
    pub fn user(self, find: impl Fn(&dyn RequestHead) -> Option<Arc<str>> + Send + Sync + 'static) -> Self {
        Self { user: Some(Arc::new(find)), ..self }
    }

    /// Adds facts by a function.
    #[must_use]
    pub fn extend(mut self, add: impl Fn(&dyn RequestHead, Facts) -> Facts + Send + Sync + 'static) -> Self {
        self.extenders.push(Arc::new(add));
        self
    }

    /// The facts about this request.
    pub fn find(&self, head: &dyn RequestHead) -> Facts {
        let user = self.user.as_ref().and_then(|find| find(head));
        let facts = Facts::from_head(head, &self.proxies, user);
        self.extenders.iter().fold(facts, |facts, add| add(head, facts))
    }
}

impl Default for RequestFacts {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RequestFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestFacts").field("trusted_proxies", &self.proxies).finish_non_exhaustive()
    }
}
