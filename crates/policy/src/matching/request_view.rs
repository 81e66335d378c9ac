//! The view of a request that matchers use.

use super::NormalizedPath;
use crate::compile::CredentialResults;
use std::{borrow::Cow, cell::OnceCell, fmt, net::IpAddr};
use tidegate_rule::request::{RequestHead, TrustedProxies, normalize_host};

/// A request with its normalized path, host, client address and verified credentials. Each is computed once, on first use.
///
/// The path is normalized, because a backend may treat many spellings as the same: escapes are decoded once (an escaped slash
/// stays part of its segment), parameters after `;`, empty segments and `.` are removed, and `..` removes the previous segment.
/// Paths are case-sensitive.
pub struct RequestView<'a> {
    head: &'a dyn RequestHead,
    proxies: &'a TrustedProxies,
    path: OnceCell<NormalizedPath<'a>>,
    host: OnceCell<Option<Cow<'a, str>>>,
    client: OnceCell<Option<IpAddr>>,
    credentials: CredentialResults,
}

impl<'a> RequestView<'a> {
    /// A view of this request. `proxies` are trusted to report its client address.
    pub fn new(head: &'a dyn RequestHead, proxies: &'a TrustedProxies) -> Self {
        Self {
            head,
            proxies,
            path: OnceCell::new(),
            host: OnceCell::new(),
            client: OnceCell::new(),
            credentials: CredentialResults::default(),
        }
    }

    /// The request.
    pub fn head(&self) -> &'a dyn RequestHead {
        self.head
    }

    /// Whether it is a descriptor, which has no method, path, host or headers.
    pub(crate) fn is_descriptor(&self) -> bool {
        self.head.descriptor().is_some()
    }

    /// The address of the client.
    pub fn client(&self) -> Option<IpAddr> {
        *self.client.get_or_init(|| self.proxies.client_address(self.head))
    }

    /// The host, in lower case, without a port.
    pub fn host(&self) -> Option<&str> {
        self.host.get_or_init(|| self.head.host().and_then(normalize_host)).as_deref()
    }

    /// The results of the verification of its credentials.
    pub(crate) fn credentials(&self) -> &CredentialResults {
        &self.credentials
    }

    pub(crate) fn path(&self) -> &NormalizedPath<'a> {
        self.path.get_or_init(|| NormalizedPath::new(self.head.path()))
    }
}

impl fmt::Debug for RequestView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestView({} {})", self.head.method(), self.path().to_display())
    }
}
