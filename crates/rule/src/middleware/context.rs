//! Determines the context of a request.

use crate::{
    RequestContext,
    request::{RequestHead, TrustedProxies},
};
use std::{fmt, sync::Arc};

/// Determines the context of a request: by default, the peer address and no user.
///
/// ```
/// use tidegate_rule::{request::TrustedProxies, middleware::ContextExtractor};
///
/// let context = ContextExtractor::new()
///     .trusted_proxies(TrustedProxies::new(["10.0.0.0/8"])?)
///     .user(|head| head.header("x-user").and_then(|user| str::from_utf8(user).ok()).map(Into::into));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone)]
pub struct ContextExtractor {
    proxies: TrustedProxies,
    user: Option<Arc<UserLookup>>,
    extend_fns: Vec<Arc<ExtendContextFn>>,
}

type UserLookup = dyn Fn(&dyn RequestHead) -> Option<Arc<str>> + Send + Sync;
type ExtendContextFn = dyn Fn(&dyn RequestHead, RequestContext) -> RequestContext + Send + Sync;

impl ContextExtractor {
    /// Creates the default: the peer address and no user.
    pub fn new() -> Self {
        Self { proxies: TrustedProxies::none(), user: None, extend_fns: Vec::new() }
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

    /// Adds values by a function.
    #[must_use]
    pub fn extend(
        mut self,
        add: impl Fn(&dyn RequestHead, RequestContext) -> RequestContext + Send + Sync + 'static,
    ) -> Self {
        self.extend_fns.push(Arc::new(add));
        self
    }

    /// The context of this request.
    pub fn extract(&self, head: &dyn RequestHead) -> RequestContext {
        let user = self.user.as_ref().and_then(|find| find(head));
        let context = RequestContext::from_head(head, &self.proxies, user);
        self.extend_fns.iter().fold(context, |context, add| add(head, context))
    }
}

impl Default for ContextExtractor {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ContextExtractor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextExtractor").field("trusted_proxies", &self.proxies).finish_non_exhaustive()
    }
}
