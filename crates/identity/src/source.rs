//! Where a request carries a credential.

use std::{borrow::Cow, fmt, sync::Arc};
use tidegate_rule::request::{RequestHead, for_each_cookie, for_each_query};

/// Where a request carries a credential. Names of headers are in lower case. A descriptor of Envoy carries it in an entry of this
/// name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialSource {
    /// A header. The scheme `Bearer` is removed. `Authorization` with another scheme has no credential.
    Header(Arc<str>),
    /// A cookie.
    Cookie(Arc<str>),
    /// A query parameter. It also reaches the logs of other servers.
    Query(Arc<str>),
}

/// The credential of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FoundCredential<'a> {
    Missing,
    One(Cow<'a, str>),
    /// Servers disagree on which one counts.
    Several,
}

impl CredentialSource {
    pub(crate) fn find<'a>(&self, head: &'a dyn RequestHead) -> FoundCredential<'a> {
        let mut found = FoundCredential::Missing;
        let mut add = |value: Cow<'a, [u8]>| {
            found = match found {
                FoundCredential::Missing => FoundCredential::One(to_text(value)),
                _ => FoundCredential::Several,
            };
        };
        let mut add_header = |name: &str, value: &'a [u8]| {
            if let Some(value) = remove_scheme(value, name == "authorization") {
                add(Cow::Borrowed(value));
            }
        };
        match (self, head.descriptor()) {
            // It has no headers. An entry of the same name takes their place.
            (Self::Header(name) | Self::Cookie(name) | Self::Query(name), Some(descriptor)) => {
                descriptor.for_each_value(name, &mut |value| add_header(name, value));
            }
            (Self::Header(name), None) => {
                head.for_each_header(name, &mut |value| add_header(name, value));
            }
            (Self::Cookie(name), None) => for_each_cookie(head, name, &mut |value| add(value.into())),
            (Self::Query(name), None) => for_each_query(head, name, &mut add),
        }
        found
    }
}

impl Default for CredentialSource {
    fn default() -> Self {
        Self::Header("authorization".into())
    }
}

impl fmt::Display for CredentialSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header {name}"),
            Self::Cookie(name) => write!(f, "cookie {name}"),
            Self::Query(name) => write!(f, "query {name}"),
        }
    }
}

/// Removes the scheme `Bearer`. `None` if it is required, and is missing.
fn remove_scheme(value: &[u8], is_required: bool) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer ";
    let value = value.trim_ascii();
    match value.split_at_checked(SCHEME.len()) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(SCHEME) => Some(token.trim_ascii_start()),
        _ if is_required => None,
        _ => Some(value),
    }
}

/// Bytes that are not UTF-8 are replaced: no credential contains them.
fn to_text(value: Cow<'_, [u8]>) -> Cow<'_, str> {
    match value {
        Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
        Cow::Owned(bytes) => String::from_utf8_lossy(&bytes).into_owned().into(),
    }
}
