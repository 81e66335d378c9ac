//! A request as matchers see it.

use super::NormalizedPath;
use std::{borrow::Cow, cell::OnceCell, fmt, net::IpAddr};
use tidegate_rule::request::{RequestHead, TrustedProxies, normalize_host};

/// A request as matchers see it. What several of them look at is worked out once, and only if one does.
///
/// Its path is seen in one spelling, since a backend may read many as the same: escapes are undone once (an escaped slash
/// stays a part of its segment), what stands behind a `;` in a segment is left out, empty segments and `.` are left out, and `..` takes away
/// the segment before it. Large and small letters differ.
pub struct RequestView<'a> {
    head: &'a dyn RequestHead,
    proxies: &'a TrustedProxies,
    path: OnceCell<NormalizedPath<'a>>,
    host: OnceCell<Option<Cow<'a, str>>>,
    client: OnceCell<Option<IpAddr>>,
}

impl<'a> RequestView<'a> {
    /// This request, whose client these proxies tell.
    pub fn new(head: &'a dyn RequestHead, proxies: &'a TrustedProxies) -> Self {
        Self { head, proxies, path: OnceCell::new(), host: OnceCell::new(), client: OnceCell::new() }
    }

    /// The request.
    pub fn head(&self) -> &'a dyn RequestHead {
        self.head
    }

    /// Its client.
    pub fn client(&self) -> Option<IpAddr> {
        *self.client.get_or_init(|| self.proxies.client_address(self.head))
    }

    /// Its host, in lower case, without a port.
    pub fn host(&self) -> Option<&str> {
        self.host.get_or_init(|| self.head.host().and_then(normalize_host)).as_deref()
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
